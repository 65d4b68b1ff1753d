//! Slow and lying machines take their own turns only.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use super::*;

/// A machine that sends chunks of one size, each after a pause, for ever.
struct Slow {
    size: usize,
    pause: Duration,
    /// Before it says anything at all.
    opening: Duration,
    sent: AtomicU64,
}

impl Slow {
    fn every(pause: Duration) -> Self {
        Self {
            size: 1,
            pause,
            opening: Duration::ZERO,
            sent: AtomicU64::new(0),
        }
    }

    async fn send(&self, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        sleep(self.opening).await;
        let (size, pause) = (self.size, self.pause);
        self.sent.fetch_add(1, Ordering::Relaxed);
        let chunks = stream::unfold(offset, move |offset| async move {
            sleep(pause).await;
            let data = Bytes::from(vec![b'x'; size]);
            Some((Ok(Chunk { offset, data }), offset + size as u64))
        });
        Ok(chunks.boxed())
    }
}

#[async_trait]
impl RunReader for Slow {
    async fn read_log(&self, _: &str, offset: u64, _: bool) -> Result<AgentStream<Chunk>, AgentError> {
        self.send(offset).await
    }
    async fn read_result(&self, _: &str, offset: u64) -> Result<AgentStream<Chunk>, AgentError> {
        self.send(offset).await
    }
}

/// An ended run whose log or value takes long.
fn ended(log_bytes: u64, result_bytes: u64) -> Finished {
    Finished {
        log_bytes,
        has_result: result_bytes > 0,
        result_bytes,
        ..exited(0)
    }
}

fn order_of(uid: &str, finished: &Finished) -> CollectOrder {
    CollectOrder {
        run: RunId {
            uid: uid.into(),
            attempt: 1,
            rank: 0,
        },
        ..order(finished)
    }
}

/// Twice as many slow machines of another namespace as the 32 turns: how long does an honest Task
/// with a log of 100 KiB take to end?
async fn an_honest_task_beside(slow: impl Fn() -> Slow, finished: Finished) -> Duration {
    let (_folder, store) = store();
    let (turns, metrics) = (Turns::new(32, 32), Arc::new(Metrics::default()));
    let mut others = JoinSet::new();
    for index in 0..64 {
        let (turns, store, metrics) = (turns.clone(), store.clone(), metrics.clone());
        let (agent, finished) = (Arc::new(slow()), finished.clone());
        others.spawn(async move {
            let order = order_of(&format!("slow-{index}"), &finished);
            let pool = Key::new("loud", format!("pool-{}", index % 3));
            let agent = || Some(agent.clone() as AnyReader);
            loop {
                // Like a dispatcher, tries again, soon and for ever.
                let tried = collect_in_turns(&turns, &pool, &store, agent, &order, None, &metrics).await;
                assert!(tried.is_err(), "it never sends all");
                sleep(Duration::from_secs(1)).await;
            }
        });
    }
    sleep(Duration::from_secs(20)).await;
    let agent = Arc::new(FakeAgent {
        log: vec![b'x'; 100 * 1024],
        ..FakeAgent::default()
    });
    let order = order_of("honest", &ended(100 * 1024, 0));
    let begun = Instant::now();
    let agent = || Some(agent.clone() as AnyReader);
    let pool = Key::new("quiet", "pool");
    let collected = collect_in_turns(&turns, &pool, &store, agent, &order, None, &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
    assert_eq!(store.log_end("honest", "honest-1-0").await.unwrap(), 100 * 1024);
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn machines_that_send_a_chunk_every_30_s_keep_nobody_of_another_namespace_waiting() {
    let slow = || Slow::every(Duration::from_secs(30));
    let logs = an_honest_task_beside(slow, ended(1 << 30, 0)).await;
    assert!(logs < Duration::from_mins(1), "{logs:?}");
    let values = an_honest_task_beside(slow, ended(0, 1 << 20)).await;
    assert!(values < Duration::from_mins(1), "{values:?}");
}

#[tokio::test(start_paused = true)]
async fn machines_that_trickle_or_do_not_answer_keep_nobody_of_another_namespace_waiting() {
    let trickles = || Slow::every(Duration::from_millis(500));
    let took = an_honest_task_beside(trickles, ended(1 << 30, 0)).await;
    assert!(took < Duration::from_secs(30), "{took:?}");
    let mute = || Slow {
        opening: Duration::from_secs(59),
        ..Slow::every(Duration::ZERO)
    };
    let took = an_honest_task_beside(mute, ended(1 << 30, 0)).await;
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_transfer_goes_on_where_it_was_with_each_turn() {
    let (_folder, store) = store();
    let turns = Turns::new(1, 1);
    let slow = Arc::new(Slow {
        size: 10_000,
        ..Slow::every(Duration::from_secs(1))
    });
    let agent = || Some(slow.clone() as AnyReader);
    let finished = ended(200_000, 150_000);
    let metrics = Metrics::default();
    let pool = Key::new("n", "p");
    let order = order(&finished);
    let begun = Instant::now();
    let collected = collect_in_turns(&turns, &pool, &store, agent, &order, None, &metrics).await;
    assert_eq!(collected.unwrap().reason, reason::SUCCEEDED);
    assert_eq!(log(&store).await, vec![b'x'; 200_000]);
    let value = store.get_result("uid", "uid-1-0", 0).await.unwrap().unwrap();
    assert_eq!(value.size, 150_000);
    assert!(slow.sent.load(Ordering::Relaxed) > 10, "in many turns");
    // 35 chunks of a second each, and of each turn at most one chunk is lost.
    assert!(begun.elapsed() < Duration::from_mins(2), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_sends_for_ever_is_believed_no_more_than_it_announced() {
    let (_folder, store) = store();
    let endless = Arc::new(Slow {
        size: 300_000,
        ..Slow::every(Duration::from_millis(1))
    });
    let agent = || Some(endless.clone() as AnyReader);
    let order = order(&ended(100_000, 200_000));
    let (turns, metrics) = (Turns::new(1, 1), Metrics::default());
    let pool = Key::new("n", "p");
    let collected = collect_in_turns(&turns, &pool, &store, agent, &order, None, &metrics).await;
    assert_eq!(collected.unwrap().result.value_bytes, Some(200_000));
    assert_eq!(store.log_end("uid", "uid-1-0").await.unwrap(), 100_000);
    let value = store.get_result("uid", "uid-1-0", 0).await.unwrap().unwrap();
    let pieces: Vec<Bytes> = value.bytes.map(Result::unwrap).collect().await;
    assert_eq!(pieces.concat().len(), 200_000);
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_sends_next_to_nothing_keeps_no_run_for_ever() {
    let (_folder, store) = store();
    let (turns, metrics) = (Turns::new(1, 1), Metrics::default());
    let pool = Key::new("n", "p");
    for finished in [ended(1 << 30, 0), ended(0, 100 << 20), ended(1 << 30, 100 << 20)] {
        let agent = Arc::new(Slow::every(Duration::from_millis(500)));
        let agent = || Some(agent.clone() as AnyReader);
        let early = order_of("uid", &finished);
        let tried = collect_in_turns(&turns, &pool, &store, agent, &early, None, &metrics).await;
        assert!(matches!(tried, Err(CollectError::Machine(_))), "{tried:?}");
        let last = CollectOrder {
            unreadable: true,
            ..early
        };
        let collected = collect_in_turns(&turns, &pool, &store, agent, &last, None, &metrics).await;
        let expected = if finished.has_result {
            reason::RESULT_NOT_STORED
        } else {
            reason::SUCCEEDED
        };
        assert_eq!(collected.unwrap().reason, expected);
        store.delete_task("uid").await.unwrap();
    }
}
