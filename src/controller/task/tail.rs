//! The end of a run's output as a status shows it: text that harms no terminal, holds no
//! value of a Secret, and is short.

use std::collections::BTreeSet;

use skyward_planner::task::status::end_of;
use skyward_remote::places::{SHORTEST, hidden_places};

/// Longest tail, in bytes.
pub(crate) const MAX: usize = 2048;
const MASK: &str = "***";
/// Most bytes of a message that are read; the agent sends 1000.
const LONGEST_MESSAGE: usize = 4096;
/// The mark that the agent puts at the end of a message that it cut.
const CUT: char = '…';

/// The end of raw output as text: invalid UTF-8 is replaced, control characters become their
/// pictures, values of Secrets are masked.
pub(crate) fn readable(raw: &[u8], secrets: &[String]) -> String {
    let begins = if raw.len() < MAX { Edge::Unknown } else { Edge::Cut };
    let raw = &raw[raw.len().saturating_sub(MAX)..];
    let text = harmless(&String::from_utf8_lossy(raw));
    // Work that is killed stops in the middle of a word.
    let text = without(secrets, &text, begins, Edge::Unknown);
    end_of(&text, MAX).to_owned()
}

/// An agent's message with values of Secrets masked. A long one was cut at its end.
pub(crate) fn masked(text: &str, secrets: &[String]) -> String {
    let (text, rest) = if text.len() > LONGEST_MESSAGE {
        let shorter = &text[..text.floor_char_boundary(LONGEST_MESSAGE)];
        (shorter, Some(shorter))
    } else {
        (text, text.strip_suffix(CUT))
    };
    match rest {
        Some(rest) => without(secrets, rest, Edge::Unknown, Edge::Cut) + "…",
        None => without(secrets, text, Edge::Unknown, Edge::Unknown),
    }
}

/// What is known about one end of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Edge {
    /// The text was cut there, perhaps in the middle of a value.
    Cut,
    /// The text was perhaps cut there.
    Unknown,
}

impl Edge {
    /// The shortest part of a value that is masked at this end.
    const fn shortest(self) -> usize {
        match self {
            Self::Cut => 1,
            Self::Unknown => SHORTEST,
        }
    }
}

/// The text with values masked: whole values, the end of a value that the text begins with, the
/// beginning of one that it ends with, and the middle of one where the text is nothing else. All
/// are found before the first is masked, so that none hides another.
fn without(secrets: &[String], text: &str, begins: Edge, ends: Edge) -> String {
    let mut hidden = vec![false; text.len()];
    let mut hide = |from: usize, to: usize| hidden[from..to].fill(true);
    // A character that was cut in two is no part of a value any more.
    let start = text.len() - text.trim_start_matches('\u{fffd}').len();
    let end = text.trim_end_matches('\u{fffd}').len().max(start);
    let core = &text[start..end];
    let secrets: Vec<String> = secrets.iter().map(|secret| harmless(secret)).collect();
    let values: BTreeSet<&str> = secrets
        .iter()
        .flat_map(|secret| std::iter::once(secret.as_str()).chain(secret.lines()))
        .map(str::trim)
        .collect();
    for value in values {
        for at in hidden_places(text, value) {
            hide(at, at + value.len());
        }
        if value.len() < SHORTEST || core.is_empty() {
            continue;
        }
        if begins == Edge::Cut && value.contains(core) {
            hide(0, text.len());
        }
        let parts = || (1..=value.len().min(core.len())).rev();
        let tail = parts().find(|length| {
            let from = value.len() - length;
            value.is_char_boundary(from) && core.starts_with(&value[from..])
        });
        if let Some(length) = tail.filter(|length| *length >= begins.shortest()) {
            hide(0, start + length);
        }
        let head =
            parts().find(|length| value.is_char_boundary(*length) && core.ends_with(&value[..*length]));
        if let Some(length) = head.filter(|length| *length >= ends.shortest()) {
            hide(end - length, text.len());
        }
    }
    let mut shown = String::with_capacity(text.len());
    let mut masking = false;
    for (at, character) in text.char_indices() {
        if !hidden[at] {
            shown.push(character);
        } else if !masking {
            shown.push_str(MASK);
        }
        masking = hidden[at];
    }
    shown
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
            // C1 controls, and characters that turn the direction of writing around.
            '\u{80}'..='\u{9f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            other => other,
        })
        .collect()
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
            "token=*** ***\n"
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

    #[test]
    fn a_message_that_the_agent_cut_shows_no_beginning_of_a_value() {
        let secrets = vec!["hunter22-long".to_owned()];
        assert_eq!(
            masked("ValueError: xxx hunter2…", &secrets),
            "ValueError: xxx ***…"
        );
        assert_eq!(masked("ValueError: xxx h…", &secrets), "ValueError: xxx ***…");
        // In a whole message a single letter that a value begins with is not masked.
        assert_eq!(masked("no such path", &secrets), "no such path");
    }

    #[test]
    fn a_short_value_is_masked_where_it_stands_alone() {
        let secrets = vec!["42".to_owned(), "ab-".to_owned()];
        assert_eq!(
            masked("pin=42, 142 and 42; ab- or xab-", &secrets),
            "pin=***, 142 and ***; *** or xab-"
        );
    }

    #[test]
    fn values_that_overlap_hide_each_other_nowhere() {
        let secrets = ["secret-cret-x", "cret", "hunter22", "my-hunter"].map(str::to_owned);
        assert_eq!(readable(b"cret-cret-x.", &secrets), "***.");
        assert_eq!(readable(b"hunter22.", &secrets), "***.");
        assert_eq!(readable(b"my-hunter22.", &secrets), "***.");
    }

    #[test]
    fn the_middle_of_a_value_that_is_longer_than_a_tail_is_not_shown() {
        let long: String = (0..5000)
            .map(|number| char::from(b'a' + (number % 23) as u8))
            .collect();
        let secrets = vec![long.clone()];
        assert_eq!(readable(&long.as_bytes()[1000..1000 + MAX], &secrets), "***");
    }

    proptest! {
        /// Any part of a text with a value: a tail is cut at its beginning, and at its end by a
        /// death; a message is cut at its end.
        #[test]
        fn no_cut_shows_any_part_of_a_value(
            value in "[b-m\u{e4}\u{20ac}]{4,40}",
            before in "[ n-z.]{0,30}",
            behind in "[ n-z.]{0,30}",
            filled in any::<bool>(),
            from in any::<prop::sample::Index>(),
            to in any::<prop::sample::Index>(),
        ) {
            let secrets = [value.clone()];
            let of_value = |shown: &str| shown.chars().filter(|c| value.contains(*c)).collect::<String>();
            let text = format!("{before}{value}{behind}");

            let cut = &text[..text.floor_char_boundary(to.index(text.len()))];
            prop_assert_eq!(of_value(&masked(&format!("{cut}…"), &secrets)), "");

            // A tail that is full was cut, wherever that is.
            let fill = if filled { ".".repeat(2 * MAX) } else { String::new() };
            let whole = format!("{text}{fill}").into_bytes();
            let from = from.index(text.len());
            let tail = readable(&whole[from..], &secrets);
            let left = of_value(&tail);
            if filled {
                prop_assert_eq!(left, "");
            } else {
                prop_assert!(left.len() < SHORTEST, "{}", tail);
            }
            // Work that died while it printed.
            let died = readable(&text.as_bytes()[..to.index(text.len())], &secrets);
            prop_assert!(of_value(&died).len() < SHORTEST, "{}", died);
        }

        #[test]
        fn a_tail_is_short_whatever_it_is_made_of(raw in proptest::collection::vec(any::<u8>(), 0..5000)) {
            let tail = readable(&raw, &["secret".to_owned()]);
            prop_assert!(tail.len() <= MAX);
            prop_assert!(!tail.chars().any(|c| c.is_control() && c != '\n' && c != '\t'));
        }
    }
}
