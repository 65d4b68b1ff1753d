//! Code of several files, from a ConfigMap.

use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase, TaskStatus};
use skyward_testkit::{Result, Space};

use crate::story;

fn status(task: Task) -> TaskStatus {
    task.status.unwrap_or_default()
}

fn digest(status: &TaskStatus) -> String {
    let source = status.source.clone().unwrap_or_default();
    assert!(source.digest.starts_with("sha256:"), "{status:#?}");
    source.digest
}

async fn code(space: &Space, rate: &str) -> Result {
    let train = "from model import RATE\n\ndef run(n):\n    open('scratch', 'x').write('mine')\n    return RATE * n\n";
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "code"},
            "data": {"train.py": train, "model.py": format!("RATE = {rate}\n")},
            "binaryData": {"noise.bin": "AAECAw=="}}),
        )
        .await
}

#[tokio::test]
async fn a_task_runs_the_files_of_a_config_map_on_each_machine() -> Result {
    let space = story("source").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    space.pool_ready("p").await?;
    let source = json!({"configMap": {"name": "code"}});
    let call = |n: i64| json!({"module": "train", "entrypoint": "run", "args": [n]});
    let spec = json!({"placement": "All", "source": source, "function": call(21)});
    space.task("all", "p", spec.clone()).await?;
    let why = space
        .condition::<Task>("all", "Scheduled", "ReferenceNotFound")
        .await?;
    assert!(why.contains("no ConfigMap \"code\""), "{why}");
    code(&space, "2").await?;
    let all = status(space.task_ended("all").await?);
    assert_eq!(all.phase, Some(TaskPhase::Succeeded), "{all:#?}");
    let values: Vec<Value> = all
        .results
        .iter()
        .filter_map(|result| result.value.clone())
        .collect();
    assert_eq!(values, [json!(42), json!(42)], "{all:#?}");

    // The machines have the files by now, and no run sees what another one wrote.
    space.task("again", "p", spec).await?;
    let again = status(space.task_ended("again").await?);
    assert_eq!(again.phase, Some(TaskPhase::Succeeded), "{again:#?}");
    assert_eq!(digest(&again), digest(&all));

    let ls = json!({"source": source, "command": ["sh", "-c", "ls; wc -c < noise.bin; python3 -c 'import model; print(model.RATE)'"]});
    space.task("command", "p", ls).await?;
    let command = status(space.task_ended("command").await?);
    let seen: Vec<&str> = command.results[0].log_tail.split_whitespace().collect();
    assert_eq!(
        seen,
        ["model.py", "noise.bin", "train.py", "4", "2"],
        "{command:#?}"
    );

    let missing = json!({"source": source, "function": {"module": "trian"}});
    space.task("missing", "p", missing).await?;
    let missing = status(space.task_ended("missing").await?);
    assert_eq!(missing.reason, "BadSource", "{missing:#?}");
    assert!(
        missing.results[0].message.contains("modules there: model, train"),
        "{missing:#?}"
    );
    space.finish().await
}

#[tokio::test]
async fn every_attempt_runs_the_files_of_the_first_one() -> Result {
    let space = story("source-attempts").await?;
    space.pool("p", 1, json!({})).await?;
    code(&space, "1").await?;
    let source = json!({"configMap": {"name": "code"}});
    let spec = json!({"source": source, "terminationGracePeriod": "1s", "command": ["sleep", "624"]});
    space.task("t", "p", spec).await?;
    let first = status(space.task_phase("t", TaskPhase::Running).await?);
    let suspend = async |on: bool| {
        let patch = format!(r#"{{"spec":{{"suspend":{on}}}}}"#);
        space
            .kubectl(&["patch", "task", "t", "--type=merge", "-p", &patch])
            .await?
            .ok()
    };
    suspend(true).await?;
    space.task_phase("t", TaskPhase::Suspended).await?;
    code(&space, "2").await?;
    // New Tasks run the new files, once what was read before has left the operator's memory.
    let mut probes = 0;
    loop {
        let name = format!("probe-{probes}");
        space
            .task(&name, "p", json!({"source": source, "command": ["true"]}))
            .await?;
        if digest(&status(space.task_ended(&name).await?)) != digest(&first) {
            break;
        }
        probes += 1;
        assert!(probes < 1000, "the change is never seen");
    }
    suspend(false).await?;
    let why = space.condition::<Task>("t", "Scheduled", "SourceChanged").await?;
    assert!(why.contains(&digest(&first)), "{why}");
    code(&space, "1").await?;
    let second = status(space.task_phase("t", TaskPhase::Running).await?);
    assert_eq!(
        (second.attempt, digest(&second)),
        (2, digest(&first)),
        "{second:#?}"
    );
    space.finish().await
}
