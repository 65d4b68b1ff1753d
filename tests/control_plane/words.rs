//! `kubectl explain`, and the samples.

use anyhow::Result;
use skyward_control_plane_tests::{cluster, path};

#[tokio::test]
async fn explain_is_worth_reading() -> Result<()> {
    let cluster = cluster().await?;
    for (field, expected) in [
        ("pools.spec.nodes", "Machines wanted. 0 turns the Pool off"),
        ("pools.spec.image", "Python packages, as pip takes them"),
        ("pools.status.phase", "`Degraded`"),
        ("tasks.spec.placement", "once on each"),
        ("tasks.spec.suspend", "a new attempt starts"),
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
