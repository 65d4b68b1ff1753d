//! DigitalOcean: Droplets with GPUs, on demand only, over REST.
//!
//! The mark of a machine is one of its tags. The machines of a Pool share its key and a firewall, which
//! holds for what carries the firewall's tag; key and firewall carry the Pool's UID in their names.
//! DigitalOcean keeps a tag when nothing carries it any more, so the tags of a Pool are returned
//! with it.

pub mod client;
pub mod config;
pub mod errors;
pub mod map;
pub mod offers;
pub mod wire;

use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use skyward_core::{
    Capabilities, CredentialKey, Deletion, Leftover, Offer, Order, ProviderError, ProviderMachine,
    provider::{AccountFact, HostKeys, Idempotency, MarkWriters, Marking, SelfStop},
};
use skyward_provider_kit::{
    Kind, account_facts,
    http::{Answer, Batched, Rest, Rule},
    lookup::{self, Listed as _, PRICE_AGE, Service},
    shared::{SSH_KEYS, Shared},
};

use client::{Client, FIREWALLS};
use config::Settings;
use wire::{Droplet, Size, Tag};

/// Name of this kind of provider.
pub const KIND: &str = "digitalocean";

impl Kind for DigitalOcean {
    const CLOUD: &'static str = "DigitalOcean";
    const CREDENTIALS: &'static [CredentialKey] = config::CREDENTIALS;
    const ENDPOINT: (&'static str, &'static str) = client::ENDPOINT;
    const FIXED: &'static [&'static str] = &["region"];
    const LIMITS: &'static [Rule] = client::LIMITS;
    const ERROR: fn(&Answer) -> ProviderError = errors::provider_error;

    fn new(rest: Rest, settings: Settings) -> Self {
        let client = Client { rest };
        Self {
            keys: Shared::new(client.keys()),
            firewalls: Shared::new(client.firewalls()),
            client,
            settings,
            sizes: Batched::default(),
        }
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    idempotency: Idempotency::LookUp,
    settle_time: Duration::from_secs(60),
    poll_interval: Duration::from_secs(15),
    // A machine that was shut down stays on the bill until it is deleted.
    self_stop: SelfStop::None,
    billing_step: Duration::from_secs(1),
    billing_minimum: Duration::from_mins(1),
    // In the VPC of their region.
    connected: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    swept: &[SSH_KEYS.one, FIREWALLS.one, TAG],
    ..Capabilities::of(KIND)
};

/// [`Leftover::kind`] of tags.
const TAG: &str = "tag";

/// One account at DigitalOcean: a team, whose id the cloud tells.
pub struct DigitalOcean {
    client: Client,
    settings: Settings,
    sizes: Batched<Vec<Size>>,
    keys: Shared,
    firewalls: Shared,
}

#[async_trait]
impl Service for DigitalOcean {
    type Settings = Settings;
    type Machine = Droplet;
    const CAPABILITIES: &'static Capabilities = &CAPABILITIES;

    async fn account(&self) -> Result<Option<String>, ProviderError> {
        // With a token that may not read tags, machines would show no mark, and each order would be sent again. One that
        // may not read Droplets would be told that no Droplet carries their tags.
        self.machines().await?;
        let (account, _) = tokio::try_join!(self.client.account(), self.client.tag(KIND))?;
        let id = account.pointer("/team/uuid").or_else(|| account.get("uuid"));
        Ok(id.and_then(Value::as_str).map(str::to_owned))
    }

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        let account = self.client.account().await?;
        Ok(account_facts(
            &account,
            &[("status", "/status"), ("limit of Droplets", "/droplet_limit")],
        ))
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let sizes = self.sizes.fresh(Self::OPERATION, || self.client.sizes()).await?;
        Ok(offers::offers(&sizes, &self.settings))
    }

    async fn machines(&self) -> Result<Vec<Droplet>, ProviderError> {
        self.client.droplets().await
    }

    async fn machine(&self, id: &str) -> Result<Option<Droplet>, ProviderError> {
        self.client.droplet(id).await
    }

    fn seen(&self, droplet: &Droplet) -> Option<ProviderMachine> {
        map::machine(droplet)
    }

    async fn order(&self, order: &Order, settings: &Settings) -> Result<String, ProviderError> {
        let sizes = self
            .sizes
            .recent(PRICE_AGE, Self::OPERATION, || self.client.sizes())
            .await?;
        let size = sizes.iter().find(|size| size.slug == order.instance_type);
        let sold = size.and_then(|size| Some((size, offers::price(Some(size.price_hourly))?)));
        let size = lookup::affordable(Self::CLOUD, sold, order)?;
        let (key, firewall) = tokio::try_join!(
            self.keys.key(order),
            self.firewalls.holding(order, map::admitted(order)),
        )?;
        let body = map::body(order, settings, size, &key.id, &firewall.name)?;
        self.client.create(body).await
    }

    async fn end(&self, droplet: &Droplet) -> Result<Deletion, ProviderError> {
        self.client.delete(&droplet.id()).await?;
        Ok(Deletion::InProgress)
    }

    fn stores(&self) -> Vec<&Shared> {
        vec![&self.keys, &self.firewalls]
    }

    async fn shared(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let unused = self.client.tags().await?.into_iter().filter(Tag::is_unused);
        let ours = unused.filter_map(|tag| {
            Some(Leftover {
                kind: TAG,
                pool_uid: map::pool_of(cluster, &tag.name)?,
                id: tag.name,
                region: String::new(),
            })
        });
        Ok(ours.collect())
    }

    /// To remove a tag from a machine would hide whose the machine is. So this looks once more, after the
    /// key that every order names was returned, and at the machines too: what carries a tag is counted among what the
    /// token may read.
    async fn give_back(&self, tag: &Leftover) -> Result<(), ProviderError> {
        let (droplets, found) = tokio::try_join!(self.client.droplets(), self.client.tag(&tag.id))?;
        let mut carried = droplets.iter().flat_map(|droplet| droplet.tags.iter().flatten());
        if found.is_none_or(|found| !found.is_unused()) || carried.any(|own| *own == tag.id) {
            return Ok(());
        }
        self.client.remove_tag(&tag.id).await
    }
}
