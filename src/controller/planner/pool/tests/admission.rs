//! Whether machines may be created, and the Pool's conditions when not.

use super::*;

#[rstest]
#[case(AccountFacts::NotFound(vec!["gpu".into()]), reason::PROVIDER_NOT_FOUND, "There are: gpu")]
#[case(AccountFacts::NotFound(vec![]), reason::PROVIDER_NOT_FOUND, "There is none yet")]
#[case(AccountFacts::Deleting, reason::PROVIDER_NOT_READY, "Name another Provider")]
#[case(AccountFacts::NotReady("Provider \"local\" is not ready: revoked".into()), reason::PROVIDER_NOT_READY, "revoked")]
fn a_pool_says_what_is_wrong_with_its_provider(
    #[case] account: AccountFacts,
    #[case] expected: &str,
    #[case] words: &str,
) {
    let mut seen = world(1);
    of_local(&mut seen).account = account;
    let plan = decide(&seen);
    let (status, why, message) = condition(&plan, READY).unwrap();
    assert_eq!(
        (status.as_str(), why.as_str(), created(&plan)),
        ("False", expected, vec![])
    );
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_namespace_that_is_not_allowed_and_a_missing_secret_are_named() {
    let mut seen = world(1);
    of_local(&mut seen).admits = Err("team=ml".into());
    assert!(
        condition(&decide(&seen), STALLED)
            .unwrap()
            .2
            .contains("asks for labels team=ml. Ask a platform engineer to label the namespace")
    );
    // Nobody can give a namespace the name of another one.
    of_local(&mut seen).admits = Err("kubernetes.io/metadata.name in (ops)".into());
    let (_, _, message) = condition(&decide(&seen), STALLED).unwrap();
    assert!(message.contains("add the namespace to the selector"), "{message}");
    let mut seen = world(1);
    seen.has_references = true;
    seen.missing_references = Ok(vec!["Secret \"hf\"".into()]);
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::REFERENCE_NOT_FOUND);
    assert!(
        message.starts_with("Secret \"hf\" of namespace \"team\" does not exist. Create it"),
        "{message}"
    );
    assert_ne!(plan.next, Next::Wait, "no watch tells us of Secrets");

    seen.missing_references = Ok(Vec::new());
    seen.too_large_references = Some("the Secrets have 2000000 bytes".into());
    let plan = decide(&seen);
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(
        (why.as_str(), message.as_str()),
        (reason::REFERENCE_TOO_LARGE, "the Secrets have 2000000 bytes.")
    );
    assert_ne!(plan.next, Next::Wait, "no watch tells us of Secrets");
}

#[test]
fn a_ready_pool_says_that_its_provider_is_being_deleted_and_a_stalled_one_has_nothing_under_way() {
    let mut seen = world(1);
    seen.machines = vec![ready(0)];
    of_local(&mut seen).account = AccountFacts::Deleting;
    let (status, _, message) = condition(&decide(&seen), READY).unwrap();
    assert_eq!(status, "True");
    assert!(
        message.contains("Provider \"local\" is being deleted and goes with the last machine"),
        "{message}"
    );
    seen.machines.clear();
    let plan = decide(&seen);
    assert_eq!(condition(&plan, STALLED).unwrap().0, "True");
    assert_eq!(condition(&plan, RECONCILING).unwrap().0, "False");
}

#[test]
fn a_pool_of_a_namespace_that_is_not_served_says_so_and_keeps_what_runs() {
    let mut seen = world(2);
    seen.machines = vec![ready(0)];
    seen.namespace = NamespaceFacts::NotServed;
    let plan = decide(&seen);
    assert_eq!((created(&plan), deleted_names(&plan)), (vec![], vec![]));
    let (_, why, message) = condition(&plan, STALLED).unwrap();
    assert_eq!(why, reason::NAMESPACE_NOT_SERVED);
    assert!(
        message.contains("\"team\" is not served") && message.contains("namespaces"),
        "{message}"
    );
    seen.pool.deleting_since = Some(at(NOW));
    assert_eq!(
        deleted_names(&decide(&seen)),
        ["m-0"],
        "it can be deleted all the same"
    );
}

#[test]
fn machines_that_run_stay_when_a_secret_goes() {
    let mut seen = world(1);
    seen.machines = vec![ready(0)];
    seen.has_references = true;
    seen.missing_references = Ok(vec!["Secret \"hf\"".into()]);
    let plan = decide(&seen);
    assert_eq!(
        (deleted_names(&plan), plan.status.phase),
        (vec![], Some(PoolPhase::Ready))
    );
    assert!(condition(&plan, STALLED).is_some());
}

#[test]
fn a_limit_lets_in_what_fits_and_names_itself() {
    let mut seen = world(4);
    of_local(&mut seen).limits = Quota {
        total: Some(10),
        in_namespace: Some(3),
        ..Quota::default()
    };
    of_local(&mut seen).used = Used {
        total: 5,
        in_namespace: 1,
        ..Used::default()
    };
    let plan = decide(&seen);
    assert_eq!(created(&plan), [0, 1]);
    let message = condition(&plan, STALLED).unwrap().2;
    assert!(
        message.starts_with(
            r#"limits.machinesPerNamespace of Provider "local" is 3, and 3 are in use in namespace "team": 2 machine(s) cannot be ordered. Lower nodes.desired"#
        ) && !message.contains("limits.machines "),
        "{message}"
    );
}

#[test]
fn a_number_in_the_name_of_an_accelerator_has_the_bounds_of_its_field() {
    let mut seen = world(1);
    for name in ["0.1x L4", "L4 0.01GB", "32x L4"] {
        seen.pool.spec.accelerator = serde_json::from_value(serde_json::json!({ "name": name })).unwrap();
        let plan = decide(&seen);
        let (_, why, message) = condition(&plan, STALLED).unwrap();
        assert_eq!(why, reason::INVALID_SPEC, "{name}: {message}");
        assert!(message.contains("it must be from"), "{message}");
        assert_eq!(created(&plan), Vec::<u32>::new(), "{name}");
    }
}

#[test]
fn a_machine_that_the_api_server_refuses_is_tried_again_later_and_the_pool_says_why() {
    let mut seen = world(1);
    seen.refusal = Some(Refusal {
        why: "exceeded quota: none".into(),
        until: at(NOW + 5),
    });
    let plan = decide(&seen);
    assert_eq!(created(&plan), Vec::<u32>::new());
    assert_eq!(plan.next, Next::After(std::time::Duration::from_secs(5)));
    let (_, why, message) = condition(&plan, READY).unwrap();
    assert_eq!(why, reason::PROVISIONING);
    assert!(
        message.contains("exceeded quota: none") && message.contains("Raise the quota"),
        "{message}"
    );
    // The Pool's own write wakes it, which is no reason to try again.
    seen.pool.status = plan.status;
    let again = decide(&seen);
    assert_eq!((created(&again), &again.status), (vec![], &seen.pool.status));
    let later = decide_at(&seen, NOW + 5);
    assert_eq!(created(&later), [0]);
    assert!(
        condition(&later, READY)
            .unwrap()
            .2
            .contains("exceeded quota: none")
    );
}
