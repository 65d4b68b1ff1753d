//! Lives of Tasks as text: what is written into their status, what is started and stopped, and the
//! Events. `tests/mod.rs` of the crate says where the texts are and how they are written anew.

use std::fmt::Write as _;

use super::{world::World, *};
use crate::{
    task::model::PoolView,
    tests::{Block, tells},
};

const START: i64 = 1_000_000;

impl World {
    /// Writes an effect down.
    pub(super) fn write_down(&mut self, effect: &Effect) {
        if self.story.is_none() {
            return;
        }
        let mut block = Block::default();
        let name = match effect {
            Effect::Write {
                uid, name, status, ..
            } => {
                block.status(&self.status(uid), &**status);
                // Each write stands for itself.
                self.story.as_mut().unwrap().0.clear();
                Some(name)
            }
            Effect::Publish { name, event, .. } => {
                block.events([&**event]);
                Some(name)
            }
            Effect::Start(order) => {
                let ranks = order.peers.len() * order.processes as usize;
                block.line(
                    "does",
                    format!("starts run {} of {ranks} on {}", order.run, order.machine),
                );
                Some(&order.name)
            }
            Effect::Stop {
                run,
                machine,
                grace,
                why,
                ..
            } => {
                let text = format!("stops run {run} on {machine} within {}s: {why}", grace.as_secs());
                block.line("does", text);
                None
            }
            Effect::Collect(order) if self.tells_collections || order.give_up || order.unreadable => {
                let mut text = format!("stores log and result of run {}", order.run);
                for (is_so, what) in [
                    (order.gone, "; its machine is gone"),
                    (order.give_up, "; what has no room is given up"),
                    (order.unreadable, "; what cannot be read is given up"),
                ] {
                    text.push_str(if is_so { what } else { "" });
                }
                block.line("does", text);
                None
            }
            Effect::Forget { machine, runs } => {
                let runs: Vec<String> = runs.iter().map(ToString::to_string).collect();
                block.line("does", format!("lets {machine} forget {}", runs.join(", ")));
                None
            }
            Effect::DeleteStored(uid) => {
                block.line("does", format!("deletes what is stored of {uid}"));
                None
            }
            Effect::Expire { name, at, .. } => {
                block.line("does", format!("deletes the Task at {at}"));
                Some(name)
            }
            Effect::MakePool(_) => {
                block.line("does", "makes the Pool of the Task");
                None
            }
            Effect::DeletePool(_) => {
                block.line("does", "deletes the Pool of the Task");
                None
            }
            Effect::ListMachines => {
                block.line("does", "lists the Machines, past all caches");
                None
            }
            Effect::Warn(what) => {
                block.line("warns", what);
                None
            }
            Effect::DoubtLeadership(machine) => {
                block.line(
                    "does",
                    format!("asks whether this process leads: {machine} refuses its epoch"),
                );
                None
            }
            Effect::Collect(_)
            | Effect::Resolve { .. }
            | Effect::Fetch(_)
            | Effect::CancelFetch(_)
            | Effect::Reread { .. }
            | Effect::ReadDependency(_)
            | Effect::Follow { .. }
            | Effect::Recall(_)
            | Effect::RecallTask { .. }
            | Effect::KeepRanks { .. }
            | Effect::CopyLog { .. }
            | Effect::Live(..)
            | Effect::Progress(..)
            | Effect::Entered(_)
            | Effect::Failed(_)
            | Effect::Retried(_)
            | Effect::BeginMap(_)
            | Effect::TellMap(..)
            | Effect::EndMap(_)
            | Effect::RunEnded(..) => return,
        };
        let what = name.map_or_else(|| "Pool n/p".to_owned(), |name| format!("Task n/{name}"));
        let heading = format!("{} {what}", self.clock());
        self.write_text(&heading, &block);
    }

    fn write_text(&mut self, heading: &str, block: &Block) {
        let Some((last, story)) = &mut self.story else {
            return;
        };
        if last != heading {
            write!(story, "\n{heading}\n").unwrap();
            heading.clone_into(last);
        }
        story.push_str(&block.text());
    }

    fn clock(&self) -> String {
        let passed = self.now.as_second() - START;
        format!("{:02}:{:02}:{:02}", passed / 3600, passed / 60 % 60, passed % 60)
    }

    /// Something happens that no plan did.
    fn happens(&mut self, what: &str) {
        let heading = format!("{} -- {what}", self.clock());
        self.write_text(&heading, &Block::default());
    }

    fn story(&self) -> &str {
        self.story.as_ref().map_or("", |(_, story)| story)
    }

    /// All that runs ends so.
    fn ends(&mut self, code: i32) {
        for (place, run) in self.active() {
            self.finish(place, &run, code);
        }
        self.quiet();
    }

    /// The tries in vain to store what a run left are told no more.
    fn forget_collections(&mut self) {
        self.tells_collections = false;
    }

    fn spec(&mut self) -> &mut PoolView {
        self.pool.as_mut().unwrap()
    }
}

/// A Pool of so many machines with a place for one run each, and Tasks to come.
fn pool(machines: u32) -> World {
    let mut world = World::new(1, machines);
    world.quiet();
    world.story = Some((String::new(), String::new()));
    world
}

/// The same, with a Task that runs.
fn running(spec: serde_json::Value) -> (World, Uid) {
    let mut world = pool(1);
    let uid = world.create_with("t", spec);
    world.quiet();
    world.story = Some((String::new(), String::new()));
    world.pass(10);
    (world, uid)
}

fn simple() -> serde_json::Value {
    json!({ "pool": "p", "command": ["true"] })
}

#[test]
fn a_task_runs_and_succeeds() {
    let mut world = pool(1);
    world.happens("a person creates the Task");
    world.create("t", json!("One"));
    world.quiet();
    world.pass(10);
    world.happens("the run exits with 0");
    world.ends(0);
    world.pass(10);
    tells!(world.story());
}

#[test]
fn a_task_that_may_fail_once_starts_again_after_a_pause_and_then_fails() {
    let mut spec = simple();
    spec["retries"] = json!({ "onFailure": 1, "backoff": { "initial": "5s" } });
    let (mut world, _) = running(spec);
    world.happens("the run exits with 1");
    world.ends(1);
    world.pass(10);
    world.happens("it does so again");
    world.ends(1);
    world.pass(10);
    tells!(world.story());
}

#[test]
fn a_task_that_exits_with_1_fails_and_does_not_run_again() {
    let (mut world, _) = running(simple());
    world.happens("the run exits with 1");
    world.ends(1);
    world.pass(10);
    tells!(world.story());
}

#[test]
fn a_task_on_all_machines_starts_when_each_has_room() {
    let mut world = pool(2);
    world.create("before", json!("One"));
    world.quiet();
    world.happens("a person creates a Task for all machines");
    world.create("all", json!("All"));
    world.quiet();
    world.pass(5);
    world.happens("the Task before it ends");
    world.ends(0);
    world.pass(5);
    world.ends(0);
    tells!(world.story());
}

#[test]
fn tasks_that_wait_say_how_many_are_before_them() {
    let mut world = pool(1);
    for name in ["first", "second", "third"] {
        world.create(name, json!("One"));
    }
    world.quiet();
    world.moments(8);
    world.happens("the first one ends");
    world.ends(0);
    world.pass(40);
    tells!(world.story());
}

#[test]
fn a_task_for_a_pool_that_does_not_exist_runs_when_the_pool_does() {
    let mut world = pool(0);
    world.pool = None;
    world.show_views();
    world.create("t", json!("One"));
    world.pass(5);
    world.happens("the Pool is created, and nothing fits");
    world.pool = Some(super::world::view(1, 1));
    world.spec().not_ready = Some(("NoAvailableProvider".into(), "no Offer has 9 GPUs".into()));
    world.show_views();
    world.pass(40);
    world.happens("the Pool has a machine");
    world.spec().not_ready = None;
    world.add_machine(0);
    world.show_views();
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_task_for_a_pool_without_machines_waits() {
    let mut world = pool(1);
    world.spec().why_suspended = Some("nodes.desired of the Pool is 0");
    world.machines.clear();
    world.show_views();
    world.create("t", json!("One"));
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_task_whose_pool_is_suspended_stops_and_starts_again_with_it() {
    let (mut world, _) = running(simple());
    world.happens("a person suspends the Pool");
    world.spec().why_suspended = Some("the Pool is suspended");
    world.show_views();
    world.quiet();
    world.pass(5);
    world.happens("the run has stopped");
    world.ends(143);
    world.pass(5);
    world.happens("the Pool goes on");
    world.spec().why_suspended = None;
    world.show_views();
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_task_in_a_namespace_that_is_not_served_waits() {
    let mut world = pool(1);
    let served = std::mem::replace(&mut world.dispatcher, Dispatcher::new(Key::new("n", "p")));
    world.dispatcher = served.serving(false);
    world.create("t", json!("One"));
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_rank_that_the_pool_never_has_is_said_until_the_pool_is_large_enough() {
    let mut world = pool(1);
    world.create("t", json!(3));
    world.pass(5);
    world.happens("the Pool has four machines");
    (world.spec().desired, world.spec().min) = (4, 4);
    for slot in 1..4 {
        world.add_machine(slot);
    }
    world.show_views();
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_secret_that_a_task_names_is_missing() {
    let mut world = pool(1);
    world.missing_references = true;
    let spec = json!({ "pool": "p", "command": ["true"], "envFrom": [{ "secretRef": { "name": "s" } }] });
    world.create_with("t", spec);
    world.pass(5);
    world.happens("the Secret is made");
    world.missing_references = false;
    world.pass(10);
    tells!(world.story());
}

#[test]
fn a_task_whose_machine_is_lost_starts_again_on_another_one() {
    let (mut world, _) = running(simple());
    world.happens("the machine is lost, and a minute later another one is there");
    let place = world.active()[0].0;
    world.lose_machine(place);
    world.quiet();
    world.pass(60);
    world.add_machine(0);
    world.show_views();
    world.pass(5);
    world.happens("the run exits with 0");
    world.ends(0);
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_task_that_may_not_be_interrupted_fails_with_its_machine() {
    let mut spec = simple();
    spec["retries"] = json!({ "onInterruption": 0 });
    let (mut world, _) = running(spec);
    world.happens("the machine is lost");
    let place = world.active()[0].0;
    world.lose_machine(place);
    world.quiet();
    world.pass(20);
    tells!(world.story());
}

#[test]
fn a_run_on_a_machine_that_is_taken_back_is_stopped_and_starts_again() {
    let (mut world, _) = running(simple());
    world.happens("the machine is given up, and another one is there");
    let place = world.active()[0].0;
    world.take_back(place);
    world.add_machine(0);
    world.show_views();
    world.quiet();
    world.pass(5);
    world.happens("the run has stopped");
    world.ends(143);
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_machine_without_memory_fails_its_task() {
    let (mut world, _) = running(simple());
    world.happens("the kernel kills the whole machine");
    let place = world.active()[0].0;
    world.starve(place);
    world.quiet();
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_lost_connection_delays_a_task_and_nothing_else() {
    let (mut world, _) = running(simple());
    world.happens("the connection is lost");
    let place = world.active()[0].0;
    world.flap(place, false);
    world.pass(120);
    world.happens("the connection is back, and the run has ended meanwhile");
    let run = world.active()[0].1.clone();
    world.finish(place, &run, 0);
    world.flap(place, true);
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_new_leader_starts_nothing_that_runs() {
    let (mut world, _) = running(simple());
    world.happens("the controller is killed, and another one leads");
    world.restart();
    world.quiet();
    world.pass(5);
    world.happens("the run exits with 0");
    world.ends(0);
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_full_store_holds_a_task_for_an_hour_at_most() {
    let (mut world, _) = running(simple());
    world.happens("the run exits with 0, and the result store is full");
    world.store_problem = Some(CollectError::Full("2 GiB of 2 GiB are used".into()));
    world.ends(0);
    world.pass(20);
    world.forget_collections();
    world.pass(3700);
    tells!(world.story());
}

#[test]
fn a_machine_that_gives_no_output_holds_a_task_for_an_hour_at_most() {
    let (mut world, _) = running(simple());
    world.happens("the run exits with 0, and its machine gives neither log nor result");
    world.withholds = true;
    world.ends(0);
    world.forget_collections();
    world.pass(4000);
    tells!(world.story());
}

#[test]
fn a_deleted_pool_fails_its_tasks() {
    let (mut world, _) = running(simple());
    world.create("waits", json!("One"));
    world.quiet();
    world.happens("a person deletes the Pool");
    let now = world.now;
    world.spec().deleted_at = Some(now);
    world.show_views();
    world.quiet();
    world.pass(5);
    world.happens("the run has stopped");
    world.ends(143);
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_deleted_task_is_stopped_and_nothing_of_it_is_kept() {
    let (mut world, uid) = running(simple());
    world.happens("a person deletes the Task");
    world.delete(&uid);
    world.quiet();
    world.pass(5);
    world.happens("the run has stopped");
    world.ends(143);
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_suspended_task_stops_and_goes_on_with_another_attempt() {
    let (mut world, uid) = running(simple());
    world.happens("a person suspends the Task");
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    world.quiet();
    world.happens("the run has stopped");
    world.ends(143);
    world.pass(5);
    world.happens("the Task goes on");
    world.edit(&uid, |task| task.spec.suspend = Some(false));
    world.pass(5);
    tells!(world.story());
}

#[test]
fn a_status_that_the_api_server_never_takes_is_told_and_tried_less_often() {
    let mut world = pool(1);
    world.invalid.insert("t".into());
    world.create("t", json!("One"));
    world.quiet();
    world.pass(300);
    tells!(world.story());
}

#[test]
fn an_agent_that_refuses_the_epoch_is_no_proof_that_another_leads() {
    let (mut world, uid) = running(simple());
    world.happens("the agent refuses each command, and a person deletes the Task");
    let place = world.active()[0].0;
    world.machines.get_mut(&place).unwrap().refuses_epoch = true;
    world.delete(&uid);
    world.quiet();
    world.pass(10);
    tells!(world.story());
}
