//! Failed machines: given up, counted, and waited for. The only place that decides to
//! stop trying; what fails beyond `nodes.desired` stops growth alone ([`growth`]).
//!
//! A refusal is no failed try while another Offer fits: that one is ordered at once. A machine
//! without capacity has failed; a machine whose order is refused as it is waits for somebody to
//! mend the cause, until another Offer fits.
//!
//! A failure counts when the machine never took a run, was dearer than recorded, or broke a limit
//! of the protocol; a machine that vanishes later is replaced at once. A machine that was never
//! ordered, because its terms ceased to hold, is no failed try. A failure is counted once, whatever
//! crashes: failures not younger than the last counted one are ignored. Bootstraps that fail in the
//! same way twice stop the Pool before that ([`bootstraps`]).

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use skyward_api::{
    condition::{self, cut, reason},
    machine::Market,
};

use super::{
    bootstraps,
    draft::{Block, Draft, Why},
    growth, scale,
};
use crate::{
    base::time::{after, elapsed},
    pool::{
        choice::may_order,
        facts::{Failure, MachineFacts},
    },
};

/// The delay doubles up to this many times its value.
const MAX_FACTOR: u32 = 32;
/// After this long the Pool tries again although nothing changed.
pub(super) const FORGIVEN_AFTER: Duration = Duration::from_hours(1);
/// A machine that stays ready this long ends a row of failed tries. A machine that breaks a limit
/// of the protocol does so sooner, and must not begin the row anew each time.
pub(super) const STEADY: Duration = Duration::from_mins(1);
/// Time between two looks while orders are refused as they are: no event tells the answer to
/// another try, or that a shortage is over.
const REFUSED_LOOK: Duration = Duration::from_secs(5);
/// Stands in front of the last failure in messages of conditions.
pub(super) const MARKER: &str = "Last failure: ";
/// Longest text about failures in a message, in bytes.
const LONGEST: usize = 1400;
/// Least room for what one provider said, in bytes.
const SHORTEST: usize = 60;

pub(crate) fn plan(draft: &mut Draft<'_>) {
    let is_stopped = bootstraps::forget(draft);
    count(draft, is_stopped);
    bootstraps::note(draft);
    growth::judge(draft);
    if draft.block.is_none() {
        move_on(draft);
    }
}

/// Machines whose order was refused as it is, or by a cloud that takes none now, are given up where another Offer fits.
/// Where none does they stay: their orders are tried again, and their conditions say what a person must mend. A cloud that
/// takes no orders may have taken this one all the same: the record of a machine that is given up then stays until every
/// list would show it, and ends it. So for that long there may be one machine too many, which is better than a Pool that
/// waits for a cloud under maintenance.
fn move_on(draft: &mut Draft<'_>) {
    let (seen, now) = (draft.seen, draft.now);
    // This process does not know refusals of an earlier one: the machine's next try tells.
    let is_known = |machine: &MachineFacts| {
        let place = &machine.place;
        let unavailable = &seen.unavailable;
        unavailable
            .refusal(&seen.pool.uid, &place.provider, true, now)
            .is_some()
    };
    let mut refused: Vec<_> = draft.live().filter(|machine| machine.refused).collect();
    if !refused.is_empty() {
        draft.requeue_after(REFUSED_LOOK);
    }
    refused.retain(|machine| !machine.perhaps_ordered && is_known(machine));
    if refused.is_empty() {
        return;
    }
    // Planned as if they were gone, since they would pin the others to their place.
    let others = draft.given_up.len();
    draft
        .given_up
        .extend(refused.iter().map(|machine| machine.name.clone()));
    let elsewhere = scale::moves_on(draft);
    draft.given_up.truncate(others);
    if !elsewhere {
        draft.because("orders are refused, and nothing else fits");
        return;
    }
    for machine in refused {
        draft.give_up(machine, Why::Refused, false);
    }
}

fn count(draft: &mut Draft<'_>, is_stopped: bool) {
    let seen = draft.seen;
    let failed: Vec<_> = seen
        .machines
        .iter()
        .filter_map(|machine| machine.failure.as_ref().map(|failure| (machine, failure)))
        .collect();
    for (machine, failure) in &failed {
        if !machine.deleting {
            let why = match failure.reason.as_str() {
                reason::ORDER_WITHDRAWN => Why::Withdrawn,
                reason::PREEMPTED | reason::MACHINE_LOST => Why::Lost,
                _ => Why::Failed,
            };
            draft.give_up(machine, why, false);
        }
    }
    let failed: Vec<_> = failed
        .into_iter()
        .filter(|(_, failure)| !is_withdrawn(failure))
        .collect();

    let last = draft.status.last_failure_at.as_ref().map(|time| time.0);
    let changed = draft
        .status
        .observed_generation
        .is_some_and(|observed| observed != seen.pool.generation);
    let forgiven = last.is_some_and(|at| elapsed(at, draft.now) >= FORGIVEN_AFTER);
    let ready_at = seen
        .machines
        .iter()
        .filter(|machine| machine.is_live() && machine.ready && machine.ready_at > last)
        .filter_map(|machine| machine.ready_at)
        .min()
        .filter(|_| last.is_some() && draft.status.failed_attempts > 0);
    let succeeded = ready_at.is_some_and(|at| elapsed(at, draft.now) >= STEADY);
    if let Some(at) = ready_at.filter(|_| !succeeded) {
        draft.requeue_after(elapsed(draft.now, after(at, STEADY)));
    }
    // A stopped Pool keeps the message about its cause.
    if draft.status.failed_attempts > 0 && !is_stopped && (changed || forgiven || succeeded) {
        draft.because(format!(
            "{} failed tries forgotten: {}",
            draft.status.failed_attempts,
            if changed {
                "the spec changed"
            } else if forgiven {
                "an hour passed"
            } else {
                "a machine is ready for a minute"
            }
        ));
        draft.status.failed_attempts = 0;
    }

    growth::forget(draft);
    // What was counted once is not counted again, although the Pool has lost a machine of `nodes.desired` since.
    let counted = last.max(growth::last_failure(draft));
    let mut news: Vec<_> = failed
        .iter()
        .filter(|(machine, failure)| {
            counts(machine, failure) && counted.is_none_or(|counted| failure.at > counted)
        })
        .collect();
    if draft.has_floor() && !news.is_empty() {
        growth::count(draft, news.drain(..).map(|(_, failure)| *failure));
    }
    let elsewhere = draft.elsewhere;
    if let Some(newest) = news.iter().map(|(_, failure)| failure.at).max() {
        let tries = news
            .iter()
            .filter(|(_, failure)| !(elsewhere && is_shortage(failure)))
            .count();
        draft.status.failed_attempts = draft
            .status
            .failed_attempts
            .saturating_add(u32::try_from(tries).unwrap_or(u32::MAX));
        draft.status.last_failure_at = Some(Time(newest));
    }
    if draft.status.failed_attempts == 0 {
        draft.because("no failed tries");
        let was_met = failed.iter().any(|(_, failure)| is_shortage(failure))
            || remembered(&draft.status.conditions).is_some();
        let mut said = refused_as_they_are(draft);
        if was_met {
            // Another Offer was ordered, and the user sees what each of the others lacks.
            said = of_each_provider(said, refusals(draft));
        }
        // The refusal stays while the creation is tried again.
        let refusal = draft.seen.refusal.as_ref();
        said.extend(refusal.map(|refusal| cut(&refusal.why, 1000)));
        draft.last_failure = (!said.is_empty()).then(|| together(&said));
        return;
    }

    let last_failed = failed
        .iter()
        .filter(|(machine, failure)| counts(machine, failure))
        .max_by_key(|(_, failure)| failure.at);
    let moves_on = elsewhere && last_failed.is_some_and(|(_, failure)| is_shortage(failure));
    let refused = last_failed
        .is_some_and(|(_, failure)| is_shortage(failure) || failure.reason == reason::ORDER_REFUSED);
    draft.last_failure = last_failed
        .map(|(machine, failure)| cut(&failure.of_machine(&machine.name), 1400))
        .or_else(|| remembered(&draft.status.conditions));
    let what = draft
        .last_failure
        .clone()
        .unwrap_or_else(|| "not known any more".to_owned());

    let each = refusals(draft);
    let all_refused = refused || was_refused(&draft.status.conditions);
    let what = if all_refused && each.len() > 1 {
        let what = together(&each);
        draft.last_failure = Some(what.clone());
        what
    } else {
        what
    };

    let attempts = draft.status.failed_attempts;
    let allowed = seen.pool.resolved.max_provision_attempts;
    let at = draft
        .status
        .last_failure_at
        .as_ref()
        .map_or(draft.now, |time| time.0);
    if attempts >= allowed && ready_at.is_none() {
        draft.requeue_after(elapsed(draft.now, after(at, FORGIVEN_AFTER)));
        draft.block(Block {
            reason: if all_refused {
                reason::ALL_PROVIDERS_FAILED
            } else {
                reason::PROVISIONING_FAILED
            },
            message: format!(
                "{attempts} of at most {allowed} tries in a row failed. Correct the cause and change the Pool, or wait: it is tried again an hour after the last failure. {MARKER}{what}"
            ),
            stalled: true,
        });
        return;
    }
    let again = after(at, delay(draft, attempts));
    if moves_on {
        draft.because("the last offer is not available now; another one is ordered at once");
    } else if draft.now < again {
        draft.requeue_after(elapsed(draft.now, again));
        if draft.block.is_none() {
            let message = format!(
                "{attempts} of at most {allowed} tries in a row failed. Another one is ordered soon. {MARKER}{what}"
            );
            draft.block(Block::waiting(reason::PROVISIONING, message));
        }
    } else {
        draft.because(format!("{attempts} failed tries, the wait is over"));
    }
}

/// How long the Pool waits after so many failed tries, at least one.
pub(super) fn delay(draft: &Draft<'_>, failed: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failed.saturating_sub(1)).min(MAX_FACTOR);
    draft.seen.pool.resolved.provision_retry_delay * factor
}

/// Whether a failure is a failed try to get a machine. A machine that was recorded before its
/// Provider demanded a proof of its host key has no fault of its own.
pub(super) fn counts(machine: &MachineFacts, failure: &Failure) -> bool {
    if failure.reason == reason::HOST_KEY_NOT_VERIFIED && !machine.proves_host_key {
        return false;
    }
    machine.ready_at.is_none()
        || [reason::PRICE_TOO_HIGH, reason::PROTOCOL_VIOLATION].contains(&failure.reason.as_str())
}

/// Whether the account could not get the machine, which another account perhaps can.
pub(super) fn is_shortage(failure: &Failure) -> bool {
    reason::SHORTAGES.contains(&failure.reason.as_str())
}

/// Whether nothing was ordered, because the terms of the machine hold no longer.
fn is_withdrawn(failure: &Failure) -> bool {
    failure.reason == reason::ORDER_WITHDRAWN
}

/// These refusals, and of the further ones those of other providers.
fn of_each_provider(mut said: Vec<String>, more: Vec<String>) -> Vec<String> {
    let provider = |text: &String| text.split("\": ").next().map(str::to_owned);
    let known: BTreeSet<_> = said.iter().map(provider).collect();
    said.extend(more.into_iter().filter(|text| !known.contains(&provider(text))));
    said.sort();
    said
}

/// Texts as one that fits a message: each has an equal share, so that the last of many is told, too.
fn together(said: &[String]) -> String {
    let share = (LONGEST / said.len().max(1)).max(SHORTEST);
    let said: Vec<String> = said.iter().map(|text| cut(text, share - "; ".len())).collect();
    cut(&said.join("; "), LONGEST)
}

/// The last refusal by each provider of what this Pool may order, as far as this process remembers: refusals of other
/// Pools' orders are among them where this one may order the same.
fn refusals(draft: &Draft<'_>) -> Vec<String> {
    let seen = draft.seen;
    let shares = seen.pool.spec.spot_percent.is_some();
    let mut said = Vec::new();
    for (provider, index) in &seen.offers {
        let newest = index
            .entries()
            .iter()
            .flat_map(|entry| draft.candidates.iter().map(move |candidate| (entry, candidate)))
            .flat_map(|(entry, candidate)| {
                [Market::OnDemand, Market::Spot].map(|market| (entry, candidate, market))
            })
            .filter(|&(entry, candidate, market)| {
                may_order(&seen.architectures, shares, candidate, (entry, market))
            })
            .filter_map(|(entry, candidate, market)| {
                let sought = entry.sought(&seen.pool.uid, &candidate.template, market);
                seen.unavailable.of(&sought, draft.now)
            })
            .max_by_key(|shortage| shortage.until);
        if let Some(shortage) = newest {
            said.push(format!("Provider \"{provider}\": {}", cut(&shortage.why, 300)));
        }
    }
    said
}

/// The last refusal by each provider of this Pool's orders as they are.
pub(crate) fn refused_as_they_are(draft: &Draft<'_>) -> Vec<String> {
    let seen = draft.seen;
    let said = |provider: &String| {
        let is_met = |machine: &MachineFacts| machine.refused && machine.place.provider == *provider;
        let met = seen.machines.iter().any(is_met);
        let refusal = seen
            .unavailable
            .refusal(&seen.pool.uid, provider, met, draft.now)?;
        Some(format!("Provider \"{provider}\": {}", cut(&refusal.why, 300)))
    };
    seen.offers.keys().filter_map(said).collect()
}

/// Whether an earlier plan found that everything that fits is refused.
fn was_refused(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> bool {
    condition::find(conditions, condition::STALLED)
        .is_some_and(|stalled| stalled.reason == reason::ALL_PROVIDERS_FAILED)
}

/// The text of an earlier plan about the last failure, whose machine is gone by now.
pub(super) fn remembered(
    conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition],
) -> Option<String> {
    [condition::STALLED, condition::RECONCILING, condition::READY]
        .iter()
        .filter_map(|type_| condition::find(conditions, type_))
        .find_map(|c| c.message.split_once(MARKER).map(|(_, what)| what.to_owned()))
}
