//! Decides whether a Provider is held, and reads a person's decision about it. Pure.
//!
//! The decision is an annotation of the Provider: `Adopt@<digest>` or `End@<digest>`. The digest
//! names the ids of the machines that wait for a decision, and the condition shows it: a decision
//! counts only for the machines that the person saw. It is kept in the Provider's status, with the
//! ids: machines end and the list gets shorter, and the next leader must know the decision.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sha2::{Digest, Sha256};
use skyward_api::{
    Provider,
    condition::{self, NewCondition, RESTORE_DETECTED, reason},
    labels,
    provider::{AfterRestore, RestoreDecision},
};
use skyward_core::Usd;

use super::evidence::{Evidence, Orphan, Standing};
use crate::base::time::{after, elapsed};

/// Most ids of one decision; further machines wait for the next decision.
pub const MOST_IDS: usize = 1000;
/// Most ids in a message.
const SHOWN: usize = 10;

/// Everything that a verdict is based on.
pub struct Seen<'a> {
    /// The last list of the account; `None` = none yet.
    pub evidence: Option<&'a Evidence>,
    /// Highest epoch above ours that its machines proved.
    pub epoch: Option<u64>,
    /// Conditions on record.
    pub conditions: &'a [Condition],
    /// The decision on record.
    pub decision: Option<&'a RestoreDecision>,
    /// The annotation with which a person decides.
    pub annotation: Option<&'a str>,
    /// Whether the agents of its recorded machines have told this leader their epochs, or have
    /// had the time for it. The next epoch is above all of them, so a person's decision waits.
    pub heard: bool,
    /// How long the Provider waits for a decision.
    pub patience: Duration,
}

impl<'a> Seen<'a> {
    /// Fills in the Provider's conditions, decision and annotation.
    pub fn of(
        provider: &'a Provider,
        (evidence, epoch): (Option<&'a Evidence>, Option<u64>),
        heard: bool,
        patience: Duration,
    ) -> Self {
        let status = provider.status.as_ref();
        let annotations = provider.metadata.annotations.as_ref();
        Self {
            evidence,
            epoch,
            conditions: status.map_or(&[], |status| status.conditions.as_slice()),
            decision: status.and_then(|status| status.after_restore.as_ref()),
            annotation: annotations
                .and_then(|annotations| annotations.get(labels::AFTER_RESTORE))
                .map(String::as_str),
            heard,
            patience,
        }
    }
}

/// The verdict about a Provider.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// Whether it is held: nothing of it is ordered, ended or commanded.
    pub held: bool,
    /// The condition, if there is anything to say.
    pub condition: Option<NewCondition>,
    /// The decision, if it was taken just now.
    pub decided: Option<RestoreDecision>,
    /// When the time to decide is over.
    pub ends_at: Option<Timestamp>,
    /// Whether a person has decided, and the decision waits for the agents' epochs.
    pub waits: bool,
}

/// The digest of these ids, which names them in a decision.
pub fn digest<'a>(ids: impl Iterator<Item = &'a str>) -> String {
    let mut ids: Vec<&str> = ids.collect();
    ids.sort_unstable();
    ids.dedup();
    let mut hash = Sha256::new();
    for id in ids {
        hash.update(id.as_bytes());
        hash.update([0]);
    }
    let whole = format!("{:x}", hash.finalize());
    whole.chars().take(12).collect()
}

/// The decision in an annotation, and the digest that it is about.
pub fn asked(annotation: &str) -> Option<(AfterRestore, &str)> {
    let (what, digest) = annotation.trim().split_once('@')?;
    match what {
        "Adopt" => Some((AfterRestore::Adopt, digest)),
        "End" => Some((AfterRestore::End, digest)),
        _ => None,
    }
}

/// Decides.
pub fn verdict(seen: &Seen<'_>, now: Timestamp) -> Verdict {
    let before = condition::find(seen.conditions, RESTORE_DETECTED);
    let was = |status: &str| before.filter(|condition| condition.status == status);
    let epoch = seen
        .epoch
        .filter(|epoch| seen.decision.is_none_or(|decision| decision.epoch < *epoch));
    let is_over =
        was("True").is_some_and(|condition| elapsed(condition.last_transition_time.0, now) >= seen.patience);
    let nothing = Evidence::default();
    let evidence = match seen.evidence {
        Some(evidence) => evidence,
        // A hold ends even if the account never answers, and a proved epoch needs no list.
        None if is_over || epoch.is_some() => &nothing,
        None => {
            return Verdict {
                held: was("True").is_some(),
                condition: before.map(kept),
                ..Verdict::default()
            };
        }
    };
    let told = |orphan: &&Orphan| {
        let mut decisions = seen.decision.iter();
        decisions.any(|decision| decision.about(&orphan.id).is_some())
    };
    let mut waiting: Vec<&Orphan> = evidence.waiting().filter(|orphan| !told(orphan)).collect();
    let strange = waiting.iter().any(|orphan| orphan.standing == Standing::Strange);
    // The next list tells whether it exists: nothing is said about it, ordered or ended before.
    let unsure = evidence.marks_prove
        && evidence
            .orphans
            .iter()
            .any(|orphan| orphan.standing == Standing::Strange && !orphan.confirmed && !told(&orphan));
    waiting.sort_by(|a, b| a.id.cmp(&b.id));
    waiting.truncate(MOST_IDS);
    let proved = (evidence.marks_prove && strange) || epoch.is_some() || was("True").is_some();
    if !proved && waiting.is_empty() {
        let over = before.map(|before| {
            if before.status == "False" {
                kept(before)
            } else {
                NewCondition::new(
                    RESTORE_DETECTED,
                    false,
                    reason::NO_RESTORE,
                    "No machine waits for a decision any more.",
                )
            }
        });
        return Verdict {
            held: unsure,
            condition: over,
            ..Verdict::default()
        };
    }
    let digest = digest(waiting.iter().map(|orphan| orphan.id.as_str()));
    let status = if proved { "True" } else { "Unknown" };
    let since = was(status).map_or(now, |condition| condition.last_transition_time.0);
    let asked = seen
        .annotation
        .and_then(asked)
        .filter(|(_, named)| *named == digest);
    let by_person = asked.map(|(what, _)| what).filter(|_| seen.heard);
    let by_time = (elapsed(since, now) >= seen.patience).then_some(AfterRestore::End);
    if let Some(what) = by_person.or(by_time) {
        let mut machines: Vec<String> = waiting.iter().map(|orphan| orphan.id.clone()).collect();
        let mut earlier = Vec::new();
        for id in seen
            .decision
            .iter()
            .flat_map(|before| before.machines.iter().chain(&before.earlier))
        {
            let before = seen.decision.and_then(|before| before.about(id));
            if before == Some(what) {
                &mut machines
            } else {
                &mut earlier
            }
            .push(id.clone());
        }
        for ids in [&mut machines, &mut earlier] {
            ids.sort();
            ids.dedup();
            ids.truncate(MOST_IDS);
        }
        let mut attempts = std::collections::BTreeMap::new();
        for orphan in &waiting {
            let most = attempts.entry(orphan.pool_uid.clone()).or_insert(0);
            *most = orphan.attempt.max(*most);
        }
        let decided = RestoreDecision {
            decision: what,
            digest: digest.clone(),
            decided_at: Time(now),
            epoch: epoch
                .max(seen.decision.map(|decision| decision.epoch))
                .unwrap_or(0),
            attempts,
            machines,
            earlier,
        };
        let who = if by_person.is_some() {
            "The annotation decided"
        } else {
            "Nobody decided in time"
        };
        let (reason, becomes) = match what {
            AfterRestore::Adopt => (
                reason::RESTORE_ADOPTED,
                "are not ended; they stop themselves when their work is over",
            ),
            AfterRestore::End => (reason::RESTORE_ENDED, "are ended"),
        };
        let message = format!("{who}: the {} machine(s) of {digest} {becomes}.", waiting.len());
        return Verdict {
            held: unsure,
            condition: Some(NewCondition::new(RESTORE_DETECTED, false, reason, message)),
            decided: Some(decided),
            ..Verdict::default()
        };
    }
    let ends_at = after(since, seen.patience);
    let reason = if proved {
        reason::RESTORE_PROVED
    } else if strange {
        // The next leader reads this: it trusts no count of attempts then.
        reason::RESTORE_SUSPECTED
    } else {
        reason::TOO_MANY_ORPHANS
    };
    Verdict {
        held: proved || unsure,
        condition: Some(NewCondition {
            type_: RESTORE_DETECTED,
            status: proved.then_some(true),
            reason,
            message: message(proved, epoch, &waiting, &digest, ends_at),
        }),
        decided: None,
        ends_at: Some(ends_at),
        waits: asked.is_some(),
    }
}

/// The condition as it stands.
fn kept(condition: &Condition) -> NewCondition {
    let reasons = [
        reason::NO_RESTORE,
        reason::RESTORE_PROVED,
        reason::RESTORE_SUSPECTED,
        reason::RESTORE_ADOPTED,
        reason::RESTORE_ENDED,
        reason::TOO_MANY_ORPHANS,
    ];
    let known = reasons.into_iter().find(|known| *known == condition.reason);
    NewCondition {
        type_: RESTORE_DETECTED,
        status: match condition.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        },
        reason: known.unwrap_or(reason::RESTORE_PROVED),
        message: condition.message.clone(),
    }
}

fn message(
    proved: bool,
    epoch: Option<u64>,
    waiting: &[&Orphan],
    digest: &str,
    ends_at: Timestamp,
) -> String {
    let hourly: Usd = waiting.iter().filter_map(|orphan| orphan.hourly).sum();
    let strange = waiting
        .iter()
        .filter(|orphan| orphan.standing == Standing::Strange)
        .count();
    let mut parts = Vec::new();
    if proved {
        parts.push("This cluster remembers less than its machines: it was restored from a backup, or is a copy. Nothing of this Provider is ordered, ended, started, stopped or forgotten.".to_owned());
    }
    parts.extend(epoch.map(|epoch| format!("A machine proves epoch {epoch}, which is above ours.")));
    // Before the ids, so that it is not cut off a long message.
    parts.push(format!(
        "Decide with the annotation {}=Adopt@{digest} (keep the machines without a record) or End@{digest} (end them); if nobody decides until {ends_at:.0}, they are ended. See docs/disaster-recovery.md.",
        labels::AFTER_RESTORE
    ));
    if !waiting.is_empty() {
        let ids: Vec<&str> = waiting
            .iter()
            .take(SHOWN)
            .map(|orphan| orphan.id.as_str())
            .collect();
        let more = match waiting.len().saturating_sub(SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        parts.push(format!(
            "{} machine(s) without a record ({strange} that this cluster cannot have ordered), {} $/h, are not ended: {}{more}.",
            waiting.len(),
            hourly.exact(),
            ids.join(", ")
        ));
    }
    parts.join(" ")
}
