//! The provider contract over a cloud without idempotency tokens: its machines are found by
//! their marks, and each order looks for its own before it is sent (P2).
//!
//! A cloud's folder gives the calls ([`Service`]) and reads its list of machines ([`Listed`]). The common
//! part is here: the owners of machines, the look before an order and before a deletion, deadlines (P8),
//! and the return of shared resources ([`Shared`]).

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::future::try_join_all;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skyward_core::{
    Accepted, Capabilities, Deletion, ErrorKind, Leftover, MachineRef, Mark, Offer, Order, PoolScope,
    Provider, ProviderError, ProviderMachine, ProviderPhase, Scope, Usd, error::ErrorClass,
    machine::FailureKind, order::Owner, provider::AccountFact,
};
use tokio::{sync::Mutex, time::Instant};

use crate::{
    Cache,
    http::{Batched, operation},
    kind::overridden,
    owners::Owners,
    shared::Shared,
};

/// Greatest age of the prices that an order is compared with.
pub const PRICE_AGE: Duration = Duration::from_mins(5);
/// Most new machines that are remembered: more than an account can order while lists lag.
const ORDERED: usize = 4096;
/// How long a machine that the cloud may take back is remembered: much longer than between two looks at it.
const REMEMBERED: Duration = Duration::from_hours(24);

/// A machine in a cloud's list.
pub trait Listed: Clone + Send + Sync + 'static {
    /// The cloud's id of it.
    fn id(&self) -> String;
    /// Its mark, if it is ours.
    fn mark(&self) -> Option<Mark>;
    /// Whether it no longer exists; lists may show it for a while.
    fn gone(&self) -> bool;

    /// Whether it answers no order as it is: what an order of several calls left that did not come to its
    /// end, or what is left of a machine, such as a disk. Until an id is on record the order goes again,
    /// and [`Service::resume`] finds it. It is ended as a machine is.
    fn unfinished(&self) -> bool {
        false
    }

    /// Whether it lacks what the cloud tells of a machine that is asked for by its id, as entries of some
    /// lists do.
    fn is_brief(&self) -> bool {
        false
    }
}

/// The calls of one account at such a cloud. Calls that change something are made only
/// after a look.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Settings of the Provider; a Pool may override some of them.
    type Settings: JsonSchema + DeserializeOwned + Send + Sync;
    /// A machine in the cloud's list.
    type Machine: Listed;
    /// What the cloud can do.
    const CAPABILITIES: &'static Capabilities;
    /// Longest time of one operation of the contract.
    const OPERATION: Duration = Duration::from_secs(45);
    /// Whether a machine that the cloud took back is found nowhere any more. Then what was seen of it before has to tell
    /// that the cloud might take it back.
    const DROPS_TAKEN: bool = false;

    /// Proves the credentials; answers with the account's id, where the cloud tells one.
    async fn account(&self) -> Result<Option<String>, ProviderError> {
        self.machines().await?;
        Ok(None)
    }

    /// What the API tells of the account besides its id.
    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        Ok(Vec::new())
    }

    /// Everything that can be rented now.
    async fn offers(&self) -> Result<Vec<Offer>, ProviderError>;

    /// Every machine of the account, to the last page.
    async fn machines(&self) -> Result<Vec<Self::Machine>, ProviderError>;

    /// One of them, which the list may not show yet.
    async fn machine(&self, id: &str) -> Result<Option<Self::Machine>, ProviderError>;

    /// The machine as the contract has it; `None` when it is not ours.
    fn seen(&self, machine: &Self::Machine) -> Option<ProviderMachine>;

    /// Orders a machine that is certainly not there yet; answers with its id. An error of another kind than
    /// Indeterminate and Outage means that there is none: the calls of an order that follow the one that makes the machine
    /// belong into [`Service::start`].
    async fn order(&self, order: &Order, settings: &Self::Settings) -> Result<String, ProviderError>;

    /// Sends the calls of an order that follow the one that made this machine. Its errors never mean that there is
    /// no machine.
    async fn start(&self, _id: &str, _order: &Order) -> Result<(), ProviderError> {
        Ok(())
    }

    /// Sends what is left of an order of several calls, of which a crash or a failure left this machine.
    /// Answers with its id; `None` where it was no machine but a part of one that is gone, and is gone now too.
    async fn resume(&self, machine: &Self::Machine, _order: &Order) -> Result<Option<String>, ProviderError> {
        // Each look at the machine tells how far that is.
        let _ = self.finish(machine).await;
        Ok(Some(machine.id()))
    }

    /// Finishes an order that a crash or a lost answer interrupted, such as joining a network.
    /// Answers with the machine's phase until that is done. Not called for a machine that took runs
    /// once: a new client does not know what was done, and its verdict would end work.
    async fn finish(&self, _machine: &Self::Machine) -> Option<ProviderPhase> {
        None
    }

    /// Orders the end of a machine that exists and is ours. An error of kind NotFound means
    /// that it is gone.
    async fn end(&self, machine: &Self::Machine) -> Result<Deletion, ProviderError>;

    /// Whether the cloud took this machine back if it is gone, so that it is still reported.
    fn taken_back(&self, _machine: &Self::Machine) -> bool {
        false
    }

    /// Stores of the account in which Pools have their keys and scripts.
    fn stores(&self) -> Vec<&Shared> {
        Vec::new()
    }

    /// The keys that say whose machines are, where names are short: that of a Pool stays while one of its machines is
    /// there.
    fn owners(&self) -> Option<&Owners> {
        None
    }

    /// Other resources that Pools of an installation share.
    async fn shared(&self, _cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        Ok(Vec::new())
    }

    /// Returns one of these resources.
    async fn give_back(&self, _thing: &Leftover) -> Result<(), ProviderError> {
        Ok(())
    }
}

/// The machines whose end was ordered: some clouds show them as they show machines that they take back. Lists do
/// not decide when one is forgotten: they may lag, and a machine is still shown by its id when they have
/// dropped it.
pub struct Ended(Cache<String, ()>);

impl Default for Ended {
    fn default() -> Self {
        // More than an account can order in that time.
        Self(Cache::new(Duration::from_hours(1), 1 << 16))
    }
}

impl Ended {
    /// The end of this machine is ordered, perhaps again.
    pub fn add(&self, machine: &impl Listed) {
        self.0.insert(machine.id(), ());
    }

    /// Whether the end of this machine was ordered lately.
    pub fn has(&self, machine: &impl Listed) -> bool {
        self.0.known(&machine.id()).is_some()
    }
}

/// How long what was in a shared resource may keep it from being removed after it is gone.
const LEAVES: Duration = Duration::from_mins(2);

/// Shared resources that a cloud does not remove for a while after everything in them is gone, by their ids, and
/// since when it does not.
pub struct Leaving(Cache<String, Instant>);

impl Default for Leaving {
    fn default() -> Self {
        Self(Cache::new(Duration::from_hours(1), ORDERED))
    }
}

impl Leaving {
    /// The result of a removal: an error that passes is none at first, since the next look tells. One that lasts is
    /// told, for something else may be in it.
    pub fn judge(&self, id: &str, removed: Result<(), ProviderError>) -> Result<(), ProviderError> {
        let id = id.to_owned();
        match removed {
            Err(error) if error.kind == ErrorKind::Transient => match self.0.known(&id) {
                Some(since) if since.elapsed() >= LEAVES => Err(error),
                Some(_) => Ok(()),
                None => {
                    self.0.insert(id, Instant::now());
                    Ok(())
                }
            },
            removed => removed,
        }
    }
}

/// The provider over a service.
pub(crate) fn provider<S: Service>(service: S, settings: Value, identity: String) -> Arc<dyn Provider> {
    Arc::new(LookUp {
        service,
        settings,
        identity,
        machines: Batched::default(),
        ordered: Cache::new(S::CAPABILITIES.settle_time, ORDERED),
        seen: Cache::new(REMEMBERED, ORDERED),
    })
}

struct LookUp<S: Service> {
    service: S,
    /// The Provider's, for the overrides of Pools.
    settings: Value,
    /// Stands for the account's id where the cloud tells none.
    identity: String,
    machines: Batched<Vec<S::Machine>>,
    /// Ids of new machines by the UIDs of their Machines, for as long as a list may lack them.
    ordered: Cache<String, String>,
    /// Machines that the cloud may take back and then drops, as they were seen last, by their ids.
    seen: Cache<String, ProviderMachine>,
}

/// The result of a look for one machine.
enum Look<M> {
    /// It.
    Found(M),
    /// Nothing.
    Nothing,
    /// A machine with its id and another mark.
    Foreign,
}

impl<S: Service> LookUp<S> {
    async fn machines(&self) -> Result<Arc<Vec<S::Machine>>, ProviderError> {
        self.machines
            .fresh(S::OPERATION, || self.service.machines())
            .await
    }

    /// Looks for a machine, also one that is gone. A machine that the list lacks is looked up by
    /// its id, where that is known: lists may lag, leave out the mark, or be brief.
    async fn look(&self, machine: &MachineRef) -> Result<Look<S::Machine>, ProviderError> {
        let machines = self.machines().await?;
        self.look_among(&machines, machine).await
    }

    async fn look_among(
        &self,
        machines: &[S::Machine],
        machine: &MachineRef,
    ) -> Result<Look<S::Machine>, ProviderError> {
        let ours = |found: &S::Machine| found.mark().is_some_and(|mark| mark.is(&machine.mark));
        if let Some(found) = self.just_ordered(machines, machine).await? {
            return Ok(Look::Found(found));
        }
        let Some(id) = &machine.id else {
            // A machine that is gone must not hide an existing one.
            let mut all: Vec<_> = machines.iter().filter(|found| ours(found)).collect();
            all.sort_by_key(|found| found.gone());
            let first = all.first().copied().cloned();
            return Ok(first.map_or(Look::Nothing, Look::Found));
        };
        let listed = machines.iter().find(|found| found.id() == *id).cloned();
        let found = match listed {
            Some(found) if !is_nobodys(&found) && !found.is_brief() => Some(found),
            listed => self.service.machine(id).await?.or(listed),
        };
        let Some(found) = found else {
            return Ok(Look::Nothing);
        };
        match machine.mark.owner_of(found.mark().as_ref()) {
            Owner::Ours => Ok(Look::Found(found)),
            Owner::Another | Owner::Nobody if found.gone() => Ok(Look::Nothing),
            Owner::Another => Ok(Look::Foreign),
            Owner::Nobody => Err(ProviderError::nobodys(S::CAPABILITIES.marking, id)),
        }
    }

    /// The machine without an id on record that this process ordered a moment ago and no list shows yet. Its order
    /// may have failed after it was made, so that only its id is left of it.
    async fn just_ordered(
        &self,
        machines: &[S::Machine],
        machine: &MachineRef,
    ) -> Result<Option<S::Machine>, ProviderError> {
        let id = match &machine.id {
            None => self.ordered.known(&machine.mark.machine_uid),
            Some(_) => None,
        };
        let Some(id) = id.filter(|id| machines.iter().all(|found| found.id() != **id)) else {
            return Ok(None);
        };
        let Some(found) = self.service.machine(&id).await?.filter(|found| !found.gone()) else {
            return Ok(None);
        };
        match machine.mark.owner_of(found.mark().as_ref()) {
            Owner::Ours => Ok(Some(found)),
            Owner::Another => Ok(None),
            Owner::Nobody => Err(ProviderError::nobodys(S::CAPABILITIES.marking, &id)),
        }
    }

    async fn order(&self, order: &Order) -> Result<Accepted, ProviderError> {
        let settings: S::Settings = overridden(S::CAPABILITIES.kind, &self.settings, &order.overrides)?;
        // A machine that is gone does not fulfil an order, as after a restore of the cluster.
        if let Look::Found(found) = self.look(&MachineRef::of(order)).await?
            && !found.gone()
            && let Some(id) = self.service.resume(&found, order).await.map_err(exists)?
        {
            return Ok(Accepted { id });
        }
        let uid = &order.mark.machine_uid;
        if let Some(id) = self.ordered.known(uid) {
            let what = format!("{id} was ordered a moment ago, and the cloud does not show it yet");
            return Err(ProviderError::new(
                ErrorKind::Indeterminate,
                "look at the machine",
                what,
            ));
        }
        let id = self.service.order(order, &settings).await?;
        self.ordered.insert(uid.clone(), id.clone());
        self.service.start(&id, order).await.map_err(exists)?;
        Ok(Accepted { id })
    }

    async fn end(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let machines = self.machines().await?;
        let found = match self.look_among(&machines, machine).await? {
            // A part of it that is still there, such as a disk, has an id of its own. A second machine with
            // this mark is left to the sweep, which looks twice before it ends anything.
            Look::Nothing if machine.id.is_some() => {
                let mut parts = machines
                    .iter()
                    .filter(|found| found.unfinished() && !found.gone());
                let part = parts.find(|part| part.mark().is_some_and(|mark| mark.is(&machine.mark)));
                part.cloned().map_or(Look::Nothing, Look::Found)
            }
            found => found,
        };
        let id = match &found {
            Look::Found(found) => Some(found.id()),
            Look::Nothing | Look::Foreign => machine.id.clone(),
        };
        // What is gone from now on was ended.
        self.seen.forget(|seen| Some(seen) == id.as_ref());
        let ended = match found {
            Look::Found(found) if !found.gone() => or_gone(self.service.end(&found).await),
            Look::Foreign => Ok(Deletion::Foreign),
            Look::Found(_) | Look::Nothing => Ok(Deletion::Gone),
        };
        if matches!(ended, Ok(Deletion::Gone)) {
            self.ordered.forget(|uid| *uid == machine.mark.machine_uid);
        }
        ended
    }

    /// The machine as the contract has it, remembered where the cloud may take it back and then drops it.
    fn seen(&self, found: &S::Machine) -> Option<ProviderMachine> {
        let seen = self.service.seen(found)?;
        if S::DROPS_TAKEN && !found.gone() && self.service.taken_back(found) {
            self.seen.insert(seen.id.clone(), seen.clone());
        }
        Some(seen)
    }

    /// A machine that is found nowhere any more, where the cloud took it back.
    fn dropped(&self, machine: &MachineRef) -> Option<ProviderMachine> {
        let seen = self.seen.known(machine.id.as_ref()?)?;
        let taken = || ProviderMachine {
            phase: ProviderPhase::failed(
                FailureKind::Reclaimed,
                "the cloud took the spot machine back, and shows it no more",
            ),
            ..(*seen).clone()
        };
        seen.mark.is(&machine.mark).then(taken)
    }

    async fn left(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        let owners = self.service.owners().map(Owners::keys);
        let stores = self.service.stores().into_iter().chain(owners);
        let stored = try_join_all(stores.map(|store| store.left(&scope.cluster)));
        let (stored, other) = tokio::try_join!(stored, self.service.shared(&scope.cluster))?;
        let mut left: Vec<Leftover> = stored.into_iter().flatten().chain(other).collect();
        left.retain(|left| scope.holds(&scope.cluster, &left.pool_uid));
        left.sort();
        Ok(left)
    }

    async fn give_back(&self, thing: &Leftover) -> Result<(), ProviderError> {
        let owners = self.service.owners().map(Owners::keys);
        if let Some(keys) = owners.filter(|keys| keys.kind() == thing.kind) {
            let machines = self.machines().await?;
            let is_owned = |machine: &S::Machine| {
                let mark = machine.mark().filter(|_| !machine.gone());
                mark.is_some_and(|mark| mark.pool_uid == thing.pool_uid)
            };
            // Without it nobody would know whose the machine is.
            return if machines.iter().any(is_owned) {
                Ok(())
            } else {
                keys.give_back(&thing.id).await
            };
        }
        let stores = self.service.stores();
        match stores.iter().find(|store| store.kind() == thing.kind) {
            Some(store) => store.give_back(&thing.id).await,
            None => self.service.give_back(thing).await,
        }
    }
}

/// Whether a machine exists and carries no mark.
fn is_nobodys(machine: &impl Listed) -> bool {
    machine.mark().is_none() && !machine.gone()
}

/// The error of a call for a machine that was made, or of which nobody knows whether it was: an error that would mean to
/// order again at once says that the order may have had its effect. The others are no reason to order again, or say
/// that this process does not lead.
pub fn exists(mut error: ProviderError) -> ProviderError {
    let orders_again = matches!(error.kind.class(), ErrorClass::Retryable | ErrorClass::Signal);
    if orders_again && error.kind != ErrorKind::NotLeading {
        error.kind = ErrorKind::Indeterminate;
    }
    error
}

/// The error of an end that the cloud refuses as it is now: what is in the machine or the resource, or done to it,
/// may pass.
pub fn for_now(mut error: ProviderError) -> ProviderError {
    if matches!(error.kind, ErrorKind::InvalidOrder | ErrorKind::AlreadyExists) {
        error.kind = ErrorKind::Transient;
    }
    error
}

/// What became of an end where the answer to it proves nothing: the cloud may show a machine that it does not find, or
/// may not know it yet. Only a look that does not find it is proof.
pub fn until_unseen(asked: Result<(), ProviderError>) -> Result<Deletion, ProviderError> {
    match asked {
        Err(error) if error.kind != ErrorKind::NotFound => Err(error),
        _ => Ok(Deletion::InProgress),
    }
}

/// A machine that is not found is gone.
fn or_gone(ended: Result<Deletion, ProviderError>) -> Result<Deletion, ProviderError> {
    match ended {
        Err(error) if error.kind == ErrorKind::NotFound => Ok(Deletion::Gone),
        other => other,
    }
}

#[async_trait]
impl<S: Service> Provider for LookUp<S> {
    fn capabilities(&self) -> &Capabilities {
        S::CAPABILITIES
    }

    async fn account(&self) -> Result<String, ProviderError> {
        let id = operation(S::OPERATION, self.service.account()).await?;
        Ok(id.unwrap_or_else(|| self.identity.clone()))
    }

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        operation(S::OPERATION, self.service.account_facts()).await
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        operation(S::OPERATION, self.service.offers()).await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        operation(S::OPERATION, self.order(order)).await
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let found = match operation(S::OPERATION, self.look(machine)).await? {
            Look::Found(found) => found,
            Look::Nothing => return Ok(self.dropped(machine)),
            Look::Foreign => return Ok(None),
        };
        if found.gone() && !self.service.taken_back(&found) || machine.id.is_none() && found.unfinished() {
            return Ok(None);
        }
        let Some(mut seen) = self.seen(&found) else {
            return Ok(None);
        };
        if !machine.started
            && matches!(seen.phase, ProviderPhase::Starting(_) | ProviderPhase::Running)
            && let Some(phase) = operation(S::OPERATION, self.service.finish(&found)).await
        {
            seen.phase = phase;
        }
        Ok(Some(seen))
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let machines = operation(S::OPERATION, self.machines()).await?;
        Ok(machines
            .iter()
            .filter(|machine| !machine.gone())
            .filter_map(|machine| self.seen(machine))
            .filter(|machine| scope.holds(&machine.mark.cluster, &machine.mark.pool_uid))
            .collect())
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        operation(S::OPERATION, self.end(machine)).await
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        operation(S::OPERATION, self.left(scope)).await
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        let scope = Scope {
            cluster: pool.cluster.clone(),
            pool_uid: Some(pool.pool_uid.clone()),
            namespace: None,
            regions: pool.regions.clone(),
        };
        operation(S::OPERATION, async {
            let left = self.left(&scope).await?;
            for thing in &left {
                or_gone(self.give_back(thing).await.map(|()| Deletion::InProgress))?;
            }
            // Only a look that finds nothing is proof.
            Ok(Deletion::gone_if(left.is_empty()))
        })
        .await
    }
}

/// What is ordered, from that with its price now. Refuses an order for what left the catalogue since
/// the offer was read, or whose price has risen above the recorded ceiling.
pub fn affordable<T>(cloud: &str, sold: Option<(T, Usd)>, order: &Order) -> Result<T, ProviderError> {
    let Some((ordered, price)) = sold else {
        return Err(no_capacity(format!(
            "{cloud} sells no {} any more",
            order.instance_type
        )));
    };
    match order.max_hourly_cost {
        Some(ceiling) if price > ceiling => Err(no_capacity(format!(
            "its price is {} USD/h now, above the {} that was recorded",
            price.exact(),
            ceiling.exact()
        ))),
        _ => Ok(ordered),
    }
}

fn no_capacity(message: String) -> ProviderError {
    ProviderError::new(ErrorKind::NoCapacity, "create the instance", message)
}

/// How long new objects are remembered: longer than any order takes, so that no order's list is
/// older.
const MADE: Duration = Duration::from_mins(10);

/// Makes shared resources of a Pool, such as its key, one at a time, so that many concurrent orders
/// make only one.
#[derive(Default)]
pub struct Maker {
    /// New objects by name, with their times: lists may lag. Locked while one is made.
    made: Mutex<BTreeMap<String, (Instant, String)>>,
}

impl Maker {
    /// Id of the object with this name that a list, asked for after `since`, did not show: the one
    /// that another order made meanwhile, or a new one.
    pub async fn make(
        &self,
        name: String,
        since: Instant,
        making: impl Future<Output = Result<String, ProviderError>>,
    ) -> Result<String, ProviderError> {
        let mut made = self.made.lock().await;
        if let Some((_, id)) = made.get(&name).filter(|(at, _)| *at >= since) {
            return Ok(id.clone());
        }
        let id = making.await?;
        made.retain(|_, (at, _)| at.elapsed() < MADE);
        made.insert(name, (Instant::now(), id.clone()));
        Ok(id)
    }
}

#[cfg(test)]
mod tests;
