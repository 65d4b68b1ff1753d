//! The CEL rules that several fields share, with messages that name the remedy.

use kube::core::Rule;

use crate::duration;

/// The text matches; `remedy` says what to write.
pub(crate) fn matches(pattern: &str, remedy: &str) -> Rule {
    Rule::new(format!("self.matches(r'{pattern}')")).message(remedy)
}

/// An amount of money.
pub(crate) fn amount(field: &str, example: &str) -> Rule {
    matches(
        r"^[0-9]+(\.[0-9]+)?$",
        &format!("{field} must be an amount of USD such as \"{example}\" (in quotes)"),
    )
}

/// Every entry of a list of texts matches.
pub(crate) fn each_matches(pattern: &str, remedy: &str) -> Rule {
    Rule::new(format!("self.all(entry, entry.matches(r'{pattern}'))")).message(remedy)
}

/// A duration of at least `least`.
pub(crate) fn at_least(field: &str, least: &str) -> Rule {
    bounded(
        &format!("duration(self) >= duration('{least}')"),
        &format!("{field} must be at least {least}"),
    )
}

/// A duration of at most `most`.
pub(crate) fn at_most(field: &str, most: &str) -> Rule {
    bounded(
        &format!("duration(self) <= duration('{most}')"),
        &format!("{field} must be at most {most}"),
    )
}

/// A duration from `least` to `most`.
pub(crate) fn between(field: &str, least: &str, most: &str) -> Rule {
    bounded(
        &format!("(duration(self) >= duration('{least}') && duration(self) <= duration('{most}'))"),
        &format!("{field} must be from {least} to {most}"),
    )
}

/// What is not a duration at all has its own message, once.
fn bounded(rule: &str, message: &str) -> Rule {
    Rule::new(format!("!self.matches(r'{}') || {rule}", duration::PATTERN)).message(message)
}

/// A field of the object that the rule stands on cannot be changed after creation,
/// added or removed. (Optional syntax, `self.?field`, would be shorter, but the API
/// server cannot estimate its cost and refuses it for anything but small fields.)
pub(crate) fn fixed(field: &str, remedy: &str) -> Rule {
    let name = cel_name(field);
    Rule::new(format!(
        "has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})"
    ))
    .message(format!("{field} cannot be changed; {remedy}").as_str())
    .field_path(format!(".{field}"))
}

/// A field's name in CEL, where some words are reserved.
fn cel_name(field: &str) -> String {
    match field {
        "function" => format!("__{field}__"),
        other => other.to_owned(),
    }
}
