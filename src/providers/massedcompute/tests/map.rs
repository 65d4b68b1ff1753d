use rstest::rstest;
use skyward_core::machine::Dial;

use super::*;
use crate::{fixtures, massedcompute::wire::Told};

/// An order, of the machine that the recorded list has.
fn order() -> Order {
    let mut order = Order {
        instance_type: "gpu_1x_a6000".into(),
        ..fixtures::order()
    };
    order.mark.cluster = "0c3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.pool_uid = "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.machine_uid = "2e3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order
}

fn instances() -> Vec<Instance> {
    let body = include_str!("../../tests/fixtures/massedcompute/instances.json");
    serde_json::from_str::<Told>(body).unwrap().0
}

fn ours() -> Instance {
    instances().remove(0)
}

fn written(order: &Order) -> Value {
    body(order, &Settings::default(), "gpu_1x_a6000 ", "sky0").unwrap()
}

#[test]
fn an_order_has_these_fields_and_no_others() {
    let mut written = written(&order());
    let command = written["command"].take();
    let name = written["instanceName"].take();
    assert_eq!(
        written,
        json!({
            "imageId": 184, "productName": "gpu_1x_a6000 ", "regionName": "any", "sshKeys": ["sky0"],
            "command": null, "instanceName": null,
        })
    );
    assert_eq!((command, name), (ours().command_startup, ours().name));
    let settings = Settings { image_id: Some(84) };
    assert_eq!(body(&order(), &settings, "p", "k").unwrap()["imageId"], 84);
}

#[rstest]
#[case::of_this_fixture(order().mark)]
#[case::with_long_names(Mark { machine: "m".repeat(200), namespace: "n".repeat(63), ..order().mark })]
#[case::of_an_installation_with_an_id_of_its_own(Mark { cluster: "copy-of-production".into(), ..order().mark })]
fn the_command_of_an_order_does_nothing(#[case] mark: Mark) {
    let written = written(&Order { mark, ..order() });
    let command = written["command"].as_str().unwrap();
    assert!(command.len() <= 255, "{command}");
    let ran = std::process::Command::new("sh")
        .args(["-ec", command])
        .output()
        .unwrap();
    assert!(
        ran.status.success() && ran.stdout.is_empty() && ran.stderr.is_empty(),
        "{ran:?}"
    );
    let name = written["instanceName"].as_str().unwrap();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(name.len() <= 128 && name.chars().all(is_plain), "{name}");
}

#[rstest]
#[case::as_it_was_ordered(None, None, true)]
#[case::renamed(Some(json!("mine")), None, true)]
#[case::with_a_name_that_was_cut(Some(json!("skyward-0c3f5a525d0e4b0a9a433f1d6f0c9a11-1d3f5a525d0e")), None, true)]
#[case::without_a_name(Some(json!(null)), None, true)]
#[case::without_its_command(None, Some(json!(null)), true)]
#[case::with_a_command_that_was_cut(None, Some(json!(": skyward/0c3f5a52-5d0e-4b0a-9a43")), true)]
#[case::of_another_form(None, Some(json!(7)), true)]
#[case::without_either(Some(json!("mine")), Some(json!("")), false)]
fn a_machine_is_known_by_its_command_or_its_name(
    #[case] name: Option<Value>,
    #[case] command: Option<Value>,
    #[case] is_known: bool,
) {
    let mut found = ours();
    found.name = name.unwrap_or(found.name);
    found.command_startup = command.unwrap_or(found.command_startup);
    let mark = found.mark();
    assert_eq!(mark.is_some(), is_known);
    assert!(mark.is_none_or(|mark| mark.is(&order().mark)));
}

#[test]
fn a_mark_has_its_names_where_the_command_is_shown() {
    assert_eq!(ours().mark(), Some(order().mark));
}

#[test]
fn a_machine_whose_name_and_command_are_of_two_machines_is_nobodys() {
    let mut other = order();
    other.mark.machine_uid = "3f3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    let mut found = ours();
    found.name = written(&other)["instanceName"].clone();
    assert_eq!(found.mark(), None);
    found.command_startup = written(&other)["command"].clone();
    assert_eq!(found.mark(), Some(other.mark));
}

#[test]
fn a_machine_of_an_installation_with_an_id_of_its_own_is_known_by_its_command() {
    let mut order = order();
    order.mark.cluster = "copy-of-production".into();
    let ordered = ordered("u", &written(&order));
    assert_eq!(ordered.mark(), Some(order.mark));
}

#[test]
fn what_was_ordered_is_on_its_way_until_it_is_shown() {
    let mut body = written(&order());
    body["productName"] = json!("gpu_1x_a6000_spot");
    let ordered = ordered("4c75e43b", &body);
    let found = machine(&ordered, false).unwrap();
    assert_eq!((found.id.as_str(), found.mark), ("4c75e43b", order().mark));
    assert!(
        matches!(found.phase, ProviderPhase::Starting(_)),
        "{:?}",
        found.phase
    );
    assert!(ordered.is_spot() && !ordered.gone());
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let found = machine(&ours(), false).unwrap();
    assert_eq!(found.id, "4c75e43b-1111-4222-8333-444455556666");
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.private_address.as_deref(), Some("198.51.100.2"));
    assert_eq!(found.rental.region.as_deref(), Some("us-central-3"));
    assert_eq!(found.rental.hourly_price, Some(Usd::cents(57)));
    assert_eq!(found.rental.billed_since, time(Some("2026-01-01T00:00:00Z")));
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "Ubuntu");
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
    assert!(machine(&instances()[1], false).is_none());
}

#[test]
fn no_password_is_kept() {
    let printed = format!("{:?}", ours());
    assert!(
        !printed.contains("12345") && printed.contains("198.51.100.2"),
        "{printed}"
    );
}

#[rstest]
#[case(json!("ubuntu"), "ubuntu")]
#[case(json!(" root "), "root")]
#[case(json!(null), "Ubuntu")]
#[case(json!(""), "Ubuntu")]
#[case(json!("-oProxyCommand=x"), "Ubuntu")]
#[case(json!("a b"), "Ubuntu")]
#[case(json!("x".repeat(33)), "Ubuntu")]
#[case(json!(1), "Ubuntu")]
fn the_user_is_the_one_that_is_told_if_it_can_be_one(#[case] told: Value, #[case] expected: &str) {
    let mut found = ours();
    found.username = told;
    assert_eq!(machine(&found, false).unwrap().endpoint.unwrap().user, expected);
}

#[rstest]
#[case(json!("0.50"), json!("0.57"), Some("0.5"))]
#[case(json!(0.5), json!(0.57), Some("0.5"))]
#[case(json!("0"), json!("0.57"), Some("0.57"))]
#[case(json!("$1"), json!("0.57"), Some("0.57"))]
#[case(json!(null), json!(null), None)]
#[case(json!("-1"), json!([]), None)]
fn the_final_price_counts_where_it_is_one(
    #[case] last: Value,
    #[case] first: Value,
    #[case] expected: Option<&str>,
) {
    let mut found = ours();
    found.product = json!({ "name": "gpu_1x_a6000", "final_price_hr": last, "price_hr": first });
    let price = machine(&found, false).unwrap().rental.hourly_price;
    assert_eq!(price, expected.map(|text| text.parse().unwrap()));
}

#[rstest]
#[case("Running", true, json!(1), "Running")]
#[case("running", true, json!(1), "Running")]
#[case("rented", true, json!(1), "Running")]
#[case("Running", true, json!(null), "Running")]
#[case("Running", true, json!(0), "Starting")]
#[case("Running", true, json!(false), "Starting")]
#[case("Running", false, json!(1), "Starting")]
#[case("pending", false, json!(0), "Starting")]
#[case("error", false, json!(0), "NoCapacity")]
#[case("Error", true, json!(1), "Lost")]
#[case("Stopped", true, json!(1), "Stopped")]
#[case("terminating", true, json!(1), "Stopping")]
#[case("terminated", true, json!(1), "Stopping")]
#[case("something_new", true, json!(1), "Starting")]
fn each_status_has_its_phase(
    #[case] status: &str,
    #[case] reachable: bool,
    #[case] booted: Value,
    #[case] expected: &str,
) {
    let mut found = ours();
    found.status = json!(status);
    found.os_booted = booted;
    if !reachable {
        found.ip = json!("");
    }
    let phase = format!("{:?}", machine(&found, false).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert_eq!(found.gone(), status == "terminated");
}

#[rstest]
#[case("Stopped", false, "Reclaimed")]
#[case("error", false, "Reclaimed")]
#[case("terminated", false, "Reclaimed")]
#[case::we_ended_it("terminated", true, "Stopping")]
#[case::it_runs("Running", false, "Running")]
fn a_spot_machine_that_halts_and_that_we_did_not_end_was_taken_back(
    #[case] status: &str,
    #[case] is_ended: bool,
    #[case] expected: &str,
) {
    let mut found = ours();
    found.status = json!(status);
    found.product["name"] = json!("gpu_1x_a6000_spot");
    let phase = format!("{:?}", machine(&found, is_ended).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}

#[test]
fn an_unknown_status_is_shown_in_part() {
    let mut found = ours();
    found.status = json!("x".repeat(10_000));
    let ProviderPhase::Starting(Some(shown)) = machine(&found, false).unwrap().phase else {
        panic!("it is on its way");
    };
    assert!(shown.len() < 100, "{shown}");
}

#[rstest]
#[case::list(json!({ "runningInstances": [{ "uuid": "a" }] }), Some(1))]
#[case::one(json!({ "runningInstance": { "uuid": "a" } }), Some(1))]
#[case::empty_list(json!({ "runningInstances": [] }), Some(0))]
#[case::nothing(json!({ "runningInstance": null }), Some(0))]
#[case::empty(json!({ "runningInstance": {} }), Some(0))]
#[case::no_word_of_it(json!({ "message": "ok" }), None)]
#[case::no_object(json!([]), None)]
#[case::without_an_id(json!({ "runningInstance": { "name": "a" } }), None)]
fn what_is_told_of_one_machine_has_several_forms(#[case] body: Value, #[case] expected: Option<usize>) {
    let told = serde_json::from_value::<Told>(body);
    assert_eq!(told.ok().map(|told| told.0.len()), expected);
}
