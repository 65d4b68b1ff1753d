//! Tests of partial reads, and of logs with missing parts.

use super::*;

const MISSING: &str =
    "--- 1,000 bytes of this log are missing here: more than the Pool's logs.limit was printed ---\n";

#[tokio::test]
async fn a_log_goes_on_behind_a_gap_and_says_once_how_much_is_missing() {
    // The second record is cut by the gap.
    let world = || {
        World::with("t", ended())
            .log(1, 0, &["1 o F a", "2 o P cut 3 o F b", "4 o F c"])
            .hole(0, 18, 1000)
    };
    let text = MISSING.replace("1,000", "1,010");
    let log = format!("a\n{text}b\nc\n");
    let server = Server::start(world()).await;
    assert_eq!(server.get("t/log").await.1, log);
    assert_eq!(server.get("t/log?follow=true").await.1, log);
    assert_eq!(
        server.get("t/log?tailLines=2").await.1,
        "b\nc\n",
        "the gap stands before them"
    );
    assert_eq!(server.get("t/log?tailLines=3").await.1, log);
    assert_eq!(
        server.get("t/log?sinceTime=1970-01-01T00:00:00.004Z").await.1,
        "c\n"
    );
    let (_, records) = server.get("t/log?format=records").await;
    assert_eq!(
        records,
        "# 1 1\n1 0 8 1 o F a\n~ 1 0 8 1018 limit\n1 0 1026 3 o F b\n1 0 1034 4 o F c\n"
    );
    let (_, records) = server.get("t/log?format=records&positions=1.0.1026").await;
    assert_eq!(records, "# 1 1\n1 0 1034 4 o F c\n");
    // Wherever the connection breaks, also within the mark.
    for at in [3, 20, 60, 100, 105] {
        let broken = [Answer::Breaks(at), Answer::Breaks(at)];
        let server = Server::start(world().answers(&broken)).await;
        assert_eq!(server.get("t/log?follow=true").await.1, log, "broken at {at}");
    }
}

#[tokio::test]
async fn each_rank_says_what_is_missing_of_it() {
    let status = json!({ "phase": "Succeeded", "attempt": 1, "placed": [{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }] });
    let world = World::with("t", status)
        .log(1, 0, &["1 o F zero"])
        .log(1, 1, &["1 o F one", "2 o F two"])
        .hole(1, 10, 1000);
    let server = Server::start(world).await;
    assert_eq!(
        server.get("t/log").await.1,
        format!("[0] zero\n[1] one\n[1] {MISSING}[1] two\n")
    );
}

#[tokio::test]
async fn the_end_of_a_long_log_is_found_without_reading_all_of_it() {
    let lines: Vec<String> = (0..20_000)
        .map(|n| format!("{} o F line {n}", n * 1000))
        .collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let server = Server::start(World::with("t", ended()).log(1, 0, &lines)).await;
    let (_, three) = server.get("t/log?tailLines=3").await;
    assert_eq!(three, "line 19997\nline 19998\nline 19999\n");
    let (_, none) = server.get("t/log?tailLines=0").await;
    assert_eq!(none, "");
    let (_, many) = server.get("t/log?tailLines=19999").await;
    assert_eq!(many.lines().count(), 19_999);
    let (_, all) = server.get("t/log?tailLines=99999").await;
    assert_eq!(all.lines().count(), 20_000);
    let (_, late) = server
        .get("t/log?sinceTime=1970-01-01T05:33:18Z&timestamps=true")
        .await;
    assert_eq!(
        late,
        "1970-01-01T05:33:18.000Z line 19998\n1970-01-01T05:33:19.000Z line 19999\n"
    );
    let (_, both) = server
        .get("t/log?sinceTime=1970-01-01T05:33:18Z&tailLines=1000")
        .await;
    assert_eq!(both.lines().count(), 2);
    let (_, some) = server.get("t/log?limitBytes=10").await;
    assert_eq!(some, "line 0\nlin");
}

#[tokio::test]
async fn the_tail_is_that_of_the_attempt_that_ran_when_it_was_asked_for() {
    let running = |attempt: u32| json!({ "phase": "Running", "attempt": attempt, "placed": [{ "slot": 0, "attempt": 1 }] });
    let done = json!({ "phase": "Succeeded", "attempt": 2, "placed": [{ "slot": 0, "attempt": 2 }] });
    let world = || {
        World::with("t", running(1))
            .log(1, 0, &["1 o F a", "2 o F b"])
            .log(2, 0, &["3 o F c", "4 o F d"])
            // The first answer is counted, the second shown.
            .answers(&[
                Answer::All,
                Answer::AllThen(running(2)),
                Answer::AllThen(done.clone()),
            ])
    };
    let server = Server::start(world()).await;
    assert_eq!(server.get("t/log?follow=true&tailLines=1").await.1, "b\nc\nd\n");
    // A client that is cut off before a line came knows where to go on all the same.
    let server = Server::start(world()).await;
    let (_, records) = server.get("t/log?follow=true&tailLines=0&format=records").await;
    assert_eq!(
        records,
        "# 1 1\n@ 1 0 16\n# 2 1\n@ 2 0 0\n2 0 8 3 o F c\n2 0 16 4 o F d\n"
    );
}
