//! What functions yield, out of the records of their logs (`Stream::Values` of the agent's `log.rs` has the form).
//!
//! A client does this, and holds the value of each rank that has begun and not ended. All of it is what a machine
//! says: a line that is not as long as it says, no JSON, or longer than any value, is no value. Where numbers are
//! missing, values are, whatever the reason. Nothing here reads what a value holds.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use skyward_agent::log::MAX_VALUE;

use crate::records::Record;

/// Room for the two numbers in front of the JSON.
const HEAD: usize = 64;

/// A value that was yielded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Its number, from 0.
    pub index: u64,
    /// So many values right before it are missing.
    pub missing: u64,
    /// Valid JSON.
    pub json: String,
}

/// Joins the records of one attempt.
#[derive(Debug, Default)]
pub struct Values {
    ranks: BTreeMap<u32, Rank>,
}

#[derive(Debug, Default)]
struct Rank {
    /// The beginning of a line.
    held: Vec<u8>,
    /// The line is longer than any value.
    is_endless: bool,
    /// Number of the next value.
    next: u64,
}

impl Values {
    /// Takes a record of a rank; answers with the value that ends there.
    pub fn push(&mut self, rank: u32, record: &Record) -> Option<Value> {
        if record.stream.is_output() {
            return None;
        }
        let rank = self.ranks.entry(rank).or_default();
        if rank.held.len() + record.content.len() > MAX_VALUE + HEAD {
            rank.is_endless = true;
        }
        if rank.is_endless {
            rank.held = Vec::new();
        } else {
            rank.held.extend_from_slice(&record.content);
        }
        if !record.complete {
            return None;
        }
        let line = std::mem::take(&mut rank.held);
        if std::mem::take(&mut rank.is_endless) {
            return None;
        }
        let (index, json) = parse(&line).filter(|(index, _)| *index >= rank.next)?;
        let missing = index - rank.next;
        rank.next = index.saturating_add(1);
        Some(Value { index, missing, json })
    }

    /// A part of a rank's log is missing: the value that has begun does not go on. What is left of a value behind the
    /// gap is not as long as it says.
    pub fn gap(&mut self, rank: u32) {
        if let Some(rank) = self.ranks.get_mut(&rank) {
            rank.held = Vec::new();
            rank.is_endless = false;
        }
    }

    /// How many values a rank had so far, with those that are missing.
    pub fn count(&self, rank: u32) -> u64 {
        self.ranks.get(&rank).map_or(0, |rank| rank.next)
    }
}

/// The number and the JSON of a line.
fn parse(line: &[u8]) -> Option<(u64, String)> {
    let mut parts = line.splitn(3, |byte| *byte == b' ');
    let mut number = || -> Option<u64> { std::str::from_utf8(parts.next()?).ok()?.parse().ok() };
    let (index, size) = (number()?, number()?);
    let json = parts.next()?;
    if u64::try_from(json.len()) != Ok(size) {
        return None;
    }
    let value: &RawValue = serde_json::from_slice(json).ok()?;
    Some((index, value.get().to_owned()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::records;

    fn record(text: &str) -> Record {
        let line = Bytes::from(format!("{text}\n"));
        records::parse(&line, line.len() as u64).unwrap()
    }

    fn told(values: &mut Values, lines: &[&str]) -> Vec<(u64, u64, String)> {
        let values = lines.iter().filter_map(|line| values.push(0, &record(line)));
        values
            .map(|value| (value.index, value.missing, value.json))
            .collect()
    }

    #[test]
    fn a_value_in_several_records_is_one_and_output_between_them_is_none() {
        let lines = [
            "1 v F 0 1 7",
            "1 v P 1 5 \"a",
            "2 o F 2 1 8",
            "2 v F bc\"",
            "3 e F x",
        ];
        let expected = [(0, 0, "7".to_owned()), (1, 0, "\"abc\"".to_owned())];
        assert_eq!(told(&mut Values::default(), &lines), expected);
    }

    #[test]
    fn each_rank_has_its_own_values() {
        let mut values = Values::default();
        assert_eq!(values.push(0, &record("1 v P 0 2 ")), None);
        assert_eq!(values.push(1, &record("1 v F 0 1 1")).unwrap().json, "1");
        assert_eq!(values.push(0, &record("1 v F 22")).unwrap().json, "22");
        assert_eq!((values.count(0), values.count(1), values.count(2)), (1, 1, 0));
    }

    #[test]
    fn behind_a_gap_the_rest_of_a_value_is_none_and_what_is_missing_is_counted() {
        let mut values = Values::default();
        assert_eq!(told(&mut values, &["1 v F 0 1 7", "1 v P 1 9 \"abc"]).len(), 1);
        values.gap(0);
        // The end of value 4.
        let lines = ["2 v P c 2 d", "2 v F ef\"", "3 v F 5 1 5", "3 v F 6 1 6"];
        let expected = [(5, 4, "5".to_owned()), (6, 0, "6".to_owned())];
        assert_eq!(told(&mut values, &lines), expected);
    }

    #[test]
    fn what_is_no_value_is_left_out() {
        let nested = "[".repeat(1000);
        let lines = [
            "",
            "0",
            "0 1",
            "0 2 7",
            "0 1 x",
            "x 1 7",
            "-1 1 7",
            "0 0 ",
            "18446744073709551616 1 7",
            &format!("0 1000 {nested}"),
        ];
        for line in lines {
            let record = record(&format!("1 v F {line}"));
            assert_eq!(Values::default().push(0, &record), None, "{line}");
        }
        let not_unicode = Bytes::from_static(b"1 v F 0 3 \"\xff\"\n");
        let record = records::parse(&not_unicode, 0).unwrap();
        assert_eq!(Values::default().push(0, &record), None);
    }

    #[test]
    fn a_number_that_was_told_before_is_not_told_again() {
        let lines = [
            "1 v F 3 1 7",
            "1 v F 3 1 7",
            "1 v F 0 1 7",
            "1 v F 18446744073709551615 1 7",
        ];
        let told: Vec<u64> = told(&mut Values::default(), &lines)
            .iter()
            .map(|value| value.0)
            .collect();
        assert_eq!(told, [3, u64::MAX]);
    }

    #[test]
    fn a_value_without_end_does_not_fill_the_memory_and_the_next_one_is_read() {
        let mut values = Values::default();
        let part = record(&format!("1 v P {}", "9".repeat(16 * 1024)));
        for _ in 0..2 * MAX_VALUE / (16 * 1024) {
            assert_eq!(values.push(0, &part), None);
            assert!(values.ranks[&0].held.len() <= MAX_VALUE + HEAD);
        }
        assert_eq!(
            told(&mut values, &["1 v F 9", "2 v F 1 1 7"]),
            [(1, 1, "7".to_owned())]
        );
    }
}
