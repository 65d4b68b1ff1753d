//! Whether the terms that a machine was recorded under still hold, asked immediately before
//! each order: the author of the record, and its age, decide nothing.
//!
//! The Pool's plan checked the same before it made the record. Between the two a namespace may
//! lose its admission, a limit be lowered, a setting be taken out of `overridable`, a budget be
//! spent; and a record may be made by hand.

use skyward_api::machine::MachineSpec;

use crate::{
    accounts::{
        facts::{AccountFacts, NamespaceFacts},
        limits::binding,
    },
    machine::facts::Terms,
};

/// Whether a machine may be ordered under its terms: they are known, and hold.
pub fn hold(terms: &Terms, namespace: &str, spec: &MachineSpec) -> bool {
    terms.namespace != NamespaceFacts::Unknown && broken(terms, namespace, spec).is_none()
}

/// Why a machine is not ordered under its terms, and what would help; `None` while they hold.
pub fn broken(terms: &Terms, namespace: &str, spec: &MachineSpec) -> Option<String> {
    let (facts, name) = (&terms.provider, &spec.provider);
    match terms.namespace {
        NamespaceFacts::Terminating => return Some(format!("Namespace \"{namespace}\" is being deleted.")),
        NamespaceFacts::NotServed => {
            return Some(format!(
                "Namespace \"{namespace}\" is not served: the operator was installed for other namespaces and has no rights in this one. Ask a platform engineer to add it to the chart's value namespaces."
            ));
        }
        NamespaceFacts::Active | NamespaceFacts::Unknown => {}
    }
    if terms.provider_goes || matches!(facts.account, AccountFacts::NotFound(_)) {
        return Some(format!(
            "Provider \"{name}\" is being deleted. Name another Provider in the Pool."
        ));
    }
    if let Err(selector) = &facts.admits {
        return Some(format!(
            "Provider \"{name}\" does not admit namespace \"{namespace}\" any more: its allowedNamespaces asks for labels {selector}. Ask a platform engineer to label the namespace or to widen the selector."
        ));
    }
    if facts.proves_host_keys && !spec.proves_host_key {
        return Some(format!(
            "Provider \"{name}\" demands verified host keys by now (hostKeyPolicy: Verified), and this machine was recorded without a token to prove its own. Its Pool records another one in its place."
        ));
    }
    let settings = spec.settings.iter().flat_map(|settings| settings.keys());
    let refused: Vec<&str> = settings
        .filter(|setting| !facts.overridable.contains(*setting))
        .map(String::as_str)
        .collect();
    if !refused.is_empty() {
        return Some(format!(
            "It overrides {}, which Provider \"{name}\" does not list in overridable any more. Remove it from the Pool's candidates, or ask a platform engineer to list it.",
            refused.join(", ")
        ));
    }
    // This machine is already counted as used.
    if let Some(binding) = binding(facts, facts.used, 0, terms.beyond) {
        let words = binding.words(name, namespace);
        return Some(format!("{words}. {}", binding.remedy()));
    }
    let (most, _) = terms.budget.filter(|(most, spent)| spent >= most)?;
    Some(format!(
        "The budget of its Pool, {most} USD, is spent. Raise budget.maxTotalCost, or wait for the next period."
    ))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use skyward_api::{MachinePhase, condition::reason};
    use skyward_core::Usd;

    use super::*;
    use crate::{
        accounts::quota::{Quota, Used},
        base::requeue::Next,
        machine::{
            facts::Observed,
            plan::{draft::Action, plan},
            tests::world,
        },
        pool::tests::at,
    };

    const NOW: i64 = 100_000;

    fn terms(seen: &mut Observed) -> &mut Terms {
        seen.terms.as_mut().unwrap()
    }

    fn two(total: u32) -> Used {
        Used {
            total,
            in_namespace: total,
            hourly: Usd::from(total),
            hourly_in_namespace: Usd::from(total),
        }
    }

    fn withdraws(terms: &mut Terms) {
        terms.provider.admits = Err("team=research".into());
    }

    #[rstest]
    #[case::the_namespace_is_not_admitted(withdraws, "allowedNamespaces asks for labels team=research")]
    #[case::the_namespace_goes(|terms: &mut Terms| terms.namespace = NamespaceFacts::Terminating, "is being deleted")]
    #[case::the_namespace_is_not_served(|terms: &mut Terms| terms.namespace = NamespaceFacts::NotServed, "chart's value namespaces")]
    #[case::the_provider_goes(|terms: &mut Terms| terms.provider_goes = true, "Name another Provider")]
    #[case::a_limit_was_lowered(|terms: &mut Terms| {
        terms.provider.limits = Quota { total: Some(1), ..Quota::default() };
        terms.provider.used = two(2);
    }, "limits.machines of Provider \"local\" is 1, and with this machine 2 are in use. Lower")]
    #[case::an_hour_costs_too_much(|terms: &mut Terms| {
        terms.provider.limits = Quota { hourly: Some(Usd::from(2)), ..Quota::default() };
        terms.provider.used = two(2);
        terms.beyond = Usd::from(1);
    }, "limits.hourlyCost of Provider \"local\" is 2 USD per hour, and with this machine it may be 3 USD. Lower")]
    #[case::a_proof_of_host_keys_is_demanded(|terms: &mut Terms| terms.provider.proves_host_keys = true, "recorded without a token")]
    #[case::the_month_is_spent(|terms: &mut Terms| terms.provider.month_in_namespace = Some((Usd::from(10), Usd::from(10))), "monthlyCostPerNamespace")]
    #[case::the_budget_is_spent(|terms: &mut Terms| terms.budget = Some((Usd::from(10), Usd::from(11))), "budget.maxTotalCost")]
    fn what_is_recorded_is_not_ordered_under_terms_that_hold_no_longer(
        #[case] change: fn(&mut Terms),
        #[case] remedy: &str,
    ) {
        let mut seen = world();
        assert_eq!(plan(&seen, at(NOW)).actions, [Action::Order]);
        change(terms(&mut seen));
        let plan = plan(&seen, at(NOW));
        assert!(!plan.actions.contains(&Action::Order), "{:?}", plan.actions);
        let status = plan.status.expect("it says so at once");
        assert_eq!(status.phase, Some(MachinePhase::Failed), "its Pool gives it up");
        let stalled = skyward_api::condition::find(&status.conditions, "Stalled").unwrap();
        assert_eq!(stalled.reason, reason::ORDER_WITHDRAWN);
        assert!(stalled.message.contains(remedy), "{}", stalled.message);
        assert_eq!(plan.shortage, None, "no cloud has refused anything");
        assert_eq!(plan.events[0].reason, crate::events::reason::ORDER_WITHDRAWN);
    }

    #[test]
    fn limits_that_are_just_reached_with_it_hold() {
        let mut seen = world();
        let terms = terms(&mut seen);
        terms.provider.limits = Quota {
            total: Some(2),
            in_namespace: Some(2),
            hourly: Some(Usd::from(2)),
            hourly_in_namespace: Some(Usd::from(2)),
            entry: None,
        };
        terms.provider.used = two(2);
        assert_eq!(plan(&seen, at(NOW)).actions, [Action::Order]);
    }

    #[test]
    fn a_setting_that_may_be_overridden_no_longer_is_not_ordered() {
        let mut seen = world();
        seen.machine.spec.settings = serde_json::json!({ "image": "x" }).as_object().cloned();
        let refused = plan(&seen, at(NOW));
        assert!(refused.actions.is_empty() || !refused.actions.contains(&Action::Order));
        terms(&mut seen).provider.overridable = ["image".to_owned()].into();
        assert_eq!(plan(&seen, at(NOW)).actions, [Action::Order]);
    }

    /// Another machine would take the slot while this one may be on the bill.
    #[test]
    fn what_may_have_been_ordered_is_withdrawn_only_when_it_would_be_shown() {
        for knows_token in [true, false] {
            let mut seen = world();
            seen.knows_token = knows_token;
            seen.unseen_until = Some(at(NOW + 30));
            withdraws(terms(&mut seen));
            let waits = plan(&seen, at(NOW));
            assert!(waits.actions.is_empty(), "{:?}", waits.actions);
            assert!(matches!(waits.next, Next::After(_)));
            assert!(
                waits
                    .status
                    .is_none_or(|status| status.phase != Some(MachinePhase::Failed))
            );
            let then = plan(&seen, at(NOW + 30)).status.unwrap();
            assert_eq!(then.phase, Some(MachinePhase::Failed));
        }
    }

    /// The caches may have begun anew while the order waited for its turn.
    #[test]
    fn terms_that_are_not_known_do_not_hold_at_the_last_moment_either() {
        let mut seen = world();
        let (namespace, spec) = (seen.machine.namespace.clone(), seen.machine.spec.clone());
        for (facts, may_be_ordered) in [
            (NamespaceFacts::Active, true),
            (NamespaceFacts::Unknown, false),
            (NamespaceFacts::NotServed, false),
            (NamespaceFacts::Terminating, false),
        ] {
            terms(&mut seen).namespace = facts.clone();
            let terms = seen.terms.as_ref().unwrap();
            assert_eq!(hold(terms, &namespace, &spec), may_be_ordered, "{facts:?}");
        }
    }

    #[test]
    fn nothing_is_ordered_while_its_terms_are_not_known() {
        let mut seen = world();
        terms(&mut seen).namespace = NamespaceFacts::Unknown;
        let mut unread = world();
        unread.terms = None;
        for seen in [seen, unread] {
            let waits = plan(&seen, at(NOW));
            assert!(waits.actions.is_empty(), "{:?}", waits.actions);
            assert!(matches!(waits.next, Next::After(_)), "{:?}", waits.next);
            assert!(
                waits
                    .status
                    .is_none_or(|status| status.phase != Some(MachinePhase::Failed))
            );
        }
    }
}
