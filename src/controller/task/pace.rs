//! How long one turn of a transfer from a machine lasts, so that a slow machine does not keep
//! others waiting. A turn ends after [`TURN`], and sooner when the machine sends less than
//! [`LEAST`]. The bytes that have come are kept: the next turn goes on from there.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use futures::{StreamExt, stream::BoxStream};
use skyward_remote::{AgentError, agent::AgentStream, protocol::Chunk};
use tokio::time::{Instant, timeout_at};

/// Longest turn.
pub(crate) const TURN: Duration = Duration::from_secs(10);
/// The time that every machine gets to begin.
pub(crate) const TRIAL: Duration = Duration::from_secs(3);
/// Bytes in a second below which a turn ends after [`TRIAL`].
pub(crate) const LEAST: u64 = 64 * 1024;
/// A turn with fewer bytes counts as failed: a value would take days.
const CRAWL: u64 = 4 * 1024;
/// How often the rate is looked at while nothing comes.
const LOOK: Duration = Duration::from_secs(1);

/// One turn.
#[derive(Debug)]
pub(crate) struct Pace {
    begun: Instant,
    came: AtomicU64,
    over: AtomicBool,
}

impl Pace {
    /// A turn that begins now.
    pub(crate) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            came: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Whether it ended before the transfer was complete.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether it ended and brought next to nothing.
    pub(crate) fn was_in_vain(&self) -> bool {
        self.is_over() && self.came() < CRAWL
    }

    /// Bytes that came in this turn.
    fn came(&self) -> u64 {
        self.came.load(Ordering::Relaxed)
    }

    /// The answer of an agent, if it comes within the turn.
    pub(crate) async fn open(
        &self,
        answer: impl Future<Output = Result<AgentStream<Chunk>, AgentError>>,
    ) -> Result<AgentStream<Chunk>, AgentError> {
        timeout_at(self.begun + TURN, answer)
            .await
            .unwrap_or_else(|_| Err(AgentError::Disconnected("no answer in its turn".to_owned())))
    }

    /// The stream until the turn is over, up to the offset `until`.
    pub(crate) fn limit(
        &self,
        stream: AgentStream<Chunk>,
        until: u64,
    ) -> BoxStream<'_, Result<Chunk, AgentError>> {
        futures::stream::unfold(stream, move |mut stream| async move {
            loop {
                let now = Instant::now();
                if self.ends(now) {
                    self.over.store(true, Ordering::Relaxed);
                    return None;
                }
                let Ok(next) = timeout_at(self.next_look(now), stream.next()).await else {
                    continue;
                };
                let chunk = match next? {
                    Ok(chunk) => within(chunk, until)?,
                    Err(error) => return Some((Err(error), stream)),
                };
                self.came.fetch_add(chunk.data.len() as u64, Ordering::Relaxed);
                return Some((Ok(chunk), stream));
            }
        })
        .boxed()
    }

    fn ends(&self, now: Instant) -> bool {
        let lasted = now.duration_since(self.begun);
        let wanted = LEAST as f64 * lasted.as_secs_f64();
        lasted >= TURN || (lasted >= TRIAL && (self.came() as f64) < wanted)
    }

    fn next_look(&self, now: Instant) -> Instant {
        let (trial, end) = (self.begun + TRIAL, self.begun + TURN);
        if now < trial { trial } else { end.min(now + LOOK) }
    }
}

/// The part of a chunk that lies before that offset; `None` when nothing does, and nothing will.
fn within(mut chunk: Chunk, until: u64) -> Option<Chunk> {
    let room = until.checked_sub(chunk.offset).filter(|room| *room > 0)?;
    chunk.data.truncate(usize::try_from(room).unwrap_or(usize::MAX));
    Some(chunk)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::stream;
    use tokio::time::sleep;

    use super::*;

    /// So many bytes, each time after a pause, for ever.
    fn sends(size: usize, pause: Duration) -> AgentStream<Chunk> {
        stream::unfold(0_u64, move |offset| async move {
            sleep(pause).await;
            let data = Bytes::from(vec![b'x'; size]);
            Some((Ok(Chunk { offset, data }), offset + size as u64))
        })
        .boxed()
    }

    async fn turn(stream: AgentStream<Chunk>, until: u64) -> (u64, bool, Duration) {
        let begun = Instant::now();
        let pace = Pace::begin();
        pace.limit(stream, until).for_each(|_| async {}).await;
        (pace.came(), pace.is_over(), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_machine_has_a_short_turn_and_a_fast_one_a_longer_one() {
        let (came, over, lasted) = turn(sends(1, Duration::from_secs(59)), u64::MAX).await;
        assert_eq!((came, over, lasted), (0, true, TRIAL));
        let (came, over, lasted) = turn(sends(1, Duration::from_millis(100)), u64::MAX).await;
        assert!(over && came > 20 && lasted == TRIAL, "{came} bytes in {lasted:?}");
        let (came, over, lasted) = turn(sends(100_000, Duration::from_millis(100)), u64::MAX).await;
        assert!(over && came > 9_000_000, "{came} bytes");
        assert_eq!(lasted, TURN);
        // It begins well and falls silent.
        let begins_well = stream::iter([Ok(Chunk {
            offset: 0,
            data: vec![0; 5 * LEAST as usize].into(),
        })])
        .chain(stream::pending());
        let (_, over, lasted) = turn(begins_well.boxed(), u64::MAX).await;
        assert!(over && lasted <= Duration::from_secs(6), "{lasted:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_taken_beyond_what_was_announced_however_much_is_sent() {
        let (came, over, _) = turn(sends(1000, Duration::from_millis(1)), 2500).await;
        assert_eq!((came, over), (2500, false));
        let (came, over, _) = turn(sends(1000, Duration::from_millis(1)), 0).await;
        assert_eq!((came, over), (0, false));
    }
}
