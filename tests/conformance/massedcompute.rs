//! Tests of Massed Compute alone: marks that people change, and lists that do not show machines for a while.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;
use skyward_conformance::{Bench, connect, machine};
use skyward_core::{Deletion, Market, ProviderPhase, machine::FailureKind};
use tokio::time::{Instant, sleep};

use crate::in_virtual_time;

const KIND: &str = "massedcompute";
/// Between two looks.
const LOOK: Duration = Duration::from_secs(10);

/// From now on lists show no machine that is younger than this.
fn show_after(bench: &Bench, age: SignedDuration) {
    bench.sim.world(|world| world.lag.created = age);
}

/// From now on lists show no machine.
fn forget(bench: &Bench) {
    show_after(bench, SignedDuration::from_hours(24));
}

/// From now on answers have these forms, which other sources have.
fn answer_in(bench: &Bench, forms: &[&str]) {
    bench.sim.control("answers", &json!(forms)).unwrap().unwrap();
}

#[test]
fn answers_are_understood_in_each_form_that_a_source_has() {
    for forms in [
        &["missing"][..],
        &["official"],
        &["lower"],
        &["missing", "official", "lower"],
    ] {
        in_virtual_time(async || {
            let bench = Bench::start(KIND, None).await;
            answer_in(&bench, forms);
            let order = bench.order(Market::OnDemand, 0).await;
            let (running, mut refused) = bench.bring_up(&order).await;
            refused.extend(bench.bring_down(&order, Some(&running.id)).await);
            assert!(refused.is_empty(), "{forms:?}: {refused:?}");
            bench.judge("other forms");
        });
    }
}

#[test]
fn a_spot_machine_that_is_taken_back_and_shown_no_more_is_told_as_that() {
    in_virtual_time(async || {
        let bench = Bench::start(KIND, None).await;
        answer_in(&bench, &["gone"]);
        let order = bench.order(Market::Spot, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        let reference = machine(&order, Some(&running.id));
        bench
            .sim
            .world(|world| world.reclaim(&running.id, SignedDuration::ZERO));
        let began = Instant::now();
        let ended = loop {
            let found = bench.provider.get(&reference).await.unwrap().unwrap();
            if found.phase != ProviderPhase::Running {
                break found.phase;
            }
            assert!(began.elapsed() < Duration::from_mins(5), "{found:?}");
            sleep(LOOK).await;
        };
        let ProviderPhase::Failed(failure) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!(failure.kind, FailureKind::Reclaimed, "{}", failure.message);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a spot machine that is gone");
    });
}

#[test]
fn a_machine_that_people_renamed_is_found_and_ended() {
    in_virtual_time(async || {
        let bench = Bench::start(KIND, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        for name in ["mine", "", "skyward-0d4c6c386a1b4f6e8a0e1f2f6a0e9c11-5b9d2c54"] {
            bench.sim.world(|world| {
                let machine = world.machines.get_mut(&running.id).unwrap();
                name.clone_into(&mut machine.mark.name);
            });
            for id in [Some(&running.id), None] {
                let found = bench.provider.get(&machine(&order, id)).await.unwrap();
                let mark = found.map(|found| found.mark);
                assert_eq!(mark.as_ref(), Some(&order.mark), "{name}");
            }
            assert_eq!(bench.list().await.unwrap().len(), 1, "{name}");
        }
        bench.bring_down(&order, None).await;
        bench.judge("a name that people changed");
    });
}

#[test]
fn an_order_that_no_list_shows_yet_is_there_and_is_not_sent_again() {
    in_virtual_time(async || {
        let bench = Bench::start(KIND, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        show_after(&bench, SignedDuration::from_mins(1));
        let first = bench.provider.create(&order).await.unwrap();
        assert_eq!(bench.provider.create(&order).await.unwrap(), first);
        let reference = machine(&order, Some(&first.id));
        let found = bench.provider.get(&reference).await.unwrap().unwrap();
        assert!(matches!(found.phase, ProviderPhase::Starting(_)), "{found:?}");
        assert_eq!(bench.machines(), 1);
        let (running, refused) = bench.bring_up(&order).await;
        assert_eq!((&running.id, refused.len()), (&first.id, 0), "{refused:?}");
        bench.bring_down(&order, Some(&first.id)).await;
        bench.judge("an order that is listed late");
    });
}

#[test]
fn a_machine_that_lists_forget_for_a_minute_is_neither_lost_nor_ordered_again() {
    in_virtual_time(async || {
        let bench = Bench::start(KIND, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        forget(&bench);
        let reference = machine(&order, Some(&running.id));
        for _ in 0..6 {
            let found = bench.provider.get(&reference).await.unwrap().unwrap();
            assert_eq!(found.phase, ProviderPhase::Running);
            assert_eq!(bench.list().await.unwrap().len(), 1);
            assert_eq!(bench.provider.create(&order).await.unwrap().id, running.id);
            sleep(LOOK).await;
        }
        show_after(&bench, SignedDuration::ZERO);
        assert_eq!(bench.list().await.unwrap().len(), 1);
        assert_eq!(bench.sim.calls(bench.subject.create[&Market::OnDemand]), 1);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a machine that was forgotten");
    });
}

#[test]
fn a_new_process_takes_no_machine_for_gone_that_it_never_saw() {
    in_virtual_time(async || {
        let mut bench = Bench::start(KIND, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        forget(&bench);
        let url = bench.simulator.url(KIND).to_owned();
        bench.provider = connect(KIND, &url, &bench.subject.credentials, json!({}));
        let reference = machine(&order, Some(&running.id));
        let found = bench.provider.get(&reference).await;
        assert!(!matches!(found, Ok(None)), "it is told as lost");
        let deleted = bench.provider.delete(&reference).await;
        assert!(!matches!(deleted, Ok(Deletion::Gone)), "it is told as gone");
        show_after(&bench, SignedDuration::ZERO);
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge("a restart while lists forget");
    });
}
