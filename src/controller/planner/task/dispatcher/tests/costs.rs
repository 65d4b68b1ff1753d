//! What Tasks cost: machines here cost 2.50 USD an hour.

use skyward_api::task::ItemsStatus;

use super::{world::World, *};
use crate::map::plan::Verdict;

const HOUR: Duration = Duration::from_hours(1);

#[test]
fn a_lost_attempt_costs_until_it_is_lost_and_is_counted_once_also_under_a_new_leader() {
    for restarts in [false, true] {
        let mut world = World::new(1, 1);
        world.quiet();
        let uid = world.create("t", json!("One"));
        world.quiet();
        world.now += HOUR;
        let (place, _) = world.active()[0].clone();
        world.lose_machine(place);
        world.quiet();
        // The Task waits for another machine, which costs it nothing.
        world.pass(6);
        assert_eq!(world.status(&uid).cost, "2.5");
        if restarts {
            world.restart();
        }
        world.now += HOUR;
        world.add_machine(0);
        world.show_views();
        world.quiet();
        assert_eq!(world.status(&uid).attempt, 2);
        assert_eq!(world.status(&uid).cost, "2.5");
        world.calm();
        // Its second run took no time.
        let status = world.status(&uid);
        assert_eq!(
            (status.phase, status.cost.as_str()),
            (Some(TaskPhase::Succeeded), "2.5")
        );
    }
}

#[test]
fn a_run_has_the_price_of_its_place() {
    let mut world = World::new(5, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.now += HOUR;
    let (place, _) = world.active()[0].clone();
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    assert_eq!(world.status(&uid).cost, "0.5");
}

#[test]
fn an_attempt_that_failed_and_that_another_one_follows_has_its_cost() {
    let mut world = World::new(1, 1);
    world.quiet();
    let spec = json!({ "pool": "p", "command": ["true"], "retries": { "onFailure": 1 } });
    let uid = world.create_with("t", spec);
    world.quiet();
    world.now += HOUR;
    let (place, run) = world.active()[0].clone();
    world.finish(place, &run, 1);
    world.quiet();
    world.pass(6);
    let status = world.status(&uid);
    assert_eq!((status.failures, status.cost.as_str()), (1, "2.5"));
}

#[test]
fn a_worker_of_a_map_costs_until_its_machine_is_lost_and_not_until_the_map_ends() {
    let mut world = World::new(1, 2);
    let spec = json!({ "pool": "p", "command": ["work"], "forEach": { "count": 100 } });
    let uid = world.create_with("m", spec);
    world.quiet();
    let items = |succeeded| ItemsStatus {
        total: 100,
        succeeded,
        ..ItemsStatus::default()
    };
    let begun = MapTold {
        total: Some(100),
        useful: 100,
        items: items(0),
        ..MapTold::default()
    };
    let tell = |world: &mut World, told: &MapTold| {
        world.tell(Event::MapTold(uid.clone(), 1, Box::new(told.clone())));
        world.quiet();
    };
    tell(&mut world, &begun);
    world.now += HOUR;
    let (place, _) = world.active()[0].clone();
    world.lose_machine(place);
    world.quiet();
    world.now += HOUR;
    let mut complete = MapTold {
        useful: 0,
        items: items(100),
        verdict: Some(Verdict::Complete),
        ..begun
    };
    tell(&mut world, &complete);
    for (place, id) in world.active() {
        world.finish(place, &id, 0);
    }
    world.quiet();
    complete.done_with = (0..2).collect();
    tell(&mut world, &complete);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.cost.as_str()),
        (Some(TaskPhase::Succeeded), "7.5"),
        "one hour of the lost worker, and two of the other one"
    );
}

#[test]
fn a_run_that_was_killed_with_its_machine_for_want_of_memory_costs_its_time() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create("t", json!("One"));
    world.quiet();
    world.now += HOUR;
    let (place, _) = world.active()[0].clone();
    world.starve(place);
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(
        (status.reason.as_str(), status.cost.as_str()),
        (reason::OUT_OF_MEMORY, "2.5")
    );
}
