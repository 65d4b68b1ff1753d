//! The files of a Task's source, as a bundle.

use std::{fmt, ops::Range, sync::Arc};

use async_trait::async_trait;
use bytes::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use parking_lot::Mutex;
use skyward_api::{
    condition::reason,
    task::{ConfigMapSource, Source},
};
use skyward_bundle::{File, LIMITS, Selection, pack_selected};
use skyward_planner::task::references::Unresolved;
use skyward_remote::agent::BundleBytes;
use tokio::time::Instant;

use super::{FRESH, Place, References, stored::Stored};
use crate::deadline::words;

/// Bundles that stay in memory for some seconds.
const MOST: usize = 8;
/// A bundle that takes more bytes in memory does not stay: as much as a ConfigMap has.
const MOST_BYTES: usize = 2 * 1024 * 1024;
/// Sources whose files are selected at once: each holds the names of its files meanwhile.
pub(super) const SELECTIONS: usize = 2;
/// Those of one namespace: its large sources keep no Task of another one waiting.
pub(super) const OF_NAMESPACE: usize = 1;

/// A bundle, shared by all runs that are started with it.
pub(crate) struct Bundle {
    /// Its digest.
    pub(crate) digest: String,
    content: Content,
}

enum Content {
    /// As it is sent.
    Memory(Bytes),
    Stored(Stored),
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

impl Bundle {
    /// Bytes that it takes in memory.
    fn held(&self) -> usize {
        match &self.content {
            Content::Memory(bytes) => bytes.len(),
            Content::Stored(stored) => stored.held(),
        }
    }
}

#[async_trait]
impl BundleBytes for Bundle {
    fn bytes(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.bytes(),
            Content::Stored(stored) => stored.bytes(),
        }
    }

    async fn part(&self, range: Range<u64>) -> Result<Bytes, String> {
        match &self.content {
            Content::Memory(bytes) => bytes.part(range).await,
            Content::Stored(stored) => stored.part(range).await,
        }
    }
}

/// The bundles that were read last, the newest at the end.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    namespace: String,
    uid: Option<String>,
    source: Source,
    at: Instant,
    bundle: Arc<Bundle>,
}

impl Kept {
    fn is_of(&self, place: Place<'_>, source: &Source) -> bool {
        self.namespace == place.namespace && self.uid.as_deref() == place.uid && self.source == *source
    }
}

impl Recent {
    fn find(&self, place: Place<'_>, source: &Source) -> Option<Arc<Bundle>> {
        let mut reads = self.0.lock();
        reads.retain(|read| read.at.elapsed() < FRESH);
        let found = reads.iter().find(|read| read.is_of(place, source));
        found.map(|read| read.bundle.clone())
    }

    fn keep(&self, place: Place<'_>, source: &Source, bundle: &Arc<Bundle>) {
        if bundle.held() > MOST_BYTES {
            return;
        }
        let mut reads = self.0.lock();
        reads.retain(|read| !read.is_of(place, source));
        if reads.len() == MOST {
            reads.remove(0);
        }
        reads.push(Kept {
            namespace: place.namespace.to_owned(),
            uid: place.uid.map(ToOwned::to_owned),
            source: source.clone(),
            at: Instant::now(),
            bundle: bundle.clone(),
        });
    }
}

impl References {
    /// The files of a source as they are now, perhaps from the cache; the error is for the user.
    pub(crate) async fn source(&self, place: Place<'_>, source: &Source) -> Result<Arc<Bundle>, Unresolved> {
        if let Some(bundle) = self.sources.find(place, source) {
            return Ok(bundle);
        }
        let selection = Selection::new(&source.include, &source.exclude).map_err(|why| {
            refused(format!(
                "include and exclude of spec.source: {why}; create another Task"
            ))
        })?;
        let bundle = match (&source.config_map, &source.bundle) {
            (Some(map), _) => self.config_map(place.namespace, map, selection).await?,
            (None, Some(bundle)) => {
                let _turn = self.selections.wait(place.namespace, &bundle.digest).await;
                let (digest, stored) = Stored::find(&self.store, place, bundle, selection).await?;
                Bundle {
                    digest,
                    content: Content::Stored(stored),
                }
            }
            (None, None) => {
                return Err(refused(
                    "spec.source names neither a ConfigMap nor a bundle; create another Task".to_owned(),
                ));
            }
        };
        let bundle = Arc::new(bundle);
        self.sources.keep(place, source, &bundle);
        Ok(bundle)
    }

    async fn config_map(
        &self,
        namespace: &str,
        map: &ConfigMapSource,
        selection: Selection,
    ) -> Result<Bundle, Unresolved> {
        let name = map.name.as_str();
        let api: Api<ConfigMap> = Api::namespaced(self.client.clone(), namespace);
        let found = api.get_opt(name).await.map_err(|error| {
            let why = words(&error);
            format!("ConfigMap \"{name}\" in namespace \"{namespace}\" cannot be read: {why}")
        })?;
        let found = found.ok_or_else(|| {
            format!(
                "there is no ConfigMap \"{name}\" in namespace \"{namespace}\", which spec.source names; create it, and the Task goes on by itself"
            )
        })?;
        // Names and patterns may be such that the search takes seconds: nobody else waits for that.
        let _turn = if selection.is_everything() {
            None
        } else {
            Some(self.selections.wait(namespace, name).await)
        };
        let bundle = tokio::task::spawn_blocking(move || packed(&found, &selection)).await;
        bundle.map_err(|error| error.to_string())?.map_err(|why| {
            refused(format!(
                "ConfigMap \"{name}\" cannot be the source of a Task: {why}. Change it, and the Task goes on by itself"
            ))
        })
    }
}

pub(super) fn refused(message: String) -> Unresolved {
    Unresolved {
        reason: reason::SOURCE_REFUSED,
        message,
    }
}

/// Each selected key as a file.
fn packed(map: &ConfigMap, selection: &Selection) -> Result<Bundle, String> {
    let texts = map.data.iter().flatten();
    let texts = texts.map(|(key, text)| (key, text.as_bytes()));
    let bytes = map.binary_data.iter().flatten();
    let bytes = bytes.map(|(key, bytes)| (key, bytes.0.as_slice()));
    let files = texts.chain(bytes).map(|(key, content)| File {
        path: key,
        executable: false,
        content,
    });
    let packed = pack_selected(files, selection, LIMITS).map_err(|error| error.to_string())?;
    Ok(Bundle {
        digest: packed.digest.to_string(),
        content: Content::Memory(packed.bytes.into()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skyward_bundle::Reader;

    use super::*;

    fn map(content: serde_json::Value) -> ConfigMap {
        serde_json::from_value(content).unwrap()
    }

    fn all(map: &ConfigMap) -> Result<Bundle, String> {
        without(map, &[])
    }

    fn without(map: &ConfigMap, exclude: &[&str]) -> Result<Bundle, String> {
        packed(map, &Selection::new(&[], exclude).unwrap())
    }

    async fn files(bundle: &Bundle) -> Vec<(String, Vec<u8>)> {
        let bytes = bundle.part(0..bundle.bytes()).await.unwrap();
        let reader = Reader::open(&*bytes, LIMITS).unwrap();
        assert_eq!(reader.digest().to_string(), bundle.digest);
        let mut files = Vec::new();
        reader
            .unpack(|entry, content| {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(content, &mut bytes)?;
                files.push((entry.path.clone(), bytes));
                Ok(())
            })
            .unwrap();
        files
    }

    #[tokio::test]
    async fn texts_and_bytes_of_a_config_map_are_files() {
        let both = map(json!({ "data": { "b.py": "print(1)" }, "binaryData": { "a.bin": "AAE=" } }));
        let bundle = all(&both).unwrap();
        let (noise, code) = (
            ("a.bin".to_owned(), vec![0, 1]),
            ("b.py".to_owned(), b"print(1)".to_vec()),
        );
        assert_eq!(files(&bundle).await, [noise, code.clone()]);
        // Bytes that are text as well make the same file.
        let same = map(json!({ "data": { "b.py": "print(1)", "a.bin": "\u{0}\u{1}" } }));
        assert_eq!(all(&same).unwrap().digest, bundle.digest);
        // The digest is that of what is left.
        let some = without(&both, &["*.bin"]).unwrap();
        assert_eq!(files(&some).await, [code]);
        let alone = map(json!({ "data": { "b.py": "print(1)" } }));
        assert_eq!(all(&alone).unwrap().digest, some.digest);
    }

    #[test]
    fn a_config_map_that_holds_no_files_or_a_repository_is_refused_in_words() {
        for (content, exclude, why) in [
            (json!({}), &[][..], "there are no files"),
            (json!({ "data": {} }), &["*.py"], "there are no files"),
            (json!({ "data": { ".git": "x" } }), &[], "leave .git out"),
            (json!({ "data": { "..": "x" } }), &[], "has . or .."),
            (
                json!({ "data": { "a.py": "x" } }),
                &["*.py"],
                "leave none of the files",
            ),
        ] {
            assert!(
                without(&map(content), exclude).unwrap_err().contains(why),
                "{why}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_bundles_stay_in_memory_and_none_for_long() {
        let recent = Recent::default();
        let bundle = Arc::new(all(&map(json!({ "data": { "a": "x" } }))).unwrap());
        let source = |name: &str, exclude: &[&str]| Source {
            config_map: Some(ConfigMapSource { name: name.into() }),
            exclude: exclude.iter().map(|&pattern| pattern.to_owned()).collect(),
            ..Source::default()
        };
        let place = Place {
            namespace: "n",
            uid: Some("u"),
        };
        for number in 0..=MOST {
            recent.keep(place, &source(&number.to_string(), &[]), &bundle);
        }
        let is_there = |place: Place<'_>, name: &str, exclude: &[&str]| {
            recent.find(place, &source(name, exclude)).is_some()
        };
        let last = MOST.to_string();
        assert!(is_there(place, "1", &[]) && is_there(place, &last, &[]));
        assert!(!is_there(place, "0", &[]), "there are too many");
        assert!(!is_there(place, "1", &["*.csv"]), "these are other files");
        for other in [
            Place {
                namespace: "other",
                ..place
            },
            Place {
                uid: Some("of the namespace that comes after it"),
                ..place
            },
        ] {
            assert!(!is_there(other, "1", &[]), "{other:?}");
        }
        let large = map(json!({ "data": { "a": "x".repeat(MOST_BYTES) } }));
        recent.keep(place, &source("large", &[]), &Arc::new(all(&large).unwrap()));
        assert!(!is_there(place, "large", &[]));
        tokio::time::advance(FRESH).await;
        assert!(!is_there(place, "1", &[]));
        assert!(recent.0.lock().is_empty());
    }
}
