//! What a CronTask does next: a pure function.
//!
//! A plan makes at most one Task, for the last time of the schedule that has passed since `status.lastScheduleTime`. The
//! name of the Task has that time in it, so that it is not made twice: neither by a leader that does not know what its
//! predecessor did, nor after a clock that goes back. `status.lastScheduleTime` is written right after the Task is made.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};
use skyward_api::{
    CronTask, CronTaskStatus, Task, TaskPhase,
    condition::{self, NewCondition, READY, STALLED, reason},
    cron_task::ConcurrencyPolicy,
    labels,
};

use super::{
    facts::{Child, Observed},
    schedule::{self, Schedule},
};
use crate::{
    base::{
        memory::ClusterMemory,
        requeue::Next,
        time::{after, doubled, elapsed},
    },
    events::{self, EventSpec},
};

/// Most Tasks of one CronTask that have not ended.
pub const MOST_UNFINISHED: usize = 10;
/// Most Tasks that one plan deletes.
const MOST_DELETED: usize = 50;
/// Names in a status.
const MOST_NAMES: usize = 10;
/// Longest time to the next look: the clock of the machine may jump.
const LOOK: Duration = Duration::from_mins(10);
/// A last time that is further ahead of the clock than this is told: clocks of two machines differ by less.
const AHEAD: Duration = Duration::from_mins(1);
/// The next look after Tasks could not be read.
const AGAIN: Duration = Duration::from_secs(5);
/// Kept of ended Tasks where the spec does not say.
const SUCCEEDED: u32 = 3;
const FAILED: u32 = 1;

/// A Task to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Doomed {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// It is deleted only if it still has this version: one that ended may have been given more time since.
    pub version: Option<String>,
}

/// A Task to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Making {
    /// The time of the schedule that it is for.
    pub at: Timestamp,
    /// The Task.
    pub task: Box<Task>,
    /// What is told once it is made.
    pub event: EventSpec,
}

/// What is to be done, in this order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Deleted first: unfinished Tasks that another one takes the place of, if the API server would take that one.
    pub replace: Vec<Doomed>,
    /// Then made.
    pub make: Option<Making>,
    /// Then written, where it is another one.
    pub status: Option<CronTaskStatus>,
    /// Then published.
    pub events: Vec<EventSpec>,
    /// Deleted last: ended Tasks beyond the history. Nothing waits for that.
    pub forget: Vec<Doomed>,
    /// When the CronTask is looked at again.
    pub next: Next,
}

/// What the condition says.
struct Standing {
    is_ready: bool,
    is_stalled: bool,
    reason: &'static str,
    message: String,
}

impl Standing {
    fn ready(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_ready: true,
            is_stalled: false,
            reason,
            message: message.into(),
        }
    }

    fn waits(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_ready: false,
            ..Self::ready(reason, message)
        }
    }

    fn stalled(reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            is_stalled: true,
            ..Self::waits(reason, message)
        }
    }
}

/// Decides.
pub fn plan(observed: &Observed, now: Timestamp) -> Plan {
    let cron = &*observed.cron;
    if cron.metadata.deletion_timestamp.is_some() {
        return Plan::default();
    }
    let known = observed.children.as_ref();
    let Some(children) = known.filter(|_| observed.memory != ClusterMemory::Unproved) else {
        // Unknown is not none, and what is not proved is not so: nothing is made, deleted or left out.
        return Plan {
            next: Next::After(AGAIN),
            ..Plan::default()
        };
    };
    let mut plan = Plan {
        next: Next::After(LOOK),
        ..Plan::default()
    };
    let old = cron.status.clone().unwrap_or_default();
    let mut status = CronTaskStatus {
        next_schedule_time: None,
        observed_generation: cron.metadata.generation,
        ..old.clone()
    };
    tell_children(&mut status, children);
    note_made(&mut status, children, now);
    let standing = match Schedule::parse(&cron.spec.schedule, cron.spec.time_zone.as_deref()) {
        Err(why) => Standing::stalled(reason::INVALID_SCHEDULE, unreadable(&why)),
        Ok(schedule) => proceed(observed, children, &schedule, &mut status, &mut plan, now),
    };
    if observed.memory == ClusterMemory::Whole {
        let done_with = status.last_schedule_time.as_ref().map(|time| time.0);
        plan.forget = beyond_history(cron, children, done_with, now);
        plan.forget.truncate(MOST_DELETED);
    }
    let mut conditions = vec![NewCondition::new(
        READY,
        standing.is_ready,
        standing.reason,
        standing.message.clone(),
    )];
    if standing.is_stalled {
        conditions.push(NewCondition::new(
            STALLED,
            true,
            standing.reason,
            standing.message,
        ));
    }
    standing.reason.clone_into(&mut status.reason);
    status.conditions = condition::apply(&old.conditions, &conditions, cron.metadata.generation, now);
    plan.status = (status != old).then_some(status);
    plan
}

fn unreadable(why: &str) -> String {
    format!("spec.schedule and spec.timeZone cannot be read: {why}; correct them")
}

/// Makes the Task that is due, where it may be made; says how the CronTask stands.
fn proceed(
    observed: &Observed,
    children: &[Child],
    schedule: &Schedule,
    status: &mut CronTaskStatus,
    plan: &mut Plan,
    now: Timestamp,
) -> Standing {
    let (cron, spec) = (&*observed.cron, &observed.cron.spec);
    let created = cron
        .metadata
        .creation_timestamp
        .as_ref()
        .map_or(now, |time| time.0);
    let done_with = status
        .last_schedule_time
        .as_ref()
        .map_or(created, |time| time.0.max(created));
    let Some(next) = schedule.next(now.max(done_with)) else {
        let never = "no time of spec.schedule comes within four years; correct it";
        return Standing::stalled(reason::INVALID_SCHEDULE, never);
    };
    if !observed.served {
        let namespace = cron.metadata.namespace.as_deref().unwrap_or_default();
        return Standing::stalled(
            reason::NAMESPACE_NOT_SERVED,
            format!(
                "namespace \"{namespace}\" is not served: the operator was installed for other namespaces; ask a platform engineer to add it to the chart's value namespaces"
            ),
        );
    }
    if spec.suspend.unwrap_or_default() {
        let message = "spec.suspend is true: no Task is made; set it to false to go on";
        return Standing::ready(reason::SUSPENDED, message);
    }
    if observed.memory != ClusterMemory::Whole {
        return Standing::waits(
            reason::RESTORE_PENDING,
            "a Provider is held, since this cluster was restored from a backup or is a copy: a Task that is due may have run already, so none is made before that is decided at the Provider, and times that pass meanwhile are left out",
        );
    }
    status.next_schedule_time = Some(Time(next));
    plan.next.requeue_after(elapsed(now, next));
    let written = schedule::text(&spec.schedule, spec.time_zone.as_deref());
    let is_new = !status.schedule.is_empty() && status.schedule != written;
    status.schedule = written;
    let Some(due) = schedule.last(done_with, now) else {
        return if elapsed(now, done_with) > AHEAD {
            awaits_after(next, done_with)
        } else {
            awaits(next)
        };
    };
    // What passed while nothing could be made is left out, and so is what passed before the schedule was written as it is
    // now. The status on record says whether that was so.
    let was_paused = [reason::SUSPENDED, reason::RESTORE_PENDING].contains(&status.reason.as_str());
    if was_paused || is_new {
        status.last_schedule_time = Some(Time(due));
        return awaits(next);
    }
    let deadline = spec
        .starting_deadline_seconds
        .map(|seconds| Duration::from_secs(seconds.into()));
    if deadline.is_some_and(|deadline| elapsed(due, now) > deadline) {
        status.last_schedule_time = Some(Time(due));
        let note = format!("no Task was made for {due}: spec.startingDeadlineSeconds has passed");
        let event = EventSpec::warning(events::reason::SCHEDULE_MISSED, "Skip", note);
        plan.events.push(event);
        return awaits(next);
    }
    let active: Vec<&Child> = unfinished(children).collect();
    match spec.concurrency_policy.unwrap_or_default() {
        ConcurrencyPolicy::Forbid if !active.is_empty() => {
            return Standing::ready(
                reason::EARLIER_TASK_RUNS,
                format!(
                    "a Task is due since {due} and is made when {} has ended (spec.concurrencyPolicy)",
                    names(&active)
                ),
            );
        }
        // Tasks that are deleted may take long to go.
        ConcurrencyPolicy::Allow | ConcurrencyPolicy::Replace if active.len() >= MOST_UNFINISHED => {
            return Standing::waits(
                reason::TOO_MANY_UNFINISHED,
                format!(
                    "a Task is due since {due}, and {} Tasks of the CronTask have not ended, which is the most: it is made when one of them has ended",
                    active.len()
                ),
            );
        }
        ConcurrencyPolicy::Replace => {
            let there = active.iter().filter(|child| !child.deleting);
            // Its status may change at any moment, which is no reason to leave it.
            plan.replace.extend(there.map(|child| Doomed {
                version: None,
                ..doomed(child)
            }));
        }
        ConcurrencyPolicy::Forbid | ConcurrencyPolicy::Allow => {}
    }
    let task = task(cron, due);
    let refusal = observed.refusal.as_ref();
    if let Some(refusal) = refusal.filter(|refusal| refusal.at == due && refusal.until > now) {
        plan.replace.clear();
        plan.next.requeue_after(elapsed(now, refusal.until));
        return Standing::waits(
            reason::TASK_REFUSED,
            format!(
                "Task \"{}\" could not be made: {}; the operator tries again",
                task.metadata.name.as_deref().unwrap_or_default(),
                refusal.why
            ),
        );
    }
    let name = task.metadata.name.as_deref().unwrap_or_default();
    let event = EventSpec::normal(
        events::reason::TASK_MADE,
        "Create",
        format!("Task \"{name}\" was made for {due}"),
    );
    plan.make = Some(Making {
        at: due,
        task: Box::new(task),
        event,
    });
    status.last_schedule_time = Some(Time(due));
    // Its own Task is seen then.
    plan.next = Next::Again;
    awaits(next)
}

fn awaits(next: Timestamp) -> Standing {
    Standing::ready(reason::NEXT_SCHEDULED, format!("the next Task is made at {next}"))
}

/// A clock was wrong once, and times that have not come yet are done with: none of them gets a second Task.
fn awaits_after(next: Timestamp, done_with: Timestamp) -> Standing {
    Standing::ready(
        reason::NEXT_SCHEDULED,
        format!(
            "the next Task is made at {next}: a clock that was ahead has left all times up to {done_with} behind (status.lastScheduleTime); create another CronTask to have Tasks before"
        ),
    )
}

fn unfinished(children: &[Child]) -> impl Iterator<Item = &Child> {
    children.iter().filter(|child| !child.phase.is_finished())
}

fn names(children: &[&Child]) -> String {
    let names: Vec<String> = children
        .iter()
        .take(MOST_NAMES)
        .map(|child| format!("\"{}\"", child.name))
        .collect();
    format!("Task {}", names.join(", "))
}

fn doomed(child: &Child) -> Doomed {
    Doomed {
        name: child.name.clone(),
        uid: child.uid.clone(),
        version: child.version.clone(),
    }
}

/// What the status says of its Tasks.
fn tell_children(status: &mut CronTaskStatus, children: &[Child]) {
    let mut active: Vec<String> = unfinished(children).map(|child| child.name.clone()).collect();
    active.sort_unstable();
    status.active_tasks = u32::try_from(active.len()).unwrap_or(u32::MAX);
    active.truncate(MOST_NAMES);
    status.active = active;
    let succeeded = children
        .iter()
        .filter(|child| child.phase == TaskPhase::Succeeded);
    let last = succeeded.filter_map(|child| child.ended_at).max();
    let known = status.last_successful_time.as_ref().map(|time| time.0);
    status.last_successful_time = last.max(known).map(Time);
}

/// A Task that is there was made, although a leader may have died before that was on record.
fn note_made(status: &mut CronTaskStatus, children: &[Child], now: Timestamp) {
    let times = children.iter().filter_map(|child| child.scheduled_for);
    let made = times.filter(|at| *at <= now).max();
    let known = status.last_schedule_time.as_ref().map(|time| time.0);
    status.last_schedule_time = made.max(known).map(Time);
}

/// Ended Tasks that are deleted: all but the newest ones, none whose logs or results are still to be kept, none of
/// which another Task has yet to learn that it has ended, and none of a time that is not done with: it would be made again.
fn beyond_history(
    cron: &CronTask,
    children: &[Child],
    done_with: Option<Timestamp>,
    now: Timestamp,
) -> Vec<Doomed> {
    let spec = &cron.spec;
    let limits = [
        (
            TaskPhase::Succeeded,
            spec.successful_tasks_history_limit.unwrap_or(SUCCEEDED),
        ),
        (
            TaskPhase::Failed,
            spec.failed_tasks_history_limit.unwrap_or(FAILED),
        ),
    ];
    let mut beyond = Vec::new();
    for (phase, limit) in limits {
        let mut ended: Vec<&Child> = children.iter().filter(|child| child.phase == phase).collect();
        ended.sort_by_key(|child| Reverse((child.scheduled_for.or(child.ended_at), child.name.clone())));
        let old = ended
            .into_iter()
            .skip(usize::try_from(limit).unwrap_or(usize::MAX));
        let may_go = |child: &&Child| {
            let is_kept = child.kept_until.is_some_and(|until| until > now);
            let is_done_with = child.scheduled_for.is_none_or(|at| Some(at) <= done_with);
            !child.deleting && !child.awaited && !is_kept && is_done_with
        };
        let gone = old.filter(may_go);
        beyond.extend(gone.map(doomed));
    }
    beyond
}

/// The Task of that time.
fn task(cron: &CronTask, at: Timestamp) -> Task {
    let name = cron.metadata.name.as_deref().unwrap_or_default();
    let template = cron.spec.task_template.metadata.clone().unwrap_or_default();
    let mut task = Task::new(
        &format!("{name}-{}", at.as_second().div_euclid(60)),
        cron.spec.task_template.spec.clone(),
    );
    let with = |mut all: BTreeMap<String, String>, key: &str, value: String| {
        all.insert(key.to_owned(), value);
        Some(all)
    };
    let uid = cron.metadata.uid.clone().unwrap_or_default();
    task.metadata.namespace.clone_from(&cron.metadata.namespace);
    task.metadata.labels = with(template.labels, labels::CRON_TASK_UID, uid.clone());
    task.metadata.annotations = with(template.annotations, labels::SCHEDULED_FOR, at.to_string());
    task.metadata.owner_references = Some(vec![OwnerReference {
        api_version: format!("{}/{}", skyward_api::GROUP, skyward_api::VERSION),
        kind: "CronTask".to_owned(),
        name: name.to_owned(),
        uid,
        controller: Some(true),
        block_owner_deletion: None,
    }]);
    task
}

/// How long to wait after the API server refused a Task so many times in a row.
pub fn pause(times: u32) -> Duration {
    doubled(
        Duration::from_secs(5),
        times.saturating_sub(1),
        Duration::from_mins(5),
    )
}

/// Until when a refused Task is not tried again.
pub fn not_before(now: Timestamp, times: u32) -> Timestamp {
    after(now, pause(times))
}
