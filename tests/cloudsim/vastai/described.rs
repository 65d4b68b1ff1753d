//! Requests against the descriptions, less what the service takes from its own clients.
//!
//! Calls that no file describes are of the service's own client: what of them is like a described
//! call is checked as that, and the rest has the members that the client gives.

use http::Method;
use serde_json::{Map, Value, json};

use super::calls::{self, Described};
use super::{Vastai, filter};
use crate::core::cloud::Call;
use crate::core::description::Description;
use crate::core::http::Request;

/// How an instance runs in the words of the service's own client, and in those of the description.
const RUN_TYPES: [(&str, &str); 3] = [
    ("ssh_direc ssh_proxy", "ssh_direct"),
    ("jupyter_direc ssh_direc ssh_proxy", "jupyter_direct"),
    ("jupyter_proxy ssh_proxy", "jupyter_proxy"),
];

impl Vastai {
    pub(super) fn description(&self, described: Described) -> Option<&Description> {
        match described {
            Described::Corrected => self.corrected.as_deref(),
            Described::Official => self.official.as_deref(),
            Described::Used => None,
        }
    }

    /// The parts of a request that no description has, as texts.
    pub(super) fn undescribed(&self, request: &Request, call: &Call) -> Vec<String> {
        let Some((_, described, _)) = calls::of(request) else {
            return Vec::new();
        };
        if described == Described::Used {
            return self.unused(request, call);
        }
        let Some(description) = self.description(described) else {
            return Vec::new();
        };
        let mut request = request.clone();
        request
            .query
            .retain(|(name, value)| !of_the_client(call.name, name, value));
        let mut wrong = Vec::new();
        if let Ok(Value::Object(mut body)) = request.json() {
            if self.lenient && call.name == "instances.create" {
                return Vec::new();
            }
            reword(&request, call.name, &mut body, &mut wrong);
            request.body = Value::Object(body).to_string().into();
        }
        if call.name == "volumes.delete" {
            request.query.retain(|(name, _)| name != "id");
        }
        wrong.extend(description.check(&request));
        wrong
    }

    /// What the service's own client does not give in a call that nobody describes.
    fn unused(&self, request: &Request, call: &Call) -> Vec<String> {
        let mut body = match request.json() {
            Ok(Value::Object(body)) => body,
            _ if request.method == Method::GET => return Vec::new(),
            _ => return vec!["the body is no object".to_owned()],
        };
        let mut wrong = Vec::new();
        let mut like = |method: Method, path: &str, body: Map<String, Value>| {
            let mut other = request.clone();
            other.method = method;
            path.clone_into(&mut other.path);
            other.query.clear();
            other.body = Value::Object(body).to_string().into();
            if let Some((call, ..)) = calls::of(&other) {
                wrong.extend(self.undescribed(&other, &call));
            }
        };
        let query = body.get("q").and_then(Value::as_object).cloned();
        let known: &[&str] = match call.name {
            "offers.search-new" => {
                like(Method::POST, "/api/v0/bundles/", query.unwrap_or_default());
                &["select_cols", "q"]
            }
            "instances.launch" => {
                like(Method::POST, "/api/v0/bundles/", query.unwrap_or_default());
                body.remove("q");
                like(Method::PUT, "/api/v0/asks/1/", std::mem::take(&mut body));
                &[]
            }
            "instances.create-many" => {
                body.remove("ids");
                like(Method::PUT, "/api/v0/asks/1/", std::mem::take(&mut body));
                &[]
            }
            "instances.change-many" => {
                body.remove("ids");
                like(Method::PUT, "/api/v0/instances/1/", std::mem::take(&mut body));
                &[]
            }
            "templates.replace" => {
                body.remove("id");
                like(Method::POST, "/api/v0/template/", std::mem::take(&mut body));
                &[]
            }
            "copies.local" => {
                like(
                    Method::PUT,
                    "/api/v0/commands/copy_direct/",
                    std::mem::take(&mut body),
                );
                &[]
            }
            "instances.delete-many" => &["instance_ids"],
            "volumes.copy" => &["src_id", "dst_id", "size", "disable_compression"],
            _ => &[],
        };
        let unknown = body.keys().filter(|name| !known.contains(&name.as_str()));
        wrong.extend(unknown.map(|name| format!("no client of the service gives {name:?} here")));
        wrong
    }
}

/// Parameters by which the service's own client names the owner of objects; no description has
/// them.
fn of_the_client(call: &str, name: &str, value: &str) -> bool {
    let whose = matches!(
        call,
        "instances.get" | "deposits.get" | "addresses.list" | "volumes.list"
    );
    let kind = call == "volumes.list" && name == "type" && value.ends_with("_volume");
    (whose && name == "owner" && value == "me") || kind
}

/// Changes a body into the words of the description. What is null is not there: the service's
/// own client sends all it has.
fn reword(request: &Request, call: &str, body: &mut Map<String, Value>, wrong: &mut Vec<String>) {
    match call {
        "instances.create" => {
            body.retain(|_, value| !value.is_null());
            if let Some(Value::String(kind)) = body.get_mut("runtype")
                && let Some((_, plain)) = RUN_TYPES.iter().find(|(own, _)| *own == kind.as_str())
            {
                (*plain).clone_into(kind);
            }
            // By the text of the description a template has an image, by its schema each order.
            if body.contains_key("template_hash_id") {
                body.entry("image").or_insert_with(|| json!("of the template"));
            }
            if let Some(Value::Object(volume)) = body.get_mut("volume_info") {
                volume.remove("name");
            }
        }
        // It says in the body, too, which key it changes.
        "keys.change" => {
            body.remove("id");
        }
        "offers.search" => filters(body, wrong),
        "volumes.search" => {
            // Only the limit is described; the rest is as in a search of offers.
            filters(body, wrong);
            body.retain(|name, value| {
                name == "limit" || !(value.is_object() || filter::PLAIN.contains(&name.as_str()))
            });
        }
        "volumes.rent" => {
            body.remove("name");
        }
        "volumes.delete" => {
            let id = request.parameter("id").and_then(|text| text.parse::<i64>().ok());
            if let (true, Some(id)) = (body.is_empty(), id) {
                body.insert("id".to_owned(), json!(id));
            }
        }
        "templates.create" => {
            body.retain(|name, value| !value.is_null() && name != "readme_visible");
        }
        "templates.delete" if body.remove("hash_id").is_some() => {
            body.entry("template_id").or_insert_with(|| json!(0));
        }
        "copies.start" | "copies.cancel" | "syncs.cancel" => {
            body.retain(|name, value| !value.is_null() && name != "client_id");
            let number = body.get("dst_id").and_then(Value::as_str);
            if let ("syncs.cancel", Some(id)) = (call, number.and_then(|text| text.parse::<i64>().ok())) {
                body.insert("dst_id".to_owned(), json!(id));
            }
        }
        _ => {}
    }
}

/// The schema of a field lists some operators, the text above it all of them: operators are
/// checked here, fields and plain members by the schema.
fn filters(body: &mut Map<String, Value>, wrong: &mut Vec<String>) {
    for (name, value) in body {
        if filter::PLAIN.contains(&name.as_str()) || !value.is_object() {
            continue;
        }
        let filters = Map::from_iter([(name.clone(), value.take())]);
        wrong.extend(filter::matches(&Map::new(), &filters).err());
        *value = json!({});
    }
}
