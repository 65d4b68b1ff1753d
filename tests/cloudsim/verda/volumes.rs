//! Volumes: what an instance leaves behind, detached or in the trash.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use rust_decimal::prelude::FromPrimitive;
use serde_json::{Value, json};

use super::wire::{DeleteVolume, OnDiscontinue, Tag, given};
use super::{Verda, list};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::world::World;

/// How long the trash keeps a volume.
const TRASH: SignedDuration = SignedDuration::from_hours(96);

/// A volume.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    name: String,
    size: f64,
    kind: String,
    location: String,
    pub(super) is_os: bool,
    on_discontinue: OnDiscontinue,
    instance: Option<String>,
    tags: Vec<Tag>,
    trashed: Option<Timestamp>,
    removed: bool,
}

impl Volume {
    pub(super) fn os(name: &str, size: f64, on_discontinue: OnDiscontinue, tags: Vec<Tag>) -> Self {
        Self {
            is_os: true,
            ..Self::data(name, size, "NVMe", on_discontinue, tags)
        }
    }

    pub(super) fn data(
        name: &str,
        size: f64,
        kind: &str,
        on_discontinue: OnDiscontinue,
        tags: Vec<Tag>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            size,
            kind: kind.to_owned(),
            location: String::new(),
            is_os: false,
            on_discontinue,
            instance: None,
            tags,
            trashed: None,
            removed: false,
        }
    }

    /// What an hour costs while no instance has it: 0.0003 for a GB.
    fn price(&self) -> Decimal {
        Decimal::from_f64(self.size).unwrap_or_default() * Decimal::new(3, 4)
    }

    fn status(&self) -> &'static str {
        match (self.trashed, &self.instance) {
            (Some(_), _) => "deleted",
            (None, Some(_)) => "attached",
            (None, None) => "detached",
        }
    }

    fn shown(&self, id: &str, world: &World) -> Value {
        let created = world
            .resources
            .get(id)
            .map(|resource| resource.created.to_string());
        let tags: Vec<Value> = self
            .tags
            .iter()
            .enumerate()
            .map(|(number, tag)| json!({"id": format!("{id}-{number}"), "key": tag.key, "value": tag.value}))
            .collect();
        let mut value = json!({
            "id": id, "instance_id": self.instance, "name": self.name, "created_at": created, "status": self.status(),
            "size": self.size, "is_os_volume": self.is_os, "type": self.kind, "location": self.location, "tags": tags,
        });
        if let (Some(at), Value::Object(fields)) = (self.trashed, &mut value) {
            fields.insert("deleted_at".to_owned(), at.to_string().into());
            fields.insert("is_permanently_deleted".to_owned(), self.removed.into());
        }
        value
    }
}

impl Verda {
    /// Makes a volume that an instance has.
    pub(super) fn new_volume(
        &mut self,
        visit: &mut Visit<'_>,
        instance: &str,
        location: &str,
        volume: Volume,
    ) -> String {
        let id = visit.world.chance.uuid();
        let resource = visit
            .world
            .new_resource(&id, "volume", &visit.account, &volume.name);
        visit.world.add_resource(resource, Decimal::ZERO);
        let volume = Volume {
            instance: Some(instance.to_owned()),
            location: location.to_owned(),
            ..volume
        };
        self.volumes.insert(id.clone(), volume);
        id
    }

    /// The volumes that an instance has.
    pub(super) fn attached<'a>(
        &'a self,
        instance: &'a str,
    ) -> impl Iterator<Item = (&'a String, &'a Volume)> {
        self.volumes
            .iter()
            .filter(move |(_, volume)| volume.instance.as_deref() == Some(instance))
    }

    /// Whether a volume of this account can be given to an instance.
    pub(super) fn is_detached(&self, visit: &Visit<'_>, id: &str) -> bool {
        let own = visit
            .world
            .resources
            .get(id)
            .is_some_and(|resource| resource.account == visit.account);
        own && self
            .volumes
            .get(id)
            .is_some_and(|volume| volume.status() == "detached")
    }

    pub(super) fn attach(&mut self, world: &mut World, id: &str, instance: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.instance = Some(instance.to_owned());
            world.charge_resource(id, Decimal::ZERO);
        }
    }

    pub(super) fn detach_volume(&mut self, world: &mut World, id: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.instance = None;
            world.charge_resource(id, volume.price());
        }
    }

    pub(super) fn trash_volume(&mut self, world: &mut World, id: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.instance = None;
            volume.trashed = Some(world.now());
            world.charge_resource(id, Decimal::ZERO);
            world.remind(TRASH, format!("trash {id}"));
        }
    }

    pub(super) fn remove_volume(&mut self, world: &mut World, id: &str) {
        if let Some(volume) = self.volumes.get_mut(id) {
            volume.instance = None;
            volume.trashed = volume.trashed.or(Some(world.now()));
            volume.removed = true;
            world.end_resource(id);
        }
    }

    /// The trash has kept a volume long enough.
    pub(super) fn empty_trash(&mut self, world: &mut World, id: &str) {
        if self
            .volumes
            .get(id)
            .is_some_and(|volume| volume.trashed.is_some())
        {
            self.remove_volume(world, id);
        }
    }

    /// What becomes of the volumes of a spot instance that was discontinued.
    pub(super) fn after_discontinue(&mut self, world: &mut World, instance: &str) {
        let attached: Vec<(String, OnDiscontinue)> = self
            .attached(instance)
            .map(|(id, volume)| (id.clone(), volume.on_discontinue))
            .collect();
        for (id, policy) in attached {
            match policy {
                OnDiscontinue::KeepDetached => self.detach_volume(world, &id),
                OnDiscontinue::MoveToTrash => self.trash_volume(world, &id),
                OnDiscontinue::DeletePermanently => self.remove_volume(world, &id),
            }
        }
    }

    fn of_account<'a>(&'a self, visit: &'a Visit<'_>) -> impl Iterator<Item = (&'a String, &'a Volume)> {
        self.volumes.iter().filter(|(id, volume)| {
            !volume.removed
                && visit
                    .world
                    .resources
                    .get(*id)
                    .is_some_and(|resource| resource.account == visit.account)
        })
    }

    pub(super) fn list_volumes(&self, visit: &mut Visit<'_>) -> Answer {
        let wanted = visit.request.parameter("status");
        let found = self
            .of_account(visit)
            .filter(|(_, volume)| volume.trashed.is_none())
            .filter(|(_, volume)| wanted.is_none_or(|wanted| wanted == volume.status()))
            .map(|(id, volume)| volume.shown(id, visit.world))
            .collect();
        list(visit, found)
    }

    pub(super) fn list_trash(&self, visit: &mut Visit<'_>) -> Answer {
        let found = self
            .of_account(visit)
            .filter(|(_, volume)| volume.trashed.is_some())
            .map(|(id, volume)| volume.shown(id, visit.world))
            .collect();
        list(visit, found)
    }

    pub(super) fn get_volume(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let found = self.of_account(visit).find(|(known, _)| *known == id);
        match found {
            Some((id, volume)) => Ok(Answer::json(200, &volume.shown(id, visit.world))),
            None => Err(Refusal::NotFound("Cannot find volume".to_owned())),
        }
    }

    pub(super) fn delete_volume(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let DeleteVolume { is_permanent } = given(visit.request)?;
        visit.subject = Some(id.to_owned());
        let own = visit
            .world
            .resources
            .get(id)
            .is_some_and(|resource| resource.account == visit.account);
        let volume = self.volumes.get(id).filter(|_| own);
        let volume = volume.ok_or_else(|| Refusal::NotFound("Cannot find volume".to_owned()))?;
        if volume.instance.is_some() {
            return Err(Refusal::Bad(
                "Can't delete a volume that is attached to an instance".to_owned(),
            ));
        }
        if volume.removed || (volume.trashed.is_some() && !is_permanent) {
            return Ok(Answer::empty(204));
        }
        if is_permanent {
            self.remove_volume(visit.world, id);
        } else {
            self.trash_volume(visit.world, id);
        }
        Ok(Answer::empty(202))
    }
}
