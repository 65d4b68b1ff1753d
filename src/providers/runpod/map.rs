//! An order becomes a request to RunPod, a pod becomes a machine. Pure.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde_json::{Value, json};
use skyward_api::shared::{Disk, whole_gb};
use skyward_core::{
    ErrorKind, Mark, Market, Order, ProviderError, ProviderMachine, ProviderPhase, Usd,
    machine::{Dial, Endpoint, FailureKind, Rental},
    proof,
};
use skyward_provider_kit::{
    Amount,
    boot::{self, base64},
    cut,
    lookup::Listed,
    time,
};

use super::{
    config::Settings,
    kind::{Cloud, Kind},
    wire::Pod,
};

/// Variable that carries the mark: the API shows the environment of a pod.
pub const MARK: &str = "SKYWARD_MARK";
/// Variable that tells the market; a pod of REST v2 does not.
pub const MARKET: &str = "SKYWARD_MARKET";
/// Largest disk of a machine without GPUs.
pub const CPU_DISK_GB: u32 = 20;
/// The first process.
const START: &str = include_str!("start.sh");

/// Data that was looked up for an order.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Stored registry credential.
    pub registry: Option<String>,
    /// Where it may stand; all when empty.
    pub data_centers: Vec<String>,
    /// Bid for each GPU.
    pub bid: Option<Usd>,
}

/// The boot script. Where a host key is to be proved, those of the image go first, which every user of
/// the image has; a container that was started again keeps the key that it proved.
fn first_boot(order: &Order) -> String {
    let boot = boot::first_boot(order);
    match order.host_token {
        Some(_) => format!("[ -e {} ] || rm -f /etc/ssh/ssh_host_*\n{boot}", proof::FILE),
        None => boot,
    }
}

/// Environment of a machine.
fn environment(order: &Order) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from([
        // This key replaces the keys of the account.
        ("PUBLIC_KEY".to_owned(), order.authorized_key.trim().to_owned()),
        (
            MARK.to_owned(),
            serde_json::to_string(&order.mark).unwrap_or_default(),
        ),
        (
            MARKET.to_owned(),
            match order.market {
                Market::Spot => "spot",
                Market::OnDemand => "on-demand",
            }
            .to_owned(),
        ),
    ]);
    let boot = first_boot(order);
    if !boot.is_empty() {
        env.insert("SKYWARD_BOOT".to_owned(), base64(&boot));
    }
    env
}

impl Listed for Pod {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        serde_json::from_str(self.env.as_ref()?.get(MARK)?).ok()
    }

    fn gone(&self) -> bool {
        self.status == "TERMINATED"
    }
}

/// The start command: no quotes inside, since each API splits it in its own way.
fn command() -> String {
    format!(
        "bash -c 'echo {} | base64 -d >/.skyward-start; exec sh /.skyward-start'",
        base64(START)
    )
}

fn name(order: &Order) -> String {
    format!("skyward-{}", cut(&order.mark.machine, 150))
}

/// Size of the container's disk.
fn disk(order: &Order, settings: &Settings, gpus: bool) -> Result<u32, ProviderError> {
    let own = settings.container_disk.as_ref().map(Disk::gb);
    match order.disk_bytes.map(whole_gb) {
        Some(size) if !gpus && size > CPU_DISK_GB => Err(refused(format!(
            "a machine without GPUs has at most {CPU_DISK_GB} GB of disk at RunPod; ask for less disk in the Pool"
        ))),
        Some(size) => Ok(size),
        None if gpus => Ok(own.unwrap_or(50)),
        None => Ok(own.unwrap_or(CPU_DISK_GB).min(CPU_DISK_GB)),
    }
}

fn refused(message: String) -> ProviderError {
    ProviderError::new(ErrorKind::InvalidOrder, "create the pod", message)
}

/// The kind of machine of an order.
pub fn kind(order: &Order) -> Result<Kind, ProviderError> {
    Kind::parse(&order.instance_type).ok_or_else(|| {
        refused(format!(
            "\"{}\" is no instance type of RunPod; take one from kubectl get offers",
            order.instance_type
        ))
    })
}

/// Body of an order on demand (REST v2).
pub fn body(order: &Order, settings: &Settings, found: &Found) -> Result<Value, ProviderError> {
    let kind = kind(order)?;
    let gpus = matches!(kind, Kind::Gpu { .. });
    let mut body = json!({
        "name": name(order),
        "image": settings.image(gpus),
        "args": command(),
        "disk": disk(order, settings, gpus)?,
        "ports": settings.ports(),
        "env": environment(order),
        "startSsh": true,
    });
    match &kind {
        Kind::Gpu { id, count, cloud } => {
            body["gpu"] = json!({ "id": id, "count": count });
            if let Some(version) = settings.min_cuda().filter(|_| id.starts_with("NVIDIA")) {
                body["gpu"]["minCudaVersion"] = version.into();
            }
            body["cloud"] = cloud.as_str().into();
            let always = settings.global_networking == Some(true)
                && *cloud == Cloud::Secure
                && id.starts_with("NVIDIA");
            if *cloud == Cloud::Networked || always {
                body["globalNetworking"] = true.into();
            }
            if let Some((size, path)) = settings.volume() {
                body["mounts"] = json!({ "persistent": { "size": size, "path": path } });
            }
        }
        Kind::Cpu { flavour, vcpus } => {
            body["cpu"] = json!({ "id": flavour, "vcpuCount": vcpus });
        }
    }
    if !found.data_centers.is_empty() {
        body["dataCenterIds"] = found.data_centers.clone().into();
    }
    if let Some(registry) = &found.registry {
        body["registry"] = registry.clone().into();
    }
    Ok(body)
}

/// Input of a spot order (GraphQL).
pub fn input(order: &Order, settings: &Settings, found: &Found) -> Result<Value, ProviderError> {
    let (id, count, cloud) = match kind(order)? {
        Kind::Gpu {
            cloud: Cloud::Networked,
            ..
        } => {
            return Err(refused(
                "RunPod has no spot machines in its global network. Use allocation: OnDemand, or topology: Independent"
                    .to_owned(),
            ));
        }
        Kind::Cpu { .. } => return Err(refused("RunPod has no spot machines without GPUs".to_owned())),
        Kind::Gpu { id, count, cloud } => (id, count, cloud),
    };
    let env: Vec<Value> = environment(order)
        .into_iter()
        .map(|(key, value)| json!({ "key": key, "value": value }))
        .collect();
    let mut input = json!({
        "name": name(order),
        "imageName": settings.image(true),
        "dockerArgs": command(),
        "gpuTypeId": id,
        "gpuCount": count,
        "cloudType": cloud.as_str(),
        "containerDiskInGb": disk(order, settings, true)?,
        "volumeInGb": settings.volume().map_or(0, |(size, _)| size),
        "ports": settings.ports().join(","),
        "env": env,
        "startSsh": true,
        // GraphQL's Float.
        "bidPerGpu": found.bid.map(Usd::to_f64),
    });
    if let Some((_, path)) = settings.volume() {
        input["volumeMountPath"] = path.into();
    }
    if cloud == Cloud::Community {
        // Without a public address SSH does not reach it.
        input["supportPublicIp"] = true.into();
    }
    if let Some(version) = settings.min_cuda().filter(|_| id.starts_with("NVIDIA")) {
        input["minCudaVersion"] = version.into();
    }
    if let Some(first) = found.data_centers.first() {
        // Only one is possible here: the first allowed one.
        input["dataCenterId"] = first.clone().into();
    }
    if let Some(registry) = &found.registry {
        input["containerRegistryAuthId"] = registry.clone().into();
    }
    if let Some(vcpus) = order.vcpus {
        input["minVcpuCount"] = (vcpus.ceil() as u64).into();
    }
    if let Some(memory) = order.memory_bytes {
        input["minMemoryInGb"] = whole_gb(memory).into();
    }
    Ok(input)
}

/// The bid for each GPU: the lowest that wins times the multiplier, but not above the
/// ceiling. `None` when even the lowest is above it.
pub fn bid(lowest: Usd, multiplier: Decimal, count: u32, ceiling: Option<Usd>) -> Option<Usd> {
    let wanted = (lowest * multiplier).round_dp(4);
    let Some(ceiling) = ceiling else {
        return Some(wanted);
    };
    let most = (ceiling / count.max(1)).trunc_dp(4);
    (most >= lowest).then(|| wanted.min(most))
}

fn spot(pod: &Pod) -> bool {
    pod.env
        .as_ref()
        .and_then(|env| env.get(MARKET))
        .is_some_and(|market| market == "spot")
}

/// The machine that a pod is; `None` when it does not carry our mark.
pub fn machine(pod: &Pod) -> Option<ProviderMachine> {
    let direct = pod.ssh.as_ref().and_then(|ssh| ssh.direct.as_ref());
    let endpoint = direct.map(|direct| Endpoint {
        dial: direct.host.parse::<std::net::IpAddr>().map_or_else(
            |_| Dial::Host(direct.host.clone(), direct.port),
            |ip| Dial::Address((ip, direct.port).into()),
        ),
        user: direct.username.clone().unwrap_or_else(|| "root".to_owned()),
        password: None,
    });
    let network = pod.global_networking.clone().unwrap_or_default();
    Some(ProviderMachine {
        id: pod.id.clone(),
        mark: pod.mark()?,
        phase: phase(pod, endpoint.is_some()),
        endpoint,
        private_address: network.ip.or(network.internal_dns),
        private_interface: None,
        host_key: None,
        rental: Rental {
            region: pod.data_center_id.clone(),
            // A stopped pod shows 0, while its disks are still billed.
            hourly_price: pod.cost.map(Amount::usd).filter(|cost| !cost.is_zero()),
            // Its start changes whenever it is resumed; it is billed since its creation.
            billed_since: time(pod.created_at.as_deref()).or_else(|| time(pod.started_at.as_deref())),
            reclaim_at: None,
        },
    })
}

fn phase(pod: &Pod, reachable: bool) -> ProviderPhase {
    let failed = ProviderPhase::failed;
    match pod.status.as_str() {
        "RUNNING" if reachable => ProviderPhase::Running,
        "RUNNING" => ProviderPhase::starting("waits for its public SSH port"),
        "PROVISIONING" => ProviderPhase::starting("RunPod looks for a machine"),
        "STARTING" => ProviderPhase::starting("its container starts; a large image takes minutes"),
        "EXITED" | "TERMINATED" if spot(pod) => {
            failed(FailureKind::Reclaimed, "RunPod took the spot machine back")
        }
        "EXITED" => {
            ProviderPhase::Stopped("it was stopped; RunPod bills its disks until it is deleted".to_owned())
        }
        "ERROR" => failed(
            FailureKind::Other,
            "RunPod reports an error of the pod; check the image, and the registry credential if it is private",
        ),
        "TERMINATED" => failed(FailureKind::Lost, "the pod was deleted at RunPod"),
        other => ProviderPhase::starting(format!("RunPod: {other}")),
    }
}

#[cfg(test)]
#[path = "tests/map.rs"]
mod tests;
