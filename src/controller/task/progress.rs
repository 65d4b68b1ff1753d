//! How often it is written how far Tasks are, over all Pools: a program may say it as often as it likes, and each
//! write goes to every watcher of Tasks.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Writes in a second.
const EACH_SECOND: u32 = 5;

/// Counts the writes of the second that began last.
#[derive(Debug, Default)]
pub(crate) struct Pace(Mutex<Option<(Instant, u32)>>);

impl Pace {
    /// Whether there may be another write.
    pub(crate) fn take(&self, now: Instant) -> bool {
        let mut second = self.0.lock();
        let taken = match *second {
            Some((begun, taken)) if now.duration_since(begun) < Duration::from_secs(1) => (begun, taken),
            _ => (now, 0),
        };
        let may = taken.1 < EACH_SECOND;
        *second = Some((taken.0, taken.1 + u32::from(may)));
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_five_writes_in_a_second() {
        let (pace, now) = (Pace::default(), Instant::now());
        let at = |milliseconds| now + Duration::from_millis(milliseconds);
        let taken = |milliseconds| (0..100).filter(|_| pace.take(at(milliseconds))).count();
        assert_eq!((taken(0), taken(999), taken(1000), taken(1500)), (5, 0, 5, 0));
        assert_eq!(taken(60_000), 5);
    }
}
