//! The exchanges that judge the API server in memory, at a real one.
//!
//! `UPDATE_EXPECT=1` writes what this API server answers to `tests/apisim/recorded.json`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use skyward_apisim::exchanges::{all, differences, recorded};
use skyward_control_plane_tests::{api, cluster, path};

/// Exchanges at the same time: some wait a second for events.
const AT_ONCE: usize = 8;

#[tokio::test]
async fn the_api_server_in_memory_is_judged_by_what_a_real_one_answers() -> Result<()> {
    let cluster = cluster().await?;
    let played = stream::iter(all()?.into_iter().enumerate()).map(async |(number, exchange)| {
        let space = cluster.namespace(&format!("exchange-{number}")).await?;
        let answers = exchange.play(&cluster.client, &space.name).await;
        // A Pool that stays would hold its namespace, and then the CRD that a later test deletes.
        release(&cluster.client, &space.name).await?;
        space.finish().await?;
        anyhow::Ok((exchange.name, answers?))
    });
    let played: BTreeMap<_, _> = played.buffer_unordered(AT_ONCE).try_collect().await?;
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        let text = serde_json::to_string_pretty(&played)?;
        std::fs::write(path("tests/apisim/recorded.json"), text + "\n")?;
        return Ok(());
    }
    let recorded = recorded()?;
    let mut found = Vec::new();
    for (name, answers) in &played {
        let wanted = recorded.get(name).map_or(&[][..], Vec::as_slice);
        found.extend(
            differences(wanted, answers)
                .into_iter()
                .map(|words| format!("{name}, {words}")),
        );
    }
    ensure!(
        found.is_empty(),
        "this API server answers otherwise than the one that was recorded:\n{}",
        found.join("\n")
    );
    Ok(())
}

/// Takes the finalizers that an exchange left on its Pools: nobody else would.
async fn release(client: &Client, namespace: &str) -> Result<()> {
    let pools = api(client, "Pool", namespace);
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    for pool in pools.list(&ListParams::default()).await? {
        if !pool.finalizers().is_empty() {
            pools
                .patch(&pool.name_any(), &PatchParams::default(), &free)
                .await?;
        }
    }
    Ok(())
}
