//! The table of settings in each provider's page, from the schema of its settings. Two lines
//! of the page say where it stands and which settings the Python library does not have:
//!
//! ```text
//! <!-- settings of verda; not in the Python library: image, disk -->
//! <!-- end of settings -->
//! ```

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::{Map, Value};
use skyward_api::crd;
use skyward_providers::registry;

use crate::{
    output::{Output, between},
    reference::{base_type, default, default_sentence, description, one_line},
};

const END: &str = "<!-- end of settings -->";
/// Precedes the settings that the Python library lacks.
const OURS: &str = "; not in the Python library: ";
/// Precedes the settings that have another name there, each as `ours as theirs`.
const OTHERWISE: &str = "; named otherwise there: ";

/// Writes (or compares) the table of every kind of provider of this build.
pub(crate) fn generate(output: &mut Output) -> Result<()> {
    for (kind, schema) in kinds()? {
        let path = format!("docs/providers/{kind}.md");
        let Some(page) = output.read(&path)? else {
            output.problem(format!(
                "{path} is missing; docs/adding-a-provider.md says what it holds"
            ));
            continue;
        };
        match with_table(&page, &kind, &schema) {
            Ok(page) => output.file(&path, &page)?,
            Err(problem) => output.problem(format!("{path}: {problem}")),
        }
    }
    Ok(())
}

/// Each kind of provider with the schema of its settings, as the CRD has it.
fn kinds() -> Result<Vec<(String, Value)>> {
    let clouds = registry::account_kinds();
    let names: Vec<String> = registry::kinds().map(str::to_owned).collect();
    let mut kinds = Vec::new();
    for definition in crd::all(&clouds) {
        if definition.spec.names.kind != "Provider" {
            continue;
        }
        let schema = serde_json::to_value(&definition.spec.versions)?;
        for name in &names {
            let place = format!("/0/schema/openAPIV3Schema/properties/spec/properties/{name}");
            kinds.extend(schema.pointer(&place).map(|found| (name.clone(), found.clone())));
        }
    }
    Ok(kinds)
}

/// The page with a new table between its two lines.
fn with_table(page: &str, kind: &str, schema: &Value) -> Result<String, String> {
    let (before, after) = between(page, &format!("<!-- settings of {kind}"), END)?;
    let line = before.lines().last().unwrap_or_default();
    let listed = |after: &str| -> Vec<&str> {
        line.split_once(after)
            .map_or("", |(_, names)| {
                names.split([';', '>']).next().unwrap_or_default()
            })
            .trim_end_matches('-')
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .collect()
    };
    // Ours, and the name there if it has one.
    let special: Vec<(&str, Option<&str>)> = listed(OTHERWISE)
        .into_iter()
        .filter_map(|pair| pair.split_once(" as "))
        .map(|(ours, theirs)| (ours, Some(theirs)))
        .chain(listed(OURS).into_iter().map(|name| (name, None)))
        .collect();
    let mut rows = Vec::new();
    collect(schema, "", &special, &mut rows);
    let unknown = |(name, _): &&(&str, Option<&str>)| !rows.iter().any(|(row, _)| row == name);
    if let Some((unknown, _)) = special.iter().find(unknown) {
        return Err(format!(
            "there is no setting '{unknown}' that its line could be about"
        ));
    }
    let mut table = format!(
        "| `spec.{kind}.` | type | default | what it does | Python library |\n| --- | --- | --- | --- | --- |\n"
    );
    for (_, row) in &rows {
        table.push_str(row);
    }
    Ok(format!("{before}\n\n{table}\n{after}"))
}

/// A row for each setting, with its name; a setting inside an object is named by its path.
fn collect(schema: &Value, prefix: &str, special: &[(&str, Option<&str>)], rows: &mut Vec<(String, String)>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    for (name, field) in properties.into_iter().flatten() {
        let path = format!("{prefix}{name}");
        if field.get("properties").is_some() {
            collect(field, &format!("{path}."), special, rows);
            continue;
        }
        let Some(schema) = field.as_object() else { continue };
        let mut row = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            row,
            "| `{path}` | {} | {} | {} | {} |",
            base_type(schema),
            or_dash(default_of(schema, field)),
            with_values(without_default(&description(field)), schema),
            match special.iter().find(|(ours, _)| *ours == path) {
                Some((_, None)) => "–".to_owned(),
                Some((_, Some(theirs))) => format!("`{theirs}`"),
                None => format!("`{}`", snake_case(name)),
            }
        );
        rows.push((path, row));
    }
}

fn default_of(schema: &Map<String, Value>, field: &Value) -> String {
    default(schema, &description(field))
}

/// The text with the values of an enumeration, where it does not explain them.
fn with_values(text: String, schema: &Map<String, Value>) -> String {
    let values = schema.get("enum").and_then(Value::as_array);
    let names: Vec<String> = values
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| format!("`{name}`"))
        .collect();
    if names.is_empty() || text.contains("<br>- ") {
        text
    } else {
        format!("{text} One of {}.", names.join(", "))
    }
}

fn or_dash(text: String) -> String {
    if text.is_empty() { "–".to_owned() } else { text }
}

/// The text without its sentence about the default, which has a column of its own.
fn without_default(text: &str) -> String {
    let Some(start) = default_sentence(text) else {
        return one_line(text);
    };
    let (before, rest) = text.split_at(start);
    let end = rest
        .find(". ")
        .or_else(|| rest.find(".\n"))
        .map_or(rest.len(), |dot| dot + 1);
    // The rest of the sentence about the default goes with it.
    if rest
        .get(..end)
        .is_some_and(|sentence| sentence.contains(", which"))
    {
        return one_line(text);
    }
    let after = rest.get(end..).unwrap_or_default();
    one_line(format!("{}{after}", before.trim_end()).trim())
}

/// `imageFamily` as the Python library writes it.
fn snake_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    let mut upper = false;
    for c in name.chars() {
        if c.is_ascii_uppercase() && !upper && !out.is_empty() {
            out.push('_');
        }
        upper = c.is_ascii_uppercase();
        out.push(c.to_ascii_lowercase());
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema() -> Value {
        json!({ "properties": {
            "diskSize": { "type": "integer", "minimum": 50, "maximum": 100, "description": "Size of the disk. Default 100. Grows never." },
            "kind": { "type": "string", "enum": ["a", "b"], "description": "Which." },
            "inner": { "type": "object", "properties": { "one": { "type": "string", "description": "A part." } } },
        } })
    }

    #[test]
    fn a_page_gets_a_row_for_each_setting_and_keeps_the_rest() {
        let page = "# X\n<!-- settings of x; not in the Python library: inner.one -->\nold\n<!-- end of settings -->\nmore\n";
        let written = with_table(page, "x", &schema()).unwrap();
        let otherwise = "<!-- settings of x; not in the Python library: inner.one; named otherwise there: kind as sort -->\n<!-- end of settings -->\n";
        let otherwise = with_table(otherwise, "x", &schema()).unwrap();
        assert!(otherwise.contains("| `sort` |"), "{otherwise}");
        assert!(otherwise.contains("A part. | – |"), "{otherwise}");
        assert!(
            written.contains(
                "| `diskSize` | integer, 50 to 100 | 100 | Size of the disk. Grows never. | `disk_size` |\n"
            ),
            "{written}"
        );
        assert!(
            written.contains("| `inner.one` | string | – | A part. | – |\n"),
            "{written}"
        );
        assert!(
            written.contains("| `kind` | enumeration | – | Which. One of `a`, `b`. | `kind` |\n"),
            "{written}"
        );
        assert!(written.starts_with("# X\n") && written.ends_with("<!-- end of settings -->\nmore\n"));
        assert!(!written.contains("old"));
        // Once more changes nothing.
        assert_eq!(with_table(&written, "x", &schema()).unwrap(), written);
    }

    #[test]
    fn a_page_without_a_place_or_with_a_setting_that_is_gone_is_a_problem() {
        assert!(
            with_table("# X\n", "x", &schema())
                .unwrap_err()
                .contains("end of settings")
        );
        let page = "<!-- settings of x; not in the Python library: gone -->\n<!-- end of settings -->";
        assert!(with_table(page, "x", &schema()).unwrap_err().contains("'gone'"));
    }
}
