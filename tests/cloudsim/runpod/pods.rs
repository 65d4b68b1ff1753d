//! Pods by REST: create, list, get, actions, delete, and their statuses.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::catalogue::number;
use super::order::{Order, has_port};
use super::templates::Container;
use super::wire::{Act, Action, CreatePod, Tier, given};
use super::{Runpod, cpus, problem};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Phase};
use crate::core::world::World;

/// Fields of a pod that only RunPod has.
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) order: Order,
    pub(super) tier: Tier,
    /// Whether it will have direct SSH.
    pub(super) direct: bool,
    pub(super) bid: Option<Decimal>,
    pub(super) takes: SignedDuration,
}

/// The status of a pod in a phase.
pub(super) fn status(machine: &Machine, phase: Phase, takes: SignedDuration, now: Timestamp) -> &'static str {
    match phase {
        Phase::Pending => {
            let age = now.duration_since(machine.since(Phase::Pending).unwrap_or(now));
            if age < takes / 2 || takes.is_zero() {
                "PROVISIONING"
            } else {
                "STARTING"
            }
        }
        Phase::Running => "RUNNING",
        Phase::Halted => "EXITED",
        Phase::Failed => "ERROR",
        Phase::Ending | Phase::Ended => "TERMINATED",
    }
}

/// The wanted status of a pod, not its actual one: RUNNING from the order on.
pub(super) fn desired_status(phase: Phase) -> &'static str {
    match phase {
        Phase::Pending | Phase::Running | Phase::Failed => "RUNNING",
        Phase::Halted => "EXITED",
        Phase::Ending | Phase::Ended => "TERMINATED",
    }
}

fn missing() -> Refusal {
    Refusal::NotFound("pod not found".to_owned())
}

/// A pod of this account that exists.
pub(super) fn own<'a>(visit: &'a Visit<'_>, id: &str) -> Result<&'a Machine, Refusal> {
    let machine = visit
        .world
        .machines
        .get(id)
        .filter(|machine| machine.account == visit.account);
    machine.filter(|machine| machine.exists()).ok_or_else(missing)
}

/// Takes a GPU again, if there is one.
pub(super) fn resume(visit: &mut Visit<'_>, id: &str) -> Result<(), Refusal> {
    if !visit.world.hold_stock(id) {
        return Err(Refusal::NoCapacity);
    }
    visit.world.resume(id, visit.boot.clone());
    Ok(())
}

/// Stops a pod: its disks stay, its GPU is free for others.
pub(super) fn stop(world: &mut World, id: &str) {
    world.halt(id, Cause::Asked);
    world.release_stock(id);
}

impl Runpod {
    /// Whether an account has a pod whose order meets the condition and which has not been ended.
    pub(super) fn has_pod(&self, world: &World, account: &str, like: impl Fn(&Order) -> bool) -> bool {
        world
            .machines_of(account)
            .filter(|machine| !matches!(machine.phase, Phase::Ending | Phase::Ended))
            .any(|machine| self.pods.get(&machine.id).is_some_and(|extra| like(&extra.order)))
    }

    /// Whether a pod is locked.
    pub(super) fn is_locked(&self, id: &str) -> bool {
        self.pods.get(id).is_some_and(|extra| extra.order.locked)
    }

    pub(super) fn create_by_rest(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreatePod = given(visit.request)?;
        let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
        let (hardware, count, is_cpu, exact, least) = match (given.gpu, given.cpu) {
            (Some(gpu), None) => (
                gpu.id,
                gpu.count.unwrap_or(1),
                false,
                gpu.allowed_cuda_versions,
                gpu.min_cuda_version,
            ),
            (None, Some(cpu)) => (cpu.id, cpu.vcpu_count, true, Some(Vec::new()), None),
            (Some(_), Some(_)) | (None, None) => return bad("exactly one of gpu and cpu must be set"),
        };
        if exact.as_ref().is_some_and(|exact| !exact.is_empty()) && least.is_some() {
            return bad("allowedCudaVersions and minCudaVersion are mutually exclusive");
        }
        if given.mounts.persistent.is_some() && given.mounts.network.is_some() {
            return bad("mounts.persistent and mounts.network are mutually exclusive");
        }
        let network_volume = given.mounts.network.and_then(|mut volumes| volumes.pop());
        let mut exact_cuda = exact.clone().unwrap_or_default();
        let mut container = Container {
            image: given.image,
            args: given.args,
            disk: given.disk,
            volume: given.mounts.persistent.map(|mount| (mount.size, mount.path)),
            ports: given.ports,
            env: given.env,
            registry: given.registry,
            start_ssh: given.start_ssh,
        };
        if let Some(id) = &given.template_id {
            let template = self.pod_template(&visit.account, id)?;
            container = container.over(template, is_cpu || network_volume.is_some());
            if exact.is_none() && least.is_none() {
                exact_cuda.clone_from(&template.cuda);
            }
        }
        let order = container.complete(Order {
            name: given.name,
            network_volume: network_volume.map(|mount| (mount.volume_id, mount.path)),
            hardware,
            count,
            is_cpu,
            tiers: vec![given.cloud],
            places: given.data_center_ids,
            exact_cuda,
            least_cuda: least,
            public_ip: true,
            global_networking: given.global_networking,
            ..Order::default()
        })?;
        let id = self.rent(visit, &order)?;
        let pod = visit
            .world
            .machines
            .get(&id)
            .map(|machine| self.pod(visit.world, machine, Phase::Pending));
        Ok(Answer::json(201, &pod.unwrap_or_default()))
    }

    pub(super) fn list_pods(&self, visit: &mut Visit<'_>) -> Answer {
        let members = visit.request.parameter("includeClusterPods") == Some("true");
        let mut pods: Vec<Value> = visit
            .world
            .machines_of(&visit.account)
            .filter(|machine| members || !self.is_member(&machine.id))
            .filter_map(|machine| {
                let phase = visit.world.listed(machine)?;
                (!matches!(phase, Phase::Ending | Phase::Ended))
                    .then(|| self.pod(visit.world, machine, phase))
            })
            .collect();
        if let Some(keep) = visit.keep {
            pods.truncate(keep);
        }
        let parameter = |name: &str| visit.request.parameter(name);
        let Some(size) = parameter("limit")
            .and_then(|size| size.parse().ok())
            .or(self.page)
        else {
            return Answer::json(200, &json!({ "pods": pods }));
        };
        // The cursor is the last id of the page before; ids are in order.
        let after = parameter("cursor").unwrap_or_default();
        pods.retain(|pod| pod["id"].as_str().is_some_and(|id| id > after));
        let more = pods.len() > size;
        pods.truncate(size);
        let next = pods.last().filter(|_| more).map(|pod| pod["id"].clone());
        let pagination = json!({"hasNextPage": more, "nextCursor": next});
        Answer::json(200, &json!({"pods": pods, "pagination": pagination}))
    }

    pub(super) fn get_pod(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        let machine = own(visit, id)?;
        Ok(Answer::json(200, &self.pod(visit.world, machine, machine.phase)))
    }

    pub(super) fn delete_pod(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        if own(visit, id)?.phase == Phase::Ending {
            return Err(missing());
        }
        if self.is_member(id) {
            return Err(Refusal::Answer(problem(
                409,
                "the pod is a member of a cluster; delete the cluster",
            )));
        }
        let takes = visit.world.end_takes;
        self.terminate(visit.world, id, takes);
        Ok(Answer::empty(204))
    }

    pub(super) fn act_on_pod(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let Act { action } = given(visit.request)?;
        visit.subject = Some(id.to_owned());
        let machine = own(visit, id)?;
        let allowed = match action {
            Action::Start => matches!(machine.phase, Phase::Halted),
            Action::Stop => matches!(machine.phase, Phase::Pending | Phase::Running),
            Action::Restart => matches!(machine.phase, Phase::Running),
            Action::Terminate => !matches!(machine.phase, Phase::Ending),
        };
        let locked = self.is_locked(id) && matches!(action, Action::Stop | Action::Restart);
        if !allowed || locked || self.is_member(id) {
            return Err(Refusal::Answer(problem(
                409,
                "the action is not valid for the pod's current status",
            )));
        }
        match action {
            Action::Start => resume(visit, id)?,
            Action::Stop => stop(visit.world, id),
            Action::Restart => {}
            Action::Terminate => {
                let takes = visit.world.end_takes;
                self.terminate(visit.world, id, takes);
                return Ok(Answer::empty(204));
            }
        }
        self.get_pod(visit, id)
    }

    pub(super) fn terminate(&mut self, world: &mut World, id: &str, takes: SignedDuration) {
        world.end(id, Cause::Asked, takes);
        self.pod_keys.retain(|_, (_, pod)| pod != id);
    }

    /// A pod as REST shows it.
    pub(super) fn pod(&self, world: &World, machine: &Machine, phase: Phase) -> Value {
        let Some(Extra {
            order,
            tier,
            direct,
            takes,
            ..
        }) = self.pods.get(&machine.id)
        else {
            return Value::Null;
        };
        let now = world.now();
        let status = status(machine, phase, *takes, now);
        let running = status == "RUNNING";
        let ready = running && *direct && has_port(machine.since(Phase::Running), now, self.direct_after);
        let endpoint = machine.endpoint.as_ref().filter(|_| ready);
        let ssh_direct = endpoint.map(|at| {
            let command = format!("ssh root@{} -p {}", at.address, at.port);
            json!({"host": at.address, "port": at.port, "username": "root", "command": command})
        });
        let proxy = running.then(|| {
            let user = format!("{}-64411eb2", machine.id);
            json!({"host": "ssh.runpod.io", "port": 22, "username": user, "command": format!("ssh {user}@ssh.runpod.io")})
        });
        let ports: Vec<Value> = endpoint
            .map(|at| json!({"private": 22, "public": at.port, "type": "tcp", "ip": at.address}))
            .into_iter()
            .collect();
        let actions: &[&str] = match status {
            "RUNNING" => &["stop", "restart", "terminate"],
            "EXITED" | "ERROR" => &["start", "terminate"],
            "TERMINATED" => &[],
            _ => &["stop", "terminate"],
        };
        let mounts = match (&order.volume, &order.network_volume) {
            (Some((size, path)), _) => json!({"persistent": {"size": size, "path": path}}),
            (None, Some((id, path))) => json!({"network": [{"volumeId": id, "path": path}]}),
            (None, None) => json!({}),
        };
        let costs = !matches!(status, "EXITED" | "TERMINATED");
        let uptime = machine
            .since(Phase::Running)
            .map(|since| now.duration_since(since).as_secs());
        let mut pod = json!({
            "id": machine.id, "name": machine.mark.name, "status": status, "actions": actions,
            "image": order.image, "args": order.args, "disk": order.disk, "ports": order.ports, "env": order.env,
            "registry": order.registry, "mounts": mounts, "cloud": tier.name(),
            "dataCenterId": (status != "PROVISIONING").then(|| Self::center(&machine.region)).flatten(),
            "cudaVersion": (status != "PROVISIONING" && !order.is_cpu).then_some("12.8"),
            "ssh": {"proxy": proxy, "direct": ssh_direct},
            "template": order.template,
            "cost": if costs { number(machine.price) } else { 0.0 },
            "locked": order.locked,
            "globalNetworking": {"enabled": order.global_networking},
            "runtime": running.then(|| json!({"uptime": uptime, "ports": ports})),
            "createdAt": machine.created().to_string(),
            "startedAt": machine.since(Phase::Running).map(|at| at.to_string()),
        });
        if let Value::Object(fields) = &mut pod {
            let hardware = if order.is_cpu {
                (
                    "cpu",
                    json!({"id": order.hardware, "vcpuCount": order.count, "memory": order.count * cpus::MEMORY}),
                )
            } else {
                ("gpu", json!({"id": order.hardware, "count": order.count}))
            };
            fields.insert(hardware.0.to_owned(), hardware.1);
            if let Some((cluster, rank, ip)) = &order.member {
                fields.insert(
                    "cluster".to_owned(),
                    json!({"id": cluster, "rank": rank, "ip": ip}),
                );
            }
            if order.global_networking && running {
                let dns = format!("{}.runpod.internal", machine.id);
                fields.insert(
                    "globalNetworking".to_owned(),
                    json!({"enabled": true, "ip": "10.64.0.9", "internalDns": dns}),
                );
            }
        }
        pod
    }
}
