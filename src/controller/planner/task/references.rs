//! The environment from the Secrets and ConfigMaps that a Task and its Pool name.

use std::{collections::BTreeMap, fmt, sync::Arc};

use skyward_api::condition::reason;

/// Environment read from Secrets and ConfigMaps.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The variables; a later reference overrides the variables of earlier ones.
    pub env: BTreeMap<String, String>,
    /// Values that came from Secrets, each once, to be masked where output is shown. Environments
    /// with the same values share one copy.
    pub secrets: Arc<Vec<String>>,
}

impl Resolved {
    /// Only the values to mask, which are still needed once the work has its environment.
    #[must_use]
    pub fn to_be_masked(&self) -> Self {
        Self {
            env: BTreeMap::new(),
            secrets: self.secrets.clone(),
        }
    }
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env, secrets } = self;
        f.debug_struct("Resolved")
            .field("env", &env.len())
            .field("secrets", &secrets.len())
            .finish()
    }
}

/// Why references could not be resolved to an environment; for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// Reason of the condition that says so.
    pub reason: &'static str,
    /// What is wrong, and what helps.
    pub message: String,
}

impl<T: Into<String>> From<T> for Unresolved {
    fn from(message: T) -> Self {
        Self {
            reason: reason::REFERENCE_NOT_FOUND,
            message: message.into(),
        }
    }
}
