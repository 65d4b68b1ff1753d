//! CronTask: makes Tasks by the clock, as a CronJob makes Jobs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{shared::TemplateMetadata, task::TaskSpec};

/// Longest name of a CronTask: its Tasks have it in front of the minute that they are made for.
pub const MAX_NAME: usize = 200;

/// Makes Tasks by the clock, as a CronJob makes Jobs.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "skyward.dev",
    version = "v1alpha1",
    kind = "CronTask",
    plural = "crontasks",
    namespaced,
    shortname = "skcron",
    category = "skyward",
    status = "CronTaskStatus",
    doc = "Makes Tasks by the clock, as a CronJob makes Jobs.",
    validation = Rule::new(format!("size(self.metadata.name) <= {MAX_NAME}")).message("the name of a CronTask has at most 200 characters: its Tasks have it in front of the time that they are made for"),
    printcolumn(name = "Schedule", type_ = "string", json_path = ".spec.schedule"),
    printcolumn(name = "Zone", type_ = "string", json_path = ".spec.timeZone"),
    printcolumn(name = "Suspend", type_ = "boolean", json_path = ".spec.suspend"),
    printcolumn(name = "Active", type_ = "integer", json_path = ".status.activeTasks"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Last", type_ = "date", json_path = ".status.lastScheduleTime"),
    printcolumn(
        name = "Next",
        type_ = "string",
        json_path = ".status.nextScheduleTime",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
pub struct CronTaskSpec {
    /// When Tasks are made, as in a CronJob: minute, hour, day of month, month, day of week, such as `0 3 * * *`;
    /// or one of `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. A time that the clock has twice in autumn comes
    /// once, unless the hour is `*`. May be changed at any time: times of a new schedule that have passed are not made up
    /// for.
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = crate::rule::matches(r"^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[0-9A-Za-z*/,#-]+( +[0-9A-Za-z*/,#-]+){4})$", "schedule has five fields, minute, hour, day of month, month and day of week, such as \"0 3 * * *\"; the time zone stands in timeZone"))]
    pub schedule: String,
    /// Time zone of the schedule, as the IANA names it, such as `Europe/Berlin`. Default `UTC`. May be changed at any
    /// time, as `schedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 64))]
    #[x_kube(validation = crate::rule::matches("^[A-Za-z][A-Za-z0-9_+/-]*$", "timeZone must be a name such as Europe/Berlin or UTC"))]
    pub time_zone: Option<String>,
    /// What happens when a Task is due while an earlier one has not ended: `Forbid` (default), `Allow` or `Replace`.
    /// May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub concurrency_policy: Option<ConcurrencyPolicy>,
    /// How late a Task may be made, in seconds; a time that passed longer ago makes no Task. No limit when
    /// left out. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10, max = 315_360_000))]
    pub starting_deadline_seconds: Option<u32>,
    /// Make no further Tasks; Tasks that exist go on. Times that pass meanwhile are not made up for. Default false.
    /// May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// How many of its newest Tasks that succeeded are kept. Default 3. Older ones are deleted, with logs and results,
    /// and not before their `retention` has passed. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub successful_tasks_history_limit: Option<u32>,
    /// How many of its newest Tasks that failed are kept. Default 1. May be changed at any time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub failed_tasks_history_limit: Option<u32>,
    /// The Tasks that are made. May be changed at any time, for Tasks that are made afterwards.
    pub task_template: TaskTemplate,
}

/// What happens when a Task is due while an earlier one has not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum ConcurrencyPolicy {
    /// No Task is made before the earlier one has ended; then one is made for the last time that has passed.
    #[default]
    Forbid,
    /// The Task is made all the same, while fewer than 10 Tasks of the CronTask have not ended.
    Allow,
    /// The earlier Task is deleted, with its logs and results, and the new one is made, while fewer than 10 Tasks of the
    /// CronTask have not ended or are being deleted.
    Replace,
}

/// What the Tasks of a CronTask are made from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskTemplate {
    /// Labels and annotations of the Tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<TemplateMetadata>,
    /// Spec of the Tasks, with the fields of a Task.
    pub spec: TaskSpec,
}

/// Observed state of a CronTask.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronTaskStatus {
    /// How many of its Tasks have not ended.
    #[serde(default)]
    pub active_tasks: u32,
    /// Names of its Tasks that have not ended, at most 10.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10), inner(length(max = 253)))]
    pub active: Vec<String>,
    /// Reason of the condition `Ready`, or of `Stalled` where that is true.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Schedule and time zone that the controller goes by, such as `0 3 * * * Europe/Berlin`: times that had passed when
    /// another one was written are not made up for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 200))]
    pub schedule: String,
    /// The last time of the schedule for which a Task was made, or which was skipped: no earlier time makes a Task.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// When one of its Tasks last succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Time>,
    /// The next time of the schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_schedule_time: Option<Time>,
    /// `Ready`, `Stalled`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
