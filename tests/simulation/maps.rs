//! Maps: the rules about their items. The world keeps a ledger of every attempt of an item that a machine began, with how
//! it ended there, which no agent and no process can change; what is stored is read as a new leader would.
//!
//! - No attempt of an item begins twice, nor one that is not newer than all before, nor one beside another that may go
//!   on: on a machine that exists, whether it answers or not.
//! - An item whose success left its machine and was acknowledged begins never again, and none begins more often than
//!   its retries allow. An attempt of which no record is left counts as an interruption.
//! - A machine is told to forget an end only when the log has it, or something newer.
//! - One process alone appends to a log: that whose mark is the newest.
//! - A map that has ended has one outcome for each index, and that of a success is of a machine that had it.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use rand::{Rng, rngs::StdRng};
use serde_json::json;
use skyward_api::{Task, TaskPhase, condition::reason};
use skyward_planner::map::{
    items::Items,
    record::{Cause, Ended, Note, Record},
};
use skyward_store::{
    Store,
    maps::{Head, Heads},
};

use crate::{
    play::Play,
    rules::{read, text},
    shares::{Happened, How, What, map_of},
    time::now,
    world::{TEAM, Truth, World, one_of},
};

/// One attempt of an item that a machine began.
#[derive(Clone, Debug)]
struct Attempt {
    number: u32,
    /// The cloud's id of its machine.
    machine: String,
    /// How it ended there.
    ended: Option<How>,
    /// Whether the machine was told that its end is stored.
    acknowledged: bool,
}

/// An item: the UID of its Task, and its index.
type Item = (String, u32);

/// What the rules remember of items.
#[derive(Clone, Debug, Default)]
pub(crate) struct Maps {
    begun: BTreeMap<Item, Vec<Attempt>>,
    /// Which machines were given an item, by the cloud's ids.
    given: BTreeMap<Item, BTreeSet<String>>,
    /// By the UID of a Task: the process that appends to the log, by its number.
    leads: BTreeMap<String, u32>,
    /// How many maps users made.
    made: u32,
}

impl Maps {
    /// An item of that map that another machine runs, with its attempt, for a liar to tell of.
    pub(crate) fn runs_elsewhere(&self, map: &str, machine: &str) -> Option<(u32, u32)> {
        let own = self.begun.iter().filter(|((of, _), _)| of == map);
        own.filter_map(|((_, index), attempts)| Some((*index, attempts.last()?)))
            .find(|(_, last)| last.ended.is_none() && last.machine != machine)
            .map(|(index, last)| (index, last.number))
    }

    /// A machine was given items.
    pub(crate) fn given(&mut self, map: &str, machine: &str, indices: Vec<u32>) {
        for index in indices {
            let machines = self.given.entry((map.to_owned(), index)).or_default();
            machines.insert(machine.to_owned());
        }
    }
}

/// How many items a Task has; `None`: it is no map of numbers.
fn count_of(task: &Task) -> Option<u32> {
    task.spec.for_each.as_ref()?.count
}

/// What a log says; the error: it cannot be read.
fn replayed(log: &[Heads], total: u32) -> Result<Items, String> {
    let mut items = Items::new(total);
    for head in log.iter().flat_map(|part| part.heads.iter()) {
        match head {
            Head::Leader(_) => {}
            Head::Note(text) => {
                let note: Note = text.parse().map_err(|_| format!("an unknown note: {text}"))?;
                items.apply(&Record::Note(note));
            }
            Head::Ended(ended, _) => {
                let cause = Cause::of_number(ended.cause).ok_or("an unknown cause")?;
                items.apply(&Record::Ended(Ended {
                    index: ended.index,
                    attempt: ended.attempt,
                    cause,
                    is_final: ended.is_final,
                }));
            }
        }
    }
    Ok(items)
}

impl World {
    /// The Task with that UID, if it is there.
    fn map_task(&self, uid: &str) -> Option<Task> {
        let objects = self.server.all("tasks");
        let mut objects = objects.iter();
        let found = objects.find(|task| text(task, "/metadata/uid") == uid);
        found.map(|task| read(task))
    }

    /// The log of a map, as the next leader would read it; the error: it cannot be read.
    fn log_of(&self, uid: &str) -> Result<Vec<Heads>, String> {
        let store = std::sync::Arc::new(Store::over(self.store.clone()));
        // Objects in memory answer at once.
        let read = store.map_records(uid, 0, &[]).now_or_never();
        let read = read.ok_or_else(|| "it does not answer".to_owned())?;
        read.map_err(|error| error.to_string())
    }

    /// Takes in what happened to items on all machines until now, in the order of time.
    pub(crate) fn observe_items(&self, truth: &mut Truth) {
        let mut all: Vec<(String, Happened)> = Vec::new();
        for machine in truth.clouds.values_mut().flat_map(|cloud| &mut cloud.rented) {
            machine.work(now());
            let happened = std::mem::take(&mut machine.agent.happened);
            all.extend(
                happened
                    .into_iter()
                    .map(|happened| (machine.id.clone(), happened)),
            );
        }
        // An end makes room for a beginning at the same moment.
        all.sort_by_key(|(_, happened)| (happened.at, happened.what == What::Began));
        for (machine, happened) in all {
            match happened.what {
                What::Began => self.item_began(truth, &machine, &happened),
                What::Ended(how) => {
                    let item = (map_of(&happened.run).to_owned(), happened.index);
                    let attempts = truth.maps.begun.entry(item).or_default();
                    let mut attempts = attempts.iter_mut().rev();
                    let own =
                        attempts.find(|begun| begun.number == happened.attempt && begun.machine == machine);
                    if let Some(own) = own {
                        own.ended = Some(how);
                    }
                }
            }
        }
    }

    fn item_began(&self, truth: &mut Truth, machine: &str, happened: &Happened) {
        let Happened {
            at,
            run,
            index,
            attempt,
            ..
        } = happened;
        let item = (map_of(run).to_owned(), *index);
        if !truth.is_excused(machine) {
            let known = truth.maps.begun.get(&item).map(Vec::as_slice).unwrap_or_default();
            let before: Vec<Attempt> = known
                .iter()
                .filter(|begun| !truth.is_excused(&begun.machine))
                .cloned()
                .collect();
            let what = format!(
                "item {index} of {} begins as attempt {attempt} at {machine}",
                item.0
            );
            let not_older = before.iter().find(|begun| begun.number >= *attempt);
            truth.rule(not_older.is_none(), || format!("{what}, after {not_older:?}"));
            let exists = |id: &str| truth.machine(id).is_some_and(|machine| machine.exists(*at));
            let beside = before
                .iter()
                .find(|begun| begun.ended.is_none() && exists(&begun.machine));
            truth.rule(beside.is_none(), || format!("{what}, beside {beside:?}"));
            let done = before
                .iter()
                .find(|begun| begun.acknowledged && begun.ended == Some(How::Exits(0)));
            truth.rule(done.is_none(), || format!("{what}, and is done: {done:?}"));
            self.may_run_again(truth, &item.0, &before, &what);
        }
        let begun = Attempt {
            number: *attempt,
            machine: machine.to_owned(),
            ended: None,
            acknowledged: false,
        };
        truth.maps.begun.entry(item).or_default().push(begun);
    }

    /// An item runs no more often than the retries of its Task allow.
    fn may_run_again(&self, truth: &mut Truth, uid: &str, before: &[Attempt], what: &str) {
        let task = self.map_task(uid);
        let Some(retries) = task.and_then(|task| task.spec.retries) else {
            return;
        };
        // A failure that was lost with its machine is an interruption.
        let failed = |begun: &&Attempt| {
            begun.acknowledged && matches!(begun.ended, Some(How::Exits(code)) if code != 0)
        };
        let lost = |begun: &&Attempt| matches!(begun.ended, None | Some(How::Interrupted | How::Cut));
        let failures = before.iter().filter(failed).count();
        let interruptions = before.iter().filter(lost).count();
        if let Some(most) = retries.on_failure {
            truth.rule(failures <= most as usize, || {
                format!("{what}, after {failures} failures of {most}")
            });
        }
        if let Some(most) = retries.on_interruption {
            truth.rule(interruptions <= most as usize, || {
                format!("{what}, after {interruptions} interruptions of {most}")
            });
        }
    }

    /// Before a machine may forget ends of items: the log has them, or something newer.
    pub(crate) fn may_acknowledge(&self, truth: &mut Truth, machine: &str, map: &str, ends: &[(u32, u32)]) {
        if ends.is_empty() {
            return;
        }
        for (index, attempt) in ends {
            let attempts = truth.maps.begun.get_mut(&(map.to_owned(), *index));
            let own = attempts.into_iter().flatten();
            for own in own.filter(|begun| begun.number == *attempt && begun.machine == machine) {
                own.acknowledged = true;
            }
        }
        if truth.is_excused(machine) {
            return;
        }
        let Some(total) = self.map_task(map).as_ref().and_then(count_of) else {
            return;
        };
        let log = self.log_of(map).and_then(|log| replayed(&log, total));
        let items = match log {
            Ok(items) => items,
            Err(why) => return truth.rule(false, || format!("the log of {map} cannot be read: {why}")),
        };
        let lost = ends
            .iter()
            .find(|(index, attempt)| !items.done().contains(*index) && items.attempt(*index) <= *attempt);
        truth.rule(lost.is_none(), || {
            format!("{machine} forgets the end of item {lost:?} of {map}, which is not stored")
        });
    }

    /// A process has written that object of a log.
    pub(crate) fn may_append(&self, process: u32, map: &str, number: u64, was_there: bool) {
        if self.map_task(map).is_none() {
            // What comes after the deletion of a Task is swept.
            return;
        }
        let log = self.log_of(map);
        let mut truth = self.truth();
        truth.rule(!was_there, || {
            format!("process {process} writes over write {number} of the log of {map}")
        });
        let log = match log {
            Ok(log) => log,
            Err(why) => return truth.rule(false, || format!("the log of {map} cannot be read: {why}")),
        };
        let written = log.iter().find(|part| part.first == number);
        let is_mark = written.is_some_and(|part| matches!(part.heads.first(), Some(Head::Leader(_))));
        if is_mark {
            truth.maps.leads.insert(map.to_owned(), process);
            return;
        }
        let leads = truth.maps.leads.get(map).copied();
        truth.rule(leads == Some(process), || {
            format!("process {process} appends to the log of {map}, which is that of process {leads:?}")
        });
    }

    /// A Task has ended: if it is a map, its items have.
    pub(crate) fn map_may_end(&self, truth: &mut Truth, task: &Task) {
        let uid = task.metadata.uid.clone().unwrap_or_default();
        let (Some(total), Some(status)) = (count_of(task), &task.status) else {
            return;
        };
        self.observe_items(truth);
        let name = task.metadata.name.clone().unwrap_or_default();
        let has_succeeded = status.phase == Some(TaskPhase::Succeeded);
        if !has_succeeded && status.reason != reason::ITEMS_FAILED {
            return;
        }
        let told = status.items.clone().unwrap_or_default();
        let log = self.log_of(&uid).and_then(|log| replayed(&log, total));
        let items = match log {
            Ok(items) => items,
            Err(why) => return truth.rule(false, || format!("the log of map {name} cannot be read: {why}")),
        };
        let (done, failed) = (items.done().len(), items.failed().len());
        truth.rule(done == total && (failed == 0) == has_succeeded, || {
            format!("map {name} has ended with {done} of {total} items, of which {failed} failed")
        });
        truth.rule(
            (told.total, told.succeeded, told.failed) == (total, total - failed.min(total), failed),
            || format!("map {name} tells {told:?}, and stored are {done} items, of which {failed} failed"),
        );
        let without = (0..total).find(|index| {
            let item = (uid.clone(), *index);
            let attempts = truth.maps.begun.get(&item).map(Vec::as_slice).unwrap_or_default();
            let given = truth.maps.given.get(&item);
            let is_excused = given
                .into_iter()
                .flatten()
                .any(|machine| truth.is_excused(machine));
            let success = |begun: &Attempt| begun.ended == Some(How::Exits(0));
            // A success that was lost with its machine is an interruption.
            let is_right = if items.failed().contains(*index) {
                !attempts.iter().any(|begun| begun.acknowledged && success(begun))
            } else {
                attempts.iter().any(success)
            };
            !is_right && !is_excused
        });
        truth.rule(without.is_none(), || {
            format!("map {name} has another outcome of item {without:?} than its machine")
        });
    }

    /// Maps that do not run and do not say why.
    pub(crate) fn unsaid(&self) -> Vec<String> {
        let tasks = self.server.all("tasks");
        let tasks = tasks.iter().map(|task| read::<Task>(task));
        let unsaid = tasks.filter_map(|task| {
            count_of(&task)?;
            let status = task.status.unwrap_or_default();
            let is_said = status.phase.unwrap_or_default() != TaskPhase::Pending || !status.reason.is_empty();
            let name = task.metadata.name.unwrap_or_default();
            (!is_said).then(|| format!("map {name} waits, and does not say for what"))
        });
        unsaid.collect()
    }
}

impl Play {
    /// A user makes a map of so many items at most.
    pub(crate) fn add_map(&mut self, pool: &str, random: &mut StdRng, most: u32) {
        let number = {
            let mut truth = self.world.truth();
            truth.maps.made += 1;
            truth.maps.made
        };
        let count = random.random_range(5..=most);
        let parallelism = one_of(random, &[None, None, Some(1), Some(2)]);
        let max_failed = one_of(random, &[None, None, None, Some(0)]);
        let on_interruption = one_of(random, &[1, 20, 20]);
        let on_failure = one_of(random, &[0, 1, 5]);
        let task = json!({ "metadata": { "name": format!("map{number}") }, "spec": {
            "pool": pool,
            "command": ["work"],
            "forEach": { "count": count, "parallelism": parallelism, "maxFailedItems": max_failed },
            "retries": {
                "onInterruption": on_interruption,
                "onFailure": on_failure,
                "backoff": { "initial": "1s", "max": "2s" },
            },
        }});
        self.tell(format!("somebody makes a map: {task}"));
        let made = self.world.server.put("tasks", TEAM, task);
        made.expect("it is not there yet");
        self.note();
    }
}
