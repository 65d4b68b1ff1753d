//! The process's client of a cloud, like the real clients, with answers that fail, are lost, come
//! late or are outdated.
//!
//! A cloud promises one thing: it shows the effect of a call at the latest a settle time after the
//! answer was due.

use std::collections::BTreeMap;

use rand::Rng;
use skyward_core::{
    Deletion, ErrorKind, Leftover, MachineRef, Order, PoolScope, ProviderError, ProviderMachine, Scope,
    offer::Market, provider::Idempotency,
};

use super::{
    cloud::{Cloud, NEVER, Rented},
    planted::Fault,
    world::{Crashed, World},
};

/// The client of an account, in the memory of the process.
#[derive(Clone, Debug, Default)]
pub(super) struct Client {
    pub(super) account: String,
    /// Version of the Secret and generation of the Provider that it was made from.
    pub(super) revision: (u32, i64),
    /// Regions that the Provider names.
    pub(super) regions: Vec<String>,
    /// When machines were ordered, by UID of their records.
    recent: BTreeMap<String, i64>,
}

impl Client {
    pub(super) fn new(account: String, revision: (u32, i64), regions: Vec<String>) -> Self {
        Self {
            account,
            revision,
            regions,
            recent: BTreeMap::new(),
        }
    }
}

/// The age of a list that an operator with a bug believes.
const OLD: i64 = 600;

/// What a call meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Luck {
    Good,
    /// It fails before it does anything.
    Fails,
    /// The answer is lost, and the call had no effect.
    LostBefore,
    /// The answer is lost, and the call had its effect.
    LostAfter,
}

impl World {
    fn cloud_of(&self, provider: &str) -> &Cloud {
        let account = &self.process.clients[provider].account;
        &self.clouds[account]
    }

    fn cloud_of_mut(&mut self, provider: &str) -> &mut Cloud {
        let account = self.process.clients[provider].account.clone();
        self.clouds.get_mut(&account).expect("clients are of accounts")
    }

    fn luck(&mut self) -> Luck {
        if !self.chance(self.odds.calls) {
            return Luck::Good;
        }
        self.one_of(&[Luck::Fails, Luck::LostBefore, Luck::LostAfter])
    }

    /// The age of the state that a cloud shows.
    fn lag(&mut self, settle: i64) -> i64 {
        if self.has(Fault::StaleListBelieved) {
            return OLD;
        }
        if settle > 0 && self.odds.lag > 0 && self.random.random_ratio(self.odds.lag, 100) {
            self.random.random_range(0..=settle)
        } else {
            0
        }
    }

    fn refuse<T>(&mut self, operation: &'static str) -> Result<T, ProviderError> {
        let kind = match self.random.random_range(0..3) {
            0 => ErrorKind::Transient,
            1 => ErrorKind::RateLimited(None),
            _ => ErrorKind::RateLimited(Some(std::time::Duration::from_secs(7))),
        };
        Err(ProviderError::new(kind, operation, "not now"))
    }

    /// A call that only looks.
    fn may_look(&mut self, provider: &str, operation: &'static str) -> Result<(), ProviderError> {
        if self.cloud_of(provider).revoked {
            return Err(ProviderError::new(ErrorKind::Credentials, operation, "revoked"));
        }
        match self.luck() {
            Luck::Good => Ok(()),
            _ => self.refuse(operation),
        }
    }

    /// Every machine that a list of these regions shows.
    pub(super) fn list(
        &mut self,
        provider: &str,
        scope: &Scope,
    ) -> Result<Vec<ProviderMachine>, ProviderError> {
        let answer = self.listed(provider, scope);
        if self.has(Fault::UnknownIsEmpty) {
            return Ok(answer.unwrap_or_default());
        }
        answer
    }

    fn listed(&mut self, provider: &str, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        self.may_look(provider, "list")?;
        let (now, lag) = (self.now, self.lag(self.kind_of(provider).settle()));
        let client = &self.process.clients[provider];
        let cloud = &self.clouds[&client.account];
        let asked = |region: &String| {
            !cloud.kind.is_regional() || client.regions.contains(region) || scope.regions.contains(region)
        };
        Ok(cloud
            .rented
            .iter()
            .filter(|machine| asked(&machine.region))
            .filter(|machine| {
                scope
                    .pool_uid
                    .as_ref()
                    .is_none_or(|uid| *uid == machine.mark.pool_uid)
            })
            .filter_map(|machine| shown(cloud, machine, now, lag))
            .collect())
    }

    /// One machine: in the list, and by its id where that is known.
    fn look(&mut self, provider: &str, machine: &MachineRef) -> Option<ProviderMachine> {
        let (now, lag) = (self.now, self.lag(self.kind_of(provider).settle()));
        let cloud = self.cloud_of(provider);
        let is_it = |rented: &&Rented| match &machine.id {
            Some(id) => rented.id == *id,
            None => {
                rented.mark.machine_uid == machine.mark.machine_uid
                    && (!cloud.kind.is_regional() || rented.region == machine.region)
            }
        };
        let mut found = cloud.rented.iter().filter(is_it);
        let listed = found.find_map(|rented| shown(cloud, rented, now, lag));
        if listed.is_none() && machine.id.is_some() && cloud.kind.finds_by_id {
            let mut found = cloud.rented.iter().filter(is_it);
            return found.find_map(|rented| rented.shown(cloud.kind, now));
        }
        listed
    }

    pub(super) fn get(
        &mut self,
        provider: &str,
        machine: &MachineRef,
    ) -> Result<Option<ProviderMachine>, ProviderError> {
        if machine.id.is_none() && self.has(Fault::NotLookedFor) {
            return Ok(None);
        }
        match self.may_look(provider, "look at the machine") {
            Err(_) if self.has(Fault::UnknownIsEmpty) => return Ok(None),
            answer => answer?,
        }
        Ok(self.look(provider, machine))
    }

    /// Orders a machine. The process may die between any two of its calls.
    pub(super) fn order(
        &mut self,
        provider: &str,
        order: &Order,
    ) -> Result<Result<String, ProviderError>, Crashed> {
        const WHAT: &str = "order the machine";
        if let Err(error) = self
            .passes(provider, WHAT)
            .and_then(|()| self.may_look(provider, WHAT))
        {
            return Ok(Err(error));
        }
        let machine = MachineRef {
            id: None,
            mark: order.mark.clone(),
            region: order.region.clone(),
            started: false,
        };
        let kind = self.kind_of(provider);
        let lost = || ProviderError::new(ErrorKind::Indeterminate, WHAT, "the answer was lost");
        let known = if kind.capabilities.idempotency == Idempotency::Token {
            let made = self.cloud_of(provider).rented.iter();
            made.clone()
                .find(|rented| rented.token == order.token && !self.has(Fault::TokenIgnored))
                .map(|rented| rented.id.clone())
        } else if self.has(Fault::NotLookedFor) {
            None
        } else {
            self.look(provider, &machine).map(|found| found.id)
        };
        if let Some(id) = known {
            return Ok(Ok(id));
        }
        // Two orders are never refused in the same second.
        self.now += 1;
        let now = self.now;
        if kind.shares {
            let (pool_uid, region) = (order.mark.pool_uid.clone(), order.region.clone());
            self.cloud_of_mut(provider).share(&pool_uid, &region, now);
            self.change();
            self.boundary()?;
        }
        let spot = order.market == Market::Spot;
        if self
            .cloud_of(provider)
            .sold_out
            .contains(&(order.offer.clone(), spot))
            || self.chance(5)
        {
            return Ok(Err(ProviderError::new(ErrorKind::NoCapacity, WHAT, "sold out")));
        }
        let luck = self.luck();
        match luck {
            Luck::Fails => return Ok(self.refuse(WHAT)),
            Luck::LostBefore => return Ok(Err(lost())),
            Luck::Good | Luck::LostAfter => {}
        }
        // An order whose answer is lost may be carried out later.
        let late = if luck == Luck::LostAfter {
            self.random.random_range(0..=kind.settle() / 2)
        } else {
            0
        };
        let boots = if self.chance(3) {
            NEVER
        } else {
            self.random.random_range(1..20)
        };
        if self.alive_of(&order.mark.machine_uid) > 0 {
            self.rule(false, || format!("{} is ordered twice", order.mark.machine));
        }
        if luck == Luck::LostAfter && self.has(Fault::OrderedAgainAtOnce) {
            self.cloud_of_mut(provider).make(order, now + late, late, boots);
        }
        let id = self.cloud_of_mut(provider).make(order, now + late, late, boots);
        self.change();
        self.tell(|| format!("{id} is made, {late} s late"));
        self.boundary()?;
        if let Some(client) = self.process.clients.get_mut(provider) {
            client.recent.insert(order.mark.machine_uid.clone(), now);
        }
        Ok(if luck == Luck::LostAfter {
            Err(lost())
        } else {
            Ok(id)
        })
    }

    /// Machines of a record that exist or are being made, anywhere.
    pub(super) fn alive_of(&self, machine_uid: &str) -> usize {
        self.clouds
            .values()
            .flat_map(|cloud| cloud.alive(self.now))
            .filter(|machine| machine.mark.machine_uid == machine_uid)
            .count()
    }

    pub(super) fn delete(
        &mut self,
        provider: &str,
        machine: &MachineRef,
    ) -> Result<Result<Deletion, ProviderError>, Crashed> {
        match self.passes(provider, "delete the machine") {
            Ok(()) => self.delete_decided(provider, machine),
            Err(error) => Ok(Err(error)),
        }
    }

    /// A deletion by a person's decision, which passes the gate.
    pub(super) fn delete_decided(
        &mut self,
        provider: &str,
        machine: &MachineRef,
    ) -> Result<Result<Deletion, ProviderError>, Crashed> {
        const WHAT: &str = "delete the machine";
        if self.has(Fault::NothingEnded) {
            return Ok(Ok(Deletion::Gone));
        }
        if let Err(error) = self.may_look(provider, WHAT) {
            return Ok(Err(error));
        }
        let now = self.now;
        let kind = self.kind_of(provider);
        let Some(found) = self.look(provider, machine) else {
            let ordered = self.process.clients[provider]
                .recent
                .get(&machine.mark.machine_uid);
            let is_recent = kind.is_regional() && ordered.is_some_and(|at| now < *at + kind.settle());
            return Ok(Ok(if is_recent {
                Deletion::InProgress
            } else {
                Deletion::Gone
            }));
        };
        if found.mark.machine_uid != machine.mark.machine_uid {
            return Ok(Ok(Deletion::Gone));
        }
        let luck = self.luck();
        match luck {
            Luck::Fails => return Ok(self.refuse(WHAT)),
            Luck::LostBefore | Luck::LostAfter | Luck::Good => {}
        }
        if luck != Luck::LostBefore {
            let takes = self.random.random_range(1..15);
            self.may_be_ended(provider, &found.id);
            self.cloud_of_mut(provider).end(&found.id, now, takes);
            self.change();
            self.tell(|| format!("the end of {} is ordered", found.id));
            self.boundary()?;
        }
        Ok(if luck == Luck::Good {
            Ok(Deletion::gone_if(self.has(Fault::GoneTooSoon)))
        } else {
            Err(ProviderError::new(
                ErrorKind::Indeterminate,
                WHAT,
                "the answer was lost",
            ))
        })
    }

    pub(super) fn leftovers(
        &mut self,
        provider: &str,
        regions: &[String],
    ) -> Result<Vec<Leftover>, ProviderError> {
        self.may_look(provider, "list what was left behind")?;
        let settle = self.kind_of(provider).settle();
        let at = self.now - self.lag(settle);
        let client = &self.process.clients[provider];
        let cloud = &self.clouds[&client.account];
        let asked = |region: &String| {
            !cloud.kind.is_regional() || client.regions.contains(region) || regions.contains(region)
        };
        let mut found = cloud.leftovers(at);
        found.retain(|leftover| asked(&leftover.region));
        Ok(found)
    }

    /// Returns the shared resources of a Pool; only a look that finds none is proof.
    pub(super) fn release(&mut self, provider: &str, scope: &PoolScope) -> Result<Deletion, ProviderError> {
        if self.has(Fault::NothingReturned) {
            return Ok(Deletion::Gone);
        }
        self.passes(provider, "return what the machines shared")?;
        let mut found = self.leftovers(provider, &scope.regions)?;
        found.retain(|leftover| leftover.pool_uid == scope.pool_uid);
        let now = self.now;
        let cloud = self.cloud_of_mut(provider);
        for leftover in &found {
            let is_used = cloud.rented.iter().any(|machine| {
                machine.mark.pool_uid == leftover.pool_uid
                    && machine.region == leftover.region
                    && machine.exists(now)
            });
            for shared in cloud.shared.iter_mut().filter(|shared| {
                !is_used && shared.pool_uid == leftover.pool_uid && shared.region == leftover.region
            }) {
                shared.returned = shared.returned.min(now);
            }
        }
        if !found.is_empty() {
            self.change();
        }
        Ok(if found.is_empty() {
            Deletion::Gone
        } else {
            Deletion::InProgress
        })
    }
}

/// A machine as a list shows it that is that old.
fn shown(cloud: &Cloud, machine: &Rented, now: i64, lag: i64) -> Option<ProviderMachine> {
    let lag = if lag == OLD {
        lag
    } else {
        lag.min(cloud.kind.settle() - machine.late)
    };
    machine.shown(cloud.kind, now - lag)
}
