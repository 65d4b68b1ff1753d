//! A cluster whose memory is older than its machines: restored from a backup, or a copy.
//!
//! To such a cluster everything that it does not remember looks like garbage: machines without a record, runs
//! that no Task claims, results of missing Tasks. So the operator looks for proof that its memory is old
//! ([`skyward_planner::restore::evidence`]), and when it has proof it **holds** the Provider
//! ([`skyward_planner::restore::verdict`]): nothing of that Provider is ordered, ended, started, stopped or
//! forgotten, and nothing is deleted from the store, until a person decides or the time is over. Meanwhile
//! [`gate`] keeps every order and every end from the cloud. [`seal`] lets a machine prove the epoch that it
//! names. docs/decisions/0011-restored-clusters.md has the reasons.

pub mod gate;
pub mod seal;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use skyward_api::{
    Pool, Provider as ProviderObject,
    condition::{self, reason},
};
use skyward_planner::restore::evidence::Evidence;
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::base::queue::WorkQueue;

/// How long at most a new leader waits for possible proof.
pub const GRACE: Duration = Duration::from_mins(1);
/// Pause before a failed step is tried again.
const AGAIN: Duration = Duration::from_secs(3);
/// How long at most a decision waits for the agents of recorded machines, from when the leader
/// began.
pub const HELLOS: Duration = Duration::from_mins(2);
/// Most Pools of the cluster that this process remembers.
const REMEMBERED: usize = 10_000;

/// What this process knows about a restore, by Provider, and which Providers are held.
#[derive(Debug)]
pub struct Holds {
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
    /// Providers for whose controller there is news.
    pub news: Arc<WorkQueue<String>>,
    /// Cancelled when the epoch was raised: this process ends and leads again.
    pub restart: CancellationToken,
    since: Instant,
}

#[derive(Debug, Default)]
struct Inner {
    providers: BTreeMap<String, Known>,
    /// UIDs of Pools whose key this process saw or deleted: this cluster had them.
    had: BTreeSet<String>,
    /// The last attempts of Pools when this process began to lead, by the Pools' UIDs.
    counted: BTreeMap<String, u32>,
    /// Providers with machines of another memory that waited for a decision when this process began to lead.
    doubted: BTreeSet<String>,
}

#[derive(Clone, Debug, Default)]
struct Known {
    held: bool,
    /// The last full list of its account.
    evidence: Option<Arc<Evidence>>,
    /// When the account was listed.
    listed_at: Option<Instant>,
    /// Highest epoch above ours that each machine proved, by the machines' names.
    epochs: BTreeMap<String, u64>,
}

impl Default for Holds {
    fn default() -> Self {
        Self {
            inner: Mutex::default(),
            changed: watch::Sender::new(0),
            news: WorkQueue::new(),
            restart: CancellationToken::new(),
            since: Instant::now(),
        }
    }
}

impl Holds {
    /// Reads the record when this process begins to lead: a hold outlives its leader, and attempts
    /// that Pools count from now on are this process' own. Where a suspicion outlives its leader, those
    /// counts prove nothing: Pools may have counted up to the attempts of the machines that wait.
    pub fn begin<'a>(
        &self,
        providers: impl IntoIterator<Item = &'a ProviderObject>,
        pools: impl IntoIterator<Item = &'a Pool>,
    ) {
        let last = |pool: &Pool| pool.status.as_ref().map_or(0, |status| status.last_attempt);
        self.inner.lock().counted = pools
            .into_iter()
            .filter_map(|pool| Some((pool.metadata.uid.clone()?, last(pool))))
            .collect();
        for provider in providers {
            let status = provider.status.as_ref();
            let told =
                status.and_then(|status| condition::find(&status.conditions, condition::RESTORE_DETECTED));
            let (Some(name), Some(told)) = (provider.metadata.name.as_deref(), told) else {
                continue;
            };
            let is_held = told.status == "True";
            if is_held || (told.status == "Unknown" && told.reason == reason::RESTORE_SUSPECTED) {
                self.inner.lock().doubted.insert(name.to_owned());
            }
            if is_held {
                self.set(name, true);
            }
        }
    }

    /// The last attempt of that Pool when this process began to lead, as far as it says something about
    /// machines at that Provider.
    pub fn counted_before(&self, provider: &str, pool_uid: &str) -> u32 {
        let inner = self.inner.lock();
        if inner.doubted.contains(provider) {
            return 0;
        }
        inner.counted.get(pool_uid).copied().unwrap_or(0)
    }

    /// Whether nothing of this Provider may be ordered, ended or commanded.
    pub fn is_held(&self, provider: &str) -> bool {
        self.inner
            .lock()
            .providers
            .get(provider)
            .is_some_and(|known| known.held)
    }

    /// Whether any Provider is held: then nothing is deleted from the store.
    pub fn any(&self) -> bool {
        self.inner.lock().providers.values().any(|known| known.held)
    }

    /// Whether runs of a Pool are left alone: it has machines at a Provider that is held, with
    /// or without a record.
    pub fn holds_pool<'a>(&self, uid: &str, mut providers: impl Iterator<Item = &'a str>) -> bool {
        let inner = self.inner.lock();
        let held = |name: &str| inner.providers.get(name).is_some_and(|known| known.held);
        providers.any(held)
            || inner.providers.values().any(|known| {
                let mut orphans = known.evidence.iter().flat_map(|evidence| &evidence.orphans);
                known.held && orphans.any(|orphan| orphan.pool_uid == uid)
            })
    }

    /// Whether a proof would be known by now: each of these accounts was listed once, or the time
    /// for that is over.
    pub fn is_settled<'a>(&self, mut accounts: impl Iterator<Item = &'a String>) -> bool {
        let inner = self.inner.lock();
        let listed = |name: &String| {
            inner
                .providers
                .get(name)
                .is_some_and(|known| known.listed_at.is_some())
        };
        self.since.elapsed() >= GRACE || accounts.all(listed)
    }

    /// Whether this process has led for that long.
    pub fn has_led_for(&self, time: Duration) -> bool {
        self.since.elapsed() >= time
    }

    /// Notes that an account was listed in full. A list that proves old memory, or may prove it once the next
    /// list agrees, holds its Provider at once; the Provider's controller then says so, and how a person ends
    /// the hold. Returns whether this was the first list.
    pub fn listed(&self, provider: &str, evidence: Evidence) -> bool {
        let may_prove = evidence.may_prove();
        let mut inner = self.inner.lock();
        let known = inner.providers.entry(provider.to_owned()).or_default();
        let news = known.evidence.as_deref() != Some(&evidence) || (may_prove && !known.held);
        let first = known.listed_at.replace(Instant::now()).is_none();
        known.evidence = Some(Arc::new(evidence));
        known.held |= may_prove;
        drop(inner);
        if news {
            self.news.enqueue(provider.to_owned());
        }
        if news || first {
            self.changed.send_modify(|n| *n += 1);
        }
        first
    }

    /// Notes that a machine proved an epoch above ours, or (`None`) no longer names one.
    pub fn epoch_of(&self, provider: &str, machine: &str, epoch: Option<u64>) {
        let mut inner = self.inner.lock();
        if epoch.is_none() && !inner.providers.contains_key(provider) {
            return;
        }
        let known = inner.providers.entry(provider.to_owned()).or_default();
        let before = match epoch {
            Some(epoch) => known.epochs.insert(machine.to_owned(), epoch),
            None => known.epochs.remove(machine),
        };
        let is_new = before != epoch;
        known.held |= is_new && epoch.is_some();
        drop(inner);
        if is_new {
            self.changed.send_modify(|n| *n += 1);
            self.news.enqueue(provider.to_owned());
        }
    }

    /// The evidence of a Provider's last list, and the highest proved epoch.
    pub fn seen(&self, provider: &str) -> (Option<Arc<Evidence>>, Option<u64>) {
        let inner = self.inner.lock();
        let known = inner.providers.get(provider);
        (
            known.and_then(|known| known.evidence.clone()),
            known.and_then(|known| known.epochs.values().max().copied()),
        )
    }

    /// Frees the Provider after its decision is carried out, or when there is nothing to decide;
    /// not if there is evidence by now that was not `judged`. Returns whether the Provider was
    /// held before.
    pub fn release(&self, provider: &str, judged: Option<&Arc<Evidence>>) -> bool {
        let mut inner = self.inner.lock();
        let Some(known) = inner.providers.get_mut(provider) else {
            return false;
        };
        let same = known.evidence.as_ref() == judged;
        let freed = same && std::mem::replace(&mut known.held, false);
        drop(inner);
        if freed {
            self.changed.send_modify(|n| *n += 1);
        }
        if !same {
            // The newer evidence is judged next: nothing else may ever report it.
            self.news.enqueue(provider.to_owned());
        }
        freed
    }

    /// Sets whether the Provider is held; its controller calls this once the status says so.
    pub fn set(&self, provider: &str, held: bool) {
        let mut inner = self.inner.lock();
        let known = inner.providers.entry(provider.to_owned()).or_default();
        let before = std::mem::replace(&mut known.held, held);
        drop(inner);
        if before != held {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// A step for that Provider failed or must wait: its controller looks again in a while.
    pub fn again(self: &Arc<Self>, provider: String) {
        let holds = self.clone();
        // The task ends by itself, and does nothing when no controller reads the news any more.
        tokio::spawn(async move {
            tokio::time::sleep(AGAIN).await;
            holds.news.enqueue(provider);
        });
    }

    /// Notes that this cluster had the Pool of that UID.
    pub fn had(&self, pool_uid: &str) {
        let mut inner = self.inner.lock();
        if inner.had.len() < REMEMBERED {
            inner.had.insert(pool_uid.to_owned());
        }
    }

    /// Whether this process knows that this cluster had the Pool of that UID.
    pub fn remembers(&self, pool_uid: &str) -> bool {
        self.inner.lock().had.contains(pool_uid)
    }

    /// Whether each of these accounts was listed in full since then and shows no machine of that
    /// Pool without a record: then the trace that this cluster had the Pool is not needed any more.
    pub fn is_free_of<'a>(
        &self,
        pool_uid: &str,
        since: Instant,
        mut accounts: impl Iterator<Item = &'a String>,
    ) -> bool {
        let inner = self.inner.lock();
        accounts.all(|name| {
            inner.providers.get(name).is_some_and(|known| {
                let mut orphans = known.evidence.iter().flat_map(|evidence| &evidence.orphans);
                known.listed_at.is_some_and(|at| at >= since)
                    && !orphans.any(|orphan| orphan.pool_uid == pool_uid)
            })
        })
    }

    /// Whether an account's last list shows a machine of that Pool without a record.
    pub fn shows(&self, pool_uid: &str) -> bool {
        let inner = self.inner.lock();
        let mut orphans = inner
            .providers
            .values()
            .flat_map(|known| &known.evidence)
            .flat_map(|evidence| &evidence.orphans);
        orphans.any(|orphan| orphan.pool_uid == pool_uid)
    }

    /// The Provider is gone.
    pub fn forget(&self, provider: &str) {
        if self.inner.lock().providers.remove(provider).is_some() {
            self.changed.send_modify(|n| *n += 1);
        }
    }

    /// Woken when a hold begins or ends, and when an account is listed for the first time.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

#[cfg(test)]
mod tests;
