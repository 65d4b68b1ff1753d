//! A package more in the image of a Ready Pool: changed in place, no machine is ordered.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use skyward_api::{Machine, Pool};
use skyward_testkit::{PROVIDER, package_index};

use crate::measure::{Bench, PATIENCE, figure, ms, skipped};

const POOL: &str = "packages";
/// A pure package without dependencies, and one more of that kind.
const BEFORE: &str = "six";
const MORE: &str = "iniconfig";
/// Longest time besides the download.
const BAR: Duration = Duration::from_secs(5);

/// What uv needs by hand on the same machine for the same packages: the first time with their download, the second time
/// from its cache.
const BY_HAND: &str = r#"
import os, subprocess, tempfile, time


def main():
    place = tempfile.mkdtemp()
    settings = {"UV_CACHE_DIR": f"{place}/cache", "UV_NO_PROGRESS": "1"}
    for theirs, ours in (("PIP_INDEX_URL", "UV_DEFAULT_INDEX"), ("PIP_EXTRA_INDEX_URL", "UV_INDEX")):
        if os.environ.get(theirs):
            settings[ours] = os.environ[theirs]
    uv = next(uv for uv in ("/opt/skyward/uv/bin/uv", "/usr/local/bin/uv", "/usr/bin/uv") if os.path.exists(uv))
    with open(f"{place}/requirements.txt", "w") as file:
        file.write("PACKAGES")
    seconds = []
    for name in ("first", "second"):
        begun = time.perf_counter()
        for arguments in (
            ["venv", "--quiet", f"{place}/{name}"],
            ["pip", "sync", "--quiet", "--python", f"{place}/{name}/bin/python", f"{place}/requirements.txt"],
        ):
            subprocess.run([uv, *arguments], check=True, env={**os.environ, **settings})
        seconds.append(time.perf_counter() - begun)
    return seconds
"#;

/// From the change of the image until its machine has it; the raw limit is what uv needs by hand there.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let Some(index) = package_index(bench.cluster()).await? else {
        skipped("no package index answers; SKYWARD_TEST_INDEX can name one");
        return Ok(());
    };
    // Too large for what an apply would remember in an annotation.
    let certificates: ConfigMap = serde_json::from_value(json!({
        "metadata": {"name": "packages"}, "data": {"ca.crt": index.ca_bundle},
    }))?;
    Api::<ConfigMap>::namespaced(bench.client.clone(), &bench.namespace)
        .create(&PostParams::default(), &certificates)
        .await?;
    let environment: Vec<Value> = index
        .environment
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let image = |pip: &[&str]| json!({"pip": pip, "env": environment, "caBundleRef": {"name": "packages"}});
    let spec = json!({"provider": PROVIDER, "nodes": {"desired": 1}, "image": image(&[BEFORE])});
    let begun = Instant::now();
    bench.create_pool_of(POOL, spec).await?;
    bench.wait_ready(POOL, 1).await?;
    let first = begun.elapsed();
    let before = bench.machines().list(&ListParams::default()).await?.items;

    let took = changed(bench, &image(&[BEFORE, MORE])).await?;
    // The same packages in other words: another environment, with nothing to download.
    let again = changed(bench, &image(&[BEFORE, &format!("{MORE}>=0")])).await?;
    let after = bench.machines().list(&ListParams::default()).await?.items;
    let names = |machines: &[Machine]| -> Vec<String> {
        machines
            .iter()
            .filter(|machine| machine.spec.pool == POOL)
            .map(ResourceExt::name_any)
            .collect()
    };
    anyhow::ensure!(
        names(&before) == names(&after),
        "a machine was ordered for a package"
    );

    let packages = format!("{BEFORE}\\n{MORE}\\n");
    let source = BY_HAND.replace("PACKAGES", &packages);
    let task = Bench::task("packages-by-hand", POOL, json!({"function": {"source": source}}))?;
    let (_, task) = bench.run_task(&task).await?;
    let results = task.status.unwrap_or_default().results;
    let value = results.into_iter().next().and_then(|result| result.value);
    let seconds: Vec<f64> = serde_json::from_value(value.context("the function returned no value")?)?;
    let [cold, warm] = seconds[..] else {
        bail!("the function returned {seconds:?}");
    };
    let download = (cold - warm).max(0.0) * 1e3;
    figure(
        "environment_cold",
        ms(first),
        "ms",
        "-",
        &format!(
            "uv venv and uv pip sync by hand on an empty cache {:.0} ms, and the start of the machine",
            cold * 1e3
        ),
    );
    figure(
        "environment_unchanged",
        ms(again),
        "ms",
        "-",
        &format!(
            "uv venv and uv pip sync by hand on a warm cache {:.0} ms",
            warm * 1e3
        ),
    );
    figure(
        "package_added_in_place",
        ms(took),
        "ms",
        &format!("{:.0}", ms(BAR) + download),
        &format!(
            "uv venv and uv pip sync by hand on a warm cache {:.0} ms, the download {download:.0} ms",
            warm * 1e3
        ),
    );
    bench.delete_pool(POOL).await
}

/// Time from the patch of the image until the Pool's machines have its environment.
async fn changed(bench: &Bench, image: &Value) -> anyhow::Result<Duration> {
    let hash = hash_of(&bench.pools().get(POOL).await?);
    let params = WatchParams::default()
        .fields(&format!("metadata.name={POOL}"))
        .timeout(290);
    let mut events = bench.pools().watch(&params, "").await?.boxed();
    let patch = json!({"spec": {"image": image}});
    let begun = Instant::now();
    bench
        .pools()
        .patch(POOL, &PatchParams::default(), &Patch::Merge(&patch))
        .await?;
    loop {
        match tokio::time::timeout(PATIENCE, events.try_next()).await?? {
            Some(WatchEvent::Added(pool) | WatchEvent::Modified(pool)) if is_done(&pool, &hash) => {
                return Ok(begun.elapsed());
            }
            Some(_) => {}
            None => bail!("the watch ended before the environment had changed"),
        }
    }
}

fn hash_of(pool: &Pool) -> String {
    let status = pool.status.as_ref();
    let environment = status.and_then(|status| status.environment.as_ref());
    environment.map_or_else(String::new, |known| known.hash.clone())
}

/// Whether all machines have another environment than that one.
fn is_done(pool: &Pool, before: &str) -> bool {
    let status = pool.status.as_ref();
    let environment = status.and_then(|status| status.environment.as_ref());
    environment.is_some_and(|known| known.hash != before && known.proven && known.turn.is_empty())
}
