//! Stories at simulated clouds (`tests/cloudsim`): a program of its own, since the operator
//! is sent to the simulators here. Machines are Pods with OpenSSH.
//!
//! - [`life`]: the sample of each cloud, and a spot machine that is taken back in mid-run.
//! - [`devices`]: accelerators that several Tasks of one machine divide.
//! - [`host_keys`]: proved by machines, and refused where an attacker answers for a machine.
//! - [`alone::kills`]: the controller is killed between each kind of effect and its record.
//! - [`alone::restored`]: a cluster that remembers less than its machines.
//! - [`beside::training`]: trainings that lose a machine. They ask no cloud, and are here because they mostly wait.
//! - [`money`]: budgets, limits of a month, settings that may be overridden.
//! - [`trouble`]: no capacity, credentials that are wrong, revoked and replaced, everything
//!   deleted at once.

/// Stories that take the controller away from all others: `make test` runs them before. In a run of all
/// stories they begin first, by their name, and ask for the controller before anything else: if one came in the middle, the
/// stories that had begun would have to end first, and the later stories would wait for it.
mod alone {
    mod kills;
    mod restored;
}
/// Stories that ask no cloud. They take longest, and begin right after those of [`alone`], by their name.
mod beside {
    mod training;
}
mod devices;
mod host_keys;
mod life;
mod money;
mod trouble;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::ensure;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use skyward_api::{Pool, Provider};
use skyward_cloudsim::{CredentialState, Sim};
use skyward_testkit::{Clouds, Cluster, Machines, OPERATOR_NAMESPACE, PATIENCE, Result, Space};
use tokio::{
    sync::{OnceCell, RwLock, RwLockReadGuard},
    time::{Duration, Instant, sleep},
};

/// The clouds of all stories of this program, with the operator sent to them.
static CLOUDS: OnceCell<Clouds> = OnceCell::const_new();
/// A story that kills or stops the controller has it alone meanwhile; all others share it.
static CONTROLLER: RwLock<()> = RwLock::const_new(());

/// The clouds that are tried: all clouds that have a simulator here. The simulator of AWS needs
/// AWS' official description.
fn names() -> Vec<&'static str> {
    let all = [
        "verda",
        "runpod",
        "vastai",
        "lambda",
        "vultr",
        "digitalocean",
        "scaleway",
        "hyperstack",
        "tensordock",
        "jarvislabs",
        "novita",
        "massedcompute",
        "gcp",
        "aws",
    ];
    all.into_iter()
        .filter(|name| skyward_cloudsim::cloud(name).is_some())
        .collect()
}

/// Whether there is a simulator of a cloud here; says so where there is not.
#[expect(
    clippy::print_stderr,
    reason = "the person who reads the test's output must learn of it"
)]
fn is_there(cloud: &str) -> bool {
    let there = names().contains(&cloud);
    if !there {
        eprintln!("skipped: SKYWARD_SPECS does not name a folder with the description of {cloud}");
    }
    there
}

/// Whether that cloud is in this run's third of the clouds, which tells what is repeated at each cloud; says so where it is not.
#[expect(
    clippy::print_stderr,
    reason = "the person who reads the test's output must learn of it"
)]
fn is_told(cloud: &str) -> bool {
    let mut numbered = (0..).zip(names());
    let told = numbered.any(|(number, name)| name == cloud && skyward_thirds::is_told(number));
    if !told {
        eprintln!("left to another third (SKYWARD_THIRD): {cloud}");
    }
    told
}

async fn clouds(cluster: &Cluster) -> Result<&'static Clouds> {
    CLOUDS
        .get_or_try_init(|| async {
            let names: Vec<_> = names().into_iter().map(|name| (name, Machines::Pods)).collect();
            let clouds = Clouds::start(cluster, &names).await?;
            skyward_testkit::install_with(cluster, &clouds.operator_values()).await?;
            anyhow::Ok(clouds)
        })
        .await
}

/// A story: its namespace, and one customer at one cloud.
struct Story {
    space: Space,
    customer: Customer,
    /// Keeps the controller from being taken away, until the story ends.
    _shared: Option<RwLockReadGuard<'static, ()>>,
}

/// One account at a cloud.
struct Customer {
    cloud: &'static str,
    sim: Arc<Sim>,
    /// Id of the account.
    account: String,
    /// Keys of the Secret.
    keys: BTreeMap<String, String>,
}

impl Customer {
    /// Opens an account.
    fn new(clouds: &Clouds, cloud: &'static str, story: &str) -> Self {
        let sim = clouds.sim(cloud).clone();
        let number = story
            .bytes()
            .fold(7_u64, |sum, byte| sum * 31 % 899_999_999 + u64::from(byte));
        // AWS knows twelve digits.
        let account = format!("{:012}", 100_000_000_000 + number);
        let keys = clouds.open_account(cloud, &account, story);
        Self {
            cloud,
            sim,
            account,
            keys,
        }
    }

    /// Puts its keys, or others, into a Secret of the operator's namespace.
    async fn secret(&self, space: &Space, keys: &BTreeMap<String, String>) -> Result<String> {
        let name = format!("{}-{}", space.name, self.cloud);
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": OPERATOR_NAMESPACE},
            "stringData": keys,
        });
        space.cluster.apply(&secret.to_string()).await?.ok()?;
        Ok(name)
    }

    /// A Provider of this account.
    async fn provider(&self, space: &Space, spec: Value) -> Result<String> {
        let secret = self.secret(space, &self.keys).await?;
        let settings = match self.cloud {
            // Nothing has a price in USD without one.
            "scaleway" => {
                json!({"exchangeRate": {"usd": "1.08", "asOf": Timestamp::now().strftime("%F").to_string()}})
            }
            // Else JarvisLabs is asked by a call that its description leaves out.
            "jarvislabs" => json!({"currency": "USD"}),
            _ => json!({}),
        };
        let mut whole = json!({"credentialsSecretRef": {"name": secret}, self.cloud: settings});
        for (key, value) in spec.as_object().into_iter().flatten() {
            whole[key] = value.clone();
        }
        space.provider(self.cloud, whole).await
    }

    /// Sets the state of its credentials at the cloud.
    fn set_credentials(&self, state: CredentialState) {
        self.sim.world(|world| {
            let account = world.accounts.get_mut(&self.account);
            for credential in account.into_iter().flat_map(|account| &mut account.credentials) {
                credential.state = state;
            }
        });
    }

    /// The machines that are billed now.
    fn billed(&self) -> Vec<String> {
        self.sim.meter(|meter| {
            let ours = meter
                .billed_now()
                .into_iter()
                .filter(|machine| machine.account == self.account);
            ours.map(|machine| format!("{} ({})", machine.id, machine.mark.name))
                .collect()
        })
    }

    /// The resources besides machines.
    fn leftovers(&self) -> Vec<String> {
        self.sim.meter(|meter| {
            let left = meter.leftovers(&self.account);
            left.iter().map(|thing| format!("{thing:?}")).collect()
        })
    }

    /// Waits until nothing is billed and nothing is left.
    async fn nothing_left(&self, seconds: u64) -> Result {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        loop {
            let left = [self.billed(), self.leftovers()].concat();
            if left.is_empty() {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{} at {}: still there: {left:#?}",
                self.account,
                self.cloud
            );
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Violations of the description cannot be assigned to an account: they fail every story.
    fn no_complaints(&self) -> Result {
        let (violations, mistakes) = (self.sim.violations(), self.sim.mistakes());
        ensure!(violations.is_empty(), "{}: {violations:#?}", self.cloud);
        ensure!(
            mistakes.is_empty(),
            "{}: the simulator is wrong: {mistakes:#?}",
            self.cloud
        );
        Ok(())
    }
}

/// A story that shares the controller with others.
async fn story(name: &str, cloud: &'static str) -> Result<Story> {
    let cluster = Cluster::connect().await?;
    // The clouds come first: until they are there, the stories that need the controller alone have asked for it.
    clouds(&cluster).await?;
    let shared = CONTROLLER.read().await;
    Story::begin(&cluster, name, cloud, Some(shared)).await
}

/// The namespace of a story that asks no cloud. It does not keep the controller from being taken away.
async fn story_without_cloud(name: &str) -> Result<Space> {
    let cluster = Cluster::connect().await?;
    clouds(&cluster).await?;
    cluster.namespace(name).await
}

impl Story {
    /// A story whose caller holds the controller, alone or shared.
    async fn begin(
        cluster: &Cluster,
        name: &str,
        cloud: &'static str,
        shared: Option<RwLockReadGuard<'static, ()>>,
    ) -> Result<Self> {
        let clouds = clouds(cluster).await?;
        let space = cluster.namespace(&format!("{name}-{cloud}")).await?;
        let customer = Customer::new(clouds, cloud, &space.name);
        Ok(Self {
            space,
            customer,
            _shared: shared,
        })
    }

    /// Deletes a Pool, and waits until nothing of it is left at the cloud.
    async fn return_pool(&self, name: &str) -> Result {
        self.space
            .kubectl(&["delete", "pool", name, "--wait=false"])
            .await?
            .ok()?;
        self.space.wait_gone::<Pool>(name, PATIENCE).await?;
        self.customer.nothing_left(5).await
    }

    /// Ends the story: asserts that nothing is left at the cloud, and that there are no complaints
    /// about requests.
    async fn finish(self) -> Result {
        self.customer.nothing_left(5).await?;
        self.customer.no_complaints()?;
        let secrets: Api<Secret> = Api::namespaced(self.space.cluster.client.clone(), OPERATOR_NAMESPACE);
        let name = format!("{}-{}", self.space.name, self.customer.cloud);
        self.space.finish().await?;
        if secrets.get_opt(&name).await?.is_some() {
            secrets.delete(&name, &Default::default()).await?;
        }
        Ok(())
    }
}

/// A Provider as it is now.
async fn provider(space: &Space, name: &str) -> Result<Provider> {
    Ok(Api::<Provider>::all(space.cluster.client.clone())
        .get(name)
        .await?)
}

/// Waits until a condition of a Provider has that reason; returns its message.
async fn provider_says(space: &Space, name: &str, type_: &str, reason: &str) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let found = provider(space, name).await?;
        let conditions = found
            .status
            .as_ref()
            .map(|status| status.conditions.clone())
            .unwrap_or_default();
        if let Some(hit) = conditions.iter().find(|c| c.type_ == type_ && c.reason == reason) {
            return Ok(hit.message.clone());
        }
        ensure!(
            Instant::now() < deadline,
            "Provider {} does not say {type_}/{reason}: {conditions:#?}",
            found.name_any()
        );
        sleep(Duration::from_millis(200)).await;
    }
}
