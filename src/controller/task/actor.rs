//! The process of one dispatcher: feeds it events, has its effects carried out. It never
//! waits for an effect, so that nothing slow keeps a Task from starting.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kube::runtime::reflector::ObjectRef;
use skyward_remote::MachineKey;
use tokio::{
    sync::{Notify, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::MissedTickBehavior,
};

use crate::{
    board::Key,
    task::{
        dispatcher::Dispatcher,
        hands::{Hands, now},
        message::Event,
        model::{MachineView, PoolView},
    },
};

/// Events that may wait; whoever sends more waits itself.
const WAITING_EVENTS: usize = 1024;
/// Events that are taken in before Tasks are placed again.
const BATCH: usize = 256;
const TICK: Duration = Duration::from_secs(1);

/// What the router holds of a dispatcher.
pub(crate) struct Handle {
    /// from the router --what the watch of Tasks shows--> to the dispatcher
    pub(crate) task_tx: mpsc::Sender<Event>,
    /// The Pool or a Machine changed.
    pub(crate) changed: Arc<Notify>,
    /// It holds nothing that would be lost with it.
    empty: Arc<AtomicBool>,
    process: JoinHandle<()>,
}

impl Handle {
    pub(crate) fn start(key: Key, hands: Arc<Hands>) -> Self {
        let (task_tx, task_rx) = mpsc::channel(WAITING_EVENTS);
        let changed = Arc::new(Notify::new());
        let empty = Arc::new(AtomicBool::new(true));
        let actor = Actor {
            dispatcher: Dispatcher::new(key.clone()),
            sessions: hands.context.sessions.subscribe(),
            key,
            hands,
            changed: changed.clone(),
            empty: empty.clone(),
            effects: JoinSet::new(),
            taken_up: false,
            seen: None,
        };
        Self {
            task_tx,
            changed,
            empty,
            process: tokio::spawn(actor.run(task_rx)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.empty.load(Ordering::Acquire)
    }

    /// Whether it ended although nobody asked it to: it panicked.
    pub(crate) fn has_died(&self) -> bool {
        self.process.is_finished()
    }

    /// Waits until it ended; it does when its sender is dropped or at shutdown.
    pub(crate) async fn ended(self) {
        drop(self.task_tx);
        // A panic is logged where it happens; there is nothing left to do about it here.
        let _ = self.process.await;
    }
}

struct Actor {
    dispatcher: Dispatcher,
    key: Key,
    hands: Arc<Hands>,
    sessions: watch::Receiver<u64>,
    changed: Arc<Notify>,
    empty: Arc<AtomicBool>,
    effects: JoinSet<()>,
    /// Readers of logs know that this Pool's Tasks are taken up.
    taken_up: bool,
    /// What the dispatcher was last told.
    seen: Option<(Option<Arc<PoolView>>, Vec<MachineView>)>,
}

impl Actor {
    async fn run(mut self, mut task_rx: mpsc::Receiver<Event>) {
        // from effects that were carried out --what became of them--> to the dispatcher
        let (done_tx, mut done_rx) = mpsc::channel(WAITING_EVENTS);
        let shutdown = self.hands.context.shutdown.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        self.look();
        loop {
            self.settle(&done_tx);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                Some(event) = done_rx.recv() => self.dispatcher.on(event, now()),
                event = task_rx.recv() => match event {
                    Some(event) => self.dispatcher.on(event, now()),
                    None => break,
                },
                () = self.changed.notified() => self.look(),
                result = self.sessions.changed() => match result {
                    Ok(()) if self.has_machines() => self.look(),
                    Ok(()) => {}
                    // The sessions are shut down: so are we, in a moment.
                    Err(_) => break,
                },
                Some(_) = self.effects.join_next() => {}
                _ = tick.tick(), if self.dispatcher.wants_ticks() => self.dispatcher.on(Event::Tick, now()),
            }
            for _ in 0..BATCH {
                match done_rx.try_recv().or_else(|_| task_rx.try_recv()) {
                    Ok(event) => self.dispatcher.on(event, now()),
                    Err(_) => break,
                }
            }
            while self.effects.try_join_next().is_some() {}
        }
        // Effects under way are dropped: whoever leads next finds out what became of them.
        self.effects.shutdown().await;
    }

    fn settle(&mut self, done_tx: &mpsc::Sender<Event>) {
        for effect in self.dispatcher.settle(now()) {
            if let Some(effect) = self.hands.at_once(&self.key, effect) {
                self.effects.spawn(
                    self.hands
                        .clone()
                        .carry_out(self.key.clone(), effect, done_tx.clone()),
                );
            }
        }
        self.empty.store(self.dispatcher.is_empty(), Ordering::Release);
        if let Some(load) = self.dispatcher.load() {
            self.hands.context.board.publish(&self.key, load);
            // All Tasks were seen, and what runs of them is told: those effects were carried out.
            if !std::mem::replace(&mut self.taken_up, true) {
                self.hands.context.live.taken_up(&self.key);
            }
        }
    }

    /// Whether a change of any session may be about a machine of this Pool: there may be a
    /// thousand Pools without machines, and each change wakes them all.
    fn has_machines(&self) -> bool {
        self.seen
            .as_ref()
            .is_none_or(|(_, machines)| !machines.is_empty())
    }

    /// Tells the dispatcher what the caches and sessions show, if that is news.
    fn look(&mut self) {
        let context = &self.hands.context;
        let reference = ObjectRef::new(&self.key.name).within(&self.key.namespace);
        let pool = context
            .caches
            .pools
            .get(&reference)
            .and_then(|pool| PoolView::of(&pool))
            .map(Arc::new);
        let machines = if let Some(pool) = &pool {
            context.fleet.of_pool(&pool.uid).0
        } else {
            // Of a Pool that is gone: whatever still carries its name.
            let mut machines = context.caches.machines.state();
            machines.retain(|machine| {
                machine.spec.pool == self.key.name
                    && machine.metadata.namespace.as_ref() == Some(&self.key.namespace)
            });
            machines
        };
        let mut views: Vec<MachineView> = machines
            .iter()
            .filter_map(|machine| {
                let name = machine.metadata.name.as_deref()?;
                let key = MachineKey::new(self.key.namespace.as_str(), name);
                let connection = context.sessions.agent(&key).map(|agent| agent.connection);
                MachineView::of(machine, connection)
            })
            .collect();
        views.sort_unstable_by_key(|view| view.place);
        let same = self
            .seen
            .as_ref()
            .is_some_and(|(seen, machines)| *seen == pool && *machines == views);
        if !same {
            self.seen = Some((pool.clone(), views.clone()));
            self.dispatcher.on(
                Event::Views {
                    pool,
                    machines: views,
                },
                now(),
            );
        }
    }
}
