//! Leader election over the Lease `skyward-controller`.
//!
//! Written by ourselves because of the epoch: `leaseTransitions` grows with *every*
//! acquisition, also when the holder is already us (the container was restarted in its
//! Pod, and takes over at once), and agents refuse the commands of an older epoch. Every
//! write carries the resource version it was decided from, so two candidates can never
//! both succeed. Another holder's time is measured by our own clock from when we last
//! saw the record change: clocks of two machines are never compared. Writes of the holder pass the
//! [`Fence`]; [`crate::leadership::claim`] says which installation's Lease counts.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease as LeaseObject, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use skyward_api::labels;
use skyward_core::clock;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    health::Health,
    leadership::{
        claim::{Claim, Claims, Hindrance},
        fence::Fence,
    },
};

mod renewal;

use renewal::Renewal;

/// Name of the Lease in the operator's namespace.
pub const LEASE: &str = "skyward-controller";
/// Annotation of the Lease: where the leader serves logs and results, `ip:port`.
pub const DATA_ADDRESS: &str = "skyward.dev/data-address";

/// What to do about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The Lease does not exist: make it, with this epoch.
    Create(i32),
    /// Take it, with this epoch.
    Take(i32),
    /// Another process holds it; look again after this long.
    Wait(Duration),
}

/// Decides. `unchanged_for` says for how long we have seen the record as it is now.
pub fn decide(
    lease: Option<&LeaseSpec>,
    identity: &str,
    unchanged_for: Duration,
    ours: Duration,
) -> Decision {
    let Some(spec) = lease else {
        return Decision::Create(1);
    };
    let next = spec.lease_transitions.unwrap_or(0).saturating_add(1);
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder.is_empty() || holder == identity {
        return Decision::Take(next);
    }
    let duration = spec
        .lease_duration_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map_or(ours, Duration::from_secs);
    match duration.checked_sub(unchanged_for) {
        None | Some(Duration::ZERO) => Decision::Take(next),
        Some(rest) => Decision::Wait(rest.min(ours / 5)),
    }
}

/// A held Lease.
#[derive(Debug)]
pub struct Held {
    /// Epoch of this leadership.
    pub epoch: u64,
    /// Cancelled at once when the Lease is lost.
    pub lost: CancellationToken,
    stop: CancellationToken,
    renewer: tokio::task::JoinHandle<Option<LeaseObject>>,
    api: Api<LeaseObject>,
    fence: Fence,
}

/// Waits until the Lease is ours, and no other installation leads this cluster; then the
/// fence is open. The client must not be fenced. `None` = shutdown came first.
pub async fn acquire(
    client: Client,
    config: &Arc<Config>,
    health: &Health,
    fence: &Fence,
    shutdown: &CancellationToken,
) -> Option<Held> {
    let api: Api<LeaseObject> = Api::namespaced(client.clone(), &config.namespace);
    let mut claims = Claims::new(client);
    let mut seen: Option<(String, Instant)> = None;
    let mut announced = String::new();
    loop {
        let pause = match step(&api, config, &mut claims, &mut seen).await {
            Ok(Step::Ours(taken)) => {
                let held = hold(api, config.clone(), claims, fence.clone(), taken);
                health.lease_decided(true);
                return Some(held);
            }
            Ok(Step::Wait { holder, rest }) => {
                health.lease_decided(false);
                if announced != holder {
                    tracing::info!(holder, "another process leads; standing by");
                    announced = holder;
                }
                rest
            }
            Ok(Step::Hindered(Hindrance { reason, rest })) => {
                if announced != reason {
                    tracing::warn!("{reason}");
                    announced.clone_from(&reason);
                }
                health.hindered(reason);
                rest
            }
            Err(error) => {
                tracing::warn!(%error, namespace = config.namespace, "the Lease or the claim to lead cannot be read or written; trying again");
                if let kube::Error::Api(status) = &error
                    && status.code == 403
                {
                    health.hindered(format!(
                        "the API server refuses what the election of the leader needs: {}; apply the operator's ClusterRole and Role: install the chart, or config/default, again",
                        status.message
                    ));
                }
                Duration::from_secs(2)
            }
        };
        shutdown.run_until_cancelled(sleep(pause)).await?;
    }
}

/// Our Lease and the claim, just taken.
struct Taken {
    object: LeaseObject,
    /// When the request that took the Lease was sent.
    sent: Instant,
    claim: Claim,
}

enum Step {
    Ours(Box<Taken>),
    Wait { holder: String, rest: Duration },
    Hindered(Hindrance),
}

/// One try: whether another installation leads, our Lease, and then the claim.
async fn step(
    api: &Api<LeaseObject>,
    config: &Config,
    claims: &mut Claims,
    seen: &mut Option<(String, Instant)>,
) -> Result<Step, kube::Error> {
    // Checked before the Lease is taken: a held Lease says that its holder leads or is about to.
    if let Some(hindrance) = claims.hindrance(config).await? {
        return Ok(Step::Hindered(hindrance));
    }
    let sent = Instant::now();
    let object = match look(api, config, seen).await? {
        Look::Ours(object) => *object,
        Look::Wait { holder, rest } => return Ok(Step::Wait { holder, rest }),
    };
    let claim = Claim {
        namespace: config.namespace.clone(),
        lease_uid: object.uid().unwrap_or_default(),
        epoch: epoch_of(&object).into(),
    };
    let hindrance = match claims.take(config, &claim).await {
        Ok(None) => {
            return Ok(Step::Ours(Box::new(Taken { object, sent, claim })));
        }
        Ok(Some(hindrance)) => Ok(Step::Hindered(hindrance)),
        Err(error) => Err(error),
    };
    release(api, object).await;
    hindrance
}

fn epoch_of(lease: &LeaseObject) -> i32 {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.lease_transitions).unwrap_or(1)
}

enum Look {
    Ours(Box<LeaseObject>),
    Wait { holder: String, rest: Duration },
}

async fn look(
    api: &Api<LeaseObject>,
    config: &Config,
    seen: &mut Option<(String, Instant)>,
) -> Result<Look, kube::Error> {
    let object = deadline(config, api.get_opt(LEASE)).await?;
    let version = object
        .as_ref()
        .and_then(|o| o.metadata.resource_version.clone())
        .unwrap_or_default();
    let since = match seen {
        Some((known, since)) if *known == version => *since,
        _ => {
            let now = Instant::now();
            *seen = Some((version, now));
            now
        }
    };
    let spec = object.as_ref().and_then(|o| o.spec.as_ref());
    // An object without spec is as good as a free one.
    let empty = LeaseSpec::default();
    let spec = object.as_ref().map(|_| spec.unwrap_or(&empty));
    let (written, rest) = match decide(spec, &config.identity, since.elapsed(), config.lease_duration) {
        Decision::Create(epoch) => {
            let wanted = record(config, None, epoch.max(first_epoch(clock::now())));
            let params = PostParams {
                field_manager: Some(labels::MANAGER.to_owned()),
                ..Default::default()
            };
            let created = deadline(config, api.create(&params, &wanted)).await;
            (created, Duration::ZERO)
        }
        Decision::Take(epoch) => {
            let wanted = record(config, object.as_ref(), epoch);
            let taken = deadline(config, api.replace(LEASE, &PostParams::default(), &wanted)).await;
            (taken, Duration::from_millis(100))
        }
        Decision::Wait(rest) => {
            let holder = spec.and_then(|s| s.holder_identity.clone()).unwrap_or_default();
            return Ok(Look::Wait { holder, rest });
        }
    };
    match written {
        Ok(object) => Ok(Look::Ours(Box::new(object))),
        Err(error) if is_conflict(&error) => Ok(Look::Wait {
            holder: "unknown".into(),
            rest,
        }),
        Err(error) => Err(error),
    }
}

/// Epoch of a Lease made anew. Agents refuse every epoch below the newest that they saw, also after
/// somebody deleted the Lease: so the first epoch is not 1 but the seconds since 2020, which no
/// Lease that grew by one with each leader has passed.
fn first_epoch(now: Timestamp) -> i32 {
    const START: i64 = 1_577_836_800;
    i32::try_from(now.as_second() - START).unwrap_or(i32::MAX).max(1)
}

/// The record of an acquisition.
fn record(config: &Config, old: Option<&LeaseObject>, epoch: i32) -> LeaseObject {
    let now = MicroTime(clock::now());
    let mut metadata = old.map_or_else(
        || ObjectMeta {
            name: Some(LEASE.to_owned()),
            namespace: Some(config.namespace.clone()),
            labels: Some([(labels::MANAGED_BY.to_owned(), labels::MANAGER.to_owned())].into()),
            ..Default::default()
        },
        |old| ObjectMeta {
            managed_fields: None,
            ..old.metadata.clone()
        },
    );
    let annotations = metadata.annotations.get_or_insert_default();
    match &config.advertise {
        Some(address) => annotations.insert(DATA_ADDRESS.to_owned(), address.clone()),
        None => annotations.remove(DATA_ADDRESS),
    };
    LeaseObject {
        metadata,
        spec: Some(LeaseSpec {
            acquire_time: Some(now.clone()),
            holder_identity: Some(config.identity.clone()),
            lease_duration_seconds: Some(
                i32::try_from(config.lease_duration.as_secs())
                    .unwrap_or(15)
                    .max(1),
            ),
            lease_transitions: Some(epoch),
            renew_time: Some(now),
            ..Default::default()
        }),
    }
}

/// Opens the fence and renews from now on.
fn hold(api: Api<LeaseObject>, config: Arc<Config>, claims: Claims, fence: Fence, taken: Box<Taken>) -> Held {
    let epoch = epoch_of(&taken.object);
    let (lost, stop) = (CancellationToken::new(), CancellationToken::new());
    // Counted from the request for the Lease, however long the claim took.
    fence.open_until(taken.sent + config.lease_duration);
    let renewal = Renewal {
        api: api.clone(),
        config,
        claims,
        fence: fence.clone(),
        epoch,
        taken: *taken,
    };
    Held {
        epoch: u64::try_from(epoch).unwrap_or(1),
        renewer: tokio::spawn(renewal.run(lost.clone(), stop.clone())),
        lost,
        stop,
        api,
        fence,
    }
}

impl Held {
    /// The process dies: nothing is renewed or released.
    #[cfg(test)]
    pub(crate) fn die(self) {
        self.renewer.abort();
    }

    /// Gives the Lease back, so that a successor need not wait.
    pub async fn release(self) {
        self.stop.cancel();
        self.fence.close();
        if let Ok(Some(object)) = self.renewer.await {
            release(&self.api, object).await;
        }
    }
}

/// Gives the Lease back, from its last written version.
async fn release(api: &Api<LeaseObject>, mut object: LeaseObject) {
    if let Some(spec) = object.spec.as_mut() {
        spec.holder_identity = None;
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(clock::now()));
    }
    object.metadata.managed_fields = None;
    match timeout(
        Duration::from_secs(3),
        api.replace(LEASE, &PostParams::default(), &object),
    )
    .await
    {
        Ok(Ok(_)) => tracing::info!("the Lease is released"),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the Lease could not be released; a successor waits until it expires");
        }
        Err(_) => {
            tracing::warn!("the Lease could not be released in time; a successor waits until it expires");
        }
    }
}

/// Whether the Lease, read anew, is held by this process in this epoch. The client need not be
/// fenced, since it only reads.
pub async fn is_still_ours(client: &Client, config: &Config, epoch: u64) -> Result<bool, kube::Error> {
    let api: Api<LeaseObject> = Api::namespaced(client.clone(), &config.namespace);
    let lease = deadline(config, api.get_opt(LEASE)).await?;
    let epoch = i32::try_from(epoch).unwrap_or(i32::MAX);
    Ok(lease.is_some_and(|lease| renewal::is_ours(&lease, &config.identity, epoch)))
}

/// Writes an epoch into our own Lease, so that the next leader takes one above it. That ends this
/// leadership: the Lease's epoch is no longer this process's.
pub async fn raise_epoch(client: &Client, config: &Config, ours: u64, epoch: u64) -> Result<(), kube::Error> {
    let api: Api<LeaseObject> = Api::namespaced(client.clone(), &config.namespace);
    let narrow = |epoch: u64| i32::try_from(epoch).unwrap_or(i32::MAX - 1);
    let mut lease = deadline(config, api.get(LEASE)).await?;
    if !renewal::is_ours(&lease, &config.identity, narrow(ours)) {
        // The renewal finds that out as well.
        return Err(kube::Error::Service("the Lease is not ours any more".into()));
    }
    lease.metadata.managed_fields = None;
    if let Some(spec) = lease.spec.as_mut() {
        spec.lease_transitions = Some(narrow(epoch));
    }
    deadline(config, api.replace(LEASE, &PostParams::default(), &lease))
        .await
        .map(drop)
}

pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// One or more calls of the election, with their deadline.
pub(crate) async fn deadline<T>(
    config: &Config,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    match timeout(config.lease_duration / 3, call).await {
        Ok(result) => result,
        Err(_) => Err(kube::Error::Service(
            "the API server did not answer in time".into(),
        )),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::PodNetwork;

    /// Settings of a process in that namespace.
    pub(crate) fn config(namespace: &str) -> Config {
        Config {
            namespace: namespace.to_owned(),
            identity: "me".to_owned(),
            advertise: None,
            pod_uid: None,
            health_address: ([127, 0, 0, 1], 0).into(),
            metrics_address: ([127, 0, 0, 1], 0).into(),
            debug_address: ([127, 0, 0, 1], 0).into(),
            namespaces: Default::default(),
            data_address: ([127, 0, 0, 1], 0).into(),
            store: "/nowhere".into(),
            store_quota: skyward_store::Quota::default(),
            hold_for: Duration::from_hours(1),
            agents: "/nowhere".into(),
            node_image: String::new(),
            pod_network: PodNetwork::Direct,
            lease_duration: OURS,
            concurrency: 1,
        }
    }

    const OURS: Duration = Duration::from_secs(15);

    fn lease(holder: Option<&str>, transitions: Option<i32>) -> LeaseSpec {
        LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_transitions: transitions,
            lease_duration_seconds: Some(15),
            ..Default::default()
        }
    }

    #[rstest]
    #[case::nobody_made_it(None, 0, Decision::Create(1))]
    #[case::released(Some(lease(None, Some(4))), 0, Decision::Take(5))]
    #[case::released_with_an_empty_name(Some(lease(Some(""), Some(4))), 0, Decision::Take(5))]
    #[case::our_own_from_before_a_restart(Some(lease(Some("me"), Some(4))), 0, Decision::Take(5))]
    #[case::another_that_renews(Some(lease(Some("you"), Some(4))), 0, Decision::Wait(Duration::from_secs(3)))]
    #[case::another_about_to_expire(
        Some(lease(Some("you"), Some(4))),
        14,
        Decision::Wait(Duration::from_secs(1))
    )]
    #[case::another_that_died(Some(lease(Some("you"), Some(4))), 15, Decision::Take(5))]
    #[case::without_transitions(Some(lease(Some("you"), None)), 99, Decision::Take(1))]
    fn decisions(#[case] spec: Option<LeaseSpec>, #[case] unchanged: u64, #[case] expected: Decision) {
        assert_eq!(
            decide(spec.as_ref(), "me", Duration::from_secs(unchanged), OURS),
            expected
        );
    }

    #[test]
    fn a_lease_made_anew_is_newer_than_one_that_was_deleted() {
        let at = |text: &str| first_epoch(text.parse().unwrap());
        let deleted = at("2026-11-21T00:00:00Z") + 500;
        assert!(
            at("2026-11-21T01:00:00Z") > deleted,
            "after 500 leaders in an hour"
        );
        assert_eq!(at("1999-01-01T00:00:00Z"), 1, "a clock that is wrong");
    }

    #[test]
    fn a_lease_that_says_how_long_it_lasts_is_believed() {
        let spec = LeaseSpec {
            lease_duration_seconds: Some(60),
            ..lease(Some("you"), Some(1))
        };
        assert_eq!(
            decide(Some(&spec), "me", Duration::from_secs(20), OURS),
            Decision::Wait(Duration::from_secs(3)),
        );
    }
}
