//! A map that runs while its leader is paused for longer than its Lease lasts, another one takes the map over, and the first
//! one goes on. It has a namespace of its own, since what stands in the other one must not change when that happens.

use anyhow::ensure;
use kube::ResourceExt as _;
use serde_json::json;
use skyward_testkit::{Cluster, ITEM_SOURCE, ItemLedger, PATIENCE, Result, Space};

use crate::until;

/// Items that run at any time: more than are told before the leader is paused.
const FREE: u32 = 2000;
/// Items that wait until the first leader goes on. They need 5 seconds at the least.
const GATED: u32 = 2000;
/// Lines of items that have been told when the leader is paused.
const BEGUN: usize = 200;

/// The map, and what its items tell.
pub(crate) struct Map {
    space: Space,
    ledger: ItemLedger,
}

impl Map {
    /// Makes its namespace and its Pool, whose machine starts while the story goes on.
    pub(crate) async fn prepare(cluster: &Cluster) -> Result<Self> {
        let space = cluster.namespace("outside-map").await?;
        space.pool("p", 1, json!({"worker": {"concurrency": 2}})).await?;
        let ledger = ItemLedger::start(&space, FREE + GATED).await?;
        Ok(Self { space, ledger })
    }

    /// Creates it, and waits until its items run.
    pub(crate) async fn begin(&self) -> Result {
        self.space.pool_ready("p").await?;
        let source = format!(
            "{ITEM_SOURCE}
tell_and_wait = main
def main(index, seconds):
    while index >= {FREE} and not os.path.exists('/tmp/go'):
        time.sleep(0.05)
    return tell_and_wait(index, seconds)
"
        );
        let spec = json!({
            "forEach": {"count": FREE + GATED},
            "function": {"source": source, "args": [0.005]},
            "env": self.ledger.env(),
        });
        self.space.task("m", "p", spec).await?;
        self.ledger.told(BEGUN).await
    }

    /// Waits until the new leader tells which items have ended.
    pub(crate) async fn taken_over(&mut self) -> Result {
        let (space, ledger) = (&self.space, &mut self.ledger);
        until("the new leader knows items", PATIENCE, async || {
            // The aggregated API has to find it first.
            let known = ledger.look(space, "m").await.unwrap_or_default();
            Ok((known > 0).then_some(()))
        })
        .await
    }

    /// Lets the other items run.
    pub(crate) async fn open(&self) -> Result {
        let machine = self.space.ready_machines("p").await?.remove(0).name_any();
        let open = ["exec", &machine, "--", "touch", "/tmp/go"];
        self.space.kubectl(&open).await?.ok().map(drop)
    }

    /// Fails if no item is left to run.
    pub(crate) fn ensure_runs(&self) -> Result {
        let (told, most) = (self.ledger.lines(), 2 * (FREE + GATED) as usize);
        ensure!(told < most, "the map ended before both leaders were there");
        Ok(())
    }

    /// Each item has one outcome and has run once: no machine was lost, and two leaders are no reason to run an item again.
    pub(crate) async fn finish(mut self) -> Result {
        self.ledger.ensure_whole(&self.space, "m").await?;
        self.space.finish().await
    }
}
