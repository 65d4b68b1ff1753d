//! The exchanges that judge the API server in memory, at a real one.
//!
//! `UPDATE_EXPECT=1` writes what this API server answers to `tests/apisim/recorded.json`.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use skyward_apisim::exchanges::{all, differences, recorded};
use skyward_control_plane_tests::{cluster, path};

/// Exchanges at the same time: some wait a second for events.
const AT_ONCE: usize = 8;

#[tokio::test]
async fn the_api_server_in_memory_is_judged_by_what_a_real_one_answers() -> Result<()> {
    let cluster = cluster().await?;
    let played = stream::iter(all()?.into_iter().enumerate()).map(async |(number, exchange)| {
        let space = cluster.namespace(&format!("exchange-{number}")).await?;
        let answers = exchange.play(&cluster.client, &space.name).await?;
        anyhow::Ok((exchange.name, answers))
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
