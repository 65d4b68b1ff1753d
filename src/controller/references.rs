//! Reads Secrets, ConfigMaps and uploaded bundles that Tasks and Pools name. Their content is cached for some
//! seconds, so that a thousand Tasks of one Secret do not read it a thousand times.

pub mod materials;
mod sources;
mod stored;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use parking_lot::Mutex;
use skyward_api::{condition::reason, shared::EnvFrom};
use skyward_core::Secret as Value;
use skyward_planner::task::references::{Resolved, Unresolved};
use skyward_remote::turns::Turns;
use skyward_store::Store;
use tokio::time::Instant;

use crate::deadline::words;

/// Most bytes that all Secrets and ConfigMaps of one Task, or of one Pool's steps, may have
/// together in names and values: as much as one Secret. Each run that starts holds a copy.
const MOST_BYTES: usize = 1024 * 1024;
/// Most lines that the values of its Secrets may have: each line is looked for in all output that
/// is shown.
const MOST_LINES: usize = 2000;

/// Values that several users hold at the same time: equal values share one copy.
pub(crate) struct Shared<T: ?Sized>(Mutex<Vec<Weak<T>>>);

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Eq + ?Sized> Shared<T> {
    /// An equal copy that is held already, or else this one.
    pub(crate) fn share(&self, new: impl Into<Arc<T>>) -> Arc<T> {
        let new = new.into();
        let mut known = self.0.lock();
        known.retain(|copy| copy.strong_count() > 0);
        let same = known.iter().filter_map(Weak::upgrade).find(|copy| **copy == *new);
        same.unwrap_or_else(|| {
            known.push(Arc::downgrade(&new));
            new
        })
    }
}

/// Key of a ConfigMap that holds certificates.
pub const CERTIFICATES: &str = "ca.crt";

/// Key of a Secret with credentials, as Secrets of type `kubernetes.io/basic-auth` have it.
pub const PASSWORD: &str = "password";
/// How long an object that was read stays in the cache.
const FRESH: Duration = Duration::from_secs(5);

/// Kind of an object that Tasks and Pools name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A ConfigMap.
    ConfigMap,
    /// A Secret.
    Secret,
}

impl Kind {
    /// The kind as in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }
}

/// The texts of an object; `None`: there is no such object.
pub(crate) type Found = Option<Arc<BTreeMap<String, String>>>;

type CacheKey = (String, Kind, String);

/// Where a source is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place<'a> {
    /// The namespace.
    pub(crate) namespace: &'a str,
    /// Its UID, where it is known: uploads belong to that, and to no later namespace of the same name.
    pub(crate) uid: Option<&'a str>,
}

/// Reads Secrets, ConfigMaps and uploaded bundles.
pub struct References {
    client: Client,
    store: Arc<Store>,
    recent: Mutex<HashMap<CacheKey, (Instant, Found)>>,
    sources: sources::Recent,
    selections: Arc<Turns>,
    secrets: Shared<Vec<String>>,
    /// Shared by machines that are prepared with the same values.
    pub(crate) steps_env: Shared<BTreeMap<String, Value>>,
    pub(crate) masked: Shared<Vec<Value>>,
    pub(crate) bundles: Shared<str>,
}

impl References {
    pub(crate) fn new(client: Client, store: Arc<Store>) -> Self {
        Self {
            client,
            store,
            recent: Mutex::default(),
            sources: sources::Recent::default(),
            selections: Turns::new(sources::SELECTIONS, sources::OF_NAMESPACE),
            secrets: Shared::default(),
            steps_env: Shared::default(),
            masked: Shared::default(),
            bundles: Shared::default(),
        }
    }

    /// The environment of these references; the error is for the user, and says that `waiting`
    /// (the Task, the Machine) waits for it.
    pub(crate) async fn resolve(
        &self,
        namespace: &str,
        refs: &[EnvFrom],
        waiting: &str,
    ) -> Result<Resolved, Unresolved> {
        let mut sum = Sum::default();
        for reference in refs {
            let named = [
                (Kind::Secret, reference.secret_ref.as_ref()),
                (Kind::ConfigMap, reference.config_map_ref.as_ref()),
            ];
            for (kind, local) in named {
                let Some(local) = local else { continue };
                match self.read(namespace, kind, &local.name).await? {
                    Some(texts) => sum.add(kind, &reference.prefix, &texts, waiting)?,
                    None if local.optional => {}
                    None => {
                        return Err(format!(
                            "there is no {} \"{}\" in namespace \"{namespace}\"; create it, and {waiting} \
                             goes on by itself",
                            kind.as_str(),
                            local.name
                        )
                        .into());
                    }
                }
            }
        }
        Ok(Resolved {
            env: sum.env,
            secrets: self.secrets.share(sum.secrets.into_iter().collect::<Vec<_>>()),
            source: None,
        })
    }

    /// The texts of a Secret; `None`: there is no such Secret. The error is for the user.
    pub(crate) async fn secret(&self, namespace: &str, name: &str) -> Result<Found, String> {
        self.read(namespace, Kind::Secret, name).await
    }

    /// A text of a ConfigMap; `None`: there is no such ConfigMap, or it has no such key.
    pub(crate) async fn config_map_key(
        &self,
        namespace: &str,
        name: &str,
        key: &str,
    ) -> Result<Option<String>, String> {
        let texts = self.read(namespace, Kind::ConfigMap, name).await?;
        Ok(texts.and_then(|texts| texts.get(key).cloned()))
    }

    /// The Secrets and ConfigMaps of a namespace are read anew: its user has asked for a retry, perhaps because one of them
    /// was just changed.
    pub(crate) fn forget(&self, namespace: &str) {
        self.recent.lock().retain(|(of, ..), _| of != namespace);
    }

    /// The texts of an object, perhaps from the cache; the error is for the user.
    async fn read(&self, namespace: &str, kind: Kind, name: &str) -> Result<Found, String> {
        let key = (namespace.to_owned(), kind, name.to_owned());
        {
            let recent = self.recent.lock();
            if let Some((at, found)) = recent.get(&key)
                && at.elapsed() < FRESH
                && found.is_some()
            {
                return Ok(found.clone());
            }
        }
        let fetched = self.fetch(namespace, kind, name).await.map_err(|error| {
            let (kind, why) = (kind.as_str(), words(&error));
            format!("{kind} \"{name}\" in namespace \"{namespace}\" cannot be read: {why}")
        });
        let found = fetched?.map(Arc::new);
        let mut recent = self.recent.lock();
        recent.retain(|_, (at, _)| at.elapsed() < FRESH);
        recent.insert(key, (Instant::now(), found.clone()));
        Ok(found)
    }

    /// The texts of an object as they are now; a value that is not text is left out.
    pub(crate) async fn fetch(
        &self,
        namespace: &str,
        kind: Kind,
        name: &str,
    ) -> Result<Option<BTreeMap<String, String>>, kube::Error> {
        Ok(match kind {
            Kind::Secret => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
                let texts = |secret: Secret| {
                    let data = secret.data.unwrap_or_default().into_iter();
                    data.filter_map(|(key, value)| Some((key, String::from_utf8(value.0).ok()?)))
                        .collect()
                };
                api.get_opt(name).await?.map(texts)
            }
            Kind::ConfigMap => {
                let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
                api.get_opt(name).await?.map(|map| map.data.unwrap_or_default())
            }
        })
    }
}

/// An environment in the making.
#[derive(Default)]
struct Sum {
    env: BTreeMap<String, String>,
    secrets: BTreeSet<String>,
    bytes: usize,
    lines: usize,
}

impl Sum {
    /// As in Pods, keys that cannot be names of variables are left out.
    fn add(
        &mut self,
        kind: Kind,
        prefix: &str,
        texts: &BTreeMap<String, String>,
        waiting: &str,
    ) -> Result<(), Unresolved> {
        for (key, value) in texts {
            if key.contains('=') || value.contains('\0') {
                continue;
            }
            self.bytes += prefix.len() + key.len() + value.len();
            let is_new = kind == Kind::Secret && !self.secrets.contains(value);
            self.lines += if is_new { lines(value) } else { 0 };
            bounded(self.bytes, self.lines, waiting)?;
            if is_new {
                self.secrets.insert(value.clone());
            }
            self.env.insert(format!("{prefix}{key}"), value.clone());
        }
        Ok(())
    }
}

/// How many lines of a value are masked.
pub(crate) fn lines(value: &str) -> usize {
    value.lines().count().max(1)
}

/// Refuses more bytes or lines than an environment may have.
pub(crate) fn bounded(bytes: usize, lines: usize, waiting: &str) -> Result<(), Unresolved> {
    if bytes <= MOST_BYTES && lines <= MOST_LINES {
        return Ok(());
    }
    Err(Unresolved {
        reason: reason::REFERENCE_TOO_LARGE,
        message: format!(
            "the Secrets and ConfigMaps that {waiting} takes its environment from have {bytes} bytes or more, and their \
             secret values {lines} lines or more; at most {MOST_BYTES} bytes and {MOST_LINES} lines are taken. Name only \
             Secrets and ConfigMaps that are needed, or put large values into a file; {waiting} goes on by itself then"
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use kube::client::Body;

    use super::*;

    #[tokio::test]
    async fn what_was_read_is_used_for_some_seconds_and_read_anew_once_its_namespace_is_forgotten() {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let server = tower::service_fn(move |_: axum::http::Request<Body>| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            let object = serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"n": number.to_string()},
            });
            let answer = axum::http::Response::new(Body::from(object.to_string().into_bytes()));
            std::future::ready(Ok::<_, Infallible>(answer))
        });
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap());
        let references = References::new(Client::new(server, "n"), store);
        let read = async || references.config_map_key("n", "c", "n").await.unwrap().unwrap();
        assert_eq!((read().await.as_str(), read().await.as_str()), ("0", "0"));
        references.forget("other");
        assert_eq!(read().await, "0");
        references.forget("n");
        assert_eq!(read().await, "1");
    }

    #[test]
    fn values_of_secrets_are_known_as_such_and_later_ones_win() {
        let mut sum = Sum::default();
        let plain = [("a".to_owned(), "plain".to_owned())].into();
        sum.add(Kind::ConfigMap, "X_", &plain, "the Task").unwrap();
        let secret = [
            ("a".to_owned(), "canary".to_owned()),
            ("b".to_owned(), "nul\0".to_owned()),
            ("c=".to_owned(), "no name".to_owned()),
        ];
        sum.add(Kind::Secret, "X_", &secret.into(), "the Task").unwrap();
        let resolved = Resolved {
            env: sum.env,
            secrets: Arc::new(sum.secrets.into_iter().collect()),
            source: None,
        };
        assert_eq!(resolved.env, [("X_a".to_owned(), "canary".to_owned())].into());
        assert_eq!(*resolved.secrets, ["canary"]);
        assert!(!format!("{resolved:?}").contains("canary"));
    }

    #[test]
    fn more_than_is_taken_of_references_is_refused_before_it_is_held() {
        let of = |texts: &[(&str, &str)], times: usize| {
            let texts = texts
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect();
            let mut sum = Sum::default();
            let result =
                (0..times).try_for_each(|n| sum.add(Kind::Secret, &format!("P{n}_"), &texts, "the Task"));
            (
                result,
                sum.env.values().map(String::len).sum::<usize>(),
                sum.secrets.len(),
            )
        };
        let half = "x".repeat(MOST_BYTES / 2 - 100);
        assert_eq!(of(&[("A", &half)], 2), (Ok(()), 2 * half.len(), 1));
        let (refused, held, _) = of(&[("A", &half)], 16);
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.reason, held),
            (reason::REFERENCE_TOO_LARGE, 2 * half.len())
        );
        assert!(refused.message.contains("at most 1048576 bytes") && !refused.message.contains("xxx"));
        let many = "abcd\n".repeat(MOST_LINES + 1);
        assert_eq!(
            of(&[("A", &many)], 1).0.unwrap_err().reason,
            reason::REFERENCE_TOO_LARGE
        );
        // The same value again is masked already.
        let some = "abcd\n".repeat(MOST_LINES);
        assert_eq!(of(&[("A", &some), ("B", &some)], 2).0, Ok(()));
    }

    #[test]
    fn equal_copies_are_one_as_long_as_anybody_holds_it() {
        let shared = Shared::<Vec<String>>::default();
        let first = shared.share(vec!["a".to_owned()]);
        assert!(Arc::ptr_eq(&first, &shared.share(vec!["a".to_owned()])));
        assert!(!Arc::ptr_eq(&first, &shared.share(vec!["b".to_owned()])));
        drop(first);
        drop(shared.share(vec!["c".to_owned()]));
        assert_eq!(shared.0.lock().len(), 1, "what nobody holds is forgotten");
    }
}
