//! The state of a dispatcher: Tasks, attempts and runs.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    Task, TaskStatus,
    condition::reason,
    task::{SourceStatus, queue_order},
};
use skyward_core::Usd;

use super::{
    AGAIN, LASTING, REFUSED_AGAIN, REFUSED_LONGEST, WRITE_AGAIN, depending::Depends, keeping::Keeping,
    known::Known, maps::MapState,
};
use crate::{
    base::time::doubled,
    task::{
        cost,
        kept::Kept,
        message::Collected,
        model::{Entry, SlotAttempt, Uid},
        references::Resolved,
        retries::Failure,
        run::{Finished, Permit},
        status::{Counts, Why},
    },
};

/// Order of the queue: priority, then age, then name.
pub(super) type QueueKey = (Reverse<i32>, Timestamp, Arc<str>, Uid);

/// Most bytes of a run's log, and of its result, that are kept while it waits for room in the
/// store.
const LITTLE: usize = 512;

#[derive(Debug)]
pub(super) struct TaskState {
    pub(super) entry: Entry,
    pub(super) counts: Counts,
    pub(super) stage: Stage,
    pub(super) write: Option<u64>,
    pub(super) read: Read,
    /// Not written again before.
    pub(super) write_at: Option<Timestamp>,
    /// Writes that failed in a row, other than by a conflict.
    pub(super) refused: u32,
    /// Statuses that the API server will never take, since the last placement.
    pub(super) invalid: u32,
    /// Its status cannot be written: until a write succeeds, the Task does not queue.
    pub(super) aside: bool,
    /// The Pool of the name that it gives is not for it: the Task does not queue there.
    pub(super) barred: bool,
    /// The watch no longer shows it.
    pub(super) left: bool,
    /// Stored attempts that its status does not know.
    pub(super) stored: Stored,
    /// How it stands to the Tasks that it depends on; `None` where there are none, or it was placed before.
    pub(super) depends: Option<Box<Depends>>,
    /// How far its attempt is.
    pub(super) progress: Known,
}

impl TaskState {
    /// A write of the status failed or its answer was lost: the next write waits, longer each time.
    /// The cause may last, such as a policy or a full database.
    pub(super) fn put_off(&mut self, now: Timestamp) {
        let wait = doubled(AGAIN, self.refused, WRITE_AGAIN);
        self.refused = self.refused.saturating_add(1);
        self.write_at = Some(now + wait);
        self.aside |= self.refused >= LASTING;
    }

    /// The API server will never take that status: another one is tried later, after longer and
    /// longer pauses.
    pub(super) fn set_aside(&mut self, now: Timestamp) {
        let wait = doubled(REFUSED_AGAIN, self.invalid, REFUSED_LONGEST);
        self.invalid = self.invalid.saturating_add(1);
        self.write_at = Some(now + wait);
        self.aside = true;
    }

    /// A status is on record: the next write waits for nothing.
    pub(super) fn written(&mut self) {
        self.refused = 0;
        self.write_at = None;
        self.aside = false;
    }

    /// Whether neither its user nor a Task that it depends on keeps it from starting.
    pub(super) fn may_start(&self) -> bool {
        let depends = self.depends.as_deref();
        !self.entry.suspend && depends.is_none_or(Depends::lets_start)
    }

    /// Whether it pauses after a failure: it keeps its place in the queue, and asks for nothing meanwhile.
    pub(super) const fn pauses(&self) -> bool {
        matches!(&self.stage, Stage::Waiting(waiting) if waiting.retry_at.is_some())
    }

    /// Whether it waits for a place.
    pub(super) fn queues(&self) -> bool {
        matches!(self.stage, Stage::Waiting(_)) && !self.aside && !self.barred && self.may_start()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Not,
    InFlight,
    /// The read under way may be older than the change: once more after it.
    InFlightAndAgain,
    At(Timestamp),
}

/// Stored attempts that a Task's status does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    /// The store is to be asked before the Task is placed.
    Unasked,
    Asking,
    /// The newest attempt of which something is stored.
    Known(u32),
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most Tasks of a long queue wait: a box for each would take more than it saves"
)]
pub(super) enum Stage {
    /// The Task waits for its machines.
    Waiting(Waiting),
    /// Its placement is being written.
    Placing(Attempt),
    /// Its placement is on record.
    Running(Attempt),
    /// Its end is being written.
    Ending(Box<TaskStatus>),
}

#[derive(Debug)]
pub(super) struct Waiting {
    /// Since when, as this process has seen it; where the Task depends on others, since these have ended. What a fetch
    /// finds that began before may be older than the Task.
    pub(super) came: Timestamp,
    /// When the wait is worth a write.
    pub(super) tell_at: Timestamp,
    /// Why it waits for another attempt: a machine was lost, or the attempt was stopped.
    pub(super) again: Option<Why>,
    /// Ranks that do not run again.
    pub(super) keeping: Option<Box<Keeping>>,
    pub(super) references: References,
    /// Its files, where they come from git.
    pub(super) fetch: Fetch,
    /// Failed fetches, in a row.
    pub(super) failed_fetches: u32,
    /// Why it cannot be placed for now although there is room.
    pub(super) obstacle: Option<Why>,
    pub(super) not_before: Option<Timestamp>,
    /// When the pause after a failure is over.
    pub(super) retry_at: Option<Timestamp>,
    /// When the Task has waited longer than its `queueTimeout`.
    pub(super) give_up_at: Option<Timestamp>,
    pub(super) told: Option<Why>,
    /// Its place in the queue is not written anew before.
    pub(super) count_at: Timestamp,
}

/// The files of a Task that come from git, before they are on record.
#[derive(Debug, Default)]
pub(super) enum Fetch {
    /// To be fetched when the Task has room.
    #[default]
    Not,
    Done(SourceStatus),
    /// Not tried again before.
    Failed(Timestamp, Why),
}

#[derive(Debug)]
pub(super) enum References {
    /// To be read when the Task has room.
    Unread,
    /// Room for the Task is held meanwhile, unless something was missing at the last look.
    Reading {
        holds: bool,
    },
    Read(Arc<Resolved>, Timestamp),
    Missing(Timestamp),
}

#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) places: Vec<SlotAttempt>,
    pub(super) started_at: Timestamp,
    /// UID of the Pool that it was placed in; `None` when an earlier version placed it, which did not record that.
    pub(super) pool: Option<String>,
    /// The environment, until every run is started.
    pub(super) resolved: Option<Arc<Resolved>>,
    /// The values to mask in output, from then on.
    pub(super) masks: Option<Arc<Resolved>>,
    /// The object as the placement write answered it, until every run is started.
    pub(super) task: Option<Arc<Task>>,
    pub(super) stop: Option<StopWhy>,
    /// Ranks that do not run again.
    pub(super) kept: Option<Kept>,
    /// Of a Task with `forEach`: what is known of its items.
    pub(super) map: Option<Box<MapState>>,
}

/// Why an attempt is stopped. Later variants win over earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum StopWhy {
    /// One of its machines goes, as when its cloud takes it back: all ranks start again together.
    Drained,
    /// A rank was lost: all ranks start again together.
    Interrupted,
    /// The Pool is suspended or wants no machines.
    PoolOff,
    /// The Task is suspended.
    Suspended,
    /// The Task runs longer than its `activeDeadline`.
    Overdue,
    /// The Pool is deleted.
    PoolDeleted,
}

impl StopWhy {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Drained | Self::Interrupted => reason::INTERRUPTED,
            Self::PoolOff => reason::POOL_OFF,
            Self::Suspended => reason::SUSPENDED,
            Self::Overdue => reason::DEADLINE_EXCEEDED,
            Self::PoolDeleted => reason::POOL_DELETED,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Run {
    pub(super) place: SlotAttempt,
    /// What its place costs in an hour; `None` while its machine was not seen.
    pub(super) price: Option<Usd>,
    /// When its place was taken; `None` where an earlier leader took it, which is as long ago as its attempt at most.
    pub(super) placed_at: Option<Timestamp>,
    /// When its machine was found to be gone.
    pub(super) lost_at: Option<Timestamp>,
    /// Whether its rank does not run again: an earlier attempt has its outcome, and no machine has the run.
    pub(super) kept: bool,
    /// Name of its Machine; empty while an adopted run's machine was not seen yet.
    pub(super) machine: Arc<str>,
    pub(super) stage: RunStage,
    /// Connection over which a Start is under way.
    pub(super) start: Option<u64>,
    /// Whether an agent may know of it.
    pub(super) sent: bool,
    /// Not tried again before: Start, Stop, Collect, Forget, CopyLog.
    pub(super) not_before: Option<Timestamp>,
    pub(super) stop: Option<(Duration, &'static str)>,
    /// Connection over which Stop was sent.
    pub(super) stop_sent: Option<u64>,
    pub(super) collect: Collect,
    /// No attempt needs the run any more: stop and forget it.
    pub(super) discard: bool,
    pub(super) forgetting: bool,
    /// It was stopped before any agent knew it: while its attempt is on record, another
    /// leader would start it.
    pub(super) unstarted: bool,
    pub(super) copying: bool,
    pub(super) copy_at: Option<Timestamp>,
    /// Its machine is gone: no more of its log and result will come.
    pub(super) gone: bool,
    /// Its machine was killed for want of memory while it ran there: why.
    pub(super) out_of_memory: Option<Arc<str>>,
    /// The store is being asked what an earlier leader collected of it.
    pub(super) recalling: bool,
    /// The run is recorded, and an earlier leader may have stored its end: the store is asked
    /// before it is started.
    pub(super) unasked: bool,
    /// Failed tries of its effects, in a row.
    pub(super) failures: u32,
    /// What keeps it from going on.
    pub(super) trouble: Option<Trouble>,
    /// The room that its end takes of the budget for machines' facts, or the fact that no Task
    /// claims.
    pub(super) room: Option<Permit>,
    /// It waits for room in the result store, or for its machine to give its log or result.
    pub(super) hold: Option<Hold>,
    /// Its machine does not give its log or result.
    pub(super) unread: Option<Unread>,
    /// Of a worker of a map: items that it was given, or how they ended, may be on its machine alone.
    pub(super) holds_items: bool,
    /// What it has not told of its items will never be told: its machine is gone, or has never had it.
    pub(super) items_lost: bool,
}

/// A hold: the log and result of a run wait on its machine, for a limited time.
#[derive(Debug)]
pub(super) struct Hold {
    pub(super) since: Timestamp,
    /// When its user was last told.
    pub(super) told: Option<Timestamp>,
}

/// The log or result of a run cannot be read from its machine, although that is connected.
#[derive(Debug)]
pub(super) struct Unread {
    /// Time of all failed tries together: a reconnected machine does not begin anew.
    pub(super) total: Duration,
    /// When a try last failed.
    pub(super) last: Timestamp,
}

/// What keeps a run from going on, for its user to see when it lasts.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) since: Timestamp,
    pub(super) why: Why,
}

#[derive(Debug, Default)]
pub(super) enum RunStage {
    /// Its place is reserved; no agent was asked to start it.
    #[default]
    Reserved,
    /// The run is to be started.
    Starting,
    /// Its agent has the run.
    Running,
    /// The run ended.
    Finished(Arc<Finished>),
    /// Its machine is gone.
    Lost,
}

#[derive(Debug, Default)]
pub(super) enum Collect {
    #[default]
    Not,
    InFlight,
    Done(Box<Collected>),
}

#[derive(Debug)]
pub(super) struct Unclaimed {
    pub(super) since: Timestamp,
    pub(super) finished: Option<Arc<Finished>>,
    /// Its room in the budget for facts: a machine may name any number of runs.
    pub(super) room: Option<Permit>,
}

impl Unclaimed {
    /// A run that was to be stopped and forgotten, and waits for its turn again.
    pub(super) fn of(run: &Run, now: Timestamp) -> Self {
        let finished = match &run.stage {
            RunStage::Finished(finished) => Some(finished.clone()),
            RunStage::Reserved | RunStage::Starting | RunStage::Running | RunStage::Lost => None,
        };
        Self {
            since: now,
            finished,
            room: None,
        }
    }

    /// Another machine has the run of that id, perhaps for long: output that can be fetched again is dropped
    /// meanwhile, with its room.
    pub(super) fn wait(&mut self, now: Timestamp) {
        self.since = now;
        self.room = None;
        if let Some(finished) = &mut self.finished {
            let finished = Arc::make_mut(finished);
            finished.log = Vec::new();
            finished.result = Vec::new();
            finished.log_tail = Vec::new();
        }
    }
}

impl Run {
    pub(super) fn new(place: SlotAttempt, machine: Arc<str>, stage: RunStage) -> Self {
        Self {
            place,
            machine,
            stage,
            ..Self::default()
        }
    }

    /// What it costs, where its price is known; its attempt was placed then and is over. A worker of a map may have come
    /// and gone meanwhile.
    pub(super) fn cost(&self, placed: Timestamp, now: Timestamp) -> Option<Usd> {
        let (placed, over) = (self.placed_at.unwrap_or(placed), self.lost_at.unwrap_or(now));
        let result = match &self.collect {
            Collect::Done(collected) => Some(&collected.result),
            Collect::Not | Collect::InFlight => None,
        };
        self.price.map(|price| cost::of_run(price, result, placed, over))
    }

    /// The run cannot go on for now; keeps the time since when.
    pub(super) fn hold_up(&mut self, why: Why, now: Timestamp) {
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        self.trouble = Some(Trouble { since, why });
    }

    /// The run can go on.
    pub(super) fn let_go_on(&mut self) {
        self.trouble = None;
        self.hold = None;
        self.unread = None;
        self.failures = 0;
    }

    /// An effect for it failed and is tried again, after longer and longer pauses.
    pub(super) fn put_off(&mut self, longest: Duration, now: Timestamp) {
        let wait = doubled(AGAIN, self.failures, longest);
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(now + wait);
    }

    /// Its log and result are stored: only how it ended is kept.
    pub(super) fn let_go_of_output(&mut self) {
        if let RunStage::Finished(finished) = &mut self.stage {
            let finished = Arc::make_mut(finished);
            finished.log = Vec::new();
            finished.result = Vec::new();
            finished.log_tail = Vec::new();
            finished.message = String::new();
        }
        self.room = None;
    }

    /// The run waits for the store or its machine, perhaps for long: output that can be fetched
    /// again, or is stored already, is dropped meanwhile, which frees its room for other facts of
    /// its namespace. Small output stays, and so does that of a machine that is gone.
    pub(super) fn let_wait(&mut self) {
        if self.gone {
            return;
        }
        if let RunStage::Finished(finished) = &mut self.stage {
            let Finished {
                log,
                result,
                log_tail,
                message,
                ..
            } = Arc::make_mut(finished);
            for output in [log, result] {
                if output.len() > LITTLE {
                    *output = Vec::new();
                }
            }
            *log_tail = log_tail.split_off(log_tail.len().saturating_sub(LITTLE));
            if message.len() > LITTLE {
                let end = (0..=LITTLE).rev().find(|at| message.is_char_boundary(*at));
                *message = message[..end.unwrap_or_default()].to_owned();
            }
        }
        self.room = None;
    }

    /// No attempt needs the run any more. Its id is kept until its machine has stopped and
    /// forgotten it, which may be never; its outcome is dropped.
    pub(super) fn discard(&mut self) {
        self.discard = true;
        self.trouble = None;
        self.hold = None;
        self.unread = None;
        if matches!(self.collect, Collect::Done(_)) {
            self.collect = Collect::Not;
        }
        self.let_go_of_output();
    }

    /// Whether the run would be lost with its machine.
    pub(super) const fn needs_machine(&self) -> bool {
        match &self.stage {
            RunStage::Starting | RunStage::Running => true,
            // A discarded run waits until its agent has forgotten it.
            RunStage::Finished(_) => {
                self.discard || (!self.gone && !matches!(self.collect, Collect::Done(_)))
            }
            RunStage::Reserved | RunStage::Lost => false,
        }
    }

    /// Its agent does not know the run, and has given it no item.
    pub(super) const fn never_had_items(&mut self) {
        self.holds_items = false;
        self.items_lost = true;
    }

    /// Whether its machine alone may know something of its items.
    pub(super) const fn keeps_items(&self) -> bool {
        self.holds_items && !self.items_lost && !self.discard
    }

    /// Whether the run counts as killed with a machine that ran out of memory: it ran there, or may
    /// have. An ended run is no cause, even if it was not collected.
    pub(super) const fn is_starved(&self) -> bool {
        let went_on = match self.stage {
            RunStage::Starting => self.sent,
            RunStage::Running => true,
            RunStage::Reserved | RunStage::Finished(_) | RunStage::Lost => false,
        };
        went_on && !self.discard && self.out_of_memory.is_some()
    }

    /// Whether it takes a place of its machine.
    pub(super) const fn is_active(&self) -> bool {
        matches!(
            self.stage,
            RunStage::Reserved | RunStage::Starting | RunStage::Running
        )
    }

    /// How it failed, if it failed by itself and its end is collected.
    pub(super) fn failure(&self) -> Option<Failure<'_>> {
        let (RunStage::Finished(finished), Collect::Done(collected)) = (&self.stage, &self.collect) else {
            return None;
        };
        let mut failure = collected.failure()?;
        // As its agent told it: in the summary, values of Secrets are masked.
        if !finished.exception.is_empty() {
            failure.exception = finished.exception.as_str();
        }
        Some(failure)
    }

    /// Whether it needs nothing more before its attempt can end.
    pub(super) const fn is_settled(&self) -> bool {
        match self.stage {
            RunStage::Finished(_) => matches!(self.collect, Collect::Done(_)),
            RunStage::Lost => true,
            RunStage::Reserved | RunStage::Starting | RunStage::Running => false,
        }
    }
}

/// Whether the fact itself holds all that is to be collected.
pub fn is_complete(finished: &Finished) -> bool {
    finished.log.len() as u64 == finished.log_bytes
        && (!finished.has_result || finished.result.len() as u64 == finished.result_bytes)
}

/// Whether the whole outcome is in the fact; of its log perhaps only the end.
pub(super) fn has_result_left(finished: &Finished) -> bool {
    !finished.has_result || finished.result.len() as u64 == finished.result_bytes
}

pub(super) fn queue_key(entry: &Entry) -> QueueKey {
    let (priority, created, name) = queue_order(Some(entry.priority), entry.created, entry.name.clone());
    (priority, created, name, entry.uid.clone())
}
