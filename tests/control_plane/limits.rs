//! Limits of sizes: names, specs, statuses.

use anyhow::{Context as _, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, api::PostParams};
use serde_json::{Map, Value, json};
use skyward_api::{
    TaskStatus, condition,
    task::{RunResult, SlotAttempt},
};
use skyward_control_plane_tests::{api, cluster, object, path, refusal};

#[tokio::test]
async fn names_of_253_characters_work() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("names").await?;
    let name = format!("{}.{}", "a".repeat(200), "b".repeat(52));
    assert_eq!(name.len(), 253);
    let pool = object("Pool", &name, "{provider: nowhere, nodes: {desired: 0}}")?;
    api(&cluster.client, "Pool", &space.name)
        .create(&PostParams::default(), &pool)
        .await?;
    let task = object(
        "Task",
        &name,
        &format!("{{pool: {name}, suspend: true, command: [a]}}"),
    )?;
    api(&cluster.client, "Task", &space.name)
        .create(&PostParams::default(), &task)
        .await?;

    let too_long = object("Pool", &"a".repeat(254), "{provider: nowhere}")?;
    let message = refusal(&api(&cluster.client, "Pool", &space.name), &too_long)
        .await?
        .unwrap_or_default();
    assert!(message.contains("must be no more than 253"), "{message}");
    space.finish().await
}

#[tokio::test]
async fn sources_of_128_kib_are_taken_and_arguments_of_more_than_a_mib() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("large").await?;
    let tasks = api(&cluster.client, "Task", &space.name);
    let of = |bytes: usize| {
        let mut task = object("Task", "t", "{pool: p, script: {source: x}}")?;
        task.data["spec"]["script"]["source"] = json!("x".repeat(bytes));
        anyhow::Ok(task)
    };
    assert_eq!(refusal(&tasks, &of(128 * 1024)?).await?, None);
    let message = refusal(&tasks, &of(1024 * 1024)?).await?.unwrap_or_default();
    assert!(
        message.contains("spec.script.source: Too long: may not be more than 131072"),
        "{message}"
    );
    assert!(
        message.len() < 1000,
        "the message does not repeat the source: {} bytes",
        message.len()
    );

    let pickled = |characters: usize| {
        let mut task = object(
            "Task",
            "t",
            "{pool: p, function: {pickle: {data: AAAA, python: '3.12', cloudpickle: '3.1'}}}",
        )?;
        task.data["spec"]["function"]["pickle"]["data"] = json!("A".repeat(characters));
        anyhow::Ok(task)
    };
    assert_eq!(refusal(&tasks, &pickled(131_072)?).await?, None);
    for (characters, expected) in [
        (131_076, "name the function by function.module"),
        (1024 * 1024, "spec.function.pickle.data: Too long"),
    ] {
        let message = refusal(&tasks, &pickled(characters)?).await?.unwrap_or_default();
        assert!(
            message.contains(expected),
            "{}",
            message.chars().take(1000).collect::<String>()
        );
    }

    // Free JSON has no bound of ours; then the bounds of Kubernetes hold.
    let with_args = |kib: usize| {
        let mut task = object("Task", "t", "{pool: p, function: {source: x, args: [x]}}")?;
        task.data["spec"]["function"]["args"] = json!(["x".repeat(kib * 1024)]);
        anyhow::Ok(task)
    };
    tasks.create(&PostParams::default(), &with_args(1200)?).await?;
    let message = refusal(&tasks, &with_args(4096)?).await?.unwrap_or_default();
    assert!(message.to_lowercase().contains("too large"), "{message}");
    space.finish().await
}

#[tokio::test]
async fn the_largest_status_is_taken() -> Result<()> {
    let cluster = cluster().await?;
    let space = cluster.namespace("status").await?;
    let tasks = api(&cluster.client, "Task", &space.name);
    tasks
        .create(
            &PostParams::default(),
            &object("Task", "t", "{pool: p, suspend: true, command: [a]}")?,
        )
        .await?;
    let long = "é".repeat(5000);
    let conditions = [condition::NewCondition::new(
        condition::FAILED,
        true,
        condition::reason::NON_ZERO_EXIT,
        &long,
    )];
    let status = TaskStatus {
        placed: (0..500)
            .map(|slot| SlotAttempt {
                slot,
                attempt: u32::MAX,
            })
            .collect(),
        results: (0..8)
            .map(|rank| RunResult {
                rank,
                machine: "m".repeat(63),
                reason: condition::reason::NON_ZERO_EXIT.to_owned(),
                exit_code: Some(-1),
                log_tail: "x".repeat(2048),
                value: Some(json!([1, { "a": null }, "x".repeat(1000)])),
                ..RunResult::default()
            })
            .collect(),
        conditions: condition::apply(&[], &conditions, Some(1), "2026-01-01T00:00:00Z".parse()?),
        ..TaskStatus::default()
    };
    // A replacement, because a merge patch takes nulls out of values, even in lists.
    let written = loop {
        let mut task = tasks.get("t").await?;
        task.data["status"] = json!(status);
        match tasks.replace_status("t", &PostParams::default(), &task).await {
            // An operator on this cluster wrote at the same time.
            Err(kube::Error::Api(refusal)) if refusal.code == 409 => {}
            written => break written?,
        }
    };
    assert_eq!(
        written.data["status"]["results"][7]["value"][1],
        json!({ "a": null }),
        "values keep their nulls"
    );
    assert_eq!(
        written.data["status"]["placed"].as_array().map(Vec::len),
        Some(500)
    );
    space.finish().await
}

/// One rule that takes nearly a tenth of what the API server allows the rules of a whole CRD to cost.
fn tenth() -> Value {
    json!({
        "type": "array",
        "maxItems": 1170,
        "items": { "type": "integer" },
        "x-kubernetes-validations": [{ "rule": "self.all(a, self.all(b, a + b != 0))", "message": "filler" }],
    })
}

/// The API server's refusal of one CRD with these fields and so many tenths; `None` when it would
/// be accepted.
async fn refused_with(
    definitions: &Api<CustomResourceDefinition>,
    mut fields: Map<String, Value>,
    tenths: usize,
) -> Result<Option<String>> {
    fields.extend((0..tenths).map(|number| (format!("filler{number}"), tenth())));
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": "budgets.budget.skyward.dev" },
        "spec": {
            "group": "budget.skyward.dev",
            "names": { "kind": "Budget", "listKind": "BudgetList", "plural": "budgets", "singular": "budget" },
            "scope": "Namespaced",
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": fields } },
            }],
        },
    }))?;
    let try_only = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    match definitions.create(&try_only, &definition).await {
        Ok(_) => Ok(None),
        Err(kube::Error::Api(status)) => Ok(Some(status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// The API server bounds what the rules of one CRD may cost. Ours leave it 30 % even together, so that
/// rules can be added, and a version that estimates them higher still takes them.
#[tokio::test]
async fn all_kinds_together_leave_a_third_of_the_budget_for_rules() -> Result<()> {
    let cluster = cluster().await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut all = Map::new();
    for kind in ["providers", "offers", "pools", "machines", "tasks", "crontasks"] {
        let yaml = std::fs::read_to_string(path(&format!("crds/{kind}.yaml")))?;
        let definition: Value = serde_yaml::from_str(&yaml)?;
        let mut schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        if let Some(fields) = schema["properties"].as_object_mut() {
            fields.retain(|name, _| ["spec", "status"].contains(&name.as_str()));
        }
        // What is not the root of a kind has no metadata that its rules could read.
        if let Some(root) = schema.as_object_mut() {
            root.remove("x-kubernetes-validations");
        }
        all.insert(kind.to_owned(), schema);
    }
    // Eleven are too much, so each is more than an eleventh, and four of them more than 36 %.
    let eleven = refused_with(&definitions, Map::new(), 11).await?;
    let said = eleven.context("eleven fillers are no measure: they fit")?;
    assert!(said.contains("cost limit"), "{said}");
    assert_eq!(refused_with(&definitions, Map::new(), 4).await?, None);
    assert_eq!(refused_with(&definitions, all, 4).await?, None);
    Ok(())
}
