//! Several processes of one Task on each machine.

use skyward_api::condition;

use super::{world::World, *};

/// Creates a Task with so many processes on each machine.
fn create_with_processes(world: &mut World, processes: u32) -> Uid {
    world.create_with(
        "several",
        json!({ "pool": "p", "command": ["true"], "placement": "All", "processesPerMachine": processes }),
    )
}

#[test]
fn each_process_of_a_machine_is_a_rank_with_an_end_of_its_own() {
    let mut world = World::new(4, 2);
    world.quiet();
    let uid = create_with_processes(&mut world, 2);
    world.quiet();
    let placed = world.status(&uid).placed;
    let slots: Vec<u32> = placed.iter().map(|place| place.slot).collect();
    assert_eq!(slots, [0, 0, 1, 1]);
    let told: Vec<_> = world
        .told_of
        .iter()
        .map(|(run, told)| (run.rank, *told))
        .collect();
    assert_eq!(told, [(0, (2, 2)), (1, (2, 2)), (2, (2, 2)), (3, (2, 2))]);
    let runs = world.active();
    assert_eq!(runs.len(), 4);
    for (place, run) in runs {
        assert_eq!(place, placed[run.rank as usize]);
        world.finish(place, &run, i32::from(run.rank == 2));
    }
    world.quiet();
    let status = world.status(&uid);
    assert_eq!(status.phase, Some(TaskPhase::Failed));
    assert_eq!(
        (&*status.done, &*status.succeeded_ranks, &*status.failed_ranks),
        ("4/4", "0-1,3", "2")
    );
    assert_eq!(status.results.len(), 4);
}

#[test]
fn all_processes_of_all_machines_start_again_when_one_machine_is_lost() {
    let mut world = World::new(2, 2);
    world.quiet();
    let uid = create_with_processes(&mut world, 2);
    world.quiet();
    let lost = world.status(&uid).placed[2];
    world.lose_machine(lost);
    world.quiet();
    let rest = world.active();
    assert_eq!(rest.iter().map(|(_, run)| run.rank).collect::<Vec<_>>(), [0, 1]);
    for (place, run) in rest {
        world.finish(place, &run, 143);
    }
    world.add_machine(1);
    world.show_views();
    world.pass(6);
    let status = world.status(&uid);
    assert_eq!((status.attempt, status.interruptions), (2, 1));
    assert_eq!(status.placed.len(), 4);
    assert!(!status.placed.contains(&lost));
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn a_new_leader_knows_from_the_record_how_many_processes_a_machine_has() {
    let mut world = World::new(2, 2);
    world.quiet();
    let uid = create_with_processes(&mut world, 2);
    // Until the placement is on record; no run is started yet.
    while world.status(&uid).phase != Some(TaskPhase::Running) {
        if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
            world.tell(event);
        } else {
            let effect = world.effects.remove(0);
            world.carry_out(effect, false, false);
        }
    }
    assert!(world.told_of.is_empty());
    world.restart();
    world.quiet();
    assert_eq!(world.told_of.len(), 4);
    assert!(
        world.told_of.values().all(|told| *told == (2, 2)),
        "{:?}",
        world.told_of
    );
}

#[test]
fn more_processes_than_a_machine_has_places_wait_until_the_pool_gives_it_more() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = create_with_processes(&mut world, 2);
    world.pass(6);
    assert_eq!(world.status(&uid).reason, "TooManyProcesses");
    // Its wait keeps no place from others.
    let other = world.create("other", json!("One"));
    world.quiet();
    assert_eq!(world.status(&other).phase, Some(TaskPhase::Running));
    world.pool.as_mut().unwrap().concurrency = 3;
    world.show_views();
    world.quiet();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    assert_eq!(world.active().len(), 3);
}

#[test]
fn processes_on_a_machine_with_one_place_for_threads_are_told_what_makes_it_more() {
    let mut world = World::new(1, 1);
    world.pool.as_mut().unwrap().threads = Some(8);
    world.show_views();
    world.quiet();
    let uid = create_with_processes(&mut world, 2);
    world.pass(6);
    let conditions = world.status(&uid).conditions;
    let scheduled = condition::find(&conditions, condition::SCHEDULED).unwrap();
    assert_eq!(scheduled.reason, "TooManyProcesses");
    assert!(
        scheduled.message.contains("worker.executor is Thread"),
        "{}",
        scheduled.message
    );
}
