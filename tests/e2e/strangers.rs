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

use crate::story;

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

#[tokio::test]
async fn metrics_ask_for_a_token_probes_say_nothing_and_plans_are_for_port_forward() -> Result {
    let space = story("strangers").await?;
    let address = address(&space.cluster, "controller").await?;
    for reader in ["prometheus", "nobody"] {
        space.kubectl(&["create", "serviceaccount", reader]).await?.ok()?;
    }
    let account = format!("--serviceaccount={}:prometheus", space.name);
    let bind = [
        "create",
        "clusterrolebinding",
        &space.name,
        "--clusterrole=skyward-metrics-reader",
        &account,
    ];
    space.cluster.kubectl(&bind).await?.ok()?;
    let outcome = shown(&space, &address).await;
    space
        .cluster
        .kubectl(&["delete", "clusterrolebinding", &space.name])
        .await?
        .ok()?;
    outcome?;
    space.finish().await
}

async fn shown(space: &Space, address: &str) -> Result {
    let maps: Api<ConfigMap> = Api::namespaced(space.cluster.client.clone(), OPERATOR_NAMESPACE);
    let data = maps.get("skyward-authorities").await?.data.unwrap_or_default();
    let file = std::env::temp_dir().join(format!("{}.crt", space.name));
    fs::write(&file, data.get("ca.crt").context("ca.crt")?)?;
    let (file, name) = (
        file.display().to_string(),
        format!("skyward-controller.{OPERATOR_NAMESPACE}.svc"),
    );
    let (url, to) = (
        format!("https://{name}:8444/metrics"),
        format!("{name}:8444:{address}:8444"),
    );
    let read = async |token: Option<&str>| {
        let header = format!("Authorization: Bearer {}", token.unwrap_or_default());
        let mut args = vec![
            "--cacert",
            file.as_str(),
            "--connect-to",
            to.as_str(),
            url.as_str(),
        ];
        if token.is_some() {
            args.extend(["-H", header.as_str()]);
        }
        curl(space, &args).await
    };
    let token = async |account: &str| space.kubectl(&["create", "token", account]).await?.ok();
    let prometheus = token("prometheus").await?;
    let (code, text) = read(Some(prometheus.trim())).await?;
    ensure!(code == 200 && text.contains("skyward_leader 1"), "{code} {text}");
    let (code, text) = read(Some(token("nobody").await?.trim())).await?;
    ensure!(
        code == 403 && text.contains("skyward-metrics-reader"),
        "{code} {text}"
    );
    let (code, text) = read(None).await?;
    ensure!(code == 401 && !text.contains("skyward_"), "{code} {text}");
    fs::remove_file(&file)?;

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
