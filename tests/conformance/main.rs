//! Tests of the contract, rule by rule, for every registered provider, and of the fault matrix.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

mod bids;
mod canary;
mod check;
mod digitalocean;
mod fence;
mod foreign;
mod gcp;
mod hyperstack;
mod jarvislabs;
mod ledger;
mod marks;
mod massedcompute;
mod novita;
mod overlay;
mod pages;
mod prices;
mod prism;
mod scaleway;
mod sharing;
mod table;
mod tensordock;
mod tokens;
mod vultr;

use std::{collections::BTreeSet, path::PathBuf, sync::Mutex, time::Duration};

use jiff::SignedDuration;
use skyward_cloudsim::{Fault, Rule, When};
use skyward_conformance::{
    Bench, CANARY, can_be_tried, connect, machine, passes, pool, scope, shown, subject,
};
use skyward_core::{
    Deletion, ErrorKind, MachineRef, Market, ProviderPhase, error::ErrorClass, machine::FailureKind,
};
use skyward_providers::registry;
use skyward_thirds::is_told;
use tokio::time::{Instant, sleep};

/// Runs one story for every registered provider, each in a virtual time of its own, on all processors.
fn for_each(story: impl AsyncFn(&'static str) + Sync) {
    let clouds = registry::clouds().iter().map(|cloud| cloud.name);
    let left = Mutex::new(clouds.filter(|cloud| can_be_tried(cloud)));
    let work = || {
        // The lock is not held while a story runs.
        let next = || left.lock().unwrap().next();
        while let Some(cloud) = next() {
            in_virtual_time(async || story(cloud).await);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(work);
        }
    });
}

/// Runs a story in a virtual time of its own.
fn in_virtual_time(story: impl AsyncFnOnce()) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(story());
}

/// The markets of a cloud: the markets for which its subject names a call.
fn markets(kind: &str) -> Vec<Market> {
    let subject = subject(kind).expect("every registered provider has a subject in tests/conformance/lib.rs");
    subject.create.into_keys().collect()
}

#[test]
fn every_registered_provider_has_fixtures_and_a_page() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    for cloud in registry::clouds() {
        let fixtures = root.join("src/providers/tests/fixtures").join(cloud.name);
        assert!(
            fixtures.join("errors.json").is_file(),
            "{} has no recorded failures",
            cloud.name
        );
        let page = root.join(format!("docs/providers/{}.md", cloud.name));
        let page = std::fs::read_to_string(page).unwrap_or_default();
        assert!(!page.is_empty(), "{} has no page", cloud.name);
        for key in cloud.credentials {
            assert!(
                page.contains(key.name),
                "the page of {} does not name {}",
                cloud.name,
                key.name
            );
        }
        let schema = registry::account_kinds()
            .into_iter()
            .find(|kind| kind.name == cloud.name)
            .map(|kind| kind.schema)
            .unwrap();
        for setting in schema["properties"].as_object().unwrap().keys() {
            assert!(
                page.contains(&format!("`{setting}`")),
                "the page of {} does not have {setting}",
                cloud.name
            );
        }
    }
}

/// Lists of clouds by name, without which a cloud would be tried less than others and nothing failed.
#[test]
fn every_cloud_has_a_sample_whose_story_runs() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap_or_default();
    for cloud in registry::clouds() {
        let sample = read(&format!("config/samples/clouds/{}.yaml", cloud.name));
        assert!(!sample.is_empty(), "{} has no sample", cloud.name);
        for (file, text) in [
            (
                "tests/e2e/clouds/life.rs",
                format!("sample_story(\"{}\")", cloud.name),
            ),
            ("tests/e2e/clouds/main.rs", format!("\"{}\"", cloud.name)),
        ] {
            assert!(read(file).contains(&text), "{file} does not have {text}");
        }
    }
}

#[test]
fn p1_to_p7_a_machine_is_ordered_once_found_by_its_mark_and_gone_when_the_cloud_says_so() {
    for_each(async |kind| {
        for market in markets(kind) {
            let bench = Bench::start(kind, None).await;
            let provider = &bench.provider;
            let said: BTreeSet<Market> = provider.capabilities().markets.iter().copied().collect();
            assert_eq!(said, BTreeSet::from_iter(markets(kind)), "{kind}");
            provider.account().await.unwrap();
            let order = bench.order(market, 0).await;
            // P7: reading offers makes nothing, and a second read gives the same.
            let offers = provider.offers().await.unwrap();
            assert_eq!(offers, provider.offers().await.unwrap(), "{kind}");
            assert_eq!(bench.sim.meter(|meter| meter.billed_now().len()), 0);
            let ids: BTreeSet<&str> = offers.iter().map(|offer| offer.id.as_str()).collect();
            assert_eq!(ids.len(), offers.len(), "{kind}: ids are unique");
            for id in ids {
                let label = id.len() <= 63
                    && id
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
                    && !id.starts_with('-')
                    && !id.ends_with('-');
                assert!(label, "{kind}: \"{id}\" is no DNS label");
            }
            // P1: it does not wait for the boot. P2: again with the same mark is the same machine.
            let first = provider.create(&order).await.unwrap();
            let again = provider.create(&order).await.unwrap();
            assert_eq!(first, again, "{kind} {market:?}");
            assert_eq!(bench.machines(), 1, "{kind} {market:?}");
            // P4, P5.
            let listed = bench.list_with(&first.id).await;
            assert_eq!(listed.len(), 1, "{kind}");
            assert_eq!(listed[0].mark, shown(kind, &order.mark), "{kind}");
            assert_eq!(listed[0].id, first.id, "{kind}");
            let (running, refused) = bench.bring_up(&order).await;
            assert_eq!(
                (running.id.clone(), refused.len()),
                (first.id.clone(), 0),
                "{kind}: {refused:?}"
            );
            assert!(running.endpoint.is_some(), "{kind}");
            assert!(running.rental.hourly_price.is_some(), "{kind}");
            // What is charged is what was recorded, or less.
            assert!(
                running.rental.hourly_price <= order.max_hourly_cost,
                "{kind} {market:?}: {:?}",
                running.rental
            );
            // Another installation sees nothing.
            let mut other = scope();
            other.cluster = "another".into();
            assert_eq!(provider.list(&other).await.unwrap(), []);
            // P6.
            let refused = bench.bring_down(&order, Some(&first.id)).await;
            assert!(refused.is_empty(), "{kind}: {refused:?}");
            assert_eq!(
                provider.get(&machine(&order, Some(&first.id))).await.unwrap(),
                None,
                "{kind}"
            );
            assert_eq!(
                provider.delete(&machine(&order, Some(&first.id))).await.unwrap(),
                Deletion::Gone
            );
            assert_eq!(
                provider.delete(&machine(&order, None)).await.unwrap(),
                Deletion::Gone
            );
            assert_eq!(bench.list().await.unwrap(), [], "{kind}");
            assert_eq!(provider.leftovers(&scope()).await.unwrap(), [], "{kind}");
            assert_eq!(provider.release(&pool()).await.unwrap(), Deletion::Gone);
            bench.judge(&format!("{kind} {market:?}"));
        }
    });
}

#[test]
fn p2_many_machines_ordered_at_once_are_as_many_and_share_what_they_share() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let offers = bench.provider.offers().await.unwrap();
        // The cheapest offer is not the one with the largest stock at every cloud, so that any
        // available one is used.
        let first = bench.order(Market::OnDemand, 0).await;
        let offer = offers.iter().find(|offer| offer.id == first.offer).unwrap();
        let orders: Vec<_> = (0..3)
            .map(|slot| skyward_conformance::order(offer, Market::OnDemand, slot))
            .collect();
        let mut ids = BTreeSet::new();
        let mut short = 0;
        let (a, b, c) = tokio::join!(
            bench.provider.create(&orders[0]),
            bench.provider.create(&orders[1]),
            bench.provider.create(&orders[2])
        );
        for result in [a, b, c] {
            match result {
                Ok(accepted) => assert!(ids.insert(accepted.id), "{kind}: two orders, one machine"),
                Err(error) => {
                    assert_eq!(error.kind.class(), ErrorClass::Capacity, "{kind}: {error}");
                    short += 1;
                }
            }
        }
        assert_eq!(bench.machines(), 3 - short, "{kind}");
        for order in &orders {
            bench.end(order, None).await;
        }
        bench.bring_down(&orders[0], None).await;
        bench.judge(kind);
    });
}

/// The calls of an order that follow the one that makes the machine. After a passing failure of one of them the
/// machine exists, so the order is never sent again before a look.
fn follow(kind: &str) -> &'static [&'static str] {
    match kind {
        "scaleway" => &[
            "servers.get",
            "volumes.update",
            "user-data.set",
            "servers.poweron",
        ],
        _ => &[],
    }
}

/// Faults of a call, and whether the contract lets an order see them in some other way
/// than by waiting.
fn faults() -> Vec<Fault> {
    let mut faults = vec![
        Fault::Latency { millis: 3_000 },
        Fault::Latency { millis: 40_000 },
        Fault::TooMany { retry_after: Some(7) },
        Fault::TooMany { retry_after: None },
        Fault::NoCapacity,
        Fault::Quota { what: "gpus".into() },
        Fault::Funds,
        Fault::Unauthorized,
        Fault::Expired,
        Fault::Forbidden,
    ];
    for when in [When::Before, When::After] {
        faults.push(Fault::Cut { when });
        faults.push(Fault::Maintenance { when });
        for status in [500, 502, 503, 504] {
            faults.push(Fault::Server { status, when });
        }
    }
    faults
}

/// The kinds of errors that are allowed after a fault of a call.
fn allowed(fault: &Fault, creates: bool, kind: &ErrorKind) -> bool {
    match fault {
        Fault::Maintenance { .. } if creates => *kind == ErrorKind::Outage,
        Fault::Latency { .. } | Fault::Cut { .. } | Fault::Server { .. } if creates => {
            *kind == ErrorKind::Indeterminate
        }
        Fault::Latency { .. } | Fault::Cut { .. } | Fault::Server { .. } | Fault::Maintenance { .. } => {
            *kind == ErrorKind::Transient
        }
        Fault::TooMany { .. } => matches!(kind, ErrorKind::RateLimited(_)),
        Fault::NoCapacity => matches!(kind, ErrorKind::NoCapacity),
        Fault::Quota { .. } => matches!(kind, ErrorKind::Quota(_) | ErrorKind::NoCapacity),
        // AWS keeps no balance; what it holds up is a new account, region by region.
        Fault::Funds => matches!(kind, ErrorKind::NoCredit | ErrorKind::Quota(_)),
        Fault::Unauthorized | Fault::Expired => matches!(kind, ErrorKind::Credentials),
        Fault::Forbidden => {
            matches!(kind, ErrorKind::Permission) || creates && matches!(kind, ErrorKind::NoCapacity)
        }
        _ => false,
    }
}

#[test]
fn p3_p8_p10_each_fault_of_each_call_ends_with_what_was_wanted_and_is_told_by_its_kind() {
    let matrix: Mutex<Vec<(&str, Market, usize, usize)>> = Mutex::default();
    for_each(async |kind| {
        // Calls that met all their faults on a market before. On another market their requests are the same for the most part,
        // and a third has a third of these faults.
        let mut known: BTreeSet<String> = BTreeSet::new();
        for market in markets(kind) {
            let (mut tried, mut number) = (0, 0);
            // The calls in the life of a machine.
            let bench = Bench::start(kind, None).await;
            let order = bench.order(market, 0).await;
            let (running, _) = bench.bring_up(&order).await;
            bench.bring_down(&order, Some(&running.id)).await;
            let calls: BTreeSet<String> = bench.sim.requests().into_iter().map(|entry| entry.call).collect();
            assert!(
                calls.contains(bench.subject.create[&market]) && calls.contains(bench.subject.delete),
                "{calls:?}"
            );
            let bench_create = bench.subject.create[&market];
            drop(bench);
            for call in &calls {
                for fault in faults() {
                    // No cloud says of another call that there is no capacity, quota or money.
                    let of_orders = matches!(fault, Fault::NoCapacity | Fault::Quota { .. } | Fault::Funds);
                    number += 1;
                    let is_told = call == bench_create || !known.contains(call) || is_told(number);
                    if is_told && (!of_orders || call == bench_create) {
                        one_fault(kind, market, call, &fault).await;
                        tried += 1;
                    }
                }
            }
            // Each call meets at least what every call can meet, if it did not on another market.
            let of_every_call = faults().len() - 3;
            let new = calls.difference(&known).count();
            assert!(tried >= new * of_every_call, "{kind} {market:?}: {tried}");
            known.extend(calls.iter().cloned());
            matrix.lock().unwrap().push((kind, market, calls.len(), tried));
        }
    });
    let mut matrix = matrix.into_inner().unwrap();
    matrix.sort_unstable_by_key(|(kind, ..)| *kind);
    for (kind, market, calls, tried) in &matrix {
        println!("{kind} {market:?}: {calls} calls, {tried} faults of them");
    }
    let kinds: BTreeSet<&str> = matrix.iter().map(|(kind, ..)| *kind).collect();
    let of = |count: fn(&(&str, Market, usize, usize)) -> usize| matrix.iter().map(count).sum::<usize>();
    println!(
        "{} clouds, {} calls, {} faults of calls tried",
        kinds.len(),
        of(|(_, _, calls, _)| *calls),
        of(|(.., tried)| *tried)
    );
    let tryable = registry::clouds().iter().filter(|cloud| can_be_tried(cloud.name));
    assert_eq!(kinds.len(), tryable.count(), "{kinds:?}");
}

async fn one_fault(kind: &'static str, market: Market, call: &str, fault: &Fault) {
    let story = format!("{kind} {market:?}: {fault:?} of {call}");
    let bench = Bench::start(kind, None).await;
    // Offers are read before: their failures are not failures of an order.
    let order = bench.order(market, 0).await;
    let creates = call == bench.subject.create[&market];
    let deletes = call == bench.subject.delete;
    bench.sim.fault(Rule::once(call, fault.clone()));
    let (running, refused) = bench.bring_up(&order).await;
    assert_eq!(
        bench.sim.meter(|meter| meter.billed_now().len()),
        1,
        "{story}: {refused:?}"
    );
    let after = bench.bring_down(&order, Some(&running.id)).await;
    let in_doubt = follow(kind).contains(&call) && allowed(fault, false, &ErrorKind::Transient);
    for error in refused.iter().chain(&after) {
        let fits = allowed(fault, creates, &error.kind) || in_doubt && error.kind == ErrorKind::Indeterminate;
        assert!(fits, "{story}: {:?} {error}", error.kind);
        assert!(!error.to_string().contains(CANARY), "{story}: {error}");
        if deletes {
            assert!(
                passes(error) || !matches!(fault, Fault::Cut { .. } | Fault::Server { .. }),
                "{story}: {error}"
            );
        }
    }
    bench.judge(&story);
}

/// As the record of a Machine does whose Pool asked another cloud meanwhile: it asks for its end by the mark alone, until
/// every list would show what was made.
#[test]
fn p3_what_an_order_made_that_met_an_outage_is_ended_by_its_mark_when_lists_show_it() {
    for_each(async |kind| {
        for market in markets(kind) {
            let story = format!("{kind} {market:?}");
            let bench = Bench::start(kind, None).await;
            let order = bench.order(market, 0).await;
            let settle = bench.provider.capabilities().settle_time;
            let lag = settle.saturating_sub(Duration::from_secs(5));
            let lag = SignedDuration::from_secs(lag.as_secs() as i64);
            bench.sim.world(|world| world.lag.created = lag);
            let outage = Fault::Maintenance { when: When::After };
            bench.sim.fault(Rule::once(bench.subject.create[&market], outage));
            let error = bench.provider.create(&order).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Outage, "{story}: {error}");
            assert_eq!(bench.machines(), 1, "{story}");
            let reference = machine(&order, None);
            let ended = bench.provider.delete(&reference).await;
            assert!(ended.is_ok(), "{story}: {ended:?}");
            sleep(settle).await;
            bench.bring_down(&order, None).await;
            bench.judge(&story);
        }
    });
}

#[test]
fn p6_a_machine_that_vanished_or_halted_is_told_and_returned() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let create = bench.subject.create[&Market::OnDemand];
        bench.sim.fault(Rule::once(create, Fault::Halts { after: 600 }));
        let (running, _) = bench.bring_up(&order).await;
        let reference = machine(&order, Some(&running.id));
        let ended = until(&bench, &reference, |phase| {
            !matches!(phase, Some(ProviderPhase::Running))
        })
        .await;
        let halted = matches!(
            ended,
            None | Some(ProviderPhase::Stopped(_) | ProviderPhase::Failed(_) | ProviderPhase::Starting(_))
        );
        assert!(halted, "{kind}: {ended:?}");
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge(kind);
    });
}

#[test]
fn a_spot_machine_that_is_taken_back_is_told_as_that_and_returned() {
    for_each(async |kind| {
        if !markets(kind).contains(&Market::Spot) {
            return;
        }
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::Spot, 0).await;
        let create = bench.subject.create[&Market::Spot];
        bench.sim.fault(Rule::once(
            create,
            Fault::Reclaim {
                after: 600,
                notice: 0,
            },
        ));
        let (running, _) = bench.bring_up(&order).await;
        let reference = machine(&order, Some(&running.id));
        let ended = until(&bench, &reference, |phase| {
            !matches!(phase, Some(ProviderPhase::Running))
        })
        .await;
        let Some(ProviderPhase::Failed(failure)) = ended else {
            panic!("{kind}: {ended:?}");
        };
        assert_eq!(
            failure.kind,
            FailureKind::Reclaimed,
            "{kind}: {}",
            failure.message
        );
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge(kind);
    });
}

/// Waits for the first phase that is accepted, for half an hour at most.
async fn until(
    bench: &Bench,
    reference: &MachineRef,
    will_do: impl Fn(Option<&ProviderPhase>) -> bool,
) -> Option<ProviderPhase> {
    for _ in 0..180 {
        let phase = bench
            .provider
            .get(reference)
            .await
            .unwrap()
            .map(|found| found.phase);
        if will_do(phase.as_ref()) {
            return phase;
        }
        sleep(Duration::from_secs(10)).await;
    }
    panic!("nothing happened within half an hour");
}

#[test]
fn p8_no_operation_lasts_longer_than_a_minute_however_slow_the_cloud_is() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        bench
            .sim
            .fault(Rule::always("*", Fault::Latency { millis: 120_000 }));
        let reference = machine(&order, None);
        let began = Instant::now();
        bench.provider.account().await.unwrap_err();
        // Offers may be remembered; then there was no request.
        let asked = Instant::now();
        let offers = bench.provider.offers().await;
        assert!(
            offers.is_err() || asked.elapsed() < Duration::from_secs(1),
            "{kind}"
        );
        bench.provider.create(&order).await.unwrap_err();
        bench.provider.get(&reference).await.unwrap_err();
        bench.provider.delete(&reference).await.unwrap_err();
        bench.list().await.unwrap_err();
        assert!(
            began.elapsed() < Duration::from_mins(6),
            "{kind}: {:?}",
            began.elapsed()
        );
    });
}

#[test]
fn p9_wrong_credentials_are_told_as_such_and_shown_nowhere() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let wrong: Vec<(&'static str, String)> = bench
            .subject
            .credentials
            .iter()
            .map(|(name, value)| (*name, value.replace(CANARY, &format!("{CANARY}-wrong"))))
            .collect();
        let provider = connect(
            kind,
            bench.simulator.url(kind),
            &wrong,
            bench.subject.settings.clone(),
        );
        let order = bench.order(Market::OnDemand, 0).await;
        let errors = [
            provider.account().await.unwrap_err(),
            provider.create(&order).await.unwrap_err(),
            provider.list(&scope()).await.unwrap_err(),
            provider.delete(&machine(&order, None)).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind, ErrorKind::Credentials, "{kind}: {error}");
            assert!(!format!("{error} {error:?}").contains(CANARY), "{kind}: {error}");
            let key = bench.subject.credentials[0].0;
            assert!(
                error.message.contains(key),
                "{kind}: the remedy does not name {key}: {error}"
            );
        }
        assert_eq!(bench.sim.meter(|meter| meter.billed_now().len()), 0);
    });
}
