//! Keeps a held Lease and its claim until it is stopped or the Lease is lost.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::coordination::v1::Lease as LeaseObject, apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{Api, api::PostParams};
use skyward_core::clock;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{LEASE, Taken, deadline, is_conflict};
use crate::{
    config::Config,
    leadership::{
        claim::{Claims, Kept},
        fence::Fence,
    },
};

/// Longest time between two renewals, however long the Lease lasts: other installations do not
/// believe how long that is, and wait for four times as long as their own lasts, at least 12 s.
const LONGEST_INTERVAL: Duration = Duration::from_secs(10);

/// What keeps the Lease.
pub(super) struct Renewal {
    pub(super) api: Api<LeaseObject>,
    pub(super) config: Arc<Config>,
    pub(super) claims: Claims,
    pub(super) fence: Fence,
    pub(super) epoch: i32,
    /// The record as last written, and when that was sent.
    pub(super) taken: Taken,
}

/// Why the Lease is not renewed any more.
enum End {
    Stopped,
    Lost,
}

impl Renewal {
    /// Renews until stopped; answers with the last record, or `None` when it was lost.
    pub(super) async fn run(
        mut self,
        lost: CancellationToken,
        stop: CancellationToken,
    ) -> Option<LeaseObject> {
        // However this ends, also by a panic, the renewal is over.
        let ended = lost.drop_guard();
        let fence = self.fence.clone();
        match self.renew(&stop).await {
            End::Stopped => {
                ended.disarm();
                Some(self.taken.object)
            }
            End::Lost => {
                fence.close();
                None
            }
        }
    }

    async fn renew(&mut self, stop: &CancellationToken) -> End {
        let lasts = self.config.lease_duration;
        // A successor may take over `lasts` after it saw our last renewal; we stop well
        // before, counted from before the request that renewed was sent.
        let patience = lasts * 2 / 3;
        let mut unknown = String::new();
        loop {
            tokio::select! {
                () = sleep_until(self.taken.sent + (lasts / 3).min(LONGEST_INTERVAL)) => {}
                () = stop.cancelled() => return End::Stopped,
            }
            loop {
                let sent = Instant::now();
                let paused = sent.duration_since(self.taken.sent);
                // This process stood still. Another process may have led in between, perhaps in
                // another namespace, which our Lease would not show.
                if paused >= lasts {
                    tracing::error!(
                        paused_seconds = paused.as_secs(),
                        "this process stood still for longer than the Lease lasts; it ends, and changes nothing more"
                    );
                    return End::Lost;
                }
                match self.once(sent).await {
                    Once::Renewed => {
                        if !self.still_claimed(&mut unknown).await {
                            return End::Lost;
                        }
                        self.fence.open_until(sent + lasts);
                        break;
                    }
                    Once::Again => continue,
                    Once::Lost => return End::Lost,
                    Once::Failed => {}
                }
                if self.taken.sent.elapsed() >= patience {
                    tracing::error!(
                        "the Lease could not be renewed for too long; this process ends before another takes over"
                    );
                    return End::Lost;
                }
                tokio::select! {
                    () = sleep(lasts / 15) => {}
                    () = stop.cancelled() => return End::Stopped,
                }
            }
        }
    }

    /// One try to renew the Lease.
    async fn once(&mut self, sent: Instant) -> Once {
        let object = &mut self.taken.object;
        if let Some(spec) = object.spec.as_mut() {
            spec.renew_time = Some(MicroTime(clock::now()));
        }
        object.metadata.managed_fields = None;
        let params = PostParams::default();
        let renewed = self.api.replace(LEASE, &params, object);
        match deadline(&self.config, renewed).await {
            Ok(fresh) => {
                self.taken.object = fresh;
                self.taken.sent = sent;
                Once::Renewed
            }
            // Another writer changed the Lease (or an answer of ours was lost): is it still ours?
            Err(error) if is_conflict(&error) => match deadline(&self.config, self.api.get(LEASE)).await {
                Ok(fresh) if is_ours(&fresh, &self.config.identity, self.epoch) => {
                    self.taken.object = fresh;
                    Once::Again
                }
                Ok(fresh) => {
                    let holder = fresh.spec.and_then(|s| s.holder_identity).unwrap_or_default();
                    tracing::error!(holder, "another process took the Lease; this one ends");
                    Once::Lost
                }
                Err(error) => {
                    tracing::warn!(%error, "the Lease could not be read");
                    Once::Failed
                }
            },
            Err(error) => {
                tracing::warn!(%error, "the Lease could not be renewed");
                Once::Failed
            }
        }
    }

    /// Whether no other installation has claimed the cluster; a repeated failure is logged once.
    async fn still_claimed(&self, unknown: &mut String) -> bool {
        match self.claims.keep(&self.config, &self.taken.claim).await {
            Kept::Ours => unknown.clear(),
            Kept::Unknown(why) => {
                if *unknown != why {
                    tracing::warn!(
                        why,
                        "the claim to lead cannot be looked after; this process leads on"
                    );
                    *unknown = why;
                }
            }
            Kept::Lost(namespace) => {
                tracing::error!(
                    namespace,
                    "another installation leads this cluster now; this process ends"
                );
                return false;
            }
        }
        true
    }
}

/// The outcome of one try to renew the Lease.
enum Once {
    Renewed,
    /// The record changed, and is still ours.
    Again,
    Lost,
    Failed,
}

pub(super) fn is_ours(lease: &LeaseObject, identity: &str, epoch: i32) -> bool {
    lease.spec.as_ref().is_some_and(|spec| {
        spec.holder_identity.as_deref() == Some(identity) && spec.lease_transitions == Some(epoch)
    })
}
