//! Keeps orders and deletions from the account of a held Provider. The account's client is behind
//! this gate, so no caller can forget to check. Until the account was listed once, calls that
//! change something wait.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use skyward_core::{
    Deletion, ErrorKind, MachineRef, PoolScope, Provider, ProviderError, ProviderMachine, Scope,
    offer::Offer,
    order::{Accepted, Order},
    provider::{Capabilities, Leftover},
};

use tokio::time::timeout;

use super::Holds;

/// Longest wait of one call for the first list of its account.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// The client of an account behind the gate.
pub struct Gated {
    inner: Arc<dyn Provider>,
    holds: Arc<Holds>,
    name: String,
}

impl fmt::Debug for Gated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Gated {
    /// Puts the client of that Provider behind the gate.
    pub fn new(inner: Arc<dyn Provider>, holds: Arc<Holds>, name: &str) -> Self {
        Self {
            inner,
            holds,
            name: name.to_owned(),
        }
    }

    async fn passes(&self, operation: &'static str) -> Result<(), ProviderError> {
        // A leader that has listed nothing yet cannot know whether it must hold.
        let mut changes = self.holds.subscribe();
        let settled = async {
            while !self.holds.is_settled(std::iter::once(&self.name)) && changes.changed().await.is_ok() {}
        };
        let _the_look_below_tells = timeout(FIRST_LIST, settled).await;
        if !self.holds.is_settled(std::iter::once(&self.name)) {
            return Err(ProviderError::new(
                ErrorKind::Transient,
                operation,
                "the machines of this account must be listed first, and were not listed yet",
            ));
        }
        if !self.holds.is_held(&self.name) {
            return Ok(());
        }
        Err(ProviderError::new(
            ErrorKind::Transient,
            operation,
            format!(
                "Provider \"{}\" is held: its machines know more than this cluster does (condition RestoreDetected); decide with the annotation that its message names",
                self.name
            ),
        ))
    }
}

#[async_trait]
impl Provider for Gated {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn account(&self) -> Result<String, ProviderError> {
        self.inner.account().await
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        self.inner.offers().await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        self.passes("order the machine").await?;
        self.inner.create(order).await
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        self.inner.get(machine).await
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        self.inner.list(scope).await
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        self.passes("end the machine").await?;
        self.inner.delete(machine).await
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        self.inner.leftovers(scope).await
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        self.passes("return what the machines shared").await?;
        self.inner.release(pool).await
    }

    fn changes(&self) -> Option<BoxStream<'static, (String, String)>> {
        self.inner.changes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use skyward_core::Mark;

    use super::*;
    use skyward_planner::restore::evidence::Evidence;

    /// A cloud that counts calls that change something.
    struct Counting {
        calls: AtomicU32,
        capabilities: Capabilities,
    }

    #[async_trait]
    impl Provider for Counting {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }
        async fn account(&self) -> Result<String, ProviderError> {
            Ok("a".to_owned())
        }
        async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
            Ok(Vec::new())
        }
        async fn create(&self, _: &Order) -> Result<Accepted, ProviderError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            Ok(Accepted { id: "1".to_owned() })
        }
        async fn get(&self, _: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
            Ok(None)
        }
        async fn list(&self, _: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
            Ok(Vec::new())
        }
        async fn delete(&self, _: &MachineRef) -> Result<Deletion, ProviderError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            Ok(Deletion::Gone)
        }
        async fn release(&self, _: &PoolScope) -> Result<Deletion, ProviderError> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            Ok(Deletion::Gone)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn while_a_provider_is_held_nothing_that_changes_anything_reaches_its_cloud() {
        let cloud = Arc::new(Counting {
            calls: AtomicU32::new(0),
            capabilities: Capabilities::of("x"),
        });
        let holds = Arc::new(Holds::default());
        let gated = Gated::new(cloud.clone(), holds.clone(), "p");
        let machine = MachineRef {
            id: None,
            mark: Mark::default(),
            region: String::new(),
            started: false,
        };
        let pool = PoolScope {
            cluster: "c".to_owned(),
            pool_uid: "u".to_owned(),
            regions: Vec::new(),
        };
        let order = Order::default();
        let calls = || cloud.calls.load(Ordering::Relaxed);
        assert!(gated.create(&order).await.is_err(), "nobody listed it yet");
        assert!(
            gated.delete(&machine).await.is_err(),
            "nor is anything ended before"
        );
        holds.listed("p", Evidence::default());
        gated.create(&order).await.unwrap();
        holds.set("p", true);
        for refused in [
            gated.create(&order).await.map(drop),
            gated.delete(&machine).await.map(drop),
            gated.release(&pool).await.map(drop),
        ] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Transient, "it is tried again later");
        }
        assert_eq!(calls(), 1);
        holds.set("p", false);
        gated.delete(&machine).await.unwrap();
        gated.release(&pool).await.unwrap();
        assert_eq!(calls(), 3);
    }
}
