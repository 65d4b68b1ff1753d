//! An order and the settings of its Provider become a Pod. Pure: the same order gives
//! the same Pod, so that ordering twice is ordering once.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{
        Capabilities, Container, ContainerPort, DownwardAPIVolumeFile, DownwardAPIVolumeSource,
        EmptyDirVolumeSource, EnvVar, LocalObjectReference, ObjectFieldSelector, Pod, PodSecurityContext,
        PodSpec, ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::OwnerReference},
};
use kube::api::ObjectMeta;
use skyward_api::{labels, shared::Size};
use skyward_core::{ErrorKind, Order, ProviderError, order::Mark};

use super::{
    GPU, LINUX, MACHINE, OS_LABEL, PRODUCT_LABEL, SSH_PORT,
    config::{Rights, Settings},
    offers::Group,
    quantity,
};

/// The first process of each machine.
const START: &str = include_str!("start.sh");
/// User and group of Pods with `securityProfile: Restricted`.
const ORDINARY: i64 = 1000;
/// Seconds between TERM and KILL: the first process ends at once; this is for a hung node.
const GRACE_SECONDS: i64 = 5;
/// Annotation that becomes /etc/passwd of restricted Pods: sshd admits only users that
/// exist, whatever image it is.
const PASSWD: &str = "skyward.dev/passwd";

/// The Pod that an order asks for; the label tells which Provider object it is from.
pub fn pod(order: &Order, settings: &Settings, provider_label: &str) -> Result<Pod, ProviderError> {
    let group = Group::parse(&order.instance_type).ok_or_else(|| {
        ProviderError::new(
            ErrorKind::InvalidOrder,
            "create the Pod",
            format!(
                "\"{}\" is no instance type of this Provider; its Offers were renewed, try again",
                order.instance_type
            ),
        )
    })?;
    let mut node_selector = settings.node_selector.clone();
    // Images and start script are for Linux.
    node_selector.insert(OS_LABEL.to_owned(), LINUX.to_owned());
    node_selector.insert("kubernetes.io/arch".to_owned(), group.architecture.clone());
    if let (Some(_), Some(product)) = (&order.accelerator, &group.product) {
        node_selector.insert(PRODUCT_LABEL.to_owned(), product.clone());
    }
    let Disks {
        volumes,
        mounts,
        annotations,
    } = disks(order, settings);
    let restricted = settings.rights == Rights::Restricted;
    let container = Container {
        name: MACHINE.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some(settings.pull_policy.as_str().to_owned()),
        // The script comes in a variable, so that lists of processes do not show all of it.
        command: Some(
            ["/bin/sh", "-c", "eval \"$SKYWARD_START\"", "skyward-machine"]
                .map(str::to_owned)
                .to_vec(),
        ),
        env: Some(environment(order, settings)),
        ports: Some(vec![ContainerPort {
            name: Some("ssh".to_owned()),
            container_port: i32::from(SSH_PORT),
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        resources: Some(resources(order, settings)),
        security_context: Some(container_rights(settings.rights)),
        // The end of the log, where the script could not say itself why it ended.
        termination_message_policy: Some("FallbackToLogsOnError".to_owned()),
        volume_mounts: (!mounts.is_empty()).then_some(mounts),
        ..Container::default()
    };
    Ok(Pod {
        metadata: ObjectMeta {
            name: Some(order.mark.machine.clone()),
            namespace: Some(order.mark.namespace.clone()),
            labels: Some(pod_labels(order, provider_label)),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(vec![owner(&order.mark)]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            containers: vec![container],
            volumes: (!volumes.is_empty()).then_some(volumes),
            restart_policy: Some("Never".to_owned()),
            automount_service_account_token: Some(false),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            service_account_name: settings.service_account.clone(),
            runtime_class_name: settings.runtime_class.clone(),
            node_selector: Some(node_selector),
            tolerations: (!settings.tolerations.is_empty()).then(|| settings.tolerations.clone()),
            image_pull_secrets: (!settings.pull_secrets.is_empty()).then(|| {
                settings
                    .pull_secrets
                    .iter()
                    .map(|(name, _)| LocalObjectReference { name: name.clone() })
                    .collect()
            }),
            security_context: restricted.then(|| PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(ORDINARY),
                run_as_group: Some(ORDINARY),
                fs_group: Some(ORDINARY),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            ..PodSpec::default()
        }),
        status: None,
    })
}

/// The Machine owns its Pod, so that the Pod goes with it. The Pod does not block the Machine's
/// deletion: our finalizer decides that.
fn owner(mark: &Mark) -> OwnerReference {
    OwnerReference {
        api_version: format!("{}/{}", skyward_api::GROUP, skyward_api::VERSION),
        kind: "Machine".to_owned(),
        name: mark.machine.clone(),
        uid: mark.machine_uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    }
}

fn pod_labels(order: &Order, provider_label: &str) -> BTreeMap<String, String> {
    let mark = &order.mark;
    let mut all = order.labels.clone();
    all.extend(
        [
            (labels::MANAGED_BY, labels::MANAGER.to_owned()),
            (labels::CLUSTER, mark.cluster.clone()),
            (labels::PROVIDER, provider_label.to_owned()),
            (labels::POOL, short_name(&mark.pool)),
            (labels::POOL_UID, mark.pool_uid.clone()),
            (labels::MACHINE, mark.machine.clone()),
            (labels::MACHINE_UID, mark.machine_uid.clone()),
            (labels::SLOT, mark.slot.to_string()),
            (labels::ATTEMPT, mark.attempt.to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    all
}

/// Its first 63 characters, which a label can hold.
fn short_name(name: &str) -> String {
    let cut: String = name.chars().take(63).collect();
    cut.trim_end_matches(|c: char| !c.is_ascii_alphanumeric())
        .to_owned()
}

/// The mark in a Pod's labels; `None` when it is not ours.
pub fn mark(pod: &Pod) -> Option<Mark> {
    let label = |name: &str| {
        pod.metadata
            .labels
            .as_ref()
            .and_then(|all| all.get(name))
            .cloned()
    };
    (label(labels::MANAGED_BY).as_deref() == Some(labels::MANAGER)).then_some(())?;
    Some(Mark {
        cluster: label(labels::CLUSTER)?,
        namespace: pod.metadata.namespace.clone()?,
        pool: label(labels::POOL)?,
        pool_uid: label(labels::POOL_UID)?,
        machine: label(labels::MACHINE)?,
        machine_uid: label(labels::MACHINE_UID)?,
        slot: label(labels::SLOT)?.parse().ok()?,
        attempt: label(labels::ATTEMPT)?.parse().ok()?,
    })
}

fn environment(order: &Order, settings: &Settings) -> Vec<EnvVar> {
    let mut all = vec![
        ("SKYWARD_START", START.to_owned()),
        ("SKYWARD_AUTHORIZED_KEY", order.authorized_key.trim().to_owned()),
        ("SKYWARD_SSH_USER", settings.user.clone()),
        ("SKYWARD_SSH_PORT", SSH_PORT.to_string()),
    ];
    if settings.rights == Rights::Restricted {
        all.push(("HOME", home(&settings.user)));
    }
    all.into_iter()
        .map(|(name, value)| EnvVar {
            name: name.to_owned(),
            value: Some(value),
            value_from: None,
        })
        .collect()
}

fn home(user: &str) -> String {
    format!("/home/{user}")
}

fn container_rights(rights: Rights) -> SecurityContext {
    match rights {
        Rights::Root => SecurityContext {
            // Images with a USER of their own would leave sshd unable to log anybody in.
            run_as_user: Some(0),
            run_as_group: Some(0),
            ..SecurityContext::default()
        },
        Rights::Privileged => SecurityContext {
            run_as_user: Some(0),
            run_as_group: Some(0),
            privileged: Some(true),
            ..SecurityContext::default()
        },
        Rights::Restricted => SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        },
    }
}

/// The Pool's amounts, else the Provider's defaults. Requested memory is a limit too; a default
/// limit below the request gives way.
fn resources(order: &Order, settings: &Settings) -> ResourceRequirements {
    let size = |size: &Option<Size>| size.as_ref().map(|size| size.0.clone());
    let mut requests: BTreeMap<&str, String> = BTreeMap::new();
    let mut limits: BTreeMap<&str, String> = BTreeMap::new();
    let cpus = |amounts: &skyward_api::provider::Amounts| amounts.cpu.map(|amount| amount.to_string());
    let cpu = order
        .vcpus
        .map(quantity::cpu)
        .or_else(|| cpus(&settings.requests));
    requests.extend(cpu.map(|amount| ("cpu", amount)));
    limits.extend(cpus(&settings.limits).map(|amount| ("cpu", amount)));
    if let Some(asked) = order.memory_bytes.map(|bytes| bytes.to_string()) {
        requests.insert("memory", asked.clone());
        limits.insert("memory", asked);
    } else {
        requests.extend(size(&settings.requests.memory).map(|amount| ("memory", amount)));
        limits.extend(size(&settings.limits.memory).map(|amount| ("memory", amount)));
    }
    let disk = order.disk_bytes.map(|bytes| bytes.to_string());
    let disk = disk.or_else(|| size(&settings.requests.ephemeral_storage));
    requests.extend(disk.map(|amount| ("ephemeral-storage", amount)));
    limits.extend(size(&settings.limits.ephemeral_storage).map(|amount| ("ephemeral-storage", amount)));
    for (name, limit) in &mut limits {
        if let Some(asked) = requests.get(name)
            && quantity::parse(asked) > quantity::parse(limit)
        {
            limit.clone_from(asked);
        }
    }
    if let Some((_, count)) = &order.accelerator {
        // Kubernetes counts whole GPUs.
        limits.insert(GPU, count.ceil().to_string());
    }
    let quantities = |amounts: BTreeMap<&str, String>| {
        (!amounts.is_empty()).then(|| {
            amounts
                .into_iter()
                .map(|(name, amount)| (name.to_owned(), Quantity(amount)))
                .collect()
        })
    };
    ResourceRequirements {
        requests: quantities(requests),
        limits: quantities(limits),
        claims: None,
    }
}

struct Disks {
    volumes: Vec<Volume>,
    mounts: Vec<VolumeMount>,
    annotations: BTreeMap<String, String>,
}

fn disks(order: &Order, settings: &Settings) -> Disks {
    let mut disks = Disks {
        volumes: Vec::new(),
        mounts: Vec::new(),
        annotations: BTreeMap::new(),
    };
    let empty = |name: &str, medium: Option<&str>, limit: Option<u64>| Volume {
        name: name.to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: medium.map(str::to_owned),
            size_limit: limit.map(|bytes| Quantity(bytes.to_string())),
        }),
        ..Volume::default()
    };
    let mount = |name: &str, path: String| VolumeMount {
        name: name.to_owned(),
        mount_path: path,
        ..VolumeMount::default()
    };
    if let Some(size) = order.shm_bytes {
        disks.volumes.push(empty("shm", Some("Memory"), Some(size)));
        disks.mounts.push(mount("shm", "/dev/shm".to_owned()));
    }
    if settings.rights == Rights::Restricted {
        let user = &settings.user;
        disks.volumes.push(empty("home", None, None));
        disks.mounts.push(mount("home", home(user)));
        disks.annotations.insert(
            PASSWD.to_owned(),
            format!(
                "root:x:0:0:root:/root:/bin/sh\n{user}:x:{ORDINARY}:{ORDINARY}:{user}:{}:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
                home(user)
            ),
        );
        disks.volumes.push(Volume {
            name: "passwd".to_owned(),
            downward_api: Some(DownwardAPIVolumeSource {
                items: Some(vec![DownwardAPIVolumeFile {
                    path: "passwd".to_owned(),
                    field_ref: Some(ObjectFieldSelector {
                        field_path: format!("metadata.annotations['{PASSWD}']"),
                        api_version: None,
                    }),
                    ..DownwardAPIVolumeFile::default()
                }]),
                default_mode: Some(0o644),
            }),
            ..Volume::default()
        });
        disks.mounts.push(VolumeMount {
            sub_path: Some("passwd".to_owned()),
            read_only: Some(true),
            ..mount("passwd", "/etc/passwd".to_owned())
        });
    }
    disks
}

#[cfg(test)]
#[path = "tests/map.rs"]
pub(crate) mod tests;
