//! `docs/reference/resources.md`: every field of every kind, from the schemas.

use std::fmt::Write as _;

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Map, Value};
use skyward_api::crd;

use crate::output::Output;

const INTRODUCTION: &str = "\
<!-- Generated from src/api by `make generate`; do not edit. -->
# Resources

Every field of the custom resources of `skyward.dev/v1alpha1`. `kubectl explain pools.spec` shows the same
texts. A field without a default is left out when you do not need it; what happens then stands in its text.

What a change of a field does, in the column *change*:

- **at once**: it takes effect without touching machines or running Tasks.
- **replaces machines**: new machines come up as asked; each old one is replaced when it is idle.
- **fixed**: the API server refuses the change; create another object.
- **by us**: the controller writes it. Your own edit is overwritten.

What the conditions and their reasons mean stands in [conditions.md](conditions.md).
";

/// Fields with the fields of another kind, which stand there: those of a Pool, and those of a Task.
const ELSEWHERE: [&str; 2] = ["spec.poolTemplate.spec", "spec.taskTemplate.spec"];

/// Writes (or compares) the reference.
pub(crate) fn generate(output: &mut Output) -> Result<()> {
    let mut text = INTRODUCTION.to_owned();
    for definition in crd::all(&skyward_providers::registry::account_kinds()) {
        kind(&mut text, &definition)?;
    }
    output.file("docs/reference/resources.md", &text)
}

fn kind(text: &mut String, definition: &CustomResourceDefinition) -> Result<()> {
    let names = &definition.spec.names;
    let version = definition.spec.versions.first().context("a CRD has a version")?;
    let schema = serde_json::to_value(
        version
            .schema
            .as_ref()
            .and_then(|schema| schema.open_api_v3_schema.as_ref())
            .context("a CRD has a schema")?,
    )?;
    let scope = if definition.spec.scope == "Namespaced" {
        "in a namespace"
    } else {
        "for the whole cluster"
    };
    writeln!(text, "\n## {}\n", names.kind)?;
    writeln!(text, "{}\n", description(&schema))?;
    write!(text, "`kubectl get {}.{}`", names.plural, definition.spec.group)?;
    for short in names.short_names.iter().flatten() {
        write!(text, ", short `{short}`")?;
    }
    writeln!(text, "; an object stands {scope}.")?;

    let columns = version.additional_printer_columns.iter().flatten();
    let (wide, narrow): (Vec<_>, Vec<_>) =
        columns.partition(|column| column.priority.unwrap_or_default() > 0);
    let list = |columns: Vec<&_>| {
        let name = |column: &k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceColumnDefinition| column.name.clone();
        columns.into_iter().map(name).collect::<Vec<_>>().join(", ")
    };
    write!(text, "Columns: {}", list(narrow))?;
    if wide.is_empty() {
        writeln!(text, ".")?;
    } else {
        writeln!(text, "; with `-o wide` also {}.", list(wide))?;
    }
    let fields: Vec<_> = version
        .selectable_fields
        .iter()
        .flatten()
        .map(|field| format!("`{}`", field.json_path.trim_start_matches('.')))
        .collect();
    if !fields.is_empty() {
        writeln!(text, "Field selectors: {}.", fields.join(", "))?;
    }

    for (part, title) in [("spec", "Spec"), ("status", "Status")] {
        let Some(Value::Object(schema)) = schema.pointer(&format!("/properties/{part}")) else {
            continue;
        };
        writeln!(text, "\n### {} of {}\n", title, names.kind)?;
        let mut rules = Vec::new();
        let mut rows = Vec::new();
        let scope = Scope {
            kind: &names.kind,
            in_status: part == "status",
            inherited: None,
        };
        collect(schema, part, &scope, &mut rows, &mut rules);
        if part == "spec" {
            writeln!(
                text,
                "| field | type | default | change | text |\n| --- | --- | --- | --- | --- |"
            )?;
        } else {
            writeln!(text, "| field | type | text |\n| --- | --- | --- |")?;
        }
        for row in rows {
            if part == "spec" {
                writeln!(
                    text,
                    "| `{}` | {} | {} | {} | {} |",
                    row.path, row.type_, row.default, row.change, row.text
                )?;
            } else {
                writeln!(text, "| `{}` | {} | {} |", row.path, row.type_, row.text)?;
            }
        }
        if !rules.is_empty() {
            writeln!(text, "\nChecked at admission:\n")?;
            for (path, message) in rules {
                writeln!(text, "- `{path}`: {message}")?;
            }
        }
    }
    Ok(())
}

/// One row of a table.
struct Row {
    path: String,
    type_: String,
    default: String,
    change: &'static str,
    text: String,
}

/// The context of a field.
struct Scope<'a> {
    kind: &'a str,
    in_status: bool,
    /// What a change of the parent does, where the parent's text says so.
    inherited: Option<&'static str>,
}

fn collect(
    schema: &Map<String, Value>,
    path: &str,
    scope: &Scope<'_>,
    rows: &mut Vec<Row>,
    rules: &mut Vec<(String, String)>,
) {
    let validations = schema.get("x-kubernetes-validations").and_then(Value::as_array);
    let mut fixed = Vec::new();
    for rule in validations.into_iter().flatten() {
        let message = rule["message"].as_str().unwrap_or_default().to_owned();
        match rule["fieldPath"].as_str() {
            Some(field) if message.contains("cannot be changed") => {
                fixed.push(field.trim_start_matches('.').to_owned());
            }
            Some(field) => rules.push((format!("{path}{field}"), message)),
            None => rules.push((path.to_owned(), message)),
        }
    }
    let required: Vec<_> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (name, field) in schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        let Value::Object(field) = field else { continue };
        let text = description(&Value::Object(field.clone()));
        let change = if fixed.contains(name) {
            "fixed"
        } else {
            change(&text, scope)
        };
        let path = format!("{path}.{name}");
        rows.push(Row {
            type_: type_name(field, required.contains(&name.as_str())),
            default: default(field, &text),
            change,
            text: one_line(&text),
            path: path.clone(),
        });
        if ELSEWHERE.contains(&path.as_str()) {
            continue;
        }
        let inner = Scope {
            kind: scope.kind,
            in_status: scope.in_status,
            inherited: Some(change),
        };
        collect(field, &path, &inner, rows, rules);
        if let Some(Value::Object(items)) = field.get("items") {
            collect(items, &format!("{path}[]"), &inner, rows, rules);
        }
    }
}

/// What a change of a field does: its own text decides, else that of its parent.
fn change(text: &str, scope: &Scope<'_>) -> &'static str {
    // Lines of a text are broken anywhere.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if scope.in_status || matches!(scope.kind, "Offer" | "Machine") {
        "by us"
    } else if text.contains("A change replaces machines when idle") {
        "replaces machines"
    } else if text.contains("takes effect at once") || text.contains("May be changed") {
        "at once"
    } else {
        scope.inherited.unwrap_or("at once")
    }
}

pub(crate) fn description(schema: &Value) -> String {
    schema["description"].as_str().unwrap_or_default().to_owned()
}

/// Text for a table cell.
pub(crate) fn one_line(text: &str) -> String {
    text.replace("\n\n- ", "<br>- ")
        .replace("\n- ", "<br>- ")
        .replace('\n', " ")
        .replace('|', "\\|")
}

/// The default: what the API server fills in, else what the text says after "Default", else the value that it marks.
pub(crate) fn default(schema: &Map<String, Value>, text: &str) -> String {
    if let Some(default) = schema.get("default") {
        return format!("`{default}`");
    }
    let Some(start) = default_sentence(text) else {
        return marked_default(text);
    };
    let rest = text[start + "Default".len()..]
        .trim_start_matches(':')
        .trim_start();
    let end = [". ", ".\n"]
        .iter()
        .filter_map(|stop| rest.find(stop))
        .min()
        .or_else(|| rest.find(", which"))
        .unwrap_or(rest.len());
    one_line(rest[..end].trim_end_matches('.'))
}

/// The value that a text marks as the default, as in "`All` (default), `Head` or `None`".
fn marked_default(text: &str) -> String {
    // Lines of a text are broken anywhere.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let end = ["` (default)", "` (default:"]
        .iter()
        .filter_map(|mark| text.find(mark))
        .min();
    let marked = end.and_then(|end| {
        let start = text[..end].rfind('`')?;
        Some(text[start..=end].to_owned())
    });
    marked.unwrap_or_default()
}

/// Where the sentence about the default begins; lines of a text are broken anywhere.
pub(crate) fn default_sentence(text: &str) -> Option<usize> {
    ["Default ", "Default:", "Default\n"]
        .iter()
        .filter_map(|word| text.find(word))
        .min()
}

fn type_name(schema: &Map<String, Value>, required: bool) -> String {
    let mut name = base_type(schema);
    if required {
        name.push_str(", required");
    }
    name
}

pub(crate) fn base_type(schema: &Map<String, Value>) -> String {
    if schema.contains_key("x-kubernetes-int-or-string") {
        let rules = schema.get("x-kubernetes-validations").and_then(Value::as_array);
        let refuses_numbers = rules.into_iter().flatten().any(|rule| {
            rule["rule"]
                .as_str()
                .is_some_and(|rule| rule.starts_with("type(self) == string &&"))
        });
        return if refuses_numbers {
            "string"
        } else {
            "integer or string"
        }
        .to_owned();
    }
    let number = |key: &str| schema.get(key).and_then(Value::as_f64);
    match schema.get("type").and_then(Value::as_str) {
        Some("array") => {
            let items = schema
                .get("items")
                .and_then(Value::as_object)
                .map_or_else(|| "any".to_owned(), base_type);
            match number("maxItems") {
                Some(most) => format!("list of {items}, at most {most}"),
                None => format!("list of {items}"),
            }
        }
        Some("object") => match schema.get("additionalProperties").and_then(Value::as_object) {
            Some(values) => format!("map of {}", base_type(values)),
            None => "object".to_owned(),
        },
        Some("string") if schema.contains_key("enum") => "enumeration".to_owned(),
        Some("string") if schema.get("format").and_then(Value::as_str) == Some("date-time") => {
            "time".to_owned()
        }
        Some(kind @ ("integer" | "number")) => {
            let huge = f64::from(u32::MAX);
            match (number("minimum"), number("maximum").filter(|most| *most < huge)) {
                (Some(least), Some(most)) => format!("{kind}, {least} to {most}"),
                (Some(least), None) if least > 0.0 => format!("{kind}, at least {least}"),
                _ => kind.to_owned(),
            }
        }
        Some(other) => other.to_owned(),
        None => "any JSON".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_are_read_from_the_text() {
        let none = Map::new();
        for (text, want) in [
            ("Wait. Default `10s`.", "`10s`"),
            ("Default: `desired`.", "`desired`"),
            ("User. Default `root`, which may install packages.", "`root`"),
            ("Image of it. Default\n`some:image`. More.", "`some:image`"),
            (
                "Default of a Task: `all`.\n\n- `All`: All of them. More.",
                "of a Task: `all`",
            ),
            ("Whose: `All`\n(default), `Head` or `None`.", "`All`"),
            ("Where: `One` (default: the machine of it) or `All`.", "`One`"),
            ("Its keys: `username` (default `git`) and `password`.", ""),
            ("None when left out.", ""),
        ] {
            assert_eq!(default(&none, text), want, "{text}");
        }
    }

    #[test]
    fn what_a_change_does_is_read_whatever_the_line_it_stands_in() {
        let scope = Scope {
            kind: "Pool",
            in_status: false,
            inherited: None,
        };
        let text = "Name of the Provider. A change\nreplaces machines when idle.";
        assert_eq!(change(text, &scope), "replaces machines");
    }

    #[test]
    fn the_fields_of_a_pool_stand_once_and_not_with_a_task_too() {
        let schema = json!({ "properties": { "poolTemplate": { "type": "object", "properties": {
            "metadata": { "type": "object", "properties": { "labels": { "type": "object" } } },
            "spec": { "type": "object", "properties": { "cpu": { "type": "string" } } }
        } } } });
        let (mut rows, mut rules) = (Vec::new(), Vec::new());
        let scope = Scope {
            kind: "Task",
            in_status: false,
            inherited: None,
        };
        collect(schema.as_object().unwrap(), "spec", &scope, &mut rows, &mut rules);
        let paths: Vec<&str> = rows.iter().map(|row| row.path.as_str()).collect();
        let expected = [
            "spec.poolTemplate",
            "spec.poolTemplate.metadata",
            "spec.poolTemplate.metadata.labels",
            "spec.poolTemplate.spec",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn a_part_changes_as_its_whole_does() {
        let schema = json!({ "properties": { "image": {
            "type": "object",
            "description": "Software. A change replaces machines when idle.",
            "properties": { "pip": { "type": "array", "description": "Packages.", "items": { "type": "string" } } }
        } } });
        let (mut rows, mut rules) = (Vec::new(), Vec::new());
        let scope = Scope {
            kind: "Pool",
            in_status: false,
            inherited: None,
        };
        collect(schema.as_object().unwrap(), "spec", &scope, &mut rows, &mut rules);
        assert_eq!(
            rows.iter().map(|row| row.change).collect::<Vec<_>>(),
            ["replaces machines"; 2]
        );
        assert_eq!(rows[1].type_, "list of string");
    }
}
