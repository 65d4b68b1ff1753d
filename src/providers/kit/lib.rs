//! The parts that the clients of all clouds share.
//!
//! No cloud is known here, and no controller.
//!
//! - [`http`]: the transport to an API, authentication, lists in pages, the meaning of a status.
//! - [`lookup`]: the provider contract for clouds without idempotency tokens.
//! - [`marks`]: how machines are known again, [`owners`]: where their names are short. [`shared`]: a Pool's key and
//!   script in a store of the account. [`boot`]: boot data of a machine.
//! - [`shown`]: machines that a cloud stops showing for a while.
//! - [`hardware`] and [`currency`]: machines in offers, and their prices.
//! - [`cache`]: answers that are remembered for a while.
//! - [`kind`]: the interface between a cloud's folder and the registry.
//! - [`amount`] and [`text`]: values in the clouds' JSON. [`ssh`]: commands that log in.
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
pub mod owners;
pub mod shared;
pub mod shown;
pub mod ssh;
pub mod text;

pub use amount::{Amount, factor, flag, price, time, whole};
pub use cache::Cache;
pub use kind::{Cloud, Connected, Kind};
pub use text::{
    account_facts, chain, cut, digest, dns_label, mentions, quoted, said, same_key, says, without_value,
};
