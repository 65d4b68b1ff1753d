//! What an operation works on, and what this AWS remembers besides the world.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::failure::Failure;
use super::imds::Sessions;
use super::service::Service;
use super::sigv4::hex;
use super::spot::SpotMarket;
use super::sts::{Assumed, name_of_caller};
use crate::core::cloud::Visit;

/// What this AWS remembers besides machines and resources.
#[derive(Debug, Default)]
pub struct State {
    /// Spot prices and their past.
    pub spot: SpotMarket,
    /// Fleets, by id.
    pub fleets: BTreeMap<String, Value>,
    /// Rules of the groups that networks have by themselves, by account and group, where
    /// somebody has changed them.
    pub default_rules: BTreeMap<(String, String), Value>,
    /// Answers by client token.
    pub tokens: BTreeMap<String, Remembered>,
    /// Whether a token is also of the launch template that a name led to: one that was made anew under
    /// the same name is another one. What EC2 does is not documented.
    pub compares_templates: bool,
    /// Actions that an account may not do (`ec2:CreateFleet`).
    pub denied: BTreeMap<String, BTreeSet<String>>,
    /// Instance profiles that exist, by name.
    pub profiles: BTreeSet<String>,
    /// Session tokens of temporary credentials, by access key.
    pub session_tokens: BTreeMap<String, String>,
    /// The roles that temporary credentials are for, by access key.
    pub roles: BTreeMap<String, Assumed>,
    /// Tokens of the metadata service.
    pub sessions: Sessions,
}

/// The answer to a call with a client token.
#[derive(Debug, Clone)]
pub struct Remembered {
    /// Digest of the parameters.
    parameters: String,
    /// The answer.
    pub answer: Value,
}

/// What an operation works on.
pub struct Context<'a, 'w> {
    /// What is remembered.
    pub state: &'a mut State,
    /// The call and the world.
    pub visit: &'a mut Visit<'w>,
    /// The region of the call.
    pub region: String,
}

impl Context<'_, '_> {
    /// A new id, as `i-0123456789abcdef0`.
    pub fn id(&mut self, prefix: &str) -> String {
        format!("{prefix}-0{}", self.visit.world.chance.hex(16))
    }

    /// Now, as answers have it.
    pub fn moment(&self) -> String {
        moment(self.visit.now())
    }

    /// Fails when the account may not do this.
    pub fn may(&self, action: &str) -> Result<(), Failure> {
        let denied = self.state.denied.get(&self.visit.account);
        if !denied.is_some_and(|actions| actions.contains(action)) {
            return Ok(());
        }
        Err(match action.split_once(':') {
            Some(("ssm", _)) => Failure::forbidden(Service::Ssm),
            Some(("pricing", _)) => Failure::forbidden(Service::Pricing),
            Some(("servicequotas", _)) => Failure::forbidden(Service::Quotas),
            Some(("sts", _)) => Failure::forbidden(Service::Sts),
            // What a launch needs of other services is refused by EC2 as well.
            _ => Failure::not_allowed(&name_of_caller(self), action),
        })
    }

    /// The answer that was given to this client token before. The same token with
    /// other parameters fails.
    pub fn remembered(
        &self,
        operation: &str,
        token: Option<&str>,
        input: &Value,
    ) -> Result<Option<Value>, Failure> {
        let Some(found) = token.and_then(|token| self.state.tokens.get(&self.token_key(operation, token)))
        else {
            return Ok(None);
        };
        if found.parameters == digest(input) {
            return Ok(Some(found.answer.clone()));
        }
        Err(Failure::client(
            "IdempotentParameterMismatch",
            "The client token you have provided has already been used with different parameters.",
        ))
    }

    /// Remembers the answer to a client token.
    pub fn remember(&mut self, operation: &str, token: Option<&str>, input: &Value, answer: &Value) {
        if let Some(token) = token {
            let key = self.token_key(operation, token);
            self.state.tokens.insert(
                key,
                Remembered {
                    parameters: digest(input),
                    answer: answer.clone(),
                },
            );
        }
    }

    fn token_key(&self, operation: &str, token: &str) -> String {
        format!("{}/{}/{operation}/{token}", self.visit.account, self.region)
    }
}

/// A moment as answers have it.
pub fn moment(at: jiff::Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.000Z").to_string()
}

/// Digits that stand for some text, the same each time.
pub fn digits(text: &str, length: usize) -> String {
    hex(&Sha256::digest(text.as_bytes()))
        .chars()
        .take(length)
        .collect()
}

fn digest(input: &Value) -> String {
    hex(&Sha256::digest(input.to_string().as_bytes()))
}
