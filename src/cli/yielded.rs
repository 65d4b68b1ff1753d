//! Prints what functions yield: one line of JSON for each value. What is missing is said on standard error.

use skyward_subresources::{records::Record, values::Values};

use crate::complain;

/// The values of one Task.
#[derive(Debug, Default)]
pub(crate) struct Yielded {
    /// The value alone, without its place.
    raw: bool,
    attempt: u32,
    values: Values,
    is_missing: bool,
}

impl Yielded {
    pub(crate) fn new(raw: bool) -> Self {
        Self {
            raw,
            ..Self::default()
        }
    }

    /// The following records are of that attempt, which has values of its own.
    pub(crate) fn begin(&mut self, attempt: u32) {
        *self = Self {
            attempt,
            is_missing: self.is_missing,
            ..Self::new(self.raw)
        };
    }

    /// Takes a record of a rank; a value that ends there is appended to `out`.
    pub(crate) fn push(&mut self, rank: u32, record: &Record, out: &mut Vec<u8>) {
        let Some(value) = self.values.push(rank, record) else {
            return;
        };
        self.misses(rank, value.missing);
        let (attempt, index, json) = (self.attempt, value.index, value.json);
        let line = if self.raw {
            format!("{json}\n")
        } else {
            format!("{{\"attempt\":{attempt},\"rank\":{rank},\"index\":{index},\"value\":{json}}}\n")
        };
        out.extend_from_slice(line.as_bytes());
    }

    /// A part of a rank's log is missing, and maybe values with it: their numbers say so.
    pub(crate) fn gap(&mut self, rank: u32) {
        self.values.gap(rank);
    }

    /// A run of that attempt says at its end how many values it has yielded.
    pub(crate) fn ends(&mut self, attempt: u32, rank: u32, count: u64) {
        if attempt == self.attempt {
            self.misses(rank, count.saturating_sub(self.values.count(rank)));
        }
    }

    fn misses(&mut self, rank: u32, count: u64) {
        if count > 0 {
            self.is_missing = true;
            complain(&format!(
                "rank {rank}: {count} values are missing here: their machine or the result store kept no more"
            ));
        }
    }

    /// Whether any value is missing.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use skyward_subresources::records;

    use super::*;

    fn record(text: &str) -> Record {
        let line = Bytes::from(format!("{text}\n"));
        records::parse(&line, line.len() as u64).unwrap()
    }

    fn printed(yielded: &mut Yielded, lines: &[&str]) -> String {
        let mut out = Vec::new();
        for line in lines {
            yielded.push(3, &record(line), &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn each_value_is_one_line_with_its_place_or_alone() {
        let lines = ["1 v F 0 1 7", "1 v P 1 5 \"a", "2 v F bc\""];
        let mut yielded = Yielded::new(false);
        yielded.begin(2);
        let expected = "{\"attempt\":2,\"rank\":3,\"index\":0,\"value\":7}\n{\"attempt\":2,\"rank\":3,\"index\":1,\"value\":\"abc\"}\n";
        assert_eq!(printed(&mut yielded, &lines), expected);
        assert_eq!(printed(&mut Yielded::new(true), &lines), "7\n\"abc\"\n");
        assert!(!yielded.is_missing());
    }

    #[test]
    fn a_value_that_is_missing_is_remembered_through_attempts() {
        let mut yielded = Yielded::new(true);
        yielded.begin(1);
        assert_eq!(printed(&mut yielded, &["1 v F 2 1 7"]), "7\n");
        assert!(yielded.is_missing());
        yielded.begin(2);
        assert!(yielded.is_missing());
    }

    #[test]
    fn at_the_end_the_run_says_how_many_there_are() {
        let at_the_end = |attempt, count| {
            let mut yielded = Yielded::new(true);
            yielded.begin(1);
            printed(&mut yielded, &["1 v F 0 1 7"]);
            yielded.ends(attempt, 3, count);
            yielded.is_missing()
        };
        assert!(!at_the_end(1, 1));
        assert!(at_the_end(1, 2), "the last one did not come");
        assert!(!at_the_end(2, 5), "another attempt has its own");
    }
}
