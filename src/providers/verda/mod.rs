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
    Account, Capabilities, CredentialKey, Deletion, ErrorKind, Leftover, Market, Offer, Order, ProviderError,
    ProviderMachine,
    provider::{HostKeys, Idempotency, MarkWriters, Marking, ReclaimNotice, SelfStop},
};
use skyward_provider_kit::{
    Cache, Connected, Kind, account_id,
    boot::bare_script,
    http::{Batched, Http, Setup},
    lookup::{self, PRICE_AGE, Service},
    shared::Shared,
};

use client::{Acted, Client};
use config::Settings;
use errors::{Refusal, refusal};
use map::TAGS;
use wire::{Instance, InstanceType};

/// Name of this kind of provider.
pub const KIND: &str = "verda";
/// How long an ordered end is remembered: it is ordered again until Verda says that the machine is
/// gone, and then the machine is not looked at any more. Lists do not decide this: they may lag,
/// and a machine is still shown by its id when they have dropped it.
const REMEMBERED: Duration = Duration::from_hours(1);
/// Most ends that are remembered: more than an account can order in that time.
const ENDED: usize = 1 << 16;

/// This folder, for the registry.
pub struct VerdaKind;

impl Kind for VerdaKind {
    const NAME: &'static str = KIND;
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINTS: &'static [(&'static str, &'static str)] = &[client::ENDPOINT];
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const FIXED: &'static [&'static str] = &["region"];
    type Settings = Settings;

    fn connect(account: Account<Settings>) -> Connected {
        let id = account.credentials.token(config::CLIENT_ID)?;
        let secret = account.credentials.token(config::CLIENT_SECRET)?;
        // Verda does not tell the id of a project: a digest of the client id, which comes from a
        // Secret, stands for it.
        let account_id = account_id("client", &id);
        let auth = client::auth(id.expose().to_owned(), secret);
        let setup = Setup::of(&account, "Verda", client::ENDPOINT, auth, client::limits());
        let client = Client::new(Http::new(setup)?);
        let verda = Verda {
            keys: Shared::new(client.keys()),
            scripts: Shared::new(client.scripts()),
            client,
            settings: account.settings.clone(),
            account_id,
            types: Batched::default(),
            ended: Cache::new(REMEMBERED, ENDED),
        };
        lookup::provider(&account.settings, verda)
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
    host_keys: HostKeys::FirstContact,
    fuse: true,
    reclaim_notice: ReclaimNotice::None,
    ..Capabilities::of(KIND)
};

/// One project at Verda.
struct Verda {
    client: Client,
    settings: Settings,
    account_id: String,
    types: Batched<Vec<InstanceType>>,
    keys: Shared,
    scripts: Shared,
    /// Machines whose end we ordered: Verda shows them as it shows machines that it took back.
    ended: Cache<String, ()>,
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
            .find(|kind| kind.instance_type == order.instance_type)
            .ok_or_else(|| lookup::not_sold("Verda", order))?;
        let price = match order.market {
            Market::OnDemand => Some(kind.price_per_hour),
            Market::Spot => kind.spot_price,
        };
        // 0 means that the type has no price on this market.
        let price = price.map(|price| price.0).filter(|price| !price.is_zero());
        let price = price.ok_or_else(|| lookup::not_sold("Verda", order))?;
        lookup::affordable(Some(price), order)?;
        Ok(kind.clone())
    }
}

const VOLUME: &str = "volume";

#[async_trait]
impl Service for Verda {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const OPERATION: Duration = Duration::from_secs(45);

    async fn account(&self) -> Result<String, ProviderError> {
        self.client.instances().await?;
        Ok(self.account_id.clone())
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
        self.ended.insert(instance.id.clone(), ());
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
        instance.is_spot && self.ended.known(&instance.id).is_none()
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
