//! Answers for tests: what costs money now, what everything cost, and what was made twice.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::Serialize;

use crate::core::machine::{Machine, MachineId};
use crate::core::resource::Resource;
use crate::core::world::World;

/// Answers about the money of one cloud; it only reads.
pub struct Meter<'a>(&'a World);

/// What one machine or resource has cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Its id.
    pub id: String,
    /// `machine`, or the kind of the resource.
    pub kind: String,
    /// The name that the client gave it.
    pub name: String,
    /// The amount.
    pub amount: Decimal,
}

impl<'a> Meter<'a> {
    /// A meter of a world.
    pub fn new(world: &'a World) -> Self {
        Self(world)
    }

    /// The machines that cost money at this moment, of all accounts.
    pub fn billed_now(&self) -> Vec<&'a Machine> {
        self.0
            .machines
            .values()
            .filter(|machine| !machine.tab.rate().is_zero())
            .collect()
    }

    /// What an hour costs now, machines and all else.
    pub fn hourly(&self, account: &str) -> Decimal {
        let machines = self.0.machines_of(account).map(|machine| machine.tab.rate());
        let resources = self
            .0
            .resources
            .values()
            .filter(|resource| resource.account == account)
            .map(|resource| resource.tab.rate());
        machines.chain(resources).sum()
    }

    /// What an account has cost until now.
    pub fn bill(&self, account: &str) -> Decimal {
        self.lines(account).into_iter().map(|line| line.amount).sum()
    }

    /// What an account cost in a period.
    pub fn bill_between(&self, account: &str, from: Timestamp, to: Timestamp) -> Decimal {
        let billing = self.0.billing();
        let machines = self
            .0
            .machines_of(account)
            .map(|machine| machine.tab.between(from, to, billing));
        let resources = self
            .0
            .resources
            .values()
            .filter(|resource| resource.account == account)
            .map(|resource| resource.tab.between(from, to, billing));
        machines.chain(resources).sum()
    }

    /// What one machine has cost until now.
    pub fn bill_of(&self, machine: &str) -> Option<Decimal> {
        let machine = self.0.machines.get(machine)?;
        Some(machine.tab.until(self.0.now(), self.0.billing()))
    }

    /// The bill of an account, line by line; what cost nothing is left out.
    pub fn lines(&self, account: &str) -> Vec<Line> {
        let (now, billing) = (self.0.now(), self.0.billing());
        let machines = self.0.machines_of(account).map(|machine| Line {
            id: machine.id.clone(),
            kind: "machine".to_owned(),
            name: machine.mark.name.clone(),
            amount: machine.tab.until(now, billing),
        });
        let resources = self
            .0
            .resources
            .values()
            .filter(|resource| resource.account == account)
            .map(|resource| Line {
                id: resource.id.clone(),
                kind: resource.kind.to_owned(),
                name: resource.name.clone(),
                amount: resource.tab.until(now, billing),
            });
        machines
            .chain(resources)
            .filter(|line| !line.amount.is_zero())
            .collect()
    }

    /// Machines that cost money now and carry the same mark; `part` says what of the mark
    /// counts (`name`, `description`, `tag:KEY`, `env:KEY`).
    pub fn doubled(&self, part: &str) -> BTreeMap<String, Vec<MachineId>> {
        let mut by_mark: BTreeMap<String, Vec<MachineId>> = BTreeMap::new();
        for machine in self.billed_now() {
            if let Some(mark) = machine.mark.part(part) {
                by_mark
                    .entry(format!("{}/{mark}", machine.account))
                    .or_default()
                    .push(machine.id.clone());
            }
        }
        by_mark.retain(|_, machines| machines.len() > 1);
        by_mark
    }

    /// All resources of an account besides machines: what a client made and did not delete.
    pub fn leftovers(&self, account: &str) -> Vec<&'a Resource> {
        self.0
            .resources
            .values()
            .filter(|resource| resource.account == account && resource.exists())
            .collect()
    }
}
