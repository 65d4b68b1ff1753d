//! The contract of a provider. Docs and tests point at the numbers:
//!
//! | rule | |
//! | --- | --- |
//! | P1 | `create` returns as soon as the provider accepted; it never waits for boot |
//! | P2 | `create` with a token already used returns the same machine |
//! | P3 | a lost answer to `create` is `Indeterminate`, and an answer that says that the cloud is under maintenance an `Outage`: never a plain retry; the next look decides |
//! | P4 | `list` returns every machine with our mark in the scope, failed and stopping ones too; a partial page is an error |
//! | P5 | the mark identifies cluster, Pool UID, slot and attempt |
//! | P6 | `delete` is repeatable; `Gone` only when the provider says that the machine no longer exists |
//! | P7 | `offers` is read-only and cheap to repeat; prices are decimals in USD per hour |
//! | P8 | no method sleeps or loops longer than its deadline |
//! | P9 | credentials never appear in errors, `Debug` or spans |
//! | P10 | every error has a kind |
//! | P11 | `get` and `delete` with a recorded id compare the mark first: a machine with another mark is never shown or ended (`Foreign`), one without any is an error |

use std::time::Duration;

use async_trait::async_trait;
use futures_core::stream::BoxStream;
use serde::{Deserialize, Serialize};

use crate::{
    error::ProviderError,
    machine::{MachineRef, ProviderMachine},
    offer::{Market, Offer},
    order::{Accepted, Order},
};

/// One account at one cloud.
#[async_trait]
pub trait Provider: Send + Sync {
    /// What this provider can do; data, so that planning needs no names of clouds.
    fn capabilities(&self) -> &Capabilities;

    /// Proves the credentials by a real call; answers with the account's id.
    async fn account(&self) -> Result<String, ProviderError>;

    /// What the API tells of the account besides its id: money, quotas, rights. For people; nothing is decided by it.
    /// Read-only; empty where the API tells nothing.
    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        Ok(Vec::new())
    }

    /// Everything that can be rented now (P7).
    async fn offers(&self) -> Result<Vec<Offer>, ProviderError>;

    /// Orders one machine (P1, P2, P3).
    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError>;

    /// One machine, or `None` when the provider says that it does not exist.
    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError>;

    /// Every machine with our mark in the scope (P4).
    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError>;

    /// Namespaces that can be listed each by itself ([`Scope::namespace`]): a refused list of one
    /// says nothing of the others. None: there is one list of everything.
    fn namespaces(&self) -> &[String] {
        &[]
    }

    /// Orders the end of a machine (P6) that carries the mark it is asked for by (P11).
    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError>;

    /// Everything with our mark that is not a machine and that machines of a Pool share:
    /// keys, security groups, templates, scripts, networks, volumes. Resources that `release` or a
    /// crash left behind show up here.
    async fn leftovers(&self, _scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        Ok(Vec::new())
    }

    /// Returns what the machines of a Pool shared, once they are gone. Repeatable as
    /// `delete` is; `InProgress` while something is still in use.
    async fn release(&self, _pool: &PoolScope) -> Result<Deletion, ProviderError> {
        Ok(Deletion::Gone)
    }

    /// Names of Machines (namespace, name) whose state changed at the provider, for providers
    /// that can tell; others are polled.
    fn changes(&self) -> Option<BoxStream<'static, (String, String)>> {
        None
    }
}

/// Something that the API of a cloud tells of an account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AccountFact {
    /// What it is, in words: `balance in USD`.
    pub what: &'static str,
    /// As the cloud tells it, in one line.
    pub value: String,
}

/// Which machines a list is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The installation whose mark they carry.
    pub cluster: String,
    /// Only machines of this Pool UID.
    pub pool_uid: Option<String>,
    /// Only machines of this namespace, for providers whose machines stand in namespaces; for a
    /// Pool's machines it is the Pool's own. Other providers need not look at it.
    pub namespace: Option<String>,
    /// Regions to look at: the configured ones, and the regions of recorded machines.
    pub regions: Vec<String>,
}

impl Scope {
    /// Whether resources of this Pool of this installation are in the scope.
    pub fn holds(&self, cluster: &str, pool_uid: &str) -> bool {
        self.cluster == cluster && self.pool_uid.as_deref().is_none_or(|uid| uid == pool_uid)
    }
}

/// The Pool whose shared things are returned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolScope {
    /// The installation.
    pub cluster: String,
    /// UID of the Pool.
    pub pool_uid: String,
    /// Regions in which it may have ordered.
    pub regions: Vec<String>,
}

/// Something at a provider that is ours and not a machine.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leftover {
    /// What it is, in the provider's words: `security group`, `start-up script`.
    pub kind: &'static str,
    /// The provider's id of it.
    pub id: String,
    /// Region that it is in, `""` where there is none.
    pub region: String,
    /// UID of the Pool that it was made for.
    pub pool_uid: String,
}

/// Answer to `delete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The provider says that the machine no longer exists.
    Gone,
    /// Ordered; ask again.
    InProgress,
    /// A machine with another mark has this id: it was left as it is, and no machine of ours has
    /// this id.
    Foreign,
}

impl Deletion {
    /// `Gone` only on this proof.
    pub const fn gone_if(proof: bool) -> Self {
        if proof { Self::Gone } else { Self::InProgress }
    }
}

/// What a provider can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the kind of provider: `container`, `aws`, ….
    pub kind: &'static str,
    /// Markets that it sells on.
    pub markets: &'static [Market],
    /// What carries the mark.
    pub marking: Marking,
    /// The parties that can write it.
    pub mark_writers: MarkWriters,
    /// Why ordering twice with one token gives one machine.
    pub idempotency: Idempotency,
    /// How long a list may lag after create or delete.
    pub settle_time: Duration,
    /// How often to look at a machine that is on its way, where `changes` is silent.
    pub poll_interval: Duration,
    /// Whether a machine that stops itself ends its bill.
    pub self_stop: SelfStop,
    /// Command (as root, on the machine) by which it stops itself; none: `shutdown`.
    pub stop_command: Option<&'static str>,
    /// Smallest unit of time that is billed.
    pub billing_step: Duration,
    /// Least time that is billed for each machine.
    pub billing_minimum: Duration,
    /// Which part of a machine's life is billed.
    pub billed_time: BilledTime,
    /// Whether each machine on demand has a price of its own, of which an offer shows the
    /// lowest; what disk an order asks for may be part of it.
    pub marketplace: bool,
    /// Whether what has no price can be ordered on demand all the same, for the most that a Pool would pay: of clouds whose
    /// API tells no prices.
    pub unpriced: bool,
    /// Whether machines of one Pool reach each other by their private addresses.
    pub connected: bool,
    /// Whether an order can carry a boot script.
    pub boot_script: bool,
    /// Where the host key of a machine can be learnt.
    pub host_keys: HostKeys,
    /// Whether FUSE file systems can be mounted.
    pub fuse: bool,
    /// What tells of a spot machine that will be taken back.
    pub reclaim_notice: ReclaimNotice,
    /// How long before that; zero where nothing tells of it before, or where that is not published.
    pub reclaim_ahead: Duration,
    /// What a machine costs that stands halted.
    pub halted: Halted,
    /// What names the regions of its offers.
    pub regions: Regions,
    /// What is made beside machines, and found and returned when a crash left it: each [`Leftover::kind`], and parts of
    /// machines that may outlive them.
    pub swept: &'static [&'static str],
    /// Default of `timeouts.bootstrap` for its machines: from SSH to Ready.
    pub bootstrap_timeout: Duration,
    /// Names of environment variables that the cloud puts on a machine and no run may see.
    pub hidden_environment: &'static [&'static str],
}

impl Capabilities {
    /// The capabilities of a provider that can do as little as possible; others are set by name.
    pub const fn of(kind: &'static str) -> Self {
        Self {
            kind,
            markets: &[Market::OnDemand],
            marking: Marking::Name,
            mark_writers: MarkWriters::Machines,
            idempotency: Idempotency::LookUp,
            settle_time: Duration::from_secs(60),
            poll_interval: Duration::from_secs(10),
            self_stop: SelfStop::None,
            stop_command: None,
            billing_step: Duration::from_secs(1),
            billing_minimum: Duration::ZERO,
            billed_time: BilledTime::Existing,
            marketplace: false,
            unpriced: false,
            connected: false,
            boot_script: false,
            host_keys: HostKeys::FirstContact,
            fuse: false,
            reclaim_notice: ReclaimNotice::None,
            reclaim_ahead: Duration::ZERO,
            halted: Halted::Full,
            regions: Regions::Listed,
            swept: &[],
            bootstrap_timeout: Duration::from_mins(5),
            hidden_environment: &[],
        }
    }
}

/// Which part of a machine's life is billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BilledTime {
    /// From the order until the machine is gone; the default.
    Existing,
    /// From when it runs until its end is ordered.
    Running,
}

/// What carries the mark of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// Tags or labels.
    Tags,
    /// Its environment, which the API shows.
    Environment,
    /// Its name.
    Name,
}

/// The parties that can write the mark of a machine: a mark that anybody can write proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkWriters {
    /// Holders of the account's credentials.
    Account,
    /// A machine too can write its own mark: the cloud gives it a key for that.
    Machines,
    /// Users of namespaces of this cluster: the mark is an object's label.
    Namespaces,
}

/// Why ordering twice with one token gives one machine (P2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotency {
    /// The provider knows the token.
    Token,
    /// `create` looks for the mark before it orders. Two orders at the same instant would make two
    /// machines: only the leader orders, and only once at a time.
    LookUp,
}

/// Where the host key of a machine can be learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
pub enum HostKeys {
    /// The cloud's API tells it.
    Reported,
    /// The machine proves its key with a token of its boot data.
    Proved,
    /// Only the machine itself tells it, at first contact, and nothing vouches for it.
    FirstContact,
}

/// What tells of a spot machine that will be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimNotice {
    /// Nothing: the machine is gone or halted without notice.
    None,
    /// The machine itself can ask, by this command (as the user that the agent runs as;
    /// exit status 0 and a line with the time, as RFC 3339 has it, mean that it will be
    /// taken back).
    OnMachine(&'static str),
    /// The provider's API.
    Reported,
}

/// What a machine costs that stands halted, whatever halted it, until it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halted {
    /// Nothing.
    Nothing,
    /// Its disk.
    Disk,
    /// Its full price.
    Full,
}

/// What names the regions of offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regions {
    /// Nothing: the provider chooses the place of a machine.
    None,
    /// The API of the cloud.
    Listed,
    /// The settings of the Provider.
    Chosen,
    /// This list: the API has none.
    Known(&'static [&'static str]),
}

/// What becomes of the bill when a machine stops itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schemars", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schemars", schemars(transform = crate::schema::explain_variants))]
pub enum SelfStop {
    /// Nothing is billed any more.
    EndsBilling,
    /// A part of the machine, such as its disk, is billed on.
    Partial,
    /// The whole machine is billed on.
    None,
}
