//! The items of a matrix. Each is computed when it is read: only the excluded combinations are kept, as ranges.

use std::{collections::BTreeMap, fmt, ops::Range};

use serde_json::{Map, Value};
use skyward_api::for_each::{Axis, ITEM_BYTES, MOST_ITEMS, Matrix};

use super::indices::{Indices, one};

/// A matrix that was found to be right.
#[derive(Clone, Debug, PartialEq)]
pub struct Combinations {
    axes: Vec<Axis>,
    include: Vec<BTreeMap<String, Value>>,
    /// Combinations that are not left out, each range with the number of its first item.
    kept: Vec<(u32, Range<u32>)>,
    /// How many items are combinations.
    combined: u32,
    largest: usize,
}

/// What is wrong with a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadMatrix {
    /// It has too many items.
    TooMany(u64),
    /// An item may be so large, in bytes.
    TooLarge(usize),
    /// A combination that is left out has a field that no axis has.
    NoSuchAxis(String),
}

impl fmt::Display for BadMatrix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany(count) => write!(
                f,
                "the matrix has {count} combinations, and a Task has at most {MOST_ITEMS} items: make several Tasks"
            ),
            Self::TooLarge(bytes) => write!(
                f,
                "an item of the matrix takes {bytes} bytes, and one may have {} KiB: write what is large into files, and \
                 name these in the matrix",
                ITEM_BYTES / 1024
            ),
            Self::NoSuchAxis(name) => write!(
                f,
                "an entry of matrix.exclude names \"{name}\", and no axis has that name"
            ),
        }
    }
}

impl std::error::Error for BadMatrix {}

impl Combinations {
    /// Looks through a matrix once.
    pub fn of(matrix: &Matrix) -> Result<Self, BadMatrix> {
        let Matrix {
            axes,
            include,
            exclude,
        } = matrix;
        let all = if axes.is_empty() {
            0
        } else {
            axes.iter().fold(1_u64, |count, axis| {
                count.saturating_mul(axis.values.len() as u64)
            })
        };
        let number = u32::try_from(all).ok().filter(|_| all <= MOST_ITEMS);
        let number = number.ok_or(BadMatrix::TooMany(all))?;
        let largest = largest(axes, include);
        if largest > ITEM_BYTES {
            return Err(BadMatrix::TooLarge(largest));
        }
        let mut kept = Indices::of(0..number);
        if !exclude.is_empty() {
            let fits = fits(axes, exclude)?;
            let mut digits = vec![0_usize; axes.len()];
            for combination in 0..number {
                numerals(axes, combination, &mut digits);
                if is_left_out(&fits, &digits) {
                    kept.remove(one(combination));
                }
            }
        }
        let combined = kept.len();
        let whole = u64::from(combined) + include.len() as u64;
        if whole > MOST_ITEMS {
            return Err(BadMatrix::TooMany(whole));
        }
        let mut first = 0;
        let ranges = kept.ranges().map(|range| {
            let numbered = (first, range.clone());
            first += range.end - range.start;
            numbered
        });
        Ok(Self {
            kept: ranges.collect(),
            axes: axes.clone(),
            include: include.clone(),
            combined,
            largest,
        })
    }

    /// Bytes that an item takes as JSON, at most.
    pub const fn largest(&self) -> usize {
        self.largest
    }

    /// How many items there are.
    pub fn len(&self) -> u32 {
        self.combined + u32::try_from(self.include.len()).unwrap_or(u32::MAX)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One item; `None`: there are fewer.
    pub fn item(&self, index: u32) -> Option<Value> {
        let Some(included) = index.checked_sub(self.combined) else {
            return self.combination(index);
        };
        let fields = self.include.get(included as usize)?;
        let fields = fields.iter().map(|(name, value)| (name.clone(), value.clone()));
        Some(Value::Object(fields.collect()))
    }

    fn combination(&self, index: u32) -> Option<Value> {
        let after = self.kept.partition_point(|(first, _)| *first <= index);
        let (first, range) = self.kept.get(after.checked_sub(1)?)?;
        let mut digits = vec![0_usize; self.axes.len()];
        numerals(&self.axes, range.start + (index - first), &mut digits);
        let mut item = Map::new();
        for (axis, digit) in self.axes.iter().zip(digits) {
            item.insert(axis.name.clone(), axis.values.get(digit)?.clone());
        }
        Some(Value::Object(item))
    }
}

/// Bytes that the largest item takes as JSON: that of the largest value of each axis, or one that is included.
fn largest(axes: &[Axis], include: &[BTreeMap<String, Value>]) -> usize {
    let text = |value: &Value| value.to_string().len();
    let field = |axis: &Axis| {
        let value = axis.values.iter().map(text).max().unwrap_or_default();
        // With its quotes, colon and comma.
        axis.name.len() + value + 4
    };
    let combined = axes.iter().map(field).sum::<usize>() + "{}".len();
    let included = include.iter().map(|fields| {
        let fields = fields.iter().map(|(name, value)| (name.clone(), value.clone()));
        text(&Value::Object(fields.collect()))
    });
    included.max().unwrap_or_default().max(combined)
}

/// Which entries of `exclude` each value of each axis fits, as bits: all but the entries that name this axis and another
/// value. An entry leaves out the combinations all of whose values it fits. Hundreds of entries are looked for in a
/// million combinations at once.
fn fits(axes: &[Axis], exclude: &[BTreeMap<String, Value>]) -> Result<Vec<Vec<Vec<u64>>>, BadMatrix> {
    let mut fits: Vec<Vec<Vec<u64>>> = axes
        .iter()
        .map(|axis| vec![vec![0; exclude.len().div_ceil(64)]; axis.values.len()])
        .collect();
    for (number, entry) in exclude.iter().enumerate() {
        if let Some(name) = entry
            .keys()
            .find(|name| axes.iter().all(|axis| axis.name != **name))
        {
            return Err(BadMatrix::NoSuchAxis(name.clone()));
        }
        for (axis, values) in axes.iter().zip(&mut fits) {
            let wanted = entry.get(&axis.name);
            for (value, entries) in axis.values.iter().zip(values) {
                if wanted.is_none_or(|wanted| wanted == value) {
                    entries[number / 64] |= 1 << (number % 64);
                }
            }
        }
    }
    Ok(fits)
}

/// Whether an entry fits all values of a combination.
fn is_left_out(fits: &[Vec<Vec<u64>>], digits: &[usize]) -> bool {
    let words = fits.first().and_then(|values| values.first()).map_or(0, Vec::len);
    (0..words).any(|word| {
        let of_all = fits.iter().zip(digits);
        of_all.fold(u64::MAX, |entries, (values, digit)| {
            entries & values[*digit][word]
        }) != 0
    })
}

/// Which value of each axis a combination has: the last axis changes fastest.
fn numerals(axes: &[Axis], combination: u32, digits: &mut [usize]) {
    let mut rest = combination as usize;
    for (axis, digit) in axes.iter().zip(digits).rev() {
        let base = axis.values.len().max(1);
        *digit = rest % base;
        rest /= base;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn matrix(value: Value) -> Matrix {
        serde_json::from_value(value).unwrap()
    }

    fn items(matrix: &Matrix) -> Vec<Value> {
        let found = Combinations::of(matrix).unwrap();
        let items: Vec<Value> = (0..found.len()).map(|index| found.item(index).unwrap()).collect();
        assert_eq!(found.item(found.len()), None);
        items
    }

    #[test]
    fn the_last_axis_changes_fastest_and_what_is_included_comes_last() {
        let sweep = matrix(json!({
            "axes": [{ "name": "lr", "values": [0.1, 0.01] }, { "name": "seed", "values": [1, 2] }],
            "exclude": [{ "lr": 0.1, "seed": 2 }],
            "include": [{ "lr": 1, "note": "high" }],
        }));
        let expected = [
            json!({ "lr": 0.1, "seed": 1 }),
            json!({ "lr": 0.01, "seed": 1 }),
            json!({ "lr": 0.01, "seed": 2 }),
            json!({ "lr": 1, "note": "high" }),
        ];
        assert_eq!(items(&sweep), expected);
        assert_eq!(
            items(&matrix(json!({ "axes": [], "include": [{ "a": null }] }))),
            [json!({ "a": null })]
        );
    }

    #[test]
    fn an_entry_with_one_field_leaves_out_all_that_have_it() {
        let sweep = matrix(json!({
            "axes": [{ "name": "a", "values": [1, 2, 1] }, { "name": "b", "values": ["x", "y"] }],
            "exclude": [{ "a": 1 }, { "b": "z" }],
        }));
        assert_eq!(
            items(&sweep),
            [json!({ "a": 2, "b": "x" }), json!({ "a": 2, "b": "y" })]
        );
    }

    #[test]
    fn each_of_many_entries_leaves_out_its_own_combination_and_no_other_one() {
        let values: Vec<u32> = (0..20).collect();
        let entries: Vec<Value> = (0..200).map(|at| json!({ "a": at / 20, "b": at % 20 })).collect();
        let sweep = matrix(json!({
            "axes": [{ "name": "a", "values": values }, { "name": "b", "values": values }],
            "exclude": entries,
        }));
        let expected: Vec<Value> = (200..400)
            .map(|at| json!({ "a": at / 20, "b": at % 20 }))
            .collect();
        assert_eq!(items(&sweep), expected);
    }

    #[test]
    fn a_field_without_an_axis_and_too_many_combinations_are_refused() {
        let wrong = matrix(json!({ "axes": [{ "name": "a", "values": [1] }], "exclude": [{ "b": 1 }] }));
        assert_eq!(Combinations::of(&wrong), Err(BadMatrix::NoSuchAxis("b".into())));
        let values: Vec<u32> = (0..1024).collect();
        let axis = |name: &str| json!({ "name": name, "values": values });
        let large = matrix(json!({ "axes": [axis("a"), axis("b")] }));
        assert_eq!(Combinations::of(&large), Err(BadMatrix::TooMany(1 << 20)));
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let huge = matrix(json!({ "axes": names.map(axis) }));
        assert_eq!(Combinations::of(&huge), Err(BadMatrix::TooMany(u64::MAX)));
    }

    #[test]
    fn an_item_that_is_larger_than_a_machine_takes_is_refused_and_none_is_larger_than_is_said() {
        let sweep = matrix(json!({
            "axes": [{ "name": "a", "values": [1, "\n\n"] }, { "name": "b", "values": [[], null] }],
            "include": [{ "x\"y": "z" }],
        }));
        let found = Combinations::of(&sweep).unwrap();
        let sizes = items(&sweep).into_iter().map(|item| item.to_string().len());
        // The last field has no comma.
        assert_eq!(found.largest(), sizes.max().unwrap() + 1);
        let half = "x".repeat(ITEM_BYTES / 2);
        for large in [
            json!({ "axes": [{ "name": "a", "values": [1, half] }, { "name": "b", "values": [half] }] }),
            json!({ "axes": [], "include": [{ "a": "x".repeat(ITEM_BYTES) }] }),
        ] {
            let bad = Combinations::of(&matrix(large)).unwrap_err();
            assert!(matches!(bad, BadMatrix::TooLarge(_)), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn items_are_all_combinations_but_those_that_are_left_out(
            sizes in proptest::collection::vec(1_usize..5, 1..4),
            left_out in proptest::collection::vec(proptest::collection::btree_map(0_usize..4, 0_usize..5, 1..3), 0..4),
        ) {
            let axes: Vec<Axis> = sizes
                .iter()
                .enumerate()
                .map(|(number, size)| Axis { name: format!("a{number}"), values: (0..*size).map(Value::from).collect() })
                .collect();
            let left_out: Vec<BTreeMap<usize, usize>> = left_out
                .into_iter()
                .map(|entry| entry.into_iter().filter(|(axis, _)| *axis < sizes.len()).collect())
                .collect();
            let exclude = left_out
                .iter()
                .map(|entry| entry.iter().map(|(axis, value)| (format!("a{axis}"), Value::from(*value))).collect())
                .collect();
            let found = items(&Matrix { axes, include: vec![], exclude });
            let mut expected = Vec::new();
            let count: usize = sizes.iter().product();
            for combination in 0..count {
                let mut rest = combination;
                let mut digits: Vec<usize> = sizes.iter().rev().map(|size| { let digit = rest % size; rest /= size; digit }).collect();
                digits.reverse();
                if !left_out.iter().any(|entry| entry.iter().all(|(axis, value)| digits[*axis] == *value)) {
                    let fields = digits.iter().enumerate().map(|(axis, digit)| (format!("a{axis}"), Value::from(*digit)));
                    expected.push(Value::Object(fields.collect()));
                }
            }
            prop_assert_eq!(found, expected);
        }
    }
}
