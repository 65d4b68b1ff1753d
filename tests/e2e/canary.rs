//! Searches for values of Secrets where they must not be: in etcd besides the Secrets themselves,
//! in the logs of the operator, in the arguments of every process, on the disk of a machine.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use skyward_api::{Pool, TaskPhase};
use skyward_testkit::{NODE_IMAGE, OPERATOR_NAMESPACE, PATIENCE, Result, Space, package_index};

use crate::story;

/// Every value begins so; the marks behind it are written otherwise in addresses and in headers.
const INDEX: &str = "canary-index-7/+&\u{e9}";
const STEPS: &str = "canary-steps-7/+&\u{e9}";
const TASK: &str = "canary-task-7";
/// Traces of a value: the values, in base64 (alone and behind `robot:`), percent-encoded.
const TRACES: [&str; 7] = [
    "canary-index-7",
    "canary-steps-7",
    "canary-task-7",
    "Y2FuYXJ5L",        // "canary-" from the beginning of a value
    "cm9ib3Q6Y2FuYXJ5", // robot:canary
    "canary%2D",
    "canary%2d",
];

/// A package index that asks for a password, with one small package.
const SERVER: &str = r#"
import base64, http.server, io, os, zipfile
wanted = "Basic " + base64.b64encode(("robot:" + os.environ["PASSWORD"]).encode()).decode()
wheel = io.BytesIO()
with zipfile.ZipFile(wheel, "w") as archive:
    info = "guarded-1.0.dist-info/"
    archive.writestr("guarded.py", "found = True\n")
    archive.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: guarded\nVersion: 1.0\n")
    archive.writestr(info + "WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    archive.writestr(info + "RECORD", "guarded.py,,\n" + info + "METADATA,,\n" + info + "WHEEL,,\n" + info + "RECORD,,\n")
name = "guarded-1.0-py3-none-any.whl"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.headers.get("Authorization") != wanted:
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=index")
            self.end_headers()
            return
        page = f'<a href="/files/{name}">{name}</a>'.encode()
        body, kind = (wheel.getvalue(), "application/zip") if self.path.endswith(".whl") else (page, "text/html")
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
    do_HEAD = do_GET
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"#;

/// Names of the keys of etcd that hold a trace and are no Secret.
const IN_ETCD: &str = r#"
import base64, json, sys, urllib.request
traces = [trace.encode() for trace in sys.argv[1:]]
start, end = b"\0", base64.b64encode(b"\0").decode()
found, seen = set(), 0
while True:
    ask = {"key": base64.b64encode(start).decode(), "range_end": end, "limit": 500}
    request = urllib.request.Request("http://127.0.0.1:23790/v3/kv/range", json.dumps(ask).encode())
    page = json.load(urllib.request.urlopen(request, timeout=60)).get("kvs", [])
    if not page:
        break
    for pair in page:
        start, value = base64.b64decode(pair["key"]), base64.b64decode(pair.get("value", ""))
        seen += 1
        if not start.startswith(b"/registry/secrets/") and any(trace in value for trace in traces):
            found.add(start.decode())
    start += b"\0"
print(json.dumps({"seen": seen, "found": sorted(found)}))
"#;

/// Reads the arguments of every process of this machine, its Pods included, until `done`; returns
/// the arguments that hold a trace.
fn watch_arguments(done: Arc<AtomicBool>) -> tokio::task::JoinHandle<BTreeSet<String>> {
    tokio::task::spawn_blocking(move || {
        let mut found = BTreeSet::new();
        while !done.load(Ordering::Acquire) {
            for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Ok(arguments) = std::fs::read(entry.path().join("cmdline")) else {
                    continue;
                };
                let text = String::from_utf8_lossy(&arguments).replace('\0', " ");
                if TRACES.iter().any(|trace| text.contains(trace)) {
                    found.insert(text);
                }
            }
            // A pause, so that the processors are left to the other processes.
            std::thread::sleep(Duration::from_millis(20));
        }
        found
    })
}

async fn secrets(space: &Space) -> Result {
    for (name, kind, data) in [
        (
            "index",
            "kubernetes.io/basic-auth",
            json!({"username": "robot", "password": INDEX}),
        ),
        ("steps", "Opaque", json!({"STEP_TOKEN": STEPS})),
        ("task", "Opaque", json!({"TOKEN": TASK})),
    ] {
        space
            .create_json(
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind,
                "stringData": data}),
            )
            .await?;
    }
    Ok(())
}

pub(crate) fn pod_is_ready(pod: &Pod) -> bool {
    let status = pod.status.iter();
    let mut conditions = status.flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Starts the index; its address.
async fn index(space: &Space) -> Result<String> {
    let password =
        json!({"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "index", "key": "password"}}});
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "index"}, "spec": {"containers": [{
            "name": "index", "image": std::env::var(NODE_IMAGE)?, "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-c", SERVER], "env": [password],
            "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1}}]}}),
        )
        .await?;
    let pod = space.wait("index", "ready", PATIENCE, pod_is_ready).await?;
    let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    Ok(format!("http://{address}:8000/simple"))
}

/// Looks for these traces in etcd, Secrets aside, and in the operator's log.
pub(crate) async fn are_nowhere(space: &Space, traces: &[&str]) -> Result {
    let mut look = vec!["-c", IN_ETCD];
    look.extend(traces);
    let said = space
        .cluster
        .run("python3", &look, None, Duration::from_secs(120))
        .await?
        .ok()?;
    let said: serde_json::Value = serde_json::from_str(&said)?;
    assert!(said["seen"].as_u64() > Some(100), "etcd was read: {said}");
    assert_eq!(said["found"], json!([]), "keys of etcd");
    let logs = space
        .cluster
        .patiently(&[
            "logs",
            "-n",
            OPERATOR_NAMESPACE,
            "-l",
            "app.kubernetes.io/name=skyward",
            "--all-containers",
            "--tail=-1",
        ])
        .await?;
    assert!(!logs.is_empty());
    assert!(
        !traces.iter().any(|trace| logs.contains(trace)),
        "the operator's log"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_a_secret_is_found_nowhere_but_in_its_secret_and_where_it_is_used() -> Result {
    let space = story("canary").await?;
    let Some(public) = package_index(&space.cluster).await? else {
        println!("skipped: no package index answers; SKYWARD_TEST_INDEX can name one");
        return space.finish().await;
    };
    let done = Arc::new(AtomicBool::new(false));
    let arguments = watch_arguments(done.clone());
    secrets(&space).await?;
    let url = index(&space).await?;
    crate::packages::certificates(&space, &public).await?;
    let env: Vec<_> = public
        .environment
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    let guarded = |credentials: &str| {
        json!({
            "pip": ["guarded"],
            "pipIndexes": [{"url": url, "packages": ["guarded"], "credentialsSecretRef": {"name": credentials}}],
            "stepsEnvFrom": [{"secretRef": {"name": "steps"}}],
            "env": env, "caBundleRef": {"name": "proxy"},
        })
    };
    space.pool("p", 1, json!({"image": guarded("index")})).await?;
    // A step that prints all its values, in every form.
    let tells = "printf '%s\\n' \"$STEP_TOKEN\"; printf %s \"$STEP_TOKEN\" | base64; \
                 python3 -c 'import os, urllib.parse; print(urllib.parse.quote(os.environ[\"STEP_TOKEN\"]))'";
    let image = json!({"stepsEnvFrom": [{"secretRef": {"name": "steps"}}],
        "shellVars": {"TELLS": format!("{{ {tells}; }} >&2; exit 3")}});
    space
        .pool("tells", 1, json!({"image": image, "maxProvisionAttempts": 1}))
        .await?;
    // A password that the index refuses.
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "wrong"},
            "stringData": {"username": "robot", "password": format!("{INDEX}-wrong")}}),
        )
        .await?;
    space
        .pool(
            "refused",
            1,
            json!({"image": guarded("wrong"), "maxProvisionAttempts": 1}),
        )
        .await?;

    let source = "
import os
import guarded
def main():
    assert guarded.found and 'STEP_TOKEN' not in os.environ and 'UV_INDEX_INDEX_0_PASSWORD' not in os.environ
    assert os.environ['TOKEN']
    return True
";
    let uses = json!({"function": {"source": source}, "envFrom": [{"secretRef": {"name": "task"}}]});
    space.task("uses", "p", uses).await?;
    let status = space
        .task_ended_within("uses", 480)
        .await?
        .status
        .unwrap_or_default();
    assert_eq!(status.phase, Some(TaskPhase::Succeeded), "{status:#?}");
    let raises = json!({"function": {"source": "import os\ndef main():\n    raise ValueError('x' * 980 + os.environ['TOKEN'])\n"},
        "envFrom": [{"secretRef": {"name": "task"}}]});
    space.task("raises", "p", raises).await?;
    let status = space.task_ended("raises").await?.status.unwrap_or_default();
    assert_eq!(status.phase, Some(TaskPhase::Failed), "{status:#?}");
    let said = space
        .condition::<Pool>("tells", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(
        said.contains("TELLS") && said.contains("***"),
        "it is shown, and masked: {said}"
    );
    let said = space
        .condition::<Pool>("refused", "Stalled", "ProvisioningFailed")
        .await?;
    assert!(said.contains("packages") && said.contains("401"), "{said}");

    done.store(true, Ordering::Release);
    assert_eq!(arguments.await?, BTreeSet::new(), "arguments of processes");
    are_nowhere(&space, &TRACES).await?;
    // What the steps were given is on no disk. What a Task was given may be where its run is.
    let machine = space
        .ready_machines("p")
        .await?
        .remove(0)
        .metadata
        .name
        .unwrap_or_default();
    let look = "grep -rlaF -e canary-index-7 -e canary-steps-7 -e cm9ib3Q6Y2FuYXJ5 / --exclude-dir=proc --exclude-dir=sys || true";
    let said = space
        .kubectl(&["exec", &machine, "--", "sh", "-c", look])
        .await?
        .ok()?;
    assert_eq!(said, "", "files of the machine");
    space.finish().await
}
