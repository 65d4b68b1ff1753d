//! Starts and stops everything: probes, the Lease, watches, controllers.
//!
//! Watches begin only after the Lease is ours, with a consistent first list: so the writes of a
//! predecessor are seen, and the caches together with [`crate::accounts::fleet`] are enough to
//! never order a machine twice. One malformed object is skipped and counted; it never blinds a
//! watch. When the Lease is lost the process must end at once.

mod served;
mod watches;

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture, pin_mut};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Client,
    runtime::reflector::{ObjectRef, Store as Cache},
};
use skyward_api::{Machine, offer::Architecture};
use skyward_planner::{
    base::key::Key,
    events::{self, EventSpec},
};
use skyward_remote::{AgentBinaries, Connections, MachineKey, PodDialer};
use skyward_store::Store;
use tokio::{
    sync::mpsc,
    task::{Id, JoinSet},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    accounts::{clients::Accounts, fleet::Fleet, offers::Offers},
    base::{broadcast::Broadcast, queue::WorkQueue},
    caches::Caches,
    config::{Config, PodNetwork},
    context::{Context, KnownCapabilities, KnownKeys, ProviderFactory},
    cron, endpoints,
    events::Events,
    health::Health,
    hints::pool_loads::PoolLoads,
    leadership::{fence::Fence, lease, step_down::StepDown},
    logs, machine,
    metrics::Metrics,
    panics::Panics,
    pool, provider,
    references::References,
    restore::{self, Holds},
    runtime::{served::wait_for_crds, watches::watch_all},
    task,
    uploads::{UidOf, Uploads},
};

/// Makes the connections to machines: from the agent's executables, what reaches Pods through the API
/// server, and where the key of a machine goes whose connection changed.
pub type Connect = Box<
    dyn FnOnce(AgentBinaries, Option<Arc<dyn PodDialer>>, mpsc::Sender<MachineKey>) -> Arc<dyn Connections>
        + Send,
>;

/// The parts that `main.rs` brings.
pub struct Parts {
    /// Client of the API server; its writes pass the fence.
    pub client: Client,
    /// Client that is not fenced: for the Lease, and for endpoints of a process that does not lead.
    pub lease_client: Client,
    /// Closed unless this process leads.
    pub fence: Fence,
    /// Settings.
    pub config: Arc<Config>,
    /// Id of this installation: `--installation-id`, else the UID of the namespace kube-system.
    pub cluster: String,
    /// The id of installations that set none.
    pub unnamed_cluster: String,
    /// Makes clients of accounts.
    pub factory: ProviderFactory,
    /// Capabilities of kinds of provider.
    pub capabilities: KnownCapabilities,
    /// Keys of their Secrets.
    pub credential_keys: KnownKeys,
    /// Logs and results.
    pub store: Arc<Store>,
    /// The agent's executables.
    pub agents: AgentBinaries,
    /// Makes the connections to machines, once this process leads.
    pub connect: Connect,
    /// Metrics.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the process shall end.
    pub shutdown: CancellationToken,
}

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process may lead now.
    #[error("the Lease \"{}\" is lost: another process may lead now", lease::LEASE)]
    LeaseLost,
    /// Probes and metrics cannot be served.
    #[error(transparent)]
    Listen(#[from] std::io::Error),
    /// Our rights do not suffice.
    #[error(
        "the API server refuses to list {what}: {message}; apply the operator's ClusterRole and binding: install the chart, or config/default, again"
    )]
    Forbidden {
        /// What the right is for.
        what: String,
        /// The API server's message.
        message: String,
    },
    /// An agent refuses our epoch, and the Lease is not ours any more.
    #[error(
        "another process leads: {0} refuses the epoch of this process, and the Lease \"{lease}\" is not its own any more, so this process ends",
        lease = lease::LEASE
    )]
    Superseded(String),
    /// Machines proved a higher epoch after a restore, and a person decided.
    #[error(
        "the epoch was raised after a restore; this process ends, and the next leader's epoch is above those of its machines"
    )]
    EpochRaised,
    /// The key that proves epochs cannot be read.
    #[error("the Secret \"{secret}\" cannot be read or made: {0}", secret = restore::seal::SECRET)]
    Seal(#[source] kube::Error),
    /// A controller ended without a shutdown.
    #[error("a controller ended unexpectedly: {0}")]
    Ended(String),
}

/// How long controllers have to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(6);

/// Runs until shutdown, or until the Lease is lost.
pub async fn run(parts: Parts) -> Result<(), Error> {
    let health = Arc::new(Health::default());
    let serve = endpoints::serve(endpoints::Parts {
        config: parts.config.clone(),
        client: parts.lease_client.clone(),
        health: health.clone(),
        metrics: parts.metrics.clone(),
        shutdown: parts.shutdown.clone(),
    });
    let lead = lead(parts, health, true);
    pin_mut!(serve, lead);
    tokio::select! {
        result = &mut lead => result,
        served = &mut serve => {
            served?;
            lead.await
        }
    }
}

/// The same without probes, metrics, logs and results: in a simulation nobody asks for them.
pub async fn run_unserved(parts: Parts) -> Result<(), Error> {
    lead(parts, Arc::default(), false).await
}

async fn lead(parts: Parts, health: Arc<Health>, serves_logs: bool) -> Result<(), Error> {
    let shutdown = parts.shutdown.clone();
    tokio::select! {
        found = wait_for_crds(&parts.client, &health) => found?,
        () = shutdown.cancelled() => return Ok(()),
    }
    let lease_client = parts.lease_client.clone();
    let held = lease::acquire(lease_client, &parts.config, &health, &parts.fence, &shutdown).await;
    let Some(held) = held else {
        return Ok(());
    };
    tracing::info!(epoch = held.epoch, "this process leads");
    parts.metrics.leading(true);

    let lost = held.lost.clone();
    let result = tokio::select! {
        biased;
        () = lost.cancelled() => Err(Error::LeaseLost),
        result = control(parts, health, held.epoch, serves_logs) => result,
    };
    match result {
        // The process ends at once, without cleanup: another one may lead.
        Err(Error::LeaseLost) => Err(Error::LeaseLost),
        other => {
            held.release().await;
            other
        }
    }
}

/// UIDs of the namespaces that are served.
fn uid_of(config: Arc<Config>, caches: Caches) -> UidOf {
    Arc::new(move |namespace| {
        let is_served = config.serves(namespace);
        is_served.then(|| caches.namespace_uid(namespace)).flatten()
    })
}

/// Everything that happens while this process leads.
async fn control(parts: Parts, health: Arc<Health>, epoch: u64, serves_logs: bool) -> Result<(), Error> {
    let (client, metrics) = (&parts.client, &parts.metrics);
    let (events, events_writer) =
        Events::start(client.clone(), parts.config.identity.clone(), metrics.clone());

    // from sessions --machine whose session changed--> to the Machine controller
    let (changed_tx, changed_rx) = mpsc::channel(256);
    let pod_dialer: Option<Arc<dyn PodDialer>> = match parts.config.pod_network {
        PodNetwork::Direct => None,
        PodNetwork::PortForward => Some(Arc::new(machine::connector::PortForward::new(client.clone()))),
    };
    let architectures = [("x86_64", Architecture::Amd64), ("aarch64", Architecture::Arm64)]
        .into_iter()
        .filter(|(name, _)| parts.agents.get(name).is_some())
        .map(|(_, architecture)| architecture)
        .collect();
    let sessions = (parts.connect)(parts.agents, pod_dialer, changed_tx);

    let seal = seal(client, &parts.config, &parts.cluster).await?;
    let broadcast = Broadcast::default();
    let fleet = Arc::new(Fleet::of(&parts.cluster, &parts.unnamed_cluster));
    let offers = Arc::new(Offers::default());
    let ending = parts.shutdown.child_token();
    let panics = Arc::new(Panics::new(metrics.clone(), events.clone(), ending.clone()));
    let (caches, mut watches) = watch_all(client, &broadcast, &fleet, &offers, metrics, &panics);
    let references = Arc::new(References::new(client.clone(), parts.store.clone()));
    let uid_of = uid_of(parts.config.clone(), caches.clone());
    let uploads = Arc::new(Uploads::new(parts.store.clone(), uid_of, metrics.clone()));
    let context = Context {
        client: parts.client,
        config: parts.config,
        cluster: parts.cluster,
        unnamed_cluster: parts.unnamed_cluster,
        epoch,
        seal,
        holds: Arc::new(Holds::default()),
        sessions: sessions.clone(),
        store: parts.store,
        loads: Arc::new(PoolLoads::default()),
        live: Arc::default(),
        awaited: Arc::default(),
        providers: Arc::new(Accounts::default()),
        factory: parts.factory,
        capabilities: parts.capabilities,
        credential_keys: parts.credential_keys,
        events,
        metrics: parts.metrics,
        caches,
        feed: broadcast,
        fleet,
        session_wakeups: WorkQueue::new(),
        machine_wakeups: WorkQueue::new(),
        cron_wakeups: WorkQueue::new(),
        step_down: StepDown::default(),
        resolved: Arc::default(),
        offers,
        references,
        uploads,
        looked: Arc::default(),
        unavailable: Arc::default(),
        architectures,
        health: health.clone(),
        panics,
        shutdown: ending,
    };
    let pump = tokio::spawn(pump_sessions(
        changed_rx,
        context.caches.machines.clone(),
        context.machine_wakeups.clone(),
        context.session_wakeups.clone(),
    ));

    let result = tokio::select! {
        result = controllers(&context, serves_logs) => result,
        by = superseded(&context) => {
            let about = ObjectRef::<Lease>::new(lease::LEASE).within(&context.config.namespace).into();
            let note = format!("{by} refuses the epoch of this process, which does not hold the Lease any more: it ends");
            context.events.publish(&about, EventSpec::warning(events::reason::SUPERSEDED, "End", note));
            Err(Error::Superseded(by))
        }
        () = context.holds.restart.cancelled() => Err(Error::EpochRaised),
        // Without its watch a controller would be blind and not know it.
        Some(ended) = watches.join_next(), if !context.shutdown.is_cancelled() => {
            let why = ended.err().map_or_else(String::new, |error| format!(": {error}"));
            Err(Error::Ended(format!("a watch{why}")))
        }
    };
    context.shutdown.cancel();
    health.stopped();
    watches.abort_all();
    if timeout(Duration::from_secs(2), sessions.shutdown())
        .await
        .is_err()
    {
        tracing::warn!("some connections to machines did not close in time");
    }
    pump.abort();
    drop(context);
    drop(sessions);
    if timeout(Duration::from_secs(1), events_writer).await.is_err() {
        tracing::warn!("some Events were not written in time");
    }
    result
}

/// Reads the key that proves our epochs. An API server that does not answer is asked again before
/// the process gives up.
async fn seal(client: &Client, config: &Config, cluster: &str) -> Result<restore::seal::Seal, Error> {
    let mut tries = 0;
    loop {
        match restore::seal::read_or_make(client, &config.namespace, cluster).await {
            Ok(seal) => return Ok(seal),
            Err(error) if tries >= 5 => return Err(Error::Seal(error)),
            Err(error) => {
                tracing::warn!(%error, "the key that proves epochs could not be read; it is tried again");
            }
        }
        tries += 1;
        sleep(Duration::from_secs(2)).await;
    }
}

/// Waits until an agent refuses our epoch and the Lease, read for that, is not ours.
async fn superseded(context: &Context) -> String {
    let config = &context.config;
    let is_ours = || lease::is_still_ours(&context.client, config, context.epoch);
    context.step_down.proved(config.lease_duration / 3, is_ours).await
}

/// Runs all controllers; returns when shutdown has ended them, or one ended by itself.
async fn controllers(context: &Context, serves_logs: bool) -> Result<(), Error> {
    tokio::select! {
        () = synced(&context.caches) => {}
        () = context.shutdown.cancelled() => return Ok(()),
    }
    health_synced(context);
    let providers = context.caches.providers.state();
    let pools = context.caches.pools.state();
    context.holds.begin(
        providers.iter().map(AsRef::as_ref),
        pools.iter().map(AsRef::as_ref),
    );
    let mut running = JoinSet::new();
    let names: HashMap<Id, &str> = [
        kept(context, "provider", provider::run),
        kept(context, "pool", pool::run),
        kept(context, "machine", machine::run),
        kept(context, "task", task::run),
        kept(context, "cron", cron::run),
    ]
    .into_iter()
    .chain(serves_logs.then(|| kept(context, "logs", logs::run)))
    .map(|(name, controller)| (running.spawn(controller).id(), name))
    .collect();
    let name_of = |id: Id| names.get(&id).copied().unwrap_or("unknown");
    let failure = tokio::select! {
        () = context.shutdown.cancelled() => None,
        Some(ended) = running.join_next_with_id() => match ended {
            _ if context.shutdown.is_cancelled() => None,
            Ok((id, ())) => Some(Error::Ended(name_of(id).to_owned())),
            Err(error) => Some(Error::Ended(format!("{}: {error}", name_of(error.id())))),
        },
    };
    context.shutdown.cancel();
    let ended = timeout(GRACE, async { while running.join_next().await.is_some() {} }).await;
    if ended.is_err() {
        tracing::warn!(
            seconds = GRACE.as_secs(),
            "some controllers did not end in time; they are cut off"
        );
    }
    failure.map_or(Ok(()), Err)
}

/// One controller; a panic outside of an object's turn has it begin anew.
fn kept<F: Future<Output = ()> + Send + 'static>(
    context: &Context,
    name: &'static str,
    run: fn(Context) -> F,
) -> (&'static str, BoxFuture<'static, ()>) {
    let context = context.clone();
    let kept = async move {
        let panics = context.panics.clone();
        panics.keep(name, || run(context.clone())).await;
    };
    (name, kept.boxed())
}

fn health_synced(context: &Context) {
    tracing::info!(
        pools = context.caches.pools.len(),
        machines = context.caches.machines.len(),
        providers = context.caches.providers.len(),
        offers = context.caches.offers.len(),
        "watches are synced; controllers start"
    );
    context.health.synced(context.metric_sources());
}

async fn synced(caches: &Caches) {
    let mut waits = 0_u32;
    loop {
        let ready = async {
            tokio::try_join!(
                caches.pools.wait_until_ready(),
                caches.machines.wait_until_ready(),
                caches.providers.wait_until_ready(),
                caches.offers.wait_until_ready(),
                caches.cron_tasks.wait_until_ready(),
            )
        };
        // A dropped writer means that we are shutting down.
        if timeout(Duration::from_secs(10), ready).await.is_ok() {
            return;
        }
        waits += 1;
        tracing::warn!(
            seconds = waits * 10,
            "the first lists of the watches are still missing"
        );
    }
}

/// Wakes the Machine whose session changed, and the dispatcher of its Pool: a machine that comes
/// and goes wakes no other dispatcher.
async fn pump_sessions(
    mut changed_rx: mpsc::Receiver<MachineKey>,
    machines: Cache<Machine>,
    machine_wakeups: Arc<WorkQueue<Key>>,
    session_wakeups: Arc<WorkQueue<Key>>,
) {
    while let Some(machine) = changed_rx.recv().await {
        let key = ObjectRef::new(&machine.name).within(&machine.namespace);
        // A session begins for a Machine in the cache; the end of the Machine wakes its dispatcher
        // too.
        if let Some(known) = machines.get(&key) {
            let pool = Key::new(machine.namespace.as_str(), known.spec.pool.as_str());
            session_wakeups.enqueue(pool);
        }
        machine_wakeups.enqueue(Key::new(machine.namespace, machine.name));
    }
}
