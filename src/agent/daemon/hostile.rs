//! The ways in for tests that make up requests, and what lies in the agent's folder. Nothing else uses
//! them.

use std::time::Duration;

use prost::Message as _;

use super::{
    frame, git,
    journal::{self, Entry},
    lease::{Lease, Limits},
    ledger::{Counts, State},
    reclaim, service, users,
};
use crate::protocol::{FetchGitRequest, Finished, LeaseRequest};

/// The journal with these entries, read after a restart and written anew: how many runs are known, before
/// and after.
pub fn journal(entries: &[&[u8]], torn: &[u8]) -> (u32, u32) {
    let mut bytes = Vec::new();
    for entry in entries {
        frame::write(entry, &mut bytes);
    }
    bytes.extend_from_slice(torn);
    let (state, known) = State::of(journal::replay(&bytes).0);
    let snapshot: Vec<Entry> = state.snapshot();
    let (_, again) = State::of(journal::replay(&journal::encode(&snapshot)).0);
    let sum = |Counts { running, uncollected }: Counts| running + uncollected;
    (sum(known), sum(again))
}

/// What the controller is told of a run whose end these bytes record.
pub fn exit(payload: &[u8]) -> Option<Finished> {
    let mut bytes = Vec::new();
    frame::write(payload, &mut bytes);
    let mut finished = Finished::decode(frame::read(&bytes)?.0).ok()?;
    service::within_limits(&mut finished);
    Some(finished)
}

/// Whether the machine stops itself after so much silence, and when it looks again.
pub fn lease(requests: &[LeaseRequest], counts: (u32, u32), silence: Duration) -> (bool, Duration) {
    let mut lease = Lease::begin(Limits::default(), Duration::ZERO);
    for request in requests {
        let limits = Limits {
            instance_timeout_ms: request.instance_timeout_ms,
            orphan_timeout_ms: request.orphan_timeout_ms,
        };
        lease.renew(limits, Duration::ZERO);
    }
    let (running, uncollected) = counts;
    let expired = lease.expired(Counts { running, uncollected }, silence);
    (expired.is_some(), lease.pause())
}

/// The groups of a user in these files, and when the cloud takes the machine back by that answer.
pub fn files(name: &str, passwd: &str, group: &str, answer: &str) -> (Option<usize>, Option<u64>) {
    let user = users::parse(name, passwd, group);
    (user.map(|user| user.groups.len()), reclaim::time(answer))
}

/// How many files a bundle gets of a repository with this list, if every link leads to that target; the error is
/// for the user.
pub fn repository(list: &[u8], folder: &str, target: &str) -> Result<usize, String> {
    git::chosen(list, folder, target)
}

/// Whether a fetch of these words begins; the error is for the user.
pub fn fetch(request: FetchGitRequest) -> Result<(), String> {
    git::Order::of(request).map(drop)
}
