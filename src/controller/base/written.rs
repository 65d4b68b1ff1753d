//! JSON of users as they wrote it.
//!
//! `kubectl apply` drops each null that is the value of a map before it sends a new object, and keeps the object as it was
//! written in an annotation. Where that annotation differs from what was received only by such nulls, they count; any other
//! annotation is ignored.

use kube::ResourceExt;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use skyward_api::for_each::Matrix;

/// Where `kubectl apply` keeps the object as it was written.
pub(crate) const WRITTEN: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What was received at that place (a JSON pointer) of an object, with the nulls that its user wrote there.
pub(crate) fn with_nulls(object: &impl ResourceExt, place: &str, received: Value) -> Value {
    let annotation = object.annotations().get(WRITTEN);
    let mut written: Value = annotation
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default();
    let written = written.pointer_mut(place).map(Value::take).unwrap_or_default();
    if without_nulls(&written) == received {
        written
    } else {
        received
    }
}

/// Gives what was received at that place of an object the nulls that its user wrote there.
pub(crate) fn restore<T: Serialize + DeserializeOwned>(
    object: &impl ResourceExt,
    place: &str,
    received: &mut T,
) {
    let Ok(value) = serde_json::to_value(&*received) else {
        return;
    };
    if let Ok(written) = serde_json::from_value(with_nulls(object, place, value)) {
        *received = written;
    }
}

/// Gives a matrix at that place its nulls. Each of its fields alone: as JSON it has `axes` also where its user wrote none.
pub(crate) fn restore_matrix(object: &impl ResourceExt, place: &str, matrix: &mut Matrix) {
    restore(object, &format!("{place}/axes"), &mut matrix.axes);
    restore(object, &format!("{place}/include"), &mut matrix.include);
    restore(object, &format!("{place}/exclude"), &mut matrix.exclude);
}

/// The value without each null of a map, at any depth; those of lists stay.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Array(entries) => entries.iter().map(without_nulls).collect(),
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            let kept = kept.map(|(name, value)| (name.clone(), without_nulls(value)));
            Value::Object(kept.collect::<Map<_, _>>())
        }
        other => other.clone(),
    }
}
