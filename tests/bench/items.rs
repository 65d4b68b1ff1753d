//! A machine that is far away: a map on two agents of this machine, between one of which and the leader a proxy delays all
//! that passes. The leader is the controller's own (`planner/map/leader.rs`), and in place of a store there is a pause.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, bail};
use futures::channel::mpsc as queue;
use jiff::Timestamp;
use skyward_agent::{
    daemon::{Home, connect},
    protocol::{
        FromWorkers, Function, RunSpec, ToWorkers, Worker as Place,
        finished::Ending,
        from_workers::Message as Told,
        items_client::ItemsClient,
        run_spec::Work,
        to_workers::{Ack, Chunk, Message as Say, Open, Recall},
    },
};
use skyward_planner::map::{
    items::{Items, Retries},
    leader::{Command, Event, Heard, Leader, Life},
    plan::Spec,
    record::{Cause, Worker},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{agent::Daemon, measure::figure};

/// A message takes so long in each direction: an answer comes after 200 ms.
const WAY: Duration = Duration::from_millis(100);
/// What a store takes to keep a write.
const STORE: Duration = Duration::from_millis(20);
/// What is measured begins when both machines have had their first items, and lasts so long.
const WARM: Duration = Duration::from_secs(4);
const MEASURED: Duration = Duration::from_secs(15);
/// How busy the far machine is to be, in percent of the near one.
const BAR: f64 = 95.0;
/// More than both run meanwhile.
const TOTAL: u32 = 1_000_000;
const SPEC: Spec = Spec {
    retries: Retries {
        on_interruption: 0,
        on_failure: 0,
    },
    max_failed: None,
    buffer: 0,
    threads: 1,
    runs: true,
};
const MAP: &str = "far";
const SESSION: u64 = 1;

/// How busy a machine 200 ms away is, beside a near one.
pub(crate) async fn run(program: &Path) -> anyhow::Result<()> {
    for (name, item) in [("2ms", 2), ("20ms", 20), ("300ms", 300)] {
        let [near, far] = busy(program, Duration::from_millis(item))
            .await
            .with_context(|| format!("items of {item} ms"))?;
        figure(
            &format!("far_machine_busy_{name}"),
            100.0 * far / near,
            "%",
            &format!("{BAR:.0}"),
            &format!(
                "of the near machine, which is busy for {:.1} % of the time",
                100.0 * near
            ),
        );
    }
    Ok(())
}

/// Parts of the time for which the near machine and the far one run items that take so long.
async fn busy(program: &Path, item: Duration) -> anyhow::Result<[f64; 2]> {
    let daemons = [
        Daemon::start(program, &[]).await?,
        Daemon::start(program, &[]).await?,
    ];
    let proxied = tempfile::tempdir()?;
    let far = Home::new(daemons[1].home()).socket();
    let _proxy = Proxy::start(&Home::new(proxied.path()).socket(), far)?;
    let homes = [daemons[0].home(), proxied.path()];
    let source = format!(
        "import time\ndef main(item):\n    time.sleep({})\n",
        item.as_secs_f64()
    );
    let (news, hears) = mpsc::channel(64);
    let mut links = Vec::new();
    for (rank, (daemon, home)) in (0..).zip(daemons.iter().zip(homes)) {
        daemon.begin(place(MAP, rank, &source)).await?;
        links.push(Link::open(home, MAP, rank, news.clone()).await?);
    }
    let map = Map {
        leader: Leader::new(SPEC, Items::new(TOTAL)),
        links,
        stored_at: None,
        counts_from: Instant::now() + WARM,
        busy: [Duration::ZERO; 2],
    };
    let busy = map.run(hears).await?;
    for (rank, daemon) in (0..).zip(&daemons) {
        daemon.stop(&run_id(MAP, rank)).await?;
    }
    Ok(busy.map(|busy| busy.as_secs_f64() / MEASURED.as_secs_f64()))
}

pub(crate) fn run_id(map: &str, rank: u32) -> String {
    format!("{map}-1-{rank}")
}

fn worker(rank: u32) -> Worker {
    Worker { attempt: 1, rank }
}

/// The run that holds a place for the map.
pub(crate) fn place(map: &str, rank: u32, source: &str) -> RunSpec {
    let function = Function {
        source: source.to_owned(),
        args_json: "[]".to_owned(),
        ..Function::default()
    };
    RunSpec {
        run_id: run_id(map, rank),
        work: Some(Work::Function(function)),
        grace_ms: 1000,
        worker: Some(Place {
            total: TOTAL,
            fresh: false,
            threads: 1,
        }),
        ..RunSpec::default()
    }
}

/// The stream to one machine.
pub(crate) struct Link {
    orders: queue::UnboundedSender<ToWorkers>,
    round_trip: Duration,
    listening: JoinHandle<()>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Link {
    pub(crate) async fn open(
        home: &Path,
        map: &str,
        rank: u32,
        news: mpsc::Sender<(u32, FromWorkers)>,
    ) -> anyhow::Result<Self> {
        let channel = connect(&Home::new(home)).await?;
        let begun = Instant::now();
        let (orders, waiting) = queue::unbounded();
        let open = Open {
            epoch: 1,
            task_uid: map.to_owned(),
        };
        orders.unbounded_send(said(Say::Open(open)))?;
        let mut told = ItemsClient::new(channel).work(waiting).await?.into_inner();
        let round_trip = begun.elapsed();
        let listening = tokio::spawn(async move {
            while let Ok(Some(message)) = told.message().await {
                if news.send((rank, message)).await.is_err() {
                    break;
                }
            }
        });
        Ok(Self {
            orders,
            round_trip,
            listening,
        })
    }

    pub(crate) fn say(&self, message: Say) -> anyhow::Result<()> {
        Ok(self.orders.unbounded_send(said(message))?)
    }
}

fn said(message: Say) -> ToWorkers {
    ToWorkers {
        message: Some(message),
    }
}

/// What the controller's process of a map is, without cluster and store.
struct Map {
    leader: Leader<()>,
    links: Vec<Link>,
    /// When the write under way is stored.
    stored_at: Option<Instant>,
    counts_from: Instant,
    busy: [Duration; 2],
}

impl Map {
    async fn run(mut self, mut hears: mpsc::Receiver<(u32, FromWorkers)>) -> anyhow::Result<[Duration; 2]> {
        let end = self.counts_from + MEASURED;
        for rank in 0..2 {
            self.leader
                .on(Event::Worker(worker(rank), Life::Runs), Timestamp::now());
        }
        while Instant::now() < end {
            self.settle()?;
            let wait = self
                .leader
                .wakes_at()
                .map(|at| at.duration_since(Timestamp::now()));
            let wakes_at = wait.map(|wait| Instant::now() + Duration::try_from(wait).unwrap_or_default());
            let next = [Some(end), wakes_at, self.stored_at];
            tokio::select! {
                Some((rank, told)) = hears.recv() => {
                    self.hear(rank, told)?;
                    while let Ok((rank, told)) = hears.try_recv() {
                        self.hear(rank, told)?;
                    }
                }
                () = sleep_until(next.into_iter().flatten().min().unwrap_or(end)) => {}
            }
            if self.stored_at.is_some_and(|at| at <= Instant::now()) {
                self.stored_at = None;
                self.leader.on(Event::Stored, Timestamp::now());
            }
        }
        Ok(self.busy)
    }

    fn settle(&mut self) -> anyhow::Result<()> {
        for command in self.leader.settle(Timestamp::now()) {
            let (rank, message) = match command {
                Command::Write(_) => {
                    self.stored_at = Some(Instant::now() + STORE);
                    continue;
                }
                Command::Send(to, _, chunk) => {
                    let chunk = Chunk {
                        run_id: run_id(MAP, to.rank),
                        first: chunk.first,
                        count: chunk.count,
                        attempt: chunk.attempt,
                        items: Vec::new(),
                    };
                    (to.rank, Say::Chunk(chunk))
                }
                Command::Recall(to, _, range) => {
                    let recall = Recall {
                        run_id: run_id(MAP, to.rank),
                        first: range.start,
                        count: range.end - range.start,
                    };
                    (to.rank, Say::Recall(recall))
                }
                Command::Acknowledge(to, _, position) => {
                    let run_id = run_id(MAP, to.rank);
                    (to.rank, Say::Ack(Ack { run_id, position }))
                }
                Command::Close(_) | Command::Finish(_) => bail!("the map has ended early"),
            };
            let link = self.links.get(rank as usize).context("there are two machines")?;
            link.say(message)?;
        }
        Ok(())
    }

    fn hear(&mut self, rank: u32, told: FromWorkers) -> anyhow::Result<()> {
        let now = Timestamp::now();
        let heard = match told.message.context("a message that says nothing")? {
            Told::Holds(holds) => {
                let link = self.links.get(rank as usize).context("there are two machines")?;
                let opened = Event::Opened(worker(rank), SESSION, link.round_trip);
                self.leader.on(opened, now);
                let ranges = holds.ranges.iter();
                Heard::Holds(
                    ranges
                        .map(|range| range.first..range.first + range.count)
                        .collect(),
                )
            }
            Told::Released(released) => Heard::Released(released.first..released.first + released.count),
            Told::Told(told) => {
                anyhow::ensure!(!told.over, "a place has ended early");
                Heard::Told {
                    over: told.over,
                    cut: told.cut,
                }
            }
            Told::Ended(end) => {
                let is_success = end.ending() == Ending::Exited && end.exit_code == 0;
                anyhow::ensure!(is_success, "an item failed: {}", end.message);
                let took = Duration::from_micros(end.microseconds);
                if Instant::now() >= self.counts_from
                    && let Some(busy) = self.busy.get_mut(rank as usize)
                {
                    *busy += took;
                }
                Heard::Ended {
                    position: end.position,
                    index: end.index,
                    attempt: end.attempt,
                    cause: Cause::Success,
                    for_good: false,
                    pause: Duration::ZERO,
                    took,
                    body: (),
                    bytes: end.value.len(),
                }
            }
        };
        self.leader.on(Event::Heard(worker(rank), SESSION, heard), now);
        Ok(())
    }
}

/// Connects callers of one socket to another one, later.
struct Proxy(JoinHandle<()>);

impl Drop for Proxy {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Proxy {
    fn start(at: &Path, to: PathBuf) -> io::Result<Self> {
        let listener = UnixListener::bind(at)?;
        Ok(Self(tokio::spawn(async move {
            while let Ok((here, _)) = listener.accept().await {
                let Ok(there) = UnixStream::connect(&to).await else {
                    continue;
                };
                let (from_here, to_here) = here.into_split();
                let (from_there, to_there) = there.into_split();
                tokio::spawn(carry(from_here, to_there));
                tokio::spawn(carry(from_there, to_here));
            }
        })))
    }
}

/// Carries bytes; each arrives [`WAY`] after it was sent, and as many as are sent may be under way.
async fn carry(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin + Send + 'static,
) {
    let (sent, mut arrives) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut piece = vec![0; 64 * 1024];
        while let Ok(count @ 1..) = from.read(&mut piece).await {
            if sent
                .send((Instant::now() + WAY, piece[..count].to_vec()))
                .is_err()
            {
                break;
            }
        }
    };
    let write = async move {
        while let Some((at, piece)) = arrives.recv().await {
            sleep_until(at).await;
            if to.write_all(&piece).await.is_err() {
                break;
            }
        }
        // Nobody may read any more.
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}
