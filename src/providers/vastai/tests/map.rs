use std::process::Command;

use rstest::rstest;
use skyward_core::{ErrorKind, machine::Failure};

use super::*;
use crate::fixtures::order;

const NOW: Timestamp = Timestamp::UNIX_EPOCH;

fn instances() -> Vec<Instance> {
    let page: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/vastai/instances.json")).unwrap();
    serde_json::from_value(page["instances"].clone()).unwrap()
}

fn seen(instance: &Instance) -> ProviderMachine {
    machine(instance, &Settings::default(), false, NOW).unwrap()
}

#[test]
fn the_mark_comes_back_from_the_label() {
    assert_eq!(mark(&label(&order().mark, false).unwrap()), Some(order().mark));
    let mut long = order().mark;
    long.namespace = "n".repeat(63);
    long.pool = "p".repeat(253);
    let text = label(&long, false).unwrap();
    assert!(text.len() <= LONGEST);
    long.pool = String::new();
    assert_eq!(mark(&text), Some(long));
    assert_eq!(mark("my experiment"), None);
    assert_eq!(mark("skyward/x/y"), None);
}

#[test]
fn an_order_on_demand_and_a_bid() {
    let on_demand = body(&order(), &Settings::default(), None, None).unwrap();
    assert!(on_demand.get("price").is_none());
    assert_eq!(
        (&on_demand["disk"], &on_demand["runtype"]),
        (&json!(100), &json!("ssh_direct"))
    );
    assert_eq!(on_demand["cancel_unavail"], true);
    let bid = body(&order(), &Settings::default(), Some(Usd::cents(24)), None).unwrap();
    assert_eq!(bid["price"], json!(0.24));
}

#[test]
fn a_machine_of_an_overlay_network_says_so_in_its_label_and_stands_in_its_cluster() {
    let name = overlay(&order().mark, 9);
    assert_eq!(
        marks::pool_of(&order().mark.cluster, &name).as_deref(),
        Some(order().mark.pool_uid.as_str())
    );
    let body = body(&order(), &Settings::default(), None, Some(&name)).unwrap();
    assert_eq!(body["env"][format!("-n {name}")], "1");
    let mut instance = instances().remove(0);
    instance.cluster_id = Some(9);
    // Its host stands in a cluster, and the machine is in no network.
    assert_eq!(seen(&instance).private_interface, None);
    instance.label = body["label"].as_str().map(str::to_owned);
    let machine = seen(&instance);
    assert_eq!(machine.mark, order().mark);
    assert_eq!(machine.private_interface, Some("eth0"));
    assert_eq!(machine.rental.region.as_deref(), Some("cluster-9"));
}

#[test]
fn the_start_up_script_is_one_that_a_shell_accepts_and_that_vast_takes() {
    let text = script(&order()).unwrap();
    let read = Command::new("sh").args(["-n", "-c", &text]).status().unwrap();
    assert!(read.success(), "{text}");
    let mut long = order();
    long.boot_script = "# x\n".repeat(2000);
    assert_eq!(script(&long).unwrap_err().kind, ErrorKind::InvalidOrder);
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let instances = instances();
    let machine = seen(&instances[0]);
    assert_eq!(machine.mark, order().mark);
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(
        machine.endpoint.unwrap().dial,
        Dial::Address("1.2.3.4:40123".parse().unwrap())
    );
    assert_eq!(machine.rental.hourly_price, Some(Usd::new(2512, 4)));
    assert_eq!(machine.rental.region.as_deref(), Some("BG"));
    assert!(super::machine(&instances[1], &Settings::default(), false, NOW).is_none());
}

#[rstest]
#[case(None, None)]
#[case(Some(7200.0), None)]
#[case(Some(240.5), Some(240_500))]
#[case(Some(0.0), None)]
fn the_end_of_a_contract_is_announced_shortly_before(#[case] end: Option<f64>, #[case] at: Option<i64>) {
    let mut instance = instances().remove(0);
    instance.end_date = end;
    let at = at.map(|at| Timestamp::from_millisecond(at).unwrap());
    assert_eq!(seen(&instance).rental.reclaim_at, at);
}

#[test]
fn without_a_port_of_its_own_the_relay_is_used_where_that_is_allowed() {
    let mut instance = instances().remove(0);
    instance.ports = None;
    assert_eq!(
        seen(&instance).endpoint.unwrap().dial,
        Dial::Host("ssh4.vast.ai".into(), 14568)
    );
    let direct = Settings {
        require_direct_port: Some(true),
        ..Settings::default()
    };
    let machine = machine(&instance, &direct, false, NOW).unwrap();
    assert!(machine.endpoint.is_none());
    assert!(matches!(machine.phase, ProviderPhase::Starting(_)));
}

#[test]
fn no_order_decides_how_its_machine_is_reached() {
    let mut relayed = instances().remove(0);
    relayed.ports = None;
    let reached = |direct| {
        let settings = Settings {
            require_direct_port: Some(direct),
            ..Settings::default()
        };
        machine(&relayed, &settings, false, NOW)
            .unwrap()
            .endpoint
            .is_some()
    };
    assert_ne!(reached(true), reached(false));
    let fixed = <crate::vastai::VastAi as skyward_provider_kit::Kind>::FIXED;
    assert!(fixed.contains(&"requireDirectPort"), "{fixed:?}");
}

#[rstest]
#[case(None, "running", true, "Starting")]
#[case(None, "stopped", true, "Starting")]
#[case(Some("created"), "running", true, "Starting")]
#[case(Some("loading"), "running", true, "Starting")]
#[case(Some("running"), "running", true, "Running")]
#[case(Some("stopped"), "stopped", true, "Reclaimed")]
#[case(Some("exited"), "stopped", true, "Reclaimed")]
#[case(Some("stopped"), "stopped", false, "Stopped")]
#[case(Some("exited"), "running", true, "Other")]
#[case(Some("frozen"), "running", true, "Other")]
#[case(Some("offline"), "running", true, "Starting")]
#[case(Some("new word"), "running", true, "Starting")]
fn each_status_has_its_phase(
    #[case] status: Option<&str>,
    #[case] state: &str,
    #[case] bid: bool,
    #[case] expected: &str,
) {
    let mut instance = instances().remove(0);
    instance.actual_status = status.map(str::to_owned);
    instance.cur_state = Some(state.to_owned());
    instance.is_bid = Some(bid);
    let phase = format!("{:?}", seen(&instance).phase);
    assert!(phase.contains(expected), "{phase}");
}

#[test]
fn a_silent_host_is_lost_at_once_while_booting_and_after_a_while_when_it_ran() {
    let mut instance = instances().remove(0);
    instance.actual_status = Some("unknown".into());
    let is_lost = |machine: ProviderMachine| {
        matches!(
            machine.phase,
            ProviderPhase::Failed(Failure {
                kind: FailureKind::Lost,
                ..
            })
        )
    };
    assert!(!is_lost(seen(&instance)));
    assert!(is_lost(
        machine(&instance, &Settings::default(), true, NOW).unwrap()
    ));
    instance.ports = None;
    assert!(is_lost(seen(&instance)));
}

#[test]
fn an_image_that_cannot_be_pulled_is_said() {
    let mut instance = instances().remove(0);
    instance.actual_status = Some("loading".into());
    instance.status_msg =
        Some("Error response from daemon: manifest for x:y not found: manifest unknown".into());
    let ProviderPhase::Failed(failure) = seen(&instance).phase else {
        panic!()
    };
    assert_eq!(failure.kind, FailureKind::ImagePull);
    assert!(failure.message.contains("manifest unknown") && failure.message.contains("dockerImage"));
}
