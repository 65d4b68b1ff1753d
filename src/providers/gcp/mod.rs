//! Google Cloud: instances of Compute Engine with GPUs, on demand and spot, over REST.
//!
//! The mark of a machine is its labels. Its name is made from the mark, so that Google makes no two machines for
//! one order in a zone, and an order whose answer was lost goes again with the token that it had (`requestId`). Google
//! accepts an order before it looks for a host: what became of an order is an operation, which is looked at where its
//! machine is not shown. All zones are listed, whatever the settings say by now. The machines of a Pool share
//! rules of their network's firewall, which carry the Pool's UID in their names and are returned with it. The
//! disk and the address of a machine go with the machine. Prices come from a table, since the API has none.

pub mod client;
pub mod config;
pub mod errors;
pub mod kind;
pub mod map;
pub mod offers;
pub mod prices;
pub mod wire;

use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use jiff::Timestamp;
use serde_json::Value;
use skyward_core::{
    Capabilities, CredentialKey, Credentials, Deletion, Endpoints, ErrorKind, Market, Offer, Order,
    ProviderError, ProviderMachine,
    provider::{AccountFact, Halted, HostKeys, MarkWriters, Marking, ReclaimNotice, Regions, SelfStop},
};
use skyward_provider_kit::{
    Cache, Kind as _,
    http::{Answer, Auth, Batched, Rest, Rule, ServiceAccount},
    lookup::{self, Ended, Listed as _, Service},
    shared::Shared,
    text::plain,
};

use client::{CREATE, Client, FIREWALLS, Firewalls};
use config::{KEY, PROJECT, Settings};
use kind::Kind;
use offers::{Catalogue, Sold};
use wire::{Instance, Operation, Place};

/// Name of this kind of provider.
pub const KIND: &str = "gcp";

/// How long an order is remembered: longer than Google may take to make a machine, or to give it up.
const REMEMBERED: Duration = Duration::from_hours(1);
/// Most orders that are remembered.
const ORDERS: usize = 4096;
/// How long the token of an order is good for at Google, and a margin less.
const TOKEN: Duration = Duration::from_mins(50);
/// Script that asks for the notice of a spot machine.
const NOTICE: &str = include_str!("notice.sh");

impl skyward_provider_kit::Kind for Gcp {
    const CLOUD: &'static str = "Google Cloud";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const ENDPOINTS: &'static [(&'static str, &'static str)] = client::ENDPOINTS;
    const FIXED: &'static [&'static str] = &["project", "zone", "regions", "prices"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn auth_at(credentials: &Credentials, endpoints: &Endpoints) -> Result<Auth, ProviderError> {
        let Some(key) = credentials.get(KEY) else {
            return Ok(Auth::metadata(client::metadata(endpoints), errors::CREDENTIALS));
        };
        let account = ServiceAccount::from_json(key, client::tokens(endpoints), client::SCOPE)?;
        Ok(Auth::service_account(account, errors::CREDENTIALS))
    }

    fn complete(mut settings: Settings, credentials: &Credentials) -> Result<Settings, ProviderError> {
        let of_secret = || Some(credentials.get(PROJECT)?.expose().trim().to_owned());
        let of_key = || {
            let key: Value = serde_json::from_str(credentials.get(KEY)?.expose()).ok()?;
            key["project_id"].as_str().map(str::to_owned)
        };
        settings.project = settings.project.or_else(of_secret).or_else(of_key);
        if settings.project.is_none() {
            let what = "neither the Provider nor its Secret names a project. Write its id as gcp.project";
            let kind = ErrorKind::CredentialsMissing;
            return Err(ProviderError::new(kind, "choose the project", what));
        }
        Ok(settings)
    }

    fn new(rest: Rest, settings: Settings) -> Self {
        let project = settings.project.clone().unwrap_or_default();
        let client = Client { rest, project };
        Self {
            rules: Shared::short(Firewalls(client.clone())),
            client,
            settings,
            catalogue: Batched::default(),
            ended: Ended::default(),
            ordered: Cache::new(REMEMBERED, ORDERS),
            requests: Cache::new(TOKEN, ORDERS),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    // A machine that shuts itself down keeps its disk.
    self_stop: SelfStop::Partial,
    billing_step: Duration::from_secs(1),
    billing_minimum: Duration::from_mins(1),
    // In their network, where a rule of its firewall lets them.
    connected: true,
    unpriced: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    reclaim_notice: ReclaimNotice::OnMachine(NOTICE),
    reclaim_ahead: Duration::from_secs(30),
    halted: Halted::Disk,
    regions: Regions::Chosen,
    swept: &[FIREWALLS.one],
    ..Capabilities::of(KIND)
};

/// One project at Google Cloud.
pub struct Gcp {
    client: Client,
    settings: Settings,
    catalogue: Batched<Catalogue>,
    rules: Shared,
    /// Machines whose end we ordered.
    ended: Ended,
    /// Orders that were accepted, by the ids of their machines.
    ordered: Cache<String, Ordered>,
    /// Tokens of orders whose answers were lost.
    requests: Cache<String, String>,
}

/// An order that was accepted.
struct Ordered {
    /// The operation that makes the machine.
    operation: String,
    /// The machine that it makes.
    instance: Instance,
}

impl Gcp {
    async fn catalogue(&self) -> Result<Catalogue, ProviderError> {
        let mut zones = self.client.zones().await?;
        zones.retain(|zone| zone.status != "DOWN" && self.settings.offers(&zone.name));
        let all = zones.into_iter().map(async |zone| {
            let (machines, accelerators) = tokio::try_join!(
                self.client.machine_types(&zone.name),
                self.client.accelerator_types(&zone.name)
            )?;
            let sold = Sold {
                machines,
                accelerators,
            };
            Ok::<_, ProviderError>((zone.name, sold))
        });
        Ok(try_join_all(all).await?.into_iter().collect())
    }

    /// Machines with their prices, where these are known.
    fn priced(&self, mut instances: Vec<Instance>) -> Vec<Instance> {
        for instance in &mut instances {
            let kind = Kind::of(instance).to_string();
            let (zone, market) = (instance.zone().to_owned(), instance.market());
            instance.price = prices::price(&self.settings.prices, &kind, &zone, market);
        }
        instances
    }

    /// Sends an order. One whose answer is lost has the same token when it goes again.
    async fn create(&self, order: &Order, body: Value) -> Result<Operation, ProviderError> {
        let market = order.market;
        let (uid, kind, zone) = (&order.mark.machine_uid, &order.instance_type, &order.region);
        let attempt = format!("{uid} {zone} {kind} {market:?}");
        let request = self.requests.known(&attempt).map_or_else(
            || map::request(&format!("{attempt} {}", Timestamp::now())),
            |known| (*known).clone(),
        );
        self.requests.insert(attempt.clone(), request.clone());
        let answer = self.client.create(zone, &request, body).await;
        if !matches!(&answer, Err(error) if error.kind.leaves_doubt()) {
            self.requests.forget(|known| *known == attempt);
        }
        let made =
            answer.and_then(|operation| errors::of_operation(&operation, CREATE).map_or(Ok(operation), Err));
        made.map_err(|error| errors::in_zone(error, zone))
    }

    /// The id of the machine whose name keeps an order from being accepted, if it is the order's.
    async fn adopted(&self, order: &Order) -> Result<String, ProviderError> {
        let name = map::name(&order.mark);
        let found = self.client.instance(&order.region, &name).await;
        let found = found.map_err(|mut error| {
            // It may be the order's own.
            if error.kind != ErrorKind::NotLeading {
                error.kind = ErrorKind::Indeterminate;
            }
            error
        })?;
        map::adopted(order, found)
    }
}

#[async_trait]
impl Service for Gcp {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const DROPS_TAKEN: bool = true;

    /// The number of the project, which stays when settings name the project in another way.
    async fn account(&self) -> Result<Option<String>, ProviderError> {
        let (project, _) = tokio::try_join!(self.client.project::<Value>(), self.machines())?;
        let number = Some(plain(&project["id"])).filter(|number| !number.is_empty());
        Ok(number.or_else(|| Some(self.client.project.clone())))
    }

    /// A new project has a quota of 0: nothing can be ordered although everything is offered.
    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        let (project, regions) = tokio::try_join!(self.client.project::<Place>(), self.client.regions())?;
        Ok(map::facts(&project, &regions, &self.settings))
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let catalogue = || self.catalogue();
        let catalogue = self.catalogue.fresh(Self::OPERATION, catalogue).await?;
        Ok(offers::offers(&catalogue, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        let listed = map::listed(self.client.instances(false).await?)?;
        Ok(self.priced(listed))
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let Some(ordered) = self.ordered.known(&id.to_owned()) else {
            // Its zone is not known here, and a person may have taken our label away.
            let mut all = map::listed(self.client.instances(true).await?)?;
            all.retain(|instance| instance.id == id);
            return Ok(self.priced(all).pop());
        };
        let zone = ordered.instance.zone();
        if let Some(found) = self.client.instance(zone, id).await? {
            return Ok(self.priced(vec![found]).pop());
        }
        let Some(operation) = self.client.operation(zone, &ordered.operation).await? else {
            return Ok(None);
        };
        Ok(map::unseen(&ordered.instance, &operation))
    }

    fn seen(&self, instance: &Instance) -> Option<ProviderMachine> {
        map::machine(instance, self.ended.has(instance))
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let Some(kind) = Kind::parse(&order.instance_type) else {
            let what = format!("{} is no type of machine", order.instance_type);
            return Err(ProviderError::new(ErrorKind::InvalidOrder, CREATE, what));
        };
        let own = &self.settings.prices;
        match prices::price(own, &order.instance_type, &order.region, order.market) {
            Some(price) => lookup::affordable(Self::CLOUD, Some(((), price)), order)?,
            // Its Pool says what it may cost, and it counts as if it cost that.
            None if order.market == Market::OnDemand && order.max_hourly_cost.is_some() => {}
            None => {
                let what = format!(
                    "the price of {} in {} on this market is not known. Write it into gcp.prices of the Provider",
                    order.instance_type, order.region
                );
                return Err(ProviderError::new(ErrorKind::NoCapacity, CREATE, what));
            }
        }
        let mut rules = Vec::new();
        for content in map::admitted(order, settings) {
            rules.push(self.rules.holding(order, &content).await?.name);
        }
        let body = map::body(order, settings, &kind, &rules)?;
        let operation = match self.create(order, body).await {
            Err(error) if error.kind == ErrorKind::AlreadyExists => return self.adopted(order).await,
            made => made?,
        };
        let is_id = |id: &String| {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            !id.is_empty() && id.len() <= 64 && id.bytes().all(plain)
        };
        let Some(id) = operation.target_id.filter(is_id) else {
            let what = "Google accepted the order and did not tell the id of its machine";
            return Err(ProviderError::new(ErrorKind::Indeterminate, CREATE, what));
        };
        let ordered = Ordered {
            operation: operation.name,
            instance: map::ordered(&id, order, &kind),
        };
        self.ordered.insert(id.clone(), ordered);
        Ok(id)
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        let is_asked = self.ended.has(instance);
        self.ended.add(instance);
        if let Some(mark) = instance.mark() {
            // An order that goes again is another one from now on.
            self.requests.forget(|known| known.starts_with(&mark.machine_uid));
        }
        if is_asked && matches!(instance.status.as_str(), "STOPPING" | "DEPROVISIONING") {
            return Ok(Deletion::InProgress);
        }
        match self.client.delete(instance.zone(), &instance.id).await {
            Err(error) if !errors::is_busy(&error) => Err(error),
            _ => Ok(Deletion::InProgress),
        }
    }

    /// A spot machine that is gone and whose end we did not order was taken back. One that was not made is told as that.
    fn taken_back(&self, instance: &Instance) -> bool {
        let is_spot = instance.market() == Market::Spot && !self.ended.has(instance);
        instance.failure.is_some() || is_spot
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.rules]
    }
}

#[cfg(test)]
#[path = "tests/account.rs"]
mod tests;
