//! How far a Task says that it is.

use anyhow::ensure;
use serde_json::json;
use skyward_api::{Task, TaskPhase};
use skyward_testkit::{PATIENCE, Result};
use tokio::time::{Duration, Instant, sleep};

use crate::story;

#[tokio::test]
async fn a_task_says_how_far_it_is_while_it_runs_and_at_its_end() -> Result {
    let space = story("progress").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    let script = "echo 3/7 > $SKYWARD_PROGRESS_FILE; until [ -e /tmp/go ]; do sleep 0.2; done; echo nonsense > $SKYWARD_PROGRESS_FILE";
    let long = json!({"placement": "Head", "script": {"source": script}, "timeout": "600s"});
    space.task("long", "p", long).await?;
    let source =
        "import skyward\ndef main():\n    for step in range(50):\n        skyward.progress(step + 1, 50)\n";
    let each = json!({"placement": "All", "function": {"source": source}});
    space.task("short", "p", each).await?;
    let short = space.task_ended("short").await?.status.unwrap_or_default();
    ensure!(
        short.phase == Some(TaskPhase::Succeeded) && short.progress == "100/100",
        "{short:#?}"
    );

    let said = |task: &Task| {
        task.status
            .as_ref()
            .is_some_and(|status| status.progress == "3/7")
    };
    let running = space.wait::<Task>("long", "progress 3/7", PATIENCE, said).await?;
    let status = running.status.unwrap_or_default();
    ensure!(status.phase == Some(TaskPhase::Running), "{status:#?}");
    let shown = space.kubectl(&["get", "tasks", "long"]).await?.ok()?;
    ensure!(shown.contains("PROGRESS") && shown.contains("3/7"), "{shown}");
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let live = space.plugin(&["progress", "long", "--ranks"]).await?;
        if live == "long  Running  3/7  42 %\n  rank 0  3/7  42 %\n" {
            break;
        }
        // A leader that has just begun has not heard of the rank yet.
        ensure!(Instant::now() < deadline, "{live}");
        sleep(Duration::from_millis(200)).await;
    }
    let go = json!({"placement": "Head", "command": ["touch", "/tmp/go"]});
    space.task("go", "p", go).await?;
    // What is no number says nothing, so the last word stands.
    let long = space.task_ended("long").await?.status.unwrap_or_default();
    ensure!(long.progress == "3/7", "{long:#?}");
    space.finish().await
}
