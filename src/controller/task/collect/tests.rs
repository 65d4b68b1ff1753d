use std::{collections::BTreeMap, sync::Mutex};

use async_trait::async_trait;
use futures::stream;
use skyward_remote::{
    AgentError,
    agent::AgentStream,
    protocol::{Chunk, Fact, RunSpec, RunState},
};

use super::*;

/// An agent that has one log and one result, and breaks when told to.
#[derive(Default)]
struct FakeAgent {
    log: Vec<u8>,
    result: Vec<u8>,
    /// Bytes after which the stream breaks, once.
    breaks: Mutex<Option<usize>>,
    reads: Mutex<BTreeMap<u64, u32>>,
}

impl FakeAgent {
    fn stream(&self, bytes: &[u8], offset: u64) -> AgentStream<Chunk> {
        let mut chunks = Vec::new();
        let broken = self.breaks.lock().unwrap().take();
        let mut at = offset as usize;
        while at < bytes.len() {
            let end = bytes.len().min(at + 256 * 1024);
            if broken.is_some_and(|left| end - offset as usize > left) {
                chunks.push(Err(AgentError::Disconnected("test".into())));
                break;
            }
            chunks.push(Ok(Chunk {
                offset: at as u64,
                data: Bytes::copy_from_slice(&bytes[at..end]),
            }));
            at = end;
        }
        stream::iter(chunks).boxed()
    }
}

#[async_trait]
impl AgentApi for FakeAgent {
    fn connection(&self) -> u64 {
        1
    }
    async fn start(&self, _: RunSpec) -> Result<RunState, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn stop(&self, _: &str, _: Duration, _: &str) -> Result<RunState, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn watch(&self, _: u64) -> Result<AgentStream<Fact>, AgentError> {
        Err(AgentError::NotFound)
    }
    async fn read_log(&self, _: &str, offset: u64, _: bool) -> Result<AgentStream<Chunk>, AgentError> {
        *self.reads.lock().unwrap().entry(offset).or_default() += 1;
        Ok(self.stream(&self.log, offset))
    }
    async fn read_result(&self, _: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        Ok(self.stream(&self.result, offset))
    }
    async fn forget(&self, _: Vec<String>) -> Result<(), AgentError> {
        Ok(())
    }
}

fn run() -> RunId {
    RunId {
        uid: "uid".into(),
        attempt: 1,
        rank: 0,
    }
}

fn order(finished: &Finished) -> CollectOrder {
    CollectOrder {
        run: run(),
        machine: "m-0".into(),
        finished: Arc::new(finished.clone()),
        gone: false,
        keep: false,
        refs: Vec::new(),
        resolved: None,
    }
}

fn store() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path()).unwrap();
    (folder, Arc::new(store))
}

async fn log(store: &Arc<Store>) -> Vec<u8> {
    let mut stream = store.read_log("uid", "uid-1-0", 0);
    let mut all = Vec::new();
    while let Some(piece) = stream.next().await {
        all.extend_from_slice(&piece.unwrap());
    }
    all
}

fn exited(code: i32) -> Finished {
    Finished {
        ending: Ending::Exited.into(),
        exit_code: code,
        ..Finished::default()
    }
}

#[tokio::test]
async fn a_large_log_and_result_arrive_whole_although_the_connection_breaks() {
    let (_folder, store) = store();
    let agent = FakeAgent {
        log: (0..5_000_000_u32).map(|n| n as u8).collect(),
        result: vec![b'1'; 3_000_000],
        ..FakeAgent::default()
    };
    let finished = Finished {
        log_bytes: agent.log.len() as u64,
        has_result: true,
        result_bytes: agent.result.len() as u64,
        ..exited(0)
    };
    let metrics = Metrics::default();
    *agent.breaks.lock().unwrap() = Some(2_500_000);
    let broken = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics).await;
    assert!(broken.is_err());
    let resumed = store.log_end("uid", "uid-1-0").await.unwrap();
    assert!(resumed >= PIECE as u64);
    let collected = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics)
        .await
        .unwrap();
    assert!(agent.reads.lock().unwrap().contains_key(&resumed));
    assert_eq!(collected.reason, reason::SUCCEEDED);
    assert_eq!(collected.result.value_bytes, Some(3_000_000));
    assert!(collected.result.value.is_none());
    assert_eq!(log(&store).await, agent.log);
    assert_eq!(
        store.get_result("uid", "uid-1-0", 0).await.unwrap().unwrap().size,
        3_000_000
    );
}

#[tokio::test]
async fn what_the_fact_carries_needs_no_agent() {
    let (_folder, store) = store();
    let finished = Finished {
        log: b"1 o F 3\nabc\n".to_vec(),
        log_bytes: 12,
        log_tail: b"token is hunter22\n".to_vec(),
        has_result: true,
        result: b"{\"a\":1}".to_vec(),
        result_bytes: 7,
        ..exited(0)
    };
    let secrets = ["hunter22".to_owned()];
    let collected = collect(
        &store,
        None,
        &order(&finished),
        Some(&secrets),
        &Metrics::default(),
    )
    .await
    .unwrap();
    assert_eq!(collected.result.value, Some(serde_json::json!({ "a": 1 })));
    assert_eq!(collected.result.log_tail, "token is ***\n");
    assert_eq!(log(&store).await, finished.log);
    let blind = summary(&finished, false, None);
    assert_eq!(blind.result.log_tail, WITHHELD);
}

#[tokio::test]
async fn without_its_machine_a_large_log_waits() {
    let (_folder, store) = store();
    let finished = Finished {
        log_bytes: 1_000_000,
        ..exited(0)
    };
    let metrics = Metrics::default();
    let result = collect(&store, None, &order(&finished), Some(&[]), &metrics).await;
    assert_eq!(
        result.unwrap_err(),
        CollectError::Machine("its machine is not connected".into())
    );
}

#[tokio::test]
async fn of_a_machine_that_is_gone_there_is_what_was_copied_and_the_result_says_so() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    store
        .put_log_segment("uid", "uid-1-0", 0, Bytes::from_static(b"1 o F 3\nabc\n"))
        .await
        .unwrap();
    let finished = Finished {
        log_bytes: 20,
        ..exited(0)
    };
    let gone = CollectOrder {
        gone: true,
        ..order(&finished)
    };
    let collected = collect(&store, None, &gone, Some(&[]), &metrics).await.unwrap();
    assert_eq!(collected.reason, reason::SUCCEEDED);
    assert!(
        collected.result.message.contains("the last 8 bytes of its log"),
        "{}",
        collected.result.message
    );
}

#[tokio::test]
async fn what_a_run_came_to_is_found_again_however_it_ended() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    assert_eq!(recall(&store, &run(), &metrics).await, Ok(None));
    let endings = [
        Ending::None,
        Ending::Exited,
        Ending::Signaled,
        Ending::TimedOut,
        Ending::Stopped,
        Ending::StartFailed,
        Ending::ShimLost,
        Ending::DiskFull,
        Ending::FunctionRaised,
        Ending::BadSource,
        Ending::ResultNotJson,
        Ending::ResultTooLarge,
        Ending::MachineRestarted,
    ];
    for (ending, code) in endings
        .map(|ending| (ending, 0))
        .into_iter()
        .chain([(Ending::Exited, 3)])
    {
        let finished = Finished {
            ending: ending.into(),
            exit_code: code,
            ..Finished::default()
        };
        let kept = CollectOrder {
            keep: true,
            ..order(&finished)
        };
        let collected = collect(&store, None, &kept, Some(&[]), &metrics).await.unwrap();
        let found = recall(&store, &run(), &metrics).await.unwrap().unwrap();
        assert_eq!(found.reason, collected.reason, "{ending:?}");
        assert_eq!(found.result.exit_code, collected.result.exit_code);
        assert_eq!(
            found.result.machine, "m-0",
            "a later leader does not know its name"
        );
    }
}

#[tokio::test]
async fn a_store_that_does_not_work_is_told_from_a_full_one_and_counted() {
    let (folder, store) = store();
    let metrics = Metrics::default();
    let finished = Finished {
        log: b"1 o F 3\nabc\n".to_vec(),
        log_bytes: 12,
        ..exited(0)
    };
    // A file where the folder of the Task should be.
    std::fs::write(folder.path().join("uid"), "").unwrap();
    let broken = collect(&store, None, &order(&finished), Some(&[]), &metrics).await;
    assert!(matches!(&broken, Err(CollectError::Store(_))), "{broken:?}");
    let full = skyward_store::Error::from(std::io::Error::from(std::io::ErrorKind::StorageFull));
    let CollectError::Full(message) = of_store(&full, &metrics) else {
        panic!("it is full");
    };
    assert!(
        message.contains("enlarge its volume or delete Tasks"),
        "{message}"
    );
    let text = metrics.render();
    for kind in ["full", "other"] {
        assert!(
            text.contains(&format!("skyward_store_failures_total{{kind=\"{kind}\"}} 1")),
            "{text}"
        );
    }
    std::fs::remove_file(folder.path().join("uid")).unwrap();
    let collected = collect(&store, None, &order(&finished), Some(&[]), &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
}

#[test]
fn every_ending_has_its_reason() {
    for (ending, code, expected) in [
        (Ending::Exited, 0, reason::SUCCEEDED),
        (Ending::Exited, 3, reason::NON_ZERO_EXIT),
        (Ending::Signaled, 0, reason::KILLED_BY_SIGNAL),
        (Ending::TimedOut, 0, reason::TIMED_OUT),
        (Ending::ShimLost, 0, reason::WATCHER_KILLED),
        (Ending::FunctionRaised, 1, reason::FUNCTION_RAISED),
        (Ending::MachineRestarted, 0, reason::INTERRUPTED),
    ] {
        let finished = Finished {
            ending: ending.into(),
            exit_code: code,
            signal: 9,
            ..Finished::default()
        };
        let collected = summary(&finished, false, Some(&[]));
        assert_eq!(collected.reason, expected);
        assert_eq!(collected.result.exit_code.is_some(), ending == Ending::Exited);
        assert_eq!(collected.result.signal, "SIGKILL");
    }
    let large = Finished {
        has_result: true,
        result_bytes: RESULT_LIMIT + 1,
        ..exited(0)
    };
    assert_eq!(summary(&large, true, Some(&[])).reason, reason::RESULT_TOO_LARGE);
}

#[test]
fn what_the_work_said_is_withheld_in_messages_too_when_secrets_cannot_be_read() {
    let of = |ending: Ending, message: &str, secrets: Option<&[String]>| {
        let finished = Finished {
            ending: ending.into(),
            message: message.into(),
            ..exited(1)
        };
        summary(&finished, false, secrets).result.message
    };
    let said = "ValueError: hunter22 is refused";
    for ending in [
        Ending::FunctionRaised,
        Ending::BadSource,
        Ending::ResultNotJson,
        Ending::DiskFull,
        Ending::None,
    ] {
        let secrets = ["hunter22".to_owned()];
        assert_eq!(of(ending, said, Some(&secrets)), "ValueError: *** is refused");
        assert_eq!(of(ending, said, None), WITHHELD, "{ending:?}");
        assert_eq!(of(ending, "", None), "", "{ending:?}");
    }
    let ours = "it exited with code 1";
    assert_eq!(of(Ending::Exited, ours, None), ours);
}

#[test]
fn a_function_that_ended_its_process_before_it_returned_succeeded_and_that_is_said() {
    let quiet = Finished {
        message: "the process exited with 0 before the function returned".into(),
        ..exited(0)
    };
    let collected = summary(&quiet, false, Some(&[]));
    assert_eq!(
        (collected.reason, &collected.result.message),
        (reason::SUCCEEDED, &quiet.message)
    );
    assert_eq!(summary(&exited(0), false, None).result.message, "");
}
