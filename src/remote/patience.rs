//! How long a session waits: for failures that may pass, before its next attempt, and for an agent
//! that refuses our epoch.

use std::time::Duration;

use tokio::time::Instant;

/// How long failures that may pass are waited for. Shorter in tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// First pause between attempts; they double up to the spec's `retry_interval`.
    pub(crate) first_pause: Duration,
    /// For a login: a booting machine answers SSH before its keys are in place.
    pub(crate) login: Duration,
    /// For SSH's greeting on an open port.
    pub(crate) greeting: Duration,
    /// To read the proof of a host key.
    pub(crate) proof: Duration,
    /// From the agent's start to its first answer.
    pub(crate) agent: Duration,
    /// Between two looks whether an agent of another version has become idle.
    pub(crate) outdated: Duration,
    /// Longest pause after a failure on a machine that was Ready once: a step that fails is
    /// more work for it than a dial.
    pub(crate) mending: Duration,
    /// First and longest pause after an agent refused our epoch.
    pub(crate) epoch_ahead: (Duration, Duration),
    /// How long an agent must stay for its connection to count as stable: one that greets us and
    /// closes is asked less and less often.
    pub(crate) stays: Duration,
    /// First and longest pause after a panic.
    pub(crate) panicked: (Duration, Duration),
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            first_pause: Duration::from_millis(50),
            login: Duration::from_secs(30),
            greeting: Duration::from_secs(10),
            proof: Duration::from_secs(10),
            agent: Duration::from_secs(10),
            outdated: Duration::from_secs(5),
            mending: Duration::from_secs(30),
            epoch_ahead: (Duration::from_secs(2), Duration::from_mins(5)),
            stays: Duration::from_secs(30),
            panicked: (Duration::from_secs(5), Duration::from_mins(10)),
        }
    }
}

/// The pause before the next attempt: doubling from the first one up to the interval,
/// spread by up to a fifth so that many machines do not come at once. `chance` is in 0..1.
pub(crate) fn pause(attempt: u32, first: Duration, interval: Duration, chance: f64) -> Duration {
    let doubled = first.saturating_mul(1u32.checked_shl(attempt.min(20)).unwrap_or(u32::MAX));
    doubled.min(interval).mul_f64(0.8 + 0.4 * chance.clamp(0.0, 1.0))
}

/// Refusals of our epoch in a row. A late one begins the row anew; a Hello in between does not, so
/// an agent gains nothing by greeting.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Refusals {
    pub(crate) count: u32,
    /// Nothing is asked before.
    until: Option<Instant>,
}

impl Refusals {
    pub(crate) fn note(&mut self, (first, longest): (Duration, Duration), now: Instant, chance: f64) {
        if self.until.is_none_or(|until| now >= until + longest) {
            self.count = 0;
        }
        self.until = Some(now + pause(self.count, first, longest, chance));
        self.count = self.count.saturating_add(1);
    }

    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.until
            .map_or(Duration::ZERO, |until| until.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_refuses_our_epoch_is_asked_later_each_time_whatever_it_says_in_between() {
        let patience = (Duration::from_secs(2), Duration::from_mins(5));
        let start = Instant::now();
        let (mut refusals, mut now, mut asked) = (Refusals::default(), start, 0);
        while now < start + Duration::from_hours(1) {
            // The agent says Hello at once, and refuses the first command after a while.
            now += Duration::from_secs(1);
            refusals.note(patience, now, 0.5);
            now += refusals.left(now);
            asked += 1;
        }
        assert!(asked < 25, "asked {asked} times within an hour");
        now += Duration::from_mins(6);
        refusals.note(patience, now, 0.5);
        assert_eq!(refusals.left(now), Duration::from_secs(2), "that was long ago");
    }

    #[test]
    fn the_first_attempts_come_fast_and_never_slower_than_the_interval() {
        let at = |attempt, chance| pause(attempt, Duration::from_millis(50), Duration::from_secs(2), chance);
        assert_eq!(at(0, 0.5), Duration::from_millis(50));
        assert_eq!(at(1, 0.5), Duration::from_millis(100));
        assert_eq!(at(3, 0.5), Duration::from_millis(400));
        assert_eq!(at(10, 0.5), Duration::from_secs(2));
        assert_eq!(at(u32::MAX, 0.5), Duration::from_secs(2));
        assert_eq!(
            (at(0, 0.0), at(0, 1.0)),
            (Duration::from_millis(40), Duration::from_millis(60))
        );
    }
}
