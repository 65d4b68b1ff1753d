use rstest::rstest;
use skyward_api::shared::Disk as Size;
use skyward_core::{Usd, machine::Dial};

use super::*;
use crate::fixtures;

fn order() -> Order {
    Order {
        instance_type: "L4-1-24G".into(),
        region: "fr-par-2".into(),
        ..fixtures::order()
    }
}

fn recorded<T: serde::de::DeserializeOwned>(list: &str) -> Vec<T> {
    let body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/scaleway/servers.json")).unwrap();
    serde_json::from_value(body[list].clone()).unwrap()
}

fn servers() -> Vec<Server> {
    recorded("servers")
}

fn written(order: &Order, settings: &Settings) -> Value {
    body(order, settings, "project", "i-new")
}

#[test]
fn an_order_has_a_disk_and_a_server_that_carry_its_mark() {
    let written = written(&order(), &Settings::default());
    assert_eq!(written["name"], "skyward-train-0-1");
    assert_eq!(written["commercial_type"], "L4-1-24G");
    assert_eq!(
        (&written["image"], &written["project"]),
        (&json!("i-new"), &json!("project"))
    );
    assert_eq!(written["dynamic_ip_required"], true);
    assert_eq!(written.get("security_group"), None);
    let mut server = servers().remove(1);
    server.tags = Some(serde_json::from_value(written["tags"].clone()).unwrap());
    assert!(
        server
            .tags
            .iter()
            .flatten()
            .any(|tag| tag == "AUTHORIZED_KEY=ssh-ed25519_AAAA")
    );
    assert_eq!(Machine::Server(server).mark(), Some(order().mark));
    let volume = &written["volumes"]["0"];
    assert_eq!(volume["volume_type"], "sbs_volume");
    assert_eq!(volume.get("name"), None, "Scaleway would not keep it");
}

#[test]
fn the_disk_that_was_made_with_a_server_is_marked_as_its_server_is() {
    let servers = servers();
    let (id, names) = disk(&servers[0]).unwrap();
    assert_eq!(id, "5d6e7f80-66fd-4dfb-b839-443f2e6c0b60");
    assert_eq!(names["name"], "skyward-train-0-1");
    let marked = Disk {
        tags: serde_json::from_value(names["tags"].clone()).unwrap(),
        ..recorded("volumes").remove(2)
    };
    assert_eq!(Machine::Disk(marked).mark(), Some(order().mark));
    assert!(disk(&servers[1]).is_none(), "it is not ours");
    let not_yet = Server {
        volumes: json!({}),
        ..servers[0].clone()
    };
    assert!(disk(&not_yet).is_none());
}

#[rstest]
#[case::by_itself(None, None, 125)]
#[case::of_the_settings(Some("200G"), None, 200)]
#[case::of_the_pool(Some("200G"), Some(300_000_000_001), 301)]
#[case::beyond_all(None, Some(u64::MAX), 18_446_744_073)]
fn a_disk_has_the_size_that_is_asked_for(
    #[case] setting: Option<&str>,
    #[case] asked: Option<u64>,
    #[case] expected_gb: u64,
) {
    let settings = Settings {
        disk: setting.map(|size| serde_json::from_value::<Size>(json!(size)).unwrap()),
        security_group: Some("g".into()),
        ..Settings::default()
    };
    let mut order = order();
    order.disk_bytes = asked;
    let written = written(&order, &settings);
    let size = written["volumes"]["0"]["size"].as_u64().unwrap();
    assert_eq!(size / 1_000_000_000, expected_gb);
    assert_eq!(written["security_group"], "g");
}

#[test]
fn the_newest_ubuntu_of_scaleway_with_drivers_in_block_storage_is_taken() {
    let images: Vec<Image> = recorded("images");
    assert_eq!(image(&images).as_deref(), Some("i-new"));
    let without_it: Vec<Image> = images.into_iter().filter(|image| image.id != "i-new").collect();
    assert_eq!(
        image(&without_it).as_deref(),
        Some("i-old"),
        "it was published again later"
    );
    let none: Vec<Image> = without_it
        .into_iter()
        .filter(|image| image.id != "i-old")
        .collect();
    assert_eq!(image(&none), None);
}

#[test]
fn a_disk_counts_where_no_server_has_it() {
    let ids = |servers: Vec<Server>| -> Vec<String> {
        let all = machines(servers, recorded("volumes"));
        all.iter()
            .map(Listed::id)
            .filter(|id| id.contains("66fd"))
            .collect()
    };
    let [server, disk, left] = [
        "cb676a46-66fd-4dfb-b839-443f2e6c0b60",
        "5d6e7f80-66fd-4dfb-b839-443f2e6c0b60",
        "6e7f8091-66fd-4dfb-b839-443f2e6c0b60",
    ];
    assert_eq!(ids(servers()), [server, left]);
    assert_eq!(ids(Vec::new()), [disk, left], "and what others made never counts");
}

#[test]
fn a_disk_that_is_left_is_a_machine_that_the_sweep_ends() {
    let mut disk: Disk = recorded("volumes").remove(1);
    let left = machine(&Machine::Disk(disk.clone())).unwrap();
    assert_eq!((left.mark.machine_uid.as_str(), left.mark.slot), ("n-uid", 1));
    // What is on its way out is no orphan.
    assert!(matches!(left.phase, ProviderPhase::Stopped(_)), "{left:?}");
    assert_eq!(left.endpoint, None);
    assert_eq!(left.rental.region.as_deref(), Some("fr-par-2"));
    assert!(
        Machine::Disk(disk.clone()).unfinished(),
        "no order is answered by it"
    );
    disk.status = Some("deleted".into());
    assert!(Machine::Disk(disk).gone());
}

#[test]
fn a_server_is_a_machine_and_what_is_not_ours_is_none() {
    let mut servers = servers();
    servers[0].price = Some(Usd::cents(81));
    let found = machine(&Machine::Server(servers[0].clone())).unwrap();
    assert_eq!(found.mark, order().mark);
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.private_address, None);
    assert_eq!(found.rental.region.as_deref(), Some("fr-par-2"));
    assert_eq!(found.rental.hourly_price, Some(Usd::cents(81)));
    assert_eq!(
        found.rental.billed_since,
        time(Some("2026-01-01T00:00:00.123456Z"))
    );
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
    assert!(machine(&Machine::Server(servers[1].clone())).is_none());
    assert!(!Machine::Server(servers[0].clone()).unfinished());
    assert!(
        Machine::Server(servers[1].clone()).unfinished(),
        "it is not switched on"
    );
}

#[rstest]
#[case("starting", "booting kernel", true, "Starting")]
#[case("running", "booted", true, "Running")]
#[case("running", "booting kernel", false, "Starting")]
#[case("stopped", "allocating node", false, "Starting")]
#[case("stopped", "", false, "Stopped")]
#[case("stopped in place", "", true, "Stopped")]
#[case("stopping", "", true, "Stopping")]
#[case("locked", "", true, "Lost")]
#[case("something new", "", true, "Starting")]
fn each_state_has_its_phase(
    #[case] state: &str,
    #[case] detail: &str,
    #[case] has_address: bool,
    #[case] expected: &str,
) {
    let mut server = servers().remove(0);
    state.clone_into(&mut server.state);
    server.state_detail = Some(detail.into());
    if !has_address {
        server.public_ips = json!([]);
    }
    let phase = format!("{:?}", machine(&Machine::Server(server)).unwrap().phase);
    assert!(phase.starts_with(expected) || phase.contains(expected), "{phase}");
}
