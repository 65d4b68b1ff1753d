//! Tasks that wait for each other, and Tasks that are made by the clock, each told with one fault at a call of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase};

use crate::{
    kinds::ALL,
    play::Play,
    rules::{read, text},
    time::{HOUR, MINUTE},
    world::{Odds, TEAM, World},
};

/// The Tasks of the chain, each with the one that it waits for. The last one comes first.
const CHAIN: [(&str, Option<&str>); 3] = [
    ("third", Some("second")),
    ("second", Some("first")),
    ("first", None),
];
/// How long Tasks are made by the clock, in minutes.
const MINUTES: i64 = 10;

/// A Pool of one machine.
fn one_machine() -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.add_provider("a", ALL[0]);
    play.add_pool("x", &["a"], 1);
    play
}

/// Three Tasks run one after the other. The first two are deleted as soon as their ends are on record, and again
/// run until they succeed.
pub(crate) fn chain() -> Play {
    let mut play = one_machine();
    for (name, after) in CHAIN {
        let depends: Vec<Value> = after.into_iter().map(|task| json!({ "task": task })).collect();
        let is_last = name == "third";
        let task = json!({ "metadata": { "name": name }, "spec": {
            "pool": "x",
            "command": ["work"],
            "dependsOn": depends,
            "ttlSecondsAfterFinished": (!is_last).then_some(0),
            "retries": { "onInterruption": 20, "onFailure": 20, "backoff": { "initial": "1s", "max": "2s" } },
        }});
        play.make("tasks", task);
    }
    play.settle(0, 2 * HOUR, World::chain_unrest);
    play
}

/// Each minute has its Task, none of which is kept: its ttl has passed with its end. No minute has two, whether the first
/// one is still there or not, and also when its leader died before it was on record that the Task was made.
pub(crate) fn by_the_minute() -> Play {
    let mut play = one_machine();
    play.settle(0, HOUR / 2, World::unrest);
    if play.is_broken() {
        return play;
    }
    let cron = json!({ "metadata": { "name": "minutely" }, "spec": {
        "schedule": "* * * * *",
        "successfulTasksHistoryLimit": 0,
        "failedTasksHistoryLimit": 0,
        "taskTemplate": { "spec": { "pool": "x", "command": ["work"], "ttlSecondsAfterFinished": 0 } },
    }});
    play.make("crontasks", cron);
    play.pass(MINUTES * MINUTE);
    if play.is_broken() {
        return play;
    }
    let suspended = json!({ "spec": { "suspend": true } });
    let suspended = play.world.server.change("crontasks", TEAM, "minutely", suspended);
    suspended.expect("it is there");
    play.note();
    play.settle(0, 2 * HOUR, |world| {
        let left = world.server.all("tasks");
        let left = left
            .iter()
            .map(|task| format!("Task {} is left", text(task, "/metadata/name")));
        left.chain(world.runs_left()).collect()
    });
    let mut made: BTreeMap<String, u32> = BTreeMap::new();
    let mut open: BTreeSet<String> = BTreeSet::new();
    let mut beside = Vec::new();
    for change in play.world.server.changes_since(0) {
        if change.plural() != "tasks" {
            continue;
        }
        let name = text(&change.object, "/metadata/name").to_owned();
        let status = read::<Task>(&change.object).status.unwrap_or_default();
        if change.gone || status.phase.unwrap_or_default().is_finished() {
            open.remove(&name);
        } else if change.before.is_none() {
            *made.entry(name.clone()).or_default() += 1;
            if !open.is_empty() {
                beside.push(name.clone());
            }
            open.insert(name);
        }
    }
    // A Task takes a minute at most, and one process after the other a few until it leads.
    let numbers = usize::try_from(MINUTES).unwrap_or_default();
    let is_right = (2..=numbers + 1).contains(&made.len()) && made.values().all(|times| *times == 1);
    let mut truth = play.world.truth();
    truth.rule(is_right, || {
        format!("Tasks were made so often in {MINUTES} minutes: {made:?}")
    });
    // concurrencyPolicy is Forbid unless another one is set.
    truth.rule(beside.is_empty(), || {
        format!("{beside:?} were made while another Task of the CronTask had not ended")
    });
    drop(truth);
    play
}

impl World {
    /// Whether a Task of that name has ever succeeded.
    pub(crate) fn has_succeeded(&self, name: &str) -> bool {
        self.server.changes_since(0).iter().any(|change| {
            change.plural() == "tasks"
                && text(&change.object, "/metadata/name") == name
                && text(&change.object, "/status/phase") == "Succeeded"
        })
    }

    /// Why the last Task of the chain has not succeeded, or one of the others is still there.
    fn chain_unrest(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, _) in CHAIN {
            let task = self.server.get("tasks", TEAM, name);
            let status = task.map(|task| read::<Task>(&task).status.unwrap_or_default());
            let is_right = match &status {
                Some(status) => name == "third" && status.phase == Some(TaskPhase::Succeeded),
                None => name != "third",
            };
            if !is_right {
                wrong.push(format!("Task {name}: {status:?}"));
            }
        }
        wrong.extend(self.runs_left());
        wrong
    }
}

impl Play {
    /// A user makes an object.
    pub(crate) fn make(&mut self, plural: &str, object: Value) {
        self.tell(format!("somebody makes one of {plural}: {object}"));
        let made = self.world.server.put(plural, TEAM, object);
        made.expect("it is not there yet");
        self.note();
    }
}
