//! Simulated time: that of the runtime of the process that is running, else of the moment at which the
//! last one stopped. Moments are milliseconds since a history began.

use std::{cell::Cell, time::Duration};

use jiff::Timestamp;
use tokio::time::Instant;

/// Milliseconds since the history began.
pub(crate) type Moment = i64;

/// Never.
pub(crate) const NEVER: Moment = Moment::MAX;
/// A second.
pub(crate) const SECOND: Moment = 1000;
/// A minute.
pub(crate) const MINUTE: Moment = 60 * SECOND;
/// An hour.
pub(crate) const HOUR: Moment = 60 * MINUTE;

/// When every history begins, in seconds of Unix time.
const BEGIN: i64 = 1_800_000_000;

#[derive(Clone, Copy)]
enum Source {
    Still(Moment),
    /// The clock of a runtime, which showed `base` at the moment `since`.
    Running {
        base: Instant,
        since: Moment,
    },
}

thread_local! {
    static SOURCE: Cell<Source> = const { Cell::new(Source::Still(0)) };
}

/// The clock of a runtime counts from now on.
pub(crate) fn run(base: Instant, since: Moment) {
    SOURCE.set(Source::Running { base, since });
}

/// No process runs, and it is that moment.
pub(crate) fn stand_still(at: Moment) {
    SOURCE.set(Source::Still(at));
}

/// The present moment.
pub(crate) fn now() -> Moment {
    match SOURCE.get() {
        Source::Still(at) => at,
        Source::Running { base, since } => {
            let passed = Instant::now().saturating_duration_since(base);
            since + Moment::try_from(passed.as_millis()).unwrap_or(0)
        }
    }
}

/// A moment as a time of day.
pub(crate) fn timestamp(at: Moment) -> Timestamp {
    Timestamp::from_millisecond(BEGIN * 1000 + at).unwrap_or(Timestamp::MAX)
}

/// The time of day, for `skyward_core::clock`.
pub(crate) fn time_of_day() -> Timestamp {
    timestamp(now())
}

/// That many milliseconds.
pub(crate) fn lasting(time: Moment) -> Duration {
    Duration::from_millis(u64::try_from(time).unwrap_or(0))
}
