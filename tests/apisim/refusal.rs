//! The API server's words for a refusal: a `Status` object with its HTTP code.

use serde_json::{Value, json};

use crate::resources::Resource;

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    pub(crate) status: Value,
}

fn status(code: u16, reason: Option<&str>, message: &str, details: Value) -> Refusal {
    let mut status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": "Failure", "message": message, "code": code,
    });
    if let Some(reason) = reason {
        status["reason"] = reason.into();
    }
    if !details.is_null() {
        status["details"] = details;
    }
    Refusal { code, status }
}

fn about(resource: &Resource, name: &str) -> Value {
    let mut details = json!({ "name": name, "kind": resource.plural });
    if !resource.group.is_empty() {
        details["group"] = resource.group.into();
    }
    details
}

pub(crate) fn not_found(resource: &Resource, name: &str) -> Refusal {
    let message = format!("{} {name:?} not found", resource.words());
    status(404, Some("NotFound"), &message, about(resource, name))
}

pub(crate) fn no_such_path() -> Refusal {
    let message = "the server could not find the requested resource";
    status(404, Some("NotFound"), message, json!({}))
}

pub(crate) fn already_exists(resource: &Resource, name: &str, is_going: bool) -> Refusal {
    let going = if is_going { "object is being deleted: " } else { "" };
    let message = format!("{going}{} {name:?} already exists", resource.words());
    status(409, Some("AlreadyExists"), &message, about(resource, name))
}

fn conflict(resource: &Resource, name: &str, why: &str) -> Refusal {
    let message = format!(
        "Operation cannot be fulfilled on {} {name:?}: {why}",
        resource.words()
    );
    status(409, Some("Conflict"), &message, about(resource, name))
}

pub(crate) fn stale(resource: &Resource, name: &str) -> Refusal {
    let why = "the object has been modified; please apply your changes to the latest version and try again";
    conflict(resource, name, why)
}

/// A deletion of another object than its precondition names, or of another version.
pub(crate) fn precondition(
    resource: &Resource,
    name: &str,
    what: &str,
    wanted: &str,
    found: &str,
) -> Refusal {
    let perhaps = match what {
        "UID" => "deleted and then recreated",
        _ => "modified",
    };
    let message = format!(
        "Operation cannot be fulfilled on {} {name:?}: the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been {perhaps}",
        resource.kind_words()
    );
    let mut details = about(resource, name);
    details["kind"] = resource.kind.into();
    status(409, Some("Conflict"), &message, details)
}

/// A replacement that was made from another object of the name; `key` is that of [`crate::server::Id`].
pub(crate) fn other_uid(resource: &Resource, name: &str, key: &str, wanted: &str, found: &str) -> Refusal {
    let group = match resource.group {
        "" => String::new(),
        group => format!("{group}/"),
    };
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{group}{}/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}",
        resource.plural
    );
    conflict(resource, name, &why)
}

/// A field that is not as it must be.
pub(crate) fn invalid(resource: &Resource, name: &str, field: &str, reason: &str, why: &str) -> Refusal {
    // Custom resources are validated by two parts of the API server.
    let (words, kind, times) = match (resource.is_ours(), field) {
        (_, "metadata.resourceVersion") => (resource.words(), resource.plural, 1),
        (true, "metadata.uid" | "metadata.finalizers") => (resource.kind_words(), resource.kind, 2),
        _ => (resource.kind_words(), resource.kind, 1),
    };
    let message = format!("{words} {name:?} is invalid: {field}: {why}");
    let mut details = about(resource, name);
    details["kind"] = kind.into();
    let cause = json!({ "reason": reason, "message": why, "field": field });
    details["causes"] = vec![cause; times].into();
    status(422, Some("Invalid"), &message, details)
}

pub(crate) fn bad_request(message: &str) -> Refusal {
    status(400, Some("BadRequest"), message, Value::Null)
}

/// A JSON patch whose test fails, or that names what is not there.
pub(crate) fn unprocessable() -> Refusal {
    let message = "the server rejected our request due to an error in our request";
    status(422, Some("Invalid"), message, json!({}))
}

pub(crate) fn internal(message: &str) -> Refusal {
    status(500, None, message, Value::Null)
}

/// What the history does not hold any more.
pub(crate) fn expired(message: &str) -> Refusal {
    status(410, Some("Expired"), message, Value::Null)
}

/// An answer that a [`crate::Network`] gives instead of the server's.
pub(crate) fn unavailable(code: u16) -> Refusal {
    status(code, None, "the network of the simulation refuses", Value::Null)
}
