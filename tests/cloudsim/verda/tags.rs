//! Tags of instances and volumes.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::wire::{Tag, given};
use super::{Verda, error};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;

/// The most that one thing may have.
pub(super) const MOST: usize = 10;
/// The characters of ids. With its prefix an id has the 26 characters that the description asks
/// for.
const LETTERS: &str = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A tag that something has.
#[derive(Clone, Debug)]
pub(super) struct Tagged {
    id: String,
    key: String,
    value: String,
}

/// Ids by account, key and value: the same pair has the same id wherever it is.
pub(super) type Known = BTreeMap<(String, String, String), String>;

impl Tagged {
    fn shown(&self) -> Value {
        json!({"id": self.id, "key": self.key, "value": self.value})
    }
}

/// Tags as answers have them.
pub(super) fn shown(tags: &[Tagged]) -> Vec<Value> {
    tags.iter().map(Tagged::shown).collect()
}

/// Tags as the mark of a machine has them.
pub(super) fn plain(tags: &[Tagged]) -> BTreeMap<String, String> {
    tags.iter()
        .map(|tag| (tag.key.clone(), tag.value.clone()))
        .collect()
}

fn add(tags: &mut Vec<Tagged>, new: Tagged) -> Result<Answer, Refusal> {
    if tags.iter().any(|tag| tag.key == new.key) {
        return Err(Refusal::Answer(error(
            409,
            "invalid_request",
            "Tag already exists",
        )));
    }
    if tags.len() >= MOST {
        return Err(Refusal::Bad(format!("There are at most {MOST} tags")));
    }
    let answer = Answer::json(201, &new.shown());
    tags.push(new);
    Ok(answer)
}

/// The description names a tag by its id, the client for Go by its key.
fn remove(tags: &mut Vec<Tagged>, name: &str) -> Result<Answer, Refusal> {
    let before = tags.len();
    tags.retain(|tag| tag.id != name && tag.key != name);
    if tags.len() == before {
        return Err(Refusal::NotFound("Cannot find tag".to_owned()));
    }
    Ok(Answer::empty(204))
}

impl Verda {
    /// Tags of a request as something of this account has them.
    pub(super) fn tagged(&mut self, visit: &mut Visit<'_>, tags: &[Tag]) -> Vec<Tagged> {
        tags.iter().map(|tag| self.one_tagged(visit, tag)).collect()
    }

    fn one_tagged(&mut self, visit: &mut Visit<'_>, tag: &Tag) -> Tagged {
        let (key, value) = (tag.key.to_lowercase(), tag.value.clone().unwrap_or_default());
        let known = self
            .tags
            .entry((visit.account.clone(), key.clone(), value.clone()));
        let id = known.or_insert_with(|| format!("tag_{}", visit.world.chance.text(22, LETTERS)));
        Tagged {
            id: id.clone(),
            key,
            value,
        }
    }

    pub(super) fn add_tag(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let tag: Tag = given(visit.request)?;
        visit.subject = Some(id.to_owned());
        own_instance(visit, id)?;
        let new = self.one_tagged(visit, &tag);
        let extra = self.instances.get_mut(id).ok_or_else(no_instance)?;
        let answer = add(&mut extra.tags, new)?;
        self.mark_again(visit, id);
        Ok(answer)
    }

    pub(super) fn remove_tag(
        &mut self,
        visit: &mut Visit<'_>,
        id: &str,
        tag: &str,
    ) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        own_instance(visit, id)?;
        let extra = self.instances.get_mut(id).ok_or_else(no_instance)?;
        let answer = remove(&mut extra.tags, tag)?;
        self.mark_again(visit, id);
        Ok(answer)
    }

    /// A machine is known by its tags as well.
    fn mark_again(&self, visit: &mut Visit<'_>, id: &str) {
        if let (Some(extra), Some(machine)) = (self.instances.get(id), visit.world.machines.get_mut(id)) {
            machine.mark.tags = plain(&extra.tags);
        }
    }

    pub(super) fn add_volume_tag(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        let tag: Tag = given(visit.request)?;
        visit.subject = Some(id.to_owned());
        self.own_volume(visit, id)?;
        let new = self.one_tagged(visit, &tag);
        let volume = self.volumes.get_mut(id).ok_or_else(super::volumes::missing)?;
        add(&mut volume.tags, new)
    }

    pub(super) fn remove_volume_tag(
        &mut self,
        visit: &mut Visit<'_>,
        id: &str,
        tag: &str,
    ) -> Result<Answer, Refusal> {
        visit.subject = Some(id.to_owned());
        self.own_volume(visit, id)?;
        let volume = self.volumes.get_mut(id).ok_or_else(super::volumes::missing)?;
        remove(&mut volume.tags, tag)
    }
}

fn no_instance() -> Refusal {
    Refusal::NotFound("Cannot find instance".to_owned())
}

fn own_instance(visit: &Visit<'_>, id: &str) -> Result<(), Refusal> {
    let machine = visit.world.machines.get(id);
    match machine.filter(|machine| machine.account == visit.account) {
        Some(_) => Ok(()),
        None => Err(no_instance()),
    }
}
