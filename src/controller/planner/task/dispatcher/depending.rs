//! Tasks that wait for other Tasks of their namespace, which may be of any Pool. Each of those is read once for all
//! Tasks of this Pool that wait for it: when the first one comes, when the watch of Tasks shows that it came or left,
//! and now and then in case that the watch has missed it. What was found goes on record with the next status.
//!
//! A Task that waits so does not queue: it is no demand that its Pool has to meet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use skyward_api::task::DependencyStatus;

use super::{
    AGAIN, Dispatcher, WORTH_TELLING, WRITE_AGAIN,
    state::{Read, Stage, queue_key},
};
use crate::{
    base::time::{after, doubled},
    task::{
        dependencies::{self, Found, Known, Verdict},
        message::Effect,
        model::{Entry, Uid},
        status::{self, Why},
    },
};

/// Tasks that are read at the same time.
const READING: usize = 16;
/// Least pause before a Task is read again although nothing was seen of it.
const LOOK_AGAIN: Duration = Duration::from_mins(10);
/// The pause is longer where Tasks of one Pool wait for thousands of others: on average so long passes between two reads.
const APART: Duration = Duration::from_millis(100);

/// The pause before a Task is read again, where Tasks of the Pool wait for so many.
fn look_again(names: usize) -> Duration {
    let names = u32::try_from(names).unwrap_or(u32::MAX);
    LOOK_AGAIN.max(APART.saturating_mul(names))
}

/// What is known of a Task before it is read.
static UNREAD: Known = Known::Unread;

/// How a Task that was not placed yet stands to the Tasks that it depends on.
#[derive(Debug)]
pub(super) struct Depends {
    /// The Tasks that were found.
    pub(super) records: Vec<DependencyStatus>,
    waits: Waits,
    /// Names of the Tasks that wait for each other, this one among them.
    circle: Arc<[Arc<str>]>,
}

#[derive(Debug)]
enum Waits {
    /// The Tasks have to be read first.
    Unread,
    /// For some of them.
    ForTasks(Why),
    /// For none of them any more.
    Over,
}

impl Depends {
    /// That of a Task that this process sees for the first time.
    pub(super) fn of(entry: &Entry) -> Option<Box<Self>> {
        if entry.depends_on.is_empty() || entry.status.attempt > 0 {
            return None;
        }
        Some(Box::new(Self {
            records: entry.status.dependencies.clone(),
            waits: Waits::Unread,
            circle: Arc::default(),
        }))
    }

    /// Whether the Task may start.
    pub(super) fn lets_start(&self) -> bool {
        matches!(self.waits, Waits::Over)
    }

    /// Whether it is not known yet why the Task waits.
    pub(super) fn is_unread(&self) -> bool {
        matches!(self.waits, Waits::Unread)
    }

    /// Why the Task waits.
    pub(super) fn why(&self) -> Option<Why> {
        match &self.waits {
            Waits::ForTasks(_) if !self.circle.is_empty() => Some(dependencies::in_circle(&self.circle)),
            Waits::ForTasks(why) => Some(why.clone()),
            Waits::Unread | Waits::Over => None,
        }
    }

    /// What an earlier leader found counts.
    pub(super) fn take_in(&mut self, entry: &Entry) {
        for theirs in &entry.status.dependencies {
            match self.records.iter_mut().find(|ours| ours.task == theirs.task) {
                Some(ours) => ours.satisfied |= theirs.satisfied && ours.uid == theirs.uid,
                None => self.records.push(theirs.clone()),
            }
        }
    }
}

/// The Tasks of the namespace that Tasks of one Pool wait for.
#[derive(Debug, Default)]
pub(super) struct Depending {
    names: BTreeMap<Arc<str>, Look>,
    /// Names that are to be read now.
    due: BTreeSet<Arc<str>>,
    reading: usize,
}

#[derive(Debug)]
struct Look {
    /// Tasks of this Pool that wait for it.
    by: BTreeSet<Uid>,
    known: Known,
    read: Read,
    /// Reads that failed, in a row.
    failures: u32,
}

impl Depending {
    /// What is known of the Task of that name.
    fn known(&self, name: &str) -> &Known {
        self.names.get(name).map_or(&UNREAD, |look| &look.known)
    }

    /// The names to read now.
    fn next(&mut self) -> Vec<Arc<str>> {
        let mut next = Vec::new();
        while self.reading < READING
            && let Some(name) = self.due.pop_first()
        {
            let Some(look) = self.names.get_mut(&name) else {
                continue;
            };
            if matches!(look.read, Read::InFlight | Read::InFlightAndAgain) {
                look.read = Read::InFlightAndAgain;
                continue;
            }
            look.read = Read::InFlight;
            self.reading += 1;
            next.push(name);
        }
        next
    }
}

impl Dispatcher {
    /// Has the Tasks read that a Task depends on, where nobody has yet.
    pub(super) fn depend(&mut self, uid: &Uid) {
        let Some(task) = self.tasks.get(uid).filter(|task| task.depends.is_some()) else {
            return;
        };
        for name in dependencies::waits_for(&task.entry) {
            let Depending { names, due, .. } = &mut self.depending;
            let look = names.entry(name.clone()).or_insert_with(|| {
                due.insert(name);
                Look {
                    by: BTreeSet::new(),
                    known: Known::Unread,
                    read: Read::Not,
                    failures: 0,
                }
            });
            look.by.insert(uid.clone());
        }
        self.read_dependencies();
    }

    fn read_dependencies(&mut self) {
        if self.served {
            let next = self.depending.next();
            self.effects.extend(next.into_iter().map(Effect::ReadDependency));
        }
    }

    pub(super) fn on_dependency_changed(&mut self, name: &Arc<str>) {
        let Depending { names, due, .. } = &mut self.depending;
        if let Some(look) = names.get_mut(name) {
            // What was read before is no answer for a Task that comes now.
            look.known = Known::Unread;
            due.insert(name.clone());
            self.read_dependencies();
        }
    }

    pub(super) fn on_dependency(
        &mut self,
        name: &Arc<str>,
        result: Result<Option<Found>, String>,
        now: Timestamp,
    ) {
        let Depending { names, due, reading } = &mut self.depending;
        *reading = reading.saturating_sub(1);
        let look_again = look_again(names.len());
        let mut by = BTreeSet::new();
        if let Some(look) = names.get_mut(name) {
            // Something was seen of it meanwhile.
            let is_old = look.read == Read::InFlightAndAgain || due.contains(name);
            if is_old {
                due.insert(name.clone());
            }
            let pause = if let Ok(found) = result {
                look.failures = 0;
                if !is_old {
                    look.known = found.map_or(Known::Missing, Known::There);
                }
                look_again
            } else {
                look.failures = look.failures.saturating_add(1);
                doubled(AGAIN, look.failures - 1, WRITE_AGAIN)
            };
            look.read = Read::At(after(now, pause));
            by.clone_from(&look.by);
        }
        for uid in &by {
            self.steer(uid, now);
        }
        self.read_dependencies();
    }

    /// Forgets Tasks that no Task waits for any more, and has the others read again whose time has come.
    pub(super) fn look_for_dependencies(&mut self, now: Timestamp) {
        let Self { depending, tasks, .. } = self;
        let waits = |uid: &Uid| {
            let task = tasks.get(uid);
            task.is_some_and(|task| {
                let depends = task.depends.as_deref();
                matches!(task.stage, Stage::Waiting(_))
                    && depends.is_some_and(|depends| !depends.lets_start())
            })
        };
        let Depending { names, due, .. } = depending;
        names.retain(|name, look| {
            look.by.retain(&waits);
            if matches!(look.read, Read::At(at) if at <= now) {
                due.insert(name.clone());
            }
            !look.by.is_empty()
        });
        self.read_dependencies();
    }

    /// The Tasks that wait for each other; none when the Task is in no circle any more.
    pub(super) fn on_circle(&mut self, uid: &Uid, names: Arc<[Arc<str>]>) {
        let task = self.tasks.get_mut(uid);
        if let Some(depends) = task.and_then(|task| task.depends.as_deref_mut()) {
            depends.circle = names;
        }
    }

    /// Lets a Task queue once the Tasks that it depends on have ended as they must, and ends it where one did not.
    pub(super) fn weigh_dependencies(&mut self, uid: &Uid, now: Timestamp) {
        let is_held = self.is_held();
        let Self { tasks, depending, .. } = self;
        let Some(task) = tasks.get_mut(uid) else { return };
        let (Some(depends), Stage::Waiting(waiting)) = (task.depends.as_deref_mut(), &mut task.stage) else {
            return;
        };
        if depends.lets_start() {
            return;
        }
        let verdict = dependencies::judge(&task.entry.depends_on, &mut depends.records, |name| {
            depending.known(name)
        });
        match verdict {
            Verdict::Unread => {}
            Verdict::Waits(why) => depends.waits = Waits::ForTasks(why),
            Verdict::Satisfied => {
                depends.waits = Waits::Over;
                waiting.came = now;
                waiting.tell_at = after(now, WORTH_TELLING);
                waiting.begin_patience(&task.entry, now);
                if task.queues() {
                    self.queue.insert(queue_key(&task.entry));
                    self.newcomers.push_back(uid.clone());
                }
                self.dirty = true;
            }
            Verdict::Failed(why) => {
                // Decided again later, and the same then.
                if !is_held && task.write.is_none() && task.read == Read::Not {
                    let status = status::ended(&task.entry, task.counts, &[], None, Some(why), now);
                    self.end_task(uid, status, now);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_that_wait_for_many_others_have_at_most_ten_of_them_read_in_a_second() {
        assert_eq!(look_again(1), LOOK_AGAIN);
        assert_eq!(look_again(160_000), Duration::from_secs(16_000));
        assert!(look_again(usize::MAX) > Duration::from_hours(24));
    }
}
