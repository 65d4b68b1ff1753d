//! Templates, registry credentials, volumes and costs by REST v1: lists are bare arrays, and fields
//! have other names.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde_json::{Map, Value, json};

use super::error;
use super::pods::{disk, ports};
use super::wire::{CreateTemplate, CreateVolume, UpdateTemplate, UpdateVolume};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Machine, Phase};
use crate::runpod::billing::{Bucket, buckets, volume_costs};
use crate::runpod::catalogue::number;
use crate::runpod::templates::Template;
use crate::runpod::volumes::{self, Size, Storage};
use crate::runpod::wire::{CreateRegistry, given};
use crate::runpod::{Runpod, all_of, args};

fn shown(id: &str, template: &Template) -> Value {
    let (entrypoint, cmd) = args::lists(&template.args);
    let volume = template.volume.as_ref();
    let mut value = json!({
        "id": id, "name": template.name, "imageName": template.image, "category": template.category,
        "containerDiskInGb": template.disk, "dockerEntrypoint": entrypoint, "dockerStartCmd": cmd,
        "env": template.env, "ports": template.ports, "readme": template.readme, "earned": 0.0, "runtimeInMin": 0,
        "volumeInGb": volume.map_or(0, |(size, _)| *size),
        "volumeMountPath": volume.map_or("", |(_, path)| path.as_str()),
        "isPublic": template.public, "isRunpod": template.official, "isServerless": template.serverless,
    });
    if let (Some(registry), Value::Object(fields)) = (&template.registry, &mut value) {
        fields.insert("containerRegistryAuthId".to_owned(), registry.clone().into());
    }
    value
}

pub(super) fn volumes(visit: &Visit<'_>) -> Answer {
    let all = all_of(visit.world, &visit.account, volumes::KIND);
    let all: Vec<Value> = all.into_iter().map(volumes::flat).collect();
    Answer::json(200, &Value::Array(all))
}

pub(super) fn volume(visit: &Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let volume = volumes::find(visit.world, &visit.account, id)?;
    Ok(Answer::json(200, &volumes::flat(volume)))
}

pub(super) fn create_volume(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let given: CreateVolume = given(visit.request)?;
    let size = Size {
        size: given.size,
        storage: Storage::Standard,
    };
    let id = volumes::make(visit, &given.name, &given.data_center_id, size)?;
    volume(visit, &id)
}

pub(super) fn update_volume(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let given: UpdateVolume = given(visit.request)?;
    volumes::change(visit, id, given.name, given.size)?;
    volume(visit, id)
}

pub(super) fn bill_volumes(visit: &Visit<'_>) -> Result<Answer, Refusal> {
    let mut records = Vec::new();
    for bucket in buckets(visit)? {
        let (mut amounts, mut gigabytes) = ([Decimal::ZERO; 2], [0_u32; 2]);
        for (volume, amount) in volume_costs(visit, bucket) {
            let Size { size, storage } = Size::of(volume);
            let at = usize::from(storage == Storage::HighPerformance);
            amounts[at] += amount;
            gigabytes[at] += size;
        }
        if amounts.iter().any(|amount| !amount.is_zero()) {
            records.push(json!({
                "time": bucket.0.to_string(), "amount": number(amounts[0]), "diskSpaceBilledGb": gigabytes[0],
                "highPerformanceStorageAmount": number(amounts[1]),
                "highPerformanceStorageDiskSpaceBilledGb": gigabytes[1],
            }));
        }
    }
    Ok(Answer::json(200, &Value::Array(records)))
}

/// How long a pod was on the bill at its full price in a bucket.
fn time_billed(machine: &Machine, (from, to): Bucket, now: Timestamp) -> SignedDuration {
    let spans = machine.tab.spans().iter();
    let full = spans.filter(|span| machine.phase_at(span.from) != Some(Phase::Halted));
    let times = full.map(|span| {
        let end = span.to.unwrap_or(now).min(to).min(now);
        end.duration_since(span.from.max(from)).max(SignedDuration::ZERO)
    });
    times.fold(SignedDuration::ZERO, SignedDuration::saturating_add)
}

/// What the pods of one group cost in a bucket.
#[derive(Default)]
struct Record {
    amount: Decimal,
    time: SignedDuration,
    gigabytes: u32,
}

impl Runpod {
    pub(super) fn v1_templates(&self, visit: &Visit<'_>) -> Answer {
        let flag = |name: &str| visit.request.parameter(name) == Some("true");
        let (official, public) = (flag("includeRunpodTemplates"), flag("includePublicTemplates"));
        let own = self.templates_of(visit);
        let shared = self.templates.iter().filter(|(_, template)| {
            let wanted = if template.official { official } else { public };
            wanted && template.public && template.account != visit.account
        });
        let all: Vec<Value> = own
            .into_iter()
            .chain(shared)
            .map(|(id, template)| shown(id, template))
            .collect();
        Answer::json(200, &Value::Array(all))
    }

    pub(super) fn v1_template(&self, visit: &Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let template = self.template(&visit.account, id)?;
        Ok(Answer::json(200, &shown(id, template)))
    }

    pub(super) fn v1_create_template(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreateTemplate = given(visit.request)?;
        let size = given.volume_in_gb.or(given.is_serverless.then_some(0));
        let template = Template {
            name: given.name,
            image: given.image_name,
            args: args::text(&given.docker_entrypoint, &given.docker_start_cmd),
            disk: given.container_disk_in_gb.unwrap_or(50),
            volume: disk(size, given.volume_mount_path.as_deref()),
            ports: given.ports.unwrap_or_else(ports),
            env: given.env,
            registry: given.container_registry_auth_id.filter(|id| !id.is_empty()),
            category: given.category.unwrap_or_else(|| "NVIDIA".to_owned()),
            readme: given.readme,
            serverless: given.is_serverless,
            public: given.is_public,
            start_ssh: true,
            start_jupyter: true,
            ..Template::default()
        };
        let id = self.save_template(visit, None, template)?;
        self.v1_template(visit, &id)
    }

    pub(super) fn v1_update_template(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let given: UpdateTemplate = given(visit.request)?;
        let old = self.own_template(&visit.account, id)?.clone();
        let (entrypoint, cmd) = args::lists(&old.args);
        let lists = given.docker_entrypoint.is_some() || given.docker_start_cmd.is_some();
        let (entrypoint, cmd) = (
            given.docker_entrypoint.unwrap_or(entrypoint),
            given.docker_start_cmd.unwrap_or(cmd),
        );
        let path = given.volume_mount_path;
        let volume = match (given.volume_in_gb, old.volume) {
            (Some(size), old) => {
                let path = path.or(old.map(|(_, path)| path));
                disk(Some(size), path.as_deref())
            }
            (None, Some((size, at))) => Some((size, path.unwrap_or(at))),
            (None, None) => None,
        };
        let template = Template {
            name: given.name.unwrap_or(old.name),
            image: given.image_name.unwrap_or(old.image),
            args: if lists {
                args::text(&entrypoint, &cmd)
            } else {
                old.args
            },
            disk: given.container_disk_in_gb.unwrap_or(old.disk),
            volume,
            ports: given.ports.unwrap_or(old.ports),
            env: given.env.unwrap_or(old.env),
            // An empty text takes the credential away.
            registry: match given.container_registry_auth_id {
                Some(id) => Some(id).filter(|id| !id.is_empty()),
                None => old.registry,
            },
            readme: given.readme.unwrap_or(old.readme),
            public: given.is_public.unwrap_or(old.public),
            account: old.account,
            category: old.category,
            cuda: old.cuda,
            serverless: old.serverless,
            official: old.official,
            start_ssh: old.start_ssh,
            start_jupyter: old.start_jupyter,
        };
        self.save_template(visit, Some(id), template)?;
        self.v1_template(visit, id)
    }

    /// What is not there is a failure of the service here, and 404 everywhere else.
    pub(super) fn v1_delete_volume(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        match self.remove_volume(visit, id) {
            Ok(()) => Ok(Answer::empty(204)),
            Err(Refusal::NotFound(_)) => {
                let message = "delete network volume: Tried to delete nonexistent network volume";
                Err(Refusal::Answer(error(500, message)))
            }
            Err(refusal) => Err(refusal),
        }
    }

    pub(super) fn v1_registries(&self, visit: &Visit<'_>) -> Answer {
        let all = self.registries_of(visit.world, &visit.account);
        Answer::json(200, &Value::Array(all))
    }

    pub(super) fn v1_create_registry(&self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreateRegistry = given(visit.request)?;
        Ok(Answer::json(200, &self.store_registry(visit, &given.name)?))
    }

    /// Grouped by pod or, unless the request says so, by type of GPU.
    pub(super) fn v1_bill_pods(&self, visit: &Visit<'_>) -> Result<Answer, Refusal> {
        let parameter = |name: &str| visit.request.parameter(name);
        let (pod, gpu) = (parameter("podId"), parameter("gpuTypeId"));
        let by_pod = parameter("grouping") == Some("podId");
        let mut records = Vec::new();
        for bucket in buckets(visit)? {
            let mut groups = BTreeMap::<&str, Record>::new();
            for (machine, cost) in self.costs(visit, bucket) {
                let hardware = machine.instance_type.as_str();
                if pod.is_some_and(|pod| pod != machine.id) || gpu.is_some_and(|gpu| gpu != hardware) {
                    continue;
                }
                let order = self.pods.get(&machine.id).map(|pod| &pod.order);
                let volume = order.and_then(|order| order.volume.as_ref());
                let volume = volume.map_or(0, |(size, _)| *size);
                let group = groups.entry(if by_pod { machine.id.as_str() } else { hardware });
                let record = group.or_default();
                record.amount += cost.total();
                record.time += time_billed(machine, bucket, visit.now());
                record.gigabytes += order.map_or(0, |order| order.disk) + volume;
            }
            for (group, record) in groups {
                let mut fields = Map::new();
                let millis = i64::try_from(record.time.as_millis()).unwrap_or(i64::MAX);
                fields.insert("time".to_owned(), bucket.0.to_string().into());
                fields.insert("amount".to_owned(), number(record.amount).into());
                fields.insert("timeBilledMs".to_owned(), millis.into());
                fields.insert("diskSpaceBilledGb".to_owned(), record.gigabytes.into());
                let key = if by_pod { "podId" } else { "gpuTypeId" };
                fields.insert(key.to_owned(), group.into());
                records.push(Value::Object(fields));
            }
        }
        Ok(Answer::json(200, &Value::Array(records)))
    }
}
