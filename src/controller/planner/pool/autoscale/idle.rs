//! When a Pool that has nothing to do sleeps, and when it wakes. Pure.
//!
//! A Pool is idle from its last work on, or from its first machine that took work where there was none; a Pool whose
//! machines fail before they take work is idle without such a machine. A third of the time before it sleeps it says so.
//! A Pool that is woken soon after it fell asleep waits twice as long before it sleeps again, up to eight times: work
//! that comes in a rhythm a little longer than `idleTimeout` would make it start its machines each time for nothing.

use std::time::Duration;

use jiff::Timestamp;

use crate::base::time::{after, elapsed};

/// The wait doubles at most so often.
const MOST_DOUBLINGS: u32 = 3;

/// What may be known of an idle Pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Idleness {
    /// How long it may be idle; `None` = for ever.
    pub timeout: Option<Duration>,
    /// How often in a row it was woken soon after it had fallen asleep.
    pub short_sleeps: u32,
    /// Since when it is idle; `None`: it is not, or nothing is known.
    pub since: Option<Timestamp>,
}

impl Idleness {
    /// When it has been idle for long enough.
    pub fn ends(&self) -> Option<Timestamp> {
        Some(after(self.since?, waits(self.timeout?, self.short_sleeps)))
    }
}

/// What becomes of a Pool that may sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// It stays awake; look again after that long.
    Awake(Option<Duration>),
    /// It sleeps at that time, unless work comes.
    Soon(Timestamp),
    /// It sleeps now.
    Now,
}

/// How long a Pool waits that was woken too soon so often.
pub fn waits(timeout: Duration, short_sleeps: u32) -> Duration {
    timeout.saturating_mul(1 << short_sleeps.min(MOST_DOUBLINGS))
}

/// Whether an idle Pool sleeps.
pub fn rest(idle: Idleness, now: Timestamp) -> Rest {
    let Some(timeout) = idle.timeout else {
        return Rest::Awake(None);
    };
    let wait = waits(timeout, idle.short_sleeps);
    let Some(since) = idle.since else {
        // Nothing tells a Pool that its last work ended: that is seen in time by a look now and then.
        return Rest::Awake(Some(before_it_tells(wait)));
    };
    let passed = elapsed(since, now);
    if passed >= wait {
        Rest::Now
    } else if passed >= before_it_tells(wait) {
        Rest::Soon(after(since, wait))
    } else {
        Rest::Awake(Some(before_it_tells(wait).saturating_sub(passed)))
    }
}

/// A third of the time before it sleeps a Pool says so.
fn before_it_tells(wait: Duration) -> Duration {
    wait.saturating_sub(wait / 3)
}

/// How often in a row a Pool was woken too soon, when it is woken after so long a sleep.
pub fn woken(timeout: Duration, short_sleeps: u32, slept: Duration) -> u32 {
    if slept < timeout {
        short_sleeps.saturating_add(1).min(MOST_DOUBLINGS)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn resting(since: Option<i64>, short_sleeps: u32, now: i64) -> Rest {
        let idle = Idleness {
            timeout: Some(Duration::from_secs(600)),
            short_sleeps,
            since: since.map(at),
        };
        rest(idle, at(now))
    }

    #[test]
    fn a_pool_says_a_third_of_the_time_before_that_it_sleeps_and_then_does() {
        let awake = |seconds| Rest::Awake(Some(Duration::from_secs(seconds)));
        assert_eq!(resting(None, 0, 5000), awake(400));
        assert_eq!(resting(Some(0), 0, 399), awake(1));
        assert_eq!(resting(Some(0), 0, 400), Rest::Soon(at(600)));
        assert_eq!(resting(Some(0), 0, 599), Rest::Soon(at(600)));
        assert_eq!(resting(Some(0), 0, 600), Rest::Now);
        assert_eq!(resting(Some(0), 1, 600), awake(200));
        assert_eq!(resting(Some(0), 9, 4800), Rest::Now);
    }

    #[test]
    fn a_pool_that_never_sleeps_is_not_looked_at_for_that() {
        let never = Idleness {
            timeout: None,
            short_sleeps: 0,
            since: Some(at(0)),
        };
        assert_eq!(rest(never, at(i64::from(u32::MAX))), Rest::Awake(None));
    }

    #[test]
    fn a_rhythm_a_little_longer_than_the_timeout_stops_waking_the_pool() {
        let timeout = Duration::from_secs(600);
        for gap in [601, 700, 1199] {
            let (mut short_sleeps, mut sleeps) = (0, 0);
            for _ in 0..100 {
                let waits = waits(timeout, short_sleeps).as_secs();
                if gap > waits {
                    sleeps += 1;
                    short_sleeps = woken(timeout, short_sleeps, Duration::from_secs(gap - waits));
                }
            }
            assert_eq!(sleeps, 1, "a gap of {gap} s");
        }
        assert_eq!(woken(timeout, 3, timeout), 0, "a long sleep ends the row");
    }
}
