//! Verda (formerly DataCrunch): virtual machines, on demand and spot, over REST.
//!
//! Marks are tags. What the machines of a Pool share (its key, a start-up script) carries
//! its UID in the name.

pub mod client;
pub mod config;
mod ended;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{collections::BTreeSet, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Account, Capabilities, CredentialKey, Deletion, ErrorKind, Leftover, Mark, Market, Offer, Order,
    ProviderError, ProviderMachine,
    provider::{HostKeys, Idempotency, MarkWriters, Marking, ReclaimNotice, SelfStop},
};
use tokio::time::Instant;

use client::{Acted, Client};
use config::Settings;
use ended::Ended;
use errors::{Refusal, refusal};
use skyward_provider_kit::{
    Connected, Kind, digest,
    http::{Batched, Http, Setup},
    lookup::{self, Listed, Maker, Service},
    marks, same_key,
};
use wire::{Instance, InstanceType};

/// Name of this kind of provider.
pub const KIND: &str = "verda";
/// How old prices may be that an order is compared with.
const PRICE_AGE: Duration = Duration::from_mins(5);

/// What the registry knows of this folder.
pub struct VerdaKind;

impl Kind for VerdaKind {
    const NAME: &'static str = KIND;
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINTS: &'static [(&'static str, &'static str)] = &[client::ENDPOINT];
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const FIXED: &'static [&'static str] = &["region"];
    type Settings = Settings;

    fn connect(account: Account<Settings>) -> Connected {
        let id = account.credentials.token(config::CLIENT_ID)?.expose().to_owned();
        let secret = account.credentials.token(config::CLIENT_SECRET)?;
        // Verda tells no id of a project. That of the client stands for it, hashed, since
        // it comes out of a Secret.
        let account_id = format!("client-{}", digest(&id, 16));
        let http = Http::new(Setup {
            cloud: "Verda",
            base: account.endpoints.or_own(client::ENDPOINT),
            auth: client::auth(id, secret),
            limits: client::limits(),
            request_timeout: account.request_timeout,
            fence: account.fence,
        })?;
        let verda = Verda {
            client: Client::new(http),
            settings: account.settings.clone(),
            account_id,
            types: Batched::default(),
            keys: Batched::default(),
            scripts: Batched::default(),
            made: Maker::default(),
            ended: Ended::default(),
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
    keys: Batched<Vec<wire::SshKey>>,
    scripts: Batched<Vec<wire::Script>>,
    /// Keys and scripts that were just made.
    made: Maker,
    /// Machines whose end we ordered: their disappearance is no eviction.
    ended: Ended,
}

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.clone()
    }

    fn mark(&self) -> Option<Mark> {
        map::mark(&self.tags)
    }

    fn gone(&self) -> bool {
        map::gone(self)
    }
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
        // 0 is what has no price on this market.
        let price = price.map(|price| price.0).filter(|price| !price.is_zero());
        let price = price.ok_or_else(|| lookup::not_sold("Verda", order))?;
        lookup::affordable(Some(price), order)?;
        Ok(kind.clone())
    }

    /// Id of the key of the order's Pool.
    async fn key(&self, order: &Order, since: Instant) -> Result<String, ProviderError> {
        let name = marks::pool_name(&order.mark.cluster, &order.mark.pool_uid);
        let keys = self.keys.fresh(Self::OPERATION, || self.client.keys()).await?;
        let same = |key: &&wire::SshKey| key.name == name && same_key(&key.key, &order.authorized_key);
        if let Some(found) = keys.iter().find(same) {
            return Ok(found.id.clone());
        }
        let memory = format!("{name}/{}", digest(&order.authorized_key, 12));
        self.made
            .make(
                memory,
                since,
                self.client.add_key(&name, order.authorized_key.trim()),
            )
            .await
    }

    /// Id of the start-up script of the order.
    async fn script(&self, order: &Order, since: Instant) -> Result<Option<String>, ProviderError> {
        if order.boot_script.is_empty() {
            return Ok(None);
        }
        let text = format!("#!/bin/sh\n{}", order.boot_script);
        let name = marks::content_name(&order.mark.cluster, &order.mark.pool_uid, &text);
        let scripts = self
            .scripts
            .fresh(Self::OPERATION, || self.client.scripts())
            .await?;
        if let Some(found) = scripts.iter().find(|script| script.name == name) {
            return Ok(Some(found.id.clone()));
        }
        self.made
            .make(name.clone(), since, self.client.add_script(&name, &text))
            .await
            .map(Some)
    }
}

const SSH_KEY: &str = "SSH key";
const SCRIPT: &str = "start-up script";
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
        let since = Instant::now();
        let kind = self.kind(order).await?;
        let image = settings.image.clone().unwrap_or_else(|| map::image(&kind));
        let key = self.key(order, since).await?;
        let script = self.script(order, since).await?;
        let body = map::body(order, settings, &image, &key, script.as_deref());
        self.client.deploy(body).await
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        self.ended.note(&instance.id);
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
            // The next look says so.
            Refusal::Gone | Refusal::NotYet => Ok(Deletion::InProgress),
            Refusal::Other => Err(refused),
        }
    }

    /// A spot machine that is gone and that we did not end was evicted.
    fn taken_back(&self, instance: &Instance) -> bool {
        instance.is_spot && !self.ended.has(&instance.id)
    }

    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let named = |kind, id: &str, name: &str| {
            marks::pool_of(cluster, name).map(|pool_uid| Leftover {
                kind,
                id: id.to_owned(),
                region: String::new(),
                pool_uid,
            })
        };
        let (keys, scripts, volumes) = tokio::try_join!(
            self.client.keys(),
            self.client.scripts(),
            self.client.detached_volumes()
        )?;
        let keys = keys.iter().filter_map(|key| named(SSH_KEY, &key.id, &key.name));
        let scripts = scripts
            .iter()
            .filter_map(|script| named(SCRIPT, &script.id, &script.name));
        let volumes = volumes.iter().filter_map(|volume| {
            let mark = map::mark(&volume.tags).filter(|mark| mark.cluster == cluster)?;
            (volume.status == "detached" && volume.instance_id.is_none()).then(|| Leftover {
                kind: VOLUME,
                id: volume.id.clone(),
                region: volume.location.clone().unwrap_or_default(),
                pool_uid: mark.pool_uid,
            })
        });
        Ok(keys.chain(scripts).chain(volumes).collect())
    }

    async fn give_back(&self, thing: &Leftover) -> Result<(), ProviderError> {
        match thing.kind {
            SSH_KEY => self.client.remove_key(&thing.id).await,
            SCRIPT => self.client.remove_script(&thing.id).await,
            _ => self.client.remove_volume(&thing.id).await,
        }
    }
}
