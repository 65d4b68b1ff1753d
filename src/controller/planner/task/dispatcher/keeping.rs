//! Ranks that have succeeded and do not run again (`retries.scope: Rank`). Their outcomes are stored under the number of
//! the next attempt, too, before that is placed: so each reader, and a later leader, finds them there as those of any
//! other rank.
//!
//! What is kept is on record with the attempt that ended (`status.succeededRanks`). The next attempt keeps nothing where it
//! has another number of ranks: the work was divided otherwise.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use skyward_api::{condition::reason, task::Placement};

use super::{
    Dispatcher, RESOLVING, STORE_AGAIN,
    runs::synthetic,
    state::{Collect, Run, RunStage, Stage, TaskState, Waiting},
};
use crate::{
    base::time::after,
    task::{
        kept::Kept,
        message::{CollectError, Collected, Effect},
        model::{Entry, SlotAttempt, Uid},
        run::Ending,
        status::Why,
    },
};

/// Ranks that the next attempt keeps.
#[derive(Debug)]
pub(super) struct Keeping {
    pub(super) kept: Kept,
    outcomes: Outcomes,
}

/// What the store has of them under the number of the next attempt.
#[derive(Debug)]
enum Outcomes {
    /// Nothing.
    Unasked,
    /// That is on its way.
    Asked,
    /// Some of them, perhaps.
    Unknown,
    /// These, under that number.
    Stored(u32, BTreeMap<u32, Box<Collected>>),
}

impl Keeping {
    /// Whether the store has, or may have, something under the number of the next attempt.
    pub(super) const fn is_stored(&self) -> bool {
        !matches!(self.outcomes, Outcomes::Unasked)
    }
}

impl Waiting {
    /// These ranks do not run again.
    pub(super) fn keep(&mut self, kept: Option<Kept>) {
        self.keeping = kept.map(|kept| {
            let outcomes = Outcomes::Unasked;
            Box::new(Keeping { kept, outcomes })
        });
    }

    /// The attempt that was to keep these ranks is not placed after all.
    pub(super) fn keep_still(&mut self, kept: Option<Kept>) {
        self.keeping = kept.map(|kept| {
            let outcomes = Outcomes::Unknown;
            Box::new(Keeping { kept, outcomes })
        });
    }
}

impl Run {
    /// The run of a rank that does not run again. Its place is another Task's to take.
    pub(super) fn kept(place: SlotAttempt, collected: Box<Collected>, now: Timestamp) -> Self {
        let machine: Arc<str> = collected.result.machine.as_str().into();
        let finished = synthetic(Ending::Exited, String::new(), now);
        let mut run = Self::new(place, machine, RunStage::Finished(Arc::new(finished)));
        run.collect = Collect::Done(collected);
        run.kept = true;
        run
    }

    fn has_succeeded(&self) -> bool {
        matches!(&self.collect, Collect::Done(collected) if collected.reason == reason::SUCCEEDED)
    }
}

/// Whether the outcomes of the ranks that a Task keeps are stored for its next attempt; if not, has them stored.
pub(super) fn is_ready(task: &mut TaskState, asking: &mut usize, effects: &mut Vec<Effect>) -> bool {
    let attempt = task.counts.attempt.saturating_add(1);
    let Stage::Waiting(waiting) = &mut task.stage else {
        return true;
    };
    let Some(keeping) = waiting.keeping.as_deref_mut() else {
        return true;
    };
    match keeping.outcomes {
        Outcomes::Stored(stored, _) if stored == attempt => return true,
        Outcomes::Asked => return false,
        Outcomes::Stored(..) | Outcomes::Unasked | Outcomes::Unknown => {}
    }
    if *asking < RESOLVING {
        *asking += 1;
        keeping.outcomes = Outcomes::Asked;
        effects.push(Effect::KeepRanks {
            uid: task.entry.uid.clone(),
            ranks: keeping.kept.ranks.clone(),
            attempt,
        });
    }
    false
}

/// What an attempt of so many ranks keeps, with the outcomes.
pub(super) fn of_attempt(
    keeping: Option<Box<Keeping>>,
    ranks: usize,
) -> (Option<Kept>, BTreeMap<u32, Box<Collected>>) {
    let Some(Keeping { mut kept, outcomes }) = keeping.map(|keeping| *keeping) else {
        return (None, BTreeMap::new());
    };
    match outcomes {
        Outcomes::Stored(_, outcomes) if usize::try_from(kept.of) == Ok(ranks) => {
            kept.ranks.retain(|rank| outcomes.contains_key(rank));
            (Some(kept), outcomes)
        }
        Outcomes::Stored(..) | Outcomes::Asked | Outcomes::Unasked | Outcomes::Unknown => {
            (None, BTreeMap::new())
        }
    }
}

impl Dispatcher {
    /// Whether ranks of the Task that have succeeded do not run again.
    pub(super) fn keeps_ranks(&self, entry: &Entry) -> bool {
        matches!(entry.placement, Some(Placement::All(_))) && self.policy(entry).keeps_ranks()
    }

    /// The ranks of the present attempt that have succeeded, where the next one keeps them.
    pub(super) fn to_be_kept(&self, uid: &Uid) -> Option<Kept> {
        let task = self.tasks.get(uid)?;
        let Stage::Running(attempt) = &task.stage else {
            return None;
        };
        if !self.keeps_ranks(&task.entry) {
            return None;
        }
        let runs = self.attempt_runs(uid, attempt.number);
        let ranks: Vec<u32> = runs
            .filter(|(_, run)| run.has_succeeded())
            .map(|(id, _)| id.rank)
            .collect();
        let of = u32::try_from(attempt.places.len()).ok()?;
        (!ranks.is_empty()).then_some(Kept { ranks, of })
    }

    /// The outcomes are stored under the number of the next attempt. A rank whose outcome is not there runs again.
    pub(super) fn on_ranks_kept(
        &mut self,
        uid: &Uid,
        attempt: u32,
        result: Result<Vec<(u32, Box<Collected>)>, CollectError>,
        now: Timestamp,
    ) {
        self.recalling = self.recalling.saturating_sub(1);
        self.dirty = true;
        let Some(task) = self.tasks.get_mut(uid) else {
            return;
        };
        let Stage::Waiting(waiting) = &mut task.stage else {
            return;
        };
        let Some(keeping) = waiting.keeping.as_deref_mut() else {
            return;
        };
        match result {
            Ok(outcomes) => {
                waiting.obstacle = None;
                keeping.outcomes = Outcomes::Stored(attempt, outcomes.into_iter().collect());
            }
            Err(error) => {
                keeping.outcomes = Outcomes::Unknown;
                waiting.obstacle = Some(Why::new(
                    error.why().reason,
                    format!(
                        "the outcomes of its ranks that have succeeded cannot be kept for the next attempt: {error}. It is tried again by itself"
                    ),
                ));
                waiting.not_before = Some(after(now, STORE_AGAIN));
            }
        }
    }
}
