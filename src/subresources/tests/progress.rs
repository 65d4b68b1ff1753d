//! How far a Task is, as the leader heard it last.

use super::*;
use crate::progress::TaskProgress;

async fn progress(world: World) -> TaskProgress {
    let server = Server::start(world).await;
    let (status, body) = server.get("t/progress").await;
    assert_eq!(status, StatusCode::OK, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn running(progress: &str) -> Value {
    json!({ "phase": "Running", "attempt": 2, "progress": progress })
}

#[tokio::test]
async fn what_the_leader_heard_last_is_told_before_it_stands_in_the_status() {
    let world = World::with("t", running("1/20"))
        .says(1, 0, 9, 10)
        .says(2, 0, 3, 10)
        .says(2, 1, 4, 10);
    let told = progress(world).await;
    let ranks: Vec<(u32, u64, u64)> = told
        .ranks
        .iter()
        .map(|rank| (rank.rank, rank.done, rank.total))
        .collect();
    assert_eq!((told.attempt, &*told.progress), (2, "7/20"));
    assert_eq!(ranks, [(0, 3, 10), (1, 4, 10)]);
    let one_does_not_know = World::with("t", running(""))
        .says(2, 0, 3, 10)
        .says(2, 1, u64::MAX, 0);
    assert_eq!(progress(one_does_not_know).await.progress, u64::MAX.to_string());
}

#[tokio::test]
async fn a_task_with_items_is_as_far_as_its_items_and_its_ranks_tell_of_single_ones() {
    let mut status = running("");
    status["done"] = "12/1000".into();
    let world = World::with("t", status).says(2, 0, 3, 10).says(2, 1, 4, 10);
    let for_each = serde_json::from_value(json!({ "count": 1000 })).unwrap();
    if let Some(task) = world.tasks.lock().get_mut("t") {
        task.spec.for_each = Some(for_each);
    }
    let told = progress(world).await;
    assert_eq!((&*told.progress, told.ranks.len()), ("12/1000", 2));
}

#[tokio::test]
async fn a_leader_that_has_just_begun_and_a_task_that_ended_tell_what_the_status_says() {
    let new = World::with("t", running("5/9")).log(2, 0, &[]);
    assert_eq!(progress(new).await.progress, "5/9");
    let ended = json!({ "phase": "Succeeded", "attempt": 1, "progress": "9/9" });
    let told = progress(World::with("t", ended).says(1, 0, 8, 9).away(u32::MAX)).await;
    assert_eq!((told.phase.as_str(), &*told.progress), ("Succeeded", "9/9"));
    assert!(told.ranks.is_empty(), "{told:?}");
}

#[tokio::test]
async fn progress_is_for_users_who_may_read_it() {
    let server = Server::start(World::with("t", running("5/9")).log(2, 0, &[])).await;
    let (status, body) = server.get_as("ben", "t/progress").await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
    assert_eq!(server.get("unknown/progress").await.0, StatusCode::NOT_FOUND);
}
