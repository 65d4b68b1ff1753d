//! Tasks with `forEach`: every item has one outcome, whatever is killed meanwhile.

use std::{collections::BTreeMap, time::Duration};

use anyhow::ensure;
use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase};
use skyward_testkit::{Result, kill_controller, pids_in_pod, wait_controller_replaced};

use crate::{crash::KILLING, nasty::pool_with_a_small_disk, story};

/// The items of a Task, as the plugin prints them.
async fn items(space: &skyward_testkit::Space, arguments: &[&str]) -> Result<Vec<Value>> {
    let mut all = vec!["skyward", "results"];
    all.extend_from_slice(arguments);
    all.extend_from_slice(&["-o", "jsonl", "-n", &space.name]);
    let printed = space.cluster.kubectl(&all).await?.ok()?;
    let lines = printed.lines().map(|line| Ok(serde_json::from_str(line)?));
    lines.collect()
}

#[tokio::test]
async fn a_map_gives_each_item_its_value_and_says_which_ones_failed_and_retries_only_these() -> Result {
    let space = story("maps").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    let source = "import os\n\ndef main(item):\n    if item % 100 == 7 and not os.path.exists('/tmp/mended'):\n        raise ValueError(f'item {item}')\n    return item * 2\n";
    let spec = json!({"forEach": {"count": 1000}, "function": {"source": source}});
    space.task("m", "p", spec).await?;
    let done = space.task_ended("m").await?.status.unwrap_or_default();
    ensure!(
        done.phase == Some(TaskPhase::Failed) && done.reason == "ItemsFailed",
        "{done:#?}"
    );
    let counts = done.items.clone().unwrap_or_default();
    assert_eq!(
        (counts.total, counts.succeeded, counts.failed),
        (1000, 990, 10),
        "{done:#?}"
    );
    assert!(counts.failed_indexes.starts_with("7,107,207"), "{done:#?}");
    let failed = items(&space, &["m", "--failed"]).await?;
    assert_eq!(failed.len(), 10);
    assert_eq!(failed[0]["message"], json!("ValueError: item 7"), "{failed:?}");

    for machine in space.ready_machines("p").await? {
        let name = kube::ResourceExt::name_any(&machine);
        space
            .kubectl(&["exec", &name, "--", "touch", "/tmp/mended"])
            .await?
            .ok()?;
    }
    let said = space.kubectl(&["skyward", "retry", "m"]).await?.ok()?;
    assert!(said.contains("10 items"), "{said}");
    space.task_phase("m", TaskPhase::Succeeded).await?;
    let all = items(&space, &["m"]).await?;
    let values: Vec<u64> = all.iter().filter_map(|item| item["value"].as_u64()).collect();
    let expected: Vec<u64> = (0..1000).map(|item| item * 2).collect();
    assert_eq!(values, expected);
    assert_eq!((&all[7]["attempt"], &all[8]["attempt"]), (&json!(2), &json!(1)));
    space.finish().await
}

#[tokio::test]
async fn twenty_thousand_items_end_once_each_under_kills_of_controller_agents_and_watchers() -> Result {
    let space = story("map-kills").await?;
    let _turn = KILLING.write().await;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    // Each item leaves a mark with its machine: what began twice is seen.
    let source = "import os\n\ndef main(item):\n    with open('/tmp/marks', 'a') as marks:\n        marks.write(f'{item}\\n')\n    return item\n";
    let retries = json!({"onInterruption": 20, "onFailure": 20, "backoff": {"initial": "1s", "max": "1s"}});
    let spec = json!({"forEach": {"count": 20000}, "function": {"source": source}, "retries": retries});
    space.task("m", "p", spec).await?;
    space.task_phase("m", TaskPhase::Running).await?;
    for round in 0..6_u64 {
        tokio::time::sleep(Duration::from_millis(700 + round * 311)).await;
        if round % 2 == 0 {
            let old = kill_controller(&space.cluster.client).await?;
            wait_controller_replaced(&space.cluster.client, old).await?;
            continue;
        }
        for machine in space.ready_machines("p").await? {
            let name = kube::ResourceExt::name_any(&machine);
            // The daemon comes back by itself; a watcher that is killed ends the item that it ran.
            let victim = if round == 1 {
                "skyward-agent daemon"
            } else {
                "skyward-agent shim"
            };
            let pod: k8s_openapi::api::core::v1::Pod = space.api().get(&name).await?;
            let uid = kube::ResourceExt::uid(&pod).unwrap_or_default();
            for pid in pids_in_pod(&uid, victim) {
                let _ = std::process::Command::new("kill")
                    .args(["-9", &pid.to_string()])
                    .status();
            }
        }
    }
    let done: Task = space.task_ended_within("m", 300).await?;
    let status = done.status.unwrap_or_default();
    assert_eq!(status.phase, Some(TaskPhase::Succeeded), "{status:#?}");
    let all = items(&space, &["m"]).await?;
    assert_eq!(all.len(), 20_000);
    let mut attempts: BTreeMap<u64, u64> = BTreeMap::new();
    for (number, item) in (0_u64..).zip(&all) {
        assert_eq!(
            (item["index"].as_u64(), item["value"].as_u64()),
            (Some(number), Some(number)),
            "{item}"
        );
        attempts.insert(number, item["attempt"].as_u64().unwrap_or_default());
    }
    let mut marks: BTreeMap<u64, u64> = BTreeMap::new();
    for machine in space.ready_machines("p").await? {
        let name = kube::ResourceExt::name_any(&machine);
        let printed = space
            .kubectl(&["exec", &name, "--", "cat", "/tmp/marks"])
            .await?
            .ok()?;
        for line in printed.lines() {
            *marks.entry(line.parse()?).or_default() += 1;
        }
    }
    for (item, attempt) in attempts {
        let began = marks.get(&item).copied().unwrap_or_default();
        ensure!(
            (1..=attempt).contains(&began),
            "item {item} began {began} times in {attempt} attempts"
        );
    }
    space.finish().await
}

#[tokio::test]
async fn a_map_goes_on_when_the_disk_of_its_machine_has_room_again_and_each_item_has_its_value() -> Result {
    let space = story("map-full").await?;
    pool_with_a_small_disk(&space).await?;
    space.pool_ready("p").await?;
    let source = "import time\n\ndef main(item):\n    time.sleep(0.005)\n    return 'x' * 1000 + str(item)\n";
    let retries = json!({"onFailure": 20, "backoff": {"initial": "1s", "max": "2s"}});
    let items_of = json!({"count": 3000, "parallelism": 1});
    let spec = json!({"forEach": items_of, "function": {"source": source}, "retries": retries});
    space.task("m", "p", spec).await?;
    space
        .wait("m", "running with items that have ended", 60, |task: &Task| {
            let items = task.status.as_ref().and_then(|status| status.items.as_ref());
            items.is_some_and(|items| items.succeeded > 0)
        })
        .await?;
    let source = "head -c 300000000 /dev/zero > fill; sleep 6; rm fill; sleep 1";
    space
        .task("filler", "p", json!({"script": {"source": source}}))
        .await?;
    let done = space
        .task_ended_within("m", 240)
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let all = items(&space, &["m"]).await?;
    assert_eq!(all.len(), 3000);
    for (number, item) in all.iter().enumerate() {
        let value = item["value"].as_str().unwrap_or_default();
        assert_eq!(value.trim_start_matches('x'), number.to_string(), "{item}");
    }
    space.finish().await
}
