//! Keeps values of Secrets out of the output of a failing step.
//!
//! A Secret may have thousands of lines, each with several forms; the output is short. So the
//! values are not prepared in advance. The positions of the text are sorted ([`Places`]), so that
//! each form is looked up quickly, however many there are.

use std::{collections::BTreeSet, fmt::Write as _, ops::Range, sync::Arc};

use base64::{Engine as _, engine::general_purpose};
use skyward_core::Secret;

use crate::places::{SHORTEST, stands_alone};

const MASK: &str = "***";

/// Values that must not be shown. Clones are the same values.
#[derive(Clone, Default)]
pub(crate) struct Mask(Arc<Vec<Secret>>);

impl Mask {
    /// Masks these values, every line of values that have several, and the forms in which
    /// programs repeat them: percent-encoded as in URLs, in base64 as in headers, quoted as
    /// in a netrc file. Short ones are masked where they stand alone ([`places`]).
    pub(crate) fn new(values: Arc<Vec<Secret>>) -> Self {
        Self(values)
    }

    #[cfg(test)]
    pub(crate) fn of(values: &[&str]) -> Self {
        Self(Arc::new(values.iter().map(|value| Secret::new(*value)).collect()))
    }

    /// The text without the masked values, and without passwords in URLs.
    pub(crate) fn apply(&self, text: &str) -> String {
        let parts: BTreeSet<&str> = self
            .0
            .iter()
            .map(Secret::expose)
            .flat_map(|value| std::iter::once(value).chain(value.lines()).map(str::trim))
            .filter(|part| !part.is_empty())
            .collect();
        if parts.is_empty() || text.is_empty() {
            return without_passwords(text);
        }
        let mut places = Places::of(text.as_bytes());
        let mut alone = Vec::new();
        for part in parts {
            // No form of a value is shorter than the value.
            if part.len() > text.len() {
                continue;
            }
            for form in forms(part) {
                if part.len() >= SHORTEST {
                    places.find(form.as_bytes());
                    continue;
                }
                let parts = places.at(form.as_bytes()).map(|at| at..at + form.len());
                alone.extend(parts.filter(|part| stands_alone(text, part.start, part.end)));
            }
        }
        let mut hidden = places.hidden();
        for part in alone {
            hidden[part].fill(true);
        }
        without_passwords(&masked(text, &hidden))
    }
}

/// The text with each hidden part replaced.
fn masked(text: &str, hidden: &[bool]) -> String {
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

/// All positions of a text, sorted by the text that follows there (a suffix array): a word is
/// found by binary search, at all its positions at once, and no text or word makes that slow.
struct Places<'a> {
    text: &'a [u8],
    order: Vec<u32>,
    /// Lengths of words that were found, with their range in `order`.
    found: Vec<(usize, usize, usize)>,
}

impl<'a> Places<'a> {
    /// Positions are sorted by their first byte, then by their first two, four, eight bytes.
    fn of(text: &'a [u8]) -> Self {
        let mut order: Vec<u32> = (0..u32::try_from(text.len()).unwrap_or(u32::MAX)).collect();
        let mut ranks: Vec<u32> = text.iter().map(|byte| u32::from(*byte)).collect();
        let mut next = vec![0; ranks.len()];
        let mut length = 1;
        loop {
            // A position beyond the end sorts before everything.
            let key = |at: u32| {
                let behind = ranks.get(at as usize + length);
                (ranks[at as usize], behind.map_or(0, |rank| rank + 1))
            };
            order.sort_unstable_by_key(|at| key(*at));
            let mut rank = 0;
            for (number, at) in order.iter().enumerate() {
                if number > 0 && key(*at) != key(order[number - 1]) {
                    rank += 1;
                }
                next[*at as usize] = rank;
            }
            std::mem::swap(&mut ranks, &mut next);
            length *= 2;
            if length >= text.len() || rank as usize + 1 == order.len() {
                break;
            }
        }
        Self {
            text,
            order,
            found: Vec::new(),
        }
    }

    /// Notes all positions of a word.
    fn find(&mut self, word: &[u8]) {
        let ranks = self.ranks(word);
        if !ranks.is_empty() {
            self.found.push((word.len(), ranks.start, ranks.end));
        }
    }

    /// Where a word is.
    fn at(&self, word: &[u8]) -> impl Iterator<Item = usize> {
        self.order[self.ranks(word)].iter().map(|at| *at as usize)
    }

    /// The places of a word, in the order of places.
    fn ranks(&self, word: &[u8]) -> Range<usize> {
        let begins = |at: &u32| {
            let rest = &self.text[*at as usize..];
            &rest[..rest.len().min(word.len())]
        };
        let from = self.order.partition_point(|at| begins(at) < word);
        from..from + self.order[from..].partition_point(|at| begins(at) == word)
    }

    /// Which bytes belong to a word that was found.
    fn hidden(mut self) -> Vec<bool> {
        // The longest word that begins at a position counts: each position is looked at once.
        self.found.sort_unstable_by(|a, b| b.cmp(a));
        let mut longest = vec![0; self.text.len()];
        let mut next: Vec<usize> = (0..=self.order.len()).collect();
        for (length, from, to) in self.found {
            let mut rank = free_from(&mut next, from);
            while rank < to {
                longest[self.order[rank] as usize] = length;
                next[rank] = rank + 1;
                rank = free_from(&mut next, rank);
            }
        }
        let mut end = 0;
        let hide = |(at, length): (usize, usize)| {
            end = end.max(at + length);
            at < end
        };
        longest.into_iter().enumerate().map(hide).collect()
    }
}

/// The first rank from there on at which no word was found yet.
fn free_from(next: &mut [usize], rank: usize) -> usize {
    let mut free = rank;
    while next[free] != free {
        free = next[free];
    }
    let mut at = rank;
    while next[at] != at {
        at = std::mem::replace(&mut next[at], free);
    }
    free
}

/// A value as programs write it.
fn forms(value: &str) -> [String; 8] {
    [
        value.to_owned(),
        percent_encoded(value, false, ""),
        percent_encoded(value, true, ""),
        // Characters that some programs leave as they are in a path.
        percent_encoded(value, false, "/"),
        percent_encoded(value, false, "!$&'()*+,;=:@/"),
        general_purpose::STANDARD_NO_PAD.encode(value),
        general_purpose::URL_SAFE_NO_PAD.encode(value),
        value.replace('\\', "\\\\").replace('"', "\\\""),
    ]
}

/// Percent-encodes a value as in URLs; hexadecimal digits are upper case unless `lower`.
fn percent_encoded(value: &str, lower: bool, kept: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.as_bytes().contains(&byte) {
            text.push(char::from(byte));
        } else if lower {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02x}");
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Replaces `user:password@` in URLs, such as the URLs of package indexes.
fn without_passwords(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("://") {
        let (before, after) = rest.split_at(start + 3);
        result.push_str(before);
        let authority = after.find(|c: char| c == '/' || c.is_whitespace() || "\"'<>".contains(c));
        let (authority, tail) = after.split_at(authority.unwrap_or(after.len()));
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                result.push_str(MASK);
                result.push('@');
                result.push_str(host);
            }
            None => result.push_str(authority),
        }
        rest = tail;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn secrets_and_their_lines_are_masked_longest_first() {
        let mask = Mask::of(&["canary", "canary-long", "first line\nsecond line"]);
        let text = mask.apply("ab canary-long canary second line");
        assert_eq!(text, "ab *** *** ***");
    }

    #[test]
    fn a_short_value_is_masked_where_it_stands_alone() {
        let mask = Mask::of(&["ab", "7", "c/d"]);
        assert_eq!(
            mask.apply("ab, cab; PIN=7 of 17 (c/d, c%2Fd) abc"),
            "***, cab; PIN=*** of 17 (***, ***) abc"
        );
    }

    #[test]
    fn a_value_is_masked_in_every_form_in_which_programs_repeat_it() {
        let mask = Mask::of(&["p@ss \"w/rd\"é", "robot:p@ss"]);
        for said in [
            "p@ss \"w/rd\"é",
            "p%40ss%20%22w%2Frd%22%C3%A9",
            "p%40ss%20%22w%2frd%22%c3%a9",
            "p%40ss%20%22w/rd%22%C3%A9",
            "cEBzcyAidy9yZCLDqQ==",
            "cEBzcyAidy9yZCLDqQ",
            "p@ss \\\"w/rd\\\"é",
            "Basic cm9ib3Q6cEBzcw==",
        ] {
            let shown = mask.apply(said);
            assert!(shown.contains(MASK), "{said} is shown as {shown}");
            assert!(
                !shown.contains("ss") && !shown.contains("cEBz") && !shown.contains("cm9i"),
                "{said} is shown as {shown}"
            );
        }
    }

    #[test]
    fn passwords_in_addresses_are_masked() {
        let text =
            Mask::default().apply("from https://user:p@ss@index.example/simple and http://plain.example/x");
        assert_eq!(
            text,
            "from https://***@index.example/simple and http://plain.example/x"
        );
    }

    #[test]
    fn a_mask_is_never_printed() {
        // Secret has no readable Debug; Mask has none at all, which this line would break.
        let values = Mask::of(&["canary"]).0;
        assert!(!format!("{values:?}").contains("canary"));
    }

    #[test]
    fn thousands_of_lines_are_looked_up_in_the_worst_text_without_being_kept_in_every_form() {
        let lines: Vec<String> = (3..2000)
            .map(|length| "a".repeat(length % 500 + 3) + "b")
            .collect();
        let mask = Mask::of(&[&lines.join("\n")]);
        assert_eq!(mask.0.len(), 1);
        let text = "a".repeat(33 * 1024);
        let begun = std::time::Instant::now();
        assert_eq!(mask.apply(&text), text, "no line of it");
        assert_eq!(
            mask.apply(&(text + "b and c")),
            "a".repeat(33 * 1024 - 502) + "*** and c"
        );
        // A plain search for each line in each form would take minutes on such texts.
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(20),
            "{:?}",
            begun.elapsed()
        );
    }

    proptest! {
        #[test]
        fn what_is_hidden_is_all_of_every_value_and_nothing_else(
            values in proptest::collection::vec("[ab]{3,6}", 0..6),
            text in "[abc]{0,60}",
        ) {
            let mut expected = vec![false; text.len()];
            for value in &values {
                for at in 0..text.len() {
                    if text[at..].starts_with(value.as_str()) {
                        expected[at..at + value.len()].fill(true);
                    }
                }
            }
            let mut places = Places::of(text.as_bytes());
            for value in &values {
                places.find(value.as_bytes());
            }
            prop_assert_eq!(places.hidden(), expected);
        }
    }
}
