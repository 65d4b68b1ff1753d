//! The time of the simulated clouds: the machine's own, or one that tests move.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

/// The time that all clouds of one simulator share.
#[derive(Clone, Debug)]
pub struct Clock(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Real,
    Manual(watch::Sender<Timestamp>),
}

impl Clock {
    /// The machine's own time.
    pub fn real() -> Self {
        Self(Kind::Real)
    }

    /// A time that stands still until [`Clock::advance`].
    pub fn manual(start: Timestamp) -> Self {
        Self(Kind::Manual(watch::Sender::new(start)))
    }

    /// Now.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Kind::Real => Timestamp::now(),
            Kind::Manual(time) => *time.borrow(),
        }
    }

    /// Whether time passes by itself.
    pub fn is_real(&self) -> bool {
        matches!(self.0, Kind::Real)
    }

    /// Moves a manual time forward and returns the new time; a real one stays as it is.
    pub fn advance(&self, by: SignedDuration) -> Timestamp {
        if let Kind::Manual(time) = &self.0 {
            time.send_modify(|now| *now = now.saturating_add(by.max(SignedDuration::ZERO)).unwrap_or(*now));
        }
        self.now()
    }

    /// Returns when the given time has passed on this clock.
    pub async fn sleep(&self, time: Duration) {
        match &self.0 {
            Kind::Real => tokio::time::sleep(time).await,
            Kind::Manual(sender) => {
                let mut changes = sender.subscribe();
                let until = SignedDuration::try_from(time)
                    .ok()
                    .and_then(|time| self.now().checked_add(time).ok())
                    .unwrap_or(Timestamp::MAX);
                // The sender lives as long as self: there can be no error.
                let _ = changes.wait_for(|now| *now >= until).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sleeper_on_a_manual_clock_wakes_when_a_test_moves_it_there() {
        let clock = Clock::manual(Timestamp::UNIX_EPOCH);
        let sleeper = clock.clone();
        let task = tokio::spawn(async move { sleeper.sleep(Duration::from_secs(60)).await });
        // It has to be asleep before time passes.
        tokio::task::yield_now().await;
        clock.advance(SignedDuration::from_secs(59));
        tokio::task::yield_now().await;
        assert!(!task.is_finished());
        clock.advance(SignedDuration::from_secs(1));
        task.await.unwrap();
        assert_eq!(clock.now(), Timestamp::from_second(60).unwrap());
    }
}
