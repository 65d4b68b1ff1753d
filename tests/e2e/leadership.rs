//! Who leads, and what others notice of it: the operator is killed and its certificates
//! vanish while somebody follows a log; it runs outside of the cluster; there are two of
//! it. This disturbs other stories, so it is a test program of its own.

use std::{
    fs,
    net::TcpListener,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::Stdio,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use anyhow::{Context as _, bail};
use futures::FutureExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, ResourceExt as _};
use serde_json::json;
use skyward_api::{Machine, TaskPhase};
use skyward_testkit::{
    Cluster, NODE_IMAGE, OPERATOR_NAMESPACE, PATIENCE, Result, kill_controller, wait_controller_replaced,
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::TcpStream,
    process::{Child, Command},
    sync::Mutex,
    time::Instant,
};

/// The operator is one: each story has it to itself.
static TURN: Mutex<()> = Mutex::const_new(());

/// Waits until something is so.
async fn until<T>(what: &str, seconds: u64, mut look: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + Duration::from_secs(seconds);
    loop {
        if let Some(found) = look().await? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("{what}: not within {seconds} s");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// `kubectl -n <the operator's namespace> …`.
async fn operator(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let mut all = vec!["-n", OPERATOR_NAMESPACE];
    all.extend_from_slice(args);
    cluster.kubectl(&all).await?.ok()
}

fn program(name: &str) -> Result<PathBuf> {
    let folder =
        std::env::var("SKYWARD_TARGET_BIN").context("SKYWARD_TARGET_BIN is not set; run `make test`")?;
    Ok(Path::new(&folder).join(name))
}

const LOGS_API: &str = "app.kubernetes.io/component=subresources";

/// The aggregated API's serving certificate, as the Secret has it.
async fn certificate(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.data.apiserver\\.crt}";
    operator(cluster, &["get", "secret", "skyward-certs", "-o", path]).await
}

#[tokio::test]
async fn who_follows_a_log_gets_each_line_once_whatever_befalls_the_operator() -> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let space = cluster.namespace("follower").await?;
    // Its host key is read through the API server, so nothing is trusted at first contact.
    let provider = space
        .provider("v", json!({"container": {}, "hostKeyPolicy": "Verified"}))
        .await?;
    space.pool("p", 1, json!({"provider": provider})).await?;
    space.pool_ready("p").await?;
    let source = "for i in $(seq 1 900); do echo line-$i; sleep 0.05; done";
    space
        .task("count", "p", json!({"script": {"source": source}}))
        .await?;
    space.task_phase("count", TaskPhase::Running).await?;

    let mut follower = Command::new(program("kubectl-skyward")?)
        .args(["logs", "-f", "count", "-n", &space.name])
        .env("KUBECONFIG", &cluster.kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut lines = BufReader::new(follower.stdout.take().context("its output")?).lines();
    let mut seen: Vec<String> = Vec::new();
    let mut used_before = String::new();
    let limit = Instant::now() + Duration::from_secs(600);
    while let Some(line) = tokio::time::timeout_at(limit, lines.next_line()).await?? {
        seen.push(line);
        match seen.len() {
            40 => {
                // The aggregated API's Pod dies without a word.
                let kill = ["delete", "pod", "-l", LOGS_API, "--grace-period=0", "--force"];
                operator(&cluster, &kill).await?;
            }
            160 => {
                let old = kill_controller(&cluster.client).await?;
                wait_controller_replaced(&cluster.client, old).await?;
            }
            280 => {
                // All leaves vanish; the next leader makes them anew, and the aggregated API
                // finds them within half a minute, while it goes on with those it has.
                used_before = certificate(&cluster).await?;
                operator(&cluster, &["delete", "secret", "skyward-certs"]).await?;
                let old = kill_controller(&cluster.client).await?;
                wait_controller_replaced(&cluster.client, old).await?;
            }
            _ => {}
        }
    }
    let ended = tokio::time::timeout_at(limit, follower.wait()).await??;
    let mut complaints = String::new();
    if let Some(mut stderr) = follower.stderr.take() {
        stderr.read_to_string(&mut complaints).await?;
    }
    let expected: Vec<String> = (1..=900).map(|i| format!("line-{i}")).collect();
    let first_wrong = seen.iter().zip(&expected).position(|(a, b)| a != b);
    assert_eq!((first_wrong, seen.len()), (None, 900), "{complaints}");
    assert!(ended.success(), "{complaints}");

    until(
        "the aggregated API serves the new certificate",
        PATIENCE,
        async || {
            let new = certificate(&cluster).await.unwrap_or_default();
            let log = operator(&cluster, &["logs", "-l", LOGS_API, "--tail=-1"]).await;
            let log = log.unwrap_or_default();
            let taken = log
                .matches("certificates and the front proxy's authority are in use")
                .count();
            Ok((!new.is_empty() && new != used_before && taken >= 2).then_some(()))
        },
    )
    .await?;
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/tasks/count/log?tailLines=1",
        space.name
    );
    let last = cluster.kubectl(&["get", "--raw", &path]).await?.ok()?;
    assert_eq!(last.trim(), "line-900");
    space.finish().await
}

/// A controller that runs beside the tests, outside of the cluster.
struct Controller {
    process: Child,
    probes: u16,
    log: PathBuf,
}

impl Controller {
    async fn start(cluster: &Cluster, folder: &Path, name: &str, namespace: &str) -> Result<Self> {
        let (probes, data) = (own_port()?, own_port()?);
        let log = folder.join(format!("{name}.log"));
        let agent = std::env::var("SKYWARD_AGENT").context("SKYWARD_AGENT is not set; run `make test`")?;
        let agents = folder.join("agents").join(std::env::consts::ARCH);
        if !agents.exists() {
            fs::create_dir_all(&agents)?;
            fs::copy(&agent, agents.join("skyward-agent")).with_context(|| format!("copy {agent}"))?;
        }
        let process = Command::new(program("skyward")?)
            .args(["controller", "--namespace", namespace, "--identity", name])
            .args(["--lease-duration", "10s", "--log-format", "pretty"])
            .args(["--pod-ip", &this_machine(cluster).await?])
            .args(["--metrics-address", &format!("127.0.0.1:{probes}")])
            .args(["--data-address", &format!("0.0.0.0:{data}")])
            .args(["--node-image", &std::env::var(NODE_IMAGE)?])
            .arg("--store-dir")
            .arg(folder.join("store"))
            .arg("--agents-dir")
            .arg(folder.join("agents"))
            .env("KUBECONFIG", &cluster.kubeconfig)
            .env_remove("KUBERNETES_SERVICE_HOST")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log)?)
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self { process, probes, log })
    }

    /// What the readiness probe gets.
    async fn ready(&self) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.probes)).await.ok()?;
        let request = "GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let code = answer.split(' ').nth(1)?.parse().ok()?;
        Some((code, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// Waits until the probe answers that, with those words.
    async fn wait_ready(&self, code: u16, words: &str) -> Result {
        until(&format!("{code} {words}"), PATIENCE, async || {
            let answer = self.ready().await;
            Ok(answer
                .filter(|(is, text)| *is == code && text.contains(words))
                .map(drop))
        })
        .await
        .with_context(|| self.said())
    }

    fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn signal(&self, signal: &str) -> Result {
        let pid = self.process.id().context("it ended already")?.to_string();
        let status = std::process::Command::new("kill").args([signal, &pid]).status()?;
        anyhow::ensure!(status.success(), "kill {signal} {pid} failed");
        Ok(())
    }

    async fn ended(&mut self, seconds: u64) -> Result<Option<i32>> {
        let status = tokio::time::timeout(Duration::from_secs(seconds), self.process.wait())
            .await
            .with_context(|| format!("it did not end within {seconds} s: {}", self.said()))??;
        Ok(status.code())
    }
}

/// An address of this machine that Pods reach: the API server runs on it, too.
async fn this_machine(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.clusters[0].cluster.server}";
    let server = cluster
        .kubectl(&["config", "view", "--minify", "-o", path])
        .await?
        .ok()?;
    let host = server.trim().trim_start_matches("https://");
    Ok(host.rsplit_once(':').map_or(host, |(host, _)| host).to_owned())
}

/// A port that nobody else gets before the process binds it: below those that the kernel
/// gives to connections.
fn own_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(17_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        anyhow::ensure!(port < 18_000, "no port is free");
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
}

async fn holder(cluster: &Cluster) -> Result<String> {
    let leases: Api<Lease> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    let lease = leases.get_opt("skyward-controller").await?;
    Ok(lease
        .and_then(|lease| lease.spec?.holder_identity)
        .unwrap_or_default())
}

const DEPLOYMENT: &str = "deployment/skyward-controller";

#[tokio::test]
async fn outside_of_the_cluster_a_paused_leader_is_followed_and_a_second_installation_waits() -> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let folder = std::env::temp_dir().join(format!("skyward-outside-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    operator(&cluster, &["scale", DEPLOYMENT, "--replicas=0"]).await?;
    // A failed assertion must not keep the operator from coming back.
    let story = AssertUnwindSafe(outside(&cluster, &folder)).catch_unwind().await;
    operator(&cluster, &["scale", DEPLOYMENT, "--replicas=1"]).await?;
    operator(&cluster, &["rollout", "status", DEPLOYMENT, "--timeout=300s"]).await?;
    fs::remove_dir_all(&folder)?;
    story.unwrap_or_else(|failure| std::panic::resume_unwind(failure))
}

async fn outside(cluster: &Cluster, folder: &Path) -> Result {
    let label = "app.kubernetes.io/component=controller";
    operator(
        cluster,
        &["wait", "--for=delete", "pod", "-l", label, "--timeout=300s"],
    )
    .await?;
    let space = cluster.namespace("outside").await?;
    let mut first = Controller::start(cluster, folder, "outside-1", OPERATOR_NAMESPACE).await?;
    first.wait_ready(200, "").await?;
    assert_eq!(holder(cluster).await?, "outside-1");

    // Pods are reached through the API server, and the logs API reaches the controller here.
    space.pool("p", 1, json!({})).await?;
    let value = json!({"function": {"source": "def main():\n    print('seen')\n    return 42\n"}});
    space.task("value", "p", value).await?;
    let done = space.task_ended("value").await?.status.unwrap_or_default();
    let said = first.said();
    assert_eq!(done.phase, Some(TaskPhase::Succeeded), "{done:#?}\n{said}");
    assert_eq!(done.results[0].value, Some(json!(42)));
    let log = ["skyward", "logs", "value", "-n", &space.name];
    let log = cluster.kubectl(&log).await?.ok()?;
    assert_eq!(log.trim(), "seen");

    // A second process of this installation stands by and is ready.
    let mut second = Controller::start(cluster, folder, "outside-2", OPERATOR_NAMESPACE).await?;
    second.wait_ready(200, "").await?;
    assert_eq!(holder(cluster).await?, "outside-1");
    // Another installation is not ready, and says why.
    let mut stranger = Controller::start(cluster, folder, "stranger", &space.name).await?;
    let why = format!("another installation leads this cluster, in the namespace \"{OPERATOR_NAMESPACE}\"");
    stranger.wait_ready(503, &why).await?;

    // The leader stands still for longer than its Lease lasts, in the middle of a run.
    let source = "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo attempt $SKYWARD_ATTEMPT";
    space
        .task("through", "p", json!({"script": {"source": source}}))
        .await?;
    space.task_phase("through", TaskPhase::Running).await?;
    first.signal("-STOP")?;
    until("the second leads", PATIENCE, async || {
        Ok((holder(cluster).await? == "outside-2").then_some(()))
    })
    .await?;
    let machine = space.ready_machines("p").await?.remove(0).name_any();
    let open = ["exec", &machine, "--", "touch", "/tmp/go"];
    space.kubectl(&open).await?.ok()?;
    // The other installation let it come first.
    stranger.wait_ready(503, &why).await?;
    stranger.signal("-TERM")?;
    assert_eq!(stranger.ended(60).await?, Some(0), "{}", stranger.said());
    assert!(
        !stranger.said().contains("this process leads"),
        "{}",
        stranger.said()
    );
    let done = space.task_ended("through").await?.status.unwrap_or_default();
    let said = second.said();
    assert_eq!(
        (done.phase, done.attempt),
        (Some(TaskPhase::Succeeded), 1),
        "{done:#?}\n{said}"
    );
    // The new leader has still to write what it found.
    let mut last = String::new();
    let before = until("nothing changes any more", PATIENCE, async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = space.kubectl(&["get", "skyward", "-o", "yaml"]).await?.ok()?;
        let still = std::mem::replace(&mut last, now.clone()) == now;
        Ok(still.then_some(now))
    })
    .await?;
    first.signal("-CONT")?;
    assert_eq!(first.ended(60).await?, Some(1), "{}", first.said());
    let said = first.said();
    assert!(said.contains("stood still"), "{said}");
    let after = space.kubectl(&["get", "skyward", "-o", "yaml"]).await?.ok()?;
    assert_eq!(before, after, "the old leader changed something");
    assert_eq!(holder(cluster).await?, "outside-2");
    assert_eq!(space.count::<Machine>().await?, 1);

    space.finish().await?;
    second.signal("-TERM")?;
    assert_eq!(second.ended(60).await?, Some(0), "{}", second.said());
    assert_eq!(holder(cluster).await?, "", "the Lease is released");
    Ok(())
}
