//! Machines that are dearer than recorded; and the recorded timeout of the bootstrap.

use skyward_api::Machine;
use skyward_core::{Capabilities, Usd, machine::Rental};

use super::*;
use crate::machine::facts::{Looked, MachineMemory, Outcomes};

/// A machine for which at most 2 USD were recorded, as its provider shows it at this price.
fn costing(price: &str, phase: ProviderPhase) -> Observed {
    let mut seen = world();
    seen.machine.spec.hourly_price = "1.5".into();
    seen.machine.spec.max_hourly_cost = Some("2".into());
    seen.provider = there(phase);
    if let LookupOutcome::There(there) = &mut seen.provider {
        there.rental = Rental {
            hourly_price: price.parse().ok(),
            ..Rental::default()
        };
    }
    seen
}

#[rstest]
#[case::as_it_boots(ProviderPhase::Starting(None))]
#[case::as_it_runs(ProviderPhase::Running)]
fn a_machine_above_the_most_that_was_recorded_is_ended_and_says_both_prices(#[case] phase: ProviderPhase) {
    let seen = costing("2.01", phase);
    let first = plan(&seen, at(NOW));
    let (failed, reason, message) = why(&first);
    assert_eq!(
        (failed, reason.as_str()),
        (Some(MachinePhase::Failed), reason::PRICE_TOO_HIGH)
    );
    assert!(
        message.contains("2.01 USD") && message.contains("at most 2 were"),
        "{message}"
    );
    assert_eq!(first.actions, [Action::Disconnect], "it is not dialled");
    let (scarce, _) = first.shortage.clone().expect("its offer is barred");
    assert_eq!(
        scarce,
        Unavailable::Dear {
            provider: "local".into(),
            offer: "local-x".into(),
            spot: false
        }
    );
    assert_eq!(first.events[0].reason, crate::events::reason::PRICE_TOO_HIGH);
    assert!(first.events[0].note.contains("2.01"), "{}", first.events[0].note);
    assert_eq!(
        status(&first).hourly_price.as_deref(),
        Some("2.01"),
        "its bill is counted as it is"
    );
    // A recorded price is not judged again.
    let mut again = seen;
    again.machine.status = status(&first).clone();
    let second = plan(&again, at(NOW + 1));
    assert!(second.status.is_none() && second.shortage.is_none() && second.events.is_empty());
}

#[rstest]
#[case::less("1.9")]
#[case::the_most("2")]
#[case::a_rounding_error("2.0000000004")]
#[case::nothing_is_said("")]
fn a_machine_within_what_was_recorded_goes_on(#[case] price: &str) {
    let plan = plan(&costing(price, ProviderPhase::Running), at(NOW));
    assert_ne!(why(&plan).0, Some(MachinePhase::Failed), "{price}");
    assert_eq!(plan.shortage, None);
}

#[test]
fn a_price_that_rises_later_ends_nothing() {
    let mut seen = costing("9", ProviderPhase::Running);
    seen.machine.status.hourly_price = Some("1.5".into());
    assert_ne!(why(&plan(&seen, at(NOW))).0, Some(MachinePhase::Failed));
}

#[test]
fn without_a_ceiling_the_price_is_the_most() {
    let mut seen = costing("1.6", ProviderPhase::Running);
    seen.machine.spec.max_hourly_cost = None;
    assert_eq!(why(&plan(&seen, at(NOW))).1, reason::PRICE_TOO_HIGH);
    assert_eq!(seen.machine.spec.hourly_price.parse(), Ok(Usd::new(15, 1)));
}

#[test]
fn each_kind_has_its_own_default_of_the_bootstrap_and_the_status_says_what_counts() {
    let slow = Capabilities {
        bootstrap_timeout: Duration::from_mins(10),
        ..Capabilities::of("slow")
    };
    let facts = world().machine;
    let machine = Machine::new("m", facts.spec.clone());
    let observed = |timeouts: Option<&str>, connected: bool, kind: bool, recorded: Option<&str>| {
        let mut pool = (*pool()).clone();
        let timeouts = timeouts.map(|bootstrap| serde_json::json!({ "bootstrap": bootstrap }));
        pool.spec.timeouts = timeouts.map(|timeouts| serde_json::from_value(timeouts).unwrap());
        let mut facts = facts.clone();
        facts.status.bootstrap_timeout = recorded.map(|text| skyward_api::Duration(text.into()));
        let looked = Looked {
            machine: &machine,
            facts,
            timeouts: ResolvedPool::of(&pool.spec).timeouts,
            pool: Some(Arc::new(pool)),
            current: true,
            asked: None,
            provider: None,
            capabilities: connected.then_some(&slow),
            kind: kind.then_some(&slow),
            terms: None,
            tells_changes: false,
            answer: there(ProviderPhase::Starting(None)),
            asked_at: at(NOW),
            session: None,
            runs: None,
            outcomes: Outcomes::default(),
        };
        looked.observed(&mut MachineMemory::default(), at(NOW))
    };
    let waits = |seen: &Observed| seen.waits.bootstrap.as_secs();
    assert_eq!(waits(&observed(None, true, true, None)), 600);
    // Before its account answers, as after a restart.
    assert_eq!(waits(&observed(None, false, true, None)), 600);
    // Its Provider is gone by force.
    assert_eq!(waits(&observed(None, false, false, Some("600s"))), 600);
    assert_eq!(waits(&observed(None, false, false, None)), 300);
    let own = observed(Some("7m"), true, true, None);
    assert_eq!(waits(&own), 420);
    let written = plan(&own, at(NOW)).status.unwrap();
    assert_eq!(written.bootstrap_timeout.unwrap().0, "420s");
}
