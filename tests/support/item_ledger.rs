//! The ledger of one map, with what stories of maps do with it. What must hold in the end is said by [`MapRecord`].

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::ensure;
use serde_json::{Value, json};
use skyward_api::TaskPhase;
use tokio::time::Instant;

use crate::{ItemMark, ItemOutcome, Ledger, MapRecord, PATIENCE, Result, Space};

/// Between two looks at the ledger.
const LOOK: Duration = Duration::from_millis(20);
/// Items that have told nothing for this long stand still.
const STILL: Duration = Duration::from_secs(2);
/// How many broken rules an error names.
const SHOWN: usize = 20;

/// The ledger that the items of one map of [`ITEM_SOURCE`](crate::ITEM_SOURCE) tell, and what else is known of the map.
pub struct ItemLedger {
    ledger: Ledger,
    marks: Arc<Mutex<Vec<ItemMark>>>,
    /// What is known besides the ledger.
    pub record: MapRecord,
}

impl ItemLedger {
    /// The ledger of a map of so many items.
    pub async fn start(space: &Space, total: u32) -> Result<Self> {
        let marks = Arc::<Mutex<Vec<ItemMark>>>::default();
        Ok(Self {
            ledger: Ledger::start(&space.cluster, Arc::clone(&marks)).await?,
            marks,
            record: MapRecord {
                total,
                ..MapRecord::default()
            },
        })
    }

    /// The `env` of the map.
    pub fn env(&self) -> Value {
        json!([{"name": "LEDGER", "value": self.ledger.address}])
    }

    /// How many lines the items have told.
    pub fn lines(&self) -> usize {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Waits until the items have told so many lines.
    pub async fn told(&self, lines: usize) -> Result {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE);
        while self.lines() < lines {
            ensure!(Instant::now() < deadline, "the ledger has {} lines", self.lines());
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Waits until the items stand still; answers how many lines they have told.
    pub async fn still(&self) -> Result<usize> {
        let deadline = Instant::now() + Duration::from_secs(PATIENCE);
        let (mut lines, mut since) = (self.lines(), Instant::now());
        while since.elapsed() < STILL {
            ensure!(
                Instant::now() < deadline,
                "the items do not stand still: the ledger has {lines} lines"
            );
            tokio::time::sleep(LOOK).await;
            let now = self.lines();
            if now != lines {
                (lines, since) = (now, Instant::now());
            }
        }
        Ok(lines)
    }

    /// Notes which items have an outcome while the map runs; answers how many.
    pub async fn look(&mut self, space: &Space, task: &str) -> Result<usize> {
        let known = space.cluster.items(&space.name, task).await?;
        let lines = self.lines();
        self.record.note_seen(&known, lines);
        Ok(known.len())
    }

    /// Waits until the map has succeeded, and checks that no rule is broken.
    pub async fn ensure_whole(&mut self, space: &Space, task: &str) -> Result {
        let ended = space.task_ended(task).await?;
        let status = ended.status.unwrap_or_default();
        let total = self.record.total;
        let counts = status.items.clone().unwrap_or_default();
        ensure!(
            status.phase == Some(TaskPhase::Succeeded) && (counts.total, counts.succeeded) == (total, total),
            "the map did not succeed: {status:#?}"
        );
        self.record.outcomes = outcomes(space, task).await?;
        let marks = self.marks.lock().unwrap_or_else(PoisonError::into_inner);
        self.record.marks.clone_from(&marks);
        let broken = self.record.broken(|_| false);
        let (count, first) = (broken.len(), &broken[..broken.len().min(SHOWN)]);
        ensure!(
            broken.is_empty(),
            "{count} broken rules, the first of them: {first:#?}"
        );
        Ok(())
    }
}

/// The items of a Task. Another story may have killed the controller a moment ago.
async fn outcomes(space: &Space, task: &str) -> Result<Vec<ItemOutcome>> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        match space.cluster.items(&space.name, task).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_secs(1)).await,
            answer => return answer,
        }
    }
}
