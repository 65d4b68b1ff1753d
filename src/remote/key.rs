//! Keys of machines: making a Pool's key pair, and fingerprints for people.

use russh::keys::{
    Algorithm, HashAlg, PrivateKey, PublicKey,
    key::safe_rng,
    ssh_key::{LineEnding, private::KeypairData},
};
use skyward_core::Secret;

/// An invalid key. Never holds key material.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read.
    #[error("the {0} key cannot be read: it is not in OpenSSH form")]
    Unreadable(&'static str),
    /// It is of a kind that we do not use.
    #[error("the {what} key is {found}; only ed25519 keys are used")]
    NotEd25519 {
        /// Which key.
        what: &'static str,
        /// What it is instead.
        found: String,
    },
    /// It could not be made.
    #[error("no key pair could be made: {0}")]
    Generate(String),
}

/// A fresh ed25519 key pair: the private key in OpenSSH form and the public line for
/// `authorized_keys`.
pub fn generate_keypair(comment: &str) -> Result<(Secret, String), KeyError> {
    let failed = |error: russh::keys::ssh_key::Error| KeyError::Generate(error.to_string());
    let mut key = PrivateKey::random(&mut safe_rng(), Algorithm::Ed25519).map_err(failed)?;
    key.set_comment(comment);
    let private = Secret::new(key.to_openssh(LineEnding::LF).map_err(failed)?.as_str());
    let public = key.public_key().to_openssh().map_err(failed)?;
    Ok((private, public))
}

/// Fingerprint of a public key in OpenSSH form, as `ssh-keygen -l` prints it.
pub fn fingerprint(public: &str) -> Result<String, KeyError> {
    Ok(parse_public(public, "public")?
        .fingerprint(HashAlg::Sha256)
        .to_string())
}

/// Reads a private key; only ed25519.
pub(crate) fn parse_private(key: &Secret) -> Result<PrivateKey, KeyError> {
    let key = PrivateKey::from_openssh(key.expose()).map_err(|_| KeyError::Unreadable("private"))?;
    match key.key_data() {
        KeypairData::Ed25519(_) => Ok(key),
        _ => Err(KeyError::NotEd25519 {
            what: "private",
            found: key.algorithm().to_string(),
        }),
    }
}

/// Reads a public key: the first two words of an `authorized_keys` or `known_hosts` line.
pub(crate) fn parse_public(line: &str, what: &'static str) -> Result<PublicKey, KeyError> {
    PublicKey::from_openssh(line.trim()).map_err(|_| KeyError::Unreadable(what))
}

/// A public key in OpenSSH form without its comment, so that equal keys are equal texts.
pub(crate) fn bare_line(key: &PublicKey) -> String {
    PublicKey::from(key.key_data().clone())
        .to_openssh()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_pair_fits_together_and_differs_each_time() {
        let (private, public) = generate_keypair("skyward pool-1").unwrap();
        let key = parse_private(&private).unwrap();
        assert_eq!(key.public_key().to_openssh().unwrap(), public);
        assert!(
            public.starts_with("ssh-ed25519 ") && public.ends_with(" skyward pool-1"),
            "{public}"
        );
        assert_ne!(generate_keypair("x").unwrap().1, generate_keypair("x").unwrap().1);
    }

    #[test]
    fn a_fingerprint_is_that_of_ssh_keygen() {
        let line = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ host";
        assert!(fingerprint(line).unwrap().starts_with("SHA256:"));
        assert_eq!(fingerprint(line), fingerprint(line.trim_end_matches(" host")));
        assert_eq!(fingerprint("nonsense"), Err(KeyError::Unreadable("public")));
    }

    #[test]
    fn a_bad_key_never_appears_in_its_error() {
        let error = parse_private(&Secret::new("canary")).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("canary"));
    }
}
