//! Verda (formerly DataCrunch): virtual machines, on demand and spot, over REST.
//!
//! Marks are tags. There are no idempotency tokens: [`Verda::create`] looks for the mark
//! first. What the machines of a Pool share (its key, a start-up script) carries its UID
//! in the name.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use serde_json::Value;
use skyward_core::{
    Accepted, Account, Capabilities, CredentialKey, Deletion, ErrorKind, Leftover, MachineRef, Market, Offer,
    Order, PoolScope, Provider, ProviderError, ProviderMachine, Scope,
    provider::{HostKeys, Idempotency, Marking, ReclaimNotice, SelfStop},
};
use tokio::{sync::Semaphore, time::Instant};

use crate::{
    http::{Batched, Http, Setup, operation},
    registry::{Connected, Kind, overridden},
    wire::digest,
};
use client::{Acted, Client};
use config::Settings;
use errors::{Refusal, refusal};
use wire::{Instance, InstanceType};

/// Name of this kind of provider.
pub const KIND: &str = "verda";
/// Longest time of one operation of the contract.
const OPERATION: Duration = Duration::from_secs(45);
/// How old prices may be that an order is compared with.
const PRICE_AGE: Duration = Duration::from_mins(5);

/// What the registry knows of this folder.
pub struct VerdaKind;

impl Kind for VerdaKind {
    const NAME: &'static str = KIND;
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINTS: &'static [(&'static str, &'static str)] = &[client::ENDPOINT];
    type Settings = Settings;

    fn connect(account: Account<Settings>) -> Connected {
        let (id, secret) = config::client(&account)?;
        let (name, own) = client::ENDPOINT;
        // Verda tells no id of a project. That of the client stands for it, hashed, since
        // it comes out of a Secret.
        let account_id = format!("client-{}", digest(&id, 16));
        let http = Http::new(Setup {
            cloud: "Verda",
            base: account.endpoints.or(name, own).to_owned(),
            auth: client::auth(id, secret),
            limits: client::limits(),
            request_timeout: account.settings.request_timeout(),
        })?;
        let raw = serde_json::to_value(&account.settings).unwrap_or_default();
        Ok(Arc::new(Verda {
            client: Client::new(http),
            settings: account.settings,
            raw,
            account_id,
            capabilities: CAPABILITIES,
            instances: Batched::default(),
            types: Batched::default(),
            keys: Batched::default(),
            scripts: Batched::default(),
            made: Mutex::default(),
            making: Semaphore::new(1),
            ended: Mutex::default(),
        }))
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Tags,
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
    /// The settings as they are written, for what Pools override.
    raw: Value,
    account_id: String,
    capabilities: Capabilities,
    instances: Batched<Vec<Instance>>,
    types: Batched<Vec<InstanceType>>,
    keys: Batched<Vec<wire::SshKey>>,
    scripts: Batched<Vec<wire::Script>>,
    /// Keys and scripts that were just made, by name: lists may be behind.
    made: Mutex<BTreeMap<String, (Instant, String)>>,
    /// One at a time makes keys and scripts, so that a Pool of many machines has one.
    making: Semaphore,
    /// Machines whose end we ordered: their disappearance is no eviction.
    ended: Mutex<BTreeSet<String>>,
}

impl Verda {
    async fn instances(&self) -> Result<Arc<Vec<Instance>>, ProviderError> {
        self.instances.fresh(OPERATION, || self.client.instances()).await
    }

    /// The instance of a machine, gone ones too. What the list does not show is asked for
    /// by its id, where that is known: lists may be behind.
    async fn look(&self, machine: &MachineRef) -> Result<Option<Instance>, ProviderError> {
        let instances = self.instances().await?;
        let is_it = |instance: &&Instance| match &machine.id {
            Some(id) => instance.id == *id,
            None => map::mark(&instance.tags).is_some_and(|mark| {
                mark.machine_uid == machine.mark.machine_uid && mark.cluster == machine.mark.cluster
            }),
        };
        if let Some(found) = instances.iter().find(is_it) {
            return Ok(Some(found.clone()));
        }
        let Some(id) = &machine.id else { return Ok(None) };
        match self.client.instance(id).await {
            Ok(instance) => Ok(Some(instance)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The kind of machine that is ordered, at a price that the order allows.
    async fn kind(&self, order: &Order) -> Result<InstanceType, ProviderError> {
        let types = self
            .types
            .recent(PRICE_AGE, OPERATION, || self.client.types())
            .await?;
        let refuse = |message: String| {
            Err(ProviderError::new(
                ErrorKind::NoCapacity,
                "create the instance",
                message,
            ))
        };
        let Some(kind) = types
            .iter()
            .find(|kind| kind.instance_type == order.instance_type)
        else {
            return refuse(format!("Verda sells no {} any more", order.instance_type));
        };
        let price = match order.market {
            Market::OnDemand => Some(kind.price_per_hour.0),
            Market::Spot => kind.spot_price.map(|price| price.0),
        };
        match (price, order.price_ceiling) {
            (Some(price), Some(ceiling)) if price > ceiling => refuse(format!(
                "its price is {price} USD/h now, above the {ceiling} that was recorded"
            )),
            _ => Ok(kind.clone()),
        }
    }

    /// Id of the key of the order's Pool.
    async fn key(&self, order: &Order, since: Instant) -> Result<String, ProviderError> {
        let name = map::key_name(&order.mark.cluster, &order.mark.pool_uid);
        let keys = self.keys.fresh(OPERATION, || self.client.keys()).await?;
        // Comments may differ, the key itself may not.
        let same = |key: &str| {
            key.split_whitespace()
                .take(2)
                .eq(order.authorized_key.split_whitespace().take(2))
        };
        if let Some(found) = keys.iter().find(|key| key.name == name && same(&key.key)) {
            return Ok(found.id.clone());
        }
        let memory = format!("{name}/{}", digest(&order.authorized_key, 12));
        self.make(
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
        let name = map::script_name(&order.mark.cluster, &order.mark.pool_uid, &text);
        let scripts = self.scripts.fresh(OPERATION, || self.client.scripts()).await?;
        if let Some(found) = scripts.iter().find(|script| script.name == name) {
            return Ok(Some(found.id.clone()));
        }
        self.make(name.clone(), since, self.client.add_script(&name, &text))
            .await
            .map(Some)
    }

    /// Makes something that is not there, unless another order just did.
    async fn make(
        &self,
        name: String,
        since: Instant,
        making: impl Future<Output = Result<String, ProviderError>>,
    ) -> Result<String, ProviderError> {
        let _turn = self.making.acquire().await;
        let known = || {
            let made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
            made.get(&name)
                .filter(|(at, _)| *at >= since)
                .map(|(_, id)| id.clone())
        };
        if let Some(id) = known() {
            return Ok(id);
        }
        let id = making.await?;
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.insert(name, (Instant::now(), id.clone()));
        Ok(id)
    }

    async fn order(&self, order: &Order) -> Result<Accepted, ProviderError> {
        let since = Instant::now();
        let settings: Settings = overridden(KIND, &self.raw, &order.overrides)?;
        let machine = MachineRef {
            id: None,
            mark: order.mark.clone(),
            region: order.region.clone(),
        };
        if let Some(found) = self.look(&machine).await? {
            return Ok(Accepted { id: found.id });
        }
        let kind = self.kind(order).await?;
        let image = settings.image.clone().unwrap_or_else(|| map::image(&kind));
        let key = self.key(order, since).await?;
        let script = self.script(order, since).await?;
        let body = map::body(order, &settings, &image, &key, script.as_deref());
        let id = self.client.deploy(body).await?;
        Ok(Accepted { id })
    }

    async fn end(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let Some(instance) = self.look(machine).await? else {
            return Ok(Deletion::Gone);
        };
        // An id that is somebody else's is not ours to delete.
        let ours = map::mark(&instance.tags).is_some_and(|mark| mark.machine_uid == machine.mark.machine_uid);
        if map::gone(&instance) || !ours {
            return Ok(Deletion::Gone);
        }
        {
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            ended.insert(instance.id.clone());
        }
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

    /// What is ours and no machine, with how to return it.
    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let named = |kind, id: &str, name: &str| {
            map::pool_of(cluster, name).map(|pool_uid| Leftover {
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
}

const SSH_KEY: &str = "SSH key";
const SCRIPT: &str = "start-up script";
const VOLUME: &str = "volume";

#[async_trait]
impl Provider for Verda {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn account(&self) -> Result<String, ProviderError> {
        operation(OPERATION, self.instances()).await?;
        Ok(self.account_id.clone())
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        operation(OPERATION, async {
            let (types, locations, on_demand, spot) = tokio::try_join!(
                self.types.fresh(OPERATION, || self.client.types()),
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
        })
        .await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        operation(OPERATION, self.order(order)).await
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let found = operation(OPERATION, self.look(machine)).await?;
        let ended = |id: &str| {
            self.ended
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains(id)
        };
        Ok(found
            // A spot machine that is gone and that we did not end was evicted: worth telling.
            .filter(|instance| !map::gone(instance) || instance.is_spot && !ended(&instance.id))
            .and_then(|instance| map::machine(&instance))
            .filter(|found| found.mark.machine_uid == machine.mark.machine_uid))
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let instances = operation(OPERATION, self.instances()).await?;
        Ok(instances
            .iter()
            .filter(|instance| !map::gone(instance))
            .filter_map(map::machine)
            .filter(|machine| machine.mark.cluster == scope.cluster)
            .filter(|machine| {
                scope
                    .pool_uid
                    .as_ref()
                    .is_none_or(|uid| *uid == machine.mark.pool_uid)
            })
            .collect())
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        operation(OPERATION, self.end(machine)).await
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        let mut left = operation(OPERATION, self.shared(&scope.cluster)).await?;
        left.retain(|left| scope.pool_uid.as_ref().is_none_or(|uid| *uid == left.pool_uid));
        left.sort();
        Ok(left)
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        operation(OPERATION, async {
            let mut left = self.shared(&pool.cluster).await?;
            left.retain(|left| left.pool_uid == pool.pool_uid);
            for thing in &left {
                let done = match thing.kind {
                    SSH_KEY => self.client.remove_key(&thing.id).await,
                    SCRIPT => self.client.remove_script(&thing.id).await,
                    _ => self.client.remove_volume(&thing.id).await,
                };
                match done {
                    Err(error) if error.kind != ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            // Only a look that finds nothing is proof.
            Ok(if left.is_empty() {
                Deletion::Gone
            } else {
                Deletion::InProgress
            })
        })
        .await
    }
}
