//! Leader election over the Lease `skyward-controller`.
//!
//! Written by ourselves because of the epoch: `leaseTransitions` grows with *every*
//! acquisition, also when the holder is already us (the container was restarted in its
//! Pod, and takes over at once), and agents refuse the commands of an older epoch. Every
//! write carries the resource version it was decided from, so two candidates can never
//! both succeed. Another holder's time is measured by our own clock from when we last
//! saw the record change: clocks of two machines are never compared. What is written while
//! the Lease is held goes through the [`Fence`]; [`crate::rivals`] are other installations.

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease as LeaseObject, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};
use kube::{Api, Client, api::PostParams};
use skyward_api::labels;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    config::Config,
    fence::Fence,
    health::Health,
    rivals::{Rival, Rivals, apart},
};

/// Name of the Lease in the operator's namespace.
pub const LEASE: &str = "skyward-controller";
/// Annotation of the Lease: where the leader serves logs and results, `ip:port`.
pub const DATA_ADDRESS: &str = "skyward.dev/data-address";

/// What to do about the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nobody has made it yet: make it, with this epoch.
    Create(i32),
    /// Take it, with this epoch.
    Take(i32),
    /// Another holds it; look again after this long.
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
    let mut rivals = Rivals::new(client);
    let mut seen: Option<(String, Instant)> = None;
    let mut announced = String::new();
    loop {
        let pause = match step(&api, config, fence, &mut rivals, &mut seen).await {
            Ok(Step::Ours(held)) => {
                health.lease_decided(true);
                return Some(*held);
            }
            Ok(Step::Wait { holder, rest }) => {
                health.lease_decided(false);
                if announced != holder {
                    tracing::info!(holder, "another process leads; standing by");
                    announced = holder;
                }
                rest
            }
            Ok(Step::Rival { rival, stepped_back }) => {
                let reason = format!(
                    "another installation leads this cluster, in the namespace {:?} ({}); one cluster has one: uninstall that one or this",
                    rival.namespace, rival.holder
                );
                if announced != rival.namespace {
                    tracing::warn!("{reason}");
                    announced = rival.namespace;
                }
                health.hindered(reason);
                if stepped_back {
                    apart(config.lease_duration, rand::random())
                } else {
                    rival.rest.min(config.lease_duration / 5)
                }
            }
            Err(error) => {
                tracing::warn!(%error, namespace = config.namespace, "Leases cannot be read or written; trying again");
                Duration::from_secs(2)
            }
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = shutdown.cancelled() => return None,
        }
    }
}

enum Step {
    Ours(Box<Held>),
    Wait { holder: String, rest: Duration },
    Rival { rival: Rival, stepped_back: bool },
}

/// One try: other installations, our Lease, other installations once more.
async fn step(
    api: &Api<LeaseObject>,
    config: &Arc<Config>,
    fence: &Fence,
    rivals: &mut Rivals,
    seen: &mut Option<(String, Instant)>,
) -> Result<Step, kube::Error> {
    if let Some(rival) = rivals.look(config).await? {
        return Ok(Step::Rival {
            rival,
            stepped_back: false,
        });
    }
    let sent = Instant::now();
    let object = match look(api, config, seen).await? {
        Look::Ours(object) => *object,
        Look::Wait { holder, rest } => return Ok(Step::Wait { holder, rest }),
    };
    let held = hold(api.clone(), config.clone(), fence.clone(), object, sent);
    match rivals.look(config).await {
        Ok(None) if !held.lost.is_cancelled() => {
            fence.open_until(sent + config.lease_duration);
            Ok(Step::Ours(Box::new(held)))
        }
        Ok(None) => Ok(Step::Wait {
            holder: "unknown".into(),
            rest: Duration::ZERO,
        }),
        // Both began at the same time: whoever sees the other steps back.
        Ok(Some(rival)) => {
            held.release().await;
            Ok(Step::Rival {
                rival,
                stepped_back: true,
            })
        }
        Err(error) => {
            held.release().await;
            Err(error)
        }
    }
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
    match decide(spec, &config.identity, since.elapsed(), config.lease_duration) {
        Decision::Create(epoch) => {
            let wanted = record(config, None, epoch.max(first_epoch(Timestamp::now())));
            let params = PostParams {
                field_manager: Some(labels::MANAGER.to_owned()),
                ..Default::default()
            };
            match deadline(config, api.create(&params, &wanted)).await {
                Ok(object) => Ok(Look::Ours(Box::new(object))),
                Err(error) if is_conflict(&error) => Ok(Look::Wait {
                    holder: "unknown".into(),
                    rest: Duration::ZERO,
                }),
                Err(error) => Err(error),
            }
        }
        Decision::Take(epoch) => {
            let wanted = record(config, object.as_ref(), epoch);
            match deadline(config, api.replace(LEASE, &PostParams::default(), &wanted)).await {
                Ok(object) => Ok(Look::Ours(Box::new(object))),
                Err(error) if is_conflict(&error) => Ok(Look::Wait {
                    holder: "unknown".into(),
                    rest: Duration::from_millis(100),
                }),
                Err(error) => Err(error),
            }
        }
        Decision::Wait(rest) => {
            let holder = spec.and_then(|s| s.holder_identity.clone()).unwrap_or_default();
            Ok(Look::Wait { holder, rest })
        }
    }
}

/// Epoch of a Lease made anew. Agents refuse every epoch below the newest they saw, also
/// that of a Lease somebody deleted: so it is not 1 but the seconds since 2020, which no
/// Lease that grew by one with each leader has passed.
fn first_epoch(now: Timestamp) -> i32 {
    const START: i64 = 1_577_836_800;
    i32::try_from(now.as_second() - START).unwrap_or(i32::MAX).max(1)
}

/// The record of an acquisition.
fn record(config: &Config, old: Option<&LeaseObject>, epoch: i32) -> LeaseObject {
    let now = MicroTime(Timestamp::now());
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

/// Renews it from now on; `sent` is when the request that acquired it was sent.
fn hold(
    api: Api<LeaseObject>,
    config: Arc<Config>,
    fence: Fence,
    object: LeaseObject,
    sent: Instant,
) -> Held {
    let epoch = object
        .spec
        .as_ref()
        .and_then(|s| s.lease_transitions)
        .unwrap_or(1);
    let lost = CancellationToken::new();
    let stop = CancellationToken::new();
    let renewer = tokio::spawn(renew(
        api.clone(),
        config,
        Renewal { object, sent, epoch },
        fence.clone(),
        lost.clone(),
        stop.clone(),
    ));
    Held {
        epoch: u64::try_from(epoch).unwrap_or(1),
        lost,
        stop,
        renewer,
        api,
        fence,
    }
}

impl Held {
    /// Gives the Lease back, so that a successor need not wait.
    pub async fn release(self) {
        self.stop.cancel();
        self.fence.close();
        let Ok(Some(mut object)) = self.renewer.await else {
            return;
        };
        if let Some(spec) = object.spec.as_mut() {
            spec.holder_identity = None;
            spec.lease_duration_seconds = Some(1);
            spec.renew_time = Some(MicroTime(Timestamp::now()));
        }
        match timeout(
            Duration::from_secs(3),
            self.api.replace(LEASE, &PostParams::default(), &object),
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
}

/// The record as last written, when that was sent, and the epoch.
struct Renewal {
    object: LeaseObject,
    sent: Instant,
    epoch: i32,
}

/// Renews until stopped; answers with the last record, or `None` when it was lost.
async fn renew(
    api: Api<LeaseObject>,
    config: Arc<Config>,
    renewal: Renewal,
    fence: Fence,
    lost: CancellationToken,
    stop: CancellationToken,
) -> Option<LeaseObject> {
    let Renewal {
        mut object,
        sent: mut renewed,
        epoch,
    } = renewal;
    // A successor may take over `lease_duration` after it saw our last renewal; we stop
    // well before, counted from before the request that renewed was sent.
    let patience = config.lease_duration * 2 / 3;
    loop {
        tokio::select! {
            () = sleep(config.lease_duration / 3) => {}
            () = stop.cancelled() => return Some(object),
        }
        loop {
            let sent = Instant::now();
            // This process stood still. Somebody may have led in between, be it in another
            // namespace, where our Lease would show nothing of it.
            if sent.duration_since(renewed) >= config.lease_duration {
                tracing::error!(
                    paused_seconds = sent.duration_since(renewed).as_secs(),
                    "this process stood still for longer than the Lease lasts; it ends, and changes nothing more"
                );
                fence.close();
                lost.cancel();
                return None;
            }
            if let Some(spec) = object.spec.as_mut() {
                spec.renew_time = Some(MicroTime(Timestamp::now()));
            }
            object.metadata.managed_fields = None;
            match deadline(&config, api.replace(LEASE, &PostParams::default(), &object)).await {
                Ok(fresh) => {
                    object = fresh;
                    renewed = sent;
                    fence.open_until(sent + config.lease_duration);
                    break;
                }
                // Somebody touched it (or an answer of ours was lost): is it still ours?
                Err(error) if is_conflict(&error) => match deadline(&config, api.get(LEASE)).await {
                    Ok(fresh) if is_ours(&fresh, &config.identity, epoch) => {
                        object = fresh;
                        continue;
                    }
                    Ok(fresh) => {
                        let holder = fresh.spec.and_then(|s| s.holder_identity).unwrap_or_default();
                        tracing::error!(holder, "another process took the Lease; this one ends");
                        fence.close();
                        lost.cancel();
                        return None;
                    }
                    Err(error) => tracing::warn!(%error, "the Lease could not be read"),
                },
                Err(error) => tracing::warn!(%error, "the Lease could not be renewed"),
            }
            if renewed.elapsed() >= patience {
                tracing::error!(
                    "the Lease could not be renewed for too long; this process ends before another takes over"
                );
                fence.close();
                lost.cancel();
                return None;
            }
            tokio::select! {
                () = sleep(config.lease_duration / 15) => {}
                () = stop.cancelled() => return Some(object),
            }
        }
    }
}

fn is_ours(lease: &LeaseObject, identity: &str, epoch: i32) -> bool {
    lease.spec.as_ref().is_some_and(|spec| {
        spec.holder_identity.as_deref() == Some(identity) && spec.lease_transitions == Some(epoch)
    })
}

fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

async fn deadline<T>(
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
            metrics_address: ([127, 0, 0, 1], 0).into(),
            data_address: ([127, 0, 0, 1], 0).into(),
            store: "/nowhere".into(),
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
