//! Amounts and moments in the clouds' JSON: an amount is a number at one cloud and a text at another.
//! Pure.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Value;
use skyward_core::Usd;

/// An amount of money or of anything else, written as a number or as a text. It is read
/// from its digits, never through a float's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub Decimal);

impl Amount {
    /// The amount of a cloud that bills in USD.
    pub fn usd(self) -> Usd {
        self.0.into()
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(serde_json::Number),
            Text(String),
        }
        let text = match Written::deserialize(deserializer)? {
            Written::Number(number) => number.to_string(),
            Written::Text(text) => text,
        };
        let text = text.trim();
        // Some clouds write nothing as `0E-9`.
        let digits = text.parse().or_else(|_| Decimal::from_scientific(text));
        digits.map(Self).map_err(|_| D::Error::custom("not an amount"))
    }
}

/// An amount above nothing, where there is one.
pub fn price(told: &Value) -> Option<Amount> {
    let amount = Amount::deserialize(told).ok()?;
    (amount > Amount::default()).then_some(amount)
}

/// A whole number, written as a number or as a text.
pub fn whole(told: &Value) -> Option<u64> {
    told.as_u64().or_else(|| told.as_str()?.trim().parse().ok())
}

/// A flag, written as one or as a text.
pub fn flag(told: &Value) -> Option<bool> {
    let text = || Some(told.as_str()?.trim().eq_ignore_ascii_case("true"));
    told.as_bool().or_else(text)
}

/// What a bid is multiplied by, as settings have it.
pub fn factor(written: Option<f64>) -> Option<Decimal> {
    written?.to_string().parse().ok()
}

/// A moment as clouds write it, in UTC where no zone is written; `None` for what is none.
pub fn time(text: Option<&str>) -> Option<Timestamp> {
    let text = text?.trim();
    text.parse().or_else(|_| format!("{text}Z").parse()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("0.69", Usd::cents(69))]
    #[case("\" 3.170\"", Usd::cents(317))]
    #[case("1e-3", Usd::new(1, 3))]
    #[case("2", Usd::from(2))]
    #[case("\"0E-9\"", Usd::ZERO)]
    #[case("\"1.5e2\"", Usd::from(150))]
    fn amounts_are_read_from_numbers_and_texts(#[case] json: &str, #[case] expected: Usd) {
        assert_eq!(serde_json::from_str::<Amount>(json).unwrap().usd(), expected);
    }

    #[rstest]
    #[case("2026-01-01T00:00:00Z", true)]
    #[case("2026-01-01T01:00:00+01:00", true)]
    #[case(" 2026-01-01T00:00:00\n", true)]
    #[case("2026-01-01T00:00:00.000000", true)]
    #[case("", false)]
    #[case("soon", false)]
    fn moments_are_read_with_their_zone_and_as_utc_without_one(#[case] text: &str, #[case] is_one: bool) {
        let expected = is_one.then(|| "2026-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(time(Some(text)), expected);
    }

    #[rstest]
    #[case(r#"[7, "7", " 7 "]"#, Some(7))]
    #[case(r#"["", "-7", "7.5", 7.5, -7, null, true, [7]]"#, None)]
    fn whole_numbers_are_read_from_numbers_and_texts(#[case] json: &str, #[case] expected: Option<u64>) {
        for told in serde_json::from_str::<Vec<Value>>(json).unwrap() {
            assert_eq!(whole(&told), expected, "{told}");
        }
    }

    #[rstest]
    #[case(r#"[true, "true", "True"]"#, Some(true))]
    #[case(r#"[false, "false", ""]"#, Some(false))]
    #[case("[null, 1, []]", None)]
    fn flags_are_read_from_flags_and_texts(#[case] json: &str, #[case] expected: Option<bool>) {
        for told in serde_json::from_str::<Vec<Value>>(json).unwrap() {
            assert_eq!(flag(&told), expected, "{told}");
        }
    }

    #[rstest]
    #[case(r#"[0.44, "0.44"]"#, Some(Usd::cents(44)))]
    #[case(r#"[0, -1, "", "free", null, {}]"#, None)]
    fn a_price_is_an_amount_above_nothing(#[case] json: &str, #[case] expected: Option<Usd>) {
        for told in serde_json::from_str::<Vec<Value>>(json).unwrap() {
            assert_eq!(price(&told).map(Amount::usd), expected, "{told}");
        }
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        assert!(serde_json::from_str::<Amount>("\"free\"").is_err());
        assert!(serde_json::from_str::<Amount>("[]").is_err());
        assert!(serde_json::from_str::<Amount>("\"1e4000000000\"").is_err());
    }
}
