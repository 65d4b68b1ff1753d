//! The options of a reader: the query of `…/tasks/NAME/log`, as of Pod logs.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use skyward_agent::log::Stream;

/// How the log is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text for a person.
    #[default]
    Text,
    /// Records with their place (see [`crate::records`]), for a client that reconnects.
    Records,
}

/// The position at which a client that reconnects wants to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The attempt.
    pub attempt: u32,
    /// The rank.
    pub rank: u32,
    /// Offset after the last record it has.
    pub offset: u64,
}

impl Position {
    /// Reads its three numbers.
    pub(crate) fn parse<'a>(mut numbers: impl Iterator<Item = &'a str>) -> Option<Self> {
        Some(Self {
            attempt: numbers.next()?.parse().ok()?,
            rank: numbers.next()?.parse().ok()?,
            // No log has a larger offset: an offset is a signed number elsewhere.
            offset: numbers
                .next()?
                .parse()
                .ok()
                .filter(|offset| i64::try_from(*offset).is_ok())?,
        })
    }
}

/// The query of a request for a log, or for what functions yield.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogOptions {
    /// Go on until the Task has ended.
    pub follow: bool,
    /// Only so many lines at the end of each rank's log.
    pub tail_lines: Option<u64>,
    /// Only lines from then on.
    pub since: Option<Timestamp>,
    /// Only this rank.
    pub rank: Option<u32>,
    /// This attempt; left out, the current or last one, and with `follow` those after it.
    pub attempt: Option<u32>,
    /// Times in front of lines.
    pub timestamps: bool,
    /// End after so many bytes.
    pub limit_bytes: Option<u64>,
    /// Text or records.
    pub format: Format,
    /// Where to go on, for each rank that the client has read something of.
    pub positions: Vec<Position>,
    /// What functions yield, and no output. The path of the request says it, and not its query.
    pub values: bool,
}

impl LogOptions {
    /// Reads the query's pairs. Unknown parameters are ignored, as Kubernetes does.
    pub fn parse(query: &BTreeMap<String, String>, now: Timestamp) -> Result<Self, String> {
        let mut options = Self::default();
        for (name, value) in query {
            match name.as_str() {
                "follow" => options.follow = boolean(name, value)?,
                "timestamps" => options.timestamps = boolean(name, value)?,
                "tailLines" => options.tail_lines = Some(number(name, value)?),
                "limitBytes" => options.limit_bytes = Some(number(name, value)?),
                "rank" => options.rank = Some(number(name, value)?),
                "attempt" => {
                    let attempt = number(name, value)?;
                    if attempt == 0 {
                        return Err("attempt: attempts are counted from 1".to_owned());
                    }
                    options.attempt = Some(attempt);
                }
                "sinceSeconds" => {
                    let seconds: u32 = number(name, value)?;
                    let since = now.saturating_sub(SignedDuration::from_secs(seconds.into()));
                    options.since = Some(since.unwrap_or(Timestamp::MIN));
                }
                "sinceTime" => {
                    let time = value.parse().map_err(|_| {
                        format!("sinceTime: {value:?} is not a time such as 2026-11-20T10:00:00Z")
                    })?;
                    options.since = Some(time);
                }
                "format" => {
                    options.format = match value.as_str() {
                        "text" => Format::Text,
                        "records" => Format::Records,
                        _ => return Err(format!("format: {value:?} is neither text nor records")),
                    };
                }
                "positions" => options.positions = positions(value)?,
                _ => {}
            }
        }
        Ok(options)
    }

    /// The same for what functions yield: always records, since no server holds a whole value.
    #[must_use]
    pub(crate) fn of_values(self) -> Self {
        Self {
            values: true,
            format: Format::Records,
            ..self
        }
    }

    /// Whether records of that stream are sent.
    pub(crate) const fn wants(&self, stream: Stream) -> bool {
        stream.is_output() != self.values
    }

    /// The query string, without the question mark.
    pub fn query(&self) -> String {
        let mut parts = Vec::new();
        if self.follow {
            parts.push("follow=true".to_owned());
        }
        if self.timestamps {
            parts.push("timestamps=true".to_owned());
        }
        if self.format == Format::Records {
            parts.push("format=records".to_owned());
        }
        let numbers = [
            ("tailLines", self.tail_lines),
            ("limitBytes", self.limit_bytes),
            ("rank", self.rank.map(u64::from)),
            ("attempt", self.attempt.map(u64::from)),
        ];
        parts.extend(
            numbers
                .into_iter()
                .filter_map(|(name, value)| Some(format!("{name}={}", value?))),
        );
        if let Some(since) = self.since {
            parts.push(format!("sinceTime={since}"));
        }
        if !self.positions.is_empty() {
            let list: Vec<String> = self
                .positions
                .iter()
                .map(|p| format!("{}.{}.{}", p.attempt, p.rank, p.offset))
                .collect();
            parts.push(format!("positions={}", list.join(",")));
        }
        parts.join("&")
    }
}

fn boolean(name: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "1" | "" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(format!("{name}: {value:?} is neither true nor false")),
    }
}

pub(crate) fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<T, String> {
    value
        .parse()
        .map_err(|_| format!("{name}: {value:?} is not a whole number from 0"))
}

fn positions(value: &str) -> Result<Vec<Position>, String> {
    value
        .split(',')
        .filter(|text| !text.is_empty())
        .map(|text| {
            Position::parse(text.splitn(3, '.'))
                .ok_or_else(|| format!("positions: {text:?} is not attempt.rank.offset"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(pairs: &[(&str, &str)]) -> Result<LogOptions, String> {
        let query = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        LogOptions::parse(&query, Timestamp::from_second(10_000).unwrap())
    }

    #[test]
    fn a_query_comes_back_as_it_went() {
        let options = LogOptions {
            follow: true,
            tail_lines: Some(0),
            since: Some(Timestamp::from_second(9_940).unwrap()),
            rank: Some(3),
            attempt: Some(2),
            timestamps: true,
            limit_bytes: Some(100),
            format: Format::Records,
            positions: vec![Position {
                attempt: 2,
                rank: 3,
                offset: 1 << 40,
            }],
            values: false,
        };
        let query = options.query();
        let pairs: Vec<(&str, &str)> = query
            .split('&')
            .map(|pair| pair.split_once('=').unwrap())
            .collect();
        assert_eq!(parsed(&pairs).unwrap(), options);
    }

    #[test]
    fn seconds_count_back_from_now() {
        let options = parsed(&[("sinceSeconds", "60")]).unwrap();
        assert_eq!(options.since, Some(Timestamp::from_second(9_940).unwrap()));
    }

    #[test]
    fn bad_values_are_refused_with_their_name() {
        for (name, value) in [
            ("tailLines", "-1"),
            ("follow", "yes"),
            ("rank", "one"),
            ("attempt", "0"),
            ("sinceTime", "yesterday"),
            ("format", "xml"),
            ("positions", "1.2"),
            ("positions", "1.2.9223372036854775808"),
        ] {
            let error = parsed(&[(name, value)]).unwrap_err();
            assert!(error.starts_with(name), "{error}");
        }
    }

    #[test]
    fn unknown_parameters_are_ignored() {
        assert_eq!(parsed(&[("pretty", "true")]).unwrap(), LogOptions::default());
    }
}
