use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use rstest::rstest;

use super::*;
use crate::{
    fixtures,
    shared::{Store, Stored, Words},
};

/// An order whose Machine and Pool have UIDs as Kubernetes makes them.
fn order() -> Order {
    let mut order = fixtures::order();
    order.mark.pool_uid = "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
    order.mark.machine_uid = "ffffffff-ffff-ffff-ffff-ffffffffffff".into();
    order.mark.machine = machine_name("train", &order.mark.pool_uid, 12, 345);
    (order.mark.slot, order.mark.attempt) = (12, 345);
    order
}

/// The keys of an account.
#[derive(Clone, Default)]
struct Keys {
    there: Arc<Mutex<Vec<Stored>>>,
    /// How often they were listed.
    lists: Arc<Mutex<u32>>,
    /// Whether comments are dropped.
    forgets: bool,
}

#[async_trait]
impl Store for Keys {
    fn words(&self) -> Words {
        SSH_KEYS
    }

    async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
        *self.lists.lock() += 1;
        Ok(self.there.lock().clone())
    }

    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
        let words = if self.forgets { 2 } else { usize::MAX };
        let content: Vec<&str> = content.split_whitespace().take(words).collect();
        self.there.lock().push(Stored {
            id: "1".into(),
            name: name.into(),
            content: Some(content.join(" ")),
        });
        Ok("1".into())
    }

    async fn remove(&self, _id: &str) -> Result<(), ProviderError> {
        self.there.lock().clear();
        Ok(())
    }
}

fn owners(keys: &Keys) -> Owners {
    Owners::new(Shared::short(keys.clone()))
}

async fn mark_of(owners: &Owners, name: &str) -> Option<Mark> {
    owners.marks(vec![name]).await.unwrap().remove(0)
}

#[test]
fn a_mark_comes_back_from_a_name_of_forty_characters_and_the_key_of_its_pool() {
    let order = order();
    let name = Named::write(&order.mark).unwrap();
    assert_eq!(name.len(), 40, "{name}");
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    assert!(name.chars().all(plain), "{name}");
    let key = Owner::of(&order.mark).key(&order.authorized_key);
    assert_eq!(
        key,
        "ssh-ed25519 AAAA skyward c-uid 1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11 ml train"
    );
    let owner = Owner::read(&key).unwrap();
    for name in [name.clone(), name.to_uppercase()] {
        let named = Named::read(&name).unwrap();
        assert_eq!(named.reference, owner.reference());
        assert_eq!(named.mark(&owner), order.mark);
    }
}

#[rstest]
#[case::a_slot_beyond_any_pool(1296, 1)]
#[case::an_attempt_beyond_any_pool(0, 1_679_616)]
fn a_mark_that_does_not_fit_is_refused(#[case] slot: u32, #[case] attempt: u32) {
    let mut mark = order().mark;
    (mark.slot, mark.attempt) = (slot, attempt);
    assert_eq!(Named::write(&mark).unwrap_err().kind, ErrorKind::Unsupported);
    (mark.slot, mark.attempt) = (slot.min(1295), attempt.min(1_679_615));
    let read = Named::read(&Named::write(&mark).unwrap()).unwrap();
    assert_eq!((read.slot, read.attempt), (mark.slot, mark.attempt));
    mark.machine_uid = "m-uid".into();
    assert_eq!(Named::write(&mark).unwrap_err().kind, ErrorKind::Unsupported);
}

#[rstest]
#[case("")]
#[case("Name me")]
#[case("sky-")]
#[case::too_large("sky-abcdezzzzzzzzzzzzzzzzzzzzzzzzz0c00zz")]
#[case::cut("sky-abcdef5lxx1zz5pnorynqglhzmsp330c00")]
#[case::longer("sky-abcdef5lxx1zz5pnorynqglhzmsp330c00zzz")]
#[case::another_letter("sky-abcde_5lxx1zz5pnorynqglhzmsp330c00zz")]
#[case::a_sign("sky-abcdef5lxx1zz5pnorynqglhzmsp33+c00zz")]
#[case::no_ascii("sky-abcdéf5lxx1zz5pnorynqglhzmsp330c00z")]
fn a_name_that_was_cut_or_changed_is_nobodys(#[case] name: &str) {
    assert_eq!(Named::read(name), None);
}

#[rstest]
#[case("")]
#[case("ssh-ed25519 AAAA")]
#[case("ssh-ed25519 AAAA laptop of a person")]
#[case("ssh-ed25519 AAAA skyward c p ns")]
#[case("ssh-ed25519 AAAA skyward c p ns pool more")]
fn a_key_that_people_have_there_is_no_pools(#[case] key: &str) {
    assert_eq!(Owner::read(key), None);
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_known_by_the_keys_of_its_account_also_after_a_restart() {
    let keys = Keys::default();
    let order = order();
    owners(&keys).register(&order).await.unwrap();
    let name = Named::write(&order.mark).unwrap();
    let owners = owners(&keys);
    assert_eq!(mark_of(&owners, &name).await, Some(order.mark.clone()));
    let lists = *keys.lists.lock();
    assert_eq!(mark_of(&owners, "Name me").await, None);
    assert_eq!(mark_of(&owners, &name).await, Some(order.mark.clone()));
    assert_eq!(*keys.lists.lock(), lists, "what is known is not asked again");
}

#[tokio::test(start_paused = true)]
async fn a_machine_whose_key_is_gone_is_known_for_a_day_and_nobodys_after_a_restart() {
    let keys = Keys::default();
    let order = order();
    let first = owners(&keys);
    first.register(&order).await.unwrap();
    keys.there.lock().clear();
    let name = Named::write(&order.mark).unwrap();
    assert_eq!(mark_of(&first, &name).await, Some(order.mark.clone()));
    assert_eq!(mark_of(&owners(&keys), &name).await, None);
    tokio::time::advance(REMEMBERED).await;
    assert_eq!(mark_of(&first, &name).await, None);
    // The next order of its Pool brings the key back.
    first.register(&order).await.unwrap();
    assert_eq!(mark_of(&owners(&keys), &name).await, Some(order.mark));
}

#[tokio::test]
async fn no_machine_is_ordered_where_the_comment_of_its_key_is_lost() {
    let keys = Keys {
        forgets: true,
        ..Keys::default()
    };
    let owners = owners(&keys);
    // The store of a cloud finds that out itself when it adds one.
    let _ = owners.register(&order()).await;
    let refused = owners.register(&order()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Transient);
    assert_eq!(keys.there.lock().len(), 1, "and no second key is made");
}

#[tokio::test]
async fn a_reference_that_two_pools_have_is_nobodys() {
    let owners = owners(&Keys::default());
    let order = order();
    let name = Named::write(&order.mark).unwrap();
    owners.remember(Owner::of(&order.mark));
    assert_eq!(mark_of(&owners, &name).await, Some(order.mark.clone()));
    let reference = Owner::of(&order.mark).reference();
    owners.known.insert(reference, None);
    owners.remember(Owner::of(&order.mark));
    assert_eq!(mark_of(&owners, &name).await, None);
}
