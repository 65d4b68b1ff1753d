//! Amounts and moments in the clouds' JSON: an amount is a number at one cloud and a text at another.
//! Pure.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, de::Error as _};
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
        let digits = text.trim().parse().map(Self);
        digits.map_err(|_| D::Error::custom("not an amount"))
    }
}

/// What a bid is multiplied by, as settings have it.
pub fn factor(written: Option<f64>) -> Option<Decimal> {
    written?.to_string().parse().ok()
}

/// A moment as clouds write it; `None` for what is none.
pub fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.trim().parse().ok()
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
    fn amounts_are_read_from_numbers_and_texts(#[case] json: &str, #[case] expected: Usd) {
        assert_eq!(serde_json::from_str::<Amount>(json).unwrap().usd(), expected);
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        assert!(serde_json::from_str::<Amount>("\"free\"").is_err());
        assert!(serde_json::from_str::<Amount>("[]").is_err());
    }
}
