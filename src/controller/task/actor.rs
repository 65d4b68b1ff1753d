//! The process of one dispatcher: feeds it events, has its effects carried out. It never
//! waits for an effect, so that nothing slow keeps a Task from starting.

use std::{
    collections::BTreeSet,
    panic::resume_unwind,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use skyward_planner::{
    base::key::Key,
    task::{
        dispatcher::Dispatcher,
        message::{ClusterMemory, Event},
        model::{MachineView, PoolView},
    },
};
use skyward_remote::MachineKey;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinError, JoinHandle, JoinSet},
    time::MissedTickBehavior,
};

use crate::{
    base::caught::{Panicked, caught},
    task::{
        effects::{EffectRunner, now},
        inbox,
    },
};

/// Outcomes of effects and facts of machines that may wait; their senders wait when the queue is
/// full.
const WAITING_EVENTS: usize = 1024;
/// Events that are taken in before Tasks are placed again.
const BATCH: usize = 256;
/// Pools that a message names where the Task's own does not exist.
const OTHERS: usize = 16;
const TICK: Duration = Duration::from_secs(1);
/// Tick while Tasks have just come: a Task that waits says so within a second.
const MOMENT: Duration = Duration::from_millis(250);

/// The router's handle of a dispatcher.
pub(crate) struct Handle {
    /// from the router --events of the Task watch--> to the dispatcher
    pub(crate) inbox: inbox::Sender,
    /// The Pool, a Machine or the session of a machine changed.
    pub(crate) changed: Arc<Notify>,
    /// Whether the dispatcher holds nothing and can be dropped.
    empty: Arc<AtomicBool>,
    /// The message of its panic.
    broken: Arc<OnceLock<Panicked>>,
    process: JoinHandle<()>,
}

impl Handle {
    /// Starts a dispatcher; `breaks` is notified when it panics.
    pub(crate) fn start(key: Key, runner: Arc<EffectRunner>, breaks: Arc<Notify>) -> Self {
        let (inbox, news) = inbox::inbox();
        let changed = Arc::new(Notify::new());
        let empty = Arc::new(AtomicBool::new(true));
        let hands_holds = runner.context.holds.subscribe();
        let actor = Actor {
            dispatcher: Dispatcher::new(key.clone())
                .serving(runner.context.config.serves(&key.namespace))
                .holding_for(runner.context.config.hold_for),
            key,
            runner,
            changed: changed.clone(),
            empty: empty.clone(),
            effects: JoinSet::new(),
            taken_up: false,
            seen: None,
            memory: None,
            held: false,
            holds: hands_holds,
        };
        let broken = Arc::new(OnceLock::new());
        let breaking = broken.clone();
        let process = tokio::spawn(async move {
            if let Err(panicked) = caught(actor.run(news)).await {
                // It panics once.
                let _ = breaking.set(panicked);
                breaks.notify_one();
            }
        });
        Self {
            inbox,
            changed,
            empty,
            broken,
            process,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Acquire)
    }

    /// The message of its panic, after which it does nothing.
    pub(crate) fn broken(&self) -> Option<&Panicked> {
        self.broken.get()
    }

    /// Waits for its end, which comes when its sender is dropped or at shutdown.
    pub(crate) async fn ended(self) {
        drop(self.inbox);
        // Its panics are caught in it.
        let _ = self.process.await;
    }
}

struct Actor {
    dispatcher: Dispatcher,
    key: Key,
    runner: Arc<EffectRunner>,
    changed: Arc<Notify>,
    empty: Arc<AtomicBool>,
    effects: JoinSet<()>,
    /// Whether readers of logs know that this Pool's Tasks are taken up.
    taken_up: bool,
    /// The last views that the dispatcher was told.
    seen: Option<(Option<Arc<PoolView>>, Vec<MachineView>)>,
    /// The last state of this cluster's memory that it was told.
    memory: Option<ClusterMemory>,
    held: bool,
    holds: watch::Receiver<u64>,
}

impl Actor {
    async fn run(mut self, mut news: inbox::Receiver) {
        // from effects that were carried out --their outcomes--> to the dispatcher
        let (done_tx, mut done_rx) = mpsc::channel(WAITING_EVENTS);
        let shutdown = self.runner.context.shutdown.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut moment = tokio::time::interval(MOMENT);
        moment.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.look();
        while !shutdown.is_cancelled() {
            self.settle(&done_tx);
            // In no fixed order: machines can keep `done_rx` full for ever, and the watch, the Pool
            // and the clock must be heard all the same.
            tokio::select! {
                () = shutdown.cancelled() => break,
                Some(event) = done_rx.recv() => self.dispatcher.on(event, now()),
                event = news.recv() => match event {
                    Some(event) => self.dispatcher.on(event, now()),
                    None => break,
                },
                () = self.changed.notified() => self.look(),
                Ok(()) = self.holds.changed() => self.look(),
                Some(ended) = self.effects.join_next() => carried_out(ended),
                _ = moment.tick(), if self.dispatcher.has_newcomers() => {
                    self.dispatcher.on(Event::Newcomers, now());
                }
                _ = tick.tick(), if self.dispatcher.wants_ticks() => {
                    self.remember();
                    self.dispatcher.on(Event::Tick, now());
                    while self.dispatcher.has_progress(now()) && self.runner.may_tell_progress(&self.key) {
                        self.dispatcher.on(Event::TellProgress, now());
                    }
                }
            }
            for _ in 0..BATCH / 2 {
                let waiting = [done_rx.try_recv().ok(), news.try_recv()];
                if waiting.iter().all(Option::is_none) {
                    break;
                }
                for event in waiting.into_iter().flatten() {
                    self.dispatcher.on(event, now());
                }
            }
            while let Some(ended) = self.effects.try_join_next() {
                carried_out(ended);
            }
        }
        // Effects under way are dropped: the next leader finds out their outcomes.
        self.effects.shutdown().await;
    }

    fn settle(&mut self, done_tx: &mpsc::Sender<Event>) {
        for effect in self.dispatcher.settle(now()) {
            if let Some(effect) = self.runner.at_once(&self.key, effect) {
                self.effects.spawn(
                    self.runner
                        .clone()
                        .carry_out(self.key.clone(), effect, done_tx.clone()),
                );
            }
        }
        self.empty.store(self.dispatcher.is_empty(), Ordering::Release);
        if let Some(load) = self.dispatcher.load() {
            self.runner.context.loads.publish(&self.key, load);
            // All Tasks were seen, and their runs are published: the effects were carried out.
            if !std::mem::replace(&mut self.taken_up, true) {
                self.runner.context.live.taken_up(&self.key);
            }
        }
    }

    /// Tells the dispatcher, before anything else, whether this cluster's memory may be older than
    /// its machines, if that is news.
    fn remember(&mut self) {
        let context = &self.runner.context;
        let memory = if self.held {
            ClusterMemory::Held
        } else if self.memory == Some(ClusterMemory::Whole) || context.remembers_all() {
            ClusterMemory::Whole
        } else {
            ClusterMemory::Unproved
        };
        if self.memory.replace(memory) != Some(memory) {
            self.dispatcher.on(Event::Memory(memory), now());
        }
    }

    /// Some Pools of the namespace, in the order of their names.
    fn others(&self) -> Vec<String> {
        let pools = self.runner.context.caches.pools.state();
        let here = pools
            .iter()
            .filter(|pool| pool.metadata.namespace.as_ref() == Some(&self.key.namespace))
            .filter_map(|pool| pool.metadata.name.clone());
        here.collect::<BTreeSet<_>>().into_iter().take(OTHERS).collect()
    }

    /// Tells the dispatcher what the caches and sessions show, if that is news.
    fn look(&mut self) {
        let context = &self.runner.context;
        let object = context.caches.pool(&self.key);
        let pool = object
            .as_ref()
            .and_then(|pool| PoolView::of(pool, &context.resolved.of(pool)))
            .map(Arc::new);
        let wanted = object
            .as_deref()
            .and_then(|pool| pool.status.as_ref()?.environment.as_ref());
        let machines = if let Some(pool) = &pool {
            context.fleet.of_pool(&pool.uid).0
        } else {
            // For a Pool that is gone: all machines that still carry its name.
            let mut machines = context.caches.machines.state();
            machines.retain(|machine| {
                machine.spec.pool == self.key.name
                    && machine.metadata.namespace.as_ref() == Some(&self.key.namespace)
            });
            machines
        };
        let providers: Vec<&str> = machines
            .iter()
            .map(|machine| machine.spec.provider.as_str())
            .collect();
        let uid = pool.as_ref().map_or("", |pool| pool.uid.as_str());
        self.held = context.holds.holds_pool(uid, providers.into_iter());
        let mut views: Vec<MachineView> = machines
            .iter()
            .filter_map(|machine| {
                let name = machine.metadata.name.as_deref()?;
                let key = MachineKey::new(self.key.namespace.as_str(), name);
                let connection = context.sessions.agent(&key).map(|agent| agent.connection);
                MachineView::of(machine, wanted, connection)
            })
            .collect();
        views.sort_unstable_by_key(|view| view.place);
        self.remember();
        let same = self
            .seen
            .as_ref()
            .is_some_and(|(seen, machines)| *seen == pool && *machines == views);
        if !same {
            self.seen = Some((pool.clone(), views.clone()));
            let others = if pool.is_none() { self.others() } else { Vec::new() };
            self.dispatcher.on(
                Event::Views {
                    pool,
                    machines: views,
                    others,
                },
                now(),
            );
        }
    }
}

/// An effect that panicked never tells its outcome. The dispatcher would wait for it for ever, so
/// it breaks as well, and a new one finds out.
fn carried_out(ended: Result<(), JoinError>) {
    if let Some(panic) = ended.err().and_then(|error| error.try_into_panic().ok()) {
        resume_unwind(panic);
    }
}
