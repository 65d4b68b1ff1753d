//! Workers of a map that end though nobody has asked them to: after which pause others follow, and when the Task fails
//! because none of them gets to an item. What became of items that they had begun is not decided here.

use jiff::Timestamp;
use skyward_api::{
    condition::{cut, reason},
    task::ItemsStatus,
};

use super::{
    super::{
        Dispatcher,
        attempts::{Outcome, outcome},
        state::{Collect, Run, RunStage, StopWhy},
    },
    SAID,
};
use crate::{
    base::time::after,
    events::{self, EventSpec},
    task::{
        message::{Cause, Effect},
        model::{RunId, Uid},
        status::{self, Why},
    },
};

impl Dispatcher {
    /// Where workers end though nobody has asked them to, the next ones would end as well: more and more time passes
    /// before another one is added, until an item succeeds.
    pub(super) fn pause_growth(&mut self, uid: &Uid, now: Timestamp) {
        let Some((task, attempt, map)) = self.running(uid) else {
            return;
        };
        let broke = self.attempt_runs(uid, attempt.number);
        let broke = broke.filter(|(_, run)| has_broken(run)).count();
        let succeeded = map.told.items.succeeded;
        let before = match map.fruitless {
            (before, then) if then == succeeded => before,
            _ => 0,
        };
        let is_news = broke > map.broke;
        // Workers that were started together count once.
        let pause = (is_news && map.grow_at.is_none())
            .then(|| self.policy(&task.entry).pause(before.saturating_add(1)));
        if let Some(map) = self.map_mut(uid) {
            map.broke = broke;
            if let Some(pause) = pause {
                map.fruitless = (before.saturating_add(1), succeeded);
                map.grow_at = Some(after(now, pause));
            }
        }
    }

    /// No worker is left, and items are. Another attempt goes on with them; where no item has even begun, that counts as
    /// an interruption of the Task, of which so many may follow each other as `retries.onInterruption` says.
    pub(super) fn begin_anew(
        &mut self,
        uid: &Uid,
        ids: &[RunId],
        items: Option<ItemsStatus>,
        stop: Option<StopWhy>,
        now: Timestamp,
    ) {
        let Some((task, attempt, map)) = self.running(uid) else {
            return;
        };
        let runs: Vec<&Run> = ids.iter().filter_map(|id| self.runs.get(id)).collect();
        let broken = runs.iter().rev().find(|run| has_broken(run));
        // A machine that cannot begin items now is no better at once.
        let is_broken = broken.is_some() || !map.unfit.is_empty();
        let lost = broken.or_else(|| runs.iter().find(|run| matches!(run.stage, RunStage::Lost)));
        let last = map.unfit.values().next_back().cloned();
        let last = last.or_else(|| lost.map(|run| how_ended(run)));
        let has_progress = map.began_with.is_some_and(|began| map.told.ends > began);
        let is_fruitless = last.is_some() && !has_progress;
        let policy = self.policy(&task.entry);
        let (before, limit) = if is_fruitless {
            (task.counts.interruptions, policy.on_interruption())
        } else {
            (0, u32::MAX)
        };
        let pause = policy.pause(before.saturating_add(1));
        let (name, number) = (task.entry.name.clone(), attempt.number);
        let decided = outcome(stop, is_fruitless, true, before, limit, &task.entry.pool);
        if let (None, Some(task)) = (stop, self.tasks.get_mut(uid)) {
            task.counts.interruptions = before.saturating_add(u32::from(is_fruitless));
        }
        let last = last.unwrap_or_default();
        let (message, retry_at) = match decided {
            Outcome::Failed(mut why) => {
                if why.reason == reason::INTERRUPTED {
                    why.message = format!(
                        "{}; no item ended in them. The last time {last}. `kubectl skyward logs {name}` may tell more; \
                         `kubectl skyward retry {name}` goes on with the items that are left",
                        why.message
                    );
                } else {
                    why = why.or_retry(&name, items.is_some());
                }
                return self.end_with_items(uid, ids, items, Some(why), now);
            }
            Outcome::Later(message) => (message.to_owned(), None),
            Outcome::Ended | Outcome::Retry if last.is_empty() => (
                "its workers have ended; another attempt goes on with the items that are left".to_owned(),
                None,
            ),
            Outcome::Ended | Outcome::Retry => {
                let message = format!(
                    "{last}; attempt {} goes on with the items that are left",
                    number + 1
                );
                self.effects.push(Effect::Retried(Cause::Interruption));
                let event = EventSpec::warning(events::reason::TASK_RETRIED, "Retry", message.clone());
                self.publish(uid, event);
                // A machine that is gone is no reason to wait: another one has to come first.
                (message, is_broken.then(|| after(now, pause)))
            }
        };
        self.charge(uid, ids, now);
        self.keep_items(uid, items);
        self.end_map(uid);
        self.put_back(uid, Why::new(reason::RETRYING, message), retry_at, now);
    }
}

/// Whether a worker has ended though nobody had asked it to, and its machine is there.
const fn has_broken(run: &Run) -> bool {
    matches!(run.stage, RunStage::Finished(_)) && run.stop.is_none()
}

/// How a worker ended, in words.
fn how_ended(run: &Run) -> String {
    let machine = &run.machine;
    let Collect::Done(collected) = &run.collect else {
        return format!("machine \"{machine}\" was lost");
    };
    let how = status::failure_message(&collected.result, 1, 1);
    let how = cut(&how, SAID);
    format!(
        "a worker on machine \"{machine}\" ended ({}: {how})",
        collected.reason
    )
}
