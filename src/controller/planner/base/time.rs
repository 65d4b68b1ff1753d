//! Arithmetic with times that never fails: a result out of range becomes the nearest in range.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

/// The time between, never negative.
pub fn elapsed(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// That long after.
pub fn after(from: Timestamp, wait: Duration) -> Timestamp {
    let wait = SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX);
    from.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The wait after so many failures before this one: the first wait, doubled with each of them, up to the longest.
pub fn doubled(first: Duration, earlier: u32, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(earlier)).min(longest)
}

/// Rounded up to whole seconds, as Kubernetes keeps times, and cut to a century.
pub fn whole_seconds(wait: Duration) -> Duration {
    const CENTURY: u64 = 100 * 365 * 24 * 3600;
    let seconds = wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0));
    Duration::from_secs(seconds.min(CENTURY))
}
