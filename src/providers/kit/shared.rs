//! Resources that the machines of a Pool share in a store of the account: its public key, a
//! start-up script.
//!
//! An entry is named after its Pool and its content (`marks::content_name`), made once for all
//! concurrent orders, found again by its name, and returned with the Pool. [`Store`] is the
//! interface to a cloud's store; [`RestStore`] fits nearly every cloud.

use async_trait::async_trait;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, Leftover, Order, ProviderError};
use tokio::time::{Duration, Instant};

use crate::{
    http::{Batched, Call, List, Rest},
    lookup::Maker,
    marks, same_key,
};

/// Longest wait for a list that another order reads.
const LONGEST: Duration = Duration::from_secs(40);

/// Words for the entries of a store, in errors and [`Leftover::kind`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words {
    /// One entry.
    pub one: &'static str,
    /// The call that lists them.
    pub list: &'static str,
    /// The call that adds one.
    pub add: &'static str,
    /// The call that removes one.
    pub remove: &'static str,
}

/// Public keys.
pub const SSH_KEYS: Words = Words {
    one: "SSH key",
    list: "list the SSH keys",
    add: "add the SSH key",
    remove: "remove the SSH key",
};

/// Scripts that a machine runs at its first boot.
pub const SCRIPTS: Words = Words {
    one: "start-up script",
    list: "list the start-up scripts",
    add: "add the start-up script",
    remove: "remove the start-up script",
};

/// An entry of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// The cloud's id of it.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its content, where lists show it.
    pub content: Option<String>,
}

/// A store of an account.
#[async_trait]
pub trait Store: Send + Sync {
    /// What it holds.
    fn words(&self) -> Words;

    /// Every entry, to the last page.
    async fn list(&self) -> Result<Vec<Stored>, ProviderError>;

    /// Adds an entry; answers with its id. A second one of the same name and content does no harm.
    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError>;

    /// Removes an entry.
    async fn remove(&self, id: &str) -> Result<(), ProviderError>;
}

/// A store that is a collection of a REST API: entries with `id` and `name`, listed by GET, added by
/// POST, removed by DELETE.
#[derive(Clone, Debug)]
pub struct RestStore {
    /// The API.
    pub rest: Rest,
    /// What it holds.
    pub words: Words,
    /// Path of the collection.
    pub path: &'static str,
    /// Path of one entry, with `{id}`.
    pub entry: &'static str,
    /// How the collection is listed.
    pub list: List,
    /// Parameters of the list, such as the size of its pages.
    pub query: &'static [(&'static str, &'static str)],
    /// Field of the content, in requests and lists.
    pub content: &'static str,
    /// JSON pointer to the id in the answer to POST.
    pub id: &'static str,
}

#[async_trait]
impl Store for RestStore {
    fn words(&self) -> Words {
        self.words
    }

    async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
        let entries = self.entries().await?;
        entries.iter().map(|entry| self.stored(entry)).collect()
    }

    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
        self.post(json!({ "name": name, self.content: content })).await
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.rest
            .done(Call::delete(self.words.remove, self.entry, id))
            .await
    }
}

impl RestStore {
    /// Adds the entry of this body; answers with its id.
    pub async fn post(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::post(self.words.add, self.path).wanting(self.id);
        self.rest.made(call.json(body)).await
    }

    /// The entries as they are listed.
    async fn entries(&self) -> Result<Vec<Value>, ProviderError> {
        let call = Call::get(self.words.list, self.path);
        let call = self
            .query
            .iter()
            .fold(call, |call, (name, value)| call.query(name, *value));
        self.rest.list(call, self.list).await
    }

    fn stored(&self, entry: &Value) -> Result<Stored, ProviderError> {
        let id = match &entry["id"] {
            Value::String(id) => id.clone(),
            Value::Number(id) => id.to_string(),
            _ => {
                let what = format!("a {} of the list has no id", self.words.one);
                return Err(ProviderError::new(ErrorKind::Transient, self.words.list, what));
            }
        };
        let text = |field: &str| entry[field].as_str().map(str::to_owned);
        Ok(Stored {
            id,
            name: text("name").unwrap_or_default(),
            content: text(self.content),
        })
    }
}

/// A store that is such a collection, whose entries are added with another body than name and content.
#[derive(Clone, Debug)]
pub struct Written {
    /// The collection.
    pub store: RestStore,
    /// The body, from name and content.
    pub body: fn(&str, &str) -> Value,
}

#[async_trait]
impl Store for Written {
    fn words(&self) -> Words {
        self.store.words
    }

    async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
        self.store.list().await
    }

    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
        self.store.post((self.body)(name, content)).await
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.store.remove(id).await
    }
}

/// A store that is such a collection, whose answer to POST has no id: the list has. Its fields have other names.
#[derive(Clone, Debug)]
pub struct Unanswered {
    /// The collection.
    pub store: RestStore,
    /// Field of the id.
    pub id: &'static str,
    /// Field of the name.
    pub name: &'static str,
}

impl Unanswered {
    /// Public keys in a collection without pages, which is a list and no object: the fields of an entry are its id, its name
    /// and the key.
    pub fn keys(
        rest: &Rest,
        path: &'static str,
        entry: &'static str,
        [id, name, content]: [&'static str; 3],
    ) -> Self {
        let store = RestStore {
            rest: rest.clone(),
            words: SSH_KEYS,
            path,
            entry,
            list: List::one(""),
            query: &[],
            content,
            id: "",
        };
        Self { store, id, name }
    }
}

#[async_trait]
impl Store for Unanswered {
    fn words(&self) -> Words {
        self.store.words
    }

    async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
        let field = self.store.content;
        let own =
            |entry: &Value| json!({ "id": entry[self.id], "name": entry[self.name], field: entry[field] });
        let entries = self.store.entries().await?;
        entries
            .iter()
            .map(|entry| self.store.stored(&own(entry)))
            .collect()
    }

    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
        let call = Call::post(self.store.words.add, self.store.path);
        let body = json!({ self.name: name, self.store.content: content });
        self.store.rest.done(call.json(body)).await?;
        let is_it = |there: &Stored| {
            let kept = there.content.as_deref().unwrap_or_default();
            there.name == name && kept.split_whitespace().eq(content.split_whitespace())
        };
        let found = self.list().await?.into_iter().find(is_it);
        found.map(|there| there.id).ok_or_else(|| {
            let one = self.store.words.one;
            let what = format!(
                "the {one} {name} was taken and is not listed as it was written; it is looked for again"
            );
            ProviderError::new(ErrorKind::Transient, self.store.words.add, what)
        })
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.store.remove(id).await
    }
}

/// The entries of Pools in a store.
pub struct Shared {
    store: Box<dyn Store>,
    names: Names,
    listed: Batched<Vec<Stored>>,
    /// New entries: lists may lag.
    made: Maker,
}

/// How entries are named after their Pool and their content.
struct Names {
    write: fn(&str, &str, &str) -> Result<String, ProviderError>,
    pool_of: fn(&str, &str) -> Option<String>,
}

impl Shared {
    /// The entries of Pools in this store.
    pub fn new(store: impl Store + 'static) -> Self {
        Self {
            store: Box::new(store),
            names: Names {
                write: |cluster, pool_uid, content| Ok(marks::content_name(cluster, pool_uid, content)),
                pool_of: marks::pool_of,
            },
            listed: Batched::default(),
            made: Maker::default(),
        }
    }

    /// The same where names have at most 50 characters. Lists must show the contents.
    pub fn short(store: impl Store + 'static) -> Self {
        Self {
            names: Names {
                write: marks::short_name,
                pool_of: marks::pool_of_short,
            },
            ..Self::new(store)
        }
    }

    /// The same where names have letters and digits only, 49 of them. Lists should show the contents.
    pub fn plain(store: impl Store + 'static) -> Self {
        Self {
            names: Names {
                write: marks::plain_name,
                pool_of: marks::pool_of_plain,
            },
            ..Self::new(store)
        }
    }

    /// Everything in the store, also what is no Pool's.
    pub async fn entries(&self) -> Result<Vec<Stored>, ProviderError> {
        self.store.list().await
    }

    /// The key of the order's Pool, which is in the store now.
    pub async fn key(&self, order: &Order) -> Result<Stored, ProviderError> {
        self.holding(order, order.authorized_key.trim()).await
    }

    /// The entry of the order's Pool with this content, which is in the store now.
    pub async fn holding(&self, order: &Order, content: &str) -> Result<Stored, ProviderError> {
        let since = Instant::now();
        let name = (self.names.write)(&order.mark.cluster, &order.mark.pool_uid, content)?;
        let is_it = |there: &Stored| {
            there.name == name
                && there
                    .content
                    .as_ref()
                    .is_none_or(|it| it == content || same_key(it, content))
        };
        let listed = self.listed.fresh(LONGEST, || self.store.list()).await?;
        if let Some(found) = listed.iter().find(|there| is_it(there)) {
            return Ok(found.clone());
        }
        let adding = async {
            match self.store.add(&name, content).await {
                // The entry exists after all. Some clouds do not tell that from another mistake.
                Err(error) if matches!(error.kind, ErrorKind::AlreadyExists | ErrorKind::InvalidOrder) => {
                    let there = self.store.list().await?;
                    let found = there.into_iter().find(is_it);
                    found.map(|there| there.id).ok_or(error)
                }
                added => added,
            }
        };
        let id = self.made.make(name.clone(), since, adding).await?;
        Ok(Stored {
            id,
            name,
            content: None,
        })
    }

    /// [`Leftover::kind`] of this store's entries.
    pub fn kind(&self) -> &'static str {
        self.store.words().one
    }

    /// The entries of an installation's Pools.
    pub async fn left(&self, cluster: &str) -> Result<Vec<Leftover>, ProviderError> {
        let ours = |there: Stored| {
            (self.names.pool_of)(cluster, &there.name).map(|pool_uid| Leftover {
                kind: self.kind(),
                id: there.id,
                region: String::new(),
                pool_uid,
            })
        };
        let all = self.store.list().await?;
        Ok(all.into_iter().filter_map(ours).collect())
    }

    /// Returns one of these.
    pub async fn give_back(&self, id: &str) -> Result<(), ProviderError> {
        self.store.remove(id).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use rstest::rstest;

    use super::*;
    use crate::fixtures::order;

    /// A store in memory, and its added entries.
    #[derive(Clone, Default)]
    struct Fake {
        there: Arc<Mutex<Vec<Stored>>>,
        added: Arc<Mutex<Vec<String>>>,
        /// How adding fails, if it does.
        refuses: Option<ErrorKind>,
        /// Whether an entry that is refused is there afterwards.
        there_anyway: bool,
        /// Whether lists show what was added.
        slow: bool,
    }

    #[async_trait]
    impl Store for Fake {
        fn words(&self) -> Words {
            SSH_KEYS
        }

        async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
            tokio::task::yield_now().await;
            Ok(self.there.lock().clone())
        }

        async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
            let id = format!("id-{}", self.added.lock().len());
            self.added.lock().push(name.to_owned());
            if !self.slow && (self.refuses.is_none() || self.there_anyway) {
                self.there.lock().push(Stored {
                    id: id.clone(),
                    name: name.to_owned(),
                    content: Some(content.to_owned()),
                });
            }
            match &self.refuses {
                Some(kind) => Err(ProviderError::new(kind.clone(), SSH_KEYS.add, "no")),
                None => Ok(id),
            }
        }

        async fn remove(&self, id: &str) -> Result<(), ProviderError> {
            self.there.lock().retain(|there| there.id != id);
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_made_once_for_machines_that_are_ordered_together_though_lists_are_behind() {
        let store = Fake {
            slow: true,
            ..Fake::default()
        };
        let shared = Shared::new(store.clone());
        let order = order();
        let keys = futures::future::join_all((0..20).map(|_| shared.key(&order))).await;
        assert!(
            keys.iter().all(|key| key.as_ref().unwrap().id == "id-0"),
            "{keys:?}"
        );
        assert_eq!(store.added.lock().len(), 1);
    }

    #[tokio::test]
    async fn a_key_is_found_again_and_a_changed_one_is_another() {
        let store = Fake::default();
        let first = Shared::new(store.clone()).key(&order()).await.unwrap();
        // As after a restart.
        assert_eq!(
            Shared::new(store.clone()).key(&order()).await.unwrap().id,
            first.id
        );
        let mut changed = order();
        changed.authorized_key = "ssh-ed25519 BBBB".into();
        let other = Shared::new(store.clone()).key(&changed).await.unwrap();
        assert_ne!((other.id, other.name), (first.id, first.name));
        assert_eq!(store.added.lock().len(), 2);
    }

    #[rstest]
    #[case::it_is_there(ErrorKind::AlreadyExists, true, true)]
    #[case::it_is_there_in_other_words(ErrorKind::InvalidOrder, true, true)]
    #[case::it_is_not(ErrorKind::InvalidOrder, false, false)]
    #[case::something_else(ErrorKind::Permission, true, false)]
    #[tokio::test]
    async fn a_key_that_another_process_just_added_will_do(
        #[case] kind: ErrorKind,
        #[case] there_anyway: bool,
        #[case] found: bool,
    ) {
        let store = Fake {
            refuses: Some(kind.clone()),
            there_anyway,
            ..Fake::default()
        };
        let key = Shared::new(store).key(&order()).await;
        assert_eq!(
            key.as_ref().err().map(|error| error.kind.clone()),
            (!found).then_some(kind),
            "{key:?}"
        );
    }

    #[tokio::test]
    async fn what_pools_left_is_told_from_what_people_have_there() {
        let store = Fake::default();
        store.there.lock().push(Stored {
            id: "laptop".into(),
            name: "laptop".into(),
            content: None,
        });
        let shared = Shared::new(store.clone());
        let key = shared.key(&order()).await.unwrap();
        let left = shared.left("c-uid").await.unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(
            (left[0].kind, left[0].id.as_str(), left[0].pool_uid.as_str()),
            ("SSH key", key.id.as_str(), "p-uid")
        );
        assert!(shared.left("another").await.unwrap().is_empty());
        shared.give_back(&left[0].id).await.unwrap();
        assert!(shared.left("c-uid").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_key_with_a_short_name_is_found_again_and_returned_with_its_pool() {
        let store = Fake::default();
        let mut order = order();
        order.mark.pool_uid = "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
        let first = Shared::short(store.clone()).key(&order).await.unwrap();
        assert_eq!(first.name.len(), 50, "{}", first.name);
        let shared = Shared::short(store.clone());
        assert_eq!(shared.key(&order).await.unwrap().id, first.id);
        let left = shared.left("c-uid").await.unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].pool_uid, order.mark.pool_uid);
        // Of another content, and of the same few digits.
        store.there.lock()[0].content = Some("ssh-ed25519 CCCC".into());
        assert_ne!(shared.key(&order).await.unwrap().id, first.id);
    }

    #[tokio::test]
    async fn a_key_with_a_plain_name_is_found_again_and_returned_with_its_pool() {
        let store = Fake::default();
        let mut order = order();
        order.mark.pool_uid = "1d3f5a52-5d0e-4b0a-9a43-3f1d6f0c9a11".into();
        let first = Shared::plain(store.clone()).key(&order).await.unwrap();
        assert_eq!(first.name.len(), 49, "{}", first.name);
        let shared = Shared::plain(store.clone());
        assert_eq!(shared.key(&order).await.unwrap().id, first.id);
        let left = shared.left("c-uid").await.unwrap();
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].pool_uid, order.mark.pool_uid);
    }
}
