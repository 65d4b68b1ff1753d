//! Tasks whose files come from git.

use rstest::rstest;
use skyward_api::condition;

use super::{world::World, *};
use crate::task::references::Unresolved;

fn of(url: &str) -> serde_json::Value {
    json!({ "pool": "p", "command": ["true"], "source": { "git": { "url": url } } })
}

const URL: &str = "https://git.example/code";

fn source(name: &str) -> SourceStatus {
    SourceStatus {
        digest: format!("sha256:{name}"),
        commit: name.to_owned(),
    }
}

/// What a machine found that the result store kept.
fn found(name: &str) -> FetchedSource {
    FetchedSource {
        source: source(name),
        not_kept: None,
    }
}

fn unavailable(why: &'static str) -> StartError {
    StartError::References(Unresolved {
        reason: why,
        message: "fatal: it cannot be reached".to_owned(),
    })
}

fn host(fetch: &FetchOrder) -> &str {
    fetch.source.git.as_ref().unwrap().host()
}

fn scheduled(world: &World, uid: &Uid) -> String {
    let status = world.status(uid);
    let scheduled = condition::find(&status.conditions, condition::SCHEDULED).unwrap();
    scheduled.message.clone()
}

/// How many Events tell which commit a source is.
fn told(world: &World) -> usize {
    let published = world.published.iter();
    published.filter(|reason| **reason == "SourceResolved").count()
}

#[test]
fn the_commit_is_on_record_before_the_first_run_starts_and_every_attempt_runs_it() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.repository = Some(Ok(source("c1")));
    let uid = world.create_with("t", of(URL));
    world.quiet();
    assert_eq!(world.status(&uid).source, Some(source("c1")));
    assert_eq!((world.fetches.len(), world.writes[&uid]), (1, 1));
    // The branch moves on, the machine is lost, and another leader comes.
    world.repository = Some(Ok(source("c2")));
    let place = world.active()[0].0;
    world.lose_machine(place);
    world.quiet();
    world.restart();
    world.add_machine(0);
    world.show_views();
    world.calm();
    assert_eq!(world.fetches.len(), 1);
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.attempt, status.source),
        (Some(TaskPhase::Succeeded), 2, Some(source("c1")))
    );
    assert_eq!(told(&world), 1, "the second attempt resolves nothing");
    let digest = Some(source("c1").digest);
    assert_eq!(world.started_with, [(uid.clone(), digest.clone()), (uid, digest)]);
}

#[test]
fn a_leader_that_dies_during_a_fetch_has_left_nothing_and_the_next_one_fetches_again() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.repository = None;
    let uid = world.create_with("t", of(URL));
    world.quiet();
    assert_eq!((world.fetches.len(), world.status(&uid).source), (1, None));
    world.restart();
    world.repository = Some(Ok(source("c2")));
    world.calm();
    let status = world.status(&uid);
    assert_eq!(
        (status.phase, status.source),
        (Some(TaskPhase::Succeeded), Some(source("c2")))
    );
}

#[test]
fn a_slow_host_holds_up_only_the_tasks_that_need_it() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.repository = None;
    let slow = world.create_with("slow", of(URL));
    let free = world.create("free", json!("One"));
    world.quiet();
    assert_eq!(world.status(&free).phase, Some(TaskPhase::Running));
    world.pass(6);
    assert_eq!(world.status(&slow).reason, "FetchingSource");
    assert!(scheduled(&world, &slow).contains("from git.example"));
    // Two at a time are asked of one host, and another host is asked meanwhile.
    let (place, run) = world.active()[0].clone();
    world.finish(place, &run, 0);
    world.quiet();
    for number in 0..4 {
        world.create_with(&format!("more-{number}"), of(&format!("{URL}/{number}")));
    }
    let other = world.create_with("other", of("https://other.example/code"));
    world.quiet();
    world.pass(2);
    let hosts: Vec<&str> = world.fetches.iter().map(host).collect();
    assert_eq!(hosts, ["git.example", "git.example", "other.example"]);
    let number = world.fetches[2].number;
    let result = Ok(found("c1"));
    world.tell(Event::Fetched { number, result });
    world.quiet();
    assert_eq!(world.status(&other).phase, Some(TaskPhase::Running));
}

#[test]
fn tasks_with_the_same_source_share_a_fetch() {
    let mut world = World::new(4, 1);
    world.quiet();
    world.repository = None;
    let uids = ["a", "b", "c"].map(|name| world.create_with(name, of(URL)));
    world.quiet();
    assert_eq!(world.fetches.len(), 1);
    let number = world.fetches[0].number;
    let result = Ok(found("c1"));
    world.tell(Event::Fetched { number, result });
    world.quiet();
    for uid in uids {
        assert_eq!(world.status(&uid).source, Some(source("c1")));
    }
    assert_eq!(world.fetches.len(), 1);
}

/// Other Tasks need no copy in the store: their machines fetch for themselves.
#[test]
fn of_tasks_that_share_a_fetch_only_a_map_with_items_in_the_source_waits_for_the_store_and_has_no_place() {
    let mut world = World::new(8, 1);
    world.quiet();
    world.repository = None;
    let with = |for_each| {
        let mut spec = of(URL);
        spec["forEach"] = for_each;
        spec
    };
    let lines = world.create_with(
        "lines",
        with(json!({ "itemsFrom": { "sourceFile": "items.jsonl" } })),
    );
    let numbers = world.create_with("numbers", with(json!({ "count": 3 })));
    let plain = world.create_with("plain", of(URL));
    world.quiet();
    let number = world.fetches[0].number;
    let result = Ok(FetchedSource {
        not_kept: Some("the store is busy".to_owned()),
        ..found("c1")
    });
    world.tell(Event::Fetched { number, result });
    world.quiet();
    for uid in [&numbers, &plain] {
        assert_eq!(world.status(uid).source, Some(source("c1")));
    }
    let status = world.status(&lines);
    assert_eq!((status.source, status.attempt), (None, 0));
    world.pass(6);
    assert_eq!(world.status(&lines).reason, reason::SOURCE_UNAVAILABLE);
    let said = scheduled(&world, &lines);
    assert!(said.contains("the store is busy; that is tried again"), "{said}");
    // The branch has moved on meanwhile, and the store is there again.
    let number = world.fetches.last().unwrap().number;
    let result = Ok(found("c2"));
    world.tell(Event::Fetched { number, result });
    world.quiet();
    assert_eq!(world.fetches.len(), 2);
    assert_eq!(world.status(&lines).source, Some(source("c2")));
}

#[test]
fn each_task_is_told_once_which_commit_its_source_is_and_a_failed_fetch_tells_none() {
    let mut world = World::new(4, 1);
    world.quiet();
    world.repository = Some(Err(unavailable("SourceUnavailable")));
    for name in ["a", "b", "c"] {
        world.create_with(name, of(URL));
    }
    world.quiet();
    assert_eq!(told(&world), 0);
    world.repository = Some(Ok(source("c1")));
    world.calm();
    assert_eq!(told(&world), 3);
}

#[test]
fn tasks_that_choose_other_files_of_a_repository_share_no_fetch() {
    let mut world = World::new(4, 1);
    world.quiet();
    let mut some = of(URL);
    some["source"]["exclude"] = json!(["data/"]);
    let (all, some) = (world.create_with("all", of(URL)), world.create_with("some", some));
    world.repository = None;
    world.quiet();
    let excluded: Vec<usize> = world
        .fetches
        .iter()
        .map(|fetch| fetch.source.exclude.len())
        .collect();
    assert_eq!(excluded, [0, 1]);
    for (fetch, name) in [(0, "whole"), (1, "part")] {
        let number = world.fetches[fetch].number;
        let result = Ok(found(name));
        world.tell(Event::Fetched { number, result });
    }
    world.quiet();
    assert_eq!(world.status(&all).source, Some(source("whole")));
    assert_eq!(world.status(&some).source, Some(source("part")));
}

#[test]
fn a_task_that_comes_during_a_fetch_gets_what_the_branch_names_afterwards() {
    let mut world = World::new(4, 1);
    world.quiet();
    world.repository = None;
    let early = world.create_with("early", of(URL));
    world.quiet();
    world.pass(1);
    let late = world.create_with("late", of(URL));
    world.quiet();
    world.pass(1);
    let numbers: Vec<u64> = world.fetches.iter().map(|fetch| fetch.number).collect();
    assert_eq!(numbers.len(), 2);
    for (number, name) in numbers.into_iter().zip(["before", "after"]) {
        let result = Ok(found(name));
        world.tell(Event::Fetched { number, result });
        world.quiet();
    }
    assert_eq!(world.status(&early).source, Some(source("before")));
    assert_eq!(world.status(&late).source, Some(source("after")));
}

#[test]
fn a_host_that_fails_is_asked_again_with_longer_and_longer_pauses_and_the_reason_is_told() {
    let mut world = World::new(1, 1);
    world.quiet();
    for (why, most) in [("SourceUnavailable", 7), ("SourceInvalid", 2)] {
        let before = world.fetches.len();
        world.repository = Some(Err(unavailable(why_of(why))));
        let uid = world.create_with(why, of(URL));
        world.quiet();
        world.pass(60);
        assert_eq!(world.status(&uid).reason, why);
        assert_eq!(scheduled(&world, &uid), "fatal: it cannot be reached");
        let tries = world.fetches.len() - before;
        assert!((2..=most).contains(&tries), "{tries} tries in a minute");
        world.repository = Some(Ok(source("c1")));
        world.calm();
        assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    }
}

/// Places that the Pool is asked for.
fn places(world: &World) -> u32 {
    world.dispatcher.load().unwrap().demand.places
}

/// The Pool sleeps.
fn lose_all_machines(world: &mut World) {
    while let Some(place) = world.machines.keys().next().copied() {
        world.lose_machine(place);
    }
    world.quiet();
}

#[test]
fn a_source_that_fails_again_and_again_is_tried_by_the_machine_that_is_there_and_asks_for_one_each_hour() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.repository = Some(Err(unavailable(reason::SOURCE_UNAVAILABLE)));
    let uid = world.create_with("t", of(URL));
    world.quiet();
    world.pass(10);
    assert_eq!(places(&world), 1, "a host may be away for some seconds");
    world.pass(300);
    assert_eq!(places(&world), 0);
    let tries = world.fetches.len();
    world.pass(300);
    assert!(world.fetches.len() > tries, "the machine that is there tries it");
    lose_all_machines(&mut world);
    world.now += Duration::from_mins(50);
    world.pass(6);
    assert_eq!(places(&world), 0);
    world.now += Duration::from_mins(20);
    world.pass(6);
    assert_eq!(places(&world), 1, "an hour is over");
    world.add_machine(0);
    world.show_views();
    world.quiet();
    world.pass(6);
    assert_eq!(places(&world), 0, "one more try failed");
    world.repository = Some(Ok(source("c1")));
    world.calm();
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[rstest]
fn another_controller_asks_for_no_machine_for_a_source_whose_failure_is_on_record_until_an_hour_is_over(
    #[values(reason::SOURCE_UNAVAILABLE, reason::SOURCE_INVALID)] why: &'static str,
    #[values(true, false)] is_resumed: bool,
) {
    let mut world = World::new(1, 1);
    world.quiet();
    world.repository = Some(Err(unavailable(why)));
    let uid = world.create_with("t", of(URL));
    world.quiet();
    world.pass(300);
    assert_eq!((world.status(&uid).reason.as_str(), places(&world)), (why, 0));
    lose_all_machines(&mut world);
    world.restart();
    world.quiet();
    world.pass(6);
    assert_eq!((world.status(&uid).reason.as_str(), places(&world)), (why, 0));
    if is_resumed {
        // A person suspends the Task and lets it go on.
        world.edit(&uid, |task| task.spec.suspend = Some(true));
        world.quiet();
        world.pass(6);
        world.edit(&uid, |task| task.spec.suspend = Some(false));
        world.quiet();
    } else {
        world.now += Duration::from_mins(70);
    }
    world.pass(6);
    assert_eq!(places(&world), 1, "it is to be tried again");
}

#[test]
fn another_controller_tries_a_source_that_failed_at_once_where_a_machine_is() {
    let mut world = World::new(1, 1);
    world.quiet();
    world.repository = Some(Err(unavailable(reason::SOURCE_UNAVAILABLE)));
    let uid = world.create_with("t", of(URL));
    world.quiet();
    world.pass(300);
    world.repository = Some(Ok(source("c1")));
    world.restart();
    world.quiet();
    world.pass(3);
    assert_eq!(world.status(&uid).source, Some(source("c1")));
}

fn why_of(name: &str) -> &'static str {
    match name {
        "SourceInvalid" => reason::SOURCE_INVALID,
        _ => reason::SOURCE_UNAVAILABLE,
    }
}

#[test]
fn a_fetch_that_nobody_waits_for_is_given_up_and_its_late_answer_does_not_count() {
    let mut world = World::new(1, 1);
    world.quiet();
    for way in ["suspended", "deleted", "off"] {
        world.repository = None;
        let uid = world.create_with(way, of(URL));
        world.quiet();
        let number = world.fetches.last().unwrap().number;
        match way {
            "suspended" => world.edit(&uid, |task| task.spec.suspend = Some(true)),
            "deleted" => world.delete(&uid),
            _ => {
                world.pool.as_mut().unwrap().why_suspended = Some("it was turned off");
                world.show_views();
            }
        }
        world.quiet();
        world.pass(2);
        assert_eq!(world.cancelled.pop(), Some(FetchKey::Number(number)), "{way}");
        let result = Ok(found("late"));
        world.tell(Event::Fetched { number, result });
        world.quiet();
        assert_eq!(world.status(&uid).source, None, "{way}");
        world.repository = Some(Ok(source("c1")));
        if way == "suspended" {
            world.edit(&uid, |task| task.spec.suspend = Some(false));
            world.calm();
            assert_eq!(world.status(&uid).source, Some(source("c1")));
        }
    }
}

#[test]
fn a_stop_does_not_wait_for_files_that_are_on_their_way() {
    let mut world = World::new(1, 1);
    world.quiet();
    let uid = world.create_with("t", of(URL));
    // Until its run is about to start.
    for _ in 0..100 {
        if world
            .effects
            .iter()
            .any(|effect| matches!(effect, Effect::Start(_)))
        {
            break;
        }
        if let Some(event) = world.watch.pop_front().or_else(|| world.answers.pop_front()) {
            world.tell(event);
        } else {
            let effect = world.effects.remove(0);
            world.carry_out(effect, false, false);
        }
    }
    let run = RunId::new(&uid, 1, 0);
    world.edit(&uid, |task| task.spec.suspend = Some(true));
    while let Some(event) = world.watch.pop_front() {
        world.tell(event);
    }
    let cancels = |effect: &Effect| matches!(effect, Effect::CancelFetch(FetchKey::Run(id)) if *id == run);
    assert!(world.effects.iter().any(cancels), "{:?}", world.effects);
}
