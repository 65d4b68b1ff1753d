//! The process of one map: a Task with `forEach` that runs. It reads the items, takes up the map's log in the store, talks
//! to its workers on their machines, and tells the Task's dispatcher how it stands. [`Leader`]
//! (`planner/map/leader.rs`) decides what happens to the items, and this module carries it out: nothing here makes a choice.
//!
//! The process ends when its dispatcher ends it. All that it knows is in the log and on the machines.

mod ends;
mod items;
mod link;
mod log;
mod matrix;
mod table;
mod teller;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use skyward_api::{
    MAX_RANKS, Task,
    condition::{cut, reason},
    task::ItemsStatus,
};
use skyward_planner::{
    base::key::Key,
    map::{
        fitness::Starts,
        indices::SHOWN_BYTES,
        items::Items as States,
        leader::{Command, Event as MapEvent, Heard, Leader, Life},
        plan::Verdict,
        record::Worker,
    },
    task::{
        message::{Event, MapNews, MapOrder, MapTold, MapWorker},
        model::RunId,
        status::Why,
    },
};
use skyward_remote::{
    AgentError, MachineKey,
    protocol::{FromWorkers, from_workers::Message},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

use self::{
    ends::{MESSAGE, Meaning},
    items::{Items, NoItems},
    link::{Link, News, Say},
    log::{Log, LogError, Trouble},
    teller::Teller,
};
pub(crate) use self::{
    items::look_for_config_map,
    table::{Maps, News as MapReceiver},
};
use crate::{
    context::Context,
    task::{
        delivery::outdated_under_workers,
        effects::{EffectRunner, now},
    },
};

/// News of machines that wait: each may have the value of an item.
const WAITING: usize = 16;
/// Pause before something is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST: Duration = Duration::from_secs(30);
/// Least time between two accounts of how the map stands, unless something depends on it.
const ACCOUNT: Duration = Duration::from_secs(1);
/// Bytes of ends that are not stored yet, from which on no more are read.
const PENDING: usize = 8 * 1024 * 1024;

/// Runs a map until its dispatcher ends it.
pub(crate) async fn run(
    runner: Arc<EffectRunner>,
    pool: Key,
    order: MapOrder,
    mut news: MapReceiver,
    events: mpsc::Sender<Event>,
) {
    let context = runner.context.clone();
    let mut teller = Teller::new(&order, events);
    // What changes is told as a whole: the last news count.
    let mut last = None;
    let mut pause = AGAIN;
    loop {
        let begun = {
            let begin = begin_at_last(&runner, &pool, &order, &mut teller);
            tokio::pin!(begin);
            loop {
                tokio::select! {
                    begun = &mut begin => break begun,
                    told = news.recv() => match told {
                        Some(told) => last = Some(told),
                        None => return,
                    },
                }
            }
        };
        let Some((task, items, log, states)) = begun else {
            // The dispatcher ends it.
            while news.recv().await.is_some() {}
            return;
        };
        let secrets = runner.secrets(&pool, &order.refs).await;
        let (heard, hears) = mpsc::channel(WAITING);
        let mut process = Process {
            context: &context,
            pool: &pool,
            order: &order,
            task,
            secrets,
            leader: None,
            states: Some(states),
            items: Arc::new(items),
            workers: BTreeMap::new(),
            machines: BTreeMap::new(),
            links: JoinSet::new(),
            sessions: 0,
            heard,
            trouble: log.trouble(),
            log: Some(log),
            verdict: None,
            close: Vec::new(),
            not_before: BTreeMap::new(),
            early: BTreeSet::new(),
            unsent: None,
            outdated: None,
            unfit: BTreeMap::new(),
            starts: Starts::default(),
            not_begun: 0,
            failed: (0, String::new()),
        };
        if let Some(last) = &last {
            process.on_news(MapNews::clone(last));
        }
        let over = process.serve(&mut news, &mut last, hears, &mut teller).await;
        drop(process);
        if matches!(over, Over::Ended) {
            return;
        }
        // The Lease is read meanwhile, and ends this process where another one leads. Where none does, a request to run
        // items again took the log over: without this process nothing would go on.
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

/// Why a map is not served any more.
enum Over {
    /// Its dispatcher has ended it.
    Ended,
    /// Another process has taken its log over.
    Superseded,
}

/// Reads the items and takes up the log, as soon as both succeed; `None`: they never will.
async fn begin_at_last(
    runner: &EffectRunner,
    pool: &Key,
    order: &MapOrder,
    teller: &mut Teller<'_>,
) -> Option<Begun> {
    let mut pause = AGAIN;
    loop {
        let (fault, trouble) = match begin(runner, pool, order).await {
            Ok(begun) => return Some(begun),
            Err(NoItems::Never(why)) => (Some(why), None),
            Err(NoItems::NotNow(why)) => (None, Some(why)),
        };
        let is_over = fault.is_some();
        let told = MapTold {
            fault,
            trouble,
            ..MapTold::default()
        };
        teller.tell(told, true).await;
        if is_over {
            return None;
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST);
    }
}

type Begun = (Arc<Task>, Items, Log, States);

/// Reads the items and takes up the log.
async fn begin(runner: &EffectRunner, pool: &Key, order: &MapOrder) -> Result<Begun, NoItems> {
    let context = &runner.context;
    let not_read = |why: String| {
        NoItems::NotNow(Why::new(
            reason::ITEMS_NOT_READ,
            format!(
                "the items of the Task cannot be read: {}. That is tried again by itself",
                cut(&why, 500)
            ),
        ))
    };
    let task = runner.read(pool, &order.name).await.map_err(not_read)?;
    let task = task.filter(|task| task.metadata.uid.as_deref() == Some(&*order.uid));
    let task = task.ok_or_else(|| not_read("it is gone".to_owned()))?;
    let items = items::read(context, pool, order, &task).await?;
    let taken = Log::lead(context, pool, &order.uid, items.len()).await;
    match taken {
        Ok((log, states)) => Ok((task, items, log, states)),
        Err(LogError::Superseded) => {
            let who = format!("the log of map \"{}/{}\"", pool.namespace, order.name);
            context.step_down.doubt(who);
            Err(not_read(
                "another process of the operator runs this Task".to_owned(),
            ))
        }
        Err(LogError::NotNow(why)) => Err(NoItems::NotNow(why)),
    }
}

/// The stream to one machine.
struct Machine {
    connection: u64,
    session: u64,
    say: mpsc::UnboundedSender<Say>,
    /// Once it is open: how long that took.
    distance: Option<Duration>,
}

struct Process<'a> {
    context: &'a Context,
    pool: &'a Key,
    order: &'a MapOrder,
    task: Arc<Task>,
    /// Values to mask; `None`: they cannot be read.
    secrets: Option<Vec<String>>,
    /// From the first news on.
    leader: Option<Leader<Bytes>>,
    states: Option<States>,
    items: Arc<Items>,
    workers: BTreeMap<u32, MapWorker>,
    machines: BTreeMap<Arc<str>, Machine>,
    links: JoinSet<()>,
    sessions: u64,
    heard: mpsc::Sender<News>,
    /// `None` while a write is under way.
    log: Option<Log>,
    verdict: Option<Verdict>,
    close: Vec<u32>,
    /// Why the log cannot be written.
    trouble: Trouble,
    /// No stream to these machines is opened before.
    not_before: BTreeMap<Arc<str>, Instant>,
    /// Ranks that a machine reported before the dispatcher did: these reports are lost, and are requested again.
    early: BTreeSet<u32>,
    /// What kept the last items from being sent, until one ends.
    unsent: Option<Why>,
    /// A machine whose agent runs no items, with what helps.
    outdated: Option<Why>,
    /// Ranks of workers whose machine cannot begin items, and how the last attempt ended there.
    unfit: BTreeMap<u32, Why>,
    /// Where programs start.
    starts: Starts,
    /// Attempts with which the map is no further, as they did not begin.
    not_begun: u64,
    /// How many items have failed, and their indices in words: thousands of ranges are not written out for nothing.
    failed: (u32, String),
}

impl Process<'_> {
    /// `last` becomes the last news.
    async fn serve(
        &mut self,
        news: &mut MapReceiver,
        last: &mut Option<MapNews>,
        mut hears: mpsc::Receiver<News>,
        teller: &mut Teller<'_>,
    ) -> Over {
        let mut writing: Option<BoxFuture<'static, Log>> = None;
        loop {
            self.connect();
            if let Some(write) = self.settle() {
                writing = Some(write);
            }
            let is_due = teller.is_due();
            teller.tell(self.account(), is_due).await;
            let wakes_at = self.wakes_at();
            let has_room = self.has_room();
            tokio::select! {
                told = news.recv() => match told {
                    Some(told) => {
                        *last = Some(told.clone());
                        self.on_news(told);
                    }
                    None => return Over::Ended,
                },
                // What is not read waits on the machines.
                Some(told) = hears.recv(), if has_room => {
                    self.on_heard(told);
                    // More of them are one write.
                    for _ in 0..WAITING * 4 {
                        if !self.has_room() {
                            break;
                        }
                        let Ok(told) = hears.try_recv() else { break };
                        self.on_heard(told);
                    }
                }
                log = write(&mut writing), if writing.is_some() => {
                    writing = None;
                    if log.is_superseded() {
                        let who = format!("the log of map \"{}/{}\"", self.pool.namespace, self.order.name);
                        self.context.step_down.doubt(who);
                        return Over::Superseded;
                    }
                    self.log = Some(log);
                    if let Some(leader) = &mut self.leader {
                        leader.on(MapEvent::Stored, now());
                    }
                }
                Some(_) = self.links.join_next() => {}
                () = sleep_until(wakes_at) => {}
            }
        }
    }

    /// Whether more may be read before what was read is stored.
    fn has_room(&self) -> bool {
        self.leader
            .as_ref()
            .is_none_or(|leader| leader.pending() < PENDING)
    }

    /// When something is due that nobody tells of.
    fn wakes_at(&self) -> Instant {
        let wait = self.leader.as_ref().and_then(Leader::wakes_at);
        let wait = wait.map(|at| Duration::try_from(at.duration_since(now())).unwrap_or_default());
        Instant::now() + wait.unwrap_or(ACCOUNT).min(ACCOUNT)
    }

    fn on_news(&mut self, news: MapNews) {
        let at = now();
        let MapNews {
            spec,
            workers,
            others_are_gone,
        } = news;
        if let Some(states) = self.states.take() {
            self.starts = Starts::new(states.done().len() > states.failed().len());
            let mut leader = Leader::new(spec, states);
            let policy = self.policy();
            leader.rest_anew(policy.ignores(), |failures| policy.pause(failures), at);
            self.leader = Some(leader);
        }
        let attempt = self.order.attempt;
        let Some(leader) = &mut self.leader else { return };
        leader.on(MapEvent::Spec(spec), at);
        for worker in &workers {
            let known = Worker {
                attempt,
                rank: worker.rank,
            };
            leader.on(MapEvent::Worker(known, worker.life), at);
        }
        if others_are_gone {
            let ranks: Vec<u32> = workers.iter().map(|worker| worker.rank).collect();
            let others: Vec<Worker> = leader
                .holders()
                .filter(|holder| holder.attempt != attempt || !ranks.contains(&holder.rank))
                .collect();
            for other in others {
                leader.on(MapEvent::Worker(other, Life::Lost), at);
            }
        }
        self.workers = workers.into_iter().map(|worker| (worker.rank, worker)).collect();
        let early: Vec<Arc<str>> = self
            .workers
            .values()
            .filter(|worker| self.early.remove(&worker.rank))
            .map(|worker| worker.machine.clone())
            .collect();
        for name in early {
            self.disconnect(&name);
        }
    }

    /// Opens streams to machines that are connected, and forgets those to others.
    fn connect(&mut self) {
        self.outdated = None;
        let mut wanted: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for worker in self.workers.values().filter(|worker| worker.life != Life::Lost) {
            if let Some(connection) = worker.connection {
                wanted.insert(worker.machine.clone(), connection);
            }
        }
        let stale: Vec<Arc<str>> = self
            .machines
            .iter()
            .filter(|(name, machine)| wanted.get(*name) != Some(&machine.connection))
            .map(|(name, _)| name.clone())
            .collect();
        for name in stale {
            self.disconnect(&name);
        }
        for (name, connection) in wanted {
            let is_early = self.not_before.get(&name).is_some_and(|at| *at > Instant::now());
            if self.machines.contains_key(&name) || is_early || self.leader.is_none() {
                continue;
            }
            let key = MachineKey::new(self.pool.namespace.as_str(), &*name);
            let agent = self.context.sessions.agent(&key);
            let Some(agent) = agent.filter(|agent| agent.connection == connection) else {
                continue;
            };
            if !agent.runs_items() {
                self.outdated.get_or_insert_with(|| outdated_under_workers(&name));
                continue;
            }
            self.sessions += 1;
            let (say, says) = mpsc::unbounded_channel();
            let link = Link {
                agent,
                uid: self.order.uid.clone(),
                machine: name.clone(),
                session: self.sessions,
                items: self.items.clone(),
                say: says,
                news: self.heard.clone(),
            };
            self.links.spawn(link.run());
            let machine = Machine {
                connection,
                session: self.sessions,
                say,
                distance: None,
            };
            self.machines.insert(name, machine);
        }
    }

    fn disconnect(&mut self, name: &Arc<str>) {
        let Some(machine) = self.machines.remove(name) else {
            return;
        };
        let Some(leader) = &mut self.leader else { return };
        for worker in self.workers.values().filter(|worker| worker.machine == *name) {
            let worker = Worker {
                attempt: self.order.attempt,
                rank: worker.rank,
            };
            leader.on(MapEvent::Closed(worker, machine.session), now());
        }
    }

    fn on_heard(&mut self, news: News) {
        let News {
            machine: name,
            session,
            heard,
        } = news;
        let Some(machine) = self
            .machines
            .get_mut(&name)
            .filter(|machine| machine.session == session)
        else {
            return;
        };
        match heard {
            link::Heard::Opened(distance) => machine.distance = Some(distance),
            link::Heard::Told(told) => {
                let distance = machine.distance.unwrap_or_default();
                self.on_told(&name, session, distance, *told);
            }
            link::Heard::Closed(error) => {
                if error == AgentError::StaleEpoch {
                    let who = format!("the agent of Machine \"{}/{name}\"", self.pool.namespace);
                    self.context.step_down.doubt(who);
                }
                if let AgentError::Busy(why) = &error {
                    let message = format!(
                        "items cannot be given to Machine \"{name}\" now: {}. That is tried again by itself",
                        cut(why, MESSAGE)
                    );
                    self.unsent = Some(Why::new(reason::ITEMS_NOT_READ, message));
                }
                tracing::debug!(task = %self.order.name, machine = %name, %error, "a stream of items ended");
                self.not_before.insert(name.clone(), Instant::now() + AGAIN);
                self.disconnect(&name);
            }
        }
    }

    fn on_told(&mut self, name: &Arc<str>, session: u64, distance: Duration, told: FromWorkers) {
        let at = now();
        let Some(run) = RunId::parse(&told.run_id) else {
            return;
        };
        if run.uid != self.order.uid || run.attempt != self.order.attempt {
            return;
        }
        match self.workers.get(&run.rank) {
            Some(known) if known.machine == *name => {}
            // A machine speaks of its own workers only.
            Some(_) => return,
            None => {
                // No attempt has a higher rank, and a machine may name any.
                if run.rank < MAX_RANKS {
                    self.early.insert(run.rank);
                }
                return;
            }
        }
        let worker = Worker {
            attempt: run.attempt,
            rank: run.rank,
        };
        let mut meaning = Meaning::default();
        let heard = match told.message {
            None => return,
            Some(Message::Holds(holds)) => {
                if let Some(leader) = &mut self.leader {
                    leader.on(MapEvent::Opened(worker, session, distance), at);
                }
                let ranges = holds.ranges.iter();
                Heard::Holds(
                    ranges
                        .map(|range| range.first..range.first.saturating_add(range.count))
                        .collect(),
                )
            }
            Some(Message::Released(released)) => {
                Heard::Released(released.first..released.first.saturating_add(released.count))
            }
            Some(Message::Told(told)) => Heard::Told {
                over: told.over,
                cut: told.cut,
            },
            Some(Message::Ended(ended)) => {
                self.unsent = None;
                let (heard, means) = self.ended(name, worker, &ended);
                meaning = means;
                heard
            }
        };
        let Some(leader) = &mut self.leader else { return };
        let before = leader.items().ends();
        leader.on(MapEvent::Heard(worker, session, heard), at);
        let ends = leader.items().ends() - before;
        if meaning.is_vain {
            self.not_begun += ends;
        }
        if let Some(why) = meaning.unfit.filter(|_| ends > 0) {
            self.machine_is_unfit(name, &why);
        }
    }

    /// Carries out what the leader says. The answer is a write, if one begins.
    fn settle(&mut self) -> Option<BoxFuture<'static, Log>> {
        self.close.clear();
        let mut write = None;
        let leader = self.leader.as_mut()?;
        for command in leader.settle(now()) {
            match command {
                Command::Write(entries) => write = Some(entries),
                Command::Send(worker, session, chunk) => {
                    self.say(worker, session, |run| Say::Chunk(run, chunk));
                }
                Command::Recall(worker, session, range) => {
                    self.say(worker, session, |run| Say::Recall(run, range));
                }
                Command::Acknowledge(worker, session, position) => {
                    self.say(worker, session, |run| Say::Acknowledge(run, position));
                }
                Command::Close(worker) if worker.attempt == self.order.attempt => {
                    self.close.push(worker.rank);
                }
                Command::Close(_) => {}
                Command::Finish(verdict) => self.verdict = Some(verdict),
            }
        }
        let entries = write?;
        let mut log = self.log.take()?;
        let (context, namespace) = (self.context.clone(), self.pool.namespace.clone());
        let write = async move {
            log.write(entries, &context, &namespace).await;
            log
        };
        Some(write.boxed())
    }

    /// Says something over the stream that the leader means, if it is open still.
    fn say(&self, worker: Worker, session: u64, say: impl FnOnce(String) -> Say) {
        let machine = self.workers.get(&worker.rank).map(|worker| &worker.machine);
        let Some(machine) = machine.and_then(|name| self.machines.get(name)) else {
            return;
        };
        if machine.session == session {
            let run = RunId::new(&self.order.uid, worker.attempt, worker.rank);
            // A stream that has ended is opened anew, and asks.
            let _ = machine.say.send(say(run.to_string()));
        }
    }

    /// How the map stands.
    fn account(&mut self) -> MapTold {
        // Before the first news it has nothing to tell: what it tells is written into the status of the Task.
        let Some(leader) = &self.leader else {
            return MapTold::default();
        };
        let states = leader.items();
        let failed = states.failed().len();
        if failed != self.failed.0 {
            self.failed = (failed, states.failed().describe(SHOWN_BYTES));
        }
        let done_with = self.workers.keys().copied().filter(|rank| {
            leader.is_done_with(Worker {
                attempt: self.order.attempt,
                rank: *rank,
            })
        });
        MapTold {
            total: Some(states.total()),
            useful: leader.useful(),
            work: leader.work(now()),
            items: ItemsStatus {
                total: states.total(),
                active: leader.busy(),
                succeeded: states.done().len() - failed,
                failed,
                failed_indexes: self.failed.1.clone(),
            },
            old_failures: failed.saturating_sub(states.new_failures()),
            ends: states.ends().saturating_sub(self.not_begun),
            unfit: self.unfit.clone(),
            close: self.close.clone(),
            done_with: done_with.collect(),
            verdict: self.verdict,
            fault: None,
            trouble: {
                let of_store = self.trouble.lock().clone();
                let others = self.unsent.as_ref().or(self.outdated.as_ref());
                of_store.or_else(|| others.cloned())
            },
        }
    }
}

async fn write(writing: &mut Option<BoxFuture<'static, Log>>) -> Log {
    match writing {
        Some(writing) => writing.await,
        None => std::future::pending().await,
    }
}
