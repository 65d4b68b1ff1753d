//! What the metadata of an object says: its namespace and name, its times, and whether we hold it.

use jiff::Timestamp;
use kube_core::Resource;
use skyward_api::labels;
pub use skyward_core::Key;

/// Namespace and name of an object.
pub fn key_of<K: Resource>(object: &K) -> Key {
    Key::new(
        object.meta().namespace.clone().unwrap_or_default(),
        object.meta().name.clone().unwrap_or_default(),
    )
}

/// Whether our finalizer is on an object.
pub fn is_held<K: Resource>(object: &K) -> bool {
    let mut finalizers = object.meta().finalizers.iter().flatten();
    finalizers.any(|name| name == labels::FINALIZER)
}

/// When an object was created.
pub fn created_at<K: Resource>(object: &K) -> Timestamp {
    let created = object.meta().creation_timestamp.as_ref();
    created.map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}
