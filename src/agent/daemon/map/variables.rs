//! An item in the arguments and variables of a command, expanded as Kubernetes expands variables: `$(NAME)` becomes
//! the value where the name is known and stays as it is where it is not, and `$$(NAME)` becomes `$(NAME)`.

use std::collections::BTreeMap;

use serde_json::Value;

/// A longer item is in a file, which `SKYWARD_ITEM_FILE` names: the kernel takes no argument of more than 128 KiB.
pub(crate) const LONGEST: usize = 32 * 1024;
/// The item.
pub(crate) const ITEM: &str = "SKYWARD_ITEM";
/// Its index, from 0.
pub(crate) const INDEX: &str = "SKYWARD_ITEM_INDEX";
/// How many items the map has.
pub(crate) const TOTAL: &str = "SKYWARD_ITEM_TOTAL";
/// The file with a longer item.
pub(crate) const FILE: &str = "SKYWARD_ITEM_FILE";

/// An item as text: that of a string is the string itself, any other is JSON.
pub(crate) fn text(index: u32, json: &[u8]) -> String {
    if json.is_empty() {
        return index.to_string();
    }
    match serde_json::from_slice(json) {
        Ok(Value::String(text)) => text,
        Ok(_) | Err(_) => String::from_utf8_lossy(json).into_owned(),
    }
}

/// Puts the known variables into a text.
pub(crate) fn expand(text: &str, known: &BTreeMap<&str, String>) -> String {
    let mut expanded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|inner| inner.split_once(')'));
        match name.and_then(|(name, after)| Some((known.get(name)?, after))) {
            Some((value, after)) => {
                expanded.push_str(value);
                rest = after;
            }
            None => expanded.push('$'),
        }
    }
    expanded.push_str(rest);
    expanded
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_known_name_becomes_its_value_and_all_else_stays() {
        let known = BTreeMap::from([(ITEM, "a b".to_owned()), (INDEX, "7".to_owned())]);
        for (text, expected) in [
            ("", ""),
            ("--name=$(SKYWARD_ITEM)", "--name=a b"),
            ("$(SKYWARD_ITEM_INDEX)$(SKYWARD_ITEM)", "7a b"),
            ("$$(SKYWARD_ITEM)", "$(SKYWARD_ITEM)"),
            ("$$$(SKYWARD_ITEM)", "$a b"),
            ("$(HOME) $HOME ${HOME} $", "$(HOME) $HOME ${HOME} $"),
            ("$(SKYWARD_ITEM", "$(SKYWARD_ITEM"),
            ("$($(SKYWARD_ITEM))", "$(a b)"),
            ("ä$(SKYWARD_ITEM_INDEX)ä", "ä7ä"),
        ] {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    #[test]
    fn what_a_value_says_is_not_expanded_again() {
        let known = BTreeMap::from([
            (ITEM, "$(SKYWARD_ITEM_INDEX)".to_owned()),
            (INDEX, "7".to_owned()),
        ]);
        assert_eq!(expand("$(SKYWARD_ITEM)", &known), "$(SKYWARD_ITEM_INDEX)");
    }

    #[test]
    fn the_text_of_a_string_has_no_quotes() {
        for (json, expected) in [
            ("\"a\\nb\"", "a\nb"),
            ("{\"a\": 1}", "{\"a\": 1}"),
            ("1.50", "1.50"),
            ("", "3"),
        ] {
            assert_eq!(text(3, json.as_bytes()), expected);
        }
    }

    proptest! {
        #[test]
        fn a_text_without_a_dollar_is_not_changed(text in "[^$]{0,40}") {
            let known = BTreeMap::from([(ITEM, "x".to_owned())]);
            prop_assert_eq!(expand(&text, &known), text);
        }
    }
}
