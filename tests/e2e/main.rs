//! Stories of users on a real cluster: `make e2e`, or one alone with
//! `make e2e STORY=name`. Each has a namespace of its own and waits for conditions.
//!
//! - [`samples`]: every file of `config/samples/` does what its comment says.
//! - [`tasks`]: commands, scripts, functions, placement, queue, cancel, suspend.
//! - [`nasty`]: Tasks that misbehave on purpose.
//! - [`pools`]: life of Pools and bad Pools.
//! - [`logs`]: logs, results, and who may read them.
//! - [`crash`]: what is killed must not lose, double or leak anything.

mod logs;
mod nasty;
mod pools;
mod samples;
mod tasks;

mod crash;

use skyward_testkit::{Cluster, Result, Space};

/// The cluster with the operator on it, and a namespace for one story.
async fn story(name: &str) -> Result<Space> {
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    cluster.namespace(name).await
}
