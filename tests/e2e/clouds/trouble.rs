//! Refusals of clouds, and mistakes of users.

use std::collections::BTreeMap;

use anyhow::{Context as _, ensure};
use kube::{Api, ResourceExt as _, api::Patch};
use serde_json::json;
use skyward_api::{Pool, Provider, TaskPhase};
use skyward_cloudsim::{CredentialState, Entry, Fault, Machine, Rule};
use skyward_testkit::{OPERATOR_NAMESPACE, PATIENCE, Result};
use tokio::time::{Duration, Instant, sleep};

use crate::{Customer, clouds, is_there, provider_says, story};

#[tokio::test]
async fn wrong_credentials_say_what_to_do_and_right_ones_work_without_a_restart() -> Result {
    let story = story("wrong-key", "verda").await?;
    let (space, customer) = (&story.space, &story.customer);
    let mut wrong = customer.keys.clone();
    wrong.insert(
        "VERDA_CLIENT_SECRET".to_owned(),
        "canary-7d1f-not-the-secret".to_owned(),
    );
    let right = customer.keys.clone();
    let name = customer
        .provider(space, json!({"refreshInterval": "10s"}))
        .await?;
    // A missing Secret has another reason than one that the cloud refuses.
    let absent =
        json!({"spec": {"credentialsSecretRef": {"name": format!("{}-absent", space.name)}}}).to_string();
    let present =
        json!({"spec": {"credentialsSecretRef": {"name": format!("{}-verda", space.name)}}}).to_string();
    let patch = |spec| ["patch", "provider.skyward.dev", &name, "--type=merge", "-p", spec];
    space.cluster.kubectl(&patch(&absent)).await?.ok()?;
    let said = provider_says(space, &name, "Ready", "CredentialsMissing").await?;
    for words in ["-absent", "VERDA_CLIENT_SECRET", OPERATOR_NAMESPACE] {
        ensure!(said.contains(words), "it names {words}: {said}");
    }
    customer.secret(space, &wrong).await?;
    space.cluster.kubectl(&patch(&present)).await?.ok()?;
    let said = provider_says(space, &name, "Ready", "CredentialsRefused").await?;
    ensure!(said.contains("VERDA_CLIENT_SECRET"), "it names the key: {said}");
    ensure!(said.contains("Secret"), "it says what to do: {said}");
    ensure!(!said.contains("canary"), "it shows no secret: {said}");
    space.pool("p", 1, json!({"provider": name})).await?;
    space.condition::<Pool>("p", "Ready", "ProviderNotReady").await?;
    ensure!(customer.billed().is_empty());

    customer.secret(space, &right).await?;
    space.pool_ready("p").await?;
    space.task("before", "p", json!({"command": ["true"]})).await?;
    ensure!(phase(space.task_ended("before").await?) == Some(TaskPhase::Succeeded));

    // Revoked at the cloud: running Tasks go on, and no machine is taken for gone.
    customer.set_credentials(CredentialState::Revoked);
    provider_says(space, &name, "Ready", "CredentialsRefused").await?;
    let machine = space
        .ready_machines("p")
        .await?
        .pop()
        .context("the machine's record is gone")?;
    space.task("while", "p", json!({"command": ["true"]})).await?;
    ensure!(phase(space.task_ended("while").await?) == Some(TaskPhase::Succeeded));
    ensure!(customer.billed().len() == 1, "{:?}", customer.billed());
    // A Pool that goes meanwhile keeps the record of what it rents.
    space
        .kubectl(&["delete", "pool", "p", "--wait=false"])
        .await?
        .ok()?;
    space
        .wait(
            &machine.name_any(),
            "is being deleted",
            PATIENCE,
            |m: &skyward_api::Machine| m.metadata.deletion_timestamp.is_some(),
        )
        .await?;
    ensure!(
        customer.billed().len() == 1,
        "it is still rented: {:?}",
        customer.billed()
    );
    customer.set_credentials(CredentialState::Valid);
    space.wait_gone::<Pool>("p", PATIENCE).await?;
    customer.nothing_left(5).await?;
    story.finish().await
}

fn phase(task: skyward_api::Task) -> Option<TaskPhase> {
    task.status.and_then(|status| status.phase)
}

/// A rule that refuses every order of a customer.
fn no_capacity(customer: &Customer) -> Rule {
    let mut rule = Rule::once("create", Fault::NoCapacity);
    rule.times = None;
    rule.account = Some(customer.account.clone());
    rule
}

#[tokio::test]
async fn a_refusal_moves_on_at_once_and_when_all_refuse_the_pool_says_what_each_cloud_said() -> Result {
    let story = story("refusal", "verda").await?;
    let (space, first) = (&story.space, &story.customer);
    let second = Customer::new(
        clouds(&space.cluster).await?,
        "runpod",
        &format!("{}-second", space.name),
    );
    let one = first.provider(space, json!({})).await?;
    let two = second.provider(space, json!({})).await?;
    for name in [&one, &two] {
        provider_says(space, name, "Ready", "Connected").await?;
    }
    first.sim.fault(no_capacity(first));
    let candidates = json!([
        {"provider": one, "accelerator": {"name": "H100", "count": 1}},
        {"provider": two, "accelerator": {"name": "H100", "count": 1}},
    ]);
    let spec =
        json!({"provider": null, "candidates": candidates, "selection": "First", "maxProvisionAttempts": 20});
    space.pool("p", 1, spec.clone()).await?;
    space.pool_ready("p").await?;
    ensure!(first.billed().is_empty() && second.billed().len() == 1);
    let times = |customer: &Customer, wanted: fn(&Entry) -> bool| {
        let all = customer.sim.requests();
        all.into_iter()
            .filter(wanted)
            .map(|entry| entry.at)
            .collect::<Vec<_>>()
    };
    let refused = times(first, |entry| entry.fault.as_deref() == Some("no-capacity"));
    ensure!(refused.len() > 4, "its wait is too short to tell: {refused:?}");
    let refused = refused
        .into_iter()
        .next_back()
        .context("the first cloud was never asked")?;
    let ordered = second.sim.meter(|meter| {
        meter
            .billed_now()
            .into_iter()
            .find(|machine| machine.account == second.account)
            .map(Machine::created)
    });
    let next = ordered.context("the second cloud was never asked")?;
    // A Pool that waited would have waited for minutes, after so many refusals in a row; a busy
    // machine takes its seconds.
    let moved_on = next.duration_since(refused);
    ensure!(
        moved_on <= jiff::SignedDuration::from_mins(1),
        "it took {moved_on:#}"
    );

    second.sim.fault(no_capacity(&second));
    let mut spec = spec;
    spec["maxProvisionAttempts"] = json!(2);
    spec["provisionRetryDelay"] = json!("1s");
    space.pool("q", 1, spec).await?;
    let said = space
        .condition::<Pool>("q", "Ready", "AllProvidersFailed")
        .await?;
    for name in [&one, &two] {
        ensure!(said.contains(name.as_str()), "each cloud is named: {said}");
    }
    space
        .kubectl(&["delete", "pool", "q", "--timeout=300s"])
        .await?
        .ok()?;
    first.sim.clear_faults_of(&first.account);
    second.sim.clear_faults_of(&second.account);
    story.return_pool("p").await?;
    second.nothing_left(5).await?;
    second.no_complaints()?;
    story.finish().await
}

#[tokio::test]
async fn machines_of_two_pools_of_one_account_let_in_their_own_pools_key_only() -> Result {
    let story = story("keys", "vastai").await?;
    let (space, customer) = (&story.space, &story.customer);
    let provider = customer.provider(space, json!({})).await?;
    let mut found = BTreeMap::new();
    for pool in ["a", "b"] {
        space.pool(pool, 1, json!({"provider": provider})).await?;
    }
    for pool in ["a", "b"] {
        space.pool_ready(pool).await?;
        let machine = space.ready_machines(pool).await?.remove(0);
        let pod = format!("vastai-{}", machine.status.unwrap_or_default().id);
        let cat = [
            "-n",
            "cloudsim",
            "exec",
            &pod,
            "--",
            "cat",
            "/root/.ssh/authorized_keys",
        ];
        let keys = space.cluster.kubectl(&cat).await?.ok()?;
        let keys: Vec<String> = keys
            .lines()
            .filter(|line| !line.trim().is_empty())
            .map(str::to_owned)
            .collect();
        ensure!(keys.len() == 1, "{pool}: {keys:?}");
        found.insert(keys[0].clone(), pool);
    }
    ensure!(found.len() == 2, "both Pools have the same key: {found:?}");
    space
        .kubectl(&["delete", "pools", "a", "b", "--timeout=300s"])
        .await?
        .ok()?;
    story.finish().await
}

/// `kubectl delete -f` and GitOps tools take everything away at once, and the credentials
/// first if they stand first.
async fn deleted_at_once(cloud: &'static str) -> Result {
    let story = story("at-once", cloud).await?;
    let (space, customer) = (&story.space, &story.customer);
    let name = customer.provider(space, json!({})).await?;
    space.pool("p", 1, json!({"provider": name})).await?;
    space.pool_ready("p").await?;
    ensure!(!customer.leftovers().is_empty(), "its machines share something");
    let secret = format!("secret/{}-{cloud}", space.name);
    let provider = format!("provider.skyward.dev/{name}");
    // It has machines, so that this is meant is said first.
    let allow = format!("{}=true", skyward_api::labels::ALLOW_DELETION);
    let annotate = ["annotate", provider.as_str(), &allow];
    space.cluster.kubectl(&annotate).await?.ok()?;
    for (what, namespace) in [
        (secret.as_str(), OPERATOR_NAMESPACE),
        (provider.as_str(), "default"),
        ("pool.skyward.dev/p", space.name.as_str()),
    ] {
        let command = ["delete", what, "-n", namespace, "--wait=false"];
        space.cluster.kubectl(&command).await?.ok()?;
    }
    space.wait_gone::<Pool>("p", PATIENCE).await?;
    let providers: Api<Provider> = Api::all(space.cluster.client.clone());
    let deadline = Instant::now() + Duration::from_secs(PATIENCE);
    while let Some(left) = providers.get_opt(&name).await? {
        ensure!(Instant::now() < deadline, "the Provider stays: {left:#?}");
        sleep(Duration::from_millis(200)).await;
    }
    story.finish().await
}

#[tokio::test]
async fn a_pool_its_provider_and_its_secret_deleted_at_once_leave_nothing_at_verda() -> Result {
    deleted_at_once("verda").await
}

#[tokio::test]
async fn a_pool_its_provider_and_its_secret_deleted_at_once_leave_nothing_at_aws() -> Result {
    if is_there("aws") {
        deleted_at_once("aws").await
    } else {
        Ok(())
    }
}

#[tokio::test]
async fn a_cloud_that_does_not_answer_delays_nobody_elses_machines() -> Result {
    let story = story("silent", "runpod").await?;
    let (space, silent) = (&story.space, &story.customer);
    let other = Customer::new(
        clouds(&space.cluster).await?,
        "verda",
        &format!("{}-other", space.name),
    );
    let one = silent.provider(space, json!({})).await?;
    let two = other.provider(space, json!({})).await?;
    for name in [&one, &two] {
        provider_says(space, name, "Ready", "Connected").await?;
    }
    let mut no_answer = Rule::always("create", Fault::Latency { millis: 60_000 });
    no_answer.account = Some(silent.account.clone());
    // Each of our orders is given up after half a minute, and 32 are under way at a time.
    // Fewer than there are machines: an order that waits for all of them waits in vain.
    no_answer.times = Some(4 * 32);
    silent.sim.fault(no_answer);
    // Nor is anything made of them: 150 Pods would delay everybody's by themselves.
    silent.sim.fault(no_capacity(silent));
    space.pool("silent", 150, json!({"provider": one})).await?;
    space
        .wait("silent", "has its machines on record", PATIENCE, |pool: &Pool| {
            pool.status.as_ref().is_some_and(|status| status.machines == 150)
        })
        .await?;
    space.pool("other", 1, json!({"provider": two})).await?;
    while other.billed().is_empty() {
        let pending = silent.sim.pending_faults();
        let waits = pending
            .iter()
            .any(|rule| rule.account.as_ref() == Some(&silent.account));
        ensure!(waits, "its order waits for those of the silent cloud");
        sleep(Duration::from_millis(200)).await;
    }
    space.pool_ready("other").await?;

    // Nor does its sweep wait, while the silent cloud does not list its machines either.
    let mut no_list = Rule::always("read", Fault::Latency { millis: 60_000 });
    no_list.account = Some(silent.account.clone());
    silent.sim.fault(no_list);
    let machine = space.ready_machines("other").await?.remove(0);
    let name = machine.name_any();
    let orphan = machine.status.unwrap_or_default().id;
    let machines: Api<skyward_api::Machine> = space.api();
    let torn_out = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    machines.patch(&name, &Default::default(), &torn_out).await?;
    machines.delete(&name, &Default::default()).await?;
    // A minute to the next look, half a minute to the second, and what a busy machine takes.
    let deadline = Instant::now() + Duration::from_secs(60 + 30 + 90);
    let is_billed = |billed: &String| billed.starts_with(&format!("{orphan} "));
    while other.billed().iter().any(is_billed) {
        ensure!(Instant::now() < deadline, "its orphan is still rented");
        sleep(Duration::from_millis(200)).await;
    }

    for pool in ["silent", "other"] {
        space
            .kubectl(&["delete", "pool", pool, "--wait=false"])
            .await?
            .ok()?;
    }
    space.wait_gone::<Pool>("other", PATIENCE).await?;
    silent.sim.clear_faults_of(&silent.account);
    space.wait_gone::<Pool>("silent", PATIENCE).await?;
    other.nothing_left(5).await?;
    other.no_complaints()?;
    story.finish().await
}
