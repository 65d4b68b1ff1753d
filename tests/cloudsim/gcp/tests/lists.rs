//! Lists: pages, filters, zones without results and without an answer, and lists that lag.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::super::filter::fits;
use super::{ZONE, order, refusal, world};

#[test]
fn filters_compare_fields_and_are_joined_by_and_or_and_parentheses() {
    let thing =
        json!({ "name": "pool-0", "status": "RUNNING", "labels": { "managed-by": "skyward", "pool": "p" } });
    for (filter, wanted) in [
        ("", true),
        ("labels.managed-by=skyward", true),
        ("labels.managed-by = \"skyward\"", true),
        ("labels.managed-by=someone", false),
        ("labels.pool:*", true),
        ("labels.job:*", false),
        ("name:pool", true),
        ("name eq pool-0", true),
        ("status != RUNNING", false),
        ("labels.job != x", true),
        ("(labels.pool=p) (status=RUNNING)", true),
        ("labels.pool=p AND status=STOPPING", false),
    ] {
        assert_eq!(fits(filter, &thing), Ok(wanted), "{filter}");
    }
    for wrong in [
        "labels.pool",
        "=p",
        "(labels.pool=p",
        "name=\"pool-0",
        "name!pool-0",
        "(name=a) OR (name=b)",
        "name=a name=b",
    ] {
        assert!(fits(wrong, &thing).is_err(), "{wrong}");
    }
}

fn names(list: &Value) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items
        .map(|item| item["name"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn lists_come_in_pages_and_an_empty_one_has_no_items() {
    let world = world().await;
    let empty = world.get(&format!("zones/{ZONE}/instances")).await.json();
    assert_eq!(
        (empty.get("items"), &empty["kind"]),
        (None, &json!("compute#instanceList"))
    );
    for number in 0..3 {
        let mut order = order();
        order["name"] = format!("pool-{number}").into();
        assert_eq!(world.order(order).await.status, 200);
    }
    let first = world
        .get("aggregated/instances?maxResults=2&filter=labels.pool%3Dp")
        .await
        .json();
    assert_eq!(
        names(&first["items"]["zones/us-central1-a"]["instances"]),
        ["pool-0", "pool-1"]
    );
    let token = first["nextPageToken"]
        .as_str()
        .unwrap()
        .replace('=', "%3D")
        .replace('+', "%2B");
    let second = world
        .get(&format!("aggregated/instances?maxResults=2&pageToken={token}"))
        .await
        .json();
    assert_eq!(
        names(&second["items"]["zones/us-central1-a"]["instances"]),
        ["pool-2"]
    );
    assert_eq!(second.get("nextPageToken"), None);
    let nothing = &second["items"]["zones/us-central1-b"]["warning"]["code"];
    assert_eq!(nothing, "NO_RESULTS_ON_PAGE");
    assert_eq!(
        refusal(&world.get("aggregated/instances?maxResults=501").await).0,
        400
    );
    assert_eq!(
        refusal(&world.get("aggregated/instances?filter=labels").await).0,
        400
    );
    world.is_content();
}

#[tokio::test]
async fn a_zone_that_cannot_be_reached_is_named_and_its_instances_are_missing() {
    let world = world().await;
    world.running(order()).await;
    world.control("zones", json!({ "unreachable": [ZONE] }));
    let list = world.get("aggregated/instances").await.json();
    assert_eq!(list["unreachables"], json!(["zones/us-central1-a"]));
    assert_eq!(
        list["items"]["zones/us-central1-a"]["warning"]["code"],
        "UNREACHABLE"
    );
    assert_eq!(list["items"]["zones/us-central1-a"].get("instances"), None);
    world.is_content();
}

#[tokio::test]
async fn lists_lag_and_a_look_at_one_instance_does_not() {
    let world = world().await;
    world
        .sim()
        .world(|world| world.lag.created = SignedDuration::from_secs(10));
    world.order(order()).await;
    let list = async || world.get(&format!("zones/{ZONE}/instances")).await.json();
    assert_eq!(list().await.get("items"), None);
    assert_eq!(world.status().await, "PROVISIONING");
    world.0.advance(10);
    assert_eq!(names(&list().await["items"]), ["pool-0"]);
}

#[tokio::test]
async fn types_tell_their_accelerators_and_zones_what_they_sell() {
    let world = world().await;
    let types = world.get("aggregated/machineTypes").await.json();
    let of = |zone: &str| types["items"][format!("zones/{zone}")]["machineTypes"].clone();
    let found = of(ZONE);
    let find = |name: &str| {
        let mut types = found.as_array().unwrap().iter();
        types.find(|kind| kind["name"] == name).cloned().unwrap()
    };
    let card = |name: &str| find(name)["accelerators"][0].clone();
    assert_eq!(
        card("g2-standard-48"),
        json!({ "guestAcceleratorType": "nvidia-l4", "guestAcceleratorCount": 4 })
    );
    assert_eq!(card("a2-ultragpu-1g")["guestAcceleratorType"], "nvidia-a100-80gb");
    assert_eq!(find("e2-standard-4").get("accelerators"), None);
    assert_eq!(find("c4a-standard-4")["architecture"], "ARM64");
    assert!(names(&found).iter().all(|name| !name.contains('+')), "{found}");
    assert!(names(&of("us-east5-b")).contains(&"a4-highgpu-8g".to_owned()));
    assert_eq!(find("g2-standard-48")["memoryMb"], 192 * 1024);
    let cards = world.get(&format!("zones/{ZONE}/acceleratorTypes")).await.json();
    assert!(
        names(&cards["items"]).contains(&"nvidia-l4-vws".to_owned()),
        "{cards}"
    );
    let zones = world.get("zones").await.json();
    assert_eq!(zones["items"][0]["status"], "DOWN");
    assert_eq!(refusal(&world.get("zones/mars-1-a/instances").await).0, 404);
    world.is_content();
}

#[tokio::test]
async fn a_family_has_its_newest_image_until_it_is_retired() {
    let world = world().await;
    let deep = "/compute/v1/projects/deeplearning-platform-release/global/images";
    let family = format!("{deep}/family/common-cu128-ubuntu-2204-nvidia-570");
    let image = world.1.get(&family).await.unwrap().json();
    assert_eq!(image["diskSizeGb"], "50");
    world.control(
        "images",
        json!({ "retired": ["common-cu128-ubuntu-2204-nvidia-570"] }),
    );
    assert_eq!(refusal(&world.1.get(&family).await.unwrap()).0, 404);
    let name = image["name"].as_str().unwrap();
    let old = world.1.get(&format!("{deep}/{name}")).await.unwrap().json();
    assert_eq!(old["deprecated"]["state"], "DEPRECATED");
    assert_eq!(world.order(order()).await.status, 400);
    world.is_content();
}
