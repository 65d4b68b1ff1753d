//! Helpers of the tests on a real cluster.
//!
//! [`Cluster::connect`] finds the cluster that `make test` started, [`install`] puts
//! the operator on it once, [`Cluster::namespace`] gives each story a namespace of its
//! own that goes when the story ends. Stories wait for conditions with a deadline
//! ([`Space::wait`]) and never sleep for a guess.

#![allow(clippy::missing_docs_in_private_items)]

mod bucket;
mod cleanup;
mod clouds;
mod cluster;
pub mod impostor;
mod index;
mod install;
mod item_ledger;
mod items;
mod ledger;
mod process;
mod space;

pub use bucket::Bucket;
pub use clouds::{Clouds, Machines, node_address};
pub use cluster::{Cluster, Output};
pub use index::{PackageIndex, certificates, image_with, package_index};
pub use install::{
    NODE_IMAGE, OPERATOR_NAMESPACE, PROVIDER, install, install_chart, install_with, operator_values,
};
pub use item_ledger::ItemLedger;
pub use items::{ITEM_SOURCE, ItemMark, ItemOutcome, ItemSide, MapRecord};
pub use ledger::Ledger;
pub use process::{
    Memory, controller_memory, controller_pid, fill_disk, kill_controller, pids_in_pod,
    wait_controller_replaced,
};
pub use space::{PATIENCE, SMALL_DISK, Space};

/// What a test may end with.
pub type Result<T = ()> = anyhow::Result<T>;
