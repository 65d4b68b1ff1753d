//! Orders at simulated clouds: how soon the next one follows a refusal or a reclaim, and how
//! long two hundred at once take. The times are those of the requests in the log of the simulated
//! cloud.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use skyward_api::Provider;
use skyward_cloudsim::{
    BootPlan, Fault, Rule, Sim,
    core::{cloud::Effect, record::Entry},
};
use skyward_testkit::{Machines, OPERATOR_NAMESPACE};
use tokio::time::{Instant, sleep};

use crate::measure::{Bench, figure, ms, percentile};

/// The cloud at which orders are counted: it publishes no rate limits. Nobody logs in to its
/// machines.
const ORDERS: &str = "runpod";
/// The cloud at which a machine is used and reclaimed.
const RECLAIMS: &str = "verda";
/// The clouds, and what their machines are.
pub(crate) const CLOUDS: &[(&str, Machines)] = &[(ORDERS, Machines::Memory), (RECLAIMS, Machines::Pods)];
/// Samples of each.
const SAMPLES: usize = 5;
/// Machines ordered at once.
const MANY: usize = 200;
/// Longest time until all of them are ordered, as a multiple of the bare writes of as many objects.
const ORDERING: f64 = 4.0;
/// Longest wait for something that should happen within seconds.
const PATIENCE: Duration = Duration::from_secs(180);
/// Pause between two reads of the log of the cloud.
const LOOK: Duration = Duration::from_millis(5);

/// Runs all three benchmarks.
pub(crate) async fn run(bench: &Bench) -> anyhow::Result<()> {
    let customer = Customer::open(bench, ORDERS, "bench-orders").await?;
    customer.offers(1).await?;
    after_a_refusal(&customer).await.context("refusal → next order")?;
    many_at_once(&customer).await.context("many machines at once")?;
    customer.close().await?;
    let customer = Customer::open(bench, RECLAIMS, "bench-reclaims").await?;
    customer.offers(1).await?;
    after_a_reclaim(&customer)
        .await
        .context("reclaim → replacement")?;
    customer.close().await
}

/// Time from the refusal of an order, for lack of capacity, to the next order.
async fn after_a_refusal(customer: &Customer<'_>) -> anyhow::Result<()> {
    let sim = &customer.sim;
    never_boot(sim);
    let mut samples = Vec::new();
    for number in 0..SAMPLES {
        let pool = format!("refused-{number}");
        sim.forget();
        sim.fault(Rule::once("create", Fault::NoCapacity));
        customer.pool(&pool, 1, json!({"allocation": "OnDemand"})).await?;
        let refused = customer.asked("an order that is refused", |entry| entry.fault.is_some());
        let refused = refused.await?.at;
        let ordered = customer.asked("the next order", |entry| entry.effect).await?.at;
        samples.push(between(refused, ordered));
        customer.return_pool(&pool).await?;
    }
    figure(
        "refusal_to_next_order",
        ms(percentile(&mut samples, 0.5)),
        "ms",
        "100",
        &format!(
            "slowest {:.0} ms; one bare object created and written twice {:.0} ms",
            ms(percentile(&mut samples, 1.0)),
            bare(customer.bench, 1).await?
        ),
    );
    Ok(())
}

/// Time until all machines of a Pool of two hundred are ordered.
async fn many_at_once(customer: &Customer<'_>) -> anyhow::Result<()> {
    let sim = &customer.sim;
    never_boot(sim);
    let bare = bare(customer.bench, MANY).await?;
    sim.forget();
    customer
        .pool("many", MANY, json!({"allocation": "OnDemand"}))
        .await?;
    let begun = sim.clock().now();
    let ordered = customer.orders(MANY).await?;
    let looks = customer.looks().len();
    figure(
        "order_200_machines",
        ms(between(begun, ordered)),
        "ms",
        &format!("{:.0}", ORDERING * bare),
        &format!("{looks} looks at the account; {MANY} bare objects created and written twice {bare:.0} ms"),
    );
    let begun = Instant::now();
    customer.return_pool("many").await?;
    figure(
        "return_200_machines",
        begun.elapsed().as_secs_f64() * 1e3,
        "ms",
        "-",
        "until nothing of them is billed and the Pool is gone",
    );
    Ok(())
}

/// Time from the first listing that shows that a used spot machine was reclaimed to the next order.
async fn after_a_reclaim(customer: &Customer<'_>) -> anyhow::Result<()> {
    let (bench, sim) = (customer.bench, &customer.sim);
    let (mut samples, mut unseen) = (Vec::new(), Vec::new());
    for number in 0..SAMPLES {
        let pool = format!("reclaimed-{number}");
        sim.forget();
        let accelerator = json!({"name": "H100", "count": 1});
        let spec = json!({"allocation": "Spot", "accelerator": accelerator});
        customer.pool(&pool, 1, spec).await?;
        let order = customer.asked("the first order", |entry| entry.effect).await?;
        let machine = order.subject.context("the simulator knows what was ordered")?;
        bench.wait_ready(&pool, 1).await?;
        sim.forget();
        let taken = sim.clock().now();
        sim.world(|world| world.reclaim(&machine, SignedDuration::ZERO));
        let ordered = customer.asked("its replacement", |entry| entry.effect).await?.at;
        let seen = customer.looks().into_iter().find(|look| *look >= taken);
        let seen = seen.context("nobody looked at the account")?;
        samples.push(between(seen, ordered));
        unseen.push(between(taken, seen));
        customer.return_pool(&pool).await?;
    }
    figure(
        "reclaim_to_replacement",
        ms(percentile(&mut samples, 0.5)),
        "ms",
        "200",
        &format!(
            "slowest {:.0} ms; the look came {:.0} ms after the reclaim, of which this cloud gives no notice",
            ms(percentile(&mut samples, 1.0)),
            ms(percentile(&mut unseen, 0.5))
        ),
    );
    Ok(())
}

/// Makes machines boot for longer than the benchmark runs.
fn never_boot(sim: &Sim) {
    sim.world(|world| world.boot = BootPlan::takes(3600));
}

/// Milliseconds that the same API server needs to create as many objects and write each of them twice.
async fn bare(bench: &Bench, objects: usize) -> anyhow::Result<f64> {
    let maps: Api<ConfigMap> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let begun = Instant::now();
    stream::iter(0..objects)
        .map(|number| {
            let (maps, name) = (maps.clone(), format!("bare-{objects}-{number}"));
            async move {
                let map = serde_json::from_value(json!({"metadata": {"name": name}}))?;
                maps.create(&PostParams::default(), &map).await?;
                for round in ["one", "two"] {
                    let patch = Patch::Merge(json!({"data": {"round": round}}));
                    maps.patch(&name, &PatchParams::default(), &patch).await?;
                }
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_for_each(|()| async { Ok(()) })
        .await?;
    Ok(ms(begun.elapsed()))
}

fn between(from: Timestamp, to: Timestamp) -> Duration {
    Duration::try_from(to.duration_since(from)).unwrap_or_default()
}

/// An account at a simulated cloud, and the Provider that uses it.
pub(crate) struct Customer<'a> {
    bench: &'a Bench,
    sim: Arc<Sim>,
    /// Of account, Secret and Provider.
    name: String,
    /// Calls that order a machine.
    orders: BTreeSet<&'static str>,
    /// The call that lists all machines.
    list: &'static str,
}

impl<'a> Customer<'a> {
    /// Opens an account and makes its Provider.
    pub(crate) async fn open(bench: &'a Bench, cloud: &'static str, name: &str) -> anyhow::Result<Self> {
        let clouds = bench.clouds.as_ref().context("no clouds were started")?;
        let sim = clouds.sim(cloud).clone();
        let keys = clouds.open_account(cloud, name, name);
        let calls = sim.known_calls().into_iter();
        let orders = calls
            .filter(|call| call.effect == Effect::Create)
            .map(|call| call.name);
        let customer = Self {
            bench,
            orders: orders.collect(),
            list: if cloud == ORDERS {
                "pods.list"
            } else {
                "instances.list"
            },
            sim,
            name: name.to_owned(),
        };
        let secret = json!({"metadata": {"name": name}, "stringData": keys});
        customer
            .secrets()
            .create(&PostParams::default(), &serde_json::from_value(secret)?)
            .await?;
        let provider = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider", "metadata": {"name": name},
            "spec": {"allowedNamespaces": {}, "credentialsSecretRef": {"name": name}, cloud: {}},
        });
        customer
            .providers()
            .create(&PostParams::default(), &serde_json::from_value(provider)?)
            .await?;
        Ok(customer)
    }

    /// Takes Provider and Secret away; the Provider goes when its machines are gone.
    pub(crate) async fn close(&self) -> anyhow::Result<()> {
        self.providers()
            .delete(&self.name, &DeleteParams::default())
            .await?;
        let begun = Instant::now();
        while self.providers().get_opt(&self.name).await?.is_some() {
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "Provider \"{}\" does not go",
                self.name
            );
            sleep(LOOK * 20).await;
        }
        self.secrets()
            .delete(&self.name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Waits until there are at least so many Offers.
    pub(crate) async fn offers(&self, least: u32) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let status = self.providers().get(&self.name).await?.status.unwrap_or_default();
            if status.offers >= least {
                return Ok(());
            }
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "Provider \"{}\" has few offers: {status:?}",
                self.name
            );
            sleep(LOOK * 20).await;
        }
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.bench.client.clone(), OPERATOR_NAMESPACE)
    }

    fn providers(&self) -> Api<Provider> {
        Api::all(self.bench.client.clone())
    }

    async fn pool(&self, name: &str, nodes: usize, more: Value) -> anyhow::Result<()> {
        let mut spec = json!({"provider": self.name, "nodes": {"desired": nodes}, "topology": "Independent"});
        for (key, value) in more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        self.bench.create_pool_of(name, spec).await
    }

    async fn return_pool(&self, name: &str) -> anyhow::Result<()> {
        self.bench.delete_pool(name).await?;
        let billed = self.sim.meter(|meter| {
            let all = meter.billed_now();
            all.into_iter()
                .filter(|machine| machine.account == self.name)
                .count()
        });
        anyhow::ensure!(
            billed == 0,
            "{billed} machines are still billed after their Pool is gone"
        );
        Ok(())
    }

    /// The orders in the log of the cloud, oldest first.
    fn order_log(&self) -> Vec<Entry> {
        let mine = |entry: &Entry| {
            self.orders.contains(entry.call.as_str())
                && entry.account.as_deref().is_none_or(|id| id == self.name)
        };
        self.sim.requests().into_iter().filter(mine).collect()
    }

    /// Waits for the first order that meets the condition.
    async fn asked(&self, what: &str, like: impl Fn(&Entry) -> bool) -> anyhow::Result<Entry> {
        let begun = Instant::now();
        loop {
            if let Some(entry) = self.order_log().into_iter().find(&like) {
                return Ok(entry);
            }
            if begun.elapsed() > PATIENCE {
                bail!(
                    "{what} did not come within {} s: {:?}",
                    PATIENCE.as_secs(),
                    self.sim.requests()
                );
            }
            sleep(LOOK).await;
        }
    }

    /// Waits for so many orders; returns the time of the last one.
    async fn orders(&self, wanted: usize) -> anyhow::Result<Timestamp> {
        let begun = Instant::now();
        loop {
            let orders: Vec<Entry> = self
                .order_log()
                .into_iter()
                .filter(|entry| entry.effect)
                .collect();
            if let (true, Some(last)) = (orders.len() >= wanted, orders.last()) {
                return Ok(last.at);
            }
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "{} of {wanted} machines were ordered",
                orders.len()
            );
            sleep(LOOK * 10).await;
        }
    }

    /// The times at which the machines of the account were listed since the log was cleared.
    fn looks(&self) -> Vec<Timestamp> {
        let log = self.sim.requests().into_iter();
        log.filter(|entry| entry.call == self.list)
            .map(|entry| entry.at)
            .collect()
    }
}
