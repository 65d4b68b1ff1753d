//! Bugs on purpose, each of which the campaign must find: those of `tests/simulation/planted.rs` that this
//! simulation can express.

use super::campaign::with_fault;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    TokenIgnored,
    NotLookedFor,
    OrderedAgainAtOnce,
    UnknownIsEmpty,
    NothingReturned,
    NothingEnded,
    GoneTooSoon,
    StaleListBelieved,
    AccountsConfused,
    AttemptsForgotten,
    RecordsUnguarded,
    PoolGoesFirst,
}

const ALL: [Fault; 12] = [
    Fault::TokenIgnored,
    Fault::NotLookedFor,
    Fault::OrderedAgainAtOnce,
    Fault::UnknownIsEmpty,
    Fault::NothingReturned,
    Fault::NothingEnded,
    Fault::GoneTooSoon,
    Fault::StaleListBelieved,
    Fault::AccountsConfused,
    Fault::AttemptsForgotten,
    Fault::RecordsUnguarded,
    Fault::PoolGoesFirst,
];

#[test]
fn each_planted_fault_is_found() {
    let mut missed = Vec::new();
    for fault in ALL {
        let found = (0..2_000).find_map(|seed| {
            let told = with_fault(seed, Some(fault));
            Some((seed, told.first()?.clone()))
        });
        match found {
            Some((seed, what)) => println!("{fault:?}: seed {seed}: {what}"),
            None => missed.push(fault),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
