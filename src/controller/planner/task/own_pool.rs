//! The Pool that is made for one Task (`spec.poolTemplate`): what it looks like, and for which Task a Pool was made.
//! Pure; when the Pool is made and deleted is decided in `dispatcher/own_pool.rs`.
//!
//! The Task is its owner and controller, so the garbage collector deletes the Pool of a Task that is gone even where
//! no operator runs. The reference does not block the deletion of the Task: that would need a right to change
//! finalizers of Tasks.

use std::sync::Arc;

use kube_core::{Resource as _, ResourceExt as _};
use skyward_api::{Duration, GROUP, Pool, Task, labels};

/// `maxLifetime` of such a Pool where its template does not say it: nobody looks at it.
const LIFETIME: &str = "24h";

/// The Task that a Pool was made for: it has the Pool's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// UID.
    pub uid: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

/// The Task that a Pool was made for.
pub fn owner(pool: &Pool) -> Option<Owner> {
    let owners = pool.owner_references().iter();
    let mut tasks = owners.filter(|owner| {
        owner.controller == Some(true)
            && pool.metadata.name.as_ref() == Some(&owner.name)
            && owner.kind == Task::kind(&())
            && owner.api_version.split('/').next() == Some(GROUP)
    });
    tasks.next().map(|owner| Owner {
        uid: owner.uid.as_str().into(),
        name: owner.name.as_str().into(),
    })
}

/// The Pool that a Task asks for; `None` where it names one, and where the API server left out a field that it
/// never leaves out.
pub fn pool_of(task: &Task) -> Option<Pool> {
    let template = task.spec.pool_template.as_deref()?;
    let mut spec = template.spec.clone();
    spec.max_lifetime
        .get_or_insert_with(|| Duration(LIFETIME.to_owned()));
    let mut pool = Pool::new(task.metadata.name.as_deref()?, spec);
    pool.metadata.namespace.clone_from(&task.metadata.namespace);
    let metadata = template.metadata.clone().unwrap_or_default();
    let mut all = metadata.labels;
    all.insert(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned());
    pool.metadata.labels = Some(all);
    pool.metadata.annotations = Some(metadata.annotations).filter(|some| !some.is_empty());
    pool.metadata.owner_references = Some(vec![task.controller_owner_ref(&())?]);
    Some(pool)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn task(template: Value) -> Task {
        let mut spec = json!({ "command": ["true"] });
        if template.is_null() {
            spec["pool"] = json!("p");
        } else {
            spec["poolTemplate"] = template;
        }
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "train", "namespace": "team", "uid": "u-1" }, "spec": spec,
        }))
        .unwrap()
    }

    #[test]
    fn the_pool_of_a_task_has_its_name_and_its_template_and_belongs_to_it() {
        let pool = pool_of(&task(json!({
            "metadata": { "labels": { "team": "vision", "app.kubernetes.io/managed-by": "me" }, "annotations": { "a": "b" } },
            "spec": { "provider": "x", "region": "eu-1", "nodes": { "desired": 3 } },
        })))
        .unwrap();
        let made = serde_json::to_value(&pool).unwrap();
        assert_eq!(
            made["metadata"],
            json!({
                "name": "train", "namespace": "team", "annotations": { "a": "b" },
                "labels": { "team": "vision", "app.kubernetes.io/managed-by": "skyward" },
                "ownerReferences": [{
                    "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "name": "train", "uid": "u-1", "controller": true,
                }],
            })
        );
        assert_eq!(made["spec"]["region"], json!("eu-1"));
        assert_eq!(made["spec"]["nodes"]["desired"], json!(3));
        let expected = Owner {
            uid: "u-1".into(),
            name: "train".into(),
        };
        assert_eq!(owner(&pool), Some(expected));
    }

    #[test]
    fn a_pool_that_nobody_looks_at_lives_for_a_day_unless_its_template_says_otherwise() {
        let lifetime = |spec: Value| {
            let pool = pool_of(&task(json!({ "spec": spec }))).unwrap();
            pool.spec.max_lifetime.map(|duration| duration.0)
        };
        assert_eq!(lifetime(json!({ "provider": "x" })).as_deref(), Some("24h"));
        let longer = json!({ "provider": "x", "maxLifetime": "72h" });
        assert_eq!(lifetime(longer).as_deref(), Some("72h"));
    }

    #[test]
    fn no_pool_is_made_for_a_task_that_names_one() {
        assert_eq!(pool_of(&task(Value::Null)), None);
    }

    #[test]
    fn a_pool_was_made_for_the_task_that_controls_it_and_for_no_other_owner() {
        let with = |name: &str, kind: &str, api_version: &str, controller: bool| {
            let pool: Pool = serde_json::from_value(json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool",
                "metadata": { "name": "p", "ownerReferences": [{
                    "apiVersion": api_version, "kind": kind, "name": name, "uid": "u", "controller": controller,
                }] },
                "spec": { "provider": "x" },
            }))
            .unwrap();
            owner(&pool).is_some()
        };
        assert!(with("p", "Task", "skyward.dev/v1alpha1", true));
        assert!(with("p", "Task", "skyward.dev/v1", true), "a later version");
        assert!(!with("p", "Task", "tekton.dev/v1", true));
        assert!(!with("p", "Task", "skyward.dev/v1alpha1", false));
        assert!(!with("p", "Application", "argoproj.io/v1alpha1", true));
        assert!(
            !with("t", "Task", "skyward.dev/v1alpha1", true),
            "of another name"
        );
    }
}
