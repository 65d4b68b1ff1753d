//! Code from git: hosts in the cluster, over ssh and over https, and hosts that are not there.

use serde_json::{Value, json};
use skyward_api::{Task, TaskPhase, TaskStatus};
use skyward_testkit::{NODE_IMAGE, PATIENCE, Result, Space};

use crate::{
    canary::{are_nowhere, pod_is_ready},
    maps, story,
};

/// The repository of each host.
const REPOSITORY: &str = r"
set -e
mkdir -p /code/exp
cd /code; git init -q -b main .
git config user.name someone; git config user.email someone@example.org
printf 'from model import RATE\n\ndef run(n):\n    return RATE * n\n' > exp/train.py
echo 'RATE = 2' > exp/model.py; git add -A; git commit -qm first
";

/// A host over ssh. It prints its host key in one line, and then the private key that it takes.
const SSH: &str = r"
mkdir -p /root/.ssh /run/sshd
ssh-keygen -q -N '' -t ed25519 -f /etc/ssh/own; ssh-keygen -q -N '' -t ed25519 -f /root/key
cp /root/key.pub /root/.ssh/authorized_keys
cat /etc/ssh/own.pub /root/key
exec /usr/sbin/sshd -D -E /run/sshd.log -f /dev/null -h /etc/ssh/own -o PermitRootLogin=prohibit-password -o UsePAM=no -o StrictModes=no
";

/// A host over https that gives the repository out for a password. It prints the certificate of its authority.
const HTTPS: &str = r#"
cd /root
key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
openssl req -x509 $key -days 2 -subj /CN=authority -keyout authority.key -out authority.crt 2>/dev/null
openssl req $key -subj /CN=host -keyout host.key -out host.csr 2>/dev/null
echo "subjectAltName=IP:$ADDRESS" >host.ext
openssl x509 -req -in host.csr -CA authority.crt -CAkey authority.key -CAcreateserial -days 2 -extfile host.ext -out host.crt 2>/dev/null
cat authority.crt
cat >host.py <<'END'
import base64, http.server, os, ssl, subprocess

ALLOWED = "Basic " + base64.b64encode(b"git:" + os.environb[b"PASSWORD"]).decode()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Authorization") != ALLOWED:
            return self.answer(401, ["WWW-Authenticate: Basic realm=code"], b"")
        path, _, query = self.path.partition("?")
        request = {"PATH_INFO": path, "QUERY_STRING": query, "REQUEST_METHOD": self.command}
        request |= {"CONTENT_LENGTH": str(len(content)), "GIT_PROJECT_ROOT": "/", "GIT_HTTP_EXPORT_ALL": "1"}
        for variable, name in (
            ("CONTENT_TYPE", "Content-Type"),
            ("HTTP_CONTENT_ENCODING", "Content-Encoding"),
            ("GIT_PROTOCOL", "Git-Protocol"),
        ):
            request[variable] = self.headers.get(name) or ""
        backend = ["git", "http-backend"]
        said = subprocess.run(backend, input=content, env={**os.environ, **request}, stdout=subprocess.PIPE).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        lines = head.decode().splitlines()
        status = [line.split()[1] for line in lines if line.startswith("Status: ")]
        self.answer(int(*status or ["200"]), [line for line in lines if not line.startswith("Status: ")], content)

    do_POST = do_GET

    def answer(self, status, lines, content):
        self.send_response(status)
        for line in [*lines, f"Content-Length: {len(content)}"]:
            self.send_header(*line.split(": ", 1))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("", 443), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("host.crt", "host.key")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
END
exec python3 host.py 2>/run/host.log
"#;

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

/// Starts a host; its address, and what its script printed: servers write elsewhere, since what comes by standard error may
/// stand before or within it. It takes the password of the Secret `served`, if there is one.
async fn start(space: &Space, script: &str, port: u16) -> Result<(String, String)> {
    let script = format!("{REPOSITORY}{script}");
    let address = json!({"name": "ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}});
    let password = json!({"name": "PASSWORD",
        "valueFrom": {"secretKeyRef": {"name": "served", "key": "password", "optional": true}}});
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "host"}, "spec": {"containers": [{
            "name": "host", "image": std::env::var(NODE_IMAGE)?, "imagePullPolicy": "IfNotPresent", "env": [address, password],
            "command": ["bash", "-c", script], "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1}}]}}),
        )
        .await?;
    let pod = space.wait("host", "ready", PATIENCE, pod_is_ready).await?;
    let address = pod.status.and_then(|status| status.pod_ip).unwrap_or_default();
    Ok((address, space.kubectl(&["logs", "host"]).await?.ok()?))
}

/// Starts the host over ssh, with a Secret for it; what a Task's source says.
async fn host(space: &Space) -> Result<Value> {
    let (address, said) = start(space, SSH, 22).await?;
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
    let mut items = json!({"source": source, "function": call, "forEach": {"count": 7}});
    items["function"]["args"] = json!([]);
    space.task("items", "p", items).await?;
    let items = status(space.task_ended("items").await?);
    assert_eq!(items.phase, Some(TaskPhase::Succeeded), "{items:#?}");
    assert_eq!(commit(&items), commit(&new));
    let expected: Vec<Value> = (0..7).map(|n| json!(3 * n)).collect();
    assert_eq!(maps::values(&space, "items").await?, expected);

    // Which commit it is stands in a column, and in an Event.
    let columns = ["get", "tasks.skyward.dev", "-o", "wide"];
    let columns = space.kubectl(&columns).await?.ok()?;
    assert!(columns.contains(&commit(&new)), "{columns}");
    space.told(&["SourceResolved", &commit(&first)]).await?;
    space.finish().await
}

#[tokio::test]
async fn a_private_repository_over_https_is_fetched_with_its_secret_and_the_authority_of_the_pool() -> Result
{
    let space = story("git-https").await?;
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "served"},
            "stringData": {"password": "canary-right"}}),
        )
        .await?;
    let (address, authority) = start(&space, HTTPS, 443).await?;
    space
        .create_json(
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "authority"}, "data": {"ca.crt": authority}}),
        )
        .await?;
    space
        .pool("p", 1, json!({"image": {"caBundleRef": {"name": "authority"}}}))
        .await?;
    for name in ["right", "wrong"] {
        space
            .create_json(
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": "kubernetes.io/basic-auth",
                "stringData": {"host": address, "username": "git", "password": format!("canary-{name}")}}),
            )
            .await?;
        let git = json!({"url": format!("https://{address}/code"), "path": "exp", "credentialsSecretRef": {"name": name}});
        let spec = json!({"source": {"git": git}, "function": {"module": "train", "entrypoint": "run", "args": [21]}});
        space.task(name, "p", spec).await?;
    }
    let why = space
        .condition::<Task>("wrong", "Scheduled", "SourceUnavailable")
        .await?;
    assert!(
        why.contains("Authentication failed") && !why.contains("canary"),
        "{why}"
    );
    let right = status(space.task_ended("right").await?);
    assert_eq!(right.phase, Some(TaskPhase::Succeeded), "{right:#?}");
    assert_eq!(values(&right), [json!(42)], "{right:#?}");
    let head = ["exec", "host", "--", "git", "-C", "/code", "rev-parse", "HEAD"];
    assert_eq!(commit(&right), space.kubectl(&head).await?.ok()?.trim());
    // The passwords alone, and in base64 behind `git:`.
    are_nowhere(
        &space,
        &[
            "canary-right",
            "canary-wrong",
            "Z2l0OmNhbmFyeS1yaWdod",
            "Z2l0OmNhbmFyeS13cm9uZ",
        ],
    )
    .await?;
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
