//! A machine with several accelerators that several Tasks share.

use anyhow::ensure;
use serde_json::json;
use skyward_api::{Task, TaskPhase};
use skyward_testkit::Result;

use crate::{Story, story};

/// What a Task printed.
async fn printed(story: &Story, name: &str) -> Result<String> {
    let task: Task = story.space.task_ended(name).await?;
    let status = task.status.unwrap_or_default();
    ensure!(status.phase == Some(TaskPhase::Succeeded), "{status:#?}");
    Ok(status.results[0].log_tail.trim().to_owned())
}

#[tokio::test]
async fn tasks_that_share_a_machine_divide_its_accelerators_until_the_pool_shares_them() -> Result {
    let story = story("devices", "verda").await?;
    let space = &story.space;
    let name = story.customer.provider(space, json!({})).await?;
    let wanted =
        json!({"provider": name, "accelerator": {"name": "A100", "count": 8}, "worker": {"concurrency": 4}});
    space.pool("p", 1, wanted).await?;
    space.pool_ready("p").await?;
    // Each of them waits until all four are there.
    let together = "touch /tmp/place-$SKYWARD_WORKER\n\
        until [ $(ls /tmp/place-* | wc -l) = 4 ]; do sleep 0.1; done\n\
        echo $SKYWARD_WORKER of $SKYWARD_WORKERS_PER_NODE sees $CUDA_VISIBLE_DEVICES";
    for number in 0..4 {
        let script = json!({"script": {"source": together}, "timeout": "120s"});
        space.task(&format!("t{number}"), "p", script).await?;
    }
    let mut seen = Vec::new();
    for number in 0..4 {
        seen.push(printed(&story, &format!("t{number}")).await?);
    }
    seen.sort_unstable();
    let expected = [
        "0 of 4 sees 0,1",
        "1 of 4 sees 2,3",
        "2 of 4 sees 4,5",
        "3 of 4 sees 6,7",
    ];
    ensure!(seen == expected, "{seen:#?}");

    // Four processes of one Task: their numbers and their accelerators are in one order.
    let look = "import os\ndef main():\n    \
        return [os.environ['LOCAL_RANK'], os.environ['SKYWARD_WORKER'], os.environ['CUDA_VISIBLE_DEVICES']]\n";
    let processes = json!({"placement": "All", "processesPerMachine": 4, "function": {"source": look}});
    space.task("processes", "p", processes).await?;
    let status = space.task_ended("processes").await?.status.unwrap_or_default();
    let seen: Vec<_> = status
        .results
        .iter()
        .filter_map(|result| result.value.clone())
        .collect();
    let expected = [
        json!(["0", "0", "0,1"]),
        json!(["1", "1", "2,3"]),
        json!(["2", "2", "4,5"]),
        json!(["3", "3", "6,7"]),
    ];
    ensure!(seen == expected, "{seen:#?}");

    let patch = r#"{"spec":{"worker":{"devices":"Share"}}}"#;
    space
        .kubectl(&["patch", "pool", "p", "--type=merge", "-p", patch])
        .await?
        .ok()?;
    let mut tries = 0;
    let info = "import os, skyward\ndef main():\n    i = skyward.instance_info()\n    \
        return [os.environ.get('CUDA_VISIBLE_DEVICES'), i.worker, i.workers_per_node, i.total_workers]\n";
    // The Pool's change is news to the dispatcher a moment later.
    let value = loop {
        let name = format!("shared{tries}");
        space
            .task(&name, "p", json!({"function": {"source": info}}))
            .await?;
        let status = space.task_ended(&name).await?.status.unwrap_or_default();
        let value = status.results[0].value.clone().unwrap_or_default();
        if value[0].is_null() || tries == 100 {
            break value;
        }
        tries += 1;
    };
    ensure!(value == json!([null, 0, 4, 4]), "{value}");
    story.return_pool("p").await?;
    story.finish().await
}
