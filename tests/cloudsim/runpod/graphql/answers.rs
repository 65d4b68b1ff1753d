//! What the fields of the schema do and say.

use std::collections::BTreeSet;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use crate::core::cloud::{Refusal, Visit};
use crate::core::machine::{Machine, Phase};
use crate::core::market::Market;
use crate::runpod::Runpod;
use crate::runpod::account::REGISTRY;
use crate::runpod::catalogue::{self, CUDA, at_least, number};
use crate::runpod::order::{Order, has_port};
use crate::runpod::pods::{Extra, resume, stop};
use crate::runpod::wire::Tier;

/// The catalogue.
pub(super) fn gpu_types(visit: &Visit<'_>, input: &Value) -> Value {
    let wanted = input.get("id").and_then(Value::as_str);
    visit
        .world
        .types
        .values()
        .filter(|gpu| gpu.gpus > 0 && wanted.is_none_or(|wanted| wanted == gpu.name))
        .map(|gpu| {
            let (secure, community) = (catalogue::most(gpu, Tier::Secure), catalogue::most(gpu, Tier::Community));
            let price = |tier, market| catalogue::price(gpu, tier, market).map(number);
            json!({
                "id": gpu.name, "displayName": gpu.gpu, "memoryInGb": gpu.gpu_memory_gb,
                "secureCloud": secure > 0, "communityCloud": community > 0, "maxGpuCount": secure.max(community),
                "maxGpuCountSecureCloud": secure, "maxGpuCountCommunityCloud": community,
                "manufacturer": if gpu.name.starts_with("AMD") { "AMD" } else { "Nvidia" }, "cudaCores": 0,
                "securePrice": price(Tier::Secure, Market::OnDemand),
                "communityPrice": price(Tier::Community, Market::OnDemand),
                "secureSpotPrice": price(Tier::Secure, Market::Spot),
                "communitySpotPrice": price(Tier::Community, Market::Spot),
                "minPodGpuCount": 1, "nodeGroupDatacenters": [], "lowestPrice": null,
            })
        })
        .collect()
}

/// The data centers, with the stock of each GPU there.
pub(super) fn data_centers(visit: &Visit<'_>) -> Value {
    let gpus = |center: &str| -> Vec<Value> {
        let here = [center.to_owned()];
        let gpus = visit.world.types.values().filter(|gpu| gpu.gpus > 0);
        gpus.map(|gpu| {
            let level = catalogue::level(visit.world, &gpu.name, &here, Market::OnDemand);
            json!({"gpuTypeId": gpu.name, "displayName": gpu.gpu, "stockStatus": stock_status(level)})
        })
        .collect()
    };
    catalogue::DATA_CENTERS
        .iter()
        .map(|(id, name, _, country, _)| {
            json!({
                "id": id, "name": name, "location": country, "listed": true, "gpuAvailability": gpus(id),
            })
        })
        .collect()
}

/// The countries of the data centers.
pub(super) fn country_codes() -> Value {
    let centers = catalogue::DATA_CENTERS.iter();
    let codes: BTreeSet<&str> = centers.map(|(_, _, _, country, _)| *country).collect();
    json!(codes)
}

/// A level of REST in the words of GraphQL.
fn stock_status(level: &str) -> Option<&'static str> {
    match level {
        "LOW" => Some("Low"),
        "MEDIUM" => Some("Medium"),
        "HIGH" => Some("High"),
        _ => None,
    }
}

/// `lowestPrice` of a GPU type: for one GPU, over the clouds that are asked for.
pub(super) fn lowest_price(visit: &Visit<'_>, gpu: &Map<String, Value>, input: &Value) -> Value {
    let found = gpu
        .get("id")
        .and_then(Value::as_str)
        .and_then(|id| visit.world.types.get(id));
    let Some(gpu) = found else { return Value::Null };
    let count = input.get("gpuCount").and_then(Value::as_u64).unwrap_or(1);
    let cuda = input.get("minCudaVersion").and_then(Value::as_str);
    let tiers: &[Tier] = match input.get("secureCloud").and_then(Value::as_bool) {
        Some(true) => &[Tier::Secure],
        Some(false) => &[Tier::Community],
        None => &[Tier::Secure, Tier::Community],
    };
    let center = input.get("dataCenterId").and_then(Value::as_str);
    let country = input.get("countryCode").and_then(Value::as_str);
    let here = |tier: Tier| -> Vec<String> {
        let mut places = catalogue::places(visit.world, tier);
        places.retain(|place| {
            center.is_none_or(|center| place == center)
                && country.is_none_or(|country| catalogue::country(place) == country)
        });
        places
    };
    let possible = cuda.is_none_or(|least| CUDA.iter().any(|version| at_least(version, least)));
    let cheapest = |market: Market| -> Option<Decimal> {
        tiers
            .iter()
            .filter(|tier| possible && count <= catalogue::most(gpu, **tier))
            .filter(|tier| {
                let places = here(**tier);
                catalogue::level(visit.world, &gpu.name, &places, market) != "NONE"
            })
            .filter_map(|tier| catalogue::price(gpu, *tier, market))
            .min()
    };
    let places: Vec<String> = tiers.iter().flat_map(|tier| here(*tier)).collect();
    let stock = stock_status(catalogue::level(
        visit.world,
        &gpu.name,
        &places,
        Market::OnDemand,
    ));
    json!({
        "minimumBidPrice": cheapest(Market::Spot).map(number),
        "uninterruptablePrice": cheapest(Market::OnDemand).map(number),
        "stockStatus": stock.filter(|_| possible), "totalCount": 100, "rentedCount": 50,
        "minVcpu": gpu.vcpus, "minMemory": gpu.memory_gb, "gpuName": gpu.gpu, "gpuTypeId": gpu.name,
        "compliance": null, "countryCode": country,
    })
}

fn text(input: &Value, name: &str) -> Option<String> {
    input
        .get(name)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

fn count(input: &Value, name: &str) -> u32 {
    input
        .get(name)
        .and_then(Value::as_u64)
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(0)
}

fn decimal(input: &Value, name: &str) -> Option<Decimal> {
    input
        .get(name)
        .filter(|value| value.is_number())
        .and_then(|value| value.to_string().parse().ok())
}

fn time(input: &Value, name: &str) -> Result<Option<Timestamp>, Refusal> {
    let Some(text) = text(input, name) else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|_| Refusal::Bad(format!("{name} is not a time in UTC: {text:?}")))
}

fn texts(input: &Value, name: &str) -> Vec<String> {
    let items = input.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

fn order(input: &Value) -> Result<Order, Refusal> {
    let tiers = match input.get("cloudType").and_then(Value::as_str) {
        Some("SECURE") => vec![Tier::Secure],
        Some("COMMUNITY") => vec![Tier::Community],
        _ => vec![Tier::Secure, Tier::Community],
    };
    let env = input.get("env").and_then(Value::as_array).into_iter().flatten();
    let env = env
        .filter_map(|pair| Some((text(pair, "key")?, pair.get("value")?.as_str()?.to_owned())))
        .collect();
    let volume = count(input, "volumeInGb");
    let image = text(input, "imageName");
    if text(input, "templateId").is_some() {
        return Err(Refusal::Bad("Template not found".to_owned()));
    }
    if text(input, "networkVolumeId").is_some() {
        return Err(Refusal::Bad("Network volume not found".to_owned()));
    }
    Ok(Order {
        name: text(input, "name").unwrap_or_default(),
        image: image.ok_or_else(|| Refusal::Bad("imageName is required".to_owned()))?,
        args: text(input, "dockerArgs").unwrap_or_default(),
        env,
        ports: text(input, "ports")
            .map(|ports| ports.split(',').map(|port| port.trim().to_owned()).collect())
            .unwrap_or_default(),
        disk: count(input, "containerDiskInGb"),
        volume: (volume > 0).then(|| {
            (
                volume,
                text(input, "volumeMountPath").unwrap_or_else(|| "/runpod".to_owned()),
            )
        }),
        network_volume: None,
        registry: text(input, "containerRegistryAuthId"),
        hardware: text(input, "gpuTypeId").unwrap_or_default(),
        count: count(input, "gpuCount").max(1),
        is_cpu: false,
        tiers,
        places: text(input, "dataCenterId").into_iter().collect(),
        country: text(input, "countryCode"),
        exact_cuda: texts(input, "allowedCudaVersions"),
        least_cuda: text(input, "minCudaVersion"),
        start_ssh: input.get("startSsh") == Some(&Value::Bool(true)),
        public_ip: input.get("supportPublicIp") == Some(&Value::Bool(true)),
        global_networking: false,
        bid: None,
        ceiling: decimal(input, "deployCost"),
        stop_after: time(input, "stopAfter")?,
        terminate_after: time(input, "terminateAfter")?,
        member: None,
    })
}

/// The pod that an input names.
fn named(visit: &mut Visit<'_>, input: &Value) -> Result<String, Refusal> {
    let id = text(input, "podId").unwrap_or_default();
    let own = |machine: &&Machine| machine.account == visit.account;
    let machine = visit.world.machines.get(&id).filter(own);
    if machine.is_none_or(|machine| matches!(machine.phase, Phase::Ending | Phase::Ended)) {
        return Err(Refusal::NotFound("Pod not found".to_owned()));
    }
    visit.subject = Some(id.clone());
    Ok(id)
}

impl Runpod {
    /// `podFindAndDeployOnDemand` and `podRentInterruptable`.
    pub(super) fn deploy(
        &mut self,
        visit: &mut Visit<'_>,
        input: &Value,
        spot: bool,
    ) -> Result<Value, Refusal> {
        let mut order = order(input)?;
        if spot {
            let bid = decimal(input, "bidPerGpu");
            order.bid = Some(bid.ok_or_else(|| Refusal::Bad("bidPerGpu is required".to_owned()))?);
        }
        let id = self.rent(visit, &order)?;
        Ok(self.shown(visit, &id))
    }

    /// `deployCpuPod`: `instanceId` is flavor, vCPUs and memory, as `cpu3c-4-8`.
    pub(super) fn deploy_cpu(&mut self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let mut order = order(input)?;
        let instance = text(input, "instanceId").unwrap_or_default();
        let mut parts = instance.split('-');
        parts.next().unwrap_or_default().clone_into(&mut order.hardware);
        order.count = parts.next().and_then(|count| count.parse().ok()).unwrap_or(0);
        order.is_cpu = true;
        if order.disk > 20 {
            return Err(Refusal::Bad(
                "CPU pods have a container disk of at most 20 GB".to_owned(),
            ));
        }
        if order.ceiling.is_none() {
            return Err(Refusal::Bad("deployCost is required".to_owned()));
        }
        let id = self.rent(visit, &order)?;
        Ok(self.shown(visit, &id))
    }

    /// `podStop`.
    pub(super) fn stop_by_graphql(&self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        if self.is_member(&id) {
            return Err(Refusal::Bad("Pod is a member of a cluster".to_owned()));
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

    /// `podTerminate`.
    pub(super) fn terminate_by_graphql(
        &mut self,
        visit: &mut Visit<'_>,
        input: &Value,
    ) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        if self.is_member(&id) {
            return Err(Refusal::Bad("Pod is a member of a cluster".to_owned()));
        }
        let takes = visit.world.end_takes;
        self.terminate(visit.world, &id, takes);
        Ok(Value::Null)
    }

    /// `pod`.
    pub(super) fn one_pod(&self, visit: &mut Visit<'_>, input: &Value) -> Result<Value, Refusal> {
        let id = named(visit, input)?;
        Ok(self.shown(visit, &id))
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
            "id": visit.account, "pubKey": self.keys_of(&visit.account).join("\n"), "pods": pods,
            "containerRegistryCreds": [{"id": REGISTRY.0, "name": REGISTRY.1}], "networkVolumes": [],
            "podTemplates": [],
        })
    }

    fn shown(&self, visit: &Visit<'_>, id: &str) -> Value {
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
        // What is wanted, not what is: RUNNING from the first moment.
        let desired = match phase {
            Phase::Pending | Phase::Running | Phase::Failed => "RUNNING",
            Phase::Halted => "EXITED",
            Phase::Ending | Phase::Ended => "TERMINATED",
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
        json!({
            "id": machine.id, "name": machine.mark.name, "desiredStatus": desired, "imageName": order.image, "env": env,
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
            "volumeMountPath": order.volume.as_ref().map(|(_, path)| path),
        })
    }
}
