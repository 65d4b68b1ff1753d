//! Limits that users set: budgets, limits of a month, overridable settings.

use anyhow::ensure;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use skyward_api::{Pool, Task, TaskPhase};
use skyward_core::Usd;
use skyward_testkit::{PATIENCE, Result, Space};

use crate::story;

/// Ends at its second attempt alone.
const TWICE: &str = "if [ \"$SKYWARD_ATTEMPT\" = 1 ]; then sleep 3000; fi; echo attempt $SKYWARD_ATTEMPT";

/// Changes a spec as a person does.
async fn patch(space: &Space, kind: &str, name: &str, spec: Value) -> Result {
    let change = json!({"spec": spec}).to_string();
    let args = ["patch", kind, name, "--type=merge", "-p", &change];
    space.kubectl(&args).await?.ok().map(drop)
}

#[tokio::test]
async fn a_spent_budget_and_a_spent_month_end_what_they_say_and_raised_it_goes_on() -> Result {
    let story = story("budget", "runpod").await?;
    let (space, customer) = (&story.space, &story.customer);
    let name = customer.provider(space, json!({})).await?;
    let pool = json!({
        "provider": name, "accelerator": {"name": "RTX 4090", "count": 1}, "allocation": "OnDemand",
        "budget": {"maxTotalCost": "10"}, "timeouts": {"shutdown": "2s"},
    });
    space.pool("p", 1, pool).await?;
    space.pool_ready("p").await?;
    space.task("t", "p", json!({"script": {"source": TWICE}})).await?;
    space.task_phase("t", TaskPhase::Running).await?;

    // The money is counted from here: how long a machine takes to get this far is nobody's
    // promise. The month is spent first, which orders nothing more and ends nothing; half a
    // minute of the machine is left in the budget.
    let account = &customer.account;
    let soon = customer
        .sim
        .meter(|meter| Usd::from(meter.bill(account)) + Usd::from(meter.hourly(account)) / 120);
    let budget = soon.to_string();
    let month = json!({"limits": {"monthlyCost": "0.003"}});
    patch(space, "provider.skyward.dev", &name, month).await?;
    let most = json!({"budget": {"maxTotalCost": budget}});
    patch(space, "pool.skyward.dev", "p", most).await?;
    let said = space.condition::<Pool>("p", "Ready", "BudgetSpent").await?;
    ensure!(said.contains(&budget) && said.contains("Raise"), "{said}");
    customer.nothing_left(PATIENCE).await?;
    let task = space
        .wait("t", "waits for its Pool", PATIENCE, |task: &Task| {
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

    let raise = json!({"budget": {"maxTotalCost": "10"}});
    patch(space, "pool.skyward.dev", "p", raise).await?;
    let said = space.condition::<Pool>("p", "Ready", "LimitReached").await?;
    ensure!(
        said.starts_with(&format!(
            "limits.monthlyCost of Provider \"{name}\" is 0.003 USD, and that is spent"
        )),
        "{said}"
    );
    ensure!(customer.billed().is_empty(), "{:?}", customer.billed());

    let raise = json!({"limits": {"monthlyCost": "10"}});
    patch(space, "provider.skyward.dev", &name, raise).await?;
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
    let candidates = json!([{"provider": name, "settings": {"disk": "77G"}}]);
    let pool = json!({"provider": null, "candidates": candidates});
    space.pool("p", 1, pool).await?;
    let said = space.condition::<Pool>("p", "Stalled", "InvalidSpec").await?;
    ensure!(
        said.contains("candidates[0] overrides disk") && said.contains(&name),
        "{said}"
    );
    ensure!(customer.billed().is_empty(), "{:?}", customer.billed());

    let list = json!({"overridable": ["disk"]});
    patch(space, "provider.skyward.dev", &name, list).await?;
    space.pool_ready("p").await?;
    ensure!(customer.billed().len() == 1, "{:?}", customer.billed());
    story.return_pool("p").await?;
    story.finish().await
}
