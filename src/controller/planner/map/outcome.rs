//! The stored form of the end of one attempt of an item: how it ended, in one line of JSON, then the JSON of its return
//! value.

use serde::{Deserialize, Serialize};

/// How an attempt of an item ended. What says nothing is not stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Outcome {
    /// As that of a run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Exit code of a process that exited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub signal: String,
    /// Class of the exception that a function raised.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub exception: String,
    /// What went wrong, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The Machine that it ran on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// How long it ran.
    pub milliseconds: u64,
}

impl Outcome {
    /// One line of JSON, as it is stored and given out.
    pub fn json(&self) -> String {
        // Texts and numbers always have a JSON.
        serde_json::to_string(self).unwrap_or_else(|_| "{}".to_owned())
    }
}

/// The bytes that are stored.
pub fn body(outcome: &Outcome, value: &[u8]) -> Vec<u8> {
    let mut bytes = outcome.json().into_bytes();
    bytes.push(b'\n');
    bytes.extend_from_slice(value);
    bytes
}

/// What was stored; `None`: nothing that this version knows.
pub fn read(body: &[u8]) -> Option<(Outcome, &[u8])> {
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let (head, value) = body.split_at(end);
    Some((serde_json::from_slice(head).ok()?, &value[1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_comes_back_with_its_value_byte_by_byte() {
        let outcome = Outcome {
            reason: "FunctionRaised".into(),
            message: "a\nb".into(),
            exception: "job.Odd".into(),
            milliseconds: 7,
            ..Outcome::default()
        };
        for value in ["", "[1]", "\"a\\nb\"", "1\n"] {
            let bytes = body(&outcome, value.as_bytes());
            assert_eq!(read(&bytes), Some((outcome.clone(), value.as_bytes())));
        }
        assert_eq!(read(b""), None);
        assert_eq!(read(b"no JSON\n1"), None);
    }
}
