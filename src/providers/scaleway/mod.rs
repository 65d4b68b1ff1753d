//! Scaleway: GPU Instances, on demand only, over REST. Each zone is an API of its own, and all zones
//! are looked at: settings may have changed.
//!
//! An order has four calls: a server is made, its disk is marked, the server is told its boot data, and
//! switched on. Each can be the last one before a crash or a failure, and then the same order goes on
//! there. Marks are tags; the disk of a server outlives it, and a machine is not gone while its disk is
//! there. No server is switched on before its disk is marked, and no server that is switched off is deleted
//! before. A server that was switched on is ended as it is: another disk may be its first one by now, which
//! carries no mark of ours. Nothing is shared: the key of a Pool comes with the boot data, since a key of
//! the project would be let in to all other machines of the project.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use skyward_core::{
    Capabilities, CredentialKey, Credentials, Deletion, ErrorKind, Offer, Order, ProviderError,
    ProviderMachine,
    provider::{HostKeys, Idempotency, MarkWriters, Marking, Regions, SelfStop},
};
use skyward_provider_kit::{
    Cache, boot,
    http::{Answer, Auth, Batched, Rest, Rule},
    kind,
    lookup::{self, PRICE_AGE, Service},
};

use client::Client;
use config::{PROJECT_ID, SECRET_KEY, Settings, ZONES};
use offers::Kinds;
use wire::{Machine, Server};

/// Name of this kind of provider.
pub const KIND: &str = "scaleway";

/// Greatest age of a price of a machine, since machines do not tell theirs; and of the choice of an image.
const KNOWN: Duration = Duration::from_hours(1);
impl kind::Kind for Scaleway {
    const CLOUD: &'static str = "Scaleway";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["projectId", "zone", "exchangeRate"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn auth(credentials: &Credentials) -> Result<Auth, ProviderError> {
        Ok(Auth::header_of("x-auth-token", credentials.token(SECRET_KEY)?))
    }

    fn complete(mut settings: Settings, credentials: &Credentials) -> Result<Settings, ProviderError> {
        if settings.project_id.is_none() {
            settings.project_id = Some(credentials.token(PROJECT_ID)?.expose().to_owned());
        }
        Ok(settings)
    }

    fn new(rest: Rest, settings: Settings) -> Self {
        let project = settings.project_id.clone().unwrap_or_default();
        Self {
            client: Client { rest, project },
            settings,
            kinds: Batched::default(),
            images: Cache::new(KNOWN, ZONES.len()),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(60),
    poll_interval: Duration::from_secs(15),
    // A machine that shuts itself down is billed on where it halts in its place.
    self_stop: SelfStop::None,
    billing_step: Duration::from_mins(1),
    billing_minimum: Duration::from_mins(1),
    // They have no private network in common.
    connected: false,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    regions: Regions::Known(&ZONES),
    // Each is ended as the rest of its machine.
    swept: &["disk"],
    ..Capabilities::of(KIND)
};

/// One project at Scaleway.
pub struct Scaleway {
    client: Client,
    settings: Settings,
    kinds: Batched<Kinds>,
    /// The image of each zone.
    images: Cache<String, String>,
}

impl Scaleway {
    async fn kinds(&self) -> Result<Kinds, ProviderError> {
        let all = ZONES.map(async |zone| {
            let kinds = self.client.kinds(zone).await?;
            Ok((zone, kinds.into_iter().collect()))
        });
        Ok(try_join_all(all).await?.into_iter().collect())
    }

    /// A server with its price; without one where no prices can be read.
    async fn priced(&self, mut servers: Vec<Server>) -> Vec<Server> {
        let kinds = self.kinds.recent(KNOWN, Self::OPERATION, || self.kinds()).await;
        let (kinds, rate) = (kinds.unwrap_or_default(), self.settings.exchange_rate.as_ref());
        for server in &mut servers {
            let sold = kinds.get(server.zone.as_str());
            let kind = sold.and_then(|kinds| kinds.get(&server.commercial_type));
            server.price = kind.and_then(|kind| offers::price(kind, rate));
        }
        servers
    }

    /// The image of a zone.
    async fn image(&self, zone: &str) -> Result<String, ProviderError> {
        let choice = async || {
            let images = self.client.images(zone).await?;
            map::image(&images).ok_or_else(|| {
                let what = format!("{zone} has no public Ubuntu for GPUs; name an image in the settings");
                ProviderError::new(ErrorKind::InvalidOrder, "choose the image", what)
            })
        };
        let chosen = self.images.get(zone.to_owned(), choice).await?;
        Ok((*chosen).clone())
    }

    /// Marks the disk of a server that is switched off: a disk without a mark is found by nobody.
    async fn mark_disk(&self, server: &Server) -> Result<(), ProviderError> {
        if let Some((disk, names)) = map::disk(server)
            && self.client.name_disk(&server.zone, disk, names).await?
        {
            return Ok(());
        }
        Err(not_shown(&server.id))
    }
}

fn not_shown(server: &str) -> ProviderError {
    let what = format!(
        "the server {server} or its disk is not shown yet. If it stays so, delete the server in the console of Scaleway"
    );
    ProviderError::new(ErrorKind::Transient, "mark the disk", what)
}

#[async_trait]
impl Service for Scaleway {
    type Settings = Settings;
    type Machine = Machine;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;

    /// The project stands for the account: no other machines are looked at.
    async fn account(&self) -> Result<Option<String>, ProviderError> {
        self.machines().await?;
        Ok(Some(self.client.project.clone()))
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let stock = ZONES.map(async |zone| {
            let stock = self.client.stock(zone).await?;
            Ok((zone, offers::shortages(stock)))
        });
        let (kinds, shortages) = tokio::try_join!(
            self.kinds.fresh(Self::OPERATION, || self.kinds()),
            try_join_all(stock)
        )?;
        let shortages = shortages.into_iter().collect();
        Ok(offers::offers(&kinds, &shortages, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        let servers = ZONES.map(|zone| self.client.servers(zone));
        let disks = ZONES.map(|zone| self.client.disks(zone));
        let (servers, disks) = tokio::try_join!(try_join_all(servers), try_join_all(disks))?;
        let servers = self.priced(servers.into_iter().flatten().collect()).await;
        Ok(map::machines(servers, disks.into_iter().flatten().collect()))
    }

    async fn machine(&self, id: &str) -> Result<Option<Machine>, ProviderError> {
        let found = ZONES.map(|zone| self.client.server(zone, id));
        let found = try_join_all(found).await?.into_iter().flatten().collect();
        Ok(self.priced(found).await.pop().map(Machine::Server))
    }

    fn seen(&self, machine: &Machine) -> Option<ProviderMachine> {
        map::machine(machine)
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let kinds = self
            .kinds
            .recent(PRICE_AGE, Self::OPERATION, || self.kinds())
            .await?;
        let zone = order.region.as_str();
        let kind = kinds.get(zone).and_then(|kinds| kinds.get(&order.instance_type));
        let rate = self.settings.exchange_rate.as_ref();
        let sold = kind.and_then(|kind| Some((kind, offers::price(kind, rate)?)));
        lookup::affordable(<Self as kind::Kind>::CLOUD, sold, order)?;
        let image = match &settings.image {
            Some(image) => image.clone(),
            None => self.image(zone).await?,
        };
        let body = map::body(order, settings, &self.client.project, &image);
        self.client.create(zone, body).await
    }

    async fn start(&self, id: &str, order: &Order) -> Result<(), ProviderError> {
        let zone = order.region.as_str();
        let server = self.client.server(zone, id).await?;
        self.mark_disk(&server.ok_or_else(|| not_shown(id))?).await?;
        let started = async {
            // The Pool's key is the only one of `root` then, whatever keys the project has.
            self.client.boot_data(zone, id, boot::script(order)).await?;
            self.client.act(zone, id, "poweron").await
        };
        let Err(refused) = started.await else {
            return Ok(());
        };
        // An earlier try may have been heard.
        let server = self.client.server(zone, id).await;
        let is_on = matches!(server, Ok(Some(server)) if server.state != "stopped");
        if is_on { Ok(()) } else { Err(refused) }
    }

    async fn resume(&self, machine: &Machine, order: &Order) -> Result<Option<String>, ProviderError> {
        match machine {
            Machine::Server(server) if server.state == "stopped" => {
                self.start(&server.id, order).await?;
                Ok(Some(server.id.clone()))
            }
            Machine::Server(server) => Ok(Some(server.id.clone())),
            // Of a server that was deleted, or of one that the list does not show yet, which keeps its disk.
            Machine::Disk(disk) => match self.client.delete_disk(&disk.zone, &disk.id).await {
                Err(error) if error.kind != ErrorKind::NotFound => Err(error),
                _ => Ok(None),
            },
        }
    }

    async fn end(&self, machine: &Machine) -> Result<Deletion, ProviderError> {
        let ended = match machine {
            Machine::Server(server) => match server.state.as_str() {
                "stopping" => Ok(()),
                "stopped" => {
                    // Its order may not have come so far.
                    self.mark_disk(server).await?;
                    self.client.delete(&server.zone, &server.id).await
                }
                _ => self.client.act(&server.zone, &server.id, "terminate").await,
            },
            Machine::Disk(disk) => self.client.delete_disk(&disk.zone, &disk.id).await,
        };
        // It is in the middle of something, such as leaving its server; or it is gone, and its disk is not.
        let goes_on = |error: &ProviderError| errors::is_busy(error) || error.kind == ErrorKind::NotFound;
        match ended {
            Err(error) if goes_on(&error) => Ok(Deletion::InProgress),
            ended => ended.map(|()| Deletion::InProgress),
        }
    }
}

#[cfg(test)]
#[path = "tests/account.rs"]
mod tests;
