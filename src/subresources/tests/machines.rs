//! Output of Machines' bootstraps, and the check of who may read it.

use super::*;

fn world() -> World {
    let mut world = World::default();
    let machine = ("n".to_owned(), "train-5b9d2-0-1".to_owned());
    world
        .machines
        .insert(machine, "--- 1/2 apt ---\nE: no\n".to_owned());
    world
}

const LOG: &str = "/apis/subresources.skyward.dev/v1alpha1/namespaces/n/machines/train-5b9d2-0-1/log";

#[tokio::test]
async fn the_log_of_a_machine_is_text_although_its_record_is_gone() {
    let server = Server::start(world()).await;
    assert_eq!(
        server.get(LOG).await,
        (StatusCode::OK, "--- 1/2 apt ---\nE: no\n".to_owned())
    );
    let (status, body) = server.get(&LOG.replace("-0-1", "-0-2")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("as long as the Pool lives"), "{body}");
    let (status, body) = server.get(&LOG.replace("train-", "..%2F")).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(body.contains("not found"), "{body}");
}

#[tokio::test]
async fn who_may_not_read_logs_of_machines_gets_403_whether_there_is_one_or_not() {
    let server = Server::start(world()).await;
    for path in [LOG.to_owned(), LOG.replace("-0-1", "-9-9")] {
        let (status, body) = server.get_as("ben", &path).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert!(body.contains("machines/log"), "{body}");
    }
}

#[tokio::test]
async fn where_no_controller_leads_the_log_of_a_machine_is_waited_for_and_then_it_is_said() {
    let server = Server::start(world().away(1)).await;
    assert_eq!(server.get(LOG).await.0, StatusCode::OK);
    let server = Server::patient(world().away(1), Duration::ZERO).await;
    assert_eq!(server.get(LOG).await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.get(LOG).await.0, StatusCode::OK);
}
