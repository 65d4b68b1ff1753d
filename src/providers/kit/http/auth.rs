//! How calls authenticate: with a fixed key, or with a token ([`Tokens`]) that is renewed before it
//! ends.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue};
use skyward_core::{ErrorKind, ProviderError, Secret};

use super::{
    Http,
    token::{Grant, ServiceAccount, Tokens},
};

/// How calls authenticate.
pub enum Auth {
    /// `Authorization: Bearer` with a key.
    Bearer(Secret),
    /// A key in a header of the cloud's own.
    Header {
        /// Name of the header, such as `x-auth-token`.
        name: &'static str,
        /// Prefix of the key, with its space: `Token `.
        prefix: &'static str,
        /// The key.
        key: Secret,
    },
    /// `Authorization: Bearer` with a token that ends.
    Tokens(Box<Tokens>),
}

/// The header of one call.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) name: HeaderName,
    pub(super) value: HeaderValue,
}

impl Auth {
    /// A bare key in a header of the cloud's own.
    pub fn header_of(name: &'static str, key: Secret) -> Self {
        let prefix = "";
        Self::Header { name, prefix, key }
    }

    /// A client that gets its tokens at this path of the API by the OAuth2 grant for clients
    /// (RFC 6749, 4.4). `remedy` says what to do when the cloud refuses them.
    pub fn client(path: &'static str, id: String, secret: Secret, remedy: &'static str) -> Self {
        Self::Tokens(Box::new(Tokens::new(Grant::Client { path, id, secret }, remedy)))
    }

    /// A service account that gets its tokens for an assertion that it signs (RFC 7523). `remedy`
    /// says what to do when the cloud refuses it.
    pub fn service_account(account: ServiceAccount, remedy: &'static str) -> Self {
        Self::Tokens(Box::new(Tokens::new(Grant::ServiceAccount(account), remedy)))
    }

    /// The service account that the machine or the Pod of this process has: its metadata server gives tokens at
    /// this address. `remedy` says what to do where there is none.
    pub fn metadata(address: String, remedy: &'static str) -> Self {
        Self::Tokens(Box::new(Tokens::new(Grant::Metadata { address }, remedy)))
    }

    /// The header, got or renewed first where that is due.
    pub(super) async fn header(
        &self,
        http: &Http,
        operation: &'static str,
        limit: Duration,
    ) -> Result<Shown, ProviderError> {
        match self {
            Self::Bearer(key) => Shown::bearer(key.expose(), operation),
            Self::Header { name, prefix, key } => {
                let name = HeaderName::try_from(*name).map_err(|_| {
                    ProviderError::new(
                        ErrorKind::Unsupported,
                        operation,
                        format!("{name} is no name of a header"),
                    )
                })?;
                Shown::new(name, prefix, key.expose(), operation)
            }
            Self::Tokens(tokens) => tokens.header(http, operation, limit).await,
        }
    }

    /// Forgets a header that was refused; whether there can be another.
    pub(super) fn renew(&self, refused: Option<&Shown>) -> bool {
        match self {
            Self::Bearer(_) | Self::Header { .. } => false,
            Self::Tokens(tokens) => {
                tokens.forget(refused);
                true
            }
        }
    }
}

impl Shown {
    pub(super) fn bearer(key: &str, operation: &'static str) -> Result<Self, ProviderError> {
        Self::new(AUTHORIZATION, "Bearer ", key, operation)
    }

    fn new(
        name: HeaderName,
        prefix: &str,
        key: &str,
        operation: &'static str,
    ) -> Result<Self, ProviderError> {
        let mut value = HeaderValue::from_str(&format!("{prefix}{}", key.trim())).map_err(|_| {
            ProviderError::new(
                ErrorKind::Credentials,
                operation,
                "the key has characters that no key has, such as a line break; write it into the Secret again",
            )
        })?;
        value.set_sensitive(true);
        Ok(Self { name, value })
    }
}
