use std::sync::Arc;

use kube_core::ResourceExt;
use rstest::rstest;
use skyward_core::offer::{self, Architecture, Availability};
use skyward_core::{Usd, provider::HostKeys};

use super::*;

const NAME: &str = "local";

/// Pseudonyms in plain text.
#[derive(Debug)]
struct Unchanged;

impl Pseudonyms for Unchanged {
    fn pseudonym(&self, namespace: &str) -> String {
        format!("#{namespace}")
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + second).unwrap()
}

fn provider() -> Provider {
    let mut provider: Provider = serde_json::from_value(serde_json::json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
        "metadata": { "name": NAME, "uid": "u", "generation": 1, "finalizers": [skyward_api::labels::FINALIZER] },
        "spec": { "container": {}, "allowedNamespaces": {} }
    }))
    .unwrap();
    provider.metadata.resource_version = Some("7".into());
    provider
}

fn offer(id: &str, price: i64) -> offer::Offer {
    offer::Offer {
        id: id.into(),
        instance_type: id.to_uppercase(),
        region: String::new(),
        accelerators: None,
        vcpus: 2.0,
        memory_gb: 8.0,
        disk_gb: None,
        architecture: Architecture::Amd64,
        on_demand: Some(Usd::from(price)),
        spot: None,
        availability: Availability::Yes,
        connected: true,
        rate_as_of: None,
    }
}

fn complete(offers: &[offer::Offer]) -> Refresh {
    Refresh::Complete {
        account: "cluster-uid".into(),
        offers: offers.to_vec(),
    }
}

fn capabilities() -> Capabilities {
    Capabilities {
        settle_time: Duration::ZERO,
        poll_interval: Duration::ZERO,
        self_stop: skyward_core::provider::SelfStop::EndsBilling,
        connected: true,
        ..Capabilities::of("container")
    }
}

fn failed(kind: ErrorKind) -> Refresh {
    Refresh::Failed(ProviderError::new(kind, "list the nodes", "no"))
}

/// One Provider with its objects, as the controller keeps them.
struct World {
    provider: Provider,
    memory: ProviderMemory,
    offers: Vec<Arc<Offer>>,
    machines: u32,
    capabilities: Option<Capabilities>,
}

impl World {
    fn new() -> Self {
        Self {
            provider: provider(),
            memory: ProviderMemory::default(),
            offers: Vec::new(),
            machines: 0,
            capabilities: Some(capabilities()),
        }
    }

    /// Plans, and does what the plan says.
    fn look(&mut self, answer: Refresh, now: Timestamp) -> Plan {
        let observed = Observed {
            verdict: Verdict::default(),
            provider: Arc::new(self.provider.clone()),
            machines: self.machines,
            shown: Vec::new(),
            barred: Vec::new(),
            offers: self.offers.clone(),
            answer,
            left: Left::Known {
                orphans: 0,
                shared: Vec::new(),
            },
            capabilities: self.capabilities.clone(),
        };
        let plan = plan(&observed, &mut self.memory, &Unchanged, now);
        self.offers
            .retain(|offer| !plan.delete.contains(&offer.name_any()));
        for offer in &plan.apply {
            self.offers.retain(|there| there.name_any() != offer.name_any());
            self.offers.push(Arc::new(offer.clone()));
        }
        if let Some(status) = &plan.status {
            self.provider.status = Some(status.clone());
        }
        plan
    }

    fn ready(&self) -> (String, String) {
        let status = self.provider.status.clone().unwrap();
        let ready = condition::find(&status.conditions, READY).unwrap().clone();
        (ready.status, ready.reason)
    }
}

fn writes(plan: &Plan) -> usize {
    usize::from(plan.add_finalizer || plan.remove_finalizer)
        + plan.apply.len()
        + plan.delete.len()
        + usize::from(plan.status.is_some())
}

#[test]
fn a_new_provider_gets_its_finalizer_and_is_asked_at_once() {
    let mut world = World::new();
    world.provider.metadata.finalizers = None;
    assert!(due_in(&world.provider, &world.memory, at(0)).is_zero());
    assert!(world.look(complete(&[]), at(0)).add_finalizer);
}

/// Its capabilities are those of [`capabilities`], where only the machine itself tells its key.
#[test]
fn verified_host_keys_that_its_kind_does_not_have_are_no_state_to_order_in() {
    let mut world = World::new();
    world.provider.spec.host_key_policy = Some(skyward_api::provider::HostKeyPolicy::Verified);
    world.look(complete(&[offer("small", 0)]), at(0));
    assert_eq!(
        world.ready(),
        ("False".into(), reason::HOST_KEY_NOT_VERIFIED.into())
    );
    let status = world.provider.status.clone().unwrap();
    assert_eq!(status.host_keys, Some(HostKeys::FirstContact));
    assert!(condition::is_true(&status.conditions, STALLED));
    world.provider.spec.host_key_policy = None;
    world.provider.metadata.generation = Some(2);
    world.look(complete(&[offer("small", 0)]), at(1));
    assert_eq!(world.ready(), ("True".into(), reason::CONNECTED.into()));
}

#[test]
fn everything_that_is_offered_becomes_an_offer_it_owns() {
    let mut world = World::new();
    world.look(complete(&[offer("small", 0), offer("big", 2)]), at(0));
    let names: Vec<String> = world.offers.iter().map(|offer| offer.name_any()).collect();
    assert_eq!(names, ["local-small", "local-big"]);
    let owner = &world.offers[0].metadata.owner_references.as_ref().unwrap()[0];
    assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("Provider", NAME));
    assert_eq!(world.ready(), ("True".into(), reason::CONNECTED.into()));
    let status = world.provider.status.unwrap();
    assert_eq!(
        (status.offers, status.account.as_str(), status.type_.as_str()),
        (2, "cluster-uid", "container")
    );
}

#[test]
fn at_rest_only_the_refresh_time_is_written_once_per_interval() {
    let mut world = World::new();
    let mut total = 0;
    for minute in 0..60 {
        total += writes(&world.look(complete(&[offer("small", 0)]), at(minute * 60)));
    }
    // The first look writes one Offer and one status; then one status in five minutes.
    assert_eq!(total, 2 + 11);
}

#[test]
fn its_own_status_write_wakes_nothing() {
    let mut world = World::new();
    world.look(complete(&[offer("small", 0)]), at(0));
    let plan = world.look(Refresh::NotAsked, at(1));
    assert_eq!(writes(&plan), 0);
    assert_eq!(plan.again, Duration::from_secs(59));
}

#[test]
fn an_offer_that_could_not_be_written_is_written_soon_and_later_with_each_failure() {
    let mut world = World::new();
    let all = || complete(&[offer("small", 0), offer("big", 2)]);
    world.look(all(), at(0));
    let mut second = 0;
    for wait in [5, 10, 20, 40, 60, 60] {
        world.offers.retain(|offer| offer.name_any() != "local-big");
        world.memory.offers_failed();
        assert!(!is_due(
            &world.provider,
            &world.memory,
            None,
            at(second + wait - 1)
        ));
        second += wait;
        assert!(is_due(&world.provider, &world.memory, None, at(second)));
        let plan = world.look(all(), at(second));
        let applied: Vec<String> = plan.apply.iter().map(ResourceExt::name_any).collect();
        assert_eq!(applied, ["local-big"]);
    }
    world.memory.offers_written();
    assert_eq!(
        due_in(&world.provider, &world.memory, at(second)),
        Duration::from_mins(1)
    );
}

#[test]
fn after_a_restart_the_same_status_is_not_written_again() {
    let mut world = World::new();
    world.look(complete(&[offer("small", 0)]), at(0));
    world.memory = ProviderMemory::default();
    assert_eq!(writes(&world.look(complete(&[offer("small", 0)]), at(30))), 0);
}

#[test]
fn what_is_offered_no_more_is_deleted_and_what_changed_is_written() {
    let mut world = World::new();
    world.look(complete(&[offer("a", 1), offer("b", 1), offer("c", 1)]), at(0));
    let plan = world.look(complete(&[offer("a", 1), offer("b", 2)]), at(60));
    let applied: Vec<String> = plan.apply.iter().map(ResourceExt::name_any).collect();
    assert_eq!(
        (applied, plan.delete),
        (vec!["local-b".to_owned()], vec!["local-c".to_owned()])
    );
}

#[test]
fn a_listing_that_failed_is_unknown_not_empty() {
    let mut world = World::new();
    world.look(complete(&[offer("a", 1)]), at(0));
    for second in [60, 65, 75] {
        let plan = world.look(failed(ErrorKind::Transient), at(second));
        assert!(plan.delete.is_empty());
    }
    assert_eq!(world.offers.len(), 1);
    assert_eq!(world.provider.status.unwrap().offers, 1);
}

#[test]
fn one_lost_answer_is_no_news_and_two_are() {
    let mut world = World::new();
    world.look(complete(&[offer("a", 1)]), at(0));
    assert_eq!(writes(&world.look(failed(ErrorKind::Transient), at(60))), 0);
    assert_eq!(world.ready().0, "True");
    world.look(failed(ErrorKind::Transient), at(65));
    assert_eq!(
        world.ready(),
        ("False".into(), reason::PROVIDER_UNAVAILABLE.into())
    );
    world.look(complete(&[offer("a", 1)]), at(75));
    assert_eq!(world.ready().0, "True");
}

#[test]
fn an_event_tells_each_change_of_ready_once_with_its_reason() {
    let mut world = World::new();
    let mut told = |answer, second| {
        let event = world.look(answer, at(second)).event;
        event.map(|event| {
            (
                event.reason,
                event.note.split(':').next().unwrap_or_default().to_owned(),
            )
        })
    };
    let refused = || failed(ErrorKind::CredentialsMissing);
    let not_ready = Some(("ProviderNotReady", "CredentialsMissing".to_owned()));
    assert_eq!(told(refused(), 0), not_ready);
    assert_eq!(told(refused(), 10), None, "said before");
    let refused_now = Some(("ProviderNotReady", "CredentialsRefused".to_owned()));
    assert_eq!(told(failed(ErrorKind::Credentials), 20), refused_now);
    assert_eq!(
        told(complete(&[]), 30).map(|(reason, _)| reason),
        Some("ProviderReady")
    );
    assert_eq!(
        told(complete(&[offer("a", 1)]), 400),
        None,
        "other offers are no Event"
    );
}

#[test]
fn a_provider_that_never_connected_says_its_type() {
    let mut world = World::new();
    world.capabilities = None;
    let status = world.look(failed(ErrorKind::Credentials), at(0)).status.unwrap();
    assert_eq!((status.type_.as_str(), status.self_stop), ("container", None));
}

#[test]
fn failures_are_asked_again_ever_later_but_not_later_than_a_refresh() {
    let mut world = World::new();
    let waits: Vec<u64> = (0..6)
        .map(|n| {
            world
                .look(failed(ErrorKind::Transient), at(n * 100))
                .again
                .as_secs()
        })
        .collect();
    assert_eq!(waits, [5, 10, 20, 40, 60, 60]);
}

#[test]
fn a_provider_that_says_when_to_come_back_is_believed() {
    let mut world = World::new();
    let plan = world.look(
        failed(ErrorKind::RateLimited(Some(Duration::from_secs(90)))),
        at(0),
    );
    assert_eq!(plan.again, Duration::from_secs(90));
}

#[rstest]
#[case(ErrorKind::CredentialsMissing, reason::CREDENTIALS_MISSING)]
#[case(ErrorKind::Credentials, reason::CREDENTIALS_REFUSED)]
#[case(ErrorKind::Permission, reason::CREDENTIALS_REFUSED)]
#[case(ErrorKind::InvalidOrder, reason::INVALID_SPEC)]
#[case(ErrorKind::Unsupported, reason::INVALID_SPEC)]
fn what_somebody_must_mend_stalls_it_and_takes_its_offers(#[case] kind: ErrorKind, #[case] want: &str) {
    let mut world = World::new();
    world.look(complete(&[offer("a", 1)]), at(0));
    world.look(failed(kind), at(60));
    assert_eq!(world.ready(), ("False".into(), want.to_owned()));
    let conditions = world.provider.status.clone().unwrap().conditions;
    assert!(condition::is_true(&conditions, STALLED));
    assert!(world.offers.is_empty(), "nothing can be ordered");
    world.look(complete(&[offer("a", 1)]), at(120));
    assert!(condition::find(&world.provider.status.unwrap().conditions, STALLED).is_none());
}

#[test]
fn a_changed_spec_is_asked_about_at_once() {
    let mut world = World::new();
    world.look(complete(&[]), at(0));
    world.provider.metadata.generation = Some(2);
    assert!(due_in(&world.provider, &world.memory, at(1)).is_zero());
    world.look(failed(ErrorKind::Transient), at(1));
    // Facts about the old spec say nothing about the new one.
    assert_eq!(world.ready().0, "False");
}

#[test]
fn a_deleted_provider_waits_for_its_machines_and_offers_nothing() {
    let mut world = World::new();
    world.machines = 2;
    world.look(complete(&[offer("a", 1)]), at(0));
    world.provider.metadata.deletion_timestamp = Some(Time(at(1)));
    let plan = world.look(Refresh::NotAsked, at(1));
    assert!(!plan.remove_finalizer && world.offers.is_empty());
    assert_eq!(world.ready(), ("False".into(), reason::MACHINES_REMAIN.into()));
    let status = world.provider.status.clone().unwrap();
    assert!(
        condition::find(&status.conditions, READY)
            .unwrap()
            .message
            .starts_with("2 machines still use")
    );
    // The count is written at once: somebody waits for it.
    world.machines = 1;
    assert!(world.look(Refresh::NotAsked, at(2)).status.is_some());
    world.machines = 0;
    let last = world.look(Refresh::NotAsked, at(3));
    assert!(last.remove_finalizer && last.status.is_none());
}

#[test]
fn machines_that_come_in_a_crowd_do_not_cost_a_write_each() {
    let mut world = World::new();
    world.look(complete(&[]), at(0));
    let mut total = 0;
    let mut again = Duration::MAX;
    for second in 1..=22 {
        world.machines += 10;
        let plan = world.look(Refresh::NotAsked, at(second));
        (total, again) = (total + writes(&plan), plan.again);
    }
    assert!(total <= 4, "{total}");
    // The last count is not forgotten.
    assert_eq!(again, Duration::from_secs(3));
    world.look(Refresh::NotAsked, at(25));
    assert_eq!(world.provider.status.unwrap().machines, 220);
}

#[test]
fn the_cheapest_offers_are_kept_when_there_are_too_many() {
    let mut world = World::new();
    let all: Vec<offer::Offer> = (0..1200).map(|n| offer(&format!("o{n:04}"), 1200 - n)).collect();
    world.look(complete(&all), at(0));
    assert_eq!(world.offers.len(), 1000);
    assert!(
        world
            .offers
            .iter()
            .all(|offer| offer.name_any().as_str() >= "local-o0200")
    );
    let status = world.provider.status.clone().unwrap();
    assert!(
        status.conditions[0]
            .message
            .contains("1200 kinds of machines; 1000 of them are Offers"),
        "{}",
        status.conditions[0].message
    );
}

#[test]
fn two_providers_never_fight_for_one_name() {
    let mut world = World::new();
    let mut other = Offer::new(
        "local-a",
        catalogue::catalogue(&provider(), &[offer("a", 1)], &[]).objects[0]
            .spec
            .clone(),
    );
    other.spec.provider = "lo".into();
    world.offers.push(Arc::new(other));
    let plan = world.look(complete(&[offer("a", 1)]), at(0));
    assert!(plan.delete.is_empty());
    assert!(
        plan.apply[0].name_any().starts_with("local-a-"),
        "{}",
        plan.apply[0].name_any()
    );
    assert_eq!(writes(&world.look(complete(&[offer("a", 1)]), at(60))), 0);
}

#[test]
fn a_long_name_is_cut_and_stays_its_own() {
    let mut provider = provider();
    provider.metadata.name = Some("p".repeat(250));
    let made = catalogue::catalogue(&provider, &[offer("aaaa", 1), offer("bbbb", 1)], &[]).objects;
    assert!(made.iter().all(|offer| offer.name_any().len() <= 253));
    assert_ne!(made[0].name_any(), made[1].name_any());
}

#[test]
fn the_interval_of_the_provider_counts() {
    let mut world = World::new();
    world.provider.spec.refresh_interval = Some(skyward_api::Duration("20s".into()));
    assert_eq!(world.look(complete(&[]), at(0)).again, Duration::from_secs(20));
}

#[test]
fn credentials_of_another_account_are_not_used_while_machines_are_at_the_first() {
    let mut provider: Provider = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "cloud", "generation": 1 },
        "spec": { "container": {}, "allowedNamespaces": {} },
        "status": { "account": "acme" },
    }))
    .unwrap();
    assert!(other_account(&provider, 1, &[], "acme").is_none());
    assert!(
        other_account(&provider, 0, &[], "umbrella").is_none(),
        "nothing would be lost"
    );
    let problem = other_account(&provider, 2, &[], "umbrella").unwrap();
    assert!(
        problem.message.contains("restore the former credentials"),
        "{problem}"
    );
    provider.status = None;
    assert!(
        other_account(&provider, 2, &[], "umbrella").is_none(),
        "nothing was known"
    );
}

#[test]
fn a_provider_made_anew_with_another_accounts_key_is_noticed_while_machines_are_at_the_first() {
    let recorded = |account: &str| -> Arc<Machine> {
        let machine = serde_json::json!({
            "metadata": { "name": "m", "uid": "uid-m" },
            "spec": { "pool": "p", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "cloud", "offer": "o",
                "instanceType": "x", "market": "OnDemand", "hourlyPrice": "2", "token": "t",
                "templateHash": "h", "account": account },
        });
        Arc::new(serde_json::from_value(machine).unwrap())
    };
    let made_anew: Provider = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "cloud", "generation": 1 },
        "spec": { "container": {}, "allowedNamespaces": {} },
    }))
    .unwrap();
    let machines = [recorded("acme"), recorded("")];
    assert!(other_account(&made_anew, 2, &machines, "acme").is_none());
    let problem = other_account(&made_anew, 2, &machines, "umbrella").unwrap();
    assert!(problem.message.contains("at account \"acme\""), "{problem}");
    // The condition says so, and the other account is not asked.
    let mut world = World::new();
    world.provider = made_anew;
    let plan = world.look(Refresh::Failed(problem), at(0));
    let status = plan.status.unwrap();
    assert_eq!(status.account, "");
    for type_ in [READY, STALLED] {
        let condition = condition::find(&status.conditions, type_).unwrap();
        assert_eq!(condition.reason, reason::ACCOUNT_CHANGED);
    }
    // Records of older versions do not name their account.
    assert!(other_account(&world.provider, 1, &machines[1..], "umbrella").is_none());
}

#[test]
fn another_name_of_the_account_is_no_other_account_where_it_shows_a_machine_on_record() {
    let machine: Machine = serde_json::from_value(serde_json::json!({
        "metadata": { "name": "m", "uid": "uid-m" },
        "spec": { "pool": "p", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "cloud", "offer": "o",
            "instanceType": "x", "market": "OnDemand", "hourlyPrice": "2", "token": "t", "templateHash": "h" },
        "status": { "id": "i-1" },
    }))
    .unwrap();
    let shown = |id: &str, uid: &str| skyward_core::ProviderMachine {
        id: id.into(),
        mark: skyward_core::Mark {
            cluster: "c".into(),
            namespace: "team".into(),
            pool: "p".into(),
            pool_uid: "u".into(),
            machine: "m".into(),
            machine_uid: uid.into(),
            slot: 0,
            attempt: 1,
        },
        phase: skyward_core::ProviderPhase::Running,
        endpoint: None,
        private_address: None,
        private_interface: None,
        host_key: None,
        rental: skyward_core::machine::Rental::default(),
    };
    let recorded = [&machine];
    assert!(shows_any(
        &recorded,
        &[shown("i-2", "else"), shown("i-1", "uid-m")]
    ));
    // An id alone says nothing: another account may have it.
    assert!(!shows_any(
        &recorded,
        &[shown("i-1", "else"), shown("i-2", "uid-m")]
    ));
    assert!(!shows_any(&recorded, &[]));
}

#[test]
fn a_list_that_failed_does_not_say_that_it_is_another_account() {
    let other = || ProviderError::new(ErrorKind::Credentials, "use the credentials", "another account");
    let limited = ProviderError::new(ErrorKind::RateLimited(None), "list the machines", "slow down");
    assert_eq!(refusal(other(), Ok(true)), None);
    assert_eq!(refusal(other(), Ok(false)), Some(other()));
    assert_eq!(refusal(other(), Err(limited.clone())), Some(limited));
}

#[test]
fn a_changed_secret_is_used_at_once_and_each_version_once() {
    let mut world = World::new();
    world.memory.secret = "u/7".into();
    world.look(complete(&[offer("a", 1)]), at(0));
    let due = |world: &World, seen, second| is_due(&world.provider, &world.memory, seen, at(second));
    assert!(!due(&world, None, 1), "nothing happened");
    assert!(
        !due(&world, Some("u/7"), 1),
        "the watch began and shows what was read"
    );
    assert!(due(&world, Some("u/8"), 1), "rotated");
    assert!(due(&world, Some(""), 1), "deleted");
    // A changed Secret is not made to wait after a refusal either, however long the pause has
    // become.
    world.look(failed(ErrorKind::Credentials), at(2));
    assert!(!due(&world, None, 3) && due(&world, Some("u/9"), 3));
}

#[test]
fn refused_credentials_lose_sight_of_nothing_that_runs() {
    let mut world = World::new();
    world.machines = 3;
    world.look(complete(&[offer("a", 1)]), at(0));
    // Also by a new process, which has never seen the account answer.
    for restarted in [false, true] {
        if restarted {
            world.memory = ProviderMemory::default();
        }
        let plan = world.look(failed(ErrorKind::Credentials), at(60));
        assert!(!plan.remove_finalizer);
        let status = world.provider.status.clone().unwrap();
        assert_eq!((status.machines, status.account.as_str()), (3, "cluster-uid"));
        assert_eq!(world.ready().1, reason::CREDENTIALS_REFUSED);
    }
    // A person who deletes the Provider now waits until its machines are gone.
    world.provider.metadata.deletion_timestamp = Some(Time(at(70)));
    assert!(
        !world
            .look(failed(ErrorKind::Credentials), at(70))
            .remove_finalizer
    );
}
