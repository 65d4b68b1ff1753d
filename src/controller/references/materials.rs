//! The data from Secrets and ConfigMaps of the Pool's namespace that prepares a machine:
//! certificates, variables of the steps, credentials of package indexes. It is read when an environment
//! is made, and for its hash; only sessions hold it, and sessions with the same data share one copy.

use std::{collections::BTreeMap, sync::Arc};

use skyward_api::{
    pool::{Image, PipIndex},
    shared::LocalRef,
};
use skyward_core::Secret;
use skyward_planner::pool::environment::Contents;

use super::{CERTIFICATES, PASSWORD, References, bounded, lines};

/// Keys of a Secret with credentials, as Secrets of type `kubernetes.io/basic-auth` have them.
const USERNAME: &str = "username";
/// Name that package indexes expect with a token.
const TOKEN_USER: &str = "__token__";

/// Data that a machine is prepared with, besides the fields of its Pool.
#[derive(Clone, Default)]
pub struct Materials {
    /// Certificates to trust, from `image.caBundleRef`.
    pub ca_bundle: Option<Arc<str>>,
    /// Variables of the steps, from `image.stepsEnvFrom`.
    pub steps_env: Arc<BTreeMap<String, Secret>>,
    /// User and password of each of `image.pipIndexes`.
    pub credentials: Vec<Option<(Secret, Secret)>>,
    /// Values to mask in all output.
    pub masked: Arc<Vec<Secret>>,
}

impl Materials {
    /// What of them makes one environment another one.
    pub(crate) fn contents(&self) -> Contents<'_> {
        Contents {
            ca_bundle: self.ca_bundle.as_deref(),
            steps_env: &self.steps_env,
            credentials: &self.credentials,
        }
    }
}

/// The subject of the message that something is missing or too large.
const WAITING: &str = "the Machine";

/// Reads the data; the error is for the user.
pub(crate) async fn gather(
    references: &References,
    namespace: &str,
    image: &Image,
) -> Result<Materials, String> {
    let ca_bundle = match &image.ca_bundle_ref {
        None => None,
        Some(reference) => {
            let found = references
                .config_map_key(namespace, &reference.name, CERTIFICATES)
                .await?;
            if found.is_none() && !reference.optional {
                return Err(format!(
                    "ConfigMap \"{}\" of namespace \"{namespace}\" has no key {CERTIFICATES}; add it, or remove image.caBundleRef",
                    reference.name
                ));
            }
            found.map(|found| references.bundles.share(found))
        }
    };
    let resolved = references
        .resolve(namespace, &image.steps_env_from, WAITING)
        .await
        .map_err(|error| error.message)?;
    let mut masked: Vec<String> = resolved.secrets.to_vec();
    let mut credentials = Vec::new();
    for index in &image.pip_indexes {
        let known = match &index.credentials_secret_ref {
            None => None,
            Some(reference) => {
                let texts = references.secret(namespace, &reference.name).await?;
                credentials_of(namespace, index, reference, texts.as_deref())?
            }
        };
        if let Some((user, password)) = &known {
            masked.extend([password.clone(), format!("{user}:{password}")]);
        }
        credentials.push(known.map(|(user, password)| (Secret::new(user), Secret::new(password))));
    }
    let bytes = masked.iter().map(String::len).sum();
    let lines = masked.iter().map(|value| lines(value)).sum();
    bounded(bytes, lines, WAITING).map_err(|error| error.message)?;
    let steps_env: BTreeMap<_, _> = resolved
        .env
        .into_iter()
        .map(|(name, value)| (name, Secret::new(value)))
        .collect();
    let masked: Vec<_> = masked.into_iter().map(Secret::new).collect();
    Ok(Materials {
        ca_bundle,
        steps_env: references.steps_env.share(steps_env),
        credentials,
        masked: references.masked.share(masked),
    })
}

/// User and password of an index; the error is for the user.
fn credentials_of(
    namespace: &str,
    index: &PipIndex,
    reference: &LocalRef,
    texts: Option<&BTreeMap<String, String>>,
) -> Result<Option<(String, String)>, String> {
    let password = texts.and_then(|texts| texts.get(PASSWORD));
    match (texts, password) {
        (None, _) if reference.optional => Ok(None),
        (None, _) => Err(format!(
            "there is no Secret \"{}\" in namespace \"{namespace}\" with the credentials of {}; create it, and the Machine goes on by itself",
            reference.name, index.url
        )),
        (Some(_), None) => Err(format!(
            "Secret \"{}\" of namespace \"{namespace}\" has no key {PASSWORD}; add it, and {USERNAME} where {} wants one",
            reference.name, index.url
        )),
        // `echo` and editors leave a line feed there.
        (Some(texts), Some(password)) => {
            let user = texts.get(USERNAME).map_or(TOKEN_USER, String::as_str);
            let bare = |text: &str| text.trim_end_matches(['\r', '\n']).to_owned();
            Ok(Some((bare(user), bare(password))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: Option<&[(&str, &str)]>, optional: bool) -> Result<Option<(String, String)>, String> {
        let index = PipIndex {
            url: "https://index.example/simple".into(),
            credentials_secret_ref: None,
            packages: Vec::new(),
        };
        let reference = LocalRef {
            name: "index".into(),
            optional,
        };
        let texts = texts.map(|texts| {
            let owned = texts
                .iter()
                .map(|&(key, value)| (key.to_owned(), value.to_owned()));
            owned.collect()
        });
        credentials_of("team", &index, &reference, texts.as_ref())
    }

    #[test]
    fn credentials_are_those_of_a_basic_auth_secret_or_a_token_alone() {
        let pair = |user: &str, password: &str| Ok(Some((user.to_owned(), password.to_owned())));
        assert_eq!(
            of(Some(&[("username", "robot"), ("password", "p\n")]), false),
            pair("robot", "p")
        );
        assert_eq!(
            of(Some(&[("password", "pypi-x")]), false),
            pair("__token__", "pypi-x")
        );
        assert_eq!(of(None, true), Ok(None));
        let missing = of(None, false).unwrap_err();
        assert!(missing.contains("there is no Secret \"index\""), "{missing}");
        let keyless = of(Some(&[("token", "canary")]), true).unwrap_err();
        assert!(
            keyless.contains("has no key password") && !keyless.contains("canary"),
            "{keyless}"
        );
    }
}
