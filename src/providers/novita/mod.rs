//! Novita: containers with GPUs, on demand and spot, over the API of version 1.
//!
//! The mark of a machine is in its name and in its environment. Nothing is shared between the machines of a Pool:
//! Novita knows no keys, but tells a password with each machine, by which the Pool's key is let in at the first login.
//! SSH passes through Novita's proxy, whose host key is the one that is pinned.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, ErrorKind, Market, Offer, Order, ProviderError, ProviderMachine,
    Secret,
    provider::{Halted, MarkWriters, ReclaimNotice, Regions, SelfStop},
};
use skyward_provider_kit::{
    Cache, Kind,
    http::{Answer, Batched, Rest, Rule},
    lookup::{self, Ended, PRICE_AGE, Service, for_now, until_unseen},
};

use client::Client;
use config::Settings;
use offers::{COUNTS, Catalogue};
use wire::{Instance, number};

/// Name of this kind of provider.
pub const KIND: &str = "novita";

/// Greatest age of a price of a machine, since machines do not tell theirs, and of a password.
const KNOWN: Duration = Duration::from_hours(1);
/// Most passwords that are remembered: more than an account has machines that boot.
const PASSWORDS: usize = 4096;

impl Kind for Novita {
    const CLOUD: &'static str = "Novita";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["clusterId"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        Self {
            client: Client::new(rest),
            settings,
            catalogue: Batched::default(),
            passwords: Cache::new(KNOWN, PASSWORDS),
            ended: Ended::default(),
        }
    }
}

// Marks are in names. An order carries no script: whether SSH is there beside a start command is not published.
const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    // Novita gives its machines no key of the account.
    mark_writers: MarkWriters::Account,
    // Longer than a list may lack a machine.
    settle_time: Duration::from_secs(90),
    // A container whose first process ends is halted.
    self_stop: SelfStop::Partial,
    stop_command: Some("kill -TERM 1"),
    reclaim_notice: ReclaimNotice::Reported,
    halted: Halted::Disk,
    regions: Regions::None,
    hidden_environment: &[map::MARK],
    ..Capabilities::of(KIND)
};

/// One account at Novita, whose id the API does not tell.
pub struct Novita {
    client: Client,
    settings: Settings,
    catalogue: Batched<Catalogue>,
    /// Passwords by the ids of machines, in memory alone: an answer may tell each of them once.
    passwords: Cache<String, Secret>,
    /// Machines whose end we ordered.
    ended: Ended,
}

impl Novita {
    async fn catalogue(&self) -> Result<Catalogue, ProviderError> {
        let [one, two, four, eight] =
            COUNTS.map(|count| self.client.products(count, self.settings.cluster_id.as_deref()));
        let (one, two, four, eight) = tokio::try_join!(one, two, four, eight)?;
        Ok(Catalogue::new([one, two, four, eight]))
    }

    /// What was read at most this long ago.
    async fn known(&self, age: Duration) -> Result<Arc<Catalogue>, ProviderError> {
        let catalogue = || self.catalogue();
        self.catalogue.recent(age, Self::OPERATION, catalogue).await
    }

    /// Machines with their prices, where any can be read, and with passwords that were told before.
    async fn completed(&self, mut machines: Vec<Instance>) -> Vec<Instance> {
        let known = self.known(KNOWN).await.ok();
        for machine in &mut machines {
            let rented = machine.product_id.as_deref().zip(number(&machine.gpu_num));
            let market = machine.market();
            let told = known.as_ref().zip(rented);
            machine.price = told.and_then(|(known, (product, count))| known.price(product, count, market));
            let told = || Some((*self.passwords.known(&machine.id)?).clone());
            machine.ssh_password = machine.password().cloned().or_else(told);
            if let Some(password) = &machine.ssh_password {
                self.passwords.insert(machine.id.clone(), password.clone());
            }
        }
        machines
    }
}

#[async_trait]
impl Service for Novita {
    type Settings = Settings;
    type Machine = Instance;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    const DROPS_TAKEN: bool = true;

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let catalogue = || self.catalogue();
        let catalogue = self.catalogue.fresh(Self::OPERATION, catalogue).await?;
        Ok(catalogue.offers())
    }

    async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        Ok(self.completed(self.client.machines().await?).await)
    }

    async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let found = self.client.machine(id).await?.into_iter().collect();
        Ok(self.completed(found).await.pop())
    }

    fn seen(&self, machine: &Instance) -> Option<ProviderMachine> {
        map::machine(machine, self.ended.has(machine))
    }

    /// Where no host takes an image, one with an older CUDA may be taken: nothing was made then.
    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let catalogue = self.known(PRICE_AGE).await?;
        let sold = catalogue.sold(&order.instance_type, order.market);
        let sold = lookup::affordable(Self::CLOUD, sold, order)?;
        let what = "Novita has no image for it; set `dockerImage`";
        let mut refused = ProviderError::new(ErrorKind::InvalidOrder, "choose the image", what);
        for start in settings.starts() {
            let body = map::body(order, settings, sold, start)?;
            match self.client.create(body).await {
                Err(error) if error.kind == ErrorKind::NoCapacity => refused = error,
                answer => return answer,
            }
        }
        Err(refused)
    }

    async fn end(&self, machine: &Instance) -> Result<Deletion, ProviderError> {
        self.ended.add(machine);
        if machine.is_ending() {
            return Ok(Deletion::InProgress);
        }
        // A machine that is being made may not be deleted yet, and is asked to again.
        until_unseen(self.client.delete(&machine.id).await).map_err(for_now)
    }

    /// A machine that Novita announced to take back, and whose end we did not order.
    fn taken_back(&self, machine: &Instance) -> bool {
        machine.is_reclaimed() && !self.ended.has(machine)
    }
}
