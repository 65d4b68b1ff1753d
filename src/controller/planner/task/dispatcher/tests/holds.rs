//! Logs and results wait on their machines, and what the dispatcher keeps of them meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::{
    agents::fact_of,
    faults::{one_runs, running},
    world::World,
    *,
};

/// One Task whose value has no room in the store.
fn held() -> (World, Uid, SlotAttempt, RunId) {
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    let problem = CollectError::Quota("namespace \"n\" holds 2 GiB".into());
    world.store_problem = Some(problem);
    world.finish(place, &run, 0);
    world.quiet();
    (world, uid, place, run)
}

fn times_told(world: &World) -> usize {
    let told = world.published.iter().filter(|reason| **reason == "RunHeldUp");
    told.count()
}

#[test]
fn what_waits_for_room_is_told_at_once_and_each_ten_minutes_with_its_price_and_ends_after_the_hold() {
    let (mut world, uid, place, run) = held();
    assert_eq!(times_told(&world), 1, "at once");
    world.pass(6);
    let (reason, message) = running(&world, &uid);
    assert_eq!(reason, "StoreQuotaExceeded");
    for part in [
        "namespace \"n\" holds 2 GiB",
        "$2.5/h",
        "store.holdFor",
        "ResultNotStored",
        "1970-01-12 14:46:40 UTC",
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(
        times_told(&world),
        1,
        "the write of the status tells nothing twice"
    );
    world.pass(3500);
    assert_eq!(times_told(&world), 6);
    assert!(world.gave_up.is_empty() && world.machines[&place].runs.contains_key(&run));
    world.pass(130);
    assert_eq!(world.gave_up, std::slice::from_ref(&run));
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Failed));
    assert_eq!(world.status(&uid).reason, "ResultNotStored");
    assert!(
        !world.machines[&place].runs.contains_key(&run),
        "the machine is free"
    );
    assert!(world.dispatcher.is_empty());
}

#[test]
fn a_hold_goes_on_with_the_next_leader_and_does_not_begin_anew() {
    let (mut world, uid, _, run) = held();
    world.pass(3000);
    assert!(world.gave_up.is_empty());
    world.restart();
    world.quiet();
    world.pass(500);
    assert!(world.gave_up.is_empty());
    world.pass(200);
    assert_eq!(world.gave_up, [run]);
    assert_eq!(world.status(&uid).reason, "ResultNotStored");
}

#[test]
fn what_finds_room_before_its_hold_is_over_is_stored() {
    let (mut world, uid, _, _) = held();
    world.pass(3000);
    world.store_problem = None;
    world.pass(31);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert!(world.gave_up.is_empty());
}

#[test]
fn a_hold_ends_although_nothing_can_be_written_down_about_it() {
    let mut world = World::new(1, 1);
    world.writes_no_since = true;
    let (uid, place, run) = one_runs(&mut world);
    world.store_problem = Some(CollectError::Full("the result store is full".into()));
    world.finish(place, &run, 0);
    world.quiet();
    world.pass(3590);
    assert!(world.gave_up.is_empty());
    world.pass(60);
    assert_eq!(world.gave_up, [run]);
    assert_eq!(world.status(&uid).reason, "ResultNotStored");
    assert!(world.machines[&place].runs.is_empty(), "the machine is free");
}

/// One Task that has ended on a machine that does not give its value.
fn withheld() -> (World, Uid, SlotAttempt, RunId) {
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    world.withholds = true;
    world.finish(place, &run, 0);
    world.quiet();
    (world, uid, place, run)
}

#[test]
fn what_a_connected_machine_does_not_give_is_said_after_some_minutes_and_given_up_after_the_hold() {
    let (mut world, uid, place, run) = withheld();
    world.pass(170);
    assert_eq!(times_told(&world), 0, "it may be a moment");
    assert_eq!(world.dispatcher.load().unwrap().unstored, 0);
    world.pass(30);
    let (reason, message) = running(&world, &uid);
    assert_eq!(reason, "OutputNotRead");
    for part in ["$2.5/h", "store.holdFor", "ResultNotStored", "1970-01-12 14:46"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert_eq!(times_told(&world), 1);
    assert_eq!(world.dispatcher.load().unwrap().unstored, 1);
    world.pass(3300);
    assert!((5..=7).contains(&times_told(&world)), "{}", times_told(&world));
    assert!(world.gave_up.is_empty());
    world.pass(120);
    assert_eq!(world.gave_up, [run]);
    assert_eq!(world.status(&uid).reason, "ResultNotStored");
    assert!(world.machines[&place].runs.is_empty(), "the machine is free");
    assert!(world.dispatcher.is_empty());
}

#[test]
fn a_machine_that_comes_and_goes_does_not_begin_the_wait_anew() {
    let (mut world, uid, place, run) = withheld();
    for _ in 0..200 {
        world.pass(20);
        world.flap(place, false);
        world.pass(5);
        world.flap(place, true);
    }
    assert_eq!(world.gave_up, [run]);
    assert_eq!(world.status(&uid).reason, "ResultNotStored");
}

#[test]
fn a_machine_that_is_away_is_waited_for_and_one_that_gives_in_time_loses_nothing() {
    let (mut world, uid, place, _) = withheld();
    world.pass(1000);
    world.flap(place, false);
    world.quiet();
    world.pass(5000);
    assert!(world.gave_up.is_empty());
    world.flap(place, true);
    world.pass(100);
    assert!(world.gave_up.is_empty(), "the time away does not count");
    world.withholds = false;
    world.pass(10);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
    assert!(world.dispatcher.is_empty());
}

/// KiB that facts take, as the budget of a namespace counts them.
#[derive(Clone, Debug, Default)]
struct Account(Arc<AtomicUsize>);

impl Account {
    fn take(&self, kib: usize) -> Permit {
        self.0.fetch_add(kib, Ordering::Relaxed);
        Box::new(Charge(self.clone(), kib))
    }

    fn taken(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Charge(Account, usize);

impl Drop for Charge {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Tells a fact that takes 100 KiB.
fn tell_with_room(event: Event, account: &Account, world: &mut World) {
    let Event::Fact(place, mut told) = event else {
        panic!("no fact")
    };
    told.room = Some(account.take(100));
    world.tell(Event::Fact(place, told));
}

#[test]
fn the_room_of_an_end_is_given_back_once_it_is_stored_and_of_an_unclaimed_one_once_it_is_forgotten() {
    let account = Account::default();
    let told = |event, world: &mut World| tell_with_room(event, &account, world);
    let mut world = World::new(1, 1);
    let (_, place, run) = one_runs(&mut world);
    world.finish(place, &run, 0);
    let event = world.answers.pop_back().unwrap();
    told(event, &mut world);
    assert_eq!(account.taken(), 100, "it waits to be stored");
    world.quiet();
    assert_eq!(account.taken(), 0);

    let nobodys = RunId::parse("nobody-1-0").unwrap();
    told(fact_of(place, &nobodys, Some(Finished::default())), &mut world);
    let mut begun = fact_of(place, &nobodys, None);
    if let Event::Fact(_, told) = &mut begun {
        told.room = Some(account.take(1));
    }
    world.tell(begun);
    world.pass(5);
    assert_eq!(account.taken(), 100, "a Task may claim it, and its end is kept");
    world.pass(30);
    assert_eq!(account.taken(), 0, "nobody did, and the machine has forgotten it");
}

#[test]
fn what_waits_for_the_store_takes_no_room_from_facts_and_is_fetched_again_from_its_machine() {
    let account = Account::default();
    let mut world = World::new(1, 1);
    let (uid, place, run) = one_runs(&mut world);
    world.store_problem = Some(CollectError::Full("full".into()));
    world.finish(place, &run, 0);
    world.answers.pop_back();
    let end = Finished {
        ending: Ending::Exited,
        log: vec![b'x'; 60_000],
        log_bytes: 60_000,
        log_tail: [[b'a'; 2000], [b'z'; 2000]].concat(),
        message: "\u{e9}".repeat(1000),
        result: b"[1,2]".to_vec(),
        result_bytes: 5,
        has_result: true,
        ..Finished::default()
    };
    tell_with_room(fact_of(place, &run, Some(end)), &account, &mut world);
    assert_eq!(account.taken(), 100);
    world.quiet();
    assert_eq!(account.taken(), 0, "other facts of its namespace come in");
    let RunStage::Finished(kept) = &world.dispatcher.runs[&run].stage else {
        panic!("it has ended")
    };
    assert_eq!((kept.log.len(), kept.log_bytes), (0, 60_000));
    assert_eq!(kept.log_tail, [b'z'; 512]);
    assert_eq!(kept.message.len(), 512);
    assert_eq!(kept.result, b"[1,2]", "so little needs no room");
    world.pass(60);
    world.store_problem = None;
    world.pass(31);
    assert_eq!(world.status(&uid).phase, Some(TaskPhase::Succeeded));
}

#[test]
fn a_machine_that_never_forgets_what_nobody_claims_keeps_no_room_and_little_memory() {
    let account = Account::default();
    let mut world = World::new(1, 1);
    world.quiet();
    let place = *world.machines.keys().next().unwrap();
    world.machines.get_mut(&place).unwrap().refuses_epoch = true;
    for (number, ends) in [(0, true), (1, false)] {
        let run = RunId::parse(&format!("nobody-1-{number}")).unwrap();
        let end = ends.then(Finished::default);
        tell_with_room(fact_of(place, &run, end), &account, &mut world);
    }
    assert_eq!(account.taken(), 200);
    world.pass(12);
    assert_eq!(account.taken(), 0);
    assert_eq!(world.dispatcher.runs.len(), 2, "it is asked again and again");
    for number in 2..2000 {
        let run = RunId::parse(&format!("nobody-1-{number}")).unwrap();
        let end = Some(Finished::default());
        world.dispatcher.on(fact_of(place, &run, end), world.now);
    }
    world.pass(12);
    assert_eq!(world.dispatcher.runs.len(), 1024);
    assert_eq!(world.dispatcher.unclaimed.len(), 2000 - 1024);
    world.now += Duration::from_mins(5);
    world.pass(1);
    assert_eq!(world.dispatcher.runs.len(), 1024);
    assert!(world.dispatcher.unclaimed.is_empty(), "its stream is read on");
}
