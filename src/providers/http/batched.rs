//! One look for many who want to look: two hundred orders at once need not list an
//! account two hundred times.
//!
//! A caller gets an answer that was asked for *after* it came, never an older one: what
//! it did before it came is in there, as far as the cloud's list is up to date.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
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
    latest: Mutex<Option<(Instant, Shared<T>)>>,
    turn: Semaphore,
}

impl<T> Default for Batched<T> {
    fn default() -> Self {
        Self {
            latest: Mutex::new(None),
            turn: Semaphore::new(1),
        }
    }
}

impl<T> Batched<T> {
    /// What one look began at or after `since` found; `look` begins one if there is none.
    /// Only whoever has the turn looks, the others wait for it. Failures are shared too:
    /// those who wait would meet the same one.
    pub async fn since<F>(&self, since: Instant, longest: Duration, look: impl FnOnce() -> F) -> Shared<T>
    where
        F: Future<Output = Result<T, ProviderError>>,
    {
        let turn = timeout(longest, self.turn.acquire()).await;
        if let Some(found) = self.latest(since) {
            return found;
        }
        let Ok(_turn) = turn else {
            return Err(ProviderError::new(
                ErrorKind::Transient,
                "look at the account",
                "others look at it and do not come to an end",
            ));
        };
        let began = Instant::now();
        let found = look().await.map(Arc::new);
        *self.latest.lock().unwrap_or_else(PoisonError::into_inner) = Some((began, found.clone()));
        found
    }

    fn latest(&self, since: Instant) -> Option<Shared<T>> {
        let latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        latest
            .as_ref()
            .filter(|(began, _)| *began >= since)
            .map(|(_, found)| found.clone())
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
                .since(Instant::now(), Duration::from_secs(30), look)
                .await
                .map(|found| *found)
        };
        let found = futures::future::join_all((0..100).map(|_| one())).await;
        assert!(found.iter().all(|n| *n == Ok(1)), "{found:?}");
        // Who comes while a look is under way waits for the next.
        let (first, second) = tokio::join!(one(), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            one().await
        });
        assert_eq!((first, second), (Ok(2), Ok(3)));
    }
}
