//! One look for many who want to look: two hundred orders at once need not list an
//! account two hundred times.
//!
//! A caller gets an answer that was asked for *after* it came, never an older one: what
//! it did before it came is in there, as far as the cloud's list is up to date.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use skyward_core::{ErrorKind, ProviderError};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

type Shared<T> = Result<Arc<T>, ProviderError>;

/// A look that is shared.
pub struct Batched<T> {
    latest: Mutex<Option<Look<T>>>,
    /// Numbers callers and looks in the order in which they come: a clock may say the same
    /// for both.
    next: AtomicU64,
    turn: Semaphore,
}

struct Look<T> {
    number: u64,
    began: Instant,
    found: Shared<T>,
}

impl<T> Default for Batched<T> {
    fn default() -> Self {
        Self {
            latest: Mutex::new(None),
            next: AtomicU64::new(0),
            turn: Semaphore::new(1),
        }
    }
}

impl<T> Batched<T> {
    /// What a look found that began after this was called.
    pub async fn fresh<F>(&self, longest: Duration, look: impl FnOnce() -> F) -> Shared<T>
    where
        F: Future<Output = Result<T, ProviderError>>,
    {
        let number = self.number();
        self.shared(longest, |latest| latest.number > number, look).await
    }

    /// What a look found that is no older than this; failures are not kept.
    pub async fn recent<F>(&self, age: Duration, longest: Duration, look: impl FnOnce() -> F) -> Shared<T>
    where
        F: Future<Output = Result<T, ProviderError>>,
    {
        let number = self.number();
        let will_do = |latest: &Look<T>| {
            latest.number > number || latest.found.is_ok() && latest.began.elapsed() <= age
        };
        if let Some(found) = self.latest(will_do) {
            return found;
        }
        self.shared(longest, will_do, look).await
    }

    /// Only whoever has the turn looks, the others wait for it. Failures are shared too:
    /// those who wait would meet the same one.
    async fn shared<F>(
        &self,
        longest: Duration,
        will_do: impl Fn(&Look<T>) -> bool,
        look: impl FnOnce() -> F,
    ) -> Shared<T>
    where
        F: Future<Output = Result<T, ProviderError>>,
    {
        let turn = timeout(longest, self.turn.acquire()).await;
        if let Some(found) = self.latest(will_do) {
            return found;
        }
        let Ok(_turn) = turn else {
            return Err(ProviderError::new(
                ErrorKind::Transient,
                "look at the account",
                "others look at it and do not come to an end",
            ));
        };
        let (number, began) = (self.number(), Instant::now());
        let found = look().await.map(Arc::new);
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some(Look {
            number,
            began,
            found: found.clone(),
        });
        found
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    fn latest(&self, will_do: impl Fn(&Look<T>) -> bool) -> Option<Shared<T>> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest
            .as_ref()
            .filter(|latest| will_do(latest))
            .map(|latest| latest.found.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_hundred_who_come_together_look_twice_at_most_and_nobody_gets_an_old_answer() {
        let batched: Batched<u32> = Batched::default();
        let looks = AtomicU32::new(0);
        let one = || async {
            let look = || async {
                let number = looks.fetch_add(1, Ordering::SeqCst) + 1;
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(number)
            };
            batched
                .fresh(Duration::from_secs(30), look)
                .await
                .map(|found| *found)
        };
        let found = futures::future::join_all((0..100).map(|_| one())).await;
        assert_eq!(found[0], Ok(1));
        assert!(found[1..].iter().all(|n| *n == Ok(2)), "{found:?}");
        // Who comes while a look is under way waits for the next.
        let (first, second) = tokio::join!(one(), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            one().await
        });
        assert_eq!((first, second), (Ok(3), Ok(4)));
    }
}
