//! `kubectl explain`, the samples, and the manifests of the pages.

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use skyward_control_plane_tests::{cluster, path};

#[tokio::test]
async fn explain_is_worth_reading() -> Result<()> {
    let cluster = cluster().await?;
    for (field, expected) in [
        ("pools.spec.nodes", "Machines wanted. 0 turns the Pool off"),
        ("pools.spec.image", "Python packages, as pip takes them"),
        ("pools.status.phase", "`Degraded`"),
        ("tasks.spec.placement", "`Head` (the machine of rank 0)"),
        ("tasks.spec.suspend", "a new attempt starts"),
        (
            "tasks.spec.poolTemplate",
            "A Pool that is made for this Task alone",
        ),
        ("tasks.status.conditions", "Why, and what to do, for people"),
        ("machines.spec.market", "May be reclaimed by the cloud"),
        ("offers.spec", "USD per hour"),
        ("providers.spec.container", "any Linux with sshd"),
        ("providers.spec.allowedNamespaces", "`{}` admits all"),
    ] {
        let text = cluster.kubectl(&["explain", field]).await?.ok()?;
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            words(&text).contains(&words(expected)),
            "kubectl explain {field}: {text}"
        );
        assert!(!text.contains("<empty>"), "kubectl explain {field}: {text}");
    }
    Ok(())
}

#[tokio::test]
async fn every_sample_is_taken() -> Result<()> {
    let cluster = cluster().await?;
    let samples = path("config/samples");
    // Secrets of clouds belong there; it stays, since an operator may live in it.
    cluster
        .kubectl(&["create", "namespace", "skyward-system"])
        .await?;
    cluster
        .kubectl(&["apply", "--dry-run=server", "-R", "-f", &samples])
        .await?
        .ok()?;
    Ok(())
}

#[tokio::test]
async fn every_manifest_of_the_pages_is_taken() -> Result<()> {
    let cluster = cluster().await?;
    let mut taken = 0;
    for page in pages()? {
        let text = fs::read_to_string(&page)?;
        for (line, manifest) in manifests(&text) {
            // What has no name yet can only be created.
            let verb = if manifest.contains("generateName:") {
                "create"
            } else {
                "apply"
            };
            let arguments = [verb, "--dry-run=server", "--validate=strict", "-f", "-"];
            cluster
                .run("kubectl", &arguments, Some(&manifest), Duration::from_secs(60))
                .await?
                .ok()
                .with_context(|| format!("{}:{line}", page.display()))?;
            taken += 1;
        }
    }
    assert!(taken >= 10, "the pages should show manifests, found {taken}");
    Ok(())
}

/// The README and all pages of `docs/`.
fn pages() -> Result<Vec<PathBuf>> {
    let mut pages = vec![PathBuf::from(path("README.md"))];
    let mut folders = vec![PathBuf::from(path("docs"))];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let place = entry?.path();
            if place.is_dir() {
                folders.push(place);
            } else if place.extension().is_some_and(|extension| extension == "md") {
                pages.push(place);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// The YAML blocks of a page that are whole objects, each with the line where it begins. A block
/// that begins otherwise shows a part of one.
fn manifests(page: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if line.starts_with("```yaml") {
            let block: Vec<&str> = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| !line.starts_with("```"))
                .collect();
            if block.first().is_some_and(|line| line.starts_with("apiVersion:")) {
                found.push((at + 2, block.join("\n") + "\n"));
            }
        }
    }
    found
}

#[test]
fn blocks_of_a_page_that_are_whole_objects_are_found() {
    let page = "a\n```yaml\nkind: Pool\nspec: {}\n```\n```\napiVersion: x\n```\n```yaml\napiVersion: v1\n---\n\
        apiVersion: v2\n```\nb\n```yaml\napiVersion: v3\n```\n";
    let expected = [
        (10, "apiVersion: v1\n---\napiVersion: v2\n".to_owned()),
        (16, "apiVersion: v3\n".to_owned()),
    ];
    assert_eq!(manifests(page), expected);
}
