use rstest::rstest;
use skyward_core::{Secret, Usd, machine::Dial, order::PoolShape};

use super::*;
use crate::{fixtures, gcp::wire::Quota};

fn order() -> Order {
    Order {
        instance_type: "n1-standard-8+nvidia-tesla-t4x1".into(),
        region: "us-central1-a".into(),
        ..fixtures::order()
    }
}

fn recorded() -> Value {
    serde_json::from_str(include_str!("../../tests/fixtures/gcp/instances.json")).unwrap()
}

/// The instances of the recorded list, of all zones.
fn instances() -> Vec<Instance> {
    let zones: BTreeMap<String, Scope<Instance>> =
        serde_json::from_value(recorded()["list"]["items"].take()).unwrap();
    listed(zones.into_iter().collect()).unwrap()
}

fn written(order: &Order, settings: &Settings) -> Value {
    let kind = Kind::parse(&order.instance_type).unwrap();
    body(order, settings, &kind, &["sky-a".to_owned()]).unwrap()
}

/// The value of an item of the metadata.
fn item<'a>(body: &'a Value, key: &str) -> &'a str {
    let mut items = body["metadata"]["items"].as_array().unwrap().iter();
    let found = items.find(|item| item["key"] == key).unwrap();
    found["value"].as_str().unwrap()
}

#[test]
fn an_order_names_its_machine_once_and_carries_its_mark_on_the_disk_too() {
    let written = written(&order(), &Settings::default());
    let name = written["name"].as_str().unwrap();
    assert!(
        name.starts_with("skyward-train-0-1-") && name.len() <= NAME,
        "{name}"
    );
    assert_eq!(name, super::name(&order().mark), "the same at each try");
    assert_eq!(
        written["machineType"],
        "zones/us-central1-a/machineTypes/n1-standard-8"
    );
    let gpus = &written["guestAccelerators"];
    assert_eq!(
        *gpus,
        json!([{ "acceleratorType": "zones/us-central1-a/acceleratorTypes/nvidia-tesla-t4", "acceleratorCount": 1 }])
    );
    assert_eq!(written["tags"]["items"], json!(["sky-a"]));
    let disk = &written["disks"][0];
    assert_eq!((&disk["boot"], &disk["autoDelete"]), (&json!(true), &json!(true)));
    assert_eq!(disk["initializeParams"]["diskSizeGb"], "200");
    assert_eq!(
        disk["initializeParams"]["diskType"],
        "zones/us-central1-a/diskTypes/pd-balanced"
    );
    assert_eq!(disk["initializeParams"]["labels"], written["labels"]);
    assert_eq!(written["labels"]["managed-by"], "skyward");
    assert_eq!(
        written["networkInterfaces"][0]["network"],
        "global/networks/default"
    );
    assert_eq!(written["networkInterfaces"][0].get("subnetwork"), None);
    assert_eq!(
        written.get("serviceAccounts"),
        None,
        "programs there get no token"
    );
    let mut instance = instances().remove(1);
    assert_eq!(instance.mark(), None);
    instance.labels = serde_json::from_value(written["labels"].clone()).unwrap();
    assert_eq!(instance.mark(), Some(order().mark));
}

#[test]
fn settings_and_the_pool_choose_disk_network_image_and_service_account() {
    let mut order = order();
    order.instance_type = "a4-highgpu-8g".into();
    let settings = Settings {
        network: Some("lab".into()),
        subnet: Some("lab-us".into()),
        image: Some("projects/lab/global/images/mine".into()),
        service_account: Some("m@lab.example".into()),
        disk: serde_json::from_value(json!("500Gi")).ok(),
        ..Settings::default()
    };
    let written = written(&order, &settings);
    let interface = &written["networkInterfaces"][0];
    assert_eq!(interface["network"], "global/networks/lab");
    assert_eq!(interface["subnetwork"], "regions/us-central1/subnetworks/lab-us");
    let disk = &written["disks"][0]["initializeParams"];
    assert_eq!(disk["diskSizeGb"], "537");
    assert_eq!(disk["sourceImage"], "projects/lab/global/images/mine");
    assert_eq!(
        disk["diskType"],
        "zones/us-central1-a/diskTypes/hyperdisk-balanced"
    );
    assert_eq!(written["serviceAccounts"][0]["email"], "m@lab.example");
    assert_eq!(written.get("guestAccelerators"), None);
    order.disk_bytes = Some(100_000_000_001);
    let asked = self::written(&order, &settings);
    assert_eq!(asked["disks"][0]["initializeParams"]["diskSizeGb"], "101");
    let elsewhere = Settings {
        network: Some("projects/host/global/networks/shared".into()),
        subnet: Some("projects/host/regions/us-central1/subnetworks/s".into()),
        ..settings
    };
    let interface = &self::written(&order, &elsewhere)["networkInterfaces"][0];
    assert_eq!(interface["network"], "projects/host/global/networks/shared");
    assert_eq!(
        interface["subnetwork"],
        "projects/host/regions/us-central1/subnetworks/s"
    );
}

#[test]
fn the_pools_key_alone_lets_in_and_the_script_runs_once() {
    let mut order = order();
    order.host_token = Some(Secret::new("c0ffee"));
    let written = written(&order, &Settings::default());
    assert_eq!(item(&written, "ssh-keys"), "root:ssh-ed25519 AAAA");
    assert_eq!(item(&written, "enable-oslogin"), "FALSE");
    assert_eq!(item(&written, "block-project-ssh-keys"), "TRUE");
    let script = item(&written, "startup-script");
    assert!(
        script.starts_with("#!/bin/sh\n[ -e ") && script.contains("sleep 5"),
        "{script}"
    );
    assert_eq!(script.matches("c0ffee").count(), 1, "{script}");
    // A command's words are shown to every user of the machine.
    assert!(!script.contains("sh -c"), "{script}");
    let read = std::process::Command::new("sh")
        .args(["-n", "-c", script])
        .status()
        .unwrap();
    assert!(read.success(), "{script}");
}

#[test]
fn a_spot_machine_is_deleted_when_it_is_taken_back_and_none_is_moved_or_started_again() {
    let mut order = order();
    let scheduling = written(&order, &Settings::default())["scheduling"].take();
    assert_eq!(
        scheduling,
        json!({ "provisioningModel": "STANDARD", "onHostMaintenance": "TERMINATE", "automaticRestart": false })
    );
    order.market = Market::Spot;
    let scheduling = written(&order, &Settings::default())["scheduling"].take();
    assert_eq!(scheduling["provisioningModel"], "SPOT");
    assert_eq!(scheduling["instanceTerminationAction"], "DELETE");
    assert_eq!(scheduling["automaticRestart"], false);
}

#[test]
fn a_start_up_script_that_google_would_refuse_is_never_sent() {
    let mut order = order();
    order.boot_script = "x".repeat(300_000);
    let kind = Kind::parse("g2-standard-4").unwrap();
    let refused = body(&order, &Settings::default(), &kind, &[]).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidOrder);
}

#[test]
fn a_mark_that_labels_cannot_hold_is_refused_and_names_in_it_are_tidied() {
    let kind = Kind::parse("g2-standard-4").unwrap();
    let mut order = order();
    order.mark.pool = "Train.v2".into();
    order.mark.machine = "m".repeat(150);
    let written = body(&order, &Settings::default(), &kind, &[]).unwrap();
    let labels = written["labels"].as_object().unwrap();
    let fits = |text: &str| text.len() <= 63 && !text.contains(['.', ' ']) && text.to_lowercase() == text;
    assert!(
        labels
            .iter()
            .all(|(key, value)| fits(key) && fits(value.as_str().unwrap())),
        "{labels:?}"
    );
    let spoils: [fn(&mut Mark); 3] = [
        |mark| mark.cluster = "Lab 1".to_owned(),
        |mark| mark.pool_uid = "P".to_owned(),
        |mark| mark.machine_uid = "m".repeat(64),
    ];
    for spoil in spoils {
        let mut order = self::order();
        spoil(&mut order.mark);
        let refused = body(&order, &Settings::default(), &kind, &[]).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Unsupported, "{refused}");
    }
}

#[test]
fn a_request_has_a_token_that_is_a_uuid_and_another_request_another() {
    let token = request("one");
    let parts: Vec<usize> = token.split('-').map(str::len).collect();
    assert_eq!(parts, [8, 4, 4, 4, 12], "{token}");
    assert!(
        token.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()),
        "{token}"
    );
    assert_ne!(token, request("two"));
}

#[test]
fn ssh_is_let_in_and_the_machines_of_a_pool_that_must_reach_each_other() {
    let mut order = order();
    let settings = Settings::default();
    assert_eq!(admitted(&order, &settings), ["global/networks/default ssh"]);
    order.pool = PoolShape {
        machines: 2,
        connected: true,
    };
    let both = admitted(&order, &settings);
    assert_eq!(
        both,
        ["global/networks/default ssh", "global/networks/default pool"]
    );
    let rules: Vec<Value> = both.iter().map(|content| firewall("sky-a", content)).collect();
    for (rule, content) in rules.iter().zip(&both) {
        assert_eq!(rule["network"], "global/networks/default");
        assert_eq!(rule["targetTags"], json!(["sky-a"]));
        assert_eq!(rule["direction"], "INGRESS");
        // By which the rule is known again.
        assert_eq!(rule["description"], *content);
    }
    assert_eq!(
        rules[0]["allowed"],
        json!([{ "IPProtocol": "tcp", "ports": ["22"] }])
    );
    assert_eq!(rules[0]["sourceRanges"], json!(["0.0.0.0/0"]));
    assert_eq!(rules[0].get("sourceTags"), None);
    assert_eq!(rules[1]["sourceTags"], json!(["sky-a"]), "nobody else is let in");
    assert_eq!(rules[1].get("sourceRanges"), None);
}

#[test]
fn an_instance_is_a_machine_and_what_is_not_ours_is_none() {
    let mut instances = instances();
    instances[0].price = Some(Usd::cents(73));
    let found = machine(&instances[0], false).unwrap();
    assert_eq!(
        (found.id.as_str(), &found.mark),
        ("4217846289712356789", &order().mark)
    );
    assert_eq!(found.phase, ProviderPhase::Running);
    assert_eq!(found.private_address.as_deref(), Some("10.128.0.2"));
    assert_eq!(found.rental.region.as_deref(), Some("us-central1-a"));
    assert_eq!(found.rental.hourly_price, Some(Usd::cents(73)));
    assert_eq!(found.rental.billed_since, time(Some("2026-01-01T00:00:00Z")));
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert_eq!(endpoint.dial, Dial::Address("198.51.100.2:22".parse().unwrap()));
    assert_eq!(Kind::of(&instances[0]).to_string(), order().instance_type);
    assert!(machine(&instances[1], false).is_none());
}

#[rstest]
#[case::nothing_there("NO_RESULTS_ON_PAGE", true)]
#[case::no_answer("UNREACHABLE", false)]
#[case::something_new("SOMETHING_NEW", false)]
fn a_list_in_which_a_zone_is_missing_is_an_error(#[case] code: &str, #[case] is_complete: bool) {
    let scope = json!({ "warning": { "code": code, "message": "no" } });
    let zones = vec![("zones/z".to_owned(), serde_json::from_value(scope).unwrap())];
    match listed(zones) {
        Ok(found) => assert!(is_complete && found.is_empty()),
        Err(error) => {
            assert!(!is_complete);
            assert_eq!(error.kind, ErrorKind::Transient);
            assert!(error.message.contains("zones/z"), "{error}");
        }
    }
}

#[rstest]
#[case("PENDING", true, "Starting")]
#[case("PROVISIONING", false, "Starting")]
#[case("STAGING", false, "Starting")]
#[case("RUNNING", true, "Running")]
#[case("RUNNING", false, "Starting")]
#[case("REPAIRING", true, "Starting")]
#[case("STOPPING", true, "Stopped")]
#[case("PENDING_STOP", true, "Stopped")]
#[case("SUSPENDING", true, "Stopped")]
#[case("SUSPENDED", true, "Stopped")]
#[case("TERMINATED", false, "Stopped")]
#[case("STOPPED", false, "Stopped")]
#[case("DEPROVISIONING", false, "Stopping")]
#[case("SOMETHING_NEW", true, "Starting")]
fn each_status_has_its_phase(#[case] status: &str, #[case] reachable: bool, #[case] expected: &str) {
    let mut found = instances().remove(0);
    status.clone_into(&mut found.status);
    if !reachable {
        found.network_interfaces = json!([{ "networkIP": "10.0.0.2", "accessConfigs": [{}] }]);
    }
    let phase = format!("{:?}", machine(&found, false).unwrap().phase);
    assert!(phase.starts_with(expected), "{phase}");
}

#[rstest]
#[case("STOPPING", false, "Reclaimed")]
#[case("TERMINATED", false, "Reclaimed")]
#[case("DEPROVISIONING", false, "Reclaimed")]
#[case::we_ended_it("STOPPING", true, "Stopping")]
#[case::we_ended_one_that_halted("TERMINATED", true, "Stopped")]
#[case::it_runs("RUNNING", false, "Running")]
fn a_spot_machine_that_halts_and_that_we_did_not_end_was_taken_back(
    #[case] status: &str,
    #[case] is_ended: bool,
    #[case] expected: &str,
) {
    for spot in [
        json!({ "provisioningModel": "SPOT" }),
        json!({ "preemptible": true }),
    ] {
        let mut found = instances().remove(0);
        status.clone_into(&mut found.status);
        found.scheduling = spot;
        let phase = format!("{:?}", machine(&found, is_ended).unwrap().phase);
        assert!(phase.contains(expected), "{phase}");
    }
}

#[test]
fn an_order_that_was_accepted_is_a_machine_on_its_way_until_it_is_known_that_there_is_none() {
    let kind = Kind::parse(&order().instance_type).unwrap();
    let instance = ordered("7", &order(), &kind);
    assert_eq!(instance.mark(), Some(order().mark));
    assert_eq!(Kind::of(&instance), kind);
    assert_eq!(instance.zone(), "us-central1-a");
    let found = machine(&instance, false).unwrap();
    assert!(matches!(found.phase, ProviderPhase::Starting(_)), "{found:?}");
    assert!(!instance.gone());
    let operation: Operation = serde_json::from_value(recorded()["operation"].take()).unwrap();
    assert!(!operation.is_done());
    assert_eq!(operation.target_id.as_deref(), Some("4217846289712356789"));
    assert!(!unseen(&instance, &operation).unwrap().gone());
    let ended = |error: Value| -> Operation {
        let operation = json!({ "name": "o", "status": "DONE", "httpErrorStatusCode": 503, "error": error });
        serde_json::from_value(operation).unwrap()
    };
    // It was made, and is gone by now.
    assert!(unseen(&instance, &ended(Value::Null)).is_none());
    let shortage = json!({ "errors": [{ "code": "ZONE_RESOURCE_POOL_EXHAUSTED", "message": "none left" }] });
    let lost = unseen(&instance, &ended(shortage)).unwrap();
    assert!(lost.gone(), "it fulfils no order");
    let phase = format!("{:?}", machine(&lost, false).unwrap().phase);
    assert!(
        phase.contains("NoCapacity") && phase.contains("none left"),
        "{phase}"
    );
}

#[rstest]
#[case::its_own(Some(("RUNNING", true)), None)]
#[case::its_own_on_its_way_out(Some(("STOPPING", true)), Some(ErrorKind::Transient))]
#[case::of_somebody_else(Some(("RUNNING", false)), Some(ErrorKind::InvalidOrder))]
#[case::gone_by_now(None, Some(ErrorKind::Transient))]
fn an_instance_with_an_orders_name_is_taken_for_its_machine_by_its_mark_alone(
    #[case] found: Option<(&str, bool)>,
    #[case] expected: Option<ErrorKind>,
) {
    let found = found.map(|(status, is_ours)| {
        let mut instance = instances().remove(usize::from(!is_ours));
        status.clone_into(&mut instance.status);
        instance
    });
    match adopted(&order(), found) {
        Ok(id) => assert_eq!((id.as_str(), expected), ("4217846289712356789", None)),
        Err(error) => assert_eq!(Some(error.kind), expected),
    }
}

fn place(name: &str, quotas: &[(&str, f64)]) -> Place {
    let quotas = quotas.iter().map(|(metric, limit)| Quota {
        metric: (*metric).to_owned(),
        limit: Some(*limit),
        usage: Some(0.0),
    });
    Place {
        name: name.to_owned(),
        quotas: quotas.collect(),
    }
}

#[test]
fn the_quotas_of_the_project_and_of_its_chosen_regions_that_orders_count_in_are_told() {
    let project = place("acme", &[("NETWORKS", 5.0), ("GPUS_ALL_REGIONS", 0.0)]);
    let mut iowa = place(
        "us-central1",
        &[
            ("CPUS", 24.0),
            ("A2_CPUS", 12.5),
            ("C2_CPUS", 8.0),
            ("SSD_TOTAL_GB", 500.0),
            ("COMMITTED_NVIDIA_L4_GPUS", 0.0),
            ("NVIDIA_T4_VWS_GPUS", 1.0),
            ("NVIDIA_L4_GPUS", 1.0),
            ("PREEMPTIBLE_NVIDIA_L4_GPUS", 0.0),
        ],
    );
    iowa.quotas[7].usage = None;
    let regions = [
        iowa,
        place("europe-west4", &[("NVIDIA_L4_GPUS", 2.0)]),
        place("us-east5", &[("NVIDIA_L4_GPUS", 3.0)]),
    ];
    let settings = Settings {
        regions: vec!["europe-west4".to_owned()],
        ..Settings::default()
    };
    let told = facts(&project, &regions, &settings);
    assert!(told.iter().all(|fact| fact.what == "quotas in use"));
    let values: Vec<&str> = told.iter().map(|fact| fact.value.as_str()).collect();
    assert_eq!(
        values,
        [
            "acme GPUS_ALL_REGIONS 0 of 0",
            "us-central1 CPUS 0 of 24, A2_CPUS 0 of 12.5, NVIDIA_L4_GPUS 0 of 1, PREEMPTIBLE_NVIDIA_L4_GPUS ? of 0",
            "europe-west4 NVIDIA_L4_GPUS 0 of 2",
        ]
    );
    assert!(facts(&place("acme", &[]), &[], &settings).is_empty());
}
