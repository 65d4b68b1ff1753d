//! Logs and results that are kept no longer.

use super::*;

/// A Task that ended two hours ago; both its log and its result are still stored.
fn world(retention: Value) -> World {
    let ago = jiff::Timestamp::now() - Duration::from_secs(7200);
    let status = json!({
        "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }], "finishedAt": ago.to_string(),
        "results": [{ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "value": 42 }],
    });
    let world = World::with("t", status).log(1, 0, &["1 o F hello"]);
    let retention = serde_json::from_value(retention).unwrap();
    world.tasks.lock().get_mut("t").unwrap().spec.retention = retention;
    world
}

#[tokio::test]
async fn what_has_expired_is_gone_for_its_readers_before_anybody_deletes_it() {
    for (retention, log, result) in [
        (json!(null), StatusCode::OK, StatusCode::OK),
        (
            json!({ "logs": "3h", "results": "3h" }),
            StatusCode::OK,
            StatusCode::OK,
        ),
        (json!({ "logs": "1h" }), StatusCode::GONE, StatusCode::OK),
        (json!({ "results": "1h" }), StatusCode::OK, StatusCode::GONE),
    ] {
        let server = Server::start(world(retention.clone())).await;
        let values = if log == StatusCode::GONE { log } else { result };
        for (what, expected) in [("log", log), ("result", result), ("result/values", values)] {
            let (got, body) = server.get(&format!("t/{what}")).await;
            assert_eq!(got, expected, "{retention}: {what}: {body}");
            if expected == StatusCode::GONE {
                let answer: Value = serde_json::from_str(&body).unwrap();
                assert_eq!(answer["reason"], "ResultsExpired");
                let message = answer["message"].as_str().unwrap();
                assert!(message.contains("spec.retention."), "{message}");
                assert!(message.contains("create the Task again"), "{message}");
            }
        }
    }
}

#[tokio::test]
async fn a_log_that_was_deleted_is_not_taken_for_an_empty_one_although_it_may_be_kept_for_longer_now() {
    for (printed, lines, expected) in [
        ("hello", vec!["1 o F hello"], StatusCode::OK),
        ("hello", vec![], StatusCode::GONE),
        ("", vec![], StatusCode::OK),
    ] {
        let status = json!({
            "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }],
            "results": [{ "rank": 0, "machine": "m", "attempt": 1, "reason": "Succeeded", "logTail": printed }],
        });
        let server = Server::start(World::with("t", status).log(1, 0, &lines)).await;
        let (got, body) = server.get("t/log").await;
        assert_eq!(got, expected, "{printed:?}, stored: {lines:?}: {body}");
        if expected == StatusCode::GONE {
            let answer: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(answer["reason"], "ResultsExpired");
        }
    }
}

#[tokio::test]
async fn who_wants_items_to_run_again_after_their_outcomes_have_expired_is_told_what_to_do() {
    let world = world(json!({ "results": "1h" }));
    let items = serde_json::from_value(json!({ "count": 3 })).unwrap();
    world.tasks.lock().get_mut("t").unwrap().spec.for_each = Some(items);
    let server = Server::start(world).await;
    let proxy = server.client(&server.proxy, "front-proxy-client");
    let path = format!("{BASE}/tasks/t/retry?failed=true");
    let (status, body) = server.ask(proxy, Method::POST, &path, Some("ana")).await.unwrap();
    let answer: Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (status, &answer["reason"]),
        (StatusCode::GONE, &json!("ResultsExpired"))
    );
    let message = answer["message"].as_str().unwrap();
    let remedy = "no item can run again; create the Task again";
    assert!(
        message.contains("spec.retention.results") && message.ends_with(remedy),
        "{message}"
    );
}
