//! Which third of a campaign this run tells (docs/decisions/0033-campaigns-by-thirds.md). A campaign repeats one test for each
//! call, cloud or seed; its cases have numbers, and hack/test.sh names a third of them by `SKYWARD_THIRD`.

#![expect(clippy::panic, reason = "a setting of tests that is wrong ends them")]

/// The third of this run: 0, 1 or 2; `None` where a run tells all.
///
/// # Panics
///
/// If `SKYWARD_THIRD` is anything else: a run that told nothing would pass.
pub fn third() -> Option<u64> {
    std::env::var_os("SKYWARD_THIRD").map(|value| parse(&value.to_string_lossy()))
}

/// Whether this run tells the case of a campaign that has this number.
///
/// # Panics
///
/// As [`third`].
pub fn is_told(case: u64) -> bool {
    third().is_none_or(|third| belongs(case, third))
}

fn belongs(case: u64, third: u64) -> bool {
    case % 3 == third
}

fn parse(value: &str) -> u64 {
    match value {
        "0" => 0,
        "1" => 1,
        "2" => 2,
        other => {
            panic!("SKYWARD_THIRD is '{other}'; it can be 0, 1 or 2, and is not set where a run tells all")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_case_is_told_in_one_third() {
        for case in 0..10 {
            let thirds = (0..3).filter(|third| belongs(case, *third));
            assert_eq!(thirds.count(), 1, "{case}");
        }
    }

    #[test]
    fn a_value_that_is_no_third_is_refused() {
        assert_eq!(["0", "1", "2"].map(parse), [0, 1, 2]);
        for value in ["", "3", "all", "-1", " 1"] {
            assert!(std::panic::catch_unwind(|| parse(value)).is_err(), "'{value}'");
        }
    }
}
