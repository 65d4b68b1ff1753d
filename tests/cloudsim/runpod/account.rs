//! The account's SSH keys and registry credentials.

use serde_json::json;

use super::Runpod;
use super::wire::{Keys, given};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;

/// The one registry credential there is.
pub(super) const REGISTRY: (&str, &str) = ("reg-docker-hub", "docker hub");

pub(super) fn registries() -> Answer {
    Answer::json(
        200,
        &json!({"registries": [{"id": REGISTRY.0, "name": REGISTRY.1}]}),
    )
}

pub(super) fn registry(id: &str) -> Result<Answer, Refusal> {
    if id != REGISTRY.0 {
        return Err(Refusal::NotFound("registry not found".to_owned()));
    }
    Ok(Answer::json(200, &json!({"id": REGISTRY.0, "name": REGISTRY.1})))
}

impl Runpod {
    /// The keys of an account.
    pub(super) fn keys_of(&self, account: &str) -> Vec<String> {
        self.ssh_keys.get(account).cloned().unwrap_or_default()
    }

    pub(super) fn get_keys(&self, visit: &Visit<'_>) -> Answer {
        Answer::json(200, &json!({"keys": self.keys_of(&visit.account)}))
    }

    pub(super) fn replace_keys(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let Keys { keys } = given(visit.request)?;
        self.ssh_keys.insert(visit.account.clone(), keys);
        Ok(self.get_keys(visit))
    }
}
