//! The process' client of a cloud, like the real clients, with answers that fail, are lost, come
//! late or are outdated.
//!
//! A cloud promises one thing: it shows the effect of a call at the latest a settle time after the
//! answer was due.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;
use rand::Rng;
use skyward_api::Provider as ProviderObject;
use skyward_core::{
    Accepted, Capabilities, Credentials, Deletion, ErrorKind, Fence, Leftover, MachineRef, Offer, Order,
    PoolScope, Provider, ProviderError, ProviderMachine, Scope, Secret, offer::Market, provider::Idempotency,
};

use crate::{
    calls::{Luck, To, Way},
    cloud::{Cloud, Rented},
    kinds::{AfterError, Kind},
    planted::Fault,
    time::{Moment, NEVER, SECOND, now},
    world::{Truth, percent},
};

/// The client of an account, in the memory of the process.
pub(crate) struct Client {
    way: Arc<Way>,
    fence: Fence,
    account: String,
    kind: &'static Kind,
    /// Regions that the Provider names.
    regions: Vec<String>,
    /// When machines were ordered, by UID of their records.
    recent: Mutex<BTreeMap<String, Moment>>,
    /// Since when machines are not shown, by their ids.
    missing: Mutex<BTreeMap<String, Moment>>,
}

impl Client {
    /// The client that a Provider and its Secret ask for.
    pub(crate) fn new(
        way: Arc<Way>,
        fence: Fence,
        object: &ProviderObject,
        credentials: &Credentials,
    ) -> Result<Self, ProviderError> {
        let account = credentials.get("account").map(Secret::expose).unwrap_or_default();
        let kind = way.world.truth().clouds.get(account).map(|cloud| cloud.kind);
        let Some(kind) = kind else {
            return Err(ProviderError::new(
                ErrorKind::Credentials,
                "read the credentials",
                "they are of no account",
            ));
        };
        let settings = object.spec.account().map(|(_, settings)| settings);
        let named = settings.and_then(|settings| serde_json::from_value(settings["regions"].clone()).ok());
        let all = || kind.regions.iter().map(|&region| region.to_owned()).collect();
        Ok(Self {
            way,
            fence,
            account: account.to_owned(),
            kind,
            regions: named.unwrap_or_else(all),
            recent: Mutex::default(),
            missing: Mutex::default(),
        })
    }

    /// One call: waits for its turn, does what it does, and waits for the answer.
    async fn call<T>(
        &self,
        what: &str,
        operation: &'static str,
        changes: bool,
        effect: impl FnOnce(&mut Truth, &Call<'_>) -> Result<T, ProviderError> + Send,
    ) -> Result<T, ProviderError> {
        let turn = self
            .way
            .turn(format!("{} {what}", self.account), To::Cloud, changes);
        let (name, luck) = turn.await;
        // The real clients ask the fence last, right before a request goes.
        if changes && let Err(closed) = self.fence.admit() {
            return Err(closed.of(operation));
        }
        let lost = || {
            let kind = if changes {
                ErrorKind::Indeterminate
            } else {
                ErrorKind::Transient
            };
            ProviderError::new(kind, operation, "the answer was lost")
        };
        let mut random = self.way.world.chance(&format!("effect of {name}"));
        let result = {
            let mut truth = self.way.world.truth();
            let refused = match luck {
                Luck::Refused(which) => Some(not_now(which, operation)),
                Luck::LostBefore => Some(lost()),
                _ if self.cloud(&truth).revoked => {
                    Some(ProviderError::new(ErrorKind::Credentials, operation, "revoked"))
                }
                _ => None,
            };
            if let Some(refused) = refused {
                truth.tell(format!("{name}: {refused}"));
                return Err(refused);
            }
            if changes {
                self.way.world.may_change(&self.way, &mut truth, &name);
            }
            let settle = self.kind.settle();
            let is_old = settle > 0 && !truth.calm && percent(&mut random, truth.odds.lag);
            let lag = if is_old {
                random.random_range(0..=settle)
            } else {
                0
            };
            // An order whose answer is lost may be carried out later.
            let is_slow = luck == Luck::LostAfter && settle > 0;
            let call = Call {
                client: self,
                operation,
                lag,
                late: if is_slow {
                    random.random_range(0..=settle / 2)
                } else {
                    0
                },
                chance: random.random(),
            };
            let result = effect(&mut truth, &call);
            let refusal = result.as_ref().err().map(|error| format!(": {error}"));
            truth.tell(format!("{name}{}{}", refusal.unwrap_or_default(), luck.words()));
            result
        };
        if self.way.answered(luck).await {
            return Err(lost());
        }
        result
    }

    fn cloud<'a>(&self, truth: &'a Truth) -> &'a Cloud {
        &truth.clouds[&self.account]
    }

    fn cloud_mut<'a>(&self, truth: &'a mut Truth) -> &'a mut Cloud {
        truth
            .clouds
            .get_mut(&self.account)
            .expect("clients are of accounts")
    }

    /// Whether a list of these regions has that one.
    fn lists(&self, region: &String, asked: &[String]) -> bool {
        !self.kind.is_regional() || self.regions.contains(region) || asked.contains(region)
    }
}

/// What befell a call.
struct Call<'a> {
    client: &'a Client,
    operation: &'static str,
    /// The age of the state that the cloud shows.
    lag: Moment,
    /// How much later than its answer an order is carried out.
    late: Moment,
    /// For the effect to choose by.
    chance: u64,
}

impl Call<'_> {
    /// One machine: in the list, and by its id where that is known.
    fn look(&self, truth: &Truth, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let (client, at) = (self.client, now());
        let cloud = client.cloud(truth);
        let is_it = |rented: &&Rented| match &machine.id {
            Some(id) => rented.id == *id,
            None => {
                rented.mark.is(&machine.mark)
                    && !rented.is_unmarked
                    && (!cloud.kind.is_regional() || rented.region == machine.region)
            }
        };
        let mut found = cloud.rented.iter().filter(is_it);
        let listed = found.find_map(|rented| {
            let shown = shown(cloud, rented, self.lag).filter(|_| !rented.is_forgotten(at));
            Some((shown?, rented.is_unmarked))
        });
        let by_id = || {
            let mut found = cloud.rented.iter().filter(is_it);
            found.find_map(|rented| Some((rented.shown(cloud.kind, at)?, rented.is_unmarked)))
        };
        let asks = machine.id.is_some() && cloud.kind.finds_by_id;
        let found = listed.or_else(|| asks.then(by_id).flatten());
        let Some(id) = &machine.id else {
            return Ok(found.map(|(found, _)| found));
        };
        match found {
            Some((_, true)) => Err(ProviderError::nobodys(cloud.kind.capabilities.marking, id)),
            Some((found, false)) => {
                client.missing.lock().remove(id);
                Ok(Some(found))
            }
            None if cloud.kind.finds_by_id || cloud.kind.is_regional() => Ok(None),
            None => {
                let since = *client.missing.lock().entry(id.clone()).or_insert(at);
                if at < since + cloud.kind.settle() {
                    return self.fails(ErrorKind::Transient, "it is not shown, and may be there");
                }
                Ok(None)
            }
        }
    }

    fn fails<T>(&self, kind: ErrorKind, why: &str) -> Result<T, ProviderError> {
        Err(ProviderError::new(kind, self.operation, why))
    }

    /// Makes the machine of an order.
    fn make(&self, truth: &mut Truth, order: &Order) -> Result<String, ProviderError> {
        let client = self.client;
        let token = order.host_token.as_ref();
        truth.tokens.extend(token.map(|token| token.expose().to_owned()));
        if client.kind.capabilities.idempotency == Idempotency::Token {
            let made = client.cloud(truth).rented.iter();
            let known = made.into_iter().find(|rented| rented.token == order.token);
            if let Some(known) = known {
                return Ok(known.id.clone());
            }
        }
        let spot = order.market == Market::Spot;
        let is_out = client
            .cloud(truth)
            .sold_out
            .contains(&(order.offer.clone(), spot));
        if is_out || (!truth.calm && self.chance.is_multiple_of(20)) {
            return self.fails(ErrorKind::NoCapacity, "sold out");
        }
        let never_boots = !truth.calm && self.chance % 33 == 1;
        let boots = if never_boots {
            NEVER
        } else {
            SECOND * (1 + Moment::try_from(self.chance / 64 % 20).unwrap_or(1))
        };
        let others = truth.alive_of(&order.mark.machine_uid);
        truth.rule(others == 0, || format!("{} is ordered twice", order.mark.machine));
        let was_left = truth.watched.was_left(&order.mark.machine_uid);
        truth.rule(!was_left, || {
            format!("{} is ordered after another got its slot", order.mark.machine)
        });
        let id = client
            .cloud_mut(truth)
            .make(order, now() + self.late, self.late, boots);
        client.recent.lock().insert(order.mark.machine_uid.clone(), now());
        if truth.odds.lies > 0 && self.chance % 5 < 2 {
            truth.liars.insert(id.clone());
        }
        truth.tell(format!("{id} is made"));
        let errs = client.kind.habits.errs.is_some() && !truth.calm;
        if errs && self.chance / 4096 % 16 == 3 {
            return self.fails(ErrorKind::Indeterminate, "the cloud says that it has failed");
        }
        Ok(id)
    }

    fn delete(&self, truth: &mut Truth, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let client = self.client;
        let Some(found) = self.look(truth, machine)? else {
            let recent = client.recent.lock();
            let ordered = recent.get(&machine.mark.machine_uid);
            let is_recent =
                client.kind.is_regional() && ordered.is_some_and(|at| now() < *at + client.kind.settle());
            return Ok(Deletion::gone_if(!is_recent));
        };
        if !found.mark.is(&machine.mark) {
            return Ok(Deletion::Foreign);
        }
        client.way.world.may_be_ended(truth, &client.account, &found);
        let takes = SECOND * (1 + Moment::try_from(self.chance % 14).unwrap_or(1));
        client.cloud_mut(truth).end(&found.id, now(), takes);
        truth.tell(format!("the end of {} is ordered", found.id));
        Ok(Deletion::InProgress)
    }

    fn leftovers(&self, truth: &Truth, regions: &[String]) -> Vec<Leftover> {
        let mut found = self.client.cloud(truth).leftovers(now() - self.lag);
        found.retain(|leftover| self.client.lists(&leftover.region, regions));
        found
    }
}

#[async_trait]
impl Provider for Client {
    fn capabilities(&self) -> &Capabilities {
        &self.kind.capabilities
    }

    async fn account(&self) -> Result<String, ProviderError> {
        let answer = |_: &mut Truth, _: &Call<'_>| Ok(self.account.clone());
        self.call("account", "read the account", false, answer).await
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let answer = |_: &mut Truth, _: &Call<'_>| Ok(self.kind.offers(&self.regions));
        self.call("offers", "read offers", false, answer).await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        const WHAT: &str = "order the machine";
        let machine = MachineRef::of(order);
        let name = &order.mark.machine;
        let looks = self.way.world.truth().planted != Some(Fault::NotLookedFor);
        if looks && self.kind.capabilities.idempotency == Idempotency::LookUp {
            let look = |truth: &mut Truth, call: &Call<'_>| call.look(truth, &machine);
            let found = self.call(&format!("look for {name}"), WHAT, false, look).await?;
            if let Some(found) = found {
                return Ok(Accepted { id: found.id });
            }
        }
        if self.kind.shares {
            let share = |truth: &mut Truth, _: &Call<'_>| {
                let cloud = self.cloud_mut(truth);
                cloud.share(&order.mark.pool_uid, &order.region, now());
                Ok(())
            };
            let what = format!("make a key for {name}");
            // That nothing was ordered is certain.
            let shared = self.call(&what, WHAT, true, share).await;
            shared.map_err(|error| match error.kind {
                ErrorKind::Indeterminate => ProviderError::new(ErrorKind::Transient, WHAT, error.message),
                _ => error,
            })?;
        }
        let make = |truth: &mut Truth, call: &Call<'_>| call.make(truth, order);
        let made = self.call(&format!("order {name}"), WHAT, true, make).await;
        let compares = self.kind.habits.errs == Some(AfterError::Compares);
        let failure = match made {
            Ok(id) => return Ok(Accepted { id }),
            Err(failure) => failure,
        };
        // The fence has closed, or the order may have been carried out all the same.
        if compares && failure.kind != ErrorKind::NotLeading {
            let look = |truth: &mut Truth, call: &Call<'_>| call.look(truth, &machine);
            let what = format!("compare with {name}");
            if let Ok(Some(found)) = self.call(&what, WHAT, false, look).await {
                return Ok(Accepted { id: found.id });
            }
        }
        Err(failure)
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let look = |truth: &mut Truth, call: &Call<'_>| call.look(truth, machine);
        let what = format!("get {}", machine.mark.machine);
        self.call(&what, "look at the machine", false, look).await
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let list = |truth: &mut Truth, call: &Call<'_>| {
            let cloud = self.cloud(truth);
            let rented = cloud.rented.iter().filter(|machine| {
                let is_shown = !machine.is_unmarked && !machine.is_forgotten(now());
                is_shown
                    && self.lists(&machine.region, &scope.regions)
                    && scope.holds(&machine.mark.cluster, &machine.mark.pool_uid)
            });
            Ok(rented
                .filter_map(|machine| shown(cloud, machine, call.lag))
                .collect())
        };
        self.call("list", "list machines", false, list).await
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let delete = |truth: &mut Truth, call: &Call<'_>| call.delete(truth, machine);
        let what = format!("delete {}", machine.mark.machine);
        self.call(&what, "delete the machine", true, delete).await
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        let list = |truth: &mut Truth, call: &Call<'_>| Ok(call.leftovers(truth, &scope.regions));
        self.call("leftovers", "list what was left behind", false, list)
            .await
    }

    /// Only a look that finds none is proof.
    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        let release = |truth: &mut Truth, call: &Call<'_>| {
            let mut found = call.leftovers(truth, &pool.regions);
            found.retain(|leftover| leftover.pool_uid == pool.pool_uid);
            let cloud = self.cloud_mut(truth);
            for leftover in &found {
                let is_used = cloud.rented.iter().any(|machine| {
                    machine.mark.pool_uid == leftover.pool_uid
                        && machine.region == leftover.region
                        && machine.exists(now())
                });
                for shared in cloud.shared.iter_mut().filter(|shared| {
                    !is_used && shared.pool_uid == leftover.pool_uid && shared.region == leftover.region
                }) {
                    shared.returned = shared.returned.min(now());
                }
            }
            Ok(Deletion::gone_if(found.is_empty()))
        };
        let what = format!("release {}", pool.pool_uid);
        self.call(&what, "return what the machines shared", true, release)
            .await
    }
}

/// A refusal that may pass.
fn not_now(which: u8, operation: &'static str) -> ProviderError {
    let kind = match which % 3 {
        0 => ErrorKind::Transient,
        1 => ErrorKind::RateLimited(None),
        _ => ErrorKind::RateLimited(Some(Duration::from_secs(7))),
    };
    ProviderError::new(kind, operation, "not now")
}

/// A machine as a list shows it that is that old.
fn shown(cloud: &Cloud, machine: &Rented, lag: Moment) -> Option<ProviderMachine> {
    let lag = lag.min(cloud.kind.settle() - machine.late).max(0);
    machine.shown(cloud.kind, now() - lag)
}
