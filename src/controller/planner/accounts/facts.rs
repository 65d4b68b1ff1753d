//! What plans may know of a Provider, its account and a namespace.

use std::{collections::BTreeSet, time::Duration};

use skyward_core::Usd;

use super::quota::{Quota, Used};

/// One Provider that machines may come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProviderFacts {
    /// Its account.
    pub account: AccountFacts,
    /// The account's id, as its cloud names it.
    pub account_id: String,
    /// Whether it admits the Pool's namespace; if not, the labels it asks for.
    pub admits: Result<(), String>,
    /// Whether its machines stand on nodes of the cluster, whose architecture they have.
    pub own_nodes: bool,
    /// Settings that a Pool may override.
    pub overridable: BTreeSet<String>,
    /// Its limits.
    pub limits: Quota,
    /// How much of them is used, by all Pools.
    pub used: Used,
    /// Most that it may cost in a month, and what was spent in this one, in USD; `None`
    /// without such a limit.
    pub month: Option<(Usd, Usd)>,
    /// The same for the Pool's namespace.
    pub month_in_namespace: Option<(Usd, Usd)>,
    /// Smallest unit of time that it bills, in seconds.
    pub billing_step_seconds: u32,
    /// Least time that it bills, in seconds.
    pub billing_minimum_seconds: u32,
    /// Whether its machines have to prove their host keys.
    pub proves_host_keys: bool,
    /// How long a Pool with its machines may have nothing to do, where the Pool does not say; `None` = for ever.
    pub idle_timeout: Option<Duration>,
    /// Whether each of its machines on demand has a price of its own.
    pub marketplace: bool,
    /// Whether its Offers without a price are ordered for the most that a Pool would pay.
    pub unpriced: bool,
}

/// The account that machines come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountFacts {
    /// The Provider is being deleted: nothing is ordered there any more.
    Deleting,
    /// There is no Provider with the name that the Pool names; these are the names of all Providers.
    NotFound(Vec<String>),
    /// The Provider cannot be used now; why.
    NotReady(String),
    /// The Provider can be used.
    Ready,
}

/// The Pool's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamespaceFacts {
    /// It exists.
    Active,
    /// It is being deleted: nothing can be created in it.
    Terminating,
    /// The operator was installed for other namespaces.
    NotServed,
    /// Not seen yet.
    Unknown,
}
