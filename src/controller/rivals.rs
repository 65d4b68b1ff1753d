//! Another installation of the operator on the same cluster.
//!
//! Our resources have no owner but the cluster, so two installations would both order the
//! machines of every Pool. Each has its Lease in its own namespace; so whoever wants to
//! lead looks at the Leases of that name in all namespaces, before it takes its own and
//! once more after. Of two that begin at the same time each has written its own before it
//! reads the other's: at least one sees the other and steps back, and if both do, a random
//! wait keeps them from doing so for ever. As with our own Lease, time is measured by our
//! clock from when we last saw a record change.
//!
//! Another installation's Lease counts for twice as long as it lasts: when its leader ends or
//! stands still, its own next leader comes first. So does one that was released while we
//! looked, by a restart or an upgrade; one that we never saw held counts for nothing.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, ResourceExt, api::ListParams};
use tokio::time::{Instant, timeout};

use crate::{config::Config, lease::LEASE};

/// Another installation that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rival {
    /// The namespace it is installed in.
    pub(crate) namespace: String,
    /// Its process.
    pub(crate) holder: String,
    /// When it does not count any more, if nobody renews or takes its Lease.
    pub(crate) rest: Duration,
}

/// A Lease that is or was held.
struct Seen {
    version: String,
    /// Since when it is as it is.
    since: Instant,
    holder: String,
    /// For how long it was last held; a released one does not say.
    lasts: Duration,
}

/// What was seen of other installations.
pub(crate) struct Rivals {
    leases: Api<Lease>,
    /// By namespace.
    seen: BTreeMap<String, Seen>,
}

impl Rivals {
    /// Has seen nothing yet.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            leases: Api::all(client),
            seen: BTreeMap::new(),
        }
    }

    /// Looks. `None` = nobody else leads this cluster.
    pub(crate) async fn look(&mut self, config: &Config) -> Result<Option<Rival>, kube::Error> {
        let params = ListParams::default().fields(&format!("metadata.name={LEASE}"));
        let limit = config.lease_duration / 3;
        let listed = timeout(limit, self.leases.list(&params))
            .await
            .map_err(|_| kube::Error::Service("the API server did not answer in time".into()))??;
        Ok(self.judge(&listed.items, config, Instant::now()))
    }

    fn judge(&mut self, leases: &[Lease], config: &Config, now: Instant) -> Option<Rival> {
        let mut seen = BTreeMap::new();
        let mut rival = None;
        for lease in leases {
            let namespace = lease.namespace().unwrap_or_default();
            let version = lease.resource_version().unwrap_or_default();
            let spec = lease.spec.clone().unwrap_or_default();
            let known = self.seen.remove(&namespace);
            let holder = spec.holder_identity.filter(|holder| !holder.is_empty());
            let is_held = holder.is_some();
            let held_by = holder.or_else(|| known.as_ref().map(|known| known.holder.clone()));
            let Some(holder) = held_by.filter(|_| namespace != config.namespace) else {
                continue;
            };
            let since = match &known {
                Some(known) if known.version == version => known.since,
                Some(_) | None => now,
            };
            let said = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(config.lease_duration, Duration::from_secs);
            let lasts = known.filter(|_| !is_held).map_or(said, |known| known.lasts);
            let rest = (since + 2 * lasts).saturating_duration_since(now);
            if !rest.is_zero() {
                rival.get_or_insert(Rival {
                    namespace: namespace.clone(),
                    holder: holder.clone(),
                    rest,
                });
            }
            if is_held || !rest.is_zero() {
                let now_seen = Seen {
                    version,
                    since,
                    holder,
                    lasts,
                };
                seen.insert(namespace, now_seen);
            }
        }
        self.seen = seen;
        rival
    }
}

/// How long to wait after stepping back: up to half of what a Lease lasts, so that two who
/// stepped back from each other do not meet again. `chance` is in 0..1.
pub(crate) fn apart(lease_duration: Duration, chance: f64) -> Duration {
    (lease_duration / 2).mul_f64(chance.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn lease(namespace: &str, holder: Option<&str>, version: &str) -> Lease {
        serde_json::from_value(json!({
            "metadata": { "name": LEASE, "namespace": namespace, "resourceVersion": version },
            "spec": { "holderIdentity": holder, "leaseDurationSeconds": 15 },
        }))
        .unwrap()
    }

    fn rivals() -> Rivals {
        let config = kube::Config::new("http://localhost".parse().unwrap());
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        Rivals::new(Client::try_from(config).unwrap())
    }

    fn config() -> Config {
        crate::lease::tests::config("ours")
    }

    fn at(seconds: u64) -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        *START.get_or_init(Instant::now) + Duration::from_secs(seconds)
    }

    fn held(version: &str) -> [Lease; 1] {
        [lease("theirs", Some("pod"), version)]
    }

    /// As `Held::release` leaves it.
    fn released(version: &str) -> [Lease; 1] {
        let mut lease = lease("theirs", None, version);
        lease.spec.as_mut().unwrap().lease_duration_seconds = Some(1);
        [lease]
    }

    #[tokio::test]
    async fn our_own_lease_and_one_that_was_released_before_we_came_are_no_rivals() {
        let leases = [
            lease("ours", Some("other-pod"), "1"),
            lease("gone", None, "2"),
            lease("gone2", Some(""), "3"),
        ];
        let mut rivals = rivals();
        assert_eq!(rivals.judge(&leases, &config(), at(0)), None);
        assert_eq!(rivals.judge(&leases, &config(), at(1)), None);
    }

    #[tokio::test]
    async fn another_installation_is_a_rival_for_twice_its_lease_so_that_its_next_leader_comes_first() {
        let (mut rivals, config) = (rivals(), config());
        let first = rivals.judge(&held("1"), &config, at(0)).unwrap();
        assert_eq!(
            (first.namespace.as_str(), first.holder.as_str(), first.rest),
            ("theirs", "pod", Duration::from_secs(30))
        );
        // It renews.
        assert!(rivals.judge(&held("2"), &config, at(14)).is_some());
        // It stands still: at 29 its own follower may take over, at 44 we may.
        assert!(rivals.judge(&held("2"), &config, at(43)).is_some());
        assert_eq!(rivals.judge(&held("2"), &config, at(44)), None);
        // It came back before we took ours.
        assert!(rivals.judge(&held("3"), &config, at(45)).is_some());
    }

    #[tokio::test]
    async fn a_lease_that_we_saw_released_counts_as_long_as_a_restart_may_take() {
        let (mut rivals, config) = (rivals(), config());
        rivals.judge(&held("1"), &config, at(0));
        let rival = rivals.judge(&released("2"), &config, at(10)).unwrap();
        assert_eq!(
            (rival.holder.as_str(), rival.rest),
            ("pod", Duration::from_secs(30))
        );
        assert!(rivals.judge(&released("2"), &config, at(39)).is_some());
        assert_eq!(rivals.judge(&released("2"), &config, at(40)), None);
        assert_eq!(
            rivals.judge(&released("2"), &config, at(41)),
            None,
            "and never again"
        );
    }

    #[tokio::test]
    async fn a_lease_that_was_deleted_does_not_count() {
        let (mut rivals, config) = (rivals(), config());
        rivals.judge(&held("1"), &config, at(0));
        assert_eq!(rivals.judge(&[], &config, at(1)), None);
        assert_eq!(rivals.judge(&released("2"), &config, at(2)), None);
    }

    /// Two that step back at once, as `lease::acquire` does: each looks again after its own
    /// random wait and from then on in steps of a fifth, and takes its Lease as soon as it
    /// sees no rival.
    #[tokio::test]
    async fn of_two_that_stepped_back_from_each_other_one_leads_at_the_next_try() {
        let (mut one, mut other, config) = (rivals(), rivals(), config());
        let wait = |chance| apart(config.lease_duration, chance);
        let until_free = |rivals: &mut Rivals, mut now: Instant| {
            while let Some(rival) = rivals.judge(&released("2"), &config, now) {
                now += rival.rest.min(config.lease_duration / 5);
            }
            now
        };
        one.judge(&held("1"), &config, at(0));
        other.judge(&held("1"), &config, at(0));
        let first = until_free(&mut one, at(0) + wait(0.2));
        let second = until_free(&mut other, at(0) + wait(0.3));
        assert_eq!(second - first, wait(0.1), "as far apart as their waits");
        assert!(
            other.judge(&held("3"), &config, second).is_some(),
            "the second finds the first"
        );
        assert_eq!(
            (wait(0.0), wait(1.0)),
            (Duration::ZERO, Duration::from_millis(7500))
        );
    }
}
