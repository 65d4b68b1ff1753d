//! The Tasks of a round, and the collector that they tell when they begin and when they end.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use skyward_api::Task;
use skyward_testkit::{Cluster, Result};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
};

use crate::{
    happenings::MACHINES,
    ledger::{Expected, Job, Mark},
    scene::{Owned, Shared, with},
};

/// Tasks of a round.
pub(crate) const TASKS: u32 = 36;
/// `retries.onInterruption` where neither Pool nor Task say it.
const RETRIES: u32 = 3;
/// Size of a large return value.
const LARGE: i64 = 1_000_000;

const FUNCTION: &str = "
import os, socket, time
def mark(side):
    host, port = os.environ['LEDGER'].split()
    words = [side, *(os.environ['SKYWARD_' + name] for name in ('TASK', 'ATTEMPT', 'NODE_RANK')), socket.gethostname()]
    with socket.create_connection((host, int(port)), 60) as ledger:
        ledger.sendall((' '.join(words) + '\\n').encode())
        if ledger.recv(2) != b'ok':
            raise RuntimeError('the ledger does not answer')
def main(i, seconds, size):
    mark('begin')
    time.sleep(seconds)
    mark('end')
    return 'x' * size if size else [i, int(os.environ['SKYWARD_NODE_RANK'])]
";

const SCRIPT: &str = r#"
mark() {
  exec 3<>"/dev/tcp/${LEDGER% *}/${LEDGER#* }" || exit 97
  echo "$1 $SKYWARD_TASK $SKYWARD_ATTEMPT $SKYWARD_NODE_RANK $HOSTNAME" >&3
  read -r answer <&3 && [ "$answer" = ok ] || exit 97
}
mark begin
sleep "$SECONDS_OF_WORK"
mark end
exit "$CODE"
"#;

/// A Task's spec, and what its end must be. They last from 1 to 7 seconds.
pub(crate) fn job(seed: u64, number: u32, ledger: &str) -> (Job, Value) {
    let seconds = 1 + (seed + u64::from(number) * 5) % 7;
    let code = i32::try_from(number % 12).unwrap_or_default();
    let function = |size: i64| json!({"function": {"source": FUNCTION, "args": [number, seconds, size]}});
    let (mut spec, expected, ranks) = match number % 6 {
        0 => (
            json!({"command": ["bash", "-c", SCRIPT]}),
            Expected::Exit(code),
            1,
        ),
        1 => (json!({"script": {"source": SCRIPT}}), Expected::Exit(code), 1),
        2 => (function(LARGE), Expected::Bytes(LARGE + 2), 1),
        3 => {
            let mut spec = function(0);
            spec["placement"] = json!("All");
            let values = (0..MACHINES).map(|rank| json!([number, rank])).collect();
            (spec, Expected::Values(values), MACHINES as u32)
        }
        _ => (function(0), Expected::Values(vec![json!([number, 0])]), 1),
    };
    let retries = match number % 6 {
        3 => 10,
        5 => 0,
        _ => RETRIES,
    };
    if retries != RETRIES {
        spec["retries"] = json!({"onInterruption": retries});
    }
    spec["pool"] = json!("p");
    spec["env"] = json!([
        {"name": "LEDGER", "value": ledger},
        {"name": "SECONDS_OF_WORK", "value": seconds.to_string()},
        {"name": "CODE", "value": code.to_string()},
    ]);
    let job = Job {
        name: format!("t{number}"),
        ranks,
        retries,
        expected,
        ended: None,
        last: None,
    };
    (job, spec)
}

/// Creates a Task. To do it again does nothing, so that it can be done until an answer comes.
pub(crate) async fn create(api: &Api<Task>, name: &str, spec: &Value) -> Result {
    let object = json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": {"name": name}, "spec": spec});
    let params = PatchParams::apply("chaos").force();
    api.patch(name, &params, &Patch::Apply(&object)).await?;
    Ok(())
}

/// Collects marks on an address that Pods reach: that of the API server, which runs on this machine.
/// Returns `HOST PORT`.
pub(crate) async fn collect(cluster: &Cluster, marks: Shared<Vec<Mark>>) -> Result<(String, Owned)> {
    let path = "jsonpath={.clusters[0].cluster.server}";
    let server = cluster
        .kubectl(&["config", "view", "--minify", "-o", path])
        .await?
        .ok()?;
    let server = server.trim().trim_start_matches("https://");
    let host = server.rsplit_once(':').map_or(server, |(host, _)| host);
    let listener = TcpListener::bind((host, 0)).await?;
    let address = format!("{host} {}", listener.local_addr()?.port());
    let accept = tokio::spawn(async move {
        loop {
            match listener.accept().await {
                // A caller that says nothing harms only itself.
                Ok((stream, _)) => drop(tokio::spawn(answer(stream, marks.clone()))),
                // A caller may be gone again.
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    });
    Ok((address, Owned(accept)))
}

async fn answer(mut stream: TcpStream, marks: Shared<Vec<Mark>>) -> Result {
    let mut line = String::new();
    BufReader::new(&mut stream).read_line(&mut line).await?;
    let mark: Mark = line.parse()?;
    with(&marks, |marks| marks.push(mark));
    stream.write_all(b"ok\n").await?;
    Ok(())
}
