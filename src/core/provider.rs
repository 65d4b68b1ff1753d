//! The contract of a provider. Docs and tests point at the numbers:
//!
//! | rule | |
//! | --- | --- |
//! | P1 | `create` returns as soon as the provider accepted; it never waits for boot |
//! | P2 | `create` with a token already used returns the same machine |
//! | P3 | a lost answer to `create` is `Indeterminate`, never a plain retry; the next look decides |
//! | P4 | `list` returns every machine with our mark in the scope, failed and stopping ones too; a partial page is an error |
//! | P5 | the mark identifies cluster, Pool UID, slot and attempt |
//! | P6 | `delete` is repeatable; `Gone` only when the provider says that the machine no longer exists |
//! | P7 | `offers` is read-only and cheap to repeat; prices are decimals in USD per hour |
//! | P8 | no method sleeps or loops longer than its deadline |
//! | P9 | credentials never appear in errors, `Debug` or spans |
//! | P10 | every error has a kind |

use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use crate::{
    error::ProviderError,
    machine::{MachineRef, ProviderMachine},
    offer::Offer,
    order::{Accepted, Order},
};

/// One account at one cloud.
#[async_trait]
pub trait Provider: Send + Sync {
    /// What this provider can do; data, so that planning needs no names of clouds.
    fn capabilities(&self) -> &Capabilities;

    /// Proves the credentials by a real call; answers with the account's id.
    async fn account(&self) -> Result<String, ProviderError>;

    /// Everything that can be rented now (P7).
    async fn offers(&self) -> Result<Vec<Offer>, ProviderError>;

    /// Orders one machine (P1, P2, P3).
    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError>;

    /// One machine, or `None` when the provider says that it does not exist.
    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError>;

    /// Every machine with our mark in the scope (P4).
    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError>;

    /// Orders the end of a machine (P6).
    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError>;

    /// Names of Machines (namespace, name) whose state changed at the provider, for those
    /// that can tell; others are polled.
    fn changes(&self) -> Option<BoxStream<'static, (String, String)>> {
        None
    }
}

/// Which machines a list is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The installation whose mark they carry.
    pub cluster: String,
    /// Only those of this Pool UID.
    pub pool_uid: Option<String>,
    /// Regions to look at: those configured and those of recorded machines.
    pub regions: Vec<String>,
}

/// Answer to `delete`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The provider says that the machine no longer exists.
    Gone,
    /// Ordered; ask again.
    InProgress,
}

/// What a provider can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the kind of provider: `container`, `aws`, ….
    pub kind: &'static str,
    /// How long a list may lag after create or delete.
    pub settle_time: Duration,
    /// How often to look at a machine that is on its way, where `changes` is silent.
    pub poll_interval: Duration,
    /// Whether a machine that stops itself ends its bill.
    pub self_stop: SelfStop,
    /// Smallest unit of time that is billed.
    pub billing_step: Duration,
    /// Whether machines of one Pool reach each other by their private addresses.
    pub connected: bool,
}

/// What becomes of the bill when a machine stops itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfStop {
    /// Nothing is billed any more.
    EndsBilling,
    /// Part of it is.
    Partial,
    /// All of it is.
    None,
}
