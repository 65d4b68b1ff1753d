//! What the client of an account is made from: settings, credentials, addresses.

use std::{collections::BTreeMap, fmt, time::Duration};

use crate::{
    error::{ErrorKind, ProviderError},
    fence::Fence,
    secret::Secret,
};

/// Everything that a kind of provider needs to make the client of one account.
#[derive(Clone, Debug)]
pub struct Account {
    /// Name of the Provider object.
    pub provider: String,
    /// The settings of the Provider object, as they are written.
    pub settings: serde_json::Value,
    /// Longest wait for one answer of the cloud.
    pub request_timeout: Duration,
    /// The Secret that it names.
    pub credentials: Credentials,
    /// Where the APIs are.
    pub endpoints: Endpoints,
    /// Closed when nothing may be changed at the cloud any more.
    pub fence: Fence,
}

/// One key of the Secret of a kind of provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CredentialKey {
    /// Name of the key: that of the environment variable of the Python library.
    pub name: &'static str,
    /// Whether nothing works without it.
    pub required: bool,
    /// What it is and where to get it, for people.
    pub what: &'static str,
}

/// The content of a Secret. Printing shows the names of its keys only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials(BTreeMap<String, Secret>);

impl Credentials {
    /// Credentials by name.
    pub fn new(keys: impl IntoIterator<Item = (String, Secret)>) -> Self {
        Self(keys.into_iter().collect())
    }

    /// One of them; a blank value counts as absent.
    pub fn get(&self, name: &str) -> Option<&Secret> {
        self.0
            .get(name)
            .filter(|secret| !secret.expose().trim().is_empty())
    }

    /// One of them, or an error that says what to do.
    pub fn require(&self, name: &str) -> Result<&Secret, ProviderError> {
        self.get(name).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::CredentialsMissing,
                "use the credentials",
                format!("the Secret has no key {name}"),
            )
        })
    }

    /// One of them without the white space around it, such as the line break of a file.
    pub fn token(&self, name: &str) -> Result<Secret, ProviderError> {
        Ok(Secret::new(self.require(name)?.expose().trim()))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names of the keys.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Addresses of APIs that differ from the clouds' own: flags of the operator, for tests
/// and proxies. Never fields of an object, where a free URL would carry Secrets away.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints(BTreeMap<String, String>);

impl Endpoints {
    /// Addresses by name, such as `verda` or `aws-ec2`.
    pub fn new(addresses: impl IntoIterator<Item = (String, String)>) -> Self {
        Self(
            addresses
                .into_iter()
                .map(|(name, address)| (name, address.trim_end_matches('/').to_owned()))
                .collect(),
        )
    }

    /// The address under this name, if it differs from the cloud's own.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The address under the name of a cloud's own, or that.
    pub fn or_own(&self, (name, own): (&str, &str)) -> String {
        self.get(name).unwrap_or(own).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blank_key_is_absent_and_values_are_never_printed() {
        let credentials = Credentials::new([
            ("A".to_owned(), Secret::new(" \n")),
            ("B".to_owned(), Secret::new("canary\n")),
        ]);
        assert!(credentials.get("A").is_none());
        let error = credentials.require("A").unwrap_err();
        assert_eq!(error.kind, ErrorKind::CredentialsMissing);
        assert!(error.message.contains("no key A"));
        assert_eq!(credentials.require("B").map(Secret::expose), Ok("canary\n"));
        assert_eq!(credentials.token("B").unwrap().expose(), "canary");
        assert_eq!(format!("{credentials:?}"), r#"{"A", "B"}"#);
    }
}
