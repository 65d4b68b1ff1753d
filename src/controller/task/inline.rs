//! Whether a return value may stand in a status: only if it comes out of the API server as
//! the function gave it. Pure.
//!
//! Kubernetes knows whole numbers of 64 bits and floats, each name in an object once, and
//! a client that reads the Task must not stumble over its nesting. Another value is in the result
//! store only, byte by byte. (`1.0` passes: it becomes `1`, which is the same number; the
//! size of the value tells a client that wants the exact text to ask the store.)

use serde_json::Value;

/// Largest value that a status shows, in bytes of JSON.
const MAX_BYTES: usize = 4096;
/// Deepest nesting. serde_json reads 128 levels of a whole Task, of which ours take some.
const MAX_DEPTH: usize = 64;

/// The value, if a status can hold it.
pub(crate) fn inline(json: &[u8]) -> Option<Value> {
    if json.len() > MAX_BYTES {
        return None;
    }
    let names = look(std::str::from_utf8(json).ok()?)?;
    let value = serde_json::from_slice(json).ok()?;
    // One of two equal names in an object would be lost.
    (members(&value) == names).then_some(value)
}

/// How many names its objects have, if every number survives and nothing is nested too deep.
fn look(json: &str) -> Option<usize> {
    let (mut names, mut depth) = (0, 0_usize);
    let mut rest = json;
    while let Some(next) = rest.chars().next() {
        let length = match next {
            '"' => string(rest)?,
            '-' | '0'..='9' => {
                let number = rest.find(|c: char| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E'));
                let number = &rest[..number.unwrap_or(rest.len())];
                if !survives(number) {
                    return None;
                }
                number.len()
            }
            other => {
                match other {
                    '[' | '{' => depth += 1,
                    ']' | '}' => depth = depth.checked_sub(1)?,
                    ':' => names += 1,
                    _ => {}
                }
                if depth > MAX_DEPTH {
                    return None;
                }
                other.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    Some(names)
}

/// Length of the string that begins there, with its quotes.
fn string(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn survives(number: &str) -> bool {
    if !number.contains(['.', 'e', 'E']) {
        return number.parse::<i64>().is_ok();
    }
    let Ok(float) = number.parse::<f64>() else {
        return false;
    };
    // A number with more digits than the shortest text of its float is not kept.
    float.is_finite() && digits(number) == digits(&format!("{float:e}"))
}

/// Its significant digits, without the exponent.
fn digits(number: &str) -> String {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    digits.trim_matches('0').to_owned()
}

fn members(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(members).sum(),
        Value::Object(object) => object.len() + object.values().map(members).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_shows_what_kubernetes_keeps() {
        for json in [
            "null",
            "true",
            "-0.0",
            "1.0",
            "0.1",
            "1e-300",
            "1.7976931348623157e308",
            "9223372036854775807",
            "-9223372036854775808",
            r#"{"a":{"a":[1,2]},"b":"\"18446744073709551615: \\"}"#,
            r#""é \u0000 :""#,
        ] {
            let value: Value = serde_json::from_str(json).unwrap();
            assert_eq!(inline(json.as_bytes()), Some(value), "{json}");
        }
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(inline(nested(MAX_DEPTH).as_bytes()).is_some());
    }

    #[test]
    fn what_it_would_alter_is_only_in_the_store() {
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        for json in [
            "9223372036854775808",
            "18446744073709551615",
            "[-9223372036854775809]",
            &"7".repeat(400),
            "0.1234567890123456789",
            "1e400",
            "1e-400",
            "NaN",
            "",
            "\"open",
            r#"{"1":1,"1":2}"#,
            &nested(MAX_DEPTH + 1),
            &nested(200),
            &format!("\"{}\"", "x".repeat(MAX_BYTES)),
        ] {
            assert_eq!(inline(json.as_bytes()), None, "{json}");
        }
    }
}
