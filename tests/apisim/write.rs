//! What a write makes of an object, and when it is refused.

use std::sync::Arc;

use jiff::Timestamp;
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Map, Value, json};

use crate::{
    refusal::{self, Refusal},
    request::{Call, PatchKind},
    resources::{RESOURCES, Resource},
    server::{Id, State},
};

/// Metadata that a write cannot change.
const FIXED: [&str; 7] = [
    "name",
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

impl State {
    pub(crate) fn create(
        &mut self,
        call: &Call,
        mut object: Value,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        let resource = call.resource;
        if !object.is_object() {
            return Err(refusal::bad_request("the body of the request is no object"));
        }
        if let Some(prefix) = text(&object["metadata"]["generateName"])
            && text(&object["metadata"]["name"]).is_none()
        {
            let uid = self.uid();
            object["metadata"]["name"] = format!("{prefix}{}", &uid[uid.len() - 5..]).into();
        }
        let name = text(&object["metadata"]["name"]).unwrap_or_default().to_owned();
        if let Some(namespace) = text(&object["metadata"]["namespace"])
            && namespace != call.namespace
        {
            return Err(refusal::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        if name.is_empty() {
            let why = "Required value: name or generateName is required";
            return Err(refusal::invalid(
                resource,
                &name,
                "metadata.name",
                "FieldValueRequired",
                why,
            ));
        }
        if text(&object["metadata"]["resourceVersion"]).is_some() {
            return Err(refusal::internal(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        let id = Id::new(resource, &call.namespace, &name);
        if let Some(old) = self.objects.get(&id) {
            let is_going = !old["metadata"]["deletionTimestamp"].is_null();
            return Err(refusal::already_exists(resource, &name, is_going));
        }
        if resource.namespaced && !self.has_namespace(&call.namespace) {
            let namespaces = RESOURCES.iter().find(|known| known.kind == "Namespace");
            return Err(refusal::not_found(
                namespaces.expect("it is served"),
                &call.namespace,
            ));
        }
        object["apiVersion"] = resource.api_version().into();
        object["kind"] = resource.kind.into();
        if resource.status {
            fields(&mut object).remove("status");
        }
        let uid = self.uid();
        let meta = fields(&mut object["metadata"]);
        for name in [
            "managedFields",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ] {
            meta.remove(name);
        }
        meta.insert("uid".into(), uid.into());
        meta.insert("creationTimestamp".into(), second(now));
        if resource.namespaced {
            meta.insert("namespace".into(), call.namespace.clone().into());
        }
        if resource.generation {
            meta.insert("generation".into(), 1.into());
        }
        tidy(meta);
        if call.query.dry {
            return Ok(object);
        }
        Ok(self.keep(id, object).as_ref().clone())
    }

    fn has_namespace(&self, name: &str) -> bool {
        let is_it = |id: &Id| id.resource.kind == "Namespace" && id.key == name;
        self.objects.keys().any(is_it)
    }

    pub(crate) fn replace(&mut self, call: &Call, object: Value) -> Result<Value, Refusal> {
        let resource = call.resource;
        let named = text(&object["metadata"]["name"]).unwrap_or_default();
        if named != call.name {
            let why = format!(
                "the name of the object ({named}) does not match the name on the URL ({})",
                call.name
            );
            return Err(refusal::bad_request(&why));
        }
        let old = self.found(call)?;
        if let Some((wanted, found)) = differs("uid", &object, &old) {
            let key = Id::new(resource, &call.namespace, &call.name).key;
            return Err(refusal::other_uid(resource, &call.name, &key, wanted, found));
        }
        if text(&object["metadata"]["resourceVersion"]).is_none() && !resource.unconditional {
            let why = "Invalid value: 0: must be specified for an update";
            let field = "metadata.resourceVersion";
            return Err(refusal::invalid(
                resource,
                &call.name,
                field,
                "FieldValueInvalid",
                why,
            ));
        }
        self.update(call, &old, object)
    }

    pub(crate) fn patch(
        &mut self,
        call: &Call,
        kind: PatchKind,
        patch: Value,
        now: Timestamp,
    ) -> Result<Value, Refusal> {
        if kind == PatchKind::Apply {
            return self.apply(call, patch, now);
        }
        let old = self.found(call)?;
        let mut object = old.as_ref().clone();
        match kind {
            PatchKind::Merge => merge(&mut object, patch),
            PatchKind::Json | PatchKind::Apply => {
                let Ok(patch) = serde_json::from_value::<json_patch::Patch>(patch) else {
                    return Err(refusal::bad_request("the patch cannot be read"));
                };
                for operation in patch.0 {
                    if let Some(operation) = lenient(operation, &object) {
                        let done = json_patch::patch(&mut object, &[operation]);
                        done.map_err(|_| refusal::unprocessable())?;
                    }
                }
            }
        }
        self.update(call, &old, object)
    }

    /// Makes `object` the newest version of `old`.
    pub(crate) fn update(
        &mut self,
        call: &Call,
        old: &Arc<Value>,
        mut object: Value,
    ) -> Result<Value, Refusal> {
        let (resource, name) = (call.resource, &call.name);
        let id = Id::new(resource, &call.namespace, name);
        if differs("resourceVersion", &object, old).is_some() {
            return Err(refusal::stale(resource, name));
        }
        if let Some((wanted, _)) = differs("uid", &object, old) {
            let why = format!("Invalid value: {wanted:?}: field is immutable");
            return Err(refusal::invalid(
                resource,
                name,
                "metadata.uid",
                "FieldValueInvalid",
                &why,
            ));
        }
        if call.status {
            let status = object["status"].take();
            object = old.as_ref().clone();
            set(fields(&mut object), "status", status);
        } else if resource.status {
            set(fields(&mut object), "status", old["status"].clone());
        }
        object["apiVersion"] = old["apiVersion"].clone();
        object["kind"] = old["kind"].clone();
        let meta = fields(&mut object["metadata"]);
        for field in FIXED.iter().chain(&["resourceVersion"]) {
            set(meta, field, old["metadata"][field].clone());
        }
        meta.remove("managedFields");
        tidy(meta);
        let is_going = !old["metadata"]["deletionTimestamp"].is_null();
        let (before, after) = (finalizers(old), finalizers(&object));
        let added: Vec<_> = after.iter().filter(|name| !before.contains(name)).collect();
        if is_going && !added.is_empty() {
            let quoted: Vec<String> = added.iter().map(|name| format!("{name:?}")).collect();
            let why = format!(
                "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
                quoted.join(", ")
            );
            let field = "metadata.finalizers";
            return Err(refusal::invalid(
                resource,
                name,
                field,
                "FieldValueForbidden",
                &why,
            ));
        }
        let is_free = after.is_empty();
        if resource.generation && !call.status && content(&object, resource) != content(old, resource) {
            let generation = old["metadata"]["generation"].as_u64().unwrap_or(0);
            object["metadata"]["generation"] = (generation + 1).into();
        }
        if call.query.dry || object == **old {
            return Ok(object);
        }
        let leaves = is_going && is_free;
        Ok(if leaves {
            // What the update was goes with the object: watches see the object from before.
            self.remove(id, old.as_ref().clone());
            object
        } else {
            self.keep(id, object).as_ref().clone()
        })
    }

    pub(crate) fn delete(&mut self, call: &Call, options: &Value, now: Timestamp) -> Result<Value, Refusal> {
        let (resource, name) = (call.resource, &call.name);
        let old = self.found(call)?;
        for (field, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let found = text(&old["metadata"][field]).unwrap_or_default();
            if let Some(wanted) = text(&options["preconditions"][field])
                && wanted != found
            {
                return Err(refusal::precondition(resource, name, what, wanted, found));
            }
        }
        let id = Id::new(resource, &call.namespace, name);
        let mut object = old.as_ref().clone();
        if finalizers(&object).is_empty() {
            self.remove(id, object);
            let mut details = json!({ "name": name, "kind": resource.plural, "uid": old["metadata"]["uid"] });
            if !resource.group.is_empty() {
                details["group"] = resource.group.into();
            }
            return Ok(json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details,
            }));
        }
        if !object["metadata"]["deletionTimestamp"].is_null() {
            return Ok(object);
        }
        object["metadata"]["deletionTimestamp"] = second(now);
        object["metadata"]["deletionGracePeriodSeconds"] = 0.into();
        if let Some(generation) = object["metadata"]["generation"].as_u64() {
            object["metadata"]["generation"] = (generation + 1).into();
        }
        Ok(self.keep(id, object).as_ref().clone())
    }
}

/// What an object's generation counts: all but metadata, and the status where it is apart.
fn content(object: &Value, resource: &Resource) -> Value {
    let mut content = object.clone();
    let fields = fields(&mut content);
    fields.remove("metadata");
    if resource.status {
        fields.remove("status");
    }
    content
}

fn finalizers(object: &Value) -> Vec<&str> {
    let names = object["metadata"]["finalizers"].as_array();
    names.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What an object names in its metadata, and what is there, if they are not the same.
fn differs<'a>(field: &str, object: &'a Value, old: &'a Value) -> Option<(&'a str, &'a str)> {
    let (wanted, found) = (text(&object["metadata"][field])?, text(&old["metadata"][field])?);
    (wanted != found).then_some((wanted, found))
}

/// A text that is there and not empty.
pub(crate) fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// The fields of an object; an object without any if it was something else.
pub(crate) fn fields(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("it is one now")
}

fn set(fields: &mut Map<String, Value>, name: &str, value: Value) {
    if value.is_null() {
        fields.remove(name);
    } else {
        fields.insert(name.to_owned(), value);
    }
}

/// Metadata without what the API server does not write out: null, and empty lists and maps.
fn tidy(meta: &mut Map<String, Value>) {
    meta.retain(|_, value| match value {
        Value::Null => false,
        Value::Array(all) => !all.is_empty(),
        Value::Object(all) => !all.is_empty(),
        _ => true,
    });
}

fn second(now: Timestamp) -> Value {
    let second = Timestamp::from_second(now.as_second()).expect("it was one");
    second.to_string().into()
}

/// An operation as the API server's library understands it: a value that is not there can be
/// replaced, and is null for a test.
fn lenient(operation: PatchOperation, object: &Value) -> Option<PatchOperation> {
    let is_there = |path: &json_patch::jsonptr::PointerBuf| object.pointer(path.as_str()).is_some();
    match operation {
        PatchOperation::Replace(replace) if !is_there(&replace.path) => {
            Some(PatchOperation::Add(AddOperation {
                path: replace.path,
                value: replace.value,
            }))
        }
        PatchOperation::Test(test) if test.value.is_null() && !is_there(&test.path) => None,
        other => Some(other),
    }
}

/// Merges a patch if there is one.
pub(crate) fn merge_if(target: &mut Value, patch: Value) {
    if !patch.is_null() {
        merge(target, patch);
    }
}

/// RFC 7386.
pub(crate) fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    let target = fields(target);
    for (name, value) in patch {
        if value.is_null() {
            target.remove(&name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), value);
        }
    }
}
