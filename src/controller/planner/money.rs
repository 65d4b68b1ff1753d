//! What machines cost. Pure: prices, times and billing steps in, costs out.
//!
//! A machine is billed from the moment its provider names (or, where none does, from the
//! moment it accepted the order) until it is gone or bills no more, in whole steps of that
//! provider and at least for its minimum. The price is what the provider named at launch,
//! else that of the order; both and the steps stand in the record of the machine and never
//! change. A machine that halted costs its full price here until it is gone, although most
//! clouds then bill its disk alone: this ledger never claims less than the bill will.

use std::time::Duration;

use derive_more::{Add, AddAssign, Sum};
use jiff::Timestamp;
use skyward_api::{Duration as Lasting, Machine, machine::Market};
use skyward_core::Usd;

/// Seconds of an hour.
const HOUR: i64 = 3600;

/// How one machine is billed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tariff {
    /// USD per hour.
    pub hourly: Usd,
    /// USD per hour that it would have cost on demand.
    pub on_demand: Usd,
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
        let hourly = hourly_price(machine);
        let on_demand = spec.on_demand_price.as_ref().unwrap_or(&spec.hourly_price);
        Self {
            hourly,
            on_demand: match spec.market {
                // Whatever it came to cost: a marketplace may take more than its offer showed.
                Market::OnDemand => hourly,
                Market::Spot => Usd::or_zero(on_demand),
            },
            market: spec.market,
            step: Lasting::or(spec.billing_step.as_ref(), Duration::from_secs(1)),
            minimum: Lasting::or(spec.billing_minimum.as_ref(), Duration::ZERO),
        }
    }

    /// What the time between costs.
    pub fn cost(&self, from: Timestamp, until: Timestamp) -> Cost {
        let seconds = self.billed_seconds(from, until);
        let amount = |hourly: Usd| hourly * seconds / HOUR;
        let spent = amount(self.hourly);
        let (spot, on_demand) = match self.market {
            Market::Spot => (spent, Usd::ZERO),
            Market::OnDemand => (Usd::ZERO, spent),
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Add, AddAssign, Sum)]
pub struct Cost {
    /// On the spot market.
    pub spot: Usd,
    /// On demand.
    pub on_demand: Usd,
    /// How much more all of it would have cost on demand; negative where the spot market
    /// was dearer.
    pub savings: Usd,
}

impl Cost {
    /// All of it.
    pub fn total(&self) -> Usd {
        self.spot + self.on_demand
    }
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
pub fn hourly_price(machine: &Machine) -> Usd {
    let named = machine
        .status
        .as_ref()
        .and_then(|status| status.hourly_price.as_ref());
    Usd::or_zero(named.unwrap_or(&machine.spec.hourly_price))
}

/// What a machine has cost until now, or in all when it is gone.
pub fn so_far(machine: &Machine, now: Timestamp) -> Cost {
    let Some(from) = billed_since(machine) else {
        return Cost::default();
    };
    Tariff::of(machine).cost(from, billed_until(machine).unwrap_or(now))
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
            hourly: Usd::cents(360),
            on_demand: Usd::cents(720),
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
        assert_eq!(cost.total(), expected.parse().unwrap());
        assert_eq!(
            cost.savings, cost.spot,
            "on demand it would have cost twice as much"
        );
        assert_eq!(cost.on_demand, Usd::ZERO);
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
        assert_eq!((offered.spot, offered.savings), (Usd::from(2), Usd::from(4)));
        status["hourlyPrice"] = "1.5".into();
        let named = so_far(&machine(status.clone()), now);
        assert_eq!((named.spot, named.savings), (Usd::from(3), Usd::from(3)));
        status["billedSince"] = "2026-11-21T11:00:00Z".into();
        status["goneAt"] = "2026-11-21T11:40:00Z".into();
        assert_eq!(so_far(&machine(status.clone()), now).spot, Usd::from(1));
        status["billedUntil"] = "2026-11-21T11:20:00Z".into();
        assert_eq!(so_far(&machine(status), now).spot, Usd::new(5, 1));
    }

    #[test]
    fn what_was_rented_on_demand_saves_and_loses_nothing() {
        let status = serde_json::json!({ "acceptedAt": "2026-11-21T10:00:00Z", "hourlyPrice": "5" });
        let mut machine = machine(status);
        machine.spec.market = Market::OnDemand;
        let cost = so_far(&machine, "2026-11-21T12:00:00Z".parse().unwrap());
        assert_eq!((cost.on_demand, cost.savings), (Usd::from(10), Usd::ZERO));
    }
}
