//! Massed Compute: virtual machines with GPUs, on demand and spot, over REST.
//!
//! There are no tags. The mark of a machine is its start-up command, and its name as well: it is known by either,
//! should a name be cut or changed. The machines of a Pool share its key, which carries the Pool's UID in its
//! name. A machine that Massed Compute does not show counts as there for a while ([`Shown`]): an unknown id and a
//! machine that is not listed yet look alike.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::time::Duration;

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, Market, Offer, Order, ProviderError, ProviderMachine,
    provider::{MarkWriters, Regions},
};
use skyward_provider_kit::{
    Kind,
    http::{Answer, Batched, Rest, Rule},
    lookup::{self, Ended, Service},
    shared::{SSH_KEYS, Shared},
    shown::Shown,
};

use client::Client;
use config::Settings;
use wire::{Instance, Inventory};

/// Name of this kind of provider.
pub const KIND: &str = "massedcompute";

impl Kind for MassedCompute {
    const CLOUD: &'static str = "Massed Compute";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &[];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, _settings: Settings) -> Self {
        let client = Client { rest };
        Self {
            keys: Shared::plain(client.keys()),
            client,
            inventory: Batched::default(),
            shown: Shown::new(CAPABILITIES.settle_time),
            ended: Ended::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    mark_writers: MarkWriters::Account,
    // Longer than a list may lack a machine.
    settle_time: Duration::from_secs(90),
    billing_step: Duration::from_mins(1),
    // By their public addresses: nothing filters what comes in.
    connected: true,
    fuse: true,
    regions: Regions::None,
    swept: &[SSH_KEYS.one],
    ..Capabilities::of(KIND)
};

/// One account at Massed Compute, which does not tell its id.
pub struct MassedCompute {
    client: Client,
    keys: Shared,
    inventory: Batched<Inventory>,
    /// Machines as they were shown last.
    shown: Shown<Instance>,
    /// Machines whose end we ordered.
    ended: Ended,
}

#[async_trait]
impl Service for MassedCompute {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    // Its calls keep a distance of a second.
    const OPERATION: Duration = Duration::from_secs(50);
    const DROPS_TAKEN: bool = true;

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let inventory = || self.client.inventory();
        let inventory = self.inventory.fresh(Self::OPERATION, inventory).await?;
        Ok(offers::offers(&inventory))
    }

    async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        Ok(self.shown.complete(self.client.instances().await?))
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let found = self.client.instance(id).await?;
        self.shown.judge(client::LOOK, id, found)
    }

    fn seen(&self, instance: &Instance) -> Option<ProviderMachine> {
        map::machine(instance, self.ended.has(instance))
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        // What is in stock changes within minutes.
        let inventory = || self.client.inventory();
        let inventory = self.inventory.fresh(Self::OPERATION, inventory).await?;
        let sold = offers::sold(&inventory, &order.instance_type, order.market);
        let product = lookup::affordable(Self::CLOUD, sold, order)?;
        let key = self.keys.key(order).await?;
        let body = map::body(order, settings, &product, &key.name)?;
        let id = self.client.launch(body.clone()).await?;
        self.shown.see(&map::ordered(&id, &body));
        Ok(id)
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        self.ended.add(instance);
        lookup::until_unseen(self.client.terminate(&instance.uuid).await)
    }

    /// A spot machine that is gone and whose end we did not order was taken back.
    fn taken_back(&self, instance: &Instance) -> bool {
        instance.is_spot() && !self.ended.has(instance)
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.keys]
    }
}
