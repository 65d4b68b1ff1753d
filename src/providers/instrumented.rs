//! Counts and times every call to a provider, in one place.

use std::{sync::Arc, time::Instant};

use async_trait::async_trait;
use futures::stream::BoxStream;
use skyward_core::{
    Accepted, Capabilities, Deletion, Leftover, MachineRef, Offer, Order, PoolScope, Provider, ProviderError,
    ProviderMachine, Scope,
};

/// A receiver that is told of every call. Implemented over the metrics of the controller.
pub trait CallSink: Send + Sync {
    /// One call ended. `provider` is the kind of provider, `outcome` is `ok` or the name
    /// of an error kind: both are closed sets, as labels of metrics must be.
    fn record(&self, provider: &str, operation: &'static str, outcome: &str, seconds: f64);
}

/// A provider whose calls are counted and timed.
pub struct Instrumented {
    inner: Arc<dyn Provider>,
    sink: Arc<dyn CallSink>,
}

impl Instrumented {
    /// Wraps a provider.
    pub fn new(inner: Arc<dyn Provider>, sink: Arc<dyn CallSink>) -> Self {
        Self { inner, sink }
    }

    fn record<T>(
        &self,
        operation: &'static str,
        started: Instant,
        result: Result<T, ProviderError>,
    ) -> Result<T, ProviderError> {
        let outcome = result.as_ref().err().map_or("ok", |error| error.kind.name());
        self.sink.record(
            self.inner.capabilities().kind,
            operation,
            outcome,
            started.elapsed().as_secs_f64(),
        );
        result
    }
}

#[async_trait]
impl Provider for Instrumented {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn account(&self) -> Result<String, ProviderError> {
        let started = Instant::now();
        self.record("account", started, self.inner.account().await)
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        let started = Instant::now();
        self.record("offers", started, self.inner.offers().await)
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        let started = Instant::now();
        self.record("create", started, self.inner.create(order).await)
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        let started = Instant::now();
        self.record("get", started, self.inner.get(machine).await)
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let started = Instant::now();
        self.record("list", started, self.inner.list(scope).await)
    }

    fn namespaces(&self) -> &[String] {
        self.inner.namespaces()
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        let started = Instant::now();
        self.record("delete", started, self.inner.delete(machine).await)
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        let started = Instant::now();
        self.record("leftovers", started, self.inner.leftovers(scope).await)
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        let started = Instant::now();
        self.record("release", started, self.inner.release(pool).await)
    }

    fn changes(&self) -> Option<BoxStream<'static, (String, String)>> {
        self.inner.changes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use skyward_core::ErrorKind;

    use super::*;

    struct Empty(Capabilities);

    #[async_trait]
    impl Provider for Empty {
        fn capabilities(&self) -> &Capabilities {
            &self.0
        }

        async fn account(&self) -> Result<String, ProviderError> {
            Ok("account".into())
        }

        async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
            Err(ProviderError::new(
                ErrorKind::RateLimited(None),
                "list",
                "slow down",
            ))
        }

        async fn create(&self, _: &Order) -> Result<Accepted, ProviderError> {
            unreachable!("not asked here")
        }

        async fn get(&self, _: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
            unreachable!("not asked here")
        }

        async fn list(&self, _: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
            Ok(Vec::new())
        }

        async fn delete(&self, _: &MachineRef) -> Result<Deletion, ProviderError> {
            unreachable!("not asked here")
        }
    }

    #[derive(Default)]
    struct Heard(Mutex<Vec<String>>);

    impl CallSink for Heard {
        fn record(&self, provider: &str, operation: &'static str, outcome: &str, seconds: f64) {
            assert!(seconds >= 0.0);
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(format!("{provider} {operation} {outcome}"));
        }
    }

    #[tokio::test]
    async fn every_call_is_told_with_its_outcome() {
        let heard = Arc::new(Heard::default());
        let empty = Empty(Capabilities::of("empty"));
        let provider = Instrumented::new(Arc::new(empty), heard.clone());
        provider.account().await.unwrap();
        provider.offers().await.unwrap_err();
        let scope = Scope {
            cluster: String::new(),
            pool_uid: None,
            namespace: None,
            regions: Vec::new(),
        };
        provider.list(&scope).await.unwrap();
        let told = heard.0.lock().unwrap().clone();
        assert_eq!(
            told,
            ["empty account ok", "empty offers rate_limited", "empty list ok"]
        );
    }
}
