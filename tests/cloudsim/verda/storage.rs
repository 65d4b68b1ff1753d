//! `POST /v1/volumes`, `PUT /v1/volumes`, `DELETE /v1/volumes/{id}`: the calls that make, change
//! and delete volumes.
//!
//! Assumed, since no fact says it: one of several that cannot be done refuses all; a volume of
//! an instance has to be off before its disk is cloned, as before it is attached.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::tags;
use super::volumes::{Volume, missing};
use super::wire::{ActOnVolumes, CreateVolume, DeleteVolume, Kind, VolumeAction, given};
use super::{Verda, error, id_alone};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Machine, Phase};

/// How long a volume is ordered, cloned or restored.
const TAKES: SignedDuration = SignedDuration::from_secs(1);

fn bad<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Bad(what.to_owned()))
}

/// HDD storage ends: nothing makes or enlarges it any more.
pub(super) fn may_be_made(kind: Kind) -> Result<(), Refusal> {
    if kind.is_retired() {
        return bad("HDD volumes are no longer supported");
    }
    Ok(())
}

/// The instances that a request names, by either of its names.
fn instances(one: Option<&String>, many: &[String]) -> Vec<String> {
    let mut all: Vec<String> = one.cloned().into_iter().chain(many.iter().cloned()).collect();
    all.dedup();
    all
}

fn until(visit: &Visit<'_>) -> Timestamp {
    visit.now().saturating_add(TAKES).unwrap_or(Timestamp::MAX)
}

impl Verda {
    pub(super) fn create_volume(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let order: CreateVolume = given(visit.request)?;
        if !visit.world.regions.contains(&order.location_code) {
            return bad("Invalid location code");
        }
        if order.size < 1.0 {
            return bad("Invalid volume size");
        }
        if order.tags.len() > tags::MOST {
            return bad("A volume has at most 10 tags");
        }
        may_be_made(order.r#type)?;
        let holders = instances(order.instance_id.as_ref(), &order.instance_ids);
        let mut volume = Volume::new(&order.name, order.size, order.r#type, &order.location_code);
        may_attach(visit, &volume, &holders)?;
        self.has_room(visit, 1, order.size)?;
        volume.holders = holders;
        volume.tags = self.tagged(visit, &order.tags);
        volume.busy = Some(("ordered", until(visit)));
        let id = self.add_volume(visit, volume);
        visit.subject = Some(id.clone());
        Ok(id_alone(visit, self.mixed, 202, &id))
    }

    /// Whether this customer may have so many volumes and gigabytes more. What is in the trash
    /// counts as well.
    pub(super) fn has_room(&self, visit: &Visit<'_>, volumes: u64, gigabytes: f64) -> Result<(), Refusal> {
        // The quota of no name limits nothing: this is about the money.
        visit.enough("")?;
        let account = visit.world.accounts.get(&visit.account);
        let quota = |name: &str| account.and_then(|account| account.quotas.get(name).copied());
        let (mut count, mut size) = (volumes, gigabytes);
        for (_, volume) in self.of_account(visit) {
            count += 1;
            size += volume.size;
        }
        if quota("volumes").is_some_and(|most| count > most) {
            return bad("Volume limit exceeded");
        }
        if quota("storage").is_some_and(|most| size > most as f64) {
            return bad("Storage limit exceeded");
        }
        Ok(())
    }

    pub(super) fn act_on_volumes(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let act: ActOnVolumes = given(visit.request)?;
        let ids = act.id.all();
        visit.subject = ids.first().cloned();
        for id in &ids {
            self.may_act(visit, &act, id)?;
        }
        let mut made = Vec::new();
        for id in &ids {
            made.extend(self.carry_out(visit, &act, id));
        }
        if act.action != VolumeAction::Clone {
            return Ok(Answer::empty(202));
        }
        // By the description it is an object with the id; Verda's own clients read a list.
        let value = match made.as_slice() {
            [one] if self.mixed && visit.world.chance.hits(0.5) => json!({ "id": one }),
            _ => json!(made),
        };
        Ok(Answer::json(202, &value))
    }

    fn may_act(&self, visit: &Visit<'_>, act: &ActOnVolumes, id: &str) -> Result<(), Refusal> {
        let volume = self.own_volume(visit, id)?;
        match (act.action, volume.status(visit.now())) {
            (VolumeAction::Restore | VolumeAction::Delete, "deleted") | (VolumeAction::Cancel, "cloning") => {
                Ok(())
            }
            (VolumeAction::Restore, _) => bad("Volume is not in the trash"),
            (VolumeAction::Cancel, _) => bad("Volume is not being cloned"),
            (VolumeAction::Create | VolumeAction::Export | VolumeAction::Transfer, _) => {
                bad("This action is not allowed for this volume")
            }
            (_, "deleted") => bad("Volume is deleted"),
            (VolumeAction::Delete, _) => may_delete(visit, volume),
            (VolumeAction::Rename, _) => match act.name.as_deref() {
                None | Some("") => bad("Volume name is required"),
                Some(_) => Ok(()),
            },
            (_, "ordered" | "cloning" | "restoring") => bad("Volume is not ready"),
            (VolumeAction::Attach, _) => {
                let more = instances(act.instance_id.as_ref(), &act.instance_ids);
                let again = more.iter().any(|instance| volume.holders.contains(instance));
                if more.is_empty() {
                    bad("Instance ID is required")
                } else if again || (!volume.kind.is_shared() && !volume.holders.is_empty()) {
                    bad("Volume is already attached")
                } else {
                    may_attach(visit, volume, &more)
                }
            }
            (VolumeAction::Detach, _) => {
                let named = instances(act.instance_id.as_ref(), &act.instance_ids);
                if volume.is_os {
                    bad("An OS volume cannot be detached")
                } else if volume.holders.is_empty() || named.iter().any(|one| !volume.holders.contains(one)) {
                    bad("Volume is not attached")
                } else {
                    is_off(visit, volume)
                }
            }
            (VolumeAction::Resize, _) => {
                may_be_made(volume.kind)?;
                match act.size {
                    None => bad("Volume size is required"),
                    Some(size) if size < volume.size => bad("A volume cannot become smaller"),
                    Some(size) => self.has_room(visit, 0, size - volume.size),
                }
            }
            (VolumeAction::Clone, _) => {
                is_off(visit, volume)?;
                may_be_made(target_kind(act, volume)?)?;
                let location = act.location_code.as_ref().unwrap_or(&volume.location);
                if !visit.world.regions.contains(location) {
                    return bad("Invalid location code");
                }
                self.has_room(visit, act.id.all().len() as u64, volume.size)
            }
        }
    }

    /// Answers with the volume that it made, if any. The caller has checked that the action is
    /// allowed.
    fn carry_out(&mut self, visit: &mut Visit<'_>, act: &ActOnVolumes, id: &str) -> Option<String> {
        match act.action {
            VolumeAction::Attach => {
                for instance in instances(act.instance_id.as_ref(), &act.instance_ids) {
                    self.attach(visit.world, id, &instance);
                }
            }
            VolumeAction::Detach => {
                let named = instances(act.instance_id.as_ref(), &act.instance_ids);
                let all = self.volumes.get(id).map(|volume| volume.holders.clone());
                for instance in all.unwrap_or_default() {
                    if named.is_empty() || named.contains(&instance) {
                        self.detach(visit.world, id, &instance);
                    }
                }
            }
            VolumeAction::Delete => self.discard(visit, id, act.is_permanent),
            VolumeAction::Rename => {
                let name = act.name.clone().unwrap_or_default();
                if let Some(resource) = visit.world.resources.get_mut(id) {
                    resource.name.clone_from(&name);
                }
                if let Some(volume) = self.volumes.get_mut(id) {
                    volume.name = name;
                }
            }
            VolumeAction::Resize => {
                if let (Some(volume), Some(size)) = (self.volumes.get_mut(id), act.size) {
                    volume.size = size;
                }
                self.charge_volume(visit.world, id);
            }
            VolumeAction::Restore => {
                let until = until(visit);
                if let Some(volume) = self.volumes.get_mut(id) {
                    volume.trashed = None;
                    volume.busy = Some(("restoring", until));
                }
                self.charge_volume(visit.world, id);
            }
            VolumeAction::Clone => return self.copy(visit, act, id),
            VolumeAction::Cancel => self.remove_volume(visit.world, id),
            VolumeAction::Create | VolumeAction::Export | VolumeAction::Transfer => {}
        }
        None
    }

    fn copy(&mut self, visit: &mut Visit<'_>, act: &ActOnVolumes, id: &str) -> Option<String> {
        let source = self.volumes.get(id)?;
        let kind = target_kind(act, source).ok()?;
        let name = act
            .name
            .clone()
            .unwrap_or_else(|| format!("{}-clone", source.name));
        let location = act.location_code.as_ref().unwrap_or(&source.location);
        let copy = Volume {
            is_os: source.is_os,
            key_ids: source.key_ids.clone(),
            busy: Some(("cloning", until(visit))),
            ..Volume::new(&name, source.size, kind, location)
        };
        Some(self.add_volume(visit, copy))
    }

    fn discard(&mut self, visit: &mut Visit<'_>, id: &str, for_good: bool) {
        let trashed = self
            .volumes
            .get(id)
            .is_some_and(|volume| volume.trashed.is_some());
        if for_good {
            self.remove_volume(visit.world, id);
        } else if !trashed {
            self.trash_volume(visit.world, id);
        }
    }

    pub(super) fn delete_volume(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let DeleteVolume { is_permanent } = if visit.request.body.is_empty() {
            DeleteVolume::default()
        } else {
            given(visit.request)?
        };
        visit.subject = Some(id.to_owned());
        let resource = visit.world.resources.get(id);
        let own = resource.is_some_and(|resource| resource.account == visit.account);
        let volume = self.volumes.get(id).filter(|_| own).ok_or_else(missing)?;
        if volume.removed || (volume.trashed.is_some() && !is_permanent) {
            return Ok(Answer::empty(204));
        }
        may_delete(visit, volume)?;
        self.discard(visit, id, is_permanent);
        Ok(Answer::empty(202))
    }
}

/// The kind of a clone; the client for Go gives the name of a location here.
fn target_kind(act: &ActOnVolumes, source: &Volume) -> Result<Kind, Refusal> {
    match act.r#type.as_deref() {
        None => Ok(source.kind),
        Some(name) => Kind::named(name).ok_or_else(|| Refusal::Bad("Invalid volume type".to_owned())),
    }
}

/// Disks come and go while their instance is off; shared file systems at any time.
fn is_off(visit: &Visit<'_>, volume: &Volume) -> Result<(), Refusal> {
    let runs = |id: &String| {
        let machine = visit.world.machines.get(id);
        machine.is_some_and(|machine| machine.exists() && machine.phase != Phase::Halted)
    };
    if !volume.kind.is_shared() && volume.holders.iter().any(runs) {
        return Err(not_shut_down());
    }
    Ok(())
}

fn not_shut_down() -> Refusal {
    let what = "One or more of the specified instances is not shut down";
    Refusal::Answer(error(403, "forbidden_action", what))
}

fn may_attach(visit: &Visit<'_>, volume: &Volume, holders: &[String]) -> Result<(), Refusal> {
    if holders.len() > 1 && !volume.kind.is_shared() {
        return bad("Only a shared volume can be attached to several instances");
    }
    for id in holders {
        let own = |machine: &&Machine| machine.account == visit.account && machine.exists();
        let machine = visit.world.machines.get(id).filter(own);
        let machine = machine.ok_or_else(|| Refusal::NotFound("Invalid instance id".to_owned()))?;
        if machine.region != volume.location {
            return bad("The volume and the instance are in different locations");
        }
        if !volume.kind.is_shared() && machine.phase != Phase::Halted {
            return Err(not_shut_down());
        }
    }
    Ok(())
}

fn may_delete(visit: &Visit<'_>, volume: &Volume) -> Result<(), Refusal> {
    let held = !volume.holders.is_empty();
    if held && (volume.is_os || is_off(visit, volume).is_err()) {
        return bad("Can't delete a volume that is attached to an instance");
    }
    Ok(())
}
