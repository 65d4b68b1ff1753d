//! What is made from a Machine's record and its Pool: the order to its provider and the
//! description of its session. Pure.

use std::{collections::BTreeMap, time::Duration};

use skyward_api::{
    Duration as Lasting, Pool,
    machine::Market as RecordedMarket,
    offer::Architecture,
    pool::{Image, PoolSpec},
    provider::ProviderSpec,
    shared::Size,
};
use skyward_core::{
    Capabilities, Market, Order, boot, machine::Endpoint, order::PoolShape, provider::ReclaimNotice,
};
use skyward_remote::{
    SessionSpec,
    bootstrap::{PipIndex, Spec as Bootstrap},
    sessions::Lease,
};

use super::observe::{MachineFacts, Waits};
use crate::keys::PoolKey;

/// Default of `shmSize`.
const SHM_BYTES: u64 = 1 << 30;
/// Default of `instanceTimeout`.
const INSTANCE_TIMEOUT: Duration = Duration::from_mins(5);
/// Default of `sshRetryInterval`.
const SSH_RETRY: Duration = Duration::from_secs(5);
/// User that Tasks run as by default.
const WORKER_USER: &str = "skyward";

/// What an order is made from, besides the machine and its Pool.
pub struct OrderParts<'a> {
    /// The installation.
    pub cluster: &'a str,
    /// The one public key that may log in.
    pub authorized_key: &'a str,
    /// What the provider can do.
    pub capabilities: &'a Capabilities,
    /// The provider's id of the Offer.
    pub offer: String,
    /// Waits of the Pool.
    pub waits: Waits,
}

/// The order of a machine. What the Pool asked for stands in the record: the Pool may ask
/// for something else by now.
pub fn order(machine: &MachineFacts, pool: &PoolSpec, parts: OrderParts<'_>) -> Order {
    let spec = &machine.spec;
    let architecture = match spec.architecture.unwrap_or(Architecture::X86_64) {
        Architecture::X86_64 => "amd64",
        Architecture::Arm64 => "arm64",
    };
    Order {
        mark: machine.mark(parts.cluster),
        token: spec.token.clone(),
        offer: parts.offer,
        instance_type: spec.instance_type.clone(),
        region: spec.region.clone(),
        market: match spec.market {
            RecordedMarket::OnDemand => Market::OnDemand,
            RecordedMarket::Spot => Market::Spot,
        },
        price_ceiling: spec
            .price_ceiling
            .as_ref()
            .unwrap_or(&spec.hourly_price)
            .parse()
            .ok(),
        accelerator: spec
            .accelerator
            .as_ref()
            .map(|a| (a.name.clone(), a.count.unwrap_or(1.0))),
        vcpus: spec.vcpus,
        memory_gb: spec.memory_gb,
        disk_gb: spec.disk_gb,
        shm_bytes: Some(shm_bytes(pool, spec.memory_gb)),
        authorized_key: parts.authorized_key.to_owned(),
        boot_script: boot_script(parts.capabilities, parts.waits),
        pool: PoolShape {
            machines: pool.nodes.desired,
            connected: pool.cluster.unwrap_or(true) && pool.nodes.desired > 1,
        },
        overrides: spec
            .settings
            .clone()
            .map_or(serde_json::Value::Null, serde_json::Value::Object),
        labels: BTreeMap::from([("kubernetes.io/arch".to_owned(), architecture.to_owned())]),
    }
}

/// The countdown that ends a machine which no controller ever reaches: as long as we
/// ourselves would wait for it, and some more.
fn boot_script(capabilities: &Capabilities, waits: Waits) -> String {
    if !capabilities.boot_script {
        return String::new();
    }
    let limit = waits.provision + waits.ssh + waits.bootstrap + INSTANCE_TIMEOUT;
    boot::countdown(limit, capabilities.stop_command.unwrap_or("shutdown -h now"))
}

fn shm_bytes(pool: &PoolSpec, memory_gb: Option<f64>) -> u64 {
    pool.shm_size
        .as_ref()
        .and_then(bytes)
        .unwrap_or_else(|| memory_gb.map_or(SHM_BYTES, |gb| SHM_BYTES.min((gb * 1e9 / 2.0) as u64)))
}

/// An amount as Kubernetes writes it, in bytes.
fn bytes(size: &Size) -> Option<u64> {
    let text = size.0.as_str();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let factor: u64 = match text.get(digits.len()..)? {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// What a session is made from, besides the machine.
pub struct SessionParts<'a> {
    /// How to reach it.
    pub endpoint: Endpoint,
    /// The host key it must show.
    pub host_key: Option<String>,
    /// The Pool's key.
    pub key: &'a PoolKey,
    /// Certificates to trust, from `image.caBundleRef`.
    pub ca_bundle: Option<String>,
    /// The Provider, for its `instanceTimeout`.
    pub provider: Option<&'a ProviderSpec>,
    /// What its provider can do, once that is known.
    pub capabilities: Option<&'a Capabilities>,
    /// The leader's epoch.
    pub epoch: u64,
    /// Whether the Pool still asks for what this machine was ordered by.
    pub current: bool,
}

/// The description of a session.
pub fn session(machine: &MachineFacts, pool: &Pool, waits: Waits, parts: SessionParts<'_>) -> SessionSpec {
    let SessionParts {
        endpoint,
        host_key,
        key,
        ca_bundle,
        provider,
        capabilities,
        epoch,
        current,
    } = parts;
    let empty = Image::default();
    // A machine of an older spec that works on is not prepared by the newer one: that
    // would change it under its runs. It is only connected.
    let wanted = pool
        .spec
        .image
        .as_ref()
        .filter(|_| current || machine.status.ready_at.is_none());
    let image = wanted.unwrap_or(&empty);
    let user = pool
        .spec
        .worker
        .as_ref()
        .and_then(|worker| worker.user.as_deref())
        .unwrap_or(WORKER_USER);
    let instance_timeout = provider.and_then(ProviderSpec::instance_timeout);
    SessionSpec {
        machine: machine.session_key(),
        endpoint,
        private_key: key.private.clone(),
        host_key,
        bootstrap: Bootstrap {
            python: image.python.clone(),
            pip: image.pip.clone(),
            pip_indexes: image
                .pip_indexes
                .iter()
                .map(|index| PipIndex {
                    url: index.url.clone(),
                    packages: index.packages.clone(),
                })
                .collect(),
            apt: image.apt.clone(),
            env_for_steps: image
                .env
                .iter()
                .map(|var| (var.name.clone(), var.value.clone()))
                .collect(),
            masked: Vec::new(),
            shell_vars: image.shell_vars.clone(),
            ca_bundle,
            worker_user: Some(user.to_owned()).filter(|user| user != "root"),
            authorized_key: key.public.clone(),
            home: None,
            stop_command: capabilities.and_then(|c| c.stop_command).map(str::to_owned),
            reclaim_command: capabilities
                .filter(|_| machine.spec.market == RecordedMarket::Spot)
                .and_then(|c| match c.reclaim_notice {
                    ReclaimNotice::OnMachine(command) => Some(command.to_owned()),
                    ReclaimNotice::None | ReclaimNotice::Reported => None,
                }),
            hidden_environment: capabilities
                .map(|c| c.hidden_environment.iter().map(ToString::to_string).collect())
                .unwrap_or_default(),
            step_timeout: waits.bootstrap,
            total_timeout: waits.bootstrap,
        },
        lease: Lease {
            instance_timeout: Lasting::or(instance_timeout.as_ref(), INSTANCE_TIMEOUT),
            orphan_timeout: waits.orphan,
        },
        retry_interval: Lasting::or(pool.spec.ssh_retry_interval.as_ref(), SSH_RETRY),
        epoch,
        ready_at: machine.status.ready_at.as_ref().map(|time| time.0),
    }
}

/// Annotation of a Machine that drains because fewer are wanted: its runs may finish,
/// however long they take.
pub const FINISH_RUNS: &str = "skyward.dev/finish-runs";

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("512Mi", Some(536_870_912))]
    #[case("1G", Some(1_000_000_000))]
    #[case("7", Some(7))]
    #[case("7X", None)]
    #[case("99999999999999999999Ti", None)]
    fn sizes(#[case] text: &str, #[case] expected: Option<u64>) {
        assert_eq!(bytes(&Size(text.to_owned())), expected);
    }

    #[test]
    fn shared_memory_is_at_most_half_of_a_small_machine() {
        let pool = |json: serde_json::Value| -> PoolSpec { serde_json::from_value(json).unwrap() };
        let plain = pool(serde_json::json!({ "provider": "a" }));
        assert_eq!(shm_bytes(&plain, None), 1 << 30);
        assert_eq!(shm_bytes(&plain, Some(1.0)), 500_000_000);
        let sized = pool(serde_json::json!({ "provider": "a", "shmSize": "64Mi" }));
        assert_eq!(shm_bytes(&sized, Some(1.0)), 64 << 20);
    }

    fn session_of(machine: &MachineFacts, capabilities: Option<&Capabilities>) -> SessionSpec {
        let parts = SessionParts {
            endpoint: crate::machine::tests::endpoint(),
            host_key: None,
            key: &PoolKey {
                private: skyward_core::Secret::new("private"),
                public: "public".into(),
            },
            ca_bundle: None,
            provider: None,
            capabilities,
            epoch: 1,
            current: true,
        };
        session(machine, &crate::machine::tests::pool(), Waits::of(None), parts)
    }

    #[test]
    fn the_session_of_a_new_controller_knows_that_its_machine_was_ready() {
        let at: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut machine = crate::machine::tests::world().machine;
        machine.status.ready_at = None;
        assert_eq!(session_of(&machine, None).ready_at, None);
        machine.status.ready_at = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at));
        assert_eq!(session_of(&machine, None).ready_at, Some(at));
    }

    #[test]
    fn only_a_spot_machine_asks_for_a_notice_and_each_hides_the_clouds_keys() {
        let capabilities = Capabilities {
            reclaim_notice: ReclaimNotice::OnMachine("ask"),
            hidden_environment: &["CLOUD_KEY"],
            ..Capabilities::of("x")
        };
        let bootstrap = |market| {
            let mut machine = crate::machine::tests::world().machine;
            machine.spec.market = market;
            session_of(&machine, Some(&capabilities)).bootstrap
        };
        let spot = bootstrap(RecordedMarket::Spot);
        assert_eq!(spot.reclaim_command.as_deref(), Some("ask"));
        assert_eq!(spot.hidden_environment, ["CLOUD_KEY"]);
        let on_demand = bootstrap(RecordedMarket::OnDemand);
        assert_eq!(on_demand.reclaim_command, None);
        assert_eq!(on_demand.hidden_environment, ["CLOUD_KEY"]);
    }

    #[test]
    fn a_machine_counts_down_longer_than_we_would_wait_for_it() {
        let waits = Waits::of(None);
        let mut capabilities = Capabilities::of("x");
        assert_eq!(boot_script(&capabilities, waits), "");
        capabilities.boot_script = true;
        let script = boot_script(&capabilities, waits);
        assert!(
            script.contains("sleep 1200\n") && script.contains("shutdown -h now"),
            "{script}"
        );
    }
}
