//! Schemas of OpenAPI as JSON Schemas, strict where a request is checked.

use jsonschema::Validator;
use serde_json::{Map, Value, json};

/// What a value is, or what it refers to.
pub(super) fn resolve<'a>(root: &'a Value, value: &'a Value) -> &'a Value {
    match value
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|name| name.strip_prefix('#'))
    {
        Some(pointer) => root.pointer(pointer).unwrap_or(&Value::Null),
        None => value,
    }
}

/// A schema ready to check with. Strict: what no part of it names is not allowed.
pub(super) fn compile(root: &Value, schema: &Value, strict: bool) -> Result<Validator, String> {
    let plain = flatten(root, schema, strict, true, &mut Vec::new());
    jsonschema::options()
        .with_draft(jsonschema::Draft::Draft202012)
        .should_validate_formats(false)
        .build(&plain)
        .map_err(|error| error.to_string())
}

/// The schema with its references inlined and OpenAPI 3.0's `nullable` in the words of JSON
/// Schema. `whole` says that it describes a value by itself and is no part of an `allOf`: only
/// there a property that nobody names can be told from one that a sibling names.
fn flatten(root: &Value, schema: &Value, strict: bool, whole: bool, open: &mut Vec<String>) -> Value {
    let reference = schema.get("$ref").and_then(Value::as_str).map(str::to_owned);
    if let Some(reference) = &reference {
        if open.contains(reference) {
            return json!({});
        }
        open.push(reference.clone());
    }
    let resolved = resolve(root, schema);
    let result = match resolved {
        Value::Object(fields) => Value::Object(flatten_fields(root, fields, strict, whole, open)),
        other => other.clone(),
    };
    if reference.is_some() {
        open.pop();
    }
    result
}

fn flatten_fields(
    root: &Value,
    fields: &Map<String, Value>,
    strict: bool,
    whole: bool,
    open: &mut Vec<String>,
) -> Map<String, Value> {
    let mut out = Map::new();
    let mut each = |value: &Value, whole: bool| flatten(root, value, strict, whole, open);
    for (key, value) in fields {
        let value = match (key.as_str(), value) {
            (
                "example" | "examples" | "description" | "discriminator" | "default" | "xml" | "nullable"
                | "deprecated" | "title",
                _,
            ) => continue,
            ("properties" | "patternProperties", Value::Object(properties)) => Value::Object(
                properties
                    .iter()
                    .map(|(name, schema)| (name.clone(), each(schema, true)))
                    .collect(),
            ),
            ("allOf" | "oneOf" | "anyOf", Value::Array(parts)) => {
                Value::Array(parts.iter().map(|part| each(part, false)).collect())
            }
            ("if" | "then" | "else" | "not", part) => each(part, false),
            ("items" | "additionalProperties", part @ Value::Object(_)) => each(part, true),
            (_, other) => other.clone(),
        };
        out.insert(key.clone(), value);
    }
    if fields.get("nullable") == Some(&Value::Bool(true)) {
        if let Some(kind @ Value::String(_)) = out.get("type").cloned() {
            out.insert("type".to_owned(), json!([kind, "null"]));
        }
        if let Some(Value::Array(values)) = out.get_mut("enum") {
            values.push(Value::Null);
        }
    }
    let describes_an_object = ["properties", "allOf", "oneOf", "anyOf"]
        .iter()
        .any(|key| out.contains_key(*key));
    let says_itself = out.contains_key("additionalProperties") || out.contains_key("unevaluatedProperties");
    if strict && whole && describes_an_object && !says_itself {
        out.insert("unevaluatedProperties".to_owned(), Value::Bool(false));
    }
    if !strict {
        out.remove("unevaluatedProperties");
        if out.get("additionalProperties") == Some(&Value::Bool(false)) {
            out.remove("additionalProperties");
        }
    }
    // A reference that may be null has no type beside it to stand in.
    if fields.get("nullable") == Some(&Value::Bool(true)) && !out.contains_key("type") {
        return Map::from_iter([("anyOf".to_owned(), json!([{ "type": "null" }, out]))]);
    }
    out
}
