//! The log of a map in the store, as its only writer has it: records of the planner become those of the store and back. A
//! write that fails is made again until it is there, or another leader has taken the log over.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use skyward_api::condition::reason;
use skyward_planner::{
    base::key::Key,
    map::{
        items::Items,
        leader::Entry,
        outcome::{Outcome, body},
        record::{self, Cause},
    },
    task::{message::CollectError, status::Why},
};
use skyward_store::maps::{MapError, MapLog, Record, Writer};
use tokio::time::sleep;

use crate::{
    context::Context,
    maps::{replay, to_stored},
    task::{collect::of_store, reclaim},
};

/// Pause before a write is made again, and the longest one.
const AGAIN: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(15);

/// Why a log was not taken up.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LogError {
    /// Another leader writes it.
    Superseded,
    /// Not now; for the user.
    NotNow(Why),
}

/// What keeps a log from being written, while something does.
pub(super) type Trouble = Arc<Mutex<Option<Why>>>;

/// The log of one map.
pub(super) struct Log {
    objects: MapLog,
    superseded: bool,
    trouble: Trouble,
}

impl Log {
    /// Takes the log of a map up, and says where each of so many items is.
    pub(super) async fn lead(
        context: &Context,
        pool: &Key,
        uid: &str,
        total: u32,
    ) -> Result<(Self, Items), LogError> {
        let store = &context.store;
        store.charge(uid, &pool.namespace);
        let taken = store.lead_map(uid, Writer(rand::random()), context.epoch).await;
        let (log, heads) = taken.map_err(|error| match error {
            MapError::Superseded => LogError::Superseded,
            MapError::Store(error) => LogError::NotNow(of_store(&error, &context.metrics).why()),
            MapError::Damaged(_) | MapError::Missing(_) | MapError::TooLarge => {
                unreadable(&error.to_string())
            }
        })?;
        let mut items = Items::new(total);
        for part in &heads {
            replay(part, &mut items).map_err(|why| unreadable(&why))?;
            // A million records take a second.
            tokio::task::yield_now().await;
        }
        let log = Self {
            objects: log,
            superseded: false,
            trouble: Trouble::default(),
        };
        Ok((log, items))
    }

    /// Whether another leader writes the log: this one never writes again.
    pub(super) const fn is_superseded(&self) -> bool {
        self.superseded
    }

    /// What keeps it from being written.
    pub(super) fn trouble(&self) -> Trouble {
        self.trouble.clone()
    }

    /// Writes these entries. When this returns, they are in the log, or the log is another leader's.
    pub(super) async fn write(&mut self, entries: Vec<Entry<Bytes>>, context: &Context, namespace: &str) {
        let metrics = &context.metrics;
        let outcomes: Vec<&'static str> = entries
            .iter()
            .filter_map(|entry| outcome(&entry.record))
            .collect();
        let entries = entries.into_iter().map(with_body);
        let records: Vec<Record> = entries.map(to_stored).collect();
        let mut written = self.objects.append(&records).await;
        let mut pause = AGAIN;
        loop {
            let error = match written {
                Ok(()) => break,
                Err(error) => error,
            };
            let lacks_room;
            match &error {
                MapError::Store(error) => {
                    let failure = of_store(error, metrics);
                    lacks_room = matches!(failure, CollectError::Full(_) | CollectError::Quota(_));
                    let why = failure.why();
                    let message = format!(
                        "how items ended cannot be stored yet: {error}. Nothing is lost, and it is tried again by itself"
                    );
                    *self.trouble.lock() = Some(Why::new(why.reason, message));
                }
                // The leader's bounds keep a write below those of an object, so this is a log that was tampered with.
                MapError::Superseded | MapError::Damaged(_) | MapError::Missing(_) | MapError::TooLarge => {
                    tracing::error!(%error, "the log of a map is not written any more");
                    self.superseded = true;
                    return;
                }
            }
            tracing::warn!(%error, "the log of a map cannot be written; it is tried again");
            if !lacks_room || !reclaim::make_room(context, namespace).await {
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST);
            }
            written = self.objects.settle().await;
        }
        *self.trouble.lock() = None;
        for outcome in outcomes {
            metrics.item(outcome);
        }
        // Smaller objects become larger ones now and then; what is not joined now is joined later.
        if let Err(error) = self.objects.merge().await {
            tracing::debug!(%error, "objects of the log of a map stay apart for now");
        }
    }
}

/// What a record says, for the metrics; `None`: it is no end.
const fn outcome(record: &record::Record) -> Option<&'static str> {
    match record {
        record::Record::Note(_) => None,
        record::Record::Ended(ended) => Some(match ended.cause {
            Cause::Success => "success",
            Cause::Failure => "failure",
            Cause::Interruption => "interruption",
            Cause::Uncounted => "uncounted",
        }),
    }
}

/// An end that the leader itself decides has no body: its item was interrupted too often.
fn with_body(entry: Entry<Bytes>) -> Entry<Bytes> {
    let is_end = matches!(entry.record, record::Record::Ended(_));
    if !is_end || entry.body.is_some() {
        return entry;
    }
    let outcome = Outcome {
        reason: reason::INTERRUPTED.to_owned(),
        message: "its machines were lost more often than retries.onInterruption allows".to_owned(),
        ..Outcome::default()
    };
    Entry {
        body: Some(body(&outcome, &[]).into()),
        ..entry
    }
}

fn unreadable(why: &str) -> LogError {
    LogError::NotNow(Why::new(
        reason::RESULT_STORE_UNAVAILABLE,
        format!("where the items of the Task are cannot be read: {why}"),
    ))
}
