//! A namespace that has filled its part of the store, and other namespaces beside it.

use skyward_store::{Quota, Space, Volume};

use super::*;

const MIB: usize = 1 << 20;

/// A volume with so much room, and so much of it free.
struct Fixed(u64, u64);

impl Volume for Fixed {
    fn space(&self) -> std::io::Result<Space> {
        let Self(total, free) = *self;
        Ok(Space {
            total,
            free,
            files: 0,
            files_free: 0,
        })
    }
}

/// A store in which each namespace may hold 2 MiB.
fn small() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path()).unwrap().unmeasured();
    (folder, Arc::new(store.with_quota(Quota::Bytes(2 << 20))))
}

fn agent_with(log: usize, value: usize) -> (FakeAgent, Finished) {
    let line = b"1700000000000 o F 0123456789\n";
    let agent = FakeAgent {
        log: line.iter().copied().cycle().take(log).collect(),
        result: vec![b'1'; value],
        ..FakeAgent::default()
    };
    let finished = Finished {
        log_bytes: log as u64,
        has_result: value > 0,
        result_bytes: value as u64,
        finished_ms: 1_700_000_001_000,
        ..exited(0)
    };
    (agent, finished)
}

#[tokio::test]
async fn a_log_beyond_the_quota_is_cut_and_says_so_and_its_task_ends() {
    let (_folder, store) = small();
    let metrics = Metrics::default();
    store.charge("uid", "loud");
    let (agent, finished) = agent_with(5 * MIB, 60_000);
    let collected = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(collected.reason, reason::SUCCEEDED);
    assert_eq!(
        collected.result.value_bytes,
        Some(60_000),
        "a small value is kept"
    );
    let stored = log(&store).await;
    assert!(stored.len() < 2 * MIB, "{}", stored.len());
    let last = skyward_agent::log::records(&stored, 0).last().unwrap();
    let words = String::from_utf8_lossy(last.content).into_owned();
    let missing = 5 * MIB - 3 * MIB / 2;
    for part in [
        "[skyward]",
        "loud",
        "store.quotaPerNamespace",
        &format!("{missing} bytes"),
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    assert_eq!(last.unix_ms, 1_700_000_001_000);
    // The log itself is not changed.
    assert!(agent.log.starts_with(&stored[..MIB]));
    // Another namespace has its whole quota.
    store.charge("other", "quiet");
    let quiet = CollectOrder {
        run: RunId {
            uid: "other".into(),
            attempt: 1,
            rank: 0,
        },
        ..order(&agent_with(MIB + 5, 0).1)
    };
    let (agent, _) = agent_with(MIB + 5, 0);
    collect(&store, Some(&agent), &quiet, Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(store.log_end("other", "other-1-0").await.unwrap(), MIB as u64 + 5);
}

#[tokio::test]
async fn a_large_value_without_room_waits_and_is_stored_when_there_is_room() {
    let (_folder, store) = small();
    let metrics = Metrics::default();
    store.charge("full", "team");
    store
        .put_log_segment("full", "run", 0, vec![b'x'; MIB].into())
        .await
        .unwrap();
    store.charge("uid", "team");
    let (agent, finished) = agent_with(0, 3 * MIB / 2);
    for _ in 0..3 {
        let held = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics).await;
        let Err(CollectError::Quota(why)) = held else {
            panic!("{held:?}");
        };
        assert!(why.contains("\"team\"") && why.contains("delete Tasks"), "{why}");
        assert_eq!(
            store.result_end("uid", "uid-1-0").await.unwrap(),
            0,
            "it takes no room meanwhile"
        );
    }
    store.delete_task("full").await.unwrap();
    let collected = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
    let value = store.get_result("uid", "uid-1-0", 0).await.unwrap().unwrap();
    assert_eq!(value.size, 3 * MIB as u64 / 2);
}

#[tokio::test]
async fn a_value_that_has_waited_long_enough_is_given_up_and_its_task_fails_and_says_why() {
    let (_folder, store) = small();
    let metrics = Metrics::default();
    store.charge("uid", "team");
    let (agent, finished) = agent_with(3 * MIB, 3 * MIB);
    let order = CollectOrder {
        give_up: true,
        keep: true,
        ..order(&finished)
    };
    let collected = collect(&store, Some(&agent), &order, Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(collected.reason, reason::RESULT_NOT_STORED);
    let message = &collected.result.message;
    for part in [
        "3 MiB",
        "store.holdFor",
        "store.quotaPerNamespace",
        "delete Tasks",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(store.get_result("uid", "uid-1-0", 0).await.unwrap().is_none());
    let recalled = recall(&store, &run(), &metrics).await.unwrap().unwrap();
    assert_eq!(
        recalled.reason,
        reason::RESULT_NOT_STORED,
        "a later leader knows it too"
    );
    assert!(String::from_utf8_lossy(&log(&store).await).contains("[skyward] the log ends here"));
}

#[tokio::test]
async fn a_run_with_a_small_value_ends_although_others_have_filled_the_volume() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path()).unwrap().unmeasured();
    let store = Arc::new(store.with_volume(Arc::new(Fixed(100 << 20, 9 << 20))));
    let metrics = Metrics::default();
    store.charge("uid", "quiet");
    let (agent, finished) = agent_with(0, 60_000);
    let collected = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
    // Its log waits for room, and is given up only after that.
    let (agent, finished) = agent_with(100_000, 60_000);
    let held = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics).await;
    assert!(
        matches!(&held, Err(CollectError::Full(why)) if why.contains("enlarge its volume")),
        "{held:?}"
    );
    let last = CollectOrder {
        give_up: true,
        ..order(&finished)
    };
    let collected = collect(&store, Some(&agent), &last, Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(collected.reason, reason::SUCCEEDED, "only its log is cut");
    assert!(String::from_utf8_lossy(&log(&store).await).contains("100000 bytes"));
}

#[tokio::test]
async fn a_value_that_its_machine_does_not_give_is_given_up_after_the_wait_and_its_log_is_kept() {
    let (_folder, store) = small();
    let metrics = Metrics::default();
    let liar = Liar(vec![chunk(0, b"abc")]);
    let finished = Finished {
        log_bytes: 3,
        has_result: true,
        result_bytes: 100_000,
        ..exited(0)
    };
    let early = collect(&store, Some(&liar), &order(&finished), Some(&[]), &metrics).await;
    assert!(matches!(early, Err(CollectError::Machine(_))), "{early:?}");
    let last = CollectOrder {
        unreadable: true,
        ..order(&finished)
    };
    let away = collect(&store, None, &last, Some(&[]), &metrics).await;
    assert!(
        matches!(away, Err(CollectError::Machine(_))),
        "a machine that is away is waited for: {away:?}"
    );
    let collected = collect(&store, Some(&liar), &last, Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(collected.reason, reason::RESULT_NOT_STORED);
    assert!(collected.result.message.contains("store.holdFor"));
    assert_eq!(log(&store).await, b"abc");
}

#[tokio::test]
async fn a_log_that_its_machine_does_not_give_is_given_up_after_the_wait_and_what_is_missing_is_said() {
    let (_folder, store) = small();
    let metrics = Metrics::default();
    // Its offsets go back.
    let liar = Liar(vec![chunk(0, b"abc"), chunk(1, b"x")]);
    let finished = Finished {
        log_bytes: 1000,
        ..exited(0)
    };
    let last = CollectOrder {
        unreadable: true,
        ..order(&finished)
    };
    let early = collect(&store, Some(&liar), &order(&finished), Some(&[]), &metrics).await;
    assert!(matches!(early, Err(CollectError::Machine(_))), "{early:?}");
    let collected = collect(&store, Some(&liar), &last, Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(collected.reason, reason::SUCCEEDED);
    let message = collected.result.message;
    assert!(message.contains("1000 bytes of its log are missing"), "{message}");
    assert!(String::from_utf8_lossy(&log(&store).await).contains("[skyward] the log ends here"));
}

#[tokio::test]
async fn a_value_that_came_with_the_end_is_safe_although_the_log_must_be_fetched_and_is_not_given() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    let mut finished = Finished {
        log_bytes: 100_000,
        has_result: true,
        result: vec![b'1'; 3000],
        result_bytes: 3000,
        ..exited(0)
    };
    let liar = Liar(vec![chunk(7, b"x"), chunk(0, b"back")]);
    let held = collect(&store, Some(&liar), &order(&finished), Some(&[]), &metrics).await;
    assert!(matches!(held, Err(CollectError::Machine(_))), "{held:?}");
    // The value is not kept in memory while it waits.
    finished.result = Vec::new();
    let last = CollectOrder {
        unreadable: true,
        ..order(&finished)
    };
    let collected = collect(&store, Some(&liar), &last, Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(collected.reason, reason::SUCCEEDED);
    let value = store.get_result("uid", "uid-1-0", 0).await.unwrap().unwrap();
    assert_eq!(value.size, 3000);
}
