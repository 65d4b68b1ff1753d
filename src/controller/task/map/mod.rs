//! The process of one map: a Task with `forEach` that runs. It reads the items, takes up the map's log in the store, talks
//! to its workers on their machines, and tells the Task's dispatcher how it stands. What is done with the items is
//! decided by [`Leader`] (`planner/map/leader.rs`), which this carries out: nothing here makes a choice.
//!
//! It ends when its dispatcher ends it. All that it knows is in the log and on the machines.

mod items;
mod link;
mod log;
mod table;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, future::BoxFuture};
use skyward_api::{
    Task,
    condition::{cut, reason},
    task::{ItemsStatus, RetryAction},
};
use skyward_planner::{
    base::key::Key,
    map::{
        items::Items as States,
        leader::{Command, Entry, Event as MapEvent, Heard, Leader, Life},
        outcome::{self, Outcome},
        plan::Verdict,
        record::{Cause, Worker},
    },
    task::{
        message::{Event, MapNews, MapOrder, MapTold, MapWorker},
        model::RunId,
        retries::{Failure, Policy},
        status::Why,
    },
};
use skyward_remote::{
    AgentError, MachineKey,
    protocol::{EXCEPTION_BYTES, FromWorkers, ItemEnded, from_workers::Message},
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, sleep_until},
};

pub(crate) use self::table::{Maps, News as MapReceiver};
use self::{
    items::{Items, NoItems},
    link::{Link, News, Say},
    log::{Log, LogError, Trouble},
};
use crate::{
    context::Context,
    task::{
        collect::{reason_of, signal_name},
        effects::{EffectRunner, now},
        tail, told,
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
const PENDING: usize = 16 * 1024 * 1024;
/// Bytes of the indices of failed items that a status shows.
const INDICES: usize = 4096;
/// Bytes of what went wrong with an item that are kept.
const MESSAGE: usize = 1000;

/// Runs a map until its dispatcher ends it.
pub(crate) async fn run(
    runner: Arc<EffectRunner>,
    pool: Key,
    order: MapOrder,
    mut news: MapReceiver,
    events: mpsc::Sender<Event>,
) {
    let context = runner.context.clone();
    let mut teller = Teller {
        order: &order,
        events,
        told: MapTold::default(),
        at: None,
    };
    let begin = async {
        let mut pause = AGAIN;
        loop {
            let (fault, trouble) = match begin(&runner, &pool, &order).await {
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
    };
    // What changes meanwhile is told as a whole: the last news count.
    let mut last = None;
    let begun = {
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
        is_over: false,
    };
    if let Some(last) = last {
        process.on_news(last);
    }
    process.serve(news, hears, teller).await;
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

/// Tells the dispatcher how the map stands.
struct Teller<'a> {
    order: &'a MapOrder,
    events: mpsc::Sender<Event>,
    told: MapTold,
    at: Option<Instant>,
}

impl Teller<'_> {
    /// Tells it, if that is news; what nothing depends on only from time to time.
    async fn tell(&mut self, told: MapTold, is_due: bool) {
        let counts = |told: &MapTold| MapTold {
            items: ItemsStatus::default(),
            useful: 0,
            work: Duration::ZERO,
            ..told.clone()
        };
        let matters = counts(&told) != counts(&self.told);
        let is_known = told == self.told && self.at.is_some();
        if is_known || !(matters || is_due) {
            return;
        }
        self.told = told.clone();
        self.at = Some(Instant::now());
        let event = Event::MapTold(self.order.uid.clone(), self.order.attempt, Box::new(told));
        // A dispatcher that ended needs no events any more.
        let _ = self.events.send(event).await;
    }

    fn is_due(&self) -> bool {
        self.at.is_none_or(|at| at.elapsed() >= ACCOUNT)
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
    /// What keeps the log from being written.
    trouble: Trouble,
    /// No stream to these machines is opened before.
    not_before: BTreeMap<Arc<str>, Instant>,
    /// Another leader writes the log.
    is_over: bool,
}

impl Process<'_> {
    async fn serve(
        &mut self,
        mut news: MapReceiver,
        mut hears: mpsc::Receiver<News>,
        mut teller: Teller<'_>,
    ) {
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
                    Some(told) => self.on_news(told),
                    None => return,
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
                    self.on_written(log);
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
            self.leader = Some(Leader::new(spec, states));
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
    }

    /// Opens streams to machines that are connected, and forgets those to others.
    fn connect(&mut self) {
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
            if self.machines.contains_key(&name) || self.is_over || is_early || self.leader.is_none() {
                continue;
            }
            let key = MachineKey::new(self.pool.namespace.as_str(), &*name);
            let agent = self.context.sessions.agent(&key);
            let Some(agent) = agent.filter(|agent| agent.connection == connection && agent.runs_items())
            else {
                continue;
            };
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
        // A machine speaks of its own workers only.
        let is_its = self
            .workers
            .get(&run.rank)
            .is_some_and(|worker| worker.machine == *name && run.attempt == self.order.attempt);
        if !is_its || run.uid != self.order.uid {
            return;
        }
        let worker = Worker {
            attempt: run.attempt,
            rank: run.rank,
        };
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
            Some(Message::Ended(ended)) => self.ended(name, &ended),
        };
        if let Some(leader) = &mut self.leader {
            leader.on(MapEvent::Heard(worker, session, heard), at);
        }
    }

    /// The end of an attempt of an item, as the leader is told it.
    fn ended(&self, machine: &str, end: &ItemEnded) -> Heard<Bytes> {
        let finished = told::item(end);
        let why = reason_of(&finished);
        let policy = Policy {
            task: self.task.spec.retries.as_ref(),
            pool: Some(&self.order.pool.retries),
        };
        let failure = Failure {
            reason: why,
            exit_code: (why == reason::NON_ZERO_EXIT).then_some(end.exit_code),
            exception: &end.exception,
        };
        let (cause, for_good) = match why {
            reason::SUCCEEDED => (Cause::Success, false),
            reason::INTERRUPTED => (Cause::Interruption, false),
            reason::STOPPED => (Cause::Uncounted, false),
            _ => match policy.action(&failure) {
                RetryAction::Retry => (Cause::Failure, false),
                RetryAction::Fail => (Cause::Failure, true),
                RetryAction::Ignore => (Cause::Uncounted, false),
            },
        };
        let failures = self
            .leader
            .as_ref()
            .map_or(0, |leader| leader.items().counts(end.index).failures);
        let has_failed = !matches!(why, reason::SUCCEEDED | reason::INTERRUPTED | reason::STOPPED);
        let pause = if has_failed {
            policy.pause(failures.saturating_add(1))
        } else {
            Duration::ZERO
        };
        let is_known = self.secrets.is_some();
        let masked = |text: &str, most: usize| match &self.secrets {
            Some(secrets) => cut(&tail::masked(&tail::harmless(text), secrets), most),
            None => String::new(),
        };
        let outcome = Outcome {
            reason: why.to_owned(),
            exit_code: (why == reason::NON_ZERO_EXIT).then_some(end.exit_code),
            signal: signal_name(end.signal),
            exception: masked(&end.exception, EXCEPTION_BYTES),
            message: if is_known || end.message.is_empty() {
                masked(&end.message, MESSAGE)
            } else {
                "[not shown: the Secrets it may hold cannot be read now]".to_owned()
            },
            machine: machine.to_owned(),
            milliseconds: end.microseconds / 1000,
        };
        let value = if cause == Cause::Success {
            &end.value[..]
        } else {
            &[]
        };
        let body = Bytes::from(outcome::body(&outcome, value));
        Heard::Ended {
            position: end.position,
            index: end.index,
            attempt: end.attempt,
            cause,
            for_good,
            pause,
            took: Duration::from_micros(end.microseconds),
            bytes: body.len(),
            body,
        }
    }

    /// Carries out what the leader says. The answer is a write, if one begins.
    fn settle(&mut self) -> Option<BoxFuture<'static, Log>> {
        self.close.clear();
        let mut write = None;
        let Some(leader) = self.leader.as_mut().filter(|_| !self.is_over) else {
            return None;
        };
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
        let metrics = self.context.metrics.clone();
        let write = async move {
            let entries = entries.into_iter().map(with_body).collect();
            log.write(entries, &metrics).await;
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

    fn on_written(&mut self, log: Log) {
        if log.is_superseded() {
            self.is_over = true;
            self.machines.clear();
            self.links.abort_all();
            let who = format!("the log of map \"{}/{}\"", self.pool.namespace, self.order.name);
            self.context.step_down.doubt(who);
        } else if let Some(leader) = &mut self.leader {
            leader.on(MapEvent::Stored, now());
        }
        self.log = Some(log);
    }

    /// How the map stands.
    fn account(&self) -> MapTold {
        let Some(leader) = &self.leader else {
            return MapTold {
                total: Some(self.items.len()),
                items: ItemsStatus {
                    total: self.items.len(),
                    ..ItemsStatus::default()
                },
                ..MapTold::default()
            };
        };
        let states = leader.items();
        let failed = states.failed().len();
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
                failed_indexes: states.failed().describe(INDICES),
            },
            close: self.close.clone(),
            done_with: done_with.collect(),
            verdict: self.verdict,
            fault: None,
            trouble: self.trouble.lock().clone(),
        }
    }
}

async fn write(writing: &mut Option<BoxFuture<'static, Log>>) -> Log {
    match writing {
        Some(writing) => writing.await,
        None => std::future::pending().await,
    }
}

/// An end that the leader itself decides has no body: its item was interrupted too often.
fn with_body(entry: Entry<Bytes>) -> Entry<Bytes> {
    let is_end = matches!(entry.record, skyward_planner::map::record::Record::Ended(_));
    if !is_end || entry.body.is_some() {
        return entry;
    }
    let outcome = Outcome {
        reason: reason::INTERRUPTED.to_owned(),
        message: "its machines were lost more often than retries.onInterruption allows".to_owned(),
        ..Outcome::default()
    };
    Entry {
        body: Some(outcome::body(&outcome, &[]).into()),
        ..entry
    }
}
