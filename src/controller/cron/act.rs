//! Carries out the plan of a CronTask; makes no choices.

use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;
use skyward_api::{CronTask, CronTaskStatus, Task, condition::cut, labels};
use skyward_planner::cron::{
    facts::Child,
    plan::{Doomed, Making, Plan},
};

use super::Refused;
use crate::{
    api::{ApiError, write},
    base::written::{restore, restore_matrix},
    context::Context,
    cron::namespace_of,
    guard::Guarded,
    metrics::Metrics,
    newest::Record,
};

/// Bytes of what the API server says that a status repeats.
const MOST_SAID: usize = 500;
/// What the API server says where a ResourceQuota has no room. It asks quotas last: all else has taken the object then.
const OVER_QUOTA: &str = "exceeded quota: ";

/// Carries out; answers why the API server did not take the Task, if it did not.
pub(super) async fn act(
    context: &Context,
    record: &mut Record<'_, CronTask>,
    plan: Plan,
) -> Result<Option<Refused>, ApiError> {
    let Plan {
        replace,
        make,
        status,
        mut events,
        forget,
        next: _,
    } = plan;
    let cron = record.object().clone();
    let api: Api<Task> = Api::namespaced(context.client.clone(), &namespace_of(&cron));
    let metrics = &context.metrics;
    if let Some(Making { at, mut task, event }) = make {
        as_written(&context.client, &cron, &mut task).await?;
        if let Some(why) = replace_by(&context.client, metrics, &cron, &replace, &task).await? {
            return Ok(Some(Refused { at, why }));
        }
        events.push(event);
    }
    if let Some(status) = status {
        write_status(context, record, &status).await?;
    }
    for event in events {
        context.events.publish(&cron.object_ref(&()), event);
    }
    for doomed in &forget {
        match delete(metrics, &api, doomed).await {
            Ok(()) => {
                if let Err(error) = context.store.discard(&doomed.uid).await {
                    // The store's hourly sweep finds it again.
                    tracing::warn!(uid = doomed.uid, %error, "logs and results of a deleted Task stay for now");
                }
            }
            Err(error) => {
                tracing::warn!(task = doomed.name, %error, "an old Task of a CronTask stays for now; it is tried again");
            }
        }
    }
    Ok(None)
}

/// Gives a Task the nulls in arguments and items that `kubectl apply` has dropped from the template of the CronTask: caches do
/// not have its annotation.
async fn as_written(client: &Client, cron: &CronTask, task: &mut Task) -> Result<(), ApiError> {
    let (function, for_each) = (task.spec.function.as_mut(), task.spec.for_each.as_mut());
    if function.is_none() && for_each.is_none() {
        return Ok(());
    }
    let api: Api<Guarded<CronTask>> = Api::namespaced(client.clone(), &namespace_of(cron));
    let params = ListParams::default().fields(&format!("metadata.name={}", cron.name_any()));
    let listed = api.list(&params).await;
    let listed =
        listed.map_err(|error| ApiError::Api("read the CronTask as it was written", Box::new(error)))?;
    let mut found = listed.items.into_iter().filter_map(|found| found.0.ok());
    let Some(found) = found.find(|found| found.uid() == cron.uid()) else {
        return Ok(());
    };
    let place = |field: &str| format!("/spec/taskTemplate/spec/{field}");
    if let Some(function) = function {
        restore(&found, &place("function/args"), &mut function.args);
        restore(&found, &place("function/kwargs"), &mut function.kwargs);
    }
    if let Some(for_each) = for_each {
        restore(&found, &place("forEach/items"), &mut for_each.items);
        if let Some(matrix) = &mut for_each.matrix {
            restore_matrix(&found, &place("forEach/matrix"), matrix);
        }
    }
    Ok(())
}

/// Deletes the Tasks that this one takes the place of, and makes it; answers why the API server does not take it.
async fn replace_by(
    client: &Client,
    metrics: &Metrics,
    cron: &CronTask,
    replace: &[Doomed],
    task: &Task,
) -> Result<Option<String>, ApiError> {
    if !replace.is_empty() {
        // Work that runs is not given up for a Task that is refused.
        let refused = create(client, metrics, cron, task, true).await?;
        if refused.is_some() {
            return Ok(refused);
        }
    }
    let api: Api<Task> = Api::namespaced(client.clone(), &namespace_of(cron));
    for doomed in replace {
        delete(metrics, &api, doomed).await?;
    }
    create(client, metrics, cron, task, false).await
}

/// Makes the Task, unless it is there already, or asks whether it could be made once others are deleted (`is_trial`); answers
/// why the API server does not take it.
async fn create(
    client: &Client,
    metrics: &Metrics,
    cron: &CronTask,
    task: &Task,
    is_trial: bool,
) -> Result<Option<String>, ApiError> {
    let params = PostParams {
        dry_run: is_trial,
        field_manager: Some(labels::MANAGER.to_owned()),
    };
    let api: Api<Task> = Api::namespaced(client.clone(), &namespace_of(cron));
    let answer = api.create(&params, task);
    let Err(error) = write(metrics, "Task", "make the Task that is due", answer).await else {
        return Ok(None);
    };
    let refusal = error
        .refusal()
        .map(|(code, message)| (code, cut(message, MOST_SAID)));
    match refusal {
        Some((409, _)) => match is_own(client, cron, task).await? {
            Some(true) => Ok(None),
            Some(false) => Ok(Some(
                "another Task has that name already; delete it, or leave this time out".to_owned(),
            )),
            // No Task has that name: the usage of a ResourceQuota changed meanwhile, which is a 409, too.
            None => Err(error),
        },
        // The Tasks that are to be deleted count, too: there may be room without them.
        Some((403, message)) if is_trial && message.contains(OVER_QUOTA) => Ok(None),
        // A webhook that cannot be called is a 500, and may stay away for hours.
        Some((400 | 403 | 413 | 422 | 500, message)) => Ok(Some(message)),
        Some(_) | None => Err(error),
    }
}

/// Whether the Task of that name is the CronTask's own: an earlier leader made it, or an answer was lost. `None`: there is
/// none of that name.
async fn is_own(client: &Client, cron: &CronTask, task: &Task) -> Result<Option<bool>, ApiError> {
    let api: Api<Guarded<Task>> = Api::namespaced(client.clone(), &namespace_of(cron));
    let owner = cron.uid().unwrap_or_default();
    let found = api.get_opt(&task.name_any()).await;
    let found = found.map_err(|error| ApiError::Api("read the Task of that name", Box::new(error)))?;
    Ok(found.map(|found| {
        let found = found.0.ok();
        found.is_some_and(|found| Child::of(&found, &owner).is_some())
    }))
}

/// Deletes a Task, if it is still that one.
async fn delete(metrics: &Metrics, api: &Api<Task>, doomed: &Doomed) -> Result<(), ApiError> {
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(doomed.uid.clone()),
        resource_version: doomed.version.clone(),
    });
    let answer = api.delete(&doomed.name, &params);
    match write(metrics, "Task", "delete a Task of the CronTask", answer).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}

/// Writes with the version of the plan.
async fn write_status(
    context: &Context,
    record: &mut Record<'_, CronTask>,
    status: &CronTaskStatus,
) -> Result<(), ApiError> {
    let cron = record.object().clone();
    let api: Api<CronTask> = Api::namespaced(context.client.clone(), &namespace_of(&cron));
    // JSON leaves out empty fields, which a merge patch would have to name: so the whole status is replaced.
    let patch = json!([
        { "op": "test", "path": "/metadata/uid", "value": cron.metadata.uid },
        { "op": "add", "path": "/metadata/resourceVersion", "value": cron.metadata.resource_version },
        { "op": "add", "path": "/status", "value": status },
    ]);
    let what = "write the status of the CronTask";
    let patch: Patch<()> = match serde_json::from_value(patch) {
        Ok(patch) => Patch::Json(patch),
        Err(error) => return Err(ApiError::Api(what, Box::new(kube::Error::SerdeError(error)))),
    };
    let (name, parameters) = (cron.name_any(), PatchParams::apply(labels::MANAGER));
    let answer = api.patch_status(&name, &parameters, &patch);
    record.wrote(write(&context.metrics, "CronTask", what, answer).await?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::ready, sync::Arc};

    use axum::http::{Method, Request, Response};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::Value;
    use tower::service_fn;

    use super::*;

    fn task(owner: &str) -> Value {
        json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "nightly-1", "namespace": "team", "uid": "u", "ownerReferences": [
                { "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask", "name": "nightly", "uid": owner, "controller": true }
            ] },
            "spec": { "pool": "p", "command": ["true"] },
        })
    }

    fn nightly() -> CronTask {
        serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask",
            "metadata": { "name": "nightly", "namespace": "team", "uid": "cron-uid" },
            "spec": { "schedule": "0 3 * * *", "taskTemplate": { "spec": { "pool": "p", "command": ["true"] } } },
        }))
        .unwrap()
    }

    /// What becomes of a Task, at an API server that answers so to its creation and has that one of its name.
    async fn made(code: u16, there: Value) -> Result<Option<String>, ApiError> {
        let service = service_fn(move |request: Request<Body>| {
            let is_write = request.method() == Method::POST;
            let failure = json!({
                "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "exceeded quota: tasks",
                "reason": "Forbidden", "code": code,
            });
            let (code, answer) = match code {
                201 => (201, there.clone()),
                code if is_write => (code, failure),
                _ if there.is_null() => (
                    404,
                    json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "not found",
                            "reason": "NotFound", "code": 404 }),
                ),
                _ => (200, there.clone()),
            };
            async move {
                let response = Response::builder().status(code);
                Ok::<_, Infallible>(
                    response
                        .body(Body::from(answer.to_string().into_bytes()))
                        .unwrap(),
                )
            }
        });
        let cron = nightly();
        let wanted: Task = serde_json::from_value(task("cron-uid")).unwrap();
        let client = Client::new(service, "team");
        create(&client, &Metrics::default(), &cron, &wanted, false).await
    }

    #[tokio::test]
    async fn a_task_that_the_cron_task_has_made_already_is_made_and_one_of_somebody_else_is_not() {
        assert_eq!(made(201, task("cron-uid")).await.unwrap(), None);
        assert_eq!(made(409, task("cron-uid")).await.unwrap(), None);
        let foreign = made(409, task("another")).await.unwrap().unwrap();
        assert!(foreign.starts_with("another Task has that name"), "{foreign}");
    }

    #[tokio::test]
    async fn what_the_api_server_refuses_is_said_in_its_words_and_what_it_cannot_do_now_is_tried_again() {
        for code in [400, 403, 422, 500] {
            let refused = made(code, Value::Null).await.unwrap();
            assert_eq!(refused.as_deref(), Some("exceeded quota: tasks"), "{code}");
        }
        assert!(made(503, Value::Null).await.is_err());
    }

    #[tokio::test]
    async fn a_task_that_runs_is_deleted_only_for_one_that_the_api_server_takes() {
        let policy =
            "tasks.skyward.dev \"nightly-2\" is forbidden: ValidatingAdmissionPolicy 'names' denied request";
        let quota = "tasks.skyward.dev \"nightly-2\" is forbidden: exceeded quota: tasks, requested: 1, used: 1, limited: 1";
        let (trial, real, gone) = ("POST dryRun=All", "POST", "DELETE");
        for (said, refused, expected) in [
            (None, None, vec![trial, gone, real]),
            (Some(policy), Some(policy), vec![trial]),
            // There is room once the other Task is gone.
            (Some(quota), None, vec![trial, gone, real]),
        ] {
            let asked: Arc<Mutex<Vec<String>>> = Arc::default();
            let seen = Arc::clone(&asked);
            let service = service_fn(move |request: Request<Body>| {
                let query = request.uri().query().unwrap_or_default();
                let dry = query.split('&').find(|pair| pair.starts_with("dryRun"));
                let call = format!("{} {}", request.method(), dry.unwrap_or_default());
                seen.lock().push(call.trim_end().to_owned());
                let (code, answer) = match (request.method() == Method::POST, said.filter(|_| dry.is_some()))
                {
                    (true, Some(said)) => (
                        403,
                        json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": said,
                                "reason": "Forbidden", "code": 403 }),
                    ),
                    (true, None) => (201, task("cron-uid")),
                    (false, _) => (
                        200,
                        json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" }),
                    ),
                };
                let body = Body::from(answer.to_string().into_bytes());
                ready(Ok::<_, Infallible>(
                    Response::builder().status(code).body(body).unwrap(),
                ))
            });
            let doomed = Doomed {
                name: "nightly-1".to_owned(),
                uid: "u".to_owned(),
                version: None,
            };
            let wanted: Task = serde_json::from_value(task("cron-uid")).unwrap();
            let (client, metrics) = (Client::new(service, "team"), Metrics::default());
            let made = replace_by(&client, &metrics, &nightly(), &[doomed], &wanted).await;
            assert_eq!(made.unwrap().as_deref(), refused);
            assert_eq!(*asked.lock(), expected, "{said:?}");
        }
    }

    /// A CronTask as `kubectl apply` sends it, whose template has that function and these items.
    fn applied(received: &Value, written: &Value) -> Value {
        let spec = |spec: &Value| json!({ "schedule": "0 3 * * *", "taskTemplate": { "spec": spec } });
        let written = json!({ "spec": spec(written) }).to_string();
        json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask",
            "metadata": { "name": "nightly", "namespace": "team", "uid": "cron-uid",
                          "annotations": { "kubectl.kubernetes.io/last-applied-configuration": written } },
            "spec": spec(received),
        })
    }

    #[tokio::test]
    async fn a_task_has_the_nulls_that_kubectl_apply_dropped_from_the_template() {
        let template = |kwargs: Value, item: Value| {
            let function = json!({ "source": "s", "kwargs": kwargs });
            json!({ "pool": "p", "function": function, "forEach": { "items": [item], "matrix": { "include": [item] } } })
        };
        let received = template(json!({ "a": 1 }), json!({}));
        let there = applied(
            &received,
            &template(json!({ "a": 1, "b": null }), json!({ "c": null })),
        );
        let list = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTaskList", "metadata": {}, "items": [there.clone()],
        });
        let service = service_fn(move |request: Request<Body>| {
            let is_list = request.uri().to_string().contains("metadata.name");
            let body = if is_list { list.to_string() } else { String::new() };
            async move { Ok::<_, Infallible>(Response::new(Body::from(body.into_bytes()))) }
        });
        // As the cache has it.
        let mut cron: CronTask = serde_json::from_value(there).unwrap();
        cron.metadata.annotations = None;
        let mut made = Task::new("nightly-1", serde_json::from_value(received).unwrap());
        as_written(&Client::new(service, "team"), &cron, &mut made)
            .await
            .unwrap();
        let spec = serde_json::to_value(&made.spec).unwrap();
        assert_eq!(spec["function"]["kwargs"], json!({ "a": 1, "b": null }));
        for items in [&spec["forEach"]["items"], &spec["forEach"]["matrix"]["include"]] {
            assert_eq!(*items, json!([{ "c": null }]));
        }
    }

    #[tokio::test]
    async fn a_conflict_about_another_object_is_no_task_of_that_name_and_is_tried_again() {
        assert!(made(409, Value::Null).await.is_err());
    }
}
