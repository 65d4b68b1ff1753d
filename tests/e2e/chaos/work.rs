//! The Tasks of a round, which tell a ledger when they begin and when they end, and its map, whose items do.

use std::time::Duration;

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use skyward_api::Task;
use skyward_testkit::{ITEM_SOURCE, ItemMark, MapRecord, Result, Space};

use crate::{
    happenings::MACHINES,
    ledger::{Expected, Job},
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

/// The map of a round.
pub(crate) const MAP: &str = "map";
/// Its items.
pub(crate) const ITEMS: u32 = 3000;
/// Places that it has: the Tasks have the others.
const MAP_PLACES: u32 = 4;
/// Seconds of an item: all of them take about as long as the work of a round.
const ITEM_SECONDS: f64 = 0.05;
/// How often an item may be interrupted: more often than anything happens.
const MAP_RETRIES: u32 = 50;

/// The spec of the map.
pub(crate) fn map(ledger: &str) -> Value {
    // A watcher that is killed, or a full disk, may count as a failure of the item that it ran.
    let backoff = json!({"initial": "1s", "max": "2s"});
    json!({
        "pool": "p",
        "forEach": {"count": ITEMS, "parallelism": MAP_PLACES},
        "function": {"source": ITEM_SOURCE, "args": [ITEM_SECONDS]},
        "retries": {"onInterruption": MAP_RETRIES, "onFailure": MAP_RETRIES, "backoff": backoff},
        "env": [{"name": "LEDGER", "value": ledger}],
    })
}

/// Notes each few seconds which items of the map have an outcome, until it is dropped.
pub(crate) fn watch_items(space: &Space, record: Shared<MapRecord>, marks: Shared<Vec<ItemMark>>) -> Owned {
    const PAUSE: Duration = Duration::from_secs(4);
    let (cluster, namespace) = (space.cluster.clone(), space.name.clone());
    Owned(tokio::spawn(async move {
        loop {
            tokio::time::sleep(PAUSE).await;
            // What does not answer is asked again.
            let asked = tokio::time::timeout(PAUSE * 5, cluster.items(&namespace, MAP)).await;
            if let Ok(Ok(outcomes)) = asked {
                let length = with(&marks, |marks| marks.len());
                with(&record, |record| record.note_seen(&outcomes, length));
            }
        }
    }))
}

/// Creates a Task. To do it again does nothing, so that it can be done until an answer comes.
pub(crate) async fn create(api: &Api<Task>, name: &str, spec: &Value) -> Result {
    let object = json!({"apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
        "metadata": {"name": name}, "spec": spec});
    let params = PatchParams::apply("chaos").force();
    api.patch(name, &params, &Patch::Apply(&object)).await?;
    Ok(())
}
