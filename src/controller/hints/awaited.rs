//! Tasks that other Tasks wait for, over all Pools. The router of Tasks writes, as its watch shows them; it tells their
//! dispatchers what comes and goes. Housekeeping reads: a Task whose time has come is not deleted before it is on
//! record at all Tasks that wait for it that it has ended, or these would take it for one that never did.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use skyward_planner::{
    base::key::Key,
    task::{
        dependencies::{self, Circle, Graph},
        model::{Entry, Uid},
    },
};

/// Which Tasks wait for which others.
#[derive(Debug, Default)]
pub struct Awaited(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// By namespace, where any Task waits for another one.
    graphs: HashMap<String, Graph>,
    /// Whether all Tasks were shown once.
    listed: bool,
}

impl Awaited {
    /// A watch begins that shows all Tasks anew.
    pub fn begin(&self) {
        *self.0.lock() = Known::default();
    }

    /// All Tasks were shown once.
    pub fn listed(&self) {
        self.0.lock().listed = true;
    }

    /// A Task came or changed. Answers which Tasks wait for each other, where that is news.
    pub fn note(&self, namespace: &str, entry: &Entry) -> Vec<Circle> {
        let graphs = &mut self.0.lock().graphs;
        let waits_for = dependencies::waits_for(entry);
        if waits_for.is_empty() && !graphs.contains_key(namespace) {
            return Vec::new();
        }
        let graph = graphs.entry(namespace.to_owned()).or_default();
        let circles = graph.set(entry, waits_for);
        if graph.is_empty() {
            graphs.remove(namespace);
        }
        circles
    }

    /// A Task ended, or is gone: it waits for none any more.
    pub fn left(&self, namespace: &str, name: &str, uid: &Uid) {
        let graphs = &mut self.0.lock().graphs;
        if let Some(graph) = graphs.get_mut(namespace) {
            graph.remove(name, uid);
            if graph.is_empty() {
                graphs.remove(namespace);
            }
        }
    }

    /// The Pools of the Tasks that wait for that one.
    pub fn pools_waiting_for(&self, namespace: &str, name: &Arc<str>) -> Vec<Key> {
        let known = self.0.lock();
        let graph = known.graphs.get(namespace);
        let pools = graph
            .map(|graph| graph.pools_waiting_for(name))
            .unwrap_or_default();
        pools.into_iter().map(|pool| Key::new(namespace, pool)).collect()
    }

    /// Whether no Task waits for that one, as far as all Tasks were shown.
    pub fn may_go(&self, namespace: &str, name: &str) -> bool {
        let known = self.0.lock();
        let graph = known.graphs.get(namespace);
        known.listed && graph.is_none_or(|graph| graph.pools_waiting_for(name).is_empty())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use skyward_api::Task;

    use super::*;

    fn entry(status: &Value) -> Entry {
        let task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "second", "namespace": "n", "uid": "u", "resourceVersion": "7",
                          "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "pool": "p", "command": ["true"], "dependsOn": [{ "task": "first" }] }, "status": status,
        }))
        .unwrap();
        Entry::of(&task).unwrap()
    }

    #[test]
    fn a_task_may_go_when_it_is_on_record_at_all_that_wait_for_it_and_not_before_all_are_known() {
        let awaited = Awaited::default();
        assert!(!awaited.may_go("n", "first"), "who waits is not known yet");
        awaited.note("n", &entry(&json!({})));
        awaited.listed();
        assert!(!awaited.may_go("n", "first"));
        assert!(awaited.may_go("other", "first") && awaited.may_go("n", "second"));
        assert_eq!(
            awaited.pools_waiting_for("n", &"first".into()),
            [Key::new("n", "p")]
        );
        let satisfied = json!({ "dependencies": [{ "task": "first", "uid": "1", "satisfied": true }] });
        awaited.note("n", &entry(&satisfied));
        assert!(awaited.may_go("n", "first"));
        awaited.note("n", &entry(&json!({})));
        awaited.left("n", "second", &"u".into());
        assert!(awaited.may_go("n", "first"));
        awaited.begin();
        assert!(!awaited.may_go("n", "first"));
    }
}
