//! Tasks with `forEach`: their workers come and go, and none is forgotten before what it told is stored.

mod broken;

use skyward_api::{MAX_RANKS, task::ItemsStatus};

use super::{world::World, *};
use crate::{
    map::{leader::Life, plan::Verdict},
    pool::load::Demand,
    task::{references::Unresolved, run::Progress, status::Why},
};

const TOTAL: u32 = 100;

fn map(world: &mut World, name: &str, for_each: serde_json::Value) -> Uid {
    let uid = world.create_with(
        name,
        json!({ "pool": "p", "command": ["work", "$(SKYWARD_ITEM)"], "forEach": for_each }),
    );
    world.quiet();
    uid
}

fn items(succeeded: u32, failed: u32) -> ItemsStatus {
    ItemsStatus {
        total: TOTAL,
        succeeded,
        failed,
        ..ItemsStatus::default()
    }
}

fn under_way() -> MapTold {
    MapTold {
        total: Some(TOTAL),
        useful: TOTAL,
        items: items(0, 0),
        ..MapTold::default()
    }
}

fn tell(world: &mut World, uid: &Uid, told: MapTold) {
    let attempt = world.status(uid).attempt;
    world.tell(Event::MapTold(uid.clone(), attempt, Box::new(told)));
    world.quiet();
}

fn ranks(world: &World) -> Vec<u32> {
    let mut ranks: Vec<u32> = world.active().iter().map(|(_, id)| id.rank).collect();
    ranks.sort_unstable();
    ranks
}

fn lives(world: &World, uid: &Uid) -> Vec<Life> {
    let news = world.maps[uid].as_ref().unwrap();
    news.workers.iter().map(|worker| worker.life).collect()
}

#[test]
fn a_worker_with_threads_counts_as_so_many_items_that_run_and_one_of_commands_as_one() {
    let function = json!({ "source": "def main(item): pass" });
    for (work, value, workers, threads) in [("function", function, 2, 4), ("command", json!(["work"]), 3, 1)]
    {
        let mut world = World::new(1, 3);
        world.pool.as_mut().unwrap().threads = Some(4);
        world.show_views();
        let for_each = json!({ "count": TOTAL, "parallelism": 8 });
        let uid = world.create_with("m", json!({ "pool": "p", work: value, "forEach": for_each }));
        world.quiet();
        tell(&mut world, &uid, under_way());
        assert_eq!(ranks(&world).len(), workers, "{work}");
        let news = world.maps[&uid].as_ref().unwrap();
        assert_eq!(news.spec.threads, threads, "{work}");
    }
}

#[test]
fn what_items_say_of_themselves_makes_no_progress_of_their_task_and_no_write() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let writes = world.writes[&uid];
    for (place, run) in world.active() {
        let progress = Progress { done: 37, total: 100 };
        world.tell(Event::Progress(place, run, progress));
    }
    assert!(!world.dispatcher.has_progress(world.now));
    world.quiet();
    assert_eq!(world.writes[&uid], writes);
    tell(
        &mut world,
        &uid,
        MapTold {
            items: items(1, 0),
            ..under_way()
        },
    );
    world.pass(10);
    let status = world.status(&uid);
    assert_eq!((&*status.done, &*status.progress), ("1/100", ""));
}

/// All workers end, as they were asked to.
fn end_all(world: &mut World) {
    for (place, id) in world.active() {
        world.finish(place, &id, 0);
    }
    world.quiet();
}

fn done_with(told: MapTold, ranks: std::ops::Range<u32>) -> MapTold {
    MapTold {
        done_with: ranks.collect(),
        ..told
    }
}

#[test]
fn workers_start_when_the_items_are_known_and_on_all_free_places_each_on_record_before() {
    let mut world = World::new(2, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    assert_eq!(
        ranks(&world),
        [] as [u32; 0],
        "how many items there are is not known"
    );
    assert!(world.maps[&uid].is_some());
    tell(&mut world, &uid, under_way());
    assert_eq!(ranks(&world), [0, 1, 2, 3]);
    let status = world.status(&uid);
    assert_eq!((status.placed.len(), status.attempt), (4, 1));
    assert_eq!(lives(&world, &uid), [Life::Runs; 4]);
}

#[test]
fn a_map_has_no_more_workers_than_are_of_use_or_than_parallelism_says() {
    let mut world = World::new(4, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL, "parallelism": 3 }));
    tell(&mut world, &uid, under_way());
    assert_eq!(ranks(&world), [0, 1, 2]);
    world.edit(&uid, |task| {
        task.spec.for_each.as_mut().unwrap().parallelism = Some(5);
    });
    world.quiet();
    assert_eq!(ranks(&world).len(), 5);
    world.edit(&uid, |task| {
        task.spec.for_each.as_mut().unwrap().parallelism = Some(1);
    });
    world.quiet();
    let (runs, closing) = (Life::Runs, Life::Closing);
    assert_eq!(lives(&world, &uid), [runs, closing, closing, closing, closing]);
    let few = MapTold {
        useful: 1,
        close: vec![1, 2, 3, 4],
        ..under_way()
    };
    tell(&mut world, &uid, few);
    let stopping = world.machines.values().flat_map(|machine| machine.runs.values());
    assert_eq!(stopping.filter(|run| run.stopping).count(), 4);
}

#[test]
fn a_map_gives_its_places_to_a_running_map_of_a_higher_priority_that_could_use_them_and_to_no_other_one() {
    for (priority, useful, closing) in [(5, TOTAL, 3), (5, 2, 1), (5, 1, 0), (0, TOTAL, 0), (-1, TOTAL, 0)] {
        let mut world = World::new(2, 2);
        let low = map(&mut world, "a", json!({ "count": TOTAL, "parallelism": 3 }));
        tell(&mut world, &low, under_way());
        let work =
            json!({ "pool": "p", "command": ["work"], "forEach": { "count": TOTAL }, "priority": priority });
        let high = world.create_with("b", work);
        world.quiet();
        assert_eq!(ranks(&world), [0, 1, 2], "the other map has not read its items");
        let told = MapTold {
            useful,
            ..under_way()
        };
        tell(&mut world, &high, told);
        assert_eq!(ranks(&world), [0, 0, 1, 2]);
        world.pass(1);
        let ending = lives(&world, &low)
            .into_iter()
            .filter(|life| *life == Life::Closing);
        assert_eq!(ending.count(), closing, "{useful} workers of priority {priority}");
    }
}

#[test]
fn a_worker_whose_machine_is_gone_ends_no_other_one_and_another_one_takes_its_place() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let (place, _) = world.active()[0].clone();
    world.machines.remove(&place);
    world.show_views();
    world.quiet();
    assert!(
        lives(&world, &uid).contains(&Life::Lost),
        "its grant may be given to others"
    );
    assert_eq!((ranks(&world).len(), world.status(&uid).attempt), (1, 1));
    world.add_machine(place.slot);
    world.show_views();
    tell(&mut world, &uid, done_with(under_way(), 0..1));
    assert_eq!(ranks(&world).len(), 2);
    assert_eq!(world.status(&uid).placed.len(), 3);
}

#[test]
fn the_task_ends_when_all_that_its_workers_told_is_stored_and_no_run_is_forgotten_before() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let complete = MapTold {
        useful: 0,
        items: items(TOTAL, 0),
        verdict: Some(Verdict::Complete),
        ..under_way()
    };
    tell(&mut world, &uid, complete.clone());
    end_all(&mut world);
    world.pass(5);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    assert!(
        world
            .machines
            .values()
            .all(|machine| machine.forgotten.is_empty())
    );
    tell(&mut world, &uid, done_with(complete, 0..2));
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.done.as_str()),
        (Some(TaskPhase::Succeeded), "100/100")
    );
    assert!(!world.maps.contains_key(&uid));
    world.calm();
    assert!(world.machines.values().all(|machine| machine.runs.is_empty()));
}

#[test]
fn items_that_failed_fail_the_task_and_say_what_to_do() {
    let mut world = World::new(1, 1);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let failed = MapTold {
        useful: 0,
        items: ItemsStatus {
            failed_indexes: "3-4".into(),
            ..items(98, 2)
        },
        verdict: Some(Verdict::SomeFailed),
        ..under_way()
    };
    tell(&mut world, &uid, failed.clone());
    end_all(&mut world);
    tell(&mut world, &uid, done_with(failed, 0..1));
    let status = world.status(&uid);
    assert_eq!(status.reason, reason::ITEMS_FAILED);
    let condition = condition::find(&status.conditions, condition::FAILED).unwrap();
    assert!(
        condition.message.contains("kubectl skyward retry m"),
        "{}",
        condition.message
    );
    assert_eq!(status.items.unwrap().failed_indexes, "3-4");
}

#[test]
fn a_map_that_is_suspended_keeps_what_it_has_and_goes_on_with_the_rest() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    world.quiet();
    assert!(!world.maps[&uid].as_ref().unwrap().spec.runs);
    end_all(&mut world);
    let told = MapTold {
        items: items(40, 0),
        ..under_way()
    };
    tell(&mut world, &uid, done_with(told, 0..2));
    world.pass(2);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.done.as_str()),
        (Some(TaskPhase::Suspended), "40/100")
    );
    assert!(!world.maps.contains_key(&uid));
    world.edit(&uid, |task| task.spec.suspend = Some(false));
    world.quiet();
    world.pass(2);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!((status.attempt, status.done.as_str()), (2, "40/100"));
}

#[test]
fn a_map_that_is_cut_short_names_the_command_that_goes_on_with_the_items_that_are_left() {
    for is_deleted in [false, true] {
        let mut world = World::new(1, 1);
        let uid = world.create_with(
            "m",
            json!({ "pool": "p", "command": ["work"], "activeDeadline": "60s", "forEach": { "count": TOTAL } }),
        );
        world.quiet();
        let told = MapTold {
            items: items(40, 0),
            ..under_way()
        };
        tell(&mut world, &uid, told.clone());
        if is_deleted {
            world.pool.as_mut().unwrap().deleted_at = Some(world.now);
            world.show_views();
        } else {
            world.pass(60);
        }
        world.quiet();
        end_all(&mut world);
        tell(&mut world, &uid, done_with(told, 0..1));
        world.pass(2);
        let status = world.status(&uid);
        let expected = if is_deleted {
            reason::POOL_DELETED
        } else {
            reason::DEADLINE_EXCEEDED
        };
        assert_eq!(
            (status.reason.as_str(), status.done.as_str()),
            (expected, "40/100")
        );
        let failed = condition::find(&status.conditions, condition::FAILED).unwrap();
        assert!(
            failed.message.contains("`kubectl skyward retry m` goes on"),
            "{}",
            failed.message
        );
    }
}

#[test]
fn a_map_that_waits_too_long_for_its_next_attempt_names_that_command_and_one_without_items_does_not() {
    for has_begun in [true, false] {
        let mut world = World::new(1, 1);
        if !has_begun {
            world.machines.clear();
            world.show_views();
            world.quiet();
        }
        let uid = world.create_with(
            "m",
            json!({ "pool": "p", "command": ["work"], "queueTimeout": "30s", "forEach": { "count": TOTAL } }),
        );
        world.quiet();
        if has_begun {
            tell(&mut world, &uid, under_way());
            let (place, _) = world.active()[0].clone();
            world.lose_machine(place);
            world.quiet();
            tell(&mut world, &uid, done_with(under_way(), 0..1));
        }
        world.pass(32);
        let status = world.status(&uid);
        assert_eq!(status.reason, reason::QUEUE_TIMEOUT);
        let failed = condition::find(&status.conditions, condition::FAILED).unwrap();
        let names_it = failed.message.contains("`kubectl skyward retry m` goes on");
        assert_eq!(names_it, has_begun, "{}", failed.message);
    }
}

fn demand(world: &World) -> Demand {
    world.dispatcher.load().unwrap().demand
}

#[test]
fn a_pool_counts_with_the_items_of_a_map_that_could_use_more_places_and_of_no_other_one() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    assert_eq!(demand(&world).places, 0, "how many items there are is not known");
    let work = Duration::from_secs(500);
    tell(&mut world, &uid, MapTold { work, ..under_way() });
    let told = demand(&world);
    assert_eq!((told.places, told.for_maps), (TOTAL - 2, TOTAL - 2));
    assert_eq!((told.items, told.backlog), (work, Some(work)));
    assert_eq!((told.typical, told.running_since), (None, None));
    assert!(told.keeps_machines());
    world.create("t", json!("One"));
    world.quiet();
    let told = demand(&world);
    assert_eq!(
        (told.places, told.backlog),
        (TOTAL - 1, None),
        "of the Task nothing is known"
    );
    world.edit(&uid, |task| {
        task.spec.for_each.as_mut().unwrap().parallelism = Some(2);
    });
    world.quiet();
    let told = demand(&world);
    assert_eq!((told.places, told.for_maps, told.items), (1, 0, Duration::ZERO));
}

#[test]
fn items_that_wait_are_those_of_running_maps_that_no_machine_has_while_others_may_begin() {
    let mut world = World::new(1, 2);
    let queued = |world: &World| world.dispatcher.load().unwrap().queued_items;
    let few = map(&mut world, "m", json!({ "count": TOTAL, "maxFailedItems": 1 }));
    assert_eq!(queued(&world), 0, "how many items there are is not known");
    let told = |succeeded, failed| MapTold {
        items: ItemsStatus {
            active: 2,
            ..items(succeeded, failed)
        },
        ..under_way()
    };
    tell(&mut world, &few, told(40, 1));
    assert_eq!(queued(&world), TOTAL - 43);
    tell(&mut world, &few, told(40, 2));
    assert_eq!(queued(&world), 0, "no other item begins");
    let again = MapTold {
        old_failures: 1,
        ..told(40, 2)
    };
    tell(&mut world, &few, again);
    assert_eq!(
        queued(&world),
        TOTAL - 44,
        "one had failed before others were to run again"
    );
    tell(&mut world, &few, told(40, 1));
    world.edit(&few, |task| task.spec.suspend = Some(true));
    world.quiet();
    assert_eq!(queued(&world), 0, "it is suspended");
}

/// So many seconds in which each start of a worker is refused, as by an agent that runs no items.
fn pass_with_old_agent(world: &mut World, seconds: u32) {
    for _ in 0..seconds {
        world.now += Duration::from_secs(1);
        world.tell(Event::Tick);
        loop {
            if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
                world.tell(event);
            } else if world.effects.is_empty() {
                break;
            } else {
                match world.effects.remove(0) {
                    Effect::Start(order) => world.answers.push_back(Event::Started {
                        run: order.run,
                        connection: order.connection,
                        result: Err(StartError::References(Unresolved {
                            reason: reason::AGENT_OUTDATED,
                            message: format!("the agent of machine \"{}\" is old", order.machine),
                        })),
                    }),
                    effect => world.carry_out(effect, false, false),
                }
            }
        }
    }
}

#[test]
fn a_map_on_a_machine_with_an_agent_that_runs_no_items_says_so_and_its_refused_worker_is_no_demand() {
    let mut world = World::new(1, 1);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    let told = MapTold {
        useful: 1,
        ..under_way()
    };
    world.tell(Event::MapTold(uid.clone(), 1, Box::new(told)));
    pass_with_old_agent(&mut world, 12);
    let status = world.status(&uid);
    assert_eq!(status.reason, reason::AGENT_OUTDATED);
    let running = condition::find(&status.conditions, condition::RUNNING).unwrap();
    assert!(
        running.message.contains("the agent of machine \"p-"),
        "{}",
        running.message
    );
    assert_eq!(demand(&world).places, 0, "another machine is ordered for it");
    world.pass(12);
    assert_ne!(
        world.status(&uid).reason,
        reason::AGENT_OUTDATED,
        "the agent was replaced"
    );
    assert_eq!(ranks(&world), [0]);
}

#[test]
fn what_a_map_says_of_an_old_agent_under_its_workers_stands_in_the_status_of_its_task() {
    let mut world = World::new(1, 1);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let told = MapTold {
        trouble: Some(Why::new(reason::AGENT_OUTDATED, "delete Machine \"p-0\"")),
        ..under_way()
    };
    tell(&mut world, &uid, told);
    world.pass(12);
    assert_eq!(world.status(&uid).reason, reason::AGENT_OUTDATED);
    tell(&mut world, &uid, under_way());
    world.pass(12);
    assert_ne!(world.status(&uid).reason, reason::AGENT_OUTDATED);
}

#[test]
fn a_machine_whose_worker_has_ended_is_free_while_the_map_goes_on_once_all_that_it_told_is_stored() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let last = MapTold {
        useful: 1,
        close: vec![1],
        ..under_way()
    };
    tell(&mut world, &uid, last.clone());
    assert_eq!(
        lives(&world, &uid),
        [Life::Runs, Life::Closing],
        "it gets no other item"
    );
    let (place, id) = world.active().into_iter().find(|(_, id)| id.rank == 1).unwrap();
    world.finish(place, &id, 0);
    world.quiet();
    let busy = |world: &World| world.dispatcher.load().unwrap().busy_machines();
    for (id, run) in &world.dispatcher.runs {
        eprintln!("{id:?} {run:?}");
    }
    assert_eq!(busy(&world), 2);
    tell(&mut world, &uid, done_with(last, 1..2));
    assert_eq!(
        (busy(&world), world.status(&uid).phase),
        (1, Some(TaskPhase::Running))
    );
}

#[test]
fn another_leader_goes_on_with_the_workers_that_are_on_record() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let before = world.active();
    world.restart();
    world.quiet();
    assert_eq!(lives(&world, &uid), [Life::Runs; 2]);
    tell(&mut world, &uid, under_way());
    assert_eq!((world.active(), world.status(&uid).attempt), (before, 1));
}

#[test]
fn a_map_whose_config_map_is_missing_gets_no_place_and_one_whose_items_are_stored_needs_it_no_more() {
    let mut world = World::new(1, 1);
    world.missing_references = true;
    let from = json!({ "itemsFrom": { "configMapKeyRef": { "name": "x", "key": "items" } } });
    let uid = map(&mut world, "m", from);
    world.pass(5);
    assert!(world.status(&uid).placed.is_empty());
    world.missing_references = false;
    world.pass(30);
    tell(&mut world, &uid, under_way());
    assert_eq!(ranks(&world), [0]);
    world.missing_references = true;
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    world.quiet();
    end_all(&mut world);
    tell(&mut world, &uid, done_with(under_way(), 0..1));
    world.pass(2);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Suspended));
    world.edit(&uid, |task| task.spec.suspend = Some(false));
    world.quiet();
    world.pass(2);
    assert_eq!(world.status(&uid).attempt, 2);
}

#[test]
fn items_that_cannot_be_had_fail_the_task() {
    let mut world = World::new(1, 1);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    let fault = MapTold {
        fault: Some(crate::task::status::Why::new(
            reason::TOO_MANY_ITEMS,
            "there are more than 1000000 items",
        )),
        ..MapTold::default()
    };
    tell(&mut world, &uid, fault);
    end_all(&mut world);
    world.pass(3);
    world.quiet();
    assert_eq!(world.status(&uid).reason, reason::TOO_MANY_ITEMS);
}

#[test]
fn a_map_whose_attempt_has_had_all_its_ranks_goes_on_in_another_attempt() {
    let mut world = World::new(2, 1);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let close = |world: &mut World, rank: u32| {
        let told = MapTold {
            close: vec![rank],
            ends: 1,
            ..under_way()
        };
        tell(world, &uid, told.clone());
        let (place, id) = world
            .active()
            .into_iter()
            .find(|(_, id)| id.rank == rank)
            .unwrap();
        world.finish(place, &id, 0);
        world.quiet();
        tell(world, &uid, done_with(told, rank..rank + 1));
    };
    let life = |world: &World| world.maps[&uid].as_ref().unwrap().workers[0].life;
    let last = MAX_RANKS - 1;
    for rank in 1..last {
        assert_eq!((ranks(&world), life(&world)), (vec![0, rank], Life::Runs));
        close(&mut world, rank);
    }
    assert_eq!((ranks(&world), life(&world)), (vec![0, last], Life::Closing));
    close(&mut world, last);
    assert_eq!(ranks(&world), [0]);
    close(&mut world, 0);
    world.pass(2);
    let status = world.status(&uid);
    assert_eq!((status.attempt, status.interruptions), (2, 0));
    assert_eq!(status.retry_at, None, "each of its workers was asked to end");
}
