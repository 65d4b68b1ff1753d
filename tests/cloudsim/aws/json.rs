//! Requests of the `json` protocol (SSM, Pricing, Service Quotas), checked against the model.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::model::{Kind, Model, Reference, check_limits};
use super::query::{Decoded, Problem, ProblemKind};

/// Reads the parameters of `operation` from a JSON body.
pub fn decode(model: &Model, operation: &str, body: &[u8]) -> Result<Decoded, String> {
    let operation = model
        .operations
        .get(operation)
        .ok_or_else(|| format!("no operation {operation}"))?;
    let mut problems = Vec::new();
    let input = match serde_json::from_slice::<Value>(body) {
        Ok(input) => input,
        Err(error) => {
            problems.push(Problem::new(
                ProblemKind::Malformed,
                format!("the body is not JSON: {error}"),
            ));
            Value::Object(Map::new())
        }
    };
    if let Some(reference) = &operation.input {
        check(model, reference, "", &input, &mut problems)?;
    }
    Ok(Decoded { input, problems })
}

/// What the description does not allow in an answer of ours.
pub fn check_output(model: &Model, operation: &str, output: &Value) -> Result<Vec<String>, String> {
    let operation = model
        .operations
        .get(operation)
        .ok_or_else(|| format!("no operation {operation}"))?;
    let mut problems = Vec::new();
    if let Some(reference) = &operation.output {
        check(model, reference, "", output, &mut problems)?;
    }
    Ok(problems.into_iter().map(|problem| problem.text).collect())
}

fn check(
    model: &Model,
    reference: &Reference,
    path: &str,
    value: &Value,
    problems: &mut Vec<Problem>,
) -> Result<(), String> {
    let shape = model.shape(reference)?;
    let mut malformed = |what: &str| {
        problems.push(Problem::new(
            ProblemKind::Malformed,
            format!("{path}: {value} is not {what}"),
        ));
    };
    match (shape.kind, value) {
        (Kind::Structure, Value::Object(fields)) => {
            for (name, inner) in fields {
                let below = if path.is_empty() {
                    name.clone()
                } else {
                    format!("{path}.{name}")
                };
                let member = shape
                    .members
                    .iter()
                    .find(|(member, used)| used.location_name.as_deref().unwrap_or(member.as_str()) == name);
                match member {
                    Some((_, used)) => check(model, used, &below, inner, problems)?,
                    None => problems.push(Problem::new(
                        ProblemKind::Unknown,
                        format!("the parameter {below} is not recognized"),
                    )),
                }
            }
            for required in &shape.required {
                if !fields.contains_key(required) {
                    problems.push(Problem::new(
                        ProblemKind::Missing,
                        format!("the request must contain the parameter {path}{required}"),
                    ));
                }
            }
        }
        (Kind::List, Value::Array(items)) => {
            if let Some(entry) = shape.member.as_deref() {
                for (position, item) in items.iter().enumerate() {
                    check(model, entry, &format!("{path}[{position}]"), item, problems)?;
                }
            }
        }
        (Kind::Map, Value::Object(fields)) => {
            if let Some(entry) = shape.value.as_deref() {
                for (name, item) in fields {
                    check(model, entry, &format!("{path}.{name}"), item, problems)?;
                }
            }
        }
        (Kind::String, Value::String(_))
        | (Kind::Boolean, Value::Bool(_))
        | (Kind::Double | Kind::Float | Kind::Timestamp, Value::Number(_)) => {}
        (Kind::Integer | Kind::Long, Value::Number(number)) if number.is_i64() => {}
        (Kind::Blob, Value::String(text)) if STANDARD.decode(text).is_ok() => {}
        (Kind::Structure | Kind::Map, _) => malformed("an object"),
        (Kind::List, _) => malformed("a list"),
        (Kind::String, _) => malformed("a string"),
        (Kind::Boolean, _) => malformed("true or false"),
        (Kind::Integer | Kind::Long, _) => malformed("an integer"),
        (Kind::Double | Kind::Float | Kind::Timestamp, _) => malformed("a number"),
        (Kind::Blob, _) => malformed("base64"),
    }
    let mut wrong = Vec::new();
    check_limits(shape, &reference.shape, path, value, &mut wrong);
    problems.extend(
        wrong
            .into_iter()
            .map(|text| Problem::new(ProblemKind::Malformed, text)),
    );
    Ok(())
}
