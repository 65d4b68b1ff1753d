//! What people allow to be spent, and to be set: budgets, limits, overridable settings.

use anyhow::ensure;
use kube::ResourceExt as _;
use serde_json::json;
use skyward_api::{Pool, Task, TaskPhase};
use skyward_testkit::Result;

use crate::story;

/// Ends at its second attempt alone.
const TWICE: &str = "if [ \"$SKYWARD_ATTEMPT\" = 1 ]; then sleep 3000; fi; echo attempt $SKYWARD_ATTEMPT";

#[tokio::test]
async fn a_spent_budget_and_a_spent_month_end_what_they_say_and_raised_it_goes_on() -> Result {
    let story = story("budget", "runpod").await?;
    let (space, customer) = (&story.space, &story.customer);
    // Of a machine for 0.34 USD/h: half a minute, and a minute.
    let (month, budget) = ("0.003", "0.006");
    let name = customer
        .provider(space, json!({"limits": {"monthlyCost": month}}))
        .await?;
    let pool = json!({
        "provider": name, "accelerator": {"name": "RTX 4090", "count": 1}, "allocation": "on-demand",
        "budget": {"maxTotalCost": budget}, "timeouts": {"shutdown": "2s"},
    });
    space.pool("p", 1, pool).await?;
    space.pool_ready("p").await?;
    space.task("t", "p", json!({"script": {"source": TWICE}})).await?;
    space.task_phase("t", TaskPhase::Running).await?;

    // The month is spent first, which orders nothing more and ends nothing.
    let said = space.condition::<Pool>("p", "Ready", "BudgetSpent").await?;
    ensure!(said.contains(budget) && said.contains("Raise"), "{said}");
    customer.nothing_left(90).await?;
    let task = space
        .wait("t", "waits for its Pool", 30, |task: &Task| {
            let status = task.status.as_ref();
            status.is_some_and(|status| status.phase == Some(TaskPhase::Pending))
        })
        .await?;
    let status = task.status.clone().unwrap_or_default();
    ensure!(
        status.interruptions == 0,
        "{} was not interrupted: {status:#?}",
        task.name_any()
    );

    let raise = json!({"spec": {"budget": {"maxTotalCost": "10"}}}).to_string();
    let patch = ["patch", "pool.skyward.dev", "p", "--type=merge", "-p", &raise];
    space.kubectl(&patch).await?.ok()?;
    let said = space.condition::<Pool>("p", "Ready", "LimitReached").await?;
    ensure!(
        said.contains("limits.monthlyCost is 0.003 USD, and that is spent"),
        "{said}"
    );
    ensure!(customer.billed().is_empty(), "{:?}", customer.billed());

    let raise = json!({"spec": {"limits": {"monthlyCost": "10"}}}).to_string();
    let patch = [
        "patch",
        "provider.skyward.dev",
        &name,
        "--type=merge",
        "-p",
        &raise,
    ];
    space.kubectl(&patch).await?.ok()?;
    let status = space.task_ended("t").await?.status.unwrap_or_default();
    ensure!(
        status.phase == Some(TaskPhase::Succeeded) && status.attempt == 2 && status.interruptions == 0,
        "{status:#?}"
    );
    story.return_pool("p").await?;
    story.finish().await
}

#[tokio::test]
async fn a_setting_of_the_provider_is_overridden_only_where_it_says_so() -> Result {
    let story = story("override", "verda").await?;
    let (space, customer) = (&story.space, &story.customer);
    let name = customer.provider(space, json!({})).await?;
    let candidates = json!([{"provider": name, "settings": {"diskGB": 77}}]);
    let pool = json!({"provider": null, "candidates": candidates});
    space.pool("p", 1, pool).await?;
    let said = space.condition::<Pool>("p", "Stalled", "InvalidSpec").await?;
    ensure!(
        said.contains("candidates[0] overrides diskGB") && said.contains(&name),
        "{said}"
    );
    ensure!(customer.billed().is_empty(), "{:?}", customer.billed());

    let list = json!({"spec": {"overridable": ["diskGB"]}}).to_string();
    let patch = [
        "patch",
        "provider.skyward.dev",
        &name,
        "--type=merge",
        "-p",
        &list,
    ];
    space.kubectl(&patch).await?.ok()?;
    space.pool_ready("p").await?;
    ensure!(customer.billed().len() == 1, "{:?}", customer.billed());
    story.return_pool("p").await?;
    story.finish().await
}
