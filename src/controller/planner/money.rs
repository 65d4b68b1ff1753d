//! What machines cost. Pure: decimals, times and billing steps in, decimals out.
//!
//! A machine is billed from the moment its provider names (or, where none does, from the
//! moment it accepted the order) until it is gone or bills no more, in whole steps of that
//! provider and at least for its minimum. The price is what the provider named at launch,
//! else that of the order; both and the steps stand in the record of the machine and never
//! change. A machine that halted costs its full price here until it is gone, although most
//! clouds then bill its disk alone: this ledger never claims less than the bill will.

use std::time::Duration;

use jiff::Timestamp;
use rust_decimal::Decimal;
use skyward_api::{Duration as Lasting, Machine, machine::Market};

/// Seconds of an hour.
const HOUR: i64 = 3600;
/// USD that nobody spends. A status that was edited by hand may say more, which no sum holds.
const MOST: Decimal = Decimal::from_parts(0xD4A5_1000, 0xE8, 0, false, 0);

/// How one machine is billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tariff {
    /// USD per hour.
    pub hourly: Decimal,
    /// USD per hour that it would have cost on demand.
    pub on_demand: Decimal,
    /// On which market.
    pub market: Market,
    /// Smallest unit of time that is billed.
    pub step: Duration,
    /// Least time that is billed.
    pub minimum: Duration,
}

impl Tariff {
    /// That of a recorded machine.
    pub fn of(machine: &Machine) -> Self {
        let spec = &machine.spec;
        let hourly = usd_or_zero(hourly_price(machine));
        let listed = usd_or_zero(&spec.hourly_price);
        Self {
            hourly,
            on_demand: match spec.market {
                // Whatever it came to cost: a marketplace may take more than its offer showed.
                Market::OnDemand => hourly,
                Market::Spot => spec.on_demand_price.as_deref().map_or(listed, usd_or_zero),
            },
            market: spec.market,
            step: Lasting::or(spec.billing_step.as_ref(), Duration::from_secs(1)),
            minimum: Lasting::or(spec.billing_minimum.as_ref(), Duration::ZERO),
        }
    }

    /// What the time between costs.
    pub fn cost(&self, from: Timestamp, until: Timestamp) -> Cost {
        let seconds = self.billed_seconds(from, until);
        let amount = |hourly: Decimal| hourly * Decimal::from(seconds) / Decimal::from(HOUR);
        let spent = amount(self.hourly);
        let (spot, on_demand) = match self.market {
            Market::Spot => (spent, Decimal::ZERO),
            Market::OnDemand => (Decimal::ZERO, spent),
        };
        Cost {
            spot,
            on_demand,
            savings: amount(self.on_demand) - spent,
        }
    }

    /// How long it is until what is spent grows beyond what it is now.
    pub fn next_step(&self, from: Timestamp, now: Timestamp) -> Duration {
        let billed = self.billed_seconds(from, now);
        let so_far = now.duration_since(from).as_secs().max(0);
        Duration::from_secs(u64::try_from(billed - so_far).unwrap_or(0).max(1))
    }

    fn billed_seconds(&self, from: Timestamp, until: Timestamp) -> i64 {
        let between = until.duration_since(from);
        let whole = between.as_secs() + i64::from(between.subsec_nanos() > 0);
        let seconds = whole.max(0).max(as_seconds(self.minimum));
        let step = as_seconds(self.step).max(1);
        seconds.div_euclid(step) * step + if seconds.rem_euclid(step) > 0 { step } else { 0 }
    }
}

fn as_seconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_secs()).unwrap_or(i64::MAX / 4)
}

/// What machines cost, in USD.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// On the spot market.
    pub spot: Decimal,
    /// On demand.
    pub on_demand: Decimal,
    /// How much more all of it would have cost on demand; negative where the spot market
    /// was dearer.
    pub savings: Decimal,
}

impl Cost {
    /// All of it.
    pub fn total(&self) -> Decimal {
        self.spot + self.on_demand
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            spot: self.spot + other.spot,
            on_demand: self.on_demand + other.on_demand,
            savings: self.savings + other.savings,
        }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), std::ops::Add::add)
    }
}

/// An amount of USD as our objects have it.
pub fn usd(text: &str) -> Option<Decimal> {
    text.parse::<Decimal>()
        .ok()
        .map(|amount| amount.clamp(-MOST, MOST))
}

/// The same; zero where it cannot be read.
pub fn usd_or_zero(text: &str) -> Decimal {
    usd(text).unwrap_or_default()
}

/// Since when a machine is billed; `None` while it is not known to exist.
pub fn billed_since(machine: &Machine) -> Option<Timestamp> {
    let status = machine.status.as_ref()?;
    let since = status.billed_since.as_ref().or(status.accepted_at.as_ref())?;
    Some(since.0)
}

/// Until when a machine was billed; `None` while it still is.
pub fn billed_until(machine: &Machine) -> Option<Timestamp> {
    let status = machine.status.as_ref()?;
    let until = status.billed_until.as_ref().or(status.gone_at.as_ref())?;
    Some(until.0)
}

/// USD per hour that a machine is billed at: what its provider named at launch, else what
/// was recorded with the order.
pub fn hourly_price(machine: &Machine) -> &str {
    let named = machine
        .status
        .as_ref()
        .and_then(|status| status.hourly_price.as_ref());
    named.unwrap_or(&machine.spec.hourly_price)
}

/// What a machine has cost until now, or in all when it is gone.
pub fn so_far(machine: &Machine, now: Timestamp) -> Cost {
    let Some(from) = billed_since(machine) else {
        return Cost::default();
    };
    Tariff::of(machine).cost(from, billed_until(machine).unwrap_or(now))
}

/// An amount as a ledger keeps it, much finer than a bill.
pub fn exact(amount: Decimal) -> String {
    amount.round_dp(12).normalize().to_string()
}

/// An amount for people and statuses: cents and fractions of them, no trailing zeros.
pub fn shown(amount: Decimal) -> String {
    amount.round_dp(4).normalize().to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn tariff(step: u64, minimum: u64) -> Tariff {
        Tariff {
            hourly: Decimal::new(360, 2),
            on_demand: Decimal::new(720, 2),
            market: Market::Spot,
            step: Duration::from_secs(step),
            minimum: Duration::from_secs(minimum),
        }
    }

    #[rstest]
    #[case::by_the_second(1, 0, 100, "0.100")]
    #[case::by_the_second_with_a_minimum(1, 60, 10, "0.060")]
    #[case::by_the_minute(60, 0, 61, "0.120")]
    #[case::exactly_a_minute(60, 0, 60, "0.060")]
    #[case::by_the_hour(3600, 0, 1, "3.60")]
    #[case::not_begun(1, 0, 0, "0")]
    fn time_is_billed_in_whole_steps_and_at_least_the_minimum(
        #[case] step: u64,
        #[case] minimum: u64,
        #[case] seconds: i64,
        #[case] expected: &str,
    ) {
        let cost = tariff(step, minimum).cost(at(0), at(seconds));
        assert_eq!(
            cost.total().normalize(),
            expected.parse::<Decimal>().unwrap().normalize()
        );
        assert_eq!(
            cost.savings, cost.spot,
            "on demand it would have cost twice as much"
        );
        assert_eq!(cost.on_demand, Decimal::ZERO);
    }

    #[test]
    fn a_clock_that_goes_backwards_costs_nothing() {
        assert_eq!(tariff(1, 0).cost(at(100), at(50)), Cost::default());
    }

    #[test]
    fn the_next_step_is_when_the_bill_grows() {
        assert_eq!(tariff(60, 0).next_step(at(0), at(10)), Duration::from_secs(50));
        assert_eq!(tariff(1, 60).next_step(at(0), at(10)), Duration::from_secs(50));
        assert_eq!(tariff(1, 0).next_step(at(0), at(10)), Duration::from_secs(1));
    }

    fn machine(status: serde_json::Value) -> Machine {
        let mut machine: Machine = serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "m" },
            "spec": { "pool": "p", "poolUid": "u", "slot": 0, "attempt": 1, "provider": "a", "offer": "o",
                "instanceType": "x", "market": "Spot", "hourlyPrice": "1", "onDemandPrice": "3",
                "token": "t", "templateHash": "h" },
        }))
        .unwrap();
        machine.status = Some(serde_json::from_value(status).unwrap());
        machine
    }

    #[test]
    fn what_the_provider_named_at_launch_is_billed_and_not_what_was_offered() {
        let mut status = serde_json::json!({ "acceptedAt": "2026-11-21T10:00:00Z" });
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let offered = so_far(&machine(status.clone()), now);
        assert_eq!((offered.spot, offered.savings), (Decimal::TWO, Decimal::from(4)));
        status["hourlyPrice"] = "1.5".into();
        let named = so_far(&machine(status.clone()), now);
        assert_eq!((named.spot, named.savings), (Decimal::from(3), Decimal::from(3)));
        status["billedSince"] = "2026-11-21T11:00:00Z".into();
        status["goneAt"] = "2026-11-21T11:40:00Z".into();
        assert_eq!(so_far(&machine(status.clone()), now).spot, Decimal::ONE);
        status["billedUntil"] = "2026-11-21T11:20:00Z".into();
        assert_eq!(so_far(&machine(status), now).spot, Decimal::new(5, 1));
    }

    #[test]
    fn what_was_rented_on_demand_saves_and_loses_nothing() {
        let status = serde_json::json!({ "acceptedAt": "2026-11-21T10:00:00Z", "hourlyPrice": "5" });
        let mut machine = machine(status);
        machine.spec.market = Market::OnDemand;
        let cost = so_far(&machine, "2026-11-21T12:00:00Z".parse().unwrap());
        assert_eq!((cost.on_demand, cost.savings), (Decimal::TEN, Decimal::ZERO));
    }

    #[test]
    fn amounts_are_short() {
        assert_eq!(shown("12.340000".parse().unwrap()), "12.34");
        assert_eq!(shown("0.00004".parse().unwrap()), "0");
    }
}
