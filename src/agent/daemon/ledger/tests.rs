use super::*;

fn open(folder: &Path, boot_id: &str) -> Ledger {
    Ledger::open(folder, Reserve::new(folder.join("reserve"), 0), boot_id)
        .unwrap()
        .0
}

fn spec(run_id: &str) -> RunSpec {
    RunSpec {
        run_id: run_id.into(),
        ..RunSpec::default()
    }
}

fn exited(code: i32) -> Finished {
    Finished {
        exit_code: code,
        ..Finished::default()
    }
}

#[tokio::test]
async fn a_run_is_accepted_once_however_often_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    let answers = futures::future::join_all((0..20).map(|_| ledger.accept(spec("r")))).await;
    let new = answers
        .into_iter()
        .filter(|answer| matches!(answer, Ok(Written::Now)))
        .count();
    assert_eq!(new, 1);
}

#[tokio::test]
async fn facts_survive_opening_again_until_they_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    for run_id in ["a", "b"] {
        ledger.accept(spec(run_id)).await.unwrap();
        ledger
            .started(run_id, Started { at_ms: 5, pid: 7 })
            .await
            .unwrap();
        ledger.finished(run_id, exited(3)).await.unwrap();
    }
    drop(ledger);
    let ledger = open(folder.path(), "b");
    let seqs: Vec<u64> = ledger.facts(0, 100).iter().map(|fact| fact.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4]);
    assert_eq!(ledger.facts(3, 100).len(), 1);
    assert_eq!(
        ledger.forget(vec!["a".into(), "unknown".into()]).await.unwrap(),
        ["a"]
    );
    assert_eq!(
        ledger
            .facts(0, 100)
            .iter()
            .map(|fact| fact.seq)
            .collect::<Vec<_>>(),
        [3, 4]
    );
    drop(ledger);
    let ledger = open(folder.path(), "b");
    assert_eq!(ledger.facts(0, 100).len(), 2);
    assert_eq!(*ledger.newest().borrow(), 4);
    assert_eq!(
        ledger.counts(),
        Counts {
            running: 0,
            uncollected: 1
        }
    );
}

#[tokio::test]
async fn numbers_of_facts_never_repeat_after_the_machine_restarted() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "first boot");
    ledger.accept(spec("a")).await.unwrap();
    ledger.started("a", Started::default()).await.unwrap();
    let before = *ledger.newest().borrow();
    drop(ledger);
    let ledger = open(folder.path(), "second boot");
    assert!(*ledger.newest().borrow() >= before + SEQ_GAP);
    assert_eq!(ledger.run("a").unwrap().boot_id, "first boot");
}

#[tokio::test]
async fn a_command_of_an_older_epoch_is_refused_also_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    ledger.admit(3).await.unwrap();
    ledger.admit(7).await.unwrap();
    drop(ledger);
    let ledger = open(folder.path(), "b");
    ledger.admit(7).await.unwrap();
    let refused = ledger.admit(6).await.unwrap_err();
    assert!(matches!(refused, LedgerError::StaleEpoch { given: 6, newest: 7 }));
}

fn commander(installation: &str, epoch: u64) -> Commander {
    Commander {
        installation: installation.into(),
        epoch,
        proof: format!("proof of {epoch}"),
    }
}

#[tokio::test]
async fn the_newest_epoch_is_told_with_its_proof_to_an_older_leader_of_the_same_installation() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    for epoch in [3, 7] {
        let told = ledger.greet(commander("here", epoch)).await.unwrap();
        assert_eq!(told, (epoch, format!("proof of {epoch}")));
    }
    drop(ledger);
    let ledger = open(folder.path(), "b");
    let told = ledger.greet(commander("here", 5)).await.unwrap();
    assert_eq!(told, (7, "proof of 7".into()));
    assert!(
        ledger.admit(5).await.is_err(),
        "its commands are refused all the same"
    );
    let elsewhere = ledger.greet(commander("elsewhere", 9)).await;
    assert!(
        matches!(elsewhere, Err(LedgerError::Foreign { .. })),
        "{elsewhere:?}"
    );
    assert_eq!(ledger.epoch(), 7);
    let older_version = ledger.greet(commander("", 5)).await;
    assert!(
        matches!(older_version, Err(LedgerError::StaleEpoch { .. })),
        "{older_version:?}"
    );
}

#[tokio::test]
async fn an_epoch_that_came_without_proof_is_told_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    ledger.greet(commander("here", 3)).await.unwrap();
    // A controller of an older version led in between.
    ledger.admit(4).await.unwrap();
    let told = ledger.greet(commander("here", 3)).await.unwrap();
    assert_eq!(told, (4, String::new()));
}

#[tokio::test]
async fn a_run_that_has_not_ended_is_not_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    ledger.accept(spec("a")).await.unwrap();
    assert!(ledger.forget(vec!["a".into()]).await.unwrap().is_empty());
    assert_eq!(ledger.unfinished(), ["a"]);
}

#[tokio::test]
async fn each_run_has_the_lowest_place_that_no_other_run_has_also_after_opening_again() {
    let folder = tempfile::tempdir().unwrap();
    let numbered = |run_id: &str| RunSpec {
        places: 2,
        // No number of a place does not count.
        place: 9,
        ..spec(run_id)
    };
    let place = |ledger: &Ledger, run_id: &str| {
        let run = ledger.run(run_id).unwrap();
        if let Some(spec) = &run.spec {
            assert_eq!(run.place.unwrap_or_default(), spec.place);
        }
        run.place
    };
    let ledger = open(folder.path(), "b");
    let accepts = ["a", "b", "c"].map(|run_id| ledger.accept(numbered(run_id)));
    futures::future::join_all(accepts).await;
    ledger.accept(spec("unnumbered")).await.unwrap();
    let mut places = ["a", "b", "c"].map(|run_id| place(&ledger, run_id).unwrap());
    places.sort_unstable();
    // The third is more than there is room for, as while a Pool's concurrency shrinks.
    assert_eq!((places, place(&ledger, "unnumbered")), ([0, 1, 2], None));
    let of = |number| {
        ["a", "b", "c"]
            .into_iter()
            .find(|run_id| place(&ledger, run_id) == Some(number))
    };
    let (first, second) = (of(0).unwrap(), of(1).unwrap());
    ledger.started(second, Started::default()).await.unwrap();
    ledger.finished(first, exited(0)).await.unwrap();
    drop(ledger);
    let ledger = open(folder.path(), "b");
    assert_eq!(place(&ledger, second), Some(1));
    for (run_id, expected) in [("d", 0), ("e", 3)] {
        ledger.accept(numbered(run_id)).await.unwrap();
        assert_eq!(place(&ledger, run_id), Some(expected));
    }
}

#[tokio::test]
async fn a_run_has_the_place_that_its_order_names_while_that_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = open(folder.path(), "b");
    for (run_id, wanted, expected) in [("a", 2, 2), ("b", 2, 0), ("c", 1, 1), ("d", 0, 3), ("e", 3, 4)] {
        let numbered = RunSpec {
            places: 4,
            place: wanted,
            ..spec(run_id)
        };
        ledger.accept(numbered).await.unwrap();
        assert_eq!(ledger.run(run_id).unwrap().place, Some(expected), "{run_id}");
    }
}
