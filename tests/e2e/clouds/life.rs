//! The life of machines at each cloud: by the samples, and ended early by the cloud.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, ResourceExt as _};
use serde::Deserialize as _;
use serde_json::{Value, json};
use skyward_api::{Machine, Pool, ProviderStatus, Task, TaskPhase};
use skyward_core::Usd;
use skyward_testkit::{OPERATOR_NAMESPACE, PATIENCE, Result, Space, certificates, image_with, package_index};
use tokio::time::{Instant, sleep};

use crate::{Story, is_there, is_told, provider, story};

/// The documents of the sample of a cloud.
fn sample(cloud: &str) -> Result<Vec<Value>> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../config/samples/clouds"]
        .iter()
        .collect();
    let path = path.join(format!("{cloud}.yaml"));
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_yaml::Deserializer::from_str(&text)
        .map(|document| Ok(Value::deserialize(document)?))
        .collect()
}

/// Fills in the Secret of a sample and applies it, as a user does.
async fn apply_sample(story: &Story) -> Result {
    let mut kinds = Vec::new();
    for mut object in sample(story.customer.cloud)? {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "Secret" => {
                ensure!(object["metadata"]["namespace"] == OPERATOR_NAMESPACE);
                let mut names: Vec<&String> = object["stringData"]
                    .as_object()
                    .into_iter()
                    .flat_map(|o| o.keys())
                    .collect();
                names.sort_unstable();
                let expected: Vec<&String> = story.customer.keys.keys().collect();
                ensure!(names == expected, "the sample's Secret has {names:?}");
                object["stringData"] = json!(story.customer.keys);
                story.space.cluster.apply(&object.to_string()).await?.ok()?;
            }
            "Provider" => {
                // It goes with the story.
                object["metadata"]["labels"] = json!({"skyward-test-story": story.space.name});
                story.space.cluster.apply(&object.to_string()).await?.ok()?;
            }
            _ => story.space.create_json(object).await?,
        }
        kinds.push(kind);
    }
    ensure!(
        kinds == ["Secret", "Provider", "Pool", "Task"],
        "the sample has {kinds:?}"
    );
    Ok(())
}

/// Seconds between two looks at a machine that ends, including their time on a busy machine.
const LOOK: i64 = 5 + 7;

/// Waits until a Provider counts so many machines.
async fn provider_counts(space: &Space, name: &str, machines: u32) -> Result<ProviderStatus> {
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let found = provider(space, name).await?.status.unwrap_or_default();
        if found.machines == machines {
            return Ok(found);
        }
        ensure!(Instant::now() < deadline, "{machines} machines: {found:#?}");
        sleep(Duration::from_millis(200)).await;
    }
}

/// The sample runs its Task on a machine of the cloud; all of it is returned and settled.
async fn sample_story(cloud: &'static str) -> Result {
    if !is_told(cloud) {
        return Ok(());
    }
    let story = story("sample", cloud).await?;
    apply_sample(&story).await?;
    let name = format!("{cloud}-sample");
    let pool = story.space.pool_ready(&name).await?;
    let status = pool.status.unwrap_or_default();
    ensure!(status.ready_summary == "1/1", "{status:#?}");
    ensure!(
        story.customer.billed().len() == 1,
        "one machine: {:?}",
        story.customer.billed()
    );
    let task = story.space.task_ended(&name).await?.status.unwrap_or_default();
    ensure!(task.phase == Some(TaskPhase::Succeeded), "{task:#?}");
    let cost = Usd::or_zero(&task.cost);
    ensure!(
        cost > Usd::ZERO && task.results.iter().all(|run| run.cost == task.cost),
        "what its only run costs: {task:#?}"
    );
    // The machine has what was asked for.
    let args = ["logs", &name, "-n", &story.space.name];
    let limit = Duration::from_secs(60);
    let log = story
        .space
        .cluster
        .run("kubectl-skyward", &args, None, limit)
        .await?
        .ok()?;
    ensure!(log.contains("GPU 0: NVIDIA"), "nvidia-smi said: {log}");
    // Numbers alone are written every few seconds.
    let found = provider_counts(&story.space, cloud, 1).await?;
    ensure!(!found.account.is_empty() && found.offers > 0, "{found:#?}");

    story.return_pool(&name).await?;
    let returned = story.customer.sim.world(|world| world.now());
    // What is settled is what the cloud asks for, but for the time between its end there and
    // the look that found it gone: that is the machine's that runs this, not ours.
    let bill = story
        .customer
        .sim
        .meter(|meter| Usd::from(meter.bill(&story.customer.account)));
    let settled = provider(&story.space, cloud)
        .await?
        .status
        .unwrap_or_default()
        .cost
        .unwrap_or_default();
    let ledger = Usd::or_zero(&settled.settled);
    let (hourly, unseen, made) = story.customer.sim.world(|world| {
        let ours: Vec<_> = world.machines_of(&story.customer.account).collect();
        let billed = ours.iter().flat_map(|machine| machine.tab.spans());
        let end = billed.filter_map(|span| span.to).max();
        let unseen = end.map_or(0, |end| returned.duration_since(end).as_secs());
        let hourly: Usd = ours.iter().map(|machine| Usd::from(machine.price)).sum();
        // How long they were made: the ledger counts that, and Hyperstack and Google do not bill it.
        let made = ours
            .iter()
            .filter(|_| matches!(cloud, "gcp" | "hyperstack"))
            .filter_map(|machine| {
                let first = machine.tab.spans().first()?;
                Some(first.from.duration_since(machine.created()).as_secs())
            });
        (hourly, unseen, made.sum::<i64>())
    });
    let step = match cloud {
        "hyperstack" | "jarvislabs" | "lambda" | "massedcompute" | "scaleway" | "vastai" => 60,
        "vultr" => 3600,
        _ => 0,
    };
    ensure!(
        cost < ledger,
        "a run costs less than its machine: {}",
        cost.exact()
    );
    let most = LOOK + step + unseen + made;
    ensure!(
        (ledger - bill).abs() * 3600 <= hourly * most,
        "the ledger says {}, the bill {}: more than {most} s of {hourly} USD per hour apart, and it was seen {unseen} s after its end",
        ledger.exact(),
        bill.exact()
    );
    // Events outlive their Pool, and come a moment later.
    let events: Api<Event> = story.space.api();
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let all = events.list(&Default::default()).await?.items;
        let mut ours = all.iter().filter(|event| event.regarding_name() == name);
        if ours.any(|event| event.reason.as_deref() == Some("CostFinal")) {
            break;
        }
        ensure!(Instant::now() < deadline, "nobody said what it cost: {all:#?}");
        sleep(Duration::from_millis(200)).await;
    }
    story.finish().await
}

#[tokio::test]
async fn the_sample_of_verda_runs_and_leaves_nothing() -> Result {
    sample_story("verda").await
}

#[tokio::test]
async fn the_sample_of_runpod_runs_and_leaves_nothing() -> Result {
    sample_story("runpod").await
}

#[tokio::test]
async fn the_sample_of_vastai_runs_and_leaves_nothing() -> Result {
    sample_story("vastai").await
}

#[tokio::test]
async fn the_sample_of_lambda_runs_and_leaves_nothing() -> Result {
    sample_story("lambda").await
}

#[tokio::test]
async fn the_sample_of_vultr_runs_and_leaves_nothing() -> Result {
    sample_story("vultr").await
}

#[tokio::test]
async fn the_sample_of_digitalocean_runs_and_leaves_nothing() -> Result {
    sample_story("digitalocean").await
}

#[tokio::test]
async fn the_sample_of_scaleway_runs_and_leaves_nothing() -> Result {
    sample_story("scaleway").await
}

#[tokio::test]
async fn the_sample_of_hyperstack_runs_and_leaves_nothing() -> Result {
    sample_story("hyperstack").await
}

#[tokio::test]
async fn the_sample_of_tensordock_runs_and_leaves_nothing() -> Result {
    sample_story("tensordock").await
}

#[tokio::test]
async fn the_sample_of_jarvislabs_runs_and_leaves_nothing() -> Result {
    sample_story("jarvislabs").await
}

#[tokio::test]
async fn the_sample_of_novita_runs_and_leaves_nothing() -> Result {
    sample_story("novita").await
}

#[tokio::test]
async fn the_sample_of_massedcompute_runs_and_leaves_nothing() -> Result {
    sample_story("massedcompute").await
}

#[tokio::test]
async fn the_sample_of_gcp_runs_and_leaves_nothing() -> Result {
    sample_story("gcp").await
}

#[tokio::test]
async fn the_sample_of_aws_runs_and_leaves_nothing() -> Result {
    if is_there("aws") {
        sample_story("aws").await
    } else {
        Ok(())
    }
}

/// Ends at its second attempt alone: the first is under way when its machine is taken.
const TWICE: &str = "if [ \"$SKYWARD_ATTEMPT\" = 1 ]; then sleep 3000; fi; echo attempt $SKYWARD_ATTEMPT";

/// A spot machine is reclaimed in mid-run: the cloud's notice or its end is seen, another
/// machine is ordered, and the run that was lost runs there once more.
async fn reclaim_story(cloud: &'static str) -> Result {
    if !is_told(cloud) {
        return Ok(());
    }
    let story = story("spot", cloud).await?;
    let name = story.customer.provider(&story.space, json!({})).await?;
    let mut pool = json!({"provider": name, "allocation": "Spot", "timeouts": {"shutdown": "2s"}});
    // The images of clouds have no uv: the machines of one cloud get a package, and so install it first.
    if cloud == "verda"
        && let Some(index) = package_index(&story.space.cluster).await?
    {
        certificates(&story.space, &index).await?;
        pool["image"] = image_with(&index);
        pool["image"]["pip"] = json!(["six"]);
    }
    story.space.pool("p", 1, pool).await?;
    story.space.pool_ready("p").await?;
    story
        .space
        .task("t", "p", json!({"script": {"source": TWICE}}))
        .await?;
    story.space.task_phase("t", TaskPhase::Running).await?;
    let first = story.space.ready_machines("p").await?.remove(0);
    let status = first.status.clone().unwrap_or_default();
    // AWS and Google say on the machine itself that they will take it, two minutes and half a minute
    // before; their APIs say nothing until then. Novita's API may say it beforehand. The others say nothing.
    let notice = SignedDuration::from_secs(match cloud {
        "aws" => 120,
        "gcp" => 30,
        _ => 2,
    });
    let taken_at = story.customer.sim.world(|world| {
        ensure!(
            world
                .machines
                .get(&status.id)
                .is_some_and(|m| m.market == skyward_cloudsim::Market::Spot)
        );
        world.reclaim(&status.id, notice);
        Ok(world.now() + notice)
    })?;
    let task = story.space.task_ended("t").await?.status.unwrap_or_default();
    ensure!(task.phase == Some(TaskPhase::Succeeded), "{task:#?}");
    ensure!(task.attempt == 2 && task.restarts == 1, "{task:#?}");
    let last: Usd = task.results.iter().map(|run| Usd::or_zero(&run.cost)).sum();
    ensure!(
        Usd::or_zero(&task.cost) > last,
        "the attempt that was interrupted costs, too: {task:#?}"
    );
    ensure!(
        cloud != "aws" || story.customer.sim.world(|world| world.now()) < taken_at,
        "the agent told of the notice"
    );
    let second = story.space.ready_machines("p").await?.remove(0);
    ensure!(second.spec.attempt > first.spec.attempt && second.name_any() != first.name_any());
    story
        .space
        .wait_gone::<Machine>(&first.name_any(), PATIENCE)
        .await?;
    ensure!(
        story.customer.billed().len() == 1,
        "one machine is billed: {:?}",
        story.customer.billed()
    );

    let events: Api<Event> = story.space.api();
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    loop {
        let told: Vec<String> = events
            .list(&Default::default())
            .await?
            .items
            .into_iter()
            .filter(|event| event.regarding_name() == first.name_any() || event.regarding_name() == "p")
            .filter_map(|event| event.reason)
            .collect();
        if told.iter().any(|reason| reason.contains("Preempted")) {
            break;
        }
        ensure!(Instant::now() < deadline, "people are told: {told:?}");
        sleep(Duration::from_millis(200)).await;
    }
    let pool: Pool = story.space.api::<Pool>().get("p").await?;
    let cost = pool.status.and_then(|status| status.cost).unwrap_or_default();
    ensure!(
        Usd::or_zero(&cost.spot) > Usd::ZERO && Usd::or_zero(&cost.on_demand).is_zero(),
        "{cost:?}"
    );
    story.space.api::<Task>().delete("t", &Default::default()).await?;
    story.return_pool("p").await?;
    story.finish().await
}

/// The name of what an Event is about.
trait Regarding {
    fn regarding_name(&self) -> String;
}

impl Regarding for Event {
    fn regarding_name(&self) -> String {
        self.involved_object.name.clone().unwrap_or_default()
    }
}

#[tokio::test]
async fn a_spot_machine_that_verda_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("verda").await
}

#[tokio::test]
async fn a_spot_machine_that_runpod_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("runpod").await
}

#[tokio::test]
async fn a_spot_machine_that_vastai_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("vastai").await
}

#[tokio::test]
async fn a_spot_machine_that_hyperstack_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("hyperstack").await
}

#[tokio::test]
async fn a_spot_machine_that_jarvislabs_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("jarvislabs").await
}

#[tokio::test]
async fn a_spot_machine_that_novita_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("novita").await
}

#[tokio::test]
async fn a_spot_machine_that_massedcompute_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("massedcompute").await
}

#[tokio::test]
async fn a_spot_machine_that_gcp_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    reclaim_story("gcp").await
}

#[tokio::test]
async fn a_spot_machine_that_aws_takes_back_is_replaced_and_its_run_runs_again() -> Result {
    if is_there("aws") {
        reclaim_story("aws").await
    } else {
        Ok(())
    }
}

#[tokio::test]
async fn machines_of_a_pool_at_vastai_reach_each_other_in_an_overlay_network() -> Result {
    if !is_there("vastai") {
        return Ok(());
    }
    let story = story("overlay", "vastai").await?;
    let (space, customer) = (&story.space, &story.customer);
    let name = customer.provider(space, json!({})).await?;
    let wanted = json!({"provider": name, "accelerator": {"name": "RTX 4090", "count": 1}});
    space.pool("net", 2, wanted).await?;
    space.pool_ready("net").await?;
    let machines = space.ready_machines("net").await?;
    for machine in &machines {
        let status = machine.status.clone().unwrap_or_default();
        ensure!(machine.spec.region.starts_with("cluster-"), "{machine:#?}");
        // Here a machine is a Pod, and has one network alone.
        ensure!(
            !status.private_address.is_empty() && status.private_address == status.address,
            "{status:#?}"
        );
    }
    ensure!(customer.leftovers().len() == 1, "{:?}", customer.leftovers());
    story.return_pool("net").await?;
    story.finish().await
}
