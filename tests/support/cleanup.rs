//! Cleanup after a failed story: its evidence is written to a file, and its objects are deleted, so
//! that its Pods do not take the room of later stories.

use std::{fmt::Write as _, path::PathBuf, process::Command};

use crate::Cluster;

/// Label of namespaces and Providers that belong to a story; its value is the namespace.
pub(crate) const STORY: &str = "skyward-test-story";
/// Set by `make … KEEP=1`: everything stays for a look.
const KEEP: &str = "KEEP";
/// Longest wait for one answer of the API server.
const PATIENCE: &str = "--request-timeout=20s";

/// Writes down what a namespace holds, and orders its deletion without waiting for it.
///
/// It runs in a destructor, perhaps of a test that panics, so nothing in here may fail.
pub(crate) fn after_failure(cluster: &Cluster, namespace: &str) {
    let file = evidence_file(namespace);
    let mut evidence = String::new();
    for what in [
        "events --sort-by=.lastTimestamp",
        "pods -o wide",
        "pools.skyward.dev,machines.skyward.dev,tasks.skyward.dev,crontasks.skyward.dev,pods -o yaml",
    ] {
        let mut args = vec!["-n", namespace, PATIENCE, "get"];
        args.extend(what.split_whitespace());
        // Writing to a String cannot fail.
        let _ = writeln!(evidence, "--- kubectl get {what}\n{}", kubectl(cluster, &args));
    }
    let kept = match std::fs::write(&file, evidence) {
        Ok(()) => format!("what it held is in {}", file.display()),
        Err(error) => format!("what it held could not be written to {}: {error}", file.display()),
    };
    if std::env::var(KEEP).is_ok_and(|keep| !keep.is_empty()) {
        report(&format!(
            "the story of namespace \"{namespace}\" failed; {kept}. It stays because {KEEP} is set"
        ));
        return;
    }
    report(&format!(
        "the story of namespace \"{namespace}\" failed; {kept}. It is deleted now ({KEEP}=1 keeps it)"
    ));
    kubectl(
        cluster,
        &[PATIENCE, "delete", "namespace", namespace, "--wait=false"],
    );
    // Providers go when their last machine has gone.
    let ours = format!("{STORY}={namespace}");
    let allow = "skyward.dev/allow-deletion=true";
    kubectl(
        cluster,
        &[
            PATIENCE,
            "annotate",
            "providers.skyward.dev",
            "-l",
            &ours,
            "--overwrite",
            allow,
        ],
    );
    kubectl(
        cluster,
        &[
            PATIENCE,
            "delete",
            "providers.skyward.dev",
            "-l",
            &ours,
            "--wait=false",
        ],
    );
}

fn evidence_file(namespace: &str) -> PathBuf {
    let folder = std::env::var_os("SKYWARD_LOG_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    folder.join(format!("story-{namespace}.txt"))
}

/// Its output, whether it failed or not.
fn kubectl(cluster: &Cluster, args: &[&str]) -> String {
    let output = Command::new(cluster.bin.join("kubectl"))
        .args(args)
        .env("KUBECONFIG", &cluster.kubeconfig)
        .output();
    match output {
        Ok(output) => format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => error.to_string(),
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the person who reads the test's output must learn of it"
)]
fn report(text: &str) {
    eprintln!("{text}");
}
