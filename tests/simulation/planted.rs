//! Bugs on purpose: the operator with one of them, made by wrapping what it calls. A simulation that does not
//! find them proves nothing.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use async_trait::async_trait;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use skyward_apisim::{Answer, Call, Verb};
use skyward_core::{
    Accepted, Capabilities, Deletion, ErrorKind, Leftover, MachineRef, Offer, Order, PoolScope, Provider,
    ProviderError, ProviderMachine, Scope,
};
use skyward_remote::{
    Agent, Connections, HostKey, MachineKey, SessionSpec,
    protocol::Reclaim,
    sessions::{FailureKind, SessionState, Stage},
    transcript::Transcript,
};
use tokio::sync::watch;
use tower::{BoxError, Service, ServiceExt};

use crate::{
    rules::text,
    time::{MINUTE, Moment, now},
    world::{CLUSTER, STRANGE, World},
};

/// For so long a list is believed by an operator that keeps lists.
const BELIEVED: Moment = 10 * MINUTE;

/// A bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Each try of an order has another token.
    TokenIgnored,
    /// A machine that may have been ordered is not looked for before it is ordered again: neither by the
    /// controller nor by the client, each of which would be enough ([`crate::client`] knows of it).
    NotLookedFor,
    /// An order whose answer was lost is given again at once.
    OrderedAgainAtOnce,
    /// A cloud that does not answer has nothing.
    UnknownIsEmpty,
    /// What machines shared is not returned.
    NothingReturned,
    /// Machines are not ended.
    NothingEnded,
    /// A machine is taken for gone when its end is ordered.
    GoneTooSoon,
    /// A list is believed for minutes.
    StaleListBelieved,
    /// Everything that is listed and unknown is ended, machines of others too.
    StrangersEnded,
    /// All accounts are one account.
    AccountsConfused,
    /// The last attempt of a Pool is not recorded before the order.
    AttemptsForgotten,
    /// Machines are recorded without the finalizer.
    RecordsUnguarded,
    /// A Pool's finalizer goes when its deletion is seen.
    PoolGoesFirst,
    /// A process that stood still goes on as if it led.
    FenceIgnored,
    /// A machine that shows another host key is dialled anew, and any key is taken for the machine's.
    HostKeyForgotten,
    /// Each try to start a run is another run ([`crate::agents`] knows of this fault and of the next ones, which
    /// are about what the operator tells agents, or hears of them).
    StartedAnew,
    /// A run that was to be started is taken for started.
    StartLost,
    /// A run that was started is taken for ended.
    TakenForEnded,
    /// A run that was to be stopped is taken for one that never began.
    StopLost,
    /// Agents are not told to forget.
    ForgetLost,
    /// An agent forgets a run as soon as it has told its end.
    ForgottenTooSoon,
    /// The end of a run is not heard.
    EndsUnheard,
    /// However a process exits, its run has succeeded.
    ExitCodeLost,
    /// The timeout of a Task does not come to the agent.
    TimeoutLost,
    /// A Task runs before its placement is on record.
    PlacedUnrecorded,
    /// The end of a Task is not recorded.
    EndUnrecorded,
    /// Another attempt of a Task has the number of the first one on record.
    RetriesUncounted,
    /// What a worker of a map holds is not heard: it is given that again ([`crate::shares`] knows of this fault and of
    /// the next ones).
    HoldsLost,
    /// Of the items of a worker no end is heard that comes after those that a new stream tells.
    ItemEndsUnheard,
    /// However the process of an item exits, the item has succeeded.
    ItemFailureLost,
    /// A machine that was out of reach is taken for one that was restarted: what ran there runs again elsewhere.
    LinkLossIsMachineLoss,
    /// An end of an item is acknowledged before it is stored.
    ForgottenUnstored,
    /// Items that a worker is asked to let go of are taken for free at once.
    RecallIsRelease,
    /// A write of the log of a map replaces what another leader wrote ([`crate::stored`] knows of this fault and of the
    /// next one).
    LogOverwritten,
    /// A write of the log of a map is taken for stored when it is sent.
    LogUnwritten,
}

impl Fault {
    /// Where the search for a history that shows it begins. The one that few show has one soon after its first seed: told
    /// from 0 on, its histories took a quarter of the time of all tests here.
    pub(crate) fn first_seed(self) -> u64 {
        if self == Self::UnknownIsEmpty { 2_440 } else { 0 }
    }
}

/// All but those about items of maps, which have histories of their own.
pub(crate) const ALL: [Fault; 27] = [
    Fault::TokenIgnored,
    Fault::NotLookedFor,
    Fault::OrderedAgainAtOnce,
    Fault::UnknownIsEmpty,
    Fault::NothingReturned,
    Fault::NothingEnded,
    Fault::GoneTooSoon,
    Fault::StaleListBelieved,
    Fault::StrangersEnded,
    Fault::AccountsConfused,
    Fault::AttemptsForgotten,
    Fault::RecordsUnguarded,
    Fault::PoolGoesFirst,
    Fault::FenceIgnored,
    Fault::HostKeyForgotten,
    Fault::StartedAnew,
    Fault::StartLost,
    Fault::TakenForEnded,
    Fault::StopLost,
    Fault::ForgetLost,
    Fault::ForgottenTooSoon,
    Fault::EndsUnheard,
    Fault::ExitCodeLost,
    Fault::TimeoutLost,
    Fault::PlacedUnrecorded,
    Fault::EndUnrecorded,
    Fault::RetriesUncounted,
];

/// Those about the items of maps.
pub(crate) const OF_MAPS: [Fault; 8] = [
    Fault::HoldsLost,
    Fault::ItemEndsUnheard,
    Fault::ItemFailureLost,
    Fault::LinkLossIsMachineLoss,
    Fault::ForgottenUnstored,
    Fault::RecallIsRelease,
    Fault::LogOverwritten,
    Fault::LogUnwritten,
];

/// The client of an account, as the operator with that bug uses it.
pub(crate) fn cloud(fault: Option<Fault>, inner: Arc<dyn Provider>) -> Arc<dyn Provider> {
    match fault {
        None => inner,
        Some(fault) => Arc::new(Misused {
            inner,
            fault,
            tries: AtomicU64::new(0),
            lists: Mutex::default(),
        }),
    }
}

/// A list, and when it was asked for.
type List = (Moment, Vec<ProviderMachine>);

struct Misused {
    inner: Arc<dyn Provider>,
    fault: Fault,
    tries: AtomicU64,
    /// By regions.
    lists: Mutex<BTreeMap<Vec<String>, List>>,
}

impl Misused {
    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// The order, with the token of no other try.
    fn anew(&self, order: &Order) -> Order {
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        Order {
            token: format!("{}-{number}", order.token),
            ..order.clone()
        }
    }

    /// A list that may be some minutes old.
    async fn kept_list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        let known = self.lists.lock().get(&scope.regions).cloned();
        if let Some((at, list)) = known
            && now() - at < BELIEVED
        {
            return Ok(list);
        }
        let list = self.inner.list(scope).await?;
        self.lists
            .lock()
            .insert(scope.regions.clone(), (now(), list.clone()));
        Ok(list)
    }

    async fn end_strangers(&self, scope: &Scope) -> Result<(), ProviderError> {
        let scope = Scope {
            cluster: STRANGE.to_owned(),
            ..scope.clone()
        };
        for stranger in self.inner.list(&scope).await? {
            let machine = MachineRef {
                id: Some(stranger.id),
                mark: stranger.mark,
                region: stranger.rental.region.unwrap_or_default(),
                started: false,
            };
            self.inner.delete(&machine).await?;
        }
        Ok(())
    }
}

#[async_trait]
impl Provider for Misused {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    async fn account(&self) -> Result<String, ProviderError> {
        let account = self.inner.account().await?;
        Ok(if self.is(Fault::AccountsConfused) {
            "the account".to_owned()
        } else {
            account
        })
    }

    async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
        self.inner.offers().await
    }

    async fn create(&self, order: &Order) -> Result<Accepted, ProviderError> {
        match self.fault {
            Fault::TokenIgnored => self.inner.create(&self.anew(order)).await,
            Fault::OrderedAgainAtOnce => match self.inner.create(order).await {
                Err(error) if error.kind == ErrorKind::Indeterminate => {
                    self.inner.create(&self.anew(order)).await
                }
                answer => answer,
            },
            _ => self.inner.create(order).await,
        }
    }

    async fn get(&self, machine: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
        match self.fault {
            Fault::NotLookedFor if machine.id.is_none() => Ok(None),
            Fault::UnknownIsEmpty => Ok(self.inner.get(machine).await.unwrap_or_default()),
            Fault::StaleListBelieved => {
                let scope = Scope {
                    cluster: CLUSTER.to_owned(),
                    pool_uid: None,
                    namespace: None,
                    regions: vec![machine.region.clone()],
                };
                let mut list = self.kept_list(&scope).await?.into_iter();
                Ok(list.find(|listed| listed.mark.is(&machine.mark)))
            }
            _ => self.inner.get(machine).await,
        }
    }

    async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
        match self.fault {
            Fault::UnknownIsEmpty => Ok(self.inner.list(scope).await.unwrap_or_default()),
            Fault::StrangersEnded => {
                self.end_strangers(scope).await?;
                self.inner.list(scope).await
            }
            _ => self.inner.list(scope).await,
        }
    }

    async fn delete(&self, machine: &MachineRef) -> Result<Deletion, ProviderError> {
        match self.fault {
            Fault::NothingEnded => Ok(Deletion::Gone),
            Fault::GoneTooSoon => {
                let answer = self.inner.delete(machine).await?;
                Ok(match answer {
                    Deletion::InProgress => Deletion::Gone,
                    answer => answer,
                })
            }
            _ => self.inner.delete(machine).await,
        }
    }

    async fn leftovers(&self, scope: &Scope) -> Result<Vec<Leftover>, ProviderError> {
        match self.fault {
            Fault::UnknownIsEmpty => Ok(self.inner.leftovers(scope).await.unwrap_or_default()),
            _ => self.inner.leftovers(scope).await,
        }
    }

    async fn release(&self, pool: &PoolScope) -> Result<Deletion, ProviderError> {
        match self.fault {
            Fault::NothingReturned => Ok(Deletion::Gone),
            _ => self.inner.release(pool).await,
        }
    }
}

/// A client of the API server whose writes are those of the operator with that bug.
pub(crate) fn writes<S>(
    world: Arc<World>,
    fault: Option<Fault>,
    service: S,
) -> impl Service<http::Request<Body>, Response = Answer, Error = BoxError, Future: Send> + Clone + Send
where
    S: Service<http::Request<Body>, Response = Answer, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
{
    tower::service_fn(move |request: http::Request<Body>| {
        let (world, service) = (world.clone(), service.clone());
        async move {
            let request = match fault {
                Some(fault) => spoilt(&world, fault, request).await?,
                None => request,
            };
            service.oneshot(request).await.map_err(Into::<BoxError>::into)
        }
    })
}

/// What the operator with that bug writes instead.
async fn spoilt(
    world: &World,
    fault: Fault,
    request: http::Request<Body>,
) -> Result<http::Request<Body>, BoxError> {
    let Some(call) = Call::read(request.method(), request.uri(), request.headers()) else {
        return Ok(request);
    };
    let what = (fault, call.resource.plural, call.verb, call.status);
    if !matches!(
        what,
        (
            Fault::AttemptsForgotten | Fault::PoolGoesFirst,
            "pools",
            Verb::Replace,
            true
        ) | (Fault::RecordsUnguarded, "machines", Verb::Create, false)
            | (
                Fault::PlacedUnrecorded | Fault::EndUnrecorded | Fault::RetriesUncounted,
                "tasks",
                Verb::Patch(_),
                true
            )
    ) {
        return Ok(request);
    }
    let (mut head, body) = request.into_parts();
    let mut object: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
    match fault {
        Fault::AttemptsForgotten => {
            if let Some(status) = object["status"].as_object_mut() {
                status.remove("lastAttempt");
            }
        }
        Fault::RecordsUnguarded => object["metadata"]["finalizers"] = json!([]),
        Fault::PlacedUnrecorded | Fault::EndUnrecorded | Fault::RetriesUncounted => {
            // The last operation of the patch has the status.
            let status = object
                .as_array_mut()
                .and_then(|operations| operations.last_mut())
                .map(|operation| &mut operation["value"]);
            let phase = status.as_ref().map_or("", |status| text(status, "/phase"));
            let is_lost = match fault {
                Fault::PlacedUnrecorded => phase == "Running",
                Fault::EndUnrecorded => phase == "Succeeded" || phase == "Failed",
                _ => false,
            };
            if is_lost {
                let query = head.uri.query().unwrap_or_default();
                head.uri = format!("{}?{query}&dryRun=All", head.uri.path()).parse()?;
            }
            if let (Fault::RetriesUncounted, Some(status)) = (fault, status)
                && status["attempt"].as_u64() > Some(1)
            {
                status["attempt"] = 1.into();
            }
        }
        _ if object["metadata"]["deletionTimestamp"].is_string() => {
            let bare = json!({ "metadata": { "finalizers": [] } });
            let _gone = world.server.change("pools", &call.namespace, &call.name, bare);
            world.look();
        }
        _ => {}
    }
    let bytes = serde_json::to_vec(&object)?;
    Ok(http::Request::from_parts(head, Body::from(bytes)))
}

/// Connections to machines, as the operator with that bug uses them.
pub(crate) fn connections(fault: Option<Fault>, inner: Arc<dyn Connections>) -> Arc<dyn Connections> {
    match fault {
        Some(Fault::HostKeyForgotten) => Arc::new(Trusting(inner)),
        _ => inner,
    }
}

/// Trusts any host key.
struct Trusting(Arc<dyn Connections>);

#[async_trait]
impl Connections for Trusting {
    fn ensure(&self, spec: SessionSpec) {
        self.0.ensure(SessionSpec {
            host_key: HostKey::First,
            ..spec
        });
    }

    fn remove(&self, machine: &MachineKey) {
        self.0.remove(machine);
    }

    fn state(&self, machine: &MachineKey) -> Option<SessionState> {
        let state = self.0.state(machine)?;
        if let Stage::Failed(failure) = &state.stage
            && failure.kind == FailureKind::HostKeyChanged
        {
            self.0.remove(machine);
            return None;
        }
        Some(state)
    }

    fn agent(&self, machine: &MachineKey) -> Option<Agent> {
        self.0.agent(machine)
    }

    fn transcript(&self, machine: &MachineKey) -> Option<Transcript> {
        self.0.transcript(machine)
    }

    fn reclaimed(&self, machine: &MachineKey, reclaim: Reclaim) {
        self.0.reclaimed(machine, reclaim);
    }

    fn not_forked(&self, machine: &MachineKey, why: &str) {
        self.0.not_forked(machine, why);
    }

    fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }

    async fn shutdown(&self) {
        self.0.shutdown().await;
    }
}
