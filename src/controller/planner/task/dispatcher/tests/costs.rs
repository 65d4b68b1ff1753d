//! What Tasks cost: machines here cost 2.50 USD an hour.

use super::{world::World, *};

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
