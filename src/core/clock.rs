//! The time of day, as the controller reads it.
//!
//! Plans get the time as a parameter; what gathers and carries out asks [`now`]. A simulation sets the
//! clock of its thread, so that the real controller runs through days within a second.

use std::cell::Cell;

use jiff::Timestamp;

thread_local! {
    static NOW: Cell<fn() -> Timestamp> = const { Cell::new(Timestamp::now) };
}

/// The time: that of the system, unless this thread has another clock.
pub fn now() -> Timestamp {
    NOW.get()()
}

/// Gives this thread another clock until the guard goes.
#[must_use = "the clock is that of the system again when the guard goes"]
pub fn set(now: fn() -> Timestamp) -> OtherClock {
    OtherClock(NOW.replace(now))
}

/// Keeps the clock of a thread; going, it puts the former one back.
#[derive(Debug)]
pub struct OtherClock(fn() -> Timestamp);

impl Drop for OtherClock {
    fn drop(&mut self) {
        NOW.set(self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_another_clock_until_the_guard_goes() {
        let guard = set(|| Timestamp::UNIX_EPOCH);
        assert_eq!(now(), Timestamp::UNIX_EPOCH);
        let elsewhere = std::thread::spawn(now).join().unwrap();
        assert!(elsewhere > Timestamp::UNIX_EPOCH);
        drop(guard);
        assert!(now() >= elsewhere);
    }
}
