//! Tasks that other Tasks wait for, over all Pools. The router of Tasks writes them, as its watch shows them, and tells the
//! dispatchers of the waiting Tasks when such a Task comes or goes. Housekeeping reads them: a Task that is due for deletion
//! stays until every Task that waits for it has its end on record, since they would fail otherwise; and its results stay
//! until every map that takes its items from them has read these items.

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
    /// By namespace, where any map has yet to read the result of another Task.
    readers: HashMap<String, Readers>,
    /// Whether all Tasks were shown once.
    listed: bool,
}

/// Maps that have yet to read the results of other Tasks.
#[derive(Debug, Default)]
struct Readers {
    /// The names of the Tasks that a map may read.
    by: HashMap<Uid, Vec<Arc<str>>>,
    /// How many maps may read the Task of a name.
    of: HashMap<Arc<str>, usize>,
}

impl Readers {
    fn set(&mut self, uid: &Uid, reads: Vec<Arc<str>>) {
        if self.by.get(uid).is_some_and(|known| *known == reads) {
            return;
        }
        for name in self.by.remove(uid).unwrap_or_default() {
            if let Some(count) = self.of.get_mut(&name) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.of.remove(&name);
                }
            }
        }
        for name in &reads {
            *self.of.entry(name.clone()).or_default() += 1;
        }
        if !reads.is_empty() {
            self.by.insert(uid.clone(), reads);
        }
    }
}

impl Known {
    fn read(&mut self, namespace: &str, uid: &Uid, reads: Vec<Arc<str>>) {
        if reads.is_empty() && !self.readers.contains_key(namespace) {
            return;
        }
        let readers = self.readers.entry(namespace.to_owned()).or_default();
        readers.set(uid, reads);
        if readers.by.is_empty() {
            self.readers.remove(namespace);
        }
    }
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
        let mut known = self.0.lock();
        known.read(namespace, &entry.uid, dependencies::reads(entry));
        let graphs = &mut known.graphs;
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

    /// A Task ended, or is gone: it waits for none any more. Answers which Tasks are in no circle any more.
    pub fn left(&self, namespace: &str, name: &str, uid: &Uid) -> Vec<Circle> {
        let mut known = self.0.lock();
        known.read(namespace, uid, Vec::new());
        let graphs = &mut known.graphs;
        let Some(graph) = graphs.get_mut(namespace) else {
            return Vec::new();
        };
        let circles = graph.remove(name, uid);
        if graph.is_empty() {
            graphs.remove(namespace);
        }
        circles
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

    /// Whether no Task waits for that one, and no map has yet to read its result, as far as all Tasks were shown.
    pub fn may_go(&self, namespace: &str, name: &str) -> bool {
        let known = self.0.lock();
        let (graph, readers) = (known.graphs.get(namespace), known.readers.get(namespace));
        known.listed
            && graph.is_none_or(|graph| graph.pools_waiting_for(name).is_empty())
            && readers.is_none_or(|readers| !readers.of.contains_key(name))
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

    #[test]
    fn a_task_whose_result_a_map_has_yet_to_read_may_not_go_although_it_is_on_record_that_it_ended() {
        let map = |status: &Value| {
            let task: Task = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
                "metadata": { "name": "map", "namespace": "n", "uid": "m", "resourceVersion": "7",
                              "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": { "pool": "p", "command": ["true"], "dependsOn": [{ "task": "first" }],
                          "forEach": { "itemsFrom": { "taskResult": "first" } } },
                "status": status,
            }))
            .unwrap();
            Entry::of(&task).unwrap()
        };
        let records = json!([{ "task": "first", "uid": "1", "satisfied": true }]);
        let placed = json!({ "phase": "Running", "attempt": 1, "dependencies": records });
        let mut has_items = placed.clone();
        has_items["items"] = json!({ "total": 3 });
        let awaited = Awaited::default();
        awaited.listed();
        awaited.note("n", &map(&placed));
        assert!(!awaited.may_go("n", "first") && awaited.may_go("other", "first"));
        awaited.note("n", &map(&has_items));
        assert!(awaited.may_go("n", "first"));
        awaited.note("n", &map(&placed));
        awaited.left("n", "map", &"m".into());
        assert!(awaited.may_go("n", "first") && awaited.0.lock().readers.is_empty());
    }
}
