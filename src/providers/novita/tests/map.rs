use rstest::rstest;
use skyward_core::{Secret, Usd, machine::Dial};

use super::*;
use crate::fixtures;

const PASSWORD: &str = "canary-of-a-password";

fn order() -> Order {
    Order {
        instance_type: "2x prod-4090".into(),
        market: Market::Spot,
        ..fixtures::order()
    }
}

fn instances() -> Vec<Instance> {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/novita/instances.json")).unwrap();
    serde_json::from_value(body["instances"].take()).unwrap()
}

fn product() -> Product {
    let mut body: Value =
        serde_json::from_str(include_str!("../../tests/fixtures/novita/products.json")).unwrap();
    serde_json::from_value(body["data"][0].take()).unwrap()
}

fn written(order: &Order, settings: &Settings) -> Value {
    let start = settings.starts().remove(0);
    body(order, settings, (2, &product()), start).unwrap()
}

/// A mark whose UIDs are such.
fn with_uids() -> Mark {
    Mark {
        cluster: "0c3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into(),
        pool_uid: "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into(),
        machine_uid: "2e3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into(),
        ..fixtures::order().mark
    }
}

#[test]
fn an_order_has_each_field_in_the_form_that_novita_takes() {
    let settings = Settings {
        cluster_id: Some("5".into()),
        ..Settings::default()
    };
    let order = Order {
        mark: with_uids(),
        ..order()
    };
    let written = written(&order, &settings);
    assert_eq!(written["productId"], "prod-4090");
    assert_eq!(written["gpuNum"], 2);
    assert_eq!(written["rootfsSize"], 50);
    assert_eq!(
        written["imageUrl"],
        "nvcr.io/nvidia/cuda:12.9.1-runtime-ubuntu24.04"
    );
    assert_eq!(written["minCudaVersion"], "12.9");
    assert_eq!(written["kind"], "gpu");
    assert_eq!(written["billingMode"], "spot");
    assert_eq!(written["clusterId"], "5");
    let name = written["name"].as_str().unwrap();
    assert!(
        name.len() <= 255 && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'),
        "{name}"
    );
    // A key or a password of ours is in no order.
    assert!(!written.to_string().contains("ssh-ed25519"));
}

#[test]
fn what_is_not_asked_for_is_left_out() {
    let settings = Settings {
        docker_image: Some("pytorch/pytorch:latest".into()),
        ..Settings::default()
    };
    let order = Order {
        market: Market::OnDemand,
        ..order()
    };
    let written = written(&order, &settings);
    assert_eq!(written["billingMode"], "onDemand");
    assert_eq!(written.get("clusterId"), None);
    assert_eq!(written.get("minCudaVersion"), None);
}

#[test]
fn a_mark_comes_back_whole_from_the_environment_and_with_its_uids_from_the_name() {
    let order = Order {
        mark: with_uids(),
        ..order()
    };
    let written = written(&order, &Settings::default());
    let mut machine = instances().remove(1);
    assert_eq!(machine.mark(), None);
    machine.envs = written["envs"].clone();
    assert_eq!(machine.mark(), Some(order.mark.clone()), "by the environment");
    machine.name = Some("renamed".into());
    assert_eq!(machine.mark(), Some(order.mark.clone()), "whatever its name is");
    machine.envs = Value::Null;
    assert_eq!(machine.mark(), None);
    machine.name = written["name"].as_str().map(str::to_owned);
    let found = machine.mark().unwrap();
    assert!(found.is(&order.mark) && found.pool_uid == order.mark.pool_uid);
    assert_eq!((found.slot, found.attempt), (0, 1));
}

#[rstest]
#[case(json!([{ "key": "SKYWARD_MARK", "value": "{}" }]))]
#[case(json!([{ "key": "SKYWARD_MARK", "value": 7 }]))]
#[case(json!([{ "key": "SKYWARD_MARK" }, "x", null]))]
#[case(json!("SKYWARD_MARK"))]
fn an_environment_that_is_not_ours_hides_no_name(#[case] envs: Value) {
    let mut machine = instances().remove(1);
    machine.envs = envs;
    assert_eq!(machine.mark(), None);
    machine.name = Some(name(&with_uids()));
    assert!(machine.mark().is_some());
}

#[test]
fn an_installation_without_a_uid_has_names_too() {
    let name = name(&order().mark);
    assert!(
        name.starts_with("skyward-train-0-1-") && name.len() <= 63,
        "{name}"
    );
    assert_eq!(NAME.read(&name), None);
}

#[rstest]
#[case::that_of_the_settings(None, "80G", Some(80))]
#[case::no_more_than_the_product_has(None, "900G", Some(500))]
#[case::no_less_than_the_product_has(None, "5G", Some(10))]
#[case::that_of_the_pool(Some(120), "80G", Some(120))]
#[case::a_small_one(Some(2), "80G", Some(10))]
#[case::too_large(Some(501), "80G", None)]
fn a_disk_is_within_the_bounds_of_its_product(
    #[case] asked: Option<u64>,
    #[case] own: &str,
    #[case] expected: Option<u32>,
) {
    let settings: Settings = serde_json::from_value(json!({ "rootfsSize": own })).unwrap();
    let order = Order {
        disk_bytes: asked.map(|gb| gb * 1_000_000_000),
        ..order()
    };
    assert_eq!(disk(&order, &settings, &product()).ok(), expected);
    // A product may tell no bounds, or such that are none.
    let mut odd = product();
    odd.least_disk = json!(9000);
    odd.most_disk = json!("");
    assert!(disk(&order, &settings, &odd).is_ok());
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let mut instances = instances();
    instances[0].price = Some(Usd::cents(36));
    let found = machine(&instances[0], false).unwrap();
    assert_eq!((found.id.as_str(), &found.mark), ("9f0c2a7be1d4", &order().mark));
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.rental.region.as_deref(), Some("US-CA-06"));
    assert_eq!(found.rental.hourly_price, Some(Usd::cents(36)));
    assert_eq!(found.rental.billed_since, "2026-01-01T00:00:00Z".parse().ok());
    assert_eq!(found.rental.reclaim_at, None);
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Host("proxy.example.net".into(), 31234));
    assert_eq!(endpoint.password, Some(Secret::new(PASSWORD)));
    assert_eq!(number(&instances[0].gpu_num), Some(2));
    assert_eq!(instances[0].product_id.as_deref(), Some("prod-4090"));
    assert!(machine(&instances[1], false).is_none());
}

#[test]
fn a_password_is_shown_nowhere() {
    let instances = instances();
    let found = machine(&instances[0], false).unwrap();
    let shown = format!("{instances:?} {found:?}");
    assert!(!shown.contains(PASSWORD) && shown.contains("***"), "{shown}");
}

#[rstest]
#[case::as_it_is(|_: &mut Instance| {}, true)]
#[case::it_does_not_answer_yet(|machine: &mut Instance| machine.ssh.as_mut().unwrap().is_running = Some(false), false)]
#[case::nobody_says_whether_it_answers(|machine: &mut Instance| machine.ssh.as_mut().unwrap().is_running = None, true)]
#[case::no_command(|machine: &mut Instance| machine.ssh.as_mut().unwrap().ssh_command = None, false)]
#[case::the_command_under_another_name(
    |machine: &mut Instance| {
        let ssh = machine.ssh.as_mut().unwrap();
        ssh.command = ssh.ssh_command.take();
    },
    true
)]
#[case::no_password(
    |machine: &mut Instance| {
        let ssh = machine.ssh.as_mut().unwrap();
        (ssh.password, ssh.is_running) = (None, None);
    },
    false
)]
#[case::it_answers_and_no_password_is_told_any_more(
    |machine: &mut Instance| {
        let ssh = machine.ssh.as_mut().unwrap();
        (ssh.password, ssh.is_running) = (None, Some(true));
    },
    true
)]
#[case::the_password_at_its_older_place(
    |machine: &mut Instance| machine.ssh_password = machine.ssh.as_mut().unwrap().password.take(),
    true
)]
#[case::no_ssh(|machine: &mut Instance| machine.ssh = None, false)]
fn a_machine_runs_once_ssh_and_its_password_are_told(#[case] change: fn(&mut Instance), #[case] runs: bool) {
    let mut instance = instances().remove(0);
    change(&mut instance);
    let found = machine(&instance, false).unwrap();
    assert_eq!(found.phase == ProviderPhase::Running, runs, "{found:?}");
    assert_eq!(found.endpoint.is_some(), runs);
}

#[test]
fn a_machine_whose_password_a_list_leaves_out_is_brief_once_it_answers() {
    let mut instance = instances().remove(0);
    assert!(!instance.is_brief());
    let ssh = instance.ssh.as_mut().unwrap();
    (ssh.password, ssh.is_running) = (None, Some(true));
    assert!(instance.is_brief());
    // A look would use up a password that is told once.
    instance.ssh.as_mut().unwrap().is_running = Some(false);
    assert!(!instance.is_brief());
    instance.ssh.as_mut().unwrap().is_running = Some(true);
    instance.ssh_password = Some(Secret::new(PASSWORD));
    assert!(!instance.is_brief());
}

#[test]
fn an_empty_password_is_none() {
    let text = json!({ "id": "a", "sshPassword": "", "connectComponentSSH": { "password": "" } });
    let instance: Instance = serde_json::from_value(text).unwrap();
    assert_eq!(instance.ssh_password, None);
    assert_eq!(instance.ssh.unwrap().password, None);
}

#[rstest]
#[case("toCreate", "Starting")]
#[case("creating", "Starting")]
#[case("pulling", "its image is loaded")]
#[case("toStart", "Starting")]
#[case("restarting", "Starting")]
#[case("migrating", "Starting")]
#[case("something new", "Starting")]
#[case("toStop", "Stopped")]
#[case("stopping", "Stopped")]
#[case("exited", "Stopped")]
#[case("freezing", "add credit")]
#[case("error", "Other")]
#[case("failed", "Other")]
#[case("toRemove", "Stopping")]
#[case("removing", "Stopping")]
fn each_status_has_its_phase(#[case] status: &str, #[case] expected: &str) {
    let mut instance = instances().remove(0);
    instance.status = json!(status);
    let phase = format!("{:?}", machine(&instance, false).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
    assert!(!instance.gone());
}

#[rstest]
#[case::an_image("creating", "ErrImage", "manifest unknown", "ImagePull")]
#[case::no_room("pending", "INSUFFICIENT_RESOURCE", "", "NoCapacity")]
#[case::anything_else("creating", "failed", "no disk", "no disk")]
#[case::it_runs_all_the_same("running", "warning", "slow", "Running")]
fn a_machine_that_cannot_be_made_says_why(
    #[case] status: &str,
    #[case] state: &str,
    #[case] message: &str,
    #[case] expected: &str,
) {
    let mut instance = instances().remove(0);
    instance.status = json!(status);
    instance.status_error = json!({ "state": state, "message": message });
    let phase = format!("{:?}", machine(&instance, false).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}

#[rstest]
#[case::halted_with_a_time("exited", "", "1767225600", false, "Reclaimed")]
#[case::halted_with_a_date("exited", "", "2026-01-01T00:00:00Z", false, "Reclaimed")]
#[case::halted_with_a_word("stopping", "reclaiming", "0", false, "Reclaimed")]
#[case::gone("removed", "terminated", "1767225600", false, "Reclaimed")]
#[case::halted_by_itself("exited", "running", "0", false, "Stopped")]
#[case::we_ended_it("removing", "terminated", "1767225600", true, "Stopping")]
#[case::it_still_runs("running", "notified", "1767225600", false, "Running")]
fn a_spot_machine_that_halts_after_a_notice_was_taken_back(
    #[case] status: &str,
    #[case] spot_status: &str,
    #[case] time: &str,
    #[case] is_ended: bool,
    #[case] expected: &str,
) {
    let mut instance = instances().remove(0);
    instance.status = json!(status);
    instance.spot_status = Some(spot_status.into());
    instance.spot_reclaim_time = json!(time);
    let found = machine(&instance, is_ended).unwrap();
    let phase = format!("{:?}", found.phase);
    assert!(phase.contains(expected), "{phase}");
    let is_told = time != "0" && !is_ended;
    assert_eq!(found.rental.reclaim_at.is_some(), is_told);
    // One on demand is never taken back.
    instance.billing_mode = json!("onDemand");
    let found = machine(&instance, is_ended).unwrap();
    assert!(!format!("{:?}", found.phase).contains("Reclaimed"));
    assert_eq!(found.rental.reclaim_at, None);
}

#[rstest]
#[case(json!("1767225600"), true)]
#[case(json!(1_767_225_600), true)]
#[case(json!("1767225600000"), true)]
#[case(json!("2026-01-01T00:00:00Z"), true)]
#[case(json!("0"), false)]
#[case(json!(0), false)]
#[case(json!("-1"), false)]
#[case(json!(""), false)]
#[case(json!("soon"), false)]
#[case(json!(null), false)]
#[case(json!("99999999999999999999"), false)]
fn moments_are_read_in_each_form(#[case] written: Value, #[case] is_one: bool) {
    let expected = is_one.then(|| "2026-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(moment(&written), expected);
}
