//! Access to the fields of a checked input. An empty field counts as not given.

use std::collections::BTreeMap;

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::Value;

use crate::core::cloud::Refusal;

pub(super) fn text(input: &Value, name: &str) -> Option<String> {
    input
        .get(name)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
}

pub(super) fn count(input: &Value, name: &str) -> u32 {
    input
        .get(name)
        .and_then(Value::as_u64)
        .and_then(|number| u32::try_from(number).ok())
        .unwrap_or(0)
}

pub(super) fn decimal(input: &Value, name: &str) -> Option<Decimal> {
    input
        .get(name)
        .filter(|value| value.is_number())
        .and_then(|value| value.to_string().parse().ok())
}

pub(super) fn time(input: &Value, name: &str) -> Result<Option<Timestamp>, Refusal> {
    let Some(text) = text(input, name) else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|_| Refusal::Bad(format!("{name} is not a time in UTC: {text:?}")))
}

pub(super) fn texts(input: &Value, name: &str) -> Vec<String> {
    let items = input.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether a field is true.
pub(super) fn is(input: &Value, name: &str) -> bool {
    input.get(name) == Some(&Value::Bool(true))
}

/// The items of a text with commas; none where it is not given.
pub(super) fn items(input: &Value, name: &str) -> Option<Vec<String>> {
    let text = text(input, name)?;
    let items = text.split(',').map(|item| item.trim().to_owned());
    Some(items.filter(|item| !item.is_empty()).collect())
}

/// `env`, a list of keys and values; none where it is not given.
pub(super) fn env(input: &Value) -> Option<BTreeMap<String, String>> {
    let pairs = input.get("env").and_then(Value::as_array)?;
    let pair = |pair: &Value| Some((text(pair, "key")?, pair.get("value")?.as_str()?.to_owned()));
    Some(pairs.iter().filter_map(pair).collect())
}
