//! Customers of a cloud and their credentials.

use std::collections::BTreeMap;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

/// The id of an account.
pub type AccountId = String;

/// One customer: machines, quotas and money are counted by account.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// The id that the cloud shows (AWS account number, user id).
    pub id: AccountId,
    /// The credentials that authenticate it.
    pub credentials: Vec<Credential>,
    /// The highest number of something, by the cloud's own name for it.
    #[serde(default)]
    pub quotas: BTreeMap<String, u64>,
    /// Prepaid money; `None` when bills come later. Only read by clouds that refuse without it.
    #[serde(default)]
    pub balance: Option<Decimal>,
}

/// A pair that a client holds: an API key has an id that equals its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credential {
    /// Client id, access key id; for plain API keys the key itself.
    pub id: String,
    /// The secret half.
    pub secret: String,
    /// Whether the cloud still accepts it.
    #[serde(default)]
    pub state: CredentialState,
}

/// Whether a credential works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CredentialState {
    /// It works.
    #[default]
    Valid,
    /// It was revoked.
    Revoked,
    /// It has expired.
    Expired,
    /// It is known, but may do nothing.
    Forbidden,
}

impl Account {
    /// An account with one plain API key.
    pub fn with_key(id: &str, key: &str) -> Self {
        Self::with_pair(id, key, key)
    }

    /// An account with one pair of id and secret.
    pub fn with_pair(id: &str, key_id: &str, secret: &str) -> Self {
        Self {
            id: id.to_owned(),
            credentials: vec![Credential {
                id: key_id.to_owned(),
                secret: secret.to_owned(),
                state: CredentialState::Valid,
            }],
            ..Self::default()
        }
    }
}
