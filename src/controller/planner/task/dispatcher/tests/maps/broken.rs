//! Workers that end by themselves, and machines that cannot begin items: pauses, other machines, and the end of the Task.

use super::*;

/// A map whose Task allows so many interruptions.
fn allowing(world: &mut World, interruptions: u32) -> Uid {
    let uid = world.create_with(
        "m",
        json!({ "pool": "p", "command": ["work"], "forEach": { "count": TOTAL },
                "retries": { "onInterruption": interruptions } }),
    );
    world.quiet();
    uid
}

/// The worker of that rank ends though nobody has asked it to, and so many attempts of items have ended by then.
fn break_worker(world: &mut World, uid: &Uid, rank: u32, ends: u64) {
    let (place, id) = world
        .active()
        .into_iter()
        .find(|(_, id)| id.rank == rank)
        .unwrap();
    world.finish(place, &id, 1);
    world.quiet();
    let told = MapTold { ends, ..under_way() };
    tell(world, uid, done_with(told, rank..rank + 1));
}

#[test]
fn workers_that_end_before_any_item_does_pause_longer_each_time_and_in_the_end_the_task_says_what_to_do() {
    let mut world = World::new(1, 1);
    let uid = allowing(&mut world, 2);
    for (attempt, pause) in [(1, 10), (2, 20)] {
        tell(&mut world, &uid, under_way());
        break_worker(&mut world, &uid, 0, 0);
        world.pass(pause - 1);
        assert!(
            world.active().is_empty(),
            "attempt {attempt} is followed by a pause"
        );
        let status = world.status(&uid);
        assert_eq!((status.attempt, status.interruptions), (attempt, attempt));
        assert!(status.retry_at.is_some(), "another leader knows of the pause");
        world.pass(2);
        assert_eq!(world.status(&uid).attempt, attempt + 1);
    }
    tell(&mut world, &uid, under_way());
    break_worker(&mut world, &uid, 0, 0);
    world.pass(2);
    let status = world.status(&uid);
    assert_eq!(
        (status.reason.as_str(), status.interruptions),
        (reason::INTERRUPTED, 3)
    );
    let failed = condition::find(&status.conditions, condition::FAILED).unwrap();
    for part in [
        "retries.onInterruption allows 2",
        "no item ended",
        "p-",
        "kubectl skyward retry m",
    ] {
        assert!(failed.message.contains(part), "{part}: {}", failed.message);
    }
    assert!(!world.maps.contains_key(&uid));
}

#[test]
fn a_task_whose_items_go_on_ends_by_no_number_of_broken_workers() {
    let mut world = World::new(1, 1);
    let uid = allowing(&mut world, 0);
    for attempt in 1..4 {
        tell(&mut world, &uid, under_way());
        break_worker(&mut world, &uid, 0, 1);
        world.pass(12);
        let status = world.status(&uid);
        assert_eq!((status.attempt, status.interruptions), (attempt + 1, 0));
    }
}

#[test]
fn a_worker_that_ended_by_itself_is_followed_after_a_pause_which_is_longer_while_no_item_succeeds() {
    let mut world = World::new(2, 1);
    let uid = allowing(&mut world, 0);
    tell(&mut world, &uid, under_way());
    for (rank, pause) in [(1, 10), (2, 20)] {
        break_worker(&mut world, &uid, rank, 0);
        world.pass(pause - 1);
        assert_eq!(ranks(&world), [0], "rank {rank} is followed by a pause");
        world.pass(2);
        assert_eq!(ranks(&world), [0, rank + 1]);
    }
    let told = MapTold {
        items: items(1, 0),
        ..under_way()
    };
    tell(&mut world, &uid, told);
    let (place, id) = world.active().into_iter().find(|(_, id)| id.rank == 3).unwrap();
    world.finish(place, &id, 1);
    world.quiet();
    world.pass(12);
    assert_eq!(ranks(&world), [0, 4], "an item has succeeded meanwhile");
    assert_eq!(world.status(&uid).attempt, 1);
}

/// The machine of the worker of that rank cannot begin items, and the worker ends.
fn cannot_begin(world: &mut World, uid: &Uid, rank: u32) {
    let full = Why::new(reason::DISK_FULL, "the disk of the machine is full");
    let told = MapTold {
        unfit: [(rank, full)].into(),
        ..under_way()
    };
    tell(world, uid, told.clone());
    let news = world.maps[uid].as_ref().unwrap();
    let worker = news.workers.iter().find(|worker| worker.rank == rank).unwrap();
    assert_eq!(worker.life, Life::Closing, "rank {rank} gets no other item");
    let told = MapTold {
        close: vec![rank],
        ..told
    };
    tell(world, uid, told.clone());
    let (place, id) = world
        .active()
        .into_iter()
        .find(|(_, id)| id.rank == rank)
        .unwrap();
    world.finish(place, &id, 0);
    world.quiet();
    tell(world, uid, done_with(told, rank..rank + 1));
}

#[test]
fn a_machine_that_cannot_begin_items_gets_no_worker_for_a_pause_that_doubles_and_another_one_goes_on() {
    let mut world = World::new(1, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let machine = |world: &World, rank: u32| {
        let news = world.maps[&uid].as_ref().unwrap();
        let worker = news.workers.iter().find(|worker| worker.rank == rank);
        worker.map(|worker| worker.machine.to_string()).unwrap()
    };
    for (rank, next, pause) in [(0, 2, 10), (2, 3, 20)] {
        let name = machine(&world, rank);
        cannot_begin(&mut world, &uid, rank);
        world.pass(pause - 1);
        assert_eq!(ranks(&world), [1], "the machine of rank {rank} pauses");
        let status = world.status(&uid);
        assert_eq!(status.reason, reason::MACHINE_UNFIT);
        let running = condition::find(&status.conditions, condition::RUNNING).unwrap();
        for part in [
            name.as_str(),
            "DiskFull: the disk of the machine is full",
            "delete Machine",
        ] {
            assert!(running.message.contains(part), "{part}: {}", running.message);
        }
        world.pass(2);
        assert_eq!(ranks(&world), [1, next]);
        assert_eq!(machine(&world, next), name);
    }
    world.pass(5);
    assert_ne!(
        world.status(&uid).reason,
        reason::MACHINE_UNFIT,
        "it has a worker again"
    );
}

#[test]
fn all_workers_of_a_machine_that_cannot_begin_items_end_and_those_of_others_do_not() {
    let mut world = World::new(2, 2);
    let uid = map(&mut world, "m", json!({ "count": TOTAL }));
    tell(&mut world, &uid, under_way());
    let unfit = world.maps[&uid].as_ref().unwrap().workers[0].machine.clone();
    let full = Why::new(reason::DISK_FULL, "the disk of the machine is full");
    let told = MapTold {
        unfit: [(0, full)].into(),
        ..under_way()
    };
    tell(&mut world, &uid, told);
    let workers = &world.maps[&uid].as_ref().unwrap().workers;
    assert_eq!(workers.len(), 4);
    for worker in workers {
        let is_closing = worker.life == Life::Closing;
        assert_eq!(is_closing, worker.machine == unfit, "rank {}", worker.rank);
    }
}

#[test]
fn a_task_of_which_no_machine_can_begin_an_item_fails_and_says_how_the_last_one_ended() {
    let mut world = World::new(1, 1);
    let uid = allowing(&mut world, 1);
    for attempt in 1..=2 {
        assert_eq!(world.status(&uid).attempt, attempt);
        tell(&mut world, &uid, under_way());
        cannot_begin(&mut world, &uid, 0);
        world.pass(12);
    }
    let status = world.status(&uid);
    assert_eq!(
        (status.reason.as_str(), status.interruptions),
        (reason::INTERRUPTED, 2)
    );
    let failed = condition::find(&status.conditions, condition::FAILED).unwrap();
    for part in [
        "retries.onInterruption allows 1",
        "machine \"p-",
        "could not begin items (DiskFull: the disk of the machine is full)",
    ] {
        assert!(failed.message.contains(part), "{part}: {}", failed.message);
    }
}
