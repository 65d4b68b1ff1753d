//! Too many or too few machines.
//!
//! A slot has at most one live machine. A machine that drains keeps its slot until it is
//! gone, so there are never more machines than wanted; a failed or lost one gives it up
//! at once. Too many: those that never took runs go first, then idle ones, then busy
//! ones, which finish their runs; among equals the highest slot first and the head last.
//! A machine whose load is not known is not touched.

use std::collections::{BTreeMap, BTreeSet};

use skyward_api::condition::reason;

use super::{Action, Block, Draft, Why};
use crate::{
    events::{self, EventSpec},
    pool::{
        observe::MachineFacts,
        template::{machine_name, machine_spec},
    },
};

/// Of two live machines in one slot (an old leader's last order arrived late) one goes.
pub(crate) fn plan_duplicates(draft: &mut Draft<'_>) {
    let mut slots: BTreeMap<u32, Vec<&MachineFacts>> = BTreeMap::new();
    for machine in draft.live() {
        slots.entry(machine.slot).or_default().push(machine);
    }
    for (_, mut machines) in slots.into_iter().filter(|(_, machines)| machines.len() > 1) {
        // Best last: the one that took runs, then the older attempt, which is further.
        machines.sort_by_key(|machine| {
            (
                machine.ready,
                machine.ready_at.is_some(),
                std::cmp::Reverse(machine.attempt),
            )
        });
        machines.pop();
        for machine in machines {
            if machine.is_idle() {
                draft.give_up(machine, Why::Duplicate, true);
            }
        }
    }
}

pub(crate) fn plan(draft: &mut Draft<'_>) {
    if draft.is_suspended() {
        let live: Vec<_> = draft.live().collect();
        for machine in live {
            draft.give_up(machine, Why::Suspended, false);
        }
        draft.because("suspended: every machine is returned");
        return;
    }
    let wanted = draft.wanted();
    let live = count(draft.live());
    if live > wanted {
        shrink(draft, live - wanted);
        return;
    }
    // Those given up by this plan still hold their slots unless they failed.
    let holding = draft.seen.machines.iter().filter(|machine| machine.occupies());
    let occupied: BTreeSet<u32> = holding.clone().map(|machine| machine.slot).collect();
    let missing = wanted.saturating_sub(count(holding));
    if missing == 0 {
        draft.because(format!("{live} of {wanted} machines exist or are on their way"));
        return;
    }
    grow(draft, missing, &occupied);
}

fn count<'a>(machines: impl Iterator<Item = &'a MachineFacts>) -> u32 {
    u32::try_from(machines.count()).unwrap_or(u32::MAX)
}

fn shrink(draft: &mut Draft<'_>, mut surplus: u32) {
    let head = draft.live().map(|machine| machine.slot).min();
    let mut candidates: Vec<_> = draft.live().collect();
    candidates.sort_by_key(|machine| {
        let rank = match (machine.ready_at, machine.runs) {
            (None, _) => 0,
            (Some(_), Some(0)) => 1,
            (Some(_), Some(_)) => 2,
            (Some(_), None) => 3,
        };
        (rank, Some(machine.slot) == head, std::cmp::Reverse(machine.slot))
    });
    let mut unknown = 0;
    for machine in candidates {
        if surplus == 0 {
            break;
        }
        if machine.ready_at.is_some() && machine.runs.is_none() {
            unknown += 1;
        } else if draft.give_up(machine, Why::NotWanted, true) {
            surplus -= 1;
        }
    }
    draft.because(format!(
        "{surplus} machines too many stay for now; of {unknown} it is not known whether they are idle"
    ));
}

fn grow(draft: &mut Draft<'_>, missing: u32, occupied: &BTreeSet<u32>) {
    if draft.block.is_some() {
        draft.because(format!("{missing} machines are missing and cannot be ordered"));
        return;
    }
    let (offer_name, offer) = match &draft.choice {
        Ok(choice) => (choice.name, choice.offer),
        Err(message) => {
            let message = message.clone();
            draft.block(Block {
                reason: reason::NO_OFFER_FITS,
                message,
                stalled: true,
            });
            return;
        }
    };
    let room = room(draft);
    let orders = missing.min(room.unwrap_or(u32::MAX));
    if orders < missing {
        draft.block(limit_reached(draft, missing - orders));
        // Another Pool may return machines, which no event of ours tells this one.
        draft.look_again(std::time::Duration::from_secs(10));
    }
    if orders == 0 {
        return;
    }
    let pool = &draft.seen.pool;
    draft.actions.push(Action::EnsureKey);
    // Whatever somebody wrote into the status: no attempt of a machine that is known is
    // used again.
    let known = draft.seen.machines.iter().map(|machine| machine.attempt).max();
    draft.status.last_attempt = draft.status.last_attempt.max(known.unwrap_or(0));
    let free = (0_u32..)
        .filter(|slot| !occupied.contains(slot))
        .take(orders as usize);
    for slot in free {
        draft.status.last_attempt = draft.status.last_attempt.saturating_add(1);
        let attempt = draft.status.last_attempt;
        let name = machine_name(&pool.name, &pool.uid, slot, attempt);
        let before = draft
            .seen
            .machines
            .iter()
            .filter(|machine| machine.slot == slot)
            .max_by_key(|m| m.attempt);
        draft.events.push(match before {
            Some(old) => EventSpec::normal(
                events::reason::MACHINE_REPLACED,
                "Replace",
                format!("Machine \"{name}\" replaces \"{}\"", old.name),
            ),
            None => EventSpec::normal(
                events::reason::MACHINE_ORDERED,
                "Create",
                format!(
                    "Machine \"{name}\" is ordered from Provider \"{}\", Offer \"{offer_name}\"",
                    pool.spec.provider
                ),
            ),
        });
        let spec = Box::new(machine_spec(pool, slot, attempt, offer_name, offer));
        draft.actions.push(Action::CreateMachine { name, spec });
        draft.ordered.push(slot);
    }
    draft.because(format!("{orders} machines are ordered of Offer \"{offer_name}\""));
}

/// How many machines the Provider's limits leave room for; `None` = no limit.
fn room(draft: &Draft<'_>) -> Option<u32> {
    let (limits, used) = (draft.seen.limits, draft.seen.used);
    let total = limits.total.map(|limit| limit.saturating_sub(used.total));
    let here = limits
        .in_namespace
        .map(|limit| limit.saturating_sub(used.in_namespace));
    match (total, here) {
        (Some(total), Some(here)) => Some(total.min(here)),
        (one, other) => one.or(other),
    }
}

fn limit_reached(draft: &Draft<'_>, short: u32) -> Block {
    let (limits, used, pool) = (draft.seen.limits, draft.seen.used, &draft.seen.pool);
    let mut which = Vec::new();
    if let Some(limit) = limits.total {
        which.push(format!("limits.machines is {limit}, in use are {}", used.total));
    }
    if let Some(limit) = limits.in_namespace {
        let here = used.in_namespace;
        which.push(format!(
            "limits.machinesPerNamespace is {limit}, in use in \"{}\" are {here}",
            pool.namespace
        ));
    }
    // Failed machines count until they are gone, which frees their place by itself.
    let going = count(
        draft
            .seen
            .machines
            .iter()
            .filter(|machine| machine.deleting || machine.failure.is_some()),
    );
    Block {
        reason: reason::LIMIT_REACHED,
        message: format!(
            "{short} machine(s) cannot be ordered from Provider \"{}\": {}. Lower nodes.desired, free machines of other Pools, or ask a platform engineer to raise the limit.",
            pool.spec.provider,
            which.join("; ")
        ),
        stalled: short > going,
    }
}
