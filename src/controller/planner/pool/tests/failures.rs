//! Machines that fail: replaced, waited for, given up.

use skyward_api::shared::Size;

use super::*;

#[test]
fn a_lost_machine_is_replaced_at_once_and_does_not_count_as_a_failed_try() {
    let mut seen = world(2);
    let mut lost = failed(0, NOW - 1);
    lost.ready_at = Some(at(1_000));
    seen.machines = vec![lost, ready(1)];
    let plan = decide(&seen);
    assert_eq!(deleted(&plan), [("m-0".to_owned(), Why::Failed, false)]);
    assert_eq!(created(&plan), [0]);
    assert_eq!(plan.status.failed_attempts, 0);
    assert!(plan.events.iter().any(|event| event.reason == "MachineReplaced"));
}

#[test]
fn a_machine_that_broke_a_limit_of_the_protocol_is_a_failed_try_although_it_took_runs() {
    let mut seen = world(1);
    let mut liar = failed(0, NOW - 1);
    liar.ready_at = Some(at(1_000));
    liar.failure.as_mut().unwrap().reason = reason::PROTOCOL_VIOLATION.to_owned();
    seen.machines = vec![liar];
    let plan = decide(&seen);
    assert_eq!(deleted(&plan), [("m-0".to_owned(), Why::Failed, false)]);
    assert_eq!((plan.status.failed_attempts, created(&plan)), (1, vec![]));
    assert!(condition(&plan, READY).unwrap().2.contains("ProtocolViolation"));
}

#[test]
fn machines_that_break_the_protocol_as_soon_as_they_are_ready_are_failed_tries_in_a_row() {
    let mut seen = world(1);
    seen.pool.status.failed_attempts = 9;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 300)));
    let mut machine = ready(0);
    machine.ready_at = Some(at(NOW));
    seen.machines = vec![machine];
    let plan = decide_at(&seen, NOW + 5);
    assert_eq!(plan.status.failed_attempts, 9);
    let mut liar = failed(0, NOW + 10);
    liar.ready_at = Some(at(NOW));
    liar.failure.as_mut().unwrap().reason = reason::PROTOCOL_VIOLATION.to_owned();
    seen.machines = vec![liar];
    let plan = decide_at(&seen, NOW + 10);
    assert_eq!(plan.status.failed_attempts, 10);
    assert_eq!(condition(&plan, STALLED).unwrap().1, reason::PROVISIONING_FAILED);
}

#[test]
fn a_machine_that_stays_ready_for_a_minute_ends_the_row_and_holds_up_nobody_before() {
    let mut seen = world(2);
    seen.pool.status.failed_attempts = 10;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 1)));
    let mut machine = ready(0);
    machine.ready_at = Some(at(NOW));
    seen.machines = vec![machine];
    let plan = decide_at(&seen, NOW + 1);
    assert_eq!(plan.status.failed_attempts, 10);
    assert!(condition(&plan, STALLED).is_none());
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(59)));
    let plan = decide_at(&seen, NOW + 60);
    assert_eq!((plan.status.failed_attempts, created(&plan)), (0, vec![1]));
}

#[test]
fn a_failed_try_is_waited_for_twice_as_long_each_time_and_counted_once() {
    let mut seen = world(1);
    seen.machines = vec![failed(0, NOW)];
    let plan = decide(&seen);
    assert_eq!((plan.status.failed_attempts, created(&plan)), (1, vec![]));
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(10)));
    // A crash before the deletion: the same failure is seen again.
    seen.pool.status = plan.status;
    assert_eq!(decide_at(&seen, NOW + 1).status.failed_attempts, 1);
    // The machine is gone, and the message is not.
    seen.machines.clear();
    let waiting = decide_at(&seen, NOW + 2);
    assert!(
        condition(&waiting, READY)
            .unwrap()
            .2
            .contains("Last failure: Machine \"m-0\", ImagePullFailed: image")
    );
    assert_eq!(created(&decide_at(&seen, NOW + 10)), [0]);
    // The second failure waits for 20 s.
    seen.machines = vec![failed(0, NOW + 20)];
    let second = decide_at(&seen, NOW + 20);
    assert_eq!(second.status.failed_attempts, 2);
    assert_eq!(second.next, Next::After(std::time::Duration::from_secs(20)));
}

#[rstest]
fn a_refusal_for_want_of_room_moves_on_to_the_next_offer_at_once_and_counts_when_there_is_none(
    #[values(reason::NO_CAPACITY, reason::QUOTA_EXCEEDED, reason::NO_CREDIT)] why: &str,
) {
    let price = |price: &str| serde_json::json!({ "onDemandPrice": price });
    let mut seen = world(1);
    let index = OfferIndex::of([offer("cheap", price("1")), offer("dear", price("2"))]);
    seen.offers = BTreeMap::from([("local".to_owned(), Arc::new(index))]);
    let refused = |slot, when| {
        let mut machine = failed(slot, when);
        let failure = machine.failure.as_mut().unwrap();
        failure.reason = why.into();
        machine
    };
    let ordered = |plan: &Plan| {
        plan.actions.iter().find_map(|action| match action {
            Action::CreateMachine { spec, .. } => Some(spec.offer.clone()),
            _ => None,
        })
    };
    let mut short = UnavailableOfferings::default();
    let mut refuse = |name: &str| {
        let what = Unavailable::Offer {
            offer: name.into(),
            spot: false,
        };
        short.remember(what, "sold out".into(), at(NOW), REMEMBERED);
        Arc::new(short.clone())
    };
    // Even while an earlier failure of another kind would have to be waited for.
    seen.pool.status.failed_attempts = 1;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 1)));
    seen.unavailable = refuse("cheap");
    seen.machines = vec![refused(0, NOW)];
    let plan = decide(&seen);
    assert_eq!(ordered(&plan).as_deref(), Some("dear"));
    assert_eq!(plan.status.failed_attempts, 1, "it is no failed try");
    seen.unavailable = refuse("dear");
    seen.machines = vec![refused(0, NOW + 1)];
    seen.pool.status = plan.status;
    let last = decide_at(&seen, NOW + 1);
    assert_eq!((ordered(&last), last.status.failed_attempts), (None, 2));
    assert_eq!(last.next, Next::After(std::time::Duration::from_secs(20)));
    // Then the cheapest is ordered again, although its refusal still counts.
    seen.pool.status = last.status;
    seen.machines.clear();
    assert_eq!(ordered(&decide_at(&seen, NOW + 21)).as_deref(), Some("cheap"));
}

#[test]
fn after_the_last_try_the_pool_is_stalled_with_what_the_provider_said() {
    let mut seen = world(1);
    seen.pool.status.failed_attempts = 9;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 100)));
    seen.machines = vec![failed(0, NOW)];
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(
        (why.as_str(), plan.status.phase),
        (reason::PROVISIONING_FAILED, Some(PoolPhase::Stalled))
    );
    assert!(message.contains("image \"x\" cannot be pulled"), "{message}");
    seen.pool.status = plan.status;
    seen.machines.clear();
    assert_eq!(created(&decide_at(&seen, NOW + 3_599)), Vec::<u32>::new());
    assert_eq!(created(&decide_at(&seen, NOW + 3_600)), [0]);
    seen.pool.generation = 2;
    assert_eq!(
        created(&decide_at(&seen, NOW + 60)),
        [0],
        "a change of the spec is a new chance"
    );
}

#[test]
fn orders_that_are_refused_as_they_are_to_the_last_try_are_a_refusal_by_all() {
    let mut seen = world(1);
    seen.pool.status.failed_attempts = 9;
    seen.pool.status.last_failure_at = Some(Time(at(NOW - 100)));
    let mut machine = failed(0, NOW);
    machine.failure = Some(Failure {
        at: at(NOW),
        reason: reason::ORDER_REFUSED.into(),
        message: "no default VPC".into(),
        bootstrap: None,
    });
    seen.machines = vec![machine];
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::ALL_PROVIDERS_FAILED);
    assert!(message.contains("no default VPC"), "{message}");
    // The message repeats each refusal, as long as it is known.
    let of = |provider: &str| {
        let spec = serde_json::json!({ "provider": provider });
        let index = OfferIndex::of([offer(&format!("{provider}-x"), spec)]);
        (provider.to_owned(), Arc::new(index))
    };
    seen.offers = BTreeMap::from([of("local"), of("other")]);
    seen.providers.insert("other".to_owned(), provider());
    let both = serde_json::json!({ "candidates": [{ "provider": "local" }, { "provider": "other" }] });
    seen.pool.spec = serde_json::from_value(both).unwrap();
    let mut short = UnavailableOfferings::default();
    for (provider, said) in [("local", "no default VPC"), ("other", "no such right")] {
        let what = Unavailable::Right {
            provider: provider.into(),
            region: String::new(),
            spot: false,
        };
        short.remember(what, said.into(), at(NOW), REMEMBERED);
    }
    seen.unavailable = Arc::new(short);
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::ALL_PROVIDERS_FAILED);
    for said in [
        "Provider \"local\": no default VPC",
        "Provider \"other\": no such right",
    ] {
        assert!(message.contains(said), "{message}");
    }
}

/// Regions of the machines that a plan orders.
fn regions(plan: &Plan) -> Vec<&str> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::CreateMachine { spec, .. } => Some(spec.region.as_str()),
            _ => None,
        })
        .collect()
}

/// Two machines that must reach each other, whose orders at "a" were refused as they are.
fn refused_in_europe(offers: &[&str]) -> Observed {
    let at_region = |region: &str| {
        let price = if region == "eu" { "1" } else { "2" };
        serde_json::json!({ "onDemandPrice": price, "region": region })
    };
    let mut seen = world(2);
    let index = OfferIndex::of(offers.iter().map(|region| offer(region, at_region(region))));
    seen.offers = BTreeMap::from([("local".to_owned(), Arc::new(index))]);
    let mut short = UnavailableOfferings::default();
    let what = Unavailable::Order {
        pool: seen.pool.uid.clone(),
        template: template_hashes(&seen.pool.spec).remove(0),
        provider: "local".into(),
        region: "eu".into(),
        spot: false,
        offer: "eu".into(),
    };
    short.remember(what, "no default VPC".into(), at(NOW), REMEMBERED);
    seen.unavailable = Arc::new(short);
    seen.machines = [0, 1]
        .map(|slot| MachineFacts {
            refused: true,
            concern: Some((reason::ORDER_REFUSED.into(), "no default VPC".into())),
            place: Place {
                provider: "local".into(),
                region: "eu".into(),
            },
            ..booting(slot)
        })
        .into();
    seen
}

#[test]
fn orders_that_are_refused_as_they_are_move_on_at_once_and_the_pool_says_what_was_said() {
    let mut seen = refused_in_europe(&["eu", "us"]);
    let plan = decide(&seen);
    assert_eq!(
        deleted(&plan),
        [
            ("m-0".to_owned(), Why::Refused, false),
            ("m-1".to_owned(), Why::Refused, false)
        ]
    );
    assert_eq!(regions(&plan), ["us", "us"], "in the same plan");
    assert_eq!(plan.status.failed_attempts, 0);
    let (_, _, message) = condition(&plan, READY).unwrap();
    assert!(
        message.contains("Provider \"local\": no default VPC"),
        "{message}"
    );
    // Their records go when the provider says that no machine exists, and hold up no other order.
    for machine in &mut seen.machines {
        machine.deleting = true;
        machine.concern = Some((reason::DELETING.into(), "Its deletion is ordered.".into()));
    }
    assert_eq!(created(&decide(&seen)), [0, 1]);
}

#[test]
fn where_nothing_else_fits_a_refused_order_waits_for_somebody_to_mend_it() {
    let seen = refused_in_europe(&["eu"]);
    let plan = decide(&seen);
    assert_eq!((deleted(&plan), created(&plan)), (vec![], vec![]));
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::ORDER_REFUSED);
    assert!(message.contains("no default VPC"), "{message}");
    // A new process, which knows no refusals, does not give the machine up for a refused Offer.
    let mut forgotten = refused_in_europe(&["eu"]);
    forgotten.unavailable = Arc::default();
    assert_eq!(deleted(&decide(&forgotten)), []);
}

#[test]
fn a_pool_that_was_corrected_is_not_kept_from_what_refused_it() {
    let mut seen = refused_in_europe(&["eu", "us"]);
    seen.pool.spec.disk = Some(Size("20G".into()));
    seen.pool.generation = 2;
    for machine in &mut seen.machines {
        machine.current = false;
    }
    assert_eq!(
        regions(&decide(&seen)),
        ["eu", "eu"],
        "the cheaper one was refused for what it asked before"
    );
}

#[test]
fn a_refusal_that_nobody_remembers_is_looked_for_again() {
    let mut seen = refused_in_europe(&["eu", "us"]);
    seen.unavailable = Arc::default();
    let plan = decide(&seen);
    assert_eq!(deleted(&plan), []);
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(5)));
}

#[test]
fn what_other_pools_were_refused_is_no_failure_of_this_one() {
    let mut seen = world(1);
    seen.machines = vec![booting(0)];
    let mut short = UnavailableOfferings::default();
    let what = Unavailable::Right {
        provider: "local".into(),
        region: "eu".into(),
        spot: true,
    };
    short.remember(what, "not authorized".into(), at(NOW), REMEMBERED);
    seen.unavailable = Arc::new(short);
    let (_, _, message) = condition(&decide(&seen), READY).unwrap();
    assert!(!message.contains("not authorized"), "{message}");
}

/// The last refusal of each cloud is told, and other Pools order other machines there.
#[test]
fn a_pool_that_met_a_shortage_says_what_was_refused_of_its_own_wishes_and_not_of_other_pools() {
    let card = |name: &str| serde_json::json!({ "name": name, "count": 1 });
    let sold = |provider: &str, name: &str| {
        let spec = serde_json::json!({
            "provider": provider, "accelerator": card(name), "onDemandPrice": "1", "spotPrice": "0.5",
        });
        offer(&format!("{provider}-{name}"), spec)
    };
    let mut seen = world(1);
    let of = |provider: &str| {
        let index = OfferIndex::of(["L4", "H100"].map(|name| sold(provider, name)));
        (provider.to_owned(), Arc::new(index))
    };
    seen.offers = BTreeMap::from([of("local"), of("other"), of("third")]);
    for name in ["other", "third"] {
        seen.providers.insert(name.to_owned(), provider());
    }
    let spec = serde_json::json!({
        "accelerator": card("L4"), "allocation": "OnDemand",
        "candidates": [{ "provider": "local" }, { "provider": "other" }, { "provider": "third" }],
    });
    seen.pool.spec = serde_json::from_value(spec).unwrap();
    let mut short = UnavailableOfferings::default();
    for (second, name, spot, why) in [
        (NOW - 9, "local-L4", false, "no room for it"),
        (NOW - 8, "other-L4", false, "its quota is used up"),
        (NOW - 7, "local-H100", false, "another card"),
        (NOW - 6, "other-L4", true, "another market"),
    ] {
        let what = Unavailable::Offer {
            offer: name.into(),
            spot,
        };
        short.note(what, why.into(), at(second));
    }
    seen.unavailable = Arc::new(short);
    let mut machine = failed(0, NOW);
    machine.failure.as_mut().unwrap().reason = reason::NO_CAPACITY.into();
    seen.machines = vec![machine];
    let plan = decide(&seen);
    assert_eq!(created(&plan), [0], "at the third one");
    let (_, _, message) = condition(&plan, READY).unwrap();
    for part in [
        "Provider \"local\": no room for it",
        "Provider \"other\": its quota is used up",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(!message.contains("another"), "{message}");
}
