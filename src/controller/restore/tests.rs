//! What begins and what ends a hold.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::provider::{AfterRestore, RestoreDecision};
use skyward_planner::restore::evidence::{Evidence, Orphan, Standing};

use super::Holds;

/// A list with a machine of a Pool that this cluster never had.
fn strange() -> Evidence {
    Evidence {
        listed: 1,
        orphans: vec![Orphan {
            id: "s".into(),
            machine: "team/m-s".into(),
            pool_uid: "never".into(),
            attempt: 1,
            hourly: None,
            standing: Standing::Strange,
            confirmed: true,
        }],
        marks_prove: true,
        too_many: false,
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_final_before_each_account_was_listed_or_the_grace_is_over() {
    let holds = Holds::default();
    let accounts = ["a".to_owned(), "b".to_owned()];
    assert!(!holds.is_settled(accounts.iter()));
    holds.listed("a", Evidence::default());
    assert!(!holds.is_settled(accounts.iter()));
    holds.listed("b", strange());
    assert!(holds.is_settled(accounts.iter()));
    assert!(holds.is_held("b") && !holds.is_held("a") && holds.any());
    assert!(
        holds.holds_pool("never", std::iter::empty()),
        "its Pool's runs are left alone"
    );
    assert!(holds.holds_pool("other", ["b"].into_iter()));
    assert!(!holds.holds_pool("other", ["a"].into_iter()));
    let silent = Holds::default();
    tokio::time::advance(crate::restore::GRACE).await;
    assert!(
        silent.is_settled(accounts.iter()),
        "one that never answers holds nobody for ever"
    );
}

#[test]
fn the_attempts_of_a_decision_are_counted_by_the_pools_that_exist() {
    let decision = RestoreDecision {
        decision: AfterRestore::Adopt,
        digest: "d".into(),
        decided_at: Time(Timestamp::UNIX_EPOCH),
        epoch: 1,
        attempts: [("here".to_owned(), 9)].into(),
        machines: vec!["a".into(), "b".into()],
        earlier: Vec::new(),
    };
    let pool = |uid: &str, last: u32| -> skyward_api::Pool {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": { "name": uid, "uid": uid },
            "spec": { "provider": "local" }, "status": { "lastAttempt": last }
        }))
        .unwrap()
    };
    let pools = [pool("here", 5), pool("other", 1)];
    let behind = crate::provider::restored::act::behind(&decision, &pools);
    assert_eq!(
        behind.iter().map(|(_, attempt)| *attempt).collect::<Vec<_>>(),
        [9]
    );
    assert!(crate::provider::restored::act::behind(&decision, &[pool("here", 9)]).is_empty());
}

#[test]
fn a_hold_that_came_meanwhile_is_not_taken_back_by_an_older_look() {
    let holds = Holds::default();
    holds.listed("a", Evidence::default());
    let judged = holds.seen("a").0;
    holds.listed("a", strange());
    holds.release("a", judged.as_ref());
    assert!(holds.is_held("a"));
    let judged = holds.seen("a").0;
    holds.release("a", judged.as_ref());
    assert!(!holds.is_held("a"));
}

#[tokio::test]
async fn a_list_that_says_the_same_again_lets_what_was_decided_be_done() {
    let holds = Holds::default();
    holds.listed("a", strange());
    let judged = holds.seen("a").0;
    holds.listed("a", strange());
    assert!(holds.release("a", judged.as_ref()));
    assert!(!holds.is_held("a"));
}

#[tokio::test]
async fn what_came_to_light_meanwhile_is_judged_next() {
    let holds = Holds::default();
    holds.listed("a", strange());
    let judged = holds.seen("a").0;
    holds.listed("a", Evidence::default());
    assert_eq!(holds.news.next().await, "a");
    assert!(!holds.release("a", judged.as_ref()));
    let woken = tokio::time::timeout(std::time::Duration::from_secs(5), holds.news.next()).await;
    assert_eq!(woken.unwrap(), "a");
}

#[test]
fn where_machines_waited_for_a_decision_the_next_leader_trusts_no_count() {
    let provider = |name: &str, status: &str, reason: &str| -> skyward_api::Provider {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider", "metadata": { "name": name },
            "spec": { "container": {}, "allowedNamespaces": {} },
            "status": { "conditions": [{
                "type": "RestoreDetected", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"
            }] }
        }))
        .unwrap()
    };
    let providers = [
        provider("suspected", "Unknown", "RestoreSuspected"),
        provider("held", "True", "RestoreProved"),
        provider("decided", "False", "RestoreAdopted"),
        provider("braked", "Unknown", "TooManyOrphans"),
    ];
    let pool: skyward_api::Pool = serde_json::from_value(serde_json::json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": { "name": "p", "uid": "p" },
        "spec": { "provider": "local" }, "status": { "lastAttempt": 7 }
    }))
    .unwrap();
    let holds = Holds::default();
    holds.begin(&providers, [&pool]);
    assert!(holds.is_held("held") && !holds.is_held("suspected"));
    assert_eq!(holds.counted_before("suspected", "p"), 0);
    assert_eq!(holds.counted_before("held", "p"), 0);
    assert_eq!(holds.counted_before("decided", "p"), 7);
    assert_eq!(holds.counted_before("braked", "p"), 7);
    assert_eq!(holds.counted_before("another", "p"), 7);
}
