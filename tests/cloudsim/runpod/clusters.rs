//! Instant Clusters: all pods at once, on demand, ended together.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::order::Order;
use super::pods::status;
use super::templates::DISK;
use super::wire::{Compute, CreateCluster, Tier, given};
use super::{Runpod, catalogue, volumes};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::Phase;
use crate::core::market::{Left, Market, Shelf};
use crate::core::world::World;

/// A cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    account: String,
    name: String,
    kind: String,
    compute: Compute,
    pods: Vec<String>,
    created: Timestamp,
}

/// The order of a cluster.
#[derive(Debug)]
pub(super) struct NewCluster {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) compute: Compute,
    pub(super) places: Vec<String>,
    /// The most that an hour of it may cost.
    pub(super) ceiling: Option<Decimal>,
    /// What all its pods have.
    pub(super) pod: Order,
}

fn missing() -> Refusal {
    Refusal::NotFound("cluster not found".to_owned())
}

impl Runpod {
    /// Whether a pod belongs to a cluster.
    pub(super) fn is_member(&self, pod: &str) -> bool {
        self.pods
            .get(pod)
            .is_some_and(|extra| extra.order.member.is_some())
    }

    pub(super) fn create_cluster(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreateCluster = given(visit.request)?;
        let Some(image) = given.image else {
            return Err(Refusal::Bad("image is required".to_owned()));
        };
        let network_volume = given.mounts.network.and_then(|mut volumes| volumes.pop());
        let ordered = NewCluster {
            name: given.name,
            kind: given.r#type,
            compute: given.compute,
            places: given.data_center_ids,
            ceiling: None,
            pod: Order {
                image,
                args: given.args,
                env: given.env,
                ports: given.ports,
                disk: given.disk.unwrap_or(DISK),
                volume: given.mounts.persistent.map(|mount| (mount.size, mount.path)),
                network_volume: network_volume.map(|mount| (mount.volume_id, mount.path)),
                start_ssh: given.start_ssh,
                ..Order::default()
            },
        };
        let id = self.rent_cluster(visit, ordered)?;
        let cluster = self.own_cluster(visit, &id)?;
        Ok(Answer::json(201, &self.cluster(visit.world, &id, cluster)))
    }

    /// Rents all pods of a cluster, or none.
    pub(super) fn rent_cluster(
        &mut self,
        visit: &mut Visit<'_>,
        ordered: NewCluster,
    ) -> Result<String, Refusal> {
        let compute = ordered.compute;
        let mut places = ordered.places;
        if let Some((volume, _)) = &ordered.pod.network_volume {
            let found = volumes::find(visit.world, &visit.account, volume);
            let found = found.map_err(|_| Refusal::Bad("network volume not found".to_owned()))?;
            if !places.is_empty() && !places.contains(&found.region) {
                return Err(Refusal::Bad("the network volume is somewhere else".to_owned()));
            }
            places = vec![found.region.clone()];
        }
        let count = Decimal::from(compute.gpu_count_per_pod) * Decimal::from(compute.pod_count);
        let gpu = visit.world.types.get(&compute.gpu_type_id);
        let price = gpu.and_then(|gpu| catalogue::price(gpu, Tier::Secure, Market::OnDemand));
        let dear = |price: Decimal| ordered.ceiling.is_some_and(|ceiling| price * count > ceiling);
        if price.is_none_or(dear) {
            return Err(Refusal::NoCapacity);
        }
        let wanted = |place: &String| places.is_empty() || places.contains(place);
        let enough = |place: &String| match visit.world.stock.left(&Shelf::new(
            &compute.gpu_type_id,
            place,
            Market::OnDemand,
        )) {
            Left::Plenty => true,
            Left::Count(left) => left >= u64::from(compute.pod_count),
        };
        let place = visit
            .world
            .regions
            .iter()
            .find(|place| wanted(place) && enough(place))
            .cloned();
        let place = place.ok_or(Refusal::NoCapacity)?;
        let id = format!("cluster-{}", visit.world.chance.hex(10));
        let mut pods = Vec::new();
        for rank in 0..compute.pod_count {
            let order = Order {
                name: format!("{}-{rank}", ordered.name),
                hardware: compute.gpu_type_id.clone(),
                count: compute.gpu_count_per_pod,
                tiers: vec![Tier::Secure],
                places: vec![place.clone()],
                public_ip: true,
                member: Some((id.clone(), rank, format!("10.65.0.{}", rank + 2))),
                ..ordered.pod.clone()
            };
            match self.rent(visit, &order) {
                Ok(pod) => pods.push(pod),
                Err(refusal) => {
                    for pod in pods {
                        self.terminate(visit.world, &pod, jiff::SignedDuration::ZERO);
                    }
                    visit.made.clear();
                    return Err(refusal);
                }
            }
        }
        visit.subject = Some(id.clone());
        let cluster = Cluster {
            account: visit.account.clone(),
            name: ordered.name,
            kind: ordered.kind,
            compute,
            pods,
            created: visit.now(),
        };
        self.clusters.insert(id.clone(), cluster);
        Ok(id)
    }

    fn own_cluster(&self, visit: &Visit<'_>, id: &str) -> Result<&Cluster, Refusal> {
        self.clusters
            .get(id)
            .filter(|cluster| cluster.account == visit.account)
            .ok_or_else(missing)
    }

    pub(super) fn list_clusters(&self, visit: &Visit<'_>) -> Answer {
        let clusters: Vec<Value> = self
            .clusters
            .iter()
            .filter(|(_, cluster)| cluster.account == visit.account)
            .map(|(id, cluster)| self.cluster(visit.world, id, cluster))
            .collect();
        Answer::json(200, &json!({ "clusters": clusters }))
    }

    pub(super) fn get_cluster(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let cluster = self.own_cluster(visit, id)?;
        Ok(Answer::json(200, &self.cluster(visit.world, id, cluster)))
    }

    pub(super) fn pods_of_cluster(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let cluster = self.own_cluster(visit, id)?;
        let pods: Vec<Value> = cluster
            .pods
            .iter()
            .filter_map(|pod| visit.world.machines.get(pod))
            .map(|machine| self.pod(visit.world, machine, machine.phase))
            .collect();
        Ok(Answer::json(200, &json!({ "pods": pods })))
    }

    pub(super) fn delete_cluster(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        self.own_cluster(visit, id)?;
        visit.subject = Some(id.to_owned());
        let Some(cluster) = self.clusters.remove(id) else {
            return Err(missing());
        };
        let takes = visit.world.end_takes;
        for pod in cluster.pods {
            self.terminate(visit.world, &pod, takes);
        }
        Ok(Answer::empty(204))
    }

    fn cluster(&self, world: &World, id: &str, cluster: &Cluster) -> Value {
        let mut by_status: BTreeMap<&str, u32> = BTreeMap::new();
        for machine in cluster.pods.iter().filter_map(|pod| world.machines.get(pod)) {
            let takes = self
                .pods
                .get(&machine.id)
                .map(|extra| extra.takes)
                .unwrap_or_default();
            *by_status
                .entry(status(machine, machine.phase, takes, world.now()))
                .or_default() += 1;
        }
        let primary = cluster.pods.first().and_then(|pod| world.machines.get(pod));
        let mut value = json!({
            "id": id, "name": cluster.name, "type": cluster.kind,
            "compute": {
                "gpuTypeId": cluster.compute.gpu_type_id, "gpuCountPerPod": cluster.compute.gpu_count_per_pod,
                "podCount": cluster.compute.pod_count,
            },
            "pods": {"total": cluster.pods.len(), "byStatus": by_status},
            "network": {"cidr": "10.65.0.0/16"},
            "createdAt": cluster.created.to_string(),
        });
        if let (Some(machine), Value::Object(fields)) = (primary, &mut value) {
            let pod = self.pod(world, machine, machine.phase);
            let mut primary = json!({"podId": machine.id, "status": pod["status"]});
            if let Some(direct) = pod["ssh"]["direct"].as_object() {
                let host = direct.get("host").and_then(Value::as_str).unwrap_or_default();
                primary["sshEndpoint"] =
                    format!("{host}:{}", direct.get("port").unwrap_or(&Value::Null)).into();
            }
            fields.insert("primary".to_owned(), primary);
            if machine.phase != Phase::Pending {
                fields.insert("dataCenterId".to_owned(), machine.region.clone().into());
            }
        }
        value
    }
}
