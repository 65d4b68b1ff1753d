//! One process of the controller, with a runtime and a clock of its own: dropping it is a crash, and while
//! it is not run it is stopped, as by SIGSTOP.

use std::{sync::Arc, time::Duration};

use skyward_controller::{
    config::{Config, PodNetwork},
    deadline::Deadline,
    leadership::fence::{Fence, Fencing},
    metrics::Metrics,
    runtime::{Error, Parts, run_unserved},
};
use skyward_core::clock;
use skyward_remote::AgentBinaries;
use skyward_store::{Quota, Store};
use tokio::{
    runtime::{Builder, Runtime},
    task::JoinHandle,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tower::Layer;

use crate::{
    calls::{Net, Next, Way, in_turn},
    client::Client,
    kinds::Kind,
    planted::{self, Fault},
    sessions::Machines,
    stored::Stored,
    time::{self, Moment, lasting},
    world::{CLUSTER, OPERATOR, World},
};

/// Why a process stopped running.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The moment has come.
    Time,
    /// It died at a call.
    Died,
    /// It stands still for so long.
    StandsStill(Moment),
    /// It ended by itself.
    Ended(Result<(), Error>),
}

/// A process.
pub(crate) struct Process {
    pub(crate) way: Arc<Way>,
    runtime: Runtime,
    main: Option<JoinHandle<Result<(), Error>>>,
    /// What its clock showed when it began, and the moment of that.
    base: Instant,
    since: Moment,
}

impl Process {
    /// Starts a process.
    pub(crate) fn start(world: &Arc<World>, number: u32, identity: &str, lease: u64) -> Self {
        let since = time::now();
        // Pauses after failures are chances of the seed, too.
        fastrand::seed(world.seed ^ u64::from(number));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            // A story can be forked only where no thread waits for work.
            .thread_keep_alive(Duration::ZERO)
            .build()
            .expect("a runtime of one thread needs nothing");
        let way = Way::new(world.clone(), number, identity.to_owned());
        {
            let mut truth = world.truth();
            truth.processes += 1;
            truth.tell(format!("process {number} starts as {identity}"));
        }
        let entered = runtime.enter();
        let base = Instant::now();
        time::run(base, since);
        let main = tokio::spawn(run_unserved(parts(&way, identity, lease)));
        drop(entered);
        time::stand_still(since);
        Self {
            way,
            runtime,
            main: Some(main),
            base,
            since,
        }
    }

    /// Runs until that moment, or until it ends or dies. A process that was stopped meanwhile finds its
    /// clock ahead.
    pub(crate) fn run_until(&mut self, until: Moment) -> Stop {
        let _clock = clock::set(time::time_of_day);
        let started = time::now();
        time::run(self.base, self.since);
        let (way, main, base, since) = (&self.way, &mut self.main, self.base, self.since);
        let running = async {
            let behind = started - time::now();
            if behind > 0 {
                way.goes_on();
                tokio::time::advance(lasting(behind)).await;
            }
            let end = base + lasting(until - since);
            loop {
                // Everything runs until nothing can without a call or the time.
                sleep(lasting(1)).await;
                if way.is_dead() {
                    return Stop::Died;
                }
                if let Some(main) = main.as_mut().filter(|main| main.is_finished()) {
                    let ended = main
                        .await
                        .unwrap_or_else(|error| Err(Error::Ended(error.to_string())));
                    return Stop::Ended(ended);
                }
                if Instant::now() >= end {
                    return Stop::Time;
                }
                match way.next() {
                    Next::Given => {}
                    Next::StandsStill(time) => return Stop::StandsStill(time),
                    Next::Nothing => {
                        let Some(main) = main.as_mut() else {
                            return Stop::Died;
                        };
                        tokio::select! {
                            biased;
                            () = way.stirs.notified() => {}
                            () = sleep_until(end) => {}
                            ended = main => {
                                return Stop::Ended(ended.unwrap_or_else(|error| Err(Error::Ended(error.to_string()))));
                            }
                        }
                    }
                }
            }
        };
        // Only within the runtime its clock is asked.
        let (stop, at) = self.runtime.block_on(async { (running.await, time::now()) });
        time::stand_still(at);
        if matches!(stop, Stop::Died | Stop::Ended(_)) {
            self.main = None;
        }
        stop
    }
}

/// What `main.rs` would bring; or that with a planted fault.
fn parts(way: &Arc<Way>, identity: &str, lease: u64) -> Parts {
    let planted = way.world.truth().planted;
    let is_fenced = planted != Some(Fault::FenceIgnored);
    let fence = Fence::with_clock(|| Instant::now().into_std());
    let asked = if is_fenced {
        fence.clone()
    } else {
        Fence::always_open()
    };
    let service = way.world.server.service(Arc::new(Net(way.clone())));
    let lease_client = kube::Client::new(in_turn(way.clone(), service.clone()), OPERATOR);
    let written = planted::writes(way.world.clone(), planted, service);
    let fenced = Fencing(asked.clone()).layer(Deadline.layer(written));
    let client = kube::Client::new(in_turn(way.clone(), fenced), OPERATOR);
    let (clouds, machines) = (way.clone(), way.clone());
    Parts {
        client,
        lease_client,
        fence,
        config: Arc::new(config(identity, lease)),
        cluster: CLUSTER.to_owned(),
        unnamed_cluster: CLUSTER.to_owned(),
        factory: Arc::new(move |object, credentials| {
            let client = Client::new(clouds.clone(), asked.clone(), object, credentials)?;
            Ok(planted::cloud(planted, Arc::new(client)))
        }),
        capabilities: |name| Kind::named(name).map(|kind| &kind.capabilities),
        credential_keys: |_| &[],
        store: Arc::new(Store::over(Stored::new(way.clone()))),
        agents: agents(),
        connect: Box::new(move |_, _, changed| {
            planted::connections(planted, Machines::new(machines, changed))
        }),
        metrics: Arc::new(Metrics::default()),
        shutdown: CancellationToken::new(),
    }
}

/// Any file is an agent for machines that are never dialled.
fn agents() -> AgentBinaries {
    static AGENTS: std::sync::LazyLock<AgentBinaries> = std::sync::LazyLock::new(|| {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        AgentBinaries::of_this_architecture(file).expect("it is this crate's own file")
    });
    AGENTS.clone()
}

fn config(identity: &str, lease: u64) -> Config {
    let nowhere = ([127, 0, 0, 1], 0).into();
    Config {
        namespace: OPERATOR.to_owned(),
        identity: identity.to_owned(),
        advertise: None,
        pod_uid: None,
        health_address: nowhere,
        metrics_address: nowhere,
        debug_address: nowhere,
        data_address: nowhere,
        store: "/nowhere".into(),
        store_quota: Quota::default(),
        hold_for: Duration::from_hours(1),
        agents: "/nowhere".into(),
        node_image: "node".to_owned(),
        pod_network: PodNetwork::Direct,
        namespaces: std::collections::BTreeSet::new(),
        lease_duration: Duration::from_secs(lease),
        concurrency: 8,
    }
}
