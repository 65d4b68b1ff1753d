//! Durations as users write them: `300s`, `10m`, `1h30m`.

use std::{fmt, str::FromStr};

use schemars::Schema;
use serde::{Deserialize, Serialize};

use crate::{rule, written::written};

/// A duration such as `300s`, `10m` or `1h30m` (units: ms, s, m, h).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Duration(pub String);

/// Pattern that the API server enforces; [`Duration::parse`] accepts the same.
pub const PATTERN: &str =
    r"^([0-9]{1,9}(\.[0-9]{1,3})?(ms|s)|[0-9]{1,7}(\.[0-9]{1,3})?m|[0-9]{1,6}(\.[0-9]{1,3})?h)+$";

/// Units and their seconds; `ms` before `m`, which begins it.
const UNITS: [(&str, f64); 4] = [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl Duration {
    /// The value; `None` when the text is not a duration (admission refuses it, so only an object
    /// from before a stricter rule has one).
    pub fn parse(&self) -> Option<std::time::Duration> {
        let mut rest = self.0.as_str();
        if rest.is_empty() {
            return None;
        }
        let mut total = 0.0_f64;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
            let number: f64 = rest.get(..end)?.parse().ok()?;
            rest = rest.get(end..)?;
            let (unit, seconds) = UNITS.into_iter().find(|(unit, _)| rest.starts_with(unit))?;
            total += number * seconds;
            rest = rest.get(unit.len()..)?;
        }
        std::time::Duration::try_from_secs_f64(total).ok()
    }

    /// So many seconds.
    pub fn of_seconds(seconds: u32) -> Self {
        Self(format!("{seconds}s"))
    }

    /// The value, or `default` when absent or malformed.
    pub fn or(value: Option<&Self>, default: std::time::Duration) -> std::time::Duration {
        value.and_then(Self::parse).unwrap_or(default)
    }
}

impl FromStr for Duration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let duration = Self(text.to_owned());
        if duration.parse().is_some() {
            Ok(duration)
        } else {
            Err(format!(
                "\"{text}\" is not a duration; write for example 300s, 10m or 1h30m"
            ))
        }
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

written!(
    Duration,
    32,
    format!("type(self) == string && string(self).matches(r'{PATTERN}')"),
    "write a duration such as 300s, 10m or 1h30m"
);

/// For a field of the settings of a kind of account (`#[schemars(transform = ...)]`), whose types name no rules of CEL: a
/// duration from `least` to `most`.
pub fn between(field: &'static str, least: &'static str, most: &'static str) -> impl FnMut(&mut Schema) {
    move |schema: &mut Schema| {
        kube::core::validate(schema, rule::between(field, least, most)).expect("a rule is plain data");
    }
}

/// A duration, or `Never` for one without an end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationOrNever(pub String);

/// The word for a time that never comes.
pub const NEVER: &str = "Never";

impl DurationOrNever {
    /// The duration; `None` is never. Text that is neither, which admission refuses, is never too.
    pub fn get(&self) -> Option<std::time::Duration> {
        Duration(self.0.clone()).parse()
    }
}

written!(
    DurationOrNever,
    32,
    format!("type(self) == string && (string(self) == '{NEVER}' || string(self).matches(r'{PATTERN}'))"),
    "write Never, or a duration such as 300s, 10m or 1h30m"
);

#[cfg(test)]
mod tests {
    use std::time::Duration as Std;

    use super::*;

    #[test]
    fn durations_add_their_units() {
        for (text, want) in [
            ("300s", Some(Std::from_mins(5))),
            ("1h30m", Some(Std::from_mins(90))),
            ("1.5s", Some(Std::from_millis(1500))),
            ("250ms", Some(Std::from_millis(250))),
            ("", None),
            ("10", None),
            ("m", None),
            ("5d", None),
        ] {
            assert_eq!(Duration(text.into()).parse(), want, "{text}");
        }
    }

    #[test]
    fn a_bound_of_a_setting_stands_beside_the_rule_that_it_is_a_duration() {
        let mut schema = schemars::schema_for!(Duration);
        between("a.wait", "1s", "10m")(&mut schema);
        let rules = schema
            .get("x-kubernetes-validations")
            .and_then(serde_json::Value::as_array);
        let messages: Vec<_> = rules
            .unwrap()
            .iter()
            .filter_map(|rule| rule["message"].as_str())
            .collect();
        assert_eq!(
            messages,
            [
                "write a duration such as 300s, 10m or 1h30m",
                "a.wait must be from 1s to 10m"
            ]
        );
    }

    #[test]
    fn never_is_no_duration() {
        assert_eq!(DurationOrNever("10m".into()).get(), Some(Std::from_mins(10)));
        assert_eq!(DurationOrNever(NEVER.into()).get(), None);
        assert_eq!(DurationOrNever("now and then".into()).get(), None);
    }
}
