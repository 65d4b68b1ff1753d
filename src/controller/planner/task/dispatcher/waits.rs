//! Why a Task waits, is stopped or is held up, and when that is worth a write.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    TaskPhase,
    condition::{self, cut, reason},
    task::Placement,
};

use super::{
    Dispatcher, LOOK_AGAIN, RECOUNT, SKEW, TROUBLE, WORTH_TELLING,
    deadlines::{recorded_patience, recorded_pause},
    depending::Depends,
    own_pool,
    standing::{self, Standing},
    state::{Fetch, Read, References, Run, RunStage, Stage, StopWhy, TaskState, Waiting},
};
use crate::{
    base::time::after,
    events::{self, EventSpec},
    task::{
        kept::Kept,
        model::{Entry, MachineView, PoolView, Uid},
        references::{Resolved, Unresolved, unchanged},
        run::Ending,
        status::{self, Why},
    },
};

impl Waiting {
    pub(super) fn new(entry: &Entry, again: Option<Why>, now: Timestamp) -> Self {
        // A reason that is on record already need not be told again.
        let told = condition::find(&entry.status.conditions, condition::SCHEDULED)
            .filter(|scheduled| scheduled.status == "False" && entry.phase() != TaskPhase::Running)
            .and_then(|scheduled| {
                let reason = KNOWN_WAITS.iter().find(|known| **known == scheduled.reason)?;
                Some(Why {
                    reason,
                    detail: detail_of(&scheduled.message),
                    message: scheduled.message.clone(),
                    before: standing::before_in(&scheduled.message),
                })
            });
        let retry_at = recorded_pause(entry, now);
        let mut waiting = Self {
            came: now,
            tell_at: now + WORTH_TELLING,
            again,
            keeping: None,
            references: References::Unread,
            fetch: Fetch::Not,
            failed_fetches: 0,
            obstacle: None,
            not_before: None,
            retry_at,
            give_up_at: recorded_patience(entry, retry_at, now),
            told,
            count_at: now + RECOUNT,
        };
        // That of an attempt under way is for its own ranks.
        let is_over = entry.phase() != TaskPhase::Running;
        waiting.keep(Kept::recorded(&entry.status).filter(|_| is_over));
        waiting
    }
}

/// Longest list of names of other Pools in a message, in bytes: thousands of Tasks may wait for one Pool.
const OTHERS: usize = 300;

const KNOWN_WAITS: [&str; 26] = [
    reason::WAITING_FOR_TASK,
    reason::DEPENDENCY_CYCLE,
    reason::NAMESPACE_NOT_SERVED,
    reason::CREATING_POOL,
    reason::POOL_REFUSED,
    reason::POOL_NAME_TAKEN,
    reason::POOL_NOT_SHARED,
    reason::NO_AVAILABLE_PROVIDER,
    reason::WAITING_FOR_MACHINE,
    reason::POOL_NOT_FOUND,
    reason::POOL_NOT_READY,
    reason::POOL_OFF,
    reason::RANK_OUT_OF_RANGE,
    reason::TOO_MANY_PROCESSES,
    reason::REFERENCE_NOT_FOUND,
    reason::REFERENCE_TOO_LARGE,
    reason::SOURCE_REFUSED,
    reason::BUNDLE_NOT_FOUND,
    reason::SOURCE_CHANGED,
    reason::FETCHING_SOURCE,
    reason::SOURCE_UNAVAILABLE,
    reason::SOURCE_INVALID,
    reason::AGENT_OUTDATED,
    reason::RETRYING,
    reason::SUSPENDED,
    reason::INVALID_SPEC,
];

const KNOWN_TROUBLES: [&str; 14] = [
    reason::ITEMS_NOT_READ,
    reason::MACHINE_UNFIT,
    reason::RESULT_STORE_FULL,
    reason::STORE_QUOTA_EXCEEDED,
    reason::RESULT_STORE_UNAVAILABLE,
    reason::OUTPUT_NOT_READ,
    reason::REFERENCE_NOT_FOUND,
    reason::REFERENCE_TOO_LARGE,
    reason::SOURCE_REFUSED,
    reason::BUNDLE_NOT_FOUND,
    reason::SOURCE_CHANGED,
    reason::SOURCE_UNAVAILABLE,
    reason::SOURCE_INVALID,
    reason::AGENT_OUTDATED,
];

/// Whether the recorded count, if there is one, is far from the current one.
fn is_outdated(told: Option<u32>, now: Option<u32>) -> bool {
    now.is_some_and(|now| told.is_none_or(|told| standing::has_changed_much(told, now)))
}

/// A message that repeats another reason names it in brackets at its end.
fn detail_of(message: &str) -> String {
    message
        .strip_suffix(')')
        .and_then(|rest| rest.rsplit_once('('))
        .map(|(_, detail)| detail)
        .filter(|detail| !detail.is_empty() && detail.chars().all(|c| c.is_ascii_alphanumeric()))
        .unwrap_or_default()
        .to_owned()
}

impl Dispatcher {
    pub(super) fn on_resolved(
        &mut self,
        uid: &Uid,
        result: Result<Arc<Resolved>, Unresolved>,
        now: Timestamp,
    ) {
        self.resolving = self.resolving.saturating_sub(1);
        self.dirty = true;
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Waiting(waiting) = &mut task.stage else {
            return;
        };
        let entry = &task.entry;
        let result = result.and_then(|resolved| {
            unchanged(
                entry.source.as_ref(),
                entry.recorded_source(),
                resolved.source.as_deref(),
            )?;
            Ok(resolved)
        });
        match result {
            Ok(resolved) => {
                waiting.references = References::Read(resolved, now);
                waiting.obstacle = None;
            }
            Err(error) => {
                waiting.references = References::Missing(now + LOOK_AGAIN);
                waiting.obstacle = Some(Why::new(error.reason, error.message));
            }
        }
    }

    /// Applies what the Pool and the Task's spec ask for now.
    pub(super) fn steer(&mut self, uid: &Uid, now: Timestamp) {
        if !self.viewed {
            return;
        }
        let Some(task) = self.tasks.get(uid) else { return };
        let pool = self.pool.as_deref();
        let deleted = pool.is_some_and(|pool| task.goes_with(pool));
        match &task.stage {
            Stage::Waiting(_) if deleted && task.write.is_none() && task.read == Read::Not => {
                let name = &task.entry.pool;
                let again = if task.entry.has_own_pool {
                    ""
                } else {
                    " for another Pool"
                };
                let why = Why::new(
                    reason::POOL_DELETED,
                    format!(
                        "Pool \"{name}\" was deleted before the Task could run; create the Task again{again}"
                    ),
                );
                let why = why.or_retry(&task.entry.name, task.entry.status.items.is_some());
                let status = status::ended(&task.entry, task.counts, &[], None, Some(why), now);
                self.end_task(uid, status, now);
            }
            Stage::Waiting(_) => {
                self.weigh_dependencies(uid, now);
                self.end_wait(uid, now);
            }
            Stage::Running(attempt) => {
                // A Pool that was deleted and created again under the same name did not own this Task.
                let is_other = |pool: &PoolView| match &attempt.pool {
                    Some(uid) => *uid != pool.uid,
                    None => after(attempt.started_at, SKEW) < pool.created,
                };
                let stop = match pool {
                    None => Some(StopWhy::PoolDeleted),
                    Some(pool) if deleted || is_other(pool) => Some(StopWhy::PoolDeleted),
                    Some(_) if self.is_overdue(&task.entry, now) => Some(StopWhy::Overdue),
                    Some(_) if task.entry.suspend => Some(StopWhy::Suspended),
                    Some(pool) if pool.why_suspended.is_some() => Some(StopWhy::PoolOff),
                    // Of a map only the workers there end.
                    Some(_) if task.entry.map.is_none() && self.loses_machine(uid, attempt.number) => {
                        Some(StopWhy::Drained)
                    }
                    Some(_) => None,
                };
                if let Some(stop) = stop {
                    self.stop_attempt(uid, stop, now);
                }
                self.tend_map(uid, now);
            }
            Stage::Placing(_) | Stage::Ending(_) => {}
        }
    }

    fn loses_machine(&self, uid: &Uid, attempt: u32) -> bool {
        self.attempt_runs(uid, attempt).any(|(_, run)| self.ends(run))
    }

    /// Whether a run is cut short because its machine goes.
    pub(super) fn ends(&self, run: &Run) -> bool {
        let stays = matches!(&run.stage, RunStage::Finished(finished) if finished.ending != Ending::Stopped);
        !stays
            && self
                .machines
                .get(&run.place)
                .is_some_and(|machine| machine.ending)
    }

    /// Does the work that was put off until `now`.
    pub(super) fn retry_task(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        if matches!(task.read, Read::At(at) if at <= now) {
            task.read = Read::Not;
            self.reread(uid);
            return;
        }
        match &mut task.stage {
            Stage::Waiting(waiting) => {
                // Once is enough: from then on the Task waits like any other.
                let may_go_on = waiting.not_before.take_if(|at| *at <= now).is_some();
                let is_over = waiting.retry_at.take_if(|at| *at <= now).is_some();
                let due = may_go_on
                    || is_over
                    || matches!(waiting.references, References::Missing(until) if until <= now)
                    || matches!(waiting.fetch, Fetch::Failed(until, _) if until <= now);
                self.dirty |= due;
                self.steer(uid, now);
            }
            Stage::Ending(_) => self.write_end(uid, now),
            Stage::Placing(_) => {
                if task.write.is_none() && task.read == Read::Not {
                    self.reread(uid);
                }
            }
            Stage::Running(_) => {
                if self
                    .tasks
                    .get(uid)
                    .is_some_and(|task| self.is_overdue(&task.entry, now))
                {
                    self.steer(uid, now);
                }
                self.conclude(uid, now);
            }
        }
    }

    /// Why the Task waits, as far as is known now.
    pub(super) fn why_waiting(&self, task: &TaskState, waiting: &Waiting, standing: Option<Standing>) -> Why {
        let name = &task.entry.pool;
        if task.entry.suspend {
            return Why::new(
                reason::SUSPENDED,
                "spec.suspend is true; set it to false to let the Task run",
            );
        }
        if !self.served {
            return Why::new(
                reason::NAMESPACE_NOT_SERVED,
                format!(
                    "namespace \"{}\" is not served: the operator was installed for other namespaces; ask a platform engineer to add it to the chart's value namespaces",
                    self.key.namespace
                ),
            );
        }
        if let Some(why) = task.depends.as_deref().and_then(Depends::why) {
            return why;
        }
        let Some(pool) = self.pool.as_deref() else {
            if task.entry.has_own_pool {
                return self.own_pool.why(name);
            }
            let others = match self.others.as_slice() {
                [] => "no other Pool is there".to_owned(),
                names => format!("there are: {}", cut(&names.join(", "), OTHERS)),
            };
            return Why::new(
                reason::POOL_NOT_FOUND,
                format!(
                    "there is no Pool \"{name}\" in namespace \"{}\" ({others}); the Task starts when there is",
                    self.key.namespace
                ),
            );
        };
        if task.barred {
            return own_pool::why_barred(&task.entry, pool);
        }
        if pool.deleted_at.is_some() {
            return Why::new(
                reason::POOL_NOT_READY,
                format!(
                    "Pool \"{name}\" is being deleted; the Task starts when there is a new one of that name"
                ),
            );
        }
        if let Some(why_suspended) = pool.why_suspended {
            return Why::new(
                reason::POOL_OFF,
                format!("Pool \"{name}\" is off: {why_suspended}"),
            );
        }
        if let Some(at) = waiting.retry_at {
            let next = task.counts.attempt.saturating_add(1);
            let again = waiting.again.as_ref().map_or_else(
                || format!("attempt {next} follows"),
                |again| again.message.clone(),
            );
            let at = at.strftime("%Y-%m-%d %H:%M:%S UTC");
            return Why::new(reason::RETRYING, format!("{again} at {at} (retries.backoff)"));
        }
        let hindrance = waiting.obstacle.as_ref().filter(|why| {
            why.reason != reason::WAITING_FOR_MACHINE || self.machines.values().any(MachineView::takes_runs)
        });
        if let Some(why) = hindrance {
            return why.clone();
        }
        if !self.machines.values().any(MachineView::takes_runs) {
            return match &pool.not_ready {
                // Nobody mends the Pool of one Task, whose template is fixed.
                Some((why, message)) if task.entry.has_own_pool && why == reason::NO_AVAILABLE_PROVIDER => {
                    Why::new(
                        reason::NO_AVAILABLE_PROVIDER,
                        format!(
                            "no offer fits spec.poolTemplate: {message} Create the Task again with a template that \
                             fits; where offers that fit come back, it starts by itself"
                        ),
                    )
                }
                Some((reason, message)) => Why {
                    reason: reason::POOL_NOT_READY,
                    detail: reason.clone(),
                    message: format!("no machine of Pool \"{name}\" takes Tasks: {message} ({reason})"),
                    before: None,
                },
                None if self
                    .machines
                    .values()
                    .any(|machine| machine.ready && machine.changing) =>
                {
                    Why::new(
                        reason::WAITING_FOR_MACHINE,
                        format!(
                            "the image of Pool \"{name}\" changed, and its machine takes the new one over"
                        ),
                    )
                }
                None => Why::new(
                    reason::WAITING_FOR_MACHINE,
                    format!("no machine of Pool \"{name}\" takes Tasks at this moment"),
                ),
            };
        }
        let away = self
            .machines
            .values()
            .find(|machine| machine.ready && !machine.changing && !machine.takes_runs());
        if let Some(machine) = away.filter(|_| waiting.again.is_none()) {
            let name = format!("machine \"{}\" of Pool \"{name}\"", machine.name);
            return Why::new(
                reason::WAITING_FOR_MACHINE,
                format!("{name} is being connected to"),
            );
        }
        let places = match standing {
            Some(standing) => standing.of(name).to_string(),
            None => format!("every place of Pool \"{name}\" is taken"),
        };
        let again = waiting.again.clone();
        let needs = match (&again, task.entry.placement) {
            (Some(again), _) => format!("{}; ", again.message),
            (None, Some(Placement::All(1))) => "needs a free place on each machine: ".to_owned(),
            (None, Some(Placement::All(processes))) => {
                format!("needs {processes} free places on each machine: ")
            }
            (None, Some(Placement::Rank(rank))) => format!("needs a free place on rank {rank}: "),
            (None, Some(Placement::One) | None) => String::new(),
        };
        Why {
            message: format!("{needs}{places}"),
            before: standing.map(|standing| standing.before),
            ..again.unwrap_or_else(|| Why::new(reason::WAITING_FOR_MACHINE, ""))
        }
    }

    /// Tasks that ended lately in a second.
    fn ended(&self) -> usize {
        self.ended.into_iter().max().unwrap_or_default()
    }

    /// Whether no more waits may be told before the next tick.
    pub(super) fn has_told_enough(&self) -> bool {
        self.told >= standing::most_told(self.ended())
    }

    /// Writes the waits of Tasks that came a moment ago.
    pub(super) fn tell_newcomers(&mut self, now: Timestamp) {
        let mut due = BTreeSet::new();
        while let Some(uid) = self.newcomers.front() {
            // All wait equally long, so the first of them is due first.
            let is_early = self
                .tasks
                .get(uid)
                .is_some_and(|task| matches!(&task.stage, Stage::Waiting(waiting) if waiting.tell_at > now));
            if is_early {
                break;
            }
            due.extend(self.newcomers.pop_front());
        }
        if !due.is_empty() {
            self.tell_waits(Some(&due), now);
        }
    }

    /// Writes why Tasks wait, where that is worth a write: of `among`, or of all.
    pub(super) fn tell_waits(&mut self, among: Option<&BTreeSet<Uid>>, now: Timestamp) {
        // What starts now does not wait.
        self.place_if_dirty(now);
        let is_meant = |uid: &Uid| among.is_none_or(|among| among.contains(uid));
        let (taken, places) = self.places();
        let ended = self.ended();
        let queued = self.queue.iter().enumerate().filter_map(|(before, key)| {
            let tells = is_meant(&key.3) && !standing::starts_soon(before, ended);
            let standing = Standing {
                taken,
                places,
                before: u32::try_from(before).unwrap_or(u32::MAX),
            };
            tells.then(|| (key.3.clone(), Some(standing)))
        });
        let others = self.tasks.iter().filter_map(|(uid, task)| {
            let waits = matches!(task.stage, Stage::Waiting(_)) && !task.queues();
            (waits && is_meant(uid)).then(|| (uid.clone(), None))
        });
        let waits: Vec<(Uid, Option<Standing>)> = others.chain(queued).collect();
        for (uid, standing) in waits {
            if self.has_told_enough() {
                break;
            }
            self.told += usize::from(self.tell_wait(&uid, standing, now));
        }
    }

    /// Writes why the Task waits, if that is worth a write; answers whether it was.
    pub(super) fn tell_wait(&mut self, uid: &Uid, standing: Option<Standing>, now: Timestamp) -> bool {
        let Some(task) = self.tasks.get(uid) else {
            return false;
        };
        let Stage::Waiting(waiting) = &task.stage else {
            return false;
        };
        let stopped = task.entry.phase() == TaskPhase::Running;
        let depends = task.depends.as_deref();
        let at_once = task.entry.suspend
            || (stopped
                && self
                    .pool
                    .as_deref()
                    .is_some_and(|pool| pool.why_suspended.is_some()));
        let hold = task.write.is_some()
            || task.read != Read::Not
            || !self.viewed
            || !self.synced
            || task.write_at.is_some_and(|at| at > now)
            || (self.served && !task.entry.suspend && depends.is_some_and(Depends::is_unread))
            || (!at_once && waiting.tell_at > now);
        if hold {
            return false;
        }
        let why = self.why_waiting(task, waiting, standing);
        let is_told = waiting.told.as_ref().is_some_and(|told| {
            let is_recorded = depends.is_none_or(|depends| depends.records == task.entry.status.dependencies);
            told.is_like(&why)
                && is_recorded
                && (waiting.count_at > now || !is_outdated(told.before, why.before))
        });
        // A Task that was set aside tries whether the API server takes a status now.
        if is_told && !stopped && !task.aside {
            return false;
        }
        let mut status = status::waiting(&task.entry, task.counts, &why, now);
        status.retry_at = waiting.retry_at.map(Time);
        let patience = waiting.give_up_at.filter(|_| task.may_start());
        status.queue_deadline = patience.map(Time);
        if let Some(keeping) = &waiting.keeping {
            keeping.kept.note(&mut status);
        }
        if let Some(Stage::Waiting(waiting)) = self.tasks.get_mut(uid).map(|task| &mut task.stage) {
            waiting.told = Some(why);
            waiting.count_at = now + RECOUNT;
        }
        self.write(uid, status);
        true
    }

    /// Writes the trouble that holds up a run, if it lasts and is not recorded; or that it is over.
    /// Answers whether there was something to write.
    pub(super) fn tell_trouble(&mut self, uid: &Uid, now: Timestamp) -> bool {
        let Some(task) = self.tasks.get(uid) else {
            return false;
        };
        let Stage::Running(attempt) = &task.stage else {
            return false;
        };
        let busy = task.write.is_some() || task.read != Read::Not || task.write_at.is_some_and(|at| at > now);
        if busy || task.entry.phase() != TaskPhase::Running {
            return false;
        }
        let worst = self
            .attempt_runs(uid, attempt.number)
            .filter_map(|(_, run)| Some((run.trouble.as_ref()?, run.hold.is_some())))
            .filter(|(trouble, _)| trouble.since + TROUBLE <= now)
            .min_by_key(|(trouble, _)| trouble.since);
        // A hold has Events of its own.
        let is_held = worst.is_some_and(|(_, held)| held);
        let of_map = attempt.map.as_ref().and_then(|map| map.trouble.as_ref());
        let of_map = of_map.filter(|trouble| trouble.since + TROUBLE <= now);
        let why = worst.map(|(trouble, _)| trouble).or(of_map);
        let why = why.map(|trouble| trouble.why.clone());
        let known = task.entry.status.reason.as_str();
        // A new leader does not know the cause yet, and a trouble that has just begun may last.
        let goes_on = || {
            self.attempt_runs(uid, attempt.number).all(|(_, run)| {
                run.trouble.is_none() && (run.is_settled() || matches!(run.stage, RunStage::Running))
            })
        };
        let is_told = match &why {
            Some(why) => why.reason == known,
            None => !KNOWN_TROUBLES.contains(&known) || !goes_on(),
        };
        if is_told {
            return false;
        }
        let status = status::running(&task.entry, why.as_ref(), now);
        if let Some(why) = why.filter(|_| !is_held) {
            let event = EventSpec::warning(events::reason::RUN_HELD_UP, "Collect", why.message);
            self.publish(uid, event);
        }
        self.write(uid, status);
        true
    }
}
