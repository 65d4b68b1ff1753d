//! Tests of JarvisLabs alone: the name of a machine is half of its mark, and its Pool's key is the other.

use skyward_conformance::{Bench, connect, machine, passes, pool, scope};
use skyward_core::{Deletion, Market};

use crate::in_virtual_time;

/// Takes the keys of Pools away, as a person who tidies up does.
fn tidy_up(bench: &Bench) {
    bench
        .sim
        .world(|world| world.resources.retain(|_, thing| !thing.name.starts_with("sky-")));
}

/// How many things are left over.
async fn left(bench: &Bench) -> usize {
    bench.provider.leftovers(&scope()).await.unwrap().len()
}

#[test]
fn a_key_is_made_once_and_stays_while_a_machine_of_its_pool_is_there() {
    in_virtual_time(async || {
        let bench = Bench::start("jarvislabs", None).await;
        let mut orders = Vec::new();
        for slot in 0..2 {
            let order = bench.order(Market::OnDemand, slot).await;
            let (_, refused) = bench.bring_up(&order).await;
            assert!(refused.is_empty(), "{refused:?}");
            orders.push(order);
        }
        assert_eq!(left(&bench).await, 1);
        bench.end(&orders[0], None).await;
        let returned = bench.provider.release(&pool()).await.unwrap();
        assert_eq!(returned, Deletion::InProgress);
        assert_eq!(
            left(&bench).await,
            1,
            "nobody would know whose the other machine is"
        );
        bench.bring_down(&orders[1], None).await;
        assert_eq!(left(&bench).await, 0);
        bench.judge("a key");
    });
}

#[test]
fn a_machine_whose_key_a_person_removed_is_nobodys_until_its_pool_orders_again() {
    in_virtual_time(async || {
        let bench = Bench::start("jarvislabs", None).await;
        let first = bench.order(Market::OnDemand, 0).await;
        let (running, _) = bench.bring_up(&first).await;
        tidy_up(&bench);
        let reference = machine(&first, Some(&running.id));
        // This client knows what the reference in the name means.
        let found = bench.provider.get(&reference).await.unwrap();
        assert_eq!(found.map(|found| found.mark), Some(first.mark.clone()));
        let again = connect(
            "jarvislabs",
            bench.simulator.url("jarvislabs"),
            &bench.subject.credentials,
            bench.subject.settings.clone(),
        );
        for error in [
            again.get(&reference).await.unwrap_err(),
            again.delete(&reference).await.unwrap_err(),
        ] {
            assert!(passes(&error) && error.message.contains(&running.id), "{error}");
        }
        assert_eq!(again.list(&scope()).await.unwrap(), []);
        assert_eq!(bench.machines(), 1);
        let second = bench.order(Market::OnDemand, 1).await;
        let id = again.create(&second).await.unwrap().id;
        let found = again.get(&reference).await.unwrap();
        assert_eq!(found.map(|found| found.mark), Some(first.mark.clone()));
        bench.list_with(&id).await;
        bench.end(&first, Some(&running.id)).await;
        bench.bring_down(&second, Some(&id)).await;
        bench.judge("a key that was removed");
    });
}
