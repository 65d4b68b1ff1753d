use super::*;
use crate::container::{Options, PodNetwork, config};
use rstest::rstest;
use skyward_api::{
    provider::{Amounts, ContainerResources, ContainerSettings, SecurityProfile},
    shared::{Cpu, LocalRef, Size},
};
use skyward_core::offer::Market;

pub(crate) fn settings(spec: ContainerSettings) -> Settings {
    let options = Options {
        cluster: "c1".into(),
        node_image: "node:1".into(),
        pod_network: PodNetwork::Direct,
        namespaces: Vec::new(),
    };
    config::resolve(&spec, &options).unwrap()
}

pub(crate) fn order() -> Order {
    Order {
        mark: Mark {
            cluster: "c1".into(),
            namespace: "team".into(),
            pool: "train".into(),
            pool_uid: "p-uid".into(),
            machine: "train-abcde-0-1".into(),
            machine_uid: "m-uid".into(),
            slot: 0,
            attempt: 1,
        },
        token: "m-uid".into(),
        instance_type: "amd64/8cpu/31Gi".into(),
        region: String::new(),
        market: Market::OnDemand,
        max_hourly_cost: None,
        accelerator: None,
        vcpus: None,
        memory_bytes: None,
        disk_bytes: None,
        shm_bytes: Some(1 << 30),
        authorized_key: "ssh-ed25519 AAAA pool\n".into(),
        ..Order::default()
    }
}

fn made(order: &Order, spec: ContainerSettings) -> (Pod, PodSpec, Container) {
    let pod = pod(order, &settings(spec), "local").unwrap();
    let spec = pod.spec.clone().unwrap();
    let container = spec.containers[0].clone();
    (pod, spec, container)
}

#[test]
fn a_pod_carries_its_mark_and_gives_it_back() {
    let order = order();
    let (pod, ..) = made(&order, ContainerSettings::default());
    assert_eq!(mark(&pod), Some(order.mark));
}

#[test]
fn the_same_order_makes_the_same_pod() {
    assert_eq!(
        made(&order(), ContainerSettings::default()).0,
        made(&order(), ContainerSettings::default()).0
    );
}

#[test]
fn a_machine_owns_its_pod_without_blocking_its_own_deletion() {
    let (pod, ..) = made(&order(), ContainerSettings::default());
    let owner = &pod.metadata.owner_references.unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.uid.as_str()), ("Machine", "m-uid"));
    assert_eq!(owner.block_owner_deletion, None);
}

#[test]
fn nobody_gets_a_token_of_the_cluster() {
    let (_, spec, _) = made(&order(), ContainerSettings::default());
    assert_eq!(spec.automount_service_account_token, Some(false));
    assert_eq!(spec.enable_service_links, Some(false));
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
}

#[test]
fn labels_of_people_never_hide_ours() {
    let mut order = order();
    order.labels.insert(labels::POOL_UID.into(), "forged".into());
    order.labels.insert("team".into(), "vision".into());
    let (pod, ..) = made(&order, ContainerSettings::default());
    let all = pod.metadata.labels.unwrap();
    assert_eq!(all[labels::POOL_UID], "p-uid");
    assert_eq!(all["team"], "vision");
}

#[test]
fn a_long_pool_name_is_cut_to_a_valid_label() {
    let mut order = order();
    order.mark.pool = format!("{}.{}", "a".repeat(62), "b".repeat(100));
    let (pod, ..) = made(&order, ContainerSettings::default());
    assert_eq!(pod.metadata.labels.unwrap()[labels::POOL], "a".repeat(62));
}

#[test]
fn dev_shm_has_the_size_asked_for() {
    let (_, spec, container) = made(&order(), ContainerSettings::default());
    let volume = &spec.volumes.unwrap()[0];
    assert_eq!(
        volume.empty_dir.as_ref().unwrap().size_limit.as_ref().unwrap().0,
        "1073741824"
    );
    assert_eq!(container.volume_mounts.unwrap()[0].mount_path, "/dev/shm");
}

#[test]
fn what_the_pool_asks_for_wins_over_the_providers_defaults() {
    let mut order = order();
    (order.vcpus, order.memory_bytes, order.disk_bytes) =
        (Some(1.5), Some(4_000_000_000), Some(20_000_000_000));
    let small = Amounts {
        cpu: Some(Cpu::of(0.5)),
        memory: Some(Size("1Gi".into())),
        ephemeral_storage: Some(Size("5Gi".into())),
    };
    let spec = ContainerSettings {
        resources: Some(ContainerResources {
            requests: Some(small.clone()),
            limits: Some(small),
        }),
        ..ContainerSettings::default()
    };
    let (.., container) = made(&order, spec);
    let resources = container.resources.unwrap();
    let (requests, limits) = (resources.requests.unwrap(), resources.limits.unwrap());
    assert_eq!(requests["cpu"].0, "1500m");
    assert_eq!(requests["memory"].0, "4000000000");
    assert_eq!(requests["ephemeral-storage"].0, "20000000000");
    // No limit below what is asked for: the API server would refuse the Pod.
    assert_eq!(limits["cpu"].0, "1500m");
    assert_eq!(limits["memory"].0, "4000000000");
    assert_eq!(limits["ephemeral-storage"].0, "20000000000");
}

#[test]
fn an_accelerator_asks_for_gpus_on_nodes_that_have_them() {
    let mut order = order();
    order.instance_type = "amd64/64cpu/500Gi/8xNVIDIA-A100-SXM4-80GB".into();
    order.accelerator = Some(("A100".into(), 4.0));
    let (_, spec, container) = made(&order, ContainerSettings::default());
    assert_eq!(
        container.resources.unwrap().limits.unwrap()["nvidia.com/gpu"].0,
        "4"
    );
    let selector = spec.node_selector.unwrap();
    assert_eq!(selector[PRODUCT_LABEL], "NVIDIA-A100-SXM4-80GB");
    assert_eq!(selector["kubernetes.io/os"], "linux");
    assert_eq!(selector["kubernetes.io/arch"], "amd64");
}

#[test]
fn an_offer_of_an_older_form_is_refused_instead_of_guessed() {
    let mut order = order();
    order.instance_type = "anything".into();
    let error = pod(&order, &settings(ContainerSettings::default()), "local").unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidOrder);
}

#[test]
fn a_restricted_pod_meets_the_restricted_standard() {
    let spec = ContainerSettings {
        security_profile: Some(SecurityProfile::Restricted),
        ..ContainerSettings::default()
    };
    let (pod, spec, container) = made(&order(), spec);
    let of_pod = spec.security_context.unwrap();
    assert_eq!(
        (of_pod.run_as_non_root, of_pod.run_as_user),
        (Some(true), Some(1000))
    );
    assert_eq!(of_pod.seccomp_profile.unwrap().type_, "RuntimeDefault");
    let own = container.security_context.unwrap();
    assert_eq!(own.allow_privilege_escalation, Some(false));
    assert_eq!(own.capabilities.unwrap().drop.unwrap(), ["ALL"]);
    assert_eq!(own.run_as_user, None);
    // sshd admits only users that exist, whatever the image.
    assert!(pod.metadata.annotations.unwrap()[PASSWD].contains("skyward:x:1000:1000:"));
}

#[rstest]
#[case(None, None)]
#[case(Some(true), Some(true))]
fn only_the_provider_makes_pods_privileged(#[case] privileged: Option<bool>, #[case] want: Option<bool>) {
    let (.., container) = made(
        &order(),
        ContainerSettings {
            privileged,
            ..ContainerSettings::default()
        },
    );
    assert_eq!(container.security_context.unwrap().privileged, want);
}

#[test]
fn the_public_key_is_the_only_key_in_the_pod() {
    let (.., container) = made(&order(), ContainerSettings::default());
    let env = container.env.unwrap();
    let key = env
        .iter()
        .find(|variable| variable.name == "SKYWARD_AUTHORIZED_KEY")
        .unwrap();
    assert_eq!(key.value.as_deref(), Some("ssh-ed25519 AAAA pool"));
}

#[test]
fn pull_secrets_are_named_in_the_pod() {
    let spec = ContainerSettings {
        image_pull_secrets: vec![LocalRef {
            name: "registry".into(),
            optional: false,
        }],
        ..ContainerSettings::default()
    };
    let (_, spec, _) = made(&order(), spec);
    assert_eq!(spec.image_pull_secrets.unwrap()[0].name, "registry");
}

#[test]
fn nothing_in_the_script_is_a_reference_that_kubernetes_would_replace() {
    let (.., container) = made(&order(), ContainerSettings::default());
    for variable in container.env.unwrap() {
        assert!(!START.contains(&format!("$({})", variable.name)));
    }
    assert!(!START.contains("$$"), "Kubernetes would halve it");
}
