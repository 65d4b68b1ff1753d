//! Every file of `config/samples/` does what its comment says.

use std::path::PathBuf;

use skyward_api::TaskPhase;
use skyward_testkit::Result;

use crate::story;

#[tokio::test]
async fn every_sample_is_admitted_and_every_sample_task_succeeds() -> Result {
    let space = story("samples").await?;
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "..", "config", "samples"]
        .iter()
        .collect();
    let path = folder.to_string_lossy().into_owned();
    space.kubectl(&["apply", "-f", &path]).await?.ok()?;
    let names = space.kubectl(&["get", "tasks", "-o", "name"]).await?.ok()?;
    let names: Vec<&str> = names.lines().filter_map(|l| l.rsplit('/').next()).collect();
    assert!(
        names.len() >= 5,
        "the samples should show the kinds of Tasks, found {names:?}"
    );
    for name in names {
        let task = space.task_ended(name).await?;
        let status = task.status.unwrap_or_default();
        assert_eq!(status.phase, Some(TaskPhase::Succeeded), "{name}: {status:#?}");
    }
    space.finish().await
}
