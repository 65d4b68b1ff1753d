//! The targets of a command: Tasks and Machines by name, or the Tasks that a selector chooses.

use std::fmt;

use anyhow::{Result, anyhow};
use clap::Args;

use crate::api::{Cluster, name_of};

/// One object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Target {
    /// A Task.
    Task(String),
    /// A Machine.
    Machine(String),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Task(name) => f.write_str(name),
            Self::Machine(name) => write!(f, "machine/{name}"),
        }
    }
}

/// `NAME`, `task/NAME` or `machine/NAME`, also as kubectl prints them.
pub(crate) fn target(text: &str) -> Result<Target, String> {
    if !text.contains('/') {
        return Ok(Target::Task(text.to_owned()));
    }
    let task = name_of(text, &["task", "tasks", "sktask"]).map(Target::Task);
    let machine = || name_of(text, &["machine", "machines", "skmach"]).map(Target::Machine);
    task.or_else(machine).ok_or_else(|| {
        format!("{text:?} is neither a Task nor a Machine; say its name, task/NAME or machine/NAME")
    })
}

/// Which objects.
#[derive(Args, Clone, Debug)]
#[group(required = true)]
pub(crate) struct Targets {
    /// Names of Tasks; `logs` takes machine/NAME too.
    #[arg(value_name = "NAME", value_parser = target, conflicts_with = "selector")]
    names: Vec<Target>,
    /// All Tasks with these labels, as kubectl takes them: app=train,team!=x.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
}

impl Targets {
    /// Whether the target is exactly one named object.
    pub(crate) fn is_one(&self) -> bool {
        self.selector.is_none() && self.names.len() == 1
    }

    /// All targets, each once, in the order of their names on the command line.
    pub(crate) async fn find(self, cluster: &Cluster) -> Result<Vec<Target>> {
        let Some(selector) = &self.selector else {
            return Ok(each_once(self.names));
        };
        let found: Vec<Target> = cluster
            .tasks_with(selector)
            .await?
            .into_iter()
            .map(Target::Task)
            .collect();
        if found.is_empty() {
            return Err(anyhow!(
                "no Task in the namespace {:?} has the labels {selector:?}; `kubectl get tasks.skyward.dev --show-labels` shows those there are",
                cluster.namespace
            ));
        }
        Ok(found)
    }
}

fn each_once(names: Vec<Target>) -> Vec<Target> {
    let mut known = std::collections::BTreeSet::new();
    names
        .into_iter()
        .filter(|name| known.insert(name.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_and_machines_are_named_as_kubectl_names_them() {
        let task = |name: &str| Ok(Target::Task(name.to_owned()));
        let machine = |name: &str| Ok(Target::Machine(name.to_owned()));
        for (text, meant) in [
            ("train", task("train")),
            ("task/train", task("train")),
            ("tasks/train", task("train")),
            ("Task/train", task("train")),
            ("sktask/train", task("train")),
            ("tasks.v1alpha1.skyward.dev/train", task("train")),
            ("tasks.skyward.dev/train", task("train")),
            ("machine/train-5b9d2-0-1", machine("train-5b9d2-0-1")),
            ("Machines/m", machine("m")),
            ("skmach/m", machine("m")),
            ("machine.skyward.dev/m", machine("m")),
            ("machines.v1alpha1.skyward.dev/m", machine("m")),
        ] {
            assert_eq!(target(text), meant, "{text}");
        }
        for text in [
            "pod/m",
            "tasks.tekton.dev/train",
            "task/a/b",
            "machines.cluster.x-k8s.io/m",
            "machine/a/b",
            "pool/p",
        ] {
            assert!(target(text).unwrap_err().contains("machine/NAME"), "{text}");
        }
    }

    #[test]
    fn an_object_that_is_named_twice_is_shown_once_where_it_was_named_first() {
        let named = ["b", "task/a", "tasks/b", "machine/b"].map(|text| target(text).unwrap());
        let all: Vec<String> = each_once(named.into()).iter().map(ToString::to_string).collect();
        assert_eq!(all, ["b", "a", "machine/b"]);
    }
}
