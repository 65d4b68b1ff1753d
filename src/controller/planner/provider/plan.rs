//! What becomes of one Provider, given all that is known. Pure: no clock of its own, no
//! I/O, no names of clouds.
//!
//! A listing that failed is unknown, not empty: Offers stay as they are until a complete
//! listing says otherwise. Only a spec that cannot work, or the deletion of the Provider, takes its
//! Offers away.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube_core::ResourceExt;
use skyward_api::{
    Machine, Offer, Provider, ProviderStatus,
    condition::{self, NewCondition, READY, STALLED, cut, reason},
    provider::BarredOffer,
};
use skyward_core::{
    ErrorKind, PoolScope, ProviderError, ProviderMachine, error::ErrorClass, provider::Capabilities,
};

use super::{
    catalogue::{self, Catalogue},
    deletion::{self, DeletionPlan, Left},
};
use crate::{
    accounts::{
        cost::{self, Pseudonyms},
        host_keys,
        resolved::ResolvedProvider,
    },
    base::{key::is_held, time::elapsed},
    events::{self, EventSpec},
    restore::verdict::Verdict,
};

/// First wait after a call that failed; it doubles up to the refresh interval.
const RETRY: Duration = Duration::from_secs(5);
/// Failures in a row before a Provider that was ready is not: one lost answer is no news.
const PATIENCE: u32 = 2;
/// Time between two looks at an account that has something of ours while its Provider is deleted.
const DEPARTURE_AGAIN: Duration = Duration::from_secs(5);
/// Least time between two writes that only change the number of machines.
const COUNT_EVERY: Duration = Duration::from_secs(5);

/// What this process remembers of a Provider between two looks; only the time of the next call
/// depends on it.
#[derive(Clone, Debug, Default)]
pub struct ProviderMemory {
    /// Generation of the spec at the last calls.
    pub generation: i64,
    /// When the account and its offers were last asked for.
    pub asked_at: Option<Timestamp>,
    /// Calls that failed in a row.
    pub failures: u32,
    /// Version of the Secret that they were made with; `""` without one.
    pub secret: String,
    /// Why the last call failed.
    pub problem: Option<ProviderError>,
    /// The account as the cloud names it.
    pub account: String,
    /// Offers of the last complete listing, after the cut.
    pub offers: u32,
    /// Offers that the cut left out.
    pub left_out: usize,
    /// When offers were last read in full.
    pub refreshed_at: Option<Timestamp>,
    /// When the status was last written.
    pub written_at: Option<Timestamp>,
    /// Plans in a row whose Offers were not all written.
    pub offers_failed: u32,
}

impl ProviderMemory {
    /// The status was not written.
    pub const fn status_failed(&mut self) {
        self.written_at = None;
    }

    /// Not all Offers of a plan were written: the account is asked again, since its last answer is
    /// gone, and later with each such failure in a row.
    pub const fn offers_failed(&mut self) {
        self.offers_failed = self.offers_failed.saturating_add(1);
    }

    /// All Offers of a plan were written.
    pub const fn offers_written(&mut self) {
        self.offers_failed = 0;
    }
}

/// Outcome of the account's refresh in this reconcile.
#[derive(Clone, Debug)]
pub enum Refresh {
    /// The refresh was not due.
    NotAsked,
    /// The account answered: its id and all its offers.
    Complete {
        /// The account, as the cloud names it.
        account: String,
        /// Everything that it offers.
        offers: Vec<skyward_core::Offer>,
    },
    /// The account did not answer, or refused.
    Failed(ProviderError),
}

/// Everything that a plan may know.
pub struct Observed {
    /// Whether it is held because this cluster was restored.
    pub verdict: Verdict,
    /// The Provider.
    pub provider: Arc<Provider>,
    /// Machines that use it, including Machines ordered just now.
    pub machines: u32,
    /// The Machines among them that the watch shows.
    pub shown: Vec<Arc<Machine>>,
    /// Its offers that are not ordered for now.
    pub barred: Vec<BarredOffer>,
    /// Offer objects that exist under the names it would use, and all of its own.
    pub offers: Vec<Arc<Offer>>,
    /// What the account answered.
    pub answer: Refresh,
    /// What the account still has, when its Provider goes.
    pub left: Left,
    /// What the account can do, if it was ever connected.
    pub capabilities: Option<Capabilities>,
}

/// What to do, in this order.
#[derive(Debug, Default)]
pub struct Plan {
    /// Put our finalizer on it, before anything else.
    pub add_finalizer: bool,
    /// Offers to write.
    pub apply: Vec<Offer>,
    /// Names of Offers to delete.
    pub delete: Vec<String>,
    /// Status to write.
    pub status: Option<ProviderStatus>,
    /// Resources that Pools shared at the account, to be returned.
    pub release: Vec<PoolScope>,
    /// What to tell people.
    pub event: Option<EventSpec>,
    /// Take our finalizer off: nothing uses it any more.
    pub remove_finalizer: bool,
    /// When to look again, if nothing happens.
    pub again: Duration,
}

/// Code of the problem that new credentials are another account's.
const OTHER_ACCOUNT: &str = "AccountChanged";

/// The credentials are another account's than the one where the machines are. That account would
/// show every machine as gone, so it is not asked. The status tells the account of the machines;
/// while a Provider that was made anew has no status, the machines' records do.
pub fn other_account(
    provider: &Provider,
    machines: u32,
    recorded: &[Arc<Machine>],
    account: &str,
) -> Option<ProviderError> {
    let account = shown_account(account);
    let status = provider.status.as_ref().map(|status| status.account.as_str());
    let records = recorded.iter().map(|machine| machine.spec.account.as_str());
    let known: BTreeSet<&str> = match status.filter(|known| !known.is_empty()) {
        Some(known) => BTreeSet::from([known]),
        None => records.filter(|known| !known.is_empty()).collect(),
    };
    let first = known
        .first()
        .filter(|_| machines > 0 && !known.contains(account.as_str()))?;
    Some(ProviderError {
        kind: ErrorKind::Credentials,
        operation: "use the credentials",
        code: Some(OTHER_ACCOUNT.to_owned()),
        message: format!(
            "they are those of account \"{account}\", but {machines} machine(s) are at account \"{first}\"; restore the former credentials until these are gone, or make another Provider"
        ),
        quota_region: None,
    })
}

/// Whether a list shows a machine on record, by its mark and its id.
pub fn shows_any(recorded: &[&Machine], listed: &[ProviderMachine]) -> bool {
    recorded.iter().any(|machine| {
        let id = machine.status.as_ref().map_or("", |status| status.id.as_str());
        let uid = machine.metadata.uid.as_deref().unwrap_or_default();
        listed
            .iter()
            .any(|shown| !id.is_empty() && shown.id == id && shown.mark.machine_uid == uid)
    })
}

/// Why credentials that seem to be of another account are not used, if they are not. `ours`:
/// whether they show a machine of ours; an error means that this is not known, so the failed list
/// is the problem, and nobody is told to take the credentials back.
pub fn refusal(other: ProviderError, ours: Result<bool, ProviderError>) -> Option<ProviderError> {
    match ours {
        Ok(true) => None,
        Ok(false) => Some(other),
        Err(error) => Some(error),
    }
}

/// Whether an account takes the place of another one that is on record, where no machine
/// is left.
pub fn takes_over(provider: &Provider, account: &str) -> bool {
    provider
        .status
        .as_ref()
        .is_some_and(|status| !status.account.is_empty() && status.account != shown_account(account))
}

/// The account as it stands in the status.
pub fn shown_account(account: &str) -> String {
    cut(account, 256)
}

/// Whether the account is asked now: when it is time, or when its Secret changed since the last
/// call. `secret` is the version that the watch just saw.
pub fn is_due(provider: &Provider, memory: &ProviderMemory, secret: Option<&str>, now: Timestamp) -> bool {
    secret.is_some_and(|version| version != memory.secret) || due_in(provider, memory, now).is_zero()
}

/// How long until the account is asked again; zero when it is due now.
pub fn due_in(provider: &Provider, memory: &ProviderMemory, now: Timestamp) -> Duration {
    let Some(asked_at) = memory
        .asked_at
        .filter(|_| memory.generation == generation(provider))
    else {
        return Duration::ZERO;
    };
    let every = ResolvedProvider::of(&provider.spec).refresh_interval;
    let doubled = |failures: u32| {
        let wait = RETRY.saturating_mul(1 << failures.saturating_sub(1).min(20));
        wait.min(every)
    };
    let wait = match memory.problem.as_ref().map(|problem| &problem.kind) {
        None if memory.offers_failed == 0 => every,
        None => doubled(memory.offers_failed),
        Some(ErrorKind::RateLimited(Some(after))) => (*after).max(RETRY),
        Some(_) => doubled(memory.failures),
    };
    since(asked_at, now).map_or(Duration::ZERO, |passed| wait.saturating_sub(passed))
}

fn since(then: Timestamp, now: Timestamp) -> Option<Duration> {
    Duration::try_from(now.duration_since(then)).ok()
}

/// Generation of its spec.
pub fn generation(provider: &Provider) -> i64 {
    provider.metadata.generation.unwrap_or_default()
}

/// Whether it is being deleted and has no Machines: then its account is asked for orphans.
pub fn goes(provider: &Provider, machines: u32) -> bool {
    provider.metadata.deletion_timestamp.is_some() && is_held(provider) && machines == 0
}

/// Whether a plan compares Offers: with a complete listing, or when none may be left.
pub fn compares_offers(provider: &Provider, memory: &ProviderMemory, answer: &Refresh) -> bool {
    !matches!(answer, Refresh::NotAsked)
        || memory.problem.is_some()
        || provider.metadata.deletion_timestamp.is_some()
}

/// The plan. `pseudonyms` makes those of the namespaces that spend.
pub fn plan(
    observed: &Observed,
    memory: &mut ProviderMemory,
    pseudonyms: &dyn Pseudonyms,
    now: Timestamp,
) -> Plan {
    let provider = observed.provider.as_ref();
    let mut plan = Plan::default();
    learn(memory, observed, now);
    let deleting = provider.metadata.deletion_timestamp.is_some();
    plan.add_finalizer = !deleting && !is_held(provider);

    let unusable = memory
        .problem
        .as_ref()
        .is_some_and(|problem| problem.kind.class() == ErrorClass::Config);
    let catalogue = match &observed.answer {
        _ if deleting || unusable => Some(Catalogue::default()),
        Refresh::Complete { offers, .. } => Some(catalogue::catalogue(provider, offers, &observed.offers)),
        Refresh::NotAsked | Refresh::Failed(_) => None,
    };
    if let Some(catalogue) = catalogue {
        memory.offers = catalogue.wanted;
        memory.left_out = catalogue.left_out;
        (plan.apply, plan.delete) = catalogue::difference(provider, catalogue, &observed.offers);
    }
    let deletion = goes(provider, observed.machines).then(|| deletion::plan(provider, &observed.left, now));
    plan.again = match &deletion {
        Some(_) => DEPARTURE_AGAIN,
        None if deleting => ResolvedProvider::of(&provider.spec).refresh_interval,
        None => due_in(provider, memory, now),
    };
    let waits_for = deletion.as_ref().and_then(|deletion| deletion.waits_for.clone());
    if let Some(DeletionPlan {
        goes, release, event, ..
    }) = deletion
    {
        (plan.remove_finalizer, plan.release, plan.event) = (goes, release, event);
    }

    if let Some(at) = observed.verdict.ends_at {
        plan.again = plan.again.min(elapsed(now, at));
    }
    let status = status(observed, memory, pseudonyms, waits_for, now);
    let old = provider.status.clone().unwrap_or_default();
    match worth_writing(&old, &status, provider, memory, deleting, now) {
        // An object without finalizer vanishes with its last write.
        Write::Now if !plan.remove_finalizer => {
            memory.written_at = Some(now);
            plan.event = plan.event.or_else(|| news(&old, &status, deleting));
            plan.status = Some(status);
        }
        Write::Now | Write::No => {}
        Write::In(wait) => plan.again = plan.again.min(wait),
    }
    plan
}

/// What people are told of a Provider whose condition Ready changed. A deletion has Events of its
/// own.
fn news(old: &ProviderStatus, new: &ProviderStatus, deleting: bool) -> Option<EventSpec> {
    let ready = condition::find(&new.conditions, READY).filter(|_| !deleting)?;
    let is_same = |before: &Condition| (&before.status, &before.reason) == (&ready.status, &ready.reason);
    if condition::find(&old.conditions, READY).is_some_and(is_same) {
        return None;
    }
    Some(if ready.status == "True" {
        EventSpec::normal(events::reason::PROVIDER_READY, "Connect", &ready.message)
    } else {
        let note = format!("{}: {}", ready.reason, ready.message);
        EventSpec::warning(events::reason::PROVIDER_NOT_READY, "Connect", note)
    })
}

/// Takes the answer into memory.
fn learn(memory: &mut ProviderMemory, observed: &Observed, now: Timestamp) {
    let generation = generation(&observed.provider);
    if memory.asked_at.is_none() {
        // After a restart the status tells what was known.
        let status = observed.provider.status.clone().unwrap_or_default();
        memory.refreshed_at = status.refreshed_at.map(|time| time.0);
        memory.account = status.account;
        memory.offers = status.offers;
    }
    match &observed.answer {
        Refresh::NotAsked => {}
        Refresh::Complete { account, .. } => {
            memory.asked_at = Some(now);
            memory.generation = generation;
            memory.failures = 0;
            memory.problem = None;
            memory.refreshed_at = Some(now);
            memory.account.clone_from(account);
        }
        Refresh::Failed(problem) => {
            memory.asked_at = Some(now);
            memory.failures = if memory.generation == generation {
                memory.failures.saturating_add(1)
            } else {
                1
            };
            memory.generation = generation;
            memory.problem = Some(problem.clone());
        }
    }
}

fn status(
    observed: &Observed,
    memory: &ProviderMemory,
    pseudonyms: &dyn Pseudonyms,
    waits_for: Option<(&'static str, String)>,
    now: Timestamp,
) -> ProviderStatus {
    let provider = observed.provider.as_ref();
    let old = provider.status.clone().unwrap_or_default();
    let mut conditions = match waits_for {
        Some((why, message)) => vec![NewCondition::new(READY, false, why, message)],
        None => conditions(observed, memory, &old),
    };
    conditions.extend(observed.verdict.condition.clone());
    let (type_, self_stop, host_keys) = if let Some(known) = &observed.capabilities {
        let (stop, keys) = (known.self_stop, known.host_keys);
        (known.kind.to_owned(), Some(stop), Some(keys))
    } else {
        let named = provider.spec.account().map(|(kind, _)| kind.to_owned());
        (named.unwrap_or(old.type_.clone()), old.self_stop, old.host_keys)
    };
    ProviderStatus {
        type_,
        account: shown_account(&memory.account),
        offers: memory.offers,
        machines: observed.machines,
        cost: cost::settle(old.cost.as_ref(), &observed.shown, pseudonyms, now),
        barred_offers: observed.barred.clone(),
        refreshed_at: memory.refreshed_at.map(Time),
        self_stop,
        host_keys,
        after_restore: observed.verdict.decided.clone().or(old.after_restore),
        conditions: condition::apply(&old.conditions, &conditions, provider.metadata.generation, now),
        observed_generation: provider.metadata.generation,
    }
}

fn conditions(observed: &Observed, memory: &ProviderMemory, old: &ProviderStatus) -> Vec<NewCondition> {
    if observed.provider.metadata.deletion_timestamp.is_some() {
        let (count, are) = match observed.machines {
            1 => ("1 machine".to_owned(), "uses"),
            many => (format!("{many} machines"), "use"),
        };
        return vec![NewCondition::new(
            READY,
            false,
            reason::MACHINES_REMAIN,
            format!(
                "{count} still {are} this Provider; it goes when they are gone. Delete their Pools, or wait for them to shrink"
            ),
        )];
    }
    let Some(problem) = &memory.problem else {
        return if memory.asked_at.is_none() {
            Vec::new()
        } else if let Some(why) = unverifiable(observed) {
            let refused =
                |type_, status| NewCondition::new(type_, status, reason::HOST_KEY_NOT_VERIFIED, why.clone());
            vec![refused(READY, false), refused(STALLED, true)]
        } else {
            vec![connected(memory)]
        };
    };
    let was_ready = condition::is_true(&old.conditions, READY)
        && old.observed_generation == observed.provider.metadata.generation;
    let to_be_mended = match &problem.kind {
        _ if problem.code.as_deref() == Some(OTHER_ACCOUNT) => Some(reason::ACCOUNT_CHANGED),
        ErrorKind::CredentialsMissing => Some(reason::CREDENTIALS_MISSING),
        ErrorKind::Credentials | ErrorKind::Permission => Some(reason::CREDENTIALS_REFUSED),
        kind => (kind.class() == ErrorClass::Config).then_some(reason::INVALID_SPEC),
    };
    if let Some(why) = to_be_mended {
        return vec![
            NewCondition::new(READY, false, why, problem.to_string()),
            NewCondition::new(STALLED, true, why, problem.to_string()),
        ];
    }
    if was_ready && memory.failures < PATIENCE {
        return vec![connected(memory)];
    }
    let message = format!("{problem}. It is tried again by itself; machines that exist are kept");
    vec![NewCondition::new(
        READY,
        false,
        reason::PROVIDER_UNAVAILABLE,
        message,
    )]
}

/// Why nothing is ordered from it, if its policy of host keys is one that its kind cannot fulfil.
fn unverifiable(observed: &Observed) -> Option<String> {
    let (name, spec) = (observed.provider.name_any(), &observed.provider.spec);
    let keys = observed.capabilities.as_ref()?.host_keys;
    host_keys::unverifiable(&name, ResolvedProvider::of(spec).host_key_policy, keys)
}

fn connected(memory: &ProviderMemory) -> NewCondition {
    let message = match (memory.offers, memory.left_out) {
        (0, _) => "the account answers, but offers nothing that these settings admit now".to_owned(),
        (1, 0) => "the account answers and offers 1 kind of machine".to_owned(),
        (many, 0) => format!("the account answers and offers {many} kinds of machines"),
        (many, more) => format!(
            "the account answers and offers {} kinds of machines; {many} of them are Offers, the cheapest of each accelerator, number and region before others. Settings that admit less, such as fewer regions, make room",
            many as usize + more
        ),
    };
    NewCondition::new(READY, true, reason::CONNECTED, message)
}

/// Whether a status is worth a write.
#[derive(Debug, PartialEq, Eq)]
enum Write {
    No,
    Now,
    In(Duration),
}

fn worth_writing(
    old: &ProviderStatus,
    new: &ProviderStatus,
    provider: &Provider,
    memory: &ProviderMemory,
    deleting: bool,
    now: Timestamp,
) -> Write {
    // Nothing was learnt yet, so there is nothing to say.
    if new.conditions.is_empty() {
        return Write::No;
    }
    let timeless = |status: &ProviderStatus| ProviderStatus {
        refreshed_at: None,
        ..status.clone()
    };
    if timeless(old) == timeless(new) {
        let told = old.refreshed_at.as_ref().map(|time| time.0);
        let stale = match (told, memory.refreshed_at) {
            (None, Some(_)) => true,
            (Some(told), Some(known)) => {
                // A refresh that comes a moment early counts as the due one.
                let patience = SignedDuration::try_from(ResolvedProvider::of(&provider.spec).tell_interval)
                    .unwrap_or(SignedDuration::MAX);
                known.duration_since(told) >= patience.saturating_sub(SignedDuration::from_secs(1))
            }
            (_, None) => false,
        };
        return if stale { Write::Now } else { Write::No };
    }
    let uncounted = |status: &ProviderStatus| ProviderStatus {
        machines: 0,
        ..timeless(status)
    };
    // The count 0 is written at once: only then may a person delete the Provider.
    if uncounted(old) == uncounted(new) && new.machines > 0 && !deleting {
        let passed = memory.written_at.and_then(|then| since(then, now));
        if let Some(passed) = passed.filter(|passed| *passed < COUNT_EVERY) {
            return Write::In(COUNT_EVERY.saturating_sub(passed));
        }
    }
    Write::Now
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
