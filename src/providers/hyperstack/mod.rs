//! Hyperstack (NexGen Cloud): virtual machines with GPUs, on demand and spot, over REST.
//!
//! The mark of a machine is its labels. Machines and keys belong to an environment, which is of one region: a
//! Pool has one in each region that it orders in, and in it its key. Both carry the Pool's UID in their
//! names, and are returned with the Pool, the keys first. An environment that still has a machine, whosever
//! it is, is left as it is. The public address and the disk of a machine go with the machine.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use jiff::Timestamp;
use skyward_core::{
    Capabilities, CredentialKey, Credentials, Deletion, ErrorKind, Leftover, Market, Offer, Order,
    ProviderError, ProviderMachine,
    provider::{HostKeys, MarkWriters, Marking},
};
use skyward_provider_kit::{
    Kind,
    http::{Answer, Auth, Batched, Rest, Rule},
    lookup::{self, Ended, Leaving, Listed as _, PRICE_AGE, Service},
    shared::{SSH_KEYS, Shared},
};

use client::{Client, ENVIRONMENTS};
use config::{API_KEY, Settings};
use offers::Catalogue;
use wire::Machine;

/// Name of this kind of provider.
pub const KIND: &str = "hyperstack";

/// Greatest age of a price of a machine, since machines do not tell theirs.
const KNOWN: Duration = Duration::from_hours(1);

impl Kind for Hyperstack {
    const CLOUD: &'static str = "Hyperstack";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["regions", "networkOptimised", "networkOptimisedRegions"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn auth(credentials: &Credentials) -> Result<Auth, ProviderError> {
        Ok(Auth::header_of("api_key", credentials.token(API_KEY)?))
    }

    fn new(rest: Rest, settings: Settings) -> Self {
        let client = Client { rest };
        Self {
            environments: Shared::short(client.environments()),
            keys: Shared::short(client.keys()),
            client,
            settings,
            catalogue: Batched::default(),
            ended: Ended::default(),
            leaving: Leaving::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    billing_step: Duration::from_mins(1),
    // In the network of their environment.
    connected: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    swept: &[SSH_KEYS.one, ENVIRONMENTS.one],
    ..Capabilities::of(KIND)
};

/// One organization at Hyperstack, whose id the API does not tell.
pub struct Hyperstack {
    client: Client,
    settings: Settings,
    catalogue: Batched<Catalogue>,
    environments: Shared,
    keys: Shared,
    /// Machines whose end we ordered.
    ended: Ended,
    /// Environments that Hyperstack does not remove yet.
    leaving: Leaving,
}

impl Hyperstack {
    async fn catalogue(&self) -> Result<Catalogue, ProviderError> {
        let (flavors, prices) = tokio::try_join!(self.client.flavors(), self.client.prices())?;
        Ok(Catalogue::new(flavors, prices, Timestamp::now()))
    }

    /// What was read at most this long ago.
    async fn known(&self, age: Duration) -> Result<Arc<Catalogue>, ProviderError> {
        let catalogue = || self.catalogue();
        self.catalogue.recent(age, Self::OPERATION, catalogue).await
    }

    /// Machines with their prices; without prices where none can be read.
    async fn priced(&self, mut machines: Vec<Machine>) -> Vec<Machine> {
        let known = self.known(KNOWN).await.ok();
        for machine in &mut machines {
            let (gpu, count) = (&machine.flavor["gpu"], &machine.flavor["gpu_count"]);
            let count = count.as_u64().and_then(|count| u32::try_from(count).ok());
            machine.price = known
                .as_ref()
                .and_then(|known| known.price(gpu.as_str()?, count?));
        }
        machines
    }

    /// The image that the order's machine starts from.
    async fn image(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        if let Some(image) = &settings.image {
            return Ok(image.clone());
        }
        let (region, flavor) = (&order.region, &order.instance_type);
        let images = self.client.images(region).await?;
        map::image(&images, flavor).ok_or_else(|| {
            let what = format!("{region} has no Ubuntu with CUDA for {flavor}; set `image`");
            ProviderError::new(ErrorKind::InvalidOrder, "choose the image", what)
        })
    }

    /// The network from which the order's machine lets the others of its Pool in.
    async fn network(&self, environment: &str) -> Result<String, ProviderError> {
        let told = self.client.network(environment).await?;
        told["cidr"].as_str().and_then(map::network).ok_or_else(|| {
            let what = "Hyperstack does not tell the private network of the environment yet. If it stays so, give the Pool topology: Independent";
            ProviderError::new(ErrorKind::Transient, "read the network", what)
        })
    }
}

#[async_trait]
impl Service for Hyperstack {
    type Settings = Settings;
    type Machine = Machine;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const DROPS_TAKEN: bool = true;

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let catalogue = || self.catalogue();
        let catalogue = self.catalogue.fresh(Self::OPERATION, catalogue).await?;
        Ok(offers::offers(&catalogue, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        Ok(self.priced(self.client.machines().await?).await)
    }

    async fn machine(&self, id: &str) -> Result<Option<Machine>, ProviderError> {
        let found = self.client.machine(id).await?.into_iter().collect();
        Ok(self.priced(found).await.pop())
    }

    fn seen(&self, machine: &Machine) -> Option<ProviderMachine> {
        map::machine(machine, self.ended.has(machine))
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let catalogue = self.known(PRICE_AGE).await?;
        let sold = catalogue.sold(&order.instance_type, &order.region, order.market);
        lookup::affordable(Self::CLOUD, sold.map(|price| ((), price)), order)?;
        // At the same time: one after another, slow answers would take longer than an order may.
        let (image, environment) = tokio::try_join!(
            self.image(order, settings),
            self.environments.holding(order, &order.region)
        )?;
        let network = if order.pool.connected {
            Some(self.network(&environment.id).await?)
        } else {
            None
        };
        let key: Vec<&str> = order.authorized_key.split_whitespace().take(2).collect();
        let key = format!("{} {}", key.join(" "), environment.name);
        let key = self.keys.holding(order, &key).await?;
        let body = map::body(order, &environment.name, &key.name, &image, network.as_deref())?;
        self.client.create(body).await
    }

    async fn end(&self, machine: &Machine) -> Result<Deletion, ProviderError> {
        self.ended.add(machine);
        if machine.status == "DELETING" {
            return Ok(Deletion::InProgress);
        }
        match self.client.delete(&machine.id()).await {
            // A machine that is being made cannot be deleted yet, and is asked to again.
            Err(error) if !errors::is_busy(&error) => Err(lookup::for_now(error)),
            _ => Ok(Deletion::InProgress),
        }
    }

    /// A spot machine that is gone and whose end we did not order was taken back.
    fn taken_back(&self, machine: &Machine) -> bool {
        machine.is_spot() && !self.ended.has(machine)
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.keys]
    }

    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        self.environments.left(cluster).await
    }

    /// Hyperstack says that it refuses to remove an environment with something in it, and others say that it ends
    /// what is in it. So no machine may be in it.
    async fn give_back(&self, environment: &Leftover) -> Result<(), ProviderError> {
        let machines = self.client.machines().await?;
        if let Some(machine) = machines.iter().find(|machine| machine.is_in(&environment.id)) {
            let what = format!(
                "the virtual machine {} is still in the environment {}. If it stays, look in the console of Hyperstack whose it is, and delete it there",
                machine.id, environment.id
            );
            let error = ProviderError::new(ErrorKind::Transient, ENVIRONMENTS.remove, what);
            return Err(error);
        }
        let removed = self.environments.give_back(&environment.id).await;
        self.leaving
            .judge(&environment.id, removed.map_err(lookup::for_now))
    }
}
