//! What a client can leave behind besides machines: keys, scripts, groups, templates, volumes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::Serialize;
use serde_json::Value;

use crate::core::account::AccountId;
use crate::core::billing::Tab;
use crate::core::world::World;

/// Something in an account that is no machine.
#[derive(Clone, Debug, Serialize)]
pub struct Resource {
    /// Its id.
    pub id: String,
    /// What it is: `ssh-key`, `script`, `security-group`, `launch-template`, `volume`, …
    pub kind: &'static str,
    /// The account that has it.
    pub account: AccountId,
    /// Its name.
    pub name: String,
    /// Where it is ("" when it is nowhere in particular).
    pub region: String,
    /// When it was made.
    pub created: Timestamp,
    /// Its tags.
    pub tags: BTreeMap<String, String>,
    /// All other fields, with the cloud's own names.
    pub detail: Value,
    /// What it has cost.
    pub tab: Tab,
    /// When it was deleted; the record is kept for the bill.
    pub ended: Option<Timestamp>,
}

impl Resource {
    /// Whether it still exists.
    pub fn exists(&self) -> bool {
        self.ended.is_none()
    }
}

impl World {
    /// The existing resources of an account and kind.
    pub fn resources_of<'a>(&'a self, account: &'a str, kind: &'a str) -> impl Iterator<Item = &'a Resource> {
        self.resources
            .values()
            .filter(move |resource| resource.account == account && resource.kind == kind && resource.exists())
    }

    /// Adds a resource that costs `price` an hour.
    pub fn add_resource(&mut self, mut resource: Resource, price: Decimal) {
        resource.tab.charge(self.now(), price);
        self.resources.insert(resource.id.clone(), resource);
    }

    /// A new resource without tags and details, not yet added to the world.
    pub fn new_resource(&self, id: &str, kind: &'static str, account: &str, name: &str) -> Resource {
        Resource {
            id: id.to_owned(),
            kind,
            account: account.to_owned(),
            name: name.to_owned(),
            region: String::new(),
            created: self.now(),
            tags: BTreeMap::new(),
            detail: serde_json::Value::Null,
            tab: Tab::default(),
            ended: None,
        }
    }

    /// Changes what an hour of a resource costs.
    pub fn charge_resource(&mut self, id: &str, price: Decimal) {
        let now = self.now();
        if let Some(resource) = self.resources.get_mut(id) {
            resource.tab.charge(now, price);
        }
    }

    /// Ends a resource; false when it does not exist.
    pub fn end_resource(&mut self, id: &str) -> bool {
        let now = self.now();
        match self.resources.get_mut(id).filter(|resource| resource.exists()) {
            Some(resource) => {
                resource.tab.charge(now, Decimal::ZERO);
                resource.ended = Some(now);
                true
            }
            None => false,
        }
    }
}
