//! Host keys where they must be verified: a machine proves its own, and an attacker in front of a machine
//! gets nothing.

use anyhow::ensure;
use serde_json::json;
use skyward_api::{Pool, Task, TaskPhase};
use skyward_cloudsim::Intruder;
use skyward_core::provider::HostKeys;
use skyward_testkit::{PATIENCE, Result};
use tokio::time::{Duration, Instant, sleep};

use crate::{Story, is_there, provider, provider_says, story};

/// A Provider that demands verified host keys, and that is ready.
async fn verified(story: &Story) -> Result<String> {
    let spec = json!({"hostKeyPolicy": "Verified"});
    let name = story.customer.provider(&story.space, spec).await?;
    provider_says(&story.space, &name, "Ready", "Connected").await?;
    let status = provider(&story.space, &name).await?.status.unwrap_or_default();
    ensure!(status.host_keys == Some(HostKeys::Proved), "{status:#?}");
    Ok(name)
}

/// A machine proves its host key, which is recorded, and runs a Task.
async fn proved_story(cloud: &'static str) -> Result {
    if !is_there(cloud) {
        return Ok(());
    }
    let story = story("proved", cloud).await?;
    let space = &story.space;
    let name = verified(&story).await?;
    space.pool("p", 1, json!({"provider": name})).await?;
    space.pool_ready("p").await?;
    let machine = space.ready_machines("p").await?.remove(0);
    ensure!(machine.spec.proves_host_key, "{machine:#?}");
    let status = machine.status.unwrap_or_default();
    let pod = format!("{cloud}-{}", status.id.to_lowercase());
    let file = "/etc/ssh/ssh_host_ed25519_key.pub";
    let cat = ["-n", "cloudsim", "exec", &pod, "--", "cat", file];
    let own = space.cluster.kubectl(&cat).await?.ok()?;
    ensure!(
        !status.host_key.is_empty() && own.starts_with(&status.host_key),
        "recorded is {}, and the machine has {own}",
        status.host_key
    );
    space.task("t", "p", json!({"command": ["true"]})).await?;
    let task = space.task_ended("t").await?.status.unwrap_or_default();
    ensure!(task.phase == Some(TaskPhase::Succeeded), "{task:#?}");
    story.return_pool("p").await?;
    story.finish().await
}

/// Somebody else answers for the machine: the Pool never has it, no Task runs, and the machine goes back.
async fn attacked_story(cloud: &'static str, answers: Intruder) -> Result {
    let story = story("attacked", cloud).await?;
    let (space, customer) = (&story.space, &story.customer);
    customer
        .sim
        .world(|world| world.intruders.insert(customer.account.clone(), answers));
    let name = verified(&story).await?;
    let once = json!({"provider": name, "maxProvisionAttempts": 1, "timeouts": {"ssh": "45s"}});
    space.pool("p", 1, once).await?;
    space.task("t", "p", json!({"command": ["true"]})).await?;
    let said = space
        .condition::<Pool>("p", "Stalled", "ProvisioningFailed")
        .await?;
    ensure!(said.contains("HostKeyNotVerified"), "it says why: {said}");
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while !customer.billed().is_empty() {
        ensure!(Instant::now() < deadline, "still rented: {:?}", customer.billed());
        sleep(Duration::from_millis(200)).await;
    }
    let pool = space.api::<Pool>().get("p").await?.status.unwrap_or_default();
    ensure!(pool.ready_machines == 0, "{pool:#?}");
    let task = space.api::<Task>().get("t").await?.status.unwrap_or_default();
    ensure!(task.attempt == 0 && task.placed.is_empty(), "it ran: {task:#?}");
    space.api::<Task>().delete("t", &Default::default()).await?;
    story.return_pool("p").await?;
    story.finish().await
}

#[tokio::test]
async fn a_machine_of_vultr_proves_its_host_key_and_runs_a_task_where_keys_are_verified() -> Result {
    proved_story("vultr").await
}

#[tokio::test]
async fn a_machine_of_runpod_proves_its_host_key_and_runs_a_task_behind_a_forwarded_port() -> Result {
    proved_story("runpod").await
}

#[tokio::test]
async fn a_machine_of_aws_proves_its_host_key_and_runs_a_task_where_keys_are_verified() -> Result {
    proved_story("aws").await
}

#[tokio::test]
async fn an_attacker_with_the_proof_of_a_machine_of_runpod_gets_nothing_behind_a_forwarded_port() -> Result {
    attacked_story("runpod", Intruder::Copied).await
}

#[tokio::test]
async fn an_attacker_that_proves_nothing_for_a_machine_of_vultr_gets_nothing() -> Result {
    attacked_story("vultr", Intruder::Nothing).await
}
