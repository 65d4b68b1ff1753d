//! What a machine costs, as far as its provider says it: the price of an hour, and which
//! time is billed. Each comes on record when it is first known and stays: a price is frozen
//! at launch, and a bill that began does not begin later.
//!
//! Where only the time is billed in which a machine runs, nobody tells when that was: it
//! begins at the last look that found it starting, and ends at the first that finds it
//! ending. So the ledger claims a look too much rather than too little.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::MachineStatus;
use skyward_core::{ProviderPhase, provider::BilledTime};

use crate::machine::observe::{Answer, Observed};

pub(super) fn record(seen: &Observed, now: Timestamp, new: &mut MachineStatus) {
    let Answer::There(there) = &seen.provider else {
        return;
    };
    let rental = &there.rental;
    // 0 is what clouds say of a machine that costs nothing at this moment.
    if let Some(price) = rental.hourly_price.filter(|price| !price.is_zero()) {
        new.hourly_price
            .get_or_insert_with(|| price.normalize().to_string());
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
