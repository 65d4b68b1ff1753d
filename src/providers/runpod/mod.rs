//! RunPod: containers with GPUs, on demand over REST v2 and spot over GraphQL.
//!
//! Marks are in the environment of a pod, which the API shows. Nothing is shared between
//! the machines of a Pool: its key goes into each one's environment, and the keys of the
//! account are never touched.

pub mod client;
pub mod config;
pub mod errors;
pub mod kind;
pub mod map;
pub mod offers;
pub mod wire;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, ErrorKind, Market, Offer, Order, ProviderError, ProviderMachine,
    Usd,
    provider::{Halted, HostKeys, Idempotency, Marking, ReclaimNotice, Regions, SelfStop},
};
use skyward_provider_kit::{
    Amount, Kind as _,
    http::{Answer, Batched, Rest},
    lookup::{self, PRICE_AGE, Service},
};

use client::Client;
use config::{CloudType, DEFAULT_REGISTRY, Settings};
use kind::{Cloud, Kind};
use wire::{Cpu, DataCenter, Gpu, Pod, Registry};

/// Name of this kind of provider.
pub const KIND: &str = "runpod";
/// Greatest age of data that rarely changes: data centers and registry credentials.
const RARELY: Duration = Duration::from_mins(5);

impl skyward_provider_kit::Kind for RunPod {
    const CLOUD: &'static str = "RunPod";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["cloudType", "cpuClock"];
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        Self {
            client: Client { rest },
            settings,
            centers: Batched::default(),
            registries: Batched::default(),
            secure: Batched::default(),
            community: Batched::default(),
            cpus: Batched::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Environment,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(30),
    poll_interval: Duration::from_secs(5),
    // A pod can terminate itself with the key that RunPod gives it.
    self_stop: SelfStop::EndsBilling,
    // The key is in the environment of the first process only, which root alone can read.
    stop_command: Some(
        "( set -a; eval \"$(tr '\\0' '\\n' </proc/1/environ | grep -E '^RUNPOD_(API_KEY|POD_ID)=[A-Za-z0-9_-]+$')\"; runpodctl remove pod \"$RUNPOD_POD_ID\" ) || kill -TERM 1",
    ),
    billing_step: Duration::from_secs(1),
    // By the global network, where the offer says so.
    connected: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    // Containers without CAP_SYS_ADMIN.
    fuse: false,
    reclaim_notice: ReclaimNotice::None,
    halted: Halted::Disk,
    regions: Regions::None,
    // Images of many GB are loaded while SSH answers already.
    bootstrap_timeout: Duration::from_mins(10),
    hidden_environment: &[
        "RUNPOD_API_KEY",
        "PUBLIC_KEY",
        "SKYWARD_BOOT",
        "SKYWARD_MARK",
        "SKYWARD_MARKET",
        "JUPYTER_PASSWORD",
    ],
    ..Capabilities::of(KIND)
};

/// One account at RunPod.
pub struct RunPod {
    client: Client,
    settings: Settings,
    centers: Batched<Vec<DataCenter>>,
    registries: Batched<Vec<Registry>>,
    secure: Batched<Vec<Gpu>>,
    community: Batched<Vec<Gpu>>,
    cpus: Batched<Vec<Cpu>>,
}

impl RunPod {
    async fn centers(&self) -> Result<Arc<Vec<DataCenter>>, ProviderError> {
        self.centers
            .recent(RARELY, Self::OPERATION, || self.client.data_centers())
            .await
    }

    /// Id of the stored registry credential of these settings.
    async fn registry(&self, settings: &Settings) -> Result<Option<String>, ProviderError> {
        let name = settings.registry_auth.as_deref().unwrap_or(DEFAULT_REGISTRY);
        if name.is_empty() {
            return Ok(None);
        }
        let stored = self
            .registries
            .recent(RARELY, Self::OPERATION, || self.client.registries())
            .await?;
        let found = stored.iter().find(|one| one.name.eq_ignore_ascii_case(name));
        if found.is_none() && settings.registry_auth.is_some() {
            return Err(ProviderError::new(
                ErrorKind::InvalidOrder,
                "create the pod",
                format!(
                    "RunPod stores no registry credential named \"{name}\". Add it in the console (Settings, Container Registry Auth), or correct runpod.registryAuth of the Provider"
                ),
            ));
        }
        Ok(found.map(|one| one.id.clone()))
    }

    /// Where a machine may stand.
    async fn places(&self, kind: &Kind, settings: &Settings) -> Result<Vec<String>, ProviderError> {
        let Kind::Gpu {
            cloud: Cloud::Networked,
            ..
        } = kind
        else {
            return Ok(settings.data_center_ids.clone());
        };
        let centers = self.centers().await?;
        let allowed =
            |id: &String| settings.data_center_ids.is_empty() || settings.data_center_ids.contains(id);
        let places: Vec<String> = centers
            .iter()
            .filter(|center| center.global_network)
            .map(|center| center.id.clone())
            .filter(allowed)
            .collect();
        if places.is_empty() {
            return Err(ProviderError::new(
                ErrorKind::NoCapacity,
                "create the pod",
                "none of the data centers of runpod.dataCenterIds is part of RunPod's global network, by which machines reach each other",
            ));
        }
        Ok(places)
    }

    /// What one GPU of each kind costs in a cloud, as it was last read.
    fn singles(&self, cloud: Cloud) -> &Batched<Vec<Gpu>> {
        match cloud {
            Cloud::Community => &self.community,
            Cloud::Secure | Cloud::Networked => &self.secure,
        }
    }

    /// What a machine costs on demand by the hour, where the catalogue says so.
    async fn price(&self, kind: &Kind) -> Result<Option<Usd>, ProviderError> {
        match kind {
            Kind::Gpu { id, count, cloud } => {
                let look = || self.client.gpus(cloud.as_str(), 1);
                let gpus = self
                    .singles(*cloud)
                    .recent(PRICE_AGE, Self::OPERATION, look)
                    .await?;
                Ok(offers::price_of_gpus(&gpus, id, *count, *cloud))
            }
            Kind::Cpu { flavour, vcpus } => {
                let look = || self.client.cpus();
                let cpus = self.cpus.recent(PRICE_AGE, Self::OPERATION, look).await?;
                Ok(offers::price_of_cpus(&cpus, flavour, *vcpus))
            }
        }
    }

    /// The bid for each GPU of an order.
    async fn bid(&self, order: &Order, kind: &Kind, settings: &Settings) -> Result<Usd, ProviderError> {
        let none =
            |message: String| ProviderError::new(ErrorKind::NoCapacity, "create the spot pod", message);
        let Kind::Gpu { id, count, cloud } = kind else {
            return Err(none("RunPod has no spot machines without GPUs".to_owned()));
        };
        let secure = *cloud != Cloud::Community;
        let lowest = self
            .client
            .bid(id, *count, secure)
            .await?
            .and_then(|gpu| gpu.lowest_price?.minimum_bid)
            .map(Amount::usd)
            .filter(|lowest| !lowest.is_zero())
            .ok_or_else(|| none(format!("RunPod has no {kind} on the spot market now")))?;
        map::bid(lowest, settings.bid_multiplier(), *count, order.max_hourly_cost).ok_or_else(|| {
            none(format!(
                "bids begin at {} USD/h for each GPU now, above the price that was recorded",
                lowest.exact()
            ))
        })
    }

    /// The catalogue of one cloud. Its prices are kept: an order is never compared with prices that
    /// are older than the prices of its offer.
    async fn catalogue(&self, cloud: Cloud) -> Result<offers::Catalogue, ProviderError> {
        let mut gpus = BTreeMap::new();
        for count in offers::COUNTS {
            let look = || self.client.gpus(cloud.as_str(), count);
            let found = if count == 1 {
                let found = self.singles(cloud).fresh(Self::OPERATION, look).await?;
                found.as_ref().clone()
            } else {
                look().await?
            };
            gpus.insert(count, found);
        }
        let spot = self.client.spot_prices(cloud != Cloud::Community).await?;
        Ok(offers::Catalogue { gpus, spot })
    }
}

#[async_trait]
impl Service for RunPod {
    type Settings = Settings;
    type Machine = Pod;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;

    async fn account(&self) -> Result<Option<String>, ProviderError> {
        self.client.who().await.map(Some)
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let clouds: &[Cloud] = match self.settings.cloud_type.unwrap_or_default() {
            CloudType::Secure => &[Cloud::Secure],
            CloudType::Community => &[Cloud::Community],
            CloudType::All => &[Cloud::Secure, Cloud::Community],
        };
        let centers = self.centers().await?;
        let mut all = Vec::new();
        for cloud in clouds {
            let catalogue = self.catalogue(*cloud).await?;
            all.extend(offers::gpus(*cloud, &catalogue, &centers, &self.settings));
        }
        if clouds.contains(&Cloud::Secure) {
            let cpus = self.cpus.fresh(Self::OPERATION, || self.client.cpus()).await?;
            all.extend(offers::cpus(&cpus, &self.settings));
        }
        Ok(all)
    }

    async fn machines(&self) -> Result<Vec<Pod>, ProviderError> {
        self.client.pods().await
    }

    async fn machine(&self, id: &str) -> Result<Option<Pod>, ProviderError> {
        self.client.pod(id).await
    }

    fn seen(&self, pod: &Pod) -> Option<ProviderMachine> {
        map::machine(pod)
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let kind = map::kind(order)?;
        let (registry, data_centers) =
            tokio::try_join!(self.registry(settings), self.places(&kind, settings))?;
        let mut found = map::Found {
            registry,
            data_centers,
            bid: None,
        };
        match order.market {
            Market::OnDemand => {
                let body = map::body(order, settings, &found)?;
                let sold = self.price(&kind).await?.map(|price| (body, price));
                let body = lookup::affordable(Self::CLOUD, sold, order)?;
                self.client.deploy(body).await
            }
            Market::Spot => {
                found.bid = Some(self.bid(order, &kind, settings).await?);
                self.client.rent(map::input(order, settings, &found)?).await
            }
        }
    }

    async fn end(&self, pod: &Pod) -> Result<Deletion, ProviderError> {
        self.client.terminate(&pod.id).await?;
        Ok(Deletion::InProgress)
    }
}
