//! Volumes: their kinds, holders and prices, and how answers show them.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;
use serde_json::{Value, json};

use super::catalogue::{merge, month, number};
use super::instances::status;
use super::tags::{self, Tagged};
use super::wire::{Kind, OnDiscontinue};
use super::{Verda, list};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::world::World;

/// How long the trash keeps a volume.
const TRASH: SignedDuration = SignedDuration::from_hours(96);
/// Hours of the month that prices are for.
const HOURS_OF_A_MONTH: i64 = 730;

/// A volume.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) size: f64,
    pub(super) kind: Kind,
    pub(super) location: String,
    pub(super) is_os: bool,
    pub(super) on_discontinue: OnDiscontinue,
    /// The instances that have it, more than one only of a shared file system.
    pub(super) holders: Vec<String>,
    /// Whether it came with the instance that has it.
    pub(super) included: bool,
    pub(super) key_ids: Vec<String>,
    pub(super) tags: Vec<Tagged>,
    pub(super) trashed: Option<Timestamp>,
    pub(super) removed: bool,
    /// The change under way, and when it ends.
    pub(super) busy: Option<(&'static str, Timestamp)>,
}

/// No volume of this account has the id.
pub(super) fn missing() -> Refusal {
    Refusal::NotFound("Cannot find volume".to_owned())
}

impl Volume {
    /// One that nobody has.
    pub(super) fn new(name: &str, size: f64, kind: Kind, location: &str) -> Self {
        Self {
            name: name.to_owned(),
            size,
            kind,
            location: location.to_owned(),
            is_os: false,
            on_discontinue: OnDiscontinue::default(),
            holders: Vec::new(),
            included: false,
            key_ids: Vec::new(),
            tags: Vec::new(),
            trashed: None,
            removed: false,
            busy: None,
        }
    }

    /// What a month costs by the list.
    fn monthly(&self) -> Decimal {
        Decimal::from_f64(self.size).unwrap_or_default() * month(self.kind)
    }

    /// What an hour costs by the list.
    fn price(&self) -> Decimal {
        self.monthly() / Decimal::from(HOURS_OF_A_MONTH)
    }

    /// What an hour costs as it is now. `apart` says whether volumes that came with an instance
    /// cost beside it.
    fn charged(&self, apart: bool) -> Decimal {
        let within = self.included && !apart && !self.holders.is_empty();
        if within || self.trashed.is_some() {
            Decimal::ZERO
        } else {
            self.price()
        }
    }

    pub(super) fn status(&self, now: Timestamp) -> &'static str {
        match (self.trashed, self.busy) {
            (Some(_), _) => "deleted",
            (None, Some((doing, until))) if now < until => doing,
            (None, _) if self.holders.is_empty() => "detached",
            (None, _) => "attached",
        }
    }
}

impl Verda {
    /// Makes a volume, which costs from now on.
    pub(super) fn add_volume(&mut self, visit: &mut Visit<'_>, volume: Volume) -> String {
        let id = visit.world.chance.uuid();
        let resource = visit
            .world
            .new_resource(&id, "volume", &visit.account, &volume.name);
        let price = volume.charged(self.storage_apart);
        visit.world.add_resource(resource, price);
        self.volumes.insert(id.clone(), volume);
        id
    }

    /// Sets the price of a volume by its state.
    pub(super) fn charge_volume(&self, world: &mut World, id: &str) {
        if let Some(volume) = self.volumes.get(id) {
            world.charge_resource(id, volume.charged(self.storage_apart));
        }
    }

    /// The volumes that an instance has.
    pub(super) fn attached<'a>(
        &'a self,
        instance: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a Volume)> {
        self.volumes
            .iter()
            .filter(move |(_, volume)| volume.holders.iter().any(|holder| holder == instance))
    }

    /// Whether a volume of this account can be given to a new instance at this place.
    pub(super) fn is_free(&self, visit: &Visit<'_>, id: &str, location: &str) -> bool {
        let found = self.own_volume(visit, id);
        found.is_ok_and(|volume| {
            let shared = volume.kind.is_shared() && volume.status(visit.now()) == "attached";
            volume.location == location && (shared || volume.status(visit.now()) == "detached")
        })
    }

    pub(super) fn attach(&mut self, world: &mut World, id: &str, instance: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.holders.push(instance.to_owned());
        }
        self.charge_volume(world, id);
    }

    pub(super) fn detach(&mut self, world: &mut World, id: &str, instance: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.holders.retain(|holder| holder != instance);
            volume.included = false;
        }
        self.charge_volume(world, id);
    }

    pub(super) fn trash_volume(&mut self, world: &mut World, id: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.holders.clear();
            volume.included = false;
            volume.trashed = Some(world.now());
            world.remind(TRASH, format!("trash {id}"));
        }
        self.charge_volume(world, id);
    }

    pub(super) fn remove_volume(&mut self, world: &mut World, id: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.holders.clear();
            volume.trashed = volume.trashed.or(Some(world.now()));
            volume.removed = true;
            world.end_resource(id);
        }
    }

    /// The trash has kept a volume long enough, unless it was restored meanwhile.
    pub(super) fn empty_trash(&mut self, world: &mut World, id: &str) {
        let trashed = self.volumes.get(id).and_then(|volume| volume.trashed);
        if trashed.is_some_and(|since| world.now().duration_since(since) >= TRASH) {
            self.remove_volume(world, id);
        }
    }

    /// What becomes of a volume whose instance is gone; one that others have as well stays theirs.
    pub(super) fn leave_volume(
        &mut self,
        world: &mut World,
        id: &str,
        instance: &str,
        policy: OnDiscontinue,
    ) {
        let others = self
            .volumes
            .get(id)
            .is_some_and(|volume| volume.holders.len() > 1);
        match policy {
            OnDiscontinue::MoveToTrash if !others => self.trash_volume(world, id),
            OnDiscontinue::DeletePermanently if !others => self.remove_volume(world, id),
            OnDiscontinue::KeepDetached | OnDiscontinue::MoveToTrash | OnDiscontinue::DeletePermanently => {
                self.detach(world, id, instance);
            }
        }
    }

    /// What becomes of the volumes of a spot instance that was discontinued.
    pub(super) fn after_discontinue(&mut self, world: &mut World, instance: &str) {
        let attached: Vec<(String, OnDiscontinue)> = self
            .attached(instance)
            .map(|(id, volume)| (id.clone(), volume.on_discontinue))
            .collect();
        for (id, policy) in attached {
            self.leave_volume(world, &id, instance, policy);
        }
    }

    /// The volumes of the account, volumes in the trash too.
    pub(super) fn of_account<'a>(
        &'a self,
        visit: &'a Visit<'_>,
    ) -> impl Iterator<Item = (&'a String, &'a Volume)> {
        self.volumes.iter().filter(|(id, volume)| {
            !volume.removed
                && visit
                    .world
                    .resources
                    .get(*id)
                    .is_some_and(|resource| resource.account == visit.account)
        })
    }

    /// A volume of the account, in the trash or not.
    pub(super) fn own_volume(&self, visit: &Visit<'_>, id: &str) -> Result<&Volume, Refusal> {
        let own = self.of_account(visit).any(|(known, _)| known == id);
        self.volumes.get(id).filter(|_| own).ok_or_else(missing)
    }

    pub(super) fn list_volumes(&self, visit: &mut Visit<'_>) -> Answer {
        let (now, wanted) = (visit.now(), visit.request.parameter("status"));
        let found = self
            .of_account(visit)
            .filter(|(_, volume)| match wanted {
                None => volume.trashed.is_none(),
                Some(wanted) => wanted == volume.status(now),
            })
            .map(|(id, volume)| self.volume_shown(visit.world, id, volume))
            .collect();
        list(visit, found)
    }

    pub(super) fn list_trash(&self, visit: &mut Visit<'_>) -> Answer {
        let found = self
            .of_account(visit)
            .filter(|(_, volume)| volume.trashed.is_some())
            .map(|(id, volume)| self.volume_shown(visit.world, id, volume))
            .collect();
        list(visit, found)
    }

    pub(super) fn get_volume(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let volume = self.own_volume(visit, id)?;
        let value = self.volume_shown(visit.world, id, volume);
        Ok(Answer::json(200, &value))
    }

    fn volume_shown(&self, world: &World, id: &str, volume: &Volume) -> Value {
        let created = world
            .resources
            .get(id)
            .map(|resource| resource.created.to_string());
        let holders: Vec<Value> = volume
            .holders
            .iter()
            .filter_map(|holder| self.holder_shown(world, holder))
            .collect();
        let target = (volume.is_os && !volume.holders.is_empty()).then_some("vda");
        let mut value = json!({
            "id": id, "instance_id": volume.holders.first(), "instances": holders, "name": volume.name,
            "created_at": created, "created_by_user_id": "user-1", "status": volume.status(world.now()),
            "size": whole(volume.size), "is_os_volume": volume.is_os, "target": target, "type": volume.kind.name(),
            "location": volume.location, "ssh_key_ids": volume.key_ids,
        });
        let mount = volume.kind.is_shared().then(|| {
            let short: String = id.chars().take(8).collect();
            let host = format!("nfs.{}.datacrunch.io", volume.location.to_lowercase());
            (format!("volume-{short}"), host)
        });
        let mounted = mount
            .as_ref()
            .map(|(path, host)| format!("mount -t nfs -o nconnect=16 {host}:{path} /mnt/volume"));
        let table = mount.as_ref().map(|(path, host)| {
            format!("echo '{host}:{path} /mnt/volume nfs defaults 0 0' | sudo tee -a /etc/fstab")
        });
        let rest = json!({
            "pseudo_path": mount.as_ref().map(|(path, _)| path),
            "create_directory_command": mount.as_ref().map(|_| "mkdir -p /mnt/volume"),
            "mount_command": mounted, "filesystem_to_fstab_command": table,
            "contract": "PAY_AS_YOU_GO", "base_hourly_cost": number(volume.price()),
            "monthly_price": number(volume.monthly()), "currency": "usd", "long_term": null,
            "tags": tags::shown(&volume.tags),
        });
        merge(&mut value, rest);
        if let Some(at) = volume.trashed {
            let gone = json!({"deleted_at": at.to_string(), "is_permanently_deleted": volume.removed});
            merge(&mut value, gone);
        }
        value
    }

    /// An instance as the volumes that it has show it.
    fn holder_shown(&self, world: &World, id: &str) -> Option<Value> {
        let machine = world.machines.get(id)?;
        let extra = self.instances.get(id)?;
        Some(json!({
            "id": id, "auto_rental_extension": null, "ip": machine.endpoint.as_ref().map(|endpoint| &endpoint.address),
            "instance_type": machine.instance_type, "status": status(machine, machine.phase, Some(extra), world.now()),
            "os_volume_id": extra.os_volume, "hostname": machine.mark.name,
        }))
    }
}

/// A number of gigabytes without a fraction where it has none, which the client for Go needs.
fn whole(size: f64) -> Value {
    if size.fract().abs() < f64::EPSILON {
        json!(size as i64)
    } else {
        json!(size)
    }
}
