//! Makes the order to the provider and the description of the session from a Machine's record and
//! its Pool. Pure.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use skyward_api::{
    Pool,
    offer::Architecture,
    pool::{Image, PoolSpec},
    shared::{Cpu, Size},
};
use skyward_core::{
    Capabilities, Market, Order, Secret, boot, machine::Endpoint, order::PoolShape, provider::ReclaimNotice,
};
use skyward_planner::{
    machine::facts::{MachineFacts, Waits},
    pool::resolved::ResolvedPool,
};
use skyward_remote::{
    HostKey, SessionSpec,
    bootstrap::{PipIndex, Spec as Bootstrap},
    protocol::GIT_USER,
    sessions::Lease,
};

use crate::{keys::PoolKey, references::materials::Materials};

/// Default of `shmSize`.
const SHM_BYTES: u64 = 1 << 30;
/// What a machine gets beyond the waits of its Pool before its countdown ends it.
const MARGIN: Duration = Duration::from_mins(5);

/// The parts of an order, besides the machine and its Pool.
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
    /// The token by which the machine proves its host key, where it has to.
    pub host_token: Option<Secret>,
}

/// The order of a machine, from its record: the Pool may ask for something else by now.
pub fn order(machine: &MachineFacts, pool: &PoolSpec, parts: OrderParts<'_>) -> Order {
    let spec = &machine.spec;
    let memory = spec.memory.as_ref().and_then(Size::bytes);
    let architecture = spec.architecture.unwrap_or(Architecture::Amd64).as_str();
    Order {
        mark: machine.mark(parts.cluster),
        token: spec.token.clone(),
        offer: parts.offer,
        instance_type: spec.instance_type.clone(),
        region: spec.region.clone(),
        market: spec.market,
        max_hourly_cost: spec
            .max_hourly_cost
            .as_ref()
            .unwrap_or(&spec.hourly_price)
            .parse()
            .ok(),
        accelerator: spec
            .accelerator
            .as_ref()
            .map(|asked| (asked.name.clone(), asked.number())),
        vcpus: spec.cpu.map(Cpu::number),
        memory_bytes: memory,
        disk_bytes: spec.disk.as_ref().and_then(Size::bytes),
        shm_bytes: Some(shm_bytes(pool, memory)),
        authorized_key: parts.authorized_key.to_owned(),
        boot_script: boot_script(parts.capabilities, parts.waits),
        host_token: parts.host_token,
        pool: PoolShape {
            machines: pool.nodes.most(),
            connected: pool.is_connected() && pool.nodes.most() > 1,
        },
        overrides: spec
            .settings
            .clone()
            .map_or(serde_json::Value::Null, serde_json::Value::Object),
        labels: BTreeMap::from([("kubernetes.io/arch".to_owned(), architecture.to_owned())]),
    }
}

/// The countdown that ends a machine which no controller ever reaches: the Pool's own waits, and
/// [`MARGIN`].
fn boot_script(capabilities: &Capabilities, waits: Waits) -> String {
    if !capabilities.boot_script {
        return String::new();
    }
    let limit = waits.provision + waits.ssh + waits.bootstrap + MARGIN;
    boot::countdown(limit, capabilities.stop_command.unwrap_or("shutdown -h now"))
}

fn shm_bytes(pool: &PoolSpec, memory: Option<u64>) -> u64 {
    pool.shm_size
        .as_ref()
        .and_then(Size::bytes)
        .unwrap_or_else(|| memory.map_or(SHM_BYTES, |bytes| SHM_BYTES.min(bytes / 2)))
}

/// The parts of a session, besides the machine.
pub struct SessionParts<'a> {
    /// How to reach it.
    pub endpoint: Endpoint,
    /// The host key it must show.
    pub host_key: HostKey,
    /// The Pool's key.
    pub key: &'a PoolKey,
    /// The environment to make there; `None`: the machine is connected as it is.
    pub environment: Option<Environment>,
    /// The Pool with its defaults.
    pub resolved: &'a ResolvedPool,
    /// How long the machine lives idle without its controller.
    pub instance_timeout: Duration,
    /// What its provider can do, once that is known.
    pub capabilities: Option<&'a Capabilities>,
    /// The leader's epoch.
    pub epoch: u64,
    /// The proof of that epoch.
    pub epoch_proof: String,
    /// The installation.
    pub installation: &'a str,
}

/// An environment to make on a machine.
pub struct Environment {
    /// Its hash.
    pub hash: String,
    /// The data from Secrets and ConfigMaps.
    pub materials: Materials,
    /// The versions of its Python packages, where a machine found them.
    pub versions: Option<Arc<str>>,
}

/// The description of a session.
pub fn session(machine: &MachineFacts, pool: &Pool, waits: Waits, parts: SessionParts<'_>) -> SessionSpec {
    let capabilities = parts.capabilities;
    let empty = Image::default();
    // A working machine is prepared in its turn only: a step would change the environment under its runs.
    let prepared = parts.environment.is_none();
    let image = pool.spec.image.as_ref().filter(|_| !prepared).unwrap_or(&empty);
    let (hash, materials, versions) = match parts.environment {
        Some(Environment {
            hash,
            materials,
            versions,
        }) => (hash, materials, versions),
        None => (String::new(), Materials::default(), None),
    };
    let credentials = materials.credentials.into_iter().chain(std::iter::repeat(None));
    SessionSpec {
        machine: machine.session_key(),
        endpoint: parts.endpoint,
        private_key: parts.key.private.clone(),
        host_key: parts.host_key,
        bootstrap: Bootstrap {
            environment: hash,
            lock: versions,
            python: image.python.clone(),
            pip: image.pip.clone(),
            pip_indexes: image
                .pip_indexes
                .iter()
                .zip(credentials)
                .map(|(index, credentials)| PipIndex {
                    url: index.url.clone(),
                    packages: index.packages.clone(),
                    credentials,
                })
                .collect(),
            apt: image.apt.clone(),
            env_for_steps: image
                .env
                .iter()
                .map(|var| (var.name.clone(), var.value.clone()))
                .collect(),
            secret_env_for_steps: materials.steps_env,
            masked: materials.masked,
            shell_vars: image.shell_vars.clone(),
            ca_bundle: materials.ca_bundle,
            prepared,
            worker_user: Some(parts.resolved.worker_user.clone()).filter(|user| user != "root"),
            git_user: Some(GIT_USER.to_owned()),
            authorized_key: parts.key.public.clone(),
            home: None,
            stop_command: capabilities.and_then(|c| c.stop_command).map(str::to_owned),
            reclaim_command: capabilities
                .filter(|_| machine.spec.market == Market::Spot)
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
            instance_timeout: parts.instance_timeout,
            orphan_timeout: waits.orphan,
        },
        retry_interval: parts.resolved.ssh_retry_interval,
        epoch: parts.epoch,
        epoch_proof: parts.epoch_proof,
        installation: parts.installation.to_owned(),
        ready_at: machine.status.ready_at.as_ref().map(|time| time.0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skyward_api::Machine;
    use skyward_core::machine::Dial;
    use skyward_planner::{machine::facts::machine_facts, pool::resolved::Timeouts};

    use super::*;

    fn pool() -> Pool {
        Pool::new(
            "train",
            serde_json::from_value(json!({ "provider": "local" })).unwrap(),
        )
    }

    fn machine() -> MachineFacts {
        let spec = json!({
            "pool": "train", "poolUid": "pool-uid", "slot": 0, "attempt": 1, "provider": "local", "offer": "o",
            "instanceType": "x", "market": "OnDemand", "hourlyPrice": "1", "token": "t", "templateHash": "h"
        });
        machine_facts(&Machine::new("m-0-1", serde_json::from_value(spec).unwrap()))
    }

    fn waits() -> Waits {
        Waits::of(Timeouts::default(), Duration::from_mins(5))
    }

    fn endpoint() -> Endpoint {
        Endpoint {
            dial: Dial::Address("10.0.0.7:2222".parse().unwrap()),
            user: "root".into(),
            password: None,
        }
    }

    #[test]
    fn shared_memory_is_at_most_half_of_a_small_machine() {
        let pool = |json: serde_json::Value| -> PoolSpec { serde_json::from_value(json).unwrap() };
        let plain = pool(serde_json::json!({ "provider": "a" }));
        assert_eq!(shm_bytes(&plain, None), 1 << 30);
        assert_eq!(shm_bytes(&plain, Some(1_000_000_000)), 500_000_000);
        let sized = pool(serde_json::json!({ "provider": "a", "shmSize": "64Mi" }));
        assert_eq!(shm_bytes(&sized, Some(1_000_000_000)), 64 << 20);
    }

    #[test]
    fn a_machine_is_prepared_only_with_the_environment_that_is_to_be_made() {
        let image = serde_json::json!({ "pip": ["torch"], "caBundleRef": { "name": "ca" } });
        let mut pool = pool();
        pool.spec.image = serde_json::from_value(image).unwrap();
        let bootstrap = |environment: Option<Environment>| {
            let parts = SessionParts {
                environment,
                ..parts(None)
            };
            session(&machine(), &pool, waits(), parts).bootstrap
        };
        let made = bootstrap(Some(Environment {
            hash: "0123456789ab".into(),
            materials: Materials {
                ca_bundle: Some("certificates".into()),
                ..Materials::default()
            },
            versions: Some("torch==2.8".into()),
        }));
        assert_eq!((made.target(), made.pip.len()), (Some("0123456789ab"), 1));
        assert_eq!(made.lock.as_deref(), Some("torch==2.8"));
        assert!(made.ca_bundle.is_some());
        let kept = bootstrap(None);
        assert_eq!(
            (kept.target(), kept.pip.len(), kept.ca_bundle.is_none()),
            (None, 0, true)
        );
    }

    fn session_of(machine: &MachineFacts, capabilities: Option<&Capabilities>) -> SessionSpec {
        session(machine, &pool(), waits(), parts(capabilities))
    }

    fn parts(capabilities: Option<&Capabilities>) -> SessionParts<'_> {
        static KEY: std::sync::LazyLock<PoolKey> = std::sync::LazyLock::new(|| PoolKey {
            private: skyward_core::Secret::new("private"),
            public: "public".into(),
        });
        static POOL: std::sync::LazyLock<ResolvedPool> =
            std::sync::LazyLock::new(|| ResolvedPool::of(&pool().spec));
        SessionParts {
            endpoint: endpoint(),
            host_key: HostKey::First,
            key: &KEY,
            environment: None,
            resolved: &POOL,
            instance_timeout: Duration::from_mins(5),
            capabilities,
            epoch: 1,
            epoch_proof: String::new(),
            installation: "here",
        }
    }

    #[test]
    fn the_session_of_a_new_controller_knows_that_its_machine_was_ready() {
        let at: jiff::Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let mut machine = machine();
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
            let mut machine = machine();
            machine.spec.market = market;
            session_of(&machine, Some(&capabilities)).bootstrap
        };
        let spot = bootstrap(Market::Spot);
        assert_eq!(spot.reclaim_command.as_deref(), Some("ask"));
        assert_eq!(spot.hidden_environment, ["CLOUD_KEY"]);
        let on_demand = bootstrap(Market::OnDemand);
        assert_eq!(on_demand.reclaim_command, None);
        assert_eq!(on_demand.hidden_environment, ["CLOUD_KEY"]);
    }

    #[test]
    fn a_machine_counts_down_longer_than_we_would_wait_for_it() {
        let waits = waits();
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
