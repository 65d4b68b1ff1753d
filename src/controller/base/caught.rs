//! Runs a future to its end, and makes a panic in it an error.

use std::{any::Any, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use skyward_api::condition::cut;

/// Most characters of a panic's message that are logged.
const SAID: usize = 500;

/// The message of a panic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Panicked(pub(crate) String);

/// Runs a future to its end; a panic in it is an error.
pub(crate) async fn caught<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work)
        .catch_unwind()
        .await
        .map_err(|payload| Panicked(said(&*payload)))
}

fn said(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    cut(text.unwrap_or("no words"), SAID)
}
