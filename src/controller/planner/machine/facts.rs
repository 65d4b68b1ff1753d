//! What a Machine's plan may know. Gathering it makes no decision.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use crate::{
    accounts::{
        facts::{NamespaceFacts, ProviderFacts},
        resolved::ResolvedProvider,
    },
    base::{
        key::{created_at, is_held, key_of},
        time::{after, elapsed},
    },
    money,
    pool::{
        resolved::{ResolvedPool, Timeouts},
        suspension::why_suspended,
    },
};
use jiff::Timestamp;
use kube_core::{Resource, ResourceExt};
use skyward_api::{
    Duration as Lasting, Machine, MachineStatus, Pool, Provider as ProviderObject, labels,
    machine::MachineSpec, provider::HostKeyPolicy,
};
use skyward_core::{
    Deletion, ErrorKind, MachineRef, Mark, ProviderError, ProviderMachine, ProviderPhase, Usd,
    provider::{BilledTime, Capabilities, HostKeys, Idempotency},
    session::{MachineKey, SessionState, Stage},
};

/// Everything a Machine's plan may know.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What it has cost until now, in USD.
    pub billed_so_far: Usd,
    /// Whether its Provider has counted what it cost, or does not exist any more.
    pub counted_by_provider: bool,
    /// The Machine.
    pub machine: MachineFacts,
    /// Its Pool; `None` = it does not exist any more.
    pub pool: Option<Arc<Pool>>,
    /// Whether the Pool's spec is still the one this machine was ordered by.
    pub current: bool,
    /// What the Pool asks of this machine; `None` = another kind of machine.
    pub asked: Option<Asked>,
    /// The account it was ordered from.
    pub account: AccountState,
    /// What the provider says of it.
    pub provider: LookupOutcome,
    /// Answer to the order, when it was just tried.
    pub order: Option<Result<String, ProviderError>>,
    /// Not to be ordered again before.
    pub order_not_before: Option<Timestamp>,
    /// Its order that waits, or waited, for its turn at the cloud.
    pub queued: Option<Queued>,
    /// Answer to the deletion, when it was just tried.
    pub deletion: Option<Result<Deletion, ProviderError>>,
    /// Its session.
    pub session: Option<SessionState>,
    /// An object that its preparation needs and that was missing at the last try to connect.
    pub missing: Option<String>,
    /// Since when it is tried to connect to a machine that took runs before.
    pub disconnected_since: Option<Timestamp>,
    /// Since when its Pool is off: suspended, without machines by its spec, or with its
    /// budget spent.
    pub off_since: Option<Timestamp>,
    /// Runs on it; `None` = not known.
    pub runs: Option<u32>,
    /// When its status was last written by this process.
    pub last_write: Option<Timestamp>,
    /// Whether the account's machines tell of changes, so that none need be polled.
    pub tells_changes: bool,
    /// How often to look at a machine on its way, where they do not.
    pub poll_interval: Duration,
    /// How long the provider's answers may lag.
    pub settle_time: Duration,
    /// Which part of its life is billed.
    pub billed_time: BilledTime,
    /// When this process last saw that it did not run yet.
    pub starting_at: Option<Timestamp>,
    /// Until then an order whose answer is lost may still show up at the provider.
    pub unseen_until: Option<Timestamp>,
    /// Whether ordering it twice is one order whatever lists show.
    pub knows_token: bool,
    /// What vouches for its host key.
    pub host_keys: HostKeys,
    /// Waits of the Pool.
    pub waits: Waits,
    /// The terms that an order must satisfy, read for this look; `None` where no order is due.
    pub terms: Option<Terms>,
}

impl Observed {
    /// Where its session is.
    pub fn stage(&self) -> Option<&Stage> {
        self.session.as_ref().map(|session| &session.stage)
    }
}

/// What a Pool asks of a machine that it has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Digest of it, as a new record has it.
    pub template: String,
    /// Digests of the Debian packages of its image.
    pub apt: BTreeSet<String>,
}

impl Asked {
    /// What this Pool asks of that machine.
    pub fn of(pool: &ResolvedPool, machine: &Machine) -> Option<Self> {
        let template = pool.template_of(machine)?.to_owned();
        let apt = pool.apt().clone();
        Some(Self { template, apt })
    }
}

/// The terms that a machine must satisfy before it is ordered, as they are now.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Its namespace.
    pub namespace: NamespaceFacts,
    /// Its Provider: what that admits, and how much of it is used, with this machine.
    pub provider: ProviderFacts,
    /// Whether its Provider is being deleted.
    pub provider_goes: bool,
    /// Most that it may cost per hour beyond the amount that is counted as used.
    pub beyond: Usd,
    /// The budget of its Pool and what is spent of it.
    pub budget: Option<(Usd, Usd)>,
}

/// The Machine itself.
#[derive(Clone, Debug)]
pub struct MachineFacts {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// The record.
    pub spec: MachineSpec,
    /// What was last written.
    pub status: MachineStatus,
    /// When it was recorded.
    pub created_at: Timestamp,
    /// When its deletion was asked for.
    pub deleting_since: Option<Timestamp>,
    /// Whether its runs may finish however long they take.
    pub finish_runs: bool,
    /// Whether our finalizer is on it.
    pub finalizer: bool,
}

/// The account a machine was ordered from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccountState {
    /// Its client is there.
    Ready {
        /// What to do with a host key that nobody vouches for.
        policy: HostKeyPolicy,
    },
    /// Its Provider exists and was not checked yet, or cannot be used now.
    Waiting,
    /// The Provider is gone and its client is still at hand: machines can be looked at and deleted,
    /// nothing is ordered.
    Departed,
    /// The Provider and its client are gone.
    Gone,
}

/// What the provider says of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookupOutcome {
    /// The provider was not asked or did not answer: nothing is known.
    Unknown(Option<String>),
    /// The machine does not exist.
    Absent,
    /// The machine exists.
    There(Box<ProviderMachine>),
}

/// Timeouts of the Pool, for a machine of one kind of Provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waits {
    /// From the acceptance of its order to an address.
    pub provision: Duration,
    /// From the address to SSH.
    pub ssh: Duration,
    /// From SSH to Ready.
    pub bootstrap: Duration,
    /// Between SIGTERM and SIGKILL of runs when the Pool goes.
    pub shutdown: Duration,
    /// How long a machine whose connection is lost may keep its runs.
    pub orphan: Duration,
}

impl Waits {
    /// The timeouts of a Pool; `default_bootstrap` is that of the kind of Provider.
    pub fn of(timeouts: Timeouts, default_bootstrap: Duration) -> Self {
        let Timeouts {
            provision,
            ssh,
            bootstrap,
            shutdown,
            orphan,
        } = timeouts;
        Self {
            provision,
            ssh,
            bootstrap: bootstrap.unwrap_or(default_bootstrap),
            shutdown,
            orphan,
        }
    }
}

impl MachineFacts {
    /// The machine's mark, for its provider.
    pub fn mark(&self, cluster: &str) -> Mark {
        Mark {
            cluster: cluster.to_owned(),
            namespace: self.namespace.clone(),
            pool: self.spec.pool.clone(),
            pool_uid: self.spec.pool_uid.clone(),
            machine: self.name.clone(),
            machine_uid: self.uid.clone(),
            slot: self.spec.slot,
            attempt: self.spec.attempt,
        }
    }

    /// How its provider finds it.
    pub fn reference(&self, cluster: &str) -> MachineRef {
        MachineRef {
            id: Some(self.status.id.clone()).filter(|id| !id.is_empty()),
            mark: self.mark(cluster),
            region: self.spec.region.clone(),
            started: self.status.ready_at.is_some(),
        }
    }

    /// Its key in the table of sessions.
    pub fn session_key(&self) -> MachineKey {
        MachineKey::new(&self.namespace, &self.name)
    }
}

/// What is remembered of a Machine between two looks; losing it costs a look.
#[derive(Clone, Debug, Default)]
pub struct MachineMemory {
    /// When its status was last written.
    pub last_write: Option<Timestamp>,
    /// Since when it is tried to connect to a machine that took runs before.
    pub disconnected_since: Option<Timestamp>,
    /// Since when its Pool is off.
    pub off_since: Option<Timestamp>,
    /// Not to be ordered again before.
    pub order_not_before: Option<Timestamp>,
    /// Its order that waits, or waited, for its turn at the cloud.
    pub queued: Option<Queued>,
    /// When it was last seen that it did not run yet.
    pub starting_at: Option<Timestamp>,
    /// When an order was last sent that may have been accepted.
    pub sent_at: Option<Timestamp>,
    /// An object that its preparation needs and that was missing at the last try to connect.
    pub missing: Option<String>,
}

impl MachineMemory {
    /// Memory of a record that is older than this leadership: the former leader may have ordered it
    /// in its last moment, or have been told to wait.
    pub fn inherited(leads_since: Timestamp) -> Self {
        Self {
            sent_at: Some(leads_since),
            queued: Some(Queued {
                since: leads_since,
                until: leads_since,
            }),
            ..Self::default()
        }
    }

    /// Remembers that the order waits for its turn, for so long if the cloud said how long.
    pub fn waits_for_its_turn(&mut self, wait: Option<Duration>, now: Timestamp) {
        self.queued = Some(Queued {
            since: self.queued.map_or(now, |queued| queued.since),
            until: wait.map_or(now, |wait| after(now, wait)),
        });
    }

    /// Remembers a rate limit that an order, or a look before it, met.
    pub fn heard(&mut self, error: &ProviderError, now: Timestamp) {
        if let ErrorKind::RateLimited(wait) = &error.kind {
            self.waits_for_its_turn(*wait, now);
        }
    }

    /// Remembers the answer to an order. Only a plain refusal is certain to have had no effect.
    pub fn ordered(&mut self, answer: &Result<String, ProviderError>, now: Timestamp) {
        if let Err(error) = answer {
            self.heard(error, now);
        }
        let refused = |error: &ProviderError| !error.kind.leaves_doubt();
        if !answer.as_ref().is_err_and(refused) {
            self.sent_at = Some(now);
        }
    }
}

/// An order that waits for its turn, because its cloud takes only so many calls in a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queued {
    /// Since when.
    pub since: Timestamp,
    /// Until when the cloud last said to wait; the time of that answer, where it did not say how
    /// long.
    pub until: Timestamp,
}

/// Answers to the effects of this round, for the next plan to judge.
#[derive(Clone, Debug, Default)]
pub struct Outcomes {
    /// Of the order.
    pub order: Option<Result<String, ProviderError>>,
    /// Of the deletion.
    pub deletion: Option<Result<Deletion, ProviderError>>,
    /// When the deletion was asked for.
    pub deletion_asked_at: Option<Timestamp>,
}

/// What was read for a Machine, as it came.
pub struct Looked<'a> {
    /// The Machine.
    pub machine: &'a Machine,
    /// The same Machine, as its plan knows it.
    pub facts: MachineFacts,
    /// Its Pool.
    pub pool: Option<Arc<Pool>>,
    /// Timeouts of its Pool.
    pub timeouts: Timeouts,
    /// Its Pool still asks for this kind of machine.
    pub current: bool,
    /// What its Pool asks of this machine.
    pub asked: Option<Asked>,
    /// The Provider that it was ordered from.
    pub provider: Option<&'a ProviderObject>,
    /// Of its provider; `None` = no account is connected.
    pub capabilities: Option<&'a Capabilities>,
    /// Of the kind of its Provider, which is known before an account is connected.
    pub kind: Option<&'a Capabilities>,
    /// The terms that an order must satisfy.
    pub terms: Option<Terms>,
    /// Whether the account's machines tell of changes.
    pub tells_changes: bool,
    /// What its provider answered.
    pub answer: LookupOutcome,
    /// When the provider was asked.
    pub asked_at: Timestamp,
    /// Its session.
    pub session: Option<SessionState>,
    /// Runs that hold it; `None` = not known.
    pub runs: Option<u32>,
    /// Answers to the effects of this round.
    pub outcomes: Outcomes,
}

impl Looked<'_> {
    /// What a plan sees of the Machine.
    pub fn observed(self, memory: &mut MachineMemory, now: Timestamp) -> Observed {
        let Self {
            facts,
            capabilities,
            session,
            outcomes,
            ..
        } = self;
        let provider = self.answer.about(&outcomes);
        if let LookupOutcome::There(found) = &provider
            && matches!(found.phase, ProviderPhase::Starting(_))
        {
            memory.starting_at = Some(self.asked_at);
        }
        let connected = session.as_ref().is_some_and(|state| state.stage == Stage::Ready);
        if connected || facts.status.ready_at.is_none() {
            memory.disconnected_since = None;
        } else {
            memory.disconnected_since.get_or_insert(now);
        }
        if self.pool.as_deref().and_then(why_suspended).is_some() {
            memory.off_since.get_or_insert(now);
        } else {
            memory.off_since = None;
        }
        let account = match (self.provider, capabilities) {
            (Some(provider), Some(_)) => AccountState::Ready {
                policy: ResolvedProvider::of(&provider.spec).host_key_policy,
            },
            (Some(_), None) => AccountState::Waiting,
            (None, Some(_)) => AccountState::Departed,
            (None, None) => AccountState::Gone,
        };
        let settle_time = capabilities.map_or(Duration::ZERO, |c| c.settle_time);
        // An answer that came late tells what was there when it was asked for, also that of a deletion.
        let asked_at = outcomes
            .deletion_asked_at
            .map_or(self.asked_at, |at| at.min(self.asked_at));
        let late = elapsed(asked_at, now);
        Observed {
            counted_by_provider: self.provider.is_none_or(|provider| {
                let status = provider.status.as_ref();
                let cost = status.and_then(|status| status.cost.as_ref());
                cost.is_some_and(|cost| cost.counted.contains(&facts.uid))
            }),
            billed_so_far: money::so_far(self.machine, now).total(),
            unseen_until: facts
                .unseen_until(memory, settle_time)
                .map(|until| after(until, late)),
            waits: Waits::of(
                self.timeouts,
                bootstrap_default(capabilities.or(self.kind), &facts.status),
            ),
            terms: self.terms,
            runs: self.runs,
            machine: facts,
            pool: self.pool,
            current: self.current,
            asked: self.asked,
            account,
            provider,
            order: outcomes.order,
            order_not_before: memory.order_not_before,
            queued: memory.queued,
            deletion: outcomes.deletion,
            session,
            missing: memory.missing.clone(),
            disconnected_since: memory.disconnected_since,
            off_since: memory.off_since,
            last_write: memory.last_write,
            tells_changes: self.tells_changes,
            poll_interval: capabilities.map_or(Duration::from_secs(5), |c| c.poll_interval),
            settle_time,
            knows_token: capabilities.is_some_and(|c| c.idempotency == Idempotency::Token),
            host_keys: capabilities
                .or(self.kind)
                .map_or(HostKeys::FirstContact, |c| c.host_keys),
            billed_time: capabilities.map_or(BilledTime::Existing, |c| c.billed_time),
            starting_at: memory.starting_at,
        }
    }
}

/// The default of `timeouts.bootstrap` of a machine; where its kind of Provider is not known, the
/// value in its status.
fn bootstrap_default(capabilities: Option<&Capabilities>, status: &MachineStatus) -> Duration {
    let recorded = status.bootstrap_timeout.as_ref();
    match capabilities {
        Some(capabilities) => capabilities.bootstrap_timeout,
        None => Lasting::or(recorded, Capabilities::of("").bootstrap_timeout),
    }
}

impl LookupOutcome {
    /// The outcome of a look-up.
    pub fn of(answer: Result<Option<ProviderMachine>, ProviderError>) -> Self {
        match answer {
            Ok(Some(found)) => Self::There(Box::new(found)),
            Ok(None) => Self::Absent,
            Err(error) => Self::Unknown(Some(error.to_string())),
        }
    }

    /// An order that was just accepted made the machine with this id. Another machine with its mark
    /// is of an earlier order, on a copy that lags, and says nothing of this one.
    fn about(self, outcomes: &Outcomes) -> Self {
        match (self, &outcomes.order) {
            (Self::There(found), Some(Ok(id))) if found.id != *id => Self::Absent,
            (answer, _) => answer,
        }
    }
}

/// The Machine as the plan sees it.
pub fn machine_facts(machine: &Machine) -> MachineFacts {
    let key = key_of(machine);
    MachineFacts {
        namespace: key.namespace,
        name: key.name,
        uid: machine.uid().unwrap_or_default(),
        spec: machine.spec.clone(),
        status: machine.status.clone().unwrap_or_default(),
        created_at: created_at(machine),
        deleting_since: machine.meta().deletion_timestamp.as_ref().map(|time| time.0),
        finish_runs: machine.annotations().contains_key(labels::FINISH_RUNS),
        finalizer: is_held(machine),
    }
}

impl MachineFacts {
    /// Whether it was given up as failed.
    pub fn has_failed(&self) -> bool {
        self.status.phase == Some(skyward_api::MachinePhase::Failed)
    }

    /// Whether its provider is asked about it: not about a failed machine, unless it is deleted and
    /// its order may have been accepted, nor about one that is gone.
    pub fn is_asked_about(&self) -> bool {
        let is_unknown = self.deleting_since.is_some() && self.status.id.is_empty();
        self.finalizer && self.status.gone_at.is_none() && (!self.has_failed() || is_unknown)
    }

    /// Whether it may be ordered.
    pub fn may_be_ordered(&self) -> bool {
        let is_new = self.status.id.is_empty() && self.status.gone_at.is_none();
        is_new && self.deleting_since.is_none() && !self.has_failed()
    }

    /// Until when its order may still show up at the provider.
    pub fn unseen_until(&self, memory: &MachineMemory, settle_time: Duration) -> Option<Timestamp> {
        let accepted = self.status.accepted_at.as_ref().map(|time| time.0);
        accepted.or(memory.sent_at).map(|at| after(at, settle_time))
    }
}
