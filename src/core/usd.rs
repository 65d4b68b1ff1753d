//! Money: an amount of US dollars, or of US dollars per hour. Every price, bid, limit and cost is a
//! [`Usd`], so that no amount is taken for another number or multiplied by another amount. An amount
//! in another currency becomes a [`Usd`] by an exchange rate.
//!
//! What a cloud says and what a person wrote is cut to what somebody may spend, so that no sum
//! overflows, and rounded to the places that records have, so that a record is read as what was
//! written.

use std::{fmt, iter::Sum, ops, str::FromStr};

use derive_more::{Add, AddAssign, Sub, Sum};
use rust_decimal::{Decimal, RoundingStrategy::ToZero};

/// USD that nobody spends. A status that was edited by hand may say more, which no sum holds.
const MOST: Decimal = Decimal::from_parts(0xD4A5_1000, 0xE8, 0, false, 0);
/// The highest product, so that sums of thousands of them do not overflow either: a record that was edited by
/// hand may say any number of hours as well.
const HIGHEST: Decimal = Decimal::from_parts(0x4A00_0000, 0x1614_0148, 0x0008_4595, false, 0);
/// Decimal places of an amount on record: much finer than a bill.
const PLACES: u32 = 12;

/// An amount of US dollars. Its text is for people: cents and fractions of them, no trailing zeros.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Add, AddAssign, Sub, Sum)]
pub struct Usd(Decimal);

impl Usd {
    /// Nothing.
    pub const ZERO: Self = Self(Decimal::ZERO);

    /// So many parts of a dollar: `new(15, 1)` is 1.5 USD.
    pub fn new(parts: i64, places: u32) -> Self {
        Decimal::new(parts, places).into()
    }

    /// So many hundredths of a dollar.
    pub fn cents(cents: i64) -> Self {
        Self::new(cents, 2)
    }

    /// An amount as our objects have it; zero where the text is none.
    pub fn or_zero(text: &str) -> Self {
        text.parse().unwrap_or_default()
    }

    /// Whether it is nothing.
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }

    /// Its size, whatever its sign.
    #[must_use]
    pub fn abs(self) -> Self {
        Self(self.0.abs())
    }

    /// The nearest amount with so many decimal places.
    #[must_use]
    pub fn round_dp(self, places: u32) -> Self {
        Self(self.0.round_dp(places))
    }

    /// The amount without what is beyond so many decimal places.
    #[must_use]
    pub fn trunc_dp(self, places: u32) -> Self {
        Self(self.0.round_dp_with_strategy(places, ToZero))
    }

    /// As records keep it.
    pub fn exact(self) -> String {
        self.0.round_dp(PLACES).normalize().to_string()
    }

    /// The nearest float, for metrics and for clouds that take a JSON number.
    pub fn to_f64(self) -> f64 {
        // From the digits: a float that is computed may be off in its last place.
        self.exact().parse().unwrap_or_default()
    }
}

/// Whole dollars, or a decimal of them.
impl<T: Into<Decimal>> From<T> for Usd {
    fn from(amount: T) -> Self {
        Self(amount.into().clamp(-MOST, MOST).round_dp(PLACES))
    }
}

impl FromStr for Usd {
    type Err = rust_decimal::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse::<Decimal>().map(Self::from)
    }
}

impl fmt::Display for Usd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.round_dp(4).normalize().fmt(f)
    }
}

impl<T: Into<Decimal>> ops::Mul<T> for Usd {
    type Output = Self;

    fn mul(self, times: T) -> Self {
        let times = times.into();
        let highest = if self.0.is_sign_negative() == times.is_sign_negative() {
            HIGHEST
        } else {
            -HIGHEST
        };
        let product = self.0.checked_mul(times).unwrap_or(highest);
        Self(product.clamp(-HIGHEST, HIGHEST))
    }
}

impl<T: Into<Decimal>> ops::Div<T> for Usd {
    type Output = Self;

    fn div(self, parts: T) -> Self {
        Self(self.0 / parts.into())
    }
}

impl<'a> Sum<&'a Self> for Usd {
    fn sum<I: Iterator<Item = &'a Self>>(amounts: I) -> Self {
        amounts.copied().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usd(text: &str) -> Usd {
        text.parse().unwrap()
    }

    #[test]
    fn an_amount_is_read_from_its_digits_and_what_is_none_is_zero_where_asked() {
        assert_eq!(usd("1.50"), Usd::cents(150));
        assert_eq!(usd("1.50"), Usd::new(15, 1));
        assert_eq!(usd("-3"), Usd::from(-3));
        assert_eq!(usd("1e-3"), Usd::new(1, 3));
        for none in ["", "free", "1,5", " 1"] {
            assert!(none.parse::<Usd>().is_err(), "{none}");
            assert_eq!(Usd::or_zero(none), Usd::ZERO);
        }
    }

    #[test]
    fn an_amount_that_nobody_spends_is_cut_and_its_sums_do_not_overflow() {
        let most = usd("1000000000000");
        for huge in [
            usd("79228162514264337593543950335"),
            i64::MAX.into(),
            Usd::cents(i64::MAX),
            Decimal::MAX.into(),
        ] {
            assert_eq!(huge, most);
        }
        assert_eq!(usd("-79228162514264337593543950335"), Usd::ZERO - most);
        // An hour of a thousand such machines, a hundred years long.
        let seconds = 100_i64 * 366 * 24 * 3600;
        let sum: Usd = std::iter::repeat_n(most * seconds, 1000).sum();
        assert!(sum > most);
    }

    #[test]
    fn a_product_that_no_number_holds_is_cut_and_its_sums_do_not_overflow() {
        let most = usd("1000000000000");
        let highest = usd("1") * Decimal::from(10_u64.pow(13)) * Decimal::from(10_u64.pow(12));
        for times in [i64::MAX, i64::MAX / 4] {
            assert_eq!(most * times, highest);
            assert_eq!(most * -times, Usd::ZERO - highest);
        }
        let sum: Usd = std::iter::repeat_n(most * i64::MAX, 1000).sum();
        assert!(sum / 3600 > most);
    }

    #[test]
    fn people_are_shown_four_places_and_records_keep_twelve() {
        for (amount, shown, exact) in [
            ("12.340000", "12.34", "12.34"),
            ("0.00004", "0", "0.00004"),
            ("100", "100", "100"),
            ("0.12345678901234", "0.1235", "0.123456789012"),
        ] {
            assert_eq!(usd(amount).to_string(), shown);
            assert_eq!(usd(amount).exact(), exact);
        }
        assert_eq!((Usd::from(1) / 3).exact(), "0.333333333333");
        // Else an order would be refused for a price above its own.
        let noisy = usd("3.1700000000000004");
        assert_eq!(usd(&noisy.exact()), noisy, "what was read is on record as it is");
    }

    #[test]
    fn amounts_are_rounded_as_they_are_needed() {
        assert_eq!(usd("0.12346").round_dp(4), usd("0.1235"));
        assert_eq!(usd("0.12349").trunc_dp(4), usd("0.1234"));
        assert_eq!(usd("4.35").to_f64().to_string(), "4.35");
    }

    #[test]
    fn amounts_are_added_and_are_multiplied_by_numbers() {
        let price = Usd::cents(250);
        let mut spent = price * 3 - Usd::from(1) + price / 2_u32;
        spent += price * Decimal::new(12, 1);
        assert_eq!(spent, usd("10.75"));
        assert_eq!([price, spent].iter().sum::<Usd>(), usd("13.25"));
        assert_eq!((Usd::ZERO - price).abs().max(Usd::ZERO), price);
    }
}
