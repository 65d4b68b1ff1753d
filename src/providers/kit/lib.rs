//! What the clients of clouds share, below every cloud.
//!
//! No cloud is known here, and no controller.
//!
//! - [`http`]: the way to an API, what calls show, lists in pages, what a status means.
//! - [`lookup`]: the provider contract for clouds without idempotency tokens.
//! - [`marks`]: how machines are known again. [`shared`]: a Pool's key and script in a store of the
//!   account. [`boot`]: what a machine is told at its first boot.
//! - [`hardware`] and [`currency`]: what is offered, and for how much.
//! - [`cache`]: what is remembered for a while.
//! - [`kind`]: what a cloud's folder gives the registry.
//! - [`amount`] and [`text`]: what stands in the clouds' JSON.
//!
//! `docs/adding-a-provider.md` says what a new cloud writes itself.

pub mod amount;
pub mod boot;
pub mod cache;
pub mod currency;
#[cfg(test)]
mod fixtures;
pub mod hardware;
pub mod http;
pub mod kind;
pub mod lookup;
pub mod marks;
pub mod shared;
pub mod text;

pub use amount::{Amount, decimal, factor, time};
pub use cache::Cache;
pub use kind::{Connected, Kind, account_id};
pub use text::{chain, cut, digest, dns_label, quoted, said, same_key, says};
