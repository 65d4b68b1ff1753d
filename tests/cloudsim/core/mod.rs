//! Parts that all clouds share: time, machines, money, faults and the log of requests.

pub mod account;
pub mod billing;
pub mod chance;
pub mod client;
pub mod clock;
pub mod cloud;
pub mod control;
pub mod description;
pub mod fault;
pub mod fingerprint;
pub mod http;
pub mod limits;
pub mod machine;
pub mod market;
pub mod meter;
pub mod pem;
pub mod record;
pub mod resource;
pub mod rest;
pub mod server;
pub mod sim;
pub mod simulator;
pub mod world;

#[cfg(test)]
mod tests;
