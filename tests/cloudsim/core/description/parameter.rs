//! Parameters of a call: in the path, the query, and headers.

use jsonschema::Validator;
use serde_json::{Value, json};

use super::complaints;
use super::schema::{compile, resolve};
use crate::core::http::Request;

#[derive(Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    required: bool,
    pub(super) place: Place,
    list: bool,
    explode: bool,
    schema: Validator,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Query,
    Path,
    Header,
}

impl Parameter {
    pub(super) fn parse(root: &Value, parameter: &Value) -> Result<Option<Self>, String> {
        let place = match parameter.get("in").and_then(Value::as_str) {
            Some("query") => Place::Query,
            Some("path") => Place::Path,
            Some("header") => Place::Header,
            _ => return Ok(None),
        };
        let name = parameter
            .get("name")
            .and_then(Value::as_str)
            .ok_or("a parameter without a name")?;
        let schema = parameter.get("schema").cloned().unwrap_or_else(|| json!({}));
        Ok(Some(Self {
            name: name.to_owned(),
            required: parameter.get("required") == Some(&Value::Bool(true)),
            place,
            list: resolve(root, &schema).get("type").and_then(Value::as_str) == Some("array"),
            explode: parameter.get("explode") != Some(&Value::Bool(false)),
            schema: compile(root, &schema, true)?,
        }))
    }

    pub(super) fn check(&self, request: &Request, path: &[String]) -> Vec<String> {
        let given: Vec<String> = match self.place {
            Place::Query => request.parameters(&self.name).map(str::to_owned).collect(),
            Place::Header => request
                .header(&self.name)
                .map(str::to_owned)
                .into_iter()
                .collect(),
            Place::Path => {
                let from_end = path
                    .iter()
                    .rev()
                    .position(|part| part.trim_matches(['{', '}']) == self.name);
                let segments = request.segments();
                from_end
                    .and_then(|at| segments.len().checked_sub(at + 1))
                    .and_then(|at| segments.get(at).cloned())
                    .into_iter()
                    .collect()
            }
        };
        if given.is_empty() {
            return if self.required {
                vec![format!("{:?} is required and was not given", self.name)]
            } else {
                Vec::new()
            };
        }
        let values: Vec<Value> = if self.list {
            let items: Vec<Value> = if self.explode {
                given.iter().map(|text| typed(text)).collect()
            } else {
                given.iter().flat_map(|text| text.split(',')).map(typed).collect()
            };
            vec![Value::Array(items)]
        } else {
            given.iter().map(|text| typed(text)).collect()
        };
        // A parameter that looks like a number may be meant as text, and the other way round.
        let as_text: Vec<Value> = if self.list {
            vec![Value::Array(
                given
                    .iter()
                    .flat_map(|text| {
                        if self.explode {
                            vec![text.as_str()]
                        } else {
                            text.split(',').collect()
                        }
                    })
                    .map(Value::from)
                    .collect(),
            )]
        } else {
            given.iter().map(|text| Value::from(text.as_str())).collect()
        };
        values
            .iter()
            .zip(&as_text)
            .filter(|(value, text)| !self.schema.is_valid(value) && !self.schema.is_valid(text))
            .flat_map(|(value, _)| complaints(&self.schema, value, &format!("the parameter {:?}", self.name)))
            .collect()
    }
}

fn typed(text: &str) -> Value {
    serde_json::from_str(text)
        .ok()
        .filter(|value: &Value| value.is_number() || value.is_boolean())
        .unwrap_or_else(|| Value::from(text))
}
