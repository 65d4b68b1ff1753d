//! Reading parameters, filters, pages and tags the way all operations do.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::failure::Failure;

/// The longest client token.
const TOKEN_LENGTH: usize = 64;

/// A text parameter.
pub fn text<'a>(input: &'a Value, name: &str) -> Option<&'a str> {
    input.get(name).and_then(Value::as_str)
}

/// A text parameter that has to be there.
pub fn needed<'a>(input: &'a Value, name: &str) -> Result<&'a str, Failure> {
    text(input, name)
        .filter(|text| !text.is_empty())
        .ok_or_else(|| Failure::missing(name))
}

/// A list parameter; absent is empty.
pub fn list<'a>(input: &'a Value, name: &str) -> &'a [Value] {
    input
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

/// A list of texts.
pub fn texts(input: &Value, name: &str) -> Vec<String> {
    list(input, name)
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

/// A yes-or-no parameter; absent is no.
pub fn flag(input: &Value, name: &str) -> bool {
    input.get(name).and_then(Value::as_bool).unwrap_or(false)
}

/// A number.
pub fn int(input: &Value, name: &str) -> Option<i64> {
    input.get(name).and_then(Value::as_i64)
}

/// The client token, checked.
pub fn client_token(input: &Value) -> Result<Option<String>, Failure> {
    match text(input, "ClientToken") {
        Some(token) if token.chars().count() > TOKEN_LENGTH => Err(Failure::value(format!(
            "ClientToken is longer than {TOKEN_LENGTH} characters"
        ))),
        other => Ok(other.filter(|token| !token.is_empty()).map(str::to_owned)),
    }
}

/// Keeps the items that match the request's filters. `values` says what an item
/// has under a filter's name; `known` are the names that exist, besides `tag:KEY`
/// and `tag-key` where `tags` is set.
pub fn filtered<T>(
    input: &Value,
    known: &[&str],
    tags: bool,
    items: Vec<T>,
    values: impl Fn(&T, &str) -> Vec<String>,
) -> Result<Vec<T>, Failure> {
    let filters = list(input, "Filters");
    for filter in filters {
        let name = needed(filter, "Name")?;
        let tag = tags && (name.starts_with("tag:") || name == "tag-key");
        if !tag && !known.contains(&name) {
            return Err(Failure::value(format!("The filter '{name}' is invalid")));
        }
        if list(filter, "Values").is_empty() {
            return Err(Failure::value(format!("The filter '{name}' has no values")));
        }
    }
    Ok(items
        .into_iter()
        .filter(|item| {
            filters.iter().all(|filter| {
                let actual = values(item, text(filter, "Name").unwrap_or_default());
                texts(filter, "Values")
                    .iter()
                    .any(|pattern| actual.iter().any(|value| like(pattern, value)))
            })
        })
        .collect())
}

/// What an item with these tags has under a tag filter.
pub fn tag_values(tags: &BTreeMap<String, String>, filter: &str) -> Vec<String> {
    match filter.strip_prefix("tag:") {
        Some(key) => tags.get(key).cloned().into_iter().collect(),
        None if filter == "tag-key" => tags.keys().cloned().collect(),
        None => Vec::new(),
    }
}

/// Whether a value matches a pattern with `*` and `?`.
pub fn like(pattern: &str, value: &str) -> bool {
    fn matches(pattern: &[char], value: &[char]) -> bool {
        match pattern.split_first() {
            None => value.is_empty(),
            Some(('*', rest)) => (0..=value.len()).any(|skipped| matches(rest, &value[skipped..])),
            Some(('?', rest)) => !value.is_empty() && matches(rest, &value[1..]),
            Some((letter, rest)) => value.first() == Some(letter) && matches(rest, &value[1..]),
        }
    }
    matches(
        &pattern.chars().collect::<Vec<_>>(),
        &value.chars().collect::<Vec<_>>(),
    )
}

/// How many items a page may have: least, most, and the default (`None`: all).
#[derive(Debug, Clone, Copy)]
pub struct Pages {
    /// Least `MaxResults`.
    pub least: usize,
    /// Greatest `MaxResults`.
    pub most: usize,
    /// Without `MaxResults`.
    pub usual: Option<usize>,
}

/// One page of items and the token of the next. `keep` shortens the page, as the
/// service may do at any time.
pub fn page<T>(
    input: &Value,
    pages: Pages,
    keep: Option<usize>,
    items: Vec<T>,
) -> Result<(Vec<T>, Option<String>), Failure> {
    let start = match text(input, "NextToken").filter(|token| !token.is_empty()) {
        None => 0,
        Some(token) => STANDARD
            .decode(token)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| {
                text.strip_prefix("from:")
                    .and_then(|number| number.parse::<usize>().ok())
            })
            .ok_or_else(|| Failure::client("InvalidNextToken", format!("The token '{token}' is invalid")))?,
    };
    let wanted = match int(input, "MaxResults") {
        None | Some(0) => pages.usual,
        Some(number) => {
            let number = usize::try_from(number).unwrap_or(0);
            if number < pages.least || number > pages.most {
                return Err(Failure::value(format!(
                    "Value ( {number} ) for parameter maxResults is invalid. Expecting a value between {} and {}.",
                    pages.least, pages.most
                )));
            }
            Some(number)
        }
    };
    let size = wanted.unwrap_or(usize::MAX).min(keep.unwrap_or(usize::MAX));
    let total = items.len();
    let kept: Vec<T> = items.into_iter().skip(start).take(size).collect();
    let end = start + kept.len();
    // A page of nothing would be asked for again for ever.
    let next = (end < total && size > 0).then(|| STANDARD.encode(format!("from:{end}")));
    Ok((kept, next))
}

/// The tags that a request gives to one kind of resource; `allowed` are the kinds
/// that the operation can tag.
pub fn tags_for(input: &Value, kind: &str, allowed: &[&str]) -> Result<BTreeMap<String, String>, Failure> {
    let mut tags = BTreeMap::new();
    for specification in list(input, "TagSpecifications") {
        let named = needed(specification, "ResourceType")?;
        if !allowed.contains(&named) {
            return Err(Failure::value(format!(
                "'{named}' is not a valid taggable resource type for this operation."
            )));
        }
        let given = read_tags(specification)?;
        if named == kind {
            tags.extend(given);
        }
    }
    check_tag_count(&tags)?;
    Ok(tags)
}

/// The tags of a structure with `Tags`, checked.
pub fn read_tags(input: &Value) -> Result<BTreeMap<String, String>, Failure> {
    let mut tags = BTreeMap::new();
    for tag in list(input, "Tags") {
        let key = needed(tag, "Key")?;
        let value = text(tag, "Value").unwrap_or_default();
        if key.starts_with("aws:") {
            return Err(Failure::value(format!(
                "Tag keys starting with 'aws:' are reserved for internal use: {key}"
            )));
        }
        if key.chars().count() > 128 {
            return Err(Failure::value(format!(
                "Tag key exceeds the maximum length of 128 characters: {key}"
            )));
        }
        if value.chars().count() > 256 {
            return Err(Failure::value(format!(
                "Tag value exceeds the maximum length of 256 characters ({key})"
            )));
        }
        if tags.insert(key.to_owned(), value.to_owned()).is_some() {
            return Err(Failure::value(format!("Duplicate tag key '{key}' specified.")));
        }
    }
    Ok(tags)
}

/// At most 50 tags of the user's own.
pub fn check_tag_count(tags: &BTreeMap<String, String>) -> Result<(), Failure> {
    if tags.keys().filter(|key| !key.starts_with("aws:")).count() > 50 {
        return Err(Failure::client(
            "TagLimitExceeded",
            "Maximum of 50 tags per resource allowed.",
        ));
    }
    Ok(())
}

/// Tags as answers have them.
pub fn tag_set(tags: &BTreeMap<String, String>) -> Value {
    tags.iter()
        .map(|(key, value)| json!({"Key": key, "Value": value}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_stars_and_question_marks() {
        assert!(like("p5*", "p5.48xlarge") && like("p5*", "p5"));
        assert!(like("g?.xlarge", "g5.xlarge") && !like("g?.xlarge", "g4dn.xlarge"));
        assert!(!like("p5", "p5.48xlarge"));
    }

    #[test]
    fn pages_follow_one_another_without_gap_or_repetition() {
        let pages = Pages {
            least: 2,
            most: 10,
            usual: None,
        };
        let items: Vec<u32> = (0..7).collect();
        let mut seen = Vec::new();
        let mut input = json!({"MaxResults": 3});
        loop {
            let (page, next) = page(&input, pages, None, items.clone()).expect("a page");
            seen.extend(page);
            match next {
                Some(token) => input["NextToken"] = json!(token),
                None => break,
            }
        }
        assert_eq!(seen, items);
        assert!(page(&json!({"MaxResults": 1}), pages, None, items.clone()).is_err());
        assert!(page(&json!({"NextToken": "nonsense"}), pages, None, items).is_err());
    }

    #[test]
    fn reserved_and_too_long_tags_are_refused() {
        let tags = |key: &str, value: &str| read_tags(&json!({"Tags": [{"Key": key, "Value": value}]}));
        assert!(tags("skyward:pool", "x").is_ok());
        assert!(tags("aws:mine", "x").is_err());
        assert!(tags(&"k".repeat(129), "x").is_err());
        assert!(tags("k", &"v".repeat(257)).is_err());
    }

    #[test]
    fn an_unknown_filter_is_refused_even_when_there_is_nothing_to_filter() {
        let input = json!({"Filters": [{"Name": "colour", "Values": ["red"]}]});
        assert!(filtered(&input, &["name"], true, Vec::<u8>::new(), |_, _| vec![]).is_err());
    }
}
