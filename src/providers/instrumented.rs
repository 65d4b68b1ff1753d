//! Every call of a provider has a deadline, and is counted and timed, in one place.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use skyward_core::{
    Accepted, Capabilities, Deletion, ErrorKind, Leftover, MachineRef, Offer, Order, PoolScope, Provider,
    ProviderError, ProviderMachine, Scope, provider::AccountFact,
};
use tokio::time::{Instant, timeout};

/// Longest wait for what a call asks for: a call of an account that has thousands of offers is many
/// requests, and each request has the timeout of the Provider's `requestTimeout`.
const DEADLINE: Duration = Duration::from_mins(1);

/// A receiver that is told of every call. Implemented over the metrics of the controller.
pub trait CallSink: Send + Sync {
    /// One call ended. `provider` is the kind of provider, `outcome` is `ok` or the name
    /// of an error kind: both are closed sets, as labels of metrics must be.
    fn record(&self, provider: &str, operation: &'static str, outcome: &str, seconds: f64);
}

/// A provider whose calls have a deadline, and are counted and timed.
pub struct Instrumented {
    inner: Arc<dyn Provider>,
    sink: Option<Arc<dyn CallSink>>,
}

impl Instrumented {
    /// Wraps a provider; without a sink its calls have a deadline and nobody counts them.
    pub fn new(inner: Arc<dyn Provider>, sink: Option<Arc<dyn CallSink>>) -> Self {
        Self { inner, sink }
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T, ProviderError>> + Send,
    ) -> Result<T, ProviderError> {
        let started = Instant::now();
        let result = timeout(DEADLINE, answer)
            .await
            .unwrap_or_else(|_| Err(late(operation)));
        if let Some(sink) = &self.sink {
            let outcome = result.as_ref().err().map_or("ok", |error| error.kind.name());
            let (kind, seconds) = (self.inner.capabilities().kind, started.elapsed().as_secs_f64());
            sink.record(kind, operation, outcome, seconds);
        }
        result
    }
}

/// The outcome of a call that was not answered. What such a call was to change may have changed.
fn late(operation: &'static str) -> ProviderError {
    let (kind, words) = match operation {
        "account" => (ErrorKind::Transient, "check the account"),
        "account_facts" => (ErrorKind::Transient, "read the facts of the account"),
        "offers" => (ErrorKind::Transient, "list what the account offers"),
        "create" => (ErrorKind::Indeterminate, "order the machine"),
        "get" => (ErrorKind::Transient, "look at the machine"),
        "list" => (ErrorKind::Transient, "list the machines"),
        "delete" => (ErrorKind::Indeterminate, "delete the machine"),
        "leftovers" => (ErrorKind::Transient, "list what Pools left behind"),
        _ => (ErrorKind::Transient, "return what the machines shared"),
    };
    let message = format!("the provider did not answer within {} s", DEADLINE.as_secs());
    ProviderError::new(kind, words, message)
}

#[async_trait]
impl Provider for Instrumented {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn account(&self) -> Result<String, ProviderError> {
        self.call("account", self.inner.account()).await
    }

    async fn account_facts(&self) -> Result<Vec<AccountFact>, ProviderError> {
        self.call("account_facts", self.inner.account_facts()).await
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        self.call("offers", self.inner.offers()).await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        self.call("create", self.inner.create(order)).await
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        self.call("get", self.inner.get(machine)).await
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        self.call("list", self.inner.list(scope)).await
    }

    fn namespaces(&self) -> &[String] {
        self.inner.namespaces()
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        self.call("delete", self.inner.delete(machine)).await
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        self.call("leftovers", self.inner.leftovers(scope)).await
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        self.call("release", self.inner.release(pool)).await
    }

    fn changes(&self) -> Option<BoxStream<'static, (String, String)>> {
        self.inner.changes()
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use parking_lot::Mutex;

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
            std::future::pending().await
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
            self.0.lock().push(format!("{provider} {operation} {outcome}"));
        }
    }

    #[tokio::test]
    async fn every_call_is_told_with_its_outcome() {
        let heard = Arc::new(Heard::default());
        let empty = Empty(Capabilities::of("empty"));
        let provider = Instrumented::new(Arc::new(empty), Some(heard.clone()));
        provider.account().await.unwrap();
        provider.offers().await.unwrap_err();
        let scope = Scope {
            cluster: String::new(),
            pool_uid: None,
            namespace: None,
            regions: Vec::new(),
        };
        provider.list(&scope).await.unwrap();
        let told = heard.0.lock().clone();
        assert_eq!(
            told,
            ["empty account ok", "empty offers rate_limited", "empty list ok"]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_not_answered_ends_and_is_told_and_an_order_may_have_been_carried_out() {
        let heard = Arc::new(Heard::default());
        let provider = Instrumented::new(Arc::new(Empty(Capabilities::of("empty"))), Some(heard.clone()));
        let error = provider.create(&Order::default()).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Indeterminate);
        let said = "could not order the machine: the provider did not answer within 60 s";
        assert_eq!(error.to_string(), said);
        assert_eq!(*heard.0.lock(), ["empty create indeterminate"]);
    }
}
