//! Tests of what functions yield.

use super::*;

const LINES: [&str; 6] = [
    "1 o F a",
    "2 v F 0 1 7",
    "3 o F b",
    "4 v P 1 ",
    "5 v F 2 42",
    "6 e F c",
];

fn world() -> World {
    World::with("t", ended()).log(1, 0, &LINES)
}

/// What the server sends, without the places that it has passed.
async fn values(server: &Server, query: &str) -> String {
    let (status, text) = server.get_as("ben", &format!("t/result/values{query}")).await;
    assert_eq!(status, StatusCode::OK, "{text}");
    let lines = text.split_inclusive('\n').filter(|line| !line.starts_with('@'));
    lines.collect()
}

#[tokio::test]
async fn what_a_function_yields_is_for_users_who_may_read_results_and_no_part_of_its_log() {
    let server = Server::start(world()).await;
    assert_eq!(server.get("t/log").await.1, "a\nb\nc\n");
    assert_eq!(
        server.get("t/log?tailLines=2").await.1,
        "b\nc\n",
        "values are no lines"
    );
    assert_eq!(server.get_as("ben", "t/log").await.0, StatusCode::FORBIDDEN);
    assert_eq!(
        server.get_as("eve", "t/result/values").await.0,
        StatusCode::FORBIDDEN
    );
    let all = "# 1 1\n1 0 20 2 v F 0 1 7\n1 0 37 4 v P 1 \n1 0 48 5 v F 2 42\n";
    for query in ["", "?follow=true", "?format=text", "?follow=true&format=records"] {
        assert_eq!(values(&server, query).await, all, "{query}");
    }
    let rest = "# 1 1\n1 0 37 4 v P 1 \n1 0 48 5 v F 2 42\n";
    assert_eq!(values(&server, "?positions=1.0.20").await, rest);
}

#[tokio::test]
async fn wherever_a_connection_breaks_each_value_comes_once() {
    let all = "# 1 1\n1 0 20 2 v F 0 1 7\n1 0 37 4 v P 1 \n1 0 48 5 v F 2 42\n";
    for at in [1, 9, 15, 21, 30, 40] {
        let broken = [Answer::Breaks(at), Answer::Breaks(at), Answer::Away];
        let server = Server::start(world().answers(&broken)).await;
        assert_eq!(values(&server, "?follow=true").await, all, "broken at {at}");
    }
}

#[tokio::test]
async fn a_gap_among_output_is_told_before_the_next_value() {
    let server = Server::start(world().hole(0, 20, 1000)).await;
    let expected = "# 1 1\n1 0 20 2 v F 0 1 7\n~ 1 0 20 1020 limit\n1 0 1037 4 v P 1 \n1 0 1048 5 v F 2 42\n";
    assert_eq!(values(&server, "").await, expected);
}

#[tokio::test]
async fn a_task_without_a_function_yields_nothing_and_is_told_so() {
    let world = world();
    let command = json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": { "name": "t", "namespace": "n", "uid": UID },
        "spec": { "pool": "p", "command": ["true"] }, "status": ended(),
    });
    world
        .tasks
        .lock()
        .insert("t".to_owned(), serde_json::from_value(command).unwrap());
    let server = Server::start(world).await;
    let (status, body) = server.get("t/result/values").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("ran no function"), "{body}");
}
