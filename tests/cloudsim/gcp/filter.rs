//! The filters of lists: comparisons of a field with a text, joined by AND or in parentheses beside each other.

use serde_json::Value;

use crate::core::cloud::Refusal;

/// How a filter compares: what comes first in a comparison counts.
const COMPARES: [&str; 5] = ["!=", " ne ", " eq ", "=", ":"];

/// Whether something fits a filter. A filter that cannot be read is refused.
pub(super) fn fits(filter: &str, thing: &Value) -> Result<bool, Refusal> {
    let fits = all(filter.trim(), thing);
    let why = "Invalid value for field 'filter': Invalid list filter expression.";
    fits.ok_or_else(|| Refusal::Bad(format!("{why} '{filter}'")))
}

fn all(filter: &str, thing: &Value) -> Option<bool> {
    if filter.is_empty() {
        return Some(true);
    }
    let (one, rest) = match filter.strip_prefix('(') {
        Some(inside) => inside.split_once(')')?,
        None => filter.split_once(" AND ").unwrap_or((filter, "")),
    };
    let rest = rest.trim();
    let rest = all(rest.strip_prefix("AND ").unwrap_or(rest).trim(), thing)?;
    Some(compare(one, thing)? && rest)
}

fn compare(one: &str, thing: &Value) -> Option<bool> {
    let at = |compares: &&str| one.find(*compares);
    let compares = COMPARES
        .into_iter()
        .filter(|known| at(known).is_some())
        .min_by_key(at)?;
    let (field, wanted) = one.split_once(compares)?;
    let (field, wanted) = (field.trim(), wanted.trim());
    let quoted = wanted.strip_prefix('"').map(|rest| rest.strip_suffix('"'));
    let is_word = |text: &str| !text.is_empty() && !text.contains([' ', '"', '(', ')', '=']);
    let wanted = match quoted {
        Some(inside) => inside?,
        None => Some(wanted).filter(|wanted| is_word(wanted))?,
    };
    let mut parts = Some(field).filter(|field| is_word(field))?.split('.');
    let found = parts.try_fold(thing, |thing, part| thing.get(part));
    let text = found.map(|found| found.as_str().map_or_else(|| found.to_string(), str::to_owned));
    Some(match compares {
        "=" | " eq " => text.as_deref() == Some(wanted),
        "!=" | " ne " => text.as_deref() != Some(wanted),
        _ => text.is_some_and(|text| wanted == "*" || text.contains(wanted)),
    })
}
