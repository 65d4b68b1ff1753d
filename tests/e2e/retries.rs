//! Runs that fail and start again by their cause, and Tasks that run or wait too long.

use std::fs;

use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase, TaskStatus};
use skyward_testkit::{Result, Space};

use crate::{crash::KILLING, story};

/// Items of which two fail until a switch is turned.
const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../config/samples/maps/retry.yaml"
);

async fn run(space: &Space, name: &str, spec: Value) -> Result<TaskStatus> {
    space.task(name, "p", spec).await?;
    Ok(space.task_ended(name).await?.status.unwrap_or_default())
}

/// Attempts, failures, ignored failures and interruptions.
fn counts(status: &TaskStatus) -> [u32; 4] {
    let TaskStatus {
        attempt,
        failures,
        ignored_failures,
        interruptions,
        ..
    } = status;
    [*attempt, *failures, *ignored_failures, *interruptions]
}

fn failed(status: &TaskStatus) -> String {
    let condition = skyward_api::condition::find(&status.conditions, "Failed");
    condition
        .map(|condition| condition.message.clone())
        .unwrap_or_default()
}

#[tokio::test]
async fn runs_that_fail_start_again_or_do_not_by_exit_code_exception_and_reason() -> Result {
    let space = story("retries").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 4}})).await?;
    space.pool_ready("p").await?;

    // Events go with the controller that would have written them.
    let turn = KILLING.read().await;
    let source = "import os\n\nclass Busy(Exception):\n    pass\n\ndef main():\n    if int(os.environ['SKYWARD_ATTEMPT']) < 3:\n        raise Busy('not yet')\n    raise ValueError('never')\n";
    let rules = json!([{"exceptions": ["ValueError"], "action": "Fail"}]);
    let retries = json!({"onFailure": 5, "backoff": {"initial": "1s"}, "rules": rules});
    let spec = json!({"function": {"source": source}, "retries": retries});
    let done = run(&space, "raises", spec).await?;
    assert_eq!(
        (done.phase, done.reason.as_str(), counts(&done)),
        (Some(TaskPhase::Failed), "FunctionRaised", [3, 3, 0, 0]),
        "{done:#?}"
    );
    assert_eq!(done.results[0].exception, "ValueError");
    assert!(
        failed(&done).ends_with("; retries.rules[0] says Fail"),
        "{done:#?}"
    );
    let logs: [&str; 7] = ["skyward", "logs", "raises", "--attempt", "1", "-n", &space.name];
    let first = space.cluster.kubectl(&logs).await?.ok()?;
    assert!(
        first.contains("Busy: not yet"),
        "the log of each attempt is kept: {first}"
    );

    space.told(&["TaskRetried", "TaskFailed"]).await?;
    drop(turn);

    let rules = json!([{"exitCodes": [75], "action": "Ignore"}]);
    let retries = json!({"backoff": {"initial": "1s", "max": "1s"}, "rules": rules});
    let script = json!({"source": "[ \"$SKYWARD_ATTEMPT\" -ge 3 ] || exit 75"});
    let done = run(&space, "ignored", json!({"script": script, "retries": retries})).await?;
    assert_eq!(
        (done.phase, counts(&done)),
        (Some(TaskPhase::Succeeded), [3, 0, 2, 0]),
        "{done:#?}"
    );

    let retries = json!({"onFailure": 1, "backoff": {"initial": "1s"}});
    let spec = json!({"command": ["sleep", "600"], "timeout": "1s", "retries": retries});
    let done = run(&space, "slow", spec).await?;
    assert_eq!(
        (done.reason.as_str(), counts(&done)),
        ("TimedOut", [2, 2, 0, 0]),
        "{done:#?}"
    );
    let ends = "; 2 attempts failed, and retries.onFailure allows 1";
    assert!(failed(&done).ends_with(ends), "{done:#?}");
    space.finish().await
}

#[tokio::test]
async fn ranks_that_have_succeeded_do_not_run_again_where_each_works_for_itself() -> Result {
    let space = story("ranks").await?;
    space.pool("p", 2, json!({})).await?;
    space.pool_ready("p").await?;
    let source = "import os\n\ndef main():\n    attempt = int(os.environ['SKYWARD_ATTEMPT'])\n    print('attempt', attempt)\n    if os.environ['RANK'] == '1' and attempt < 3:\n        raise ValueError('not yet')\n    return attempt\n";
    let retries = json!({"onFailure": 5, "backoff": {"initial": "1s", "max": "1s"}, "scope": "Rank"});
    let spec = json!({"placement": "All", "function": {"source": source}, "retries": retries});
    let done = run(&space, "ranks", spec).await?;
    assert_eq!(
        (done.phase, counts(&done), done.done.as_str()),
        (Some(TaskPhase::Succeeded), [3, 2, 0, 0], "2/2"),
        "{done:#?}"
    );
    let values: Vec<Option<Value>> = done.results.iter().map(|run| run.value.clone()).collect();
    assert_eq!(values, [Some(json!(1)), Some(json!(3))], "{done:#?}");
    for (attempt, lines) in [("1", 2), ("2", 1), ("3", 1)] {
        let logs = [
            "skyward",
            "logs",
            "ranks",
            "--attempt",
            attempt,
            "-n",
            &space.name,
        ];
        let text = space.cluster.kubectl(&logs).await?.ok()?;
        let printed = text.matches(&format!("attempt {attempt}")).count();
        assert_eq!(printed, lines, "attempt {attempt}: {text}");
    }
    space.finish().await
}

#[tokio::test]
async fn the_sample_of_items_that_fail_names_them_and_succeeds_once_only_these_have_run_again() -> Result {
    let space = story("retry-sample").await?;
    space
        .pool("samples", 1, json!({"worker": {"concurrency": 2}}))
        .await?;
    space.pool_ready("samples").await?;
    let sample = fs::read_to_string(SAMPLE)?;
    space.apply(&sample).await?.ok()?;
    let done = space.task_ended("flaky").await?.status.unwrap_or_default();
    let items = done.items.clone().unwrap_or_default();
    assert_eq!(
        (
            done.reason.as_str(),
            items.failed_indexes.as_str(),
            items.succeeded
        ),
        ("ItemsFailed", "3,7", 8),
        "{done:#?}"
    );
    let turned = sample.replace(r#"BROKEN: "yes""#, r#"BROKEN: "no""#);
    assert_ne!(turned, sample);
    space.apply(&turned).await?.ok()?;
    // An answer that is lost is not given again, so the leader must be there.
    let turn = KILLING.read().await;
    let retry = ["skyward", "-n", &space.name, "retry", "flaky"];
    let said = space.cluster.patiently(&retry).await?;
    drop(turn);
    assert!(said.contains("2 items"), "{said}");
    space.task_phase("flaky", TaskPhase::Succeeded).await?;
    space.finish().await
}

#[tokio::test]
async fn a_task_that_takes_or_waits_too_long_fails_and_says_which() -> Result {
    let space = story("deadlines").await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    // A controller that is killed may start no run within these five seconds.
    let turn = KILLING.read().await;
    let spec = json!({"script": {"source": "trap 'echo bye; exit 0' TERM; sleep 600 & wait"}, "activeDeadline": "5s"});
    let done = run(&space, "long", spec).await?;
    drop(turn);
    assert_eq!(
        (done.phase, done.reason.as_str(), counts(&done)),
        (Some(TaskPhase::Failed), "DeadlineExceeded", [1, 0, 0, 0]),
        "{done:#?}"
    );
    assert!(done.results[0].log_tail.contains("bye"), "{done:#?}");

    let waits = json!({"command": ["true"], "queueTimeout": "3s"});
    space.task("waits", "nowhere", waits).await?;
    let message = space.condition::<Task>("waits", "Failed", "QueueTimeout").await?;
    assert!(message.contains("there is no Pool \"nowhere\""), "{message}");
    space.finish().await
}
