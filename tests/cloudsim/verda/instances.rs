//! Instances: order, list, get, and their statuses.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::catalogue::{fits, hardware, merge, number};
use super::storage::may_be_made;
use super::tags::{self, Tagged};
use super::volumes::Volume;
use super::wire::{Contract, Deploy, Kind, OnDiscontinue, OneOrMany, OsVolume, given};
use super::{Verda, id_alone, keys, list};
use crate::backend::{Boot, SshWay, Start};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine, Mark, NewMachine, Phase};
use crate::core::market::Market;
use crate::core::world::World;

/// Fields of an instance that only Verda has.
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) tags: Vec<Tagged>,
    pub(super) os_volume: String,
    pub(super) key_ids: Vec<String>,
    pub(super) script: Option<String>,
    pub(super) jupyter: String,
    pub(super) takes: SignedDuration,
}

/// A discontinued spot instance stays in lists for a while; one that was deleted does not.
const DISCONTINUED_LISTED: SignedDuration = SignedDuration::from_mins(10);
/// How long an instance that is gone can still be asked for by its id.
const DISCONTINUED_KNOWN: SignedDuration = SignedDuration::from_mins(60);
/// The default size of a disk in GB.
const DISK: f64 = 50.0;

/// The status of a machine in a phase.
pub(super) fn status(machine: &Machine, phase: Phase, extra: Option<&Extra>, now: Timestamp) -> &'static str {
    match phase {
        Phase::Pending => {
            let age = now.duration_since(machine.since(Phase::Pending).unwrap_or(now));
            let takes = extra.map_or(SignedDuration::ZERO, |extra| extra.takes);
            if age.is_zero() {
                "new"
            } else if age < takes / 4 {
                "ordered"
            } else if age < takes * 3 / 4 || takes.is_zero() {
                "provisioning"
            } else {
                "validating"
            }
        }
        Phase::Running => "running",
        Phase::Halted => "offline",
        Phase::Failed => match &machine.cause {
            Some(Cause::NoCapacity) => "no_capacity",
            Some(Cause::Installation(_)) => "installation_failed",
            _ => "error",
        },
        Phase::Ending => "deleting",
        Phase::Ended => "discontinued",
    }
}

impl Verda {
    pub(super) fn create_instance(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let order: Deploy = given(visit.request)?;
        let bad = |what: &str| Err(Refusal::Bad(what.to_owned()));
        let Some(instance_type) = visit.world.types.get(&order.instance_type).cloned() else {
            return bad("Invalid instance type");
        };
        // An image, or an OS volume that an earlier instance left.
        let disk = self.own_volume(visit, &order.image).ok();
        let disk = disk.filter(|volume| volume.is_os).map(|_| order.image.clone());
        if disk.is_none() && !fits(&instance_type, &order.image) {
            return bad("Operating system is not valid for this instance type");
        }
        if !visit.world.regions.contains(&order.location_code) {
            return bad("Invalid location code");
        }
        let spot = order.is_spot || order.contract == Some(Contract::Spot);
        let market = if spot { Market::Spot } else { Market::OnDemand };
        let Some(price) = instance_type.price(market) else {
            return bad("Instance type is not available as spot");
        };
        let key_ids = order.ssh_key_ids.as_ref().map(OneOrMany::all).unwrap_or_default();
        let mut keys = Vec::new();
        for id in &key_ids {
            match keys::text(visit, keys::KEY, id) {
                Some(key) => keys.push(key),
                None => return bad("Invalid ssh-key ID"),
            }
        }
        let start = match &order.startup_script_id {
            Some(id) => match keys::text(visit, keys::SCRIPT, id) {
                Some(script) => Start::UserData(script),
                None => return bad("Invalid startup script ID"),
            },
            None => Start::Nothing,
        };
        visit.enough("instances")?;
        let mut existing = order.existing_volumes.iter().chain(&disk);
        if existing.any(|id| !self.is_free(visit, id, &order.location_code)) {
            return bad("Invalid volume ID");
        }
        let os = order.os_volume.unwrap_or_else(|| OsVolume {
            name: format!("{}-os", order.hostname),
            size: DISK,
            on_spot_discontinue: OnDiscontinue::default(),
            tags: Vec::new(),
        });
        let (mut volumes, mut gigabytes) = (0, 0.0);
        for more in &order.volumes {
            may_be_made(more.r#type)?;
            (volumes, gigabytes) = (volumes + 1, gigabytes + more.size);
        }
        if disk.is_none() {
            (volumes, gigabytes) = (volumes + 1, gigabytes + os.size);
        }
        self.has_room(visit, volumes, gigabytes)?;
        if !visit
            .world
            .take_stock(&order.instance_type, &order.location_code, market)
        {
            return Err(Refusal::NoCapacity);
        }

        let id = visit.world.chance.uuid();
        let tags = self.tagged(visit, &order.tags);
        let new = NewMachine {
            id: id.clone(),
            account: visit.account.clone(),
            mark: Mark {
                name: order.hostname.clone(),
                description: order.description.clone(),
                tags: tags::plain(&tags),
                env: BTreeMap::new(),
            },
            instance_type: order.instance_type.clone(),
            region: order.location_code.clone(),
            market,
            price,
            on_demand_price: instance_type.on_demand,
            disk_price: price,
            plan: visit.boot.clone(),
            boot: Boot {
                hostname: order.hostname.clone(),
                image: order.image.clone(),
                user: "root".to_owned(),
                authorized_keys: keys,
                start,
                env: BTreeMap::new(),
                ssh: SshWay::Direct,
                metadata: false,
                gpus: vec![format!("NVIDIA {}", instance_type.gpu); instance_type.gpus as usize],
                ..Boot::default()
            },
            detail: Value::Null,
        };
        let jupyter = format!("jupyter-secret-{}", visit.world.chance.hex(16));
        visit.world.create(new);
        let os_volume = if let Some(volume) = disk {
            self.attach(visit.world, &volume, &id);
            volume
        } else {
            let volume = Volume {
                is_os: true,
                on_discontinue: os.on_spot_discontinue,
                holders: vec![id.clone()],
                included: true,
                key_ids: key_ids.clone(),
                tags: self.tagged(visit, &os.tags),
                ..Volume::new(&os.name, os.size, Kind::Nvme, &order.location_code)
            };
            self.add_volume(visit, volume)
        };
        for more in order.volumes {
            let volume = Volume {
                on_discontinue: more.on_spot_discontinue,
                holders: vec![id.clone()],
                included: true,
                tags: self.tagged(visit, &more.tags),
                ..Volume::new(&more.name, more.size, more.r#type, &order.location_code)
            };
            self.add_volume(visit, volume);
        }
        for volume in &order.existing_volumes {
            self.attach(visit.world, volume, &id);
        }
        let takes = visit.boot.takes;
        let extra = Extra {
            tags,
            os_volume,
            key_ids,
            script: order.startup_script_id,
            jupyter,
            takes,
        };
        self.instances.insert(id.clone(), extra);
        visit.made.push(id.clone());
        visit.subject = Some(id.clone());
        Ok(id_alone(visit, self.mixed, 202, &id))
    }

    pub(super) fn list_instances(&self, visit: &mut Visit<'_>) -> Answer {
        let wanted_status = visit.request.parameter("status");
        let wanted_id = visit.request.parameter("computeId");
        let wanted_tags: Vec<(&str, Option<&str>)> = visit
            .request
            .parameters("tag")
            .map(|tag| {
                tag.split_once('=')
                    .map_or((tag, None), |(key, value)| (key, Some(value)))
            })
            .collect();
        let now = visit.now();
        let found = visit
            .world
            .machines_of(&visit.account)
            .filter_map(|machine| {
                let phase = visit.world.listed(machine)?;
                if phase == Phase::Ended && !still_listed(machine, wanted_status, now) {
                    return None;
                }
                let extra = self.instances.get(&machine.id)?;
                let status = status(machine, phase, Some(extra), now);
                let tagged = wanted_tags.iter().all(|(key, value)| {
                    machine
                        .mark
                        .tags
                        .get(*key)
                        .is_some_and(|found| value.is_none_or(|value| value == found))
                });
                (wanted_status.is_none_or(|wanted| wanted == status)
                    && wanted_id.is_none_or(|wanted| wanted == machine.id)
                    && tagged)
                    .then(|| self.shown(visit.world, machine, status))
            })
            .collect();
        list(visit, found)
    }

    pub(super) fn get_instance(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        let now = visit.now();
        let gone = || Refusal::NotFound("Invalid instance id".to_owned());
        let machine = visit
            .world
            .machines
            .get(id)
            .filter(|machine| machine.account == visit.account);
        let machine = machine.ok_or_else(gone)?;
        let forgotten = |since: Timestamp| now.duration_since(since) > DISCONTINUED_KNOWN;
        if machine.since(Phase::Ended).is_some_and(forgotten) {
            return Err(gone());
        }
        let status = status(machine, machine.phase, self.instances.get(id), now);
        Ok(Answer::json(200, &self.shown(visit.world, machine, status)))
    }

    fn shown(&self, world: &World, machine: &Machine, status: &str) -> Value {
        let mut value = world
            .types
            .get(&machine.instance_type)
            .map_or_else(|| json!({}), hardware);
        let extra = self.instances.get(&machine.id);
        let spot = machine.market == Market::Spot;
        let volumes: Vec<&String> = self.attached(&machine.id).map(|(id, _)| id).collect();
        let address = machine
            .endpoint
            .as_ref()
            .filter(|_| !matches!(status, "new" | "ordered" | "no_capacity"));
        let tags = extra.map_or_else(Vec::new, |extra| tags::shown(&extra.tags));
        merge(
            &mut value,
            json!({
                "id": machine.id,
                "ip": address.map(|endpoint| &endpoint.address),
                "status": status,
                "created_at": machine.created().to_string(),
                "created_by_user_id": "user-1",
                "hostname": machine.mark.name,
                "description": machine.mark.description,
                "tags": tags,
                "location": machine.region,
                "price_per_hour": number(machine.price),
                "is_spot": spot,
                "instance_type": machine.instance_type,
                "image": machine.boot.image,
                "os_name": "ubuntu",
                "startup_script_id": extra.and_then(|extra| extra.script.clone()),
                "ssh_key_ids": extra.map(|extra| extra.key_ids.clone()).unwrap_or_default(),
                "os_volume_id": extra.map(|extra| &extra.os_volume).filter(|id| volumes.contains(id)),
                "jupyter_token": extra.map(|extra| extra.jupyter.clone()),
                "contract": if spot { "SPOT" } else { "PAY_AS_YOU_GO" },
                "pricing": "FIXED_PRICE",
                "volume_ids": volumes,
            }),
        );
        value
    }
}

fn still_listed(machine: &Machine, wanted: Option<&str>, now: Timestamp) -> bool {
    let age = machine
        .since(Phase::Ended)
        .map_or(SignedDuration::MAX, |since| now.duration_since(since));
    match wanted {
        Some("discontinued") => age <= DISCONTINUED_KNOWN,
        _ => machine.cause == Some(Cause::Reclaimed) && age <= DISCONTINUED_LISTED,
    }
}
