//! Workers of maps: items that are given over a stream, reports about them, and what survives the deaths of daemon and
//! watcher.

use std::{collections::BTreeMap, path::Path};

use bytes::Bytes;
use skyward_agent::{
    daemon::{Home, connect},
    protocol::{
        FromWorkers, ItemEnded, RunSpec, ToWorkers, Worker,
        finished::Ending,
        from_workers,
        items_client::ItemsClient,
        to_workers::{Ack, Chunk, Message, Open, Recall},
    },
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

use crate::machine::{Machine, PATIENCE, bash, command, function, until};

const MAP: &str = "map";
const RUN: &str = "map-1-0";

fn worker(spec: RunSpec, fresh: bool) -> RunSpec {
    RunSpec {
        worker: Some(Worker {
            total: 100,
            fresh,
            threads: 0,
        }),
        ..spec
    }
}

fn worker_with_threads(spec: RunSpec, threads: u32) -> RunSpec {
    RunSpec {
        worker: Some(Worker {
            total: 100,
            fresh: false,
            threads,
        }),
        ..spec
    }
}

/// A controller's side of the stream.
struct Leader {
    orders: mpsc::Sender<ToWorkers>,
    told: Streaming<FromWorkers>,
}

impl Leader {
    async fn open(home: &Path, epoch: u64) -> Result<Self, Status> {
        let channel = connect(&Home::new(home)).await.unwrap();
        let mut client = ItemsClient::new(channel);
        let (orders, waiting) = mpsc::channel(64);
        let open = Open {
            epoch,
            task_uid: MAP.into(),
        };
        let first = ToWorkers {
            message: Some(Message::Open(open)),
        };
        orders.send(first).await.unwrap();
        let told = client.work(ReceiverStream::new(waiting)).await?.into_inner();
        Ok(Self { orders, told })
    }

    async fn say(&self, message: Message) {
        let message = Some(message);
        self.orders.send(ToWorkers { message }).await.unwrap();
    }

    async fn give(&self, first: u32, count: u32, items: &[&str]) {
        let items = items
            .iter()
            .map(|item| Bytes::copy_from_slice(item.as_bytes()))
            .collect();
        self.say(Message::Chunk(Chunk {
            run_id: RUN.into(),
            first,
            count,
            attempt: 1,
            items,
        }))
        .await;
    }

    async fn next(&mut self) -> from_workers::Message {
        let told = tokio::time::timeout(PATIENCE, self.told.message()).await;
        let told = told
            .expect("something is told")
            .unwrap()
            .expect("the stream goes on");
        assert_eq!(told.run_id, RUN);
        told.message.unwrap()
    }

    /// All until the worker has told everything that there is; what it holds, and the ends.
    async fn all(&mut self) -> (Vec<(u32, u32)>, Vec<ItemEnded>) {
        let (mut holds, mut ends) = (Vec::new(), Vec::new());
        loop {
            match self.next().await {
                from_workers::Message::Holds(found) => {
                    holds = found
                        .ranges
                        .iter()
                        .map(|range| (range.first, range.count))
                        .collect();
                }
                from_workers::Message::Ended(end) => ends.push(end),
                from_workers::Message::Told(_) => return (holds, ends),
                from_workers::Message::Released(_) => {}
            }
        }
    }

    /// The ends of so many items.
    async fn ends(&mut self, count: usize) -> BTreeMap<u32, ItemEnded> {
        let mut ends = BTreeMap::new();
        while ends.len() < count {
            if let from_workers::Message::Ended(end) = self.next().await {
                assert!(
                    ends.insert(end.index, end).is_none(),
                    "an end is told once over one stream"
                );
            }
        }
        ends
    }
}

fn values(ends: &BTreeMap<u32, ItemEnded>) -> Vec<&str> {
    ends.values()
        .map(|end| std::str::from_utf8(&end.value).unwrap())
        .collect()
}

#[tokio::test]
async fn a_function_is_called_with_each_item_and_its_values_come_back() {
    for fresh in [false, true] {
        let mut machine = Machine::start().await;
        let source = "import os\n\ndef main(item):\n    return [item, os.environ['SKYWARD_ITEM_INDEX'], os.environ['SKYWARD_ITEM_TOTAL']]\n";
        machine.begin(worker(function(RUN, source, "[]"), fresh)).await;
        let mut leader = Leader::open(machine.home(), 1).await.unwrap();
        assert_eq!(leader.all().await, (vec![], vec![]));
        leader.give(7, 2, &["\"a\"", "{\"b\": null}"]).await;
        leader.give(9, 1, &[]).await;
        let ends = leader.ends(3).await;
        let expected = [
            "[\"a\", \"7\", \"100\"]",
            "[{\"b\": null}, \"8\", \"100\"]",
            "[9, \"9\", \"100\"]",
        ];
        let found: Vec<serde_json::Value> = values(&ends)
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect();
        let expected: Vec<serde_json::Value> = expected
            .iter()
            .map(|text| serde_json::from_str(text).unwrap())
            .collect();
        assert_eq!(found, expected, "fresh: {fresh}");
    }
}

#[tokio::test]
async fn an_item_that_fails_or_kills_its_process_ends_no_other_one() {
    let mut machine = Machine::start().await;
    let source = "import os\n\ndef main(item):\n    if item == 1:\n        raise ValueError('one')\n    if item == 2:\n        os._exit(3)\n    if item == 3:\n        os.kill(os.getpid(), 9)\n    return item\n";
    machine.begin(worker(function(RUN, source, "[]"), false)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 5, &[]).await;
    let ends = leader.ends(5).await;
    let endings: Vec<Ending> = ends.values().map(ItemEnded::ending).collect();
    let expected = [
        Ending::Exited,
        Ending::FunctionRaised,
        Ending::Exited,
        Ending::Signaled,
        Ending::Exited,
    ];
    assert_eq!(endings, expected, "{ends:?}");
    assert_eq!(
        (ends[&1].exception.as_str(), ends[&2].exit_code, ends[&3].signal),
        ("ValueError", 3, 9)
    );
    assert_eq!((&ends[&0].value[..], &ends[&4].value[..]), (&b"0"[..], &b"4"[..]));
}

#[tokio::test]
async fn a_command_has_its_item_in_its_arguments_and_a_script_in_its_environment() {
    let mut machine = Machine::start().await;
    let work =
        "test \"$1\" = \"a b\" && test \"$SKYWARD_ITEM\" = \"a b\" && test \"$SKYWARD_ITEM_INDEX\" = 3";
    let spec = command(RUN, &["sh", "-c", work, "sh", "$(SKYWARD_ITEM)"]);
    machine.begin(worker(spec, false)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(3, 2, &["\"a b\"", "\"a b\""]).await;
    let ends = leader.ends(2).await;
    assert_eq!((ends[&3].exit_code, ends[&4].exit_code), (0, 1), "{ends:?}");

    let mut machine = Machine::start().await;
    let source = "test $(wc -c < \"$SKYWARD_ITEM_FILE\") = 40000 && test -z \"$SKYWARD_ITEM\"";
    machine.begin(worker(bash(RUN, source), false)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    let long = format!("\"{}\"", "x".repeat(40_000));
    leader.give(0, 1, &[&long]).await;
    assert_eq!(leader.ends(1).await[&0].exit_code, 0);
}

#[tokio::test]
async fn items_that_have_not_begun_are_given_back_and_the_one_that_runs_is_not() {
    let mut machine = Machine::start().await;
    machine.begin(worker(bash(RUN, "sleep 600"), false)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 10, &[]).await;
    let recall = Recall {
        run_id: RUN.into(),
        first: 0,
        count: 10,
    };
    leader.say(Message::Recall(recall)).await;
    let from_workers::Message::Released(released) = leader.next().await else {
        panic!("it is answered");
    };
    assert_eq!((released.first, released.count), (1, 9));
    // Asked over another stream, it holds the one that runs.
    let mut other = Leader::open(machine.home(), 1).await.unwrap();
    assert_eq!(other.all().await.0, [(0, 1)]);
    machine.stop(RUN, 100).await.unwrap();
    let ends = other.ends(1).await;
    assert_eq!(ends[&0].ending(), Ending::Stopped);
    let from_workers::Message::Told(told) = other.next().await else {
        panic!("it is over");
    };
    assert!(told.over && !told.cut);
    assert_eq!(machine.ended(RUN).await.ending(), Ending::Stopped);
}

#[tokio::test]
async fn what_a_worker_told_and_nobody_acknowledged_is_told_again_after_the_daemon_was_killed() {
    let mut machine = Machine::start().await;
    machine
        .begin(worker(
            function(RUN, "def main(item):\n    return item\n", "[]"),
            false,
        ))
        .await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 20, &[]).await;
    let before = leader.ends(20).await;
    machine.kill_daemon();
    machine.start_daemon().await;
    let mut leader = Leader::open(machine.home(), 2).await.unwrap();
    let (holds, ends) = leader.all().await;
    assert_eq!(holds, []);
    let again: BTreeMap<u32, ItemEnded> = ends.into_iter().map(|end| (end.index, end)).collect();
    assert_eq!(again, before);
    // It goes on where it was.
    leader.give(20, 1, &[]).await;
    let last = leader.ends(1).await;
    let position = last[&20].position;
    leader
        .say(Message::Ack(Ack {
            run_id: RUN.into(),
            position,
        }))
        .await;
    assert!(
        Leader::open(machine.home(), 1)
            .await
            .is_err_and(|error| error.code() == Code::FailedPrecondition)
    );
}

#[tokio::test]
async fn a_watcher_that_is_killed_ends_the_item_that_ran_and_no_item_behind_it_ever_begins() {
    let mut machine = Machine::start_supervised(&[]).await;
    let folder = machine.home().join("began");
    std::fs::create_dir(&folder).unwrap();
    let source = format!("touch {}/$SKYWARD_ITEM_INDEX; sleep 600", folder.display());
    machine.begin(worker(bash(RUN, &source), false)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 3, &[]).await;
    let first = folder.join("0");
    until("the item begins", || first.exists()).await;
    let started = machine.started(RUN).await;
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(started.pid as i32),
        nix::sys::signal::Signal::SIGKILL,
    )
    .unwrap();
    let ends = leader.ends(1).await;
    assert!(ends.contains_key(&0), "{ends:?}");
    assert_eq!(ends[&0].ending(), Ending::Interrupted);
    loop {
        if let from_workers::Message::Told(told) = leader.next().await {
            assert!(told.over);
            break;
        }
    }
    assert!(!folder.join("1").exists() && !folder.join("2").exists());
}

#[tokio::test]
async fn an_item_that_takes_too_long_is_ended_and_the_next_one_begins() {
    let mut machine = Machine::start().await;
    let source =
        "import time\n\ndef main(item):\n    if item == 0:\n        time.sleep(600)\n    return item\n";
    let spec = RunSpec {
        // The next item starts a Python within that time, also on a busy machine.
        timeout_ms: 5_000,
        grace_ms: 100,
        ..worker(function(RUN, source, "[]"), true)
    };
    machine.begin(spec).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 2, &[]).await;
    let ends = leader.ends(2).await;
    assert_eq!(
        (ends[&0].ending(), ends[&1].ending()),
        (Ending::TimedOut, Ending::Exited)
    );
}

#[tokio::test]
async fn a_function_that_cannot_be_loaded_ends_its_worker() {
    let mut machine = Machine::start().await;
    machine
        .begin(worker(function(RUN, "def other():\n    pass\n", "[]"), false))
        .await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 5, &[]).await;
    let ends = leader.ends(1).await;
    assert_eq!(ends[&0].ending(), Ending::BadSource);
    assert_eq!(machine.ended(RUN).await.ending(), Ending::BadSource);
}

#[tokio::test]
async fn a_python_that_was_asked_to_end_for_an_item_runs_no_other_one() {
    let mut machine = Machine::start().await;
    let source = "import os, signal, time\n\nasked = []\nsignal.signal(signal.SIGTERM, lambda *_: asked.append(1))\n\ndef main(item):\n    while item == 1 and not asked:\n        time.sleep(0.01)\n    return os.getpid()\n";
    let spec = RunSpec {
        timeout_ms: 3_000,
        grace_ms: 60_000,
        ..worker(function(RUN, source, "[]"), false)
    };
    machine.begin(spec).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 3, &[]).await;
    let ends = leader.ends(3).await;
    let endings: Vec<Ending> = ends.values().map(ItemEnded::ending).collect();
    assert_eq!(endings, [Ending::Exited, Ending::TimedOut, Ending::Exited]);
    assert_ne!(ends[&0].value, ends[&2].value);
}

#[tokio::test]
async fn what_an_item_with_a_process_of_its_own_leaves_in_another_session_ends_with_it() {
    let mut machine = Machine::start().await;
    let source = "import subprocess\n\ndef main(item):\n    return subprocess.Popen(['sleep', '1000'], start_new_session=True).pid\n";
    machine.begin(worker(function(RUN, source, "[]"), true)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 1, &[]).await;
    let ends = leader.ends(1).await;
    let left = Path::new("/proc").join(values(&ends)[0]);
    until("what was left is gone", || !left.exists()).await;
}

#[tokio::test]
async fn threads_of_one_python_run_items_at_the_same_time() {
    let mut machine = Machine::start().await;
    let source = "import os, threading\n\nmeet = threading.Barrier(3)\n\ndef main(item):\n    meet.wait(60)\n    return os.getpid()\n";
    machine
        .begin(worker_with_threads(function(RUN, source, "[]"), 3))
        .await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 2, &[]).await;
    leader.give(2, 1, &[]).await;
    let ends = leader.ends(3).await;
    assert!(
        values(&ends).iter().all(|pid| *pid == values(&ends)[0]),
        "{ends:?}"
    );
}

#[tokio::test]
async fn a_thread_that_ends_its_process_interrupts_all_items_in_it_and_fails_where_it_is_alone() {
    let mut machine = Machine::start().await;
    let source = "import os, threading\n\nmeet = threading.Barrier(3)\n\ndef main(item):\n    if item < 3:\n        meet.wait(60)\n    if item in (1, 3):\n        os._exit(7)\n    if item < 3:\n        threading.Event().wait()\n    return item\n";
    machine
        .begin(worker_with_threads(function(RUN, source, "[]"), 3))
        .await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 3, &[]).await;
    let ends = leader.ends(3).await;
    for end in ends.values() {
        assert_eq!(end.ending(), Ending::Interrupted, "{ends:?}");
        assert!(end.message.contains("with 2 other items"), "{ends:?}");
    }
    leader.give(3, 1, &[]).await;
    let alone = leader.ends(1).await;
    assert_eq!(
        (alone[&3].ending(), alone[&3].exit_code),
        (Ending::Exited, 7),
        "{alone:?}"
    );
    leader.give(4, 1, &[]).await;
    assert_eq!(values(&leader.ends(1).await), ["4"]);
}

#[tokio::test]
async fn a_thread_that_runs_too_long_ends_with_its_process_and_other_items_go_on_in_a_new_one() {
    let mut machine = Machine::start().await;
    let source = "import os, threading\n\ndef main(item):\n    if item == 0:\n        threading.Event().wait()\n    return os.getpid()\n";
    let spec = RunSpec {
        timeout_ms: 3_000,
        grace_ms: 100,
        ..worker_with_threads(function(RUN, source, "[]"), 2)
    };
    machine.begin(spec).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 2, &[]).await;
    let ends = leader.ends(2).await;
    assert_eq!(
        (ends[&0].ending(), ends[&1].ending()),
        (Ending::TimedOut, Ending::Exited),
        "{ends:?}"
    );
    leader.give(2, 1, &[]).await;
    let next = leader.ends(1).await;
    assert_eq!(next[&2].ending(), Ending::Exited);
    assert_ne!(next[&2].value, ends[&1].value);
}

#[tokio::test]
async fn an_item_that_writes_to_the_watcher_without_end_can_be_stopped() {
    let mut machine = Machine::start().await;
    // What the runner says before an item in a process of its own: index, kind, lengths, and the number of the process.
    let mark = machine.home().join("writes");
    let path = mark.to_str().unwrap();
    let source = format!(
        "import os, socket, struct\n\ndef main(item):\n    word = b''.join(struct.pack('<IBIII', item, 0, 1, 0, 0) + pid for pid in (b'7', b'8'))\n    for name in os.listdir('/proc/self/fd'):\n        try:\n            channel = socket.socket(fileno=int(name))\n        except OSError:\n            continue\n        if channel.family == socket.AF_UNIX:\n            open({path:?}, 'w').close()\n            while True:\n                channel.sendall(word * 1000)\n"
    );
    machine.begin(worker(function(RUN, &source, "[]"), false)).await;
    let mut leader = Leader::open(machine.home(), 1).await.unwrap();
    leader.all().await;
    leader.give(0, 1, &[]).await;
    until("it writes", || mark.exists()).await;
    machine.stop(RUN, 100).await.unwrap();
    assert_eq!(machine.ended(RUN).await.ending(), Ending::Stopped);
}
