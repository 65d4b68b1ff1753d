//! Lambda Cloud: virtual machines with GPUs, on demand only, over REST.
//!
//! Marks are tags. The machines of a Pool share its key, which carries the Pool's UID in its name:
//! orders know keys by name.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, Offer, Order, ProviderError, ProviderMachine,
    provider::{HostKeys, Idempotency, MarkWriters, Marking, SelfStop},
};
use skyward_provider_kit::{
    Kind,
    http::{Answer, Batched, Rest, Rule},
    lookup::{self, PRICE_AGE, Service},
    shared::{SSH_KEYS, Shared},
};

use client::Client;
use config::Settings;
use wire::{Instance, TypeItem};

/// Name of this kind of provider.
pub const KIND: &str = "lambda";

impl Kind for Lambda {
    const CLOUD: &'static str = "Lambda";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["region"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        let client = Client { rest };
        Self {
            keys: Shared::new(client.keys()),
            client,
            settings,
            types: Batched::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(60),
    poll_interval: Duration::from_secs(15),
    // A machine that shut down is billed on.
    self_stop: SelfStop::None,
    billing_step: Duration::from_mins(1),
    // The firewall lets SSH in and nothing else.
    connected: false,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    swept: &[SSH_KEYS.one],
    ..Capabilities::of(KIND)
};

/// One account at Lambda, which does not tell its id.
pub struct Lambda {
    client: Client,
    settings: Settings,
    types: Batched<BTreeMap<String, TypeItem>>,
    keys: Shared,
}

#[async_trait]
impl Service for Lambda {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    // Its calls keep a distance of seconds.
    const OPERATION: Duration = Duration::from_secs(50);

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let regions = self.client.regions().await?;
        let types = self.types.fresh(Self::OPERATION, || self.client.types()).await?;
        Ok(offers::offers(&types, &regions, self.settings.region.as_deref()))
    }

    async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        self.client.instances().await
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        self.client.instance(id).await
    }

    fn seen(&self, instance: &Instance) -> Option<ProviderMachine> {
        map::machine(instance)
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let types = self
            .types
            .recent(PRICE_AGE, Self::OPERATION, || self.client.types())
            .await?;
        let sold = types.get(&order.instance_type);
        let sold = sold.map(|item| (item, item.instance_type.price()));
        lookup::affordable(Self::CLOUD, sold, order)?;
        let key = self.keys.key(order).await?;
        self.client.launch(map::body(order, settings, &key.name)).await
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        if instance.status != "terminating" {
            self.client.terminate(&instance.id).await?;
        }
        Ok(Deletion::InProgress)
    }

    /// There is no spot market, but the state `preempted` exists.
    fn taken_back(&self, instance: &Instance) -> bool {
        instance.status == "preempted"
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.keys]
    }
}
