//! Short digests for names and hashes.

use sha2::{Digest as _, Sha256};

/// A short digest for names and hashes: 16 hexadecimal digits of SHA-256.
pub fn short_digest(bytes: &[u8]) -> String {
    let mut text = format!("{:x}", Sha256::digest(bytes));
    text.truncate(16);
    text
}
