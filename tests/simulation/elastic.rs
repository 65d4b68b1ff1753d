//! Pools that grow with their Tasks, shrink, sleep and wake: a story with one fault at a call of it, histories from seeds
//! with users who scale, and the rules. A Pool works towards more machines than its floor only for work, and no more of
//! them than its work has places; it wakes only for work or because a user changed it, and sleeps while none waits that
//! could begin. A Task that waits for another one is no work. A Pool that has its floor is not Stalled for machines that
//! fail. No machine that works ends while a Task needs what it has.

use rand::Rng;
use serde_json::{Value, json};
use skyward_api::{
    Pool, PoolPhase, Task,
    condition::{STALLED, reason},
    task::Placement,
};
use skyward_apisim::Change;
use skyward_core::ProviderMachine;

use crate::{
    kinds::ALL,
    play::Play,
    rules::{read, text},
    time::{HOUR, MINUTE, SECOND},
    world::{Odds, TEAM, Truth, World, one_of},
};

/// Tasks that come at once: more than one machine does in the time in which another one starts.
const TASKS: u32 = 12;
/// Reasons of `Stalled` for machines that fail.
const OF_MACHINES: [&str; 4] = [
    reason::PROVISIONING_FAILED,
    reason::ALL_PROVIDERS_FAILED,
    reason::BOOTSTRAP_FAILED,
    reason::ORDER_REFUSED,
];

/// A Pool of one to three at a cloud of that kind serves its Tasks and sleeps, wakes for one more, and is deleted.
pub(crate) fn elastic(kind: usize) -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.add_provider("a", ALL[kind]);
    play.add_pool("x", &["a"], 1);
    let spec = json!({
        "nodes": { "desired": 1, "max": 3 }, "autoscale": { "scaleDownAfter": "1m" }, "idleTimeout": "5m"
    });
    play.change_pool("x", spec);
    for _ in 0..TASKS {
        play.add_task_of("One");
    }
    play.settle(0, 2 * HOUR, World::not_asleep);
    if play.is_broken() {
        return play;
    }
    play.pass(10 * MINUTE);
    // A Task that waits for another one wakes nothing.
    let waits = json!({ "metadata": { "name": "waits" }, "spec": {
        "pool": "x", "command": ["work"], "dependsOn": [{ "task": "nobody" }],
    }});
    play.make("tasks", waits);
    play.pass(10 * MINUTE);
    if play.is_broken() {
        return play;
    }
    let _gone = play.world.server.delete("tasks", TEAM, "waits");
    play.note();
    play.add_task_of("All");
    play.pass(5 * SECOND);
    play.settle(0, 2 * HOUR, World::not_asleep);
    if play.is_broken() {
        return play;
    }
    play.delete_all("tasks", TEAM);
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, HOUR, |world| world.remains(&accounts));
    play.world.meter_agrees();
    play
}

/// The history of a seed: users come with bursts of Tasks and change their minds about how a Pool scales, machines fail,
/// stock runs out, and processes die or stand still. Then the Pool sleeps, and goes.
pub(crate) fn scaling(seed: u64) -> Play {
    let mut play = Play::new(seed, |random| Odds {
        lies: 0,
        ..Play::some_odds(random)
    });
    let kind = play.random.random_range(0..ALL.len());
    play.world.add_provider("a", ALL[kind]);
    play.world.truth().add_stranger("a-1");
    play.add_pool("x", &["a"], 1);
    play.scale_anew();
    play.world.truth().calm = false;
    for _ in 0..play.random.random_range(8..24) {
        if play.is_broken() {
            return play;
        }
        let time = play.random.random_range(0..MINUTE);
        play.pass(time);
        play.happen_to_a_pool_that_grows();
    }
    play.world.truth().calm = true;
    play.put_right_for_good();
    play.change_pool("x", json!({ "idleTimeout": "2m" }));
    play.settle(0, 4 * HOUR, World::not_asleep);
    if play.is_broken() {
        return play;
    }
    play.delete_all("tasks", TEAM);
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, 2 * HOUR, |world| world.remains(&accounts));
    play.world.meter_agrees();
    play
}

impl Play {
    /// A user says anew how the Pool scales.
    fn scale_anew(&mut self) {
        let desired = self.random.random_range(1..3);
        let more = self.random.random_range(1..4);
        let after = one_of(&mut self.random, &[None, Some("20s"), Some("1m"), Some("5m")]);
        let idle = one_of(&mut self.random, &["1m", "3m", "Never"]);
        let spec = json!({
            "nodes": { "desired": desired, "max": desired + more },
            "autoscale": after.map(|after| json!({ "scaleDownAfter": after })),
            "idleTimeout": idle,
        });
        self.change_pool("x", spec);
    }

    fn happen_to_a_pool_that_grows(&mut self) {
        match self.random.random_range(0..16) {
            0..6 => {
                for _ in 0..self.random.random_range(1..9) {
                    self.add_task_of("One");
                }
            }
            6 => self.add_task(),
            7 | 8 => self.happen_to_a_task(),
            // It fails, vanishes, or is taken back.
            9 | 10 => {
                let what = self.random.random_range(0..3);
                self.befall_a_machine(what);
            }
            11 => self.change_stock(),
            12 => {
                let machines = one_of(&mut self.random, &[None, Some(1), Some(2)]);
                self.limit(machines);
            }
            13 => self.happen_to_an_agent(),
            14 => self.scale_anew(),
            _ => {}
        }
    }
}

/// Whether a Pool scales with its work.
fn grows(pool: &Value) -> bool {
    let nodes = &pool["spec"]["nodes"];
    let desired = nodes["desired"].as_u64().unwrap_or(1);
    desired > 0 && nodes["max"].as_u64().is_some_and(|most| most > desired)
}

/// Whether a machine works, and its record says that it goes.
fn goes(machine: &Value) -> bool {
    let is_deleted = !machine["metadata"]["deletionTimestamp"].is_null();
    let is_lost = text(machine, "/status/phase") == "Failed" || !machine["status"]["reclaimAt"].is_null();
    is_deleted && !is_lost
}

/// How many machines a Task may use, each of which has one place.
fn places(task: &Task) -> usize {
    let is_one = task.spec.for_each.is_none() && task.spec.parsed_placement() == Some(Placement::One);
    if is_one { 1 } else { usize::MAX }
}

fn is_over(task: &Task) -> bool {
    let status = task.status.as_ref();
    status
        .and_then(|status| status.phase)
        .is_some_and(skyward_api::TaskPhase::is_finished)
}

impl World {
    /// A Task was written, or is gone.
    pub(crate) fn work_changed(&self, change: &Change) {
        let task: Task = read(change.before.as_ref().unwrap_or(&change.object));
        let pool = task.pool();
        if !is_over(&task) && self.could_begin(&task) {
            self.truth().watched.note_work(pool);
        }
        let places = self.open_tasks(pool).map(|task| places(&task));
        let places = places.fold(0, usize::saturating_add);
        self.truth().watched.note_places(pool, places);
    }

    /// Whether no other Task keeps this one from its beginning.
    fn could_begin(&self, task: &Task) -> bool {
        let mut dependencies = task.spec.depends_on.iter();
        dependencies.all(|dependency| self.has_succeeded(&dependency.task))
    }

    /// Tasks of a Pool that have not ended, and that no other Task keeps from their beginning.
    fn open_tasks(&self, pool: &str) -> impl Iterator<Item = Task> {
        let tasks = self.server.all("tasks");
        let tasks = tasks.into_iter().map(|object| read::<Task>(&object));
        tasks.filter(move |task| task.pool() == pool && !is_over(task) && self.could_begin(task))
    }

    /// Whether a Pool has had a Task for a while that could begin and never did. One that pauses is not among them.
    fn keeps_awake(&self, pool: &str) -> bool {
        let began = |task: &Task| task.status.as_ref().is_some_and(|status| status.attempt > 0);
        let mut open = self.open_tasks(pool);
        let waits = open.any(|task| task.spec.suspend != Some(true) && !began(&task));
        waits && self.truth().watched.had_work_for_long(pool)
    }

    /// Whether a Pool has a Task that has not ended, or had one until lately.
    pub(crate) fn has_work(&self, pool: &str) -> bool {
        let is_open = self.open_tasks(pool).next().is_some();
        is_open || self.truth().watched.had_work(pool)
    }

    /// A Pool was written: it works towards more machines only for work, and wakes only for work or for a user.
    pub(crate) fn may_scale(&self, change: &Change) {
        let pool: &Value = &change.object;
        let Some(before) = change.before.as_deref().filter(|_| grows(pool)) else {
            return;
        };
        let wanted = |pool: &Value| pool["status"]["desiredMachines"].as_u64().unwrap_or(0);
        let slept = |pool: &Value| !pool["status"]["scaling"]["sleepingSince"].is_null();
        let floor = pool["spec"]["nodes"]["desired"].as_u64().unwrap_or(1);
        let (old, new) = (wanted(before), wanted(pool));
        let is_more = new > old && new > floor;
        let wakes = slept(before) && !slept(pool);
        if !slept(before) && slept(pool) {
            let name = text(pool, "/metadata/name");
            let waits = self.keeps_awake(name);
            self.truth().rule(!waits, || {
                format!("{name} goes to sleep while a Task waits that could begin")
            });
        }
        if !is_more && !wakes {
            return;
        }
        let name = text(pool, "/metadata/name");
        let works = self.has_work(name);
        let mut truth = self.truth();
        let is_asked = wakes && !is_more && truth.watched.is_new_spec(text(pool, "/metadata/uid"));
        truth.rule(works || is_asked, || {
            format!("{name} goes from {old} to {new} machines, or wakes ({wakes}), without work")
        });
    }

    /// A Pool was written: one that grows and has the machines of its floor needs no person for others that fail.
    pub(crate) fn may_stall(&self, pool: &Value) {
        let status = &pool["status"];
        let is_newest = status["observedGeneration"] == pool["metadata"]["generation"];
        let floor = pool["spec"]["nodes"]["desired"].as_u64().unwrap_or(1);
        let has_floor = status["readyMachines"].as_u64().unwrap_or(0) >= floor;
        if !is_newest || !grows(pool) || !has_floor {
            return;
        }
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let mut stalled = conditions.filter(|c| c["type"] == STALLED && c["status"] == "True");
        let why = stalled.find_map(|c| c["reason"].as_str()).unwrap_or_default();
        let name = text(pool, "/metadata/name");
        self.truth().rule(!OF_MACHINES.contains(&why), || {
            format!("{name} has its floor and is Stalled with {why}")
        });
    }

    /// Before a cloud is told to end a machine: where the machine works, nobody needs what it has, whether it was asked to
    /// drain or not.
    pub(crate) fn may_be_drained(&self, truth: &mut Truth, machine: &ProviderMachine) {
        let records = self.server.all("machines");
        let mut records = records.iter();
        let record = records.find(|record| text(record, "/metadata/uid") == machine.mark.machine_uid);
        let Some(record) = record.filter(|record| goes(record)) else {
            return;
        };
        let pool = self.server.get("pools", TEAM, text(record, "/spec/pool"));
        let is_up = pool.is_some_and(|pool| {
            let is_suspended = pool["spec"]["suspend"] == true;
            grows(&pool) && pool["metadata"]["deletionTimestamp"].is_null() && !is_suspended
        });
        if is_up {
            let needed = self.needed_runs(truth, &machine.id);
            truth.rule(needed.is_empty(), || {
                format!("{} works, and is ended with {needed:?}", machine.id)
            });
        }
    }

    /// Why not every Task has ended, or a Pool does not sleep with nothing billed.
    fn not_asleep(&self) -> Vec<String> {
        let mut wrong = self.task_unrest();
        for object in self.server.all("pools") {
            let status = read::<Pool>(&object).status.unwrap_or_default();
            if status.phase != Some(PoolPhase::Sleeping) || status.machines > 0 {
                wrong.push(format!("{:?} with {} machines", status.phase, status.machines));
            }
        }
        wrong.extend(self.books());
        wrong
    }
}
