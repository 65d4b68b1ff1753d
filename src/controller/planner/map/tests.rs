//! Maps in a small world: leaders, a log, workers with queues of their own, and messages that arrive late or never.
//! A ledger outside of it knows which attempts of items began, and how.

mod distance;
mod small_world;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;

use super::{
    indices::Indices,
    items::{Items, Retries},
    leader::{Command, Entry, Event, Heard, Leader, Life},
    pace::Pace,
    plan::{Chunk, End, Spec, State, Step, Verdict, WorkerView, World, outcome, plan},
    record::{Cause, Ended, Note, Record, Worker},
};

const SPEC: Spec = Spec {
    retries: Retries {
        on_interruption: 3,
        on_failure: 0,
    },
    max_failed: None,
    buffer: 0,
    threads: 1,
    runs: true,
};

fn worker(rank: u32) -> Worker {
    Worker { attempt: 1, rank }
}

fn view(state: State, held: &[(u32, u32)]) -> WorkerView {
    WorkerView {
        state,
        distance: Duration::from_millis(20),
        held: held.iter().map(|(start, end)| *start..*end).collect(),
        quiet: Duration::ZERO,
        idle: Duration::ZERO,
        recalling: false,
    }
}

fn granted(rank: u32, start: u32, end: u32) -> Record {
    Record::Note(Note::Granted(worker(rank), start..end))
}

fn succeeded(index: u32) -> Record {
    Record::Ended(Ended {
        index,
        attempt: 1,
        cause: Cause::Success,
        is_final: true,
    })
}

fn failed(index: u32) -> Record {
    Record::Ended(Ended {
        index,
        attempt: 1,
        cause: Cause::Failure,
        is_final: true,
    })
}

/// A map with its records and workers, ranks from 0 on.
struct Case {
    spec: Spec,
    items: Items,
    resting: Indices,
    unstored: BTreeMap<Worker, Indices>,
    workers: BTreeMap<Worker, WorkerView>,
    pace: Pace,
}

impl Case {
    fn new(total: u32, records: &[Record], workers: Vec<WorkerView>) -> Self {
        let mut items = Items::new(total);
        for record in records {
            assert!(items.apply(record), "{record:?}");
        }
        let mut pace = Pace::default();
        pace.item_took(Duration::from_millis(100));
        Self {
            spec: SPEC,
            items,
            resting: Indices::default(),
            unstored: BTreeMap::new(),
            workers: (0..).map(worker).zip(workers).collect(),
            pace,
        }
    }

    fn plan(&self) -> Vec<Step> {
        plan(&World {
            spec: self.spec,
            items: &self.items,
            resting: &self.resting,
            unstored: &self.unstored,
            workers: &self.workers,
            pace: &self.pace,
        })
    }
}

fn noted(note: Note) -> Step {
    Step::Record(Record::Note(note))
}

#[test]
fn nothing_of_a_silent_worker_goes_anywhere_else() {
    let silent = view(State::Silent, &[]);
    let case = Case::new(10, &[granted(0, 0, 10)], vec![silent, view(State::Working, &[])]);
    assert_eq!(case.plan(), []);
    let mut unknown = Case::new(10, &[granted(5, 0, 10)], vec![view(State::Working, &[])]);
    assert_eq!(unknown.plan(), [], "a worker that is not known may run");
    unknown.workers.insert(worker(5), view(State::Lost, &[]));
    assert_eq!(unknown.plan(), [noted(Note::Cut(worker(5)))]);
}

#[test]
fn what_an_ended_worker_has_not_told_of_never_began_and_what_a_lost_one_has_not_may_have() {
    let records = [granted(0, 0, 3), succeeded(1), granted(1, 3, 5)];
    let case = Case::new(
        5,
        &records,
        vec![view(State::Ended, &[]), view(State::Lost, &[(3, 4)])],
    );
    let expected = [
        noted(Note::Released(worker(0), 0..1)),
        noted(Note::Released(worker(0), 2..3)),
        noted(Note::Cut(worker(1))),
    ];
    assert_eq!(case.plan(), expected);
}

#[test]
fn a_grant_is_not_used_before_the_log_has_it() {
    let mut case = Case::new(1, &[granted(0, 0, 1)], vec![view(State::Working, &[])]);
    case.unstored.insert(worker(0), Indices::of(0..1));
    assert_eq!(case.plan(), []);
    case.unstored.clear();
    let chunk = Chunk {
        first: 0,
        count: 1,
        attempt: 1,
    };
    assert_eq!(case.plan(), [Step::Send(worker(0), chunk)]);
}

#[test]
fn an_idle_worker_gets_what_another_one_has_not_begun_only_after_that_let_go_of_it() {
    let workers = vec![
        view(State::Working, &[(0, 20), (20, 60)]),
        view(State::Working, &[]),
    ];
    let mut case = Case::new(60, &[granted(0, 0, 60)], workers);
    let recalls = [Step::Recall(worker(0), 30..60)];
    assert_eq!(case.plan(), recalls);
    let busy = case.workers.get_mut(&worker(0)).unwrap();
    busy.recalling = true;
    assert_eq!(case.plan(), [], "it has not answered");
    let busy = case.workers.get_mut(&worker(0)).unwrap();
    busy.recalling = false;
    busy.held = vec![0..20, 20..35];
    // 25 of them are the leader's again: no more than half of these go at once.
    let released = [noted(Note::Released(worker(0), 47..60))];
    assert_eq!(case.plan()[..1], released);
}

#[test]
fn short_items_behind_one_that_takes_long_are_recalled_and_else_are_not_worth_the_way() {
    let workers = vec![view(State::Working, &[(0, 3)]), view(State::Working, &[])];
    let mut case = Case::new(3, &[granted(0, 0, 3)], workers);
    assert_eq!(case.plan(), [], "two items of 100 ms");
    case.workers.get_mut(&worker(0)).unwrap().quiet = Duration::from_secs(5);
    assert_eq!(case.plan(), [Step::Recall(worker(0), 1..3)]);
}

#[test]
fn a_worker_with_threads_gets_items_for_all_of_them_and_keeps_those_that_they_run() {
    let mut case = Case::new(30, &[granted(0, 0, 30)], vec![view(State::Working, &[])]);
    let sent = |case: &Case| {
        let steps = case.plan();
        steps.iter().filter(|step| matches!(step, Step::Send(..))).count()
    };
    let one_at_a_time = sent(&case);
    case.spec.threads = 8;
    assert!(
        sent(&case) >= one_at_a_time + 7,
        "{} {one_at_a_time}",
        sent(&case)
    );

    let workers = vec![view(State::Working, &[(0, 2), (2, 4)]), view(State::Working, &[])];
    let mut case = Case::new(4, &[granted(0, 0, 4)], workers);
    case.workers.get_mut(&worker(0)).unwrap().quiet = Duration::from_secs(5);
    case.spec.threads = 3;
    assert_eq!(case.plan(), [Step::Recall(worker(0), 3..4)]);
    case.spec.threads = 4;
    assert_eq!(case.plan(), [], "all of them run");
}

#[test]
fn workers_that_can_get_nothing_for_a_while_give_their_places_back_but_for_those_that_items_which_pause_need()
{
    let workers = vec![
        view(State::Working, &[(0, 1)]),
        view(State::Working, &[]),
        view(State::Working, &[]),
        view(State::Working, &[]),
    ];
    let mut case = Case::new(2, &[granted(0, 0, 1), granted(3, 1, 2), succeeded(1)], workers);
    assert_eq!(case.plan(), [], "something may come soon");
    for rank in 1..4 {
        case.workers.get_mut(&worker(rank)).unwrap().idle = Duration::from_secs(30);
    }
    let [one, two, three] = [1, 2, 3].map(|rank| Step::Close(worker(rank)));
    assert_eq!(case.plan(), [one, two.clone(), three.clone()]);
    // The other item is to run again after its pause.
    case.items.apply(&Record::Note(Note::Reopened(1..2)));
    case.resting = Indices::of(1..2);
    assert_eq!(case.plan(), [two, three]);
    case.resting = Indices::default();
    assert_eq!(case.plan(), [noted(Note::Granted(worker(1), 1..2))]);
}

#[test]
fn a_suspended_map_lets_go_of_all_that_has_not_begun() {
    let workers = vec![view(State::Working, &[(0, 2)]), view(State::Working, &[])];
    let mut case = Case::new(9, &[granted(0, 0, 5)], workers);
    case.spec.runs = false;
    let expected = [
        noted(Note::Released(worker(0), 2..5)),
        Step::Recall(worker(0), 1..2),
        Step::Close(worker(1)),
    ];
    assert_eq!(case.plan(), expected);
}

#[test]
fn a_map_with_too_many_failed_items_ends_without_the_others_once_nothing_may_run() {
    let records = [granted(0, 0, 4), failed(0), failed(1)];
    let mut case = Case::new(9, &records, vec![view(State::Working, &[(2, 4)])]);
    case.spec.max_failed = Some(2);
    assert!(!case.plan().contains(&Step::Finish(Verdict::TooManyFailed)));
    case.spec.max_failed = Some(1);
    assert_eq!(case.plan(), [Step::Recall(worker(0), 3..4)]);
    case.items.apply(&Record::Note(Note::Released(worker(0), 2..4)));
    assert_eq!(case.plan(), [Step::Finish(Verdict::TooManyFailed)]);
    // A user names one of the two that failed.
    case.items.apply(&Record::Note(Note::Reopened(0..1)));
    case.spec.max_failed = Some(0);
    let begins = case.plan();
    assert!(
        begins.contains(&noted(Note::Granted(worker(0), 0..1))),
        "{begins:?}"
    );
}

#[test]
fn a_map_is_over_when_each_item_has_its_outcome() {
    assert_eq!(
        Case::new(0, &[], vec![]).plan(),
        [Step::Finish(Verdict::Complete)]
    );
    let records = [granted(0, 0, 2), succeeded(0), failed(1)];
    assert_eq!(
        Case::new(2, &records, vec![]).plan(),
        [Step::Finish(Verdict::SomeFailed)]
    );
}

#[test]
fn a_new_map_is_spread_over_its_workers() {
    let workers = (0..4).map(|_| view(State::Working, &[])).collect();
    let case = Case::new(8, &[], workers);
    let expected: Vec<Step> = (0..4)
        .map(|rank| noted(Note::Granted(worker(rank), rank * 2..rank * 2 + 2)))
        .collect();
    assert_eq!(case.plan(), expected);
}

#[test]
fn the_end_of_an_attempt_that_was_cut_or_is_known_gives_no_record() {
    let case = Case::new(3, &[granted(0, 0, 3), succeeded(0)], vec![]);
    let told = |rank, index, attempt| {
        outcome(
            &case.items,
            SPEC.retries,
            worker(rank),
            End {
                index,
                attempt,
                cause: Cause::Failure,
                for_good: false,
            },
        )
    };
    assert_eq!(told(0, 0, 1), None);
    assert_eq!(told(1, 1, 1), None, "it was granted to another worker");
    assert_eq!(told(0, 1, 2), None);
    let expected = Ended {
        index: 1,
        attempt: 1,
        cause: Cause::Failure,
        is_final: true,
    };
    assert_eq!(told(0, 1, 1), Some(expected));
}

fn all_told<V>() -> Heard<V> {
    Heard::Told {
        over: false,
        cut: false,
    }
}

/// A leader of a map with four items, and a worker that holds nothing.
fn led() -> Leader<&'static str> {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = Leader::new(SPEC, Items::new(4));
    leader.on(Event::Opened(worker(0), 7, Duration::from_millis(20)), now);
    leader.on(Event::Heard(worker(0), 7, Heard::Holds(Vec::new())), now);
    leader.on(Event::Heard(worker(0), 7, all_told()), now);
    leader
}

fn entry(record: Record) -> Entry<&'static str> {
    Entry { record, body: None }
}

#[test]
fn a_grant_is_written_soon_and_its_items_are_sent_once_it_is_stored() {
    let mut leader = led();
    let mut now = Timestamp::UNIX_EPOCH;
    assert_eq!(leader.settle(now), []);
    now = leader.wakes_at().unwrap();
    assert_eq!(now, Timestamp::UNIX_EPOCH + Duration::from_millis(20));
    assert_eq!(
        leader.settle(now),
        [Command::Write(vec![entry(granted(0, 0, 2))])]
    );
    assert_eq!(
        (leader.settle(now), leader.wakes_at()),
        (vec![], None),
        "one write at a time"
    );
    leader.on(Event::Stored, now);
    let chunk = Chunk {
        first: 0,
        count: 1,
        attempt: 1,
    };
    assert_eq!(leader.settle(now), [Command::Send(worker(0), 7, chunk)]);
}

#[test]
fn an_end_is_acknowledged_once_it_is_stored_and_over_the_connection_that_told_it() {
    let mut leader = led();
    let mut now = Timestamp::UNIX_EPOCH;
    leader.settle(now);
    now += Duration::from_secs(1);
    leader.settle(now);
    leader.on(Event::Stored, now);
    leader.settle(now);
    let ended = |index, body| Heard::Ended {
        position: 99,
        index,
        attempt: 1,
        cause: Cause::Success,
        for_good: false,
        pause: Duration::ZERO,
        took: Duration::from_millis(100),
        body,
        bytes: 5,
    };
    // Nothing counts over another connection, nor of what was granted to nobody.
    leader.on(Event::Heard(worker(0), 6, ended(0, "other")), now);
    leader.on(Event::Heard(worker(0), 7, ended(3, "made up")), now);
    assert!(leader.items().done().is_empty());
    leader.on(Event::Heard(worker(0), 7, ended(0, "value")), now);
    now += Duration::from_secs(1);
    let commands = leader.settle(now);
    let written = Entry {
        record: succeeded(0),
        body: Some("value"),
    };
    let is_written =
        |command: &Command<_>| matches!(command, Command::Write(entries) if entries.contains(&written));
    assert!(commands.iter().any(is_written), "{commands:?}");
    let acknowledged = Command::Acknowledge(worker(0), 7, 99);
    assert!(!commands.contains(&acknowledged));
    leader.on(Event::Stored, now);
    assert!(leader.settle(now).contains(&acknowledged));
}

fn told_end(position: u64, index: u32, cause: Cause) -> Heard<()> {
    Heard::Ended {
        position,
        index,
        attempt: 1,
        cause,
        for_good: false,
        pause: Duration::from_secs(10),
        took: Duration::from_millis(100),
        body: (),
        bytes: 1,
    }
}

fn opened(items: Items, spec: Spec, now: Timestamp) -> Leader<()> {
    let mut leader = Leader::new(spec, items);
    leader.on(Event::Worker(worker(0), Life::Runs), now);
    leader.on(Event::Opened(worker(0), 7, Duration::from_millis(5)), now);
    leader.on(
        Event::Heard(worker(0), 7, Heard::Holds(std::iter::once(0..2).collect())),
        now,
    );
    leader.on(Event::Heard(worker(0), 7, all_told()), now);
    leader
}

fn granted_items() -> Items {
    let mut items = Items::new(2);
    assert!(items.apply(&granted(0, 0, 2)));
    items
}

/// Writes all that is due, until nothing is.
fn store_all(leader: &mut Leader<()>, mut now: Timestamp) -> Timestamp {
    for _ in 0..10 {
        now += Duration::from_secs(1);
        let commands = leader.settle(now);
        if commands
            .iter()
            .any(|command| matches!(command, Command::Write(_)))
        {
            leader.on(Event::Stored, now);
        }
    }
    now
}

#[test]
fn an_item_that_failed_pauses_before_it_is_granted_again() {
    let now = Timestamp::UNIX_EPOCH;
    let retries = Retries {
        on_interruption: 0,
        on_failure: 1,
    };
    let mut leader = opened(granted_items(), Spec { retries, ..SPEC }, now);
    leader.on(Event::Heard(worker(0), 7, told_end(1, 0, Cause::Failure)), now);
    leader.on(Event::Heard(worker(0), 7, told_end(2, 1, Cause::Success)), now);
    let early = store_all(&mut leader, now - Duration::from_secs(5));
    assert!(early < now + Duration::from_secs(10));
    assert!(leader.items().waiting().contains(0), "it pauses");
    assert!(leader.wakes_at().is_some(), "its pause ends");
    store_all(&mut leader, now + Duration::from_secs(10));
    assert!(leader.items().grant(worker(0)).unwrap().contains(0));
}

#[test]
fn an_old_end_that_a_new_connection_tells_takes_no_later_attempt_from_the_worker() {
    let now = Timestamp::UNIX_EPOCH;
    let mut items = granted_items();
    let failed = Ended {
        index: 0,
        attempt: 1,
        cause: Cause::Failure,
        is_final: false,
    };
    assert!(items.apply(&Record::Ended(failed)) && items.apply(&granted(0, 0, 1)));
    // The worker holds the second attempt of item 0, and how the first one ended is told again.
    let mut leader = opened(items, SPEC, now);
    leader.on(Event::Heard(worker(0), 7, told_end(1, 0, Cause::Failure)), now);
    let commands = leader.settle(now + Duration::from_secs(2));
    assert!(
        !commands
            .iter()
            .any(|command| matches!(command, Command::Send(..))),
        "{commands:?}"
    );
    assert!(
        commands.contains(&Command::Acknowledge(worker(0), 7, 1)),
        "{commands:?}"
    );
}

/// Items that another leader has granted, whose first attempts ended so and were not the last ones.
fn ended_before(causes: [Cause; 2]) -> Items {
    let mut items = granted_items();
    for (index, cause) in (0..).zip(causes) {
        let ended = Ended {
            index,
            attempt: 1,
            cause,
            is_final: false,
        };
        assert!(items.apply(&Record::Ended(ended)));
    }
    items
}

#[test]
fn another_leader_does_not_know_how_long_an_item_has_paused_and_lets_it_pause_anew() {
    let now = Timestamp::UNIX_EPOCH;
    let items = ended_before([Cause::Failure, Cause::Interruption]);
    let mut leader: Leader<()> = Leader::new(SPEC, items);
    leader.rest_anew(false, |failures| Duration::from_secs(20) * failures, now);
    leader.on(Event::Opened(worker(0), 7, Duration::from_millis(5)), now);
    leader.on(Event::Heard(worker(0), 7, Heard::Holds(Vec::new())), now);
    let told = Heard::Told {
        over: false,
        cut: false,
    };
    leader.on(Event::Heard(worker(0), 7, told), now);
    store_all(&mut leader, now + Duration::from_secs(5));
    let granted = |leader: &Leader<()>| leader.items().grant(worker(0)).map(|grant| grant.describe(64));
    assert_eq!(
        granted(&leader).as_deref(),
        Some("1"),
        "it had lost its machine, and has no pause"
    );
    let again = Heard::Ended {
        position: 1,
        index: 1,
        attempt: 2,
        cause: Cause::Success,
        for_good: false,
        pause: Duration::ZERO,
        took: Duration::from_millis(100),
        body: (),
        bytes: 1,
    };
    leader.on(Event::Heard(worker(0), 7, again), now + Duration::from_secs(16));
    store_all(&mut leader, now + Duration::from_secs(20));
    assert_eq!(granted(&leader).as_deref(), Some("0"));
}

#[test]
fn another_leader_lets_an_item_pause_anew_after_an_attempt_that_a_rule_may_have_ignored() {
    let now = Timestamp::UNIX_EPOCH;
    let items = ended_before([Cause::Uncounted, Cause::Interruption]);
    for (ignores, granted) in [(true, "1"), (false, "0-1")] {
        let mut leader: Leader<()> = Leader::new(SPEC, items.clone());
        leader.rest_anew(ignores, |failures| Duration::from_secs(20) * failures, now);
        leader.on(Event::Opened(worker(0), 7, Duration::from_millis(5)), now);
        leader.on(Event::Heard(worker(0), 7, Heard::Holds(Vec::new())), now);
        leader.on(Event::Heard(worker(0), 7, all_told()), now);
        store_all(&mut leader, now + Duration::from_secs(5));
        let grant = leader.items().grant(worker(0)).map(|grant| grant.describe(64));
        assert_eq!(grant.as_deref(), Some(granted), "{ignores}");
    }
}

#[test]
fn a_worker_holds_no_more_than_it_was_granted_whatever_its_machine_says() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    let made_up = Heard::Holds(vec![1..u32::MAX, 1..u32::MAX, 0..u32::MAX]);
    leader.on(Event::Heard(worker(0), 7, made_up), now);
    // Nothing is left to be sent, and both items are where they were granted.
    store_all(&mut leader, now);
    assert_eq!(leader.busy(), 1);
    leader.on(Event::Heard(worker(0), 7, Heard::Released(0..u32::MAX)), now);
    assert_eq!(leader.busy(), 0);
}

#[test]
fn a_worker_whose_end_was_asked_for_gets_no_item_that_comes_meanwhile() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    for (position, index) in [(1, 0), (2, 1)] {
        let told = told_end(position, index, Cause::Uncounted);
        leader.on(Event::Heard(worker(0), 7, told), now);
    }
    // Both items pause for ten seconds, and are to be given to another worker.
    let stopped = Spec { runs: false, ..SPEC };
    leader.on(Event::Spec(stopped), now);
    let later = now + Duration::from_secs(12);
    assert!(leader.settle(later).contains(&Command::Close(worker(0))));
    leader.on(Event::Stored, later);
    leader.on(Event::Spec(SPEC), later);
    leader.on(Event::Worker(worker(0), Life::Runs), later);
    store_all(&mut leader, later);
    assert_eq!(leader.items().grant(worker(0)), None);
    // Nobody has stopped it after all.
    store_all(&mut leader, later + Duration::from_secs(30));
    assert!(leader.items().grant(worker(0)).is_some());
}

#[test]
fn nobody_is_started_for_the_items_of_a_worker_that_is_silent() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    assert_eq!(leader.useful(), 2);
    leader.on(Event::Closed(worker(0), 7), now);
    assert_eq!(leader.useful(), 1, "the silent worker alone");
    leader.on(Event::Worker(worker(0), Life::Lost), now);
    store_all(&mut leader, now);
    assert_eq!(leader.useful(), 2);
}

#[test]
fn nobody_is_started_for_items_that_do_not_begin_as_too_many_others_have_failed() {
    for (max_failed, useful) in [(None, 8), (Some(1), 8), (Some(0), 1)] {
        let mut items = Items::new(9);
        assert!(items.apply(&granted(0, 0, 2)) && items.apply(&failed(1)));
        let leader = opened(items, Spec { max_failed, ..SPEC }, Timestamp::UNIX_EPOCH);
        assert_eq!(leader.useful(), useful, "{max_failed:?}");
    }
}

#[test]
fn what_pauses_is_granted_to_nobody_and_what_lies_behind_it_is() {
    let mut case = Case::new(6, &[], vec![view(State::Working, &[]), view(State::Working, &[])]);
    case.resting = Indices::of(0..2);
    let grant = |rank, range| noted(Note::Granted(worker(rank), range));
    assert_eq!(case.plan(), [grant(0, 2..4), grant(1, 4..6)]);
    case.resting = Indices::of(0..6);
    assert_eq!(case.plan(), []);
}

#[test]
fn a_worker_is_done_with_once_all_that_it_told_is_stored() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    for (position, index) in [(1, 0), (2, 1)] {
        leader.on(
            Event::Heard(worker(0), 7, told_end(position, index, Cause::Success)),
            now,
        );
    }
    let over = Heard::Told {
        over: true,
        cut: false,
    };
    leader.on(Event::Heard(worker(0), 7, over), now);
    assert!(!leader.is_done_with(worker(0)), "its ends are stored nowhere");
    store_all(&mut leader, now);
    assert!(leader.is_done_with(worker(0)));
}

#[test]
fn what_a_worker_of_a_restarted_machine_has_not_told_of_is_an_interruption_and_its_ends_count() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    leader.on(Event::Heard(worker(0), 7, told_end(1, 0, Cause::Success)), now);
    let cut = Heard::Told {
        over: true,
        cut: true,
    };
    leader.on(Event::Heard(worker(0), 7, cut), now);
    // The dispatcher does not know of it yet.
    leader.on(Event::Worker(worker(0), Life::Runs), now);
    store_all(&mut leader, now);
    assert!(leader.items().done().contains(0) && leader.items().waiting().contains(1));
    assert_eq!(leader.items().counts(1).interruptions, 1);
    assert!(leader.is_done_with(worker(0)));
}

#[test]
fn work_is_what_items_took_and_before_the_first_end_at_least_what_they_have_run() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    assert_eq!((leader.work(now), leader.useful()), (Duration::ZERO, 2));
    // Two items, which run for half a minute at least.
    let later = now + Duration::from_secs(39);
    assert_eq!((leader.work(later), leader.useful()), (Duration::from_mins(1), 2));
    leader.on(Event::Spec(Spec { threads: 2, ..SPEC }), later);
    assert_eq!(
        (leader.work(later), leader.useful()),
        (Duration::from_secs(30), 1)
    );
    leader.on(Event::Spec(SPEC), later);
    leader.on(Event::Heard(worker(0), 7, told_end(1, 0, Cause::Success)), later);
    assert_eq!(
        (leader.work(later), leader.useful()),
        (Duration::from_millis(100), 1)
    );
    leader.on(Event::Heard(worker(0), 7, told_end(2, 1, Cause::Success)), later);
    assert_eq!((leader.work(later), leader.useful()), (Duration::ZERO, 0));
}

#[test]
fn an_attempt_that_was_interrupted_says_nothing_of_how_long_items_take() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    leader.on(
        Event::Heard(worker(0), 7, told_end(1, 0, Cause::Interruption)),
        now,
    );
    assert_eq!(leader.items().counts(0).interruptions, 1);
    assert_eq!(leader.work(now), Duration::ZERO);
}

#[test]
fn an_end_that_counts_for_nothing_uses_up_no_retries() {
    let now = Timestamp::UNIX_EPOCH;
    let mut leader = opened(granted_items(), SPEC, now);
    leader.on(Event::Heard(worker(0), 7, told_end(1, 0, Cause::Uncounted)), now);
    store_all(&mut leader, now);
    let counts = leader.items().counts(0);
    assert_eq!((counts.ended, counts.failures, counts.interruptions), (1, 0, 0));
    assert!(!leader.items().done().contains(0));
    for cause in [
        Cause::Success,
        Cause::Failure,
        Cause::Interruption,
        Cause::Uncounted,
    ] {
        assert_eq!(Cause::of_number(cause.number()), Some(cause));
    }
    assert_eq!(Cause::of_number(4), None, "of a newer version");
}
