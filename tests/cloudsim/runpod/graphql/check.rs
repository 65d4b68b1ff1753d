//! A query against the schema: fields, arguments, variables and the values given for them.

use async_graphql_parser::parse_query;
use async_graphql_parser::types::{
    DocumentOperations, Field, OperationDefinition, OperationType, Selection, SelectionSet, Type,
};
use async_graphql_value::Value as Given;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::inputs::{Input, Kind};
use super::plain;
use super::schema::{MUTATION, Object, QUERY};
use crate::core::http::Request;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Envelope {
    query: String,
    #[serde(default)]
    variables: Option<Map<String, Value>>,
    operation_name: Option<String>,
}

/// A query that could be parsed.
pub(super) struct Query {
    operation: OperationDefinition,
    variables: Map<String, Value>,
}

/// Parses a request.
pub(super) fn parse(request: &Request) -> Result<Query, String> {
    if !request
        .header("content-type")
        .is_some_and(|given| given.starts_with("application/json"))
    {
        return Err("bodies are application/json".to_owned());
    }
    if !request.query.is_empty() {
        return Err("the key belongs into the Authorization header: addresses end up in logs".to_owned());
    }
    let envelope: Envelope =
        serde_json::from_slice(&request.body).map_err(|error| format!("the body: {error}"))?;
    let document =
        parse_query(&envelope.query).map_err(|error| format!("the query cannot be parsed: {error}"))?;
    if !document.fragments.is_empty() {
        return Err("the simulator knows no fragments".to_owned());
    }
    let operation = match document.operations {
        DocumentOperations::Single(operation) => Some(operation),
        DocumentOperations::Multiple(mut all) => match envelope.operation_name {
            Some(name) => all.remove(name.as_str()),
            None if all.len() == 1 => all.drain().map(|(_, operation)| operation).next(),
            None => None,
        },
    };
    let operation = operation.ok_or("which operation is meant cannot be told")?.node;
    Ok(Query {
        operation,
        variables: envelope.variables.unwrap_or_default(),
    })
}

impl Query {
    /// The operation.
    pub(super) fn operation(&self) -> &OperationDefinition {
        &self.operation
    }

    /// Its first level of fields.
    pub(super) fn fields(&self) -> impl Iterator<Item = &Field> {
        self.operation
            .selection_set
            .node
            .items
            .iter()
            .filter_map(|item| match &item.node {
                Selection::Field(field) => Some(&field.node),
                Selection::FragmentSpread(_) | Selection::InlineFragment(_) => None,
            })
    }

    /// The value of an argument as JSON; null when it is not given.
    pub(super) fn argument(&self, field: &Field, name: &str) -> Value {
        field
            .get_argument(name)
            .map_or(Value::Null, |given| plain(&given.node, &self.variables))
    }

    /// What the schema does not allow.
    pub(super) fn check(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let root = match self.operation.ty {
            OperationType::Query => &QUERY,
            OperationType::Mutation => &MUTATION,
            OperationType::Subscription => return vec!["there are no subscriptions".to_owned()],
        };
        self.selection(root, &self.operation.selection_set.node, &mut wrong);
        // Variables that are given and not declared are ignored, as GraphQL says.
        wrong
    }

    fn selection(&self, object: &Object, selection: &SelectionSet, wrong: &mut Vec<String>) {
        for item in &selection.items {
            let Selection::Field(field) = &item.node else {
                wrong.push("the simulator knows no fragments".to_owned());
                continue;
            };
            let field = &field.node;
            let name = field.name.node.as_str();
            if name == "__typename" {
                continue;
            }
            let Some(known) = object.fields.iter().find(|known| known.name == name) else {
                wrong.push(format!(
                    "Cannot query field \"{name}\" on type \"{}\".",
                    object.name
                ));
                continue;
            };
            for (argument, _) in &field.arguments {
                let is_input = argument.node == "input" && known.input.is_some();
                if !is_input && known.key.is_none_or(|key| argument.node != key) {
                    wrong.push(format!(
                        "Unknown argument \"{}\" on field \"{}.{name}\".",
                        argument.node, object.name
                    ));
                }
            }
            match (known.input, field.get_argument("input")) {
                (Some((input, required)), Some(given)) => {
                    self.value(Kind::Input(input), required, &given.node, name, wrong);
                }
                (Some((input, true)), None) => {
                    wrong.push(format!(
                        "Field \"{name}\" argument \"input\" of type \"{}!\" is required.",
                        input.name
                    ));
                }
                (_, None) | (None, Some(_)) => {}
            }
            match known.key.map(|key| (key, field.get_argument(key))) {
                Some((key, Some(given))) => self.value(Kind::Text, true, &given.node, key, wrong),
                Some((key, None)) => wrong.push(format!(
                    "Field \"{name}\" argument \"{key}\" of type \"String!\" is required."
                )),
                None => {}
            }
            let inner = &field.selection_set.node;
            match (known.of, inner.items.is_empty()) {
                (Some(of), false) => self.selection(of, inner, wrong),
                (Some(of), true) => {
                    wrong.push(format!(
                        "Field \"{name}\" of type \"{}\" must have a selection of subfields.",
                        of.name
                    ));
                }
                (None, false) => wrong.push(format!(
                    "Field \"{name}\" must not have a selection, it is a scalar."
                )),
                (None, true) => {}
            }
        }
    }

    /// A value in the text of a query.
    fn value(&self, kind: Kind, required: bool, given: &Given, place: &str, wrong: &mut Vec<String>) {
        match (kind, given) {
            (_, Given::Variable(name)) => self.variable(kind, required, name, place, wrong),
            (_, Given::Null) if required => wrong.push(format!("\"{place}\" must not be null")),
            (Kind::Enum(_, names), Given::Enum(name)) if names.contains(&name.as_str()) => {}
            (Kind::Enum(of, _), _) if !matches!(given, Given::Null) => {
                wrong.push(format!(
                    "{given} is no value of \"{of}\" at \"{place}\" (enum values have no quotes)"
                ));
            }
            (Kind::Input(input), Given::Object(fields)) => {
                let names = fields.keys().map(async_graphql_value::Name::as_str);
                check_names(input, names, place, wrong);
                for (name, value) in fields {
                    if let Some((_, kind, required)) =
                        input.fields.iter().find(|(known, ..)| *known == name.as_str())
                    {
                        self.value(*kind, *required, value, &format!("{place}.{name}"), wrong);
                    }
                }
            }
            (Kind::List(of), Given::List(items)) => {
                for item in items {
                    self.value(*of, false, item, place, wrong);
                }
            }
            _ => check_json(kind, &plain(given, &self.variables), place, wrong),
        }
    }

    fn variable(&self, kind: Kind, required: bool, name: &str, place: &str, wrong: &mut Vec<String>) {
        let found = self
            .operation
            .variable_definitions
            .iter()
            .find(|known| known.node.name.node == name);
        let Some(definition) = found.map(|known| &known.node) else {
            wrong.push(format!("Variable \"${name}\" is not defined."));
            return;
        };
        let declared = without_bangs(&definition.var_type.node);
        if declared != kind.name() {
            wrong.push(format!(
                "Variable \"${name}\" of type \"{declared}\" used in position expecting type \"{}\".",
                kind.name()
            ));
        }
        // RunPod's own clients write the input of on-demand orders both ways; a nullable
        // variable where a value is required is what the specification forbids.
        if required && definition.var_type.node.nullable && definition.default_value.is_none() {
            wrong.push(format!(
                "Variable \"${name}\" may be null, and \"{place}\" may not."
            ));
        }
        match self.variables.get(name) {
            Some(value) => check_json(kind, value, place, wrong),
            None if !definition.var_type.node.nullable && definition.default_value.is_none() => {
                wrong.push(format!("Variable \"${name}\" of required type was not provided."));
            }
            None => {}
        }
    }
}

fn without_bangs(of: &Type) -> String {
    of.to_string().replace('!', "")
}

fn check_names<'a>(
    input: &Input,
    given: impl Iterator<Item = &'a str>,
    place: &str,
    wrong: &mut Vec<String>,
) {
    let given: Vec<&str> = given.collect();
    for name in &given {
        if !input.fields.iter().any(|(known, ..)| known == name) {
            wrong.push(format!(
                "Field \"{name}\" is not defined by type \"{}\" (at \"{place}\").",
                input.name
            ));
        }
    }
    for (name, kind, required) in input.fields {
        if *required && !given.contains(name) {
            wrong.push(format!(
                "Field \"{place}.{name}\" of required type \"{}!\" was not provided.",
                kind.name()
            ));
        }
    }
}

/// A value in JSON.
fn check_json(kind: Kind, value: &Value, place: &str, wrong: &mut Vec<String>) {
    let fits = match (kind, value) {
        (_, Value::Null)
        | (Kind::Text, Value::String(_))
        | (Kind::Float, Value::Number(_))
        | (Kind::Bool, Value::Bool(_)) => true,
        (Kind::Int, Value::Number(number)) => number
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        (Kind::Enum(_, names), Value::String(name)) => names.contains(&name.as_str()),
        (Kind::List(of), Value::Array(items)) => {
            for item in items {
                check_json(*of, item, place, wrong);
            }
            true
        }
        (Kind::Input(input), Value::Object(fields)) => {
            check_names(input, fields.keys().map(String::as_str), place, wrong);
            for (name, value) in fields {
                if let Some((_, kind, required)) = input.fields.iter().find(|(known, ..)| known == name) {
                    if *required && value.is_null() {
                        wrong.push(format!("\"{place}.{name}\" must not be null"));
                    }
                    check_json(*kind, value, &format!("{place}.{name}"), wrong);
                }
            }
            true
        }
        _ => false,
    };
    if !fits {
        wrong.push(format!(
            "{value} at \"{place}\" is no value of type \"{}\"",
            kind.name()
        ));
    }
}
