//! The discovery documents for the API server and kubectl.

use serde_json::{Value, json};

use crate::{GROUP, VERSION};

fn group() -> Value {
    let version = json!({ "groupVersion": format!("{GROUP}/{VERSION}"), "version": VERSION });
    json!({ "name": GROUP, "versions": [version], "preferredVersion": version })
}

/// `/apis`
pub(crate) fn groups() -> Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })
}

/// `/apis/subresources.skyward.dev`
pub(crate) fn this_group() -> Value {
    let mut value = group();
    value["kind"] = json!("APIGroup");
    value["apiVersion"] = json!("v1");
    value
}

/// `/apis/subresources.skyward.dev/v1alpha1`
pub(crate) fn resources() -> Value {
    let resource = |name: &str, kind: &str, verbs: &[&str]| json!({ "name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": verbs });
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": [
            resource("bundles", "Bundle", &["get", "update"]),
            resource("machines/log", "MachineLog", &["get"]),
            resource("tasks/log", "TaskLog", &["get"]),
            resource("tasks/progress", "TaskProgress", &["get"]),
            resource("tasks/result", "TaskResult", &["get"]),
            resource("tasks/retry", "TaskRetry", &["create"]),
        ],
    })
}

/// `/openapi/v2`: no type is defined here, since logs are text, results are anybody's JSON and bundles are bytes.
pub(crate) fn openapi_v2() -> Value {
    json!({ "swagger": "2.0", "info": info(), "paths": {}, "definitions": {} })
}

/// `/openapi/v3`
pub(crate) fn openapi_v3() -> Value {
    let path = format!("apis/{GROUP}/{VERSION}");
    let url = format!("/openapi/v3/{path}?hash={}", env!("CARGO_PKG_VERSION"));
    json!({ "paths": { path: { "serverRelativeURL": url } } })
}

/// `/openapi/v3/apis/subresources.skyward.dev/v1alpha1`
pub(crate) fn openapi_v3_document() -> Value {
    json!({ "openapi": "3.0.0", "info": info(), "paths": {}, "components": { "schemas": {} } })
}

fn info() -> Value {
    json!({ "title": "Skyward: logs, results and progress of Tasks, logs of Machines, uploaded bundles", "version": env!("CARGO_PKG_VERSION") })
}
