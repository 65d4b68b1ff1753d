//! Maps told: a story with one fault at a call of it, and histories from seeds. Machines vanish, restart, and are out of
//! reach for a while; watchers are killed; processes die, stand still and go on; the store loses answers.

use rand::Rng;
use serde_json::json;

use crate::{
    kinds::ALL,
    planted::Fault,
    play::Play,
    time::{HOUR, MINUTE, SECOND, now},
    world::{CLUSTER, Odds, TEAM, World, one_of},
};

/// Most items of a map in these histories, and of one among other Tasks.
const ITEMS: u32 = 50;
const FEW_ITEMS: u32 = 20;
/// Of so many histories with all that may happen one has a map.
const ONE_IN: u64 = 12;

/// A Pool of two machines runs a map and gives all back.
pub(crate) fn mapped() -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.add_provider("a", ALL[0]);
    play.add_pool("x", &["a"], 2);
    let mut random = play.world.chance("map");
    play.add_map("x", &mut random, FEW_ITEMS);
    play.settle(0, HOUR, World::unrest);
    if play.is_broken() {
        return play;
    }
    go(&mut play);
    play
}

/// The history of a seed, told of an operator with that bug.
pub(crate) fn mapping(seed: u64, planted: Option<Fault>) -> Play {
    let mut play = Play::new(seed, |random| Odds {
        store: one_of(random, &[0, 0, 5, 20]),
        crash: one_of(random, &[0, 20, 50]),
        halt: one_of(random, &[0, 20, 50]),
        ..Play::some_odds(random)
    });
    play.world.truth().planted = planted;
    let kind = play.random.random_range(0..ALL.len());
    play.world.add_provider("a", ALL[kind]);
    let desired = play.random.random_range(1..4);
    play.add_pool("x", &["a"], desired);
    let mut random = play.world.chance("maps");
    for _ in 0..random.random_range(1..3) {
        play.add_map("x", &mut random, ITEMS);
    }
    play.pass(30 * SECOND);
    play.world.truth().calm = false;
    for _ in 0..play.random.random_range(5..20) {
        if play.is_broken() {
            return play;
        }
        let time = play.random.random_range(0..20 * SECOND);
        play.pass(time);
        play.happen_to_a_map();
    }
    play.world.truth().calm = true;
    play.put_right_for_good();
    if play.random.random_ratio(1, 4) {
        // Nothing is left to run on: each map that has not ended says so.
        play.change_pool("x", json!({ "nodes": { "desired": 0 } }));
        play.settle(2 * MINUTE, HOUR, World::unsaid);
        play.change_pool("x", json!({ "nodes": { "desired": desired } }));
    }
    play.settle(0, 4 * HOUR, World::unrest);
    if !play.is_broken() {
        go(&mut play);
    }
    play
}

/// Users delete everything, and nothing is left.
fn go(play: &mut Play) {
    play.delete_all("tasks", TEAM);
    play.delete_all("pools", TEAM);
    let accounts = play.world.accounts_in_use();
    play.settle(0, 2 * HOUR, |world| world.remains(&accounts));
    play.world.meter_agrees();
}

impl Play {
    /// One in [`ONE_IN`] of these histories has a map, too. Its chances are its own, so the others are as they were.
    pub(crate) fn perhaps_add_map(&mut self, seed: u64) {
        if seed % ONE_IN == ONE_IN - 1 {
            let mut random = self.world.chance("map");
            self.add_map("x", &mut random, FEW_ITEMS);
        }
    }

    fn happen_to_a_map(&mut self) {
        match self.random.random_range(0..16) {
            0..3 => self.happen_to_an_agent(),
            3..6 => self.kill_a_watcher(),
            6..8 => self.silence_a_machine(),
            // It fails, vanishes, or is taken back.
            8 | 9 => {
                let what = self.random.random_range(0..3);
                self.befall_a_machine(what);
            }
            10 => self.happen_to_a_task(),
            11 => {
                let parallelism = one_of(&mut self.random, &[None, Some(1), Some(3)]);
                let names = self.names("tasks");
                if let Some(name) = names.into_iter().rfind(|name| name.starts_with("map")) {
                    self.tell(format!("at most {parallelism:?} items of {name} run"));
                    let spec = json!({ "spec": { "forEach": { "parallelism": parallelism } } });
                    let _gone = self.world.server.change("tasks", TEAM, &name, spec);
                    self.note();
                }
            }
            12 => self.all_die(),
            _ => {}
        }
    }

    /// Machines of ours that answer.
    fn answering(&self) -> Vec<String> {
        let truth = self.world.truth();
        let machines = truth.clouds.values().flat_map(|cloud| &cloud.rented);
        let ours = machines.filter(|machine| machine.answers(now()) && machine.mark.cluster == CLUSTER);
        ours.map(|machine| machine.id.clone()).collect()
    }

    /// The watcher of a worker is killed, for want of memory perhaps.
    fn kill_a_watcher(&mut self) {
        let ids = self.answering();
        let which = self.random.random_range(0..1000);
        let mut truth = self.world.truth();
        self.world.observe_items(&mut truth);
        for id in &ids {
            let is_killed = truth
                .rented(id)
                .is_some_and(|machine| machine.agent.kill_a_watcher(which, now()));
            if is_killed {
                truth.tell(format!("a watcher at {id} is killed"));
                truth.note_ends(id);
                return;
            }
        }
    }

    /// Nothing reaches a machine for some minutes, while it works on.
    fn silence_a_machine(&mut self) {
        let ids = self.answering();
        let which = self.random.random_range(0..1000);
        let time = one_of(&mut self.random, &[20 * SECOND, 2 * MINUTE, 10 * MINUTE]);
        if ids.is_empty() {
            return;
        }
        let id = &ids[which % ids.len()];
        let mut truth = self.world.truth();
        truth.tell(format!("{id} is out of reach for {time} ms"));
        if let Some(machine) = truth.rented(id) {
            machine.silent = (now(), now() + time);
        }
    }
}
