//! The CustomResourceDefinitions as they are installed.
//!
//! kube derives them from the types; [`all`] finishes what a derive cannot know:
//! `null` means absent (as in Kubernetes' own kinds), defaults stand only where the
//! API server must apply them, types of Kubernetes itself get bounds, and what each
//! value of an enumeration means becomes part of `kubectl explain`.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use schemars::Schema;
use serde_json::{Map, Value, json};

use crate::{Machine, Offer, Pool, Provider, Task, condition::MAX_MESSAGE};

/// Defaults that the API server applies, because `/scale` reads these fields. All
/// others are applied by the controller, so that a manifest stays what its author
/// wrote and a default can change with a version.
const SERVER_DEFAULTS: [&str; 2] = ["Pool.spec.nodes", "Pool.spec.nodes.desired"];

/// Largest accepted size of one CRD as YAML, in bytes.
pub const MAX_CRD_BYTES: usize = 200 * 1024;

/// All our CRDs, in the order in which people meet them.
pub fn all() -> Vec<CustomResourceDefinition> {
    [
        Provider::crd(),
        Offer::crd(),
        Pool::crd(),
        Machine::crd(),
        Task::crd(),
    ]
    .into_iter()
    .map(finished)
    .collect()
}

fn finished(crd: CustomResourceDefinition) -> CustomResourceDefinition {
    let kind = crd.spec.names.kind.clone();
    let mut value = serde_json::to_value(crd).expect("a CRD is plain data");
    let versions = value.pointer_mut("/spec/versions").and_then(Value::as_array_mut);
    for version in versions.into_iter().flatten() {
        if let Some(Value::Object(schema)) = version.pointer_mut("/schema/openAPIV3Schema") {
            finish_schema(schema, &kind);
        }
        // `kubectl explain` appends what a path is to its own text; an empty
        // subresource object must stay, so only true nulls go.
        if let Some(version) = version.as_object_mut() {
            version.retain(|_, field| !field.is_null());
        }
    }
    serde_json::from_value(value).expect("finishing keeps the shape of a CRD")
}

/// One schema and all below it; `path` names it for [`SERVER_DEFAULTS`].
fn finish_schema(schema: &mut Map<String, Value>, path: &str) {
    schema.remove("nullable");
    if !SERVER_DEFAULTS.contains(&path) {
        schema.remove("default");
    }
    if let Some(variants) = schema
        .remove("title")
        .and_then(|title| title.as_str().map(str::to_owned))
    {
        let text = schema
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        schema.insert("description".into(), format!("{text}\n\n{variants}").into());
    }
    plain_format(schema);
    bound_kubernetes_types(schema);

    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties {
            if let Value::Object(property) = property {
                finish_schema(property, &format!("{path}.{name}"));
            }
        }
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(Value::Object(child)) = schema.get_mut(key) {
            finish_schema(child, &format!("{path}{mark}"));
        }
    }
}

/// The API server knows no unsigned formats and warns about them: their meaning is
/// kept as a range.
fn plain_format(schema: &mut Map<String, Value>) {
    let maximum = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => u64::from(u8::MAX),
        Some("uint16") => u64::from(u16::MAX),
        Some("uint32") => u64::from(u32::MAX),
        _ => return,
    };
    schema.insert("format".into(), "int64".into());
    schema.entry("minimum").or_insert_with(|| 0.into());
    schema.entry("maximum").or_insert_with(|| maximum.into());
}

/// Bounds for Condition, LabelSelector and Toleration, which carry none of their own.
/// They are recognised by their properties, wherever they are used.
fn bound_kubernetes_types(schema: &mut Map<String, Value>) {
    let Some(Value::Object(properties)) = schema.get_mut("properties") else {
        return;
    };
    let has = |names: &[&str]| names.iter().all(|name| properties.contains_key(*name));
    let bounds: Value = if has(&["lastTransitionTime", "reason", "status", "type"]) {
        json!({
            "type": { "maxLength": 64, "minLength": 1 },
            "status": { "enum": ["True", "False", "Unknown"] },
            "reason": { "maxLength": 64, "minLength": 1 },
            "message": { "maxLength": MAX_MESSAGE },
        })
    } else if has(&["matchLabels", "matchExpressions"]) {
        json!({
            "matchLabels": { "maxProperties": 16, "additionalProperties": { "type": "string", "maxLength": 63 } },
            "matchExpressions": { "maxItems": 16 },
        })
    } else if has(&["key", "operator", "values"]) {
        json!({
            "key": { "minLength": 1, "maxLength": 317 },
            "operator": { "enum": ["In", "NotIn", "Exists", "DoesNotExist"] },
            "values": { "maxItems": 64, "items": { "type": "string", "maxLength": 63 } },
        })
    } else if has(&["effect", "tolerationSeconds"]) {
        json!({
            "key": { "maxLength": 317 },
            "operator": { "enum": ["Exists", "Equal"] },
            "value": { "maxLength": 63 },
            "effect": { "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"] },
        })
    } else {
        return;
    };
    for (name, bound) in bounds.as_object().into_iter().flatten() {
        if let (Some(Value::Object(property)), Some(bound)) = (properties.get_mut(name), bound.as_object()) {
            property.extend(bound.clone());
        }
    }
}

/// For enumerations (`#[schemars(transform = ...)]`): a plain `enum`, with what each
/// value means in `title`, where [`finish_schema`] finds it. (A field's own text
/// replaces the `description` of its type, but not the title.)
pub(crate) fn explain_variants(schema: &mut Schema) {
    let Some(variants) = schema.get("oneOf").and_then(Value::as_array).cloned() else {
        return;
    };
    let mut values = Vec::new();
    let mut lines = Vec::new();
    for variant in &variants {
        let value = variant.get("const").or_else(|| variant.pointer("/enum/0"));
        let Some(name) = value.and_then(Value::as_str) else {
            return;
        };
        let text = variant
            .get("description")
            .and_then(Value::as_str)
            .unwrap_or_default();
        values.push(Value::from(name));
        lines.push(format!("- `{name}`: {}", text.replace('\n', " ")));
    }
    schema.remove("oneOf");
    schema.insert("type".into(), "string".into());
    schema.insert("enum".into(), values.into());
    schema.insert("title".into(), lines.join("\n").into());
}
