//! Lambda Cloud: virtual machines with GPUs, on demand only, over REST.
//!
//! Marks are tags. What the machines of a Pool share is its key, which carries the Pool's UID
//! in its name: Lambda knows keys by name.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{collections::BTreeMap, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Account, Capabilities, CredentialKey, Deletion, ErrorKind, Leftover, Mark, Offer, Order, ProviderError,
    ProviderMachine,
    provider::{Idempotency, MarkWriters, Marking, SelfStop},
};
use tokio::time::Instant;

use client::Client;
use config::Settings;
use skyward_provider_kit::{
    Connected, Kind, digest,
    http::{Auth, Batched, Http, Setup},
    lookup::{self, Listed, Maker, Service},
    marks, same_key,
};
use wire::{Instance, SshKey, TypeItem};

/// Name of this kind of provider.
pub const KIND: &str = "lambda";
/// How old prices may be that an order is compared with.
const PRICE_AGE: Duration = Duration::from_mins(5);

/// What the registry knows of this folder.
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
        // Lambda tells no id of an account. That of the key stands for it, hashed.
        let account_id = format!("key-{}", digest(key.expose(), 16));
        let http = Http::new(Setup {
            cloud: "Lambda",
            base: account.endpoints.or_own(client::ENDPOINT),
            auth: Auth::Bearer(key),
            limits: client::limits(),
            request_timeout: account.request_timeout,
            fence: account.fence,
        })?;
        let lambda = Lambda {
            client: Client::new(http),
            settings: account.settings.clone(),
            account_id,
            types: Batched::default(),
            keys: Batched::default(),
            made: Maker::default(),
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
    // A machine cannot be stopped, and one that was shut down stays on the bill.
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
    keys: Batched<Vec<SshKey>>,
    /// Keys that were just made.
    made: Maker,
}

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        map::mark(self)
    }

    fn gone(&self) -> bool {
        map::gone(self)
    }
}

impl Lambda {
    /// Name of the key of the order's Pool, which is there now.
    async fn key(&self, order: &Order) -> Result<String, ProviderError> {
        let since = Instant::now();
        let key = order.authorized_key.trim();
        let name = marks::content_name(&order.mark.cluster, &order.mark.pool_uid, key);
        let keys = self.keys.fresh(Self::OPERATION, || self.client.keys()).await?;
        if keys
            .iter()
            .any(|there| there.name == name && same_key(&there.public_key, key))
        {
            return Ok(name);
        }
        let adding = async {
            match self.client.add_key(&name, key).await {
                // Lambda does not tell a name that is taken from another mistake.
                Err(error) if matches!(error.kind, ErrorKind::AlreadyExists | ErrorKind::InvalidOrder) => {
                    let keys = self.client.keys().await?;
                    let there = keys.into_iter().find(|there| there.name == name);
                    there.map(|there| there.id).ok_or(error)
                }
                added => added,
            }
        };
        self.made.make(name.clone(), since, adding).await?;
        Ok(name)
    }
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
        let key = self.key(order).await?;
        self.client.launch(map::body(order, settings, &key)).await
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        if instance.status != "terminating" {
            self.client.terminate(&instance.id).await?;
        }
        Ok(Deletion::InProgress)
    }

    /// There is no spot market, but a word for it among the states.
    fn taken_back(&self, instance: &Instance) -> bool {
        instance.status == "preempted"
    }

    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let keys = self.client.keys().await?;
        let ours = |key: SshKey| {
            marks::pool_of(cluster, &key.name).map(|pool_uid| Leftover {
                kind: "SSH key",
                id: key.id,
                region: String::new(),
                pool_uid,
            })
        };
        Ok(keys.into_iter().filter_map(ours).collect())
    }

    async fn give_back(&self, thing: &Leftover) -> Result<(), ProviderError> {
        self.client.remove_key(&thing.id).await
    }
}
