//! Time from the creation of a Pool to a machine that accepts Tasks, with the image present.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{WatchEvent, WatchParams},
};
use skyward_api::{Machine, MachinePhase};

use crate::measure::{Bench, figure, ms};

/// One and four machines: Pool created → Machines Ready, and the parts of that time. The bar is what the
/// Pods alone take and so many milliseconds of ours.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    for (nodes, ours) in [(1_usize, 700.0), (4, 900.0)] {
        let pool = format!("cold-{nodes}");
        let pods: Api<Pod> = Api::namespaced(bench.client.clone(), &bench.namespace);
        let mut pod_events = pods
            .watch(&WatchParams::default().timeout(200), "")
            .await?
            .boxed();
        let mut machine_events = bench
            .machines()
            .watch(&WatchParams::default().timeout(200), "")
            .await?
            .boxed();
        let created = Instant::now();
        bench.create_pool(&pool, u32::try_from(nodes)?, 1).await?;
        let mut first_pod: Option<Instant> = None;
        let mut pod_running: BTreeMap<String, Instant> = BTreeMap::new();
        let mut reachable: BTreeMap<String, Instant> = BTreeMap::new();
        let mut ready: BTreeMap<String, Instant> = BTreeMap::new();
        while ready.len() < nodes {
            tokio::select! {
                event = pod_events.try_next() => {
                    if let Some(WatchEvent::Added(p) | WatchEvent::Modified(p)) = event? {
                        if !p.name_any().starts_with(&pool) { continue; }
                        first_pod.get_or_insert_with(Instant::now);
                        if p.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Running") {
                            pod_running.entry(p.name_any()).or_insert_with(Instant::now);
                        }
                    }
                }
                event = machine_events.try_next() => {
                    if let Some(WatchEvent::Added(m) | WatchEvent::Modified(m)) = event? {
                        note(&pool, &m, &mut reachable, &mut ready);
                    }
                }
                () = tokio::time::sleep(Duration::from_secs(120)) => anyhow::bail!("no machine became Ready within 120 s"),
            }
        }
        let end = ready.values().max().copied().unwrap_or(created);
        let from_pod = end.duration_since(first_pod.unwrap_or(created));
        let raw = pod_running
            .values()
            .max()
            .map_or(Duration::ZERO, |t| t.duration_since(first_pod.unwrap_or(created)));
        let raw_text = format!("Pod created→Running {:.0} ms", ms(raw));
        figure(&format!("cold_start_{nodes}"), ms(from_pod), "ms", "-", &raw_text);
        figure(
            &format!("pool_created_to_ready_{nodes}"),
            ms(end.duration_since(created)),
            "ms",
            &format!("{:.0}", ms(raw) + ours),
            &raw_text,
        );
        let slowest = ready
            .iter()
            .filter_map(|(name, at)| Some(at.duration_since(*pod_running.get(name)?)))
            .max()
            .unwrap_or_default();
        figure(
            &format!("pod_running_to_agent_ready_{nodes}"),
            ms(slowest),
            "ms",
            "-",
            "-",
        );
        bench.delete_pool(&pool).await?;
    }
    Ok(())
}

fn note(
    pool: &str,
    machine: &Machine,
    reachable: &mut BTreeMap<String, Instant>,
    ready: &mut BTreeMap<String, Instant>,
) {
    if machine.spec.pool != pool {
        return;
    }
    let phase = machine.status.as_ref().and_then(|s| s.phase);
    if matches!(phase, Some(MachinePhase::Reachable | MachinePhase::Bootstrapping)) {
        reachable.entry(machine.name_any()).or_insert_with(Instant::now);
    }
    if phase == Some(MachinePhase::Ready) {
        ready.entry(machine.name_any()).or_insert_with(Instant::now);
    }
}
