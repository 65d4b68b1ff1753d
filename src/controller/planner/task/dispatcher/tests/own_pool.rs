//! The Pool that is made for one Task: one is made, it runs that Task alone, and it goes with the Task, whatever
//! happens to the controller and to people's objects meanwhile.

use super::{
    world::{World, view},
    *,
};
use crate::task::own_pool::Owner;

/// A namespace without a Pool of the name "p".
fn nothing() -> World {
    let mut world = World::new(1, 0);
    world.pool = None;
    world.show_views();
    world.quiet();
    world
}

fn template() -> serde_json::Value {
    json!({ "command": ["true"], "poolTemplate": { "spec": { "provider": "x" } } })
}

fn owned_by(uid: &str) -> PoolView {
    PoolView {
        owner: Some(Owner {
            uid: uid.into(),
            name: "p".into(),
        }),
        ..view(1, 1)
    }
}

fn machine_comes(world: &mut World) {
    world.add_machine(0);
    world.show_views();
    world.quiet();
}

/// The deletion of the Pool comes to its end.
fn pool_goes(world: &mut World) {
    world.pool = None;
    world.machines.clear();
    world.show_views();
    world.quiet();
}

fn scheduled(world: &World, uid: &Uid) -> (String, String) {
    let status = world.status(uid);
    let scheduled = condition::find(&status.conditions, condition::SCHEDULED).unwrap();
    (scheduled.reason.clone(), scheduled.message.clone())
}

#[test]
fn a_task_gets_its_pool_runs_there_and_the_pool_goes_with_its_end() {
    let mut world = nothing();
    let uid = world.create_with("p", template());
    world.quiet();
    assert_eq!(world.pools_made, 1);
    world.pass(1);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Pending));
    machine_comes(&mut world);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Running));
    let (place, run) = world.active()[0].clone();
    world.pass(60);
    assert!(world.pools_deleted.is_empty(), "its Task runs");
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert_eq!(world.pools_deleted, ["pool-1"]);
    world.pass(60);
    pool_goes(&mut world);
    world.pass(60);
    assert_eq!((world.pools_asked_for, world.pools_deleted.len()), (1, 1));
    assert!(!world.dispatcher.wants_ticks(), "there is nothing left to do");
}

#[derive(Clone, Copy, Debug)]
enum Mishap {
    Dies,
    LostBefore,
    LostAfter,
}

/// From the Task to the end of its Pool, with one mishap at a step. Answers whether there was such a step.
fn life(world: &mut World, mishap: Mishap, at: usize) -> bool {
    for step in 0..600 {
        if step == at && matches!(mishap, Mishap::Dies) {
            world.restart();
        }
        if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
            world.tell(event);
        } else if !world.effects.is_empty() {
            let effect = world.effects.remove(0);
            let before = step == at && matches!(mishap, Mishap::LostBefore);
            let after = step == at && matches!(mishap, Mishap::LostAfter);
            world.carry_out(effect, before, after);
        } else if let Some((place, run)) = world.active().into_iter().next() {
            world.finish(place, &run, 0);
        } else if !world.pools_deleted.is_empty() {
            return step > at;
        } else if world.pool.is_some() && world.machines.is_empty() {
            world.add_machine(0);
            world.show_views();
        } else {
            assert!(world.dispatcher.wants_ticks(), "it stands still");
            world.now += Duration::from_secs(1);
            world.tell(Event::Tick);
        }
    }
    panic!("its Pool is still there after {mishap:?} at step {at}");
}

#[test]
fn a_mishap_between_any_two_steps_makes_no_second_pool_and_leaves_none() {
    for mishap in [Mishap::Dies, Mishap::LostBefore, Mishap::LostAfter] {
        for at in 0.. {
            let mut world = nothing();
            let uid = world.create_with("p", template());
            let happened = life(&mut world, mishap, at);
            let what = format!("{mishap:?} at step {at}");
            assert_eq!((world.pools_made, world.pools_deleted.len()), (1, 1), "{what}");
            assert_eq!(world.ends[&uid], 1, "{what}");
            assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded), "{what}");
            if !happened {
                assert!(at > 15, "there were only {at} steps");
                break;
            }
        }
    }
}

#[test]
fn a_task_that_is_deleted_before_its_pool_is_made_gets_none() {
    let mut world = nothing();
    let uid = world.create_with("p", template());
    // The watch has not shown that yet.
    world.objects.remove(&uid);
    world.quiet();
    world.pass(60);
    assert_eq!(world.pools_asked_for, 0);
}

#[test]
fn the_pool_of_a_task_that_is_deleted_while_the_pool_is_being_made_goes_as_soon_as_it_is_seen() {
    let mut world = nothing();
    world.shows_pools = false;
    let uid = world.create_with("p", template());
    world.quiet();
    assert_eq!(world.pools_made, 1);
    world.delete(&uid);
    world.quiet();
    assert!(world.dispatcher.is_empty());
    world.show_views();
    world.quiet();
    assert_eq!(world.pools_deleted, ["pool-1"]);
}

#[test]
fn a_pool_that_the_watch_does_not_show_yet_is_not_asked_for_again_each_second() {
    let mut world = nothing();
    world.shows_pools = false;
    world.create_with("p", template());
    world.pass(60);
    assert_eq!(world.pools_made, 1);
    assert!(
        (2..=13).contains(&world.pools_asked_for),
        "{}",
        world.pools_asked_for
    );
}

#[test]
fn a_suspended_task_gets_its_pool_when_it_is_resumed() {
    let mut world = nothing();
    let mut spec = template();
    spec["suspend"] = json!(true);
    let uid = world.create_with("p", spec);
    world.pass(60);
    assert_eq!(world.pools_asked_for, 0);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Suspended));
    world.edit(&uid, |task| task.spec.suspend = None);
    world.quiet();
    assert_eq!(world.pools_made, 1);
}

#[test]
fn a_pool_that_is_refused_is_said_with_the_words_of_the_api_server_and_tried_ever_less_often() {
    let mut world = nothing();
    world.refuses_pools = Some("exceeded quota: pools, requested: count/pools=1");
    let uid = world.create_with("p", template());
    world.pass(2);
    let (reason, message) = scheduled(&world, &uid);
    assert_eq!(reason, reason::POOL_REFUSED);
    assert!(message.contains("exceeded quota: pools"), "{message}");
    world.pass(3600);
    assert!(
        (12..=20).contains(&world.pools_asked_for),
        "{}",
        world.pools_asked_for
    );
    world.refuses_pools = None;
    world.pass(301);
    assert_eq!(world.pools_made, 1);
}

#[test]
fn a_task_does_not_run_in_a_pool_of_its_name_that_somebody_else_made() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create_with("p", template());
    world.pass(3);
    assert!(world.active().is_empty());
    let (reason, message) = scheduled(&world, &uid);
    assert_eq!(reason, reason::POOL_NAME_TAKEN);
    assert!(
        message.contains("create the Task under another name"),
        "{message}"
    );
    assert_eq!(
        world.dispatcher.load().unwrap().queued,
        0,
        "that Pool must not grow for it"
    );
    // A Pool that nobody made for a Task does not go with it.
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    world.pass(3);
    world.delete(&uid);
    world.pass(60);
    assert!(world.pools_deleted.is_empty());
    assert!(world.pool.is_some());
}

#[test]
fn the_pool_is_made_once_the_other_one_of_its_name_is_gone() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.create_with("p", template());
    world.pass(3);
    pool_goes(&mut world);
    assert_eq!(world.pools_made, 1);
    machine_comes(&mut world);
    assert_eq!(world.active().len(), 1);
}

#[test]
fn a_task_that_is_created_again_waits_for_the_end_of_the_pool_of_the_earlier_one() {
    let mut world = nothing();
    world.pool = Some(owned_by("uid-before"));
    let uid = world.create_with("p", template());
    world.now += Duration::from_secs(1);
    world.pool.as_mut().unwrap().deleted_at = Some(world.now);
    world.show_views();
    world.pass(3);
    let (reason, message) = scheduled(&world, &uid);
    assert_eq!(reason, reason::POOL_NAME_TAKEN);
    assert!(message.contains("is being deleted"), "{message}");
    pool_goes(&mut world);
    assert_eq!(
        (world.pools_made, world.status(&uid).phase),
        (1, Some(TaskPhase::Pending))
    );
}

#[test]
fn a_pool_that_was_made_for_a_task_runs_no_other_one() {
    let mut world = nothing();
    let owner = world.create_with("p", template());
    world.quiet();
    let other = world.create("other", json!("One"));
    machine_comes(&mut world);
    let running: Vec<Uid> = world.active().into_iter().map(|(_, run)| run.uid).collect();
    assert_eq!(running, [owner]);
    world.pass(3);
    assert_eq!(scheduled(&world, &other).0, reason::POOL_NOT_SHARED);
    assert_eq!(world.dispatcher.load().unwrap().queued, 0);
    let (place, run) = world.active()[0].clone();
    world.finish(place, &run, 0);
    world.quiet();
    assert_eq!(
        world.pools_deleted.len(),
        1,
        "it does not wait for the other Task"
    );
    pool_goes(&mut world);
    world.pass(3);
    assert_eq!(scheduled(&world, &other).0, reason::POOL_NOT_FOUND);
}

#[test]
fn a_task_whose_own_pool_is_deleted_by_a_person_fails_and_gets_no_other_one() {
    for starts in [false, true] {
        let mut world = nothing();
        let uid = world.create_with("p", template());
        world.quiet();
        if starts {
            machine_comes(&mut world);
        }
        world.now += Duration::from_secs(1);
        world.delete_pool("pool-1");
        world.quiet();
        for (place, run) in world.active() {
            world.finish(place, &run, 143);
        }
        world.pass(3);
        assert_eq!(world.status(&uid).reason, reason::POOL_DELETED, "{starts}");
        pool_goes(&mut world);
        world.pass(60);
        assert_eq!(world.pools_asked_for, 1);
    }
}

#[test]
fn a_task_that_no_offer_can_serve_says_so_with_what_would() {
    let mut world = nothing();
    let uid = world.create_with("p", template());
    world.quiet();
    let explained = "None of 3 offers of Provider \"x\" fits: 3 cost more than 1 USD per hour (the cheapest 2); raise maxHourlyCost.";
    world.pool.as_mut().unwrap().not_ready = Some((reason::NO_AVAILABLE_PROVIDER.into(), explained.into()));
    world.show_views();
    world.pass(2);
    let (reason, message) = scheduled(&world, &uid);
    assert_eq!(reason, reason::NO_AVAILABLE_PROVIDER);
    assert!(message.contains(explained), "{message}");
    assert!(
        message.contains("Create the Task again with a template that fits"),
        "{message}"
    );
}

#[test]
fn the_pool_of_a_task_that_the_watch_does_not_show_yet_stays() {
    let mut world = nothing();
    let uid = world.create_with("p", template());
    world.watch.clear();
    world.pool = Some(owned_by(&uid));
    world.show_views();
    world.pass(120);
    assert!(world.pools_deleted.is_empty());
}

#[test]
fn a_pool_stays_that_a_person_gave_a_task_as_its_owner_which_runs_elsewhere() {
    let mut world = nothing();
    let uid = world.create_with("p", json!({ "pool": "q", "command": ["true"] }));
    world.watch.clear();
    world.edit(&uid, |task| {
        task.status = Some(TaskStatus {
            phase: Some(TaskPhase::Succeeded),
            ..TaskStatus::default()
        });
    });
    world.pool = Some(owned_by(&uid));
    world.show_views();
    world.pass(120);
    assert!(world.pools_deleted.is_empty());
}

#[test]
fn nothing_is_made_or_deleted_while_this_cluster_may_have_forgotten_machines() {
    let mut world = nothing();
    world.tell(Event::Memory(ClusterMemory::Held));
    world.create_with("p", template());
    world.pass(60);
    assert_eq!(world.pools_asked_for, 0);
    world.pool = Some(owned_by("uid-before"));
    world.show_views();
    world.pass(60);
    assert!(world.pools_deleted.is_empty());
    world.tell(Event::Memory(ClusterMemory::Whole));
    world.pass(5);
    assert_eq!(world.pools_deleted.len(), 1);
}

#[test]
fn no_pool_is_made_for_a_task_that_waits_for_another_one() {
    let mut world = nothing();
    let mut spec = template();
    spec["dependsOn"] = json!([{ "task": "first" }]);
    let uid = world.create_with("p", spec);
    world.pass(20);
    assert_eq!(world.pools_asked_for, 0);
    assert_eq!(scheduled(&world, &uid).0, "WaitingForTask");
}
