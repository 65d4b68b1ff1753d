//! RunPod's GraphQL: a query is parsed, checked against the types of `schema.rs`, carried out
//! field by field, and answered with what it selects.
//!
//! Errors that the schema does not allow are HTTP 400; refusals are HTTP 200 with `errors`.

mod answers;
mod catalogue;
mod check;
mod input;
mod inputs;
mod orders;
mod schema;
mod things;

use async_graphql_parser::types::{Field, OperationType, Selection, SelectionSet};
use async_graphql_value::Value as Given;
use serde_json::{Map, Value, json};

use self::check::{Query, parse};
use super::{LEFT_OUT, Runpod, calls, cpus};
use crate::core::cloud::{Call, Refusal, Visit};
use crate::core::http::{Answer, Request};

/// Fields that are about serverless, which is left out.
const SERVERLESS: [&str; 6] = [
    "endpoints",
    "endpoint",
    "saveEndpoint",
    "deleteEndpoint",
    "updateEndpointTemplate",
    "serverlessGpuPools",
];

/// Whether a request is one of GraphQL.
pub(super) fn is_meant(request: &Request) -> bool {
    request.method == http::Method::POST && request.path.trim_matches('/') == "graphql"
}

/// Which call it is: by its first field; none where it is about serverless.
pub(super) fn call(request: &Request) -> Option<Call> {
    let Ok(query) = parse(request) else {
        return Some(calls::graphql(""));
    };
    if query.fields().any(is_serverless) {
        return None;
    }
    let first = query.fields().next().map(|field| field.name.node.as_str());
    Some(calls::graphql(first.unwrap_or_default()))
}

fn is_serverless(field: &Field) -> bool {
    let inner = field.selection_set.node.items.iter();
    SERVERLESS.contains(&field.name.node.as_str())
        || inner
            .filter_map(|item| match &item.node {
                Selection::Field(field) => Some(&field.node),
                Selection::FragmentSpread(_) | Selection::InlineFragment(_) => None,
            })
            .any(is_serverless)
}

/// The answer to a client that asks for that.
pub(super) fn left_out() -> Answer {
    let error = json!({"message": LEFT_OUT, "extensions": {"code": "NOT_IMPLEMENTED"}});
    Answer::json(501, &json!({"errors": [error]}))
}

/// Whether a request asks for the catalogue alone. Makers of price lists ask without a key.
pub(super) fn is_public(request: &Request) -> bool {
    const CATALOGUE: [&str; 4] = ["countryCodes", "cpuFlavors", "dataCenters", "gpuTypes"];
    parse(request).is_ok_and(|query| {
        query.operation().ty == OperationType::Query
            && query
                .fields()
                .all(|field| CATALOGUE.contains(&field.name.node.as_str()))
    })
}

/// What the schema does not allow in a request.
pub(super) fn check(request: &Request) -> Vec<String> {
    match parse(request) {
        Ok(query) => query.check(),
        Err(error) => vec![error],
    }
}

/// An error, with the code that clients look at.
fn errors(field: &str, message: &str, code: &str) -> Answer {
    let error = json!({"message": message, "path": [field], "extensions": {"code": code}});
    Answer::json(200, &json!({"errors": [error], "data": {field: null}}))
}

/// A refusal in the words of GraphQL.
pub(super) fn refuse(refusal: &Refusal, call: &str) -> Answer {
    let field = call.strip_prefix("graphql.").unwrap_or("data");
    let errors = |message: &str, code: &str| errors(field, message, code);
    let plain = |status: u16, message: &str| Answer::json(status, &json!({"errors": [{"message": message}]}));
    match refusal {
        Refusal::TooMany { retry_after } => {
            plain(429, "Too many requests").with("retry-after", retry_after.unwrap_or(1).to_string())
        }
        Refusal::Server(status) => Answer::new(*status, "text/html", "<html>upstream error</html>"),
        Refusal::NoCapacity => errors(
            "There are no longer any instances available with the requested specifications. Please refresh and try again.",
            "SUPPLY_CONSTRAINT",
        ),
        Refusal::Quota(what) => errors(&format!("You have reached your limit of {what}"), "BAD_REQUEST"),
        Refusal::Funds => errors("Your account balance is too low to rent this pod", "BAD_REQUEST"),
        Refusal::Unauthorized | Refusal::Expired => plain(401, "Unauthorized"),
        Refusal::Forbidden => errors("You do not have permission to do this", "FORBIDDEN"),
        Refusal::Invalid(what) => {
            let all: Vec<Value> = what
                .iter()
                .map(|what| json!({"message": what, "extensions": {"code": "GRAPHQL_VALIDATION_FAILED"}}))
                .collect();
            Answer::json(400, &json!({ "errors": all }))
        }
        Refusal::Bad(what) => errors(what, "BAD_REQUEST"),
        Refusal::NotFound(what) => errors(what, "NOT_FOUND"),
        Refusal::UnknownCall => plain(400, "Cannot query this field"),
        Refusal::Answer(answer) => answer.clone(),
    }
}

impl Runpod {
    pub(super) fn answer_graphql(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let query = parse(visit.request).map_err(|error| Refusal::Invalid(vec![error]))?;
        let mut data = Map::new();
        for field in query.fields() {
            let value = match self.carry_out(visit, &query, field) {
                // Clients have met the lack of a machine with a code and without one.
                Err(Refusal::NoCapacity) if visit.world.chance.hits(0.5) => {
                    let message = "There are no longer any instances available with enough disk space.";
                    return Ok(Answer::json(
                        200,
                        &json!({"errors": [{"message": message}], "data": null}),
                    ));
                }
                result => result?,
            };
            data.insert(key(field), value);
        }
        Ok(Answer::json(200, &json!({ "data": data })))
    }

    fn carry_out(&mut self, visit: &mut Visit<'_>, query: &Query, field: &Field) -> Result<Value, Refusal> {
        let input = query.argument(field, "input");
        let text = |name: &str| match query.argument(field, name) {
            Value::String(text) => text,
            _ => String::new(),
        };
        let mutates = query.operation().ty == OperationType::Mutation;
        let value = match (mutates, field.name.node.as_str()) {
            (false, "gpuTypes") => catalogue::gpu_types(visit, &input),
            (false, "cpuFlavors") => cpus::flavors(visit.world, &input),
            (false, "myself") => self.myself(visit),
            (false, "dataCenters") => catalogue::data_centers(visit),
            (false, "countryCodes") => catalogue::country_codes(),
            (false, "pod") => self.one_pod(visit, &input),
            (false, "podTemplates") => self.shared_templates(&input),
            (false, "podTemplate") => self.one_template(visit, &text("id")),
            (true, "podFindAndDeployOnDemand") => self.deploy(visit, &input, false)?,
            (true, "podRentInterruptable") => self.deploy(visit, &input, true)?,
            (true, "deployCpuPod") => self.deploy_cpu(visit, &input)?,
            (true, "podStop") => self.stop_by_graphql(visit, &input)?,
            (true, "podResume") => self.resume_by_graphql(visit, &input)?,
            (true, "podBidResume") => self.bid_resume(visit, &input)?,
            (true, "podEditJob") => self.edit_by_graphql(visit, &input)?,
            (true, "podTerminate") => self.terminate_by_graphql(visit, &input)?,
            (true, "createCluster") => self.create_cluster_by_graphql(visit, &input)?,
            (true, "deleteCluster") => self.delete_cluster_by_graphql(visit, &input)?,
            (true, "saveTemplate") => self.save_by_graphql(visit, &input)?,
            (true, "deleteTemplate") => self.delete_template_by_name(visit, &text("templateName"))?,
            (true, "saveRegistryAuth") => self.save_registry(visit, &input)?,
            (true, "updateRegistryAuth") => self.change_registry(visit, &input)?,
            (true, "deleteRegistryAuth") => {
                self.forget_registry(visit, &text("registryAuthId"))?;
                Value::Null
            }
            (true, "createNetworkVolume") => things::create_volume(visit, &input)?,
            (true, "updateNetworkVolume") => things::update_volume(visit, &input)?,
            (true, "deleteNetworkVolume") => self.delete_volume_by_graphql(visit, &input)?,
            (true, "updateUserSettings") => self.update_settings(visit, &input),
            _ => return Err(Refusal::UnknownCall),
        };
        Ok(select(visit, query, &value, &field.selection_set.node))
    }
}

/// The name under which a field is answered.
fn key(field: &Field) -> String {
    field.alias.as_ref().unwrap_or(&field.name).node.to_string()
}

/// What a query selects of a value.
fn select(visit: &Visit<'_>, query: &Query, value: &Value, selection: &SelectionSet) -> Value {
    if selection.items.is_empty() {
        return value.clone();
    }
    match value {
        Value::Array(items) => items
            .iter()
            .map(|item| select(visit, query, item, selection))
            .collect(),
        Value::Object(fields) => {
            let mut out = Map::new();
            for item in &selection.items {
                let Selection::Field(field) = &item.node else {
                    continue;
                };
                let field = &field.node;
                let name = field.name.node.as_str();
                let inner = match name {
                    // The two fields that take arguments.
                    "lowestPrice" => catalogue::lowest_price(visit, fields, &query.argument(field, "input")),
                    "specifics" => {
                        let flavor = fields.get("id").and_then(Value::as_str).unwrap_or_default();
                        cpus::specifics(visit.world, flavor, &query.argument(field, "input"))
                    }
                    "__typename" => Value::from("Object"),
                    name => fields.get(name).cloned().unwrap_or(Value::Null),
                };
                out.insert(
                    key(field),
                    select(visit, query, &inner, &field.selection_set.node),
                );
            }
            Value::Object(out)
        }
        other => other.clone(),
    }
}

/// A value of a query as JSON, its variables filled in.
fn plain(given: &Given, variables: &Map<String, Value>) -> Value {
    match given {
        Given::Variable(name) => variables.get(name.as_str()).cloned().unwrap_or(Value::Null),
        Given::Null | Given::Binary(_) => Value::Null,
        Given::Number(number) => Value::Number(number.clone()),
        Given::String(text) => Value::from(text.clone()),
        Given::Boolean(value) => Value::Bool(*value),
        Given::Enum(name) => Value::from(name.to_string()),
        Given::List(items) => items.iter().map(|item| plain(item, variables)).collect(),
        Given::Object(fields) => Value::Object(
            fields
                .iter()
                .map(|(name, item)| (name.to_string(), plain(item, variables)))
                .collect(),
        ),
    }
}
