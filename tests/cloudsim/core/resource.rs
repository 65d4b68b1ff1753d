//! What a client can leave behind besides machines: keys, scripts, groups, templates, volumes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use crate::core::account::AccountId;
use crate::core::billing::Tab;

/// Something in an account that is no machine.
#[derive(Clone, Debug, Serialize)]
pub struct Resource {
    /// Its id.
    pub id: String,
    /// What it is: `ssh-key`, `script`, `security-group`, `launch-template`, `volume`, …
    pub kind: &'static str,
    /// Whose it is.
    pub account: AccountId,
    /// Its name.
    pub name: String,
    /// Where it is ("" when it is nowhere in particular).
    pub region: String,
    /// When it was made.
    pub created: Timestamp,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// All else, in the cloud's own words.
    pub detail: Value,
    /// What it has cost.
    pub tab: Tab,
    /// When it went; it is kept for the bill.
    pub ended: Option<Timestamp>,
}

impl Resource {
    /// Whether it still exists.
    pub fn exists(&self) -> bool {
        self.ended.is_none()
    }
}
