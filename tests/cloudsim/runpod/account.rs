//! The account's SSH keys.

use serde_json::json;

use super::Runpod;
use super::wire::{Keys, given};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;

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
