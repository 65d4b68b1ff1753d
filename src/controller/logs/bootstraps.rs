//! The output of a Machine's bootstrap: from the session while the machine is prepared, else from
//! the store, under its Pool, when it failed. The Machine itself is gone by then, so its name leads
//! to the Pool.

use std::sync::Arc;

use kube::{ResourceExt as _, runtime::reflector::Store as Cache};
use skyward_api::Pool;
use skyward_planner::records::machine_name;
use skyward_remote::{Connections, MachineKey, transcript::Transcript};
use skyward_store::{Error, Store};

/// Sessions and Pools. Implemented by [`Known`]; tests bring their own.
pub(super) trait Bootstraps: Send + Sync {
    /// Output of a machine's bootstrap that is under way, or just failed.
    fn transcript(&self, machine: &MachineKey) -> Option<Transcript>;
    /// The Pools of a namespace.
    fn pools(&self, namespace: &str) -> Vec<Arc<Pool>>;
}

/// The leader's sessions and Pools.
pub(super) struct Known {
    pub(super) sessions: Arc<dyn Connections>,
    pub(super) pools: Cache<Pool>,
}

impl Bootstraps for Known {
    fn transcript(&self, machine: &MachineKey) -> Option<Transcript> {
        self.sessions.transcript(machine)
    }

    fn pools(&self, namespace: &str) -> Vec<Arc<Pool>> {
        self.pools
            .state_filter(|pool| pool.metadata.namespace.as_deref() == Some(namespace))
    }
}

/// The text, if there is one.
pub(super) async fn read(
    known: &dyn Bootstraps,
    store: &Store,
    machine: &MachineKey,
) -> Result<Option<String>, Error> {
    if let Some(transcript) = known.transcript(machine) {
        let text = tokio::task::spawn_blocking(move || transcript.text()).await;
        if let Ok(text) = text {
            return Ok(Some(text));
        }
    }
    for pool in known.pools(&machine.namespace) {
        let uid = pool.uid().unwrap_or_default();
        if is_of(&machine.name, &pool.name_any(), &uid)
            && let Some(log) = store.bootstrap_log(&uid, &machine.name).await?
        {
            return Ok(Some(String::from_utf8_lossy(&log).into_owned()));
        }
    }
    Ok(None)
}

/// Whether a Machine of that name can be of that Pool.
fn is_of(machine: &str, pool: &str, uid: &str) -> bool {
    let mut parts = machine.rsplitn(3, '-');
    let mut number = || parts.next().and_then(|part| part.parse::<u32>().ok());
    let (Some(attempt), Some(slot)) = (number(), number()) else {
        return false;
    };
    machine_name(pool, uid, slot, attempt) == machine
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::logs) const POOL: &str = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";

    /// A namespace `n` with the Pool `train`, and no session.
    pub(in crate::logs) struct OnePool;

    impl Bootstraps for OnePool {
        fn transcript(&self, _: &MachineKey) -> Option<Transcript> {
            None
        }

        fn pools(&self, namespace: &str) -> Vec<Arc<Pool>> {
            let pool = serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "spec": { "provider": "local" },
                "metadata": { "name": "train", "namespace": "n", "uid": POOL },
            });
            (namespace == "n")
                .then(|| Arc::new(serde_json::from_value(pool).unwrap()))
                .into_iter()
                .collect()
        }
    }

    #[test]
    fn the_pool_of_a_machine_that_is_gone_is_known_by_its_name() {
        for (slot, attempt) in [(0, 1), (499, u32::MAX)] {
            let name = machine_name("train.a", POOL, slot, attempt);
            assert!(is_of(&name, "train.a", POOL), "{name}");
            assert!(!is_of(&name, "train", POOL) && !is_of(&name, "train.a", "other-uid"));
        }
        for name in [
            "",
            "train",
            "train-5b9d2-0",
            "train-5b9d2-x-1",
            "train-5b9d2-0-99999999999",
            "-0-1",
        ] {
            assert!(!is_of(name, "train", POOL), "{name}");
        }
        // Another spelling of the same numbers is no name of ours.
        assert!(!is_of("train-5b9d2-00-01", "train", POOL));
    }

    #[tokio::test]
    async fn the_log_of_a_machine_that_failed_is_read_in_its_namespace_alone() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::local(folder.path()).unwrap().unmeasured();
        let name = machine_name("train", POOL, 0, 1);
        let put = store.put_bootstrap_log("n", POOL, &name, "what it printed\n".into());
        put.await.unwrap();
        let ask = async |namespace: &str, name: &str| {
            let machine = MachineKey::new(namespace, name);
            read(&OnePool, &store, &machine).await.unwrap()
        };
        assert_eq!(ask("n", &name).await.as_deref(), Some("what it printed\n"));
        assert_eq!(ask("other", &name).await, None);
        assert_eq!(ask("n", &machine_name("train", POOL, 0, 2)).await, None);
    }
}
