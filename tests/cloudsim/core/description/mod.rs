//! Requests and answers against the official OpenAPI description of a cloud.
//!
//! The files are those of the folder that `SKYWARD_SPECS` names; they are read when a cloud is
//! made and are no part of this project. Requests are checked strictly: a property that no
//! schema names is a violation, because a client that sends it is wrong about the API.

mod parameter;
mod schema;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jsonschema::Validator;
use parking_lot::Mutex;
use serde_json::{Value, json};

use self::parameter::{Parameter, Place};
use self::schema::{compile, resolve};
use crate::core::http::{Answer, Request};
use crate::core::sim::say_that_descriptions_are_missing;

/// The descriptions that were read.
static KNOWN: Mutex<BTreeMap<PathBuf, Arc<Description>>> = Mutex::new(BTreeMap::new());

/// An official description, ready to check against.
#[derive(Debug)]
pub struct Description {
    /// The path of its first server's address, which the paths of its calls lack.
    prefix: String,
    operations: Vec<Operation>,
}

/// A content type, with the schema of what has it.
type Media = (String, Option<Validator>);

#[derive(Debug)]
struct Operation {
    method: String,
    path: Vec<String>,
    parameters: Vec<Parameter>,
    body: Option<Body>,
    /// By status.
    answers: Vec<(String, Vec<Media>)>,
}

#[derive(Debug)]
struct Body {
    required: bool,
    types: Vec<(String, Validator)>,
}

/// The folder of official descriptions, or nothing where the environment names none. A
/// relative one is meant from the root of the repository, while tests run in their crate.
pub fn folder() -> Option<PathBuf> {
    let named = PathBuf::from(std::env::var_os("SKYWARD_SPECS").filter(|folder| !folder.is_empty())?);
    if named.is_absolute() || named.is_dir() {
        return Some(named);
    }
    Some(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(named))
}

impl Description {
    /// The description in a file of the folder that `SKYWARD_SPECS` names; `None` where that
    /// is not set. A file that cannot be read is an error: silence would test nothing.
    ///
    /// # Panics
    /// When the folder is named and the description in it cannot be used.
    #[expect(clippy::panic, reason = "a test that means to check and cannot must fail")]
    pub fn load(file: &str) -> Option<Arc<Self>> {
        let Some(folder) = folder() else {
            say_that_descriptions_are_missing();
            return None;
        };
        let path = folder.join(file);
        // Compiling one takes a while, and a campaign makes thousands of clouds.
        let mut known = KNOWN.lock();
        if let Some(description) = known.get(&path) {
            return Some(description.clone());
        }
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string());
        match text.and_then(|text| Self::parse(&text)) {
            Ok(description) => {
                let description = Arc::new(description);
                known.insert(path, description.clone());
                Some(description)
            }
            Err(error) => panic!("the description {} cannot be used: {error}", path.display()),
        }
    }

    /// A description in JSON or YAML.
    pub fn parse(text: &str) -> Result<Self, String> {
        let root: Value = if text.trim_start().starts_with('{') {
            serde_json::from_str(text).map_err(|error| error.to_string())?
        } else {
            serde_yaml::from_str(text).map_err(|error| error.to_string())?
        };
        let mut operations = Vec::new();
        let paths = root
            .get("paths")
            .and_then(Value::as_object)
            .ok_or("it has no paths")?;
        for (path, item) in paths {
            let item = resolve(&root, item);
            let shared = item
                .get("parameters")
                .and_then(Value::as_array)
                .cloned()
                .unwrap_or_default();
            for method in ["get", "put", "post", "delete", "patch", "head"] {
                if let Some(operation) = item.get(method) {
                    let operation = Operation::parse(&root, method, path, operation, &shared)
                        .map_err(|error| format!("{method} {path}: {error}"))?;
                    operations.push(operation);
                }
            }
        }
        let server = root.pointer("/servers/0/url").and_then(Value::as_str);
        let prefix = server
            .and_then(|url| url.parse::<http::Uri>().ok())
            .map(|url| url.path().trim_end_matches('/').to_owned());
        Ok(Self {
            prefix: prefix.unwrap_or_default(),
            operations,
        })
    }

    /// Method and path of each call that is described.
    #[cfg(test)]
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&str, String)> {
        let calls = self.operations.iter();
        calls.map(|operation| {
            let path = format!("{}/{}", self.prefix, operation.path.join("/"));
            (operation.method.as_str(), path)
        })
    }

    /// What is wrong with a request; empty when it is allowed.
    pub fn check(&self, request: &Request) -> Vec<String> {
        match self.operation(request) {
            Some(operation) => operation.check(request),
            None => vec![format!(
                "the official description has no {} {}",
                request.method, request.path
            )],
        }
    }

    /// What is wrong with an answer of ours.
    pub fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        self.operation(request)
            .map(|operation| operation.check_answer(answer))
            .unwrap_or_default()
    }

    fn operation(&self, request: &Request) -> Option<&Operation> {
        let path = request.path.strip_prefix(&self.prefix)?;
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let fits = |operation: &&Operation| {
            operation.method.eq_ignore_ascii_case(request.method.as_str())
                && operation.path.len() == parts.len()
                && operation
                    .path
                    .iter()
                    .zip(&parts)
                    .all(|(template, part)| template.starts_with('{') || template == part)
        };
        // `/volumes/trash` is no volume with the id "trash": the path with fewer holes wins.
        self.operations
            .iter()
            .filter(fits)
            .min_by_key(|operation| operation.path.iter().filter(|part| part.starts_with('{')).count())
    }
}

impl Operation {
    fn parse(
        root: &Value,
        method: &str,
        path: &str,
        operation: &Value,
        shared: &[Value],
    ) -> Result<Self, String> {
        let own = operation
            .get("parameters")
            .and_then(Value::as_array)
            .cloned()
            .unwrap_or_default();
        let parameters = shared
            .iter()
            .chain(&own)
            .filter_map(|parameter| Parameter::parse(root, resolve(root, parameter)).transpose())
            .collect::<Result<_, _>>()?;
        let body = match operation.get("requestBody").map(|body| resolve(root, body)) {
            Some(body) => {
                let mut types = Vec::new();
                for (name, media) in body
                    .get("content")
                    .and_then(Value::as_object)
                    .into_iter()
                    .flatten()
                {
                    let schema = media.get("schema").cloned().unwrap_or_else(|| json!({}));
                    types.push((name.clone(), compile(root, &schema, true)?));
                }
                Some(Body {
                    required: body.get("required") == Some(&Value::Bool(true)),
                    types,
                })
            }
            None => None,
        };
        let mut answers = Vec::new();
        for (status, answer) in operation
            .get("responses")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            let mut types = Vec::new();
            for (name, media) in resolve(root, answer)
                .get("content")
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
            {
                let schema = media
                    .get("schema")
                    .map(|schema| compile(root, schema, false))
                    .transpose()?;
                types.push((name.clone(), schema));
            }
            answers.push((status.clone(), types));
        }
        Ok(Self {
            method: method.to_owned(),
            path: path.trim_matches('/').split('/').map(str::to_owned).collect(),
            parameters,
            body,
            answers,
        })
    }

    fn check(&self, request: &Request) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, _) in &request.query {
            if !self
                .parameters
                .iter()
                .any(|parameter| parameter.place == Place::Query && parameter.name == *name)
            {
                wrong.push(format!(
                    "the query parameter {name:?} is not in the official description"
                ));
            }
        }
        for parameter in &self.parameters {
            wrong.extend(parameter.check(request, &self.path));
        }
        match &self.body {
            Some(body) => wrong.extend(body.check(request)),
            None if !request.body.is_empty() && request.body.as_ref() != b"{}" => {
                wrong.push("this call takes no body".to_owned());
            }
            None => {}
        }
        wrong
    }

    fn check_answer(&self, answer: &Answer) -> Vec<String> {
        let status = answer.status.to_string();
        let class = format!("{}XX", &status[..1]);
        let described = [status.as_str(), class.as_str(), "default"]
            .iter()
            .find_map(|name| self.answers.iter().find(|(status, _)| status == name));
        let Some((_, types)) = described else {
            // 5xx come from what stands before an API; descriptions rarely list them.
            return if answer.status >= 500 {
                Vec::new()
            } else {
                vec![format!("status {status} is not in the official description")]
            };
        };
        let given = answer.header("content-type").unwrap_or_default();
        let Some((_, Some(schema))) = types.iter().find(|(name, _)| given.starts_with(name.as_str())) else {
            return Vec::new();
        };
        match serde_json::from_slice::<Value>(&answer.body) {
            Ok(body) => complaints(schema, &body, "the answer"),
            Err(error) => vec![format!("the answer is not JSON: {error}")],
        }
    }
}

impl Body {
    fn check(&self, request: &Request) -> Vec<String> {
        if request.body.is_empty() {
            return if self.required {
                vec!["this call needs a body".to_owned()]
            } else {
                Vec::new()
            };
        }
        let given = request.header("content-type").unwrap_or_default();
        let given = given.split(';').next().unwrap_or_default().trim();
        let Some((_, schema)) = self.types.iter().find(|(name, _)| name == given) else {
            let allowed: Vec<&str> = self.types.iter().map(|(name, _)| name.as_str()).collect();
            return vec![format!(
                "the body has the content type {given:?}; the official description has {allowed:?}"
            )];
        };
        if given.starts_with("text/") {
            let text = Value::from(String::from_utf8_lossy(&request.body));
            return complaints(schema, &text, "the body");
        }
        match request.json() {
            Ok(body) => complaints(schema, &body, "the body"),
            Err(error) => vec![error],
        }
    }
}

fn complaints(schema: &Validator, value: &Value, what: &str) -> Vec<String> {
    schema
        .iter_errors(value)
        .map(|error| {
            let place = error.instance_path().to_string();
            format!(
                "{what}{}{place}: {error}",
                if place.is_empty() { "" } else { " at " }
            )
        })
        .collect()
}
