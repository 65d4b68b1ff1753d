//! `skyward check-provider` at every simulated cloud: it finds what is there, changes nothing, shows no credentials,
//! names the rights that are lacking, and notices answers of another shape.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use skyward_cloudsim::{Fault, Rule, core::cloud::Effect};
use skyward_conformance::{Bench, CANARY, CLUSTER, can_be_tried, connect_behind};
use skyward_core::{Credentials, Fence, Market, Secret};
use skyward_providers::check::{Format, Report, look, unusable};

use crate::{fence::changes, for_each, in_virtual_time};

/// A look with a new client, which remembers nothing, a minute after the one before: clouds limit how often they are
/// asked.
async fn look_at(bench: &Bench) -> Report {
    bench.pass(Duration::from_mins(1)).await;
    let provider = connect_behind(
        &Fence::default(),
        bench.sim.name(),
        bench.simulator.url(bench.sim.name()),
        &bench.subject.credentials,
        bench.subject.settings.clone(),
    );
    look(&*provider, Some(CLUSTER)).await
}

/// Both forms of a report, in which no credentials may be seen although nothing is hidden in it.
fn rendered(report: &Report) -> (String, serde_json::Value) {
    let forms = [Format::Text, Format::Json];
    let [text, json] = forms.map(|format| report.render(format, &Credentials::default()));
    for form in [&text, &json] {
        assert!(!form.contains(CANARY), "{form}");
    }
    (text, serde_json::from_str(&json).unwrap())
}

/// Everything at the cloud that a call could change.
fn contents(bench: &Bench) -> String {
    bench.sim.world(|world| {
        let machines: Vec<_> = world
            .machines
            .values()
            .map(|machine| (&machine.id, &machine.mark, machine.phase))
            .collect();
        let resources: Vec<_> = world
            .resources
            .values()
            .map(|resource| (&resource.id, &resource.name, &resource.detail, resource.exists()))
            .collect();
        format!("{machines:#?} {resources:#?}")
    })
}

#[test]
fn a_look_finds_what_is_ours_and_changes_nothing_at_any_cloud() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        bench.list_with(&running.id).await;
        // A call that would change something meets a refusal there, too.
        for effect in [Effect::Create, Effect::Change, Effect::Delete] {
            bench.sim.fault(Rule::always(effect.name(), Fault::Forbidden));
        }
        let before = contents(&bench);
        bench.sim.forget();
        let report = look_at(&bench).await;
        let (text, json) = rendered(&report);
        assert_eq!(changes(&bench), BTreeSet::new(), "{kind}");
        assert!(!bench.sim.requests().is_empty(), "{kind}");
        assert_eq!(contents(&bench), before, "{kind}");
        assert!(report.is_well(), "{kind}:\n{text}");
        assert!(text.contains(&running.id), "{kind}:\n{text}");
        assert_eq!(json["machines"]["answer"]["total"], 1, "{kind}:\n{text}");
        assert!(
            json["offers"]["answer"]["offers"].as_u64() > Some(0),
            "{kind}:\n{text}"
        );
        let left = bench
            .provider
            .leftovers(&skyward_conformance::scope())
            .await
            .unwrap();
        assert_eq!(
            json["leftovers"]["answer"]["total"],
            left.len(),
            "{kind}:\n{text}"
        );
        bench.sim.clear_faults();
        bench.bring_down(&order, Some(&running.id)).await;
        bench.judge(kind);
    });
}

#[test]
fn what_the_api_tells_of_an_account_is_told() {
    for (kind, parts) in [
        (
            "aws",
            [
                "user or role: arn:aws:iam::",
                ":user/skyward; quotas: us-east-1: Running On-Demand P instances 0 vCPUs, ",
            ],
        ),
        ("digitalocean", ["limit of Droplets: 25", "status: active"]),
        (
            "gcp",
            [
                "GPUS_ALL_REGIONS 0 of 128",
                "quotas in use: us-central1 NVIDIA_A100_GPUS 0 of 128, PREEMPTIBLE_NVIDIA_A100_GPUS 0 of 128",
            ],
        ),
        ("vastai", ["credit in USD: 100", "credit in USD"]),
        ("verda", ["balance: 1000000", "currency of the balance: usd"]),
        (
            "vultr",
            ["rights of the user (acls): provisioning", "balance in USD"],
        ),
    ] {
        if !can_be_tried(kind) {
            continue;
        }
        in_virtual_time(async || {
            let bench = Bench::start(kind, None).await;
            let (text, _) = rendered(&look_at(&bench).await);
            for part in parts {
                assert!(text.contains(part), "{kind}, {part}:\n{text}");
            }
        });
    }
}

#[test]
fn every_accelerator_that_a_cloud_sells_has_a_name_that_we_know() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let (text, json) = rendered(&look_at(&bench).await);
        let offers = &json["offers"]["answer"];
        assert_eq!(offers["unknownAccelerators"]["total"], 0, "{kind}:\n{text}");
        assert_ne!(offers["accelerators"]["total"], 0, "{kind} sells none:\n{text}");
    });
}

#[test]
fn a_right_that_is_lacking_is_named_whichever_call_needs_it() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        look_at(&bench).await;
        let calls: BTreeSet<String> = bench.sim.requests().into_iter().map(|entry| entry.call).collect();
        let mut named = 0;
        for call in &calls {
            bench.sim.fault(Rule::always(call, Fault::Forbidden));
            let report = look_at(&bench).await;
            let (text, json) = rendered(&report);
            bench.sim.clear_faults();
            let lacking = json["permissionsLacking"].as_array().unwrap();
            named += usize::from(!lacking.is_empty());
            // A client that may not log in has wrong credentials, and some answers a client can do without.
            let is_told =
                report.is_well() || !lacking.is_empty() || text.contains("account: FAILED (credentials)");
            assert!(is_told, "{kind}, {call}:\n{text}");
        }
        assert!(named > 0, "{kind}: {calls:?}");
    });
}

#[test]
fn wrong_credentials_and_settings_are_told_and_shown_nowhere() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        bench.sim.fault(Rule::always("*", Fault::Unauthorized));
        let report = look_at(&bench).await;
        let (text, json) = rendered(&report);
        assert_eq!(
            json["account"]["refused"]["kind"], "credentials",
            "{kind}:\n{text}"
        );
        assert!(
            text.contains("offers: not asked, since the credentials were refused"),
            "{text}"
        );
        assert!(!report.is_well(), "{kind}:\n{text}");
        let problem = skyward_core::ProviderError::new(
            skyward_core::ErrorKind::InvalidOrder,
            "read the settings",
            format!("secret-{CANARY}"),
        );
        let hidden = unusable(kind, &problem).render(
            Format::Text,
            &Credentials::new([("A".to_owned(), Secret::new(format!("secret-{CANARY}")))]),
        );
        assert!(!hidden.contains(CANARY), "{hidden}");
    });
}

/// What every answer of the cloud looks like from now on.
fn reshape(bench: &Bench, field: Option<&str>, to: Option<&str>) {
    let (field, to) = (field.map(str::to_owned), to.map(str::to_owned));
    bench.sim.fault(Rule::always("*", Fault::Reshaped { field, to }));
}

/// The new names of the fields that are not as expected, by their names.
fn deviations(report: &Report) -> BTreeMap<String, BTreeSet<Option<String>>> {
    let mut all: BTreeMap<String, BTreeSet<Option<String>>> = BTreeMap::new();
    for found in report.shapes().iter().flat_map(|shape| &shape.deviations) {
        let names = all.entry(found.field.clone()).or_default();
        names.insert(found.renamed.clone());
    }
    all
}

#[test]
fn a_field_of_an_answer_that_is_gone_or_has_another_name_is_told_by_its_name() {
    let tried = AtomicUsize::new(0);
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        // Each look sees the fields that the one before saw: answers have one form.
        drop(
            bench
                .sim
                .control("answers", &serde_json::json!({ "mixed": false })),
        );
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        bench.list_with(&running.id).await;
        let report = look_at(&bench).await;
        let read: BTreeSet<&String> = report.shapes().iter().flat_map(|shape| &shape.present).collect();
        assert!(!read.is_empty(), "{kind}");
        for field in read {
            let renamed = format!("{field}_");
            for to in [None, Some(renamed.as_str())] {
                reshape(&bench, Some(field.as_str()), to);
                let report = look_at(&bench).await;
                let (text, _) = rendered(&report);
                bench.sim.clear_faults();
                let found = deviations(&report);
                let names = found.get(field);
                assert!(names.is_some(), "{kind}: {field} is gone:\n{text}");
                let is_named = |names: &BTreeSet<Option<String>>| names.contains(&to.map(str::to_owned));
                assert!(
                    to.is_none() || names.is_some_and(is_named),
                    "{kind}: {field} is {renamed} now:\n{text}"
                );
                tried.fetch_add(1, Ordering::Relaxed);
            }
        }
        bench.bring_down(&order, Some(&running.id)).await;
    });
    let tried = tried.into_inner();
    println!("{tried} fields of answers were left out or had another name");
    assert!(tried > 0);
}

#[test]
fn a_field_that_is_new_in_every_answer_is_named_and_breaks_nothing() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let order = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&order).await;
        bench.list_with(&running.id).await;
        reshape(&bench, None, Some("addedLater"));
        let report = look_at(&bench).await;
        let (text, _) = rendered(&report);
        bench.sim.clear_faults();
        let names = |unread: &[String]| unread.iter().any(|name| name == "addedLater");
        // An object that is the only one of its answer has keys that may be data.
        for shape in report.shapes() {
            assert!(names(&shape.unread) || shape.unread_more > 0, "{kind}: {shape:?}");
        }
        assert!(
            report.shapes().iter().any(|shape| names(&shape.unread)),
            "{kind}:\n{text}"
        );
        assert!(report.is_well(), "{kind}:\n{text}");
        bench.bring_down(&order, Some(&running.id)).await;
    });
}

#[test]
fn a_cloud_that_breaks_every_connection_is_told_and_is_well_when_it_answers_again() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        bench.sim.fault(Rule::always(
            "*",
            Fault::Cut {
                when: skyward_cloudsim::When::After,
            },
        ));
        let report = look_at(&bench).await;
        let (text, json) = rendered(&report);
        assert_eq!(json["account"]["refused"]["kind"], "transient", "{kind}:\n{text}");
        assert_eq!(changes(&bench), BTreeSet::new(), "{kind}");
        bench.sim.clear_faults();
        assert!(look_at(&bench).await.is_well(), "{kind}");
    });
}
