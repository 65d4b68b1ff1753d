//! A cluster without the records of its machines: as after a restore of etcd, records of machines
//! and the counters of their Pool are lost, and the machines still run.

use anyhow::ensure;
use kube::{Api, ResourceExt as _, api::Patch};
use serde_json::json;
use skyward_api::{Machine, Pool};
use skyward_testkit::{Cluster, OPERATOR_NAMESPACE, PATIENCE, Result};
use tokio::time::{Duration, sleep};

use crate::{CONTROLLER, Story, provider, provider_says};

const DEPLOYMENT: &str = "deployment/skyward-controller";

/// Nobody leads.
async fn scale(story: &Story, replicas: u32) -> Result {
    let replicas = format!("--replicas={replicas}");
    let scale = ["-n", OPERATOR_NAMESPACE, "scale", DEPLOYMENT, &replicas];
    story.space.kubectl(&scale).await?.ok()?;
    let status = [
        "-n",
        OPERATOR_NAMESPACE,
        "rollout",
        "status",
        DEPLOYMENT,
        "--timeout=120s",
    ];
    story.space.kubectl(&status).await?.ok()?;
    Ok(())
}

async fn annotate(story: &Story, provider: &str, decision: &str) -> Result {
    let annotation = format!("skyward.dev/after-restore={decision}");
    let annotate = ["annotate", "provider", provider, "--overwrite", &annotation];
    story.space.kubectl(&annotate).await?.ok()?;
    Ok(())
}

#[tokio::test]
async fn a_restored_cluster_ends_and_orders_nothing_until_a_person_decides() -> Result {
    let alone = CONTROLLER.write().await;
    let story = Story::begin(&Cluster::connect().await?, "restored", "verda", None).await?;
    let (space, customer) = (&story.space, &story.customer);
    let name = customer.provider(space, json!({})).await?;
    space.pool("p", 2, json!({"provider": name})).await?;
    space.pool_ready("p").await?;
    let rented = customer.billed();
    ensure!(rented.len() == 2, "{rented:?}");

    scale(&story, 0).await?;
    let machines: Api<Machine> = space.api();
    let torn_out = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    for machine in space.ready_machines("p").await? {
        let machine = machine.name_any();
        machines.patch(&machine, &Default::default(), &torn_out).await?;
        machines.delete(&machine, &Default::default()).await?;
    }
    // The stories' administrator is exempt from the policy that nobody else writes a status.
    let forgotten = json!({"status": {"lastAttempt": 0, "machines": 0}}).to_string();
    let patch = [
        "-n",
        space.name.as_str(),
        "patch",
        "pools.skyward.dev",
        "p",
        "--subresource=status",
        "--type=merge",
        "-p",
        &forgotten,
    ];
    space.kubectl(&patch).await?.ok()?;
    scale(&story, 1).await?;

    let said = provider_says(space, &name, "RestoreDetected", "RestoreProved").await?;
    ensure!(said.contains("$/h"), "it says what that costs: {said}");
    // From here on other stories may be told as well, but not one that kills the controller: its
    // sweeps would begin anew.
    drop(alone);
    let _shared = CONTROLLER.read().await;
    // Longer than an orphan lives, and than a Pool waits before it orders, on a machine that other stories keep busy.
    sleep(Duration::from_secs(120)).await;
    ensure!(customer.billed() == rented, "{:?}", customer.billed());
    annotate(&story, &name, "End@000000000000").await?;
    sleep(Duration::from_secs(10)).await;
    provider_says(space, &name, "RestoreDetected", "RestoreProved").await?;

    let digest = said
        .split_once("End@")
        .and_then(|(_, rest)| rest.split_once(' '))
        .map(|(digest, _)| digest.to_owned())
        .unwrap_or_default();
    annotate(&story, &name, &format!("End@{digest}")).await?;
    provider_says(space, &name, "RestoreDetected", "Ended").await?;
    space
        .wait("p", "counts on above what is there", PATIENCE, |pool: &Pool| {
            pool.status
                .as_ref()
                .is_some_and(|status| status.last_attempt >= 2)
        })
        .await?;
    space.pool_ready("p").await?;
    let decision = provider(space, &name)
        .await?
        .status
        .and_then(|status| status.after_restore);
    ensure!(decision.is_some_and(|decision| decision.machines.len() == 2 && decision.earlier.is_empty()));
    for old in &rented {
        let id = old.split(' ').next().unwrap_or_default();
        for _ in 0..900 {
            if !customer.billed().iter().any(|now| now.starts_with(id)) {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        ensure!(
            !customer.billed().iter().any(|now| now.starts_with(id)),
            "{old} is rented still"
        );
    }
    story.return_pool("p").await?;
    story.finish().await
}
