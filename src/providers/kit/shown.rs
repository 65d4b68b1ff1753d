//! Machines that a cloud may stop showing for a while although they exist. Such a machine counts as
//! there, as it was shown last, until the cloud has not shown it for a while.
//!
//! It never judges a machine that the cloud shows, and it asks the cloud nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use skyward_core::{ErrorKind, ProviderError};
use tokio::time::Instant;

use crate::lookup::Listed;

/// How long it is remembered that a machine is not shown.
const REMEMBERED: Duration = Duration::from_hours(1);
/// Most machines that are remembered besides those of a list.
const MOST: usize = 4096;

/// What an account showed.
pub struct Shown<M> {
    /// After how long a machine that is not shown is gone.
    settles: Duration,
    /// By the ids of machines.
    records: Mutex<BTreeMap<String, Record<M>>>,
}

struct Record<M> {
    /// The machine as it was shown last with a mark; `None` where this process never saw it.
    last: Option<M>,
    /// Since when it is not shown.
    missing: Option<Instant>,
}

impl<M: Listed> Shown<M> {
    /// Nothing was shown yet. A machine that is not shown for this long is gone.
    pub const fn new(settles: Duration) -> Self {
        Self {
            settles,
            records: Mutex::new(BTreeMap::new()),
        }
    }

    /// The cloud shows this machine, or has accepted the order that makes it.
    pub fn see(&self, machine: &M) {
        note(&mut self.records.lock(), machine);
    }

    /// A list with the machines that it lacks and that are not gone for sure.
    pub fn complete(&self, mut listed: Vec<M>) -> Vec<M> {
        let now = Instant::now();
        let ids: BTreeSet<String> = listed.iter().map(Listed::id).collect();
        let mut records = self.records.lock();
        for machine in &listed {
            note(&mut records, machine);
        }
        records.retain(|id, record| {
            ids.contains(id) || now.duration_since(*record.missing.get_or_insert(now)) < REMEMBERED
        });
        if records.len() > ids.len() + MOST {
            records.retain(|id, _| ids.contains(id));
        }
        let lately = |record: &&Record<M>| {
            let missing = record.missing;
            missing.is_some_and(|since| now.duration_since(since) < self.settles)
        };
        listed.extend(
            records
                .values()
                .filter(lately)
                .filter_map(|record| record.last.clone()),
        );
        listed
    }

    /// What the answer to a look at one machine says: it, `None` where it is gone, or an error where
    /// that is not known yet.
    pub fn judge(
        &self,
        operation: &'static str,
        id: &str,
        found: Option<M>,
    ) -> Result<Option<M>, ProviderError> {
        let mut records = self.records.lock();
        if let Some(found) = found {
            note(&mut records, &found);
            return Ok(Some(found));
        }
        let record = records.entry(id.to_owned()).or_insert(Record {
            last: None,
            missing: None,
        });
        let since = *record.missing.get_or_insert_with(Instant::now);
        if since.elapsed() >= self.settles {
            return Ok(None);
        }
        match &record.last {
            Some(last) => Ok(Some(last.clone())),
            None => Err(ProviderError::new(
                ErrorKind::Transient,
                operation,
                format!(
                    "{id} is not shown; it counts as gone when that is so for {} s",
                    self.settles.as_secs()
                ),
            )),
        }
    }
}

/// Remembers that this machine is shown. A machine without a mark does not replace the one that is remembered, whose mark
/// may come back.
fn note<M: Listed>(records: &mut BTreeMap<String, Record<M>>, machine: &M) {
    let id = machine.id();
    if machine.mark().is_some() {
        let last = Some(machine.clone());
        records.insert(id, Record { last, missing: None });
    } else if let Some(record) = records.get_mut(&id) {
        record.missing = None;
    }
}

#[cfg(test)]
mod tests {
    use skyward_core::Mark;
    use tokio::time::advance;

    use super::*;
    use crate::fixtures::order;

    const SETTLES: Duration = Duration::from_secs(90);
    /// A moment before that.
    const ALMOST: Duration = Duration::from_secs(89);
    const LOOK: &str = "look at the machine";

    #[derive(Clone, Debug, PartialEq)]
    struct Machine {
        id: &'static str,
        is_ours: bool,
        state: &'static str,
    }

    impl Listed for Machine {
        fn id(&self) -> String {
            self.id.to_owned()
        }

        fn mark(&self) -> Option<Mark> {
            self.is_ours.then(|| order().mark)
        }

        fn gone(&self) -> bool {
            false
        }
    }

    const BOOTS: Machine = Machine {
        id: "a",
        is_ours: true,
        state: "boots",
    };
    const RUNS: Machine = Machine {
        state: "runs",
        ..BOOTS
    };
    const NOBODYS: Machine = Machine {
        is_ours: false,
        ..BOOTS
    };

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_a_list_forgets_is_listed_as_it_was_until_it_is_gone_for_sure() {
        let shown = Shown::new(SETTLES);
        shown.complete(vec![BOOTS]);
        shown.complete(vec![RUNS]);
        // However long nobody looked.
        advance(Duration::from_hours(5)).await;
        assert_eq!(shown.complete(Vec::new()), [RUNS]);
        advance(SETTLES / 2).await;
        assert_eq!(shown.complete(Vec::new()), [RUNS]);
        assert_eq!(shown.judge(LOOK, "a", None).unwrap(), Some(RUNS));
        advance(SETTLES / 2).await;
        assert_eq!(shown.complete(Vec::new()), []);
        assert_eq!(shown.judge(LOOK, "a", None).unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_is_shown_again_is_missing_anew_when_it_is_forgotten_again() {
        let shown = Shown::new(SETTLES);
        for _ in 0..3 {
            assert_eq!(shown.complete(vec![RUNS]), [RUNS]);
            assert_eq!(shown.complete(Vec::new()), [RUNS]);
            advance(ALMOST).await;
            assert_eq!(shown.judge(LOOK, "a", None).unwrap(), Some(RUNS));
            assert_eq!(shown.judge(LOOK, "a", Some(BOOTS)).unwrap(), Some(BOOTS));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_that_was_accepted_is_there_before_any_list_shows_it() {
        let shown = Shown::new(SETTLES);
        shown.see(&BOOTS);
        assert_eq!(shown.complete(Vec::new()), [BOOTS]);
        assert_eq!(shown.judge(LOOK, "a", None).unwrap(), Some(BOOTS));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_this_process_never_saw_is_gone_only_after_a_while() {
        let shown = Shown::<Machine>::new(SETTLES);
        let unknown = shown.judge(LOOK, "a", None).unwrap_err();
        assert_eq!(unknown.kind, ErrorKind::Transient);
        assert!(unknown.message.contains("a is not shown") && unknown.message.contains("90 s"));
        assert_eq!(shown.complete(Vec::new()), []);
        advance(SETTLES).await;
        assert_eq!(shown.judge(LOOK, "a", None).unwrap(), None);
        // It is told again after it was forgotten.
        advance(REMEMBERED).await;
        assert_eq!(shown.complete(Vec::new()), []);
        shown.judge(LOOK, "a", None).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_lost_its_mark_is_listed_without_it_and_is_not_missing() {
        let shown = Shown::new(SETTLES);
        assert_eq!(shown.complete(vec![NOBODYS]), [NOBODYS]);
        assert_eq!(shown.complete(Vec::new()), []);
        shown.see(&RUNS);
        shown.complete(Vec::new());
        advance(SETTLES / 2).await;
        // It is there and shows no mark for a while: it is not missing.
        assert_eq!(shown.complete(vec![NOBODYS]), [NOBODYS]);
        advance(SETTLES / 2).await;
        assert_eq!(shown.complete(Vec::new()), [RUNS]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_remembered_is_bounded() {
        let shown = Shown::<Machine>::new(SETTLES);
        for number in 0..=MOST {
            shown.judge(LOOK, &number.to_string(), None).unwrap_err();
        }
        shown.complete(vec![RUNS]);
        assert_eq!(shown.records.lock().len(), 1);
    }
}
