//! Verda (formerly DataCrunch): virtual machines, on demand and spot, over REST.
//!
//! Marks are tags. The shared resources of a Pool (its key, a start-up script) carry its UID in
//! their names.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Credentials, Deletion, ErrorKind, Leftover, Market, Offer, Order,
    ProviderError, ProviderMachine,
    provider::{AccountFact, HostKeys, Idempotency, MarkWriters, Marking, ReclaimNotice, SelfStop},
};
use skyward_provider_kit::{
    Kind, account_facts,
    boot::bare_script,
    http::{Answer, Auth, Batched, Rest, Rule},
    lookup::{self, Ended, PRICE_AGE, Service},
    shared::{SCRIPTS, SSH_KEYS, Shared},
};

use client::{Acted, Client};
use config::Settings;
use errors::{REMEDIES, Refusal, refusal};
use map::TAGS;
use wire::{Instance, InstanceType};

/// Name of this kind of provider.
pub const KIND: &str = "verda";

impl Kind for Verda {
    const CLOUD: &'static str = "Verda";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["region"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;
    const IDENTITY: &'static str = "client";

    fn auth(credentials: &Credentials) -> Result<Auth, ProviderError> {
        let id = credentials.token(config::CLIENT_ID)?.expose().to_owned();
        let secret = credentials.token(config::CLIENT_SECRET)?;
        Ok(Auth::client("/v1/oauth2/token", id, secret, REMEDIES.credentials))
    }

    fn new(rest: Rest, settings: Settings) -> Self {
        let client = Client { rest };
        Self {
            keys: Shared::new(client.keys()),
            scripts: Shared::new(client.scripts()),
            client,
            settings,
            types: Batched::default(),
            ended: Ended::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(30),
    poll_interval: Duration::from_secs(10),
    // A machine that was shut down stays on the bill until it is deleted.
    self_stop: SelfStop::None,
    billing_step: Duration::from_secs(1),
    // By public addresses: there is no network of a Pool's own.
    connected: true,
    boot_script: true,
    // A start-up script is an object of the project, which has room for 100: too few for one with a
    // token for each machine.
    host_keys: HostKeys::FirstContact,
    fuse: true,
    reclaim_notice: ReclaimNotice::None,
    swept: &[SSH_KEYS.one, SCRIPTS.one, VOLUME],
    ..Capabilities::of(KIND)
};

/// One project at Verda, which does not tell its id.
pub struct Verda {
    client: Client,
    settings: Settings,
    types: Batched<Vec<InstanceType>>,
    keys: Shared,
    scripts: Shared,
    /// Machines whose end we ordered: Verda shows them as it shows machines that it took back.
    ended: Ended,
}

impl Verda {
    /// The kind of machine that is ordered, at a price that the order allows.
    async fn kind(&self, order: &Order) -> Result<InstanceType, ProviderError> {
        let types = self
            .types
            .recent(PRICE_AGE, Self::OPERATION, || self.client.types())
            .await?;
        let kind = types
            .iter()
            .find(|kind| kind.instance_type == order.instance_type);
        let sold = kind.and_then(|kind| {
            let price = match order.market {
                Market::OnDemand => kind.price_per_hour.usd(),
                Market::Spot => kind.spot_price?.usd(),
            };
            // 0 means that the type has no price on this market.
            (!price.is_zero()).then(|| (kind.clone(), price))
        });
        lookup::affordable(Self::CLOUD, sold, order)
    }
}

const VOLUME: &str = "volume";

#[async_trait]
impl Service for Verda {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        let balance = self.client.balance().await?;
        Ok(account_facts(
            &balance,
            &[("balance", "/amount"), ("currency of the balance", "/currency")],
        ))
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let (types, locations, on_demand, spot) = tokio::try_join!(
            self.types.fresh(Self::OPERATION, || self.client.types()),
            self.client.locations(),
            self.client.availability(false),
            self.client.availability(true),
        )?;
        let catalogue = offers::Catalogue {
            types: &types,
            locations: &locations,
            on_demand: &on_demand,
            spot: &spot,
        };
        Ok(offers::offers(&catalogue, self.settings.region()))
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
        let kind = self.kind(order).await?;
        let image = settings.image.clone().unwrap_or_else(|| map::image(&kind));
        let key = self.keys.key(order).await?.id;
        let script = match bare_script(order) {
            Some(text) => Some(self.scripts.holding(order, &text).await?.id),
            None => None,
        };
        let body = map::body(order, settings, &image, &key, script.as_deref());
        self.client.deploy(body).await
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        self.ended.add(instance);
        if instance.status == "deleting" {
            return Ok(Deletion::InProgress);
        }
        // Without their ids the disks would stay, in the trash or detached.
        let volumes: BTreeSet<String> = instance
            .volume_ids
            .iter()
            .chain(&instance.os_volume_id)
            .cloned()
            .collect();
        let volumes: Vec<String> = volumes.into_iter().collect();
        let refused = match self.client.delete(&instance.id, &volumes).await {
            Ok(Acted::Done) => return Ok(Deletion::InProgress),
            Ok(Acted::Refused(message)) => {
                ProviderError::new(ErrorKind::Transient, "delete the instance", message)
            }
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(Deletion::InProgress),
            Err(error) => error,
        };
        match refusal(&refused.message) {
            // The next look decides.
            Refusal::Gone | Refusal::NotYet => Ok(Deletion::InProgress),
            Refusal::Other => Err(refused),
        }
    }

    /// A spot machine that is gone and that we did not end was evicted.
    fn taken_back(&self, instance: &Instance) -> bool {
        instance.is_spot && !self.ended.has(instance)
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.keys, &self.scripts]
    }

    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let volumes = self.client.detached_volumes().await?;
        let ours = volumes.into_iter().filter_map(|volume| {
            let mark = TAGS.read(&volume.tags).filter(|mark| mark.cluster == cluster)?;
            (volume.status == "detached" && volume.instance_id.is_none()).then(|| Leftover {
                kind: VOLUME,
                id: volume.id,
                region: volume.location.unwrap_or_default(),
                pool_uid: mark.pool_uid,
            })
        });
        Ok(ours.collect())
    }

    async fn give_back(&self, volume: &Leftover) -> Result<(), ProviderError> {
        self.client.remove_volume(&volume.id).await
    }
}
