//! The fence: a process changes nothing once its leadership may be over.
//!
//! A process that was paused (a stopped container, a machine without processor time) goes on
//! where it stopped, perhaps between the look at a cloud and the order that followed from it,
//! while another process leads. The fence is open only while the Lease, as last renewed, has
//! not run out by our own clock. Every sender of a request that may change something asks the fence
//! right before the request goes, after every wait: only a request that is already on its way can
//! still arrive late.

use std::{sync::Arc, time::Instant};

use parking_lot::Mutex;

use crate::error::{ErrorKind, ProviderError};

/// Open while the Lease is ours for certain. Closed at first.
#[derive(Clone, Debug)]
pub struct Fence {
    state: Arc<Mutex<State>>,
    now: fn() -> Instant,
}

#[derive(Clone, Copy, Debug, Default)]
enum State {
    #[default]
    Closed,
    Until(Instant),
    Always,
}

impl Default for Fence {
    fn default() -> Self {
        Self::with_clock(Instant::now)
    }
}

impl Fence {
    /// A closed fence that reads the time from this clock: tests advance a clock of their own.
    pub fn with_clock(now: fn() -> Instant) -> Self {
        Self {
            state: Arc::default(),
            now,
        }
    }

    /// A fence that is open for ever: for a client outside of a controller, such as a test's.
    pub fn always_open() -> Self {
        let fence = Self::default();
        fence.set(State::Always);
        fence
    }

    /// Opens the fence until the Lease runs out, unless it is renewed again.
    pub fn open_until(&self, end: impl Into<Instant>) {
        self.set(State::Until(end.into()));
    }

    /// Closes the fence: the Lease is released or lost.
    pub fn close(&self) {
        self.set(State::Closed);
    }

    /// Whether something may be changed now.
    pub fn is_open(&self) -> bool {
        match *self.state.lock() {
            State::Closed => false,
            State::Until(end) => (self.now)() < end,
            State::Always => true,
        }
    }

    /// The same, for a call to a cloud that is about to be sent.
    pub fn admit(&self) -> Result<(), NotLeading> {
        if self.is_open() { Ok(()) } else { Err(NotLeading) }
    }

    fn set(&self, state: State) {
        *self.state.lock() = state;
    }
}

/// Why a request was not even sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this process does not hold the Lease any more, so it changes nothing")]
pub struct NotLeading;

impl NotLeading {
    /// What a provider answers then: a failure of which the cloud knows nothing.
    pub fn of(self, operation: &'static str) -> ProviderError {
        ProviderError::new(ErrorKind::NotLeading, operation, self.to_string())
    }

    /// Whether a closed fence is the cause of an error, however deep.
    pub fn caused(error: &(dyn std::error::Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(inner) = cause {
            if inner.is::<Self>() {
                return Some(Self);
            }
            cause = inner.source();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, sync::LazyLock, time::Duration};

    use super::*;

    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    thread_local!(static PASSED: Cell<Duration> = const { Cell::new(Duration::ZERO) });

    fn now() -> Instant {
        *BEGAN + PASSED.get()
    }

    fn advance(time: Duration) {
        PASSED.set(PASSED.get() + time);
    }

    #[test]
    fn it_is_closed_at_first_and_when_the_lease_ran_out_and_when_it_is_given_back() {
        let fence = Fence::with_clock(now);
        assert!(!fence.is_open(), "nobody leads yet");
        fence.open_until(now() + Duration::from_secs(15));
        advance(Duration::from_millis(14_999));
        assert!(fence.is_open());
        advance(Duration::from_millis(1));
        assert!(!fence.is_open());
        fence.open_until(now() + Duration::from_secs(15));
        fence.clone().close();
        assert_eq!(fence.admit(), Err(NotLeading), "a clone is the same fence");
        assert!(Fence::always_open().is_open());
    }

    #[test]
    fn its_refusal_is_found_below_other_errors() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] NotLeading);
        assert_eq!(NotLeading::caused(&Outer(NotLeading)), Some(NotLeading));
        assert_eq!(NotLeading::caused(&std::fmt::Error), None);
    }
}
