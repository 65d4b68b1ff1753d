//! The context of a call.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::billing::Deposit;
use super::market::Market;
use super::reply::Failure;
use crate::core::cloud::Visit;
use crate::core::machine::{BootPlan, Cause, Machine, Phase};
use crate::core::world::World;

/// What the service remembers besides machines and resources.
#[derive(Debug, Default)]
pub struct State {
    /// Hosts, offers and their renters.
    pub market: Market,
    /// Keys that containers carry, with account and instance.
    pub container_keys: BTreeMap<String, (String, String)>,
    /// Hosts that refuse the next contract with status 200.
    pub refusing: Vec<i64>,
    /// The last number that was given to something.
    pub last_id: i64,
    /// Environment variables of all instances, by account and name.
    pub secrets: BTreeMap<(String, String), String>,
    /// What was paid ahead, by instance.
    pub deposits: BTreeMap<String, Deposit>,
    /// Files with what commands and logs said, by name.
    pub results: BTreeMap<String, String>,
}

/// The context of a call.
pub struct Context<'a, 'w> {
    /// What is remembered.
    pub state: &'a mut State,
    /// The call and the world.
    pub visit: &'a mut Visit<'w>,
}

impl Context<'_, '_> {
    /// A new number for something.
    pub fn number(&mut self) -> i64 {
        self.state.last_id += 1 + self.visit.world.chance.below(9) as i64;
        self.state.last_id
    }

    /// The body, as an object.
    pub fn body(&self) -> Result<Map<String, Value>, Failure> {
        match self.visit.request.json() {
            Ok(Value::Object(body)) => Ok(body),
            Ok(other) => Err(Failure::arguments(format!("expected an object, got {other}"))),
            Err(error) => Err(Failure::arguments(error)),
        }
    }

    /// A text of the body; empty where there is none.
    pub fn text(body: &Map<String, Value>, name: &str) -> String {
        let text = body.get(name).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    }

    /// The number of the account.
    pub fn user(&self) -> i64 {
        self.visit.account.bytes().map(i64::from).sum()
    }

    /// A list, cut short when a fault says so.
    pub fn cut<T>(&self, mut items: Vec<T>) -> Vec<T> {
        items.truncate(self.visit.keep.unwrap_or(usize::MAX));
        items
    }

    /// Filters that a parameter of the query has as JSON.
    pub fn filters(&self, name: &str) -> Result<Map<String, Value>, Failure> {
        let invalid = |text: String| Failure::new(400, "invalid_request", text);
        match self
            .visit
            .request
            .parameter(name)
            .map(serde_json::from_str::<Value>)
        {
            None => Ok(Map::new()),
            Some(Ok(Value::Object(filters))) => Ok(filters),
            Some(Ok(other)) => Err(invalid(format!("{name}: expected an object, got {other}"))),
            Some(Err(error)) => Err(invalid(format!("{name}: {error}"))),
        }
    }

    /// An instance of the account that still exists.
    pub fn instance(&self, id: &str) -> Result<&Machine, Failure> {
        if id.parse::<i64>().is_err() {
            return Err(Failure::arguments("invalid instance_id"));
        }
        self.visit
            .world
            .machines
            .get(id)
            .filter(|machine| machine.account == self.visit.account && machine.exists())
            .ok_or_else(|| Failure::no_instance(id))
    }

    /// Lets the market decide anew, and instances follow.
    pub fn settle(&mut self) {
        let plan = self.visit.boot.clone();
        settle(self.state, self.visit.world, &plan);
    }
}

/// Lets the market decide anew, and instances follow: an instance that loses is paused, one that
/// wins again resumes by itself.
pub fn settle(state: &mut State, world: &mut World, plan: &BootPlan) {
    for (id, wins) in state.market.settle() {
        let Some(machine) = world.machines.get(&id) else {
            continue;
        };
        match (wins, machine.phase) {
            (true, Phase::Halted) => world.resume(&id, plan.clone()),
            (false, Phase::Pending | Phase::Running) => {
                let wanted = state.market.rental(&id).is_some_and(|rental| rental.wanted);
                world.halt(&id, if wanted { Cause::Reclaimed } else { Cause::Asked });
            }
            _ => {}
        }
    }
}
