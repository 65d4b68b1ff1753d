//! Key pairs that the service makes itself: the private half in the forms in which it is
//! handed out, the public half as machines get it, and the fingerprints of keys.

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::{self, KeySize};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use aws_lc_rs::{digest, hmac};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use super::sigv4::hex;
use crate::core::chance::Chance;
use crate::core::pem::{framed, lines};

/// A key pair that was just made. Nobody keeps it: the service remembers the public half only.
pub struct Pair {
    algorithm: &'static str,
    /// The public half as SSH has it on the wire.
    public: Vec<u8>,
    private: Private,
}

/// A private half.
enum Private {
    Rsa {
        /// As PKCS#1 has it, for the file.
        pkcs1: Vec<u8>,
        /// As PKCS#8 has it, for the fingerprint.
        pkcs8: Vec<u8>,
    },
    Ed25519 {
        seed: Vec<u8>,
        point: Vec<u8>,
    },
}

impl Pair {
    /// RSA of 2048 bits. The library takes no seed for its primes, so they differ each time.
    pub fn rsa() -> Option<Self> {
        let made = rsa::KeyPair::generate(KeySize::Rsa2048).ok()?;
        let document: Pkcs8V1Der<'static> = made.as_der().ok()?;
        let bytes: &[u8] = document.as_ref();
        let pkcs8 = bytes.to_vec();
        // A version, the algorithm, the key.
        let pkcs1 = sequence(&pkcs8)?.get(2)?.to_vec();
        let [_, modulus, exponent, ..] = sequence(&pkcs1)?[..] else {
            return None;
        };
        // SSH has the same bytes of numbers as DER.
        let public = wire(&[b"ssh-rsa", exponent, modulus]);
        Some(Self {
            algorithm: "ssh-rsa",
            public,
            private: Private::Rsa { pkcs1, pkcs8 },
        })
    }

    /// Ed25519.
    pub fn ed25519(chance: &mut Chance) -> Option<Self> {
        let seed = (0..4).flat_map(|_| chance.bits().to_be_bytes()).collect();
        Self::of_seed(seed)
    }

    fn of_seed(seed: Vec<u8>) -> Option<Self> {
        let made = Ed25519KeyPair::from_seed_unchecked(&seed).ok()?;
        let point = made.public_key().as_ref().to_vec();
        Some(Self {
            algorithm: "ssh-ed25519",
            public: wire(&[b"ssh-ed25519", point.as_slice()]),
            private: Private::Ed25519 { seed, point },
        })
    }

    /// Its kind, as the API names it.
    pub fn kind(&self) -> &'static str {
        match self.private {
            Private::Rsa { .. } => "rsa",
            Private::Ed25519 { .. } => "ed25519",
        }
    }

    /// The public half as a line of `authorized_keys`.
    pub fn line(&self, comment: &str) -> String {
        format!("{} {} {comment}", self.algorithm, STANDARD.encode(&self.public))
    }

    /// Its fingerprint. The one of RSA is of the private half.
    pub fn fingerprint(&self) -> String {
        match &self.private {
            Private::Rsa { pkcs8, .. } => {
                colons(digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, pkcs8).as_ref())
            }
            Private::Ed25519 { .. } => STANDARD.encode(Sha256::digest(&self.public)),
        }
    }

    /// The private half in a form that OpenSSH reads.
    pub fn pem(&self, comment: &str) -> String {
        match &self.private {
            Private::Rsa { pkcs1, .. } => framed("RSA PRIVATE KEY", pkcs1),
            Private::Ed25519 { seed, point } => {
                let check = &Sha256::digest(&self.public)[..4];
                let both = [seed.as_slice(), point.as_slice()].concat();
                let fields = wire(&[
                    b"ssh-ed25519",
                    point.as_slice(),
                    both.as_slice(),
                    comment.as_bytes(),
                ]);
                let mut secret = [check, check, fields.as_slice()].concat();
                secret.extend((1..=7_u8).take(secret.len().next_multiple_of(8) - secret.len()));
                let mut file = b"openssh-key-v1\0".to_vec();
                file.extend(wire(&[b"none", b"none", b""]));
                file.extend(1_u32.to_be_bytes());
                file.extend(wire(&[self.public.as_slice(), secret.as_slice()]));
                // OpenSSH does not read its own form without the last end of a line.
                framed("OPENSSH PRIVATE KEY", &file) + "\n"
            }
        }
    }

    /// The private half in the form of PuTTY, of the version that all releases of it read.
    pub fn ppk(&self, comment: &str) -> Option<String> {
        let secret = match &self.private {
            Private::Rsa { pkcs1, .. } => {
                let [_, _, _, exponent, prime, other, _, _, inverse] = sequence(pkcs1)?[..] else {
                    return None;
                };
                wire(&[exponent, prime, other, inverse])
            }
            Private::Ed25519 { seed, .. } => wire(&[seed.as_slice()]),
        };
        let key = digest::digest(
            &digest::SHA1_FOR_LEGACY_USE_ONLY,
            b"putty-private-key-file-mac-key",
        );
        let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_ref());
        let signed = wire(&[
            self.algorithm.as_bytes(),
            b"none",
            comment.as_bytes(),
            self.public.as_slice(),
            secret.as_slice(),
        ]);
        let (public, private) = (lines(&self.public), lines(&secret));
        Some(format!(
            "PuTTY-User-Key-File-2: {}\nEncryption: none\nComment: {comment}\nPublic-Lines: {}\n{}\nPrivate-Lines: {}\n{}\nPrivate-MAC: {}\n",
            self.algorithm,
            public.len(),
            public.join("\n"),
            private.len(),
            private.join("\n"),
            hex(hmac::sign(&key, &signed).as_ref()),
        ))
    }
}

/// The fingerprint of a public key that a client brings; `None` for what is no key. The one
/// of RSA is of the public half, as nobody knows the other.
pub fn imported(algorithm: &str, public: &[u8]) -> Option<String> {
    if algorithm != "ssh-rsa" {
        return Some(STANDARD.encode(Sha256::digest(public)));
    }
    let [_, exponent, modulus] = strings(public)?[..] else {
        return None;
    };
    // What `openssl rsa -pubout -outform DER` writes.
    const ALGORITHM: [u8; 15] = [
        0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00,
    ];
    let numbers = der(0x30, &[der(0x02, modulus), der(0x02, exponent)].concat());
    let bits = der(0x03, &[[0].as_slice(), numbers.as_slice()].concat());
    let whole = der(0x30, &[ALGORITHM.as_slice(), bits.as_slice()].concat());
    Some(colons(md5::compute(whole).as_slice()))
}

fn colons(bytes: &[u8]) -> String {
    let pairs: Vec<String> = bytes.iter().map(|byte| hex(&[*byte])).collect();
    pairs.join(":")
}

/// Strings as SSH has them: each behind its length.
fn wire(parts: &[&[u8]]) -> Vec<u8> {
    let mut all = Vec::new();
    for part in parts {
        all.extend((part.len() as u32).to_be_bytes());
        all.extend_from_slice(part);
    }
    all
}

/// The strings of SSH in some bytes.
fn strings(mut bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (string, after) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        all.push(string);
        bytes = after;
    }
    Some(all)
}

/// A value of DER.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut value = vec![tag];
    if content.len() < 0x80 {
        value.push(content.len() as u8);
    } else {
        let digits = content.len().to_be_bytes();
        let digits: Vec<u8> = digits.into_iter().skip_while(|digit| *digit == 0).collect();
        value.push(0x80 | digits.len() as u8);
        value.extend(digits);
    }
    value.extend_from_slice(content);
    value
}

/// The content of the value of DER that bytes begin with, and what follows it.
fn value(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.get(1..)?.split_first()?;
    if *first < 0x80 {
        return rest.split_at_checked(usize::from(*first));
    }
    let (digits, rest) = rest.split_at_checked(usize::from(*first & 0x7f))?;
    let length = digits
        .iter()
        .fold(0_usize, |length, digit| (length << 8) | usize::from(*digit));
    rest.split_at_checked(length)
}

/// The contents of the values that a sequence of DER holds.
fn sequence(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (mut rest, _) = value(bytes)?;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (content, after) = value(rest)?;
        all.push(content);
        rest = after;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::pem;

    fn unframed(pem: &str) -> Vec<u8> {
        pem::unframed(pem).expect("base64")
    }

    fn blob(line: &str) -> Vec<u8> {
        STANDARD
            .decode(line.split(' ').nth(1).expect("a blob"))
            .expect("base64")
    }

    #[test]
    fn the_private_half_of_rsa_is_the_one_of_its_line() {
        let pair = Pair::rsa().expect("a pair");
        assert!(pair.pem("").starts_with("-----BEGIN RSA PRIVATE KEY-----\n"));
        let private = rsa::KeyPair::from_der(&unframed(&pair.pem(""))).expect("a private key");
        let line = pair.line("mine");
        let blob = blob(&line);
        let numbers: Vec<&[u8]> = strings(&blob)
            .expect("strings")
            .into_iter()
            .skip(1)
            .rev()
            .collect();
        assert_eq!(
            sequence(private.public_key().as_ref()).expect("a public key"),
            numbers
        );
        assert!(line.starts_with("ssh-rsa ") && line.ends_with(" mine"), "{line}");
        assert_eq!(pair.fingerprint().len(), 59);
        assert!(
            pair.ppk("mine")
                .is_some_and(|file| file.starts_with("PuTTY-User-Key-File-2: ssh-rsa\n"))
        );
    }

    // The same key in the files that `ssh-keygen` and `puttygen` read.
    #[test]
    fn an_ed25519_pair_of_a_known_seed_has_the_files_that_other_programs_read() {
        let pair = Pair::of_seed((0..32).collect()).expect("a pair");
        assert_eq!(
            pair.line("boto"),
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAOhB7/zzhC+HXDdGOdLwJln5NYwm6UNXx3chmQSVTG4 boto"
        );
        assert_eq!(pair.fingerprint(), "lbmsoA0yIEcEiVDRnMWuzm+nV+3ZEEpVIURqFoeSspg=");
        assert_eq!(
            hex(&Sha256::digest(pair.pem("boto"))),
            "cf1a7e610627f4a269c744ed9839a100fadbb88aa6a500c44da68004ccbede27"
        );
        let file = pair.ppk("boto").expect("a file");
        assert!(
            file.ends_with("\nPrivate-MAC: c96c9fdf17861d673debcb253abfb6227f5123d1\n"),
            "{file}"
        );
    }

    #[test]
    fn the_fingerprint_of_an_imported_key_is_the_one_of_openssl() {
        let line = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQDCXF+tHIUFJjgvMZ2ajFcHbYjMnWEOnZdyUZ6yPSQZ1Kk8iS7/Qq2zyEBHXMyyThh7r7lZXw4mzgNDRxK8ktpxpRv/j+osuj91lqr197vspo+41hBPPd40+ESvW/JG8zAuX02Z7N8XAbRXPvqeOca+ebu+XVswnElXGF/DvZfmJw==";
        assert_eq!(
            imported("ssh-rsa", &blob(line)).as_deref(),
            Some("fe:f9:ba:17:00:1f:84:bb:62:37:4d:51:7c:d8:f4:39")
        );
        assert_eq!(imported("ssh-rsa", b"\0\0\0\x07ssh-rsa"), None);
        assert_eq!(imported("ssh-rsa", b"\0\0\0\xffssh-rsa"), None);
    }
}
