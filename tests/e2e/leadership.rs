//! Leadership, and its effects on users: the operator is killed and its certificates
//! vanish while a user follows a log; it runs outside of the cluster; there are two of
//! it. This disturbs other stories, so it is a test program of its own.
//!
//! - [`two_leaders`]: a map that runs meanwhile.

mod two_leaders;

use std::{
    collections::HashSet,
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
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Secret};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use skyward_api::{
    Machine, Provider, TaskPhase,
    condition::{READY, is_true},
};
use skyward_bundle::{File, LIMITS, pack};
use skyward_cloudsim::{Fault, Rule};
use skyward_testkit::{
    Clouds, Cluster, Machines, NODE_IMAGE, OPERATOR_NAMESPACE, PATIENCE, Result, Space, kill_controller,
    wait_controller_replaced,
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

/// Waits until `look` returns a value.
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
                // All leaf certificates vanish; the next leader makes new ones, and the aggregated
                // API finds them within half a minute, while it goes on with the leaves it has.
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

#[tokio::test]
async fn an_upload_goes_on_after_what_arrived_before_the_aggregated_api_and_the_controller_were_killed()
-> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let space = cluster.namespace("kill-upload").await?;
    let folder = tempfile::tempdir()?;
    let content: Vec<u8> = (0..12_u32 << 20)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    fs::write(folder.path().join("data.bin"), &content)?;
    let file = File {
        path: "data.bin",
        executable: false,
        content: &content,
    };
    let bundle = pack([file], LIMITS)?;
    let size = bundle.bytes.len();
    let path = format!(
        "/apis/subresources.skyward.dev/v1alpha1/namespaces/{}/bundles/{}",
        space.name, bundle.digest
    );
    let state = async || {
        let answer = cluster.kubectl(&["get", "--raw", &path]).await?;
        let object: serde_json::Value = serde_json::from_str(&answer.stdout).unwrap_or_default();
        anyhow::Ok(object["status"].clone())
    };
    let there = async || anyhow::Ok(state().await?["offset"].as_u64());

    let mut offset = 0;
    for victim in ["the aggregated API", "the controller"] {
        let url = format!("{path}?offset={offset}&size={size}");
        let mut client = Command::new(cluster.bin.join("kubectl"))
            .args(["replace", "--raw", &url, "-f", "-"])
            .env("KUBECONFIG", &cluster.kubeconfig)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        // Half of a part, which is stored as it comes. The other half never comes.
        let mut part = client.stdin.take().context("its input")?;
        part.write_all(&bundle.bytes[offset..offset + (3 << 20)]).await?;
        let arrived = until("half of a part is there", PATIENCE, async || {
            Ok(there().await?.filter(|there| *there > offset as u64))
        })
        .await?;
        if victim == "the controller" {
            let old = kill_controller(&cluster.client).await?;
            wait_controller_replaced(&cluster.client, old).await?;
        } else {
            let kill = ["delete", "pod", "-l", LOGS_API, "--grace-period=0", "--force"];
            operator(&cluster, &kill).await?;
        }
        drop(part);
        client.wait().await?;
        let kept = until("the upload is answered for", PATIENCE, async || there().await).await?;
        assert!(
            arrived <= kept && kept < size as u64,
            "{victim}: {arrived}, {kept}, {size}"
        );
        offset = usize::try_from(kept)?;
    }
    let folder = folder.path().to_string_lossy();
    let upload = ["skyward", "upload", "-n", &space.name, &folder];
    let printed = cluster.kubectl(&upload).await?.ok()?;
    assert_eq!(printed.trim(), bundle.digest.to_string());
    assert_eq!(state().await?, json!({"complete": true, "offset": size}));
    space.finish().await
}

/// A controller that runs beside the tests, outside of the cluster.
struct Controller {
    process: Child,
    probes: u16,
    plans: u16,
    log: PathBuf,
}

impl Controller {
    async fn start(cluster: &Cluster, folder: &Path, name: &str, namespace: &str) -> Result<Self> {
        Self::start_with(cluster, folder, name, namespace, &["--lease-duration=10s"]).await
    }

    async fn start_with(
        cluster: &Cluster,
        folder: &Path,
        name: &str,
        namespace: &str,
        flags: &[&str],
    ) -> Result<Self> {
        let (probes, metrics, plans, data) = (own_port()?, own_port()?, own_port()?, own_port()?);
        let log = folder.join(format!("{name}.log"));
        let agent = std::env::var("SKYWARD_AGENT").context("SKYWARD_AGENT is not set; run `make test`")?;
        let agents = folder.join("agents").join(std::env::consts::ARCH);
        if !agents.exists() {
            fs::create_dir_all(&agents)?;
            fs::copy(&agent, agents.join("skyward-agent")).with_context(|| format!("copy {agent}"))?;
        }
        let process = Command::new(program("skyward")?)
            .args(["controller", "--namespace", namespace, "--identity", name])
            .args(["--log-format", "pretty"])
            .args(flags)
            .args(["--pod-ip", &this_machine(cluster).await?])
            .args(["--health-address", &format!("127.0.0.1:{probes}")])
            .args(["--metrics-address", &format!("127.0.0.1:{metrics}")])
            .args(["--debug-address", &format!("127.0.0.1:{plans}")])
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
        Ok(Self {
            process,
            probes,
            plans,
            log,
        })
    }

    /// What is said of its readiness on that port.
    async fn ready(&self, port: u16) -> Option<(u16, String)> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let request = "GET /readyz HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n";
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        let code = answer.split(' ').nth(1)?.parse().ok()?;
        Some((code, answer.split_once("\r\n\r\n")?.1.to_owned()))
    }

    /// Waits until the probe answers that, and a user who may port-forward reads those words; the
    /// probe itself says nothing of them.
    async fn wait_ready(&self, code: u16, words: &str) -> Result {
        until(&format!("{code} {words}"), PATIENCE, async || {
            let (probe, page) = (self.ready(self.probes).await, self.ready(self.plans).await);
            let says = |answer: &Option<(u16, String)>, words: &str| {
                answer
                    .as_ref()
                    .is_some_and(|(is, text)| *is == code && text.contains(words))
            };
            let word = if code == 200 { "ok" } else { "not ready" };
            Ok((says(&probe, word) && says(&page, words)).then_some(()))
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

/// A port that nobody else gets before the process binds it: below the ports that the kernel
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

/// Waits until that process leads. A ready one may still wait for the Lease of one that was killed.
async fn leads(cluster: &Cluster, identity: &str) -> Result {
    until(&format!("{identity} leads"), PATIENCE, async || {
        Ok((holder(cluster).await? == identity).then_some(()))
    })
    .await
}

const DEPLOYMENT: &str = "deployment/skyward-controller";

/// A story of controllers that run beside the cluster while none runs in it.
async fn without_operator(name: &str, story: impl AsyncFnOnce(&Cluster, &Path) -> Result) -> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let folder = std::env::temp_dir().join(format!("skyward-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    operator(&cluster, &["scale", DEPLOYMENT, "--replicas=0"]).await?;
    let label = "app.kubernetes.io/component=controller";
    let gone = ["wait", "--for=delete", "pod", "-l", label, "--timeout=300s"];
    operator(&cluster, &gone).await?;
    // A failed assertion must not keep the operator from coming back.
    let told = AssertUnwindSafe(story(&cluster, &folder)).catch_unwind().await;
    operator(&cluster, &["scale", DEPLOYMENT, "--replicas=1"]).await?;
    operator(&cluster, &["rollout", "status", DEPLOYMENT, "--timeout=300s"]).await?;
    fs::remove_dir_all(&folder)?;
    told.unwrap_or_else(|failure| std::panic::resume_unwind(failure))
}

#[tokio::test]
async fn outside_of_the_cluster_a_paused_leader_is_followed_and_a_second_installation_waits() -> Result {
    without_operator("outside", outside).await
}

async fn outside(cluster: &Cluster, folder: &Path) -> Result {
    let space = cluster.namespace("outside").await?;
    lease_of_an_editor(&space).await?;
    let mut first = Controller::start(cluster, folder, "outside-1", OPERATOR_NAMESPACE).await?;
    leads(cluster, "outside-1").await?;
    let mut map = two_leaders::Map::prepare(cluster).await?;

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
    // Another installation is not ready, and says why. Whatever Lease stands in its namespace.
    let mut stranger = Controller::start(cluster, folder, "stranger", &space.name).await?;
    let why = format!("another installation leads this cluster, in the namespace \"{OPERATOR_NAMESPACE}\"");
    stranger.wait_ready(503, &why).await?;

    // The leader is paused for longer than its Lease lasts, in the middle of a run.
    let source = "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo attempt $SKYWARD_ATTEMPT";
    space
        .task("through", "p", json!({"script": {"source": source}}))
        .await?;
    space.task_phase("through", TaskPhase::Running).await?;
    map.begin().await?;
    first.signal("-STOP")?;
    leads(cluster, "outside-2").await?;
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
    map.taken_over().await?;
    // The new leader has still to write what it found.
    let mut last = String::new();
    let before = until("nothing changes any more", PATIENCE, async || {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let now = space.kubectl(&OURS).await?.ok()?;
        let still = std::mem::replace(&mut last, now.clone()) == now;
        Ok(still.then_some(now))
    })
    .await?;
    map.open().await?;
    first.signal("-CONT")?;
    map.ensure_runs()?;
    assert_eq!(first.ended(60).await?, Some(1), "{}", first.said());
    let said = first.said();
    assert!(said.contains("stood still"), "{said}");
    let after = space.kubectl(&OURS).await?.ok()?;
    assert_eq!(only_in(&before, &after), [""; 0], "the old leader changed this");
    assert_eq!(only_in(&after, &before), [""; 0], "the old leader wrote this");
    assert_eq!(holder(cluster).await?, "outside-2");
    assert_eq!(space.count::<Machine>().await?, 1);

    tokio::try_join!(map.finish(), space.finish()).with_context(|| second.said())?;
    second.signal("-TERM")?;
    assert_eq!(second.ended(60).await?, Some(0), "{}", second.said());
    assert_eq!(holder(cluster).await?, "", "the Lease is released");
    Ok(())
}

/// What a leader writes in a namespace. Providers are no part of it: the new leader reads their
/// offers again now and then, and writes when it did.
const OURS: [&str; 4] = ["get", "pools,machines,tasks", "-o", "yaml"];

/// The lines of a text that another one lacks.
fn only_in<'a>(text: &'a str, other: &str) -> Vec<&'a str> {
    let other: HashSet<&str> = other.lines().collect();
    text.lines().filter(|line| !other.contains(line)).collect()
}

/// A user with Kubernetes' role `edit` in a namespace makes our Lease there, for 68 years.
async fn lease_of_an_editor(space: &Space) -> Result {
    let user = "editor-of-one-namespace";
    let bind = [
        "create",
        "rolebinding",
        "editor",
        "--clusterrole=edit",
        "--user",
        user,
    ];
    space.kubectl(&bind).await?.ok()?;
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "skyward-controller", "namespace": space.name},
        "spec": {"holderIdentity": "x", "leaseDurationSeconds": i32::MAX, "leaseTransitions": 1},
    });
    let file = std::env::temp_dir().join(format!("{}-lease.json", space.name));
    fs::write(&file, lease.to_string())?;
    let path = file.to_string_lossy().into_owned();
    let made = space.kubectl(&["create", "-f", &path, "--as", user]).await?.ok();
    fs::remove_file(&file)?;
    made.map(drop)
}

#[tokio::test]
async fn a_namespace_editor_stops_no_operator_that_restarts() -> Result {
    let _turn = TURN.lock().await;
    let cluster = Cluster::connect().await?;
    skyward_testkit::install(&cluster).await?;
    let space = cluster.namespace("editor").await?;
    lease_of_an_editor(&space).await?;
    operator(&cluster, &["rollout", "restart", DEPLOYMENT]).await?;
    // Ready means: it leads, and its watches are synced.
    operator(&cluster, &["rollout", "status", DEPLOYMENT, "--timeout=300s"]).await?;
    space.pool("p", 1, json!({})).await?;
    space.pool_ready("p").await?;
    space.finish().await
}

/// The command that the readiness probe names.
const UNCLAIM: [&str; 4] = ["annotate", "crd", "pools.skyward.dev", "skyward.dev/leader-"];

#[tokio::test]
async fn another_installation_takes_over_when_the_one_that_led_is_gone_and_what_it_did_is_undone_by_hand()
-> Result {
    without_operator("gone", async |cluster: &Cluster, folder: &Path| {
        let space = cluster.namespace("gone").await?;
        let mut first = Controller::start(cluster, folder, "gone-1", OPERATOR_NAMESPACE).await?;
        leads(cluster, "gone-1").await?;
        let mut other = Controller::start(cluster, folder, "gone-2", &space.name).await?;
        let why = format!("in the namespace \"{OPERATOR_NAMESPACE}\"");
        other.wait_ready(503, &why).await?;
        // Its definition is replaced: the claim is lost, and stands there again.
        cluster.kubectl(&UNCLAIM).await?.ok()?;
        until("the claim stands there again", PATIENCE, async || {
            Ok(claim(cluster).await?.contains(OPERATOR_NAMESPACE).then_some(()))
        })
        .await?;
        other.wait_ready(503, &why).await?;
        first.signal("-KILL")?;
        first.ended(10).await?;
        let began = Instant::now();
        // Four times its own 10 s, from the last renewal on.
        other.wait_ready(200, "").await?;
        assert!(began.elapsed() > Duration::from_secs(25), "{:?}", began.elapsed());
        assert!(claim(cluster).await?.contains(&space.name));
        // What led comes back, and stands by until somebody says that it leads.
        let mut back = Controller::start(cluster, folder, "gone-3", OPERATOR_NAMESPACE).await?;
        back.wait_ready(503, &format!("in the namespace \"{}\"", space.name))
            .await?;
        other.signal("-TERM")?;
        assert_eq!(other.ended(60).await?, Some(0), "{}", other.said());
        cluster.kubectl(&UNCLAIM).await?.ok()?;
        leads(cluster, "gone-3").await?;
        back.wait_ready(200, "").await?;
        space.finish().await?;
        back.signal("-TERM")?;
        assert_eq!(back.ended(60).await?, Some(0), "{}", back.said());
        Ok(())
    })
    .await
}

/// The claim to lead, as the definition has it.
async fn claim(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.metadata.annotations.skyward\\.dev/leader}";
    let get = ["get", "crd", "pools.skyward.dev", "-o", path];
    cluster.kubectl(&get).await?.ok()
}

#[tokio::test]
async fn a_leader_that_stood_still_between_its_look_and_its_order_orders_nothing_more() -> Result {
    without_operator("still", stood_still).await
}

async fn stood_still(cluster: &Cluster, folder: &Path) -> Result {
    let space = cluster.namespace("still").await?;
    let credentials = space.name.clone();
    let clouds = Clouds::start(cluster, &[("verda", Machines::Memory)]).await?;
    let (sim, account) = (clouds.sim("verda"), "100000000010");
    let keys = clouds.open_account("verda", account, &space.name);
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "stringData": keys,
        "metadata": {"name": space.name, "namespace": OPERATOR_NAMESPACE},
    });
    space.cluster.apply(&secret.to_string()).await?.ok()?;
    // As flags, not as values of the chart.
    let values = clouds.operator_values();
    let mut flags: Vec<&str> = values
        .iter()
        .filter_map(|value| value.split_once("]="))
        .map(|(_, flag)| flag)
        .collect();
    flags.push("--lease-duration=5s");
    let start = async |name| Controller::start_with(cluster, folder, name, OPERATOR_NAMESPACE, &flags).await;
    let mut first = start("still-1").await?;
    leads(cluster, "still-1").await?;
    let spec = json!({"credentialsSecretRef": {"name": space.name}, "requestTimeout": "44s", "verda": {}});
    let provider = space.provider("verda", spec).await?;
    let providers: Api<Provider> = Api::all(cluster.client.clone());
    until("the account answers", PATIENCE, async || {
        let status = providers.get(&provider).await?.status.unwrap_or_default();
        Ok(is_true(&status.conditions, READY).then_some(()))
    })
    .await?;
    let mut second = start("still-2").await?;
    second.wait_ready(200, "").await?;

    // The look before the order takes 30 s; in it the leader is stopped.
    sim.fault(Rule::always("instances.list", Fault::Latency { millis: 30_000 }));
    let looks = sim.calls("instances.list");
    let asked = json!({"provider": provider});
    space.pool("p", 1, asked).await?;
    until("the order is looked for", PATIENCE, async || {
        Ok((space.count::<Machine>().await? == 1 && sim.calls("instances.list") > looks).then_some(()))
    })
    .await?;
    first.signal("-STOP")?;
    sim.clear_faults();
    leads(cluster, "still-2").await?;
    let orders = || sim.calls("instances.create");
    assert_eq!(orders(), 0, "the first has ordered before it was stopped");
    until("the second orders", PATIENCE, async || {
        Ok((orders() > 0).then_some(()))
    })
    .await?;
    // It has its answer, within the time that an order may take, and goes on where it was.
    first.signal("-CONT")?;
    assert_eq!(first.ended(60).await?, Some(1), "{}", first.said());
    assert_eq!(orders(), 1, "{}", first.said());
    let billed = sim.meter(|meter| meter.billed_now().len());
    assert_eq!(billed, 1);
    assert_eq!(space.count::<Machine>().await?, 1);

    space.finish().await?;
    assert_eq!(sim.meter(|meter| meter.billed_now().len()), 0);
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    secrets.delete(&credentials, &Default::default()).await?;
    second.signal("-TERM")?;
    assert_eq!(second.ended(60).await?, Some(0), "{}", second.said());
    Ok(())
}
