//! A provider's client against the simulator of its cloud, in virtual time: nothing
//! sleeps, however far apart the calls must be.
//!
//! [`Bench`] is one of each, connected; [`Bench::bring_up`] and [`Bench::bring_down`] are
//! what a controller does with a provider, by its contract alone.

#![expect(clippy::panic, reason = "a harness of tests fails as tests do")]

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::SignedDuration;
use serde_json::{Value, json};
use skyward_cloudsim::{Account as Customer, Builder, Sim, Simulator, gcp};
use skyward_core::{
    Account, Credentials, Deletion, Endpoints, ErrorKind, Fence, MachineRef, Mark, Market, Offer, Order,
    PoolScope, Provider, ProviderError, ProviderMachine, ProviderPhase, Scope, Secret, Usd,
    boot::countdown,
    error::ErrorClass,
    machine::FailureKind,
    offer::Availability,
    order::{PoolShape, machine_name},
};
use skyward_providers::registry;
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// The installation in all tests.
pub const CLUSTER: &str = "0d4c6c38-6a1b-4f6e-8a0e-1f2f6a0e9c11";
/// Id of the account at each cloud.
pub const ACCOUNT: &str = "100100100100";
/// The value of the credentials, which must not appear anywhere.
pub const CANARY: &str = "canary-9c1f4e";
/// A key as Pools have them.
pub const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF3d8JVnY8w3V0Q1yTzHn0y2jJ1YQG3hVYwJ0m3p6p2a pool";

/// Step of the clock.
const TICK: Duration = Duration::from_millis(50);
/// How long the Lease lasts, where a test does not say otherwise.
const LEASE: Duration = Duration::from_hours(24 * 365);

/// What the tests need for a cloud, besides its simulator.
#[derive(Debug)]
pub struct Subject {
    /// The customer at the simulator.
    pub customer: Customer,
    /// Keys of the Secret.
    pub credentials: Vec<(&'static str, String)>,
    /// Settings of the Provider.
    pub settings: Value,
    /// The call that orders, on each market that there is.
    pub create: BTreeMap<Market, &'static str>,
    /// The call that deletes.
    pub delete: &'static str,
}

/// What the tests need for each registered provider. The tests of a new one fail until it has an
/// entry here.
pub fn subject(kind: &str) -> Option<Subject> {
    let markets = |on_demand, spot| BTreeMap::from([(Market::OnDemand, on_demand), (Market::Spot, spot)]);
    let key = format!("key-{CANARY}");
    match kind {
        "verda" => Some(Subject {
            customer: Customer::with_pair(ACCOUNT, &format!("id-{CANARY}"), &format!("secret-{CANARY}")),
            credentials: vec![
                ("VERDA_CLIENT_ID", format!("id-{CANARY}")),
                ("VERDA_CLIENT_SECRET", format!("secret-{CANARY}")),
            ],
            settings: json!({}),
            create: markets("instances.create", "instances.create"),
            delete: "instances.delete",
        }),
        "lambda" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("LAMBDA_API_KEY", key)],
            settings: json!({}),
            create: BTreeMap::from([(Market::OnDemand, "instances.create")]),
            delete: "instances.delete",
        }),
        "digitalocean" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("DIGITALOCEAN_TOKEN", key)],
            settings: json!({}),
            create: BTreeMap::from([(Market::OnDemand, "droplets.create")]),
            delete: "droplets.delete",
        }),
        "gcp" => {
            let customer = gcp::account(ACCOUNT, &format!("id-{CANARY}@example.com"));
            let file = gcp::key_file(&customer, "https://oauth2.example.com");
            Some(Subject {
                customer,
                credentials: vec![("GOOGLE_APPLICATION_CREDENTIALS", file.to_string())],
                settings: json!({}),
                create: markets("instances.create", "instances.create"),
                delete: "instances.delete",
            })
        }
        "hyperstack" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("HYPERSTACK_API_KEY", key)],
            settings: json!({}),
            create: markets("vms.create", "vms.create"),
            delete: "vms.delete",
        }),
        "jarvislabs" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("JL_API_KEY", key)],
            // Else it is asked for by a call that the description leaves out.
            settings: json!({ "currency": "USD" }),
            create: markets("instances.create", "instances.create"),
            delete: "instances.destroy",
        }),
        "novita" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("NOVITA_API_KEY", key)],
            settings: json!({}),
            create: markets("instances.create", "instances.create"),
            delete: "instances.delete",
        }),
        "scaleway" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("SCW_SECRET_KEY", key)],
            // A euro for a dollar, so that bills can be compared.
            settings: json!({ "projectId": ACCOUNT, "exchangeRate": { "usd": "1", "asOf": "2026-11-01" } }),
            create: BTreeMap::from([(Market::OnDemand, "servers.create")]),
            delete: "servers.terminate",
        }),
        "tensordock" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("TENSORDOCK_API_TOKEN", key)],
            settings: json!({}),
            create: BTreeMap::from([(Market::OnDemand, "instances.create")]),
            delete: "instances.delete",
        }),
        "vultr" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("VULTR_API_KEY", key)],
            settings: json!({}),
            create: BTreeMap::from([(Market::OnDemand, "instances.create")]),
            delete: "instances.delete",
        }),
        "massedcompute" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("MASSED_API_KEY", key)],
            settings: json!({}),
            create: markets("instances.create", "instances.create"),
            delete: "instances.delete",
        }),
        "runpod" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("RUNPOD_API_KEY", key)],
            settings: json!({}),
            create: markets("pods.create", "graphql.podRentInterruptable"),
            delete: "pods.delete",
        }),
        "vastai" => Some(Subject {
            customer: Customer::with_key(ACCOUNT, &key),
            credentials: vec![("VAST_API_KEY", key)],
            settings: json!({}),
            create: markets("instances.create", "instances.create"),
            delete: "instances.delete",
        }),
        "aws" => Some(Subject {
            customer: Customer::with_pair(ACCOUNT, &format!("AKIA-{CANARY}"), &format!("secret-{CANARY}")),
            credentials: vec![
                ("AWS_ACCESS_KEY_ID", format!("AKIA-{CANARY}")),
                ("AWS_SECRET_ACCESS_KEY", format!("secret-{CANARY}")),
            ],
            settings: json!({}),
            create: markets("ec2.CreateFleet", "ec2.CreateFleet"),
            delete: "ec2.TerminateInstances",
        }),
        _ => None,
    }
}

/// Whether the cloud can be simulated here: some simulators are made from descriptions that
/// are not part of this repository. For such a cloud a message was printed.
pub fn can_be_tried(kind: &str) -> bool {
    !skyward_cloudsim::CLOUDS.contains(&kind) || skyward_cloudsim::cloud(kind).is_some()
}

/// A client and the simulator that it talks to.
pub struct Bench {
    /// The simulator.
    pub simulator: Arc<Simulator>,
    /// Its one cloud.
    pub sim: Arc<Sim>,
    /// The client.
    pub provider: Arc<dyn Provider>,
    /// What the cloud needs.
    pub subject: Subject,
    /// Always open, unless a test closes it.
    pub fence: Fence,
    clock: JoinHandle<()>,
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.clock.abort();
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench")
            .field("cloud", &self.sim.name())
            .finish_non_exhaustive()
    }
}

impl Bench {
    /// For this kind of provider, with these settings instead of the subject's where given.
    ///
    /// # Panics
    /// When the kind has no subject or no simulator: it cannot be shipped then.
    pub async fn start(kind: &str, settings: Option<Value>) -> Self {
        // A second call finds it installed.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let subject =
            subject(kind).expect("every registered provider has a subject in tests/conformance/lib.rs");
        let cloud = skyward_cloudsim::cloud(kind)
            .expect("every registered provider has a simulator in tests/cloudsim");
        let simulator = Builder::manual()
            .cloud_at(cloud, ([127, 0, 0, 1], 0).into())
            .start()
            .await
            .expect("the simulator listens");
        let simulator = Arc::new(simulator);
        let sim = simulator.cloud(kind).clone();
        sim.world(|world| world.add_account(subject.customer.clone()));
        // Verda's description allows more than one form of some answers: our client takes each.
        drop(sim.control("answers", &serde_json::json!({ "mixed": true })));
        // Figures have machines alone, and so has the bill that they are compared with.
        for control in ["instances", "servers"] {
            drop(sim.control(control, &json!({ "alone": true })));
        }
        let settings = settings.unwrap_or_else(|| subject.settings.clone());
        // A pause of the leader is one of the virtual time.
        let fence = Fence::with_clock(|| Instant::now().into_std());
        fence.open_until(Instant::now() + LEASE);
        let provider = connect_behind(&fence, kind, simulator.url(kind), &subject.credentials, settings);
        let clock = tokio::spawn(keep_time(simulator.clone()));
        Self {
            simulator,
            sim,
            provider,
            subject,
            fence,
            clock,
        }
    }

    /// An order for the first offer that is available on this market.
    ///
    /// # Panics
    /// When there is none: the simulator's world has some for each cloud.
    pub async fn order(&self, market: Market, slot: u32) -> Order {
        let offers = self.provider.offers().await.expect("offers can be read");
        let offer = offers
            .iter()
            .find(|offer| offer.availability != Availability::No && price(offer, market).is_some())
            .expect("something is in stock on this market");
        order(offer, market, slot)
    }

    /// All machines of ours that the client lists.
    pub async fn list(&self) -> Result<Vec<ProviderMachine>, ProviderError> {
        self.provider.list(&scope()).await
    }

    /// The same, once the list shows this machine: it may lag as long as the client says.
    ///
    /// # Panics
    /// When it lags longer.
    pub async fn list_with(&self, id: &str) -> Vec<ProviderMachine> {
        let began = Instant::now();
        loop {
            let listed = self.list().await.expect("the list can be read");
            if listed.iter().any(|machine| machine.id == id) {
                return listed;
            }
            assert!(
                began.elapsed() <= self.provider.capabilities().settle_time,
                "{id} is not listed: {listed:?}"
            );
            sleep(Duration::from_secs(1)).await;
        }
    }

    /// The kinds of what is left at the account, besides machines.
    ///
    /// # Panics
    /// When it cannot be read.
    pub async fn left(&self) -> Vec<&'static str> {
        let left = self.provider.leftovers(&scope()).await;
        let left = left.expect("what is left can be read");
        left.iter().map(|left| left.kind).collect()
    }

    /// Brings up two machines of a Pool that must reach each other. Returns their orders.
    ///
    /// # Panics
    /// When an order is refused, or a machine has no private address.
    pub async fn connected_pair(&self) -> Vec<Order> {
        let mut orders = Vec::new();
        for slot in 0..2 {
            let mut order = self.order(Market::OnDemand, slot).await;
            order.pool = PoolShape {
                machines: 2,
                connected: true,
            };
            let (running, refused) = self.bring_up(&order).await;
            assert!(refused.is_empty(), "{refused:?}");
            assert!(running.private_address.is_some(), "{running:?}");
            orders.push(order);
        }
        orders
    }

    /// How many machines there are, on the bill already or not.
    pub fn machines(&self) -> usize {
        self.sim
            .world(|world| world.machines.values().filter(|machine| machine.exists()).count())
    }

    /// Orders a machine and waits until it runs, as a controller would: calls that may succeed
    /// later are tried again, and after a lost answer the list decides. Returns the refusals.
    ///
    /// # Panics
    /// When it does not run within twenty minutes.
    pub async fn bring_up(&self, order: &Order) -> (ProviderMachine, Vec<ProviderError>) {
        let mut refused = Vec::new();
        let mut id: Option<String> = None;
        for _ in 0..240 {
            if id.is_none() {
                match self.provider.create(order).await {
                    Ok(accepted) => id = Some(accepted.id),
                    Err(error) => {
                        if error.kind.leaves_doubt() {
                            sleep(self.provider.capabilities().settle_time).await;
                        }
                        if let ErrorKind::RateLimited(Some(after)) = error.kind {
                            sleep(after).await;
                        }
                        refused.push(error);
                    }
                }
            }
            if let Some(accepted) = id.clone() {
                match self.provider.get(&machine(order, Some(&accepted))).await {
                    Ok(Some(found)) if found.phase == ProviderPhase::Running => return (found, refused),
                    Ok(found) => {
                        if let Some(error) = found.and_then(|found| late_refusal(&found.phase)) {
                            refused.push(error);
                            refused.extend(self.end(order, Some(&accepted)).await);
                            id = None;
                        }
                    }
                    Err(error) => refused.push(error),
                }
            }
            sleep(Duration::from_secs(5)).await;
        }
        panic!(
            "no machine ran within twenty minutes: {refused:?}, {:#?}",
            self.sim.requests().last()
        );
    }

    /// Deletes a machine until it is gone, and then what its Pool shared, which can be returned
    /// only after its last machine. Returns the refusals.
    ///
    /// # Panics
    /// When that does not happen within twenty minutes.
    pub async fn bring_down(&self, order: &Order, id: Option<&String>) -> Vec<ProviderError> {
        let mut refused = self.end(order, id).await;
        let pool = pool();
        refused.extend(self.until_gone(async || self.provider.release(&pool).await).await);
        refused
    }

    /// Deletes a machine until it is gone. Returns the refusals.
    ///
    /// # Panics
    /// When that does not happen within twenty minutes.
    pub async fn end(&self, order: &Order, id: Option<&String>) -> Vec<ProviderError> {
        let machine = machine(order, id);
        self.until_gone(async || self.provider.delete(&machine).await)
            .await
    }

    async fn until_gone(
        &self,
        step: impl AsyncFn() -> Result<Deletion, ProviderError>,
    ) -> Vec<ProviderError> {
        let mut refused = Vec::new();
        for _ in 0..240 {
            match step().await {
                Ok(Deletion::Gone) => return refused,
                Ok(Deletion::InProgress) => {}
                Ok(Deletion::Foreign) => panic!("what was asked for carries its mark"),
                Err(error) => refused.push(error),
            }
            sleep(Duration::from_secs(5)).await;
        }
        panic!(
            "not gone within twenty minutes: {refused:?}, {:#?}",
            self.sim.requests().last()
        );
    }

    /// Lets time pass without requests, for the client and for the cloud.
    pub async fn pass(&self, time: Duration) {
        let minute = Duration::from_mins(1);
        for _ in 0..time.as_secs() / minute.as_secs() {
            tokio::time::advance(minute).await;
            self.simulator
                .advance(i64::try_from(minute.as_secs()).unwrap_or_default());
        }
    }

    /// Asserts that nothing is billed, nothing is left, and every request was one that the official
    /// description allows.
    ///
    /// # Panics
    /// When one of these is not so.
    pub fn judge(&self, story: &str) {
        let billed = self.sim.meter(|meter| {
            meter
                .billed_now()
                .iter()
                .map(|machine| machine.id.clone())
                .collect::<Vec<_>>()
        });
        assert!(billed.is_empty(), "{story}: still billed: {billed:?}");
        let left = self.sim.meter(|meter| {
            meter
                .leftovers(ACCOUNT)
                .iter()
                .map(|thing| format!("{thing:?}"))
                .collect::<Vec<_>>()
        });
        assert!(left.is_empty(), "{story}: left over: {left:?}");
        let violations = self.sim.violations();
        assert!(violations.is_empty(), "{story}: {violations:#?}");
        let mistakes = self.sim.mistakes();
        assert!(
            mistakes.is_empty(),
            "{story}: the simulator is wrong: {mistakes:#?}"
        );
    }
}

/// The refusal of an order that a cloud accepted before it knew that nothing is left. Its machine is given up.
fn late_refusal(phase: &ProviderPhase) -> Option<ProviderError> {
    match phase {
        ProviderPhase::Failed(failure) if failure.kind == FailureKind::NoCapacity => {
            let message = failure.message.clone();
            Some(ProviderError::new(
                ErrorKind::NoCapacity,
                "make the machine",
                message,
            ))
        }
        _ => None,
    }
}

/// The client of an account at this address.
///
/// # Panics
/// When the kind is not registered.
pub fn connect(
    kind: &str,
    url: &str,
    credentials: &[(&'static str, String)],
    settings: Value,
) -> Arc<dyn Provider> {
    connect_behind(&Fence::always_open(), kind, url, credentials, settings)
}

/// The same behind this fence.
///
/// # Panics
/// When the kind is not registered.
pub fn connect_behind(
    fence: &Fence,
    kind: &str,
    url: &str,
    credentials: &[(&'static str, String)],
    settings: Value,
) -> Arc<dyn Provider> {
    let cloud = registry::clouds()
        .iter()
        .find(|cloud| cloud.name == kind)
        .expect("it is registered");
    let addresses = cloud
        .endpoints
        .iter()
        .map(|(name, _)| ((*name).to_owned(), url.to_owned()));
    let secrets = credentials
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Secret::new(value.clone())));
    (cloud.connect)(Account {
        provider: kind.to_owned(),
        settings,
        request_timeout: cloud.request_timeout,
        credentials: Credentials::new(secrets),
        endpoints: Endpoints::new(addresses),
        fence: fence.clone(),
    })
    .expect("settings and credentials are complete")
}

/// The simulator's clock follows the virtual one of the test.
async fn keep_time(simulator: Arc<Simulator>) {
    let step = SignedDuration::try_from(TICK).unwrap_or_default();
    loop {
        sleep(TICK).await;
        simulator.clock().advance(step);
        for (sim, _) in simulator.clouds() {
            sim.catch_up();
        }
    }
}

/// Price of an offer on a market.
pub fn price(offer: &Offer, market: Market) -> Option<Usd> {
    match market {
        Market::OnDemand => offer.on_demand,
        Market::Spot => offer.spot,
    }
}

/// The mark of a machine.
pub fn mark(slot: u32) -> Mark {
    let pool_uid = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";
    Mark {
        cluster: CLUSTER.to_owned(),
        namespace: "research".to_owned(),
        pool: "train".to_owned(),
        pool_uid: pool_uid.to_owned(),
        machine: machine_name("train", pool_uid, slot, 1),
        machine_uid: format!("c3a1f3a0-7b1d-4f38-8f6a-{slot:012}"),
        slot,
        attempt: 1,
    }
}

/// A mark as the machines of a cloud show it: where a name is all that they have, it has no room for other names.
pub fn shown(kind: &str, mark: &Mark) -> Mark {
    if kind != "tensordock" {
        return mark.clone();
    }
    Mark {
        namespace: String::new(),
        pool: String::new(),
        machine: String::new(),
        ..mark.clone()
    }
}

/// An order for one machine.
pub fn order(offer: &Offer, market: Market, slot: u32) -> Order {
    let mark = mark(slot);
    Order {
        token: mark.machine_uid.clone(),
        mark,
        offer: offer.id.clone(),
        instance_type: offer.instance_type.clone(),
        region: offer.region.clone(),
        market,
        max_hourly_cost: price(offer, market),
        authorized_key: KEY.to_owned(),
        boot_script: countdown(Duration::from_mins(15), "shutdown -h now"),
        pool: PoolShape {
            machines: 1,
            connected: false,
        },
        ..Order::default()
    }
}

/// A reference to the machine of an order.
pub fn machine(order: &Order, id: Option<&String>) -> MachineRef {
    MachineRef {
        id: id.cloned(),
        mark: order.mark.clone(),
        region: order.region.clone(),
        started: false,
    }
}

/// Everything of this installation.
pub fn scope() -> Scope {
    Scope {
        cluster: CLUSTER.to_owned(),
        pool_uid: None,
        namespace: None,
        regions: Vec::new(),
    }
}

/// The Pool of all orders.
pub fn pool() -> PoolScope {
    PoolScope {
        cluster: CLUSTER.to_owned(),
        pool_uid: mark(0).pool_uid,
        regions: Vec::new(),
    }
}

/// Whether a controller may react to an error by waiting.
pub fn passes(error: &ProviderError) -> bool {
    error.kind.class() == ErrorClass::Retryable
}
