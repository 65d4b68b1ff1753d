//! The HTTP APIs of clouds as their official descriptions have them, with machines, prices, stock,
//! faults, a clock, and a meter that shows what leaked. README.md says how to use it and how a
//! cloud plugs in.
//!
//! It is written from the descriptions and from facts about the clouds, never from the
//! clients in `src/providers`: it must be able to find them wrong.

pub mod aws;
pub mod backend;
pub mod core;
pub mod digitalocean;
pub mod gcp;
pub mod hyperstack;
pub mod jarvislabs;
pub mod lambda;
pub mod massedcompute;
pub mod novita;
#[cfg(test)]
mod published;
pub mod runpod;
pub mod scaleway;
pub mod tensordock;
pub mod vastai;
pub mod verda;
pub mod vultr;

pub use crate::backend::Intruder;
pub use crate::core::account::{Account, CredentialState};
pub use crate::core::chance::Chance;
pub use crate::core::clock::Clock;
pub use crate::core::fault::{Fault, Rule, When};
pub use crate::core::machine::{BootEnd, BootPlan, Cause, Machine, Phase};
pub use crate::core::market::{Left, Market, Shelf};
pub use crate::core::record::Entry;
pub use crate::core::sim::Sim;
pub use crate::core::simulator::{Builder, Simulator};
pub use crate::core::world::Happening;

use crate::core::cloud::Cloud;
use crate::core::rest::Rest;

/// The clouds that there are.
pub const CLOUDS: &[&str] = &[
    "aws",
    "vastai",
    "runpod",
    "verda",
    "lambda",
    "vultr",
    "digitalocean",
    "scaleway",
    "hyperstack",
    "tensordock",
    "jarvislabs",
    "novita",
    "massedcompute",
    "gcp",
];

/// A cloud by its name.
pub fn cloud(name: &str) -> Option<Box<dyn Cloud>> {
    match name {
        // Without its models there is no AWS; the missing folder is told on the way.
        "aws" => aws::Aws::from_environment().map(|cloud| Box::new(cloud) as Box<dyn Cloud>),
        "vastai" => Some(Box::new(vastai::Vastai::new())),
        "runpod" => Some(Box::new(runpod::Runpod::new())),
        "verda" => Some(Box::new(verda::Verda::new())),
        "lambda" => Some(Box::new(Rest::new(lambda::Lambda))),
        "vultr" => Some(Box::new(Rest::new(vultr::Vultr))),
        "digitalocean" => Some(Box::new(Rest::new(digitalocean::DigitalOcean::default()))),
        "scaleway" => Some(Box::new(Rest::new(scaleway::Scaleway::default()))),
        "hyperstack" => Some(Box::new(Rest::new(hyperstack::Hyperstack::default()))),
        "tensordock" => Some(Box::new(Rest::new(tensordock::TensorDock::default()))),
        "jarvislabs" => Some(Box::new(Rest::new(jarvislabs::JarvisLabs::default()))),
        "novita" => Some(Box::new(Rest::new(novita::Novita::default()))),
        "massedcompute" => Some(Box::new(Rest::new(massedcompute::MassedCompute::default()))),
        "gcp" => Some(Box::new(Rest::new(gcp::Gcp::default()))),
        _ => None,
    }
}
