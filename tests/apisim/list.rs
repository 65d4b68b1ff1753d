//! Lists in pages, and selectors.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    refusal::{self, Refusal},
    request::{Call, Query},
    server::{Id, State, metadata_of},
    write::text,
};

/// What a page that is too old says.
const OLD_PAGE: &str = "The provided continue parameter is too old to display a consistent list result. You must start a new list without the continue parameter.";

impl State {
    pub(crate) fn list(&self, call: &Call) -> Result<Value, Refusal> {
        check_fields(call)?;
        let (version, after) = match &call.query.from {
            None => (self.version, None),
            Some(token) => {
                let read = || {
                    let (version, key) = token.split_once(':')?;
                    Some((version.parse().ok()?, Some(key.to_owned())))
                };
                read().ok_or_else(|| refusal::bad_request("continue key is not valid"))?
            }
        };
        let objects = self
            .at(version, call.resource)
            .ok_or_else(|| refusal::expired(OLD_PAGE))?;
        let is_in = |id: &Id| id.is_in(&call.namespace);
        let rest: Vec<(Id, Arc<Value>)> = objects
            .into_iter()
            .filter(|(id, object)| is_in(id) && call.query.selects(object))
            .filter(|(id, _)| after.as_ref().is_none_or(|after| id.key > *after))
            .collect();
        let limit = match call.query.limit {
            0 => rest.len(),
            limit => limit,
        };
        let mut meta = json!({ "resourceVersion": version.to_string() });
        if rest.len() > limit {
            meta["continue"] = format!("{version}:{}", rest[limit - 1].0.key).into();
            if call.query.labels.is_none() && call.query.fields.is_none() {
                meta["remainingItemCount"] = (rest.len() - limit).into();
            }
        }
        let page = rest.into_iter().take(limit).map(|(_, object)| object);
        let item = |object: Arc<Value>| {
            if call.metadata {
                return metadata_of(&object);
            }
            let mut object = object.as_ref().clone();
            if !call.resource.is_ours() {
                // Lists of Go's own types say once what they are lists of.
                let fields = object.as_object_mut().expect("objects are kept");
                fields.retain(|name, _| name != "kind" && name != "apiVersion");
            }
            object
        };
        let items: Vec<Value> = page.map(item).collect();
        // Two ways to write an empty list, and an empty token.
        let items = if items.is_empty() && call.metadata {
            Value::Null
        } else {
            items.into()
        };
        if call.resource.is_ours() && !call.metadata && meta["continue"].is_null() {
            meta["continue"] = "".into();
        }
        let (kind, version) = if call.metadata {
            (
                "PartialObjectMetadataList".to_owned(),
                "meta.k8s.io/v1".to_owned(),
            )
        } else {
            (format!("{}List", call.resource.kind), call.resource.api_version())
        };
        Ok(json!({ "kind": kind, "apiVersion": version, "metadata": meta, "items": items }))
    }
}

/// Refuses a selector of a field that objects of the resource are not selected by.
pub(crate) fn check_fields(call: &Call) -> Result<(), Refusal> {
    let Some(selectable) = call.resource.selectable else {
        return Ok(());
    };
    for term in terms(call.query.fields.as_ref()) {
        let field = term.split(['=', '!']).next().unwrap_or_default();
        let is_known = field == "metadata.name"
            || (field == "metadata.namespace" && call.resource.namespaced)
            || selectable.contains(&field);
        if !is_known {
            let why = format!("field label not supported: {field}");
            return Err(refusal::bad_request(&why));
        }
    }
    Ok(())
}

impl Query {
    /// Whether the selectors of a list or a watch take an object.
    pub(crate) fn selects(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        let labels_fit = terms(self.labels.as_ref()).all(|term| match term.split_once("!=") {
            Some((name, value)) => text(&labels[name]) != Some(value),
            None => match term.split_once('=') {
                Some((name, value)) => labels[name].as_str() == Some(value.trim_start_matches('=')),
                None => match term.strip_prefix('!') {
                    Some(name) => labels[name].is_null(),
                    None => !labels[term].is_null(),
                },
            },
        });
        labels_fit
            && terms(self.fields.as_ref()).all(|term| match term.split_once("!=") {
                Some((field, value)) => field_of(object, field) != value,
                None => term
                    .split_once('=')
                    .is_some_and(|(field, value)| field_of(object, field) == value.trim_start_matches('=')),
            })
    }
}

/// A field that is selected by; `""` where the object has none.
fn field_of<'a>(object: &'a Value, field: &str) -> &'a str {
    let found = field.split('.').try_fold(object, |object, name| object.get(name));
    found.and_then(Value::as_str).unwrap_or_default()
}

fn terms(selector: Option<&String>) -> impl Iterator<Item = &str> {
    let terms = selector.into_iter().flat_map(|selector| selector.split(','));
    terms.map(str::trim).filter(|term| !term.is_empty())
}
