use rstest::rstest;
use skyward_core::{Usd, machine::Dial, order::machine_name};

use super::*;
use crate::{fixtures, jarvislabs::config::REGIONS};

fn order() -> Order {
    let mut order = fixtures::order();
    order.mark.pool_uid = "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.machine_uid = "2e3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.machine = machine_name("train", &order.mark.pool_uid, 0, 1);
    order
}

fn machines() -> Vec<Machine> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/jarvislabs/instances.json")).unwrap();
    serde_json::from_value(body["instances"].take()).unwrap()
}

/// The first machine, with other values of some fields.
fn changed(fields: Value) -> Machine {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/jarvislabs/instances.json")).unwrap();
    let mut told = body["instances"][0].take();
    for (field, value) in fields.as_object().unwrap() {
        told[field] = value.clone();
    }
    let mut machine: Machine = serde_json::from_value(told).unwrap();
    machine.mark = Some(order().mark);
    machine
}

#[test]
fn an_order_has_every_field_that_the_python_client_sends() {
    let settings = Settings {
        script_id: Some("7".into()),
        ..Settings::default()
    };
    let body = body(&order(), ((2, "L4"), &REGIONS[0]), &settings).unwrap();
    let name = body["name"].as_str().unwrap();
    assert!(name.starts_with("sky-") && name.len() <= 40, "{name}");
    assert_eq!(
        body,
        json!({
            "gpu_type": "L4", "num_gpus": 2, "hdd": 50, "region": "india-noida-01", "name": name,
            "is_spot": false, "duration": "hour", "disk_type": "ssd", "http_ports": "", "script_id": "7",
            "script_args": "", "fs_id": null, "arguments": "",
        })
    );
}

#[rstest]
#[case::usual("IN2", None, None, None, 50)]
#[case::of_the_provider("IN2", None, Some("80G"), None, 80)]
#[case::of_the_pool("IN2", None, Some("80G"), Some(120_000_000_001), 121)]
#[case::small("IN2", None, None, Some(1_000_000_000), 20)]
#[case::in_europe("EU1", None, None, None, 100)]
#[case::of_a_virtual_machine("IN1", Some("vm"), Some("80G"), None, 100)]
fn a_disk_has_the_size_that_is_asked_for_and_at_least_the_least(
    #[case] code: &str,
    #[case] template: Option<&str>,
    #[case] storage: Option<&str>,
    #[case] disk_bytes: Option<u64>,
    #[case] expected: u32,
) {
    let settings = json!({ "template": template, "storage": storage });
    let settings: Settings = serde_json::from_value(settings).unwrap();
    let region = REGIONS.iter().find(|region| region.code == code).unwrap();
    let order = Order {
        disk_bytes,
        ..order()
    };
    let body = body(&order, ((1, "H100"), region), &settings).unwrap();
    assert_eq!(body["hdd"], expected);
}

#[test]
fn a_spot_order_says_so() {
    let order = Order {
        market: Market::Spot,
        ..order()
    };
    let body = body(&order, ((1, "L4"), &REGIONS[0]), &Settings::default()).unwrap();
    assert_eq!(body["is_spot"], true);
}

#[test]
fn an_instance_is_read_by_either_name_of_its_fields_and_numbers_may_be_texts() {
    let mut machines = machines();
    machines[0].mark = Some(order().mark);
    machines[0].price = Some(Usd::cents(44));
    let found = machine(&machines[0], false).unwrap();
    assert_eq!((found.id.as_str(), &found.mark), ("412233", &order().mark));
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.rental.region.as_deref(), Some("IN2"));
    assert_eq!(found.rental.hourly_price, Some(Usd::cents(44)));
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Host("ssh.example.net".into(), 11_223));

    let vm = &machines[1];
    assert_eq!((vm.id, vm.gpus(), vm.is_vm()), (412_234, 2, true));
    assert_eq!(vm.text("instance_name"), "Name me");
    assert_eq!(vm.market(), Market::OnDemand);
    // Of which no region is told: the first one.
    assert_eq!(vm.region().map(|region| region.code), Some("IN2"));
    assert_eq!(vm.endpoint().unwrap().user, "cloud");
    assert!(machine(vm, false).is_none(), "it is nobody's");

    let other = &machines[2];
    assert_eq!((other.market(), other.gpus()), (Market::Spot, 0));
    assert!(other.region().is_none(), "an unknown region is not guessed");
}

#[test]
fn an_instance_without_an_id_is_no_shorter_list() {
    let read = serde_json::from_value::<Machine>(json!({ "instance_name": "sky-" }));
    let error = read.err().unwrap();
    assert!(error.to_string().contains("machine_id"), "{error}");
}

#[rstest]
#[case::a_container(json!({ "ssh_str": null, "public_ip": "198.51.100.2" }), None)]
#[case::a_vm(json!({ "ssh_str": null, "public_ip": "198.51.100.2", "framework": "vm" }), Some("cloud"))]
#[case::a_vm_that_says_how(json!({ "framework": "vm", "ssh_str": "ssh ubuntu@198.51.100.3" }), Some("ubuntu"))]
#[case::paused(json!({ "status": "Paused" }), None)]
#[case::nonsense(json!({ "ssh_str": "soon" }), None)]
fn ssh_is_dialled_while_a_machine_runs(#[case] fields: Value, #[case] user: Option<&str>) {
    let found = changed(fields).endpoint().map(|endpoint| endpoint.user);
    assert_eq!(found.as_deref(), user);
}

#[rstest]
#[case("Creating", "Starting")]
#[case("Pending", "Starting")]
#[case("Resuming", "Starting")]
#[case("Running", "Running")]
#[case("Paused", "Stopped")]
#[case("Pausing", "Stopped")]
#[case("Failed", "Lost")]
#[case("Destroying", "Stopping")]
#[case("Something new", "Starting")]
#[case("", "Starting")]
fn each_status_has_its_phase(#[case] status: &str, #[case] expected: &str) {
    let found = changed(json!({ "status": status }));
    let phase = format!("{:?}", machine(&found, false).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert!(!found.gone());
}

#[rstest]
#[case::runs_and_tells_no_address_yet(json!({ "ssh_str": "" }), "Starting")]
#[case::never_ran(json!({ "ssh_str": null, "status": "Failed" }), "NoCapacity")]
fn a_machine_without_ssh_does_not_run(#[case] fields: Value, #[case] expected: &str) {
    let phase = format!("{:?}", machine(&changed(fields), false).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}

#[rstest]
#[case("Paused", false, "Reclaimed")]
#[case("Pausing", false, "Reclaimed")]
#[case("Failed", false, "Reclaimed")]
#[case("Destroying", false, "Reclaimed")]
#[case("Destroyed", false, "Reclaimed")]
#[case::we_ended_it("Destroying", true, "Stopping")]
#[case::it_runs("Running", false, "Running")]
fn a_spot_machine_that_halts_and_that_we_did_not_end_was_taken_back(
    #[case] status: &str,
    #[case] is_ended: bool,
    #[case] expected: &str,
) {
    let found = changed(json!({ "status": status, "is_spot": true }));
    let phase = format!("{:?}", machine(&found, is_ended).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert_eq!(found.gone(), status == "Destroyed");
}
