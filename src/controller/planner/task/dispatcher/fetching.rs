//! Files that come from git: a machine of the Pool fetches them before the first attempt, and the commit goes on
//! record with the first placement. Until then nothing is on record, and a new leader fetches again.
//!
//! A Task that waits for its files holds no place, and few fetches go to one host at a time, so that a slow host
//! delays nobody else. Tasks with the same source, and the same choice of its files, share a fetch: one that begins
//! after they came, since a branch may have moved on before.
//!
//! A source that fails for long, as with a wrong password, is tried by a machine that is there and keeps no machine for
//! that. Since only a machine can try it, the Task asks for one again after an hour without any.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use skyward_api::{
    condition::reason,
    task::{GitSource, Source, SourceStatus},
};
use skyward_core::session::AgentError;

use super::{
    AGAIN, Dispatcher, LOOK_AGAIN, REFUSED_AGAIN, REFUSED_LONGEST,
    state::{Fetch, Stage, Waiting},
};
use crate::{
    base::time::doubled,
    events::{self, EventSpec},
    task::{
        message::{Effect, FetchKey, FetchOrder, FetchedSource, StartError},
        model::{Entry, MachineView, SlotAttempt, Uid},
        references::Unresolved,
        status::Why,
    },
};

/// Longest pause before a host that is not reached is asked again.
pub(super) const LONGEST: Duration = Duration::from_mins(5);
/// Fetches of one machine at the same time: as many as its agent takes.
const OF_MACHINE: usize = 4;
/// Fetches from one host at the same time.
const FROM_HOST: usize = 2;

/// A source that failed so often in a row is no reason for a machine: about two minutes of tries.
const HOPELESS: u32 = 8;
/// Where no machine is there, one is asked for that long after the time at which the source would have been tried again.
const ASK_EVERY: Duration = Duration::from_hours(1);

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
    source: Source,
    began: Timestamp,
}

impl UnderWay {
    /// Whether a Task that waits for this source takes what the fetch finds.
    fn is_for(&self, source: &Source, waiting: &Waiting) -> bool {
        self.source == *source && waiting.came <= self.began
    }

    /// What the machine found, for the user.
    fn resolved(&self, found: &SourceStatus) -> String {
        let reference = reference(&self.source);
        let (host, commit, machine) = (host(&self.source), &found.commit, &self.machine);
        format!("\"{reference}\" of {host} is the commit {commit}: machine \"{machine}\" fetched it")
    }
}

/// The host of a git repository, with its port.
fn host(source: &Source) -> &str {
    source.git.as_ref().map_or("", GitSource::host)
}

/// The branch, tag or commit of a git repository.
fn reference(source: &Source) -> &str {
    source.git.as_ref().map_or("", GitSource::reference)
}

/// The files of a Task that waits.
#[derive(Debug)]
pub(super) enum Files<'a> {
    /// They are known, or read from elsewhere.
    Known,
    /// They are being fetched, or a fetch failed a moment ago.
    Awaited(Why),
    /// They are to be fetched, once there is room for the Task.
    Wanted(&'a Source),
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
        Fetch::Not | Fetch::Failed(..) if fetching.of(source, waiting).is_some() => {
            Files::Awaited(fetching.why(source, waiting))
        }
        Fetch::Not | Fetch::Failed(..) => Files::Wanted(source),
    }
}

/// Whether such a trouble is one of fetching.
pub(super) fn is_of_git(reason: &str) -> bool {
    [reason::SOURCE_UNAVAILABLE, reason::SOURCE_INVALID].contains(&reason)
}

impl Waiting {
    /// Takes up from the record that the source failed: a Pool that sleeps must not wake because another controller
    /// leads. A machine that is there tries it at once.
    pub(super) fn recall_fetch(&mut self, entry: &Entry, now: Timestamp) {
        let is_wanted = entry.git().is_some() && entry.recorded_source().is_none();
        let told = self.told.clone();
        let Some(why) = told.filter(|why| is_wanted && is_of_git(why.reason)) else {
            return;
        };
        self.failed_fetches = HOPELESS;
        self.obstacle = Some(why.clone());
        self.fetch = Fetch::Failed(now, why);
    }

    /// Whether the source failed so often, or in such a way, that the Task is no reason for a machine.
    pub(super) fn lacks_source(&self) -> bool {
        let Fetch::Failed(_, why) = &self.fetch else {
            return false;
        };
        why.reason != reason::SOURCE_UNAVAILABLE || self.failed_fetches >= HOPELESS
    }

    /// Where no machine has tried the source for an hour, the Task asks for one until its next try.
    pub(super) fn ask_for_source(&mut self, now: Timestamp) {
        if matches!(&self.fetch, Fetch::Failed(until, _) if *until + ASK_EVERY <= now) {
            self.fetch = Fetch::Not;
            self.obstacle = None;
            self.failed_fetches = self.failed_fetches.min(HOPELESS - 1);
        }
    }
}

impl Fetching {
    fn of(&self, source: &Source, waiting: &Waiting) -> Option<&UnderWay> {
        let mut fetches = self.under_way.values();
        fetches.find(|fetch| fetch.is_for(source, waiting))
    }

    /// Begins a fetch on that machine, unless it, or the host, has enough of them.
    pub(super) fn begin(
        &mut self,
        source: &Source,
        machine: Option<&MachineView>,
        now: Timestamp,
    ) -> Option<FetchOrder> {
        let machine = machine?;
        let connection = machine.connection?;
        let count = |wanted: &dyn Fn(&UnderWay) -> bool| {
            let fetches = self.under_way.values();
            fetches.filter(|fetch| wanted(fetch)).count()
        };
        if count(&|fetch| fetch.place == machine.place) >= OF_MACHINE
            || count(&|fetch| host(&fetch.source) == host(source)) >= FROM_HOST
        {
            return None;
        }
        self.last += 1;
        let fetch = UnderWay {
            place: machine.place,
            machine: machine.name.clone(),
            source: source.clone(),
            began: now,
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
    pub(super) fn why(&self, source: &Source, waiting: &Waiting) -> Why {
        if let Fetch::Failed(_, why) = &waiting.fetch {
            return why.clone();
        }
        let (host, reference) = (host(source), reference(source));
        let message = match self.of(source, waiting) {
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
        result: Result<FetchedSource, StartError>,
        now: Timestamp,
    ) {
        // The answer of a fetch that was cancelled does not count.
        let Some(fetch) = self.fetching.under_way.remove(&number) else {
            return;
        };
        let machine = &fetch.machine;
        self.dirty = true;
        let stale = StartError::Agent(AgentError::StaleEpoch);
        if result.as_ref().is_err_and(|error| *error == stale) {
            self.doubt_leadership(machine.clone());
        }
        let result = result.map_err(|error| failed(error, machine));
        let mut supplied = Vec::new();
        for (uid, task) in &mut self.tasks {
            let Stage::Waiting(waiting) = &mut task.stage else {
                continue;
            };
            let source = task.entry.git();
            if !source.is_some_and(|source| fetch.is_for(source, waiting))
                || matches!(waiting.fetch, Fetch::Done(_))
            {
                continue;
            }
            let is_of_source = task.entry.map.is_some_and(|map| map.is_of_source);
            let outcome = match &result {
                Ok(FetchedSource {
                    not_kept: Some(why), ..
                }) if is_of_source => Err(not_kept(why, machine)),
                Ok(found) => Ok(found.source.clone()),
                Err(error) => Err(error.clone()),
            };
            match outcome {
                Ok(found) => {
                    waiting.fetch = Fetch::Done(found);
                    waiting.failed_fetches = 0;
                    waiting.obstacle = None;
                    supplied.push(uid.clone());
                }
                Err(error) => {
                    let pause = pause(error.reason, waiting.failed_fetches);
                    let why = Why::new(error.reason, error.message);
                    waiting.failed_fetches = waiting.failed_fetches.saturating_add(1);
                    waiting.obstacle = Some(why.clone());
                    waiting.fetch = Fetch::Failed(now + pause, why);
                }
            }
        }
        if let Ok(found) = &result {
            let note = fetch.resolved(&found.source);
            for uid in &supplied {
                let event = EventSpec::normal(events::reason::SOURCE_RESOLVED, "Fetch", note.as_str());
                self.publish_merged(uid, event);
            }
        }
    }

    /// Ends fetches that no Task waits for any more: it was suspended or deleted, or its Pool was.
    pub(super) fn cancel_unwanted(&mut self) {
        if self.fetching.under_way.is_empty() {
            return;
        }
        let is_on = self.pool.as_ref().is_some_and(|pool| pool.takes_work());
        let tasks = &self.tasks;
        let is_wanted = |fetch: &UnderWay| {
            is_on
                && tasks.values().any(|task| match (&task.stage, task.entry.git()) {
                    (Stage::Waiting(waiting), Some(source)) => {
                        let is_known = matches!(waiting.fetch, Fetch::Done(_));
                        task.queues() && !is_known && fetch.is_for(source, waiting)
                    }
                    _ => false,
                })
        };
        let fetches = &mut self.fetching.under_way;
        for (number, _) in fetches.extract_if(.., |_, fetch| !is_wanted(fetch)) {
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

/// Why a Task waits whose items are in a file that the result store did not keep: with the commit on record, and a place, it
/// could only fail.
fn not_kept(why: &str, machine: &str) -> Unresolved {
    Unresolved {
        reason: reason::SOURCE_UNAVAILABLE,
        message: format!(
            "machine \"{machine}\" fetched source.git, and the result store did not keep its files, one of which has the items: \
             {why}; that is tried again by itself"
        ),
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
    doubled(first, failures, longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_fetch_found_is_said_with_ref_host_commit_and_machine_and_without_the_user_of_the_url() {
        let git = GitSource {
            url: "ssh://git@git.example:2222/code".to_owned(),
            reference: Some("main".to_owned()),
            ..GitSource::default()
        };
        let fetch = UnderWay {
            place: SlotAttempt::default(),
            machine: "p-0.1".into(),
            source: Source {
                git: Some(git),
                ..Source::default()
            },
            began: Timestamp::UNIX_EPOCH,
        };
        let found = SourceStatus {
            digest: "sha256:d".to_owned(),
            commit: "3f6c".to_owned(),
        };
        assert_eq!(
            fetch.resolved(&found),
            r#""main" of git.example:2222 is the commit 3f6c: machine "p-0.1" fetched it"#
        );
    }

    #[test]
    fn a_host_that_fails_is_asked_less_and_less_often() {
        let pauses = |reason| [0, 1, 2, 40].map(|failures| pause(reason, failures).as_secs());
        assert_eq!(pauses(reason::SOURCE_UNAVAILABLE), [1, 2, 4, 300]);
        assert_eq!(pauses(reason::SOURCE_INVALID), [30, 60, 120, 600]);
        assert_eq!(pauses(reason::REFERENCE_NOT_FOUND), [3, 3, 3, 3]);
    }
}
