//! What the runs of a Task cost. Pure: a run costs the time that it took at the price of its place, which is the
//! hourly price that its machine was ordered at, divided by the places of the machine. So what the runs of a machine
//! that is always full cost is what the machine costs; the rest of its bill is time in which places were free.

use jiff::Timestamp;
use skyward_api::task::RunResult;
use skyward_core::Usd;

/// Milliseconds of an hour.
const HOUR: i64 = 3_600_000;

/// The price of one of so many places of a machine, in USD per hour.
pub fn of_place(hourly: Usd, places: u32) -> Usd {
    hourly / places.max(1)
}

/// What a run costs at that price, whose attempt was placed then and is over now. How long the run took is its
/// machine's word, and at most as long as the attempt; a run whose end nobody knows took all of it.
pub fn of_run(price: Usd, result: Option<&RunResult>, placed: Timestamp, now: Timestamp) -> Usd {
    let between = |from: Timestamp, until: Timestamp| {
        let from = from.as_millisecond();
        until.as_millisecond().saturating_sub(from).max(0)
    };
    let longest = between(placed, now);
    let told = result.and_then(|result| {
        let (started, finished) = (result.started_at.as_ref()?, result.finished_at.as_ref()?);
        // It tells whole milliseconds, and what took less took time.
        Some(between(started.0, finished.0).max(1))
    });
    price * told.unwrap_or(longest).min(longest) / HOUR
}

/// As a status has it: nothing where nothing is paid.
pub fn text(cost: Usd) -> String {
    if cost.is_zero() {
        String::new()
    } else {
        cost.exact()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[rstest]
    #[case::as_it_says(Some((100, 160)), "0.06")]
    #[case::its_clock_is_a_day_ahead(Some((86_500, 86_560)), "0.06")]
    #[case::less_than_it_can_tell(Some((100, 100)), "0.000001")]
    #[case::its_clock_went_backwards(Some((160, 100)), "0.000001")]
    #[case::it_says_more_than_there_was(Some((0, 100_000)), "0.1")]
    #[case::nobody_knows(None, "0.1")]
    fn a_run_costs_the_time_that_it_took_and_at_most_its_attempt(
        #[case] told: Option<(i64, i64)>,
        #[case] cost: &str,
    ) {
        let result = told.map(|(started, finished)| RunResult {
            started_at: Some(Time(at(started))),
            finished_at: Some(Time(at(finished))),
            ..RunResult::default()
        });
        let price = of_place(Usd::cents(1440), 4);
        assert_eq!(price, Usd::cents(360));
        let costs = of_run(price, result.as_ref(), at(90), at(190));
        assert_eq!(costs, cost.parse().unwrap());
    }

    #[test]
    fn what_nobody_pays_is_not_shown_and_a_part_of_a_cent_is() {
        assert_eq!(text(Usd::ZERO), "");
        assert_eq!(text(of_run(Usd::cents(36), None, at(0), at(1))), "0.0001");
        assert_eq!(
            of_place(Usd::cents(36), 0),
            Usd::cents(36),
            "a Pool always has a place"
        );
    }
}
