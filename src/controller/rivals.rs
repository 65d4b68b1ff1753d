//! Another installation of the operator on the same cluster.
//!
//! Our resources have no owner but the cluster, so two installations would both order the
//! machines of every Pool. Each has its Lease in its own namespace; so whoever wants to
//! lead looks at the Leases of that name in all namespaces, before it takes its own and
//! once more after. Of two that begin at the same time each has written its own before it
//! reads the other's: at least one sees the other and steps back. As with our own Lease,
//! time is measured by our clock from when we last saw a record change.

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
    /// When its Lease runs out, if it is not renewed.
    pub(crate) rest: Duration,
}

/// What was seen of other installations.
pub(crate) struct Rivals {
    leases: Api<Lease>,
    /// By namespace: version of the Lease, and since when it is that.
    seen: BTreeMap<String, (String, Instant)>,
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
            let holder = spec.holder_identity.unwrap_or_default();
            if namespace == config.namespace || holder.is_empty() {
                continue;
            }
            let since = match self.seen.get(&namespace) {
                Some((known, since)) if *known == version => *since,
                _ => now,
            };
            let lasts = spec
                .lease_duration_seconds
                .and_then(|seconds| u64::try_from(seconds).ok())
                .map_or(config.lease_duration, Duration::from_secs);
            let rest = (since + lasts).saturating_duration_since(now);
            if !rest.is_zero() {
                rival.get_or_insert(Rival {
                    namespace: namespace.clone(),
                    holder,
                    rest,
                });
            }
            seen.insert(namespace, (version, since));
        }
        self.seen = seen;
        rival
    }
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

    #[tokio::test]
    async fn our_own_lease_and_a_released_one_are_no_rivals() {
        let leases = [
            lease("ours", Some("other-pod"), "1"),
            lease("gone", None, "2"),
            lease("gone2", Some(""), "3"),
        ];
        assert_eq!(rivals().judge(&leases, &config(), Instant::now()), None);
    }

    #[tokio::test]
    async fn another_namespaces_leader_is_a_rival_until_its_lease_runs_out_by_our_clock() {
        let (mut rivals, config, start) = (rivals(), config(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let held = |version| [lease("theirs", Some("pod"), version)];
        let first = rivals.judge(&held("1"), &config, at(0)).unwrap();
        assert_eq!(
            (first.namespace.as_str(), first.rest),
            ("theirs", Duration::from_secs(15))
        );
        // It renews.
        assert!(rivals.judge(&held("2"), &config, at(14)).is_some());
        assert!(rivals.judge(&held("2"), &config, at(28)).is_some());
        // It does not renew any more.
        assert_eq!(rivals.judge(&held("2"), &config, at(29)), None);
    }
}
