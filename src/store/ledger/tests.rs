use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn space(total: u64, free: u64) -> Space {
    Space {
        total,
        free,
        files: 0,
        files_free: 0,
    }
}

fn held(bytes: u64, files: u64) -> Held {
    Held { bytes, files }
}

fn of_bytes(bytes: u64) -> Held {
    held(bytes, u64::MAX)
}

#[test]
fn a_full_namespace_may_still_end_its_runs_and_store_some_small_values() {
    let of = |class, used, free| {
        let space = Some(space(1000 * MIB, free));
        let quota = of_bytes(10 * MIB);
        admit(class, held(1000, 1), held(used, 1), quota, Held::NOTHING, space)
    };
    assert_eq!(of(Class::Bulk, 9 * MIB, 900 * MIB), Admission::Fits);
    assert_eq!(of(Class::Bulk, 10 * MIB, 900 * MIB), Admission::NamespaceFull);
    assert_eq!(of(Class::Small, 10 * MIB, 900 * MIB), Admission::Fits);
    assert_eq!(of(Class::Small, 11 * MIB, 900 * MIB), Admission::NamespaceFull);
    assert_eq!(of(Class::End, 500 * MIB, 900 * MIB), Admission::Fits);
    // Where little is free, ends of one namespace leave room for those of others.
    assert_eq!(of(Class::End, 19 * MIB, 90 * MIB), Admission::Fits);
    assert_eq!(of(Class::End, 20 * MIB, 90 * MIB), Admission::NamespaceFull);
}

#[test]
fn a_tenth_of_the_volume_is_kept_from_logs_and_large_values() {
    let of = |class, free, pending| {
        let space = Some(space(100 * MIB, free));
        let wanted = held(MIB, 1);
        admit(
            class,
            wanted,
            Held::NOTHING,
            Held::EVERYTHING,
            held(pending, 0),
            space,
        )
    };
    assert_eq!(of(Class::Bulk, 11 * MIB, 0), Admission::Fits);
    assert_eq!(
        of(Class::Bulk, 11 * MIB, 1),
        Admission::VolumeFull,
        "promised to others"
    );
    assert_eq!(of(Class::Bulk, 10 * MIB, 0), Admission::VolumeFull);
    assert_eq!(of(Class::Small, MIB, 0), Admission::Fits);
    assert_eq!(of(Class::End, 0, 0), Admission::Fits);
    assert_eq!(
        admit(
            Class::Bulk,
            held(MIB, 1),
            Held::NOTHING,
            Held::EVERYTHING,
            Held::NOTHING,
            None
        ),
        Admission::Fits,
        "unknown is not full"
    );
}

#[test]
fn a_tenth_of_the_files_is_kept_too_unless_the_file_system_does_not_count_them() {
    let of = |class, files, files_free, pending| {
        let space = Space {
            files,
            files_free,
            ..space(100 * MIB, 100 * MIB)
        };
        let (wanted, pending) = (held(BLOCK, 1), held(0, pending));
        admit(
            class,
            wanted,
            Held::NOTHING,
            Held::EVERYTHING,
            pending,
            Some(space),
        )
    };
    assert_eq!(of(Class::Bulk, 1000, 101, 0), Admission::Fits);
    assert_eq!(of(Class::Bulk, 1000, 101, 1), Admission::VolumeFull);
    assert_eq!(of(Class::Bulk, 1000, 100, 0), Admission::VolumeFull);
    assert_eq!(of(Class::Small, 1000, 1, 0), Admission::Fits);
    assert_eq!(of(Class::Bulk, 0, 0, 0), Admission::Fits);
}

#[test]
fn an_object_takes_whole_blocks_and_at_least_one() {
    for (size, bytes) in [
        (0, BLOCK),
        (1, BLOCK),
        (BLOCK, BLOCK),
        (BLOCK + 1, 2 * BLOCK),
        (MIB, MIB),
    ] {
        assert_eq!(Held::object(size), held(bytes, 1), "{size}");
    }
}

fn looked_at(objects: &[(&str, u64)], labelled: bool) -> Found {
    let mut found = Found::default();
    for (run, size) in objects {
        found.object(run, *size);
    }
    if labelled {
        found.label();
    }
    found
}

#[test]
fn each_run_and_each_object_of_it_is_charged() {
    let mut ledger = Ledger::default();
    ledger.charge("t", "a");
    ledger.counted("t", &Found::default());
    for run in ["r-1", "r-2"] {
        for _ in 0..3 {
            ledger
                .take(("t", run), Held::object(1), Class::Bulk, Quota::default(), None)
                .unwrap();
            ledger.settle(("t", run), Held::object(1), true);
        }
    }
    let all = TASK + RUN.times(2) + Held::object(1).times(6);
    assert_eq!(ledger.usage()["a"], all);
    assert_eq!((all.bytes, all.files), ((2 + 6 + 6) * BLOCK, 2 + 6 + 6));
}

#[test]
fn a_namespace_without_files_left_is_full_whatever_bytes_it_has_left() {
    let mut ledger = Ledger::default();
    ledger.charge("t", "a");
    let volume = Some(Space {
        files: 1000,
        files_free: 900,
        ..space(100 * MIB, 90 * MIB)
    });
    let mut take = |run: &str| {
        let of = ("t", run);
        ledger.take(of, Held::object(0), Class::Bulk, Quota::Percent(5), volume)
    };
    // Of 50 files the Task takes 2, and each run 3 and its object.
    for run in 0..12 {
        take(&run.to_string()).unwrap();
    }
    let Err(Refusal::Namespace { used, quota, .. }) = take("12") else {
        panic!("it holds more files than it may")
    };
    assert_eq!((used.files, quota.files), (50, 50));
    assert!(used.bytes < quota.bytes);
}

#[test]
fn what_an_older_version_stored_is_charged_once_somebody_says_whose_it_is() {
    let mut ledger = Ledger::default();
    ledger.counted("old", &looked_at(&[("r", 100)], false));
    assert!(ledger.is_nobodys("old") && ledger.usage().is_empty());
    ledger.charge("old", "a");
    ledger.charge("old", "b");
    let all = TASK + RUN + Held::object(100);
    assert_eq!(ledger.usage(), BTreeMap::from([("a".to_owned(), all)]));
    assert_eq!(ledger.due("old").label.as_deref(), Some("a"));
}

#[test]
fn a_write_that_may_have_failed_is_counted_until_its_files_are_looked_at_again() {
    let mut ledger = Ledger::default();
    ledger.charge("t", "a");
    ledger.counted("t", &Found::default());
    let object = Held::object(1000);
    ledger
        .take(("t", "r"), object, Class::Bulk, Quota::default(), None)
        .unwrap();
    ledger.settle(("t", "r"), object, false);
    assert_eq!(ledger.usage()["a"], TASK + RUN + object);
    assert!(ledger.due("t").count);
    ledger.counted("t", &Found::default());
    assert!(ledger.usage().is_empty());
}

#[test]
fn what_is_being_written_while_files_are_looked_at_stays_counted() {
    let mut ledger = Ledger::default();
    ledger.charge("t", "a");
    let object = Held::object(1000);
    ledger
        .take(("t", "r"), object, Class::Bulk, Quota::default(), None)
        .unwrap();
    ledger.counted("t", &looked_at(&[("other", 1)], true));
    let all = TASK + RUN.times(2) + Held::object(1) + object;
    assert_eq!(ledger.usage()["a"], all);
    ledger.settle(("t", "r"), object, true);
    ledger.give_back(("t", "r"), object);
    assert_eq!(ledger.usage()["a"], TASK + RUN + Held::object(1));
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        task: u8,
        run: u8,
        bytes: u64,
        class: u8,
        written: bool,
    },
    /// The last two objects of a run become one.
    Merge(u8, u8),
    Drop(u8, u8),
    Recount(u8),
    Delete(u8),
    Tidy,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..6_u8, 0..3_u8, 0..20_000_u64, 0..3_u8, any::<bool>()).prop_map(
            |(task, run, bytes, class, written)| Step::Write { task, run, bytes, class, written }
        ),
        3 => (0..6_u8, 0..3_u8).prop_map(|(task, run)| Step::Merge(task, run)),
        1 => (0..6_u8, 0..3_u8).prop_map(|(task, run)| Step::Drop(task, run)),
        1 => (0..6_u8).prop_map(Step::Recount),
        1 => (0..6_u8).prop_map(Step::Delete),
        1 => Just(Step::Tidy),
    ]
}

/// Objects of the runs of each Task, by their size.
type Stored = BTreeMap<u8, BTreeMap<u8, Vec<u64>>>;

fn found(stored: &Stored, task: u8) -> Found {
    let mut found = Found::default();
    for (run, objects) in stored.get(&task).into_iter().flatten() {
        for size in objects {
            found.object(&run.to_string(), *size);
        }
    }
    found
}

proptest! {
    /// Tasks 0 to 2 are of namespace a, the others of b.
    #[test]
    fn accounts_are_the_blocks_and_files_that_are_stored_and_nobody_holds_more_than_a_quota_of_bulk(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        const MOST: u64 = 300_000;
        const MOST_FILES: u64 = 60;
        let volume = Some(Space {
            total: 10 * MOST,
            free: 10 * MOST,
            files: 10 * MOST_FILES,
            files_free: 10 * MOST_FILES,
        });
        let (mut ledger, mut stored) = (Ledger::default(), Stored::new());
        let namespace = |task: u8| if task < 3 { "a" } else { "b" };
        for step in steps {
            match step {
                Step::Write { task, run, bytes, class, written } => {
                    let class = [Class::Bulk, Class::Small, Class::End][usize::from(class)];
                    let (name, run_name) = (task.to_string(), run.to_string());
                    ledger.charge(&name, namespace(task));
                    if ledger.due(&name).count {
                        ledger.counted(&name, &found(&stored, task));
                    }
                    let object = Held::object(bytes);
                    let quota = Quota::Bytes(MOST);
                    if ledger.take((&name, &run_name), object, class, quota, volume).is_ok() {
                        let after = ledger.usage()[namespace(task)];
                        prop_assert!(class != Class::Bulk || after.fits(held(MOST, MOST_FILES)));
                        let most = held(MOST + MOST / 10, MOST_FILES + MOST_FILES / 10);
                        prop_assert!(class != Class::Small || after.fits(most));
                        ledger.settle((&name, &run_name), object, written);
                        if written {
                            stored.entry(task).or_default().entry(run).or_default().push(bytes);
                        }
                    } else {
                        prop_assert!(class != Class::End);
                    }
                }
                Step::Merge(task, run) => {
                    let objects = stored.get_mut(&task).and_then(|runs| runs.get_mut(&run));
                    if let Some(objects) = objects
                        && !ledger.due(&task.to_string()).count
                        && let [.., one, other] = objects[..]
                    {
                        objects.truncate(objects.len() - 2);
                        objects.push(one + other);
                        let freed = (Held::object(one) + Held::object(other)).less(Held::object(one + other));
                        ledger.give_back((&task.to_string(), &run.to_string()), freed);
                    }
                }
                Step::Drop(task, run) => {
                    if !ledger.due(&task.to_string()).count
                        && let Some(objects) = stored.get_mut(&task).and_then(|runs| runs.remove(&run))
                    {
                        let freed = objects.iter().map(|size| Held::object(*size)).sum();
                        ledger.give_back((&task.to_string(), &run.to_string()), freed);
                    }
                }
                Step::Recount(task) => ledger.counted(&task.to_string(), &found(&stored, task)),
                Step::Delete(task) => {
                    stored.remove(&task);
                    ledger.remove(&task.to_string());
                }
                Step::Tidy => ledger.tidy(),
            }
        }
        let mut expected = BTreeMap::new();
        for task in 0..6 {
            let name = task.to_string();
            ledger.charge(&name, namespace(task));
            ledger.counted(&name, &found(&stored, task));
            let runs = stored.get(&task).cloned().unwrap_or_default();
            let runs: Vec<_> = runs.values().filter(|objects| !objects.is_empty()).collect();
            if !runs.is_empty() {
                let objects: Held = runs.iter().copied().flatten().map(|size| Held::object(*size)).sum();
                let of_namespace: &mut Held = expected.entry(namespace(task).to_owned()).or_default();
                *of_namespace += TASK + RUN.times(runs.len() as u64) + objects;
            }
        }
        prop_assert_eq!(ledger.usage(), expected);
        prop_assert_eq!(ledger.pending, Held::NOTHING);
        let all: Held = ledger.tasks.values().map(Entry::total).sum();
        prop_assert_eq!(ledger.written(), all);
        prop_assert!(ledger.tasks.values().all(|entry| entry.pending.is_empty()));
    }
}
