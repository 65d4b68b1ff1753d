//! TensorDock: virtual machines with GPUs on hosts of independent owners, on demand only, over REST (API v2).
//!
//! The mark of a machine is its name, since a machine can carry nothing else. Nothing is shared: the key of a Pool comes
//! with each order. An order may be answered by a failure although its machine is made, and lists tell little of a
//! machine, so a failure is compared with the list, and machines are asked for by their ids.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::time::Duration;

use async_trait::async_trait;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, ErrorKind, Offer, Order, ProviderError, ProviderMachine,
    error::ErrorClass,
    provider::{HostKeys, MarkWriters},
};
use skyward_provider_kit::{
    Kind,
    http::{Answer, Batched, Rest, Rule},
    lookup::{self, PRICE_AGE, Service},
    said,
};

use client::Client;
use config::Settings;
use wire::{Location, Machine};

/// Name of this kind of provider.
pub const KIND: &str = "tensordock";

impl Kind for TensorDock {
    const CLOUD: &'static str = "TensorDock";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["location", "tier", "minRam", "minVcpus"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    // Orders are answered when the machine is made.
    const REQUEST_TIMEOUT: Duration = Duration::from_mins(2);
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        let rest = rest.refused_when(errors::is_refused);
        Self {
            client: Client { rest },
            settings,
            locations: Batched::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    mark_writers: MarkWriters::Account,
    // An order whose answer is awaited no more may still go on for as long as clients of others wait: two minutes.
    settle_time: Duration::from_mins(3),
    // Each look is two calls.
    poll_interval: Duration::from_secs(20),
    // Hosts have prices of their own, and the disk is part of the price.
    marketplace: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    ..Capabilities::of(KIND)
};

/// The error of an order of which no list tells whether the machine was made: no other Offer is tried until one does.
fn in_doubt(failure: ProviderError) -> ProviderError {
    let mut failure = lookup::exists(failure);
    if failure.kind.class() == ErrorClass::Capacity {
        failure.kind = ErrorKind::Indeterminate;
    }
    failure
}

/// One organization at TensorDock, whose id the API does not tell.
pub struct TensorDock {
    client: Client,
    settings: Settings,
    locations: Batched<Vec<Location>>,
}

#[async_trait]
impl Service for TensorDock {
    type Settings = Settings;
    type Machine = Machine;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;
    // Orders are slow, and no operation may take a minute.
    const OPERATION: Duration = Duration::from_secs(55);

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let locations = || self.client.locations();
        let locations = self.locations.fresh(Self::OPERATION, locations).await?;
        Ok(offers::offers(&locations, &self.settings))
    }

    /// Where a list leaves it open whose a machine is, its id tells.
    async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        let mut listed = self.client.machines().await?;
        for machine in listed.iter_mut().filter(|machine| machine.is_in_doubt()) {
            if let Some(whole) = self.client.machine(&machine.id).await? {
                *machine = whole;
            }
        }
        Ok(listed)
    }

    async fn machine(&self, id: &str) -> Result<Option<Machine>, ProviderError> {
        self.client.machine(id).await
    }

    fn seen(&self, machine: &Machine) -> Option<ProviderMachine> {
        map::machine(machine)
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let locations = || self.client.locations();
        let recent = self.locations.recent(PRICE_AGE, Self::OPERATION, locations);
        let locations = recent.await?;
        let sold = offers::sold(&locations, order, settings).map(|shape| (shape.clone(), shape.price));
        let shape = lookup::affordable(Self::CLOUD, sold, order)?;
        let made = match self.client.create(map::body(order, settings, &shape)?).await {
            Ok(made) => made,
            // The machine may have been made all the same: then the list shows it.
            Err(failure) => {
                let Ok(listed) = self.machines().await else {
                    return Err(in_doubt(failure));
                };
                let mut made = listed.into_iter().filter(|machine| machine.answers(order));
                return made.next().map(|machine| machine.id).ok_or(failure);
            }
        };
        let Some(name) = map::other_name(&made, order) else {
            return Ok(made.id);
        };
        // Nothing but its name tells whose it is.
        let ended = match self.client.delete(&made.id).await {
            Ok(()) => "was deleted",
            Err(_) => "could not be deleted: delete it in the dashboard of TensorDock",
        };
        let (id, name) = (&made.id, said(name));
        let what =
            format!("TensorDock named the machine {id} \"{name}\" and not as it was ordered; it {ended}");
        Err(ProviderError::new(ErrorKind::Unsupported, client::ORDER, what))
    }

    async fn end(&self, machine: &Machine) -> Result<Deletion, ProviderError> {
        if machine.is_ending() {
            return Ok(Deletion::InProgress);
        }
        lookup::until_unseen(self.client.delete(&machine.id).await).map_err(lookup::for_now)
    }
}
