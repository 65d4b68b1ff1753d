//! Helpers of handlers.

use rust_decimal::Decimal;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::backend::Boot;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Request;
use crate::core::machine::{Machine, Mark, NewMachine};
use crate::core::market::{InstanceType, Market};
use crate::core::resource::Resource;

/// The body as one of a cloud's strict types.
pub fn body<T: DeserializeOwned>(request: &Request) -> Result<T, Refusal> {
    serde_json::from_slice(&request.body).map_err(|error| Refusal::Bad(format!("the body: {error}")))
}

/// A request that is as described, and that the cloud refuses for this reason.
pub fn bad<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Bad(what.to_owned()))
}

/// Whether a list in JSON has a text.
pub fn has(list: &Value, text: &str) -> bool {
    list.as_array()
        .is_some_and(|list| list.iter().any(|item| item == text))
}

/// A machine that a call rents on demand.
#[derive(Debug)]
pub struct Rental {
    /// Its id.
    pub id: String,
    /// Where it is rented.
    pub region: String,
    /// The mark that the client gave it.
    pub mark: Mark,
    /// The image and settings that it boots with.
    pub boot: Boot,
    /// Fields that only this cloud has.
    pub detail: Value,
}

impl Visit<'_> {
    /// Handles another form of the request in its place.
    pub(super) fn with_request<R>(
        &mut self,
        request: &Request,
        answer: impl FnOnce(&mut Visit<'_>) -> R,
    ) -> R {
        let mut visit = Visit {
            world: &mut *self.world,
            request,
            call: self.call,
            account: self.account.clone(),
            boot: self.boot.clone(),
            keep: self.keep,
            subject: self.subject.take(),
            made: Vec::new(),
        };
        let result = answer(&mut visit);
        let Visit { subject, made, .. } = visit;
        (self.subject, self.made) = (subject, made);
        result
    }

    /// Rents a machine at the price of its type, halted or not, where money, the quota `instances`
    /// and the stock allow it.
    pub fn rent(&mut self, kind: &InstanceType, rental: Rental) -> Result<(), Refusal> {
        self.rent_on(Market::OnDemand, kind, rental)
    }

    /// The same on a market, at the price that its type has there.
    pub fn rent_on(&mut self, market: Market, kind: &InstanceType, rental: Rental) -> Result<(), Refusal> {
        self.enough("instances")?;
        if !self.world.take_stock(&kind.name, &rental.region, market) {
            return Err(Refusal::NoCapacity);
        }
        let new = self.made_of(kind, rental, market);
        self.world.create(new);
        Ok(())
    }

    /// The same for a machine that is halted until it is started, costs nothing till then and needs no
    /// stock yet.
    pub fn reserve(&mut self, kind: &InstanceType, rental: Rental) -> Result<(), Refusal> {
        self.enough("instances")?;
        let mut new = self.made_of(kind, rental, Market::OnDemand);
        new.disk_price = Decimal::ZERO;
        self.world.create_halted(new);
        Ok(())
    }

    fn made_of(&mut self, kind: &InstanceType, rental: Rental, market: Market) -> NewMachine {
        self.made.push(rental.id.clone());
        self.subject = Some(rental.id.clone());
        let price = kind.price(market).unwrap_or(kind.on_demand);
        NewMachine {
            id: rental.id,
            account: self.account.clone(),
            mark: rental.mark,
            instance_type: kind.name.clone(),
            region: rental.region,
            market,
            price,
            on_demand_price: kind.on_demand,
            disk_price: price,
            plan: self.boot.clone(),
            boot: rental.boot,
            detail: rental.detail,
        }
    }

    /// An existing machine of this account.
    pub fn machine(&self, id: &str) -> Option<&Machine> {
        let machine = self.world.machines.get(id);
        machine.filter(|machine| machine.account == self.account && machine.exists())
    }

    /// The existing things of this kind in this account.
    pub fn resources<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Resource> {
        self.world.resources_of(&self.account, kind)
    }

    /// An existing thing of this account by its id.
    pub fn resource(&self, kind: &str, id: &str) -> Option<&Resource> {
        let thing = self.world.resources.get(id);
        thing.filter(|thing| thing.account == self.account && thing.kind == kind && thing.exists())
    }

    /// Adds something that costs nothing, such as an SSH key.
    pub fn add(&mut self, kind: &'static str, id: &str, name: &str, detail: Value) -> Resource {
        let mut thing = self.world.new_resource(id, kind, &self.account, name);
        thing.detail = detail;
        self.world.add_resource(thing.clone(), Decimal::ZERO);
        self.subject = Some(id.to_owned());
        thing
    }

    /// Ends something of this account; false when it does not exist.
    pub fn end(&mut self, kind: &str, id: &str) -> bool {
        self.resource(kind, id).is_some() && self.world.end_resource(id)
    }

    /// Whether something has in each of these fields what the query parameter of the same name asks for.
    pub fn fits(&self, thing: &Value, fields: &[&str]) -> bool {
        let asked = |field: &str| self.request.parameter(field);
        let fits = |field: &&str| asked(field).is_none_or(|wanted| thing[field] == wanted);
        fields.iter().all(fits)
    }

    /// A list, cut short when a fault says so.
    pub fn truncate(&self, mut items: Vec<Value>) -> Vec<Value> {
        items.truncate(self.keep.unwrap_or(usize::MAX));
        items
    }
}
