//! Sweeps find orphans and end them: [`machine_sweep`] machines, [`resource_sweep`] shared
//! resources, [`key_sweep`] keys and [`log_sweep`] logs of Pools that are gone.
//!
//! This file keeps a task of its own running for each account: a silent account must not hold up the others,
//! whose orphans cost money meanwhile.

pub mod key_sweep;
mod listing;
pub mod log_sweep;
pub mod machine_sweep;
pub(crate) mod resource_sweep;

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use tokio::{sync::watch, time::sleep};

use crate::{
    accounts::clients::{Accounts, Revision},
    context::Context,
};

/// Keeps a task running for each account, until shutdown.
pub(super) async fn each_until_shutdown<F>(context: &Context, what: &'static str, keep: impl Fn(String) -> F)
where
    F: Future<Output = String>,
{
    let names = || context.providers.all().into_keys().collect();
    // A task that panics begins anew, without memory.
    let keep = |name: String| {
        let kept = keep(name.clone());
        async move {
            let about = context.provider_reference(&name);
            match context.panics.turn(what, &about, kept).await {
                Ok(gone) => gone,
                Err(broken) => {
                    sleep(broken.rest).await;
                    name
                }
            }
        }
    };
    let each = each(names, context.providers.subscribe(), keep);
    context.shutdown.run_until_cancelled(each).await;
}

/// Keeps the tasks running for as long as this is polled. A task returns its account's name when
/// the account is gone, and begins anew if an account with the same name comes back; the tasks of all
/// other accounts go on.
async fn each<F>(
    names: impl Fn() -> BTreeSet<String>,
    mut changed: watch::Receiver<u64>,
    keep: impl Fn(String) -> F,
) where
    F: Future<Output = String>,
{
    let mut kept = BTreeSet::new();
    let mut keeping = FuturesUnordered::new();
    loop {
        for name in names() {
            if kept.insert(name.clone()) {
                keeping.push(keep(name));
            }
        }
        tokio::select! {
            Some(gone) = keeping.next() => {
                kept.remove(&gone);
            }
            told = changed.changed() => {
                if told.is_err() {
                    return;
                }
            }
        }
    }
}

/// Waits for `wait`, or until the account `name` has another revision than `was`, or is gone.
pub(super) async fn pause(accounts: &Accounts, name: &str, was: &Revision, wait: Duration) {
    // Subscribed before the look, so that no change is missed in between.
    let mut changed = accounts.subscribe();
    let is_same = || accounts.get(name).is_some_and(|account| account.revision == *was);
    let is_another = async {
        while is_same() {
            if changed.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = sleep(wait) => {}
        () = is_another => {}
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::{Cell, RefCell},
        collections::BTreeMap,
        future::pending,
    };

    use tokio::time::timeout;

    use super::*;

    const EVERY: Duration = Duration::from_mins(1);

    #[tokio::test(start_paused = true)]
    async fn an_account_that_does_not_answer_holds_up_no_other() {
        let (_changes_tx, changes_rx) = watch::channel(0);
        let names = || BTreeSet::from(["answers".to_owned(), "silent".to_owned()]);
        let swept = Cell::new(0);
        let keep = |name: String| {
            let swept = &swept;
            async move {
                if name == "silent" {
                    pending::<()>().await;
                }
                for _ in 0..100 {
                    swept.set(swept.get() + 1);
                    sleep(EVERY).await;
                }
                name
            }
        };
        timeout(EVERY * 5, each(names, changes_rx, keep))
            .await
            .unwrap_err();
        assert!(swept.get() >= 5, "{}", swept.get());
    }

    #[tokio::test(start_paused = true)]
    async fn accounts_come_and_go_and_the_others_go_on_as_they_were() {
        let (changes_tx, changes_rx) = watch::channel(0);
        let there = RefCell::new(BTreeSet::from(["stays".to_owned()]));
        let begun = RefCell::new(BTreeMap::<String, u32>::new());
        let keep = |name: String| {
            let (there, begun) = (&there, &begun);
            async move {
                *begun.borrow_mut().entry(name.clone()).or_default() += 1;
                while there.borrow().contains(&name) {
                    sleep(EVERY).await;
                }
                name
            }
        };
        let change = |name: &str, comes: bool| {
            if comes {
                there.borrow_mut().insert(name.to_owned());
            } else {
                there.borrow_mut().remove(name);
            }
            changes_tx.send_modify(|n| *n += 1);
        };
        let story = async {
            for comes in [true, false, true] {
                sleep(EVERY * 2).await;
                change("another", comes);
            }
            sleep(EVERY * 2).await;
        };
        tokio::select! {
            () = each(|| there.borrow().clone(), changes_rx, keep) => panic!("it goes on"),
            () = story => {}
        }
        let expected = BTreeMap::from([("another".to_owned(), 2), ("stays".to_owned(), 1)]);
        assert_eq!(begun.into_inner(), expected);
    }
}
