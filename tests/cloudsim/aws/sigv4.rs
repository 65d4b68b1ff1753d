//! Signature version 4, checked with the account's secret: wrong signatures are refused, and so are
//! clients whose clock is off, with a message that says so.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use sha2::{Digest, Sha256};

/// How far a request's clock may be off.
const SKEW_SECONDS: i64 = 300;

/// The signed parts of a request.
#[derive(Debug, Clone, Copy)]
pub struct Signed<'a> {
    /// The method, in capitals.
    pub method: &'a str,
    /// The path as it was sent.
    pub path: &'a str,
    /// The query's parameters, decoded.
    pub query: &'a [(String, String)],
    /// Header values by lower-case name.
    pub headers: &'a BTreeMap<String, String>,
    /// The body.
    pub body: &'a [u8],
}

/// The signer, and what the signature is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The access key's id.
    pub access_key: String,
    /// The region named in the signature.
    pub region: String,
    /// The service named in the signature.
    pub service: String,
}

/// Why a signature is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// There is none.
    Missing,
    /// It cannot be read.
    Incomplete(String),
    /// No account has this access key.
    UnknownKey,
    /// The session token is wrong, or missing, or there should be none.
    Token,
    /// Made at another time.
    Expired(String),
    /// Made with another secret, or over another request.
    Mismatch,
}

/// A secret and, for temporary credentials, the session token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Secret {
    /// The secret access key.
    pub secret: String,
    /// The session token.
    pub token: Option<String>,
}

/// Reads the scope of a signature without checking it, to find the account that can check it.
pub fn scope(headers: &BTreeMap<String, String>) -> Result<Scope, Refusal> {
    Ok(parse(headers)?.scope)
}

/// Checks the signature of a request.
pub fn verify(
    request: Signed<'_>,
    secret: impl Fn(&str) -> Option<Secret>,
    now: Timestamp,
) -> Result<Scope, Refusal> {
    let parts = parse(request.headers)?;
    let known = secret(&parts.scope.access_key).ok_or(Refusal::UnknownKey)?;
    if request.headers.get("x-amz-security-token") != known.token.as_ref() {
        return Err(Refusal::Token);
    }
    let date = request
        .headers
        .get("x-amz-date")
        .ok_or_else(|| Refusal::Incomplete("the request has no X-Amz-Date".to_owned()))?;
    let moment = DateTime::strptime("%Y%m%dT%H%M%SZ", date)
        .ok()
        .and_then(|moment| moment.to_zoned(TimeZone::UTC).ok())
        .ok_or_else(|| Refusal::Incomplete(format!("X-Amz-Date '{date}' is not a date")))?;
    let off = (moment.timestamp().as_second() - now.as_second()).abs();
    if off > SKEW_SECONDS {
        return Err(Refusal::Expired(format!(
            "{date} is {off} seconds away from {now}"
        )));
    }
    if !date.starts_with(&parts.day) {
        return Err(Refusal::Incomplete(
            "the credential's date is not that of X-Amz-Date".to_owned(),
        ));
    }
    for needed in ["host", "x-amz-date"] {
        if !parts.signed_headers.iter().any(|name| name == needed) {
            return Err(Refusal::Incomplete(format!("'{needed}' must be signed")));
        }
    }
    let expected = signature(request, &parts, &known.secret, date);
    if expected == parts.signature {
        Ok(parts.scope)
    } else {
        Err(Refusal::Mismatch)
    }
}

struct Parts {
    scope: Scope,
    day: String,
    signed_headers: Vec<String>,
    signature: String,
}

fn parse(headers: &BTreeMap<String, String>) -> Result<Parts, Refusal> {
    let header = headers.get("authorization").ok_or(Refusal::Missing)?;
    let incomplete = |what: &str| Refusal::Incomplete(format!("Authorization has no {what}: {header}"));
    let rest = header
        .strip_prefix("AWS4-HMAC-SHA256 ")
        .ok_or_else(|| incomplete("AWS4-HMAC-SHA256"))?;
    let fields: BTreeMap<&str, &str> = rest
        .split(',')
        .filter_map(|field| field.trim().split_once('='))
        .collect();
    let credential = fields.get("Credential").ok_or_else(|| incomplete("Credential"))?;
    let [access_key, day, region, service, "aws4_request"] = credential.split('/').collect::<Vec<_>>()[..]
    else {
        return Err(incomplete("credential scope of five parts"));
    };
    let signed = fields
        .get("SignedHeaders")
        .ok_or_else(|| incomplete("SignedHeaders"))?;
    let signature = fields.get("Signature").ok_or_else(|| incomplete("Signature"))?;
    Ok(Parts {
        scope: Scope {
            access_key: access_key.to_owned(),
            region: region.to_owned(),
            service: service.to_owned(),
        },
        day: day.to_owned(),
        signed_headers: signed.split(';').map(str::to_owned).collect(),
        signature: (*signature).to_owned(),
    })
}

fn signature(request: Signed<'_>, parts: &Parts, secret: &str, date: &str) -> String {
    let mut query: Vec<(String, String)> = request
        .query
        .iter()
        .map(|(name, value)| (encode(name, false), encode(value, false)))
        .collect();
    query.sort();
    let query: Vec<String> = query
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut headers = String::new();
    for name in &parts.signed_headers {
        let value = request.headers.get(name).map(String::as_str).unwrap_or_default();
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        let _ = writeln!(headers, "{name}:{value}");
    }
    let canonical = format!(
        "{}\n{}\n{}\n{headers}\n{}\n{}",
        request.method,
        encode(request.path, true),
        query.join("&"),
        parts.signed_headers.join(";"),
        hex(&Sha256::digest(request.body)),
    );
    let scope = format!(
        "{}/{}/{}/aws4_request",
        parts.day, parts.scope.region, parts.scope.service
    );
    let text = format!(
        "AWS4-HMAC-SHA256\n{date}\n{scope}\n{}",
        hex(&Sha256::digest(canonical.as_bytes()))
    );
    let mut key = hmac(format!("AWS4{secret}").as_bytes(), parts.day.as_bytes());
    for part in [
        parts.scope.region.as_str(),
        parts.scope.service.as_str(),
        "aws4_request",
    ] {
        key = hmac(&key, part.as_bytes());
    }
    hex(&hmac(&key, text.as_bytes()))
}

/// The `Authorization` of a request whose headers are all signed.
#[cfg(test)]
pub fn sign(request: Signed<'_>, access_key: &str, secret: &str, region: &str, service: &str) -> String {
    let date = request.headers.get("x-amz-date").cloned().unwrap_or_default();
    let mut parts = Parts {
        scope: Scope {
            access_key: access_key.to_owned(),
            region: region.to_owned(),
            service: service.to_owned(),
        },
        day: date.chars().take(8).collect(),
        signed_headers: request.headers.keys().cloned().collect(),
        signature: String::new(),
    };
    parts.signature = signature(request, &parts, secret, &date);
    format!(
        "AWS4-HMAC-SHA256 Credential={access_key}/{}/{region}/{service}/aws4_request, SignedHeaders={}, Signature={}",
        parts.day,
        parts.signed_headers.join(";"),
        parts.signature
    )
}

/// HMAC-SHA256 as RFC 2104 has it.
pub(super) fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    const BLOCK: usize = 64;
    let mut padded = [0_u8; BLOCK];
    if key.len() > BLOCK {
        padded[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        padded[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new()
        .chain_update(padded.map(|byte| byte ^ 0x36))
        .chain_update(message)
        .finalize();
    Sha256::new()
        .chain_update(padded.map(|byte| byte ^ 0x5c))
        .chain_update(inner)
        .finalize()
        .into()
}

/// Bytes as lower-case hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

fn encode(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b'/' if keep_slash => out.push('/'),
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::http::decode_form;

    fn headers(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    /// The worked example of AWS's own documentation of Signature Version 4
    /// (ListUsers of IAM, 2015-08-30).
    const EXAMPLE: [(&str, &str); 4] = [
        ("host", "iam.amazonaws.com"),
        ("x-amz-date", "20150830T123600Z"),
        ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
        (
            "authorization",
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/iam/aws4_request, SignedHeaders=content-type;host;x-amz-date, Signature=5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        ),
    ];

    fn check(headers: &BTreeMap<String, String>, query: &str, now: &str) -> Result<Scope, Refusal> {
        let query = &decode_form(query);
        let signed = Signed {
            method: "GET",
            path: "/",
            query,
            headers,
            body: b"",
        };
        let secret = |key: &str| {
            (key == "AKIDEXAMPLE").then(|| Secret {
                secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY".to_owned(),
                token: None,
            })
        };
        verify(signed, secret, now.parse().expect("a moment"))
    }

    const QUERY: &str = "Action=ListUsers&Version=2010-05-08";

    #[test]
    fn the_documented_example_is_accepted() {
        let scope = check(&headers(&EXAMPLE), QUERY, "2015-08-30T12:36:00Z").expect("accepted");
        assert_eq!(
            (scope.region.as_str(), scope.service.as_str()),
            ("us-east-1", "iam")
        );
    }

    #[test]
    fn a_changed_request_does_not_match_its_signature() {
        let changed = check(
            &headers(&EXAMPLE),
            "Action=ListRoles&Version=2010-05-08",
            "2015-08-30T12:36:00Z",
        );
        assert_eq!(changed, Err(Refusal::Mismatch));
    }

    #[test]
    fn a_clock_ten_minutes_off_is_refused_as_expired() {
        let late = check(&headers(&EXAMPLE), QUERY, "2015-08-30T12:46:00Z");
        assert!(matches!(late, Err(Refusal::Expired(_))), "{late:?}");
    }

    #[test]
    fn an_unknown_key_a_missing_header_and_a_surprising_token_are_told_apart() {
        let mut wrong = headers(&EXAMPLE);
        wrong.insert(
            "authorization".to_owned(),
            EXAMPLE[3].1.replace("AKIDEXAMPLE", "AKIDOTHER"),
        );
        assert_eq!(
            check(&wrong, QUERY, "2015-08-30T12:36:00Z"),
            Err(Refusal::UnknownKey)
        );
        assert_eq!(
            check(&headers(&EXAMPLE[..2]), QUERY, "2015-08-30T12:36:00Z"),
            Err(Refusal::Missing)
        );
        let mut token = headers(&EXAMPLE);
        token.insert("x-amz-security-token".to_owned(), "old".to_owned());
        assert_eq!(check(&token, QUERY, "2015-08-30T12:36:00Z"), Err(Refusal::Token));
    }

    #[test]
    fn hmac_agrees_with_the_vectors_of_rfc_4231() {
        let short = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(
            hex(&short),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        let long = hmac(
            &[0xaa; 131],
            b"Test Using Larger Than Block-Size Key - Hash Key First",
        );
        assert_eq!(
            hex(&long),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
        );
    }
}
