//! What the clients of clouds share, below every cloud.
//!
//! No cloud is known here, and no controller. [`http`] is the way to an API, [`lookup`] the
//! provider contract for clouds without idempotency tokens, [`marks`] how machines are known
//! again, [`kind`] what a cloud's folder gives the registry. [`amount`] and [`text`] read and write
//! what stands in the clouds' JSON. `docs/adding-a-provider.md` says what a new cloud writes itself.

pub mod amount;
#[cfg(test)]
mod fixtures;
pub mod http;
pub mod kind;
pub mod lookup;
pub mod marks;
pub mod text;

pub use amount::{Amount, decimal, factor, time};
pub use kind::{Connected, Kind};
pub use text::{chain, cut, digest, dns_label, quoted, said, same_key, says};
