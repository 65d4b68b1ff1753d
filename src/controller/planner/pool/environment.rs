//! What makes one environment another one: the text that its hash is made of. Pure; the key of the hash is the
//! controller's, since a short password could be guessed from a digest without a key.
//!
//! `env` and `envFrom` are not part of it: runs get them when they start, and a change of them alone
//! makes nothing again.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};
use skyward_api::{Pool, pool::Image};
use skyward_core::Secret;

use crate::base::digest::short_digest;

/// Digits of an environment's hash.
pub const HASH: usize = 12;
/// Digits of the digest of one entry of `image.apt`, in the record of a Machine.
const APT: usize = 8;

/// The content of the Secrets and ConfigMaps that the steps read.
#[derive(Clone, Copy, Debug)]
pub struct Contents<'a> {
    /// Of `caBundleRef`.
    pub ca_bundle: Option<&'a str>,
    /// Of `stepsEnvFrom`.
    pub steps_env: &'a BTreeMap<String, Secret>,
    /// User and password of each of `pipIndexes`.
    pub credentials: &'a [Option<(Secret, Secret)>],
}

/// The canonical text of an environment: images that differ in the order of their packages only have
/// the same.
pub fn canonical(image: &Image, contents: &Contents<'_>) -> Secret {
    let sorted = |entries: &[String]| -> Vec<String> {
        let trimmed = entries.iter().map(|entry| entry.trim().to_owned());
        trimmed.collect::<BTreeSet<_>>().into_iter().collect()
    };
    let steps_env: BTreeMap<&str, &str> = contents
        .steps_env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    let mut credentials = contents.credentials.iter();
    // Their order counts: a package that two of them list comes from the first.
    let indexes: Vec<Value> = image
        .pip_indexes
        .iter()
        .map(|index| {
            let known = credentials.next().and_then(Option::as_ref);
            json!({
                "url": without_user(&index.url),
                "packages": sorted(&index.packages),
                "credentials": known.map(|(user, password)| [user.expose(), password.expose()]),
            })
        })
        .collect();
    let text = json!({
        "python": image.python.as_deref().unwrap_or("auto"),
        "apt": sorted(&image.apt),
        "pip": sorted(&image.pip),
        "pipIndexes": indexes,
        "shellVars": image.shell_vars,
        "caBundle": contents.ca_bundle,
        "stepsEnv": steps_env,
    });
    Secret::new(text.to_string())
}

/// A URL without the user that it may name: that one is no part of what is installed.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else {
        return url.to_owned();
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// Whether it is the turn of this Machine to change its environment.
pub fn has_turn(pool: Option<&Pool>, machine: &str) -> bool {
    let status = pool.and_then(|pool| pool.status.as_ref());
    let record = status.and_then(|status| status.environment.as_ref());
    record.is_some_and(|record| record.turn == machine)
}

/// Digests of Debian packages as a Machine's record has them: names of any length would make the
/// records of 500 Machines large.
pub fn apt_digests(image: Option<&Image>) -> BTreeSet<String> {
    let digest = |package: &String| {
        let mut digest = short_digest(package.trim().as_bytes());
        digest.truncate(APT);
        digest
    };
    image.map_or_else(BTreeSet::new, |image| image.apt.iter().map(digest).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(value: Value) -> Image {
        serde_json::from_value(value).unwrap()
    }

    fn text(value: Value) -> String {
        with(value, None, &[], &[])
    }

    fn with(
        value: Value,
        ca_bundle: Option<&str>,
        steps_env: &[(&str, &str)],
        credentials: &[Option<(Secret, Secret)>],
    ) -> String {
        let steps_env = steps_env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), Secret::new(*value)))
            .collect();
        let contents = Contents {
            ca_bundle,
            steps_env: &steps_env,
            credentials,
        };
        canonical(&image(value), &contents).expose().to_owned()
    }

    #[test]
    fn what_runs_get_when_they_start_makes_no_other_environment_and_the_order_of_packages_neither() {
        let base = json!({ "pip": ["numpy", "torch"], "apt": ["git", "curl"] });
        let same = json!({
            "pip": [" torch", "numpy"], "apt": ["curl", "git"], "python": "auto",
            "env": [{ "name": "A", "value": "b" }], "envFrom": [{ "secretRef": { "name": "s" } }],
        });
        assert_eq!(text(base), text(same));
    }

    #[test]
    fn each_part_that_steps_read_makes_another_environment() {
        let index = json!({ "pipIndexes": [{ "url": "https://x/simple", "packages": ["a"] }] });
        let password = |password: &str| [Some((Secret::new("robot"), Secret::new(password)))];
        let different = [
            text(json!({})),
            text(json!({ "python": "3.12" })),
            text(json!({ "pip": ["numpy"] })),
            text(json!({ "pip": ["numpy>=2"] })),
            text(json!({ "apt": ["numpy"] })),
            text(json!({ "shellVars": { "A": "echo" } })),
            text(index.clone()),
            text(json!({ "pipIndexes": [{ "url": "https://y/simple", "packages": ["a"] }] })),
            text(json!({ "pipIndexes": [{ "url": "https://x/simple", "packages": ["b"] }] })),
            with(index.clone(), None, &[], &password("canary-1")),
            with(index, None, &[], &password("canary-2")),
            with(json!({}), Some("certificate 1"), &[], &[]),
            with(json!({}), Some("certificate 2"), &[], &[]),
            with(json!({}), None, &[("https_proxy", "a")], &[]),
            with(json!({}), None, &[("https_proxy", "b")], &[]),
        ];
        let all: BTreeSet<&String> = different.iter().collect();
        assert_eq!(all.len(), different.len(), "{different:#?}");
    }

    #[test]
    fn the_text_of_an_environment_is_never_printed_and_a_user_in_a_url_is_no_part_of_it() {
        let steps_env = BTreeMap::from([("TOKEN".to_owned(), Secret::new("canary"))]);
        let contents = Contents {
            ca_bundle: None,
            steps_env: &steps_env,
            credentials: &[],
        };
        let text = canonical(&Image::default(), &contents);
        assert!(text.expose().contains("canary") && !format!("{text:?}").contains("canary"));
        for (url, bare) in [
            (
                "https://me:x@index.example/simple",
                "https://index.example/simple",
            ),
            (
                "https://index.example/@scope/simple",
                "https://index.example/@scope/simple",
            ),
            ("https://me@index.example", "https://index.example"),
            ("file:///srv", "file:///srv"),
            ("odd", "odd"),
        ] {
            assert_eq!(without_user(url), bare);
        }
    }

    #[test]
    fn debian_packages_are_recorded_by_short_digests() {
        let one = apt_digests(Some(&image(json!({ "apt": ["git", "git=1:2.39"] }))));
        assert_eq!(one.len(), 2);
        assert!(one.iter().all(|digest| digest.len() == APT));
        assert!(one.is_superset(&apt_digests(Some(&image(json!({ "apt": ["git"] }))))));
        assert!(apt_digests(None).is_empty());
    }
}
