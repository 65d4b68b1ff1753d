use rstest::rstest;
use skyward_core::{ErrorKind, machine::Dial};

use super::*;
use crate::{fixtures, tensordock::wire};

/// An order of the machine that the recorded answers have: names hold UIDs alone.
fn order() -> Order {
    let mut order = fixtures::order();
    order.mark.cluster = "0c3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.pool_uid = "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.machine_uid = "2e3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order
}

fn shape() -> Shape {
    Shape {
        location: "loc".into(),
        gpu: "h100-sxm5-80gb".into(),
        count: 2,
        vcpus: 8,
        ram_gb: 32,
        storage_gb: 150,
        price: Usd::cents(460),
    }
}

/// The machine as its id tells it.
fn whole() -> Machine {
    let told = serde_json::from_str(include_str!("../../tests/fixtures/tensordock/instance.json")).unwrap();
    wire::machine(told).unwrap()
}

/// The machines as a list tells them.
fn listed() -> Vec<Machine> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/tensordock/instances.json")).unwrap();
    let all: Vec<Value> = serde_json::from_value(body["data"]["instances"].take()).unwrap();
    all.into_iter().filter_map(wire::machine).collect()
}

/// The name of that machine.
fn own() -> Option<String> {
    whole().name
}

fn cut() -> Option<String> {
    own()?.get(..63).map(str::to_owned)
}

fn of_others() -> String {
    "My Instance".to_owned()
}

fn named(name: Option<String>) -> Machine {
    Machine { name, ..whole() }
}

#[test]
fn an_order_has_its_hardware_a_port_for_ssh_and_its_mark_in_the_name() {
    let written = body(&order(), &Settings::default(), &shape()).unwrap();
    assert_eq!(written["data"]["type"], "virtualmachine");
    let attributes = &written["data"]["attributes"];
    assert_eq!(attributes["type"], "virtualmachine");
    assert_eq!(attributes["image"], "ubuntu2404_ml_everything");
    assert_eq!(attributes["location_id"], "loc");
    assert_eq!(
        attributes["resources"],
        json!({
            "vcpu_count": 8, "ram_gb": 32, "storage_gb": 150, "gpus": { "h100-sxm5-80gb": { "count": 2 } },
        })
    );
    assert_eq!(
        attributes["port_forwards"],
        json!([{ "internal_port": 22, "external_port": 0 }])
    );
    assert_eq!(attributes["ssh_key"], "ssh-ed25519 AAAA pool's");
    let name = attributes["name"].as_str();
    let found = named(name.map(str::to_owned)).mark();
    assert!(found.is_some_and(|mark| mark.is(&order().mark)));
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(name.unwrap().chars().all(plain) && name.unwrap().len() <= 128);
    let settings = Settings {
        operating_system: Some("ubuntu2204".into()),
        ..Settings::default()
    };
    let chosen = body(&order(), &settings, &shape()).unwrap();
    assert_eq!(chosen["data"]["attributes"]["image"], "ubuntu2204");
}

#[test]
fn the_script_of_the_first_boot_is_a_file_that_a_shell_accepts_and_stands_in_no_command() {
    let written = body(&order(), &Settings::default(), &shape()).unwrap();
    let init = &written["data"]["attributes"]["cloud_init"];
    let file = &init["write_files"][0];
    assert_eq!(file["permissions"], "0600");
    let script = file["content"].as_str().unwrap();
    assert!(script.contains("sleep 5") && script.contains("/root/.ssh/authorized_keys"));
    let read = std::process::Command::new("sh")
        .args(["-n", "-c", script])
        .status();
    assert!(read.unwrap().success(), "{script}");
    assert_eq!(
        init["runcmd"],
        json!([format!("sh {}", file["path"].as_str().unwrap())])
    );
}

#[test]
fn a_mark_that_no_name_can_hold_is_refused() {
    let refused = body(&fixtures::order(), &Settings::default(), &shape()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unsupported);
}

#[test]
fn a_virtual_machine_is_a_machine_and_what_is_not_ours_is_none() {
    let found = machine(&whole()).unwrap();
    assert_eq!(found.id, "d2a7c8e2-50b5-4e64-9b21-1ed8e0d5b9af");
    assert!(found.mark.is(&order().mark));
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.rental.hourly_price, "0.399".parse().ok());
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Address("203.0.113.7:20042".parse().unwrap()));
    assert!(machine(&listed()[1]).is_none());
}

#[test]
fn a_machine_of_a_list_is_brief_and_is_not_running_before_its_id_tells_more() {
    let listed = listed();
    assert!(listed[0].is_brief() && !whole().is_brief());
    let found = machine(&listed[0]).unwrap();
    assert!(found.mark.is(&order().mark));
    assert!(
        matches!(found.phase, ProviderPhase::Starting(Some(_))),
        "{:?}",
        found.phase
    );
    assert_eq!((found.endpoint, found.rental.hourly_price), (None, None));
}

#[rstest]
#[case::none(json!([]))]
#[case::not_told(Value::Null)]
#[case::of_another_port(json!([{ "internal_port": 80, "external_port": 20041 }]))]
#[case::not_chosen_yet(json!([{ "internal_port": 22, "external_port": 0 }]))]
#[case::no_port(json!([{ "internal_port": 22, "external_port": 70_000 }]))]
#[case::no_list(json!({ "22": 20042 }))]
fn without_a_port_that_leads_to_it_nothing_is_dialled(#[case] forwards: Value) {
    let found = machine(&Machine { forwards, ..whole() }).unwrap();
    assert_eq!(found.endpoint, None);
    assert!(matches!(found.phase, ProviderPhase::Starting(Some(_))));
}

#[rstest]
#[case("starting", true, "Starting")]
#[case("creating", true, "Starting")]
#[case("", true, "Starting")]
#[case("SomethingNew", true, "Starting")]
#[case("running", true, "Running")]
#[case("RUNNING", true, "Running")]
#[case("running", false, "Starting")]
#[case("stopping", true, "Stopped")]
#[case("Stopped", true, "Stopped")]
#[case("StoppedDisassociated", true, "Stopped")]
#[case("stopped_disassociated", true, "Stopped")]
#[case("error", true, "Lost")]
#[case("error", false, "NoCapacity")]
#[case("deleting", true, "Stopping")]
fn each_status_has_its_phase(#[case] status: &str, #[case] has_address: bool, #[case] expected: &str) {
    let mut found = whole();
    found.status = Some(status.to_owned());
    if !has_address {
        found.address = None;
    }
    let phase = format!("{:?}", machine(&found).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert!(!found.gone());
    assert_eq!(found.is_ending(), status == "deleting");
}

#[rstest]
#[case("deleted")]
#[case("Terminated")]
fn a_machine_that_is_deleted_is_gone(#[case] status: &str) {
    let status = Some(status.to_owned());
    assert!(Machine { status, ..whole() }.gone());
}

#[rstest]
#[case::whole(own(), false)]
#[case::cut(cut(), true)]
#[case::not_told(None, true)]
#[case::of_others(Some(of_others()), false)]
#[case::empty(Some(String::new()), false)]
fn a_name_that_a_list_cuts_or_leaves_out_is_in_doubt(#[case] name: Option<String>, #[case] expected: bool) {
    assert_eq!(named(name).is_in_doubt(), expected);
}

#[rstest]
#[case::its_own(own(), false)]
#[case::not_told(None, false)]
#[case::empty(Some(String::new()), false)]
#[case::cut(cut(), true)]
#[case::of_others(Some(of_others()), true)]
fn a_machine_that_is_not_named_as_it_was_ordered_is_noticed(
    #[case] name: Option<String>,
    #[case] expected: bool,
) {
    assert_eq!(other_name(&named(name), &order()).is_some(), expected);
}
