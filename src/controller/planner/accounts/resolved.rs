//! A Provider's spec with all defaults applied, so that each default stands in one place. Fields that only
//! its cloud reads are resolved by that cloud.

use std::time::Duration;

use skyward_api::{
    Duration as Lasting,
    provider::{HostKeyPolicy, ProviderSpec},
};

/// Default of `refreshInterval`.
const REFRESH_INTERVAL: Duration = Duration::from_mins(5);
/// Longest time between two looks at the nodes of a cluster, which a look costs nothing.
const CLUSTER_REFRESH: Duration = Duration::from_mins(1);
/// Default of `instanceTimeout`, also for machines whose Provider is gone.
pub const INSTANCE_TIMEOUT: Duration = Duration::from_mins(5);
/// Default of `idleTimeout` where machines cost money.
const IDLE_TIMEOUT: Duration = Duration::from_mins(10);

/// What a Provider wants, without any field that has a default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResolvedProvider {
    /// How often offers are read.
    pub refresh_interval: Duration,
    /// How often the status tells a new `refreshedAt` and nothing else.
    pub tell_interval: Duration,
    /// How long an idle machine lives without its controller.
    pub instance_timeout: Duration,
    /// How long a Pool may have nothing to do before it sleeps; `None` = for ever.
    pub idle_timeout: Option<Duration>,
    /// How host keys are judged.
    pub host_key_policy: HostKeyPolicy,
}

impl ResolvedProvider {
    /// Applies the defaults.
    pub fn of(spec: &ProviderSpec) -> Self {
        let tell_interval = Lasting::or(spec.refresh_interval.as_ref(), REFRESH_INTERVAL);
        Self {
            refresh_interval: match spec.container {
                Some(_) => tell_interval.min(CLUSTER_REFRESH),
                None => tell_interval,
            },
            tell_interval,
            instance_timeout: Lasting::or(spec.instance_timeout.as_ref(), INSTANCE_TIMEOUT),
            idle_timeout: match (&spec.idle_timeout, &spec.container) {
                (Some(set), _) => set.get(),
                (None, Some(_)) => None,
                (None, None) => Some(IDLE_TIMEOUT),
            },
            host_key_policy: spec.host_key_policy.unwrap_or(HostKeyPolicy::TrustOnFirstUse),
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::that_says_nothing(json!({ "lambda": {} }), (300, 300, 300, Some(600), HostKeyPolicy::TrustOnFirstUse))]
    #[case::of_a_cluster(json!({ "container": {} }), (60, 300, 300, None, HostKeyPolicy::TrustOnFirstUse))]
    #[case::of_a_cluster_that_is_read_often(
        json!({ "container": {}, "refreshInterval": "20s" }),
        (20, 20, 300, None, HostKeyPolicy::TrustOnFirstUse)
    )]
    #[case::that_says_everything(
        json!({ "lambda": {}, "refreshInterval": "1h", "instanceTimeout": "1m", "hostKeyPolicy": "Verified", "idleTimeout": "Never" }),
        (3600, 3600, 60, None, HostKeyPolicy::Verified)
    )]
    fn a_provider_has_what_it_says_and_else_each_default(
        #[case] mut spec: Value,
        #[case] (refresh, tell, instance, idle, host_key_policy): (u64, u64, u64, Option<u64>, HostKeyPolicy),
    ) {
        spec["allowedNamespaces"] = json!({ "from": "All" });
        let spec: ProviderSpec = serde_json::from_value(spec).unwrap();
        let expected = ResolvedProvider {
            refresh_interval: Duration::from_secs(refresh),
            tell_interval: Duration::from_secs(tell),
            instance_timeout: Duration::from_secs(instance),
            idle_timeout: idle.map(Duration::from_secs),
            host_key_policy,
        };
        assert_eq!(ResolvedProvider::of(&spec), expected);
    }
}
