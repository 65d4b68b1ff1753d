//! Forms of answers that other sources have.

use serde_json::{Value, json};

use super::{LAUNCH_FAILED, furnished, order, refusal};
use crate::{Fault, Rule};

const UNKNOWN: &str = "00000000-0000-4000-8000-000000000001";

#[tokio::test]
async fn an_unknown_uuid_is_an_empty_list_or_a_404() {
    let world = furnished().await;
    let path = format!("instance/{UNKNOWN}");
    let empty = world.get(&path).await;
    assert_eq!(
        (empty.status, empty.json()),
        (200, json!({"runningInstances": []}))
    );
    world.answers(&["missing"]);
    assert_eq!(world.get(&path).await.status, 404);
    assert_eq!(
        refusal(&world.terminate(&[UNKNOWN]).await),
        (404, "No valid VMs found".to_owned())
    );
    let id = world.running(order()).await;
    world
        .sim()
        .fault(Rule::once("instances.get", Fault::PartialPage { keep: 0 }));
    let path = format!("instance/{id}");
    assert_eq!(world.get(&path).await.status, 404, "it is forgotten");
    assert_eq!(world.get(&path).await.status, 200);
    world.is_content();
}

#[tokio::test]
async fn the_official_page_has_an_object_a_number_for_the_password_and_no_texts_of_keys() {
    let world = furnished().await;
    let id = world.running(order()).await;
    let password = world.instance(&id).await["password"].clone();
    world.answers(&["official"]);
    let single = world.get(&format!("instance/{id}")).await.json();
    let instance = &single["runningInstance"];
    assert_eq!(
        (&instance["uuid"], &instance["status"], &instance["active"]),
        (&json!(id), &json!("rented"), &json!(1))
    );
    assert!(single["runningInstances"].is_null(), "{single}");
    assert_eq!(instance["password"].to_string(), password.as_str().unwrap());
    let listed = world.get("instance").await.json();
    assert_eq!(listed["runningInstances"][0], *instance);
    let keys = world.get("ssh-keys").await.json();
    assert_eq!(keys["sshKeys"][0].get("public_key"), None);
    let none = world.get(&format!("instance/{UNKNOWN}")).await;
    assert_eq!(none.json(), json!({"runningInstances": []}));
    world.is_content();
}

#[tokio::test]
async fn a_status_may_have_no_capital_letters() {
    let world = furnished().await;
    let id = world.running(order()).await;
    world.answers(&["lower"]);
    assert_eq!(world.status(&id).await, "running");
    world.is_content();
}

#[tokio::test]
async fn a_failure_may_be_plain_text() {
    let world = furnished().await;
    world.answers(&["plain", "shortage"]);
    let mut wrong = order();
    wrong["productName"] = "none".into();
    let refused = world.post("instance/launch", wrong).await;
    assert_eq!((refused.status, refused.body.as_str()), (400, LAUNCH_FAILED));
    assert_eq!(refused.header("content-type"), Some("text/plain; charset=utf-8"));
    let busy = Fault::TooMany { retry_after: Some(7) };
    world.sim().fault(Rule::once("instances.list", busy));
    let refused = world.get("instance").await;
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("7")));
    assert_eq!(refused.json(), Value::Null);
    world.is_content();
}

#[tokio::test]
async fn a_form_that_there_is_not_is_refused() {
    let world = furnished().await;
    let set = world.sim().control("answers", &json!(["round"]));
    assert!(matches!(set, Some(Err(_))), "{set:?}");
    assert_eq!(world.sim().control("others", &json!([])), None);
}
