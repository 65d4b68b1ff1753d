//! The work that waits for machines, as the plan of the Pool counts with it. Counts only: what a Pool makes of it is not
//! decided here.
//!
//! A Task that could not start whatever machines there were is no work, such as one whose Secret is missing, one whose git
//! source failed again and again, or one that pauses after a failure (`retries.backoff`): a Pool neither grows nor stays
//! awake for it. Tasks that wait for other Tasks are not in the queue at all. A map that runs waits for the places that
//! more workers of it would have; how long its items take is measured by itself. Where no machine takes runs, its Secrets
//! and ConfigMaps are looked for all the same, so that it wakes a Pool that sleeps as soon as they are there. A Pool
//! without any machine has no work while nothing is known of what its Tasks name: a Task whose Secret is missing must wake
//! no Pool, neither when the Task comes nor when another controller begins to lead.

use std::time::Duration;

use jiff::Timestamp;
use skyward_api::{
    condition::{self, reason},
    task::Placement,
};

use super::{
    Dispatcher,
    durations::Counted,
    queue::{names_references, read_references},
    state::{References, Stage, TaskState, Waiting},
};
use crate::{
    base::time::elapsed,
    pool::load::Demand,
    task::model::{MachineView, PoolView, Uid},
};

/// Runs from whose durations it is told how long such work lasts.
const REMEMBERED: usize = 16;
/// Tasks that wait are counted with each event up to this many, and else with each tick.
const FEW: usize = 64;
/// Obstacles that no machine takes away.
const STUCK: [&str; 6] = [
    reason::REFERENCE_NOT_FOUND,
    reason::REFERENCE_TOO_LARGE,
    reason::BUNDLE_NOT_FOUND,
    reason::SOURCE_REFUSED,
    reason::SOURCE_CHANGED,
    reason::SOURCE_INVALID,
];

impl Dispatcher {
    /// The work that waits. `running_since` is when the runs that take one place began, in the median.
    pub(super) fn demand(&self, running_since: Option<Timestamp>) -> Demand {
        let Some(pool) = self
            .pool
            .as_deref()
            .filter(|pool| self.served && pool.takes_work())
        else {
            return Demand::default();
        };
        let counted = if self.queue.len() <= FEW {
            self.count(pool)
        } else {
            self.durations.counted
        };
        let all = self.queue.len();
        let work = all.saturating_sub(counted.no_work(all));
        let fixed = counted.fixed.min(work);
        let tasks = u32::try_from(work - fixed).unwrap_or(u32::MAX);
        let (for_maps, items) = self.wanted_by_maps();
        let typical = self.durations.typical();
        let of_tasks = match tasks {
            0 => Some(Duration::ZERO),
            _ => typical.map(|typical| typical.saturating_mul(tasks)),
        };
        Demand {
            places: tasks.saturating_add(for_maps),
            for_maps,
            items,
            backlog: of_tasks.map(|of_tasks| of_tasks.saturating_add(items)),
            fixed: u32::try_from(fixed).unwrap_or(u32::MAX),
            broadcasts: u32::try_from(counted.broadcasts.min(fixed)).unwrap_or(u32::MAX),
            typical,
            running_since,
        }
    }

    /// The Tasks that wait are counted, and what some of them lack is looked for again.
    pub(super) fn count_waiting(&mut self, now: Timestamp) {
        self.durations.oldest = self.find_oldest();
        let Some(pool) = self.pool.clone().filter(|pool| pool.takes_work()) else {
            return;
        };
        self.ask_for_sources(now);
        self.durations.counted = self.count(&pool);
        self.look_for_references(&pool, self.durations.counted, now);
    }

    /// Where no machine tries the sources of Tasks from git, the Tasks ask for one now and then.
    fn ask_for_sources(&mut self, now: Timestamp) {
        if self.machines.values().any(MachineView::takes_runs) {
            return;
        }
        for (_, _, _, uid) in &self.queue {
            if let Some(TaskState {
                stage: Stage::Waiting(waiting),
                ..
            }) = self.tasks.get_mut(uid)
            {
                waiting.ask_for_source(now);
            }
        }
    }

    /// Tasks have come: where there is no machine, what they name is looked for at once, and with each tick where many
    /// wait.
    pub(super) fn look_without_machine(&mut self, now: Timestamp) {
        if !self.served || !self.synced || !self.viewed || !self.machines.is_empty() || self.queue.len() > FEW
        {
            return;
        }
        let Some(pool) = self.pool.clone().filter(|pool| pool.takes_work()) else {
            return;
        };
        let counted = self.count(&pool);
        if counted.unread > 0 {
            self.look_for_references(&pool, counted, now);
        }
    }

    fn look_for_references(&mut self, pool: &PoolView, counted: Counted, now: Timestamp) {
        let is_work_known = counted.no_work(self.queue.len()) < self.queue.len();
        let lacks_some = counted.stuck > 0 || (counted.unread > 0 && !is_work_known);
        if !lacks_some || self.machines.values().any(MachineView::takes_runs) {
            return;
        }
        let is_empty = self.machines.is_empty();
        for (_, _, _, uid) in &self.queue {
            if let Some(task) = self.tasks.get_mut(uid)
                && (lacks_references(task) || (is_empty && !is_work_known && is_unread(task, pool)))
            {
                read_references(task, pool, &mut self.resolving, &mut self.effects, now);
            }
        }
    }

    /// Since when the Task of the queue waits that has waited longest.
    pub(super) fn oldest(&self) -> Option<Timestamp> {
        match self.queue.len() {
            0 => None,
            1..=FEW => self.find_oldest(),
            _ => self.durations.oldest,
        }
    }

    fn find_oldest(&self) -> Option<Timestamp> {
        let waiting = self.queue.iter().filter_map(|(_, _, _, uid)| self.tasks.get(uid));
        waiting.filter_map(waits_since).min()
    }

    fn count(&self, pool: &PoolView) -> Counted {
        let mut counted = Counted::default();
        let is_empty = self.machines.is_empty();
        for (_, _, _, uid) in &self.queue {
            let Some(task) = self.tasks.get(uid) else {
                continue;
            };
            if is_stuck(task, pool) {
                counted.stuck += 1;
                continue;
            }
            counted.unread += usize::from(is_empty && is_unread(task, pool));
            let placement = task.entry.placement;
            counted.fixed += usize::from(placement != Some(Placement::One));
            counted.broadcasts += usize::from(matches!(placement, Some(Placement::All(_))));
        }
        counted
    }

    /// A Task has ended by itself.
    pub(super) fn note_duration(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get(uid) else { return };
        let Stage::Running(attempt) = &task.stage else {
            return;
        };
        if task.entry.placement != Some(Placement::One) || task.entry.map.is_some() {
            return;
        }
        let lasted = &mut self.durations.lasted;
        lasted.push_back(elapsed(attempt.started_at, now));
        if lasted.len() > REMEMBERED {
            lasted.pop_front();
        }
    }
}

/// Since when the Task waits for a start, by its record, so that a new leader does not begin anew; as this process has
/// seen it where the record does not tell that apart from other waits.
fn waits_since(task: &TaskState) -> Option<Timestamp> {
    let Stage::Waiting(waiting) = &task.stage else {
        return None;
    };
    if task.depends.is_some() {
        return Some(waiting.came);
    }
    let recorded = |type_| {
        let found = condition::find(&task.entry.status.conditions, type_)?;
        Some((found.status == "True", found.last_transition_time.0))
    };
    Some(
        match (recorded(condition::SCHEDULED), recorded(condition::SUSPENDED)) {
            (_, None) if task.counts.attempt == 0 => task.entry.created,
            (Some((false, since)), None) => since,
            // While it was suspended it did not wait.
            (Some((false, since)), Some((false, resumed))) => since.max(resumed),
            _ => waiting.came,
        },
    )
}

/// Whether the Task waits for a Secret, ConfigMap or bundle.
fn lacks_references(task: &TaskState) -> bool {
    matches!(&task.stage, Stage::Waiting(waiting) if matches!(waiting.references, References::Missing(_)))
}

/// Whether the Task names Secrets, ConfigMaps or a bundle that were not looked for yet.
fn is_unread(task: &TaskState, pool: &PoolView) -> bool {
    let Stage::Waiting(waiting) = &task.stage else {
        return false;
    };
    names_references(task, pool)
        && match waiting.references {
            References::Unread | References::Reading { .. } => true,
            References::Read(..) | References::Missing(_) => false,
        }
}

/// Whether the Task could not start whatever machines there were.
fn is_stuck(task: &TaskState, pool: &PoolView) -> bool {
    let waiting = match &task.stage {
        Stage::Waiting(waiting) => Some(waiting),
        Stage::Placing(_) | Stage::Running(_) | Stage::Ending(_) => None,
    };
    let obstacle = waiting.and_then(|waiting| waiting.obstacle.as_ref());
    let lacks_source = waiting.is_some_and(Waiting::lacks_source);
    let fits = match task.entry.placement {
        Some(Placement::One) => true,
        Some(Placement::All(processes)) => processes <= pool.concurrency,
        Some(Placement::Rank(rank)) => rank < pool.desired,
        None => false,
    };
    !fits || task.pauses() || lacks_source || obstacle.is_some_and(|why| STUCK.contains(&why.reason))
}
