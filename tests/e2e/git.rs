//! Code from git: a host in the cluster, over ssh, and hosts that are not there.

use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase, TaskStatus};
use skyward_testkit::{NODE_IMAGE, Result, Space};

use crate::{canary::pod_is_ready, story};

/// Longest wait for the host.
const PATIENCE: u64 = 120;

/// A host with one repository. It prints its host key in one line, and then the private key that it takes.
const HOST: &str = r"
set -e
mkdir -p /root/.ssh /run/sshd /code/exp
ssh-keygen -q -N '' -t ed25519 -f /etc/ssh/own; ssh-keygen -q -N '' -t ed25519 -f /root/key
cp /root/key.pub /root/.ssh/authorized_keys
cd /code; git init -q -b main .
git config user.name someone; git config user.email someone@example.org
printf 'from model import RATE\n\ndef run(n):\n    return RATE * n\n' > exp/train.py
echo 'RATE = 2' > exp/model.py; git add -A; git commit -qm first
cat /etc/ssh/own.pub /root/key
exec /usr/sbin/sshd -D -e -f /dev/null -h /etc/ssh/own -o PermitRootLogin=prohibit-password -o UsePAM=no -o StrictModes=no
";

fn status(task: Task) -> TaskStatus {
    task.status.unwrap_or_default()
}

fn commit(status: &TaskStatus) -> String {
    let source = status.source.clone().unwrap_or_default();
    assert_eq!(source.commit.len(), 40, "{status:#?}");
    source.commit
}

fn values(status: &TaskStatus) -> Vec<Value> {
    let results = status.results.iter();
    results.filter_map(|result| result.value.clone()).collect()
}

/// Starts the host, with a Secret for it; what a Task's source says.
async fn host(space: &Space) -> Result<Value> {
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host"}, "spec": {"containers": [{
            "name": "host", "image": std::env::var(NODE_IMAGE)?, "imagePullPolicy": "IfNotPresent",
            "command": ["bash", "-c", HOST], "readinessProbe": {"tcpSocket": {"port": 22}, "periodSeconds": 1}}]}}),
        )
        .await?;
    let pod = space.wait("host", "ready", PATIENCE, pod_is_ready).await?;
    let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    let said = space.kubectl(&["logs", "host"]).await?.ok()?;
    let (own, key) = said.split_once('\n').unwrap_or_default();
    secret(space, "key", &address, key).await?;
    Ok(
        json!({"git": {"url": format!("ssh://root@{address}/code"), "ref": "main", "path": "exp",
        "credentialsSecretRef": {"name": "key"}, "knownHosts": format!("{address} {own}")}, "include": ["*.py"]}),
    )
}

async fn secret(space: &Space, name: &str, host: &str, key: &str) -> Result {
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/ssh-auth",
            "stringData": {"host": host, "ssh-privatekey": key}}),
        )
        .await
}

#[tokio::test]
async fn every_rank_and_attempt_runs_the_commit_that_was_the_branch_when_its_task_began() -> Result {
    let space = story("git").await?;
    space.pool("p", 2, json!({"worker": {"concurrency": 2}})).await?;
    let source = host(&space).await?;
    space.pool_ready("p").await?;
    let call = json!({"module": "train", "entrypoint": "run", "args": [21]});
    let spec = json!({"placement": "All", "source": source, "function": call});
    space.task("all", "p", spec.clone()).await?;
    let all = status(space.task_ended("all").await?);
    assert_eq!(all.phase, Some(TaskPhase::Succeeded), "{all:#?}");
    assert_eq!(values(&all), [json!(42), json!(42)], "{all:#?}");

    // A Task that runs, is stopped and starts again, while the branch moves on.
    let sleeps = json!({"source": source, "terminationGracePeriod": "1s",
        "command": ["sh", "-c", "cat model.py; [ -z \"$(ls -A .git 2>/dev/null)\" ]; sleep 624"]});
    space.task("sleeps", "p", sleeps).await?;
    let first = status(space.task_phase("sleeps", TaskPhase::Running).await?);
    assert_eq!(commit(&first), commit(&all));
    let moves = "cd /code && echo 'RATE = 3' > exp/model.py && git commit -qam second";
    space
        .kubectl(&["exec", "host", "--", "bash", "-c", moves])
        .await?
        .ok()?;
    let suspend = async |on: bool| {
        let patch = format!(r#"{{"spec":{{"suspend":{on}}}}}"#);
        space
            .kubectl(&["patch", "task", "sleeps", "--type=merge", "-p", &patch])
            .await?
            .ok()
    };
    suspend(true).await?;
    space.task_phase("sleeps", TaskPhase::Suspended).await?;
    suspend(false).await?;
    let second = status(space.task_phase("sleeps", TaskPhase::Running).await?);
    assert_eq!(
        (second.attempt, commit(&second)),
        (2, commit(&first)),
        "{second:#?}"
    );
    space.task("new", "p", spec).await?;
    let new = status(space.task_ended("new").await?);
    assert_eq!(values(&new), [json!(63), json!(63)], "{new:#?}");
    assert_ne!(commit(&new), commit(&first));
    space.finish().await
}

#[tokio::test]
async fn a_host_that_is_not_there_holds_up_its_task_alone_and_a_secret_goes_to_its_host_alone() -> Result {
    let space = story("git-hosts").await?;
    space.pool("p", 1, json!({})).await?;
    let source = host(&space).await?;
    space.pool_ready("p").await?;
    let of = |name: &str, value: Value| {
        let mut source = source.clone();
        source["git"][name] = value;
        json!({"source": source, "command": ["true"]})
    };
    // Nothing listens there.
    secret(&space, "closed", "127.0.0.1:9", "key").await?;
    let mut closed = of("url", json!("ssh://root@127.0.0.1:9/code"));
    closed["source"]["git"]["credentialsSecretRef"] = json!({"name": "closed"});
    space.task("closed", "p", closed).await?;
    space
        .task("elsewhere", "p", of("url", json!("ssh://root@127.0.0.1/code")))
        .await?;
    space.task("mian", "p", of("ref", json!("mian"))).await?;
    space
        .task(
            "stranger",
            "p",
            of("knownHosts", json!("git.example ssh-ed25519 AAAA")),
        )
        .await?;
    for (name, reason, words) in [
        ("closed", "SourceUnavailable", "127.0.0.1"),
        ("elsewhere", "SourceInvalid", "is for another host"),
        ("mian", "SourceInvalid", "no branch or tag \"mian\""),
        ("stranger", "SourceUnavailable", "Host key verification failed"),
    ] {
        let why = space.condition::<Task>(name, "Scheduled", reason).await?;
        assert!(why.contains(words), "{name}: {why}");
    }
    space.task("free", "p", json!({"command": ["true"]})).await?;
    let free = status(space.task_ended("free").await?);
    assert_eq!(free.phase, Some(TaskPhase::Succeeded), "{free:#?}");
    space.finish().await
}
