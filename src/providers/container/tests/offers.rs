use super::*;
use crate::container::map::tests::settings;
use rstest::rstest;
use skyward_api::provider::ContainerSettings;

fn node(labels: &str, extra: &str, allocatable: &str) -> Node {
    serde_yaml::from_str(&format!(
        "{{metadata: {{name: n, labels: {{kubernetes.io/arch: amd64, kubernetes.io/os: linux{labels}}}}}, spec: {{{extra}}}, status: {{allocatable: {{{allocatable}}}, conditions: [{{type: Ready, status: 'True'}}]}}}}"
    ))
    .unwrap()
}

fn plain() -> Node {
    node("", "", "cpu: 3920m, memory: 32000000Ki")
}

fn found(nodes: &[Node]) -> Vec<Offer> {
    offers(nodes, &settings(ContainerSettings::default()))
}

#[test]
fn equal_nodes_are_one_offer() {
    let almost = node("", "", "cpu: 3920m, memory: 32000100Ki");
    let all = found(&[plain(), almost]);
    assert_eq!(all.len(), 1);
    let offer = &all[0];
    assert_eq!((offer.vcpus, offer.memory_gb), (3.9, (30_u64 << 30) as f64 / 1e9));
    assert_eq!(offer.instance_type, "amd64/3.9cpu/30Gi");
    assert_eq!(offer.id, "amd64-3-9cpu-30gi");
    assert_eq!(
        (offer.on_demand, offer.availability),
        (Some(Usd::ZERO), Availability::Yes)
    );
}

#[test]
fn ids_do_not_depend_on_the_order_of_nodes() {
    let big = node("", "", "cpu: '64', memory: 256Gi");
    assert_eq!(found(&[plain(), big.clone()]), found(&[big, plain()]));
}

#[test]
fn a_gpu_node_offers_each_usual_number_of_gpus_and_none() {
    let gpus = node(
        ", nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB, nvidia.com/gpu.memory: '81920'",
        "",
        "cpu: '64', memory: 500Gi, nvidia.com/gpu: '6'",
    );
    let all = found(&[gpus]);
    let counts: Vec<f64> = all
        .iter()
        .map(|o| o.accelerators.as_ref().map_or(0.0, |a| a.count))
        .collect();
    assert_eq!(counts, [0.0, 1.0, 2.0, 4.0, 6.0]);
    let last = all.last().unwrap().accelerators.as_ref().unwrap();
    assert_eq!((last.name.as_str(), last.memory_gb), ("A100", Some(80.0)));
}

#[test]
fn gpus_without_feature_discovery_are_offered_by_a_plain_name() {
    let gpus = node("", "", "cpu: '8', memory: 32Gi, nvidia.com/gpu: '1'");
    let all = found(&[gpus]);
    assert_eq!(all[1].accelerators.as_ref().unwrap().name, "GPU");
    assert_eq!(Group::parse(&all[1].instance_type).unwrap().product, None);
}

#[test]
fn a_node_with_another_system_is_not_offered() {
    let mut windows = plain();
    let labels = windows.metadata.labels.as_mut().unwrap();
    labels.insert("kubernetes.io/os".into(), "windows".into());
    assert_eq!(found(&[windows]), []);
}

/// Whether the operator has an agent for it is asked where a Pool chooses, as of every cloud.
#[test]
fn a_node_is_offered_with_its_own_architecture() {
    let mut arm = plain();
    let labels = arm.metadata.labels.as_mut().unwrap();
    labels.insert("kubernetes.io/arch".into(), "arm64".into());
    assert_eq!(found(&[arm])[0].architecture, Architecture::Arm64);
}

#[test]
fn nodes_that_the_provider_does_not_select_are_not_offered() {
    let spec = ContainerSettings {
        node_selector: [("disk".to_owned(), "ssd".to_owned())].into(),
        ..ContainerSettings::default()
    };
    let ssd = node(", disk: ssd", "", "cpu: '2', memory: 8Gi");
    assert_eq!(offers(&[plain(), ssd], &settings(spec)).len(), 1);
}

#[rstest]
#[case("{}", false)]
#[case("{key: gpu, operator: Exists}", true)]
#[case("{key: gpu, value: 'yes', effect: NoSchedule}", true)]
#[case("{key: gpu, value: 'no'}", false)]
#[case("{operator: Exists}", true)]
fn tainted_nodes_are_offered_to_providers_that_tolerate_them(
    #[case] toleration: &str,
    #[case] offered: bool,
) {
    let tainted = node(
        "",
        "taints: [{key: gpu, value: 'yes', effect: NoSchedule}]",
        "cpu: '2', memory: 8Gi",
    );
    let tolerations = if toleration == "{}" {
        vec![]
    } else {
        vec![serde_yaml::from_str(toleration).unwrap()]
    };
    let spec = ContainerSettings {
        tolerations,
        ..ContainerSettings::default()
    };
    assert_eq!(!offers(&[tainted], &settings(spec)).is_empty(), offered);
}

#[test]
fn a_cordoned_node_stays_offered_without_promise() {
    let cordoned = node(
        "",
        "unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable, effect: NoSchedule}]",
        "cpu: '2', memory: 8Gi",
    );
    assert_eq!(found(&[cordoned])[0].availability, Availability::Unknown);
}

#[test]
fn one_usable_node_of_a_group_is_enough() {
    let mut lost = plain();
    lost.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].status = "Unknown".into();
    assert_eq!(found(&[lost, plain()])[0].availability, Availability::Yes);
}

#[rstest]
#[case("NVIDIA-A100-SXM4-80GB", "A100", Some(80.0))]
#[case("NVIDIA-H100-80GB-HBM3", "H100", Some(80.0))]
#[case("NVIDIA-H100-PCIe", "H100", None)]
#[case("Tesla-T4", "T4", None)]
#[case("Tesla-V100-SXM2-16GB", "V100", Some(16.0))]
#[case("NVIDIA-L40S", "L40S", None)]
#[case("NVIDIA-A10G-SHARED", "A10G", None)]
#[case("NVIDIA-GeForce-RTX-4090", "RTX_4090", None)]
#[case("NVIDIA-RTX-6000-Ada-Generation", "RTX_6000_Ada", None)]
#[case("NVIDIA-H200-NVL", "H200", None)]
fn labels_of_gpus_become_names_that_people_use(
    #[case] label: &str,
    #[case] name: &str,
    #[case] memory: Option<f64>,
) {
    assert_eq!(
        Product::read(label),
        Product {
            name: name.into(),
            memory_gb: memory
        }
    );
}

#[test]
fn a_group_survives_its_text() {
    for text in [
        "amd64/3.9cpu/30Gi",
        "arm64/8cpu/31Gi/4xNVIDIA-A100-SXM4-80GB",
        "amd64/8cpu/1Gi/1xGPU",
    ] {
        assert_eq!(Group::parse(text).unwrap().to_string(), text);
    }
    for text in [
        "",
        "amd64",
        "amd64/xcpu/1Gi",
        "amd64/1cpu/1Gi/GPU",
        "amd64/1cpu/1GB",
    ] {
        assert_eq!(Group::parse(text), None, "{text}");
    }
}

#[test]
fn cards_of_labelled_nodes_fit_the_size_that_they_are_sold_with() {
    let labelled = |product: &str, mebibytes: &str| {
        let labels = format!(", nvidia.com/gpu.product: {product}, nvidia.com/gpu.memory: '{mebibytes}'");
        node(&labels, "", "cpu: 8, memory: 33554432Ki, nvidia.com/gpu: '1'")
    };
    let nodes = [
        labelled("NVIDIA-A100-SXM4-80GB", "81920"),
        labelled("NVIDIA-H100-80GB-HBM3", "81559"),
        labelled("NVIDIA-L4", "23034"),
        labelled("Tesla-T4", "15360"),
        labelled("NVIDIA-L40S", "46068"),
    ];
    let sold = [
        ("A100", 80.0),
        ("H100", 80.0),
        ("L4", 24.0),
        ("T4", 16.0),
        ("L40S", 48.0),
    ];
    crate::fixtures::check_memory(&found(&nodes), &sold);
}
