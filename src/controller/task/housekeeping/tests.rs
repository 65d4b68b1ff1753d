use std::{
    convert::Infallible,
    future::{Ready, ready},
};

use axum::http::{Method, Request, Response};
use kube::client::Body;
use serde_json::{Value, json};
use tower::service_fn;

use super::*;

/// Requests that an API server got: method and address.
type Asked = Arc<Mutex<Vec<String>>>;

/// An API server with one Task.
fn server(task: Value) -> (Client, Asked) {
    server_of(vec![task])
}

/// An API server with these Tasks.
fn server_of(tasks: Vec<Value>) -> (Client, Asked) {
    let asked = Asked::default();
    let seen = asked.clone();
    let service = service_fn(move |request: Request<Body>| -> Ready<Result<_, Infallible>> {
        let (method, address) = (request.method(), request.uri());
        seen.lock().push(format!("{method} {address}"));
        let answer = if method == Method::DELETE {
            json!({ "apiVersion": "v1", "kind": "Status", "status": "Success" })
        } else if address.path().ends_with("/tasks") {
            let version = "skyward.dev/v1alpha1";
            json!({ "apiVersion": version, "kind": "TaskList", "metadata": {}, "items": tasks })
        } else {
            let wanted = address.path().rsplit('/').next();
            let found = tasks
                .iter()
                .find(|task| task["metadata"]["name"].as_str() == wanted);
            found.cloned().unwrap()
        };
        ready(Ok(Response::new(Body::from(answer.to_string().into_bytes()))))
    });
    (Client::new(service, "n"), asked)
}

/// A Task that ended so many seconds ago.
fn ended(ago: u64, ttl: Option<u32>) -> Value {
    let at = (Timestamp::now() - Duration::from_secs(ago)).to_string();
    json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": { "name": "t", "namespace": "n", "uid": "u", "resourceVersion": "7",
                      "creationTimestamp": at },
        "spec": { "pool": "p", "command": ["true"], "ttlSecondsAfterFinished": ttl },
        "status": { "phase": "Succeeded", "finishedAt": at, "conditions": [{
            "type": "Complete", "status": "True", "reason": "Succeeded", "message": "",
            "lastTransitionTime": at
        }] }
    })
}

fn due(uid: &str) -> Due {
    Due {
        at: Timestamp::UNIX_EPOCH,
        uid: uid.into(),
        namespace: "n".into(),
        name: "t".into(),
    }
}

#[test]
fn ended_tasks_come_when_their_time_has_come_and_once_however_often_they_are_told() {
    let expiry = Expiry::default();
    let at = |second| Timestamp::from_second(second).unwrap();
    let uid = |due: Result<Due, Duration>| due.unwrap().uid.to_string();
    expiry.at("n", "later", "b", at(20));
    expiry.at("n", "sooner", "a", at(25));
    for _ in 0..3 {
        expiry.at("n", "sooner", "a", at(10));
    }
    assert_eq!(expiry.next(at(4)), Err(Duration::from_secs(6)));
    assert_eq!(uid(expiry.next(at(10))), "a");
    assert_eq!(expiry.next(at(10)), Err(Duration::from_secs(10)));
    assert_eq!(uid(expiry.next(at(30))), "b");
    assert_eq!(expiry.next(at(30)), Err(IDLE));
    let lines = expiry.0.lines.lock();
    assert!(lines.due.is_empty() && lines.times.is_empty(), "{lines:?}");
}

#[test]
fn what_is_due_much_later_takes_no_memory() {
    let expiry = Expiry::default();
    let now = Timestamp::now();
    expiry.at("n", "t", "far", after(now, Duration::from_hours(24)));
    assert!(expiry.0.lines.lock().first().is_none());
    // The next look may come too late for this Task.
    expiry.at("n", "t", "near", after(now, SWEEP + Duration::from_mins(30)));
    assert!(expiry.0.lines.lock().first().is_some());
}

#[tokio::test]
async fn what_an_ended_task_says_now_counts_and_not_what_it_said_when_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path()).unwrap().unmeasured();
    let metrics = Metrics::default();
    let mut begun_anew = ended(100, Some(60));
    begun_anew["status"]["phase"] = json!("Pending");
    for (task, uid, stays, what) in [
        (ended(100, Some(60)), "u", false, "its time has come"),
        (ended(100, None), "u", true, "its ttl was taken back"),
        (
            ended(100, Some(60)),
            "another",
            true,
            "another Task has that name",
        ),
        (begun_anew, "u", true, "it has not ended"),
    ] {
        let (client, asked) = server(task);
        let again = delete(&client, &store, &metrics, &due(uid), |_| true).await;
        assert_eq!(again, None, "{what}");
        let asked = asked.lock();
        let deleted = asked.iter().any(|request| request.starts_with("DELETE "));
        assert_ne!(deleted, stays, "{what}: {asked:?}");
    }
    let (client, asked) = server(ended(100, Some(600)));
    let again = delete(&client, &store, &metrics, &due("u"), |_| true)
        .await
        .unwrap();
    let left = again.as_second() - Timestamp::now().as_second();
    assert!((490..=500).contains(&left), "its ttl was raised: {left}");
    assert_eq!(asked.lock().len(), 1);
}

#[tokio::test]
async fn a_task_that_would_be_made_again_is_not_deleted_yet() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path()).unwrap().unmeasured();
    let (client, asked) = server(ended(100, Some(60)));
    let again = delete(&client, &store, &Metrics::default(), &due("u"), |_| false).await;
    assert!(again.is_some_and(|at| at > Timestamp::now()));
    assert_eq!(asked.lock().len(), 1, "it was read, and not deleted");
}

#[tokio::test]
async fn all_ended_tasks_are_looked_at_in_small_pages() {
    let (client, asked) = server(ended(100, Some(60)));
    let expiry = Expiry::default();
    find_expiring(&client, &expiry).await.unwrap();
    assert!(expiry.next(Timestamp::now()).is_ok());
    let asked = asked.lock();
    let small = asked.iter().filter(|request| request.ends_with("limit=50"));
    assert_eq!((small.count(), asked.len()), (2, 2), "{asked:?}");
}

/// Deletes what has expired, of which nothing is awaited.
async fn drop_all(client: &Client, store: &Arc<Store>, passed: &[Passed]) -> usize {
    drop_stored(client, store, passed, &mut Dropped::new(), |_| true)
        .await
        .unwrap()
}

#[tokio::test]
async fn logs_and_results_whose_retention_has_passed_are_deleted_and_nothing_else_is() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
    for uid in ["u", "other"] {
        store.charge(uid, "n");
        let run = format!("{uid}-1-0");
        store
            .put_log_segment(uid, &run, 0, vec![b'x'; 10].into())
            .await
            .unwrap();
        store.put_result(uid, &run, "42".into()).await.unwrap();
    }
    let mut task = ended(100, None);
    for (retention, log, has_result) in [
        (json!({ "logs": "2m", "results": "2m" }), 10, true),
        (json!({ "logs": "1m", "results": "2m" }), 0, true),
        (json!({ "results": "1m" }), 0, false),
    ] {
        task["spec"]["retention"] = retention.clone();
        let (client, _) = server(task.clone());
        let passed = find_expiring(&client, &Expiry::default()).await.unwrap();
        drop_all(&client, &store, &passed).await;
        assert_eq!(store.log_end("u", "u-1-0").await.unwrap(), log, "{retention}");
        let result = store.get_result("u", "u-1-0", 0).await.unwrap();
        assert_eq!(result.is_some(), has_result, "{retention}");
        assert_eq!(
            drop_all(&client, &store, &passed).await,
            0,
            "{retention}: once is enough"
        );
    }
    assert_eq!(store.log_end("other", "other-1-0").await.unwrap(), 10);
    assert!(store.get_result("other", "other-1-0", 0).await.unwrap().is_some());
}

#[tokio::test]
async fn what_a_map_returned_goes_with_its_items_once_no_retry_can_be_on_its_way() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
    store.charge("u", "n");
    for (ago, is_kept) in [(100, true), (60 + 9 * 60, true), (60 + 10 * 60, false)] {
        store.put_map_items("u", "1\n2\n".into()).await.unwrap();
        let mut task = ended(ago, None);
        task["spec"]["forEach"] = json!({ "items": [1, 2] });
        task["spec"]["retention"] = json!({ "results": "1m" });
        let (client, _) = server(task);
        let passed = find_expiring(&client, &Expiry::default()).await.unwrap();
        drop_all(&client, &store, &passed).await;
        let kept = store.map_items("u").await.unwrap();
        assert_eq!(kept.is_some(), is_kept, "ended {ago} seconds ago");
    }
}

#[tokio::test]
async fn what_a_task_says_right_before_its_results_are_deleted_counts_and_not_what_it_said_when_it_was_listed()
 {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
    store.charge("u", "n");
    store.put_map_items("u", "1\n2\n".into()).await.unwrap();
    let mut listed = ended(3600, None);
    listed["spec"]["forEach"] = json!({ "items": [1, 2] });
    listed["spec"]["retention"] = json!({ "results": "1m" });
    let (client, _) = server(listed.clone());
    let passed = find_expiring(&client, &Expiry::default()).await.unwrap();
    let mut longer = listed.clone();
    longer["spec"]["retention"] = json!({ "results": "2h" });
    let mut begun_anew = listed.clone();
    begun_anew["status"]["phase"] = json!("Pending");
    let mut another = listed.clone();
    another["metadata"]["uid"] = json!("another");
    for (now, awaited, is_kept, what) in [
        (longer, false, true, "it is kept for longer"),
        (begun_anew, false, true, "its items run again"),
        (another, false, true, "another Task has that name"),
        (listed.clone(), true, true, "a map has yet to read it"),
        (listed, false, false, "it is as it was"),
    ] {
        let (client, _) = server(now);
        let mut dropped = Dropped::new();
        drop_stored(&client, &store, &passed, &mut dropped, |_| !awaited)
            .await
            .unwrap();
        assert_eq!(store.map_items("u").await.unwrap().is_some(), is_kept, "{what}");
        assert_eq!(dropped.is_empty(), is_kept, "{what}: the next look decides");
    }
}

/// Something that expired at that second.
fn passed_at(uid: &str, second: i64) -> Passed {
    Passed {
        uid: uid.into(),
        namespace: "n".into(),
        name: "t".into(),
        kept: Kept::Logs,
        at: Timestamp::from_second(second).unwrap(),
    }
}

#[test]
fn what_was_deleted_is_not_looked_for_again_unless_the_task_has_ended_once_more() {
    let mut dropped: Dropped = [passed_at("a", 1).key(), passed_at("gone", 1).key()].into();
    let mut passed = vec![passed_at("a", 1), passed_at("b", 1)];
    leave_out(&mut passed, &mut dropped);
    assert_eq!(passed, [passed_at("b", 1)]);
    assert_eq!(
        dropped,
        Dropped::from([passed_at("a", 1).key()]),
        "a Task that is gone is forgotten"
    );
    let mut later = vec![passed_at("a", 2)];
    leave_out(&mut later, &mut dropped);
    assert_eq!((later.len(), dropped.len()), (1, 0));
}

#[tokio::test]
async fn what_cannot_be_deleted_of_one_task_holds_up_no_other_one() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
    let mut tasks = Vec::new();
    for uid in ["a", "b"] {
        store.charge(uid, "n");
        let run = format!("{uid}-1-0");
        store
            .put_log_segment(uid, &run, 0, vec![b'x'; 10].into())
            .await
            .unwrap();
        let mut task = ended(100, None);
        task["metadata"]["name"] = json!(uid);
        task["metadata"]["uid"] = json!(uid);
        task["spec"]["retention"] = json!({ "logs": "1m" });
        tasks.push(task);
    }
    // A link to itself cannot be listed.
    let link = folder.path().join("a/a-1-0/log/link");
    std::os::unix::fs::symlink("link", link).unwrap();
    let mut dropped = Dropped::new();
    let now = Timestamp::now();
    let read = |task: &Value| passed(&serde_json::from_value(task.clone()).unwrap(), now);
    let all: Vec<Passed> = tasks.iter().flat_map(read).collect();
    let (client, _) = server_of(tasks);
    let dropping = drop_stored(&client, &store, &all, &mut dropped, |_| true);
    assert!(dropping.await.is_err());
    assert_eq!(store.log_end("b", "b-1-0").await.unwrap(), 0);
    assert_eq!(
        dropped,
        Dropped::from([all[1].key()]),
        "the other one is tried again"
    );
}
