//! Scripts of requests whose answers must be the same at a real API server and here.
//!
//! `exchanges.yaml` has the scripts, `recorded.json` what a real API server answered. In both,
//! what differs from run to run (namespace, UIDs, versions, times) has names instead: `uid1` is
//! the first UID that a script saw, `version2` its second version. A text `{step:/pointer}` in a
//! script is the value at that JSON pointer in the answer to an earlier step, and `{step:}` the
//! whole answer.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use http::{Request, header};
use http_body_util::BodyExt as _;
use kube::{Client, client::Body};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::resources::RESOURCES;

/// One script.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// What it shows, as a sentence.
    pub name: String,
    steps: Vec<Step>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    /// By which later steps name the answer.
    #[serde(default)]
    id: String,
    /// `METHOD plural/name/subresource?query`; `WATCH` collects the events of a second.
    call: String,
    /// The body, which a merge of `with` changes.
    #[serde(default)]
    body: Value,
    #[serde(default)]
    with: Value,
    /// How a PATCH is written: `json`, `merge` or `apply`.
    #[serde(default)]
    patch: String,
    /// Whether only metadata is asked for.
    #[serde(default)]
    metadata: bool,
}

/// The scripts.
pub fn all() -> Result<Vec<Exchange>> {
    serde_yaml::from_str(include_str!("exchanges.yaml")).context("reading exchanges.yaml")
}

/// What a real API server answered, by script.
pub fn recorded() -> Result<BTreeMap<String, Vec<Value>>> {
    serde_json::from_str(include_str!("recorded.json")).context("reading recorded.json")
}

/// Where they differ, in words: one line for each answer of a script.
pub fn differences(wanted: &[Value], found: &[Value]) -> Vec<String> {
    let mut differences = Vec::new();
    if wanted.len() != found.len() {
        differences.push(format!(
            "{} answers are recorded, and {} came",
            wanted.len(),
            found.len()
        ));
    }
    for (number, (wanted, found)) in wanted.iter().zip(found).enumerate() {
        if wanted != found {
            differences.push(format!(
                "step {}:\n  recorded {wanted}\n  here     {found}",
                number + 1
            ));
        }
    }
    differences
}

impl Exchange {
    /// Sends the requests of the script, and gives the answers with names for what varies.
    ///
    /// `namespace` must exist and have no objects; names of objects without a namespace begin
    /// with it, as `{ns}` in the script.
    pub async fn play(&self, client: &Client, namespace: &str) -> Result<Vec<Value>> {
        let mut answers = BTreeMap::new();
        let mut names = Names::default();
        let mut told = Vec::new();
        for step in &self.steps {
            let call = fill_text(&step.call, namespace, &answers);
            let mut body = fill(&step.body, namespace, &answers);
            crate::write::merge_if(&mut body, fill(&step.with, namespace, &answers));
            let answer = step
                .send(client, namespace, &call, &body)
                .await
                .with_context(|| format!("{:?}: {call}", self.name))?;
            answers.insert(step.id.clone(), answer["body"].clone());
            told.push(names.named(answer, namespace));
        }
        Ok(told)
    }
}

impl Step {
    async fn send(&self, client: &Client, namespace: &str, call: &str, body: &Value) -> Result<Value> {
        let (method, path) = call.split_once(' ').context("METHOD path")?;
        let is_watch = method == "WATCH";
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let (plural, rest) = path.split_once('/').unwrap_or((path, ""));
        let Some(resource) = RESOURCES.iter().find(|known| known.plural == plural) else {
            bail!("no resource is called {plural:?}");
        };
        let mut uri = format!("{}?{query}", resource.path(namespace, rest));
        if is_watch {
            uri.push_str("&watch=true&timeoutSeconds=1");
        }
        let request = Request::builder()
            .method(if is_watch { "GET" } else { method })
            .uri(uri)
            .header(
                header::ACCEPT,
                match (self.metadata, method) {
                    (false, _) => "application/json",
                    (true, "GET") if rest.is_empty() => {
                        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
                    }
                    (true, _) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                },
            )
            .header(
                header::CONTENT_TYPE,
                match self.patch.as_str() {
                    "json" => "application/json-patch+json",
                    "merge" => "application/merge-patch+json",
                    "apply" => "application/apply-patch+yaml",
                    _ => "application/json",
                },
            );
        let bytes = if body.is_null() {
            Vec::new()
        } else {
            body.to_string().into_bytes()
        };
        let response = client.send(request.body(Body::from(bytes))?).await?;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await?.to_bytes();
        let body = if is_watch && code == 200 {
            let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let events: Result<Vec<Value>, _> = lines.map(serde_json::from_slice).collect();
            let mut events = events?;
            events.retain(|event| event["type"] != "BOOKMARK");
            Value::Array(events)
        } else {
            serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into())
        };
        Ok(json!({ "code": code, "body": body }))
    }
}

type Answers = BTreeMap<String, Value>;

/// `text` with the answers that it names.
fn fill_text(text: &str, namespace: &str, answers: &Answers) -> String {
    let mut filled = text.replace("{ns}", namespace);
    while let Some((before, rest)) = filled.split_once('{') {
        let Some((name, after)) = rest.split_once('}') else {
            break;
        };
        let value = answered(name, answers);
        let value = value
            .as_str()
            .map_or_else(|| value.to_string(), ToOwned::to_owned);
        filled = format!("{before}{value}{after}");
    }
    filled
}

fn fill(value: &Value, namespace: &str, answers: &Answers) -> Value {
    match value {
        Value::String(text) => match text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')) {
            Some(name) if name != "ns" => answered(name, answers),
            _ => text.replace("{ns}", namespace).into(),
        },
        Value::Array(all) => all.iter().map(|value| fill(value, namespace, answers)).collect(),
        Value::Object(all) => {
            let filled = all
                .iter()
                .map(|(name, value)| (name.clone(), fill(value, namespace, answers)));
            Value::Object(filled.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

fn answered(name: &str, answers: &Answers) -> Value {
    let (step, pointer) = name.split_once(':').unwrap_or((name, ""));
    let answer = answers.get(step).expect("scripts name earlier steps");
    answer.pointer(pointer).cloned().unwrap_or(Value::Null)
}

/// What a script called each value that differs from run to run.
#[derive(Debug, Default)]
struct Names(Vec<(String, String)>);

impl Names {
    /// The answer with names for what varies.
    fn named(&mut self, mut answer: Value, namespace: &str) -> Value {
        self.collect(&answer);
        replace(&mut answer, &|text| {
            let mut named = text.to_owned();
            let mut known: Vec<_> = self.0.iter().collect();
            // The longest first: a token may have a version in it.
            known.sort_by_key(|(value, _)| std::cmp::Reverse(value.len()));
            for (value, name) in known {
                named = whole_words(&named, value, name);
            }
            named.replace(namespace, "ns")
        });
        answer
    }

    fn learn(&mut self, kind: &str, value: &str) {
        if !value.is_empty() && self.0.iter().all(|(known, _)| known != value) {
            let number = self.0.iter().filter(|(_, name)| name.starts_with(kind)).count() + 1;
            self.0.push((value.to_owned(), format!("{kind}{number}")));
        }
    }

    fn collect(&mut self, value: &Value) {
        match value {
            Value::Array(all) => all.iter().for_each(|value| self.collect(value)),
            Value::Object(all) => {
                let is_list = all.contains_key("items");
                for (name, value) in all {
                    if is_list && name == "metadata" {
                        // The version of a list is that of the newest write to the whole cluster.
                        self.learn("page", value["continue"].as_str().unwrap_or_default());
                        continue;
                    }
                    match (name.as_str(), value.as_str()) {
                        ("uid", Some(text)) => self.learn("uid", text),
                        ("resourceVersion", Some(text)) => self.learn("version", text),
                        ("creationTimestamp" | "deletionTimestamp", Some(text)) => self.learn("time", text),
                        _ => self.collect(value),
                    }
                }
            }
            _ => {}
        }
    }
}

/// Replaces `value` in a text where it stands as a word of its own.
fn whole_words(text: &str, value: &str, name: &str) -> String {
    let is_part = |character: char| character.is_ascii_alphanumeric();
    let mut replaced = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(value) {
        let (before, after) = (&rest[..at], &rest[at + value.len()..]);
        replaced.push_str(before);
        let stands_alone = !before.ends_with(is_part) && !after.starts_with(is_part);
        replaced.push_str(if stands_alone { name } else { value });
        rest = after;
    }
    replaced.push_str(rest);
    replaced
}

/// Replaces texts, and drops what neither clients nor this server look at.
fn replace(value: &mut Value, named: &impl Fn(&str) -> String) {
    match value {
        Value::String(text) => *text = named(text),
        Value::Array(all) => all.iter_mut().for_each(|value| replace(value, named)),
        Value::Object(all) => {
            all.remove("managedFields");
            if all.contains_key("items") {
                let listed = all.get_mut("metadata").and_then(Value::as_object_mut);
                listed.map(|meta| meta.insert("resourceVersion".into(), "listed".into()));
            }
            for (name, value) in all.iter_mut() {
                if name.ends_with("Timestamp") && value.is_string() {
                    // Two writes of one second have the same time, so it has no number.
                    *value = "time".into();
                } else {
                    replace(value, named);
                }
            }
        }
        _ => {}
    }
}
