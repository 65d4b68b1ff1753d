//! Checks the proof of a machine's host key: an HMAC of the token that only this machine's boot
//! data have, over the key that the machine showed on this connection.
//!
//! Nothing of ours is sent before the proof but a login, which is good for this connection alone: the
//! signature is over the session, so nobody can pass it on to another machine. The token itself is
//! never sent.

use std::time::Duration;

use aws_lc_rs::hmac;
use skyward_core::{Secret, proof::FILE};
use tokio::sync::Notify;

use crate::ssh::{ConnectError, Connection, ExecError, Input, Output};

/// Bytes of a proof: that of SHA-256.
const BYTES: usize = 32;
/// Longest text that is kept of the answer: the digits, and space around them.
const TEXT: usize = 4 * BYTES;
/// Most bytes of an answer, with what it says of errors, that are read.
const ANSWER: usize = 4 * 1024;

/// Asks the machine for its proof. A missing proof may still come; one of another key never
/// becomes right.
pub(crate) async fn check(
    connection: &Connection,
    token: &Secret,
    patience: Duration,
) -> Result<(), ConnectError> {
    let not_yet = |why: &str| ConnectError::Unproved(why.to_owned());
    let (mut text, mut told) = (Vec::with_capacity(TEXT), 0);
    let too_long = Notify::new();
    let command = format!("cat {FILE}");
    let read = connection.exec(&command, Input::default(), patience, |output, bytes| {
        if output == Output::Out {
            let room = TEXT - text.len();
            text.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        told += bytes.len();
        if told > ANSWER {
            too_long.notify_one();
        }
    });
    // What goes on for ever is not read on: its sender would decide how much.
    let read = tokio::select! {
        biased;
        () = too_long.notified() => return Err(not_yet(&format!("{FILE} is longer than a proof"))),
        read = read => read,
    };
    match read {
        Ok(_) if text.len() < TEXT => {}
        Ok(_) => return Err(not_yet(&format!("{FILE} is longer than a proof"))),
        Err(ExecError::Lost(why) | ExecError::Refused(why)) => return Err(not_yet(&why)),
        Err(late @ ExecError::TimedOut(_)) => return Err(not_yet(&late.to_string())),
    }
    let digits = std::str::from_utf8(&text).ok();
    let Some(proof) = digits.and_then(|digits| bytes_of(digits.trim())) else {
        return Err(not_yet(&format!(
            "{FILE}, which its first boot writes, holds no proof"
        )));
    };
    if proves(token, connection.host_key(), &proof) {
        return Ok(());
    }
    Err(ConnectError::HostKeyNotProved {
        found: crate::key::fingerprint(connection.host_key()).unwrap_or_default(),
    })
}

/// Whether that is the proof of this host key. Takes as long for each wrong one.
fn proves(token: &Secret, host_key: &str, proof: &[u8]) -> bool {
    let Some(token) = bytes_of(token.expose()) else {
        return false;
    };
    let key = hmac::Key::new(hmac::HMAC_SHA256, &token);
    hmac::verify(&key, host_key.as_bytes(), proof).is_ok()
}

/// The bytes that 64 hexadecimal digits name.
fn bytes_of(digits: &str) -> Option<[u8; BYTES]> {
    let is_one = |byte: u8| byte.is_ascii_hexdigit();
    if digits.len() != 2 * BYTES || !digits.bytes().all(is_one) {
        return None;
    }
    let mut bytes = [0; BYTES];
    for (byte, pair) in bytes.iter_mut().zip(digits.as_bytes().chunks(2)) {
        let pair = std::str::from_utf8(pair).ok()?;
        *byte = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ";

    #[test]
    fn a_proof_is_of_one_key_by_one_token() {
        // The first of the proofs that the script of `skyward_core::proof` is tried with.
        let bytes: Vec<String> = (0..32).map(|byte| format!("{byte:02x}")).collect();
        let proof = bytes_of("c2a7f0fb2fac00d03c97059cdada8dfe3698b1a077729757d3fc9da0b2385690").unwrap();
        let token = Secret::new(bytes.concat());
        assert!(proves(&token, KEY, &proof));
        assert!(!proves(&token, &KEY.replace("OIeZJ", "OIeZK"), &proof));
        assert!(!proves(&Secret::new("00".repeat(32)), KEY, &proof));
        assert!(!proves(&Secret::default(), KEY, &proof));
        assert!(!proves(&token, KEY, &proof[..31]));
    }

    #[test]
    fn only_64_digits_are_a_proof() {
        assert!(bytes_of(&"aF".repeat(32)).is_some());
        for text in [
            "",
            "00",
            &"0".repeat(63),
            &"0".repeat(65),
            &"+1".repeat(32),
            &"\u{e9}".repeat(32),
        ] {
            assert_eq!(bytes_of(text), None, "{text}");
        }
    }
}
