//! JarvisLabs: containers and virtual machines with GPUs, on demand and spot, over REST. Each region makes and
//! destroys its own machines.
//!
//! The mark of a machine is its name, as far as 40 characters reach, and the comment of its Pool's key
//! (`owners` of the kit). JarvisLabs puts every key of the account onto every new machine, so the key of a Pool is in the
//! account before the Pool's first order, and is removed only while no machine refers to the Pool. A machine is
//! destroyed and never paused: the disk of a paused one is billed.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, Market, Offer, Order, ProviderError, ProviderMachine,
    provider::{MarkWriters, Regions},
};
use skyward_provider_kit::{
    Kind,
    http::{Answer, Batched, Rest},
    lookup::{self, Ended, PRICE_AGE, Service},
    owners::Owners,
    shared::{SSH_KEYS, Shared, Unanswered},
};

use client::Client;
use config::{CODES, REGIONS, Settings};
use offers::Catalogue;
use wire::Machine;

/// Name of this kind of provider.
pub const KIND: &str = "jarvislabs";

/// Greatest age of a price of a machine, since machines do not tell theirs.
const KNOWN: Duration = Duration::from_hours(1);

impl Kind for JarvisLabs {
    const CLOUD: &'static str = "JarvisLabs";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINTS[0];
    const ENDPOINTS: &'static [(&'static str, &'static str)] = client::ENDPOINTS;
    const FIXED: &'static [&'static str] = &["region", "template", "currency", "exchangeRate"];
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        let rest = rest.refused_when(errors::is_refused);
        // JarvisLabs puts all of them onto every new machine.
        let keys = Unanswered::keys(&rest, "/ssh/", "/ssh/{key_id}", client::KEY);
        Self {
            owners: Owners::new(Shared::short(keys)),
            client: Client { rest },
            settings,
            catalogue: Batched::default(),
            ended: Ended::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    mark_writers: MarkWriters::Account,
    // A machine may be listed some time after its order.
    settle_time: Duration::from_mins(2),
    billing_step: Duration::from_mins(1),
    regions: Regions::Known(&CODES),
    swept: &[SSH_KEYS.one],
    ..Capabilities::of(KIND)
};

/// One account at JarvisLabs, whose id is not asked for.
pub struct JarvisLabs {
    client: Client,
    settings: Settings,
    catalogue: Batched<Catalogue>,
    owners: Owners,
    /// Machines whose end we ordered.
    ended: Ended,
}

impl JarvisLabs {
    /// What was read at most this long ago.
    async fn known(&self, age: Duration) -> Result<Arc<Catalogue>, ProviderError> {
        let catalogue = || self.client.catalogue(&self.settings);
        self.catalogue.recent(age, Self::OPERATION, catalogue).await
    }

    /// Machines with their marks, and with their prices where any can be read.
    async fn marked(&self, mut machines: Vec<Machine>) -> Result<Vec<Machine>, ProviderError> {
        let names = machines.iter().map(|machine| machine.text("instance_name"));
        let marks = self.owners.marks(names.collect()).await?;
        let known = self.known(KNOWN).await.ok();
        for (machine, mark) in machines.iter_mut().zip(marks) {
            machine.mark = mark;
            let kind = format!("{}x {}", machine.gpus(), machine.text("gpu_type"));
            let (market, template) = (machine.market(), machine.text("framework"));
            let of = offers::gpus(&kind).zip(machine.region());
            let told = known.as_ref().zip(of);
            machine.price = told.and_then(|(known, of)| known.price(of, market, template));
        }
        Ok(machines)
    }
}

#[async_trait]
impl Service for JarvisLabs {
    type Settings = Settings;
    type Machine = Machine;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const DROPS_TAKEN: bool = true;

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let catalogue = || self.client.catalogue(&self.settings);
        let catalogue = self.catalogue.fresh(Self::OPERATION, catalogue).await?;
        Ok(offers::offers(&catalogue, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        self.marked(self.client.machines().await?).await
    }

    async fn machine(&self, id: &str) -> Result<Option<Machine>, ProviderError> {
        // Ids are numbers: another text is no id of a machine.
        let Ok(number) = id.parse() else { return Ok(None) };
        let found = self.client.machine(number).await?;
        Ok(self.marked(found.into_iter().collect()).await?.pop())
    }

    fn seen(&self, machine: &Machine) -> Option<ProviderMachine> {
        map::machine(machine, self.ended.has(machine))
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let region = REGIONS.iter().find(|region| region.code == order.region);
        let catalogue = self.known(PRICE_AGE).await?;
        let template = settings.template();
        let sold = offers::gpus(&order.instance_type).zip(region);
        let sold = sold.and_then(|of| Some((of, catalogue.price(of, order.market, template)?)));
        let of = lookup::affordable(Self::CLOUD, sold, order)?;
        let body = map::body(order, of, settings)?;
        self.owners.register(order).await?;
        self.client.create((of.1, template), body).await
    }

    async fn end(&self, machine: &Machine) -> Result<Deletion, ProviderError> {
        self.ended.add(machine);
        if machine.text("status") == "Destroying" {
            return Ok(Deletion::InProgress);
        }
        // One region does not know the machines of another.
        lookup::until_unseen(self.client.destroy(machine).await)
    }

    /// A spot machine that is gone and whose end we did not order was taken back.
    fn taken_back(&self, machine: &Machine) -> bool {
        machine.market() == Market::Spot && !self.ended.has(machine)
    }

    fn owners(&self) -> Option<&Owners> {
        Some(&self.owners)
    }
}
