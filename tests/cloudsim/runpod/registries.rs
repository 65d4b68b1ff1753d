//! Credentials for registries of images. They can be stored and named, and are never shown.

use rust_decimal::Decimal;
use serde_json::{Value, json};

use super::wire::{CreateRegistry, given};
use super::{Runpod, all_of, owned};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::world::World;

/// The kind of registry credentials among resources.
const KIND: &str = "registry-credential";

/// The credential that each account has from the beginning; it does not count as a leftover.
pub(super) const STORED: (&str, &str) = ("reg-docker-hub", "docker hub");

fn missing() -> Refusal {
    Refusal::NotFound("registry not found".to_owned())
}

fn shown(id: &str, name: &str) -> Value {
    json!({"id": id, "name": name})
}

impl Runpod {
    /// All credentials of an account, the oldest first.
    pub(super) fn registries_of(&self, world: &World, account: &str) -> Vec<Value> {
        let stored = (!self.given_up.contains(account)).then(|| shown(STORED.0, STORED.1));
        let made = all_of(world, account, KIND);
        let made = made.iter().map(|found| shown(&found.id, &found.name));
        stored.into_iter().chain(made).collect()
    }

    /// A credential of an account.
    pub(super) fn registry_of(&self, visit: &Visit<'_>, id: &str) -> Result<Value, Refusal> {
        let all = self.registries_of(visit.world, &visit.account);
        all.into_iter()
            .find(|found| found["id"] == id)
            .ok_or_else(missing)
    }

    /// Stores one under a name that no other has.
    pub(super) fn store_registry(&self, visit: &mut Visit<'_>, name: &str) -> Result<Value, Refusal> {
        let all = self.registries_of(visit.world, &visit.account);
        if all.iter().any(|found| found["name"] == name) {
            return Err(Refusal::Bad(
                "a registry credential with this name exists".to_owned(),
            ));
        }
        let id = visit.world.chance.hex(25);
        let resource = visit.world.new_resource(&id, KIND, &visit.account, name);
        visit.world.add_resource(resource, Decimal::ZERO);
        visit.subject = Some(id.clone());
        Ok(shown(&id, name))
    }

    /// Deletes one, unless a pod pulls its image with it. Templates lose it without a message.
    pub(super) fn forget_registry(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<(), Refusal> {
        visit.subject = Some(id.to_owned());
        self.registry_of(visit, id)?;
        let pulls = self.has_pod(visit.world, &visit.account, |order| {
            order.registry.as_deref() == Some(id)
        });
        if pulls {
            return Err(Refusal::Bad(
                "registry credential is in use by a pod and cannot be deleted".to_owned(),
            ));
        }
        if owned(visit.world, &visit.account, KIND, id).is_some() {
            visit.world.end_resource(id);
        } else {
            self.given_up.insert(visit.account.clone());
        }
        for template in self.templates.values_mut() {
            if template.account == visit.account && template.registry.as_deref() == Some(id) {
                template.registry = None;
            }
        }
        Ok(())
    }

    pub(super) fn list_registries(&self, visit: &Visit<'_>) -> Answer {
        let all = self.registries_of(visit.world, &visit.account);
        Answer::json(200, &json!({ "registries": all }))
    }

    pub(super) fn create_registry(&self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let given: CreateRegistry = given(visit.request)?;
        Ok(Answer::json(201, &self.store_registry(visit, &given.name)?))
    }

    pub(super) fn get_registry(&self, visit: &Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        Ok(Answer::json(200, &self.registry_of(visit, id)?))
    }

    pub(super) fn delete_registry(&mut self, visit: &mut Visit<'_>, id: &str) -> Result<Answer, Refusal> {
        self.forget_registry(visit, id)?;
        Ok(Answer::empty(204))
    }
}
