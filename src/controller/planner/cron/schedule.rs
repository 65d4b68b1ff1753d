//! Times of a schedule. The crate `cronexpr` reads it and walks through the calendar of its time zone, as Kubernetes'
//! own CronJobs do: a local time that does not occur when clocks go forward makes no Task. A local time that occurs twice,
//! when clocks go back, makes one Task, the first time, unless the hour of the schedule is `*`: a CronJob would make two.
//! Time zones are compiled in: the operator's image has no others.

use cronexpr::Crontab;
use jiff::{
    Timestamp, Zoned,
    tz::{AmbiguousOffset, TimeZone},
};

/// The last second (in the year 9987) that a search begins at: it may lead four years further.
const LATEST: i64 = 253_000_000_000;
/// The second (in 2025) before which no search begins, since no CronTask is older.
const EARLIEST: i64 = 1_735_689_600;
/// Changes of a clock that are looked at: those of some fifteen years.
const CHANGES: usize = 32;

/// A schedule that can be read.
#[derive(Clone, Debug)]
pub struct Schedule {
    times: Crontab,
    /// Whether it means each hour, and so also the one that the clock has twice.
    each_hour: bool,
}

/// A schedule and its time zone as one text: where that changes, the times are others.
pub fn text(schedule: &str, zone: Option<&str>) -> String {
    format!("{schedule} {}", zone.unwrap_or("UTC"))
}

/// Whether the clock of the time zone has shown that time before, an hour ago as a rule.
fn is_repeated(time: &Zoned) -> bool {
    let shown = time.time_zone().to_ambiguous_timestamp(time.datetime());
    matches!(shown.offset(), AmbiguousOffset::Fold { after, .. } if after == time.offset())
}

/// Whether the clock of the time zone is set back by other than whole hours, as on Lord Howe Island. `cronexpr` steps from
/// hour to hour, and would come back to the hour before that change for ever.
fn is_set_back_within_an_hour(zone: &TimeZone) -> bool {
    let Ok(since) = Timestamp::from_second(EARLIEST) else {
        return false;
    };
    let mut before = zone.to_offset(since).seconds();
    zone.following(since).take(CHANGES).any(|change| {
        let after = change.offset().seconds();
        let back = std::mem::replace(&mut before, after) - after;
        back > 0 && back % 3600 != 0
    })
}

impl Schedule {
    /// From the fields of a CronTask; the error is for the user.
    pub fn parse(schedule: &str, zone: Option<&str>) -> Result<Self, String> {
        let fields = match schedule {
            "@hourly" => "0 * * * *",
            "@daily" | "@midnight" => "0 0 * * *",
            "@weekly" => "0 0 * * 0",
            "@monthly" => "0 0 1 * *",
            "@yearly" | "@annually" => "0 0 1 1 *",
            fields => fields,
        };
        let times = cronexpr::parse_crontab(&text(fields, zone)).map_err(|error| {
            // Its last line says what is wrong, behind a mark below the place.
            let said = error.to_string();
            let last = said.lines().last().unwrap_or_default();
            last.trim_start_matches([' ', '^']).to_owned()
        })?;
        if let Some(zone) = zone
            && TimeZone::get(zone).is_ok_and(|zone| is_set_back_within_an_hour(&zone))
        {
            return Err(format!(
                "the clock of {zone} is set back by a part of an hour, which no schedule can follow; write the times in UTC"
            ));
        }
        Ok(Self {
            times,
            each_hour: fields.split_whitespace().nth(1) == Some("*"),
        })
    }

    /// The first time after that one; `None`: there is none in the next four years.
    pub fn next(&self, mut after: Timestamp) -> Option<Timestamp> {
        loop {
            if after.as_second() > LATEST {
                return None;
            }
            let next = self.times.find_next(after).ok()?;
            if self.each_hour || !is_repeated(&next) {
                return Some(next.timestamp());
            }
            after = next.timestamp();
        }
    }

    /// The last time after `since` that has passed. However many have passed, few are looked at.
    pub fn last(&self, since: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let has_passed = |after: i64| {
            let after = Timestamp::from_second(after).ok()?;
            self.next(after).filter(|next| *next <= now)
        };
        let mut last = self.next(since).filter(|next| *next <= now)?;
        // The next time after `low` has passed, and that after `high` has not.
        let (mut low, mut high) = (last.as_second(), now.as_second());
        while low < high {
            let middle = low + (high - low) / 2;
            match has_passed(middle) {
                Some(later) => {
                    last = last.max(later);
                    low = later.as_second().max(middle + 1);
                }
                None => high = middle,
            }
        }
        Some(last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[rstest]
    #[case::each_night("0 3 * * *", None, "2026-05-01T12:00:00Z", "2026-05-02T03:00:00Z")]
    #[case::exactly_then_is_not_after("0 3 * * *", None, "2026-05-01T03:00:00Z", "2026-05-02T03:00:00Z")]
    #[case::in_a_zone(
        "0 3 * * *",
        Some("Europe/Berlin"),
        "2026-05-01T12:00:00Z",
        "2026-05-02T01:00:00Z"
    )]
    #[case::the_clock_leaves_it_out(
        "30 2 * * *",
        Some("Europe/Berlin"),
        "2026-03-28T12:00:00Z",
        "2026-03-30T00:30:00Z"
    )]
    #[case::the_clock_has_it_twice(
        "30 2 * * *",
        Some("Europe/Berlin"),
        "2026-10-25T00:00:00Z",
        "2026-10-25T00:30:00Z"
    )]
    #[case::and_only_the_first_time_counts(
        "30 2 * * *",
        Some("Europe/Berlin"),
        "2026-10-25T00:30:00Z",
        "2026-10-26T01:30:00Z"
    )]
    #[case::nor_does_any_minute_of_that_hour(
        "*/10 2,3 * * *",
        Some("Europe/Berlin"),
        "2026-10-25T00:50:00Z",
        "2026-10-25T02:00:00Z"
    )]
    #[case::but_each_hour_means_both(
        "30 * * * *",
        Some("Europe/Berlin"),
        "2026-10-25T00:30:00Z",
        "2026-10-25T01:30:00Z"
    )]
    #[case::where_the_clock_goes_back_at_midnight(
        "30 23 * * *",
        Some("America/Sao_Paulo"),
        "2018-02-17T12:00:00Z",
        "2018-02-18T01:30:00Z"
    )]
    #[case::and_the_second_half_past_eleven_is_left_out(
        "30 23 * * *",
        Some("America/Sao_Paulo"),
        "2018-02-18T01:30:00Z",
        "2018-02-19T02:30:00Z"
    )]
    #[case::on_weekdays("15 8 * * MON-FRI", None, "2026-05-01T09:00:00Z", "2026-05-04T08:15:00Z")]
    #[case::every_hour("@hourly", None, "2026-05-01T09:00:00Z", "2026-05-01T10:00:00Z")]
    #[case::in_leap_years("0 0 29 2 *", None, "2026-05-01T09:00:00Z", "2028-02-29T00:00:00Z")]
    fn the_next_time_is_that_of_the_calendar(
        #[case] schedule: &str,
        #[case] zone: Option<&str>,
        #[case] after: &str,
        #[case] next: &str,
    ) {
        let schedule = Schedule::parse(schedule, zone).unwrap();
        assert_eq!(schedule.next(at(after)), Some(at(next)));
    }

    #[test]
    fn sunday_is_0_and_7_and_a_day_of_either_kind_is_one_as_in_a_cron_job() {
        for schedule in ["0 0 * * 0", "0 0 * * 7", "0 0 * * SUN", "@weekly"] {
            let schedule = Schedule::parse(schedule, None).unwrap();
            assert_eq!(
                schedule.next(at("2026-05-01T12:00:00Z")),
                Some(at("2026-05-03T00:00:00Z"))
            );
        }
        // The 2nd is a Saturday.
        let either = Schedule::parse("0 0 2 * SUN", None).unwrap();
        let days = [
            "2026-05-02T00:00:00Z",
            "2026-05-03T00:00:00Z",
            "2026-05-10T00:00:00Z",
        ]
        .map(at);
        let found = std::iter::successors(either.next(at("2026-05-01T12:00:00Z")), |at| either.next(*at));
        assert_eq!(found.take(3).collect::<Vec<_>>(), days);
    }

    #[test]
    fn what_cannot_be_read_is_said_in_a_line() {
        for (schedule, zone, word) in [
            ("61 * * * *", None, "61"),
            ("* * * *", None, ""),
            ("* * * * *", Some("Europe/Atlantis"), "Europe/Atlantis"),
            ("@reboot", None, ""),
        ] {
            let error = Schedule::parse(schedule, zone).unwrap_err();
            assert!(
                error.contains(word) && !error.contains('\n'),
                "{schedule}: {error}"
            );
        }
    }

    #[test]
    fn a_clock_that_is_set_back_by_half_an_hour_is_refused_and_no_other_one_is() {
        for zone in ["Australia/Lord_Howe", "australia/lhi"] {
            let why = Schedule::parse("0 12 4 4 *", Some(zone)).unwrap_err();
            assert!(why.contains("UTC") && why.contains(zone), "{why}");
        }
        for zone in [
            "Australia/Sydney",
            "Pacific/Chatham",
            "America/St_Johns",
            "Antarctica/Troll",
            "Asia/Pyongyang",
            "Asia/Kathmandu",
        ] {
            let schedule = Schedule::parse("0 12 * * *", Some(zone)).unwrap();
            let noons = std::iter::successors(Some(at("2026-01-01T00:00:00Z")), |at| schedule.next(*at));
            assert_eq!(noons.take(732).count(), 732, "{zone}");
        }
    }

    #[test]
    fn a_day_that_no_calendar_has_is_never_and_so_is_the_end_of_all_time() {
        let never = Schedule::parse("0 0 31 2 *", None).unwrap();
        assert_eq!(never.next(at("2026-05-01T00:00:00Z")), None);
        let daily = Schedule::parse("@daily", None).unwrap();
        for late in [at("9999-12-30T22:00:00Z"), Timestamp::MAX] {
            assert_eq!(daily.next(late), None);
            assert_eq!(
                daily
                    .last(at("2026-05-01T00:00:00Z"), late)
                    .map(|last| last < late),
                Some(true)
            );
        }
        assert!(daily.next(Timestamp::MIN).is_some());
    }

    #[test]
    fn the_last_time_that_passed_is_found_although_millions_did() {
        let minutes = Schedule::parse("* * * 1-6 *", None).unwrap();
        let last = minutes.last(at("2020-01-01T00:00:00Z"), at("2026-12-31T23:59:59Z"));
        assert_eq!(last, Some(at("2026-06-30T23:59:00Z")));
        let none = minutes.last(at("2026-07-01T00:00:00Z"), at("2026-12-31T00:00:00Z"));
        assert_eq!(none, None);
    }

    proptest! {
        #[test]
        fn the_last_time_is_the_one_that_walking_finds(
            schedule in prop_oneof![
                Just("*/7 * * * *"), Just("0 */5 * * *"), Just("30 2 * * *"), Just("59 23 28-31 * *"), Just("5 4 * * SUN")
            ],
            from in 1_700_000_000_i64..1_900_000_000,
            seconds in 0_i64..300_000,
        ) {
            let schedule = Schedule::parse(schedule, Some("America/New_York")).unwrap();
            let second = |second| Timestamp::from_second(second).unwrap();
            let (since, now) = (second(from), second(from + seconds));
            let walked = std::iter::successors(schedule.next(since), |at| schedule.next(*at))
                .take_while(|at| *at <= now)
                .last();
            prop_assert_eq!(schedule.last(since, now), walked);
        }

        #[test]
        fn whatever_a_user_writes_is_read_or_refused_and_followed(
            text in "[0-9A-Za-z*/,#@ -]{0,40}",
            fields in proptest::collection::vec("[0-9*/,#LWSMON-]{1,6}", 5),
            zone in prop_oneof![Just("UTC".to_owned()), Just("Asia/Kolkata".to_owned()), "[A-Za-z0-9_+/-]{0,20}"],
        ) {
            let (since, now) = (at("2026-05-01T00:00:00Z"), at("2026-06-01T00:00:00Z"));
            for schedule in [text, fields.join(" ")] {
                match Schedule::parse(&schedule, Some(&zone)) {
                    Ok(schedule) => prop_assert!(schedule.last(since, now).is_none_or(|last| last > since && last <= now)),
                    Err(why) => prop_assert!(!why.contains('\n'), "{}", why),
                }
            }
        }
    }
}
