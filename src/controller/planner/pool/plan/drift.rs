//! Machines of an older spec are replaced: machines that never took runs at once, others
//! when they are idle, one at a time beyond `nodes.min`. No machine is given up while a new one
//! could not be ordered.

use super::{
    draft::{Draft, Why},
    scale,
};

pub(crate) fn plan(draft: &mut Draft<'_>) {
    let outdated: Vec<_> = draft.live().filter(|machine| !machine.current).collect();
    if outdated.is_empty() {
        draft.because("every machine is what the spec asks for");
        return;
    }
    if draft.wanted() == 0 {
        return;
    }
    if draft.block.is_some() || scale::could_order(draft).is_none() {
        draft.because(format!(
            "{} outdated machines stay: no new ones can be ordered",
            outdated.len()
        ));
        return;
    }
    let fresh: Vec<_> = outdated
        .iter()
        .filter(|machine| machine.ready_at.is_none())
        .copied()
        .collect();
    for machine in &fresh {
        draft.give_up(machine, Why::Outdated, false);
    }
    let ready = u32::try_from(draft.live().filter(|machine| machine.ready).count()).unwrap_or(u32::MAX);
    let wanted = draft.wanted();
    let least = draft.least();
    let all_there = ready >= wanted && fresh.is_empty();
    let mut may = ready.saturating_sub(least).max(u32::from(all_there));
    let mut waiting = 0;
    // The head goes last: others of the Pool may depend on it.
    for machine in outdated.iter().rev().filter(|machine| machine.ready_at.is_some()) {
        if may > 0 && machine.is_idle() && draft.give_up(machine, Why::Outdated, true) {
            may -= 1;
        } else {
            waiting += 1;
        }
    }
    draft.because(format!(
        "{} outdated machines, {waiting} of them wait until they are idle",
        outdated.len()
    ));
}
