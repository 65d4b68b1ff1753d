//! What is killed must not lose, double or leak anything.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use skyward_api::{Machine, Task, TaskPhase};
use skyward_testkit::{Result, Space, kill_controller, pids_in_pod, wait_controller_replaced};
use tokio::sync::Mutex;

use crate::story;

/// The controller is one for all stories: those that kill it take turns.
static KILLING: Mutex<()> = Mutex::const_new(());

async fn pod(space: &Space, machine: &Machine) -> Result<Pod> {
    let pods: Api<Pod> = space.api();
    Ok(pods.get(&machine.name_any()).await?)
}

#[tokio::test]
async fn the_controller_killed_twenty_times_during_a_hundred_tasks_loses_and_repeats_nothing() -> Result {
    let space = story("kill-20").await?;
    let _turn = KILLING.lock().await;
    space.pool("p", 2, json!({"worker": {"concurrency": 4}})).await?;
    space.pool_ready("p").await?;
    // Each run leaves a mark on its machine, so that a second run of it would be seen.
    let source = "
import os, time
def main(i):
    os.makedirs('/tmp/marks', exist_ok=True)
    with open(f'/tmp/marks/{i}', 'a') as f:
        f.write(os.environ['SKYWARD_ATTEMPT'] + '\\n')
    time.sleep(1.5)
    return i
";
    let create = async {
        for i in 0..100 {
            let spec = json!({"function": {"source": source, "args": [i]}});
            space.task(&format!("t{i}"), "p", spec).await?;
        }
        anyhow::Ok(())
    };
    let kill = async {
        let mut wait: u64 = 300;
        for _ in 0..20 {
            // Spread over the controller's life: at start, while it syncs, in full run.
            tokio::time::sleep(Duration::from_millis(wait)).await;
            let old = kill_controller(&space.cluster.client).await?;
            wait_controller_replaced(&space.cluster.client, old).await?;
            wait = (wait * 7 + 131) % 2900;
        }
        anyhow::Ok(())
    };
    let (created, killed) = tokio::join!(create, kill);
    created?;
    killed?;
    for i in 0..100 {
        let done = space
            .task_ended_within(&format!("t{i}"), 300)
            .await?
            .status
            .unwrap_or_default();
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "t{i}: {done:#?}");
        assert_eq!(done.results[0].value, Some(json!(i)));
        assert_eq!(
            (done.attempt, done.restarts),
            (1, 0),
            "t{i} ran again although no machine was lost: {done:#?}"
        );
    }
    let mut marks: BTreeMap<String, usize> = BTreeMap::new();
    for machine in space.ready_machines("p").await? {
        let list = space
            .kubectl(&[
                "exec",
                &machine.name_any(),
                "--",
                "sh",
                "-c",
                "cd /tmp/marks && wc -l *",
            ])
            .await?
            .ok()?;
        for line in list.lines() {
            let mut words = line.split_whitespace();
            if let (Some(count), Some(name)) = (words.next(), words.next())
                && name != "total"
            {
                *marks.entry(name.to_owned()).or_default() += count.parse::<usize>()?;
            }
        }
    }
    assert_eq!(marks.len(), 100, "every Task ran");
    assert!(marks.values().all(|n| *n == 1), "no Task ran twice: {marks:?}");
    assert_eq!(space.count::<Machine>().await?, 2, "no machine was doubled");
    space.finish().await
}

#[tokio::test]
async fn a_killed_agent_comes_back_and_its_run_goes_on() -> Result {
    let space = story("kill-agent").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    let machine = space.ready_machines("p").await?.remove(0);
    let uid = pod(&space, &machine).await?.uid().unwrap_or_default();
    space
        .task(
            "long",
            "p",
            json!({"script": {"source": "echo begin; sleep 6; echo end; exit 4"}}),
        )
        .await?;
    space.task_phase("long", TaskPhase::Running).await?;
    space
        .wait("long", "Running", 30, |t: &Task| {
            t.status
                .as_ref()
                .is_some_and(|s| s.phase == Some(TaskPhase::Running))
        })
        .await?;
    let agents: Vec<u32> = pids_in_pod(&uid, "skyward-agent")
        .into_iter()
        .filter(|pid| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            !command.contains(" shim") && !command.contains(" exec") && !command.contains(" bridge")
        })
        .collect();
    assert!(!agents.is_empty(), "the agent must be found on the machine");
    for pid in agents {
        // Supervisor and daemon: either may be gone before we come to it.
        let _ = std::process::Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()?;
    }
    let done = space.task_ended("long").await?.status.unwrap_or_default();
    assert_eq!(
        (done.results[0].exit_code, done.attempt),
        (Some(4), 1),
        "{done:#?}"
    );
    assert!(done.results[0].log_tail.contains("end"), "{done:#?}");
    space.finish().await
}

#[tokio::test]
async fn a_lost_pod_is_replaced_and_its_run_starts_again() -> Result {
    let space = story("kill-pod").await?;
    space.pool("p", 2, json!({})).await?;
    space.pool_ready("p").await?;
    space.task("victim", "p", json!({"placement": 1, "script": {"source": "test $SKYWARD_ATTEMPT = 2 || sleep 670; echo survived"}})).await?;
    space.task_phase("victim", TaskPhase::Running).await?;
    let machine = space.ready_machines("p").await?.remove(1);
    space
        .kubectl(&[
            "delete",
            "pod",
            &machine.name_any(),
            "--grace-period=0",
            "--force",
        ])
        .await?
        .ok()?;
    let done = space.task_ended("victim").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!((done.attempt, done.interruptions), (2, 1), "{done:#?}");
    let machines = space.ready_machines("p").await?;
    assert_eq!(machines.len(), 2, "the Pool is whole again");

    space
        .task(
            "fragile",
            "p",
            json!({"placement": 0, "retries": {"onInterruption": 0}, "command": ["sleep", "680"]}),
        )
        .await?;
    space.task_phase("fragile", TaskPhase::Running).await?;
    let machine = space.ready_machines("p").await?.remove(0);
    // Deleted by hand as an object: drained, then replaced.
    space
        .kubectl(&[
            "delete",
            "pod",
            &machine.name_any(),
            "--grace-period=0",
            "--force",
        ])
        .await?
        .ok()?;
    let done = space.task_ended("fragile").await?.status.unwrap_or_default();
    assert_eq!(done.reason, "Interrupted", "{done:#?}");
    space.pool_ready("p").await?;
    space.finish().await
}

#[tokio::test]
async fn status_edited_by_hand_and_machines_deleted_by_hand_are_mended() -> Result {
    let space = story("by-hand").await?;
    space
        .pool("p", 1, json!({"timeouts": {"shutdown": "2s"}}))
        .await?;
    space.pool_ready("p").await?;
    space
        .kubectl(&[
            "patch",
            "pool",
            "p",
            "--subresource=status",
            "--type=merge",
            "-p",
            r#"{"status":{"readySummary":"9/9","phase":"Stalled"}}"#,
        ])
        .await?
        .ok()?;
    space
        .wait("p", "1/1", 60, |p: &skyward_api::Pool| {
            p.status.as_ref().is_some_and(|s| s.ready_summary == "1/1")
        })
        .await?;
    let machine = space.ready_machines("p").await?.remove(0).name_any();
    space
        .kubectl(&["delete", "machine", &machine, "--timeout=60s"])
        .await?
        .ok()?;
    let done = async {
        space.task("after", "p", json!({"command": ["true"]})).await?;
        space.task_ended("after").await
    }
    .await?;
    assert_ne!(done.status.unwrap_or_default().results[0].machine, machine);
    space.finish().await
}
