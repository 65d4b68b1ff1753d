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
