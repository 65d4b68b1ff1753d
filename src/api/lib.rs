//! The custom resources of Skyward (`skyward.dev/v1alpha1`), and nothing else.
//!
//! Types here are what users write and read: doc comments become the text of
//! `kubectl explain` and of the reference, CEL rules become errors at admission.
//! No I/O and no policy; `skyward-controller` has both. Start with [`pool`] and
//! [`task`]; [`condition`] lists every condition with its closed set of reasons.

#![allow(
    clippy::duplicated_attributes,
    reason = "columns share keys such as `priority = 1`"
)]
#![expect(
    unreachable_pub,
    reason = "KubeSchema repeats each public type inside a function"
)]

pub mod condition;
pub mod crd;
pub mod cron_task;
pub mod duration;
pub mod environment;
pub mod for_each;
mod known;
pub mod labels;
pub mod machine;
pub mod offer;
pub mod pool;
pub mod provider;
mod rule;
pub mod shared;
pub mod task;
mod written;

pub use cron_task::{CronTask, CronTaskSpec, CronTaskStatus};
pub use duration::{Duration, DurationOrNever};
pub use machine::{Machine, MachinePhase, MachineSpec, MachineStatus};
pub use offer::{Offer, OfferSpec};
pub use pool::{Pool, PoolPhase, PoolSpec, PoolStatus};
pub use provider::{Provider, ProviderSpec, ProviderStatus};
pub use shared::Amount;
pub use task::{Task, TaskPhase, TaskSpec, TaskStatus};

/// API group of the custom resources.
pub const GROUP: &str = "skyward.dev";
/// Version served and stored.
pub const VERSION: &str = "v1alpha1";
/// API group of the aggregated API for logs and results.
pub const SUBRESOURCES_GROUP: &str = "subresources.skyward.dev";

/// Most machines that one Pool may want. It bounds what a Task's status must
/// record for a broadcast (one short entry for each rank) to well under 32 KiB.
pub const MAX_POOL_NODES: u32 = 500;
/// Most ranks of one Task, however many processes it has on each machine.
pub const MAX_RANKS: u32 = MAX_POOL_NODES;

#[cfg(test)]
mod tests;
