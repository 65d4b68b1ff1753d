//! Network volumes: disks in a data center that outlive pods, and cost until they are deleted.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::catalogue::{DATA_CENTERS, FAST_STORAGE};
use super::wire::{CreateVolume, UpdateVolume, given};
use super::{Runpod, all_of, owned};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::resource::Resource;
use crate::core::world::World;

/// The kind of network volumes among resources.
pub(super) const KIND: &str = "network-volume";

/// How many GB one can have.
const SIZES: std::ops::RangeInclusive<u32> = 10..=4_096;

/// How fast a volume is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum Storage {
    #[default]
    Standard,
    HighPerformance,
}

/// What is known of a volume beside its name and place.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Size {
    /// In GB.
    pub(super) size: u32,
    #[serde(rename = "type")]
    pub(super) storage: Storage,
}

impl Size {
    pub(super) fn of(volume: &Resource) -> Self {
        Self::deserialize(&volume.detail).unwrap_or_default()
    }

    fn kept(self) -> Value {
        json!({"size": self.size, "type": self.storage})
    }

    /// What an hour costs: by the month 0.07 for each of the first 1000 GB and 0.05 for each
    /// of the others. What the fast ones cost is published nowhere; here it is the double.
    fn price(self) -> Decimal {
        let first = Decimal::from(self.size.min(1_000)) * Decimal::new(7, 2);
        let others = Decimal::from(self.size.saturating_sub(1_000)) * Decimal::new(5, 2);
        let times = match self.storage {
            Storage::Standard => Decimal::ONE,
            Storage::HighPerformance => Decimal::TWO,
        };
        (first + others) * times / Decimal::from(730)
    }
}

/// A network volume of an account.
pub(super) fn find<'a>(world: &'a World, account: &str, id: &str) -> Result<&'a Resource, Refusal> {
    owned(world, account, KIND, id).ok_or_else(|| Refusal::NotFound("network volume not found".to_owned()))
}

/// Makes one.
pub(super) fn make(visit: &mut Visit<'_>, name: &str, place: &str, size: Size) -> Result<String, Refusal> {
    let known = DATA_CENTERS.iter().any(|(id, ..)| *id == place);
    if !known || (size.storage == Storage::HighPerformance && !FAST_STORAGE.contains(&place)) {
        return Err(Refusal::Bad(
            "the data center has no network volumes of this type".to_owned(),
        ));
    }
    if !SIZES.contains(&size.size) {
        return Err(Refusal::Bad("a network volume has 10 to 4096 GB".to_owned()));
    }
    let id = visit.world.chance.hex(10);
    let mut resource = visit.world.new_resource(&id, KIND, &visit.account, name);
    place.clone_into(&mut resource.region);
    resource.detail = size.kept();
    visit.world.add_resource(resource, size.price());
    visit.subject = Some(id.clone());
    Ok(id)
}

/// Changes its name, and makes it larger.
pub(super) fn change(
    visit: &mut Visit<'_>,
    id: &str,
    name: Option<String>,
    larger: Option<u32>,
) -> Result<(), Refusal> {
    visit.subject = Some(id.to_owned());
    let mut size = Size::of(find(visit.world, &visit.account, id)?);
    if larger.is_some_and(|larger| larger < size.size) {
        return Err(Refusal::Bad(
            "the size of a network volume can only grow".to_owned(),
        ));
    }
    size.size = larger.unwrap_or(size.size);
    if !SIZES.contains(&size.size) {
        return Err(Refusal::Bad("a network volume has 10 to 4096 GB".to_owned()));
    }
    if let Some(volume) = visit.world.resources.get_mut(id) {
        volume.name = name.unwrap_or_else(|| std::mem::take(&mut volume.name));
        volume.detail = size.kept();
    }
    visit.world.charge_resource(id, size.price());
    Ok(())
}

fn shown(volume: &Resource) -> Value {
    let Size { size, storage } = Size::of(volume);
    json!({
        "id": volume.id, "name": volume.name, "size": size, "dataCenter": volume.region, "type": storage,
    })
}

/// A volume in the words of REST v1 and GraphQL.
pub(super) fn flat(volume: &Resource) -> Value {
    json!({
        "id": volume.id, "name": volume.name, "size": Size::of(volume).size, "dataCenterId": volume.region,
    })
}

impl Runpod {
    /// Deletes one that no pod has.
    pub(super) fn remove_volume(&self, visit: &mut Visit<'_>, id: &str) -> Result<(), Refusal> {
        visit.subject = Some(id.to_owned());
        find(visit.world, &visit.account, id)?;
        let attached = self.has_pod(visit.world, &visit.account, |order| {
            let volume = order.network_volume.as_ref();
            volume.is_some_and(|(volume, _)| volume == id)
        });
        if attached {
            return Err(Refusal::Bad("the network volume is attached to a pod".to_owned()));
        }
        visit.world.end_resource(id);
        Ok(())
    }

    pub(super) fn delete_volume(&self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        self.remove_volume(visit, id)?;
        Ok(Answer::empty(204))
    }
}

pub(super) fn list(visit: &Visit<'_>) -> Answer {
    let all = all_of(visit.world, &visit.account, KIND);
    let all: Vec<Value> = all.into_iter().map(shown).collect();
    Answer::json(200, &json!({ "networkVolumes": all }))
}

pub(super) fn get(visit: &Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let volume = find(visit.world, &visit.account, id)?;
    Ok(Answer::json(200, &shown(volume)))
}

pub(super) fn create(visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let given: CreateVolume = given(visit.request)?;
    let size = Size {
        size: given.size,
        storage: given.storage,
    };
    let id = make(visit, &given.name, &given.data_center, size)?;
    let volume = find(visit.world, &visit.account, &id)?;
    Ok(Answer::json(201, &shown(volume)))
}

pub(super) fn update(visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
    let given: UpdateVolume = given(visit.request)?;
    change(visit, id, given.name, given.size)?;
    get(visit, id)
}
