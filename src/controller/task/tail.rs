//! The end of a run's output as a status shows it: text that harms no terminal, holds no
//! value of a Secret, and is short.

/// Longest tail, in bytes.
pub(crate) const MAX: usize = 2048;
/// Shorter values are not masked: they would blacken half of every log.
const SHORTEST_SECRET: usize = 4;
const MASK: &str = "***";

/// Raw output as text: what is not UTF-8 is replaced, control characters are shown by
/// their pictures, values of Secrets are masked; then the end of it.
pub(crate) fn readable(raw: &[u8], secrets: &[String]) -> String {
    let text = masked(&harmless(&String::from_utf8_lossy(raw)), secrets);
    end_of(&text, MAX).to_owned()
}

/// The text with values of Secrets masked.
pub(crate) fn masked(text: &str, secrets: &[String]) -> String {
    let mut values: Vec<&str> = secrets
        .iter()
        .flat_map(|secret| std::iter::once(secret.as_str()).chain(secret.lines()))
        .map(str::trim)
        .filter(|value| value.len() >= SHORTEST_SECRET)
        .collect();
    // The longest first: one may be part of another.
    values.sort_unstable_by_key(|value| std::cmp::Reverse(value.len()));
    values.dedup();
    let mut text = text.to_owned();
    for value in values {
        if text.contains(value) {
            text = text.replace(value, MASK);
        }
        text = without_cut_value(text, value);
    }
    text
}

/// A tail begins anywhere: also in the middle of a value.
fn without_cut_value(text: String, value: &str) -> String {
    let longest = (SHORTEST_SECRET..value.len())
        .rev()
        .filter(|length| value.is_char_boundary(value.len() - length))
        .find(|length| text.starts_with(&value[value.len() - length..]));
    match longest {
        Some(length) => format!("{MASK}{}", &text[length..]),
        None => text,
    }
}

/// The text with control characters replaced by their pictures.
pub(crate) fn harmless(text: &str) -> String {
    text.replace("\r\n", "\n")
        .chars()
        .map(|character| match character {
            '\n' | '\t' => character,
            '\r' => '\n',
            '\u{7f}' => '\u{2421}',
            control if control < ' ' => char::from_u32(0x2400 + control as u32).unwrap_or('\u{fffd}'),
            // C1 controls, and what turns the direction of writing around.
            '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            other => other,
        })
        .collect()
}

/// The last bytes of a text, from a character's boundary.
pub(crate) fn end_of(text: &str, max: usize) -> &str {
    let mut start = text.len().saturating_sub(max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_are_masked_also_when_the_tail_cuts_one_in_two() {
        let secrets = vec!["hunter22-long".to_owned(), "abc".to_owned()];
        assert_eq!(
            readable(b"token=hunter22-long abc\n", &secrets),
            "token=*** abc\n"
        );
        assert_eq!(readable(b"22-long is the end", &secrets), "*** is the end");
        let lines = vec!["first line\nsecond line".to_owned()];
        assert_eq!(readable(b"second line", &lines), "***");
    }

    #[test]
    fn what_is_not_text_becomes_harmless_text() {
        assert_eq!(
            readable(b"a\x1b[31mb\r\nc\rd\x00\xff", &[]),
            "a\u{241b}[31mb\nc\nd\u{2400}\u{fffd}"
        );
    }

    proptest! {
        #[test]
        fn a_tail_is_short_whatever_it_is_made_of(raw in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let tail = readable(&raw, &["secret".to_owned()]);
            prop_assert!(tail.len() <= MAX);
            prop_assert!(!tail.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
        }
    }
}
