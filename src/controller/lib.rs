//! The controllers of Skyward: observe, ask the planner, record, act. Decisions are another crate,
//! [`skyward_planner`].
//!
//! - [`base`]: the ground floor: queues, broadcast, backoff. ARCHITECTURE.md has all rooms, and
//!   `cargo xtask check` holds what each may use.
//! - [`leadership`]: which process leads; [`accounts`]: the accounts of Providers.
//! - [`context`]: what every controller shares; [`runtime`] starts and stops them all.
//! - [`provider`]: checks accounts and writes Offers.
//! - [`pool`]: records and deletes the Machines of Pools; begin reading at `planner/pool/plan.rs`.
//! - [`machine`]: orders, connects and ends machines.
//! - [`task`]: one serial dispatcher for each Pool, from queue to result.
//! - [`cron`]: makes Tasks by the clock.
//! - `uploads`: takes bundles into the result store; [`logs`]: serves logs and results to the aggregated API.

mod access;
pub mod accounts;
mod api;
pub mod base;
pub mod caches;
mod certificates;
pub mod config;
pub mod context;
pub mod cron;
pub mod deadline;
pub mod endpoints;
pub mod events;
pub mod guard;
pub mod health;
pub mod hints;
pub mod keys;
pub mod leadership;
pub mod logs;
pub mod machine;
mod maps;
pub mod metrics;
pub mod newest;
pub mod panics;
pub mod pool;
pub mod provider;
mod reconcile;
pub mod references;
pub mod restore;
pub mod runtime;
pub mod task;
mod uploads;
pub mod versions;
