//! Stories that take the operator away for a while, or need it untouched for minutes: a program of
//! its own, so that the other stories do not stand still meanwhile. Stories that take it away take turns.
//! Stories that leave it alone share a turn: libtest begins stories in the order of their names, and
//! theirs stand together.
//!
//! - [`epochs`]: an agent that refuses the leader's epoch.
//! - [`full_store`]: a namespace that fills its part of the result store, a map among what waits.

mod epochs;
mod full_store;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use serde_json::json;
use skyward_api::{Machine, Pool, Task, TaskPhase};
use skyward_testkit::{
    Cluster, OPERATOR_NAMESPACE, PATIENCE, Result, Space, controller_pid, kill_controller, pids_in_pod,
};
use tokio::sync::{OnceCell, RwLock};

/// The operator is one: a story that takes it away has it to itself, but for the end of its namespace,
/// which Kubernetes deletes in steps of five seconds. It may take its time while the next story begins.
static TURN: RwLock<()> = RwLock::const_new(());

/// A small part of the store for each namespace, and a short wait for room there. What all stories but
/// [`full_store`] keep needs no more.
const STORE: [&str; 2] = ["store.quotaPerNamespace=4Mi", "store.holdFor=60s"];

static INSTALLED: OnceCell<()> = OnceCell::const_new();

/// Installs the operator, or upgrades to it, with these values and [`STORE`].
async fn install(cluster: &Cluster, more: &[String]) -> Result {
    let mut values = STORE.map(str::to_owned).to_vec();
    values.extend_from_slice(more);
    skyward_testkit::install_with(cluster, &values).await
}

const DEPLOYMENT: &str = "deployment/skyward-controller";

/// The cluster with the operator on it, and a namespace for one story.
async fn story(name: &str) -> Result<Space> {
    let cluster = Cluster::connect().await?;
    INSTALLED.get_or_try_init(|| install(&cluster, &[])).await?;
    cluster.namespace(name).await
}

/// `kubectl -n <the operator's namespace> …`.
async fn operator(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let mut all = vec!["-n", OPERATOR_NAMESPACE];
    all.extend_from_slice(args);
    cluster.kubectl(&all).await?.ok()
}

/// Puts the operator back as it was, also when the story fails before its end.
struct Restore {
    cluster: Cluster,
    undo: Vec<&'static str>,
}

impl Restore {
    fn new(cluster: &Cluster, undo: &[&'static str]) -> Self {
        Self {
            cluster: cluster.clone(),
            undo: undo.to_vec(),
        }
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        // Whether it works shows in the next story; in here nothing can wait for it.
        let _ = std::process::Command::new(self.cluster.bin.join("kubectl"))
            .args(["-n", OPERATOR_NAMESPACE, "--request-timeout=20s"])
            .args(&self.undo)
            .env("KUBECONFIG", &self.cluster.kubeconfig)
            .output();
    }
}

/// Waits until no Pod of the controller is left, or the new one leads.
async fn scaled(cluster: &Cluster, replicas: &str) -> Result {
    operator(cluster, &["scale", DEPLOYMENT, "--replicas", replicas]).await?;
    if replicas == "0" {
        let wait = [
            "wait",
            "--for=delete",
            "pod",
            "-l",
            "app.kubernetes.io/component=controller",
            "--timeout=300s",
        ];
        operator(cluster, &wait).await.map(drop)
    } else {
        rolled_out(cluster).await
    }
}

async fn rolled_out(cluster: &Cluster) -> Result {
    operator(cluster, &["rollout", "status", DEPLOYMENT, "--timeout=300s"])
        .await
        .map(drop)
}

async fn one_machine(space: &Space, pool: &str) -> Result<(Machine, Pod)> {
    space.pool_ready(pool).await?;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(PATIENCE);
    // A Pool may call itself Ready for a moment longer than its machine is.
    let machine = loop {
        if let Some(machine) = space.ready_machines(pool).await?.pop() {
            break machine;
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "no machine of \"{pool}\" is Ready"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    let pod = space.api::<Pod>().get(&machine.name_any()).await?;
    Ok((machine, pod))
}

/// A script that waits until [`open_gate`].
const GATED: &str = "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo passed; exit 5";

async fn open_gate(space: &Space, pod: &Pod) -> Result {
    space
        .kubectl(&["exec", &pod.name_any(), "--", "touch", "/tmp/go"])
        .await?
        .ok()
        .map(drop)
}

#[tokio::test]
async fn an_idle_machine_whose_controller_is_away_stops_itself_and_a_busy_one_goes_on() -> Result {
    let turn = TURN.write().await;
    let space = story("away").await?;
    // The shortest that is admitted.
    let provider = space
        .provider("p", json!({"container": {}, "instanceTimeout": "60s"}))
        .await?;
    for pool in ["idle", "busy"] {
        space.pool(pool, 1, json!({"provider": provider})).await?;
    }
    let (machine, pod) = one_machine(&space, "idle").await?;
    let (_, busy) = one_machine(&space, "busy").await?;
    space
        .task("gated", "busy", json!({"script": {"source": GATED}}))
        .await?;
    space.task_phase("gated", TaskPhase::Running).await?;

    let restore = Restore::new(&space.cluster, &["scale", DEPLOYMENT, "--replicas=1"]);
    scaled(&space.cluster, "0").await?;
    let phase = |pod: &Pod| {
        pod.status
            .as_ref()
            .and_then(|s| s.phase.clone())
            .unwrap_or_default()
    };
    space
        .wait(&pod.name_any(), "ended by itself", PATIENCE, |pod: &Pod| {
            phase(pod) == "Succeeded"
        })
        .await?;
    let still = space.api::<Pod>().get(&busy.name_any()).await?;
    assert_eq!(phase(&still), "Running", "a machine with a run waits much longer");
    // Its run ends while there is no controller.
    open_gate(&space, &busy).await?;

    scaled(&space.cluster, "1").await?;
    drop(restore);
    let done = space.task_ended("gated").await?.status.unwrap_or_default();
    assert_eq!(
        (done.results[0].exit_code, done.attempt),
        (Some(5), 1),
        "what ended meanwhile is collected: {done:#?}"
    );
    assert!(done.results[0].log_tail.contains("passed"), "{done:#?}");
    space.wait_gone::<Machine>(&machine.name_any(), PATIENCE).await?;
    let (other, _) = one_machine(&space, "idle").await?;
    assert_ne!(other.uid(), machine.uid(), "the stopped machine is replaced");
    drop(turn);
    space.finish().await
}

/// Where the agent of a machine runs from: its file is named by its digest.
fn agent_of(pod: &Pod) -> String {
    let uid = pod.uid().unwrap_or_default();
    let exe = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).ok();
    let daemon = pids_in_pod(&uid, " daemon").iter().find_map(exe);
    daemon
        .and_then(|exe| exe.file_name()?.to_str().map(str::to_owned))
        .unwrap_or_default()
}

/// Waits until the agent of a machine is another one.
async fn agent_replaced(pod: &Pod, old: &str) -> Result<String> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(PATIENCE);
    while tokio::time::Instant::now() < deadline {
        let now = agent_of(pod);
        if !now.is_empty() && now != old {
            return Ok(now);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the agent of \"{}\" is still {old}", pod.name_any())
}

/// A folder with an agent that does the same as the operator's and has another digest;
/// gone with the story.
struct OtherAgent(PathBuf);

impl OtherAgent {
    async fn new(space: &Space) -> Result<Self> {
        let folder = Self(std::env::temp_dir().join(&space.name));
        let inside = format!("{arch}/skyward-agent", arch = std::env::consts::ARCH);
        let pid = controller_pid(&space.cluster.client).await?;
        let theirs = format!("/proc/{pid}/root/usr/local/share/skyward/agent/{inside}");
        let mut agent = fs::read(&theirs).with_context(|| format!("read {theirs}"))?;
        agent.extend(b"another build");
        let file = folder.0.join(inside);
        fs::create_dir_all(file.parent().unwrap_or(Path::new("/")))?;
        fs::write(&file, agent)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
        Ok(folder)
    }
}

impl Drop for OtherAgent {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[tokio::test]
async fn a_new_agent_comes_to_idle_machines_and_to_busy_ones_when_they_are_idle() -> Result {
    let turn = TURN.write().await;
    let space = story("upgrade").await?;
    for pool in ["idle", "busy"] {
        space.pool(pool, 1, json!({})).await?;
    }
    let (_, idle) = one_machine(&space, "idle").await?;
    let (_, busy) = one_machine(&space, "busy").await?;
    space
        .task("gated", "busy", json!({"script": {"source": GATED}}))
        .await?;
    space.task_phase("gated", TaskPhase::Running).await?;
    let old = agent_of(&busy);
    assert!(!old.is_empty() && agent_of(&idle) == old, "{old}");

    let folder = OtherAgent::new(&space).await?;
    let restore = Restore::new(&space.cluster, &["rollout", "undo", DEPLOYMENT]);
    let path = folder.0.to_string_lossy();
    let patch = json!({"spec": {"template": {"spec": {
        "volumes": [{"name": "other-agent", "hostPath": {"path": path, "type": "Directory"}}],
        "containers": [{"name": "controller",
            "env": [{"name": "SKYWARD_AGENTS_DIR", "value": "/other-agent"}],
            "volumeMounts": [{"name": "other-agent", "mountPath": "/other-agent", "readOnly": true}]}],
    }}}});
    operator(&space.cluster, &["patch", DEPLOYMENT, "-p", &patch.to_string()]).await?;
    rolled_out(&space.cluster).await?;

    let new = agent_replaced(&idle, &old).await?;
    space.task("on-new", "idle", json!({"command": ["true"]})).await?;
    let done = space.task_ended("on-new").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(agent_of(&busy), old, "what runs is not disturbed");
    let task: Task = space.api().get("gated").await?;
    assert_eq!(task.status.unwrap_or_default().phase, Some(TaskPhase::Running));

    open_gate(&space, &busy).await?;
    let done = space.task_ended("gated").await?.status.unwrap_or_default();
    assert_eq!(
        (done.results[0].exit_code, done.attempt),
        (Some(5), 1),
        "{done:#?}"
    );
    assert_eq!(agent_replaced(&busy, &old).await?, new, "now it is idle");
    space.task("after", "busy", json!({"command": ["true"]})).await?;
    let done = space.task_ended("after").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    assert_eq!(
        space.count::<Machine>().await?,
        2,
        "no machine was replaced for it"
    );

    drop(restore);
    rolled_out(&space.cluster).await?;
    assert_eq!(
        agent_replaced(&idle, &new).await?,
        old,
        "back to the agent before"
    );
    drop(turn);
    space.finish().await
}

#[tokio::test]
async fn of_two_controllers_one_leads_and_the_other_takes_over() -> Result {
    let turn = TURN.write().await;
    let space = story("two").await?;
    space.pool("p", 1, json!({"worker": {"concurrency": 8}})).await?;
    space.pool_ready("p").await?;
    let restore = Restore::new(&space.cluster, &["scale", DEPLOYMENT, "--replicas=1"]);
    operator(&space.cluster, &["scale", DEPLOYMENT, "--replicas=2"]).await?;
    let two = "jsonpath={.status.replicas}";
    for _ in 0..300 {
        let pods = operator(
            &space.cluster,
            &[
                "get",
                "pods",
                "-l",
                "app.kubernetes.io/component=controller",
                "--field-selector=status.phase=Running",
                "-o",
                "name",
            ],
        )
        .await?;
        if pods.lines().count() == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(
        operator(&space.cluster, &["get", DEPLOYMENT, "-o", two]).await?,
        "2"
    );
    let source = "import os, time\ndef main(i):\n    open(f'/tmp/once-{i}', 'x').close()\n    time.sleep(0.5)\n    return i\n";
    let create = async |numbers: std::ops::Range<u32>| {
        for i in numbers {
            space
                .task(
                    &format!("t{i}"),
                    "p",
                    json!({"function": {"source": source, "args": [i]}}),
                )
                .await?;
        }
        anyhow::Ok(())
    };
    create(0..10).await?;
    // Whichever of them it is: if it leads, the other one takes over.
    kill_controller(&space.cluster.client).await?;
    create(10..20).await?;
    for i in 0..20 {
        let done = space
            .task_ended(&format!("t{i}"))
            .await?
            .status
            .unwrap_or_default();
        assert_eq!(done.phase, Some(TaskPhase::Succeeded), "t{i}: {done:#?}");
        assert_eq!(
            (done.results[0].value.clone(), done.attempt),
            (Some(json!(i)), 1),
            "t{i}: {done:#?}"
        );
    }
    assert_eq!(space.count::<Machine>().await?, 1, "no machine was doubled");
    let pool: Pool = space.api().get("p").await?;
    assert_eq!(pool.status.unwrap_or_default().machines, 1);
    drop(restore);
    rolled_out(&space.cluster).await?;
    drop(turn);
    space.finish().await
}

#[tokio::test]
async fn a_namespace_that_is_not_served_says_so_and_the_served_one_works() -> Result {
    let turn = TURN.write().await;
    let served = story("served").await?;
    let other = served.cluster.namespace("not-served").await?;
    let only = [format!("namespaces={{{}}}", served.name)];
    install(&served.cluster, &only).await?;
    let told = one_namespace(&served, &other).await;
    // Whatever came of it, the other stories need all namespaces.
    install(&served.cluster, &[]).await?;
    told?;
    // Both go on by themselves.
    let done = other.task_ended("t").await?.status.unwrap_or_default();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}");
    drop(turn);
    tokio::try_join!(other.finish(), served.finish())?;
    Ok(())
}

/// The operator has rights in the first of these alone.
async fn one_namespace(served: &Space, other: &Space) -> Result {
    for space in [served, other] {
        space.pool("p", 1, json!({})).await?;
        space.task("t", "p", json!({"command": ["true"]})).await?;
    }
    let done = served.task_ended("t").await?.status.unwrap_or_default();
    anyhow::ensure!(done.phase == Some(TaskPhase::Succeeded), "{done:#?}");
    other
        .wait("p", "NamespaceNotServed", PATIENCE, |pool: &Pool| {
            let status = pool.status.clone().unwrap_or_default();
            status
                .conditions
                .iter()
                .any(|c| c.type_ == "Stalled" && c.reason == "NamespaceNotServed")
        })
        .await?;
    other
        .wait("t", "NamespaceNotServed", PATIENCE, |task: &Task| {
            task.status
                .as_ref()
                .is_some_and(|s| s.reason == "NamespaceNotServed")
        })
        .await?;
    anyhow::ensure!(other.count::<Machine>().await? == 0, "nothing was ordered there");
    // A lost Pod of the served one is seen by its own watch.
    let machine = served.ready_machines("p").await?.remove(0).name_any();
    served
        .kubectl(&["delete", "pod", &machine, "--wait=false"])
        .await?
        .ok()?;
    served.wait_gone::<Machine>(&machine, PATIENCE).await
}
