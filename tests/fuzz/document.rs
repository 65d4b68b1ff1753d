//! JSON documents out of bytes.
//!
//! Random bytes are hardly ever JSON, and random JSON is hardly ever an answer. So an input is either JSON
//! itself, as a text that begins with `{` or `[`, or a list of changes to a document that is right: the
//! changes reach every field, also those deep inside.

use jiff::Timestamp;
use serde_json::{Number, Value, json};

use crate::input::Input;

/// Most changes of one document.
const CHANGES: usize = 48;
/// Most bytes that a change may copy.
const COPIED: usize = 4096;

/// The document that an input stands for; `known` are those that are right.
pub(crate) fn document(data: &[u8], known: &[Value]) -> Value {
    if matches!(data.first(), Some(b'{' | b'[')) {
        return serde_json::from_slice(data).unwrap_or_default();
    }
    let mut input = Input(data);
    changed(&mut input, known)
}

/// The time of the operator's own clock, which is no word of others: some day of this century.
pub(crate) fn clock(time: Timestamp) -> Timestamp {
    let second = |second| Timestamp::from_second(second).expect("a time of this century");
    time.clamp(second(946_684_800), second(4_102_444_800))
}

/// One of the documents with the changes that follow.
pub(crate) fn changed(input: &mut Input<'_>, known: &[Value]) -> Value {
    let mut value = known[usize::from(input.u8()) % known.len()].clone();
    for _ in 0..CHANGES {
        if input.is_empty() {
            break;
        }
        change(&mut value, input);
    }
    value
}

/// Values where readers fail.
fn extremes() -> Vec<Value> {
    vec![
        Value::Null,
        json!(true),
        json!(false),
        json!(0),
        json!(1),
        json!(-1),
        json!(0.5),
        json!(65_536),
        json!(u32::MAX),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(1e308),
        json!(-1e308),
        json!(5e-324),
        json!(""),
        json!(" "),
        json!("-1"),
        json!("0"),
        json!("1e-28"),
        json!("79228162514264337593543950335"),
        json!("-79228162514264337593543950335"),
        json!("9999-12-31T23:59:59.999999999Z"),
        json!("0000-01-01T00:00:00Z"),
        json!("1970-01-01T00:00:00Z"),
        json!("999999999h"),
        json!("999999h"),
        json!("0s"),
        json!("0.001ms"),
        json!("8388607Pi"),
        json!("2147483648"),
        json!("\u{0}\u{1b}[2J\n\r\t\u{202e}"),
        json!("ß€😀".repeat(100)),
        json!("x".repeat(COPIED)),
        json!([]),
        json!({}),
    ]
}

/// How many values there are in a value, itself included.
fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// The value of that number, counted from the outside.
fn find<'a>(value: &'a mut Value, number: &mut usize) -> Option<&'a mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(all) => all.iter_mut().find_map(|value| find(value, number)),
        Value::Object(all) => all.values_mut().find_map(|value| find(value, number)),
        _ => None,
    }
}

fn change(value: &mut Value, input: &mut Input<'_>) {
    let all = count(value);
    let mut at = usize::from(input.u16()) % all;
    let action = input.u8() % 9;
    let copied = (action == 6).then(|| {
        let mut from = usize::from(input.u16()) % all;
        find(value, &mut from).cloned().unwrap_or_default()
    });
    let Some(found) = find(value, &mut at) else { return };
    let replaced = match action {
        0 | 1 => {
            let extremes = extremes();
            extremes[usize::from(input.u8()) % extremes.len()].clone()
        }
        2 => Value::String(String::from_utf8_lossy(short(input)).into_owned()),
        3 => json!(input.u64() as i64),
        4 => Number::from_f64(f64::from_bits(input.u64())).map_or(Value::Null, Value::Number),
        5 => json!(input.u8()),
        6 => copied
            .filter(|copied| copied.to_string().len() <= COPIED)
            .unwrap_or_default(),
        7 => return leave_out(found, input),
        _ => return add(found, input),
    };
    *found = replaced;
}

/// At most 255 bytes.
fn short<'a>(input: &mut Input<'a>) -> &'a [u8] {
    let length = input.u8();
    input.take(length.into())
}

/// Leaves one entry out.
fn leave_out(value: &mut Value, input: &mut Input<'_>) {
    let number = usize::from(input.u8());
    match value {
        Value::Array(all) if !all.is_empty() => drop(all.remove(number % all.len())),
        Value::Object(all) if !all.is_empty() => {
            let name = all.keys().nth(number % all.len()).cloned();
            all.remove(&name.unwrap_or_default());
        }
        other => *other = Value::Null,
    }
}

/// Adds an entry: the same one again to a list, a new one to an object.
fn add(value: &mut Value, input: &mut Input<'_>) {
    match value {
        Value::Array(all) => {
            let number = usize::from(input.u8());
            let again = all.get(number % all.len().max(1)).cloned().unwrap_or_default();
            if again.to_string().len() <= COPIED {
                all.push(again);
            }
        }
        Value::Object(all) => {
            let name = String::from_utf8_lossy(short(input)).into_owned();
            all.insert(name, json!(input.u8()));
        }
        other => *other = json!([other.take()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_without_changes_is_the_document_that_it_names() {
        let known = [json!({"a": 1}), json!([1, {"b": [2]}])];
        assert_eq!(document(&[1], &known), known[1]);
        assert_eq!(document(b"", &known), known[0]);
        assert_eq!(document(b"[true]", &known), json!([true]));
    }

    #[test]
    fn each_value_of_a_document_can_be_changed() {
        let known = [json!([1, {"b": [2]}])];
        let changed = |at: u8| document(&[0, at, 0, 5, 9], &known).to_string();
        let all: Vec<String> = (0..5).map(changed).collect();
        assert_eq!(
            all,
            [
                "9",
                r#"[9,{"b":[2]}]"#,
                "[1,9]",
                r#"[1,{"b":9}]"#,
                r#"[1,{"b":[9]}]"#
            ]
        );
    }
}
