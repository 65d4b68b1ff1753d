//! Trainings as the samples have them: one machine is lost, and the training goes on from its checkpoint. They have the samples' four
//! machines in `make soak`, and two otherwise: each machine compiles what it installs, which takes 16 s of a processor.
//! They need a package index in reach of Pods; without one they print so. PyTorch is a large download, so its training is
//! told in `make soak` alone, where `SKYWARD_TORCH_INDEX` names an index with its builds for CPUs. A training goes on while no
//! controller is there to tell how far it is, and could end before it loses a machine: nothing kills the controller meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use kube::ResourceExt as _;
use serde_json::{Value, json};
use skyward_api::{Machine, Pool, Task, TaskPhase};
use skyward_testkit::{PATIENCE, PROVIDER, Result, Space, certificates, image_with, package_index};

use crate::{CONTROLLER, story_without_cloud};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/training");
/// Steps of the trainings here, as many as the samples have.
const STEPS: u64 = 400;
/// A machine is lost after so many steps, when there are checkpoints.
const LOST_AFTER: u64 = 40;

/// Whether a round of `make soak` runs this.
fn is_soak() -> bool {
    std::env::var_os("SKYWARD_SEED").is_some()
}

/// Creates the Task of a sample, with what that cluster needs to reach packages.
async fn create(space: &Space, sample: &str, image: Value) -> Result {
    let file = format!("{SAMPLES}/{sample}");
    let machines = if is_soak() { 4 } else { 2 };
    let patch = json!({"spec": {
        "function": {"kwargs": {"steps": STEPS}},
        "poolTemplate": {"spec": {"provider": PROVIDER, "image": image, "nodes": {"desired": machines}}},
    }});
    space.apply_patched(&file, &patch).await
}

/// How many steps the training has done, as its progress says.
fn steps_done(progress: &str) -> u64 {
    let of_all = format!("/{STEPS}");
    let mut words = progress.split_whitespace();
    let done = words.find_map(|word| word.strip_suffix(&of_all)?.parse().ok());
    done.unwrap_or(0)
}

/// The training of that name loses a machine, goes on from a checkpoint, and its loss has fallen at its end.
async fn loses_a_machine(space: &Space, name: &str) -> Result {
    let deadline = Instant::now() + Duration::from_secs(3 * PATIENCE);
    // It takes minutes to get there, and each look is a process.
    let runs = |task: &Task| {
        task.status
            .as_ref()
            .is_some_and(|status| status.phase == Some(TaskPhase::Running))
    };
    space.wait(name, "running", 3 * PATIENCE, runs).await?;
    loop {
        // Until it says its first step this is an error.
        let progress = space.plugin(&["progress", name]).await.unwrap_or_default();
        let done = steps_done(&progress);
        ensure!(done < STEPS, "the training ended before a machine was lost");
        if done >= LOST_AFTER {
            break;
        }
        ensure!(
            Instant::now() < deadline,
            "the training did not begin: {progress}"
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let lost = space.ready_machines(name).await?.remove(1);
    let args = ["delete", "pod", &lost.name_any(), "--grace-period=0", "--force"];
    space.kubectl(&args).await?.ok()?;
    let done = space.task_ended_within(name, 3 * PATIENCE).await?;
    let done = done.status.unwrap_or_default();
    ensure!(done.phase == Some(TaskPhase::Succeeded), "{done:#?}");
    ensure!(
        (done.attempt, done.interruptions, done.failures) == (2, 1, 0),
        "{done:#?}"
    );
    ensure!(done.progress == format!("{STEPS}/{STEPS}"), "{done:#?}");
    let value = done.results[0].value.clone().unwrap_or_default();
    let returned = &value["skyward.dev/returned"];
    let from = returned["from"].as_u64().context("where it went on")?;
    ensure!(from >= LOST_AFTER && returned["to"] == STEPS, "{value}");
    let lines = space.plugin(&["results", "-f", name, "-o", "jsonl"]).await?;
    let lines = lines.lines().map(serde_json::from_str::<Value>);
    let lines = lines.collect::<std::result::Result<Vec<_>, _>>()?;
    let second = lines.iter().filter(|line| line["attempt"] == 2);
    let steps: Vec<&Value> = second.map(|line| &line["value"]).collect();
    let (Some(first), Some(last)) = (steps.first(), steps.last()) else {
        anyhow::bail!("no loss is told: {lines:?}");
    };
    ensure!(
        first["step"] == from + 20 && last["step"] == STEPS,
        "{first} … {last}, from {from}"
    );
    ensure!(
        last["loss"].as_f64().is_some_and(|loss| loss < 0.1),
        "the loss did not fall: {last}"
    );
    space.wait_gone::<Pool>(name, PATIENCE).await?;
    ensure!(space.count::<Machine>().await? == 0, "a Machine stayed");
    Ok(())
}

#[tokio::test]
async fn a_training_with_jax_goes_on_from_its_checkpoint_when_a_machine_is_lost() -> Result {
    let space = story_without_cloud("jax").await?;
    let _shared = CONTROLLER.read().await;
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    create(&space, "task.yaml", image_with(&index)).await?;
    loses_a_machine(&space, "training").await?;
    space.finish().await
}

#[tokio::test]
async fn a_training_with_pytorch_goes_on_from_its_checkpoint_when_a_machine_is_lost() -> Result {
    let space = story_without_cloud("torch").await?;
    let _shared = CONTROLLER.read().await;
    let url = std::env::var("SKYWARD_TORCH_INDEX").unwrap_or_default();
    let index = package_index(&space.cluster).await?;
    let (Some(index), false, true) = (index, url.is_empty(), is_soak()) else {
        println!(
            "skipped: make soak tells it, where SKYWARD_TORCH_INDEX names an index with PyTorch for CPUs"
        );
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    let mut image = image_with(&index);
    image["pipIndexes"] = json!([{"url": url, "packages": ["torch"]}]);
    create(&space, "torch.yaml", image).await?;
    loses_a_machine(&space, "training-torch").await?;
    space.finish().await
}
