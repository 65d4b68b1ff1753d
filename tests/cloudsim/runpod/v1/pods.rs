//! Pods by REST v1: a list of types to choose from, lists as commands, and a status that says
//! what is wanted.

use serde_json::{Map, Value, json};

use super::error;
use super::wire::{Compute, CreatePod, UpdatePod};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Machine, Phase};
use crate::core::market::Market;
use crate::runpod::catalogue::{self, number};
use crate::runpod::edit::Edit;
use crate::runpod::order::{Order, has_port};
use crate::runpod::pods::{Extra, desired_status, own, resume, stop};
use crate::runpod::templates::Container;
use crate::runpod::wire::given;
use crate::runpod::{Runpod, args, volumes};

/// What REST v1 takes where neither an order nor a template says it: GB of both disks, the
/// path of the second, and ports.
const DISK: u32 = 50;
const VOLUME: u32 = 20;
pub(super) const PATH: &str = "/workspace";

pub(super) fn ports() -> Vec<String> {
    ["8888/http", "22/tcp"].map(str::to_owned).to_vec()
}

/// The size and path of a disk; none of size zero.
pub(super) fn disk(size: Option<u32>, path: Option<&str>) -> Option<(u32, String)> {
    let size = size.unwrap_or(VOLUME);
    (size > 0).then(|| (size, path.unwrap_or(PATH).to_owned()))
}

/// An object without what is not known.
fn known(value: Value) -> Map<String, Value> {
    let Value::Object(mut fields) = value else {
        return Map::new();
    };
    fields.retain(|_, value| !value.is_null());
    fields
}

impl CreatePod {
    /// What it orders but for the hardware, with what its template adds.
    fn order(self, runpod: &Runpod, visit: &Visit<'_>) -> Result<Order, Refusal> {
        let is_cpu = self.compute_type == Compute::Cpu;
        let path = self.volume_mount_path.as_deref();
        let network_volume = self
            .network_volume_id
            .map(|id| (id, path.unwrap_or(PATH).to_owned()));
        let bare = is_cpu || network_volume.is_some();
        let lists = self.docker_entrypoint.is_some() || self.docker_start_cmd.is_some();
        let (entrypoint, cmd) = (
            self.docker_entrypoint.unwrap_or_default(),
            self.docker_start_cmd.unwrap_or_default(),
        );
        let template = match &self.template_id {
            Some(id) => Some(runpod.pod_template(&visit.account, id)?),
            None => None,
        };
        let said = self.volume_in_gb.is_some() || template.is_none();
        let mut container = Container {
            image: self.image_name,
            args: lists.then(|| args::text(&entrypoint, &cmd)),
            disk: self.container_disk_in_gb,
            volume: disk(self.volume_in_gb, path).filter(|_| said && !bare),
            ports: self.ports,
            env: self.env,
            registry: self.container_registry_auth_id.map(Value::from),
            start_ssh: Some(true),
        };
        let mut exact_cuda = self.allowed_cuda_versions;
        if let Some(template) = template {
            container = container.over(template, bare || said);
            if !is_cpu && exact_cuda.is_empty() {
                exact_cuda.clone_from(&template.cuda);
            }
        }
        container.disk = container.disk.or(Some(DISK));
        container.ports = container.ports.or_else(|| Some(ports()));
        container.complete(Order {
            name: self.name.unwrap_or_else(|| "my pod".to_owned()),
            network_volume,
            count: if is_cpu {
                self.vcpu_count.unwrap_or(2)
            } else {
                self.gpu_count.unwrap_or(1)
            },
            is_cpu,
            tiers: vec![self.cloud_type],
            places: self.data_center_ids,
            countries: self.country_codes,
            exact_cuda,
            public_ip: self.support_public_ip,
            global_networking: self.global_networking,
            template: self.template_id,
            locked: self.locked,
            ..Order::default()
        })
    }
}

impl Runpod {
    pub(super) fn v1_create_pod(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreatePod = given(visit.request)?;
        let (spot, tier) = (given.interruptible, given.cloud_type);
        let is_cpu = given.compute_type == Compute::Cpu;
        let listed = if is_cpu {
            &given.cpu_flavor_ids
        } else {
            &given.gpu_type_ids
        };
        let listed = listed.clone();
        let order = given.order(self, visit)?;
        let types = visit.world.types.values();
        let types: Vec<String> = types
            .filter(|found| (found.gpus == 0) == is_cpu)
            .map(|found| found.name.clone())
            .collect();
        // The description has types that this world does not.
        let wanted = if listed.is_empty() { types.clone() } else { listed };
        for hardware in wanted.into_iter().filter(|hardware| types.contains(hardware)) {
            let mut order = order.clone();
            if spot {
                // There is no bid in v1: the floor is paid.
                let gpu = visit.world.types.get(&hardware);
                let floor = gpu.and_then(|gpu| catalogue::price(gpu, tier, Market::Spot));
                let Some(floor) = floor else { continue };
                order.bid = Some(floor);
            }
            order.hardware = hardware;
            match self.rent(visit, &order) {
                Ok(id) => {
                    let pod = self.v1_one(visit, &id)?;
                    return Ok(Answer::json(201, &pod));
                }
                Err(Refusal::NoCapacity) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Err(Refusal::NoCapacity)
    }

    fn v1_one(&self, visit: &Visit<'_>, id: &str) -> Result<Value, Refusal> {
        let machine = own(visit, id)?;
        Ok(self.v1_shown(visit, machine, machine.phase))
    }

    pub(super) fn v1_pod(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        Ok(Answer::json(200, &self.v1_one(visit, id)?))
    }

    pub(super) fn v1_pods(&self, visit: &Visit<'_>) -> Answer {
        let mut pods: Vec<Value> = visit
            .world
            .machines_of(&visit.account)
            .filter(|machine| self.v1_wanted(visit, machine))
            .filter_map(|machine| {
                let phase = visit.world.listed(machine)?;
                let wanted = visit.request.parameter("desiredStatus");
                let there = !matches!(phase, Phase::Ending | Phase::Ended);
                let fits = wanted.is_none_or(|wanted| wanted == desired_status(phase));
                (there && fits).then(|| self.v1_shown(visit, machine, phase))
            })
            .collect();
        if let Some(keep) = visit.keep {
            pods.truncate(keep);
        }
        Answer::json(200, &Value::Array(pods))
    }

    /// Whether a list asks for this pod.
    fn v1_wanted(&self, visit: &Visit<'_>, machine: &Machine) -> bool {
        let Some(Extra { order, .. }) = self.pods.get(&machine.id) else {
            return false;
        };
        let kind = if order.is_cpu { "CPU" } else { "GPU" };
        let volume = order.network_volume.as_ref().map(|(id, _)| id.as_str());
        let is = |name: &str, value: Option<&str>| {
            let mut given = visit.request.parameters(name).peekable();
            given.peek().is_none() || given.any(|given| Some(given) == value)
        };
        let (gpu, cpu) = if order.is_cpu {
            (None, Some(order.hardware.as_str()))
        } else {
            (Some(order.hardware.as_str()), None)
        };
        is("id", Some(machine.id.as_str()))
            && is("name", Some(machine.mark.name.as_str()))
            && is("computeType", Some(kind))
            && is("gpuTypeId", gpu)
            && is("cpuFlavorId", cpu)
            && is("dataCenterId", Some(machine.region.as_str()))
            && is("imageName", Some(order.image.as_str()))
            && is("networkVolumeId", volume)
            && is("templateId", order.template.as_deref())
    }

    pub(super) fn v1_update_pod(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let given: UpdatePod = given(visit.request)?;
        own(visit, id)?;
        let Some(Extra { order, .. }) = self.pods.get(id) else {
            return Err(Refusal::NotFound("pod not found".to_owned()));
        };
        let (entrypoint, cmd) = args::lists(&order.args);
        let lists = given.docker_entrypoint.is_some() || given.docker_start_cmd.is_some();
        let args = lists.then(|| {
            args::text(
                &given.docker_entrypoint.unwrap_or(entrypoint),
                &given.docker_start_cmd.unwrap_or(cmd),
            )
        });
        let edit = Edit {
            name: given.name,
            image: given.image_name,
            args,
            disk: given.container_disk_in_gb,
            ports: given.ports,
            env: given.env,
            registry: given.container_registry_auth_id.map(Value::from),
            locked: given.locked,
            global_networking: given.global_networking,
            ..Edit::default()
        };
        let size = given.volume_in_gb.filter(|size| *size > 0);
        let edit = edit.mounted(order, size, given.volume_mount_path);
        self.edit(visit, id, edit)?;
        self.v1_pod(visit, id)
    }

    pub(super) fn v1_delete_pod(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        let gone = || Refusal::NotFound("pod not found to terminate".to_owned());
        if own(visit, id).map_err(|_| gone())?.phase == Phase::Ending {
            return Err(gone());
        }
        if self.is_member(id) {
            return Err(Refusal::Bad("the pod is a member of a cluster".to_owned()));
        }
        let takes = visit.world.end_takes;
        self.terminate(visit.world, id, takes);
        Ok(Answer::empty(204))
    }

    /// `start`, `stop`, `reset` and `restart`. What is already so stays so.
    pub(super) fn v1_act_on_pod(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        let phase = own(visit, id)?.phase;
        let action = visit.call.name;
        if action != "v1.pods.start" && self.is_locked(id) {
            return Err(Refusal::Bad("the pod is locked".to_owned()));
        }
        match (action, phase) {
            ("v1.pods.start", Phase::Halted) => resume(visit, id).map_err(|_| {
                let message = "There are not enough free GPUs on the host machine to start this pod.";
                Refusal::Answer(error(500, message))
            })?,
            ("v1.pods.stop", Phase::Pending | Phase::Running) => stop(visit.world, id),
            (_, Phase::Failed | Phase::Ending) => {
                return Err(Refusal::Bad("the pod can no longer do that".to_owned()));
            }
            _ => {}
        }
        self.v1_pod(visit, id)
    }

    /// A pod as REST v1 shows it.
    fn v1_shown(&self, visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
        let Some(Extra {
            order,
            tier,
            direct,
            bid,
            ..
        }) = self.pods.get(&machine.id)
        else {
            return Value::Null;
        };
        let flag = |name: &str| visit.request.parameter(name) == Some("true");
        let since = machine.since(Phase::Running);
        let ready = phase == Phase::Running && *direct && has_port(since, visit.now(), self.direct_after);
        let endpoint = machine.endpoint.as_ref().filter(|_| ready);
        let (entrypoint, cmd) = args::lists(&order.args);
        let hardware = visit.world.types.get(&machine.instance_type);
        let name = hardware.map(|hardware| hardware.gpu.as_str());
        let center = Self::center(&machine.region);
        let host = known(json!({
            "dataCenterId": center, "gpuTypeId": (!order.is_cpu).then_some(&order.hardware), "gpuDisplayName": name,
            "location": catalogue::country(&machine.region), "secureCloud": tier.name() == "SECURE",
            "costPerHr": number(machine.price),
        }));
        let volume = order.network_volume.as_ref();
        let found = volume.and_then(|(id, _)| volumes::find(visit.world, &visit.account, id).ok());
        let found = found.filter(|_| flag("includeNetworkVolume"));
        let path = order.volume.as_ref().map(|(_, path)| path);
        let mut pod = known(json!({
            "id": machine.id, "name": machine.mark.name, "image": order.image, "env": order.env,
            "desiredStatus": desired_status(phase), "consumerUserId": machine.account,
            "costPerHr": number(machine.price), "adjustedCostPerHr": number(machine.price),
            "containerDiskInGb": order.disk, "volumeInGb": order.volume.as_ref().map_or(0, |(size, _)| *size),
            "volumeMountPath": path.or(volume.map(|(_, path)| path)),
            "containerRegistryAuthId": order.registry, "templateId": order.template,
            "dockerEntrypoint": entrypoint, "dockerStartCmd": cmd, "ports": order.ports,
            "interruptible": bid.is_some(), "locked": order.locked,
            "machineId": format!("m-{}", &machine.id[..6.min(machine.id.len())]),
            "machine": if flag("includeMachine") { host } else { Map::new() },
            "networkVolume": found.map(volumes::flat),
            "memoryInGb": hardware.map(|hardware| hardware.memory_gb),
            "vcpuCount": hardware.map(|hardware| hardware.vcpus.max(order.count)),
            "cpuFlavorId": order.is_cpu.then_some(&order.hardware),
            "gpu": (!order.is_cpu).then(|| json!({"id": order.hardware, "count": order.count, "displayName": name})),
            "lastStartedAt": since.map(|at| at.to_string()),
            "lastStatusChange": machine.since(phase).map(|at| at.to_string()),
            "publicIp": endpoint.map_or("", |at| at.address.as_str()),
        }));
        let mapped = endpoint.map(|at| json!({"22": at.port}));
        pod.insert("portMappings".to_owned(), mapped.unwrap_or_default());
        Value::Object(pod)
    }
}
