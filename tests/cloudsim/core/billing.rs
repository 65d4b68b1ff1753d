//! Billing rules of a cloud: what is charged in which phase, and in which steps.

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;
use serde::Serialize;

use crate::core::machine::Phase;

/// The rules of one cloud.
#[derive(Clone, Copy, Debug)]
pub struct Billing {
    /// Time is charged in whole steps of this length.
    pub step: SignedDuration,
    /// A started period is charged as at least this long.
    pub minimum: SignedDuration,
    /// Whether a machine costs before it runs.
    pub pending: bool,
    /// What a halted machine costs.
    pub halted: Halted,
    /// Whether a failed machine costs its full price.
    pub failed: bool,
    /// Whether a machine costs from the order to end it until it has ended.
    pub ending: bool,
}

/// What a halted machine costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halted {
    /// Its full price.
    Full,
    /// The price of its disk (`Machine::disk_price`).
    Disk,
    /// Nothing.
    Nothing,
}

impl Billing {
    /// Second by second while a machine runs, full price until it has ended.
    pub const fn per_second() -> Self {
        Self {
            step: SignedDuration::from_secs(1),
            minimum: SignedDuration::ZERO,
            pending: true,
            halted: Halted::Full,
            failed: true,
            ending: false,
        }
    }

    /// The price for an hour in a phase.
    pub fn rate(&self, phase: Phase, price: Decimal, disk_price: Decimal) -> Decimal {
        let full_if = |charged| if charged { price } else { Decimal::ZERO };
        match phase {
            Phase::Pending => full_if(self.pending),
            Phase::Running => price,
            Phase::Halted => match self.halted {
                Halted::Full => price,
                Halted::Disk => disk_price,
                Halted::Nothing => Decimal::ZERO,
            },
            Phase::Failed => full_if(self.failed),
            Phase::Ending => full_if(self.ending),
            Phase::Ended => Decimal::ZERO,
        }
    }
}

/// A period at one price.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// When it began.
    pub from: Timestamp,
    /// When it ended; `None` while it lasts.
    pub to: Option<Timestamp>,
    /// The price of an hour.
    pub rate: Decimal,
}

/// What one machine or resource has cost, as periods at a price.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Tab(Vec<Span>);

impl Tab {
    /// From now on an hour costs this much.
    pub fn charge(&mut self, now: Timestamp, rate: Decimal) {
        if self.rate() == rate {
            return;
        }
        if let Some(last) = self.0.last_mut().filter(|span| span.to.is_none()) {
            last.to = Some(now);
        }
        if !rate.is_zero() {
            self.0.push(Span {
                from: now,
                to: None,
                rate,
            });
        }
    }

    /// What an hour costs now.
    pub fn rate(&self) -> Decimal {
        self.0
            .last()
            .filter(|span| span.to.is_none())
            .map_or(Decimal::ZERO, |span| span.rate)
    }

    /// What was charged until a moment, in whole steps.
    pub fn until(&self, moment: Timestamp, billing: &Billing) -> Decimal {
        self.0.iter().map(|span| cost(span, moment, billing)).sum()
    }

    /// What was charged in a period.
    pub fn between(&self, from: Timestamp, to: Timestamp, billing: &Billing) -> Decimal {
        self.until(to, billing) - self.until(from, billing)
    }

    /// The periods.
    pub fn spans(&self) -> &[Span] {
        &self.0
    }
}

fn cost(span: &Span, moment: Timestamp, billing: &Billing) -> Decimal {
    let end = span.to.unwrap_or(moment).min(moment);
    let time = end.duration_since(span.from);
    if time <= SignedDuration::ZERO {
        return Decimal::ZERO;
    }
    let step = billing.step.as_millis().max(1);
    let steps = (time.max(billing.minimum).as_millis() + step - 1) / step;
    // Nanosecond times of a real clock may round to zero milliseconds: a started step counts.
    let charged = steps.max(1) * step;
    // An i128 of milliseconds within the years of a Timestamp fits an i64.
    span.rate * Decimal::from(charged as i64) / Decimal::from(3_600_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_started_hour_is_paid_whole_where_the_step_is_an_hour() {
        let hourly = Billing {
            step: SignedDuration::from_hours(1),
            ..Billing::per_second()
        };
        let mut tab = Tab::default();
        tab.charge(at(0), Decimal::from(2));
        assert_eq!(tab.until(at(1), &hourly), Decimal::from(2));
        assert_eq!(tab.until(at(3_601), &hourly), Decimal::from(4));
        tab.charge(at(3_601), Decimal::ZERO);
        assert_eq!(tab.until(at(99_999), &hourly), Decimal::from(4));
    }

    #[test]
    fn a_minimum_counts_once_for_each_started_period() {
        let billing = Billing {
            minimum: SignedDuration::from_secs(60),
            ..Billing::per_second()
        };
        let mut tab = Tab::default();
        tab.charge(at(0), Decimal::from(3_600));
        tab.charge(at(5), Decimal::ZERO);
        tab.charge(at(10), Decimal::from(3_600));
        tab.charge(at(110), Decimal::ZERO);
        assert_eq!(tab.until(at(200), &billing), Decimal::from(160));
        assert_eq!(tab.between(at(10), at(200), &billing), Decimal::from(100));
    }
}
