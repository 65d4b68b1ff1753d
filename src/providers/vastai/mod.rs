//! Vast.ai: a marketplace of containers with GPUs, on demand and for bids.
//!
//! Marks are labels. An offer stands for a group of asks, each of which can be had once: an
//! order takes the cheapest that fits and, when it is taken already, the next. Nothing is
//! shared between the machines of a Pool, and the keys of the account, which Vast.ai would
//! push to every machine, are never touched.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::Value;
use skyward_core::{
    Account, Capabilities, CredentialKey, Deletion, ErrorKind, Mark, Market, Offer, Order, ProviderError,
    ProviderMachine,
    provider::{HostKeys, Idempotency, Marking, ReclaimNotice, SelfStop},
};
use tokio::time::Instant;

use crate::{
    http::{Auth, Http, Setup},
    lookup::{self, Listed, Service},
    registry::{Connected, Kind},
};
use client::Client;
use config::Settings;
use offers::Group;
use wire::{Ask, Instance};

/// Name of this kind of provider.
pub const KIND: &str = "vastai";
/// Asks that one order tries.
const TRIES: usize = 5;
/// Most asks that offers are made from.
const ASKS: u32 = 5000;
/// How long a host that ran may be silent before its machine counts as lost.
const SILENCE: Duration = Duration::from_mins(5);

/// What the registry knows of this folder.
pub struct VastAiKind;

impl Kind for VastAiKind {
    const NAME: &'static str = KIND;
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINTS: &'static [(&'static str, &'static str)] = &[client::ENDPOINT];
    type Settings = Settings;

    fn connect(account: Account<Settings>) -> Connected {
        let http = Http::new(Setup {
            cloud: "Vast.ai",
            base: account.endpoints.or_own(client::ENDPOINT),
            auth: Auth::Bearer(account.credentials.token(config::API_KEY)?),
            limits: client::limits(),
            request_timeout: account.settings.request_timeout(),
        })?;
        let vastai = VastAi {
            client: Client::new(http),
            settings: account.settings.clone(),
            silent: Mutex::default(),
        };
        lookup::provider(&account.settings, vastai)
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Name,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(30),
    poll_interval: Duration::from_secs(10),
    // A container may destroy itself with the key that Vast.ai gives it.
    self_stop: SelfStop::EndsBilling,
    // The key is in the environment of the first process only, which root alone can read,
    // and goes in on standard input, where nobody can read it.
    stop_command: Some(
        "( eval \"$(tr '\\0' '\\n' </proc/1/environ | grep -E '^CONTAINER_(API_KEY|ID)=[A-Za-z0-9._-]+$')\"; printf 'header = \"Authorization: Bearer %s\"\\n' \"$CONTAINER_API_KEY\" | curl -fsS -m 30 -K - -X DELETE \"https://console.vast.ai/api/v0/instances/${CONTAINER_ID#C.}/\" ) || kill -TERM 1",
    ),
    billing_step: Duration::from_mins(1),
    connected: false,
    boot_script: true,
    host_keys: HostKeys::FirstContact,
    // Containers without CAP_SYS_ADMIN.
    fuse: false,
    reclaim_notice: ReclaimNotice::None,
    hidden_environment: &["CONTAINER_API_KEY", "JUPYTER_TOKEN"],
    ..Capabilities::of(KIND)
};

/// One account at Vast.ai.
struct VastAi {
    client: Client,
    settings: Settings,
    /// Since when hosts are silent, by machine.
    silent: Mutex<BTreeMap<u64, Instant>>,
}

impl Listed for Instance {
    fn id(&self) -> String {
        self.id.to_string()
    }

    fn mark(&self) -> Option<Mark> {
        map::mark(self.label.as_deref()?)
    }

    fn gone(&self) -> bool {
        map::gone(self)
    }
}

impl VastAi {
    /// Whether the host of a machine has been silent for too long.
    fn lost(&self, instance: &Instance) -> bool {
        let mut silent = self.silent.lock().unwrap_or_else(PoisonError::into_inner);
        if map::silent(instance) {
            silent.entry(instance.id).or_insert_with(Instant::now).elapsed() > SILENCE
        } else {
            silent.remove(&instance.id);
            false
        }
    }

    /// Asks that will do for an order, the cheapest first, each with the bid for it.
    async fn asks(
        &self,
        order: &Order,
        settings: &Settings,
    ) -> Result<Vec<(Ask, Option<rust_decimal::Decimal>)>, ProviderError> {
        let group = Group::parse(&order.instance_type).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::InvalidOrder,
                "create the instance",
                format!(
                    "\"{}\" is no instance type of Vast.ai; take one from kubectl get offers",
                    order.instance_type
                ),
            )
        })?;
        let disk = map::disk_gb(order, settings);
        let query = offers::query_of(&group, order.market, settings, disk);
        let multiplier = settings.bid_multiplier();
        let mut asks = Vec::new();
        for ask in self.client.search(query).await? {
            let enough = order.vcpus.is_none_or(|vcpus| offers::vcpus(&ask) >= vcpus)
                && order
                    .memory_gb
                    .is_none_or(|memory| offers::memory_gb(&ask) >= memory)
                && ask.disk_space >= f64::from(disk);
            if !enough || !offers::fits(&ask, settings) || Group::of(&ask).as_ref() != Some(&group) {
                continue;
            }
            match order.market {
                Market::OnDemand => {
                    let price = offers::price(&ask, Market::OnDemand, multiplier);
                    if let Some(price) =
                        price.filter(|price| order.price_ceiling.is_none_or(|most| *price <= most))
                    {
                        asks.push((price, ask, None));
                    }
                }
                Market::Spot => {
                    if let Some(bid) = offers::bid_for(&ask, multiplier, order.price_ceiling) {
                        asks.push((bid, ask, Some(bid)));
                    }
                }
            }
        }
        asks.sort_by_key(|(price, ask, _)| (*price, ask.id));
        Ok(asks.into_iter().map(|(_, ask, bid)| (ask, bid)).collect())
    }
}

#[async_trait]
impl Service for VastAi {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    // Its calls keep a distance of seconds.
    const OPERATION: Duration = Duration::from_secs(50);

    async fn account(&self) -> Result<String, ProviderError> {
        Ok(self.client.user().await?.id.to_string())
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let query = |market| {
            Value::Object(offers::query(
                market,
                &self.settings,
                self.settings.disk_gb(),
                ASKS,
            ))
        };
        let on_demand = self.client.search(query(Market::OnDemand)).await?;
        let bids = self.client.search(query(Market::Spot)).await?;
        Ok(offers::offers(&on_demand, &bids, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        self.client.instances().await
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        self.client.instance(id).await
    }

    fn seen(&self, instance: &Instance) -> Option<ProviderMachine> {
        map::machine(instance, &self.settings, self.lost(instance))
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let mut refused = ProviderError::new(
            ErrorKind::NoCapacity,
            "create the instance",
            format!(
                "nobody rents out {} at the recorded price any more",
                order.instance_type
            ),
        );
        for (ask, bid) in self.asks(order, settings).await?.into_iter().take(TRIES) {
            match self.client.rent(ask.id, map::body(order, settings, bid)?).await {
                Ok(id) => {
                    // The start-up script lets the key in as well: this is only for hosts
                    // on which that comes late, and may fail while the image is loaded.
                    if let Err(error) = self.client.attach_key(id, order.authorized_key.trim()).await {
                        tracing::debug!(%error, "the start-up script will let the key in");
                    }
                    return Ok(id.to_string());
                }
                // Somebody was quicker.
                Err(error) if error.kind == ErrorKind::NoCapacity => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        self.silent
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&instance.id);
        self.client.destroy(instance.id).await?;
        Ok(Deletion::InProgress)
    }
}
