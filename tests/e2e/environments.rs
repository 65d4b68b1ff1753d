//! A changed image goes from machine to machine, in place. Snippets of `shellVars` stand for what takes long or fails;
//! the last story installs packages and needs a package index in reach of Pods.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use skyward_api::{Machine, Pool, TaskPhase};
use skyward_testkit::{PATIENCE, Result, Space, package_index};

use crate::{
    crash::KILLING,
    packages::{certificates, image_with},
    story,
};

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config/samples/packages");

async fn change(space: &Space, pool: &str, image: Value) -> Result {
    let patch = json!({"spec": {"image": image}}).to_string();
    let args = ["patch", "pool", pool, "--type=merge", "-p", &patch];
    space.kubectl(&args).await?.ok().map(drop)
}

fn hash(pool: &Pool) -> String {
    let status = pool.status.as_ref();
    let environment = status.and_then(|status| status.environment.as_ref());
    environment
        .map(|environment| environment.hash.clone())
        .unwrap_or_default()
}

/// Waits until every machine has an environment other than `before`, and answers with the Pool.
async fn changed(space: &Space, pool: &str, before: &str) -> Result<Pool> {
    space
        .wait(
            pool,
            "every machine has the new environment",
            PATIENCE,
            |pool: &Pool| {
                let environment = pool
                    .status
                    .as_ref()
                    .and_then(|status| status.environment.as_ref());
                environment.is_some_and(|known| known.hash != before && known.proven && known.turn.is_empty())
            },
        )
        .await
}

/// Names of the Machines of a Pool.
async fn names(space: &Space, pool: &str) -> Result<BTreeSet<String>> {
    let machines = space.ready_machines(pool).await?;
    Ok(machines
        .into_iter()
        .filter_map(|machine| machine.metadata.name)
        .collect())
}

async fn value(space: &Space, name: &str, pool: &str, placement: &str) -> Result<Vec<Option<Value>>> {
    let source = "import os\ndef main():\n    return os.environ['LEVEL']\n";
    let spec = json!({"function": {"source": source}, "placement": placement});
    space.task(name, pool, spec).await?;
    let done = space.task_ended(name).await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    Ok(done.results.into_iter().map(|result| result.value).collect())
}

#[tokio::test]
async fn a_changed_image_orders_no_machine_and_a_running_task_is_not_cut() -> Result {
    let space = story("in-place").await?;
    space
        .pool("p", 2, json!({"image": {"shellVars": {"LEVEL": "echo one"}}}))
        .await?;
    let ready = space.pool_ready("p").await?;
    let before = hash(&ready);
    let machines = names(&space, "p").await?;
    // Its run may end before a controller that starts anew has seen it run.
    let turn = KILLING.read().await;
    // Its variable is that of its start, also when its machine is the last to change.
    let script = "before=$LEVEL; sleep 15; test \"$before\" = \"$LEVEL\" && echo $LEVEL";
    space
        .task("long", "p", json!({"script": {"source": script}}))
        .await?;
    space.task_phase("long", TaskPhase::Running).await?;
    drop(turn);
    change(&space, "p", json!({"shellVars": {"LEVEL": "echo two"}})).await?;
    let pool = changed(&space, "p", &before).await?;
    assert_eq!(names(&space, "p").await?, machines, "none was ordered or ended");
    let ordered = |pool: Pool| pool.status.unwrap_or_default().last_attempt;
    assert_eq!(ordered(pool), ordered(ready));
    let long = space.task_ended("long").await?.status.unwrap_or_default();
    assert_eq!(
        (long.phase, long.attempt),
        (Some(TaskPhase::Succeeded), 1),
        "{long:#?}"
    );
    assert_eq!(
        value(&space, "all", "p", "All").await?,
        vec![Some(json!("two")); 2]
    );
    space.told(&["EnvironmentChanging", "EnvironmentChanged"]).await?;
    space.finish().await
}

#[tokio::test]
async fn a_step_that_fails_at_the_first_machine_leaves_the_pool_as_it_is_and_a_corrected_image_goes_on()
-> Result {
    let space = story("canary-image").await?;
    space
        .pool("p", 2, json!({"image": {"shellVars": {"LEVEL": "echo one"}}}))
        .await?;
    let before = hash(&space.pool_ready("p").await?);
    let machines = names(&space, "p").await?;
    change(
        &space,
        "p",
        json!({"shellVars": {"LEVEL": "echo broken-on-purpose >&2; exit 3"}}),
    )
    .await?;
    let message = space.condition::<Pool>("p", "Stalled", "ImageFailed").await?;
    assert!(message.contains("broken-on-purpose"), "{message}");
    assert_eq!(
        value(&space, "goes-on", "p", "All").await?,
        vec![Some(json!("one")); 2]
    );
    assert_eq!(names(&space, "p").await?, machines);
    change(&space, "p", json!({"shellVars": {"LEVEL": "echo two"}})).await?;
    changed(&space, "p", &before).await?;
    assert_eq!(
        value(&space, "corrected", "p", "All").await?,
        vec![Some(json!("two")); 2]
    );
    assert_eq!(names(&space, "p").await?, machines);
    space.finish().await
}

#[tokio::test]
async fn a_changed_secret_that_steps_read_changes_the_machines_that_there_are() -> Result {
    let space = story("changed-secret").await?;
    let secret = |value: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "steps"}, "stringData": {"STEP": value}});
    space.create_json(secret("a")).await?;
    // The value itself is masked in what steps print; its length is not.
    let image =
        json!({"stepsEnvFrom": [{"secretRef": {"name": "steps"}}], "shellVars": {"LEVEL": "echo ${#STEP}"}});
    space.pool("p", 1, json!({"image": image})).await?;
    let before = hash(&space.pool_ready("p").await?);
    let machines = names(&space, "p").await?;
    let patch = json!({"stringData": {"STEP": "bb"}}).to_string();
    let args = ["patch", "secret", "steps", "--type=merge", "-p", &patch];
    space.kubectl(&args).await?.ok()?;
    changed(&space, "p", &before).await?;
    assert_eq!(value(&space, "look", "p", "One").await?, [Some(json!("2"))]);
    assert_eq!(names(&space, "p").await?, machines);
    space.finish().await
}

#[tokio::test]
async fn variables_of_tasks_alone_change_no_environment() -> Result {
    let space = story("env-alone").await?;
    space
        .pool(
            "p",
            1,
            json!({"image": {"env": [{"name": "LEVEL", "value": "one"}]}}),
        )
        .await?;
    let before = hash(&space.pool_ready("p").await?);
    change(&space, "p", json!({"env": [{"name": "LEVEL", "value": "two"}]})).await?;
    assert_eq!(value(&space, "look", "p", "One").await?, [Some(json!("two"))]);
    let pool = space.pool_ready("p").await?;
    assert_eq!(hash(&pool), before);
    space.finish().await
}

/// What a machine has: the Python, the packages, and where they come from.
const LOOK: &str = "
import os, sys
from importlib.metadata import distributions
def main():
    ours = [d for d in distributions() if str(d.locate_file('')).startswith(sys.prefix)]
    return {'python': sys.version, 'prefix': sys.prefix, 'level': os.environ['LEVEL'],
            'packages': sorted(f'{d.name}=={d.version}' for d in ours)}
";

async fn look(space: &Space, name: &str, pool: &str, source: &str) -> Result<Value> {
    space
        .task(name, pool, json!({"function": {"source": source}}))
        .await?;
    let done = space
        .task_ended_within(name, 480)
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    Ok(done.results[0].value.clone().unwrap_or_default())
}

#[tokio::test]
async fn after_several_changes_a_machine_has_what_a_new_one_has() -> Result {
    let space = story("abc").await?;
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    let image = |pip: &[&str], level: &str| {
        let environment = index.environment.iter();
        let env: Vec<_> = environment
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        json!({"pip": pip, "env": env, "caBundleRef": {"name": "proxy"}, "shellVars": {"LEVEL": format!("echo {level}")}})
    };
    space
        .pool("p", 1, json!({"image": image(&["six", "iniconfig"], "a")}))
        .await?;
    let mut before = hash(&space.pool_ready("p").await?);
    let machines = names(&space, "p").await?;
    for (pip, level) in [
        (&["iniconfig<2"][..], "b"),
        (&["iniconfig>=2", "packaging"][..], "c"),
    ] {
        change(&space, "p", image(pip, level)).await?;
        before = hash(&changed(&space, "p", &before).await?);
    }
    assert_eq!(names(&space, "p").await?, machines, "no machine was ordered");
    space
        .pool(
            "fresh",
            1,
            json!({"image": image(&["iniconfig>=2", "packaging"], "c")}),
        )
        .await?;
    let (changed, mut fresh) = (
        look(&space, "changed", "p", LOOK).await?,
        look(&space, "fresh", "fresh", LOOK).await?,
    );
    // The folder has the name of the hash, and two Pools have different ones.
    fresh["prefix"] = changed["prefix"].clone();
    assert_eq!(changed, fresh);
    let packages = changed["packages"].to_string();
    assert!(
        packages.contains("packaging") && !packages.contains("six"),
        "{packages}"
    );
    let left = space
        .api::<Machine>()
        .list(&kube::api::ListParams::default())
        .await?;
    assert_eq!(left.items.len(), 2);
    space.finish().await
}

/// Which packages a machine has, Debian's and Python's.
const HAS: &str = "
import shutil
from importlib.util import find_spec
def main():
    return {'hello': shutil.which('hello') is not None, **{name: find_spec(name) is not None for name in ('six', 'iniconfig')}}
";

#[tokio::test]
async fn a_debian_package_that_is_taken_away_replaces_the_machine_and_a_python_package_replaces_none()
-> Result {
    let space = story("apt-less").await?;
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    let image = |pip: &str, apt: &[&str]| {
        let mut image = image_with(&index);
        image["pip"] = json!([pip]);
        image["apt"] = json!(apt);
        image
    };
    space
        .pool("p", 1, json!({"image": image("six", &["hello"])}))
        .await?;
    let first = hash(&space.pool_ready("p").await?);
    let machines = names(&space, "p").await?;

    change(&space, "p", image("iniconfig", &["hello"])).await?;
    let second = changed(&space, "p", &first).await?;
    assert_eq!(names(&space, "p").await?, machines, "none was ordered");
    assert_eq!(
        look(&space, "in-place", "p", HAS).await?,
        json!({"hello": true, "six": false, "iniconfig": true})
    );

    change(&space, "p", image("iniconfig", &[])).await?;
    let attempts = |pool: &Pool| pool.status.as_ref().map(|status| status.last_attempt);
    space
        .wait("p", "another machine is ordered", PATIENCE, |pool: &Pool| {
            attempts(pool) > attempts(&second)
        })
        .await?;
    assert_ne!(hash(&space.pool_ready("p").await?), hash(&second));
    let others = names(&space, "p").await?;
    assert_eq!(
        (others.len(), others.is_disjoint(&machines)),
        (1, true),
        "{others:?}"
    );
    assert_eq!(
        look(&space, "replaced", "p", HAS).await?,
        json!({"hello": false, "six": false, "iniconfig": true})
    );
    space.finish().await
}

#[tokio::test]
async fn the_sample_adds_a_package_to_the_machines_that_there_are() -> Result {
    let space = story("packages-sample").await?;
    let Some(index) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    certificates(&space, &index).await?;
    // The sample says nothing of how this cluster reaches an index.
    let patch = json!({"spec": {"image": image_with(&index)}});
    let apply = async |name: &str| space.apply_patched(&format!("{SAMPLE}/{name}"), &patch).await;
    apply("pool.yaml").await?;
    let before = hash(&space.pool_ready("packages").await?);
    let machines = names(&space, "packages").await?;
    apply("pool-one-more.yaml").await?;
    changed(&space, "packages", &before).await?;
    assert_eq!(names(&space, "packages").await?, machines, "none was ordered");
    let task = std::fs::read_to_string(format!("{SAMPLE}/task.yaml"))?;
    space.apply(&task).await?.ok()?;
    let done = space.task_ended("packages").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    let found = done.results[0].value.clone().unwrap_or_default().to_string();
    assert!(
        found.contains("six==") && found.contains("iniconfig=="),
        "{found}"
    );
    space.finish().await
}
