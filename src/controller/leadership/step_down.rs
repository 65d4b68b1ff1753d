//! Settles doubts whether this process leads.
//!
//! An agent that refuses our epoch may obey a newer leader, or lie: a user with root on its
//! machine can make it answer anything. So its refusal is only a reason to look. The
//! Lease is read, once for all agents that refuse within some seconds: if it is ours, the
//! leader goes on, and that Machine alone is out of use; if not, `runtime.rs` ends the process.

use std::{fmt::Display, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::sleep};

/// Doubts that wait to be settled.
#[derive(Clone, Debug, Default)]
pub struct StepDown(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The last agent that refused our epoch, in words.
    by: Mutex<Option<String>>,
    doubted: Notify,
}

impl StepDown {
    /// Notes that an agent refuses our epoch; `by` names the agent, in words.
    pub fn doubt(&self, by: impl Into<String>) {
        *self.0.by.lock() = Some(by.into());
        self.0.doubted.notify_one();
    }

    /// Waits until an agent refuses our epoch and the Lease, read afterwards, is not ours; returns
    /// which agent that was. The Lease is read at most once in `pause`, however many agents refuse.
    pub async fn proved<F, E>(&self, pause: Duration, is_ours: impl Fn() -> F) -> String
    where
        F: Future<Output = Result<bool, E>>,
        E: Display,
    {
        loop {
            self.0.doubted.notified().await;
            // A later look settles doubts from here on.
            let Some(by) = self.0.by.lock().take() else {
                continue;
            };
            match is_ours().await {
                Ok(true) => tracing::debug!(by, "an agent refuses our epoch, and the Lease is ours"),
                Ok(false) => return by,
                Err(error) => {
                    // The Lease's own renewal ends the process if this goes on.
                    tracing::warn!(by, %error, "an agent refuses our epoch, and the Lease could not be read; it is read again");
                    self.0.by.lock().get_or_insert(by);
                    self.0.doubted.notify_one();
                }
            }
            sleep(pause).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use tokio::time::timeout;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn agents_that_lie_for_five_minutes_end_nothing_and_cost_a_read_in_five_seconds() {
        let step_down = StepDown::default();
        let reads = AtomicU32::new(0);
        let watching = step_down.proved(PAUSE, || async {
            reads.fetch_add(1, Ordering::Relaxed);
            Ok::<_, String>(true)
        });
        let lying = async {
            for second in 0..300 {
                for machine in 0..100 {
                    step_down.doubt(format!("machine {machine} in second {second}"));
                }
                sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            by = watching => panic!("{by} ended the leader"),
            () = lying => {}
        }
        let reads = reads.into_inner();
        assert!((1..=61).contains(&reads), "the Lease was read {reads} times");
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_ends_when_its_lease_is_another_s_and_not_before() {
        let step_down = StepDown::default();
        let ours = AtomicBool::new(true);
        let mut watching =
            Box::pin(step_down.proved(PAUSE, || async { Ok::<_, String>(ours.load(Ordering::Relaxed)) }));
        step_down.doubt("Machine \"a/b\"");
        assert!(timeout(PAUSE * 10, &mut watching).await.is_err());
        ours.store(false, Ordering::Relaxed);
        assert!(timeout(PAUSE * 10, &mut watching).await.is_err(), "nobody doubts");
        step_down.doubt("Machine \"a/c\"");
        assert_eq!(watching.await, "Machine \"a/c\"");
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_cannot_be_read_is_read_again() {
        let step_down = StepDown::default();
        let reads = AtomicU32::new(0);
        step_down.doubt("Machine \"a/b\"");
        let by = step_down
            .proved(PAUSE, || async {
                match reads.fetch_add(1, Ordering::Relaxed) {
                    0..3 => Err("no answer"),
                    _ => Ok(false),
                }
            })
            .await;
        assert_eq!(by, "Machine \"a/b\"");
    }
}
