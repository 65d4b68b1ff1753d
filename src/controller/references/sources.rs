//! The files of a Task's source, as a bundle.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use parking_lot::Mutex;
use skyward_api::{condition::reason, task::Source};
use skyward_bundle::{File, LIMITS, pack};
use skyward_planner::task::references::Unresolved;
use tokio::time::Instant;

use super::{FRESH, References};
use crate::deadline::words;

/// Bundles that stay in memory for some seconds. Each has as much as a ConfigMap at most.
const MOST: usize = 8;

/// A bundle, shared by all runs that are started with it.
#[derive(PartialEq, Eq)]
pub(crate) struct Bundle {
    /// Its digest.
    pub(crate) digest: String,
    /// As it is sent.
    pub(crate) bytes: Bytes,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("digest", &self.digest)
            .finish_non_exhaustive()
    }
}

/// The bundles that were read last, the newest at the end.
#[derive(Debug, Default)]
pub(super) struct Recent(Mutex<Vec<Kept>>);

#[derive(Debug)]
struct Kept {
    namespace: String,
    name: String,
    at: Instant,
    bundle: Arc<Bundle>,
}

impl Recent {
    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Bundle>> {
        let mut reads = self.0.lock();
        reads.retain(|read| read.at.elapsed() < FRESH);
        let found = reads
            .iter()
            .find(|read| read.namespace == namespace && read.name == name);
        found.map(|read| read.bundle.clone())
    }

    fn keep(&self, namespace: &str, name: &str, bundle: &Arc<Bundle>) {
        let mut reads = self.0.lock();
        reads.retain(|read| read.namespace != namespace || read.name != name);
        if reads.len() == MOST {
            reads.remove(0);
        }
        reads.push(Kept {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            at: Instant::now(),
            bundle: bundle.clone(),
        });
    }
}

impl References {
    /// The files of a source as they are now, perhaps from the cache; the error is for the user.
    pub(crate) async fn source(&self, namespace: &str, source: &Source) -> Result<Arc<Bundle>, Unresolved> {
        let Some(map) = &source.config_map else {
            return Err(refused(
                "spec.source names no ConfigMap; create another Task".to_owned(),
            ));
        };
        let name = map.name.as_str();
        if let Some(bundle) = self.sources.find(namespace, name) {
            return Ok(bundle);
        }
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
        let bundle = Arc::new(packed(&found).map_err(|why| {
            refused(format!(
                "ConfigMap \"{name}\" cannot be the source of a Task: {why}. Change it, and the Task goes on by itself"
            ))
        })?);
        self.sources.keep(namespace, name, &bundle);
        Ok(bundle)
    }
}

fn refused(message: String) -> Unresolved {
    Unresolved {
        reason: reason::SOURCE_REFUSED,
        message,
    }
}

/// Each key as a file.
fn packed(map: &ConfigMap) -> Result<Bundle, String> {
    let texts = map.data.iter().flatten();
    let texts = texts.map(|(key, text)| (key, text.as_bytes()));
    let bytes = map.binary_data.iter().flatten();
    let bytes = bytes.map(|(key, bytes)| (key, bytes.0.as_slice()));
    let files = texts.chain(bytes).map(|(key, content)| File {
        path: key,
        executable: false,
        content,
    });
    let packed = pack(files, LIMITS).map_err(|error| error.to_string())?;
    Ok(Bundle {
        digest: packed.digest.to_string(),
        bytes: packed.bytes.into(),
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

    #[test]
    fn texts_and_bytes_of_a_config_map_are_files() {
        let both = map(json!({ "data": { "b.py": "print(1)" }, "binaryData": { "a.bin": "AAE=" } }));
        let bundle = packed(&both).unwrap();
        let mut files = Vec::new();
        let reader = Reader::open(&*bundle.bytes, LIMITS).unwrap();
        assert_eq!(reader.digest().to_string(), bundle.digest);
        reader
            .unpack(|entry, content| {
                let mut bytes = Vec::new();
                std::io::Read::read_to_end(content, &mut bytes)?;
                files.push((entry.path.clone(), bytes));
                Ok(())
            })
            .unwrap();
        assert_eq!(
            files,
            [
                ("a.bin".to_owned(), vec![0, 1]),
                ("b.py".to_owned(), b"print(1)".to_vec())
            ]
        );
        // Bytes that are text as well make the same file.
        let same = map(json!({ "data": { "b.py": "print(1)", "a.bin": "\u{0}\u{1}" } }));
        assert_eq!(packed(&same).unwrap(), bundle);
    }

    #[test]
    fn a_config_map_that_holds_no_files_or_a_repository_is_refused_in_words() {
        for (content, why) in [
            (json!({}), "there are no files"),
            (json!({ "data": {} }), "there are no files"),
            (json!({ "data": { ".git": "x" } }), "leave .git out"),
            (json!({ "data": { "..": "x" } }), "has . or .."),
        ] {
            assert!(packed(&map(content)).unwrap_err().contains(why), "{why}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn few_bundles_stay_in_memory_and_none_for_long() {
        let recent = Recent::default();
        let bundle = Arc::new(packed(&map(json!({ "data": { "a": "x" } }))).unwrap());
        for number in 0..=MOST {
            recent.keep("n", &number.to_string(), &bundle);
        }
        assert!(recent.find("n", "0").is_none() && recent.find("other", "1").is_none());
        assert!(recent.find("n", "1").is_some() && recent.find("n", &MOST.to_string()).is_some());
        tokio::time::advance(FRESH).await;
        assert!(recent.find("n", "1").is_none());
        assert!(recent.0.lock().is_empty());
    }
}
