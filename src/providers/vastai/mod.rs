//! Vast.ai: a marketplace of containers with GPUs, on demand and for bids.
//!
//! Marks are labels. An offer stands for a group of asks, each of which can be rented once: an
//! order takes the cheapest that fits and, when it is rented already, the next. The machines of a
//! Pool share only their overlay network, where they stand in one physical cluster; the keys of the
//! account, which Vast.ai would push to every machine, are never touched.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, ErrorKind, Leftover, Market, Offer, Order, ProviderError,
    ProviderMachine, ProviderPhase, Usd,
    error::ErrorClass,
    machine::FailureKind,
    provider::{AccountFact, Halted, HostKeys, Idempotency, Marking, ReclaimNotice, SelfStop},
};
use skyward_provider_kit::{
    Kind, account_facts,
    http::{Answer, Batched, Rest, Rule},
    lookup::{Listed as _, Maker, Service},
    marks,
};
use tokio::time::Instant;

use client::Client;
use config::Settings;
use offers::{Group, OwnBid};
use wire::{Ask, Instance, Overlay};

const OVERLAY: &str = "overlay network";
/// Name of this kind of provider.
pub const KIND: &str = "vastai";
/// Asks that one order tries.
const TRIES: usize = 5;
/// Most asks that offers are made from.
const ASKS: u32 = 5000;
/// Unused entries are forgotten after this.
const FORGOTTEN: Duration = Duration::from_hours(1);
/// How long a host that ran may be silent before its machine counts as lost.
const SILENCE: Duration = Duration::from_mins(5);

impl Kind for VastAi {
    const CLOUD: &'static str = "Vast.ai";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    // A look at a machine needs these settings and has no order with its overrides.
    const FIXED: &'static [&'static str] =
        &["geolocation", "requireDirectPort", "useOverlay", "overlayTimeout"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        Self {
            client: Client::new(rest),
            settings,
            overlays: Batched::default(),
            made: Maker::default(),
            silent: Mutex::default(),
            making: Mutex::default(),
            joins: Mutex::default(),
            bids: Mutex::default(),
        }
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
    // The key is in the environment of the first process only, which root alone can read, and is
    // passed on standard input, which no other process can read.
    stop_command: Some(
        "( eval \"$(tr '\\0' '\\n' </proc/1/environ | grep -E '^CONTAINER_(API_KEY|ID)=[A-Za-z0-9._-]+$')\"; printf 'header = \"Authorization: Bearer %s\"\\n' \"$CONTAINER_API_KEY\" | curl -fsS -m 30 -K - -X DELETE \"https://console.vast.ai/api/v0/instances/${CONTAINER_ID#C.}/\" ) || kill -TERM 1",
    ),
    billing_step: Duration::from_mins(1),
    marketplace: true,
    // In overlay networks.
    connected: true,
    boot_script: true,
    // The image or the host brings the keys, which others may have, and sshd runs before our script.
    host_keys: HostKeys::FirstContact,
    // Containers without CAP_SYS_ADMIN.
    fuse: false,
    reclaim_notice: ReclaimNotice::None,
    halted: Halted::Disk,
    swept: &[OVERLAY],
    hidden_environment: &["CONTAINER_API_KEY", "JUPYTER_TOKEN"],
    ..Capabilities::of(KIND)
};

/// One account at Vast.ai.
pub struct VastAi {
    client: Client,
    settings: Settings,
    /// As last listed; `None` where Vast.ai has no such list.
    overlays: Batched<Option<Vec<Overlay>>>,
    made: Maker,
    /// Since when hosts are silent, by machine.
    silent: Mutex<BTreeMap<u64, Instant>>,
    /// Since when overlay networks are being made, by name.
    making: Mutex<BTreeMap<String, Instant>>,
    /// Machines that are in their networks, or must join them.
    joins: Mutex<BTreeMap<u64, Joining>>,
    /// GPUs of the spot market by host, as last listed: each order lists before it rents.
    bids: Mutex<BTreeMap<u64, f64>>,
}

/// Whether a machine is in its overlay network.
#[derive(Clone, Copy)]
enum Joining {
    /// It has had to join since then.
    Since(Instant),
    /// It has joined.
    Done,
}

impl Joining {
    /// Whether lists may lag.
    fn is_young(self) -> bool {
        matches!(self, Self::Since(since) if since.elapsed() < FORGOTTEN)
    }
}

impl VastAi {
    /// Whether the host of a machine has been silent for too long.
    fn lost(&self, instance: &Instance) -> bool {
        let mut silent = self.silent.lock();
        if map::silent(instance) {
            silent.entry(instance.id).or_insert_with(Instant::now).elapsed() > SILENCE
        } else {
            silent.remove(&instance.id);
            false
        }
    }

    /// The network of the order's Pool in a cluster, made where it does not exist.
    async fn overlay(&self, order: &Order, cluster: u64) -> Result<String, ProviderError> {
        let since = Instant::now();
        let name = map::overlay(&order.mark, cluster);
        let known = self
            .overlays
            .fresh(Self::OPERATION, || self.client.overlays())
            .await?;
        if known.iter().flatten().any(|overlay| overlay.name == name) {
            return Ok(name);
        }
        let making = async {
            self.client.make_overlay(&name, cluster).await?;
            Ok(name.clone())
        };
        self.made.make(name.clone(), since, making).await
    }

    /// Like [`Self::overlay`], with an error for a network that is not made within
    /// `overlayTimeout`, so that the order goes elsewhere, or later.
    async fn network(&self, order: &Order, cluster: u64) -> Result<String, ProviderError> {
        let name = map::overlay(&order.mark, cluster);
        let since = {
            let mut making = self.making.lock();
            making.retain(|_, since| since.elapsed() < FORGOTTEN);
            *making.entry(name.clone()).or_insert_with(Instant::now)
        };
        let made = self.overlay(order, cluster).await;
        let error = match made {
            Err(error) if error.kind.class() == ErrorClass::Retryable => error,
            other => {
                self.making.lock().remove(&name);
                return other;
            }
        };
        let limit = self.settings.overlay_timeout();
        if since.elapsed() < limit {
            return Err(error);
        }
        self.making.lock().remove(&name);
        Err(ProviderError::new(
            ErrorKind::NoCapacity,
            "create the overlay",
            format!(
                "Vast.ai did not make it within {} s (vastai.overlayTimeout): {error}",
                limit.as_secs()
            ),
        ))
    }

    /// Puts a machine into its network.
    async fn join(&self, overlay: &str, id: u64) -> Result<(), ProviderError> {
        self.client.join_overlay(overlay, id).await?;
        self.joins.lock().insert(id, Joining::Done);
        Ok(())
    }

    /// Whether a machine is in its network, perhaps through another process or a call whose answer
    /// was lost. A failed look is no verdict on the machine.
    async fn is_in(&self, overlay: &str, id: u64) -> Result<bool, ProviderError> {
        let known = self
            .overlays
            .fresh(Self::OPERATION, || self.client.overlays())
            .await?;
        let Some(known) = known.as_ref() else {
            return Err(ProviderError::new(
                ErrorKind::Transient,
                "list the overlays",
                "Vast.ai does not list them",
            ));
        };
        let is_in = |known: &Overlay| known.name == overlay && known.instances.contains(&id);
        Ok(known.iter().any(is_in))
    }

    /// Asks that will do for an order, the cheapest first, each with the bid for it.
    async fn asks(
        &self,
        order: &Order,
        group: &Group,
        settings: &Settings,
    ) -> Result<Vec<(Ask, Option<Usd>)>, ProviderError> {
        let disk = map::disk_gb(order, settings);
        let query = offers::query_of(group, order.market, settings, disk);
        let multiplier = settings.bid_multiplier();
        let held = self.bids.lock().clone();
        let mut asks = Vec::new();
        for ask in self.client.search(query).await? {
            // Otherwise machines of one account would take the GPUs from each other for ever.
            let own = offers::own_bid(&ask, &held);
            if own == OwnBid::Ended {
                continue;
            }
            let enough = order.vcpus.is_none_or(|vcpus| offers::vcpus(&ask) >= vcpus)
                && order
                    .memory_bytes
                    .is_none_or(|memory| offers::memory_gb(&ask) * 1e9 >= memory as f64)
                && ask.disk_space >= f64::from(disk);
            if !enough || !offers::fits(&ask, settings) || !group.has(&ask) {
                continue;
            }
            match order.market {
                Market::OnDemand => {
                    let price = offers::price(&ask, Market::OnDemand, multiplier);
                    if let Some(price) =
                        price.filter(|price| order.max_hourly_cost.is_none_or(|most| *price <= most))
                    {
                        asks.push((own, price, ask, None));
                    }
                }
                Market::Spot => {
                    if let Some(bid) = offers::bid_for(&ask, multiplier, order.max_hourly_cost) {
                        asks.push((own, bid, ask, Some(bid)));
                    }
                }
            }
        }
        asks.sort_by_key(|(own, price, ask, _)| (*own, *price, ask.id));
        Ok(asks.into_iter().map(|(.., ask, bid)| (ask, bid)).collect())
    }
}

/// Why no ask fits. Disks are part of the price, and hosts have limited room.
fn nobody(order: &Order, disk: u32) -> String {
    let most = order
        .max_hourly_cost
        .map(|most| format!(" for at most {} USD/h", most.exact()))
        .unwrap_or_default();
    format!(
        "nobody rents out {} with {disk} GB of disk{most} now",
        order.instance_type
    )
}

#[async_trait]
impl Service for VastAi {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    // Its calls keep a distance of seconds.
    const OPERATION: Duration = Duration::from_secs(50);

    async fn account(&self) -> Result<Option<String>, ProviderError> {
        Ok(Some(self.client.user().await?.to_string()))
    }

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        let account = self.client.account().await?;
        Ok(account_facts(&account, &[("credit in USD", "/credit")]))
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
        let instances = self.client.instances().await?;
        let held = offers::bids(instances.iter().filter(|instance| !instance.gone()));
        *self.bids.lock() = held;
        let listed: BTreeSet<u64> = instances.iter().map(|instance| instance.id).collect();
        self.joins
            .lock()
            .retain(|id, joining| listed.contains(id) || joining.is_young());
        Ok(instances)
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        self.client.instance(id).await
    }

    fn seen(&self, instance: &Instance) -> Option<ProviderMachine> {
        map::machine(instance, &self.settings, self.lost(instance), Timestamp::now())
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let mut refused = ProviderError::new(
            ErrorKind::NoCapacity,
            "create the instance",
            nobody(order, map::disk_gb(order, settings)),
        );
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
        let asks = self.asks(order, &group, settings).await?;
        let overlay = match group
            .cluster()
            .filter(|_| order.pool.connected && !asks.is_empty())
        {
            None => None,
            Some(cluster) => Some(self.network(order, cluster).await?),
        };
        for (ask, bid) in asks.into_iter().take(TRIES) {
            let body = map::body(order, settings, bid, overlay.as_deref())?;
            match self.client.rent(ask.id, body).await {
                Ok(id) => {
                    // A machine that cannot join yet does so at a later look.
                    if let Some(overlay) = &overlay {
                        self.joins.lock().insert(id, Joining::Since(Instant::now()));
                        if let Err(error) = self.join(overlay, id).await {
                            tracing::debug!(%error, id, "the machine joins its overlay network later");
                        }
                    }
                    // The start-up script lets the key in as well: this call is for hosts on which
                    // the script runs late, and may fail while the image is loaded.
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

    async fn finish(&self, instance: &Instance) -> Option<ProviderPhase> {
        let overlay = map::overlay_of(instance)?;
        let since = match self
            .joins
            .lock()
            .entry(instance.id)
            .or_insert_with(|| Joining::Since(Instant::now()))
        {
            Joining::Done => return None,
            Joining::Since(since) => *since,
        };
        match self.is_in(&overlay, instance.id).await {
            Ok(true) => {
                self.joins.lock().insert(instance.id, Joining::Done);
                return None;
            }
            Ok(false) => {}
            // The Pool's timeouts.provision ends this.
            Err(error) => {
                return Some(ProviderPhase::starting(format!(
                    "whether it is in its overlay network is not known: {error}"
                )));
            }
        }
        let error = self.join(&overlay, instance.id).await.err()?;
        let limit = self.settings.overlay_timeout();
        let passes = error.kind.class() == ErrorClass::Retryable;
        Some(if passes && since.elapsed() < limit {
            ProviderPhase::starting("it joins its overlay network")
        } else if passes {
            let limit = limit.as_secs();
            ProviderPhase::failed(
                FailureKind::Other,
                format!("it was in no overlay network after {limit} s (vastai.overlayTimeout): {error}"),
            )
        } else {
            ProviderPhase::failed(FailureKind::Other, error.to_string())
        })
    }

    async fn end(&self, instance: &Instance) -> Result<Deletion, ProviderError> {
        self.silent.lock().remove(&instance.id);
        self.client.destroy(instance.id).await?;
        Ok(Deletion::InProgress)
    }

    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let overlays = match self.client.overlays().await {
            // An account without such networks need not allow these calls.
            Err(error) if !self.settings.use_overlay() && error.kind == ErrorKind::Permission => Vec::new(),
            found => found?.unwrap_or_default(),
        };
        let ours = overlays.into_iter().filter_map(|overlay| {
            Some(Leftover {
                kind: OVERLAY,
                pool_uid: marks::pool_of(cluster, &overlay.name)?,
                region: overlay.cluster_id.map(offers::cluster).unwrap_or_default(),
                id: overlay.name,
            })
        });
        Ok(ours.collect())
    }

    /// Deleting a network deletes the machines in it: it goes when none is left.
    async fn give_back(&self, thing: &Leftover) -> Result<(), ProviderError> {
        let overlays = self.client.overlays().await?.unwrap_or_default();
        let Some(overlay) = overlays.iter().find(|overlay| overlay.name == thing.id) else {
            return Ok(());
        };
        if !overlay.instances.is_empty() {
            return Err(ProviderError::new(
                ErrorKind::Transient,
                "delete the overlay",
                "there are machines in it still",
            ));
        }
        self.client.remove_overlay(&overlay.name).await
    }
}
