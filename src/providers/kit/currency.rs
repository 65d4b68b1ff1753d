//! Prices in another currency than USD: by a rate that a person wrote into the Provider's settings,
//! with its day. No rate is guessed or fetched.
//!
//! A cloud that bills in euro has `exchangeRate: Option<ExchangeRate>` among its settings. Without a
//! rate its offers have no price. With one they are priced in USD, and [`ExchangeRate::admits`] says
//! whether a machine may be ordered at such a price: with a rate older than [`CURRENT`] days
//! machines are still offered, but an order needs the Pool's own `maxHourlyCost`.
//!
//! A client cannot ask: an [`Order`](skyward_core::Order) always has a `max_hourly_cost`, which is
//! the recorded price where the Pool has none. The check belongs where the Pool's candidates are
//! compared with offers (`controller/planner/pool/choice`). For that,
//! [`Offer`](skyward_core::offer::Offer) must say that its price is by an outdated rate: the first
//! cloud that bills in another currency brings that field with it.

use jiff::civil::Date;
use rust_decimal::Decimal;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use skyward_api::Amount;
use skyward_core::{ErrorKind, ProviderError};

use crate::decimal;

/// Days for which a rate is current.
pub const CURRENT: i32 = 30;

/// What one unit of the cloud's currency costs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExchangeRate {
    /// In USD, as a decimal such as `"1.08"`.
    #[schemars(with = "String", regex(pattern = r"^[0-9]{1,6}(\.[0-9]{1,8})?$"))]
    pub usd: Amount,
    /// The day of the rate, such as `2026-11-01`.
    #[schemars(with = "String", regex(pattern = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"))]
    pub as_of: Date,
}

impl ExchangeRate {
    /// An amount of the cloud's currency in USD, rounded up to a millionth: a price that is
    /// compared with a ceiling is never below the billed one. `None` with a rate of zero.
    pub fn in_usd(&self, amount: Decimal) -> Option<Decimal> {
        let rate = decimal(&self.usd).filter(|rate| !rate.is_zero())?;
        let usd = amount.checked_mul(rate)?;
        let away = rust_decimal::RoundingStrategy::ToPositiveInfinity;
        Some(usd.round_dp_with_strategy(6, away).normalize())
    }

    /// Whether it is of the last [`CURRENT`] days. A day that is still to come is no day of a rate;
    /// tomorrow's may be today's elsewhere.
    pub fn is_current(&self, today: Date) -> bool {
        let Ok(age) = today.since(self.as_of) else {
            return false;
        };
        (-1..=CURRENT).contains(&age.get_days())
    }

    /// Whether a machine may be ordered at a price by this rate. `max_hourly_cost` is that of the
    /// Pool's spec, not the recorded price.
    pub fn admits(&self, today: Date, max_hourly_cost: Option<Decimal>) -> Result<(), ProviderError> {
        if self.is_current(today) || max_hourly_cost.is_some() {
            return Ok(());
        }
        Err(ProviderError::new(
            ErrorKind::InvalidOrder,
            "order at a price in another currency",
            format!(
                "the Provider's exchange rate is of {}, more than {CURRENT} days ago. Write a current exchangeRate into the Provider, or maxHourlyCost into the Pool",
                self.as_of
            ),
        ))
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
        let found = rate(usd, "2026-11-01").in_usd(decimal(amount).unwrap());
        assert_eq!(found, expected.and_then(decimal));
    }

    #[rstest]
    #[case("2026-11-23", true)]
    #[case("2026-10-24", true)]
    #[case("2026-10-23", false)]
    #[case("2025-11-23", false)]
    #[case("2026-11-24", true)]
    #[case("2026-12-24", false)]
    fn a_rate_is_current_for_thirty_days_and_then_an_order_needs_a_ceiling(
        #[case] as_of: &str,
        #[case] current: bool,
    ) {
        let (rate, today) = (rate("1.08", as_of), "2026-11-23".parse().unwrap());
        assert_eq!(rate.is_current(today), current);
        assert_eq!(rate.admits(today, None).is_ok(), current);
        assert!(rate.admits(today, Some(Decimal::ONE)).is_ok());
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
