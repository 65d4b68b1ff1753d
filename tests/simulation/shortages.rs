//! What cannot be had, while all else is calm: the Pools and Providers name it.

use kube::ResourceExt;
use serde_json::json;
use skyward_api::{
    Machine, Pool,
    condition::{READY, STALLED, find, reason},
};

use crate::{
    play::Play,
    rules::{read, text},
    time::HOUR,
    world::World,
};

/// Why Pools cannot have all their machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Everything is sold out everywhere.
    Stock,
    /// Providers admit no more.
    Room,
    /// The credentials are another account's.
    Credentials,
    /// The budget is spent.
    Money,
}

impl Play {
    /// Something cannot be had; the Pools and Providers say so.
    pub(crate) fn run_short(&mut self, of: Shortage) {
        self.tell(format!("there is a shortage: {of:?}"));
        self.put_right();
        match of {
            Shortage::Stock => self.sell_out(true),
            Shortage::Room => self.limit(Some(1)),
            Shortage::Credentials => self.other_accounts(),
            Shortage::Money => {
                for name in self.names("pools") {
                    self.change_pool(&name, json!({ "budget": { "maxTotalCost": "0.01" } }));
                }
            }
        }
        self.settle(0, 2 * HOUR, |world| world.unnamed(of));
    }
}

impl World {
    /// What is not as it must be with that shortage.
    fn unnamed(&self, of: Shortage) -> Vec<String> {
        let machines: Vec<Machine> = self
            .server
            .all("machines")
            .iter()
            .map(|object| read(object))
            .collect();
        let pools = self.server.all("pools");
        let wrong = pools.iter().filter_map(|pool| wrong(&read(pool), &machines, of));
        let mut unnamed: Vec<String> = wrong.collect();
        if of == Shortage::Credentials {
            unnamed.extend(self.unnamed_accounts(&machines));
        } else {
            unnamed.extend(self.books());
        }
        unnamed
    }

    /// A Provider whose machines are at another account than its credentials says so.
    fn unnamed_accounts(&self, machines: &[Machine]) -> Vec<String> {
        let mut unnamed = Vec::new();
        for provider in self.server.all("providers") {
            let name = text(&provider, "/metadata/name");
            let account = text(&provider, "/status/account");
            let is_used = machines.iter().any(|machine| machine.spec.provider == name);
            let conditions = self.status_of(name).conditions;
            let why = find(&conditions, READY).map_or("", |ready| ready.reason.as_str());
            if is_used && account != self.account_of(name) && why != reason::ACCOUNT_CHANGED {
                unnamed.push(format!("{name} has machines at {account} and says {why}"));
            }
        }
        unnamed
    }
}

/// What a Pool says, unless it must say that.
fn wrong(pool: &Pool, machines: &[Machine], of: Shortage) -> Option<String> {
    let uid = pool.uid()?;
    let conditions = pool.status.clone().unwrap_or_default().conditions;
    let why = |type_| find(&conditions, type_).map_or("", |condition| condition.reason.as_str());
    let (ready, stalled) = (why(READY), why(STALLED));
    let records = machines
        .iter()
        .filter(|machine| machine.spec.pool_uid == uid)
        .count();
    let wanted = pool.spec.nodes.desired as usize;
    let short = records < wanted;
    // Another Provider may be usable, but not at the place of connected machines.
    let others = pool.spec.candidates.len() > 1 && stalled == reason::NO_AVAILABLE_PROVIDER;
    let good = match of {
        // The last of its failed tries may have failed for another reason.
        Shortage::Stock => {
            let all = [
                reason::ALL_PROVIDERS_FAILED,
                reason::NO_AVAILABLE_PROVIDER,
                reason::PROVISIONING_FAILED,
            ];
            !short || all.contains(&stalled)
        }
        Shortage::Room => !short || stalled == reason::LIMIT_REACHED || others,
        Shortage::Credentials => {
            !short || [reason::PROVIDER_NOT_READY, reason::NO_AVAILABLE_PROVIDER].contains(&ready)
        }
        Shortage::Money => wanted == 0 || (records == 0 && stalled == reason::BUDGET_SPENT),
    };
    let name = pool.name_any();
    (!good).then(|| {
        format!("{name} has {records} of {wanted} machines; it says Ready: {ready}, Stalled: {stalled}")
    })
}
