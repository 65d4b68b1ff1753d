//! A rented machine, as the cloud knows it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::backend::Boot;
use crate::core::account::AccountId;
use crate::core::billing::Tab;
use crate::core::market::Market;

/// The id of a machine.
pub type MachineId = String;

/// The phase of a machine. Each cloud has its own names for these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Ordered, not running yet.
    Pending,
    /// Running.
    Running,
    /// Stopped; it exists and may come back.
    Halted,
    /// It will never run (again), and still exists.
    Failed,
    /// Its end was ordered.
    Ending,
    /// It exists no more.
    Ended,
}

/// Why a machine is in its phase.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// A request at the API.
    Asked,
    /// It halted itself from within.
    Itself,
    /// The cloud reclaimed the spot machine.
    Reclaimed,
    /// Hardware or host was lost.
    Died,
    /// It was accepted, and then there was no room for it.
    NoCapacity,
    /// Its installation failed, with what the cloud says about it.
    Installation(String),
}

/// How the boot of a machine goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootPlan {
    /// How long it takes.
    pub takes: SignedDuration,
    /// How it ends.
    pub ends: BootEnd,
}

/// How a boot ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BootEnd {
    /// The machine runs.
    Runs,
    /// It boots for ever.
    Never,
    /// It fails.
    Fails(Cause),
}

impl BootPlan {
    /// A boot that succeeds after some seconds.
    pub fn takes(seconds: i64) -> Self {
        Self {
            takes: SignedDuration::from_secs(seconds),
            ends: BootEnd::Runs,
        }
    }
}

/// The marks by which a client recognises its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Mark {
    /// Name, host name or label.
    pub name: String,
    /// Free text.
    pub description: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Environment variables, where the API shows them.
    pub env: BTreeMap<String, String>,
}

impl Mark {
    /// The mark of a cloud whose tags are texts: before the first colon or equals sign is the key.
    pub fn of_texts<'a>(name: &str, tags: impl IntoIterator<Item = &'a String>) -> Self {
        let split = |tag: &String| {
            let (key, value) = tag.split_once([':', '=']).unwrap_or((tag, ""));
            (key.to_owned(), value.to_owned())
        };
        Self {
            name: name.to_owned(),
            tags: tags.into_iter().map(split).collect(),
            ..Self::default()
        }
    }

    /// One part of the mark: `name`, `description`, `tag:KEY` or `env:KEY`.
    pub fn part(&self, which: &str) -> Option<String> {
        let found = match (which.split_once(':'), which) {
            (Some(("tag", key)), _) => self.tags.get(key).cloned(),
            (Some(("env", key)), _) => self.env.get(key).cloned(),
            (None, "description") => Some(self.description.clone()),
            (None, "name") => Some(self.name.clone()),
            _ => None,
        };
        found.filter(|text| !text.is_empty())
    }
}

/// The SSH endpoint of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Endpoint {
    /// The address.
    pub address: String,
    /// The port.
    pub port: u16,
}

/// The properties of a machine that a cloud makes.
#[derive(Clone, Debug)]
pub struct NewMachine {
    /// Its id.
    pub id: MachineId,
    /// The account that has it.
    pub account: AccountId,
    /// The mark that the client gave it.
    pub mark: Mark,
    /// What was rented.
    pub instance_type: String,
    /// Where.
    pub region: String,
    /// Its market.
    pub market: Market,
    /// The price of an hour, frozen now.
    pub price: Decimal,
    /// The price of the same on demand.
    pub on_demand_price: Decimal,
    /// The price of an hour of its disk while it is halted.
    pub disk_price: Decimal,
    /// How its boot goes.
    pub plan: BootPlan,
    /// The image and settings that it boots with.
    pub boot: Boot,
    /// Fields that only this cloud has.
    pub detail: Value,
}

/// A machine.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// Its id.
    pub id: MachineId,
    /// The account that has it.
    pub account: AccountId,
    /// The mark that the client gave it.
    pub mark: Mark,
    /// What was rented.
    pub instance_type: String,
    /// Where.
    pub region: String,
    /// Its market.
    pub market: Market,
    /// The price of an hour.
    pub price: Decimal,
    /// The price of the same on demand.
    pub on_demand_price: Decimal,
    /// The price of an hour of its disk while it is halted.
    pub disk_price: Decimal,
    /// Its phase.
    pub phase: Phase,
    /// Why.
    pub cause: Option<Cause>,
    /// Its phases with the time each began.
    pub history: Vec<(Timestamp, Phase)>,
    /// The time of its reclaim, once that is decided.
    pub reclaim_at: Option<Timestamp>,
    /// When the guest was told of that.
    pub noticed: Option<Timestamp>,
    /// Where SSH answers, once its back end says so.
    pub endpoint: Option<Endpoint>,
    /// Whether it counts against the stock of its shelf.
    pub holds_stock: bool,
    /// Whether the scripted boot time is over.
    pub booted: bool,
    /// The image and settings that it boots with.
    pub boot: Boot,
    /// Fields that only this cloud has.
    pub detail: Value,
    /// What it has cost.
    pub tab: Tab,
}

impl Machine {
    /// When it was ordered.
    pub fn created(&self) -> Timestamp {
        self.history.first().map_or(Timestamp::UNIX_EPOCH, |(at, _)| *at)
    }

    /// When it last came into a phase.
    pub fn since(&self, phase: Phase) -> Option<Timestamp> {
        self.history
            .iter()
            .rev()
            .find(|(_, past)| *past == phase)
            .map(|(at, _)| *at)
    }

    /// The phase at a moment; `None` before it was ordered.
    pub fn phase_at(&self, moment: Timestamp) -> Option<Phase> {
        self.history
            .iter()
            .rev()
            .find(|(at, _)| *at <= moment)
            .map(|(_, phase)| *phase)
    }

    /// Whether it exists: all but ended.
    pub fn exists(&self) -> bool {
        self.phase != Phase::Ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_are_texts_are_split_at_their_first_colon_or_equals_sign() {
        let tags = ["pool:a=b", "job=c:d", "plain"].map(str::to_owned);
        let mark = Mark::of_texts("n", &tags);
        assert_eq!(mark.part("tag:pool").as_deref(), Some("a=b"));
        assert_eq!(mark.part("tag:job").as_deref(), Some("c:d"));
        assert!(mark.tags.contains_key("plain"));
    }

    #[test]
    fn a_part_of_a_mark_is_found_by_its_kind_and_an_empty_one_is_none() {
        let mark = Mark {
            name: "n".to_owned(),
            tags: BTreeMap::from([("pool".to_owned(), "p".to_owned())]),
            ..Mark::default()
        };
        assert_eq!(mark.part("tag:pool").as_deref(), Some("p"));
        assert_eq!(mark.part("name").as_deref(), Some("n"));
        assert_eq!(mark.part("description"), None);
        assert_eq!(mark.part("env:pool"), None);
    }
}
