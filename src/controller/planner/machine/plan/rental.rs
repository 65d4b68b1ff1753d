//! What a machine costs, as far as its provider says it: the price of an hour, and which
//! time is billed. Each comes on record when it is first known and stays: a price is frozen
//! at launch, and a bill that began does not begin later.
//!
//! Where only running time is billed, no cloud tells when it was: it begins at the last look that
//! found the machine starting, and ends at the first that finds it ending. So the ledger claims a
//! look too much rather than too little.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::MachineStatus;
use skyward_core::{ProviderPhase, provider::BilledTime};

use crate::machine::facts::{LookupOutcome, Observed};

pub(super) fn record(seen: &Observed, now: Timestamp, new: &mut MachineStatus) {
    let LookupOutcome::There(there) = &seen.provider else {
        return;
    };
    let rental = &there.rental;
    // Clouds say 0 of a machine that costs nothing at this moment.
    if let Some(price) = rental.hourly_price.filter(|price| !price.is_zero()) {
        new.hourly_price.get_or_insert_with(|| price.exact());
    }
    let only_running = seen.billed_time == BilledTime::Running;
    let starting = matches!(there.phase, ProviderPhase::Starting(_));
    if let Some(since) = rental.billed_since.filter(|_| !(only_running && starting)) {
        let since = match seen.starting_at.filter(|_| only_running) {
            Some(starting) => since.max(starting),
            None => since,
        };
        new.billed_since.get_or_insert(Time(since));
    }
    if only_running && there.phase == ProviderPhase::Stopping {
        new.billed_until.get_or_insert(Time(now));
    }
}

#[cfg(test)]
mod tests {
    use skyward_api::MachineStatus;
    use skyward_core::{ProviderMachine, Usd, machine::Rental};

    use super::*;
    use crate::machine::{plan::plan, tests::world};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn rental(price: &str, since: i64) -> Rental {
        Rental {
            hourly_price: price.parse().ok(),
            billed_since: Some(at(since)),
            ..Rental::default()
        }
    }

    /// A world in which the provider shows the machine like this.
    fn shown(phase: ProviderPhase, rental: Rental) -> Observed {
        let mut seen = world();
        seen.provider = LookupOutcome::There(Box::new(ProviderMachine {
            id: "i-1".into(),
            mark: seen.machine.mark("cluster"),
            phase,
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental,
        }));
        seen
    }

    fn recorded(seen: &Observed, old: &MachineStatus, now: i64) -> MachineStatus {
        let mut new = old.clone();
        record(seen, at(now), &mut new);
        new
    }

    #[test]
    fn the_price_at_launch_is_recorded_once_and_stays() {
        let status = MachineStatus::default();
        let booting = shown(ProviderPhase::Starting(None), rental("0", 100));
        let status = recorded(&booting, &status, 110);
        assert_eq!(status.hourly_price, None, "0 is no price of a machine");
        let running = shown(ProviderPhase::Running, rental("0.420", 100));
        let status = recorded(&running, &status, 120);
        assert_eq!(status.hourly_price.as_deref(), Some("0.42"));
        let dearer = shown(ProviderPhase::Running, rental("0.9", 115));
        let later = recorded(&dearer, &status, 130);
        assert_eq!(later, status, "a bill that began does not begin later");
        assert_eq!(later.billed_since, Some(Time(at(100))));
    }

    #[test]
    fn where_only_running_is_billed_the_bill_begins_and_ends_at_the_looks_around_it() {
        let only_running = |phase, starting_at: Option<i64>| Observed {
            billed_time: BilledTime::Running,
            starting_at: starting_at.map(at),
            ..shown(phase, rental("2", 100))
        };
        let status = recorded(
            &only_running(ProviderPhase::Starting(None), Some(115)),
            &MachineStatus::default(),
            115,
        );
        assert_eq!(status.billed_since, None);
        let running = only_running(ProviderPhase::Running, Some(115));
        let status = recorded(&running, &status, 120);
        assert_eq!(status.billed_since, Some(Time(at(115))));
        // A process that did not see the machine boot claims the boot time rather than too little.
        let unseen = only_running(ProviderPhase::Running, None);
        assert_eq!(
            recorded(&unseen, &MachineStatus::default(), 120).billed_since,
            Some(Time(at(100)))
        );
        let ending = recorded(&only_running(ProviderPhase::Stopping, None), &status, 500);
        assert_eq!(ending.billed_until, Some(Time(at(500))));
        let ending = recorded(&only_running(ProviderPhase::Stopping, None), &ending, 510);
        assert_eq!(ending.billed_until, Some(Time(at(500))));
        let elsewhere = shown(ProviderPhase::Stopping, rental("2", 100));
        assert_eq!(recorded(&elsewhere, &status, 500).billed_until, None);
    }

    /// The answer to the order was lost, and the machine is given up before a look: only the look
    /// before its deletion ever shows it.
    #[test]
    fn a_machine_that_is_deleted_before_it_was_ever_seen_is_billed_all_the_same() {
        let mut seen = shown(ProviderPhase::Running, rental("3.6", 100));
        seen.machine.deleting_since = Some(at(200));
        let before = plan(&seen, at(200));
        let status = *before.status.expect("what it costs is recorded before its end");
        assert_eq!(
            (status.id.as_str(), status.billed_since.clone()),
            ("i-1", Some(Time(at(100))))
        );
        let mut machine = skyward_api::Machine::new("m", seen.machine.spec.clone());
        machine.status = Some(status.clone());
        let cost = crate::money::so_far(&machine, at(1_100));
        assert_eq!(cost.total(), Usd::from(1));
        // The second plan has nothing more to write.
        seen.machine.status = status;
        assert!(plan(&seen, at(201)).status.is_none());
    }
}
