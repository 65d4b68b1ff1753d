//! Functions that are forked from a warm Python: what one of them does ends nothing else, and none has what another one
//! has. The story about NumPy needs a package index in reach of Pods. The story about PyTorch
//! runs where `SKYWARD_TEST_TORCH` is the URL of an index with a build for CPUs, which has 200 MB; others have gigabytes.

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use skyward_api::{Machine, Task, TaskPhase};
use skyward_testkit::{PATIENCE, Result, Space, package_index};

use crate::{
    packages::{certificates, image_with},
    story,
    tasks::{run, status, value},
};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/warm");
/// Starts of functions until one is forked: the first one makes the machine start the Python that is forked from.
const STARTS: u32 = 60;

fn function(source: &str, args: &Value) -> Value {
    json!({"function": {"source": source, "args": args}})
}

/// Runs functions in the Pool until one is forked.
async fn until_forked(space: &Space, pool: &str, prefix: &str) -> Result {
    let source = "
import os
def main():
    with open(f'/proc/{os.getppid()}/cmdline') as file:
        return file.read().split(chr(0))[1]
";
    for number in 0..STARTS {
        let name = format!("{prefix}-{number}");
        space.task(&name, pool, function(source, &json!([]))).await?;
        let task = space.task_ended_within(&name, 480).await?;
        if value(&task) == json!("keeper") {
            return Ok(());
        }
        anyhow::ensure!(
            status(task.clone()).phase == Some(TaskPhase::Succeeded),
            "{task:#?}"
        );
    }
    bail!("no function is forked")
}

#[tokio::test]
async fn a_forked_function_that_crashes_is_named_and_its_neighbour_goes_on() -> Result {
    let space = story("warm").await?;
    let worker = json!({"worker": {"concurrency": 4, "preload": ["decimal"]}});
    space.pool("p", 1, worker).await?;
    until_forked(&space, "p", "first").await?;

    let waits = "
import os, sys, time
def main(path):
    while not os.path.exists(path):
        time.sleep(0.05)
    return 'decimal' in sys.modules
";
    space
        .task("neighbour", "p", function(waits, &json!(["/tmp/go-on"])))
        .await?;
    space.task_phase("neighbour", TaskPhase::Running).await?;
    for (name, source, reason, message) in [
        (
            "raises",
            "def main(): raise ValueError('no luck')",
            "FunctionRaised",
            "no luck",
        ),
        ("exits", "import os\ndef main(): os._exit(3)", "NonZeroExit", "3"),
        (
            "segfault",
            "import os\ndef main(): os.kill(os.getpid(), 11)",
            "KilledBySignal",
            "SIGSEGV",
        ),
        (
            "group",
            "import os\ndef main(): os.killpg(0, 9)",
            "KilledBySignal",
            "SIGKILL",
        ),
    ] {
        let done = status(run(&space, name, function(source, &json!([]))).await?);
        assert_eq!(done.reason, reason, "{name}: {done:#?}");
        assert!(done.results[0].message.contains(message), "{name}: {done:#?}");
    }
    let endless = json!({"timeout": "1s", "function": {"source": "def main():\n    while True: pass\n"}});
    let done = status(run(&space, "endless", endless).await?);
    assert_eq!(done.reason, "TimedOut", "{done:#?}");

    let still = space.api::<Task>().get("neighbour").await?;
    assert_eq!(status(still).phase, Some(TaskPhase::Running));
    let gate = run(&space, "gate", json!({"command": ["touch", "/tmp/go-on"]})).await?;
    assert_eq!(status(gate).phase, Some(TaskPhase::Succeeded));
    let neighbour = space.task_ended("neighbour").await?;
    assert_eq!(value(&neighbour), json!(true), "{neighbour:#?}");
    until_forked(&space, "p", "last").await?;
    space.finish().await
}

#[tokio::test]
async fn tasks_that_share_a_machine_see_neither_secrets_nor_modules_of_each_other() -> Result {
    let space = story("apart").await?;
    // As the sample's, which has a package more.
    let worker = json!({"worker": {"concurrency": 2, "preload": ["decimal"]}});
    space.pool("warm", 1, worker).await?;
    until_forked(&space, "warm", "first").await?;
    let sample = format!("{SAMPLES}/tasks-apart.yaml");
    for _ in 0..3 {
        space.kubectl(&["apply", "-f", &sample]).await?.ok()?;
        for (name, secret) in [("left", "TOKEN_LEFT"), ("right", "TOKEN_RIGHT")] {
            let task = space.task_ended(name).await?;
            let expected = json!({"modules": [format!("module_of_{name}")], "secrets": [secret]});
            assert_eq!(value(&task), expected, "{task:#?}");
        }
        space.kubectl(&["delete", "-f", &sample, "--wait"]).await?.ok()?;
    }
    space.finish().await
}

#[tokio::test]
async fn a_module_that_cannot_be_imported_is_named_and_functions_run_all_the_same() -> Result {
    let space = story("not-forked").await?;
    let worker = json!({"worker": {"preload": ["no_such_module"]}});
    space.pool("p", 1, worker).await?;
    let done = status(run(&space, "first", function("def main(): return 1", &json!([]))).await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let machine = space.ready_machines("p").await?.remove(0);
    let name = machine.metadata.name.context("a Machine has a name")?;
    space
        .wait(&name, "why nothing is forked", PATIENCE, |machine: &Machine| {
            let told = machine.status.as_ref().map(|status| status.not_forked.as_str());
            told.is_some_and(|told| told.contains("cannot import no_such_module"))
        })
        .await?;
    space.told(&["NotForked"]).await?;
    space.finish().await
}

/// An image with packages from the index that Pods reach; `None` where there is none.
#[expect(clippy::print_stdout, reason = "a story that is skipped says so")]
async fn image(space: &Space, packages: &[&str]) -> Result<Option<Value>> {
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return Ok(None);
    };
    certificates(space, &index).await?;
    let mut image = image_with(&index);
    image["pip"] = json!(packages);
    Ok(Some(image))
}

#[tokio::test]
async fn a_tensor_of_pytorch_is_a_value_and_the_plugin_writes_it_as_pytorch_reads_it() -> Result {
    let Ok(builds) = std::env::var("SKYWARD_TEST_TORCH") else {
        println!("skipped: SKYWARD_TEST_TORCH names no index with a PyTorch for CPUs");
        return Ok(());
    };
    let space = story("torch").await?;
    let Some(mut image) = image(&space, &["torch", "numpy"]).await? else {
        return space.finish().await;
    };
    image["pipIndexes"] = json!([{"url": builds, "packages": ["torch"]}]);
    let worker = json!({"preload": ["torch"]});
    space
        .pool("torch", 1, json!({"image": image, "worker": worker}))
        .await?;
    until_forked(&space, "torch", "first").await?;
    let sample = format!("{SAMPLES}/task-tensor.yaml");
    space.kubectl(&["apply", "-f", &sample]).await?.ok()?;
    let done = status(space.task_ended("tensor").await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let results = ["skyward", "-n", &space.name, "results", "tensor"];
    let table = space.cluster.kubectl(&results).await?.ok()?;
    assert!(table.contains("torch.Tensor (torch, "), "{table}");
    let file = std::env::temp_dir().join(format!("{}.pt", space.name));
    let path = file.to_string_lossy().into_owned();
    let save = [&results[..], &["--save", path.as_str()]].concat();
    space.cluster.kubectl(&save).await?.ok()?;
    // An archive with a pickle in it.
    assert!(std::fs::read(&file)?.starts_with(b"PK"));
    std::fs::remove_file(&file)?;
    space.finish().await
}

#[tokio::test]
async fn an_array_of_numpy_is_a_value_and_the_plugin_writes_it_as_numpy_reads_it() -> Result {
    let space = story("numpy").await?;
    let Some(image) = image(&space, &["numpy"]).await? else {
        return space.finish().await;
    };
    let worker = json!({"concurrency": 2, "preload": ["numpy"]});
    space
        .pool("warm", 1, json!({"image": image, "worker": worker}))
        .await?;
    until_forked(&space, "warm", "first").await?;
    let sample = format!("{SAMPLES}/task-array.yaml");
    let file = std::env::temp_dir().join(format!("{}.npy", space.name));
    let path = file.to_string_lossy().into_owned();
    let mut arrays = Vec::new();
    for _ in 0..2 {
        space.kubectl(&["apply", "-f", &sample]).await?.ok()?;
        let done = status(space.task_ended("array").await?);
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
        let table = space
            .cluster
            .kubectl(&["skyward", "-n", &space.name, "results", "array"])
            .await?
            .ok()?;
        assert!(table.contains("numpy.ndarray (npy, 200 bytes)"), "{table}");
        let save = ["skyward", "-n", &space.name, "results", "array", "--save", &path];
        space.cluster.kubectl(&save).await?.ok()?;
        let array = std::fs::read(&file)?;
        std::fs::remove_file(&file)?;
        assert!(array.starts_with(b"\x93NUMPY") && array.len() == 200);
        arrays.push(array);
        space.kubectl(&["delete", "-f", &sample, "--wait"]).await?.ok()?;
    }
    assert_ne!(arrays[0], arrays[1], "forks draw different numbers");
    space.finish().await
}
