//! How Tasks share a machine of a Pool.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How Tasks run on a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.executor) || self.executor != 'Thread' || !has(self.reuseProcesses) || self.reuseProcesses").message("threads share one process: leave worker.reuseProcesses out, or set worker.executor: Process").field_path(".reuseProcesses"))]
pub struct Worker {
    /// Tasks, and processes of Tasks (`processesPerMachine`), that one machine runs at the same time; with `executor: Thread`
    /// the items of one function. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1024))]
    pub concurrency: Option<u32>,
    /// What each of these Tasks sees of the accelerators of its machine. Default `Divide`. A change takes effect at
    /// once, for Tasks that start after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Devices>,
    /// What runs the items of a function with `forEach` at the same time on one machine. Default `Process`. With `Thread` a
    /// machine runs one Task at a time. A change takes effect at once, for Tasks that start after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<Executor>,
    /// Python modules that functions find imported already, such as `[torch]`: each machine keeps a Python that has
    /// imported them, and forks the processes of functions from it. That Python never has code or Secrets of a Task.
    /// Where a module starts threads or opens an accelerator when it is imported, and where Tasks run as `root`,
    /// functions start as without this field. A change takes effect at once, for Tasks that start after it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 128)))]
    #[x_kube(validation = crate::rule::each_matches(r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$", "preload takes names of Python modules as import has them, such as torch or sklearn.linear_model, each as its own entry"))]
    pub preload: Vec<String>,
    /// Whether one Python runs a function for one item of `forEach` after the other, so that modules, models and
    /// connections that an item has loaded are there for the next one; otherwise each item has a process of its own.
    /// Default true. A change takes effect at once, for places that items get after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reuse_processes: Option<bool>,
    /// Least number of chunks of items of `forEach` that wait at each place behind the items that run. More wait where
    /// the round trip to the machine needs it. Default 0: none waits where items take long. A change takes effect at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 64))]
    pub buffer: Option<u32>,
    /// User that Tasks run as. Default `skyward`, an unprivileged user that bootstrap
    /// makes; `root` gives Tasks the whole machine. Ignored where SSH logs in as an
    /// ordinary user. A change replaces machines when idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 128))]
    #[x_kube(validation = crate::rule::matches("^[a-z_][a-z0-9_-]{0,31}$", "worker.user must be the name of a Linux user, such as skyward or root"))]
    pub user: Option<String>,
}

/// What runs items at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum Executor {
    /// A process for each place. What one item does to its process, such as a crash, does not touch the others.
    #[default]
    Process,
    /// Threads of one Python, as many as `concurrency` says: they share what is in memory. An item that ends that process
    /// interrupts all items in it. A command or script, and a function without `forEach`, runs alone on its machine.
    Thread,
}

/// What a Task sees of the accelerators of a machine that it shares with other Tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = skyward_core::schema::explain_variants)]
pub enum Devices {
    /// Its share: the accelerators are divided among as many Tasks as `concurrency` says. Where there are more Tasks
    /// than accelerators, each Task has one of them, in turn.
    #[default]
    Divide,
    /// All of them.
    Share,
}
