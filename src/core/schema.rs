//! How enumerations look in a JSON schema.

use schemars::Schema;
use serde_json::Value;

/// For enumerations (`#[schemars(transform = ...)]`): a plain `enum`, with what each
/// value means in `title`, where the generator of the CRDs finds it. (A field's own text
/// replaces the `description` of its type, but not the title.)
pub fn explain_variants(schema: &mut Schema) {
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
