//! Fingerprints of public keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The MD5 of a public key as `ssh-keygen -E md5` writes it, without its prefix; `None` for what is no key.
pub fn md5(key: &str) -> Option<String> {
    let blob = STANDARD.decode(key.split_whitespace().nth(1)?).ok()?;
    let digest = md5::compute(blob);
    let bytes: Vec<String> = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(bytes.join(":"))
}
