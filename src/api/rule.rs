//! The CEL rules that several fields share, with messages that name the remedy.

use kube::core::Rule;

use crate::{duration, shared};

/// The text matches; `remedy` says what to write.
pub(crate) fn matches(pattern: &str, remedy: &str) -> Rule {
    Rule::new(format!("self.matches(r'{pattern}')")).message(remedy)
}

/// An amount of money.
pub(crate) fn amount(field: &str, example: &str) -> Rule {
    text_or_whole(
        r"^[0-9]+(\.[0-9]+)?$",
        &format!("{field} must be an amount of USD such as \"{example}\" (in quotes)"),
    )
}

/// An [`crate::Amount`]: a whole number that is not negative, or a text that matches.
pub(crate) fn text_or_whole(pattern: &str, remedy: &str) -> Rule {
    Rule::new(format!(
        "type(self) == int ? self >= 0 : string(self).matches(r'{pattern}')"
    ))
    .message(remedy)
}

/// Every entry of a list of texts matches.
pub(crate) fn each_matches(pattern: &str, remedy: &str) -> Rule {
    Rule::new(format!("self.all(entry, entry.matches(r'{pattern}'))")).message(remedy)
}

/// No entry of a list of texts has a match.
pub(crate) fn none_matches(pattern: &str, remedy: &str) -> Rule {
    Rule::new(format!("!self.exists(entry, entry.matches(r'{pattern}'))")).message(remedy)
}

/// Texts that hold a URL with a password or token: all that stands before the `@` of a URL, but for the name of a user
/// with `ssh`. A variable such as `${TOKEN}` in the place of the password is none.
pub(crate) const URL_WITH_PASSWORD: &str =
    r"[^hH]://([^/@]*:)?(([^/@:$]|[$][^{])[^/:]*)?@|[hH]://[^/@]*:[^/]*@";

/// The keys of a map are names as labels and annotations have them.
pub(crate) fn names_of_map(field: &str) -> Rule {
    let name = "[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?";
    let domain = "[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?";
    Rule::new(format!("self.all(key, key.matches(r'^({domain}/)?{name}$'))")).message(
        format!(
            "{field} take names such as team or example.org/team, of up to 63 letters, digits, -, _ and ."
        )
        .as_str(),
    )
}

/// Patterns of files, without the exceptions that a `.gitignore` has.
pub(crate) fn no_exceptions(field: &str) -> Rule {
    let remedy = format!(
        "a pattern of {field} cannot begin with !: name what is taken in include, and what is left out in exclude"
    );
    each_matches("^[^!]", &remedy)
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

/// Of two durations that are both there, the first is not longer than the second. Text that is no duration has
/// its own message, once.
pub(crate) fn not_longer(first: &str, second: &str, remedy: &str) -> Rule {
    let pattern = duration::PATTERN;
    Rule::new(format!(
        "!has(self.{first}) || !has(self.{second}) || !string(self.{first}).matches(r'{pattern}') || \
         !string(self.{second}).matches(r'{pattern}') || duration(self.{first}) <= duration(self.{second})"
    ))
    .message(remedy)
}

/// An amount of memory or storage has a unit. Text that is no amount has its own message, and so has
/// a number.
pub(crate) fn with_unit(field: &str, example: &str) -> Rule {
    let bare = example.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    Rule::new("type(self) == int || !string(self).matches(r'^[0-9]+$')")
        .message(format!("{field} needs a unit: write {example}, not {bare}").as_str())
}

/// An amount with a unit from `least` to `most`.
pub(crate) fn size_between(field: &str, least: &str, most: &str) -> Rule {
    Rule::new(format!(
        "!string(self).matches(r'^[0-9]{{1,12}}(Ki|Mi|Gi|Ti|k|M|G|T)$') || (quantity(self).compareTo(quantity('{least}')) \
         >= 0 && quantity(self).compareTo(quantity('{most}')) <= 0)"
    ))
    .message(format!("{field} must be from {least} to {most}").as_str())
}

/// A size from 64Mi: a smaller one means that its unit was forgotten. Text that is no amount has its
/// own message.
pub(crate) fn size_with_unit(field: &str, most: &str) -> Rule {
    let least = "64Mi";
    // A number is refused by the schema of the type, once.
    let rule = quantity_between(shared::SIZE_PATTERN, least, most).rule;
    Rule::new(format!("type(self) == int || {rule}"))
        .message(format!("{field} must be from {least} to {most}: write 16Gi, not 16").as_str())
}

/// An amount of CPUs from `least` to `most`.
pub(crate) fn cpu_between(field: &str, least: &str, most: &str) -> Rule {
    quantity_between(shared::CPU_PATTERN, least, most)
        .message(format!("{field} must be from {least} to {most} CPUs, such as 500m or 4").as_str())
}

/// A number of accelerators from `least` to `most`.
pub(crate) fn count_between(field: &str, least: &str, most: &str) -> Rule {
    quantity_between(shared::COUNT_PATTERN, least, most)
        .message(format!("{field} must be from {least} to {most}, such as 8 or \"0.5\"").as_str())
}

/// A number or text that matches is a quantity from `least` to `most`.
fn quantity_between(pattern: &str, least: &str, most: &str) -> Rule {
    Rule::new(format!(
        "!string(self).matches(r'{pattern}') || (quantity(string(self)).compareTo(quantity('{least}')) >= 0 \
         && quantity(string(self)).compareTo(quantity('{most}')) <= 0)"
    ))
}

/// Text that is no duration has its own message, once.
fn bounded(rule: &str, message: &str) -> Rule {
    Rule::new(format!(
        "!string(self).matches(r'{}') || {rule}",
        duration::PATTERN
    ))
    .message(message)
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
