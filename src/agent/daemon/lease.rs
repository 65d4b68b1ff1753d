//! The dead man's switch: a machine without a controller stops itself. The decision
//! is a pure function of times and counts.

use std::{path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};

use super::ledger::Counts;

/// How long the machine lives without a renewed lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// While it has no runs.
    pub(crate) instance_timeout_ms: u64,
    /// While a run goes on or was not collected.
    pub(crate) orphan_timeout_ms: u64,
}

impl Default for Limits {
    /// The limits until a controller sets them.
    fn default() -> Self {
        Self {
            instance_timeout_ms: 300_000,
            orphan_timeout_ms: 24 * 3_600_000,
        }
    }
}

/// The lease as the agent holds it. Times are read from any clock that never goes back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    limits: Limits,
    renewed: Duration,
}

impl Lease {
    /// At the start of the daemon: the limits of the last lease count again from now on.
    pub(crate) const fn begin(limits: Limits, now: Duration) -> Self {
        Self { limits, renewed: now }
    }

    /// Renews the lease. Limits of zero leave the present ones in force.
    pub(crate) fn renew(&mut self, limits: Limits, now: Duration) {
        let choose = |new: u64, old: u64| if new == 0 { old } else { new };
        self.limits = Limits {
            instance_timeout_ms: choose(limits.instance_timeout_ms, self.limits.instance_timeout_ms),
            orphan_timeout_ms: choose(limits.orphan_timeout_ms, self.limits.orphan_timeout_ms),
        };
        self.renewed = now;
    }

    pub(crate) const fn limits(&self) -> Limits {
        self.limits
    }

    /// Why the machine must stop itself now, if it must.
    pub(crate) fn expired(&self, counts: Counts, now: Duration) -> Option<String> {
        let Counts { running, uncollected } = counts;
        let limit = if running + uncollected == 0 {
            self.limits.instance_timeout_ms
        } else {
            self.limits.orphan_timeout_ms
        };
        let silence = now.saturating_sub(self.renewed);
        (silence >= Duration::from_millis(limit)).then(|| {
            let seconds = silence.as_secs();
            format!(
                "no controller renewed the lease for {seconds}s ({running} runs, {uncollected} uncollected)"
            )
        })
    }

    /// When to look again: late by a tenth at most.
    pub(crate) fn pause(&self) -> Duration {
        let shorter = self.limits.instance_timeout_ms.min(self.limits.orphan_timeout_ms);
        Duration::from_millis((shorter / 10).clamp(20, 5000))
    }
}

/// The limits of the last lease; they hold also for a daemon that starts again.
pub(crate) fn load(path: &PathBuf) -> Limits {
    std::fs::read(path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default()
}

/// Keeps the limits for the next daemon. Boot data's countdown, where there is one, looks for
/// this file: it exists from the first lease on.
pub(crate) fn save(path: &PathBuf, limits: Limits) {
    let saved = serde_json::to_vec(&limits)
        .map_err(std::io::Error::other)
        .and_then(|bytes| {
            let next = path.with_extension("next");
            std::fs::write(&next, bytes)?;
            std::fs::rename(next, path)
        });
    if let Err(error) = saved {
        tracing::warn!(%error, "the limits of the lease could not be saved");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Counts = Counts {
        running: 0,
        uncollected: 0,
    };

    fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    #[test]
    fn an_idle_machine_stops_after_the_instance_timeout() {
        let lease = Lease::begin(Limits::default(), second(100));
        assert_eq!(lease.expired(IDLE, second(399)), None);
        assert!(lease.expired(IDLE, second(400)).is_some());
    }

    #[test]
    fn a_machine_with_a_run_or_an_uncollected_one_waits_for_the_orphan_timeout() {
        let lease = Lease::begin(Limits::default(), second(0));
        for counts in [
            Counts {
                running: 1,
                uncollected: 0,
            },
            Counts {
                running: 0,
                uncollected: 1,
            },
        ] {
            assert_eq!(lease.expired(counts, second(86_399)), None);
            assert!(lease.expired(counts, second(86_400)).is_some());
        }
    }

    #[test]
    fn a_renewed_lease_counts_from_its_renewal_with_its_own_limits() {
        let mut lease = Lease::begin(Limits::default(), second(0));
        lease.renew(
            Limits {
                instance_timeout_ms: 10_000,
                orphan_timeout_ms: 0,
            },
            second(1000),
        );
        assert_eq!(
            lease.limits().orphan_timeout_ms,
            Limits::default().orphan_timeout_ms
        );
        assert_eq!(lease.expired(IDLE, second(1009)), None);
        assert!(lease.expired(IDLE, second(1010)).is_some());
    }

    #[test]
    fn the_limits_outlive_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lease.json");
        assert_eq!(load(&path), Limits::default());
        let limits = Limits {
            instance_timeout_ms: 1,
            orphan_timeout_ms: 2,
        };
        save(&path, limits);
        assert_eq!(load(&path), limits);
    }
}
