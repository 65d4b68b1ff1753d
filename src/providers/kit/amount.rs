//! Amounts and moments in the clouds' JSON: an amount is a number at one cloud and a text at another.
//! Pure.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, de::Error as _};

/// An amount of money or of anything else, written as a number or as a text. It is read
/// from its digits, never through a float's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(pub Decimal);

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
        decimal(&text)
            .map(Self)
            .ok_or_else(|| D::Error::custom("not an amount"))
    }
}

/// A decimal from its digits, also in scientific notation.
pub fn decimal(text: &str) -> Option<Decimal> {
    let text = text.trim();
    text.parse()
        .or_else(|_| Decimal::from_scientific(text))
        .ok()
        .map(|amount: Decimal| amount.normalize())
}

/// What a bid is multiplied by, as settings have it.
pub fn factor(written: Option<f64>) -> Option<Decimal> {
    decimal(&written?.to_string())
}

/// A moment as clouds write it; `None` for what is none.
pub fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn dec(text: &str) -> Decimal {
        decimal(text).expect("a number")
    }

    #[rstest]
    #[case("0.69", dec("0.69"))]
    #[case("\"3.170\"", dec("3.17"))]
    #[case("1e-3", dec("0.001"))]
    #[case("2", dec("2"))]
    fn amounts_are_read_from_numbers_and_texts(#[case] json: &str, #[case] expected: Decimal) {
        assert_eq!(serde_json::from_str::<Amount>(json).unwrap(), Amount(expected));
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        assert!(serde_json::from_str::<Amount>("\"free\"").is_err());
        assert!(serde_json::from_str::<Amount>("[]").is_err());
    }
}
