//! The accounts of the Providers: the client of each, and the objects that it was made from.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::RwLock;
use skyward_api::Provider as ProviderObject;
use skyward_core::Provider;
use tokio::{
    sync::{Semaphore, SemaphorePermit, watch},
    time::timeout,
};

/// Longest wait for a turn at an account.
const TURN: Duration = Duration::from_secs(1);

/// An account that answered at least once.
#[derive(Clone)]
pub struct Account {
    /// Its client, behind the gate that a hold after a restore closes.
    pub provider: Arc<dyn Provider>,
    /// The same client without that gate: for a person's decision after a restore.
    pub ungated: Arc<dyn Provider>,
    /// The revision that the client was made from.
    pub revision: Revision,
    /// Orders and returns under way at the same time; more wait for their turn.
    pub turns: Arc<Semaphore>,
}

impl Account {
    /// A turn, if one comes soon; a caller without a turn must look again, since its order or
    /// return may be outdated by then.
    pub async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        // Never closed, so there is no other error.
        timeout(TURN, self.turns.acquire()).await.ok()?.ok()
    }
}

/// The revision of a Provider and its Secret that a client was made from: another revision gets another
/// client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revision {
    /// UID of the Provider object: one of the same name may be another account.
    pub uid: String,
    /// Generation of its spec.
    pub generation: i64,
    /// Version of the Secret; `""` without one.
    pub secret: String,
}

impl Revision {
    /// The revision of a Provider object with that version of its Secret.
    pub fn of(provider: &ProviderObject, secret: &str) -> Self {
        Self {
            uid: provider.metadata.uid.clone().unwrap_or_default(),
            generation: provider.metadata.generation.unwrap_or_default(),
            secret: secret.to_owned(),
        }
    }
}

/// Clients of the accounts, by name of the Provider object.
#[derive(Default)]
pub struct Accounts {
    known: RwLock<BTreeMap<String, Account>>,
    changed: watch::Sender<u64>,
}

impl Accounts {
    /// The account of the Provider with this name; `None` until the Provider controller has seen that object.
    pub fn get(&self, name: &str) -> Option<Account> {
        self.known.read().get(name).cloned()
    }

    /// Adds or replaces an account.
    pub fn set(&self, name: &str, account: Account) {
        self.known.write().insert(name.to_owned(), account);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Removes an account.
    pub fn remove(&self, name: &str) {
        let removed = self.known.write().remove(name);
        if removed.is_some() {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// All accounts, by name.
    pub fn all(&self) -> BTreeMap<String, Account> {
        self.known.read().clone()
    }

    /// Woken at each change.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_made_anew_under_the_same_name_is_another_account() {
        let provider = |uid: &str| -> ProviderObject {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
                "metadata": { "name": "gpu", "uid": uid, "generation": 1 },
                "spec": { "container": {}, "allowedNamespaces": {} }
            }))
            .unwrap()
        };
        let revision = Revision::of(&provider("a"), "");
        assert_eq!(revision, Revision::of(&provider("a"), ""));
        assert_ne!(
            revision,
            Revision::of(&provider("b"), ""),
            "both are of generation 1"
        );
        assert_ne!(revision, Revision::of(&provider("a"), "rotated"));
    }
}
