//! The filter language of offer searches and instance lists: a field, then
//! operators with values, all of which have to hold.

use std::cmp::Ordering;

use serde_json::{Map, Value};

/// Body members of a search that are no filters.
pub const PLAIN: [&str; 5] = ["type", "order", "limit", "allocated_storage", "q"];

/// Says whether a record matches filters, or which part of them cannot be read.
pub fn matches(record: &Map<String, Value>, filters: &Map<String, Value>) -> Result<bool, String> {
    let mut all = true;
    for (field, conditions) in filters {
        let Value::Object(conditions) = conditions else {
            return Err(format!(
                "{field}: a filter is an object of operators, got {conditions}"
            ));
        };
        let actual = record.get(field).unwrap_or(&Value::Null);
        for (operator, wanted) in conditions {
            all &= holds(field, actual, operator, wanted)?;
        }
    }
    Ok(all)
}

fn holds(field: &str, actual: &Value, operator: &str, wanted: &Value) -> Result<bool, String> {
    let compared = || compare(actual, wanted);
    Ok(match operator {
        "eq" => same(field, actual, wanted),
        "neq" => !same(field, actual, wanted),
        "gt" => compared() == Some(Ordering::Greater),
        "gte" => matches!(compared(), Some(Ordering::Greater | Ordering::Equal)),
        "lt" => compared() == Some(Ordering::Less),
        "lte" => matches!(compared(), Some(Ordering::Less | Ordering::Equal)),
        "in" | "notin" => {
            let Value::Array(list) = wanted else {
                return Err(format!("{field}: '{operator}' wants a list, got {wanted}"));
            };
            list.iter().any(|one| same(field, actual, one)) == (operator == "in")
        }
        other => return Err(format!("{field}: '{other}' is not an operator")),
    })
}

/// Equality as the service has it: numbers by value, and a country code equals
/// the place that ends with it ("Oslo, NO").
fn same(field: &str, actual: &Value, wanted: &Value) -> bool {
    if let (Some(actual), Some(wanted)) = (actual.as_f64(), numeric(wanted)) {
        return (actual - wanted).abs() < 1e-9;
    }
    if field == "geolocation"
        && let (Some(place), Some(code)) = (actual.as_str(), wanted.as_str())
    {
        return place == code || place.ends_with(&format!(", {code}"));
    }
    actual == wanted
}

/// A number, also as text: the service's own client sends them so.
fn numeric(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn compare(actual: &Value, wanted: &Value) -> Option<Ordering> {
    match (actual, wanted) {
        (Value::Number(_), _) => actual.as_f64()?.partial_cmp(&numeric(wanted)?),
        (Value::String(actual), Value::String(wanted)) => Some(actual.cmp(wanted)),
        // Nothing is greater or less than null, as in SQL.
        _ => None,
    }
}

/// Sorts records by pairs of field and direction.
pub fn sort(records: &mut [Map<String, Value>], order: &[(String, bool)]) {
    records.sort_by(|left, right| {
        order
            .iter()
            .map(|(field, ascending)| {
                let ordering = left
                    .get(field)
                    .zip(right.get(field))
                    .and_then(|(left, right)| compare(left, right))
                    .unwrap_or(Ordering::Equal);
                if *ascending { ordering } else { ordering.reverse() }
            })
            .find(|ordering| ordering.is_ne())
            .unwrap_or(Ordering::Equal)
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn offer() -> Map<String, Value> {
        json!({"gpu_name": "RTX 4090", "num_gpus": 2, "reliability": 0.99, "geolocation": "Oslo, NO", "cluster_id": null})
            .as_object()
            .cloned()
            .unwrap_or_default()
    }

    fn meets(filters: Value) -> Result<bool, String> {
        matches(&offer(), filters.as_object().expect("an object"))
    }

    #[test]
    fn each_operator_of_the_language_selects() {
        let table = [
            (json!({"num_gpus": {"eq": 2}}), true),
            (json!({"num_gpus": {"eq": 2.0}}), true),
            (json!({"num_gpus": {"eq": "2"}}), true),
            (json!({"num_gpus": {"lt": "2"}}), false),
            (json!({"num_gpus": {"neq": 2}}), false),
            (json!({"num_gpus": {"gt": 1, "lt": 3}}), true),
            (json!({"num_gpus": {"gt": 2}}), false),
            (json!({"num_gpus": {"gte": 2, "lte": 2}}), true),
            (json!({"num_gpus": {"in": [1, 2]}}), true),
            (json!({"num_gpus": {"notin": [1, 2]}}), false),
            (json!({"gpu_name": {"in": ["RTX_4090"]}}), false),
            (json!({"gpu_name": {"in": ["RTX 4090"]}}), true),
            (json!({"geolocation": {"in": ["NO", "SE"]}}), true),
            (json!({"geolocation": {"notin": ["NO"]}}), false),
            (json!({"cluster_id": {"neq": null}}), false),
            (json!({"unheard_of": {"gte": 1}}), false),
        ];
        for (filters, expected) in table {
            assert_eq!(meets(filters.clone()), Ok(expected), "{filters}");
        }
    }

    #[test]
    fn what_is_no_operator_is_refused() {
        assert!(meets(json!({"num_gpus": 2})).is_err());
        assert!(meets(json!({"num_gpus": {"is": 2}})).is_err());
        assert!(meets(json!({"num_gpus": {"in": 2}})).is_err());
    }
}
