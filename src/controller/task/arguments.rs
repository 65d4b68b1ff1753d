//! Arguments of a function as a person wrote them.

use serde_json::{Value, json};
use skyward_api::{Task, task::Function};

use crate::base::written::with_nulls;

/// Positional and named arguments, as JSON.
pub(crate) fn written(task: &Task, function: &Function) -> (Value, Value) {
    (
        with_nulls(task, "/spec/function/args", json!(function.args)),
        with_nulls(task, "/spec/function/kwargs", json!(function.kwargs)),
    )
}

#[cfg(test)]
mod tests {
    use kube::ResourceExt as _;

    use super::*;
    use crate::base::written::WRITTEN;

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
