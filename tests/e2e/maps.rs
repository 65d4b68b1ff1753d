//! Tasks with `forEach`: every item has one outcome, whatever is killed meanwhile.

use std::{collections::BTreeSet, fs, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{ResourceExt as _, api::ListParams};
use serde_json::{Value, json};
use skyward_api::{Machine, Task, TaskPhase};
use skyward_cloudsim::Chance;
use skyward_testkit::{
    ITEM_SOURCE, ItemLedger, PATIENCE, Result, Space, fill_disk, kill_controller, pids_in_pod,
    wait_controller_replaced,
};
use tokio::time::Instant;

use crate::{crash::KILLING, nasty::pool_with_a_small_disk, results::ended_before, story};

/// The items of a Task, as the plugin prints them.
async fn items(space: &Space, arguments: &[&str]) -> Result<Vec<Value>> {
    let plugin = ["skyward", "-n", &space.name, "results", "-o", "jsonl"];
    let printed = space
        .cluster
        .patiently(&[&plugin[..], arguments].concat())
        .await?;
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
    let after = json!({"command": ["true"], "dependsOn": [{"task": "m"}]});
    space.task("after", "p", after).await?;
    let after = space.task_ended("after").await?.status.unwrap_or_default();
    let why = skyward_api::condition::find(&after.conditions, "Failed").context("it did not fail")?;
    assert!(why.message.contains("`kubectl skyward retry m`"), "{after:#?}");

    for machine in space.ready_machines("p").await? {
        let name = machine.name_any();
        space
            .kubectl(&["exec", &name, "--", "touch", "/tmp/mended"])
            .await?
            .ok()?;
    }
    // An answer that is lost is not given again, so the leader must be there.
    let turn = KILLING.read().await;
    let retry = ["skyward", "-n", &space.name, "retry", "m"];
    let said = space.cluster.patiently(&retry).await?;
    drop(turn);
    assert!(said.contains("10 items"), "{said}");
    space.task_phase("m", TaskPhase::Succeeded).await?;
    let all = items(&space, &["m"]).await?;
    let values: Vec<u64> = all.iter().filter_map(|item| item["value"].as_u64()).collect();
    let expected: Vec<u64> = (0..1000).map(|item| item * 2).collect();
    assert_eq!(values, expected);
    assert_eq!((&all[7]["attempt"], &all[8]["attempt"]), (&json!(2), &json!(1)));

    let patch = r#"{"spec":{"retention":{"results":"1h"}}}"#;
    space
        .kubectl(&["patch", "tasks.skyward.dev", "m", "--type=merge", "-p", patch])
        .await?
        .ok()?;
    ended_before(&space, "m", 65).await?;
    let retry = ["skyward", "retry", "m", "--index", "0", "-n", &space.name];
    let refused = space.cluster.kubectl(&retry).await?.refused()?;
    assert!(
        refused.contains("spec.retention.results") && refused.contains("create the Task again"),
        "{refused}"
    );
    space.finish().await
}

/// Items of the map of the story with kills.
/// A name that is written wrongly is no fault of a machine.
#[tokio::test]
async fn a_map_whose_program_does_not_exist_fails_its_items_and_its_machines_take_other_tasks() -> Result {
    let space = story("map-missing").await?;
    space.pool("p", 2, json!({})).await?;
    space.pool_ready("p").await?;
    let spec = json!({"forEach": {"count": 50}, "command": ["/usr/bin/pyhton"]});
    space.task("m", "p", spec).await?;
    let done = space.task_ended("m").await?.status.unwrap_or_default();
    ensure!(done.reason == "ItemsFailed", "{done:#?}");
    assert_eq!(done.items.clone().unwrap_or_default().failed, 50, "{done:#?}");
    let failed = items(&space, &["m", "--failed"]).await?;
    ensure!(
        failed.iter().all(|item| item["reason"] == "StartFailed"),
        "{failed:?}"
    );
    space.task("next", "p", json!({"command": ["true"]})).await?;
    let next = space.task_ended("next").await?.status.unwrap_or_default();
    assert_eq!(next.phase, Some(TaskPhase::Succeeded), "{next:#?}");
    assert_eq!(space.count::<Machine>().await?, 2, "no machine was replaced");
    space.finish().await
}

const MANY: u32 = 20_000;

/// What is killed while a map runs.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Leader,
    /// The daemon on the machine of that slot. It comes back by itself.
    Agent(u32),
    /// The watchers there: the items that they ran are interrupted.
    Watchers(u32),
    /// The machine's Pod, and the leader that would have seen it go.
    PodAndLeader(u32),
}

/// Kills it. The answer names the machine whose items may be interrupted by that.
async fn kill(space: &Space, victim: Victim) -> Result<Option<String>> {
    let (slot, word) = match victim {
        Victim::Leader => {
            let old = kill_controller(&space.cluster.client).await?;
            wait_controller_replaced(&space.cluster.client, old).await?;
            return Ok(None);
        }
        Victim::Agent(slot) => (slot, " daemon "),
        Victim::Watchers(slot) => (slot, " shim "),
        Victim::PodAndLeader(slot) => (slot, ""),
    };
    let machines = space.api::<Machine>().list(&ListParams::default()).await?;
    let is_it =
        |machine: &&Machine| machine.spec.slot == slot && machine.metadata.deletion_timestamp.is_none();
    let machine = machines.items.iter().find(is_it);
    let machine = machine.context("there is a machine of that slot")?.name_any();
    if let Victim::PodAndLeader(_) = victim {
        let delete = ["delete", "pod", &machine, "--grace-period=1", "--wait=false"];
        space.kubectl(&delete).await?.ok()?;
        let old = kill_controller(&space.cluster.client).await?;
        wait_controller_replaced(&space.cluster.client, old).await?;
        return Ok(Some(machine));
    }
    let pod: Pod = space.api().get(&machine).await?;
    let uid = pod.uid().unwrap_or_default();
    // After another kill it may have to start again.
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    let mut pids = pids_in_pod(&uid, word);
    while pids.is_empty() {
        ensure!(Instant::now() < deadline, "there is nothing to kill: {victim:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        pids = pids_in_pod(&uid, word);
    }
    for pid in pids {
        // It may have ended by itself.
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).status()?;
    }
    Ok(matches!(victim, Victim::Watchers(_)).then_some(machine))
}

#[tokio::test]
async fn twenty_thousand_items_have_one_outcome_each_and_none_runs_again_without_a_reason_whatever_is_killed()
-> Result {
    let space = story("map-kills").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    let turn = KILLING.write().await;
    let mut ledger = ItemLedger::start(&space, MANY).await?;
    let retries = json!({"onInterruption": 20, "onFailure": 20, "backoff": {"initial": "1s", "max": "1s"}});
    let spec = json!({
        "forEach": {"count": MANY},
        "function": {"source": ITEM_SOURCE, "args": [0]},
        "retries": retries,
        "env": ledger.env(),
    });
    space.task("m", "p", spec).await?;
    // Nothing interrupts the items of the machine of slot 1, so none of them may run again.
    let mut victims = [
        Victim::Watchers(0),
        Victim::Agent(1),
        Victim::Leader,
        Victim::Watchers(0),
        Victim::Agent(0),
        // The last one: another machine takes its place, which may come after the end.
        Victim::PodAndLeader(0),
    ];
    // `make soak` chooses another order and other moments in each round.
    let seed = std::env::var("SKYWARD_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let mut chance = Chance::new(seed.unwrap_or(0));
    for at in 1..victims.len() - 1 {
        victims.swap(at, usize::try_from(chance.below(at as u64 + 1))?);
    }
    let each = 2 * u64::from(MANY) / (victims.len() as u64 + 1);
    for (number, victim) in (1..).zip(victims) {
        let moment = number * each + chance.below(each / 2);
        ledger
            .told(usize::try_from(moment)?)
            .await
            .with_context(|| format!("before {victim:?}"))?;
        // A leader that has just begun may not answer yet.
        let _ = ledger.look(&space, "m").await;
        ledger.record.hit.extend(kill(&space, victim).await?);
    }
    ledger.ensure_whole(&space, "m").await?;
    drop(turn);
    let record = ledger.record;
    let again = record.outcomes.iter().filter(|item| item.attempt > 1).count();
    ensure!(again > 0, "nothing was interrupted: the kills missed");
    ensure!(
        record.seen.len() > MANY as usize / 4,
        "few outcomes were read meanwhile"
    );
    space.finish().await
}

/// What the items of a Task returned.
pub(crate) async fn values(space: &Space, task: &str) -> Result<Vec<Value>> {
    let items = items(space, &[task]).await?;
    Ok(items.into_iter().map(|mut item| item["value"].take()).collect())
}

#[tokio::test]
async fn items_are_combinations_of_a_matrix_lines_of_a_config_map_and_entries_of_another_tasks_result()
-> Result {
    let space = story("map-forms").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 4}})).await?;
    let lines = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lines"},
        "data": {"items.jsonl": "{\"a\": 1}\n\"two words\"\n\n[3]"}});
    space.create_json(lines).await?;
    let axes = json!([{"name": "lr", "values": [0.1, 0.01]}, {"name": "seed", "values": [1, 2, 3]}]);
    let matrix =
        json!({"axes": axes, "exclude": [{"lr": 0.1, "seed": 3}], "include": [{"lr": 1, "note": "last"}]});
    let config_map = json!({"configMapKeyRef": {"name": "lines", "key": "items.jsonl"}});
    let returns_item = "def main(item):\n    return item\n";
    let same = |items: Value| json!({"forEach": items, "function": {"source": returns_item}});
    space.task("sweep", "p", same(json!({"matrix": matrix}))).await?;
    space
        .task("lines", "p", same(json!({"itemsFrom": config_map})))
        .await?;
    // Before the Task that it waits for.
    let mut each = same(json!({"itemsFrom": {"taskResult": "list"}}));
    each["dependsOn"] = json!([{"task": "list"}]);
    space.task("each", "p", each).await?;
    let source = "def main():\n    return [30, 'ten', {'twenty': None}]\n";
    space
        .task("list", "p", json!({"function": {"source": source}}))
        .await?;

    let combined = json!([
        {"lr": 0.1, "seed": 1}, {"lr": 0.1, "seed": 2},
        {"lr": 0.01, "seed": 1}, {"lr": 0.01, "seed": 2}, {"lr": 0.01, "seed": 3},
        {"lr": 1, "note": "last"},
    ]);
    for (task, expected) in [
        ("sweep", combined),
        ("lines", json!([{"a": 1}, "two words", [3]])),
        ("each", json!([30, "ten", {"twenty": null}])),
    ] {
        let done = space.task_ended(task).await?.status.unwrap_or_default();
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{task}: {done:#?}");
        assert_eq!(Value::Array(values(&space, task).await?), expected, "{task}");
    }
    space.finish().await
}

#[tokio::test]
async fn an_item_that_takes_long_holds_up_none_behind_it_and_more_places_are_used_when_parallelism_is_raised()
-> Result {
    const COUNT: u32 = 600;
    let space = story("map-long").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    // The plugin gives up where no leader answers for a few seconds.
    let turn = KILLING.read().await;
    let source = "import os, time\n\ndef main(item):\n    while item == 0 and not os.path.exists('/tmp/go'):\n        time.sleep(0.05)\n    return item\n";
    let for_each = json!({"count": COUNT, "parallelism": 1});
    let spec = json!({"forEach": for_each, "function": {"source": source}});
    space.task("long", "p", spec).await?;
    space.task_phase("long", TaskPhase::Running).await?;

    let follow = items(&space, &["long", "-f"]);
    let meanwhile = async {
        let more = r#"{"spec":{"forEach":{"parallelism":3}}}"#;
        space
            .kubectl(&["patch", "task", "long", "--type=merge", "-p", more])
            .await?
            .ok()?;
        let others = space
            .wait("long", "all items but one have ended", PATIENCE, |task: &Task| {
                let items = task.status.as_ref().and_then(|status| status.items.as_ref());
                items.is_some_and(|items| items.succeeded == COUNT - 1)
            })
            .await?;
        let status = others.status.unwrap_or_default();
        ensure!(status.phase == Some(TaskPhase::Running), "{status:#?}");
        ensure!(status.placed.len() == 3, "one worker, and two more: {status:#?}");
        for machine in space.ready_machines("p").await? {
            let name = machine.name_any();
            space
                .kubectl(&["exec", &name, "--", "touch", "/tmp/go"])
                .await?
                .ok()?;
        }
        space.task_phase("long", TaskPhase::Succeeded).await
    };
    let (followed, ended) = tokio::join!(follow, meanwhile);
    ended?;
    let mut followed: Vec<u64> = followed?
        .iter()
        .filter_map(|item| item["index"].as_u64())
        .collect();
    assert_eq!(
        followed.last(),
        Some(&0),
        "items are printed as they end: {followed:?}"
    );
    followed.sort_unstable();
    assert!(
        followed.into_iter().eq(0..u64::from(COUNT)),
        "each is printed once"
    );

    let retry = ["skyward", "-n", &space.name, "retry", "long", "--index", "5-6"];
    let said = space.cluster.patiently(&retry).await?;
    assert!(said.contains("2 items"), "{said}");
    space.task_phase("long", TaskPhase::Succeeded).await?;
    let some = items(&space, &["long", "--index", "4-7"]).await?;
    let attempts: Vec<[&Value; 2]> = some
        .iter()
        .map(|item| [&item["index"], &item["attempt"]])
        .collect();
    assert_eq!(json!(attempts), json!([[4, 1], [5, 2], [6, 2], [7, 1]]));
    let beyond = ["results", "-o", "jsonl", "long", "--index", "599-600"];
    let beyond = space.plugin(&beyond).await;
    drop(turn);
    let why = format!("{:#}", beyond.expect_err("there is no item 600"));
    assert!(why.contains("no item 600, but 600 items"), "{why}");
    space.finish().await
}

#[tokio::test]
async fn items_pause_while_the_disk_of_their_machine_is_full_and_then_each_has_run_once() -> Result {
    const COUNT: u32 = 1500;
    let space = story("map-full").await?;
    pool_with_a_small_disk(&space).await?;
    space.pool_ready("p").await?;
    let machine = space.ready_machines("p").await?.remove(0).name_any();
    let pod: Pod = space.api().get(&machine).await?;
    let uid = pod.uid().unwrap_or_default();
    let mut ledger = ItemLedger::start(&space, COUNT).await?;
    // All items need 7 seconds at the least. No other worker may be starting when the disk becomes full.
    let spec = json!({
        "forEach": {"count": COUNT, "parallelism": 1},
        "function": {"source": ITEM_SOURCE, "args": [0.005]},
        "env": ledger.env(),
    });
    space.task("m", "p", spec).await?;
    ledger.told(200).await?;
    let fill = fill_disk(&uid).context("the disk becomes full")?;
    let told = ledger.still().await?;
    ensure!(
        told < 2 * COUNT as usize,
        "all items have run although the disk was full"
    );
    fs::remove_file(fill)?;
    // Nothing was hit that would excuse a second run or an interruption.
    ledger.ensure_whole(&space, "m").await?;
    space.finish().await
}

/// A map whose items say in which process and thread they ran.
const THREADS: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../config/samples/maps/task-threads.yaml"
);

#[tokio::test]
async fn items_are_threads_of_one_process_or_have_one_each_as_the_pool_says() -> Result {
    let space = story("map-threads").await?;
    let threads = json!({"worker": {"concurrency": 4, "executor": "Thread", "buffer": 1}});
    space.pool("threads", 1, threads).await?;
    let fresh = json!({"worker": {"concurrency": 4, "reuseProcesses": false}});
    space.pool("fresh", 1, fresh).await?;
    let sample = fs::read_to_string(THREADS)?;
    for pool in ["threads", "fresh"] {
        let task = sample
            .replace("name: threads", &format!("name: {pool}"))
            .replace("pool: threads", &format!("pool: {pool}"));
        space.apply(&task).await?.ok()?;
    }
    for pool in ["threads", "fresh"] {
        let done = space.task_ended(pool).await?.status.unwrap_or_default();
        ensure!(done.phase == Some(TaskPhase::Succeeded), "{pool}: {done:#?}");
        let values = values(&space, pool).await?;
        let ran = |names: &[&str]| {
            let each = values.iter().map(|value| {
                let numbers = names.iter().map(|name| value[*name].as_u64().unwrap_or_default());
                numbers.collect::<Vec<_>>()
            });
            each.collect::<BTreeSet<_>>().len()
        };
        let (processes, threads) = (ran(&["process"]), ran(&["process", "thread"]));
        ensure!(values.len() == 40, "{pool}: {values:?}");
        if pool == "fresh" {
            ensure!(processes == 40, "{values:?}");
        } else {
            // Another leader may have had the place begin again.
            ensure!(threads > processes && processes < 10, "{values:?}");
        }
    }
    space.finish().await
}
