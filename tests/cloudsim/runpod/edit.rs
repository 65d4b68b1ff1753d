//! Changes of a pod, whichever API asks for them. The container has them from its next start.

use std::collections::BTreeMap;

use serde_json::Value;

use super::order::Order;
use super::pods::{Extra, own};
use super::wire::{UpdatePod, given};
use super::{Runpod, catalogue, problem};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;

/// The changes; a field that is not given stays as it is.
#[derive(Debug, Default)]
pub(super) struct Edit {
    pub(super) name: Option<String>,
    pub(super) image: Option<String>,
    pub(super) args: Option<String>,
    pub(super) disk: Option<u32>,
    pub(super) ports: Option<Vec<String>>,
    pub(super) env: Option<BTreeMap<String, String>>,
    /// Null takes it away.
    pub(super) registry: Option<Value>,
    /// Size and path of the pod's own disk.
    pub(super) volume: Option<(u32, String)>,
    /// Id of the network volume, which must be the pod's, and its path.
    pub(super) network_volume: Option<(String, String)>,
    pub(super) locked: Option<bool>,
    pub(super) global_networking: Option<bool>,
}

impl Edit {
    /// The same with another size and path of what the pod has mounted, as far as they are
    /// given.
    pub(super) fn mounted(mut self, order: &Order, size: Option<u32>, path: Option<String>) -> Self {
        let moved = |at: &String| path.clone().unwrap_or_else(|| at.clone());
        self.volume = match &order.volume {
            Some((old, at)) => Some((size.unwrap_or(*old), moved(at))),
            // A network volume has a size of its own.
            None if order.network_volume.is_some() => None,
            None => size.map(|size| (size, moved(&String::new()))),
        };
        let volume = order.network_volume.as_ref();
        self.network_volume = volume.map(|(id, at)| (id.clone(), moved(at)));
        self
    }

    /// Refuses changes that RunPod does not allow.
    fn check(&self, pod: &Extra, place: &str) -> Result<(), Refusal> {
        let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
        let order = &pod.order;
        if self.volume.is_some() && order.volume.is_none() {
            return bad("a pod without a persistent mount gets none later");
        }
        if let Some((wanted, _)) = &self.network_volume
            && order.network_volume.as_ref().is_none_or(|(id, _)| id != wanted)
        {
            return bad("the network volume of a pod is fixed when it is created");
        }
        let networked = !order.is_cpu && order.hardware.starts_with("NVIDIA");
        if self.global_networking == Some(true) && !(networked && catalogue::has_global_networking(place)) {
            return bad("global networking requires an NVIDIA GPU and a data center that has it");
        }
        Ok(())
    }
}

impl Runpod {
    pub(super) fn edit(&mut self, visit: &mut Visit<'_>, id: &str, edit: Edit) -> Result<(), Refusal> {
        visit.subject = Some(id.to_owned());
        let place = own(visit, id)?.region.clone();
        if let Some(registry) = edit.registry.as_ref().and_then(Value::as_str)
            && self.registry_of(visit, registry).is_err()
        {
            return Err(Refusal::Bad("no such registry credential".to_owned()));
        }
        let Some(pod) = self.pods.get_mut(id) else {
            return Ok(());
        };
        edit.check(pod, &place)?;
        let order = &mut pod.order;
        order.name = edit.name.unwrap_or_else(|| std::mem::take(&mut order.name));
        order.image = edit.image.unwrap_or_else(|| std::mem::take(&mut order.image));
        order.args = edit.args.unwrap_or_else(|| std::mem::take(&mut order.args));
        order.env = edit.env.unwrap_or_else(|| std::mem::take(&mut order.env));
        order.ports = edit.ports.unwrap_or_else(|| std::mem::take(&mut order.ports));
        order.disk = edit.disk.unwrap_or(order.disk);
        order.volume = edit.volume.or_else(|| order.volume.take());
        order.network_volume = edit.network_volume.or_else(|| order.network_volume.take());
        order.locked = edit.locked.unwrap_or(order.locked);
        order.global_networking = edit.global_networking.unwrap_or(order.global_networking);
        if let Some(registry) = edit.registry {
            order.registry = registry.as_str().map(str::to_owned);
        }
        let order = order.clone();
        let mut keys = self.pod_keys.iter();
        let key = keys.find(|(_, (_, pod))| pod == id).map(|(key, _)| key.as_str());
        let boot = self.boot(&visit.account, &order, id, key.unwrap_or_default());
        if let Some(machine) = visit.world.machines.get_mut(id) {
            machine.mark.name.clone_from(&order.name);
            machine.mark.env.clone_from(&order.env);
            machine.disk_price = order.disk_price();
            machine.boot = boot;
            let price = machine.price;
            // A stopped pod costs its disks as they are now.
            visit.world.reprice(id, price);
        }
        Ok(())
    }

    pub(super) fn update_pod(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let given: UpdatePod = given(visit.request)?;
        visit.subject = Some(id.to_owned());
        own(visit, id)?;
        if self.is_member(id) {
            return Err(Refusal::Answer(problem(
                409,
                "the pod is a member of a cluster; change the cluster",
            )));
        }
        let network_volume = match given.mounts.network {
            Some(mut volumes) => {
                let mount = volumes.pop();
                let mount = mount.ok_or_else(|| Refusal::Bad("mounts cannot be taken away".to_owned()))?;
                Some((mount.volume_id, mount.path))
            }
            None => None,
        };
        let mut edit = Edit {
            name: given.name,
            image: given.image,
            args: given.args,
            disk: given.disk,
            ports: given.ports,
            env: given.env,
            registry: given.registry,
            volume: given.mounts.persistent.map(|mount| (mount.size, mount.path)),
            network_volume,
            locked: given.locked,
            global_networking: given.global_networking,
        };
        if let Some(template) = &given.template_id {
            let template = self.pod_template(&visit.account, template)?;
            let mut env = template.env.clone();
            env.extend(edit.env.take().unwrap_or_default());
            edit.env = Some(env);
            edit.image = edit.image.or_else(|| Some(template.image.clone()));
            edit.args = edit.args.or_else(|| Some(template.args.clone()));
            edit.disk = edit.disk.or(Some(template.disk));
            edit.ports = edit.ports.or_else(|| Some(template.ports.clone()));
            edit.registry = edit
                .registry
                .or_else(|| Some(template.registry.clone().map_or(Value::Null, Value::from)));
        }
        self.edit(visit, id, edit)?;
        self.get_pod(visit, id)
    }
}
