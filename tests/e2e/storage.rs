//! The storage client of the package inside a Task, against a server of S3's API that others wrote: moto, on the node.

use std::{process::Stdio, time::Duration};

use anyhow::Context as _;
use serde_json::json;
use skyward_api::TaskPhase;
use skyward_testkit::{Result, node_address};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
};

use crate::story;

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../config/samples/storage/task.yaml"
);

/// Starts the server at an address of the node; the process and its URL. It ends with the process.
async fn moto(program: &str, host: &str) -> Result<(Child, String)> {
    let mut server = Command::new(program)
        .args(["-H", host, "-p", "0"])
        .env("PYTHONUNBUFFERED", "1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(server.stderr.take().context("its output")?).lines();
    let listening = async {
        while let Some(line) = lines.next_line().await? {
            if let Some((_, url)) = line.split_once("Running on ") {
                return Ok(url.trim().to_owned());
            }
        }
        anyhow::bail!("moto_server ended")
    };
    let url = tokio::time::timeout(Duration::from_mins(1), listening).await??;
    // What it says of each request would fill the pipe.
    tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    Ok((server, url))
}

#[tokio::test]
async fn the_sample_stores_lists_fetches_and_removes_a_file() -> Result {
    let program = std::env::var("SKYWARD_MOTO").unwrap_or_default();
    if program.is_empty() {
        println!("skipped: SKYWARD_MOTO does not name a moto_server (make test installs one)");
        return Ok(());
    }
    let space = story("storage").await?;
    let (server, url) = moto(&program, &node_address(&space.cluster).await?).await?;
    let bucket = format!("{url}/my-bucket");
    let make = ["-sSf", "--noproxy", "*", "-X", "PUT", &bucket];
    space
        .cluster
        .run("curl", &make, None, Duration::from_secs(30))
        .await?
        .ok()?;
    space.pool("samples", 1, json!({})).await?;
    let sample = std::fs::read_to_string(SAMPLE)?;
    let sample = sample.replace("https://s3.example", &url);
    assert!(sample.contains(&url), "{sample}");
    space.apply(&sample).await?.ok()?;
    let done = space.task_ended("storage").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let expected = json!({"found": ["run-1/weights.txt"], "content": "0.5 0.25", "left": false});
    assert_eq!(done.results[0].value, Some(expected), "{done:#?}");
    drop(server);
    space.finish().await
}
