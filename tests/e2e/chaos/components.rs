//! The components of the local cluster, which are processes of this machine. On other clusters the kubelet or
//! systemd starts a component again when it ends; here the guard does it.

use std::{
    fs,
    path::PathBuf,
    process::Command,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use anyhow::Context as _;
use skyward_testkit::Result;

use crate::{
    effects::{Pid, born, run},
    scene::Owned,
};

/// All that may end because another component did not answer, in the order of their start.
pub(crate) const GUARDED: [&str; 7] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "dns",
    "kubelet",
];

/// Components that a happening keeps away, once for each such happening.
static HELD: Mutex<Vec<&str>> = Mutex::new(Vec::new());

fn held<R>(change: impl FnOnce(&mut Vec<&str>) -> R) -> R {
    change(&mut HELD.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Keeps a component away from the guard until [`bring_back`].
pub(crate) fn keep_away(name: &'static str) {
    held(|held| held.push(name));
}

/// Starts a component that was kept away, unless another happening keeps it away as well.
pub(crate) fn bring_back(name: &'static str) -> Result {
    let is_last = held(|held| held.iter().filter(|one| **one == name).count() <= 1);
    let outcome = if is_last && pid(name).is_none() {
        restart(name)
    } else {
        Ok(())
    };
    // Afterwards, or the guard would start the component as well.
    held(|held| {
        if let Some(at) = held.iter().position(|one| *one == name) {
            held.remove(at);
        }
    });
    outcome
}

fn state() -> Result<PathBuf> {
    let state = std::env::var("SKYWARD_STATE").context("SKYWARD_STATE is not set; run `make soak`")?;
    Ok(state.into())
}

/// The process of a component that runs.
pub(crate) fn pid(name: &str) -> Option<Pid> {
    let record = fs::read_to_string(state().ok()?.join("pids").join(name)).ok()?;
    let (pid, identity) = record.lines().next()?.split_once(' ')?;
    let pid = pid.parse().ok()?;
    let since = born(pid)?;
    (identity.split('@').next() == Some(&since)).then_some(Pid(pid, since))
}

/// Starts a component as it was started before.
pub(crate) fn restart(name: &str) -> Result {
    let script = format!("{}/../../hack/cluster/cluster.sh", env!("CARGO_MANIFEST_DIR"));
    run(Command::new(script).args(["restart", name])).map(drop)
}

/// Starts components that ended by themselves, until it is dropped.
pub(crate) fn guard() -> Owned {
    Owned(tokio::spawn(async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let ended = |name: &&str| !held(|held| held.contains(name)) && pid(name).is_none();
            for name in GUARDED.into_iter().filter(ended) {
                let outcome = tokio::task::spawn_blocking(move || restart(name)).await;
                match outcome {
                    Ok(Ok(())) => println!("    {name} had ended by itself, and is started again"),
                    Ok(Err(error)) => println!("    {name} is not started again: {error:#}"),
                    Err(error) => println!("    {name} is not started again: {error}"),
                }
            }
        }
    }))
}
