//! Prices in another currency than USD: by a rate that a person wrote into the Provider's settings,
//! with its day. No rate is guessed or fetched.
//!
//! A cloud that bills in euro has `exchangeRate: Option<ExchangeRate>` among its settings. Without a
//! rate its offers have no price. With one they are priced in USD and carry the day of the rate
//! ([`Offer::rate_as_of`](skyward_core::Offer)): a Pool orders at a price by a rate that is older than
//! [`RATE_DAYS`](skyward_core::offer::RATE_DAYS) days only where it has `maxHourlyCost`
//! (`controller/planner/pool/choice`).

use jiff::civil::Date;
use rust_decimal::{Decimal, RoundingStrategy::ToPositiveInfinity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::Amount as Rate;
use skyward_core::Usd;

use crate::Amount;

/// What one unit of the cloud's currency costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExchangeRate {
    /// In USD, as a decimal such as `"1.08"`.
    #[schemars(
        with = "String",
        length(max = 15),
        regex(pattern = r"^[0-9]{1,6}(\.[0-9]{1,8})?$")
    )]
    pub usd: Rate,
    /// The day of the rate, such as `2026-11-01`.
    #[schemars(
        with = "String",
        length(max = 10),
        regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$")
    )]
    pub as_of: Date,
}

impl ExchangeRate {
    /// An amount of the cloud's currency in USD, rounded up to a millionth: a price that is
    /// compared with a ceiling is never below the billed one. `None` with a rate of zero.
    pub fn in_usd(&self, amount: Amount) -> Option<Usd> {
        let rate = self.usd.parse().ok().filter(|rate: &Decimal| !rate.is_zero())?;
        let usd = amount.0.checked_mul(rate)?;
        Some(usd.round_dp_with_strategy(6, ToPositiveInfinity).into())
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn rate(usd: &str, as_of: &str) -> ExchangeRate {
        ExchangeRate {
            usd: usd.into(),
            as_of: as_of.parse().unwrap(),
        }
    }

    #[rstest]
    #[case("1.08", "2.5", Some("2.7"))]
    #[case("1.0837", "0.000001", Some("0.000002"))]
    #[case("1", "3", Some("3"))]
    #[case("0", "3", None)]
    #[case("a lot", "3", None)]
    fn prices_are_in_usd_and_never_below_what_is_billed(
        #[case] usd: &str,
        #[case] amount: &str,
        #[case] expected: Option<&str>,
    ) {
        let found = rate(usd, "2026-11-01").in_usd(Amount(amount.parse().unwrap()));
        assert_eq!(found, expected.map(|usd| usd.parse().unwrap()));
    }

    #[test]
    fn a_rate_is_read_as_people_write_it() {
        let read: ExchangeRate = serde_json::from_str(r#"{ "usd": "1.08", "asOf": "2026-11-01" }"#).unwrap();
        assert_eq!(read, rate("1.08", "2026-11-01"));
        assert!(
            serde_json::from_str::<ExchangeRate>(r#"{ "usd": "1.08" }"#).is_err(),
            "of which day?"
        );
    }
}
