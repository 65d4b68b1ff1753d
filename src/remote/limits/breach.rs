//! What becomes of a limit that was broken: the connection ends, and the first breach is told.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::CancellationToken;

/// A limit that was broken, in words for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broken(String);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Broken {
    /// A breach; the words must not repeat the machine's.
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self(words.into())
    }
}

/// Whether the machine at the other end of a connection broke a limit. Shared by all readers of
/// the connection; the first breach counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Breach {
    first: Arc<OnceLock<String>>,
    found: CancellationToken,
}

impl Breach {
    /// A limit was broken.
    pub(crate) fn report(&self, broken: &Broken) {
        let _ = self.first.set(broken.0.clone());
        self.found.cancel();
    }

    /// The first breach, if there was any.
    pub(crate) fn first(&self) -> Option<&str> {
        self.first.get().map(String::as_str)
    }

    /// Waits until a limit is broken; returns which.
    pub(crate) async fn wait(&self) -> String {
        self.found.cancelled().await;
        self.first().unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_breaches_the_first_is_told() {
        let breach = Breach::default();
        assert_eq!(breach.first(), None);
        breach.report(&Broken::new("one"));
        breach.clone().report(&Broken::new("two"));
        assert_eq!(breach.first(), Some("one"));
    }
}
