//! Stories of users on a real cluster: `make e2e`, or one alone as `hack/test-env.sh`
//! says. Each has a namespace of its own and waits for conditions.
//!
//! - [`samples`]: every file of `config/samples/` does what its comment says.
//! - [`cron`]: Tasks that are made by the clock.
//! - [`tasks`]: commands, scripts, functions, placement, queue, cancel, suspend.
//! - [`maps`]: Tasks with `forEach`, and what kills leave of them.
//! - [`nasty`]: Tasks that misbehave on purpose.
//! - [`pools`]: life of Pools and bad Pools; [`pool_template`]: Pools that are made for one Task.
//! - [`logs`]: logs, results, and the users who may read them.
//! - [`progress`]: how far a Task says that it is.
//! - [`warm`]: functions that are forked from a Python that is there already, and values that are no JSON.
//! - [`results`]: large return values, and how long they are kept.
//! - [`retries`]: runs that fail and start again by their cause; deadlines.
//! - [`packages`]: what a Pool's image puts on its machines; [`environments`]: how a changed image changes them.
//! - [`secrets`]: Secrets that are missing or go; [`canary`]: where their values are not.
//! - [`source`]: code of several files; [`uploads`]: of several folders; [`git`]: from repositories.
//! - [`storage`]: the client of the package for object stores.
//! - [`strangers`]: what a client that reaches the operator's Pods is shown.
//! - [`sweep`]: orphans are found and deleted.
//! - [`elastic`]: a Pool that grows with its Tasks, shrinks and sleeps.
//! - [`view`]: columns, autoscalers, long names; what a Task sees of itself.
//! - [`crash`]: processes that are killed must not lose, double or leak anything.
//!
//! Stories that cannot run beside others are in `chart.rs`, `leadership.rs` and
//! `operator.rs`. Stories that mostly wait and kill no controller can be in `clouds/beside`, which unit tests run beside.

mod canary;
mod crash;
mod cron;
mod elastic;
mod environments;
mod git;
mod logs;
mod maps;
mod nasty;
mod packages;
mod pool_template;
mod pools;
mod progress;
mod results;
mod retries;
mod samples;
mod secrets;
mod source;
mod storage;
mod strangers;
mod sweep;
mod tasks;
mod uploads;
mod view;
mod warm;

use std::cell::RefCell;

use skyward_testkit::{Cluster, Result, Space};
use tokio::sync::{Semaphore, SemaphorePermit};

/// So many stories are at work at a time, beside stories that wait for their turn ([`crash::KILLING`]) or have it. With twelve at
/// work, one machine with packages was not ready in time in a run of CI (docs/decisions/0031-how-long-make-test-takes.md).
static PLACES: Semaphore = Semaphore::const_new(10);

thread_local! {
    /// The place of this thread's story, which goes with the thread.
    static PLACE: RefCell<Option<SemaphorePermit<'static>>> = const { RefCell::new(None) };
}

/// The cluster with the operator on it, and a namespace for one story.
async fn story(name: &str) -> Result<Space> {
    let place = PLACES.acquire().await?;
    PLACE.set(Some(place));
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    cluster.namespace(name).await
}
