//! One malformed object must never blind a watch or a list.
//!
//! An object stays text until its end is found, and is then read once. (`DeserializeGuard` of kube
//! does the same by way of a tree of values that it builds, copies and reads: several times the
//! work for each event of a Task.)

use std::{borrow::Cow, collections::HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, runtime::watcher::Event};
use parking_lot::Mutex;
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::value::RawValue;
use skyward_planner::pool::facts::Unread;

/// An object, or why it cannot be understood.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Invalid>);

/// An object that cannot be understood.
#[derive(Clone, Debug)]
pub struct Invalid {
    /// Why.
    pub error: String,
    /// Which.
    pub metadata: ObjectMeta,
}

/// Machines whose records cannot be read, as after a rollback to an older version. They are on
/// record all the same: their machines are no orphans.
#[derive(Debug, Default)]
pub struct Unreadable(Mutex<Records>);

#[derive(Debug, Default)]
struct Records {
    /// By the Machine's UID.
    known: HashMap<String, Unread>,
    /// The unreadable Machines in the list that is being read.
    listed: HashMap<String, Unread>,
}

impl Unreadable {
    /// Takes an event of the watch in.
    pub fn note<K: Resource>(&self, event: &Event<Guarded<K>>) {
        let mut records = self.0.lock();
        let uid = |object: &Guarded<K>| object.meta().uid.clone().unwrap_or_default();
        let unread = |object: &Guarded<K>| {
            let invalid = object.0.as_ref().err()?;
            Some((uid(object), Unread::of(&invalid.metadata, &invalid.error)))
        };
        match event {
            Event::Init => records.listed.clear(),
            Event::InitApply(object) => records.listed.extend(unread(object)),
            // Not before: until the list is complete their machines would look like orphans.
            Event::InitDone => records.known = std::mem::take(&mut records.listed),
            Event::Apply(object) => {
                records.known.remove(&uid(object));
                records.known.extend(unread(object));
            }
            Event::Delete(object) => {
                records.known.remove(&uid(object));
            }
        }
    }

    /// The UIDs of all of them.
    pub fn all(&self) -> Vec<String> {
        let records = self.0.lock();
        records.known.keys().cloned().collect()
    }

    /// The unreadable Machines of a Pool, by name.
    pub fn of_pool(&self, pool_uid: &str) -> Vec<Unread> {
        let records = self.0.lock();
        let of_pool = records
            .known
            .values()
            .filter(|unread| unread.pool_uid == pool_uid);
        let mut found: Vec<Unread> = of_pool.cloned().collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }
}

/// The metadata that every object has.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let error = match serde_json::from_str(text.get()) {
            Ok(object) => return Ok(Self(Ok(object))),
            Err(error) => error.to_string(),
        };
        // An object without even a name cannot be reported.
        let Head { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self(Err(Invalid { error, metadata })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(invalid) => &invalid.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(invalid) => &mut invalid.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use skyward_api::{Pool, labels};

    use super::*;
    use kube::core::{ObjectList, WatchEvent};

    fn object(provider: &str) -> String {
        format!(
            r#"{{"apiVersion":"skyward.dev/v1alpha1","kind":"Pool","metadata":{{"name":"a","namespace":"b"}},"spec":{{"provider":{provider}}}}}"#
        )
    }

    /// Its provider, or its name where it cannot be read.
    fn read(guarded: Guarded<Pool>) -> Result<Option<String>, Option<String>> {
        match guarded.0 {
            Ok(pool) => Ok(pool.spec.provider),
            Err(invalid) => {
                assert!(invalid.error.contains("expected a string"), "{}", invalid.error);
                Err(invalid.metadata.name)
            }
        }
    }

    #[test]
    fn what_cannot_be_understood_is_on_record_until_it_is_gone() {
        let read = |json: &str| serde_json::from_str::<Guarded<Pool>>(json).unwrap();
        let bad = || read(r#"{"metadata":{"name":"a","uid":"u"},"spec":{"provider":7}}"#);
        let good = || read(r#"{"metadata":{"name":"a","uid":"u"},"spec":{"provider":"p"}}"#);
        let unreadable = Unreadable::default();
        unreadable.note(&Event::Apply(bad()));
        unreadable.note(&Event::<Guarded<Pool>>::Init);
        assert_eq!(
            unreadable.all(),
            ["u"],
            "a list that is not complete says nothing"
        );
        unreadable.note(&Event::InitApply(bad()));
        unreadable.note(&Event::<Guarded<Pool>>::InitDone);
        assert_eq!(unreadable.all(), ["u"]);
        unreadable.note(&Event::Apply(good()));
        assert!(unreadable.all().is_empty());
        unreadable.note(&Event::Apply(bad()));
        unreadable.note(&Event::Delete(bad()));
        assert!(unreadable.all().is_empty());
    }

    #[test]
    fn what_cannot_be_understood_tells_its_pool_and_slot_by_its_metadata() {
        let read = |meta: serde_json::Value| {
            let json = serde_json::json!({ "metadata": meta, "spec": { "provider": 7 } });
            let unreadable = Unreadable::default();
            unreadable.note(&Event::<Guarded<Pool>>::Apply(
                serde_json::from_str(&json.to_string()).unwrap(),
            ));
            unreadable.of_pool("pool-uid")
        };
        let owned = serde_json::json!({
            "name": "train-0a1b2-3-17", "uid": "u",
            "ownerReferences": [{ "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "name": "train", "uid": "pool-uid" }],
        });
        let labelled = serde_json::json!({
            "name": "by-hand", "uid": "u",
            "labels": { labels::POOL_UID: "pool-uid", labels::SLOT: "3" },
        });
        for meta in [owned, labelled] {
            let found = read(meta);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].slot, Some(3));
            assert!(found[0].error.contains("expected a string"), "{}", found[0].error);
        }
        assert!(read(serde_json::json!({ "name": "x", "uid": "u" })).is_empty());
    }

    #[test]
    fn a_line_of_a_watch_is_read_or_says_which_object_it_is() {
        for (provider, expected) in [
            (r#""local""#, Ok(Some("local".to_owned()))),
            ("7", Err(Some("a".to_owned()))),
        ] {
            let line = format!(r#"{{"type":"MODIFIED","object":{}}}"#, object(provider));
            let event: WatchEvent<Guarded<Pool>> = serde_json::from_str(&line).unwrap();
            let WatchEvent::Modified(guarded) = event else {
                panic!("{event:?}")
            };
            assert_eq!(guarded.meta().name.as_deref(), Some("a"));
            assert_eq!(read(guarded), expected);
        }
    }

    #[test]
    fn other_lines_of_a_watch_are_read_as_well() {
        let bookmark = r#"{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Pool","metadata":{"resourceVersion":"7"}}}"#;
        let expired = r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"message":"too old","reason":"Expired"}}"#;
        assert!(matches!(
            serde_json::from_str(bookmark).unwrap(),
            WatchEvent::<Guarded<Pool>>::Bookmark(found) if found.metadata.resource_version == "7"
        ));
        assert!(matches!(
            serde_json::from_str(expired).unwrap(),
            WatchEvent::<Guarded<Pool>>::Error(status) if status.code == 410
        ));
    }

    #[test]
    fn one_malformed_object_does_not_spoil_a_list() {
        let list = format!(
            r#"{{"apiVersion":"skyward.dev/v1alpha1","kind":"PoolList","metadata":{{"resourceVersion":"9"}},"items":[{},{}]}}"#,
            object("7"),
            object(r#""local""#)
        );
        let list: ObjectList<Guarded<Pool>> = serde_json::from_str(&list).unwrap();
        let found: Vec<_> = list.items.into_iter().map(read).collect();
        assert_eq!(found, [Err(Some("a".to_owned())), Ok(Some("local".to_owned()))]);
    }
}
