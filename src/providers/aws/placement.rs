//! Machines that must reach each other stand in one availability zone: traffic between
//! zones is slow and billed. The zone is not stored. It is that of the Pool's machines, which their
//! tags name; without machines the first order lets EC2 Fleet choose, and other orders of the Pool
//! wait for its answer and follow.
//!
//! Kept in this process only: two leaders at once could choose two zones, between which machines
//! still reach each other (one VPC, one security group).

use std::{collections::BTreeMap, future::Future, time::Duration};

use parking_lot::Mutex;
use skyward_core::{ErrorKind, ProviderError, error::ErrorClass};
use tokio::{sync::watch, time::Instant};

/// How long the zone of a Pool is believed without a look at its machines.
const BELIEVED: Duration = Duration::from_secs(60);
/// Pools that are remembered at once.
const MOST: usize = 4096;

/// The answer to the first order of a Pool, which the others wait for.
type Answer = Option<Result<Option<String>, ProviderError>>;

/// Zones of Pools.
#[derive(Default)]
pub struct Placement {
    pools: Mutex<BTreeMap<Key, Place>>,
}

/// A Pool in a region.
pub type Key = (String, String);

enum Place {
    /// An order is on its way.
    Choosing(watch::Receiver<Answer>),
    /// Its machines stand here.
    Chosen(String, Instant),
}

enum Turn {
    First(watch::Sender<Answer>),
    Follow(watch::Receiver<Answer>),
    In(String),
}

impl Placement {
    /// Starts a machine where the Pool's others are. `existing` looks for their zone, and
    /// `start` starts the machine in a zone, or in any, and tells in which.
    pub async fn place<T, L, S>(
        &self,
        key: Key,
        existing: impl Fn() -> L + Send + Sync,
        start: impl Fn(Option<String>) -> S + Send + Sync,
    ) -> Result<T, ProviderError>
    where
        T: Send + Sync,
        L: Future<Output = Result<Option<String>, ProviderError>> + Send,
        S: Future<Output = Result<(T, Option<String>), ProviderError>> + Send,
    {
        loop {
            match self.turn(&key, Instant::now()) {
                Turn::In(zone) => {
                    let started = start(Some(zone)).await;
                    if started.is_err() {
                        // The next order looks again where the machines are, if any are left.
                        self.forget(&key);
                    }
                    return started.map(|(value, _)| value);
                }
                Turn::First(answer_tx) => {
                    let started = async {
                        let zone = existing().await?;
                        start(zone).await
                    }
                    .await;
                    let told = started
                        .as_ref()
                        .map(|(_, zone)| zone.clone())
                        .map_err(Clone::clone);
                    self.settle(key, told.as_ref().ok().cloned().flatten());
                    answer_tx.send_replace(Some(told));
                    return started.map(|(value, _)| value);
                }
                Turn::Follow(mut answer_rx) => {
                    // A first order that was dropped gives no answer: then there is a new first.
                    let answer = match answer_rx.wait_for(Option::is_some).await {
                        Ok(answer) => answer.clone().unwrap_or(Ok(None)),
                        Err(_) => Ok(None),
                    };
                    match answer {
                        // The refusal of the first order counts for all that waited for it.
                        Err(error) if shared(&error) => return Err(error),
                        Ok(Some(zone)) => return start(Some(zone)).await.map(|(value, _)| value),
                        Err(_) | Ok(None) => {}
                    }
                }
            }
        }
    }

    fn turn(&self, key: &Key, now: Instant) -> Turn {
        let mut pools = self.pools.lock();
        match pools.get(key) {
            Some(Place::Chosen(zone, since)) if now.saturating_duration_since(*since) < BELIEVED => {
                return Turn::In(zone.clone());
            }
            // Without a sender the first order is no more.
            Some(Place::Choosing(answer)) if answer.has_changed().is_ok() => {
                return Turn::Follow(answer.clone());
            }
            _ => {}
        }
        if pools.len() >= MOST {
            pools.retain(|_, place| match place {
                Place::Choosing(answer) => answer.has_changed().is_ok(),
                Place::Chosen(_, since) => now.saturating_duration_since(*since) < BELIEVED,
            });
        }
        let (answer_tx, answer_rx) = watch::channel(None);
        pools.insert(key.clone(), Place::Choosing(answer_rx));
        Turn::First(answer_tx)
    }

    fn settle(&self, key: Key, zone: Option<String>) {
        let mut pools = self.pools.lock();
        match zone {
            Some(zone) => pools.insert(key, Place::Chosen(zone, Instant::now())),
            None => pools.remove(&key),
        };
    }

    /// Forgets where a Pool is.
    pub fn forget(&self, key: &Key) {
        let mut pools = self.pools.lock();
        if matches!(pools.get(key), Some(Place::Chosen(..))) {
            pools.remove(key);
        }
    }
}

/// Refusals that meet all orders of a Pool alike.
fn shared(error: &ProviderError) -> bool {
    match error.kind.class() {
        ErrorClass::Capacity | ErrorClass::Config => true,
        ErrorClass::Retryable => matches!(error.kind, ErrorKind::RateLimited(_)),
        ErrorClass::Terminal | ErrorClass::Signal => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use futures::future::join_all;

    use super::*;

    fn key() -> Key {
        ("pool".to_owned(), "us-east-1".to_owned())
    }

    /// Lets all other tasks run as far as they can.
    async fn everybody_else() {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }

    /// Starts machines: the zone of each call, `b` where any would do.
    async fn start(
        asked: &Mutex<Vec<Option<String>>>,
        zone: Option<String>,
    ) -> Result<((), Option<String>), ProviderError> {
        asked.lock().push(zone.clone());
        everybody_else().await;
        Ok(((), zone.or(Some("b".to_owned()))))
    }

    #[tokio::test]
    async fn orders_at_once_end_in_one_zone() {
        let placement = Placement::default();
        let asked = Mutex::default();
        let looked = AtomicU32::new(0);
        let existing = || async {
            looked.fetch_add(1, Ordering::SeqCst);
            Ok(None)
        };
        let orders = (0..5).map(|_| placement.place(key(), existing, |zone| start(&asked, zone)));
        assert!(join_all(orders).await.iter().all(Result::is_ok));
        let asked = asked.into_inner();
        assert_eq!(asked.iter().filter(|zone| zone.is_none()).count(), 1);
        assert_eq!(
            asked.iter().filter(|zone| zone.as_deref() == Some("b")).count(),
            4
        );
        assert_eq!(looked.into_inner(), 1);
    }

    #[tokio::test]
    async fn an_order_follows_the_machines_that_exist() {
        let placement = Placement::default();
        let asked = Mutex::default();
        let existing = || async { Ok(Some("c".to_owned())) };
        placement
            .place(key(), existing, |zone| start(&asked, zone))
            .await
            .unwrap();
        assert_eq!(asked.into_inner(), [Some("c".to_owned())]);
    }

    #[test]
    fn a_zone_is_not_believed_for_ever() {
        let placement = Placement::default();
        placement.settle(key(), Some("a".to_owned()));
        let now = Instant::now();
        assert!(matches!(placement.turn(&key(), now), Turn::In(_)));
        assert!(matches!(placement.turn(&key(), now + BELIEVED), Turn::First(_)));
    }

    #[tokio::test]
    async fn what_is_refused_to_the_first_is_refused_to_all_at_once() {
        let placement = Placement::default();
        let tried = AtomicU32::new(0);
        let refuse = |_| async {
            tried.fetch_add(1, Ordering::SeqCst);
            everybody_else().await;
            Err::<((), Option<String>), _>(ProviderError::new(ErrorKind::NoCapacity, "create", "none left"))
        };
        let orders = (0..50).map(|_| placement.place(key(), || async { Ok(None) }, refuse));
        let answers = join_all(orders).await;
        assert!(
            answers
                .iter()
                .all(|answer| answer.as_ref().unwrap_err().kind == ErrorKind::NoCapacity)
        );
        assert_eq!(tried.into_inner(), 1);
    }

    #[tokio::test]
    async fn a_first_order_that_is_dropped_leaves_the_others_a_new_first() {
        let placement = Placement::default();
        let asked = Mutex::default();
        let mut first = Box::pin(placement.place(key(), || async { Ok(None) }, |zone| start(&asked, zone)));
        assert!(futures::poll!(&mut first).is_pending());
        let mut second = Box::pin(placement.place(key(), || async { Ok(None) }, |zone| start(&asked, zone)));
        assert!(futures::poll!(&mut second).is_pending());
        drop(first);
        second.await.unwrap();
        assert_eq!(asked.into_inner(), [None, None]);
    }

    #[tokio::test]
    async fn a_zone_that_refuses_is_looked_at_again() {
        let placement = Placement::default();
        let looked = AtomicU32::new(0);
        let existing = || async {
            looked.fetch_add(1, Ordering::SeqCst);
            Ok(Some("a".to_owned()))
        };
        let refuse = |_| async {
            Err::<((), Option<String>), _>(ProviderError::new(ErrorKind::NoCapacity, "create", "none left"))
        };
        let asked = Mutex::default();
        placement
            .place(key(), existing, |zone| start(&asked, zone))
            .await
            .unwrap();
        placement.place(key(), existing, refuse).await.unwrap_err();
        placement
            .place(key(), existing, |zone| start(&asked, zone))
            .await
            .unwrap();
        assert_eq!(looked.into_inner(), 2);
    }
}
