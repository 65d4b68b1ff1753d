//! When an object is looked at again, if nothing changes before.

use std::time::Duration;

/// When to look again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// When something changes.
    #[default]
    Wait,
    /// When something changes, or after this long.
    After(Duration),
    /// At once: the plan's own effects change what it sees.
    Again,
}

impl Next {
    /// Looks again after that long at the latest.
    pub fn requeue_after(&mut self, after: Duration) {
        *self = match *self {
            Self::Again => Self::Again,
            Self::Wait => Self::After(after),
            Self::After(sooner) => Self::After(sooner.min(after)),
        };
    }
}
