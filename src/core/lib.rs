//! The domain of Skyward: machines, offers, orders and the contract of a provider.
//!
//! No Kubernetes, no HTTP, no SSH: everything here can be tested without any of
//! them. [`provider::Provider`] is the contract that each cloud fulfils and a good
//! place to begin reading; [`error::ProviderError`] is what it may answer.

pub mod accelerator;
pub mod account;
pub mod boot;
pub mod clock;
pub mod diagnosis;
pub mod error;
pub mod fence;
pub mod key;
pub mod machine;
pub mod offer;
pub mod order;
pub mod proof;
pub mod provider;
#[cfg(feature = "schemars")]
pub mod schema;
pub mod secret;
pub mod session;
pub mod usd;

pub use account::{Account, CredentialKey, Credentials, Endpoints};
pub use error::{ErrorKind, ProviderError};
pub use fence::{Fence, NotLeading};
pub use key::Key;
pub use machine::{MachineRef, ProviderMachine, ProviderPhase};
pub use offer::{Market, Offer};
pub use order::{Accepted, Mark, Order};
pub use provider::{Capabilities, Deletion, Leftover, PoolScope, Provider, Scope};
pub use secret::Secret;
pub use usd::Usd;
