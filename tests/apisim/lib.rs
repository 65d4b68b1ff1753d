//! A Kubernetes API server in memory: what the simulation of the operator runs against.
//!
//! [`ApiServer`] keeps objects, their versions and their history, and answers the requests that
//! `kube` sends: get, list in pages, watch, create, replace, patch (JSON, merge, apply), delete. It
//! has no admission, no schemas and no garbage collector. Clients come from [`ApiServer::client`];
//! a [`Network`] decides for each request and each watch event what becomes of it on the way.
//!
//! The server is judged by [`exchanges`]: scripts of requests whose answers were recorded at a real
//! API server (`recorded.json`) and are the same here. `cargo test -p skyward-control-plane-tests
//! exchanges` sends them to the real one again.
//!
//! - `resources.rs`: which resources are served, and how they differ
//! - `request.rs`: a request's path and query, read
//! - `server.rs`: the objects, their history, and which answer a request gets
//! - `write.rs`: what a write makes of an object, and when it is refused
//! - `apply.rs`: server-side apply, for one manager of each object
//! - `list.rs`: lists in pages, and selectors
//! - `watch.rs`: events since a version
//! - `refusal.rs`: the API server's words for a refusal
//! - `wire.rs`: the server as a `kube::Client`, with the network between

mod apply;
pub mod exchanges;
mod list;
mod refusal;
mod request;
mod resources;
mod server;
mod watch;
mod wire;
mod write;

#[cfg(test)]
mod tests;

pub use request::{Call, Verb};
pub use resources::RESOURCES;
pub use server::{ApiServer, Backup, Change};
pub use wire::{Answer, Fate, Network, Reliable};
