use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::stream;
use parking_lot::Mutex;
use skyward_api::task::FailureReason;
use skyward_planner::task::run::{Ending, Finished};
use skyward_remote::{AgentError, agent::AgentStream, protocol::Chunk};

use skyward_store::Piece;

use super::{
    summary::{ENDINGS, WITHHELD},
    *,
};

mod fairness;
mod quota;
mod recall;

/// An agent that has one log and one result, and breaks when told to.
#[derive(Default)]
struct FakeAgent {
    log: Vec<u8>,
    result: Vec<u8>,
    /// Bytes after which the stream breaks, once.
    breaks: Mutex<Option<usize>>,
    reads: Mutex<BTreeMap<u64, u32>>,
    /// Bytes of the log that the machine does not keep.
    hole: std::ops::Range<usize>,
}

impl FakeAgent {
    fn stream(&self, bytes: &[u8], offset: u64) -> AgentStream<Chunk> {
        let mut chunks = Vec::new();
        let broken = self.breaks.lock().take();
        let mut at = offset as usize;
        while at < bytes.len() {
            if self.hole.contains(&at) {
                at = self.hole.end;
            }
            let mut end = bytes.len().min(at + 256 * 1024);
            if (at + 1..end).contains(&self.hole.start) {
                end = self.hole.start;
            }
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
impl RunReader for FakeAgent {
    async fn read_log(&self, _: &str, offset: u64, _: bool) -> Result<AgentStream<Chunk>, AgentError> {
        *self.reads.lock().entry(offset).or_default() += 1;
        Ok(self.stream(&self.log, offset))
    }
    async fn read_result(&self, _: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        Ok(self.stream(&self.result, offset))
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
        give_up: false,
        unreadable: false,
        refs: Vec::new(),
        resolved: None,
    }
}

fn store() -> (tempfile::TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path()).unwrap().unmeasured();
    (folder, Arc::new(store))
}

/// Collects a run, with free turns.
async fn collect(
    store: &Arc<Store>,
    agent: Option<&dyn RunReader>,
    order: &CollectOrder,
    secrets: Option<&[String]>,
    metrics: &Metrics,
) -> Result<Collected, CollectError> {
    loop {
        let pace = Pace::begin();
        match super::collect(store, agent, order, secrets, metrics, &pace).await? {
            Progress::Done(collected) => return Ok(*collected),
            Progress::TurnOver => {}
        }
    }
}

async fn log(store: &Arc<Store>) -> Vec<u8> {
    let pieces = pieces(store).await;
    assert_eq!(pieces.len(), 1, "it has gaps");
    pieces.into_iter().flat_map(|(_, bytes)| bytes).collect()
}

/// What is stored of the log: pieces with their offsets.
async fn pieces(store: &Arc<Store>) -> Vec<(u64, Vec<u8>)> {
    let mut stream = store.read_log("uid", "uid-1-0", 0);
    let mut pieces = vec![(0, Vec::new())];
    while let Some(piece) = stream.next().await {
        match piece.unwrap() {
            Piece::Bytes(bytes) => pieces.last_mut().unwrap().1.extend_from_slice(&bytes),
            Piece::Gap(gap) => pieces.push((gap.end, Vec::new())),
        }
    }
    pieces
}

fn long_log() -> FakeAgent {
    FakeAgent {
        log: (0..6_000_000_u32).map(|n| (n / 1000) as u8).collect(),
        hole: 1_500_000..4_100_000,
        ..FakeAgent::default()
    }
}

fn announces(agent: &FakeAgent) -> Finished {
    Finished {
        log_bytes: agent.log.len() as u64,
        ..exited(0)
    }
}

#[tokio::test]
async fn a_copy_goes_on_behind_what_the_machine_does_not_keep_and_keeps_what_it_had_before() {
    // Bytes copied while the run went on: none, less than the kept beginning, up into the part that
    // is dropped since, and up into the part that is kept.
    for before in [0, 1_000_000, 2_000_000, 5_000_000] {
        let (_folder, store) = store();
        let metrics = Metrics::default();
        let agent = long_log();
        let first = agent.log[..before].to_vec();
        store
            .put_log_segment("uid", "uid-1-0", 0, first.into())
            .await
            .unwrap();
        *agent.breaks.lock() = Some(700_000);
        let order = order(&announces(&agent));
        for _ in 0..2 {
            let _ = collect(&store, Some(&agent), &order, Some(&[]), &metrics).await;
        }
        let stored = pieces(&store).await;
        let (head, gap_to) = (before.max(1_500_000), before.max(4_100_000));
        assert_eq!(
            stored[0].1,
            agent.log[..if before > 4_100_000 { 6_000_000 } else { head }]
        );
        if before < 4_100_000 {
            assert_eq!(stored[1], (gap_to as u64, agent.log[gap_to..].to_vec()));
        }
        assert_eq!(stored.len(), if before < 4_100_000 { 2 } else { 1 });
        assert_eq!(store.log_end("uid", "uid-1-0").await.unwrap(), 6_000_000);
    }
}

#[tokio::test]
async fn a_log_that_grows_is_copied_up_to_its_limit_and_the_newest_part_when_it_has_ended() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    let mut agent = long_log();
    let limit = 1_400_000;
    agent.hole = 0..0;
    let whole = std::mem::take(&mut agent.log);
    for printed in (0..=4_000_000).step_by(500_000) {
        agent.log = whole[..printed].to_vec();
        copy_log(&store, &agent, &run(), limit, &metrics).await;
    }
    let copied = store.log_extent("uid", "uid-1-0").await.unwrap();
    assert_eq!((copied.end, copied.bytes), (1_500_000, 1_500_000));
    agent.log = whole;
    agent.hole = 350_000..4_950_000;
    let finished = announces(&agent);
    collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(
        pieces(&store).await,
        [
            (0, agent.log[..1_500_000].to_vec()),
            (4_950_000, agent.log[4_950_000..].to_vec())
        ]
    );
}

/// A machine that invents gaps.
struct Liar(Vec<Chunk>);

#[async_trait]
impl RunReader for Liar {
    async fn read_log(&self, _: &str, _: u64, _: bool) -> Result<AgentStream<Chunk>, AgentError> {
        Ok(stream::iter(self.0.clone().into_iter().map(Ok)).boxed())
    }
    async fn read_result(&self, _: &str, _: u64) -> Result<AgentStream<Chunk>, AgentError> {
        Err(AgentError::NotFound)
    }
}

fn chunk(offset: u64, data: &'static [u8]) -> Chunk {
    Chunk {
        offset,
        data: Bytes::from_static(data),
    }
}

#[tokio::test]
async fn a_machine_that_makes_up_gaps_leaves_few_names_in_the_store_and_its_run_ends() {
    let (folder, store) = store();
    let liar = Liar((0..20_000).map(|n| chunk(2 * n, b"x")).collect());
    let finished = Finished {
        log_bytes: 40_000,
        ..exited(0)
    };
    let metrics = Metrics::default();
    let collected = collect(&store, Some(&liar), &order(&finished), Some(&[]), &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
    let names = std::fs::read_dir(folder.path().join("uid/uid-1-0/log"))
        .unwrap()
        .count();
    assert!(names <= 2 * MAX_GAPS + 1, "{names}");
}

#[tokio::test]
async fn the_end_of_a_log_that_was_printed_faster_than_it_was_copied_is_stored() {
    let (_folder, store) = store();
    let metrics = Metrics::default();
    // Each piece is deleted before the next one is read, as long as the run prints.
    let running = Liar((0..200).map(|n| chunk(2 * n, b"x")).collect());
    copy_log(&store, &running, &run(), u64::MAX, &metrics).await;
    let ended = Liar(vec![chunk(900, b"the end")]);
    let finished = Finished {
        log_bytes: 907,
        ..exited(0)
    };
    collect(&store, Some(&ended), &order(&finished), Some(&[]), &metrics)
        .await
        .unwrap();
    assert_eq!(pieces(&store).await.last(), Some(&(900, b"the end".to_vec())));
}

#[tokio::test]
async fn offsets_that_go_back_are_refused_and_what_lies_beyond_what_was_announced_is_not_taken() {
    let metrics = Metrics::default();
    let finished = Finished {
        log_bytes: 100_000,
        ..exited(0)
    };
    for (chunks, is_taken) in [
        (vec![chunk(0, b"abc"), chunk(100_000, b"x")], true),
        (vec![chunk(0, b"abc"), chunk(u64::MAX, b"x")], true),
        (vec![chunk(0, b"abc"), chunk(50, b"x"), chunk(3, b"back")], false),
    ] {
        let (_folder, store) = store();
        let liar = Liar(chunks);
        let answer = collect(&store, Some(&liar), &order(&finished), Some(&[]), &metrics).await;
        assert_eq!(answer.is_ok(), is_taken, "{answer:?}");
        assert!(
            is_taken || matches!(answer, Err(CollectError::Machine(_))),
            "{answer:?}"
        );
        assert!(store.log_end("uid", "uid-1-0").await.unwrap() <= 50);
    }
    // Bytes beyond the announced size are not taken.
    let (_folder, store) = store();
    let announced = Finished {
        log_bytes: 70_000,
        ..exited(0)
    };
    let more = Liar(vec![chunk(0, &[b'x'; 66_000]), chunk(66_000, &[b'y'; 66_000])]);
    let collected = collect(&store, Some(&more), &order(&announced), Some(&[]), &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
    assert_eq!(store.log_end("uid", "uid-1-0").await.unwrap(), 70_000);
    // While it runs no size is announced: only impossible offsets are refused.
    let (_folder, store) = self::store();
    let huge = Liar(vec![chunk(0, b"abc"), chunk(i64::MAX as u64, b"x")]);
    copy_log(&store, &huge, &run(), 1 << 30, &metrics).await;
    assert_eq!(store.log_end("uid", "uid-1-0").await.unwrap(), 3);
}

fn exited(code: i32) -> Finished {
    Finished {
        ending: Ending::Exited,
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
    *agent.breaks.lock() = Some(2_500_000);
    let broken = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics).await;
    assert!(broken.is_err());
    let resumed = store.log_end("uid", "uid-1-0").await.unwrap();
    assert!(resumed >= PIECE as u64);
    let collected = collect(&store, Some(&agent), &order(&finished), Some(&[]), &metrics)
        .await
        .unwrap();
    assert!(agent.reads.lock().contains_key(&resumed));
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
    let metrics = Metrics::default();
    let endings = [
        Ending::Unknown,
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
        Ending::OutOfMemory,
        Ending::Interrupted,
    ];
    for (ending, code) in endings
        .map(|ending| (ending, 0))
        .into_iter()
        .chain([(Ending::Exited, 3)])
    {
        let finished = Finished {
            ending,
            exit_code: code,
            ..Finished::default()
        };
        let kept = CollectOrder {
            keep: true,
            ..order(&finished)
        };
        // What a run came to is stored once, and never changed.
        let (_folder, store) = store();
        assert_eq!(recall(&store, &run(), &metrics).await, Ok(None));
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
        (Ending::Interrupted, 0, reason::INTERRUPTED),
        (Ending::OutOfMemory, 0, reason::OUT_OF_MEMORY),
    ] {
        let finished = Finished {
            ending,
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
            ending,
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
        Ending::Unknown,
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
fn the_class_of_an_exception_is_shown_without_values_of_secrets_and_not_where_they_cannot_be_read() {
    let finished = Finished {
        ending: Ending::FunctionRaised,
        exception: "vendor.hunter22.Busy".into(),
        ..exited(1)
    };
    let shown = |secrets: Option<&[String]>| summary(&finished, false, secrets).result.exception;
    assert_eq!(shown(Some(&[])), "vendor.hunter22.Busy");
    assert_eq!(shown(Some(&["hunter22".to_owned()])), "vendor.***.Busy");
    assert_eq!(shown(None), "");
}

#[test]
fn rules_of_tasks_know_each_reason_for_which_a_run_fails_by_itself() {
    let others = [reason::SUCCEEDED, reason::STOPPED, reason::INTERRUPTED];
    for reason in ENDINGS {
        let rule = serde_json::from_value::<FailureReason>(reason.into());
        assert_eq!(rule.is_ok(), !others.contains(&reason), "{reason}");
    }
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
