//! What the operator shows to a client that reaches its Pods, and what it accepts from the client.

use std::{fs, process::Stdio, time::Duration};

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::{Api, api::ListParams};
use serde_json::json;
use skyward_testkit::{Cluster, OPERATOR_NAMESPACE, Result, Space};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{Child, Command},
    time::{Instant, sleep},
};

use crate::{crash::KILLING, story};

/// Address of a running Pod of the operator.
async fn address(cluster: &Cluster, component: &str) -> Result<String> {
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), OPERATOR_NAMESPACE);
    let ours = ListParams::default()
        .labels(&format!("app.kubernetes.io/component={component}"))
        .fields("status.phase=Running");
    let running = pods.list(&ours).await?.items.into_iter();
    running
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .find_map(|pod| pod.status?.pod_ip)
        .with_context(|| format!("no Pod of {component} runs"))
}

/// Connects so many times, and stays until it is killed. The third argument says how far:
/// to TCP, TLS, or to HTTP/2 with its SETTINGS.
const CROWD: &str = r"
import socket, ssl, sys, time
host, port, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
context.set_alpn_protocols(['h2'])
kept = []
for _ in range(512):
    try:
        stream = socket.create_connection((host, port), timeout=10)
        if how != 'tcp':
            stream = context.wrap_socket(stream)
        if how == 'h2':
            stream.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + b'\0\0\0\4\0\0\0\0\0')
        kept.append(stream)
    except OSError:
        pass
print(len(kept), flush=True)
time.sleep(600)
";

async fn crowd(address: &str, how: &str) -> Result<Child> {
    let mut child = Command::new("python3")
        .args(["-c", CROWD, address, "6443", how])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()?;
    let output = child.stdout.take().context("its output")?;
    let mut lines = BufReader::new(output).lines();
    let line = tokio::time::timeout(Duration::from_mins(2), lines.next_line());
    let kept: u32 = line.await??.unwrap_or_default().trim().parse()?;
    ensure!(kept > 256, "{how}: only {kept} connections");
    Ok(child)
}

#[tokio::test]
async fn five_hundred_idle_clients_take_the_logs_api_from_nobody() -> Result {
    let space = story("crowd").await?;
    let address = address(&space.cluster, "subresources").await?;
    for how in ["tcp", "tls", "h2"] {
        let crowd = crowd(&address, how).await?;
        // For longer than the kubelet's probes and the API server need to give it up.
        let until = Instant::now() + Duration::from_secs(40);
        while Instant::now() < until {
            let path = "/apis/subresources.skyward.dev/v1alpha1";
            let get = ["get", "--raw", path, "--request-timeout=10s"];
            let answer = space.cluster.kubectl(&get).await?;
            let text = answer
                .ok()
                .with_context(|| format!("beside 512 clients: {how}"))?;
            ensure!(text.contains("tasks/log"), "{text}");
            sleep(Duration::from_secs(1)).await;
        }
        drop(crowd);
    }
    space.finish().await
}

/// What curl says, and the status.
async fn curl(space: &Space, args: &[&str]) -> Result<(u16, String)> {
    let mut all = vec!["-sS", "--max-time", "10", "-w", "\n%{http_code}"];
    all.extend_from_slice(args);
    let answer = space
        .cluster
        .run("curl", &all, None, Duration::from_secs(30))
        .await?;
    let said = answer.stdout;
    let (text, code) = said.rsplit_once('\n').context("no status")?;
    Ok((code.trim().parse()?, text.to_owned()))
}

/// Asks the controller at that address for its metrics, as the bearer of that token.
async fn read_metrics(space: &Space, address: &str, token: Option<&str>) -> Result<(u16, String)> {
    let maps: Api<ConfigMap> = Api::namespaced(space.cluster.client.clone(), OPERATOR_NAMESPACE);
    let data = maps.get("skyward-authorities").await?.data.unwrap_or_default();
    let file = std::env::temp_dir().join(format!("{}.crt", space.name));
    fs::write(&file, data.get("ca.crt").context("ca.crt")?)?;
    let authority = file.display().to_string();
    let name = format!("skyward-controller.{OPERATOR_NAMESPACE}.svc");
    let url = format!("https://{name}:8444/metrics");
    let to = format!("{name}:8444:{address}:8444");
    let header = format!("Authorization: Bearer {}", token.unwrap_or_default());
    let mut args = vec!["--cacert", &authority, "--connect-to", &to, &url];
    if token.is_some() {
        args.extend(["-H", &header]);
    }
    let answer = curl(space, &args).await;
    fs::remove_file(&file)?;
    answer
}

/// Lets `look` work with an account `prometheus` that may read metrics.
async fn with_reader<T>(space: &Space, look: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let reader = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "prometheus"}});
    space.create_json(reader).await?;
    let account = format!("--serviceaccount={}:prometheus", space.name);
    let bind = [
        "create",
        "clusterrolebinding",
        &space.name,
        "--clusterrole=skyward-metrics-reader",
        &account,
    ];
    space.cluster.kubectl(&bind).await?.ok()?;
    let outcome = look().await;
    let unbind = ["delete", "clusterrolebinding", &space.name];
    space.cluster.kubectl(&unbind).await?.ok()?;
    outcome
}

async fn token(space: &Space, account: &str) -> Result<String> {
    let token = space.kubectl(&["create", "token", account]).await?.ok()?;
    Ok(token.trim().to_owned())
}

/// Waits until the controller's metrics have a line that begins so; what follows on that line. A controller that was
/// killed a moment ago does not answer, and is asked again.
pub(crate) async fn metric(space: &Space, beginning: &str) -> Result<String> {
    with_reader(space, async || {
        let token = token(space, "prometheus").await?;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let said = match address(&space.cluster, "controller").await {
                Ok(address) => read_metrics(space, &address, Some(&token)).await?,
                Err(error) => (0, error.to_string()),
            };
            if let Some(rest) = said.1.lines().find_map(|line| line.strip_prefix(beginning)) {
                return Ok(rest.trim().to_owned());
            }
            ensure!(Instant::now() < deadline, "no metric {beginning}: {said:?}");
            sleep(Duration::from_millis(500)).await;
        }
    })
    .await
}

#[tokio::test]
async fn metrics_ask_for_a_token_probes_say_nothing_and_plans_are_for_port_forward() -> Result {
    let space = story("strangers").await?;
    space
        .kubectl(&["create", "serviceaccount", "nobody"])
        .await?
        .ok()?;
    // A controller that is killed answers nobody.
    let turn = KILLING.read().await;
    metric(&space, "skyward_leader 1").await?;
    let address = address(&space.cluster, "controller").await?;
    with_reader(&space, async || shown(&space, &address).await).await?;
    drop(turn);
    space.finish().await
}

async fn shown(space: &Space, address: &str) -> Result {
    let prometheus = token(space, "prometheus").await?;
    let (code, text) = read_metrics(space, address, Some(&prometheus)).await?;
    ensure!(code == 200 && text.contains("skyward_leader 1"), "{code} {text}");
    let nobody = token(space, "nobody").await?;
    let (code, text) = read_metrics(space, address, Some(&nobody)).await?;
    ensure!(
        code == 403 && text.contains("skyward-metrics-reader"),
        "{code} {text}"
    );
    let (code, text) = read_metrics(space, address, None).await?;
    ensure!(code == 401 && !text.contains("skyward_"), "{code} {text}");

    for (path, expected, words) in [
        ("readyz", 200, "ok"),
        ("metrics", 404, ""),
        ("debug/plans", 404, ""),
    ] {
        let (code, text) = curl(space, &[&format!("http://{address}:8080/{path}")]).await?;
        ensure!((code, text.trim()) == (expected, words), "{path}: {code} {text}");
    }
    ensure!(
        curl(space, &[&format!("http://{address}:8090/debug/plans")])
            .await?
            .0
            == 0,
        "plans are on the Pod's own address"
    );

    space.pool("planned", 0, json!({})).await?;
    let mut forward = Command::new(space.cluster.bin.join("kubectl"))
        .args([
            "-n",
            OPERATOR_NAMESPACE,
            "port-forward",
            "deployment/skyward-controller",
            ":8090",
        ])
        .env("KUBECONFIG", &space.cluster.kubeconfig)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let output = forward.stdout.take().context("its output")?;
    let mut lines = BufReader::new(output).lines();
    let line = tokio::time::timeout(Duration::from_secs(30), lines.next_line()).await??;
    let line = line.context("it forwards nothing")?;
    let port = line
        .split("127.0.0.1:")
        .nth(1)
        .and_then(|rest| rest.split(' ').next());
    let url = format!("http://127.0.0.1:{}/debug/plans", port.context("a port")?);
    let planned = format!("Pool {}/planned", space.name);
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (code, text) = curl(space, &[&url]).await?;
        if code == 200 && text.contains(&planned) {
            return Ok(());
        }
        ensure!(
            Instant::now() < deadline,
            "{planned} is not among the plans: {code} {text}"
        );
        sleep(Duration::from_millis(500)).await;
    }
}
