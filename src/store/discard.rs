//! Deletes the objects of a Task that is gone, for callers that must not wait: the loops that delete Tasks by their time
//! serve all namespaces. The hourly sweep of the store finds objects that stay.

use std::{io::ErrorKind, time::Duration};

use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::{Error, Store};

/// Longest wait for one Task.
const SOON: Duration = Duration::from_secs(15);
/// After a place failed nothing is asked of it for so long.
const QUIET: Duration = Duration::from_mins(1);

/// Until when nothing is asked.
#[derive(Debug, Default)]
pub(crate) struct Quiet(Mutex<Option<Instant>>);

impl Quiet {
    fn holds(&self) -> bool {
        self.0.lock().is_some_and(|until| Instant::now() < until)
    }

    fn begin(&self) {
        *self.0.lock() = Some(Instant::now() + QUIET);
    }
}

impl Store {
    /// Deletes all stored data of a Task, if the place answers soon and did so lately. After an error no call does
    /// anything for a while.
    pub async fn discard(&self, task_uid: &str) -> Result<(), Error> {
        if self.quiet.holds() {
            return Ok(());
        }
        let deleted = match timeout(SOON, self.delete_task(task_uid)).await {
            Ok(deleted) => deleted,
            Err(_) => Err(std::io::Error::new(ErrorKind::TimedOut, "it does not answer in time").into()),
        };
        if matches!(deleted, Err(Error::Other(_))) {
            self.quiet.begin();
        }
        deleted
    }
}
