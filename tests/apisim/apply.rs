//! Server-side apply, for one manager of each object: what the manager applied before and does not
//! apply any more goes, and everything else stays. Conflicts between managers are not here.

use jiff::Timestamp;
use serde_json::Value;

use crate::{
    refusal::Refusal,
    request::Call,
    server::{Id, State},
    write::{fields, merge},
};

impl State {
    pub(crate) fn apply(&mut self, call: &Call, wanted: Value, now: Timestamp) -> Result<Value, Refusal> {
        let id = Id::new(call.resource, &call.namespace, &call.name);
        let answer = match self.objects.get(&id).cloned() {
            None => {
                let mut object = wanted.clone();
                fields(&mut object["metadata"]).insert("name".into(), call.name.clone().into());
                self.create(call, object, now)
            }
            Some(old) => {
                let mut object = old.as_ref().clone();
                if let Some(before) = self.applied.get(&id) {
                    drop_missing(&mut object, before, &wanted);
                }
                merge(&mut object, wanted.clone());
                self.update(call, &old, object)
            }
        }?;
        if !call.query.dry {
            self.applied.insert(id, wanted);
        }
        Ok(answer)
    }
}

/// Removes from `object` each field that was applied `before` and is not `wanted` any more.
fn drop_missing(object: &mut Value, before: &Value, wanted: &Value) {
    let (Some(object), Some(before)) = (object.as_object_mut(), before.as_object()) else {
        return;
    };
    for (name, old) in before {
        match wanted.get(name) {
            None => {
                object.remove(name);
            }
            Some(new) => {
                if let Some(own) = object.get_mut(name) {
                    drop_missing(own, old, new);
                }
            }
        }
    }
}
