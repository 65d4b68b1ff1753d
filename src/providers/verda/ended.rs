//! Machines whose end we ordered: Verda shows them as it shows machines that it took back. Only
//! the machines of the last hour are kept, since a controller runs for months.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// How long an end is remembered after it was last ordered: it is ordered again until Verda
/// says that the machine is gone, and then nobody asks for it any more. Lists are no measure:
/// they may be behind, and a machine is shown by its id when they have dropped it.
const REMEMBERED: Duration = Duration::from_hours(1);

/// When ends were last ordered, by id.
#[derive(Default)]
pub(super) struct Ended(Mutex<BTreeMap<String, Instant>>);

impl Ended {
    /// The end of this one is ordered now.
    pub(super) fn note(&self, id: &str) {
        let mut ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.retain(|_, at| at.elapsed() < REMEMBERED);
        ended.insert(id.to_owned(), Instant::now());
    }

    /// Whether the end of this one was ordered.
    pub(super) fn has(&self, id: &str) -> bool {
        let ended = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ended.contains_key(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_end_is_remembered_for_as_long_as_it_is_ordered_and_an_hour_more() {
        let ended = Ended::default();
        ended.note("one");
        ended.note("two");
        tokio::time::advance(REMEMBERED / 2).await;
        ended.note("two");
        tokio::time::advance(REMEMBERED / 2).await;
        ended.note("three");
        assert!(!ended.has("one"));
        assert!(ended.has("two") && ended.has("three"));
    }
}
