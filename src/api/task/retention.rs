//! How long the logs and results of a Task are kept once it has ended. The time alone decides for
//! readers whether they have expired; the controller deletes them later.

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::{SignedDuration, Timestamp},
};
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use super::{Task, TaskPhase, TaskStatus};
use crate::{condition, duration::Duration};

/// How long the logs and results of an ended Task are kept, from when its end was recorded. What the Task's status
/// shows of them stays as long as the Task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Retention {
    /// Its logs, and with them what its functions yield, such as `168h`. As long as the Task when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("retention.logs", "1m", "87600h"))]
    pub logs: Option<Duration>,
    /// The return values of its runs, such as `720h`; what its functions yield is not given out for longer either. As
    /// long as the Task when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("retention.results", "1m", "87600h"))]
    pub results: Option<Duration>,
}

/// What is kept of a Task in the result store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kept {
    /// The logs of its runs.
    Logs,
    /// Their return values.
    Results,
}

impl Task {
    /// When its end was recorded; `None`: it has not ended.
    pub fn ended_at(&self) -> Option<Timestamp> {
        let status = self.status.as_ref()?;
        // A user who writes into a status may begin an ended Task anew.
        if !status.phase.is_some_and(TaskPhase::is_finished) {
            return None;
        }
        let created = self.metadata.creation_timestamp.as_ref();
        status.recorded_end().or(created.map(|time| time.0))
    }

    /// When its logs or results expire; `None`: it has not ended, or they are kept as long as it is there.
    pub fn expiry(&self, of: Kept) -> Option<Timestamp> {
        let retention = self.spec.retention.as_ref()?;
        let kept = match of {
            Kept::Logs => retention.logs.as_ref()?,
            Kept::Results => retention.results.as_ref()?,
        };
        let kept = SignedDuration::try_from(kept.parse()?).ok()?;
        self.ended_at()?.checked_add(kept).ok()
    }
}

impl TaskStatus {
    /// When the end of a Task was recorded: its ttl and its retention count from then, not from `finishedAt`, which is
    /// by the clocks of its machines, and long ago if no controller ran when it ended.
    pub fn recorded_end(&self) -> Option<Timestamp> {
        let at = |condition: &Condition| condition.last_transition_time.0;
        [condition::COMPLETE, condition::FAILED]
            .into_iter()
            .filter_map(|type_| condition::find(&self.conditions, type_))
            .map(at)
            .max()
            // A person who ended the Task by hand may have left out either.
            .or_else(|| self.finished_at.as_ref().map(|time| time.0))
            .or_else(|| self.conditions.iter().map(at).max())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn task(retention: Value, status: Value) -> Task {
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "t", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "pool": "p", "command": ["true"], "retention": retention }, "status": status,
        }))
        .unwrap()
    }

    fn ended() -> Value {
        json!({ "phase": "Succeeded", "finishedAt": "2025-12-31T23:00:00Z", "conditions": [{
            "type": "Complete", "status": "True", "reason": "Succeeded", "message": "",
            "lastTransitionTime": "2026-01-01T01:00:00Z" }] })
    }

    #[test]
    fn logs_and_results_expire_each_in_its_time_after_the_recorded_end() {
        let task = task(json!({ "logs": "24h", "results": "1h30m" }), ended());
        let at = |text: &str| Some(text.parse().unwrap());
        assert_eq!(task.expiry(Kept::Logs), at("2026-01-02T01:00:00Z"));
        assert_eq!(task.expiry(Kept::Results), at("2026-01-01T02:30:00Z"));
    }

    #[test]
    fn nothing_expires_of_a_task_that_goes_on_or_says_nothing() {
        let both = json!({ "logs": "1m", "results": "1m" });
        for (retention, status) in [
            (both.clone(), json!({ "phase": "Running", "attempt": 1 })),
            (both, Value::Null),
            (json!({}), ended()),
            (Value::Null, ended()),
        ] {
            let task = task(retention, status);
            assert_eq!(
                (task.expiry(Kept::Logs), task.expiry(Kept::Results)),
                (None, None)
            );
        }
    }

    #[test]
    fn a_time_that_no_calendar_has_is_never() {
        let task = task(
            json!({ "logs": "999999h999999h" }),
            json!({
            "phase": "Failed", "finishedAt": "9990-01-01T00:00:00Z" }),
        );
        assert_eq!(task.expiry(Kept::Logs), None);
    }
}
