//! Ranks that have succeeded and do not run again.

use skyward_core::Usd;

use super::{world::World, *};

/// A Task runs on three machines, each with one place.
fn running(scope: &str) -> (World, Uid) {
    let mut world = World::new(1, 3);
    world.quiet();
    let retries = json!({ "onInterruption": 5, "onFailure": 5, "backoff": { "initial": "5s", "max": "5s" }, "scope": scope });
    let spec = json!({ "pool": "p", "command": ["true"], "placement": "All", "retries": retries });
    let uid = world.create_with("t", spec);
    world.quiet();
    assert_eq!(ranks(&world), [(1, 0), (1, 1), (1, 2)]);
    (world, uid)
}

/// Attempts and ranks that run.
fn ranks(world: &World) -> Vec<(u32, u32)> {
    let active = world.active();
    let mut ranks: Vec<_> = active.iter().map(|(_, run)| (run.attempt, run.rank)).collect();
    ranks.sort_unstable();
    ranks
}

fn place_of(world: &World, rank: u32) -> (SlotAttempt, RunId) {
    let mut active = world.active().into_iter();
    active.find(|(_, run)| run.rank == rank).unwrap()
}

fn ends(world: &mut World, rank: u32, code: i32) {
    let (place, run) = place_of(world, rank);
    world.finish(place, &run, code);
    world.quiet();
}

/// Rank 1 fails, the others succeed.
fn one_fails(world: &mut World) {
    ends(world, 0, 0);
    ends(world, 1, 1);
    ends(world, 2, 0);
}

#[test]
fn only_ranks_that_failed_run_again_and_at_the_end_all_have_succeeded() {
    let (mut world, uid) = running("Rank");
    one_fails(&mut world);
    world.pass(1);
    let waiting = world.status(&uid);
    assert_eq!(
        (waiting.succeeded_ranks.as_str(), waiting.done.as_str()),
        ("0,2", "2/3")
    );
    world.pass(6);
    assert_eq!(ranks(&world), [(2, 1)]);
    let status = world.status(&uid);
    assert_eq!(
        (
            status.succeeded_ranks.as_str(),
            status.done.as_str(),
            status.failures
        ),
        ("0,2", "2/3", 1)
    );
    // Again, and then it succeeds.
    ends(&mut world, 1, 1);
    world.pass(7);
    assert_eq!(ranks(&world), [(3, 1)]);
    ends(&mut world, 1, 0);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.attempt, status.failures),
        (Some(TaskPhase::Succeeded), 3, 2)
    );
    assert_eq!(
        (status.succeeded_ranks.as_str(), status.done.as_str()),
        ("0-2", "3/3")
    );
    assert_eq!(status.results.len(), 3);
    world.calm();
}

#[test]
fn all_ranks_run_again_where_nothing_else_is_said() {
    let (mut world, uid) = running("All");
    one_fails(&mut world);
    world.pass(7);
    assert_eq!(ranks(&world), [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(world.status(&uid).succeeded_ranks, "");
}

#[test]
fn a_new_leader_keeps_the_same_ranks_whenever_it_comes() {
    for seconds in 0..9 {
        let (mut world, uid) = running("Rank");
        one_fails(&mut world);
        world.pass(seconds);
        world.restart();
        world.quiet();
        world.pass(8);
        let running = ranks(&world);
        assert_eq!(running.len(), 1, "{seconds}: {running:?}");
        assert_eq!(running[0].1, 1, "{seconds}");
        ends(&mut world, 1, 0);
        let status = world.status(&uid);
        assert_eq!(
            (status.phase, status.failures, status.results.len()),
            (Some(TaskPhase::Succeeded), 1, 3),
            "{seconds}"
        );
    }
}

#[test]
fn ranks_on_other_machines_go_on_when_a_machine_is_lost_and_are_kept() {
    let (mut world, uid) = running("Rank");
    let (place, _) = place_of(&world, 1);
    world.lose_machine(place);
    world.quiet();
    world.pass(6);
    assert_eq!(ranks(&world), [(1, 0), (1, 2)]);
    ends(&mut world, 0, 0);
    ends(&mut world, 2, 0);
    world.add_machine(1);
    world.show_views();
    world.quiet();
    world.pass(3);
    assert_eq!(ranks(&world), [(2, 1)]);
    ends(&mut world, 1, 0);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.interruptions, status.failures),
        (Some(TaskPhase::Succeeded), 1, 0)
    );
}

#[test]
fn a_pool_of_another_size_runs_all_ranks_again() {
    let (mut world, uid) = running("Rank");
    let (last, _) = place_of(&world, 2);
    one_fails(&mut world);
    if let Some(pool) = &mut world.pool {
        (pool.desired, pool.min) = (2, 2);
    }
    world.lose_machine(last);
    world.quiet();
    world.pass(8);
    // Under the second number the store has what the first attempt left.
    assert_eq!(ranks(&world), [(3, 0), (3, 1)]);
    ends(&mut world, 0, 0);
    ends(&mut world, 1, 0);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.done.as_str()),
        (Some(TaskPhase::Succeeded), "2/2")
    );
}

#[test]
fn a_store_that_takes_nothing_holds_the_next_attempt_up_and_says_so() {
    let (mut world, uid) = running("Rank");
    one_fails(&mut world);
    world.store_problem = Some(CollectError::Full("no room".into()));
    world.pass(8);
    assert!(ranks(&world).is_empty());
    let status = world.status(&uid);
    let scheduled = condition::find(&status.conditions, condition::SCHEDULED).unwrap();
    assert!(
        scheduled.message.contains("cannot be kept"),
        "{}",
        scheduled.message
    );
    world.store_problem = None;
    world.pass(40);
    assert_eq!(ranks(&world), [(2, 1)]);
}

#[test]
fn what_ranks_cost_that_do_not_run_again_counts_once() {
    for restarts in [false, true] {
        let (mut world, uid) = running("Rank");
        let (place, _) = place_of(&world, 1);
        world.lose_machine(place);
        world.quiet();
        world.pass(6);
        world.now += Duration::from_hours(1);
        ends(&mut world, 0, 0);
        ends(&mut world, 2, 0);
        world.add_machine(1);
        world.show_views();
        world.quiet();
        world.pass(3);
        if restarts {
            world.restart();
            world.quiet();
            world.pass(3);
        }
        let cost = |world: &World| Usd::or_zero(&world.status(&uid).cost);
        let before = cost(&world);
        assert!(
            before > Usd::cents(500),
            "two ranks took an hour: {}",
            before.exact()
        );
        world.now += Duration::from_hours(1);
        ends(&mut world, 1, 0);
        assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
        let paid = cost(&world) - before;
        assert!(paid < Usd::cents(300), "one rank took an hour: {}", paid.exact());
    }
}
