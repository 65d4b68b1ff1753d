//! The objects, their history, and which answer a request gets.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{
    refusal::{self, Refusal},
    request::{Call, Verb},
    resources::{RESOURCES, Resource},
};

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) resource: &'static Resource,
    /// `namespace/name` or `name`: lists are in the order of this text, as etcd's keys are.
    pub(crate) key: String,
}

impl Id {
    pub(crate) fn new(resource: &'static Resource, namespace: &str, name: &str) -> Self {
        let key = if resource.namespaced {
            format!("{namespace}/{name}")
        } else {
            name.to_owned()
        };
        Self { resource, key }
    }

    pub(crate) fn is_in(&self, namespace: &str) -> bool {
        namespace.is_empty() || self.key.split_once('/').is_some_and(|(own, _)| own == namespace)
    }
}

/// One write.
#[derive(Clone, Debug)]
pub struct Change {
    /// The version that it made.
    pub version: u64,
    pub(crate) id: Id,
    /// The object as it was; `None`: it was created.
    pub before: Option<Arc<Value>>,
    /// The object as it is; the last form of one that is gone.
    pub object: Arc<Value>,
    /// Whether the object is gone.
    pub gone: bool,
}

impl Change {
    /// Plural name of the object's resource.
    pub fn plural(&self) -> &'static str {
        self.id.resource.plural
    }
}

/// Everything that the server knows.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) version: u64,
    pub(crate) objects: BTreeMap<Id, Arc<Value>>,
    /// In the order of versions.
    pub(crate) history: Vec<Change>,
    /// The newest version whose predecessors are forgotten.
    pub(crate) compacted: u64,
    /// What the manager of an object applied last.
    pub(crate) applied: BTreeMap<Id, Value>,
    made: u64,
}

/// A state to go back to.
#[derive(Clone, Debug)]
pub struct Backup(State);

/// The server.
pub struct ApiServer {
    pub(crate) state: Mutex<State>,
    /// The newest version, and how often the server was restored.
    pub(crate) changed: watch::Sender<(u64, u64)>,
    clock: Box<dyn Fn() -> Timestamp + Send + Sync>,
}

impl ApiServer {
    /// A server with the namespaces `default` and `kube-system` alone.
    pub fn new(clock: impl Fn() -> Timestamp + Send + Sync + 'static) -> Arc<Self> {
        let state = State {
            version: 100,
            objects: BTreeMap::new(),
            history: Vec::new(),
            compacted: 100,
            applied: BTreeMap::new(),
            made: 0,
        };
        let server = Arc::new(Self {
            changed: watch::Sender::new((state.version, 0)),
            state: Mutex::new(state),
            clock: Box::new(clock),
        });
        for name in ["default", "kube-system"] {
            let namespace = json!({ "metadata": { "name": name } });
            server
                .put("namespaces", "", namespace)
                .expect("a new server has no namespace");
        }
        server
    }

    /// What another client than the one under test creates: at once, and past every network.
    pub fn put(&self, plural: &str, namespace: &str, object: Value) -> Result<Value, String> {
        self.direct(Verb::Create, plural, namespace, "", object)
    }

    /// What another client changes by a merge patch.
    pub fn change(&self, plural: &str, namespace: &str, name: &str, patch: Value) -> Result<Value, String> {
        let verb = Verb::Patch(crate::request::PatchKind::Merge);
        self.direct(verb, plural, namespace, name, patch)
    }

    /// What another client writes into a status by a merge patch.
    pub fn change_status(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        status: Value,
    ) -> Result<Value, String> {
        let verb = Verb::Patch(crate::request::PatchKind::Merge);
        let mut call = Self::call(verb, plural, namespace, name);
        call.status = true;
        let answer = self.answer(&call, json!({ "status": status }));
        answer.map_err(|refused| refused.status["message"].to_string())
    }

    /// What another client deletes.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) -> Result<Value, String> {
        self.direct(Verb::Delete, plural, namespace, name, Value::Null)
    }

    /// The object, if there is one.
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Value>> {
        let call = Self::call(Verb::Get, plural, namespace, name);
        let id = Id::new(call.resource, namespace, name);
        self.state.lock().objects.get(&id).cloned()
    }

    /// All objects of a resource, in all namespaces.
    pub fn all(&self, plural: &str) -> Vec<Arc<Value>> {
        let resource = Self::call(Verb::List, plural, "", "").resource;
        let state = self.state.lock();
        state.of(resource).map(|(_, object)| object.clone()).collect()
    }

    /// The newest version.
    pub fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// What was written since a version, as it was after each write; deletions are not among it.
    pub fn written_since(&self, version: u64) -> Vec<Arc<Value>> {
        let state = self.state.lock();
        let since = state.history.iter().filter(|change| change.version > version);
        since
            .filter(|change| !change.gone)
            .map(|change| change.object.clone())
            .collect()
    }

    /// The changes since a version, deletions among them.
    pub fn changes_since(&self, version: u64) -> Vec<Change> {
        let state = self.state.lock();
        let first = state.history.partition_point(|change| change.version <= version);
        state.history[first..].to_vec()
    }

    /// Forgets the history: a watch or a page from before gets 410.
    pub fn compact(&self) {
        let mut state = self.state.lock();
        state.compacted = state.version;
        state.history.clear();
    }

    /// What [`Self::restore`] goes back to.
    pub fn backup(&self) -> Backup {
        Backup(self.state.lock().clone())
    }

    /// Goes back to a backup, versions included, and ends every watch, as an API server that is
    /// started over a restored etcd.
    pub fn restore(&self, backup: &Backup) {
        let mut state = self.state.lock();
        let made = state.made;
        *state = backup.0.clone();
        // UIDs are random at a real server: they do not come again.
        state.made = made;
        let version = state.version;
        drop(state);
        self.changed.send_modify(|(newest, restored)| {
            *newest = version;
            *restored += 1;
        });
    }

    fn direct(
        &self,
        verb: Verb,
        plural: &str,
        namespace: &str,
        name: &str,
        body: Value,
    ) -> Result<Value, String> {
        let call = Self::call(verb, plural, namespace, name);
        let answer = self.answer(&call, body);
        answer.map_err(|refused| refused.status["message"].to_string())
    }

    fn call(verb: Verb, plural: &str, namespace: &str, name: &str) -> Call {
        let resource = RESOURCES.iter().find(|known| known.plural == plural);
        Call {
            verb,
            resource: resource.expect("a simulation names resources that are served"),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status: false,
            metadata: false,
            query: crate::request::Query::default(),
        }
    }

    /// What every request but a watch gets.
    pub(crate) fn answer(&self, call: &Call, body: Value) -> Result<Value, Refusal> {
        let mut state = self.state.lock();
        let now = (self.clock)();
        let answer = match call.verb {
            Verb::Get => state.found(call).map(|object| object.as_ref().clone()),
            Verb::List => state.list(call),
            Verb::Watch => Err(refusal::internal("a watch is no single answer")),
            Verb::Create => state.create(call, body, now),
            Verb::Replace => state.replace(call, body),
            Verb::Patch(kind) => state.patch(call, kind, body, now),
            Verb::Delete => state.delete(call, &body, now),
        }?;
        let version = state.version;
        drop(state);
        self.changed.send_if_modified(|(newest, _)| {
            let is_new = *newest != version;
            *newest = version;
            is_new
        });
        Ok(
            if call.metadata && call.verb != Verb::List && answer["kind"] != "Status" {
                metadata_of(&answer)
            } else {
                answer
            },
        )
    }
}

/// An object without all but its metadata.
pub(crate) fn metadata_of(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"],
    })
}

impl State {
    pub(crate) fn found(&self, call: &Call) -> Result<Arc<Value>, Refusal> {
        let id = Id::new(call.resource, &call.namespace, &call.name);
        let found = self.objects.get(&id).cloned();
        found.ok_or_else(|| refusal::not_found(call.resource, &call.name))
    }

    /// A UID that no other object has.
    pub(crate) fn uid(&mut self) -> String {
        self.made += 1;
        format!("00000000-0000-4000-8000-{:012x}", self.made)
    }

    /// Keeps an object as the newest version.
    pub(crate) fn keep(&mut self, id: Id, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        let before = self.objects.insert(id.clone(), object.clone());
        self.history.push(Change {
            version: self.version,
            id,
            before,
            object: object.clone(),
            gone: false,
        });
        object
    }

    /// Removes an object, whose last form is this one.
    pub(crate) fn remove(&mut self, id: Id, mut object: Value) -> Arc<Value> {
        self.version += 1;
        object["metadata"]["resourceVersion"] = self.version.to_string().into();
        let object = Arc::new(object);
        let before = self.objects.remove(&id);
        self.applied.remove(&id);
        self.history.push(Change {
            version: self.version,
            id,
            before,
            object: object.clone(),
            gone: true,
        });
        object
    }

    /// The objects of a resource.
    pub(crate) fn of(&self, resource: &'static Resource) -> impl Iterator<Item = (&Id, &Arc<Value>)> {
        let first = Id {
            resource,
            key: String::new(),
        };
        let of_it = move |(id, _): &(&Id, &Arc<Value>)| id.resource.plural == resource.plural;
        self.objects.range(first..).take_while(of_it)
    }

    /// The objects of a resource as they were at a version; `None` = that is forgotten.
    pub(crate) fn at(&self, version: u64, resource: &'static Resource) -> Option<BTreeMap<Id, Arc<Value>>> {
        if version < self.compacted {
            return None;
        }
        let mut objects: BTreeMap<Id, Arc<Value>> = self
            .of(resource)
            .map(|(id, object)| (id.clone(), object.clone()))
            .collect();
        let mut undone = BTreeSet::new();
        let since = self.history.partition_point(|change| change.version <= version);
        for change in &self.history[since..] {
            if change.id.resource.plural == resource.plural && undone.insert(&change.id) {
                match &change.before {
                    Some(before) => objects.insert(change.id.clone(), before.clone()),
                    None => objects.remove(&change.id),
                };
            }
        }
        Some(objects)
    }
}
