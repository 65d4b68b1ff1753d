//! The account and its pods as GraphQL shows them.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::orders::named;
use super::things::{all_volumes, shown_volume};
use crate::core::cloud::Visit;
use crate::core::machine::{Machine, Phase};
use crate::runpod::catalogue::{self, number};
use crate::runpod::order::has_port;
use crate::runpod::pods::{Extra, desired_status};
use crate::runpod::{Runpod, volumes};

impl Runpod {
    /// `updateUserSettings`: the keys of the account are one text.
    pub(super) fn update_settings(&mut self, visit: &mut Visit<'_>, input: &Value) -> Value {
        if let Some(keys) = input.get("pubKey").and_then(Value::as_str) {
            let keys = keys
                .lines()
                .filter(|line| !line.is_empty())
                .map(str::to_owned)
                .collect();
            self.ssh_keys.insert(visit.account.clone(), keys);
        }
        self.myself(visit)
    }

    /// `pod`; null where there is none.
    pub(super) fn one_pod(&self, visit: &mut Visit<'_>, input: &Value) -> Value {
        match named(visit, input) {
            Ok(id) => self.shown(visit, &id),
            Err(_) => Value::Null,
        }
    }

    /// `myself`.
    pub(super) fn myself(&self, visit: &Visit<'_>) -> Value {
        let mut pods: Vec<Value> = visit
            .world
            .machines_of(&visit.account)
            .filter_map(|machine| {
                let phase = visit.world.listed(machine)?;
                (!matches!(phase, Phase::Ending | Phase::Ended)).then(|| self.of(visit, machine, phase))
            })
            .collect();
        if let Some(keep) = visit.keep {
            pods.truncate(keep);
        }
        let spends: Decimal = visit
            .world
            .machines_of(&visit.account)
            .filter(|machine| matches!(machine.phase, Phase::Pending | Phase::Running))
            .map(|machine| machine.price)
            .sum();
        json!({
            "email": format!("{}@example.com", visit.account), "clientBalance": 100.0,
            "currentSpendPerHr": number(spends), "spendLimit": 80, "notifyPodsStale": true,
            "notifyPodsGeneral": true, "notifyLowBalance": true,
            "id": visit.account, "authId": format!("auth-{}", visit.account),
            "pubKey": self.keys_of(&visit.account).join("\n"), "pods": pods,
            "containerRegistryCreds": self.registries_of(visit.world, &visit.account),
            "networkVolumes": all_volumes(visit), "podTemplates": self.own_templates(visit),
        })
    }

    pub(super) fn shown(&self, visit: &Visit<'_>, id: &str) -> Value {
        visit
            .world
            .machines
            .get(id)
            .map(|machine| self.of(visit, machine, machine.phase))
            .unwrap_or_default()
    }

    fn of(&self, visit: &Visit<'_>, machine: &Machine, phase: Phase) -> Value {
        let Some(Extra {
            order, direct, bid, ..
        }) = self.pods.get(&machine.id)
        else {
            return Value::Null;
        };
        let now = visit.now();
        let ready = *direct && has_port(machine.since(Phase::Running), now, self.direct_after);
        let ports: Vec<Value> = machine
            .endpoint
            .as_ref()
            .filter(|_| ready)
            .map(|at| json!({"ip": at.address, "isIpPublic": true, "privatePort": 22, "publicPort": at.port, "type": "tcp"}))
            .into_iter()
            .collect();
        let uptime = machine
            .since(Phase::Running)
            .map(|since| now.duration_since(since).as_secs());
        let runtime = (phase == Phase::Running).then(|| json!({"uptimeInSeconds": uptime, "ports": ports}));
        let env: Vec<String> = order
            .env
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let gpu = visit.world.types.get(&machine.instance_type);
        let network_volume = order.network_volume.as_ref();
        let volume = |(id, _): &(String, String)| {
            let found = volumes::find(visit.world, &visit.account, id).ok();
            found.map(shown_volume)
        };
        let path = order.volume.as_ref().map(|(_, path)| path);
        let path = path.or(network_volume.map(|(_, path)| path));
        json!({
            "id": machine.id, "name": machine.mark.name, "desiredStatus": desired_status(phase), "imageName": order.image, "env": env,
            "costPerHr": number(machine.price), "gpuCount": if order.is_cpu { 0 } else { order.count },
            "vcpuCount": gpu.map_or(0, |gpu| gpu.vcpus.max(order.count)), "memoryInGb": gpu.map_or(0, |gpu| gpu.memory_gb),
            "machineId": format!("m-{}", &machine.id[..6.min(machine.id.len())]),
            "machine": {
                "dataCenterId": Self::center(&machine.region), "gpuDisplayName": gpu.map(|gpu| &gpu.gpu),
                "podHostId": format!("{}-64411eb2", machine.id),
                "location": catalogue::country(&machine.region),
            },
            "runtime": runtime,
            "containerDiskInGb": order.disk, "containerRegistryAuthId": order.registry, "dockerArgs": order.args,
            "lastStatusChange": machine.since(phase).map(|at| at.to_string()),
            "podType": if bid.is_some() { "INTERRUPTABLE" } else { "RESERVED" }, "ports": order.ports.join(","),
            "uptimeSeconds": uptime.unwrap_or(0), "volumeInGb": order.volume.as_ref().map_or(0, |(size, _)| *size),
            "volumeMountPath": path,
            "networkVolumeId": network_volume.map(|(id, _)| id), "networkVolume": network_volume.and_then(volume),
            "templateId": order.template, "locked": order.locked,
            "cpuFlavorId": order.is_cpu.then_some(&order.hardware),
            "createdAt": machine.created().to_string(),
            "lastStartedAt": machine.since(Phase::Running).map(|at| at.to_string()),
            "clusterIp": order.member.as_ref().map(|(.., ip)| ip),
            "clusterIdx": order.member.as_ref().map(|(_, rank, _)| rank),
        })
    }
}
