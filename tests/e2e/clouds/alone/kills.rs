//! The controller is killed with SIGKILL when a cloud has carried out a request and has not
//! answered yet: between the effect and its record. One kill hits all clouds that are asked about
//! the same time.

use std::time::Duration;

use anyhow::ensure;
use kube::Api;
use serde_json::json;
use skyward_api::{Machine, Pool};
use skyward_cloudsim::{Fault, Rule};
use skyward_testkit::{Cluster, PATIENCE, Result, Space, kill_controller, wait_controller_replaced};
use tokio::time::{Instant, sleep};

use crate::{CONTROLLER, Customer, clouds, is_told, names, provider_says};

/// How long an answer is held back: less than any client waits.
const HELD_BACK: Duration = Duration::from_secs(25);

/// A kind of effect at a cloud.
#[derive(Clone, Copy)]
enum Effect {
    /// The order of a machine.
    MachineOrdered,
    /// Its deletion.
    MachineDeleted,
    /// Making what the machines of a Pool share.
    SharedMade,
    /// Returning it.
    SharedReturned,
}

impl Effect {
    /// The call with this effect, if the cloud has one.
    fn call(self, cloud: &str) -> Option<&'static str> {
        match (self, cloud) {
            (Self::MachineOrdered, _) => Some("create"),
            (Self::MachineDeleted, _) => Some("delete"),
            (Self::SharedMade, "verda") => Some("keys.create"),
            (Self::SharedMade, "aws") => Some("ec2.CreateSecurityGroup"),
            (Self::SharedReturned, "verda") => Some("keys.delete"),
            (Self::SharedReturned, "aws") => Some("ec2.DeleteSecurityGroup"),
            (Self::SharedMade | Self::SharedReturned, _) => None,
        }
    }
}

/// The clouds whose effects are met: not Lambda, which alone starts a machine every twelve seconds only. Verda has an effect of
/// each kind, and is among them in each third.
fn killed() -> impl Iterator<Item = &'static str> {
    let clouds = names().into_iter().filter(|cloud| *cloud != "lambda");
    clouds.filter(|cloud| *cloud == "verda" || is_told(cloud))
}

/// So many machines a Pool has: two where they share something, whose making one kill must meet beside their orders. More
/// would only keep this machine busy.
fn size(cloud: &str) -> u32 {
    1 + u32::from(Effect::SharedMade.call(cloud).is_some())
}

/// These clouds with an account each, and one Pool at each of them.
struct Campaign {
    space: Space,
    customers: Vec<Customer>,
}

impl Campaign {
    async fn start(cluster: &Cluster) -> Result<Self> {
        let clouds = clouds(cluster).await?;
        let space = cluster.namespace("kills").await?;
        let mut customers = Vec::new();
        for cloud in killed() {
            let customer = Customer::new(clouds, cloud, &format!("{}-{cloud}", space.name));
            customer.provider(&space, json!({})).await?;
            customers.push(customer);
        }
        for cloud in killed() {
            provider_says(&space, &format!("{}-{cloud}", space.name), "Ready", "Connected").await?;
        }
        Ok(Self { space, customers })
    }

    fn pool(customer: &Customer, life: &str) -> String {
        format!("{life}-{}", customer.cloud)
    }

    async fn create_pools(&self, life: &str) -> Result {
        for customer in &self.customers {
            let provider = format!("{}-{}", self.space.name, customer.cloud);
            let spec =
                json!({"provider": provider, "topology": "Independent", "timeouts": {"shutdown": "2s"}});
            let count = size(customer.cloud);
            self.space.pool(&Self::pool(customer, life), count, spec).await?;
        }
        Ok(())
    }

    async fn delete_pools(&self, life: &str) -> Result {
        for customer in &self.customers {
            let name = Self::pool(customer, life);
            self.space
                .kubectl(&["delete", "pool", &name, "--wait=false"])
                .await?
                .ok()?;
        }
        Ok(())
    }

    /// Each cloud holds back its next answers to such calls; `act` leads to them, and while
    /// what they did has no answer yet, the controller is killed.
    async fn killed_in(&self, effects: &[Effect], act: impl Future<Output = Result>) -> Result {
        let mut waiting: Vec<(&Customer, &'static str)> = Vec::new();
        for customer in &self.customers {
            for call in effects.iter().filter_map(|effect| effect.call(customer.cloud)) {
                let millis = u64::try_from(HELD_BACK.as_millis()).unwrap_or(u64::MAX);
                let mut rule = Rule::once(call, Fault::Latency { millis });
                rule.account = Some(customer.account.clone());
                customer.sim.fault(rule);
                waiting.push((customer, call));
            }
        }
        tokio::try_join!(act, self.kill_while_held(waiting))?;
        for customer in &self.customers {
            customer.sim.clear_faults_of(&customer.account);
        }
        Ok(())
    }

    /// Kills the controller while these clouds hold their answers to these calls back.
    async fn kill_while_held(&self, mut waiting: Vec<(&Customer, &'static str)>) -> Result {
        let client = &self.space.cluster.client;
        let deadline = Instant::now() + Duration::from_secs(PATIENCE);
        let mut held_since: Option<Instant> = None;
        // One kill meets all that are held back by then. What a busy machine asks for later is
        // met by another kill, so that no cloud has answered when it comes.
        while !waiting.is_empty() {
            let (held, rest): (Vec<_>, Vec<_>) = waiting
                .iter()
                .copied()
                .partition(|(customer, call)| held_back(customer, call));
            if !held.is_empty() {
                held_since.get_or_insert_with(Instant::now);
            }
            if rest.is_empty() || held_since.is_some_and(|since| since.elapsed() > HELD_BACK / 2) {
                let old = kill_controller(client).await?;
                ensure!(
                    held_since.is_none_or(|since| since.elapsed() < HELD_BACK),
                    "some cloud had answered before the kill"
                );
                wait_controller_replaced(client, old).await?;
                (waiting, held_since) = (rest, None);
                continue;
            }
            ensure!(
                Instant::now() < deadline,
                "not asked for it: {:?}",
                rest.iter()
                    .map(|(customer, call)| (customer.cloud, call))
                    .collect::<Vec<_>>()
            );
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Each Pool has the machines it wants, and each cloud bills for exactly these.
    async fn as_wanted(&self, life: &str) -> Result {
        for customer in &self.customers {
            let name = Self::pool(customer, life);
            self.space.pool_ready(&name).await?;
            let machines = self.space.ready_machines(&name).await?;
            let mut recorded: Vec<String> = machines
                .iter()
                .filter_map(|machine| Some(machine.status.as_ref()?.id.clone()))
                .collect();
            recorded.sort();
            let mut billed: Vec<String> = customer.sim.meter(|meter| {
                let ours = meter
                    .billed_now()
                    .into_iter()
                    .filter(|m| m.account == customer.account);
                ours.map(|machine| machine.id.clone()).collect()
            });
            billed.sort();
            ensure!(
                billed.len() == size(customer.cloud) as usize && billed == recorded,
                "{}: billed {billed:?}, recorded {recorded:?}",
                customer.cloud
            );
        }
        Ok(())
    }

    /// The Pools are gone.
    async fn all_gone(&self, life: &str) -> Result {
        for customer in &self.customers {
            self.space
                .wait_gone::<Pool>(&Self::pool(customer, life), PATIENCE)
                .await?;
        }
        Ok(())
    }
}

/// Whether a cloud holds its answer to such a call of this customer back: its rule has struck.
fn held_back(customer: &Customer, call: &str) -> bool {
    let pending = customer.sim.pending_faults();
    pending
        .iter()
        .all(|rule| rule.call != call || rule.account.as_deref() != Some(&customer.account))
}

#[tokio::test]
async fn the_controller_killed_in_each_kind_of_effect_at_each_cloud_doubles_and_leaks_nothing() -> Result {
    let _alone = CONTROLLER.write().await;
    let cluster = Cluster::connect().await?;
    let campaign = Campaign::start(&cluster).await?;

    campaign
        .killed_in(&[Effect::MachineOrdered], campaign.create_pools("a"))
        .await?;
    campaign.as_wanted("a").await?;
    let next = async {
        campaign.delete_pools("a").await?;
        campaign.create_pools("b").await
    };
    campaign
        .killed_in(&[Effect::MachineDeleted, Effect::SharedMade], next)
        .await?;
    campaign.all_gone("a").await?;
    campaign.as_wanted("b").await?;
    campaign
        .killed_in(&[Effect::SharedReturned], campaign.delete_pools("b"))
        .await?;
    campaign.all_gone("b").await?;
    for customer in &campaign.customers {
        customer.nothing_left(5).await?;
    }

    let machines: Api<Machine> = campaign.space.api();
    let left: Vec<String> = machines
        .list(&Default::default())
        .await?
        .items
        .iter()
        .map(kube::ResourceExt::name_any)
        .collect();
    ensure!(left.is_empty(), "records are left: {left:?}");
    for customer in &campaign.customers {
        customer.no_complaints()?;
    }
    campaign.space.finish().await
}
