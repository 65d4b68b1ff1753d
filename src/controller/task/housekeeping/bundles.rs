//! Deletes bundles that no Task and no CronTask names, uploaded or fetched from git, once they are a day old;
//! unfinished uploads of that age; and all bundles of namespaces that are gone.
//!
//! A Task may be created while the sweep looks. So a bundle that no Task seems to name is marked first, and
//! from then on no Task finds it; then the Tasks are listed again. A Task that came in between is in that list,
//! and gets its bundle back; a later one sees that the bundle is not there, and says so. The same holds for
//! CronTasks. A list that failed, or has an object that cannot be understood, deletes nothing.

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    sync::Arc,
    time::Duration,
};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource, api::ListParams};
use serde::de::DeserializeOwned;
use skyward_api::{CronTask, Task};
use skyward_store::{Store, StoredBundle};

use super::YOUNG;
use crate::{deadline::words, guard::Guarded, task::router::PAGE};

/// How long a bundle is kept that no Task and no CronTask names, and an upload with which nobody goes on.
pub(super) const KEPT: Duration = Duration::from_hours(24);
/// Namespaces of one page of a list that has only their metadata.
const NAMESPACES: u32 = 500;

/// Deletes what is due in all namespaces, and answers how much. A namespace whose Tasks cannot be listed is
/// skipped; the last such error is returned.
pub(super) async fn sweep(client: &Client, store: &Arc<Store>, kept: Duration) -> Result<usize, String> {
    // The store first: a namespace is always older than its bundles.
    let stored = store.bundle_namespaces().await.map_err(text)?;
    if stored.is_empty() {
        return Ok(0);
    }
    let there = namespaces(client).await?;
    let (mut deleted, mut failure) = (0, None);
    for uid in &stored {
        let swept = match there.get(uid) {
            Some(namespace) => sweep_one(client, store, (uid.as_str(), namespace.as_str()), kept).await,
            None => delete_all(store, uid).await,
        };
        match swept {
            Ok(count) => deleted += count,
            Err(error) => failure = Some(error),
        }
    }
    failure.map_or(Ok(deleted), Err)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Names of all namespaces, by UID.
async fn namespaces(client: &Client) -> Result<HashMap<String, String>, String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let mut params = ListParams::default().limit(NAMESPACES);
    let mut there = HashMap::new();
    loop {
        let page = api.list_metadata(&params).await.map_err(|error| words(&error))?;
        let metadata = page.items.into_iter().map(|namespace| namespace.metadata);
        there.extend(metadata.filter_map(|metadata| Some((metadata.uid?, metadata.name?))));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(there),
        }
    }
}

/// The namespace is gone.
async fn delete_all(store: &Store, uid: &str) -> Result<usize, String> {
    let age = store.bundles_age(uid).await.map_err(text)?;
    if age.is_none_or(|age| age <= YOUNG) {
        return Ok(0);
    }
    store.delete_bundles_of(uid).await.map_err(text)?;
    Ok(1)
}

async fn sweep_one(
    client: &Client,
    store: &Arc<Store>,
    (uid, namespace): (&str, &str),
    kept: Duration,
) -> Result<usize, String> {
    store.drop_uploads(uid, kept).await.map_err(text)?;
    let mut bundles = store.bundles(uid).await.map_err(text)?;
    bundles.retain(|bundle| bundle.age >= kept || bundle.leaving);
    if bundles.is_empty() {
        return Ok(0);
    }
    let named = named(client, namespace, &bundles).await?;
    let (stay, leave): (Vec<_>, Vec<_>) = bundles
        .into_iter()
        .partition(|bundle| bundle.age < kept || named.contains(bundle.id.bundle()));
    // A sweep that was interrupted may have left a mark.
    for bundle in stay.iter().filter(|bundle| bundle.leaving) {
        store.keep_bundle(&bundle.id).await.map_err(text)?;
    }
    for bundle in &leave {
        store.mark_bundle(&bundle.id).await.map_err(text)?;
    }
    delete_marked(store, (client, namespace), leave).await
}

/// Looks again, and deletes what still nothing names.
async fn delete_marked(
    store: &Arc<Store>,
    (client, namespace): (&Client, &str),
    marked: Vec<StoredBundle>,
) -> Result<usize, String> {
    if marked.is_empty() {
        return Ok(0);
    }
    let again = named(client, namespace, &marked).await;
    let mut deleted = 0;
    for StoredBundle { id, bytes, .. } in &marked {
        let is_named = again.as_ref().map_or(true, |named| named.contains(id.bundle()));
        if is_named {
            store.keep_bundle(id).await.map_err(text)?;
        } else if store.delete_bundle(id).await.map_err(text)? {
            deleted += 1;
            // A bundle is no object, so no Event can be about it.
            let digest = format!("sha256:{}", id.bundle());
            tracing::info!(
                namespace,
                digest,
                bytes,
                "a bundle that no Task and no CronTask names was deleted"
            );
        }
    }
    again.map(|_| deleted)
}

/// Which of these bundles a Task names, ended or not, or a CronTask for the Tasks that it will make, as things are now.
async fn named(
    client: &Client,
    namespace: &str,
    bundles: &[StoredBundle],
) -> Result<BTreeSet<String>, String> {
    let wanted: BTreeSet<&str> = bundles.iter().map(|bundle| bundle.id.bundle()).collect();
    let mut named = BTreeSet::new();
    // CronTasks first: where one of them is deleted meanwhile, the Tasks that it made are in the later list.
    let cron_tasks: Api<Guarded<CronTask>> = Api::namespaced(client.clone(), namespace);
    note(&cron_tasks, digest_of_template, &wanted, &mut named).await?;
    let tasks: Api<Guarded<Task>> = Api::namespaced(client.clone(), namespace);
    note(&tasks, digest_of, &wanted, &mut named).await?;
    Ok(named)
}

/// Notes which of the wanted bundles the objects of a kind name.
async fn note<K>(
    api: &Api<Guarded<K>>,
    digest_of: fn(&K) -> Option<&str>,
    wanted: &BTreeSet<&str>,
    named: &mut BTreeSet<String>,
) -> Result<(), String>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    while named.len() < wanted.len() {
        let page = api.list(&params).await.map_err(|error| words(&error))?;
        for object in &page.items {
            let object = object.0.as_ref().map_err(|invalid| {
                let name = invalid.metadata.name.as_deref().unwrap_or_default();
                let kind = K::kind(&());
                format!("{kind} \"{name}\" cannot be understood, so its bundle is not known")
            })?;
            let digest = digest_of(object).and_then(|digest| digest.strip_prefix("sha256:"));
            let digest = digest.filter(|digest| wanted.contains(digest));
            named.extend(digest.map(ToOwned::to_owned));
        }
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => break,
        }
    }
    Ok(())
}

/// The bundle that a Task names: an upload, or what was fetched from git for it.
fn digest_of(task: &Task) -> Option<&str> {
    let source = task.spec.source.as_ref()?;
    if source.git.is_some() {
        let recorded = task.status.as_ref()?.source.as_ref()?;
        return Some(&recorded.digest);
    }
    source.bundle.as_ref().map(|bundle| bundle.digest.as_str())
}

/// The upload that a CronTask names for its Tasks. What these fetch from git they have on record themselves.
fn digest_of_template(cron: &CronTask) -> Option<&str> {
    let source = cron.spec.task_template.spec.source.as_ref()?;
    source.bundle.as_ref().map(|bundle| bundle.digest.as_str())
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, convert::Infallible, path::Path};

    use axum::http::{Request, Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use skyward_store::{BundleId, Sealed};
    use tower::service_fn;

    use super::*;

    const UID: &str = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";
    const GONE: &str = "0b5c6f5e-0000-4000-8000-00000000000a";

    fn digest(first: char) -> String {
        first.to_string().repeat(64)
    }

    fn id(first: char) -> BundleId {
        BundleId::new(UID, &digest(first)).unwrap()
    }

    fn task(name: &str, bundle: char) -> Value {
        let source = json!({ "bundle": { "digest": format!("sha256:{}", digest(bundle)) } });
        json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": name, "namespace": "team" },
            "spec": { "pool": "p", "command": ["true"], "source": source },
        })
    }

    /// A Task with files from git, on record if it has begun.
    fn git(name: &str, bundle: Option<char>) -> Value {
        let mut task = task(name, 'f');
        task["spec"]["source"] = json!({ "git": { "url": "https://git.example/a" } });
        if let Some(bundle) = bundle {
            let digest = format!("sha256:{}", digest(bundle));
            task["status"] = json!({ "source": { "digest": digest, "commit": "c" } });
        }
        task
    }

    fn cron(name: &str, bundle: char) -> Value {
        let template = json!({ "spec": task(name, bundle)["spec"] });
        json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "CronTask",
            "metadata": { "name": name, "namespace": "team" },
            "spec": { "schedule": "0 3 * * *", "taskTemplate": template },
        })
    }

    /// What each list of a kind has, one after the other; `None`: it fails.
    type Lists = Vec<Option<Vec<Value>>>;

    /// An API server with the namespace `team`; each list of its Tasks has the next of these, or fails.
    fn server(tasks: Lists) -> Client {
        server_with(Vec::new(), tasks)
    }

    /// The same with lists of its CronTasks; after these there are none.
    fn server_with(cron_tasks: Lists, tasks: Lists) -> Client {
        let lists = Arc::new(Mutex::new((VecDeque::from(cron_tasks), VecDeque::from(tasks))));
        // Whether CronTasks were listed since the last list of Tasks.
        let were_listed = Arc::new(Mutex::new(false));
        let service = service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let answer = if path.ends_with("/namespaces") {
                Some(json!({
                    "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {},
                    "items": [{ "metadata": { "name": "team", "uid": UID } }],
                }))
            } else {
                let is_cron = path.ends_with("/namespaces/team/crontasks");
                assert!(is_cron || path.ends_with("/namespaces/team/tasks"), "{path}");
                let were_listed = std::mem::replace(&mut *were_listed.lock(), is_cron);
                let mut lists = lists.lock();
                let (kind, next) = if is_cron {
                    ("CronTaskList", lists.0.pop_front().unwrap_or(Some(Vec::new())))
                } else {
                    assert!(
                        were_listed,
                        "a CronTask that is deleted meanwhile would hide the Tasks that it made"
                    );
                    ("TaskList", lists.1.pop_front().expect("it is asked once more"))
                };
                next.map(|items| {
                    json!({ "apiVersion": "skyward.dev/v1alpha1", "kind": kind, "metadata": {}, "items": items })
                })
            };
            let (code, body) = answer.map_or_else(
                || (StatusCode::FORBIDDEN, json!({ "kind": "Status", "status": "Failure", "code": 403, "message": "no", "reason": "Forbidden" })),
                |answer| (StatusCode::OK, answer),
            );
            let body = Body::from(body.to_string().into_bytes());
            let answer = Response::builder().status(code).body(body).unwrap();
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        Client::new(service, "team")
    }

    async fn put(store: &Arc<Store>, uid: &str, first: char) {
        let id = BundleId::new(uid, &digest(first)).unwrap();
        store.put_upload("team", &id, "ana", 0, "x".into()).await.unwrap();
        store
            .seal_bundle(&id, "ana", |_| async { Ok(Sealed::Whole) })
            .await
            .unwrap();
    }

    async fn store() -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        for first in ['a', 'b'] {
            put(&store, UID, first).await;
        }
        (folder, store)
    }

    async fn are_there(store: &Arc<Store>) -> (bool, bool) {
        let is_there = async |first| store.bundle(&id(first)).await.unwrap().is_some();
        (is_there('a').await, is_there('b').await)
    }

    /// Lets all files of the store be that old.
    fn age(folder: &Path, by: Duration) {
        let old = std::time::SystemTime::now() - by;
        let mut folders = vec![folder.to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else {
                    let file = std::fs::File::options().write(true).open(path).unwrap();
                    file.set_modified(old).unwrap();
                }
            }
        }
    }

    #[tokio::test]
    async fn a_bundle_that_no_task_names_is_there_for_24_hours() {
        let (folder, store) = store().await;
        age(folder.path(), Duration::from_hours(23));
        assert_eq!(sweep(&server(vec![]), &store, KEPT).await, Ok(0));
        assert_eq!(are_there(&store).await, (true, true));
        age(folder.path(), Duration::from_hours(25));
        let tasks = || Some(vec![task("t", 'a')]);
        let swept = sweep(&server(vec![tasks(), tasks()]), &store, KEPT).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (true, false)));
    }

    #[tokio::test]
    async fn a_bundle_goes_when_it_is_old_and_no_task_names_it() {
        let (_folder, store) = store().await;
        let young = sweep(&server(vec![]), &store, KEPT).await;
        assert_eq!(
            (young, are_there(&store).await),
            (Ok(0), (true, true)),
            "they are young"
        );
        let tasks = || Some(vec![task("t", 'a'), task("other", 'c')]);
        let swept = sweep(&server(vec![tasks(), tasks()]), &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (true, false)));
    }

    #[tokio::test]
    async fn what_was_fetched_from_git_stays_while_a_task_has_it_on_record() {
        let (_folder, store) = store().await;
        let tasks = || Some(vec![git("begun", Some('b')), git("waits", None)]);
        let swept = sweep(&server(vec![tasks(), tasks()]), &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (false, true)));
    }

    #[tokio::test]
    async fn a_task_that_is_created_while_the_sweep_looks_keeps_its_bundle() {
        let (_folder, store) = store().await;
        let lists = vec![Some(vec![]), Some(vec![task("new", 'b')])];
        let swept = sweep(&server(lists), &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (false, true)));
    }

    #[tokio::test]
    async fn a_bundle_stays_while_a_cron_task_names_it_for_the_tasks_that_it_will_make() {
        let (_folder, store) = store().await;
        let cron_tasks = || Some(vec![cron("nightly", 'b')]);
        let none = || vec![Some(vec![]), Some(vec![])];
        let server_now = server_with(vec![cron_tasks(), cron_tasks()], none());
        let swept = sweep(&server_now, &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (false, true)));
        let swept = sweep(&server(none()), &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (false, false)));
    }

    #[tokio::test]
    async fn a_cron_task_that_is_created_while_the_sweep_looks_keeps_its_bundle() {
        let (_folder, store) = store().await;
        let cron_tasks = vec![Some(vec![]), Some(vec![cron("new", 'b')])];
        let server = server_with(cron_tasks, vec![Some(vec![]), Some(vec![])]);
        let swept = sweep(&server, &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (false, true)));
    }

    #[tokio::test]
    async fn a_list_that_fails_or_cannot_be_understood_deletes_nothing() {
        let (_folder, store) = store().await;
        let strange = json!({ "metadata": { "name": "strange" }, "spec": { "pool": 7 } });
        for lists in [
            vec![None],
            vec![Some(vec![]), None],
            vec![Some(vec![strange.clone()])],
            vec![Some(vec![]), Some(vec![strange])],
        ] {
            let none = || vec![Some(vec![]), Some(vec![])];
            for server in [server(lists.clone()), server_with(lists.clone(), none())] {
                let swept = sweep(&server, &store, Duration::ZERO).await;
                assert!(swept.is_err(), "{swept:?}");
                assert_eq!(are_there(&store).await, (true, true));
            }
        }
    }

    #[tokio::test]
    async fn a_sweep_that_was_interrupted_is_made_good_by_the_next_one() {
        let (_folder, store) = store().await;
        for first in ['a', 'b'] {
            store.mark_bundle(&id(first)).await.unwrap();
        }
        let tasks = || Some(vec![task("t", 'a')]);
        let swept = sweep(&server(vec![tasks(), tasks()]), &store, Duration::ZERO).await;
        assert_eq!((swept, are_there(&store).await), (Ok(1), (true, false)));
    }

    #[tokio::test]
    async fn bundles_of_a_namespace_that_is_gone_go_with_it_once_they_cannot_be_new() {
        let (folder, store) = store().await;
        put(&store, GONE, 'a').await;
        assert_eq!(sweep(&server(vec![]), &store, KEPT).await, Ok(0));
        age(&folder.path().join("_bundles").join(GONE), 2 * YOUNG);
        assert_eq!(sweep(&server(vec![]), &store, KEPT).await, Ok(1));
        assert_eq!(store.bundle_namespaces().await.unwrap(), [UID]);
        assert_eq!(are_there(&store).await, (true, true));
    }
}
