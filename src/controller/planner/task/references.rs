//! What a Task takes from objects that it and its Pool name: the environment, and its files.

use std::{collections::BTreeMap, fmt, sync::Arc};

use skyward_api::{condition::reason, task::Source};

/// What was read from Secrets and ConfigMaps.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The variables; a later reference overrides the variables of earlier ones.
    pub env: BTreeMap<String, String>,
    /// Values that came from Secrets, each once, to be masked where output is shown. Environments
    /// with the same values share one copy.
    pub secrets: Arc<Vec<String>>,
    /// Digest of the Task's files, if it has a source.
    pub source: Option<String>,
}

impl Resolved {
    /// Only the values to mask, which are still needed once the work has its environment.
    #[must_use]
    pub fn to_be_masked(&self) -> Self {
        Self {
            env: BTreeMap::new(),
            secrets: self.secrets.clone(),
            source: None,
        }
    }
}

impl fmt::Debug for Resolved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env, secrets, source } = self;
        f.debug_struct("Resolved")
            .field("env", &env.len())
            .field("secrets", &secrets.len())
            .field("source", source)
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

/// Refuses files that are not those of the first attempt: all attempts and ranks of a Task have the same.
pub fn unchanged(
    source: Option<&Source>,
    recorded: Option<&str>,
    found: Option<&str>,
) -> Result<(), Unresolved> {
    let Some(recorded) = recorded.filter(|recorded| found != Some(*recorded)) else {
        return Ok(());
    };
    // A commit does not change: its files are not read anew.
    if source.is_some_and(|source| source.git.is_some()) {
        return Ok(());
    }
    let map = source.and_then(|source| source.config_map.as_ref());
    let name = map.map_or_else(
        || "spec.source".to_owned(),
        |map| format!("ConfigMap \"{}\"", map.name),
    );
    let found = found.unwrap_or("none");
    Err(Unresolved {
        reason: reason::SOURCE_CHANGED,
        message: format!(
            "{name} has other content than at the first attempt of this Task ({recorded} then, {found} now), and all attempts of a Task run the same code; put that content back and the Task goes on by itself, or create another Task for the new one"
        ),
    })
}

#[cfg(test)]
mod tests {
    use skyward_api::task::ConfigMapSource;

    use super::*;

    #[test]
    fn only_the_files_of_the_first_attempt_run_in_a_later_one() {
        let source = Source {
            config_map: Some(ConfigMapSource { name: "code".into() }),
            ..Source::default()
        };
        for (recorded, found, goes_on) in [
            (None, None, true),
            (None, Some("sha256:a"), true),
            (Some("sha256:a"), Some("sha256:a"), true),
            (Some("sha256:a"), Some("sha256:b"), false),
            (Some("sha256:a"), None, false),
        ] {
            let result = unchanged(Some(&source), recorded, found);
            assert_eq!(result.is_ok(), goes_on, "{recorded:?} {found:?}");
            if let Err(error) = result {
                assert_eq!(error.reason, reason::SOURCE_CHANGED);
                assert!(error.message.contains("ConfigMap \"code\""), "{}", error.message);
            }
        }
    }
}
