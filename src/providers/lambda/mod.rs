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
    Account, Capabilities, CredentialKey, Deletion, Offer, Order, ProviderError, ProviderMachine,
    provider::{Idempotency, MarkWriters, Marking, SelfStop},
};
use skyward_provider_kit::{
    Connected, Kind, account_id,
    http::{Auth, Batched, Http, Setup},
    lookup::{self, PRICE_AGE, Service},
    shared::Shared,
};

use client::Client;
use config::Settings;
use wire::{Instance, TypeItem};

/// Name of this kind of provider.
pub const KIND: &str = "lambda";

/// This folder, for the registry.
pub struct LambdaKind;

impl Kind for LambdaKind {
    const NAME: &'static str = KIND;
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINTS: &'static [(&'static str, &'static str)] = &[client::ENDPOINT];
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const FIXED: &'static [&'static str] = &["region"];
    type Settings = Settings;

    fn connect(account: Account<Settings>) -> Connected {
        let key = account.credentials.token(config::API_KEY)?;
        // Lambda does not tell the id of an account: a digest of the key stands for it.
        let account_id = account_id("key", &key);
        let auth = Auth::Bearer(key);
        let setup = Setup::of(&account, "Lambda", client::ENDPOINT, auth, client::limits());
        let client = Client::new(Http::new(setup)?);
        let lambda = Lambda {
            keys: Shared::new(client.keys()),
            client,
            settings: account.settings.clone(),
            account_id,
            types: Batched::default(),
        };
        lookup::provider(&account.settings, lambda)
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
    fuse: true,
    ..Capabilities::of(KIND)
};

/// One account at Lambda.
struct Lambda {
    client: Client,
    settings: Settings,
    account_id: String,
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

    async fn account(&self) -> Result<String, ProviderError> {
        self.client.instances().await?;
        Ok(self.account_id.clone())
    }

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
        let kind = types
            .get(&order.instance_type)
            .ok_or_else(|| lookup::not_sold("Lambda", order))?;
        lookup::affordable(Some(kind.instance_type.price()), order)?;
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
