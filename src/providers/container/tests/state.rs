use super::*;
use crate::container::map::tests::{order, settings};
use rstest::rstest;
use skyward_api::provider::ContainerSettings;
use skyward_core::machine::Failure;

/// A Pod of ours with this status, as YAML.
fn pod(status: &str) -> Pod {
    let mut pod = map::pod(&order(), &settings(ContainerSettings::default()), "local").unwrap();
    pod.metadata.uid = Some("pod-uid".into());
    pod.status = Some(serde_yaml::from_str(status).unwrap());
    pod
}

fn failure(status: &str) -> Failure {
    match phase(&pod(status)) {
        ProviderPhase::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

fn container(state: &str) -> String {
    format!(
        "{{phase: Pending, containerStatuses: [{{name: machine, image: \"shop/node:7\", imageID: '', ready: false, restartCount: 0, state: {state}}}]}}"
    )
}

#[test]
fn a_running_pod_is_a_machine_with_an_address() {
    let status = "{phase: Running, podIP: 10.1.2.3, containerStatuses: [{name: machine, image: i, imageID: '', ready: true, restartCount: 0, state: {running: {startedAt: '2026-11-20T10:00:00Z'}}}]}";
    let machine = machine(
        &pod(status),
        "root",
        PodNetwork::Direct,
        Some("ssh-ed25519 K".into()),
    )
    .unwrap();
    assert_eq!(machine.phase, ProviderPhase::Running);
    assert_eq!(machine.id, "pod-uid");
    assert_eq!(machine.private_address.as_deref(), Some("10.1.2.3"));
    let endpoint = machine.endpoint.unwrap();
    assert_eq!(
        (endpoint.user.as_str(), endpoint.dial),
        ("root", Dial::Address("10.1.2.3:2222".parse().unwrap()))
    );
}

#[test]
fn a_container_beside_the_machine_is_not_taken_for_it() {
    let of = |name: &str, state: &str| {
        format!("{{name: {name}, image: i, imageID: '', ready: true, restartCount: 0, state: {state}}}")
    };
    let beside = of("istio-proxy", "{running: {startedAt: '2026-11-20T10:00:00Z'}}");
    let ended = of("machine", "{terminated: {exitCode: 137, reason: Error}}");
    let status = format!("{{phase: Running, containerStatuses: [{beside}, {ended}]}}");
    assert_eq!(failure(&status).kind, FailureKind::Lost);
    let alone = format!("{{phase: Pending, containerStatuses: [{beside}]}}");
    assert!(matches!(phase(&pod(&alone)), ProviderPhase::Starting(_)));
}

#[test]
fn a_controller_outside_the_cluster_dials_through_the_api_server() {
    let status = "{phase: Running, podIP: 'fd00::7'}";
    let machine = machine(&pod(status), "root", PodNetwork::PortForward, None).unwrap();
    let want = Dial::PodPort {
        namespace: "team".into(),
        pod: "train-abcde-0-1".into(),
        port: SSH_PORT,
    };
    assert_eq!(machine.endpoint.unwrap().dial, want);
}

#[test]
fn a_pod_without_our_mark_is_no_machine() {
    let mut foreign = pod("{phase: Running}");
    foreign.metadata.labels = None;
    assert!(machine(&foreign, "root", PodNetwork::Direct, None).is_none());
}

#[test]
fn a_pod_without_a_node_waits_and_says_why() {
    let status = "{phase: Pending, conditions: [{type: PodScheduled, status: 'False', reason: Unschedulable, message: '0/1 nodes are available: 1 Insufficient cpu.'}]}";
    let ProviderPhase::Starting(Some(text)) = phase(&pod(status)) else {
        panic!("not starting")
    };
    assert!(
        text.contains("Insufficient cpu") && text.contains("cpu, memory"),
        "{text}"
    );
}

#[rstest]
#[case(
    "InvalidImageName",
    "couldn't parse image name",
    "is not the name of an image"
)]
#[case(
    "ErrImageNeverPull",
    "Container image is not present with pull policy of Never",
    "imagePullPolicy is Never"
)]
#[case(
    "ErrImagePull",
    "failed to resolve reference: shop/node:7: not found",
    "Check name and tag"
)]
#[case(
    "ErrImagePull",
    "pull access denied, repository does not exist or may require authorization",
    "imagePullSecrets"
)]
#[case(
    "ImagePullBackOff",
    "Back-off pulling image: ErrImagePull: dial tcp: i/o timeout",
    "nodes reach the registry"
)]
fn an_image_that_cannot_be_pulled_names_the_remedy(
    #[case] reason: &str,
    #[case] said: &str,
    #[case] remedy: &str,
) {
    let failure = failure(&container(&format!(
        "{{waiting: {{reason: {reason}, message: \"{said}\"}}}}"
    )));
    assert_eq!(failure.kind, FailureKind::ImagePull);
    assert!(
        failure.message.contains("shop/node:7") && failure.message.contains(remedy),
        "{}",
        failure.message
    );
}

#[test]
fn one_hiccup_of_the_registry_is_no_failure() {
    let status = container("{waiting: {reason: ErrImagePull, message: 'dial tcp: i/o timeout'}}");
    assert!(
        matches!(phase(&pod(&status)), ProviderPhase::Starting(Some(text)) if text.contains("first try"))
    );
}

#[test]
fn an_image_without_sshd_says_so() {
    let status = container(
        "{terminated: {exitCode: 64, reason: Error, message: \"skyward-error: the image has no sshd. Use another.\\n\"}}",
    );
    let failure = failure(&status);
    assert_eq!(failure.kind, FailureKind::UnusableImage);
    assert_eq!(failure.message, "the image has no sshd. Use another.");
}

#[test]
fn an_image_without_a_shell_says_so() {
    let status = container(
        "{terminated: {exitCode: 128, reason: StartError, message: 'exec: \"/bin/sh\": stat /bin/sh: no such file or directory'}}",
    );
    let failure = failure(&status);
    assert_eq!(failure.kind, FailureKind::UnusableImage);
    assert!(failure.message.contains("no /bin/sh"), "{}", failure.message);
}

#[test]
fn a_task_that_exits_64_in_place_of_the_script_is_a_loss_not_an_image() {
    assert_eq!(
        failure(&container("{terminated: {exitCode: 64, reason: Error}}")).kind,
        FailureKind::Lost
    );
}

#[rstest]
#[case(
    "{phase: Failed, reason: Evicted, message: 'The node was low on resource: memory.'}",
    FailureKind::Lost
)]
#[case(
    "{phase: Failed, reason: Preempting, message: 'Preempted in order to admit critical pod'}",
    FailureKind::Lost
)]
#[case("{phase: Failed, reason: DeadlineExceeded}", FailureKind::Lost)]
#[case(
    "{phase: Failed, reason: Terminated, message: 'Pod was terminated in response to imminent node shutdown.'}",
    FailureKind::Lost
)]
#[case(
    "{phase: Failed, reason: OutOfcpu, message: 'Node did not have enough resource'}",
    FailureKind::NoRoom
)]
#[case(
    "{phase: Failed, reason: UnexpectedAdmissionError, message: 'Allocate failed: nvidia.com/gpu'}",
    FailureKind::NoRoom
)]
#[case("{phase: Failed}", FailureKind::Lost)]
fn what_became_of_a_pod_is_told_apart(#[case] status: &str, #[case] kind: FailureKind) {
    assert_eq!(failure(status).kind, kind);
}

#[test]
fn a_preempted_pod_names_who_took_it() {
    let status = "{phase: Failed, conditions: [{type: DisruptionTarget, status: 'True', reason: PreemptionByScheduler, message: 'preempted by pod x'}], containerStatuses: [{name: machine, image: i, imageID: '', ready: false, restartCount: 0, state: {terminated: {exitCode: 0}}}]}";
    let failure = failure(status);
    assert!(failure.kind == FailureKind::Lost && failure.message.contains("PreemptionByScheduler"));
}

#[test]
fn memory_beyond_the_limit_names_the_remedy() {
    let failure = failure(&container("{terminated: {exitCode: 137, reason: OOMKilled}}"));
    assert!(
        failure.kind == FailureKind::OutOfMemory && failure.message.contains("more memory"),
        "{}",
        failure.message
    );
}

#[test]
fn a_machine_that_stopped_itself_is_stopped() {
    let status = container("{terminated: {exitCode: 0, reason: Completed}}");
    assert!(matches!(phase(&pod(&status)), ProviderPhase::Stopped(_)));
}

#[test]
fn a_pod_that_is_deleted_is_stopping_whatever_else_it_says() {
    let mut gone = pod("{phase: Running}");
    gone.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(
        k8s_openapi::jiff::Timestamp::UNIX_EPOCH,
    ));
    assert_eq!(phase(&gone), ProviderPhase::Stopping);
}

#[test]
fn only_a_whole_ed25519_key_is_believed() {
    assert_eq!(
        host_key("skyward-host-key: ssh-ed25519 AAAA\n").as_deref(),
        Some("ssh-ed25519 AAAA")
    );
    assert_eq!(host_key("skyward-host-key: "), None);
    assert_eq!(host_key("task says skyward-host-key: ssh-ed25519 EVIL"), None);
}
