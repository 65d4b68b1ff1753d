//! Task: work for a Pool of the same namespace.

mod items;
mod order;
mod retention;
mod retries;
mod source;

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

use crate::{
    duration::Duration,
    for_each::ForEach,
    pool::PoolTemplate,
    shared::{EnvFrom, EnvVar},
};

pub use items::ItemsStatus;
pub use order::{Dependency, DependencyCondition, DependencyStatus, MAX_DEPENDENCIES, awaited, queue_order};
pub use retention::{Kept, Retention};
pub use retries::{Backoff, FailureReason, Retries, RetryAction, RetryRule, RetryScope};
pub use source::{BundleSource, ConfigMapSource, GitSource, Source, SourceStatus};

/// Work for a Pool of the same namespace: a command, a script or a Python function.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "skyward.dev",
    version = "v1alpha1",
    kind = "Task",
    plural = "tasks",
    namespaced,
    shortname = "sktask",
    category = "skyward",
    status = "TaskStatus",
    doc = "Work for a Pool of the same namespace: a command, a script or a Python function.",
    selectable = ".spec.pool",
    selectable = ".status.phase",
    printcolumn(name = "Pool", type_ = "string", json_path = ".spec.pool"),
    printcolumn(name = "Mode", type_ = "string", json_path = ".status.mode"),
    printcolumn(name = "Done", type_ = "string", json_path = ".status.done"),
    printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.reason"),
    printcolumn(name = "Duration", type_ = "string", json_path = ".status.duration"),
    printcolumn(
        name = "Restarts",
        type_ = "integer",
        json_path = ".status.restarts",
        priority = 1
    ),
    printcolumn(
        name = "Failures",
        type_ = "integer",
        json_path = ".status.failures",
        priority = 1
    ),
    printcolumn(
        name = "Failed",
        type_ = "integer",
        json_path = ".status.items.failed",
        priority = 1
    ),
    printcolumn(
        name = "Priority",
        type_ = "integer",
        json_path = ".spec.priority",
        priority = 1
    ),
    printcolumn(name = "Cost", type_ = "string", json_path = ".status.cost", priority = 1),
    printcolumn(
        name = "Commit",
        type_ = "string",
        json_path = ".status.source.commit",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[kube(derive = "PartialEq")]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = crate::rule::fixed("pool", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("poolTemplate", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("command", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("script", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("function", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("source", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("placement", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("processesPerMachine", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("timeout", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("activeDeadline", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("queueTimeout", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("terminationGracePeriod", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("retries", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("env", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("envFrom", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("workingDir", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("output", "create another Task"))]
#[x_kube(validation = crate::rule::fixed("dependsOn", "create another Task"))]
#[x_kube(validation = Rule::new("has(self.forEach) == has(oldSelf.forEach)").message("forEach cannot be changed; create another Task").field_path(".forEach"))]
#[x_kube(validation = Rule::new("!has(self.forEach) || !has(self.placement) || string(self.placement) == 'One'").message("each item of forEach runs on one machine: leave placement out"))]
#[x_kube(validation = Rule::new("!has(self.forEach) || !has(self.forEach.itemsFrom) || !has(self.forEach.itemsFrom.sourceFile) || has(self.source)").message("forEach.itemsFrom.sourceFile is looked for in the source: name one in spec.source, or take the items from a ConfigMap (configMapKeyRef)"))]
#[x_kube(validation = Rule::new("!has(self.forEach) || !has(self.forEach.itemsFrom) || !has(self.forEach.itemsFrom.taskResult) || (has(self.dependsOn) && self.dependsOn.exists(other, other.task == self.forEach.itemsFrom.taskResult))").message("the Task of forEach.itemsFrom.taskResult ends first: name it in dependsOn, too, such as dependsOn: [{task: prepare}]"))]
#[x_kube(validation = Rule::new("has(self.pool) != has(self.poolTemplate)").message("a Task needs exactly one of pool, the name of a Pool that runs it, and poolTemplate, a Pool that is made for it"))]
#[x_kube(validation = Rule::new("[has(self.command), has(self.script), has(self.__function__)].filter(x, x).size() == 1").message("a Task needs exactly one of command, script and function"))]
#[x_kube(validation = Rule::new("!has(self.source) || !has(self.workingDir)").message("a Task starts in the folder of its source: leave workingDir out, or source"))]
#[x_kube(validation = Rule::new("has(self.source) || !has(self.__function__) || !has(self.__function__.module)").message("function.module is looked for in the source: name one in spec.source, or write the function itself into function.source"))]
#[x_kube(validation = Rule::new("!has(self.retries) || !has(self.retries.scope) || (has(self.placement) && string(self.placement) == 'All')").message("retries.scope is for Tasks that run on all machines: set placement: All, or leave it out"))]
#[x_kube(validation = Rule::new("!has(self.processesPerMachine) || (has(self.placement) && string(self.placement) == 'All')").message("processesPerMachine is for Tasks that run on all machines: set placement: All, or leave it out"))]
pub struct TaskSpec {
    /// The Pool of this namespace that runs it. It may be created later. Either this or `poolTemplate`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(min = 1, max = 253))]
    pub pool: String,
    /// A Pool that is made for this Task alone. The Pool has the name of the Task, belongs to it, and is deleted once the
    /// Task has ended and its logs and results are stored, or is deleted. Only for users who may create Pools in this
    /// namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_template: Option<Box<PoolTemplate>>,
    /// Program and arguments; no shell is involved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256), inner(length(max = 16384)))]
    pub command: Option<Vec<String>>,
    /// A script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<Script>,
    /// A Python function; its return value, as JSON, becomes the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<Function>,
    /// Files that lie in its working directory, a copy for each run, where Python finds modules. All
    /// attempts and ranks have the same files: those of its first attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Where it runs: `One` (default: the machine with the most free places), `All` (on each
    /// machine, see `processesPerMachine`), `Head` (the machine of rank 0), or the number of a rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 64))]
    #[x_kube(validation = Rule::new("type(self) == int ? (self >= 0 && self < 500) : string(self).matches('^(One|All|Head|[0-4]?[0-9]?[0-9])$')").message("placement must be One, All, Head, or the number of a rank from 0 to 499"))]
    pub placement: Option<IntOrString>,
    /// With `placement: All`: how many processes it has on each machine, each of them a rank with a log and a
    /// result of its own. Each takes one of the places that `worker.concurrency` of the Pool gives a machine, with that
    /// place's share of the accelerators. A Task has at most 500 ranks. Default 1. With this field, also where it is
    /// 1, `LOCAL_RANK` and `LOCAL_WORLD_SIZE` are set as torchrun sets them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub processes_per_machine: Option<u32>,
    /// Items that the work is done for, once for each, on as many places of the Pool as are free. A function gets its item
    /// as first argument; a command has `$(SKYWARD_ITEM)`, `$(SKYWARD_ITEM_INDEX)` and `$(SKYWARD_ITEM_TOTAL)` replaced; a
    /// script has them as variables. An item of more than 32 KiB is in the file that `SKYWARD_ITEM_FILE` names. The Task
    /// fails if an item fails, once all items have an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub for_each: Option<Box<ForEach>>,
    /// Longest time of one attempt, or of one item of `forEach`; then the whole process group gets SIGTERM and, after
    /// `terminationGracePeriod`, SIGKILL: the attempt failed (`TimedOut`). None when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_least("timeout", "100ms"))]
    pub timeout: Option<Duration>,
    /// Longest time of the Task from its first start on: all attempts, the pauses between them, and the time
    /// in which it is suspended. Then its runs are stopped as by `timeout`, and it fails with
    /// `DeadlineExceeded`. None when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("activeDeadline", "1s", "87600h"))]
    pub active_deadline: Option<Duration>,
    /// Longest wait for a start; then the Task fails with `QueueTimeout`. Each wait counts for itself: from the
    /// creation of the Task, or the end of the last Task of `dependsOn`, from the end of an attempt that another one
    /// follows with its pause, or from the moment when it is no longer suspended. None when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::between("queueTimeout", "1s", "87600h"))]
    pub queue_timeout: Option<Duration>,
    /// Time between SIGTERM and SIGKILL. Default `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = crate::rule::at_most("terminationGracePeriod", "24h"))]
    pub termination_grace_period: Option<Duration>,
    /// When it starts again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<Retries>,
    /// Tasks of higher priority start first; among equals the older one does. Default 0.
    /// May be changed while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = -1_000_000, max = 1_000_000))]
    pub priority: Option<i32>,
    /// Tasks of this namespace that end before it starts. One that does not exist yet is waited for. The Task that
    /// was found first counts, and no later one of that name (`status.dependencies`). Where one fails, or is deleted
    /// before it ends, this Task fails with the reason `DependencyFailed`. A Task that waits for others asks no
    /// Pool for machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["task"]))]
    pub depends_on: Vec<Dependency>,
    /// Environment, over that of the Pool's image.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 128), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Environment from Secrets and ConfigMaps of this namespace. `env` wins over it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub env_from: Vec<EnvFrom>,
    /// Directory on the machine that it starts in. Default: a fresh one of its own, deleted
    /// with the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = crate::rule::matches("^/", "workingDir must be an absolute path, such as /data"))]
    pub working_dir: Option<String>,
    /// Whose output is kept and shown. Default: that of all ranks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Hold it: a waiting Task does not start, a running one is stopped. When it is false
    /// again, a new attempt starts. May be changed at any time. Default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Delete the Task, its logs and its results this long after its end was recorded. Never when
    /// left out: a GitOps tool would create it again, and it would run again. May be changed at any
    /// time. Once the Task has ended, a longer time counts at once, and so does taking it away; a
    /// shorter time, or a first one, is noticed within about an hour.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 315_360_000))]
    pub ttl_seconds_after_finished: Option<u32>,
    /// How long its logs and results are kept once it has ended. As long as the Task when left out. May be changed at
    /// any time; what has expired is gone, and a longer time does not bring it back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
}

/// A script.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Script {
    /// The interpreter that runs it: `bash` (default) or `python`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interpreter: Option<Interpreter>,
    /// Its text, at most 128 KiB.
    #[schemars(length(min = 1, max = 131_072))]
    pub source: String,
}

/// The interpreter of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum Interpreter {
    /// Bash; it stops at the first error only if the script says `set -e`.
    #[default]
    Bash,
    /// The machine's Python (see the Pool's `image.python`).
    Python,
}

/// A Python function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.source), has(self.module), has(self.pickle)].filter(x, x).size() == 1").message("a function needs exactly one of source (its text), module (its name in spec.source) and pickle (what a Python client wrote)"))]
#[x_kube(validation = Rule::new("!has(self.pickle) || !has(self.entrypoint)").message("a pickle is the function itself: leave entrypoint out"))]
pub struct Function {
    /// Text of the module that defines it, at most 128 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 131_072))]
    pub source: Option<String>,
    /// Name of the module that defines it, such as `train` or `exp.train`, among the files of
    /// `spec.source`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = crate::rule::matches(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", "module must be the name of a Python module, such as exp.train for the file exp/train.py"))]
    pub module: Option<String>,
    /// The function itself, as a Python client pickled it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pickle: Option<Pickle>,
    /// Its name in that module. Default `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = crate::rule::matches("^[A-Za-z_][A-Za-z0-9_.]*$", "entrypoint must be the name of a Python function, such as main"))]
    pub entrypoint: Option<String>,
    /// Positional arguments: any JSON, `null` too. Kubernetes keeps whole numbers of up to 64 bits;
    /// larger ones arrive as floats, so pass them as text. It writes `3.0` as `3`, which arrives
    /// as an int: where that matters, write `float(x)` in the function.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("items" = {"x-kubernetes-preserve-unknown-fields": true, "nullable": true}))]
    pub args: Vec<Value>,
    /// Keyword arguments: any JSON, `null` too. Numbers arrive as those of `args` do. The names
    /// `y`, `n`, `on` and `off` need quotes, or kubectl reads them as `true` and `false`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64, "additionalProperties" = {"x-kubernetes-preserve-unknown-fields": true, "nullable": true}))]
    pub kwargs: BTreeMap<String, Value>,
}

/// A function that a Python client pickled. Only the Task's own process on its machine unpickles it, with the packages
/// cloudpickle and lz4 of the Pool's `image.pip`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pickle {
    /// What `cloudpickle.dumps` wrote, compressed by `lz4.frame.compress`, in Base64: at most 128 KiB, which is 96 KiB
    /// before Base64, and 32 MiB before compression.
    // Somewhat longer texts pass the schema, so that the message can name the remedy.
    #[schemars(length(min = 1, max = 262_144))]
    #[x_kube(validation = Rule::new("self.size() <= 131072").message("a pickle has at most 131072 characters: bring data and code that it holds as files (spec.source), and name the function by function.module"))]
    #[x_kube(validation = Rule::new("self.size() % 4 == 0 && self.matches(r'^[A-Za-z0-9+/]+={0,2}$')").message("data must be Base64: base64.b64encode(lz4.frame.compress(cloudpickle.dumps(f))).decode()"))]
    pub data: String,
    /// Version of the Python that pickled it, such as `3.12.4`. The machine must have the same minor version.
    #[schemars(length(max = 32))]
    #[x_kube(validation = crate::rule::matches(r"^[0-9]+\.[0-9]+(\.[0-9A-Za-z.+]+)?$", "python must be the version of the Python that pickled the function, such as 3.12.4"))]
    pub python: String,
    /// Version of cloudpickle there, such as `3.1.1`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = crate::rule::matches(r"^[0-9][0-9A-Za-z.+!-]*$", "cloudpickle must be the version of the package that pickled the function, such as 3.1.1"))]
    pub cloudpickle: String,
}

/// Whose output is kept and shown; the rest is dropped on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Output {
    /// Whose standard output: `All` (default), `Head` or `None`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stdout: Option<OutputOf>,
    /// Whose standard error: `All` (default), `Head` or `None`. The traceback of a function that
    /// raises stands there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stderr: Option<OutputOf>,
    /// Ranks of which anything is kept, of what `stdout` and `stderr` leave. All when left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 500), inner(range(min = 0, max = 499)))]
    pub ranks: Vec<u32>,
}

impl Output {
    /// Whether standard output and standard error of a rank are kept.
    pub fn keeps(&self, rank: u32) -> (bool, bool) {
        let is_chosen = self.ranks.is_empty() || self.ranks.contains(&rank);
        let keeps = |of: Option<OutputOf>| {
            is_chosen
                && match of.unwrap_or_default() {
                    OutputOf::All => true,
                    OutputOf::Head => rank == 0,
                    OutputOf::None => false,
                }
        };
        (keeps(self.stdout), keeps(self.stderr))
    }
}

/// Ranks whose output is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum OutputOf {
    /// That of every rank.
    #[default]
    All,
    /// That of rank 0.
    Head,
    /// That of no rank.
    None,
}

/// Where a Task is in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum TaskPhase {
    /// The Task waits; the condition `Scheduled` says for what.
    #[default]
    Pending,
    /// The Task has machines and runs.
    Running,
    /// `spec.suspend` holds it.
    Suspended,
    /// Every run succeeded.
    Succeeded,
    /// The Task ended otherwise.
    Failed,
}

impl TaskPhase {
    /// Whether it ended.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }

    /// As in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Suspended => "Suspended",
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

/// How far all ranks of a Task are together, such as `37/100`, from the parts that are done and all parts
/// of each rank that says something. A rank that does not know the whole has 0 of them; the whole is told
/// where each knows it. Empty where no rank says anything.
pub fn progress_text(ranks: impl IntoIterator<Item = (u64, u64)>) -> String {
    let together = ranks.into_iter().fold(None, |sum, (done, total)| {
        let (before, whole) = sum.unwrap_or((0_u64, Some(0_u64)));
        let whole = whole
            .filter(|_| total > 0)
            .map(|whole| whole.saturating_add(total));
        Some((before.saturating_add(done), whole))
    });
    match together {
        None => String::new(),
        Some((done, None)) => done.to_string(),
        Some((done, Some(total))) => format!("{done}/{total}"),
    }
}

/// What became of the Task. At most 32 KiB whatever it ran; full logs and results:
/// `kubectl skyward logs` and `kubectl skyward results`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    /// Where it is in its life.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<TaskPhase>,
    /// Reason of the phase, such as `WaitingForMachine` or `NonZeroExit`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub reason: String,
    /// What runs and where, such as `command/One`, `function/All` or `function/ForEach`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub mode: String,
    /// Ended runs of all, as `1/4`; of a Task with `forEach`, items with an outcome, as `1200/1000000`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub done: String,
    /// What became of the items of `forEach`. Their values, and how each of them ended: `kubectl skyward results`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemsStatus>,
    /// How far its work is, as its program says it (`skyward.progress`), such as `37/100` or `37`: all ranks together.
    /// Written at most every 30 seconds, and with the end. Empty for a Task with `forEach`, whose items `done` counts.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub progress: String,
    /// Number of the attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// Attempts after the first.
    #[serde(default)]
    pub restarts: u32,
    /// Attempts that ended because a machine was lost.
    #[serde(default)]
    pub interruptions: u32,
    /// Attempts that ended because a run failed by itself, without those of `ignoredFailures`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Attempts that ended because a run failed in a way that a rule of `retries` ignores.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ignored_failures: u32,
    /// Before this time no other attempt starts (`retries.backoff`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    /// When `activeDeadline` ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Time>,
    /// When `queueTimeout` ends its wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_deadline: Option<Time>,
    /// The Tasks of `spec.dependsOn` that were found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["task"]))]
    pub dependencies: Vec<DependencyStatus>,
    /// Where each rank of this attempt runs, in order of rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 512))]
    pub placed: Vec<SlotAttempt>,
    /// UID of the Pool that this attempt was placed in, while the attempt runs: a Pool that is made again under the same
    /// name is another Pool.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub pool_uid: String,
    /// The files that all its attempts run with, from the first one on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SourceStatus>,
    /// What its runs have cost, in USD, as far as they are over: the time that each took, at the hourly price of its
    /// machine divided by `worker.concurrency`. Nothing where the machines cost nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 40))]
    pub cost: String,
    /// When this attempt was placed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// From start to end, such as `1m12s`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 32))]
    pub duration: String,
    /// Ranks that succeeded, as ranges such as `0-3,5`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub succeeded_ranks: String,
    /// Ranks that failed, as ranges.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 4096))]
    pub failed_ranks: String,
    /// What became of runs: failed ones first, at most 8. The rest is in the result store.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["rank"]))]
    pub results: Vec<RunResult>,
    /// `Scheduled`, `Running`, `Complete`, `Failed`, `Finished`, `Suspended`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    /// Generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// The Machine that a rank runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SlotAttempt {
    /// Number of its slot in the Pool.
    pub slot: u32,
    /// Which try to fill that slot.
    pub attempt: u32,
}

impl fmt::Display for SlotAttempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.attempt)
    }
}

// A Task that was placed before the names of the resources were settled has `slot.attempt`: it is
// read, or an upgrade would lose the run.
impl<'de> Deserialize<'de> for SlotAttempt {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Stored {
            Now { slot: u32, attempt: u32 },
            Before(String),
        }
        match Stored::deserialize(from)? {
            Stored::Now { slot, attempt } => Ok(Self { slot, attempt }),
            Stored::Before(text) => {
                let parts = text.split_once('.');
                let parts =
                    parts.and_then(|(slot, attempt)| Some((slot.parse().ok()?, attempt.parse().ok()?)));
                let (slot, attempt) =
                    parts.ok_or_else(|| D::Error::custom(format!("\"{text}\" is no slot and attempt")))?;
                Ok(Self { slot, attempt })
            }
        }
    }
}

/// What became of one run: one rank of one attempt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunResult {
    /// Its rank.
    pub rank: u32,
    /// The Machine it ran on.
    #[schemars(length(max = 253))]
    pub machine: String,
    /// The attempt.
    pub attempt: u32,
    /// Why it ended, as in the condition `Failed`, or `Succeeded`.
    #[schemars(length(max = 64))]
    pub reason: String,
    /// Exit code, when the process exited by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it, such as `SIGKILL`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 16))]
    pub signal: String,
    /// Class of the exception that a function raised, such as `requests.exceptions.ConnectionError`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 256))]
    pub exception: String,
    /// What went wrong, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The function's return value, if its JSON is at most 4 KiB and Kubernetes can hold it as
    /// it is (no whole number beyond 64 bits, at most 64 levels deep). Else `valueBytes` says
    /// that there is one, and `kubectl skyward results` gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_json")]
    pub value: Option<Value>,
    /// Size of the return value's JSON in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_bytes: Option<i64>,
    /// The end of what it printed, at most 2 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 8192))]
    pub log_tail: String,
    /// What it cost, in USD, as in `status.cost`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 40))]
    pub cost: String,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn any_json(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}

/// Where the runs of a Task are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the machine with the most free places.
    One,
    /// On each machine, in so many processes.
    All(u32),
    /// On the machine of that rank; head is rank 0.
    Rank(u32),
}

impl Task {
    /// Name of the Pool that runs it. A Pool that is made for it has its name.
    pub fn pool(&self) -> &str {
        match &self.spec.pool_template {
            Some(_) => self.metadata.name.as_deref().unwrap_or_default(),
            None => &self.spec.pool,
        }
    }
}

impl TaskSpec {
    /// The placement; `None` for a value that admission refuses.
    pub fn parsed_placement(&self) -> Option<Placement> {
        match &self.placement {
            None => Some(Placement::One),
            Some(IntOrString::Int(rank)) => u32::try_from(*rank).ok().map(Placement::Rank),
            Some(IntOrString::String(text)) => match text.as_str() {
                // Tasks that were made before the names were settled have them in lower case.
                "One" | "one" => Some(Placement::One),
                "All" | "all" => Some(Placement::All(self.processes_per_machine.unwrap_or(1).max(1))),
                "Head" | "head" => Some(Placement::Rank(0)),
                number => number.parse().ok().map(Placement::Rank),
            },
        }
    }

    /// What runs and where, as in `status.mode`.
    pub fn mode(&self) -> String {
        let what = if self.command.is_some() {
            "command"
        } else if self.script.is_some() {
            "script"
        } else {
            "function"
        };
        match self.parsed_placement() {
            _ if self.for_each.is_some() => format!("{what}/ForEach"),
            Some(Placement::All(_)) => format!("{what}/All"),
            Some(Placement::Rank(0)) => format!("{what}/Head"),
            Some(Placement::Rank(rank)) => format!("{what}/{rank}"),
            Some(Placement::One) | None => format!("{what}/One"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_pool_of_a_task_is_the_one_that_it_names_or_has_its_own_name() {
        let pool = |spec: serde_json::Value| {
            let task: Task = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" }, "spec": spec,
            }))
            .unwrap();
            let pool = task.pool().to_owned();
            (pool, serde_json::to_value(&task.spec).unwrap())
        };
        let named = json!({ "pool": "p", "command": ["true"] });
        assert_eq!(pool(named.clone()), ("p".to_owned(), named));
        let own = json!({ "command": ["true"], "poolTemplate": { "spec": { "provider": "x", "nodes": { "desired": 2 } } } });
        assert_eq!(pool(own.clone()), ("t".to_owned(), own));
    }

    #[test]
    fn a_task_has_one_process_on_each_machine_unless_it_asks_for_more() {
        let placement = |spec: serde_json::Value| {
            let task: Task = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" }, "spec": spec,
            }))
            .unwrap();
            assert_eq!(task.spec.mode(), "command/All");
            task.spec.parsed_placement()
        };
        let plain = json!({ "pool": "p", "command": ["true"], "placement": "All" });
        assert_eq!(placement(plain), Some(Placement::All(1)));
        let several =
            json!({ "pool": "p", "command": ["true"], "placement": "All", "processesPerMachine": 8 });
        assert_eq!(placement(several), Some(Placement::All(8)));
    }
}
