//! Keeps secrets out of what a failing step said.

use skyward_core::Secret;

const MASK: &str = "***";

/// Values that must not be shown, longest first so that no part of one stays behind.
#[derive(Clone, Default)]
pub(crate) struct Mask(Vec<Secret>);

impl Mask {
    /// Masks these values and every line of those that have several. Values shorter than
    /// three characters are left alone: they would mask half of every text.
    pub(crate) fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Self {
        let mut parts: Vec<String> = values
            .into_iter()
            .flat_map(|value| std::iter::once(value).chain(value.lines()).map(str::trim))
            .filter(|part| part.chars().count() >= 3)
            .map(str::to_owned)
            .collect();
        parts.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        parts.dedup();
        Self(parts.into_iter().map(Secret::new).collect())
    }

    /// The text without them, and without passwords in addresses.
    pub(crate) fn apply(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            if text.contains(secret.expose()) {
                text = text.replace(secret.expose(), MASK);
            }
        }
        without_passwords(&text)
    }
}

/// Replaces `user:password@` in addresses such as those of package indexes.
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
    use super::*;

    #[test]
    fn secrets_and_their_lines_are_masked_longest_first() {
        let mask = Mask::new(["canary", "canary-long", "first line\nsecond line", "ab"]);
        let text = mask.apply("ab canary-long canary second line");
        assert_eq!(text, "ab *** *** ***");
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
        let values = Mask::new(["canary"]).0;
        assert!(!format!("{values:?}").contains("canary"));
    }
}
