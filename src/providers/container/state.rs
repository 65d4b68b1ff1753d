//! Maps a Pod to a machine of the contract. Pure.

use k8s_openapi::api::core::v1::{
    ContainerStateTerminated, ContainerStateWaiting, ContainerStatus, Pod, PodCondition, PodStatus,
};
use skyward_core::{
    ProviderMachine, ProviderPhase,
    machine::{Dial, Endpoint, FailureKind, Rental},
};
use skyward_provider_kit::mentions;

use super::{MACHINE, PodNetwork, SSH_PORT, map};

/// Prefix of the line with which `start.sh` prints its public host key.
const HOST_KEY_LINE: &str = "skyward-host-key: ";
/// Prefix of the line with which it says why it gave up.
const ERROR_LINE: &str = "skyward-error: ";
/// Its exit code when the image cannot be used.
const UNUSABLE: i32 = 64;
/// Its exit code when sshd does not stay up.
const NO_SSHD: i32 = 65;

/// The host key in one line of a machine's log, if it is there.
pub fn host_key(line: &str) -> Option<String> {
    let key = line.strip_prefix(HOST_KEY_LINE)?.trim();
    key.starts_with("ssh-ed25519 ").then(|| key.to_owned())
}

/// The machine that a Pod is, for SSH as that user; `None` when it does not carry our mark.
pub fn machine(
    pod: &Pod,
    user: &str,
    network: PodNetwork,
    host_key: Option<String>,
) -> Option<ProviderMachine> {
    let mark = map::mark(pod)?;
    let address = pod
        .status
        .as_ref()
        .and_then(|status| status.pod_ip.clone())
        .filter(|ip| !ip.is_empty());
    let endpoint = address.as_deref().and_then(|ip| {
        let dial = match network {
            PodNetwork::Direct => Dial::Address((ip.parse::<std::net::IpAddr>().ok()?, SSH_PORT).into()),
            PodNetwork::PortForward => Dial::PodPort {
                namespace: mark.namespace.clone(),
                pod: pod.metadata.name.clone()?,
                port: SSH_PORT,
            },
        };
        Some(Endpoint {
            dial,
            user: user.to_owned(),
            password: None,
        })
    });
    Some(ProviderMachine {
        id: pod.metadata.uid.clone().unwrap_or_default(),
        mark,
        phase: phase(pod),
        endpoint,
        private_address: address,
        private_interface: None,
        host_key,
        rental: Rental::default(),
    })
}

/// Where the Pod is in its life.
pub fn phase(pod: &Pod) -> ProviderPhase {
    if pod.metadata.deletion_timestamp.is_some() {
        return ProviderPhase::Stopping;
    }
    let Some(status) = &pod.status else {
        return ProviderPhase::Starting(None);
    };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    let ended = matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"));
    // Why the kubelet or the control plane removed or rejected the Pod.
    if ended && let Some(reason) = status.reason.as_deref().filter(|reason| !reason.is_empty()) {
        let said = status.message.as_deref().unwrap_or("no further message");
        return rejected(reason, said);
    }
    if ended && let Some(target) = condition(conditions, "DisruptionTarget").filter(|c| c.status == "True") {
        return failed(
            FailureKind::Lost,
            format!(
                "the Pod was taken away ({}): {}",
                target.reason.as_deref().unwrap_or("no reason given"),
                target.message.as_deref().unwrap_or("no message")
            ),
        );
    }
    let container = container(status);
    if let Some(terminated) = container
        .and_then(|c| c.state.as_ref())
        .and_then(|state| state.terminated.as_ref())
    {
        return terminated_phase(terminated);
    }
    if ended {
        return failed(
            FailureKind::Lost,
            format!(
                "the Pod ended: {}",
                status.message.as_deref().unwrap_or("Kubernetes does not say why")
            ),
        );
    }
    if let Some(container) = container {
        let state = container.state.as_ref();
        if state.is_some_and(|state| state.running.is_some()) {
            return ProviderPhase::Running;
        }
        if let Some(waiting) = state.and_then(|state| state.waiting.as_ref()) {
            return waiting_phase(waiting, container);
        }
    }
    ProviderPhase::Starting(starting(conditions))
}

/// The status of the machine's container, which may not be the first: the kubelet may sort by name.
pub fn container(status: &PodStatus) -> Option<&ContainerStatus> {
    let all = status.container_statuses.as_deref().unwrap_or_default();
    all.iter().find(|container| container.name == MACHINE)
}

fn failed(kind: FailureKind, message: String) -> ProviderPhase {
    ProviderPhase::failed(kind, message)
}

fn condition<'a>(conditions: &'a [PodCondition], type_: &str) -> Option<&'a PodCondition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// What a Pod without container waits for.
fn starting(conditions: &[PodCondition]) -> Option<String> {
    let scheduled = condition(conditions, "PodScheduled")?;
    if scheduled.status == "True" {
        return Some("waits for its node to start it".to_owned());
    }
    let said = scheduled.message.as_deref().unwrap_or_default();
    Some(match scheduled.reason.as_deref() {
        Some("Unschedulable") => format!(
            "waits for a node with room: {said}. Free room, add a node, or ask for less in the Pool (cpu, memory, accelerator)"
        ),
        Some("SchedulingGated") => {
            "waits for a scheduling gate that something in this cluster set".to_owned()
        }
        Some(reason) if !said.is_empty() => format!("waits for a node ({reason}): {said}"),
        _ => "waits for a node".to_owned(),
    })
}

fn rejected(reason: &str, said: &str) -> ProviderPhase {
    match reason {
        // The kubelet rejected the Pod: the scheduler's view was too old.
        _ if reason.starts_with("OutOf")
            || matches!(
                reason,
                "UnexpectedAdmissionError" | "NodeAffinity" | "NodeName" | "NodePorts"
            ) =>
        {
            failed(
                FailureKind::NoRoom,
                format!("the node refused the Pod ({reason}): {said}"),
            )
        }
        // Not a loss: another try would be rejected as well.
        "AppArmor" | "SysctlForbidden" | "PodOSSelectorNodeLabelDoesNotMatch" | "PodOSNotSupported" => {
            failed(
                FailureKind::Other,
                format!("the node cannot run the Pod ({reason}): {said}"),
            )
        }
        // Evicted, Preempting, Terminated, NodeLost, Shutdown, NodeShutdown, DeadlineExceeded, …
        _ => failed(
            FailureKind::Lost,
            format!("the Pod was taken away ({reason}): {said}"),
        ),
    }
}

fn terminated_phase(terminated: &ContainerStateTerminated) -> ProviderPhase {
    let reason = terminated.reason.as_deref().unwrap_or_default();
    let said = terminated.message.as_deref().unwrap_or_default();
    let ours = said.lines().find_map(|line| line.strip_prefix(ERROR_LINE));
    match (terminated.exit_code, reason) {
        (_, "StartError" | "ContainerCannotRun") => failed(FailureKind::UnusableImage, cannot_start(said)),
        (_, "OOMKilled") => failed(
            FailureKind::OutOfMemory,
            "the machine used more memory than it may and was killed. Give the Pool more memory, or the Provider a higher resources.limits.memory"
                .to_owned(),
        ),
        (0, _) => ProviderPhase::Stopped("the machine stopped itself".to_owned()),
        (UNUSABLE, _) if let Some(why) = ours => failed(FailureKind::UnusableImage, why.to_owned()),
        (NO_SSHD, _) if let Some(why) = ours => failed(FailureKind::Other, why.to_owned()),
        (code, _) => failed(
            FailureKind::Lost,
            format!(
                "the machine's first process ended (exit code {code}{}){}",
                if reason.is_empty() { String::new() } else { format!(", {reason}") },
                if said.is_empty() { String::new() } else { format!(": {said}") },
            ),
        ),
    }
}

fn cannot_start(said: &str) -> String {
    let hint = if said.contains("/bin/sh") {
        ". The image has no /bin/sh; use an image with a shell, sshd and Python, or leave \"image\" out of the Provider to use the one of Skyward"
    } else {
        ". Use another image, or another runtimeClassName, in the Provider"
    };
    format!("the container could not be started: {said}{hint}")
}

fn waiting_phase(waiting: &ContainerStateWaiting, container: &ContainerStatus) -> ProviderPhase {
    let reason = waiting.reason.as_deref().unwrap_or_default();
    let said = waiting.message.as_deref().unwrap_or_default();
    let image = &container.image;
    match reason {
        "InvalidImageName" => failed(
            FailureKind::ImagePull,
            format!("\"{image}\" is not the name of an image; correct container.image of the Provider"),
        ),
        "ErrImageNeverPull" => failed(
            FailureKind::ImagePull,
            format!(
                "the node has no image \"{image}\", and imagePullPolicy is Never; load the image onto the nodes, or let it be pulled (imagePullPolicy: IfNotPresent)"
            ),
        ),
        "ImagePullBackOff" | "SignatureValidationFailed" | "ImageInspectError" => {
            failed(FailureKind::ImagePull, cannot_pull(image, said))
        }
        // The kubelet tries again by itself; only an error that repetition cannot mend is a
        // failure.
        "ErrImagePull" | "RegistryUnavailable" if definite(said) => {
            failed(FailureKind::ImagePull, cannot_pull(image, said))
        }
        "ErrImagePull" | "RegistryUnavailable" => {
            ProviderPhase::starting(format!("the first try to pull image \"{image}\" failed: {said}"))
        }
        "CreateContainerConfigError" => failed(
            FailureKind::Other,
            format!("the container cannot be configured: {said}. Correct the Provider's container settings"),
        ),
        "CreateContainerError" | "RunContainerError" | "PostStartHookError" => {
            failed(FailureKind::UnusableImage, cannot_start(said))
        }
        "ContainerCreating" | "PodInitializing" | "" => ProviderPhase::starting("its container is created"),
        other if said.is_empty() => ProviderPhase::starting(format!("its container waits ({other})")),
        other => ProviderPhase::starting(format!("its container waits ({other}): {said}")),
    }
}

/// Signs of an image that is not there.
const MISSING: &[&str] = &["not found", "manifest unknown", "does not exist"];

/// Whether pulling again cannot help.
fn definite(said: &str) -> bool {
    mentions(said, MISSING)
        || mentions(
            said,
            &["unauthorized", "denied", "forbidden", "invalid reference"],
        )
}

fn cannot_pull(image: &str, said: &str) -> String {
    let refused = [
        "unauthorized",
        "denied",
        "forbidden",
        "authentication",
        "no basic auth",
    ];
    let remedy = if mentions(said, &refused) {
        "Check the name, and name a Secret with the registry's credentials in imagePullSecrets of the Provider (it lives in the Pool's namespace)"
    } else if mentions(said, MISSING) {
        "Check name and tag in container.image of the Provider"
    } else {
        "Check container.image of the Provider, and that the nodes reach the registry"
    };
    format!("image \"{image}\" cannot be pulled: {said}. {remedy}")
}

#[cfg(test)]
#[path = "tests/state.rs"]
mod tests;
