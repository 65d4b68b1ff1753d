//! Tasks that misbehave on purpose: the Task's status says what happened, and the machine, the
//! agent, the controller and other Tasks go on.

use serde_json::json;
use skyward_api::{TaskPhase, TaskStatus};
use skyward_testkit::{
    PATIENCE, Result, SMALL_DISK, Space, impostor, kill_controller, wait_controller_replaced,
};

use crate::{crash::KILLING, story};

async fn run(space: &Space, name: &str, spec: serde_json::Value) -> Result<TaskStatus> {
    space.task(name, "p", spec).await?;
    Ok(space
        .task_ended_within(name, PATIENCE)
        .await?
        .status
        .unwrap_or_default())
}

/// A Task runs on the machine on which the one before it ran. That machine need not be its Pool's first: a
/// controller that is killed between the record of an attempt and its Machine goes on with the next attempt.
async fn next_one_works(space: &Space, name: &str, before: &TaskStatus) -> Result {
    let done = run(space, name, json!({"command": ["echo", "fine"]})).await?;
    assert_eq!(
        done.phase,
        Some(TaskPhase::Succeeded),
        "the machine must go on: {done:#?}"
    );
    assert_eq!(
        done.results[0].machine, before.results[0].machine,
        "it must be the same machine as before"
    );
    Ok(())
}

#[tokio::test]
async fn strange_output_is_kept_and_shown_harmlessly() -> Result {
    let space = story("output").await?;
    space.pool("p", 1, json!({})).await?;
    let script = r"printf 'ok \377\376 \033[31mred\033[0m \000 end\n'";
    let done = run(&space, "bytes", json!({"script": {"source": script}})).await?;
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let tail = &done.results[0].log_tail;
    assert!(
        tail.contains("ok") && tail.contains("end") && !tail.contains('\u{1b}'),
        "{tail:?}"
    );

    let script = "head -c 100000000 /dev/zero | tr '\\0' 'a' | fold -w 99; echo; echo last-line";
    let done = run(&space, "hundred-mb", json!({"script": {"source": script}})).await?;
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert!(
        done.results[0].log_tail.trim_end().ends_with("last-line"),
        "{done:#?}"
    );

    let script = "head -c 1073741824 /dev/zero | tr '\\0' 'b'; echo; echo after-the-line";
    let done = run(&space, "one-gib-line", json!({"script": {"source": script}})).await?;
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert!(
        done.results[0].log_tail.trim_end().ends_with("after-the-line"),
        "{done:#?}"
    );
    next_one_works(&space, "next", &done).await?;
    space.finish().await
}

#[tokio::test]
async fn a_task_that_attacks_its_machine_hurts_only_itself() -> Result {
    let space = story("attack").await?;
    space.pool("p", 1, json!({})).await?;
    let done = run(
        &space,
        "parent",
        json!({"script": {"source": "kill -9 $PPID; sleep 1; exit 5"}}),
    )
    .await?;
    assert_eq!(done.phase, Some(TaskPhase::Failed), "{done:#?}");
    next_one_works(&space, "after-parent", &done).await?;

    let bomb = json!({"timeout": "10s", "terminationGracePeriod": "1s",
        "script": {"source": "f() { f | f & }; f; sleep 600"}});
    let done = run(&space, "bomb", bomb).await?;
    assert_eq!(done.phase, Some(TaskPhase::Failed), "{done:#?}");
    next_one_works(&space, "after-bomb", &done).await?;
    space.finish().await
}

/// The kernel kills the work alone, or, where the node's kubelet has it so (`memory.oom.group`),
/// the whole container, which is then another machine: the Task is told the same.
#[tokio::test]
async fn a_task_that_takes_all_memory_is_told_so_and_does_not_run_again() -> Result {
    let space = story("memory").await?;
    let memory = json!({"requests": {"memory": "64Mi"}, "limits": {"memory": "256Mi"}});
    let provider = space
        .provider("p", json!({"container": {"resources": memory}}))
        .await?;
    space.pool("p", 1, json!({"provider": provider})).await?;
    let hungry = "x = b''\nwhile True: x += b'x' * 1000000";
    for (name, command) in [
        ("itself", json!(["python3", "-c", hungry])),
        (
            "shell",
            json!(["bash", "-c", "python3 -c \"$1\"; exit $?", "-", hungry]),
        ),
    ] {
        let spec = json!({"command": command, "retries": {"onInterruption": 3}});
        let done = run(&space, name, spec).await?;
        assert_eq!(
            (done.phase, done.reason.as_str(), done.attempt, done.interruptions),
            (Some(TaskPhase::Failed), "OutOfMemory", 1, 0),
            "{done:#?}"
        );
        let next = run(
            &space,
            &format!("after-{name}"),
            json!({"command": ["echo", "fine"]}),
        )
        .await?;
        assert_eq!(next.phase, Some(TaskPhase::Succeeded), "{next:#?}");
    }
    space.finish().await
}

#[tokio::test]
async fn a_task_that_fills_its_disk_is_told_so() -> Result {
    let space = story("disk").await?;
    space.pool("p", 1, json!({"shmSize": "64Mi"})).await?;
    // The node's disk is not ours to fill: /dev/shm is a file system of the Pod's own.
    let script = "head -c 200000000 /dev/zero > /dev/shm/full";
    let done = run(&space, "shm", json!({"script": {"source": script}})).await?;
    assert_eq!(done.phase, Some(TaskPhase::Failed), "{done:#?}");
    assert!(done.results[0].log_tail.contains("No space left"), "{done:#?}");
    next_one_works(&space, "after", &done).await?;
    space.finish().await
}

/// A Pool of one machine with the agent's home on a small disk.
pub(crate) async fn pool_with_a_small_disk(space: &Space) -> Result {
    let provider = space
        .provider("p", json!({"container": {"privileged": true}}))
        .await?;
    let spec = json!({
        "provider": provider,
        "image": {"shellVars": {"DISK": SMALL_DISK}},
        "worker": {"concurrency": 2},
    });
    space.pool("p", 1, spec).await?;
    Ok(())
}

#[tokio::test]
async fn a_task_that_fills_the_agents_own_disk_is_told_so() -> Result {
    let space = story("full").await?;
    pool_with_a_small_disk(&space).await?;
    let bystander = json!({"script": {"source": "for i in 1 2 3 4 5 6; do echo tick-$i; sleep 0.5; done"}});
    space.pool_ready("p").await?;
    // Its run may end before a controller that starts anew has seen it run.
    let turn = KILLING.read().await;
    space.task("bystander", "p", bystander).await?;
    space.task_phase("bystander", TaskPhase::Running).await?;
    drop(turn);
    let script = "echo before; head -c 300000000 /dev/zero > fill; code=$?; echo after; exit $code";
    let done = run(&space, "filler", json!({"script": {"source": script}})).await?;
    assert_eq!(
        (done.phase, done.reason.as_str()),
        (Some(TaskPhase::Failed), "DiskFull"),
        "{done:#?}"
    );
    let bystander = space.task_ended("bystander").await?.status.unwrap_or_default();
    assert_eq!(bystander.phase, Some(TaskPhase::Succeeded), "{bystander:#?}");
    // Its files go with it, once its end is on record: there is room again.
    let script = "head -c 20000000 /dev/zero > fill && echo room";
    let mut ends = Vec::new();
    while ends.last() != Some(&Some(TaskPhase::Succeeded)) {
        assert!(ends.len() < 20, "there is no room again: {ends:?}");
        let name = format!("again-{}", ends.len());
        ends.push(
            run(&space, &name, json!({"script": {"source": script}}))
                .await?
                .phase,
        );
    }
    next_one_works(&space, "after", &done).await?;
    space.finish().await
}

#[tokio::test]
async fn a_new_controller_gets_the_result_from_a_machine_whose_disk_is_full() -> Result {
    let space = story("full-kill").await?;
    pool_with_a_small_disk(&space).await?;
    let turn = KILLING.write().await;
    let script = "head -c 300000000 /dev/zero > fill; sleep 20; exit 3";
    space
        .task("filler", "p", json!({"script": {"source": script}}))
        .await?;
    space.task_phase("filler", TaskPhase::Running).await?;
    let old = kill_controller(&space.cluster.client).await?;
    wait_controller_replaced(&space.cluster.client, old).await?;
    let ended = space.task_ended_within("filler", PATIENCE).await?;
    let done = ended.status.unwrap_or_default();
    assert_eq!(
        (done.phase, done.restarts),
        (Some(TaskPhase::Failed), 0),
        "{done:#?}"
    );
    drop(turn);
    next_one_works(&space, "after", &done).await?;
    space.finish().await
}

#[tokio::test]
async fn a_machine_whose_agent_is_replaced_is_given_up_and_another_takes_its_place() -> Result {
    let space = story("liar").await?;
    space.pool("p", 1, json!({"worker": {"user": "root"}})).await?;
    space.pool("honest", 1, json!({})).await?;
    space.pool_ready("p").await?;
    let first = space.ready_machines("p").await?[0].spec.attempt;
    let beside = json!({"script": {"source": "for i in $(seq 60); do echo tick-$i; sleep 0.5; done"}});
    space.pool_ready("honest").await?;
    // Its run may end before a controller that starts anew has seen it run.
    let turn = KILLING.read().await;
    space.task("beside", "honest", beside).await?;
    space.task_phase("beside", TaskPhase::Running).await?;
    drop(turn);
    let liar = json!({
        "retries": {"onInterruption": 0},
        "script": {"interpreter": "python", "source": impostor::announces(60 << 20)},
    });
    let done = run(&space, "liar", liar).await?;
    assert_eq!(
        (done.phase, done.reason.as_str()),
        (Some(TaskPhase::Failed), "Interrupted"),
        "{done:#?}"
    );
    space
        .told(&["MachineFailed", "a message of 62914560 bytes"])
        .await?;

    let after = run(&space, "after", json!({"command": ["echo", "fine"]})).await?;
    assert_eq!(after.phase, Some(TaskPhase::Succeeded), "{after:#?}");
    assert!(
        space.ready_machines("p").await?[0].spec.attempt > first,
        "another machine took its place"
    );
    let beside = space
        .task_ended_within("beside", PATIENCE)
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(beside.phase, Some(TaskPhase::Succeeded), "{beside:#?}");
    assert_eq!(beside.interruptions, 0, "nobody else noticed");
    space.finish().await
}
