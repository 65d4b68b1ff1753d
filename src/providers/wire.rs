//! What the clouds' JSON has in common: amounts that are numbers here and texts there,
//! names that must fit somewhere. Pure.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, de::Error as _};
use sha2::{Digest as _, Sha256};

/// An amount of money or of anything else, written as a number or as a text. It is read
/// from its digits, never through a float's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub Decimal);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(serde_json::Number),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        decimal(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom("not an amount"))
    }
}

/// A decimal from its digits, also in scientific notation.
pub fn decimal(text: &str) -> Option<Decimal> {
    let text = text.trim();
    text.parse()
        .or_else(|_| Decimal::from_scientific(text))
        .ok()
        .map(|amount: Decimal| amount.normalize())
}

/// What a bid is multiplied by, as settings have it.
pub fn factor(written: Option<f64>) -> Option<Decimal> {
    decimal(&written?.to_string())
}

/// A moment as clouds write it; `None` for what is none.
pub fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.trim().parse().ok()
}

/// A text as a DNS label of at most 63 characters; one that is too long ends in a digest
/// of itself, so that different texts stay different.
pub fn dns_label(text: &str) -> String {
    let mut label = String::with_capacity(text.len());
    for c in text.chars() {
        let c = c.to_ascii_lowercase();
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            label.push(c);
        } else if !label.ends_with('-') && !label.is_empty() {
            label.push('-');
        }
    }
    let label = label.trim_end_matches('-');
    if label.len() <= 63 {
        return label.to_owned();
    }
    let start = label.get(..50).unwrap_or_default().trim_end_matches('-');
    format!("{start}-{}", digest(text, 12))
}

/// The first digits of a digest.
pub fn digest(text: &str, digits: usize) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for byte in Sha256::digest(text.as_bytes()) {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
    out.truncate(digits);
    out
}

/// A text cut to so many bytes, at the border of a character.
pub fn cut(text: &str, bytes: usize) -> &str {
    let mut end = text.len().min(bytes);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Whether two public keys are the same; their comments may differ.
pub fn same_key(one: &str, other: &str) -> bool {
    let key = |text: &'_ str| {
        text.split_whitespace()
            .take(2)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    key(one) == key(other)
}

/// A text as one word of a POSIX shell.
pub fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What a cloud said, fit for a message: one line, not long, and ending without a stop.
pub fn said(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, 500).trim_end_matches(['.', ' ']).to_owned()
}

/// Whether a text has one of these phrases, in whole words: "forbidden" is no "bid".
pub fn says(text: &str, phrases: &[&str]) -> bool {
    let words = |text: &str| {
        let lower = text.to_lowercase();
        let words: Vec<_> = lower
            .split(|c: char| !c.is_alphanumeric())
            .filter(|word| !word.is_empty())
            .collect();
        format!(" {} ", words.join(" "))
    };
    let text = words(text);
    phrases.iter().any(|phrase| text.contains(&words(phrase)))
}

/// A decimal that a test writes down.
#[cfg(test)]
pub(crate) fn dec(text: &str) -> Decimal {
    decimal(text).expect("a number")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0.69", dec("0.69"))]
    #[case("\"3.170\"", dec("3.17"))]
    #[case("1e-3", dec("0.001"))]
    #[case("2", dec("2"))]
    fn amounts_are_read_from_numbers_and_texts(#[case] json: &str, #[case] expected: Decimal) {
        assert_eq!(serde_json::from_str::<Amount>(json).unwrap(), Amount(expected));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        assert!(serde_json::from_str::<Amount>("\"free\"").is_err());
        assert!(serde_json::from_str::<Amount>("[]").is_err());
    }

    #[test]
    fn labels_fit_and_stay_different() {
        assert_eq!(dns_label("1H100.80S.22V FIN-01"), "1h100-80s-22v-fin-01");
        assert_eq!(dns_label("--A  b/"), "a-b");
        let long = |end: &str| dns_label(&format!("{}{end}", "x".repeat(90)));
        assert!(long("a").len() <= 63);
        assert_ne!(long("a"), long("b"));
    }

    #[test]
    fn texts_are_cut_at_characters_and_quoted_for_a_shell() {
        assert_eq!(cut("aé", 2), "a");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(said(" a\n b.. "), "a b");
    }

    #[rstest]
    #[case("Forbidden", false)]
    #[case("Your bid is too low.", true)]
    #[case("error: invalid_bid", true)]
    #[case("no  Credit\nleft", true)]
    fn phrases_are_found_in_whole_words(#[case] text: &str, #[case] expected: bool) {
        assert_eq!(says(text, &["bid", "no credit"]), expected);
    }

    #[test]
    fn keys_are_the_same_whatever_is_said_about_them() {
        assert!(same_key("ssh-ed25519 AAAA pool", " ssh-ed25519 AAAA\n"));
        assert!(!same_key("ssh-ed25519 AAAA", "ssh-ed25519 AAAB"));
    }
}
