//! Arguments of a function as a person wrote them.
//!
//! `kubectl apply` drops each null that is the value of a map before it sends a new object, and
//! keeps the object as it was written in an annotation. Where that annotation differs from the
//! object only by such nulls, the function gets its arguments; any other annotation is ignored.

use kube::ResourceExt as _;
use serde_json::{Map, Value};
use skyward_api::{Task, task::Function};

/// Where `kubectl apply` keeps the object as it was written.
const WRITTEN: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Positional and named arguments, as JSON.
pub(crate) fn written(task: &Task, function: &Function) -> (Value, Value) {
    let mut object: Value = task
        .annotations()
        .get(WRITTEN)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let mut original = |field: &str, received: Value| {
        let written = object
            .pointer_mut("/spec/function")
            .and_then(|function| function.get_mut(field))
            .map(Value::take)
            .unwrap_or_default();
        if without_nulls(&written) == received {
            written
        } else {
            received
        }
    };
    (
        original("args", serde_json::json!(function.args)),
        original("kwargs", serde_json::json!(function.kwargs)),
    )
}

/// The value without each null of a map, at any depth; those of lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Array(entries) => entries.iter().map(without_nulls).collect(),
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            let kept = kept.map(|(name, value)| (name.clone(), without_nulls(value)));
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn task(received: &Value, annotation: Option<&str>) -> Task {
        let mut task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t" },
            "spec": { "pool": "p", "function": received }
        }))
        .unwrap();
        if let Some(text) = annotation {
            task.annotations_mut().insert(WRITTEN.to_owned(), text.to_owned());
        }
        task
    }

    fn arguments(task: &Task) -> (Value, Value) {
        written(task, task.spec.function.as_ref().unwrap())
    }

    #[test]
    fn nulls_that_kubectl_apply_dropped_reach_the_function() {
        let received = json!({ "source": "s", "args": [null, { "b": [null, 1] }], "kwargs": {} });
        let original = json!({ "spec": { "function": { "args": [null, { "a": null, "b": [null, 1] }], "kwargs": { "x": null } } } });
        assert_eq!(
            arguments(&task(&received, Some(&original.to_string()))),
            (json!([null, { "a": null, "b": [null, 1] }]), json!({ "x": null }))
        );
    }

    #[test]
    fn an_annotation_that_says_anything_else_is_of_no_account() {
        let received = json!({ "source": "s", "args": [{ "a": 1 }], "kwargs": { "x": 1 } });
        let as_received = (json!([{ "a": 1 }]), json!({ "x": 1 }));
        for annotation in [
            "",
            "[",
            "null",
            "[]",
            "7",
            r#"{"spec": 1}"#,
            r#"{"spec": {"function": null}}"#,
            r#"{"spec": {"function": {"args": [{"a": 2}], "kwargs": {"x": 2, "y": null}}}}"#,
            r#"{"spec": {"function": {"args": {"a": null}, "kwargs": [null]}}}"#,
        ] {
            assert_eq!(
                arguments(&task(&received, Some(annotation))),
                as_received,
                "{annotation}"
            );
        }
        assert_eq!(arguments(&task(&received, None)), as_received);
    }
}
