//! Texts that must fit a limit, and messages of clouds. Pure.

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use skyward_core::provider::AccountFact;

/// A text as a DNS label of at most 63 characters; a longer text ends in its digest, so that
/// different texts stay different.
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
    let mut out = format!("{:x}", Sha256::digest(text));
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

/// A cloud's message for ours: one short line without a final stop.
pub fn said(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    cut(&line, 500).trim_end_matches(['.', ' ']).to_owned()
}

/// A cloud's message for ours, or what is said where the cloud gives none, and what to do.
pub fn message(words: &str, otherwise: &str, remedy: Option<&str>) -> String {
    let said = said(words);
    let words = if said.is_empty() { otherwise } else { &said };
    remedy.map_or_else(|| words.to_owned(), |remedy| format!("{words}. {remedy}"))
}

/// A value in words, such as `quota 0, resource L4`.
pub fn plain(value: &Value) -> String {
    let joined = |words: &mut dyn Iterator<Item = String>| words.collect::<Vec<_>>().join(", ");
    let field = |(name, value): (&String, &Value)| format!("{name} {}", plain(value));
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(values) => joined(&mut values.iter().map(plain)),
        Value::Object(fields) => joined(&mut fields.iter().map(field)),
        other => other.to_string(),
    }
}

/// What an answer tells of an account, at these JSON pointers: each with what it is, in words.
pub fn account_facts(told: &Value, pointers: &[(&'static str, &str)]) -> Vec<AccountFact> {
    let fact = |(what, pointer): &(&'static str, &str)| {
        let value = said(&plain(told.pointer(pointer)?));
        (!value.is_empty()).then_some(AccountFact { what, value })
    };
    pointers.iter().filter_map(fact).collect()
}

/// What is wrong with a value, without the value: it may be a key that a person wrote in the wrong place.
pub fn without_value(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match (text.split_once(" string \""), text.rsplit_once("\", expected ")) {
        (Some((before, _)), Some((_, expected))) => format!("{before} string, expected {expected}"),
        _ => text,
    }
}

/// An error and its causes in one line: the outer one often says only "service error".
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

/// Whether a text has one of these parts, in lower case here and in any case there.
pub fn mentions(text: &str, parts: &[&str]) -> bool {
    let lower = text.to_lowercase();
    parts.iter().any(|part| lower.contains(part))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_about_a_value_does_not_show_it() {
        for key in ["canary", "canary\", expected \" string \"canary"] {
            let error = serde_json::from_value::<u32>(Value::from(key)).unwrap_err();
            assert_eq!(without_value(&error), "invalid type: string, expected u32");
        }
        let number = serde_json::from_value::<String>(Value::from(7)).unwrap_err();
        assert_eq!(
            without_value(&number),
            "invalid type: integer `7`, expected a string"
        );
    }

    #[test]
    fn what_an_answer_tells_of_an_account_is_told_and_what_it_lacks_is_not() {
        let told = serde_json::json!({ "limit": 25, "rights": ["read", "write"], "nothing": null });
        let facts = account_facts(
            &told,
            &[
                ("limit", "/limit"),
                ("rights", "/rights"),
                ("nothing", "/nothing"),
                ("credit", "/credit"),
            ],
        );
        let shown: Vec<_> = facts
            .iter()
            .map(|fact| (fact.what, fact.value.as_str()))
            .collect();
        assert_eq!(shown, [("limit", "25"), ("rights", "read, write")]);
    }
    use rstest::rstest;

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
