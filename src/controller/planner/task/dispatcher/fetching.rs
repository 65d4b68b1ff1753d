//! Files that come from git: a machine of the Pool fetches them before the first attempt, and the commit goes on
//! record with the first placement. Until then nothing is on record, and a new leader fetches again.
//!
//! A Task that waits for its files holds no place, and few fetches go to one host at a time, so that a slow host
//! delays nobody else. Tasks with the same source share a fetch: one that begins after they came.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    condition::reason,
    task::{GitSource, SourceStatus},
};
use skyward_core::session::AgentError;

use super::{
    AGAIN, Dispatcher, LOOK_AGAIN, REFUSED_AGAIN, REFUSED_LONGEST,
    state::{Fetch, Stage, Waiting},
};
use crate::task::{
    message::{Effect, FetchKey, FetchOrder, StartError},
    model::{Entry, MachineView, SlotAttempt, Uid},
    references::Unresolved,
    status::Why,
};

/// Longest pause before a host that is not reached is asked again.
pub(super) const LONGEST: Duration = Duration::from_mins(5);
/// Fetches of one machine at the same time: as many as its agent takes.
const OF_MACHINE: usize = 4;
/// Fetches from one host at the same time.
const FROM_HOST: usize = 2;

/// The fetches under way.
#[derive(Debug, Default)]
pub(super) struct Fetching {
    last: u64,
    under_way: BTreeMap<u64, UnderWay>,
}

#[derive(Debug)]
struct UnderWay {
    place: SlotAttempt,
    machine: Arc<str>,
    source: GitSource,
}

/// The files of a Task that waits.
#[derive(Debug)]
pub(super) enum Files<'a> {
    /// They are known, or read from elsewhere.
    Known,
    /// They are being fetched, or a fetch failed a moment ago.
    Awaited(Why),
    /// They are to be fetched, once there is room for the Task.
    Wanted(&'a GitSource),
}

/// Whether the files of a Task are known.
pub(super) fn files<'a>(
    entry: &'a Entry,
    waiting: &Waiting,
    fetching: &Fetching,
    now: Timestamp,
) -> Files<'a> {
    let Some(source) = entry.git().filter(|_| entry.recorded_source().is_none()) else {
        return Files::Known;
    };
    match &waiting.fetch {
        Fetch::Done(_) => Files::Known,
        Fetch::Failed(until, _) if *until > now => Files::Awaited(fetching.why(source, waiting)),
        Fetch::Not | Fetch::Failed(..) if fetching.has(source) => {
            Files::Awaited(fetching.why(source, waiting))
        }
        Fetch::Not | Fetch::Failed(..) => Files::Wanted(source),
    }
}

/// Whether such a trouble is one of fetching.
pub(super) fn is_of_git(reason: &str) -> bool {
    [reason::SOURCE_UNAVAILABLE, reason::SOURCE_INVALID].contains(&reason)
}

impl Fetching {
    fn of(&self, source: &GitSource) -> Option<&UnderWay> {
        self.under_way.values().find(|fetch| fetch.source == *source)
    }

    fn has(&self, source: &GitSource) -> bool {
        self.of(source).is_some()
    }

    /// Begins a fetch on that machine, unless it, or the host, has enough of them.
    pub(super) fn begin(&mut self, source: &GitSource, machine: Option<&MachineView>) -> Option<FetchOrder> {
        let machine = machine?;
        let connection = machine.connection?;
        let count = |wanted: &dyn Fn(&UnderWay) -> bool| {
            let fetches = self.under_way.values();
            fetches.filter(|fetch| wanted(fetch)).count()
        };
        if count(&|fetch| fetch.place == machine.place) >= OF_MACHINE
            || count(&|fetch| fetch.source.host() == source.host()) >= FROM_HOST
        {
            return None;
        }
        self.last += 1;
        let fetch = UnderWay {
            place: machine.place,
            machine: machine.name.clone(),
            source: source.clone(),
        };
        self.under_way.insert(self.last, fetch);
        Some(FetchOrder {
            number: self.last,
            machine: machine.name.clone(),
            connection,
            source: source.clone(),
        })
    }

    /// Why a Task with this source waits. The last failure stays to be seen until a fetch succeeds.
    pub(super) fn why(&self, source: &GitSource, waiting: &Waiting) -> Why {
        if let Fetch::Failed(_, why) = &waiting.fetch {
            return why.clone();
        }
        let (host, reference) = (source.host(), source.reference());
        let message = match self.of(source) {
            Some(fetch) => format!(
                "machine \"{}\" fetches \"{reference}\" from {host}",
                fetch.machine
            ),
            None => {
                format!("\"{reference}\" is to be fetched from {host}, after the fetches that are under way")
            }
        };
        Why::new(reason::FETCHING_SOURCE, message)
    }
}

impl Dispatcher {
    pub(super) fn on_fetched(
        &mut self,
        number: u64,
        result: Result<SourceStatus, StartError>,
        now: Timestamp,
    ) {
        // The answer of a fetch that was cancelled does not count.
        let Some(UnderWay { machine, source, .. }) = self.fetching.under_way.remove(&number) else {
            return;
        };
        self.dirty = true;
        let stale = StartError::Agent(AgentError::StaleEpoch);
        if result.as_ref().is_err_and(|error| *error == stale) {
            self.doubt_leadership(machine.clone());
        }
        let result = result.map_err(|error| failed(error, &machine));
        for task in self.tasks.values_mut() {
            let Stage::Waiting(waiting) = &mut task.stage else {
                continue;
            };
            if task.entry.git() != Some(&source) || matches!(waiting.fetch, Fetch::Done(_)) {
                continue;
            }
            match &result {
                Ok(found) => {
                    waiting.fetch = Fetch::Done(found.clone());
                    waiting.failed_fetches = 0;
                    waiting.obstacle = None;
                }
                Err(error) => {
                    let pause = pause(error.reason, waiting.failed_fetches);
                    let why = Why::new(error.reason, error.message.clone());
                    waiting.failed_fetches = waiting.failed_fetches.saturating_add(1);
                    waiting.obstacle = Some(why.clone());
                    waiting.fetch = Fetch::Failed(now + pause, why);
                }
            }
        }
    }

    /// Ends fetches that no Task waits for any more: it was suspended or deleted, or its Pool was.
    pub(super) fn cancel_unwanted(&mut self) {
        if self.fetching.under_way.is_empty() {
            return;
        }
        let is_on = self
            .pool
            .as_ref()
            .is_some_and(|pool| pool.why_suspended.is_none() && pool.deleted_at.is_none());
        let tasks = &self.tasks;
        let is_wanted = |source: &GitSource| {
            let mut tasks = tasks.values();
            is_on && tasks.any(|task| task.queues() && task.entry.git() == Some(source))
        };
        let fetches = &mut self.fetching.under_way;
        for (number, _) in fetches.extract_if(.., |_, fetch| !is_wanted(&fetch.source)) {
            self.effects.push(Effect::CancelFetch(FetchKey::Number(number)));
            // Its host and machine have room for another one.
            self.dirty = true;
        }
    }

    /// Ends what brings the files of an attempt that is stopped: the stop would wait for it.
    pub(super) fn cancel_deliveries(&mut self, uid: &Uid) {
        let task = self.tasks.get(uid);
        if task.is_some_and(|task| task.entry.git().is_some()) {
            self.cancel_starts(uid);
        }
    }

    pub(super) fn cancel_starts(&mut self, uid: &Uid) {
        for id in self.runs_of(uid) {
            if self.runs.get(&id).is_some_and(|run| run.start.is_some()) {
                self.effects.push(Effect::CancelFetch(FetchKey::Run(id)));
            }
        }
    }
}

/// Why there are no files, for the user.
fn failed(error: StartError, machine: &str) -> Unresolved {
    let of = |reason, message| Unresolved { reason, message };
    match error {
        StartError::References(error) => error,
        StartError::Agent(AgentError::Refused(why)) => of(
            reason::SOURCE_INVALID,
            format!("machine \"{machine}\" does not fetch source.git: {why}"),
        ),
        StartError::Agent(error) => of(
            reason::SOURCE_UNAVAILABLE,
            format!(
                "machine \"{machine}\" could not fetch source.git: {error}; that is tried again by itself"
            ),
        ),
        StartError::NotNow(why) => of(reason::SOURCE_UNAVAILABLE, why),
        StartError::TaskGone => of(reason::SOURCE_UNAVAILABLE, "the fetch was given up".to_owned()),
    }
}

/// How long to wait before the next try, after so many that failed.
fn pause(reason: &str, failures: u32) -> Duration {
    let (first, longest) = match reason {
        reason::SOURCE_UNAVAILABLE => (AGAIN, LONGEST),
        reason::SOURCE_INVALID => (REFUSED_AGAIN, REFUSED_LONGEST),
        // An object is missing: a look costs little.
        _ => (LOOK_AGAIN, LOOK_AGAIN),
    };
    first.saturating_mul(1 << failures.min(12)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_fails_is_asked_less_and_less_often() {
        let pauses = |reason| [0, 1, 2, 40].map(|failures| pause(reason, failures).as_secs());
        assert_eq!(pauses(reason::SOURCE_UNAVAILABLE), [1, 2, 4, 300]);
        assert_eq!(pauses(reason::SOURCE_INVALID), [30, 60, 120, 600]);
        assert_eq!(pauses(reason::REFERENCE_NOT_FOUND), [3, 3, 3, 3]);
    }
}
