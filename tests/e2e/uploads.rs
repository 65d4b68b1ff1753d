//! Code that is uploaded into a namespace.

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase, TaskStatus};
use skyward_bundle::{File, LIMITS, pack};
use skyward_testkit::{Output, PATIENCE, Result, Space, kill_controller, wait_controller_replaced};
use tokio::time::Instant;

use crate::{
    crash::{KILLING, leader_answers},
    story,
    strangers::metric,
};

/// The digest in the sample.
const DIGEST: &str = "sha256:256fe92a9a642545964298a809a6f5a7c206a2d2c8c0da6d3b8ba0f0251151b4";
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/upload");

fn status(task: Task) -> TaskStatus {
    task.status.unwrap_or_default()
}

async fn upload(space: &Space, folder: &Path, more: &[&str]) -> Result<Output> {
    let folder = folder.to_string_lossy();
    let mut args = vec!["skyward", "upload", "-n", space.name.as_str(), folder.as_ref()];
    args.extend_from_slice(more);
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let tried = space.cluster.kubectl(&args).await?;
        // The plugin gives up where other stories leave it no leader for half a minute.
        let is_final = tried.code == Some(0) || !tried.stderr.contains("try again");
        if is_final || Instant::now() >= deadline {
            return Ok(tried);
        }
    }
}

fn path(space: &Space, rest: &str) -> String {
    let base = "/apis/subresources.skyward.dev/v1alpha1/namespaces";
    format!("{base}/{}/bundles/{rest}", space.name)
}

#[tokio::test]
async fn a_task_waits_for_its_upload_and_runs_the_selected_files_on_each_machine() -> Result {
    let space = story("upload").await?;
    space.pool("samples", 2, json!({})).await?;
    let task = fs::read_to_string(format!("{SAMPLE}/task.yaml"))?;
    space.apply(&task).await?.ok()?;
    let why = space
        .condition::<Task>("upload", "Scheduled", "BundleNotFound")
        .await?;
    assert!(
        why.contains(&format!("kubectl skyward upload FOLDER -n {}", space.name)),
        "{why}"
    );

    let code = format!("{SAMPLE}/code");
    let code = Path::new(&code);
    let uploaded = upload(&space, code, &[]).await?;
    assert!(uploaded.stderr.contains("3 files"), "{}", uploaded.stderr);
    assert_eq!(uploaded.ok()?.trim(), DIGEST);
    let done = status(space.task_ended("upload").await?);
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(done.results[0].value, Some(json!({"epochs": 3, "loss": 0.125})));
    let digest = done.source.clone().unwrap_or_default().digest;
    assert!(digest.starts_with("sha256:") && digest != DIGEST, "{done:#?}");

    let beginning = format!("skyward_bundle_bytes{{namespace=\"{}\"}}", space.name);
    let bytes: f64 = metric(&space, &beginning).await?.parse()?;
    assert!(bytes > 300.0, "{bytes}");

    // Without a selection it is the upload itself, and it is not sent again.
    let again = upload(&space, code, &["-o", "yaml"]).await?;
    assert!(again.stderr.contains("already"), "{}", again.stderr);
    assert!(again.ok()?.contains(&format!("    digest: {DIGEST}")));
    let source = json!({"bundle": {"digest": DIGEST}});
    let find = json!({"source": source, "placement": "All", "command": ["find", ".", "-type", "f"]});
    space.task("all", "samples", find).await?;
    let all = status(space.task_ended("all").await?);
    assert_eq!(all.source.clone().unwrap_or_default().digest, DIGEST);
    for result in &all.results {
        let mut seen: Vec<&str> = result.log_tail.split_whitespace().collect();
        seen.sort_unstable();
        assert_eq!(
            seen,
            ["./exp/model.py", "./exp/train.py", "./notes.md"],
            "{all:#?}"
        );
    }
    assert_eq!(all.results.len(), 2, "{all:#?}");

    // A digest opens nothing in another namespace.
    let other = space.cluster.namespace("upload-other").await?;
    other.pool("samples", 1, json!({})).await?;
    other.apply(&task).await?.ok()?;
    other
        .condition::<Task>("upload", "Scheduled", "BundleNotFound")
        .await?;
    other.finish().await?;
    space.finish().await
}

#[tokio::test]
async fn an_upload_that_was_interrupted_goes_on_where_it_was_and_wrong_bytes_are_refused() -> Result {
    let space = story("upload-parts").await?;
    let folder = tempfile::tempdir()?;
    let content: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 % 253) as u8).collect();
    fs::write(folder.path().join("data.bin"), &content)?;
    let file = File {
        path: "data.bin",
        executable: false,
        content: &content,
    };
    let bundle = pack([file], LIMITS)?;
    let (digest, size) = (bundle.digest, bundle.bytes.len());
    let part = tempfile::tempdir()?;
    let part = part.path().join("part");
    let send_of = async |offset: usize, bytes: &[u8], size: usize| {
        fs::write(&part, bytes)?;
        let path = path(&space, &format!("{digest}?offset={offset}&size={size}"));
        let file = part.to_string_lossy().into_owned();
        space
            .cluster
            .kubectl(&["replace", "--raw", &path, "-f", &file])
            .await
    };
    let send = async |offset: usize, bytes: &[u8]| send_of(offset, bytes, size).await;
    // `kubectl` sends a part once: while no controller answers, the API asks to try again.
    let turn = KILLING.read().await;
    let there: Value = serde_json::from_str(&send(0, &bundle.bytes[..100_000]).await?.ok()?)?;
    assert_eq!(there["status"], json!({"complete": false, "offset": 100_000}));
    // A size that is too small changes nothing.
    let wrong = send_of(100_000, &bundle.bytes[100_000..100_100], 70_000)
        .await?
        .refused()?;
    assert!(wrong.contains("its size is not 70000"), "{wrong}");
    let get = ["get", "--raw", &path(&space, &digest.to_string())];
    let there: Value = serde_json::from_str(&space.cluster.kubectl(&get).await?.ok()?)?;
    assert_eq!(there["status"]["offset"], 100_000);
    // The rest is wrong: nothing of it stays.
    let wrong = send(100_000, &vec![0; size - 100_000]).await?.refused()?;
    assert!(wrong.contains("are not the bundle"), "{wrong}");
    space.cluster.kubectl(&get).await?.refused()?;

    send(0, &bundle.bytes[..100_000]).await?.ok()?;
    let printed = upload(&space, folder.path(), &[]).await?.ok()?;
    assert_eq!(printed.trim(), digest.to_string());
    let there: Value = serde_json::from_str(&space.cluster.kubectl(&get).await?.ok()?)?;
    assert_eq!(there["status"], json!({"complete": true, "offset": size}));
    drop(turn);
    space.finish().await
}

/// Lets all files of a folder be that old.
fn age(folder: &Path, by: Duration) -> Result {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            age(&path, by)?;
        } else {
            let file = fs::File::options().write(true).open(path)?;
            file.set_modified(SystemTime::now() - by)?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_upload_goes_after_a_day_unless_a_task_names_it() -> Result {
    let space = story("upload-day").await?;
    let code = format!("{SAMPLE}/code");
    upload(&space, Path::new(&code), &[]).await?.ok()?;
    let names = json!({"source": {"bundle": {"digest": DIGEST}}, "command": ["true"], "suspend": true});
    space.task("names", "no-such-pool", names).await?;
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("left.txt"), "no Task names this")?;
    let left = upload(&space, folder.path(), &[]).await?.ok()?;

    // The result store of a local cluster is a folder here.
    let uid = ["get", "namespace", &space.name, "-o", "jsonpath={.metadata.uid}"];
    let uid = space.kubectl(&uid).await?.ok()?;
    let stored = PathBuf::from(std::env::var("SKYWARD_STORE_DIR")?)
        .join("_bundles")
        .join(uid.trim());
    let is_there = |digest: &str| {
        let digits = digest.trim().trim_start_matches("sha256:");
        stored.join(digits).join("whole").exists()
    };
    assert!(is_there(DIGEST) && is_there(&left), "{}", stored.display());
    age(&stored, Duration::from_hours(25))?;
    // A leader sweeps when it begins to lead, and then each hour.
    let turn = KILLING.write().await;
    let old = kill_controller(&space.cluster.client).await?;
    wait_controller_replaced(&space.cluster.client, old).await?;
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while is_there(&left) && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!is_there(&left), "no Task names it");
    assert!(is_there(DIGEST), "a Task names it");
    leader_answers(&space).await?;
    drop(turn);
    space.finish().await
}

#[tokio::test]
async fn a_user_who_may_only_view_cannot_upload_and_one_who_may_edit_can() -> Result {
    let space = story("upload-rights").await?;
    let code = format!("{SAMPLE}/code");
    let code = Path::new(&code);
    let (vera, eddie) = (format!("vera-{}", space.name), format!("eddie-{}", space.name));
    for (role, user) in [("view", &vera), ("edit", &eddie)] {
        let (role, user) = (format!("--clusterrole={role}"), format!("--user={user}"));
        let bind = ["create", "rolebinding", &user[7..], &role, &user];
        space.kubectl(&bind).await?.ok()?;
    }
    let error = upload(&space, code, &["--as", &vera]).await?.refused()?;
    assert!(
        error.contains("cannot update resource \"bundles\"") && error.contains("skyward-edit"),
        "{error}"
    );
    // The role is joined by a controller, and the decision remembered for a moment.
    let allowed = tokio::time::timeout(Duration::from_secs(PATIENCE), async {
        loop {
            let tried = upload(&space, code, &["--as", &eddie]).await?;
            if tried.code == Some(0) {
                return anyhow::Ok(tried.stdout);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    });
    let printed = allowed.await.context("a user who edits cannot upload")??;
    assert_eq!(printed.trim(), DIGEST);
    space.finish().await
}
