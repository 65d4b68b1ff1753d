//! Words of a machine that are kept and shown: cut and cleaned, whatever they are.

/// Bytes of a status message, or of another reason that a machine gives, that are kept.
const REASON_BYTES: usize = 512;

/// A reason that a machine gives, as it is kept and shown: short, on one line, without control
/// characters. It decides nothing.
pub(crate) fn reason(text: &str) -> String {
    cleaned(text, REASON_BYTES)
}

/// A text of at most so many bytes on one line, without control characters.
pub(super) fn cleaned(text: &str, most: usize) -> String {
    let mut chars = text.chars();
    let mut kept: String = chars
        .by_ref()
        .take(most)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if kept.len() > most || chars.next().is_some() {
        kept.truncate(kept.floor_char_boundary(most - '…'.len_utf8()));
        kept.push('…');
    }
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_a_text_that_was_cut_ends_with_dots() {
        assert_eq!(cleaned("3.12\u{85}", 16), "3.12 ");
        assert_eq!(cleaned("1234567", 6), "123…");
    }

    proptest! {
        #[test]
        fn a_reason_is_short_and_harms_no_terminal(text in "\\PC*|[\\x00-\\x7f]{0,2000}|(ä\u{1b}){0,900}") {
            let kept = reason(&text);
            prop_assert!(kept.len() <= REASON_BYTES);
            prop_assert!(!kept.chars().any(char::is_control));
            if text.len() <= REASON_BYTES && !text.chars().any(char::is_control) {
                prop_assert_eq!(kept, text);
            }
        }
    }
}
