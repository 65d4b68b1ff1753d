//! Facts in the record of a Machine: its installation, its name, whether its order was refused.

use skyward_api::{
    condition::{self, find, reason},
    machine::{MachineSpec, MachineStatus},
};
pub use skyward_core::order::machine_name;

/// Whether a record is of the installation `cluster`; `unnamed`: the installation of records that
/// name none.
pub fn is_of(spec: &MachineSpec, cluster: &str, unnamed: &str) -> bool {
    spec.installation.as_deref().unwrap_or(unnamed) == cluster
}

/// Whether the order of a machine was refused as it is, or by a cloud that takes none now: it is tried again, and the Pool
/// gives it up where another Offer fits. Deletion leaves that condition.
pub fn is_refused(status: &MachineStatus) -> bool {
    let reasons = [reason::ORDER_REFUSED, reason::PROVIDER_UNAVAILABLE];
    find(&status.conditions, condition::ACCEPTED)
        .is_some_and(|c| c.status == "False" && reasons.contains(&c.reason.as_str()))
}

/// Precedes the end of an output in messages of conditions.
pub const OUTPUT: &str = " Its last output:\n";

/// A message of a condition without the end of the output that it may have.
pub fn without_output(message: &str) -> &str {
    message.split_once(OUTPUT).map_or(message, |(before, _)| before)
}
