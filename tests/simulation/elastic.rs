//! A Pool that grows with its Tasks, shrinks, sleeps and wakes, told with one fault at a call of it.

use serde_json::json;
use skyward_api::{Pool, PoolPhase};

use crate::{
    calls::Luck,
    kinds::ALL,
    play::Play,
    rules::read,
    time::{HOUR, MINUTE, SECOND},
    world::{Odds, TEAM, World},
};

/// Tasks that come at once: more than one machine does in the time in which another one starts.
const TASKS: u32 = 12;

/// A Pool of one to three at a cloud of that kind serves its Tasks and sleeps, wakes for one more, and is deleted; all
/// that goes wrong is this fault, at the call of that number.
pub(crate) fn elastic(kind: usize, fault: Option<(u64, Luck)>) -> Play {
    let mut play = Play::new(0, |_| Odds::default());
    play.world.truth().fault = fault;
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
    play.pass(20 * MINUTE);
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

impl World {
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
