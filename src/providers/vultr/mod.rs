//! Vultr: virtual machines with GPUs and bare metal, on demand only, over REST.
//!
//! These are two APIs, alike but for a few words. A Provider offers the machines of one API, and
//! finds and ends those of both: its settings may have changed. Marks are tags. The machines of a
//! Pool share its key, which carries the Pool's UID in its name.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use futures::future::try_join_all;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, Offer, Order, ProviderError, ProviderMachine,
    provider::{AccountFact, HostKeys, Idempotency, MarkWriters, Marking, SelfStop},
};
use skyward_provider_kit::{
    Kind, account_facts,
    http::{Answer, Batched, Rest, Rule},
    lookup::{self, PRICE_AGE, Service},
    shared::{SSH_KEYS, Shared},
};

use client::Client;
use config::{Mode, Settings};
use wire::{Instance, Plan};

/// Name of this kind of provider.
pub const KIND: &str = "vultr";

/// Greatest age of a plan that gives a machine's price, since machines do not tell theirs. Plans
/// are read more often for offers.
const KNOWN: Duration = Duration::from_hours(1);

impl Kind for Vultr {
    const CLOUD: &'static str = "Vultr";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["mode", "region"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        let client = Client { rest };
        Self {
            keys: Shared::new(client.keys()),
            client,
            settings,
            plans: Batched::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(60),
    poll_interval: Duration::from_secs(15),
    // A machine that was shut down stays on the bill until it is deleted.
    self_stop: SelfStop::None,
    billing_step: Duration::from_hours(1),
    billing_minimum: Duration::from_hours(1),
    // In the VPC of their region; not for bare metal.
    connected: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    swept: &[SSH_KEYS.one],
    ..Capabilities::of(KIND)
};

/// One account at Vultr, which tells its name and its e-mail address, and no id.
pub struct Vultr {
    client: Client,
    settings: Settings,
    plans: Batched<Vec<Plan>>,
    keys: Shared,
}

impl Vultr {
    /// The plans of both APIs.
    async fn plans(&self) -> Result<Vec<Plan>, ProviderError> {
        let (virtual_ones, metal) =
            tokio::try_join!(self.client.plans(Mode::Cloud), self.client.plans(Mode::BareMetal))?;
        Ok(virtual_ones.into_iter().chain(metal).collect())
    }

    /// Machines with the prices of their plans; without prices where no plans can be read.
    async fn priced(&self, instances: Vec<Instance>) -> Vec<Instance> {
        let plans = self.plans.recent(KNOWN, Self::OPERATION, || self.plans()).await;
        let price = |id: &str| {
            let mut plans = plans.iter().flat_map(|plans| plans.iter());
            offers::price(plans.find(|plan| plan.id == id)?)
        };
        let priced = |instance: Instance| Instance {
            price: price(&instance.plan),
            ..instance
        };
        instances.into_iter().map(priced).collect()
    }
}

#[async_trait]
impl Service for Vultr {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        let account = self.client.account().await?;
        let facts = [
            ("rights of the user (acls)", "/acls"),
            ("balance in USD, where money paid ahead is negative", "/balance"),
            ("charges that are not billed yet, in USD", "/pending_charges"),
        ];
        Ok(account_facts(&account, &facts))
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let plans = self.plans.fresh(Self::OPERATION, || self.plans()).await?;
        let offered = plans.iter().filter(|plan| plan.mode == self.settings.mode());
        let regions: BTreeSet<&String> = offered.flat_map(|plan| &plan.locations).collect();
        let stock = regions.into_iter().map(async |region| {
            let left = self.client.stock(self.settings.mode(), region).await?;
            Ok((region.clone(), left))
        });
        let stock = try_join_all(stock).await?.into_iter().collect();
        Ok(offers::offers(&plans, &stock, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        let (virtual_ones, metal) = tokio::try_join!(
            self.client.instances(Mode::Cloud),
            self.client.instances(Mode::BareMetal),
        )?;
        let all = virtual_ones.into_iter().chain(metal).collect();
        Ok(self.priced(all).await)
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let (virtual_one, metal) = tokio::try_join!(
            self.client.instance(Mode::Cloud, id),
            self.client.instance(Mode::BareMetal, id),
        )?;
        let found = virtual_one.or(metal).into_iter().collect();
        Ok(self.priced(found).await.pop())
    }

    fn seen(&self, instance: &Instance) -> Option<ProviderMachine> {
        map::machine(instance)
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let plans = self
            .plans
            .recent(PRICE_AGE, Self::OPERATION, || self.plans())
            .await?;
        let plan = plans.iter().find(|plan| plan.id == order.instance_type);
        let sold = plan.and_then(|plan| offers::price(plan).map(|price| (plan.mode, price)));
        let mode = lookup::affordable(Self::CLOUD, sold, order)?;
        let key = self.keys.key(order).await?.id;
        self.client
            .create(mode, map::body(order, settings, mode, &key))
            .await
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        self.client.delete(instance.mode, &instance.id).await?;
        Ok(Deletion::InProgress)
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.keys]
    }
}
