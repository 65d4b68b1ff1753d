//! Two installations and a person on one account: each of the three keeps what is its own.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use serde_json::json;
use skyward_cloudsim::Machine;
use skyward_conformance::{ACCOUNT, Bench, CLUSTER, KEY, connect, machine, mark, order, price};
use skyward_core::{
    Deletion, Mark, Market, Order, PoolScope, Provider, ProviderPhase, Scope, error::ErrorClass,
    offer::Availability,
};
use tokio::time::sleep;

use crate::for_each;

/// An installation, or a person, with one machine at the account.
struct Tenant {
    provider: Arc<dyn Provider>,
    order: Order,
    id: String,
}

impl Tenant {
    /// Rents a machine of an offer that there is still one of. The ids in its mark begin with this digit.
    async fn rent(bench: &Bench, digit: &str) -> Self {
        let provider = connect(
            bench.sim.name(),
            bench.simulator.url(bench.sim.name()),
            &bench.subject.credentials,
            bench.subject.settings.clone(),
        );
        let own = |uid: &str| {
            let mut uid = uid.to_owned();
            uid.replace_range(..1, digit);
            uid
        };
        let mark = mark(0);
        let mark = Mark {
            cluster: own(CLUSTER),
            pool_uid: own(&mark.pool_uid),
            machine_uid: own(&mark.machine_uid),
            ..mark
        };
        let mut refused = Vec::new();
        for offer in provider.offers().await.unwrap() {
            if offer.availability == Availability::No || price(&offer, Market::OnDemand).is_none() {
                continue;
            }
            let order = Order {
                token: mark.machine_uid.clone(),
                mark: mark.clone(),
                // Some clouds take no key twice.
                authorized_key: KEY.replace("p6p2a ", &format!("p6p2{digit} ")),
                ..order(&offer, Market::OnDemand, 0)
            };
            match provider.create(&order).await {
                Ok(accepted) => {
                    return Self {
                        provider,
                        order,
                        id: accepted.id,
                    };
                }
                Err(error) => {
                    assert_eq!(error.kind.class(), ErrorClass::Capacity, "{error}");
                    refused.push(error);
                }
            }
        }
        panic!("no offer has a machine left: {refused:?}");
    }

    fn scope(&self) -> Scope {
        Scope {
            cluster: self.order.mark.cluster.clone(),
            pool_uid: None,
            namespace: None,
            regions: vec![self.order.region.clone()],
        }
    }

    /// Ids of the machines that it sees.
    async fn sees(&self) -> BTreeSet<String> {
        let listed = self.provider.list(&self.scope()).await.unwrap();
        listed.into_iter().map(|machine| machine.id).collect()
    }

    /// Kinds and ids of the shared resources that it sees.
    async fn shares(&self) -> BTreeSet<(&'static str, String)> {
        let left = self.provider.leftovers(&self.scope()).await.unwrap();
        left.into_iter().map(|left| (left.kind, left.id)).collect()
    }

    /// Waits until its list shows its machine and nothing else.
    async fn until_it_sees_its_own(&self, kind: &str) {
        let own = BTreeSet::from([self.id.clone()]);
        for _ in 0..120 {
            let seen = self.sees().await;
            assert!(
                seen.is_subset(&own),
                "{kind}: {seen:?}, and its own is {}",
                self.id
            );
            if seen == own {
                return;
            }
            sleep(Duration::from_secs(1)).await;
        }
        panic!("{kind}: {} is not listed", self.id);
    }

    /// Ends its machine, and then what its Pool shares.
    async fn leave(&self, kind: &str) {
        let reference = machine(&self.order, Some(&self.id));
        let pool = PoolScope {
            cluster: self.order.mark.cluster.clone(),
            pool_uid: self.order.mark.pool_uid.clone(),
            regions: vec![self.order.region.clone()],
        };
        for _ in 0..240 {
            let ended = self.provider.delete(&reference).await;
            if ended == Ok(Deletion::Gone) && self.provider.release(&pool).await == Ok(Deletion::Gone) {
                return;
            }
            sleep(Duration::from_secs(5)).await;
        }
        panic!("{kind}: {} is not gone", self.id);
    }

    /// Whether its machine exists and works, as it sees that.
    async fn has_its_machine(&self) -> bool {
        let found = self
            .provider
            .get(&machine(&self.order, Some(&self.id)))
            .await
            .unwrap();
        found.is_some_and(|found| matches!(found.phase, ProviderPhase::Running | ProviderPhase::Starting(_)))
    }
}

/// Takes away all that the machine of a person has from the order by which this test rented it, as far as the
/// simulator has it there; whatever remains names neither installation.
fn unmark(bench: &Bench, id: &str) {
    bench.sim.world(|world| {
        let machine = world.machines.get_mut(id).unwrap();
        "a-persons-machine".clone_into(&mut machine.mark.name);
        machine.mark.description = String::new();
        machine.mark.tags = BTreeMap::new();
        machine.mark.env = BTreeMap::new();
        if let Some(tags) = machine.detail.get_mut("tags").filter(|tags| tags.is_array()) {
            *tags = json!([]);
        }
    });
}

/// Whether a machine exists, as the cloud sees that.
fn exists(bench: &Bench, id: &str) -> bool {
    bench
        .sim
        .world(|world| world.machines.get(id).is_some_and(Machine::exists))
}

/// What the account has besides machines.
fn resources(bench: &Bench) -> BTreeSet<String> {
    bench.sim.meter(|meter| {
        let left = meter.leftovers(ACCOUNT);
        left.iter().map(|resource| resource.id.clone()).collect()
    })
}

#[test]
fn two_installations_and_a_person_on_one_account_keep_what_is_their_own_at_every_cloud() {
    for_each(async |kind| {
        let bench = Bench::start(kind, None).await;
        let person = Tenant::rent(&bench, "a").await;
        person.until_it_sees_its_own(kind).await;
        unmark(&bench, &person.id);
        let of_person = resources(&bench);
        let one = Tenant::rent(&bench, "b").await;
        let two = Tenant::rent(&bench, "c").await;
        for tenant in [&one, &two] {
            tenant.until_it_sees_its_own(kind).await;
        }
        let (of_one, of_two) = (one.shares().await, two.shares().await);
        assert!(of_one.is_disjoint(&of_two), "{kind}: {of_one:?} {of_two:?}");

        one.leave(kind).await;
        assert!(!exists(&bench, &one.id), "{kind}");
        assert!(two.has_its_machine().await, "{kind}");
        assert_eq!(two.shares().await, of_two, "{kind}");
        assert!(exists(&bench, &person.id), "{kind}");

        two.leave(kind).await;
        assert!(!exists(&bench, &two.id), "{kind}");
        assert!(exists(&bench, &person.id), "{kind}");
        assert_eq!(resources(&bench), of_person, "{kind}");
        let violations = bench.sim.violations();
        assert!(violations.is_empty(), "{kind}: {violations:#?}");
        assert!(bench.sim.mistakes().is_empty(), "{kind}");
    });
}
