//! Words in statuses that a newer version wrote and this one does not know.

use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, IntoDeserializer,
        value::{Error, StringDeserializer},
    },
};

/// Reads a word that only tells users something. After a rollback it may be one that this version does not know: it is as if
/// it were not there. An object that could not be read would be left alone, and what it pays for with it.
pub(crate) fn if_known<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned,
{
    let word = Option::<String>::deserialize(deserializer)?;
    Ok(word.and_then(|word| {
        let word: StringDeserializer<Error> = word.into_deserializer();
        T::deserialize(word).ok()
    }))
}
