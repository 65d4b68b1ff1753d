//! One folder per cloud; each implements the provider contract of skyward-core.
//!
//! [`registry`] is the single list of them and makes the client of an account from
//! its Provider object. Inside a folder `mod.rs` reads like the contract, `config.rs`
//! resolves settings, and `map.rs` and `errors.rs` are pure: most mistakes are made
//! there, and their tests take microseconds. What folders share is `kit/`, a crate below them.
//! `docs/adding-a-provider.md` is the recipe. [`check`] looks at an account for people.

pub mod check;
pub mod container;
pub mod digitalocean;
#[cfg(test)]
mod fixtures;
pub mod gcp;
pub mod hyperstack;
pub mod instrumented;
pub mod jarvislabs;
pub mod lambda;
pub mod massedcompute;
pub mod novita;
pub mod registry;
pub mod runpod;
pub mod scaleway;
pub mod tensordock;
pub mod vastai;
pub mod verda;
pub mod vultr;

pub use instrumented::CallSink;
pub use registry::{Options, capabilities, credential_keys, factory};

/// Whether a line may be logged whatever is asked for. At the level trace the SDK of AWS prints whole requests,
/// with the boot data of machines and the tokens in these.
pub fn is_logged(line: &tracing::Metadata<'_>) -> bool {
    *line.level() != tracing::Level::TRACE || !line.target().starts_with("aws_")
}
