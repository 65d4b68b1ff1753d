//! The calls: which one a request is, and the request in the words of the description.

use std::borrow::Cow;

use http::header::{CONTENT_TYPE, HeaderValue};

use super::wire;
use crate::core::cloud::{Call, Effect};
use crate::core::http::Request;

/// All calls.
pub(super) const ALL: [Call; 32] = [
    Call::new("token", Effect::Read),
    Call::new("types.list", Effect::Read),
    Call::new("availability.list", Effect::Read),
    Call::new("availability.get", Effect::Read),
    Call::new("locations.list", Effect::Read),
    Call::new("images.list", Effect::Read),
    Call::new("balance.get", Effect::Read),
    Call::new("periods.list", Effect::Read),
    Call::new("instances.list", Effect::Read),
    Call::new("instances.create", Effect::Create),
    Call::new("instances.delete", Effect::Delete),
    Call::new("instances.action", Effect::Change),
    Call::new("instances.get", Effect::Read),
    Call::new("tags.add", Effect::Change),
    Call::new("tags.remove", Effect::Change),
    Call::new("keys.list", Effect::Read),
    Call::new("keys.create", Effect::Change),
    Call::new("keys.delete", Effect::Change),
    Call::new("keys.get", Effect::Read),
    Call::new("scripts.list", Effect::Read),
    Call::new("scripts.create", Effect::Change),
    Call::new("scripts.delete", Effect::Change),
    Call::new("scripts.get", Effect::Read),
    Call::new("volume-types.list", Effect::Read),
    Call::new("volumes.list", Effect::Read),
    Call::new("volumes.create", Effect::Change),
    Call::new("volumes.action", Effect::Change),
    Call::new("volumes.trash", Effect::Read),
    Call::new("volumes.get", Effect::Read),
    Call::new("volumes.delete", Effect::Change),
    Call::new("volume-tags.add", Effect::Change),
    Call::new("volume-tags.remove", Effect::Change),
];

/// What the description that Verda publishes has, and our transcript of it may lack. Our own
/// types check these; a transcript that has them does so as well.
const UNTRANSCRIBED: [&str; 6] = [
    "periods.list",
    "volume-types.list",
    "volumes.create",
    "volumes.action",
    "volume-tags.add",
    "volume-tags.remove",
];

/// Prefixes of paths that Verda has, and that renters of single instances do not need.
const OUTSIDE: [(&str, &str); 16] = [
    ("audit", "audit logs"),
    ("cluster-availability", "clusters"),
    ("cluster-types", "clusters"),
    ("clusters", "clusters"),
    ("container-deployment-templates", "serverless containers"),
    ("container-deployments", "serverless containers"),
    ("container-registry", "container registries"),
    ("container-registry-credentials", "container registries"),
    ("container-types", "serverless containers"),
    ("file-secrets", "serverless containers"),
    ("inference", "inference endpoints"),
    ("instance-groups", "groups of instances"),
    ("job-deployments", "serverless jobs"),
    ("journal", "journals"),
    ("managed-endpoints", "inference endpoints"),
    ("secrets", "serverless containers"),
];

/// Which call a request is.
pub(super) fn of(request: &Request) -> Option<Call> {
    let segments = request.segments();
    let parts: Vec<&str> = segments.iter().map(String::as_str).collect();
    let ["v1", rest @ ..] = parts.as_slice() else {
        return None;
    };
    let (name, effect) = match (request.method.as_str(), rest) {
        ("POST", ["oauth2", "token"]) => ("token", Effect::Read),
        ("GET", ["instance-types"]) => ("types.list", Effect::Read),
        ("GET", ["instance-availability"]) => ("availability.list", Effect::Read),
        ("GET", ["instance-availability", _]) => ("availability.get", Effect::Read),
        ("GET", ["locations"]) => ("locations.list", Effect::Read),
        ("GET", ["images"]) => ("images.list", Effect::Read),
        ("GET", ["balance"]) => ("balance.get", Effect::Read),
        ("GET", ["long-term", "periods"] | ["long-term", "periods", "instances" | "clusters"]) => {
            ("periods.list", Effect::Read)
        }
        ("GET", ["instances"]) => ("instances.list", Effect::Read),
        ("POST", ["instances"]) => ("instances.create", Effect::Create),
        ("PUT", ["instances"]) => match wire::action_of(request) {
            Some("delete" | "discontinue" | "delete_stuck") => ("instances.delete", Effect::Delete),
            _ => ("instances.action", Effect::Change),
        },
        ("GET", ["instances", _]) => ("instances.get", Effect::Read),
        ("POST", ["instances", _, "tags"]) => ("tags.add", Effect::Change),
        ("DELETE", ["instances", _, "tags", _]) => ("tags.remove", Effect::Change),
        ("GET", ["ssh-keys" | "sshkeys"]) => ("keys.list", Effect::Read),
        ("POST", ["ssh-keys" | "sshkeys"]) => ("keys.create", Effect::Change),
        ("DELETE", ["ssh-keys" | "sshkeys"] | ["ssh-keys" | "sshkeys", _]) => ("keys.delete", Effect::Change),
        ("GET", ["ssh-keys" | "sshkeys", _]) => ("keys.get", Effect::Read),
        ("GET", ["scripts"]) => ("scripts.list", Effect::Read),
        ("POST", ["scripts"]) => ("scripts.create", Effect::Change),
        ("DELETE", ["scripts"] | ["scripts", _]) => ("scripts.delete", Effect::Change),
        ("GET", ["scripts", _]) => ("scripts.get", Effect::Read),
        ("GET", ["volume-types"]) => ("volume-types.list", Effect::Read),
        ("GET", ["volumes"]) => ("volumes.list", Effect::Read),
        ("POST", ["volumes"]) => ("volumes.create", Effect::Change),
        ("PUT", ["volumes"]) => ("volumes.action", Effect::Change),
        ("GET", ["volumes", "trash"]) => ("volumes.trash", Effect::Read),
        ("GET", ["volumes", _]) => ("volumes.get", Effect::Read),
        ("DELETE", ["volumes", _]) => ("volumes.delete", Effect::Change),
        ("POST", ["volumes", _, "tags"]) => ("volume-tags.add", Effect::Change),
        ("DELETE", ["volumes", _, "tags", _]) => ("volume-tags.remove", Effect::Change),
        _ => return None,
    };
    Some(Call::new(name, effect))
}

/// The part of Verda that a request is about, where it is not simulated at all.
pub(super) fn outside(request: &Request) -> Option<&'static str> {
    let segments = request.segments();
    let [version, first, ..] = segments.as_slice() else {
        return None;
    };
    let known = OUTSIDE.iter().find(|(path, _)| version == "v1" && path == first);
    known.map(|(_, what)| *what)
}

/// Whether this is said of a call only because our transcript does not have it.
pub(super) fn is_untranscribed(call: &Call, what: &str) -> bool {
    UNTRANSCRIBED.contains(&call.name) && what.starts_with("the official description has no ")
}

/// A request in the words of the description, which lacks what Verda takes from its own clients:
/// the old alias of keys, parameters under old names, null for what is not given, and the
/// deletion of a volume without a body. The client for Go also sends `force` there.
pub(super) fn as_described(request: &Request) -> Cow<'_, Request> {
    let alias = request.path.strip_prefix("/v1/sshkeys");
    let call = of(request).map(|call| call.name).unwrap_or_default();
    let bare = call == "volumes.delete" && request.body.is_empty();
    let body = if bare {
        Some(b"{}".to_vec())
    } else {
        wire::without_nulls(&request.body)
    };
    let query: Vec<(String, String)> = request
        .query
        .iter()
        .filter(|(name, _)| !left_out(call, name))
        .map(|(name, value)| (renamed(name).to_owned(), value.clone()))
        .collect();
    if alias.is_none() && query == request.query && body.is_none() {
        return Cow::Borrowed(request);
    }
    let mut described = request.clone();
    if let Some(rest) = alias {
        described.path = format!("/v1/ssh-keys{rest}");
    }
    described.query = query;
    if let Some(body) = body {
        described.body = body.into();
    }
    if bare {
        let json = HeaderValue::from_static("application/json");
        described.headers.insert(CONTENT_TYPE, json);
    }
    Cow::Owned(described)
}

/// Parameters that our transcript leaves out.
fn left_out(call: &str, name: &str) -> bool {
    matches!(
        (call, name),
        ("volumes.delete", "force") | ("scripts.list", "name")
    )
}

/// A parameter under its name of today.
fn renamed(name: &str) -> &str {
    match name {
        "isSpot" => "is_spot",
        "locationCode" => "location_code",
        other => other,
    }
}
