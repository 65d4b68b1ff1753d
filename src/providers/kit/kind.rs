//! The interface between a cloud's folder and the registry, which stands above the clouds and lists
//! them; and how settings are read.

use std::{sync::Arc, time::Duration};

use serde::de::DeserializeOwned;
use serde_json::Value;
pub use skyward_api::crd::settings_schema;
use skyward_core::{
    Account, Capabilities, CredentialKey, Credentials, Endpoints, ErrorKind, Provider, ProviderError, Secret,
};

use crate::{
    digest,
    http::{Answer, Auth, Http, Limits, Rest, Rule, Setup},
    lookup::{self, Service},
    without_value,
};

/// Longest wait for one answer of a cloud, where neither its kind nor the Provider says another.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The client of an account.
pub type Connected = Result<Arc<dyn Provider>, ProviderError>;

/// A kind of provider that is reached by its API over HTTP, as the registry lists it.
pub struct Cloud {
    /// Name of the kind: its field in a Provider's spec.
    pub name: &'static str,
    /// Keys of its Secret.
    pub credentials: &'static [CredentialKey],
    /// Names of the addresses of its APIs, with the cloud's own.
    pub endpoints: &'static [(&'static str, &'static str)],
    /// What it can do.
    pub capabilities: &'static Capabilities,
    /// Settings that a Pool cannot override: they decide what is offered, or are of the account.
    pub fixed: &'static [&'static str],
    /// How often a client of an account calls at most.
    pub limits: &'static [Rule],
    /// Longest wait for one answer, where the Provider says none.
    pub request_timeout: Duration,
    /// Schema of its settings. Fields that it does not know are refused.
    pub schema: fn() -> Value,
    /// Makes the client of an account; no call is made yet.
    pub connect: fn(Account) -> Connected,
}

impl Cloud {
    /// The kind of a cloud without idempotency tokens.
    pub const fn of<K: Kind>() -> Self {
        Self {
            name: K::CAPABILITIES.kind,
            credentials: K::CREDENTIALS,
            endpoints: K::ENDPOINTS,
            capabilities: K::CAPABILITIES,
            fixed: K::FIXED,
            limits: K::LIMITS,
            request_timeout: K::REQUEST_TIMEOUT,
            schema: settings_schema::<K::Settings>,
            connect: connect::<K>,
        }
    }
}

/// What tells a cloud with one REST API and without idempotency tokens from others, besides its
/// calls.
pub trait Kind: Service + Sized {
    /// Its name, for people.
    const CLOUD: &'static str;
    /// Keys of its Secret.
    const CREDENTIALS: &'static [CredentialKey];
    /// Name of the address of its API, and the cloud's own.
    const ENDPOINT: (&'static str, &'static str);
    /// The same with those of its other APIs: one of each region ([`Rest::to`]), or one that gives tokens
    /// ([`Kind::auth_at`]).
    const ENDPOINTS: &'static [(&'static str, &'static str)] = &[Self::ENDPOINT];
    /// Settings that a Pool cannot override.
    const FIXED: &'static [&'static str];
    /// How often calls may go. None: the limits are not published, and only a 429 shows them.
    const LIMITS: &'static [Rule] = &[];
    /// Longest wait for one answer, where the Provider says none. No wait outlasts its operation
    /// ([`Service::OPERATION`]).
    const REQUEST_TIMEOUT: Duration = REQUEST_TIMEOUT;
    /// Reads a failure.
    const ERROR: fn(&Answer) -> ProviderError;
    /// What the first key of the Secret is. With a digest of its value this word stands for the id of
    /// an account at a cloud that tells none.
    const IDENTITY: &'static str = "key";

    /// How calls authenticate.
    fn auth(credentials: &Credentials) -> Result<Auth, ProviderError> {
        Ok(Auth::Bearer(first::<Self>(credentials)?))
    }

    /// The same, where tokens come from other addresses than the API's own.
    fn auth_at(credentials: &Credentials, _endpoints: &Endpoints) -> Result<Auth, ProviderError> {
        Self::auth(credentials)
    }

    /// Settings with what the Secret has of them.
    fn complete(
        settings: Self::Settings,
        _credentials: &Credentials,
    ) -> Result<Self::Settings, ProviderError> {
        Ok(settings)
    }

    /// The calls of an account with these settings.
    fn new(rest: Rest, settings: Self::Settings) -> Self;
}

/// The value of the first key of a Secret.
fn first<K: Kind>(credentials: &Credentials) -> Result<Secret, ProviderError> {
    credentials.token(K::CREDENTIALS.first().map_or("", |key| key.name))
}

/// Stands for the account's id where the cloud tells none. A cloud that needs no key of a Secret tells one.
fn identity<K: Kind>(credentials: &Credentials) -> String {
    let first = K::CREDENTIALS.first().and_then(|key| credentials.get(key.name));
    let value = first.map_or("", |secret| secret.expose().trim());
    format!("{}-{}", K::IDENTITY, digest(value, 16))
}

fn connect<K: Kind>(account: Account) -> Connected {
    let settings = settings_of(K::CAPABILITIES.kind, account.settings.clone())?;
    let settings = K::complete(settings, &account.credentials)?;
    let identity = identity::<K>(&account.credentials);
    let addresses = K::ENDPOINTS.iter();
    let addresses = addresses.map(|own| (own.0, account.endpoints.or_own(*own)));
    let addresses = addresses.collect();
    let http = Http::new(Setup {
        cloud: K::CLOUD,
        base: account.endpoints.or_own(K::ENDPOINT),
        auth: K::auth_at(&account.credentials, &account.endpoints)?,
        limits: Limits::new(K::LIMITS.to_vec()),
        request_timeout: account.request_timeout,
        fence: account.fence,
    })?;
    Ok(lookup::provider(
        K::new(Rest::new(http, K::ERROR).with(addresses), settings),
        account.settings,
        identity,
    ))
}

/// Settings as a type, or an error that names the field.
pub fn settings_of<T: DeserializeOwned>(kind: &'static str, settings: Value) -> Result<T, ProviderError> {
    serde_json::from_value(settings).map_err(|error| {
        ProviderError::new(
            ErrorKind::InvalidOrder,
            "read the settings",
            format!("{kind}: {}", without_value(&error)),
        )
    })
}

/// The settings of one machine: the Provider's, with the overrides of its Pool.
pub fn overridden<T: DeserializeOwned>(
    kind: &'static str,
    settings: &Value,
    overrides: &Value,
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
