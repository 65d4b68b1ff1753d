//! The stored form of the end of one attempt of an item: how it ended, in one line of JSON, then the JSON of its return
//! value.

use serde_json::{Map, Value};

/// How an attempt of an item ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// As that of a run.
    pub reason: String,
    /// Exit code of a process that exited.
    pub exit_code: Option<i32>,
    /// Name of the signal that ended it.
    pub signal: String,
    /// Class of the exception that a function raised.
    pub exception: String,
    /// What went wrong, in a sentence.
    pub message: String,
    /// The Machine that it ran on.
    pub machine: String,
    /// How long it ran.
    pub milliseconds: u64,
}

impl Outcome {
    /// The fields that say something, as they are stored and given out.
    pub fn fields(&self) -> Map<String, Value> {
        let texts = [
            ("reason", &self.reason),
            ("signal", &self.signal),
            ("exception", &self.exception),
            ("message", &self.message),
            ("machine", &self.machine),
        ];
        let mut fields: Map<String, Value> = texts
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|(name, text)| (name.to_owned(), text.as_str().into()))
            .collect();
        if let Some(code) = self.exit_code {
            fields.insert("exitCode".to_owned(), code.into());
        }
        fields.insert("milliseconds".to_owned(), self.milliseconds.into());
        fields
    }

    fn of(fields: &Map<String, Value>) -> Self {
        let text = |name: &str| {
            fields
                .get(name)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let number = |name: &str| fields.get(name).and_then(Value::as_i64);
        Self {
            reason: text("reason"),
            exit_code: number("exitCode").and_then(|code| i32::try_from(code).ok()),
            signal: text("signal"),
            exception: text("exception"),
            message: text("message"),
            machine: text("machine"),
            milliseconds: number("milliseconds")
                .and_then(|time| u64::try_from(time).ok())
                .unwrap_or_default(),
        }
    }
}

/// The bytes that are stored.
pub fn body(outcome: &Outcome, value: &[u8]) -> Vec<u8> {
    let mut bytes = Value::Object(outcome.fields()).to_string().into_bytes();
    bytes.push(b'\n');
    bytes.extend_from_slice(value);
    bytes
}

/// What was stored; `None`: nothing that this version knows.
pub fn read(body: &[u8]) -> Option<(Outcome, &[u8])> {
    let end = body.iter().position(|byte| *byte == b'\n')?;
    let (head, value) = body.split_at(end);
    let fields: Map<String, Value> = serde_json::from_slice(head).ok()?;
    Some((Outcome::of(&fields), &value[1..]))
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
