//! Where a value of a Secret is hidden in a text: the one rule of all masks.
//!
//! A value of [`SHORTEST`] bytes or more is hidden everywhere. A shorter one, such as `42` or
//! `yes`, is a part of many words, so it is hidden only where it is a whole word.

/// Shorter values, in bytes, are hidden only where they stand alone.
pub const SHORTEST: usize = 4;

/// Where a value begins in a text and is to be hidden, also where it begins within itself.
pub fn hidden_places<'a>(text: &'a str, value: &'a str) -> impl Iterator<Item = usize> + 'a {
    let step = value.chars().next().map_or(1, char::len_utf8);
    let mut from = 0;
    let places = std::iter::from_fn(move || {
        if value.is_empty() {
            return None;
        }
        let at = from + text.get(from..)?.find(value)?;
        from = at + step;
        Some(at)
    });
    places.filter(move |at| value.len() >= SHORTEST || stands_alone(text, *at, *at + value.len()))
}

/// Whether no word goes on before or behind that part of a text.
pub fn stands_alone(text: &str, from: usize, to: usize) -> bool {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    !text[..from].ends_with(is_word) && !text[to..].starts_with(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_are_hidden_as_whole_words_and_longer_ones_anywhere() {
        for (value, text, places) in [
            ("x", "x=x; max xx _x é x", &[0, 2, 18][..]),
            ("42", "pin=42, 142 and 42", &[4, 16]),
            ("abc", "abc abcd xabc (abc)", &[0, 15]),
            ("a-a", "a-a-a", &[0, 2]),
            ("abcd", "xabcdabcdx", &[1, 5]),
            ("aaaa", "aaaaaa", &[0, 1, 2]),
            ("é", "é éa aé", &[0]),
            ("", "text", &[]),
        ] {
            assert_eq!(
                hidden_places(text, value).collect::<Vec<_>>(),
                places,
                "{value} in {text}"
            );
        }
    }
}
