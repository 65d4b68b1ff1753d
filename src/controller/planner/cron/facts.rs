//! What is known of a CronTask: the object, and the Tasks that it has made.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use skyward_api::{CronTask, Task, TaskPhase, labels, task::Kept};

use crate::base::memory::ClusterMemory;

/// A Task that a CronTask made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that this was read from.
    pub version: Option<String>,
    /// The time of the schedule that it was made for.
    pub scheduled_for: Option<Timestamp>,
    /// Its phase.
    pub phase: TaskPhase,
    /// Whether its deletion was asked for.
    pub deleting: bool,
    /// When its end was recorded.
    pub ended_at: Option<Timestamp>,
    /// Until when its logs or results are kept at least; `None`: as long as it is there.
    pub kept_until: Option<Timestamp>,
    /// Whether another Task waits for it, or may do so.
    pub awaited: bool,
}

impl Child {
    /// From the object; `None`: another object made it, whatever its labels say.
    pub fn of(task: &Task, owner: &str) -> Option<Self> {
        let kept = [Kept::Logs, Kept::Results];
        let phase = task.status.as_ref().and_then(|status| status.phase);
        Some(Self {
            phase: phase.unwrap_or_default(),
            ended_at: task.ended_at(),
            kept_until: kept.into_iter().filter_map(|kept| task.expiry(kept)).max(),
            ..Self::not_ended(&task.metadata, owner)?
        })
    }

    /// From the metadata of a Task that has not ended, of which nothing else may be known.
    pub fn not_ended(metadata: &ObjectMeta, owner: &str) -> Option<Self> {
        let mut owners = metadata.owner_references.iter().flatten();
        let is_ours = owners.any(|reference| reference.uid == owner && reference.controller == Some(true));
        let annotations = metadata.annotations.as_ref();
        let scheduled_for = annotations.and_then(|all| all.get(labels::SCHEDULED_FOR));
        is_ours.then_some(Self {
            name: metadata.name.clone()?,
            uid: metadata.uid.clone()?,
            version: metadata.resource_version.clone(),
            scheduled_for: scheduled_for.and_then(|text| text.parse().ok()),
            phase: TaskPhase::default(),
            deleting: metadata.deletion_timestamp.is_some(),
            ended_at: None,
            kept_until: None,
            awaited: false,
        })
    }
}

/// Whether a CronTask has on record that it made that Task; also where the Task is not its own.
pub fn has_on_record(cron: &CronTask, task: &Task) -> bool {
    let owner = cron.metadata.uid.as_deref().unwrap_or_default();
    let made = Child::of(task, owner).and_then(|child| child.scheduled_for);
    let status = cron.status.as_ref();
    let last = status.and_then(|status| status.last_schedule_time.as_ref());
    made.is_none_or(|made| last.is_some_and(|last| made <= last.0))
}

/// The API server did not take a Task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The time of the schedule that it was for.
    pub at: Timestamp,
    /// For the user.
    pub why: String,
    /// It is not tried again before.
    pub until: Timestamp,
}

/// Everything that a plan may know.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The CronTask.
    pub cron: Arc<CronTask>,
    /// Its Tasks; `None`: they could not be read now.
    pub children: Option<Vec<Child>>,
    /// Whether the operator was installed for its namespace, too.
    pub served: bool,
    /// Whether this cluster may have forgotten what it did.
    pub memory: ClusterMemory,
    /// What the API server refused last.
    pub refusal: Option<Refusal>,
}
