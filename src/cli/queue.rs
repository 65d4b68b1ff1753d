//! `kubectl skyward queue`: which Tasks wait, in the order of the queue, and why. The order is that of the dispatcher
//! (`skyward_api::task::queue_order`), which reads fields of the Tasks alone: the plugin asks only the API server.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Result, anyhow};
use clap::Args;
use jiff::Timestamp;
use skyward_api::{
    condition::SCHEDULED,
    task::{awaited, queue_order},
};

use crate::{
    api::{Cluster, Waiting, name_of},
    complain, rows, table,
};

const HEADINGS: [&str; 7] = ["POOL", "PLACE", "TASK", "PRIORITY", "AGE", "REASON", "MESSAGE"];

/// Arguments of `queue`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The Pool; all Pools of the namespace when left out.
    #[arg(value_name = "POOL", value_parser = pool)]
    pool: Option<String>,
    /// Only this Task, with its place among the others.
    #[arg(long, value_name = "NAME")]
    task: Option<String>,
}

/// `NAME` or `pool/NAME`. The name becomes part of a selector.
fn pool(text: &str) -> Result<String, String> {
    let name = if text.contains('/') {
        name_of(text, &["pool", "pools", "skpool"])
    } else {
        Some(text.to_owned())
    };
    let is_name = |name: &String| {
        let mut bytes = name.bytes();
        !name.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.')
    };
    name.filter(is_name)
        .ok_or_else(|| format!("{text:?} is no name of a Pool; write NAME or pool/NAME"))
}

/// Prints the queues.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments) -> Result<ExitCode> {
    let waiting = cluster.waiting(arguments.pool.as_deref()).await?;
    let mut cells = cells(waiting, Timestamp::now());
    if let Some(name) = &arguments.task {
        cells.retain(|row| row[2] == *name);
        if cells.is_empty() {
            let namespace = &cluster.namespace;
            return Err(anyhow!(
                "no Task {name:?} waits in the namespace {namespace:?}: it runs, has ended or does not exist"
            ));
        }
    }
    if cells.is_empty() {
        complain("no Task waits");
        return Ok(ExitCode::SUCCESS);
    }
    io::stdout()
        .lock()
        .write_all(table::render(&HEADINGS, &cells).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a Task has a place in the queue of its Pool.
fn queues(task: &Waiting) -> bool {
    let said = task.status.clone().unwrap_or_default();
    let waits_for_tasks = said.attempt == 0
        && awaited(&task.spec.depends_on, &said.dependencies)
            .next()
            .is_some();
    !task.spec.suspend.unwrap_or_default() && !waits_for_tasks
}

/// The rows of the table: the queue of each Pool, then its Tasks that have no place in it.
fn cells(mut waiting: Vec<Waiting>, now: Timestamp) -> Vec<Vec<String>> {
    let created = |task: &Waiting| {
        let created = task.metadata.creation_timestamp.as_ref();
        created.map_or(now, |time| time.0)
    };
    let name = |task: &Waiting| task.metadata.name.clone().unwrap_or_default();
    waiting.sort_by_cached_key(|task| {
        let order = queue_order(task.spec.priority, created(task), name(task));
        (task.spec.pool.clone(), !queues(task), order)
    });
    let mut places: BTreeMap<String, u32> = BTreeMap::new();
    let row = |task: &Waiting| {
        let place = if queues(task) {
            let place = places.entry(task.spec.pool.clone()).or_default();
            *place += 1;
            place.to_string()
        } else {
            "-".to_owned()
        };
        let mut conditions = task.status.iter().flat_map(|status| &status.conditions);
        let scheduled = conditions.find(|condition| condition.kind == SCHEDULED);
        let (reason, message) = scheduled.map_or(("-", ""), |it| (it.reason.as_str(), it.message.as_str()));
        vec![
            task.spec.pool.clone(),
            place,
            name(task),
            task.spec.priority.unwrap_or_default().to_string(),
            rows::human(now.duration_since(created(task))),
            reason.to_owned(),
            // What a function said may have several lines, and a Task has one here.
            message.split_whitespace().collect::<Vec<_>>().join(" "),
        ]
    };
    waiting.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::with_pool;

    fn task(pool: &str, name: &str, minute: u32, spec: &Value, status: &Value) -> Waiting {
        let mut task = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": name, "creationTimestamp": format!("2026-01-01T00:{minute:02}:00Z") },
            "spec": { "pool": pool, "command": ["true"], "somethingNewer": 1 }, "status": status,
        });
        for (field, value) in spec.as_object().into_iter().flatten() {
            task["spec"][field] = value.clone();
        }
        serde_json::from_value(task).unwrap()
    }

    fn shown(waiting: Vec<Waiting>) -> Vec<String> {
        let rows = cells(waiting, "2026-01-01T01:00:00Z".parse().unwrap());
        rows.iter()
            .map(|row| row.join(" ").trim_end().to_owned())
            .collect()
    }

    #[test]
    fn each_pool_has_its_queue_by_priority_and_age_and_its_tasks_without_a_place_come_last() {
        let none = json!({});
        let scheduled = json!({ "phase": "Pending", "conditions": [
            { "type": "Scheduled", "status": "False", "reason": "WaitingForMachine", "message": "2 Tasks before it",
              "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        let after = json!({ "dependsOn": [{ "task": "other" }], "priority": 9 });
        let satisfied = json!({ "dependencies": [{ "task": "other", "uid": "u", "satisfied": true }] });
        let waiting = vec![
            task("q", "alone", 3, &none, &none),
            task("p", "old", 1, &none, &scheduled),
            task("p", "held", 0, &json!({ "suspend": true, "priority": 9 }), &none),
            task("p", "dependent", 0, &after, &none),
            task("p", "satisfied", 30, &after, &satisfied),
            task("p", "urgent", 2, &json!({ "priority": 5 }), &Value::Null),
            task("p", "young", 2, &none, &none),
        ];
        assert_eq!(
            shown(waiting),
            [
                "p 1 satisfied 9 30m0s -",
                "p 2 urgent 5 58m0s -",
                "p 3 old 0 59m0s WaitingForMachine 2 Tasks before it",
                "p 4 young 0 58m0s -",
                "p - dependent 9 1h0m -",
                "p - held 9 1h0m -",
                "q 1 alone 0 57m0s -",
            ]
        );
    }

    #[test]
    fn a_task_has_one_line_whatever_its_function_said() {
        let retrying = json!({ "phase": "Pending", "attempt": 1, "conditions": [
            { "type": "Scheduled", "status": "False", "reason": "Retrying", "message": "attempt 1 failed: a\n  b; attempt 2 follows",
              "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        assert_eq!(
            shown(vec![task("p", "t", 0, &json!({}), &retrying)]),
            ["p 1 t 0 1h0m Retrying attempt 1 failed: a b; attempt 2 follows"]
        );
    }

    #[test]
    fn a_task_that_names_no_pool_waits_for_the_one_of_its_name() {
        let own = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "job", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "poolTemplate": { "spec": { "provider": "x" } }, "command": ["true"] },
        });
        let waiting = with_pool(serde_json::from_value(own).unwrap());
        assert_eq!(shown(vec![waiting]), ["job 1 job 0 1h0m -"]);
    }

    #[test]
    fn a_pool_is_named_as_kubectl_names_it() {
        for text in ["train", "pool/train", "pools.skyward.dev/train", "skpool/train"] {
            assert_eq!(pool(text).as_deref(), Ok("train"), "{text}");
        }
        for text in ["task/train", "", "pool/", "a,b=c"] {
            assert!(pool(text).unwrap_err().contains("pool/NAME"), "{text}");
        }
    }
}
