//! Processes that are killed must not lose, double or leak anything.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use skyward_api::{Machine, TaskPhase};
use skyward_testkit::{PATIENCE, Result, Space, kill_controller, pids_in_pod, wait_controller_replaced};
use tokio::{
    sync::{RwLock, RwLockReadGuard, RwLockWriteGuard},
    time::Instant,
};

use crate::{PLACE, PLACES, story};

/// The controller is one for all stories: stories that kill it take turns. A story that holds the
/// read lock needs something that a killed controller cannot promise, such as an Event. Stories ask
/// for the lock as late as they can and hold it no longer than they must: their turns, one after the other, are the longest way
/// through this program.
pub(crate) static KILLING: Turns = Turns(RwLock::const_new(()));

/// A lock whose takers leave their place among the stories at work to another story while they wait, most of them for minutes.
pub(crate) struct Turns(RwLock<()>);

impl Turns {
    pub(crate) async fn read(&self) -> RwLockReadGuard<'_, ()> {
        leave_place();
        let turn = self.0.read().await;
        take_place();
        turn
    }

    pub(crate) async fn write(&self) -> RwLockWriteGuard<'_, ()> {
        leave_place();
        let turn = self.0.write().await;
        take_place();
        turn
    }
}

fn leave_place() {
    PLACE.set(None);
}

/// Takes a place if one is free. A story that has its turn goes on in any case: others wait for it.
fn take_place() {
    PLACE.set(PLACES.try_acquire().ok());
}

/// Waits until a leader answers: it is asked for a bundle that nobody has sent. The next story in turn may ask the leader once
/// only, so a story that has killed the controller keeps its turn until then.
pub(crate) async fn leader_answers(space: &Space) -> Result {
    let base = "/apis/subresources.skyward.dev/v1alpha1/namespaces";
    let path = format!("{base}/{}/bundles/sha256:{:064}", space.name, 0);
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let said = space.cluster.kubectl(&["get", "--raw", &path]).await?.refused()?;
        if said.contains("NotFound") {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "no leader answers: {said}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn pod(space: &Space, machine: &Machine) -> Result<Pod> {
    let pods: Api<Pod> = space.api();
    Ok(pods.get(&machine.name_any()).await?)
}

#[tokio::test]
async fn the_controller_killed_twenty_times_during_a_hundred_tasks_loses_and_repeats_nothing() -> Result {
    let space = story("kill-20").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 4}})).await?;
    space.pool_ready("p").await?;
    let turn = KILLING.write().await;
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
        // `make soak` chooses other moments in each round.
        let seed: u64 = std::env::var("SKYWARD_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(0);
        let mut wait = (300 + seed * 137) % 2900;
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
    drop(turn);
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

/// Kills agent and supervisor of a machine; the shims of its runs stay.
fn kill_agents(pod: &str) -> Result {
    let agents: Vec<u32> = pids_in_pod(pod, "skyward-agent")
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
    Ok(())
}

#[tokio::test]
async fn a_killed_agent_comes_back_and_its_run_goes_on() -> Result {
    let space = story("kill-agent").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    let machine = space.ready_machines("p").await?.remove(0);
    let uid = pod(&space, &machine).await?.uid().unwrap_or_default();
    // Its run may end before a controller that starts anew has seen it run.
    let turn = KILLING.read().await;
    space
        .task(
            "long",
            "p",
            json!({"script": {"source": "echo begin; sleep 6; echo end; exit 4"}}),
        )
        .await?;
    space.task_phase("long", TaskPhase::Running).await?;
    kill_agents(&uid)?;
    drop(turn);
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
async fn a_reader_of_values_gets_each_once_although_the_agent_and_the_controller_are_killed() -> Result {
    let space = story("kill-yields").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    let machine = space.ready_machines("p").await?.remove(0);
    let uid = pod(&space, &machine).await?.uid().unwrap_or_default();
    let turn = KILLING.write().await;
    let source = "import time\ndef main():\n    for step in range(600):\n        yield step\n        time.sleep(0.05)\n";
    space
        .task("steps", "p", json!({"function": {"source": source}}))
        .await?;
    space.task_phase("steps", TaskPhase::Running).await?;
    let arguments = [
        "skyward",
        "-n",
        space.name.as_str(),
        "results",
        "-f",
        "steps",
        "-o",
        "raw",
    ];
    let follow = space.cluster.kubectl(&arguments);
    let kills = async {
        let old = kill_controller(&space.cluster.client).await?;
        wait_controller_replaced(&space.cluster.client, old).await?;
        kill_agents(&uid)
    };
    let (followed, killed) = tokio::join!(follow, kills);
    killed?;
    let followed = followed?.ok()?;
    drop(turn);
    let expected: Vec<String> = (0..600).map(|step| step.to_string()).collect();
    assert_eq!(followed.lines().collect::<Vec<_>>(), expected);
    let done = space.task_ended("steps").await?.status.unwrap_or_default();
    assert_eq!(
        (done.phase, done.attempt),
        (Some(TaskPhase::Succeeded), 1),
        "{done:#?}"
    );
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
async fn an_evicted_pod_and_one_whose_first_process_dies_are_replaced() -> Result {
    let space = story("evict").await?;
    space.pool("p", 2, json!({})).await?;
    space.pool_ready("p").await?;
    // Events go with the controller that would have written them.
    let turn = KILLING.read().await;
    for name in ["a", "b"] {
        let source = "test $SKYWARD_ATTEMPT = 2 || sleep 690; echo survived";
        space
            .task(name, "p", json!({"script": {"source": source}}))
            .await?;
        space.task_phase(name, TaskPhase::Running).await?;
    }
    let machines = space.ready_machines("p").await?;
    // As `kubectl drain` and the descheduler do it.
    let name = machines[0].name_any();
    let path = format!("/api/v1/namespaces/{}/pods/{name}/eviction", space.name);
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction",
        "metadata": {"name": name, "namespace": space.name}});
    space
        .cluster
        .run(
            "kubectl",
            &["create", "--raw", &path, "-f", "-"],
            Some(&eviction.to_string()),
            Duration::from_secs(30),
        )
        .await?
        .ok()?;
    // As a machine that loses its power: its Pod does not start again (restartPolicy Never).
    let uid = pod(&space, &machines[1]).await?.uid().unwrap_or_default();
    let first = pids_in_pod(&uid, "skyward-machine");
    let first = first.first().map(ToString::to_string).unwrap_or_default();
    assert!(!first.is_empty(), "the first process must be found");
    let killed = std::process::Command::new("kill").args(["-9", &first]).status()?;
    assert!(killed.success());
    for name in ["a", "b"] {
        let done = space.task_ended(name).await?.status.unwrap_or_default();
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{name}: {done:#?}");
        assert_eq!(
            (done.attempt, done.interruptions, done.results[0].attempt),
            (2, 1, 2),
            "{name}: {done:#?}"
        );
        assert!(done.results[0].log_tail.contains("survived"), "{done:#?}");
    }
    space.pool_ready("p").await?;
    let now = space.ready_machines("p").await?;
    assert!(
        now.iter()
            .all(|m| machines.iter().all(|old| old.uid() != m.uid())),
        "both are other machines"
    );
    space
        .told(&["MachineLost", "MachineReplaced", "TaskRetried"])
        .await?;
    drop(turn);
    space.finish().await
}

#[tokio::test]
async fn what_people_write_into_the_status_of_a_task_does_not_last() -> Result {
    let space = story("task-by-hand").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    // A restarted controller has only the status.
    let turn = KILLING.read().await;
    let wait = json!({"script": {"source": "while [ ! -e /tmp/go ]; do sleep 0.1; done; exit 3"}});
    space.task("honest", "p", wait.clone()).await?;
    space.task("declared", "p", wait).await?;
    space.task_phase("honest", TaskPhase::Running).await?;
    space.task_phase("declared", TaskPhase::Running).await?;
    let edit = async |name: &str, status: serde_json::Value| {
        let patch = json!({"status": status}).to_string();
        let args = [
            "patch",
            "task",
            name,
            "--subresource=status",
            "--type=merge",
            "-p",
            &patch,
        ];
        space.kubectl(&args).await?.ok()
    };
    let lies = json!({"phase": "Pending", "done": "9/9", "attempt": 7, "results": [
        {"rank": 0, "machine": "nowhere", "attempt": 7, "reason": "Succeeded", "logTail": "lies"}]});
    edit("honest", lies).await?;
    // Its status was set to ended: it is not waited for any more, and its runs are stopped.
    edit("declared", json!({"phase": "Failed", "reason": "ByHand"})).await?;
    let machine = space.ready_machines("p").await?.remove(0);
    let uid = pod(&space, &machine).await?.uid().unwrap_or_default();
    space
        .kubectl(&["exec", &machine.name_any(), "--", "touch", "/tmp/go"])
        .await?
        .ok()?;
    let done = space.task_ended("honest").await?.status.unwrap_or_default();
    assert_eq!(
        (done.phase, done.reason.as_str(), done.done.as_str(), done.attempt),
        (Some(TaskPhase::Failed), "NonZeroExit", "1/1", 1),
        "{done:#?}"
    );
    assert_eq!(
        (done.results.len(), done.results[0].exit_code),
        (1, Some(3)),
        "{done:#?}"
    );
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while !pids_in_pod(&uid, "shim").is_empty() && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(
        pids_in_pod(&uid, "shim").is_empty(),
        "nothing of either runs any more"
    );
    space.task("next", "p", json!({"command": ["true"]})).await?;
    let done = space.task_ended("next").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    drop(turn);
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
        .wait("p", "1/1", PATIENCE, |p: &skyward_api::Pool| {
            p.status.as_ref().is_some_and(|s| s.ready_summary == "1/1")
        })
        .await?;
    let machine = space.ready_machines("p").await?.remove(0).name_any();
    space
        .kubectl(&["delete", "machine", &machine, "--timeout=300s"])
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
