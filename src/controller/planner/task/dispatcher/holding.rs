//! Holds: the log and result of a run wait on its machine while the result store has no room, or
//! while the connected machine does not give them. Events tell the user (of a store without room at
//! once), again and again, and after long enough log and result are given up, so that the machine
//! is free.

use std::time::Duration;

use jiff::Timestamp;
use skyward_api::condition::reason;
use skyward_core::Usd;

use super::{
    Dispatcher, ONE_TRY, TELL_HOLD, UNREAD,
    state::{Hold, Unread},
};
use crate::{
    base::time::after,
    events::{self, EventSpec},
    task::model::RunId,
};

impl Dispatcher {
    /// The run has waited for room since then. Where that cannot be recorded, each try names a
    /// later time, and the first one counts.
    pub(super) fn on_held(&mut self, id: &RunId, since: Timestamp) {
        if let Some(run) = self.runs.get_mut(id) {
            let (since, told) = match run.hold.take() {
                Some(hold) => (hold.since.min(since), hold.told),
                None => (since, None),
            };
            run.hold = Some(Hold { since, told });
        }
    }

    /// The connected machine did not give its log or result. Answers whether that has lasted long
    /// enough to be reported.
    pub(super) fn on_unread(&mut self, id: &RunId, now: Timestamp) -> bool {
        let Some(run) = self.runs.get_mut(id) else {
            return false;
        };
        let unread = run.unread.get_or_insert(Unread {
            total: Duration::ZERO,
            last: now,
        });
        unread.total += now.duration_since(unread.last).unsigned_abs().min(ONE_TRY);
        unread.last = now;
        let since = before(now, unread.total);
        if unread.total < UNREAD.min(self.hold_for) {
            return false;
        }
        let waits_for_room = run
            .trouble
            .as_ref()
            .is_some_and(|trouble| trouble.why.reason != reason::OUTPUT_NOT_READ);
        match &mut run.hold {
            Some(_) if waits_for_room => {}
            Some(hold) => hold.since = since,
            None => run.hold = Some(Hold { since, told: None }),
        }
        true
    }

    /// Whether a log or result that its machine does not give is given up.
    pub(super) fn is_unreadable(&self, id: &RunId) -> bool {
        let unread = self.runs.get(id).and_then(|run| run.unread.as_ref());
        unread.is_some_and(|unread| unread.total >= self.hold_for.max(UNREAD))
    }

    pub(super) fn has_waited_enough(&self, id: &RunId, now: Timestamp) -> bool {
        let hold = self.runs.get(id).and_then(|run| run.hold.as_ref());
        hold.is_some_and(|hold| after(hold.since, self.hold_for) <= now)
    }

    /// Where, at what cost and until when the run waits, for its user.
    pub(super) fn hold_in_words(&self, id: &RunId) -> Option<String> {
        let run = self.runs.get(id)?;
        let hold = run.hold.as_ref()?;
        let machine = self.machines.get(&run.place);
        let price = machine
            .map(|machine| machine.hourly_price)
            .filter(|price| *price > Usd::ZERO)
            .map(|price| format!(", which costs ${}/h,", price.exact()))
            .unwrap_or_default();
        let until = after(hold.since, self.hold_for).strftime("%Y-%m-%d %H:%M:%S UTC");
        Some(format!(
            "It waits on machine \"{}\"{price} until {until} (store.holdFor); what is not stored by then is given up: a log is cut, and without its return value the Task fails with {}",
            run.machine,
            reason::RESULT_NOT_STORED
        ))
    }

    /// Publishes that the run waits, if that is due now.
    pub(super) fn tell_hold(&mut self, id: &RunId, now: Timestamp) {
        if !self.tasks.contains_key(&id.uid) {
            return;
        }
        let Some(run) = self.runs.get_mut(id) else { return };
        let (Some(hold), Some(trouble)) = (&mut run.hold, &run.trouble) else {
            return;
        };
        if hold.told.is_some_and(|told| after(told, TELL_HOLD) > now) {
            return;
        }
        hold.told = Some(now);
        let note = trouble.why.message.clone();
        let event = EventSpec::warning(events::reason::RUN_HELD_UP, "Collect", note);
        self.publish(&id.uid, event);
    }
}

/// The time so long ago, or the earliest time.
fn before(now: Timestamp, ago: Duration) -> Timestamp {
    now.checked_sub(ago).unwrap_or(Timestamp::MIN)
}
