//! What an agent answers a controller, through a whole connection: HTTP/2, frames, messages and their limits.
//! A user with root on a machine can exchange its agent, so all of it is hostile.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use http::{HeaderMap, Response};
use prost::Message;
use skyward_agent::protocol::{
    ACCEPTED, Chunk, Fact, Finished, FromWorkers, HelloReply, ItemEnded, LAST_MS, LeaseReply, MESSAGE_BYTES,
    NAME_BYTES, RunSpec, RunState, Started, VALUE_BYTES, fact, from_workers, is_exception, is_run_id,
};
use skyward_remote::{Agent, RunReader as _, agent::AgentStream, budget::Budget, hostile::agent};
use tokio::{
    io::{AsyncWriteExt as _, DuplexStream, duplex},
    runtime::Builder,
};

use crate::input::{Input, Maker};

/// Run that the controller asks for.
const RUN: &str = "2f1c0e9a-1-0";
/// Task that it belongs to.
const TASK: &str = "2f1c0e9a";
/// Most calls of one connection.
const CALLS: usize = 16;
/// Most messages of a stream that are read.
const MESSAGES: usize = 64;

/// The answer to one call.
struct Answer {
    /// Which call it is made for.
    call: u8,
    /// What the trailers say.
    status: u8,
    words: Vec<u8>,
    /// The body in its frames.
    frames: Vec<Bytes>,
}

impl Answer {
    fn read(input: &mut Input<'_>) -> Self {
        let (call, how, status) = (input.u8() % 9, input.u8(), input.u8() % 20);
        let words = if how & 4 == 4 {
            input.sized().to_vec()
        } else {
            Vec::new()
        };
        let mut frames = Vec::new();
        for _ in 0..=how >> 5 {
            let message = input.sized().repeat(1 + usize::from(how >> 3 & 3) * 40);
            let mut frame = Vec::new();
            // Whole messages mostly, or whatever stands there.
            if how & 1 == 0 {
                frame.push(0);
                frame.extend_from_slice(&u32::try_from(message.len()).unwrap_or_default().to_be_bytes());
            }
            frame.extend_from_slice(&message);
            frames.push(frame.into());
        }
        Self {
            call,
            status,
            words,
            frames,
        }
    }

    fn trailers(&self) -> HeaderMap {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", u16::from(self.status).into());
        if let Ok(words) = self.words.as_slice().try_into() {
            trailers.insert("grpc-message", words);
        }
        trailers
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let hello = HelloReply {
        protocol: 1,
        agent_version: "0.1.0".into(),
        machine: "team/train-0-1".into(),
        boot_id: "b".into(),
        last_seq: 3,
        python: "a warning\n3.12.1\n".into(),
        accelerators: vec!["NVIDIA H100".into()],
        marks_replay: true,
        addresses: [("eth0".to_owned(), "10.0.0.1".to_owned())].into(),
        ..HelloReply::default()
    };
    let finished = Finished {
        ending: 1,
        message: "it exited with 1".into(),
        started_ms: 1,
        finished_ms: 2,
        log_bytes: 3,
        log: b"1 o".to_vec(),
        log_tail: b"end".to_vec(),
        ..Finished::default()
    };
    let state = RunState {
        run_id: RUN.into(),
        phase: 3,
        started_ms: 1,
        finished: Some(finished.clone()),
    };
    let of = |what: fact::Fact| Fact {
        seq: 1,
        run_id: RUN.into(),
        fact: Some(what),
    };
    let started = of(fact::Fact::Started(Started { at_ms: 1, pid: 7 }));
    let ended = of(fact::Fact::Finished(finished));
    let chunk = Chunk {
        offset: 0,
        data: Bytes::from_static(b"1763675510123 o F first line\n"),
    };
    let of_worker = |message| {
        FromWorkers {
            run_id: RUN.into(),
            message: Some(message),
        }
        .encode_to_vec()
    };
    let holds = from_workers::Holds {
        ranges: vec![from_workers::Range {
            first: 3,
            count: 4,
            attempt: 1,
        }],
    };
    let item = ItemEnded {
        position: 9,
        index: 3,
        attempt: 1,
        ending: 1,
        value: Bytes::from_static(b"[1]"),
        ..ItemEnded::default()
    };
    let one = |call: u8, message: &[u8]| Maker::default().u8(0).u8(call).u8(0).u8(0).sized(message).end([]);
    vec![
        one(0, &hello.encode_to_vec()),
        one(1, &state.encode_to_vec()),
        one(2, &state.encode_to_vec()),
        Maker::default()
            .u8(0)
            .u8(3)
            .u8(1 << 5)
            .u8(0)
            .sized(started.encode_to_vec())
            .sized(ended.encode_to_vec())
            .end([]),
        one(4, &chunk.encode_to_vec()),
        one(5, &chunk.encode_to_vec()),
        one(6, &LeaseReply::default().encode_to_vec()),
        Maker::default()
            .u8(0)
            .u8(7)
            .u8(4)
            .u8(9)
            .sized("stale epoch")
            .sized("")
            .end([]),
        Maker::default()
            .u8(0)
            .u8(8)
            .u8(2 << 5)
            .u8(0)
            .sized(of_worker(from_workers::Message::Holds(holds)))
            .sized(of_worker(from_workers::Message::Ended(item)))
            .sized(of_worker(from_workers::Message::Told(
                from_workers::Told::default(),
            )))
            .end([]),
        // The bytes of HTTP/2 themselves: settings, and a frame that is cut.
        Maker::default()
            .u8(1)
            .end(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0\0\0\x10\x01\x04\0\0\0\x01\x88"),
    ]
}

pub(crate) fn run(data: &[u8]) {
    let runtime = Builder::new_current_thread()
        .enable_time()
        // Time stands still while anything can go on, and deadlines pass at once when nothing can.
        .start_paused(true)
        .build()
        .expect("a runtime");
    let mut input = Input(data);
    let raw = input.u8() % 4 == 1;
    let (ours, theirs) = duplex(64 * 1024);
    runtime.block_on(async {
        let budget = Budget::default();
        let opened = agent(Box::new(ours), budget.account("team"));
        if raw {
            let bytes = input.rest().to_vec();
            let ((), opened) = tokio::join!(raw_bytes(theirs, bytes), opened);
            if let Ok(agent) = opened {
                assert!(agent.hello().await.is_err() || data.len() > 9);
            }
            return;
        }
        let mut answers = Vec::new();
        while !input.is_empty() && answers.len() < CALLS {
            answers.push(Answer::read(&mut input));
        }
        let calls: Vec<u8> = answers.iter().map(|answer| answer.call).collect();
        tokio::select! {
            () = serve(theirs, answers) => {}
            () = async {
                let agent = opened.await.expect("a connection to a server that speaks HTTP/2");
                for call in calls {
                    ask(&agent, call).await;
                }
            } => {}
        }
    });
}

/// A machine that sends bytes and hangs up, or waits for an answer.
async fn raw_bytes(mut stream: DuplexStream, bytes: Vec<u8>) {
    let _ = stream.write_all(&bytes).await;
    let _ = stream.shutdown().await;
}

/// A machine that answers each call as it was told.
async fn serve(stream: DuplexStream, answers: Vec<Answer>) {
    let Ok(mut connection) = h2::server::handshake(stream).await else {
        return;
    };
    let mut answers = answers.into_iter();
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let Some(answer) = answers.next() else { continue };
        let head = Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .expect("a head");
        let Ok(mut body) = respond.send_response(head, false) else {
            continue;
        };
        for frame in &answer.frames {
            let _ = body.send_data(frame.clone(), false);
        }
        let _ = body.send_trailers(answer.trailers());
    }
}

async fn ask(agent: &Agent, call: u8) {
    let grace = Duration::from_secs(1);
    match call {
        0 => {
            if let Ok(hello) = agent.hello().await {
                let texts = [&hello.python].into_iter().chain(&hello.accelerators);
                for text in texts {
                    assert!(text.len() <= NAME_BYTES && !text.chars().any(char::is_control));
                }
                assert_eq!(hello.protocol, 1);
            }
        }
        1 => {
            let spec = RunSpec {
                run_id: RUN.into(),
                ..RunSpec::default()
            };
            if let Ok(state) = agent.start(spec).await {
                believed(&state);
            }
        }
        2 => {
            if let Ok(state) = agent.stop(RUN, grace, "Deleted").await {
                believed(&state);
            }
        }
        3 => {
            each(agent.watch(0).await, |fact| match &fact.fact {
                Some(fact::Fact::Finished(end)) => ended(end),
                Some(fact::Fact::Replayed(replayed)) => assert!(replayed.accepted.len() <= ACCEPTED),
                Some(fact::Fact::Started(_)) => assert!(is_run_id(&fact.run_id)),
                _ => {}
            })
            .await;
        }
        4 | 5 => {
            let read = if call == 4 {
                agent.read_log(RUN, 0, false).await
            } else {
                agent.read_result(RUN, 0).await
            };
            let mut end = 0;
            each(read, |chunk| {
                assert!(chunk.offset >= end && !chunk.data.is_empty());
                end = chunk.offset + chunk.data.len() as u64;
            })
            .await;
        }
        6 => drop(agent.renew_lease(grace, grace).await),
        7 => drop(agent.forget(vec![RUN.into()]).await),
        _ => {
            let opened = agent.work(TASK).await;
            let (_orders, told) = match opened {
                Ok((orders, told)) => (Some(orders), Ok(told)),
                Err(error) => (None, Err(error)),
            };
            each(told, of_a_worker).await;
        }
    }
}

async fn each<T, E>(stream: Result<AgentStream<T>, E>, mut check: impl FnMut(&T)) {
    let Ok(mut stream) = stream else { return };
    for _ in 0..MESSAGES {
        match stream.next().await {
            Some(Ok(message)) => check(&message),
            Some(Err(_)) | None => return,
        }
    }
}

fn of_a_worker(told: &FromWorkers) {
    assert!(is_run_id(&told.run_id) && told.run_id.starts_with("2f1c0e9a-"));
    match &told.message {
        Some(from_workers::Message::Holds(holds)) => {
            assert!(
                holds
                    .ranges
                    .iter()
                    .all(|range| range.first.checked_add(range.count).is_some())
            );
        }
        Some(from_workers::Message::Ended(end)) => {
            assert!(end.index < u32::MAX && end.value.len() <= VALUE_BYTES && is_exception(&end.exception));
            assert!(end.message.len() <= MESSAGE_BYTES + '…'.len_utf8());
        }
        Some(from_workers::Message::Released(_) | from_workers::Message::Told(_)) | None => {}
    }
}

fn believed(state: &RunState) {
    assert_eq!(state.run_id, RUN);
    if let Some(end) = &state.finished {
        ended(end);
    }
}

fn ended(end: &Finished) {
    assert!(end.message.len() <= MESSAGE_BYTES + '…'.len_utf8());
    assert!(end.started_ms.max(end.finished_ms) <= LAST_MS);
    assert!(end.log.is_empty() || end.log.len() as u64 == end.log_bytes);
}
