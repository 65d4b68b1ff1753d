//! What the controllers of Skyward decide: which machines there should be, what becomes of one
//! machine, one Provider and one Task, and what machines cost.
//!
//! Everything here is a function of what was observed and of the time, which is an argument. No
//! client and no async runtime is among the dependencies (`cargo xtask check` holds that), so that
//! nothing here can look at the world or change it: `skyward-controller` observes and acts.
//!
//! - [`base`]: keys, times, digests, and when an object is looked at again.
//! - [`events`]: what people are told; [`records`], [`accelerators`], [`money`]: what a Machine's
//!   record says, names and costs.
//! - [`restore`]: evidence that a cluster was restored, and which Providers are held for that.
//! - [`accounts`]: what is offered, unavailable, used, spent and left behind at accounts.
//! - [`cron`]: which Tasks a CronTask makes, and when.
//! - [`pool`], [`machine`], [`provider`]: their plans; begin reading at `pool/plan.rs`.
//! - [`map`]: which worker runs which items of a Task with `forEach`; begin reading at `map/plan.rs`.
//! - [`task`]: the dispatcher of a Pool, from queue to result; begin reading at
//!   `task/dispatcher/mod.rs`.

pub mod accelerators;
pub mod accounts;
pub mod base;
pub mod cron;
pub mod events;
pub mod machine;
pub mod map;
pub mod money;
pub mod pool;
pub mod provider;
pub mod records;
pub mod restore;
pub mod task;
#[cfg(test)]
mod tests;
