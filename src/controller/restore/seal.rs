//! Proof of the epoch that a machine names: only a controller of this installation can have made
//! it. The same key makes the pseudonyms of namespaces, the tokens by which machines prove
//! their host keys, and the hashes of environments.
//!
//! The leader gives each agent, with its epoch, an HMAC-SHA-256 over the installation and that
//! epoch; the agent keeps both and gives them back. A machine that lies can give back the proof of
//! an older, lower epoch, but of no higher one. The key is a Secret of the operator's namespace,
//! made once: a cluster restored from a backup has it, since it is as old as the installation.

use std::fmt::Write as _;

use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, api::PostParams};
use skyward_api::labels;
use skyward_core::{Mark, Secret as Hidden};
use skyward_planner::{accounts::cost::Pseudonyms, pool::environment::HASH};

/// Name of the Secret in the operator's namespace.
pub const SECRET: &str = "skyward-epochs";
/// The Secret's entry with the key.
const KEY: &str = "key";
/// Bytes of the key.
const BYTES: usize = 32;
/// Bytes of a pseudonym: no two of some thousand namespaces share one.
const PSEUDONYM: usize = 12;

/// Makes and checks proofs of one installation.
#[derive(Clone, Debug)]
pub struct Seal {
    key: hmac::Key,
    installation: String,
}

impl Seal {
    /// A seal with that key.
    pub fn new(key: &[u8], installation: &str) -> Self {
        Self {
            key: hmac::Key::new(hmac::HMAC_SHA256, key),
            installation: installation.to_owned(),
        }
    }

    /// The proof of an epoch.
    pub fn prove(&self, epoch: u64) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.key, self.text(epoch).as_bytes()))
    }

    /// Whether that is the proof of this epoch.
    pub fn proves(&self, epoch: u64, proof: &str) -> bool {
        URL_SAFE_NO_PAD
            .decode(proof)
            .is_ok_and(|tag| hmac::verify(&self.key, self.text(epoch).as_bytes(), &tag).is_ok())
    }

    /// The token by which this machine proves its host key: 32 bytes in hexadecimal digits. It is
    /// derived and stands in no object, and the key that it is derived from lives as long as the
    /// installation, so that each later leader, and one after a restore, has the same token for
    /// this Machine and this attempt.
    pub fn host_token(&self, mark: &Mark) -> Hidden {
        let Mark {
            machine_uid, attempt, ..
        } = mark;
        let text = format!(
            "skyward host key proof v1\n{}\n{machine_uid}\n{attempt}",
            self.installation
        );
        let tag = hmac::sign(&self.key, text.as_bytes());
        let mut digits = String::with_capacity(2 * tag.as_ref().len());
        for byte in tag.as_ref() {
            let _ = write!(digits, "{byte:02x}");
        }
        Hidden::new(digits)
    }

    /// The hash of an environment of that Pool: 12 hexadecimal digits. Its text has passwords in it, which nobody can
    /// guess from the hash without the key. Two Pools with the same environment have different hashes.
    pub fn environment(&self, pool_uid: &str, canonical: &Hidden) -> String {
        let head = format!("skyward environment v1\n{}\n{pool_uid}\n", self.installation);
        let mut context = hmac::Context::with_key(&self.key);
        context.update(head.as_bytes());
        context.update(canonical.expose().as_bytes());
        let tag = context.sign();
        let mut digits = String::with_capacity(HASH);
        for byte in tag.as_ref().iter().take(HASH / 2) {
            let _ = write!(digits, "{byte:02x}");
        }
        digits
    }

    fn text(&self, epoch: u64) -> String {
        format!("skyward epoch\n{}\n{epoch}", self.installation)
    }
}

impl Pseudonyms for Seal {
    fn pseudonym(&self, namespace: &str) -> String {
        let text = format!("skyward namespace\n{}\n{namespace}", self.installation);
        let tag = hmac::sign(&self.key, text.as_bytes());
        format!("#{}", URL_SAFE_NO_PAD.encode(&tag.as_ref()[..PSEUDONYM]))
    }
}

/// The seal of this installation: its key is read, or made where there is none.
pub async fn read_or_make(client: &Client, namespace: &str, installation: &str) -> Result<Seal, kube::Error> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    if let Some(key) = read(&secrets).await? {
        return Ok(Seal::new(&key, installation));
    }
    let key: [u8; BYTES] = rand::random();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SECRET.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        data: Some([(KEY.to_owned(), ByteString(key.to_vec()))].into()),
        ..Secret::default()
    };
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..PostParams::default()
    };
    match secrets.create(&params, &secret).await {
        Ok(_) => Ok(Seal::new(&key, installation)),
        // The answer to an earlier try of ours was lost: the Secret that exists counts.
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let key = read(&secrets).await?;
            Ok(Seal::new(
                key.as_deref().unwrap_or(&key_of_nobody()),
                installation,
            ))
        }
        Err(error) => Err(error),
    }
}

/// A random key, for a damaged Secret: no proof made with another key is valid for it, so no epoch
/// can be proved, and marks alone count.
fn key_of_nobody() -> [u8; BYTES] {
    rand::random()
}

async fn read(secrets: &Api<Secret>) -> Result<Option<Vec<u8>>, kube::Error> {
    let secret = secrets.get_opt(SECRET).await?;
    Ok(secret
        .and_then(|secret| secret.data)
        .and_then(|mut data| data.remove(KEY))
        .map(|bytes| bytes.0)
        .filter(|bytes| bytes.len() >= BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_without_the_key_proves_an_epoch_and_no_proof_is_of_another_one() {
        let seal = Seal::new(&[7; BYTES], "here");
        let proof = seal.prove(5);
        assert!(seal.proves(5, &proof));
        assert!(proof.len() <= 128, "agents keep no longer one");
        for (epoch, given) in [
            (6, proof.as_str()),
            (5, ""),
            (5, "AAAA"),
            (5, "no base64!"),
            (4, &proof),
        ] {
            assert!(!seal.proves(epoch, given), "{epoch} {given}");
        }
        assert!(!Seal::new(&[8; BYTES], "here").proves(5, &proof), "another key");
        assert!(
            !Seal::new(&[7; BYTES], "there").proves(5, &proof),
            "another installation"
        );
    }

    #[test]
    fn each_attempt_of_each_machine_has_a_token_of_its_own_and_keeps_it() {
        let mark = |uid: &str, attempt| Mark {
            machine_uid: uid.to_owned(),
            attempt,
            ..Mark::default()
        };
        let seal = Seal::new(&[7; BYTES], "here");
        let token = seal.host_token(&mark("m", 1));
        assert_eq!(token.expose().len(), 64);
        assert!(token.expose().bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert!(!format!("{token:?}").contains(token.expose()));
        assert_eq!(token, Seal::new(&[7; BYTES], "here").host_token(&mark("m", 1)));
        for other in [
            seal.host_token(&mark("m", 2)),
            seal.host_token(&mark("n", 1)),
            Seal::new(&[8; BYTES], "here").host_token(&mark("m", 1)),
            Seal::new(&[7; BYTES], "there").host_token(&mark("m", 1)),
        ] {
            assert_ne!(token, other);
        }
    }

    #[test]
    fn the_hash_of_an_environment_is_short_and_of_one_pool_one_text_and_one_key() {
        let seal = Seal::new(&[7; BYTES], "here");
        let text = |text: &str| Hidden::new(text);
        let hash = seal.environment("pool", &text("canary"));
        assert_eq!(hash.len(), 12);
        assert!(hash.bytes().all(|digit| digit.is_ascii_hexdigit()));
        assert_eq!(
            hash,
            Seal::new(&[7; BYTES], "here").environment("pool", &text("canary"))
        );
        for other in [
            seal.environment("other", &text("canary")),
            seal.environment("pool", &text("canary2")),
            Seal::new(&[8; BYTES], "here").environment("pool", &text("canary")),
            Seal::new(&[7; BYTES], "there").environment("pool", &text("canary")),
        ] {
            assert_ne!(hash, other);
        }
    }

    #[test]
    fn a_pseudonym_is_the_same_again_and_another_one_elsewhere() {
        let seal = Seal::new(&[7; BYTES], "here");
        let name = seal.pseudonym("team-a");
        assert_eq!((name.as_str().len(), &name[..1]), (17, "#"));
        assert_eq!(name, Seal::new(&[7; BYTES], "here").pseudonym("team-a"));
        for other in [
            seal.pseudonym("team-b"),
            Seal::new(&[8; BYTES], "here").pseudonym("team-a"),
            Seal::new(&[7; BYTES], "there").pseudonym("team-a"),
        ] {
            assert_ne!(name, other);
        }
    }
}
