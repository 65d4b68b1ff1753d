//! What a list of machines says about this cluster's memory. Pure.
//!
//! A machine without a record (an orphan) is one of three kinds:
//!
//! - An **ordinary** orphan was recorded since this process began to lead, or is of a Pool that
//!   exists and had counted its attempt by then: its record is gone, and it is ended.
//! - A **forgotten** orphan is of a Pool that is gone and that this cluster had, for the Pool's key
//!   still exists: a person removed a finalizer or a whole namespace.
//! - A **strange** orphan cannot have been ordered by this cluster: its attempt was never counted,
//!   or there is no trace of its Pool. A cluster with another memory ordered it.

use std::collections::{BTreeMap, BTreeSet};

use skyward_core::{ProviderMachine, ProviderPhase, Usd, provider::MarkWriters};

/// Records, by their UIDs: the provider's id of each, `""` while it has none.
pub type Records = BTreeMap<String, String>;

/// What this cluster remembers.
#[derive(Clone, Debug, Default)]
pub struct Remembered {
    /// Machines on record.
    pub records: Records,
    /// Attempts of the Machines on record: UIDs of the Pool and of the Machine.
    pub attempts: BTreeMap<(String, u32), String>,
    /// UIDs of Machines that were on record at any time since this process began to lead.
    pub recorded: BTreeSet<String>,
    /// The last attempt that each Pool had counted when this process began to lead, by its UID.
    /// Attempts that it counted since then prove nothing about machines that were not recorded
    /// since: a restored Pool counts up to the attempts that it has forgotten.
    pub pools: BTreeMap<String, u32>,
    /// UIDs of Pools that this cluster had: their keys are there, or were a moment ago.
    pub had: BTreeSet<String>,
}

/// Which kind of orphan a machine without a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its Pool exists and has counted its attempt.
    Ordinary,
    /// Its Pool is gone, and this cluster had it.
    Forgotten,
    /// This cluster cannot have ordered it.
    Strange,
}

/// A machine without a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// The provider's id.
    pub id: String,
    /// Its mark's machine, as `namespace/name`.
    pub machine: String,
    /// Its mark's Pool.
    pub pool_uid: String,
    /// Its mark's attempt.
    pub attempt: u32,
    /// USD per hour, where the provider says it.
    pub hourly: Option<Usd>,
    /// Its kind.
    pub standing: Standing,
    /// Whether it exists. An outdated list may show the last machine of a Pool that is gone, key and all:
    /// a machine without a trace of its Pool counts once two lists, a settle time apart, have shown it.
    pub confirmed: bool,
}

/// What a complete list says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Machines of ours that were listed.
    pub listed: usize,
    /// Machines without a record about which nothing was decided.
    pub orphans: Vec<Orphan>,
    /// Whether a strange orphan proves that this cluster's memory is old.
    pub marks_prove: bool,
    /// Whether there are too many forgotten orphans to end them.
    pub too_many: bool,
}

impl Evidence {
    /// Whether this list proves that the cluster's memory is old, or the next list may.
    pub fn may_prove(&self) -> bool {
        self.marks_prove
            && self
                .orphans
                .iter()
                .any(|orphan| orphan.standing == Standing::Strange)
    }

    /// Orphans that are not ended, and wait for a decision.
    pub fn waiting(&self) -> impl Iterator<Item = &Orphan> {
        let confirmed = self.orphans.iter().filter(|orphan| orphan.confirmed);
        confirmed.filter(|orphan| match orphan.standing {
            Standing::Ordinary => false,
            Standing::Forgotten => self.too_many,
            Standing::Strange => true,
        })
    }
}

/// Machines of ours without a record, in the order of the list.
pub fn orphans<'a>(
    cluster: &'a str,
    listed: &'a [ProviderMachine],
    remembered: &'a Remembered,
) -> impl Iterator<Item = (&'a ProviderMachine, Standing)> {
    listed
        .iter()
        .filter(move |machine| {
            let ours = machine.mark.cluster == cluster;
            let on_its_way_out = machine.phase == ProviderPhase::Stopping;
            // A record without id may be of any machine that carries its mark.
            let has_record = remembered
                .records
                .get(&machine.mark.machine_uid)
                .is_some_and(|id| id.is_empty() || *id == machine.id);
            ours && !on_its_way_out && !has_record
        })
        .map(|machine| (machine, standing(machine, remembered)))
}

/// Whether nothing that this cluster remembers says anything of a machine or of its Pool.
pub(crate) fn is_traceless(machine: &ProviderMachine, remembered: &Remembered) -> bool {
    let mark = &machine.mark;
    let attempt = (mark.pool_uid.clone(), mark.attempt);
    !remembered.pools.contains_key(&mark.pool_uid) && !remembered.attempts.contains_key(&attempt)
}

fn standing(machine: &ProviderMachine, remembered: &Remembered) -> Standing {
    let mark = &machine.mark;
    // Its record is or was in this memory: it is a second machine of the same record.
    let uid = &mark.machine_uid;
    if remembered.records.contains_key(uid) || remembered.recorded.contains(uid) {
        return Standing::Ordinary;
    }
    // Another record has its attempt: the attempt was counted twice, so once by another memory.
    if remembered
        .attempts
        .contains_key(&(mark.pool_uid.clone(), mark.attempt))
    {
        return Standing::Strange;
    }
    match remembered.pools.get(&mark.pool_uid) {
        Some(last) if mark.attempt <= *last => Standing::Ordinary,
        None if remembered.had.contains(&mark.pool_uid) => Standing::Forgotten,
        Some(_) | None => Standing::Strange,
    }
}

/// Most forgotten orphans that are ended within an hour: a mistake ends no more than that.
pub fn brake(listed: usize) -> usize {
    (listed / 5).max(3)
}

/// Whether a mark is proof if these parties can write it.
pub const fn is_proof(writers: MarkWriters) -> bool {
    match writers {
        MarkWriters::Account => true,
        MarkWriters::Machines | MarkWriters::Namespaces => false,
    }
}
