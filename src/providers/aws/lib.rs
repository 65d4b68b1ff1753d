//! Machines that are instances of Amazon EC2.
//!
//! - [`config`]: settings of the Provider with every default applied.
//! - `fenced`: nothing is changed by a process that may not lead any more.
//! - [`cloud`]: the SDK's clients, one for each region; [`question`]: three calls without
//!   a client; [`errors`]: answers become kinds of error.
//! - [`answers`]: for a look at an account answers are compared with what is `expected` of them; `xml` reads them.
//! - [`map`]: an order becomes a launch template and a fleet, an instance a machine;
//!   [`images`]: the image that it starts from.
//! - [`network`]: subnets, and the security group of a Pool; [`placement`]: one zone for
//!   the machines of a Pool.
//! - `order` carries an order out, `look` looks at instances.
//! - [`offers`]: instance types become offers, with [`prices`] of the price list; [`catalogue`]
//!   remembers both; `quotas` tells the limits of vCPUs.
//!
//! A crate of its own, since its SDK takes minutes to compile (docs/decisions/0007).

pub mod answers;
pub mod catalogue;
pub mod cloud;
pub mod config;
pub mod errors;
mod expected;
mod fenced;
pub mod images;
mod look;
pub mod map;
pub mod network;
pub mod offers;
mod order;
pub mod placement;
pub mod prices;
pub mod question;
mod quotas;
mod xml;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use aws_sdk_sts::operation::get_caller_identity::GetCallerIdentityOutput;
use catalogue::Catalogue;
pub use cloud::ENDPOINTS;
use cloud::{Cloud, call, within};
use config::Reach;
pub use config::Settings;
use futures::FutureExt;
use look::{Look, is_ending, is_over};
use map::{Image, filter};
use network::Subnet;
use parking_lot::Mutex;
use placement::Placement;
use skyward_core::{
    Accepted, Account, Capabilities, CredentialKey, Deletion, ErrorKind, Leftover, MachineRef, Market, Offer,
    Order, PoolScope, Provider, ProviderError, ProviderMachine, Scope,
    provider::{
        AccountFact, BilledTime, Halted, HostKeys, Idempotency, MarkWriters, Marking, ReclaimNotice, Regions,
        SelfStop,
    },
};
use skyward_provider_kit::{Cache, Connected, kind, said};
use tokio::time::Instant;

/// Name of this kind of provider.
pub const KIND: &str = "aws";

/// Keys of its Secret. Without any the operator's own identity is used.
pub const CREDENTIALS: &[CredentialKey] = &[
    CredentialKey {
        name: "AWS_ACCESS_KEY_ID",
        required: false,
        what: "Access key of an IAM user (console: IAM, Users, Security credentials). Without keys the operator's own identity is used: IRSA, EKS Pod Identity, or the role of its node",
    },
    CredentialKey {
        name: "AWS_SECRET_ACCESS_KEY",
        required: false,
        what: "Its secret half; needed with AWS_ACCESS_KEY_ID",
    },
    CredentialKey {
        name: "AWS_SESSION_TOKEN",
        required: false,
        what: "Session token, for temporary keys only",
    },
    CredentialKey {
        name: "AWS_DEFAULT_REGION",
        required: false,
        what: "Region, where the Provider's settings say none",
    },
    CredentialKey {
        name: "AWS_REGION",
        required: false,
        what: "The same; wins over AWS_DEFAULT_REGION",
    },
];

/// How long AWS may not show new resources.
const SETTLE: Duration = Duration::from_secs(60);
/// Regions that are asked at once.
const AT_ONCE: usize = 8;
/// Longest time that a question to all regions may take.
const SWEEP: Duration = Duration::from_secs(120);
/// Orders that are remembered as recent.
const RECENT: usize = 8192;
/// Script that asks for a spot instance's notice; IMDSv2 answers 404 while there is none.
const NOTICE: &str = include_str!("notice.sh");

/// AWS, for the registry.
pub const AWS: kind::Cloud = kind::Cloud {
    name: KIND,
    credentials: CREDENTIALS,
    endpoints: ENDPOINTS,
    capabilities: &CAPABILITIES,
    fixed: &["region", "regions", "excludeBurstable"],
    // The SDK slows down by itself when AWS asks for that.
    limits: &[],
    request_timeout: kind::REQUEST_TIMEOUT,
    schema: kind::settings_schema::<Settings>,
    connect,
};

/// The client of an account; no call is made yet.
pub fn connect(account: Account) -> Connected {
    for (has, lacks) in [
        ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
        ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
        ("AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"),
    ] {
        if account.credentials.get(has).is_some() {
            account.credentials.require(lacks)?;
        }
    }
    let settings = kind::settings_of(KIND, account.settings.clone())?;
    let reach = config::reach(&settings, &account.credentials)?;
    Ok(Arc::new(Aws {
        provider: account.provider.clone(),
        settings: account.settings.clone(),
        cloud: Cloud::new(account, reach.home().to_owned()),
        reach,
        catalogue: Catalogue::default(),
        subnets: Cache::new(10 * Duration::from_secs(60), 256),
        groups: Cache::new(10 * Duration::from_secs(60), 4096),
        images: Cache::new(24 * Duration::from_secs(3600), 1024),
        templates: Cache::new(Duration::from_secs(3600), 4096),
        placement: Placement::default(),
        recent: Cache::new(SETTLE, RECENT),
        doubts: Mutex::default(),
    }))
}

/// What AWS can do.
pub const CAPABILITIES: Capabilities = Capabilities {
    markets: &[Market::OnDemand, Market::Spot],
    marking: Marking::Tags,
    mark_writers: MarkWriters::Account,
    idempotency: Idempotency::Token,
    settle_time: SETTLE,
    poll_interval: Duration::from_secs(5),
    // The template says that a shutdown terminates.
    self_stop: SelfStop::EndsBilling,
    stop_command: None,
    billing_step: Duration::from_secs(1),
    billing_minimum: Duration::from_secs(60),
    // Neither `pending` nor `shutting-down` is on the bill.
    billed_time: BilledTime::Running,
    connected: true,
    boot_script: true,
    host_keys: HostKeys::Proved,
    fuse: true,
    reclaim_notice: ReclaimNotice::OnMachine(NOTICE),
    reclaim_ahead: Duration::from_mins(2),
    halted: Halted::Disk,
    regions: Regions::Chosen,
    swept: &[network::GROUP, network::TEMPLATE],
    hidden_environment: &[],
    ..Capabilities::of(KIND)
};

/// One account at AWS.
struct Aws {
    cloud: Cloud,
    /// Name of the Provider object, which machines are tagged with.
    provider: String,
    settings: serde_json::Value,
    reach: Reach,
    catalogue: Catalogue,
    /// By region and given subnet.
    subnets: Cache<(String, Option<String>), Vec<Subnet>>,
    /// By region, Pool and VPC.
    groups: Cache<(String, String, String), String>,
    /// By region and image or parameter.
    images: Cache<(String, String), Image>,
    /// Names of templates that exist, by region.
    templates: Cache<(String, String), ()>,
    placement: Placement,
    /// When machines were ordered, by UID: AWS may not show them yet.
    recent: Cache<String, ()>,
    /// Since when AWS has known tokens of orders whose machines it does not show.
    doubts: Mutex<BTreeMap<String, Instant>>,
}

impl Aws {
    /// The configured regions, and more.
    fn regions(&self, more: &[String]) -> BTreeSet<String> {
        self.reach
            .regions
            .iter()
            .chain(more)
            .filter(|region| !region.is_empty())
            .cloned()
            .collect()
    }

    /// Whose credentials these are.
    async fn identity(&self) -> Result<GetCallerIdentityOutput, ProviderError> {
        let sts = self.cloud.sts().await?;
        call("check the credentials", sts.get_caller_identity().send()).await
    }

    /// Whether a machine was just ordered.
    fn is_recent(&self, machine_uid: &str) -> bool {
        self.recent.known(&machine_uid.to_owned()).is_some()
    }
}

#[async_trait]
impl Provider for Aws {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    async fn account(&self) -> Result<String, ProviderError> {
        let identity = self.identity().await?;
        identity.account().map(str::to_owned).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::Transient,
                "check the credentials",
                "AWS named no account",
            )
        })
    }

    /// An operator without keys acts as whatever it finds: its service account's role, or the role of its node.
    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        let identity = self.identity().await?;
        let fact = |arn: &str| AccountFact {
            what: "user or role",
            value: said(arn),
        };
        let quotas = quotas::facts(&self.cloud, &self.reach.regions).await;
        Ok(identity.arn().map(fact).into_iter().chain(quotas).collect())
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        self.catalogue
            .offers(&self.cloud, &self.reach.regions, self.reach.exclude_burstable)
            .await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        let prepared = within("prepare the order", SWEEP, self.prepare(order)).await?;
        let started = if order.pool.connected && prepared.subnets.len() > 1 {
            let key = (order.mark.pool_uid.clone(), prepared.region.name.to_string());
            let existing = || async {
                let mut filters = map::ours(&order.mark.cluster, &self.provider, Some(&order.mark.pool_uid));
                filters.push(filter("instance-state-name", &["pending", "running"]));
                let all = self.instances(&prepared.region, filters).await?;
                Ok(map::common_zone(&all, &order.mark.machine_uid))
            };
            self.placement
                .place(key, existing, |zone| self.start(order, &prepared, zone))
                .await
        } else {
            self.start(order, &prepared, None).await.map(|(id, _)| id)
        };
        self.end_own_template(order, &prepared).await;
        Ok(Accepted { id: started? })
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let Look::Found(region, instance) = self.look(machine).await? else {
            return Ok(None);
        };
        // Shown for an hour more, but its ordered end has come.
        if map::was_returned(&instance) {
            return Ok(None);
        }
        let Some(mut found) = map::machine(&instance, &region.name) else {
            return Ok(None);
        };
        found.rental.hourly_price = self.known_price(&region, &instance);
        if found.rental.hourly_price.is_none()
            && map::is_spot(&instance)
            && let (Some(kind), Some(zone), Some(launched)) = (
                instance.instance_type(),
                map::zone(&instance),
                map::launched(&instance),
            )
        {
            // A price that cannot be read now must not hide the machine.
            found.rental.hourly_price = self
                .catalogue
                .launch_price(&region, &found.id, kind.as_str(), zone, launched)
                .await
                .unwrap_or_default();
        }
        Ok(Some(found))
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        self.over_regions("list the instances", self.regions(&scope.regions), |region| {
            async move {
                let mut filters = map::ours(&scope.cluster, &self.provider, scope.pool_uid.as_deref());
                // Terminated instances stay listed for an hour, and are no machines any more.
                filters.push(filter(
                    "instance-state-name",
                    &["pending", "running", "shutting-down", "stopping", "stopped"],
                ));
                let all = self.instances(&region, filters).await?;
                Ok(all
                    .iter()
                    .filter_map(|instance| {
                        let mut machine = map::machine(instance, &region.name)?;
                        machine.rental.hourly_price = self.known_price(&region, instance);
                        Some(machine)
                    })
                    .collect())
            }
            .boxed()
        })
        .await
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let region = self.cloud.region(&machine.region).await?;
        let not_shown = || Deletion::gone_if(!self.is_recent(&machine.mark.machine_uid));
        if let Some(id) = &machine.id {
            // A look first: it tells the end, and spares the dearer call while it waits.
            return match self.look(machine).await? {
                Look::Found(_, instance) if is_over(&instance) => Ok(Deletion::Gone),
                Look::Found(_, instance) if is_ending(&instance) => Ok(Deletion::InProgress),
                Look::Found(..) => match self.terminate(&region, id).await {
                    Err(error) if error.kind == ErrorKind::NotFound => Ok(not_shown()),
                    answer => answer,
                },
                // The owner of a machine that AWS does not show yet is not known.
                Look::Nothing => Ok(not_shown()),
                Look::Foreign => Ok(Deletion::Foreign),
            };
        }
        // The answer to its order was lost: its tags find it, twice if it was doubled.
        let all = self
            .instances_of(&region, &machine.mark.cluster, &machine.mark.machine_uid)
            .await?;
        if all.is_empty() {
            return Ok(not_shown());
        }
        let mut deletion = Deletion::Gone;
        for instance in all.iter().filter(|instance| !is_over(instance)) {
            if is_ending(instance) {
                deletion = Deletion::InProgress;
            } else if let Some(id) = instance.instance_id()
                && self.terminate(&region, id).await? == Deletion::InProgress
            {
                deletion = Deletion::InProgress;
            }
        }
        Ok(deletion)
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        self.over_regions(
            "list what Pools left behind",
            self.regions(&scope.regions),
            |region| {
                async move {
                    network::leftovers(&region, &scope.cluster, &self.provider, scope.pool_uid.as_deref())
                        .await
                }
                .boxed()
            },
        )
        .await
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        let left = self
            .over_regions(
                "return what the Pool shared",
                self.regions(&pool.regions),
                |region| {
                    async move {
                        let left =
                            network::leftovers(&region, &pool.cluster, &self.provider, Some(&pool.pool_uid))
                                .await?;
                        let mut waits = Vec::new();
                        for leftover in left {
                            if network::remove(&region, &leftover).await? == Deletion::InProgress {
                                waits.push(leftover);
                            }
                        }
                        Ok(waits)
                    }
                    .boxed()
                },
            )
            .await?;
        self.groups.forget(|(_, pool_uid, _)| *pool_uid == pool.pool_uid);
        self.templates.forget(|(_, name)| name.contains(&pool.pool_uid));
        Ok(Deletion::gone_if(left.is_empty()))
    }
}

#[cfg(test)]
#[path = "tests/recorded.rs"]
mod recorded;
#[cfg(test)]
#[path = "tests/account.rs"]
mod tests;
