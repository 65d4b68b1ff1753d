//! Pods and clusters that GraphQL orders, changes, stops and ends.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::errors;
use super::input::{count, decimal, env, is, items, text, texts, time};
use crate::core::cloud::{Refusal, Visit};
use crate::core::machine::{Machine, Phase};
use crate::core::market::Market;
use crate::runpod::clusters::NewCluster;
use crate::runpod::edit::Edit;
use crate::runpod::order::Order;
use crate::runpod::pods::{resume, stop};
use crate::runpod::templates::Container;
use crate::runpod::wire::{Compute, Tier};
use crate::runpod::{Runpod, catalogue};

/// Where a volume is mounted unless the order says it.
const PATH: &str = "/workspace";

/// The pod that an input names.
pub(super) fn named(visit: &mut Visit<'_>, input: &Value) -> Result<String, Refusal> {
    let id = text(input, "podId").unwrap_or_default();
    let own = |machine: &&Machine| machine.account == visit.account;
    let machine = visit.world.machines.get(&id).filter(own);
    if machine.is_none_or(|machine| matches!(machine.phase, Phase::Ending | Phase::Ended)) {
        return Err(Refusal::NotFound("Pod not found".to_owned()));
    }
    visit.subject = Some(id.clone());
    Ok(id)
}

/// Settings of the container, as far as they are given.
fn container(input: &Value) -> Container {
    let (disk, volume) = (count(input, "containerDiskInGb"), count(input, "volumeInGb"));
    let path = || text(input, "volumeMountPath").unwrap_or_else(|| PATH.to_owned());
    Container {
        image: text(input, "imageName"),
        args: text(input, "dockerArgs"),
        disk: (disk > 0).then_some(disk),
        volume: (volume > 0).then(|| (volume, path())),
        ports: items(input, "ports"),
        env: env(input).unwrap_or_default(),
        registry: text(input, "containerRegistryAuthId").map(Value::from),
        start_ssh: is(input, "startSsh").then_some(true),
    }
}

impl Runpod {
    /// What an input orders, with what its template adds.
    fn order(&self, visit: &Visit<'_>, input: &Value, is_cpu: bool) -> Result<Order, Refusal> {
        let tiers = match input.get("cloudType").and_then(Value::as_str) {
            Some("SECURE") => vec![Tier::Secure],
            Some("COMMUNITY") => vec![Tier::Community],
            _ => vec![Tier::Secure, Tier::Community],
        };
        let path = text(input, "volumeMountPath").unwrap_or_else(|| PATH.to_owned());
        let network_volume = text(input, "networkVolumeId").map(|id| (id, path));
        let mut container = container(input);
        if network_volume.is_some() {
            // It takes the place of the pod's own disk.
            container.volume = None;
        }
        let (mut exact_cuda, least_cuda) =
            (texts(input, "allowedCudaVersions"), text(input, "minCudaVersion"));
        let template = text(input, "templateId");
        if let Some(id) = &template {
            let found = self.pod_template(&visit.account, id);
            let found = found.map_err(|_| Refusal::Bad("Template not found".to_owned()))?;
            container = container.over(found, is_cpu || network_volume.is_some());
            if !is_cpu && exact_cuda.is_empty() && least_cuda.is_none() {
                exact_cuda.clone_from(&found.cuda);
            }
        }
        container.complete(Order {
            name: text(input, "name").unwrap_or_default(),
            network_volume,
            hardware: text(input, "gpuTypeId").unwrap_or_default(),
            count: count(input, "gpuCount").max(1),
            is_cpu,
            tiers,
            places: items(input, "dataCenterId").unwrap_or_default(),
            countries: text(input, "countryCode").into_iter().collect(),
            exact_cuda,
            least_cuda,
            public_ip: is(input, "supportPublicIp"),
            ceiling: decimal(input, "deployCost"),
            stop_after: time(input, "stopAfter")?,
            terminate_after: time(input, "terminateAfter")?,
            template,
            ..Order::default()
        })
    }

    /// `podFindAndDeployOnDemand` and `podRentInterruptable`.
    pub(super) fn deploy(
        &mut self,
        visit: &mut Visit<'_>,
        input: &Value,
        spot: bool,
    ) -> Result<Value, Refusal> {
        let mut order = self.order(visit, input, false)?;
        if spot {
            let bid = decimal(input, "bidPerGpu");
            order.bid = Some(bid.ok_or_else(|| Refusal::Bad("bidPerGpu is required".to_owned()))?);
        }
        let id = self.rent(visit, &order)?;
        Ok(self.shown(visit, &id))
    }

    /// `deployCpuPod`: `instanceId` is flavor, vCPUs and memory, as `cpu3c-4-8`.
    pub(super) fn deploy_cpu(&mut self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let mut order = self.order(visit, input, true)?;
        let instance = text(input, "instanceId").unwrap_or_default();
        let mut parts = instance.split('-');
        parts.next().unwrap_or_default().clone_into(&mut order.hardware);
        order.count = parts.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        if order.disk > 20 {
            return Err(Refusal::Bad(
                "CPU pods have a container disk of at most 20 GB".to_owned(),
            ));
        }
        if order.ceiling.is_none() && order.template.is_none() {
            return Err(Refusal::Bad("deployCost is required".to_owned()));
        }
        let id = self.rent(visit, &order)?;
        Ok(self.shown(visit, &id))
    }

    /// `createCluster`. Without `deployCost`, the most that all pods may cost, there is no room.
    pub(super) fn create_cluster_by_graphql(
        &mut self,
        visit: &mut Visit<'_>,
        input: &Value,
    ) -> Result<Value, Refusal> {
        let mut order = self.order(visit, input, false)?;
        let ceiling = order.ceiling.take().ok_or(Refusal::NoCapacity)?;
        let compute = Compute {
            gpu_type_id: order.hardware.clone(),
            gpu_count_per_pod: count(input, "gpuCountPerPod"),
            pod_count: count(input, "podCount"),
        };
        if compute.gpu_count_per_pod == 0 || !(2..=250).contains(&compute.pod_count) {
            return Err(Refusal::Bad("a cluster has 2 to 250 pods with GPUs".to_owned()));
        }
        let name = text(input, "clusterName").unwrap_or_default();
        let ordered = NewCluster {
            name: name.clone(),
            kind: text(input, "type").unwrap_or_default(),
            compute,
            places: order.places.clone(),
            ceiling: Some(ceiling),
            pod: order,
        };
        let id = self.rent_cluster(visit, ordered)?;
        let pods: Vec<Value> = visit.made.iter().map(|pod| self.shown(visit, pod)).collect();
        Ok(json!({"id": id, "name": name, "pods": pods}))
    }

    /// `deleteCluster`.
    pub(super) fn delete_cluster_by_graphql(
        &mut self,
        visit: &mut Visit<'_>,
        input: &Value,
    ) -> Result<Value, Refusal> {
        let id = text(input, "clusterId").or_else(|| text(input, "id"));
        match self.delete_cluster(visit, &id.unwrap_or_default()) {
            Ok(_) => Ok(Value::Bool(true)),
            Err(_) => Err(Refusal::Answer(errors(
                "deleteCluster",
                "Cluster not found",
                "Cluster not found",
            ))),
        }
    }

    /// `podEditJob`, also of members of a cluster, which are ordered without credentials.
    pub(super) fn edit_by_graphql(&mut self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        let (disk, size) = (count(input, "containerDiskInGb"), count(input, "volumeInGb"));
        let edit = Edit {
            image: text(input, "imageName"),
            args: text(input, "dockerArgs"),
            disk: (disk > 0).then_some(disk),
            ports: items(input, "ports"),
            env: env(input),
            registry: text(input, "containerRegistryAuthId").map(Value::from),
            ..Edit::default()
        };
        let edit = match self.pods.get(&id) {
            Some(pod) => {
                let size = (size > 0).then_some(size);
                edit.mounted(&pod.order, size, text(input, "volumeMountPath"))
            }
            None => edit,
        };
        self.edit(visit, &id, edit)?;
        Ok(self.shown(visit, &id))
    }

    /// `podTerminate`. Clients know the words of its failure.
    pub(super) fn terminate_by_graphql(
        &mut self,
        visit: &mut Visit<'_>,
        input: &Value,
    ) -> Result<Value, Refusal> {
        let Ok(id) = named(visit, input) else {
            return Err(Refusal::Answer(errors(
                "podTerminate",
                "pod not found to terminate",
                "POD_NOT_FOUND",
            )));
        };
        if self.is_member(&id) {
            return Err(Refusal::Bad("Pod is a member of a cluster".to_owned()));
        }
        let takes = visit.world.end_takes;
        self.terminate(visit.world, &id, takes);
        Ok(Value::Null)
    }

    /// `podStop`.
    pub(super) fn stop_by_graphql(&self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        if self.is_member(&id) {
            return Err(Refusal::Bad("Pod is a member of a cluster".to_owned()));
        }
        if self.is_locked(&id) {
            return Err(Refusal::Bad("Pod is locked".to_owned()));
        }
        let phase = visit.world.machines.get(&id).map(|machine| machine.phase);
        if matches!(phase, Some(Phase::Pending | Phase::Running)) {
            stop(visit.world, &id);
        }
        Ok(self.shown(visit, &id))
    }

    /// `podResume`, for pods on demand.
    pub(super) fn resume_by_graphql(&self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        let phase = visit.world.machines.get(&id).map(|machine| machine.phase);
        if phase != Some(Phase::Halted) {
            return Err(Refusal::Bad("Pod is not stopped".to_owned()));
        }
        if self.pods.get(&id).is_none_or(|extra| extra.bid.is_some()) {
            return Err(Refusal::Bad("A spot pod is resumed by a bid".to_owned()));
        }
        resume(visit, &id)?;
        Ok(self.shown(visit, &id))
    }

    /// `podBidResume`.
    pub(super) fn bid_resume(&mut self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        let bid = decimal(input, "bidPerGpu").unwrap_or_default();
        let machine = visit
            .world
            .machines
            .get(&id)
            .filter(|machine| machine.phase == Phase::Halted);
        let Some(machine) = machine else {
            return Err(Refusal::Bad("Pod is not stopped".to_owned()));
        };
        let (gpu, extra) = (
            visit.world.types.get(&machine.instance_type),
            self.pods.get_mut(&id),
        );
        let (Some(gpu), Some(extra)) = (gpu, extra) else {
            return Err(Refusal::NoCapacity);
        };
        if catalogue::price(gpu, extra.tier, Market::Spot).is_none_or(|floor| bid < floor) {
            return Err(Refusal::NoCapacity);
        }
        extra.bid = Some(bid);
        let price = bid * Decimal::from(extra.order.count);
        resume(visit, &id)?;
        visit.world.reprice(&id, price);
        Ok(self.shown(visit, &id))
    }
}
