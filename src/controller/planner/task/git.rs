//! What may be sent to a git host, and what a failed fetch means to its user.

use std::collections::BTreeMap;

use skyward_api::{condition::reason, task::GitSource};

use crate::task::references::Unresolved;

/// Keys of a Secret, as Secrets of the types `kubernetes.io/basic-auth` and `kubernetes.io/ssh-auth` have them.
const USERNAME: &str = "username";
const PASSWORD: &str = "password";
const SSH_KEY: &str = "ssh-privatekey";
/// The host that the Secret may be sent to.
const HOST: &str = "host";
/// User where the Secret names none: hosts that take tokens do not look at it.
const USER: &str = "git";

/// The credential for a git host. It has no `Debug`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credential {
    /// Which host it is for.
    pub host: String,
    /// Over https.
    pub username: String,
    /// Over https.
    pub password: String,
    /// Over ssh.
    pub ssh_key: String,
}

impl Credential {
    /// The message without the credential, which the machine that wrote it has.
    #[must_use]
    pub fn masked(&self, message: &str) -> String {
        let lines = self.ssh_key.lines().filter(|line| !line.starts_with("-----"));
        let secrets = lines.chain([self.password.as_str()]);
        secrets
            .filter(|secret| secret.len() >= 4)
            .fold(message.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

/// The credential in a Secret of that name, if it may be sent to the host of the source.
pub fn credential(
    source: &GitSource,
    name: &str,
    texts: &BTreeMap<String, String>,
) -> Result<Credential, Unresolved> {
    let refuse = |why: String| {
        Err(Unresolved {
            reason: reason::SOURCE_INVALID,
            message: format!("Secret \"{name}\" {why}; change the Secret, and the Task goes on by itself"),
        })
    };
    let host = source.host();
    let text = |key: &str| {
        texts
            .get(key)
            .map_or("", |text| text.trim_end_matches(['\r', '\n']))
    };
    if text(HOST) != host {
        return refuse(if text(HOST).is_empty() {
            format!("has no key \"{HOST}\", which names the host that it may be sent to: here {host}")
        } else {
            // A reader of the Task may not be a reader of the Secret: its host is not repeated.
            format!("is for another host than {host}, by its key \"{HOST}\"")
        });
    }
    let credential = if source.is_ssh() {
        Credential {
            ssh_key: texts.get(SSH_KEY).cloned().unwrap_or_default(),
            ..Credential::default()
        }
    } else {
        let username = Some(text(USERNAME))
            .filter(|name| !name.is_empty())
            .unwrap_or(USER);
        Credential {
            username: username.to_owned(),
            password: text(PASSWORD).to_owned(),
            ..Credential::default()
        }
    };
    if source.is_ssh() && credential.ssh_key.trim().is_empty() {
        return refuse(format!("has no key \"{SSH_KEY}\", the private key for {host}"));
    }
    if !source.is_ssh() && credential.password.is_empty() {
        return refuse(format!(
            "has no key \"{PASSWORD}\", the password or token for {host}"
        ));
    }
    if [&credential.username, &credential.password]
        .iter()
        .any(|text| text.contains(['\n', '\r', '\0']))
    {
        return refuse("has a username or password of several lines".to_owned());
    }
    Ok(Credential {
        host: host.to_owned(),
        ..credential
    })
}

/// Why a fetch failed, for the user: `is_invalid` if the repository has not what was asked for.
pub fn fault(is_invalid: bool, machine: &str, why: &str) -> Unresolved {
    let (reason, next) = if is_invalid {
        (
            reason::SOURCE_INVALID,
            "it is looked at again by itself, less and less often; where the Task is wrong, create another one",
        )
    } else {
        (reason::SOURCE_UNAVAILABLE, "that is tried again by itself")
    };
    Unresolved {
        reason,
        message: format!("on machine \"{machine}\": {why}; {next}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(url: &str) -> GitSource {
        GitSource {
            url: url.into(),
            ..GitSource::default()
        }
    }

    fn texts(texts: &[(&str, &str)]) -> BTreeMap<String, String> {
        let owned = texts
            .iter()
            .map(|(key, text)| ((*key).to_owned(), (*text).to_owned()));
        owned.collect()
    }

    #[test]
    fn a_credential_is_sent_to_no_other_host_than_its_secret_names() {
        let https = "https://git.example:8443/team/code";
        for (url, host, goes) in [
            (https, "git.example:8443", true),
            (https, "git.example:8443\n", true),
            (https, "git.example", false),
            (https, "git.example:443", false),
            (https, "", false),
            ("https://git.example.evil.example/a", "git.example", false),
            ("https://evil.example/git.example", "git.example", false),
            ("https://evil.example/@git.example/a", "git.example", false),
            ("ssh://git.example@evil.example/a", "git.example", false),
            ("ssh://git@git.example/a", "git.example", true),
        ] {
            let secret = texts(&[
                ("host", host),
                ("password", "canary"),
                ("ssh-privatekey", "canary"),
            ]);
            let found = credential(&source(url), "s", &secret);
            assert_eq!(found.is_ok(), goes, "{url} {host}");
            if let Err(error) = found {
                assert!(!error.message.contains("canary"), "{}", error.message);
                assert_eq!(error.reason, reason::SOURCE_INVALID);
            }
        }
    }

    #[test]
    fn what_is_missing_in_a_secret_is_named() {
        let https = source("https://git.example/a");
        let ssh = source("ssh://git@git.example/a");
        let with = |source: &GitSource, more: &[(&str, &str)]| {
            let secret = texts(&[&[("host", "git.example")][..], more].concat());
            credential(source, "s", &secret).map_err(|error| error.message)
        };
        let found = with(&https, &[("password", "p\n")]).ok().unwrap();
        assert_eq!((found.username.as_str(), found.password.as_str()), ("git", "p"));
        let found = with(&https, &[("username", "u"), ("password", "p")])
            .ok()
            .unwrap();
        assert_eq!(
            (found.host.as_str(), found.username.as_str()),
            ("git.example", "u")
        );
        let found = with(&ssh, &[("ssh-privatekey", "k\n"), ("password", "p")])
            .ok()
            .unwrap();
        assert_eq!((found.ssh_key.as_str(), found.password.as_str()), ("k\n", ""));
        for (source, more, what) in [
            (&https, ("ssh-privatekey", "k"), "\"password\""),
            (&https, ("password", "a\nhost=evil"), "several lines"),
            (&ssh, ("password", "p"), "\"ssh-privatekey\""),
        ] {
            let refused = with(source, &[more]).err().unwrap();
            assert!(refused.contains(what), "{refused}");
        }
    }

    #[test]
    fn what_a_machine_says_is_shown_without_the_credential() {
        let credential = Credential {
            password: "canary-token".into(),
            ssh_key: "-----BEGIN KEY-----\ncanary-line\n-----END KEY-----\n".into(),
            ..Credential::default()
        };
        let masked = credential.masked("canary-token at canary-line of -----BEGIN KEY-----");
        assert_eq!(masked, "*** at *** of -----BEGIN KEY-----");
    }
}
