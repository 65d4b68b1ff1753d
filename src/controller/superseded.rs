//! Noticed from the other side: an agent takes orders from a newer leader, so this process
//! does not lead any more, whatever it believes of its Lease.
//!
//! Whoever notices tells it here, and `runtime.rs` ends the process: its dispatchers would
//! do nothing more, and its successor, or its own next start, does.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// Told once; the first who notices is named.
#[derive(Clone, Debug, Default)]
pub struct Superseded(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by: OnceLock<String>,
    noticed: CancellationToken,
}

impl Superseded {
    /// Somebody noticed; who, in words.
    pub fn notice(&self, by: impl Into<String>) {
        // The first one counts; later ones say the same.
        let _ = self.0.by.set(by.into());
        self.0.noticed.cancel();
    }

    /// Waits until somebody noticed; who it was.
    pub async fn noticed(&self) -> String {
        self.0.noticed.cancelled().await;
        self.0.by.get().cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_who_notices_is_named() {
        let superseded = Superseded::default();
        let waits = superseded.clone();
        let waiting = tokio::spawn(async move { waits.noticed().await });
        superseded.notice("Pool \"a/b\"");
        superseded.notice("Machine \"a/c\"");
        assert_eq!(waiting.await.unwrap(), "Pool \"a/b\"");
    }
}
