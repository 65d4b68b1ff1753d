//! One look for many callers: two hundred orders at once need not list an account two hundred
//! times.
//!
//! A caller gets the answer to a look that began *after* the call, never an older one: the answer
//! shows the caller's earlier effects, as far as the cloud's list is up to date.
//!
//! A look may take less time than a caller needs until its next one. Then two hundred machines on
//! their way would look almost without a pause, and the cloud would refuse important calls as well.
//! So there is a budget: some looks at once, and then one each [`PACE`].

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use skyward_core::{ErrorKind, ProviderError};
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep_until, timeout},
};

/// Between two looks, once the budget is spent.
const PACE: Duration = Duration::from_millis(200);
/// Looks at once that the budget allows after a rest.
const AT_ONCE: u32 = 20;

type Shared<T> = Result<Arc<T>, ProviderError>;

/// A look that is shared.
pub struct Batched<T> {
    latest: Mutex<Option<Look<T>>>,
    /// Numbers callers and looks in the order in which they come: a clock may say the same
    /// for both.
    next: AtomicU64,
    turn: Semaphore,
    /// When all looks so far will be paid for: each costs one [`PACE`].
    paid_at: Mutex<Option<Instant>>,
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
            paid_at: Mutex::new(None),
        }
    }
}

impl<T> Batched<T> {
    /// The answer of a look that began after this call.
    pub async fn fresh<F>(&self, longest: Duration, look: impl FnOnce() -> F) -> Shared<T>
    where
        F: Future<Output = Result<T, ProviderError>>,
    {
        let number = self.number();
        self.shared(longest, |latest| latest.number > number, look).await
    }

    /// The answer of a look of at most this age; failures are not kept.
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

    /// Only the caller that has the turn looks, the others wait for it. Failures are shared too:
    /// the callers that wait would meet the same one.
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
        if let Some(at) = self.not_before(Instant::now()) {
            // Callers that come meanwhile share this look.
            sleep_until(at).await;
        }
        let (number, began) = (self.number(), Instant::now());
        let found = look().await.map(Arc::new);
        *self.latest.lock() = Some(Look {
            number,
            began,
            found: found.clone(),
        });
        found
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// Takes one look from the budget: until when it has to wait, if it does.
    fn not_before(&self, now: Instant) -> Option<Instant> {
        let mut paid_at = self.paid_at.lock();
        let paid = paid_at.map_or(now, |at| at.max(now)) + PACE;
        *paid_at = Some(paid);
        let ahead = paid.duration_since(now).checked_sub(PACE * AT_ONCE)?;
        (!ahead.is_zero()).then(|| now + ahead)
    }

    fn latest(&self, will_do: impl Fn(&Look<T>) -> bool) -> Option<Shared<T>> {
        let latest = self.latest.lock();
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
        // A caller that comes while a look is under way waits for the next.
        let (first, second) = tokio::join!(one(), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            one().await
        });
        assert_eq!((first, second), (Ok(3), Ok(4)));
    }

    /// How many looks it takes when so many callers look so often, and a look takes no time.
    async fn looks(callers: usize, times: usize) -> usize {
        let batched: Batched<()> = Batched::default();
        let looks = AtomicU32::new(0);
        let one = |number: usize| {
            let (batched, looks) = (&batched, &looks);
            async move {
                for _ in 0..times {
                    let look = || async {
                        looks.fetch_add(1, Ordering::SeqCst);
                        Ok(())
                    };
                    batched.fresh(Duration::from_secs(30), look).await.unwrap();
                    // The caller's work with the answer.
                    tokio::time::sleep(Duration::from_millis(5 + number as u64 % 11)).await;
                }
            }
        };
        futures::future::join_all((0..callers).map(one)).await;
        looks.into_inner() as usize
    }

    #[tokio::test(start_paused = true)]
    async fn a_crowd_that_looks_again_and_again_keeps_to_its_budget_and_does_not_wait_long() {
        let began = Instant::now();
        let looks = looks(200, 50).await;
        let took = began.elapsed();
        let most = u128::from(AT_ONCE) + took.as_millis() / PACE.as_millis() + 1;
        assert!(looks as u128 <= most, "{looks} looks in {took:?}");
        assert!(took <= PACE * 52, "each looked 50 times: {took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_looks_wait_for_nothing() {
        let began = Instant::now();
        assert_eq!(looks(1, AT_ONCE as usize).await, AT_ONCE as usize);
        assert!(began.elapsed() < PACE * 2, "{:?}", began.elapsed());
    }
}
