//! The interface between a cloud's folder and the registry, which stands above the clouds and lists
//! them; and how settings are read.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use skyward_core::{Account, Capabilities, CredentialKey, ErrorKind, Provider, ProviderError, Secret};

use crate::digest;

/// The client of an account.
pub type Connected = Result<Arc<dyn Provider>, ProviderError>;

/// A cloud's folder, for the registry.
pub trait Kind {
    /// Name of the kind: its field in a Provider's spec.
    const NAME: &'static str;
    /// Keys of its Secret.
    const CREDENTIALS: &'static [CredentialKey];
    /// Names of the addresses of its APIs, with the cloud's own.
    const ENDPOINTS: &'static [(&'static str, &'static str)];
    /// What it can do.
    const CAPABILITIES: &'static Capabilities;
    /// Settings that a Pool cannot override: they decide what is offered, or are of the account.
    const FIXED: &'static [&'static str];
    /// Its settings. Fields that it does not know are refused.
    type Settings: JsonSchema + DeserializeOwned;
    /// Makes the client of an account; no call is made yet.
    fn connect(account: Account<Self::Settings>) -> Connected;
}

/// The id of an account at a cloud that tells none: `key` or `client` with a digest of its
/// credentials.
pub fn account_id(what: &str, credentials: &Secret) -> String {
    format!("{what}-{}", digest(credentials.expose(), 16))
}

/// Settings as a type, or an error that names the field.
pub fn settings_of<T: DeserializeOwned>(
    kind: &'static str,
    settings: serde_json::Value,
) -> Result<T, ProviderError> {
    serde_json::from_value(settings).map_err(|error| {
        ProviderError::new(
            ErrorKind::InvalidOrder,
            "read the settings",
            format!("{kind}: {error}"),
        )
    })
}

/// The settings of one machine: the Provider's, with the overrides of its Pool.
pub fn overridden<T: DeserializeOwned>(
    kind: &'static str,
    settings: &serde_json::Value,
    overrides: &serde_json::Value,
) -> Result<T, ProviderError> {
    let mut merged = settings.clone();
    if let (Some(merged), Some(overrides)) = (merged.as_object_mut(), overrides.as_object()) {
        for (name, value) in overrides {
            merged.insert(name.clone(), value.clone());
        }
    }
    settings_of(kind, merged).map_err(|mut error| {
        error
            .message
            .push_str("; correct candidates[].settings of the Pool");
        error
    })
}
