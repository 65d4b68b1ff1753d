//! Outcomes of runs that only the store remembers.

use bytes::Bytes;
use skyward_planner::task::message::Remembered;

use super::*;

async fn end(store: &Arc<Store>, attempt: u32, ending: Ending) {
    let finished = Finished {
        ending,
        ..Finished::default()
    };
    let order = CollectOrder {
        run: RunId { attempt, ..run() },
        keep: true,
        ..order(&finished)
    };
    collect(store, None, &order, Some(&[]), &Metrics::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_value_that_is_stored_is_an_outcome() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    store
        .put_result("uid", "uid-1-0", Bytes::from_static(b"[1,2]"))
        .await
        .unwrap();
    let found = recall(&store, &run(), &metrics).await.unwrap().unwrap();
    assert_eq!(found.reason, reason::SUCCEEDED);
    assert_eq!(found.result.value, Some(serde_json::json!([1, 2])));
    assert_eq!(found.result.value_bytes, Some(5));
    // What is stored of a run stays until its Task goes.
    store.delete_task("uid").await.unwrap();
    let large = format!("\"{}\"", "x".repeat(100_000));
    store
        .put_result("uid", "uid-1-0", Bytes::from(large))
        .await
        .unwrap();
    let found = recall(&store, &run(), &metrics).await.unwrap().unwrap();
    assert_eq!(
        (found.result.value, found.result.value_bytes),
        (None, Some(100_002))
    );
}

#[tokio::test]
async fn of_later_attempts_the_newest_that_came_to_its_end_counts() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    let uid = &run().uid;
    let later = |after| recall_later(&store, uid, after, &metrics);
    assert_eq!(later(0).await.unwrap(), Remembered::default());
    end(&store, 1, Ending::Exited).await;
    assert_eq!(
        later(1).await.unwrap(),
        Remembered::default(),
        "the Task knows that one"
    );
    end(&store, 2, Ending::MachineRestarted).await;
    let found = later(1).await.unwrap();
    assert_eq!(
        (found.newest, found.outcome.is_none()),
        (2, true),
        "another attempt followed"
    );
    end(&store, 3, Ending::Exited).await;
    store
        .put_log_segment("uid", "uid-4-0", 0, Bytes::from_static(b"x"))
        .await
        .unwrap();
    let found = later(1).await.unwrap();
    assert_eq!(found.newest, 4, "that went on");
    assert_eq!(found.outcome.unwrap().0, 3);
}
