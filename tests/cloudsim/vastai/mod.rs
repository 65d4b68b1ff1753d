//! Vast.ai: a marketplace where offers are slices of other people's machines.
//!
//! Requests are checked against the corrected part of the official description
//! (`vastai.relaxed.yaml`: the official one contradicts the service), else against the
//! official one, both in the folder that `SKYWARD_SPECS` names.
//!
//! | fact | where |
//! | --- | --- |
//! | filter language, null, country codes, sorting | `filter` |
//! | hosts; offers are slices, go when taken, return under another id, ids change | `market`, `hosts`, `offers` |
//! | on demand displaces bids, higher bids lower ones; losers are paused and resume | `market::settle`, `context::settle` |
//! | search: defaults of the service, `ondemand` and `bid` prices, disk in the price | `search` |
//! | create: 404 `no_such_ask` in the text, 410, `invalid_price`, success false with 200, queueing | `contracts` |
//! | `env` with `-p` and `-n` keys, start-up script of 4048 characters | `contracts` |
//! | contracts end at `end_date`, removed 48 hours later | `contracts`, `happened` below |
//! | `actual_status` from null to running; exited, offline, stopped | `instances` |
//! | one object under a plural name, null for what is not there; pages of 25; label counts | `instances` |
//! | direct ports and the proxy; blanks around the address; ports as text | `instances` |
//! | keys of the account go to all running instances; keys of one instance | `keys` |
//! | several instances at once, which only the service's own client does | `bulk` |
//! | commands, logs, copies | `commands` |
//! | overlays; deleting one ends its instances | `overlays` |
//! | volumes on a host: offers, rent, orders with one; they cost until they are deleted | `volumes` |
//! | templates: what an order says goes before what its template says; a change gives another hash | `templates` |
//! | variables of the account, in the environment of all that is ordered afterwards | `secrets` |
//! | charges by instance and volume; what is paid ahead makes an instance cheaper | `billing` |
//! | least time between calls of an endpoint, plain text or JSON with 429 | `limit` below |
//! | a key in each container that may only end that container | `authenticate` below |
//! | billing by the started minute; a paused instance costs its disk | `billing` below |
//!
//! What the service's own client sends and no description has is in `described`.
//!
//! Vast.ai's own command line judges it in `tests/cli.rs`.
//!
//! Not simulated: virtual machines, volumes of a network, and what is no renting of instances
//! (hosting, serverless, teams, keys and settings of the account), for which it answers 501.

pub mod billing;
pub mod bulk;
pub mod calls;
pub mod commands;
pub mod context;
pub mod contracts;
mod described;
pub mod filter;
pub mod hosts;
pub mod instances;
pub mod keys;
pub mod market;
pub mod offers;
mod orders;
pub mod overlays;
pub mod reply;
pub mod search;
pub mod secrets;
pub mod templates;
#[cfg(test)]
mod tests;
pub mod volumes;

use std::sync::Arc;

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use self::context::{Context, State, settle};
use self::contracts::{CONTRACT_ENDS, CONTRACT_REMOVED};
use self::market::Market;
use self::reply::{Failure, refused};
use crate::core::account::AccountId;
use crate::core::billing::{Billing, Halted};
use crate::core::cloud::{Call, Cloud, Refusal, Visit, holder};
use crate::core::description::Description;
use crate::core::http::{Answer, Request};
use crate::core::limits::Intervals;
use crate::core::machine::Cause;
use crate::core::world::{Happening, World};

/// What a reminder that another customer's bid is over begins with.
const BID_ENDS: &str = "bid of another ends: ";
/// Where the service is known to answer otherwise than described: null for an instance
/// that is not there, and environments as pairs.
const REALITY: [&str; 2] = ["the answer at /instances: null", "/extra_env/"];
/// How long another customer keeps what he took.
const OTHERS_KEEP: SignedDuration = SignedDuration::from_mins(15);

/// The simulated Vast.ai.
#[derive(Default)]
pub struct Vastai {
    corrected: Option<Arc<Description>>,
    official: Option<Arc<Description>>,
    state: State,
    intervals: Intervals,
    unlimited: bool,
    lenient: bool,
    refusals: u64,
}

impl Vastai {
    /// The marketplace on a usual day.
    pub fn new() -> Self {
        Self {
            corrected: Description::load("vastai.relaxed.yaml"),
            official: Description::load("vastai.yaml"),
            state: State {
                last_id: 30_000_000,
                ..State::default()
            },
            ..Self::default()
        }
    }

    fn perform(&mut self, visit: &mut Visit<'_>, name: &str, holes: &[String]) -> Result<Value, Failure> {
        let hole = |index: usize| holes.get(index).map(String::as_str).unwrap_or_default();
        let context = &mut Context {
            state: &mut self.state,
            visit,
        };
        match name {
            "offers.search" => search::search(context),
            "offers.search-new" => search::search_new(context),
            "instances.create" => contracts::create(context, hole(0)),
            "instances.create-many" => bulk::create(context),
            "instances.launch" => search::launch(context),
            "instances.list-all" => instances::list_all(context),
            "instances.list" => instances::list(context),
            "instances.filters" => instances::filters(context),
            "instances.get" => instances::get(context, hole(0)),
            "instances.change" => contracts::change(context, hole(0)),
            "instances.change-many" => bulk::change(context),
            "instances.delete" => contracts::delete(context, hole(0)),
            "instances.delete-many" => bulk::delete(context),
            "instances.bid" => contracts::bid(context, hole(0)),
            "instances.reboot" | "instances.recycle" => contracts::reboot(context, hole(0)),
            "instances.logs" => commands::logs(context, hole(0)),
            "instances.execute" => commands::execute(context, hole(0)),
            "instances.keys" => keys::of_instance(context, hole(0)),
            "instances.attach-key" => keys::attach(context, hole(0)),
            "instances.detach-key" => keys::detach(context, hole(0), hole(1)),
            "copies.start" | "copies.local" => commands::copy(context),
            "copies.cancel" | "syncs.cancel" => commands::cancel(context),
            "syncs.start" => commands::sync(context),
            "keys.list" => keys::list(context),
            "keys.create" => keys::create(context),
            "keys.change" => keys::change(context, hole(0)),
            "keys.delete" => keys::delete(context, hole(0)),
            "overlays.list" => overlays::list(context),
            "overlays.create" => overlays::create(context),
            "overlays.join" => overlays::join(context),
            "overlays.delete" => overlays::delete(context),
            "volumes.search" => volumes::search(context),
            "volumes.list" => volumes::list(context),
            "volumes.rent" => volumes::rent(context),
            "volumes.copy" => volumes::copy(context),
            "volumes.delete" => volumes::delete(context),
            "templates.search" => templates::search(context),
            "templates.create" => templates::create(context),
            "templates.edit" | "templates.replace" => templates::edit(context),
            "templates.delete" => templates::delete(context),
            "secrets.list" => secrets::list(context),
            "secrets.create" => secrets::create(context),
            "secrets.change" => secrets::change(context),
            "secrets.delete" => secrets::delete(context),
            "deposits.add" => billing::prepay(context, hole(0)),
            "deposits.get" => billing::deposit(context, hole(0)),
            "charges.list" => billing::charges(context),
            "invoices.list" => billing::invoices(context),
            "invoices.history" => billing::history(context),
            "account.get" => billing::account(context),
            "addresses.list" => billing::addresses(context),
            "connections.list" => billing::connections(context),
            other => Err(Failure::new(
                500,
                "not_written",
                format!("{other} is listed and not written"),
            )),
        }
    }

    /// The least time between two calls of an endpoint, in milliseconds. The times of create,
    /// delete and get were seen, times that the description gives are from there, and the rest is
    /// a guess on the safe side.
    fn threshold(name: &str) -> i64 {
        match name {
            "instances.create" | "instances.create-many" | "instances.launch" => 4_500,
            "instances.delete"
            | "instances.delete-many"
            | "secrets.create"
            | "deposits.get"
            | "invoices.list" => 3_000,
            "instances.get" | "deposits.add" => 2_000,
            "instances.reboot" | "instances.recycle" | "charges.list" => 1_000,
            "instances.execute" => 1_500,
            "secrets.list" => 5_000,
            "volumes.search" | "volumes.delete" => 5_500,
            "logs.download" => 0,
            _ => 500,
        }
    }
}

impl Cloud for Vastai {
    fn name(&self) -> &'static str {
        "vastai"
    }

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_mins(1),
            minimum: SignedDuration::ZERO,
            pending: true,
            halted: Halted::Disk,
            failed: true,
            ending: false,
        }
    }

    fn furnish(&mut self, world: &mut World) {
        self.state.market = Market::new(hosts::usual(world.now()), world.now());
        world.regions = self
            .state
            .market
            .hosts()
            .map(|host| host.geolocation.to_owned())
            .collect();
        world.regions.dedup();
        world.end_takes = SignedDuration::from_secs(2);
        world.boot = crate::core::machine::BootPlan::takes(45);
    }

    fn recognise(&self, request: &Request) -> Option<Call> {
        calls::of(request).map(|(call, ..)| call)
    }

    fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        self.undescribed(request, call)
    }

    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        call: &Call,
    ) -> Result<Option<AccountId>, Refusal> {
        if call.name == "logs.download" {
            return Ok(None);
        }
        let Some(key) = request.bearer() else {
            // Makers of price lists search without a key.
            return if call.name == "offers.search" {
                Ok(None)
            } else {
                Err(Refusal::Unauthorized)
            };
        };
        if let Some((account, instance)) = self.state.container_keys.get(key) {
            let holes = calls::of(request).map(|(.., holes)| holes).unwrap_or_default();
            let own = holes.first() == Some(instance);
            let allowed = own
                && matches!(
                    call.name,
                    "instances.get" | "instances.change" | "instances.delete"
                );
            return if allowed {
                Ok(Some(account.clone()))
            } else {
                Err(Refusal::Forbidden)
            };
        }
        holder(world, Some(key)).map(Some)
    }

    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        if self.unlimited {
            return Ok(());
        }
        let least = Self::threshold(visit.call.name);
        let key = format!("{} {}", visit.account, visit.call.name);
        let now = visit.now();
        if self
            .intervals
            .call(&key, SignedDuration::from_millis(least), now)
            .is_ok()
        {
            return Ok(());
        }
        // The body has one of two forms, and neither says when to come again.
        self.refusals += 1;
        let threshold = least as f64 / 1_000.0;
        Err(Refusal::Answer(if self.refusals % 2 == 1 {
            Answer::new(
                429,
                "text/plain",
                format!("API requests too frequent: endpoint threshold={threshold:.1}"),
            )
        } else {
            Answer::json(
                429,
                &json!({"detail": format!("API requests too frequent endpoint threshold={threshold:.1}")}),
            )
        }))
    }

    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let Some((call, _, holes)) = calls::of(visit.request) else {
            return Err(Refusal::UnknownCall);
        };
        if call.name == "logs.download" {
            let text = holes.first().and_then(|file| self.state.results.get(file));
            return Ok(match text {
                Some(text) => Answer::new(200, "text/plain", text.clone()),
                None => Answer::empty(404),
            });
        }
        match self.perform(visit, call.name, &holes) {
            Ok(body) => Ok(Answer::json(200, &body)),
            Err(failure) => Err(failure.refusal()),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Answer {
        if let (Refusal::UnknownCall, Some(what)) = (refusal, calls::outside(request)) {
            let text = format!("This is a simulator, without {what}.");
            return Answer::json(501, &Failure::new(501, "not_simulated", text).body());
        }
        refused(refusal, call.map(|call| call.name).unwrap_or_default())
    }

    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        // Any call can meet these, whatever its description lists.
        if [401, 403, 429].contains(&answer.status) {
            return Vec::new();
        }
        let description = calls::of(request).and_then(|(_, described, _)| self.description(described));
        let wrong = description.map(|description| description.check_answer(request, answer));
        wrong
            .unwrap_or_default()
            .into_iter()
            .filter(|what| !REALITY.iter().any(|known| what.contains(known)))
            .collect()
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        let plan = world.boot.clone();
        match happening {
            Happening::Running(_)
            | Happening::Noticed(_)
            | Happening::BootFailed(_)
            | Happening::Ended(_) => {}
            Happening::Reclaimed(id) => {
                // Another customer bids more for the whole host, for a while.
                let Some(rental) = self.state.market.rental(id).cloned() else {
                    return;
                };
                let per_gpu = rental.bid.map(|bid| bid / Decimal::from(rental.ask.gpus));
                if let Some(per_gpu) = per_gpu
                    && let Some(host) = self.state.market.host_mut(rental.ask.machine_id)
                {
                    host.other_bid = Some(per_gpu * Decimal::new(15, 1));
                    world.remind(OTHERS_KEEP, format!("{BID_ENDS}{}", rental.ask.machine_id));
                }
                settle(&mut self.state, world, &plan);
            }
            // The contract goes on: a container that is over costs as one that works.
            Happening::HaltedItself(id) => world.fail(id, Cause::Itself),
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::Reminder(what) => {
                if let Some(machine) = what.strip_prefix(BID_ENDS) {
                    if let Some(host) = machine.parse().ok().and_then(|id| self.state.market.host_mut(id)) {
                        host.other_bid = None;
                    }
                    settle(&mut self.state, world, &plan);
                } else if let Some(id) = what.strip_prefix(CONTRACT_ENDS) {
                    contracts::end_contract(&mut self.state, world, id, &plan);
                } else if let Some(id) = what.strip_prefix(CONTRACT_REMOVED) {
                    contracts::remove_from(&mut self.state, world, id, &plan);
                }
            }
        }
    }

    /// | control | what it does |
    /// | --- | --- |
    /// | `bid {"machine_id", "price"}` | what another customer bids for each GPU of a host; null ends that |
    /// | `rent {"machine_id", "taken"}` | whether other customers have a host on demand |
    /// | `price {"machine_id", "price", "min_bid"}` | what a GPU of a host costs from now on |
    /// | `delist {"machine_id"}` | a host leaves the market; contracts go on |
    /// | `refuse {"machine_id"}` | the next contract with a host fails with status 200 |
    /// | `limits {"enabled"}` | whether calls too soon after one another are refused |
    /// | `lenient {}` | orders are not checked against the description |
    /// | `new-ids {}` | every offer has a new id |
    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        let plan = world.boot.clone();
        let id = body.get("machine_id").and_then(Value::as_i64).unwrap_or_default();
        let price_of = |name: &str| body.get(name).and_then(contracts::decimal);
        let unknown = || format!("there is no host {id}");
        let host = self.state.market.host_mut(id);
        let result = match name {
            "bid" => host
                .map(|host| host.other_bid = price_of("price"))
                .ok_or_else(unknown),
            "rent" => host
                .map(|host| host.taken_by_others = body["taken"] != false)
                .ok_or_else(unknown),
            "price" => host
                .map(|host| {
                    host.price = price_of("price").unwrap_or(host.price);
                    host.min_bid = price_of("min_bid").unwrap_or(host.min_bid);
                })
                .ok_or_else(unknown),
            "delist" => host.map(|host| host.delisted = true).ok_or_else(unknown),
            "refuse" => {
                self.state.refusing.push(id);
                Ok(())
            }
            "limits" => {
                self.unlimited = body["enabled"] == false;
                Ok(())
            }
            "lenient" => {
                self.lenient = body["enabled"] != false;
                Ok(())
            }
            "new-ids" => {
                let later = world.now() + market::ID_LIFETIME;
                self.state.market.renew_ids(later);
                Ok(())
            }
            _ => return None,
        };
        settle(&mut self.state, world, &plan);
        Some(result.map(|()| json!({"done": true})))
    }
}
