use std::process::Command;

use rstest::rstest;

use super::*;
use crate::fixtures;

fn order(instance_type: &str) -> Order {
    Order {
        instance_type: instance_type.into(),
        ..fixtures::order()
    }
}

const GPU: &str = "2x NVIDIA GeForce RTX 4090/secure";

fn pods() -> Vec<Pod> {
    let body: Value = serde_json::from_str(include_str!("../../tests/fixtures/runpod/pods.json")).unwrap();
    serde_json::from_value(body["pods"].clone()).unwrap()
}

#[test]
fn an_order_on_demand() {
    let body = body(&order(GPU), &Settings::default(), &Found::default()).unwrap();
    assert_eq!(
        body["gpu"],
        json!({ "id": "NVIDIA GeForce RTX 4090", "count": 2, "minCudaVersion": "12.8" })
    );
    assert_eq!(body["image"], "nvidia/cuda:12.8.0-cudnn-runtime-ubuntu24.04");
    assert_eq!(body["cloud"], "SECURE");
    assert_eq!((&body["disk"], &body["ports"]), (&json!(50), &json!(["22/tcp"])));
    assert_eq!(
        body["mounts"]["persistent"],
        json!({ "size": 20, "path": "/workspace" })
    );
    assert_eq!(body["env"]["PUBLIC_KEY"], "ssh-ed25519 AAAA pool's");
    for absent in ["globalNetworking", "registry", "dataCenterIds", "cpu"] {
        assert!(body.get(absent).is_none(), "{absent}");
    }
}

#[test]
fn the_mark_comes_back_from_the_environment() {
    let order = order(GPU);
    let body = body(&order, &Settings::default(), &Found::default()).unwrap();
    let mut pod = pods().remove(1);
    pod.env = serde_json::from_value(body["env"].clone()).unwrap();
    assert_eq!(pod.mark(), Some(order.mark));
}

#[test]
fn a_networked_order_asks_for_the_global_network_where_it_is() {
    let found = Found {
        data_centers: vec!["US-KS-2".into()],
        registry: Some("reg".into()),
        bid: None,
    };
    let order = order("1x NVIDIA H100 80GB HBM3/secure-networked");
    let body = body(&order, &Settings::default(), &found).unwrap();
    assert_eq!(body["globalNetworking"], true);
    assert_eq!(body["dataCenterIds"], json!(["US-KS-2"]));
    assert_eq!(body["registry"], "reg");
    let error = input(&order, &Settings::default(), &found).unwrap_err();
    assert!(error.message.contains("allocation: OnDemand"), "{error}");
}

#[test]
fn a_machine_without_gpus_has_a_small_disk_and_no_volume() {
    let mut order = order("cpu3c/4vcpu");
    let cpu = body(&order, &Settings::default(), &Found::default()).unwrap();
    assert_eq!(cpu["cpu"], json!({ "id": "cpu3c", "vcpuCount": 4 }));
    assert_eq!(
        (&cpu["disk"], &cpu["image"]),
        (&json!(20), &json!("ubuntu:24.04"))
    );
    assert!(cpu.get("mounts").is_none() && cpu.get("gpu").is_none());
    order.disk_bytes = Some(100_000_000_000);
    let error = body(&order, &Settings::default(), &Found::default()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidOrder);
}

#[test]
fn a_spot_order_bids_for_each_gpu() {
    let mut order = order("2x NVIDIA GeForce RTX 4090/community");
    order.vcpus = Some(7.5);
    let found = Found {
        bid: Some(Usd::new(2175, 4)),
        ..Found::default()
    };
    let input = input(&order, &Settings::default(), &found).unwrap();
    assert_eq!(input["bidPerGpu"], json!(0.2175));
    assert_eq!(
        (&input["gpuCount"], &input["cloudType"]),
        (&json!(2), &json!("COMMUNITY"))
    );
    assert_eq!(
        (&input["ports"], &input["supportPublicIp"]),
        (&json!("22/tcp"), &json!(true))
    );
    assert_eq!(input["minVcpuCount"], json!(8));
    let env = input["env"].as_array().unwrap();
    assert!(
        env.contains(&json!({ "key": "SKYWARD_MARKET", "value": "spot" }))
            || order.market == Market::OnDemand
    );
}

#[rstest]
#[case("0.29", "1", 1, None, Some("0.29"))]
#[case("0.29", "1.1", 1, None, Some("0.319"))]
#[case("0.29", "1.2", 2, Some("0.60"), Some("0.3"))]
#[case("0.31", "1.2", 2, Some("0.60"), None)]
#[case("0.29", "1", 2, Some("0.58"), Some("0.29"))]
fn a_bid_is_never_above_the_recorded_price(
    #[case] lowest: &str,
    #[case] multiplier: &str,
    #[case] count: u32,
    #[case] ceiling: Option<&str>,
    #[case] expected: Option<&str>,
) {
    let usd = |text: &str| text.parse::<Usd>().unwrap();
    assert_eq!(
        bid(usd(lowest), multiplier.parse().unwrap(), count, ceiling.map(usd)),
        expected.map(usd)
    );
}

#[test]
fn the_start_command_has_quotes_only_around_itself_and_a_shell_accepts_what_it_runs() {
    let command = command();
    assert_eq!(command.matches('\'').count(), 2);
    assert!(!command.contains('"') && !command.contains('\n'));
    let read = Command::new("sh").args(["-n", "-c", START]).status().unwrap();
    assert!(read.success());
}

#[test]
fn a_pod_is_a_machine_and_what_is_not_ours_is_none() {
    let pods = pods();
    let machine = machine(&pods[0]).unwrap();
    assert_eq!(machine.mark, order(GPU).mark);
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(machine.rental.hourly_price, Some(Usd::cents(69)));
    // It costs from its order, not only from its first start.
    assert_eq!(machine.rental.billed_since, "2026-11-20T10:00:00Z".parse().ok());
    assert_eq!(machine.rental.region.as_deref(), Some("EU-RO-1"));
    assert_eq!(machine.private_address.as_deref(), Some("10.2.3.4"));
    assert_eq!(
        machine.endpoint.unwrap().dial,
        Dial::Address("213.173.1.2:10341".parse().unwrap())
    );
    assert!(super::machine(&pods[1]).is_none());
}

#[rstest]
#[case("PROVISIONING", "Starting")]
#[case("STARTING", "Starting")]
#[case("SOMETHING", "Starting")]
#[case("RUNNING", "Running")]
#[case("EXITED", "Reclaimed")]
#[case("ERROR", "Other")]
fn each_status_has_its_phase(#[case] status: &str, #[case] expected: &str) {
    let mut pod = pods().remove(0);
    status.clone_into(&mut pod.status);
    let phase = format!("{:?}", machine(&pod).unwrap().phase);
    assert!(phase.contains(expected), "{phase}");
}

#[test]
fn a_stopped_pod_on_demand_is_stopped_and_one_without_a_port_is_starting() {
    let mut pod = pods().remove(0);
    pod.ssh = None;
    assert!(matches!(machine(&pod).unwrap().phase, ProviderPhase::Starting(_)));
    pod.status = "EXITED".into();
    pod.env.as_mut().unwrap().remove(MARKET);
    assert!(matches!(machine(&pod).unwrap().phase, ProviderPhase::Stopped(_)));
}
