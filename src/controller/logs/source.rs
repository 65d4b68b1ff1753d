//! One run's log, wherever it is: first the store's part, then the machine's.
//!
//! Offsets count bytes of the encoded log, which is the same at the agent and in the store,
//! so the seam is a number. The order of the two looks matters: first whether the run is on a
//! machine, *then* how far the store goes. A run that left its machine before the first look has
//! its whole log in the store by the second; the other way round, its last lines could arrive in
//! between and be missed.
//!
//! Neither may have all of a long log: the reader is told where it goes on.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::body::Bytes;
use futures::{StreamExt, stream::BoxStream};
use skyward_remote::{
    Connections, MachineKey,
    agent::{AgentError, RunReader},
};
use skyward_store::{Gap, Missing, Piece, Store};
use skyward_subresources::records::Mark;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::hints::live::Live;

/// The message while a new leader does not know yet what runs.
pub(super) const JUST_BEGUN: &str =
    "the controller has just begun and does not know yet what runs; try again in a few seconds";

/// How long a machine that does not answer is waited for, when not following.
const PATIENCE: Duration = Duration::from_secs(5);
/// Most pieces that wait for a reader.
const WAITING: usize = 4;
const PIECE: usize = 32 * 1024;
/// How long a stream of a machine is held for a reader that takes nothing.
const SLOW: Duration = Duration::from_secs(1);
/// Between two looks when nothing tells of a change.
const AGAIN: Duration = Duration::from_millis(250);

/// Machines and their runs. Implemented by [`LiveMachines`]; tests bring their own.
#[async_trait]
pub(super) trait Machines: Send + Sync {
    /// Where that run is.
    fn place_of(&self, task_uid: &str, run: &str) -> Whereabouts;
    /// The connection to that machine, if there is one.
    fn agent(&self, machine: &MachineKey) -> Option<Arc<dyn RunReader>>;
    /// Woken when a connection changes.
    fn changes(&self) -> watch::Receiver<u64>;
}

/// Where a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// The run is on that machine; its log may grow.
    On(MachineKey),
    /// The run is on no machine: its log is complete, or has not begun.
    Nowhere,
    /// A new leader does not know yet.
    Unknown,
}

/// The real machines, as sessions and the placements of runs show them.
pub(super) struct LiveMachines {
    pub(super) live: Arc<Live>,
    pub(super) sessions: Arc<dyn Connections>,
}

impl Machines for LiveMachines {
    fn place_of(&self, task_uid: &str, run: &str) -> Whereabouts {
        place_in(&self.live, task_uid, run)
    }

    fn agent(&self, machine: &MachineKey) -> Option<Arc<dyn RunReader>> {
        self.sessions
            .agent(machine)
            .map(|agent| Arc::new(agent) as Arc<dyn RunReader>)
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.sessions.subscribe()
    }
}

/// Where a run is, as far as the dispatchers have told.
pub(super) fn place_in(live: &Live, task_uid: &str, run: &str) -> Whereabouts {
    let Some(runs) = live.lookup(task_uid) else {
        return Whereabouts::Unknown;
    };
    runs.into_iter()
        .find(|live| live.run_id == run)
        .map_or(Whereabouts::Nowhere, |live| Whereabouts::On(live.machine))
}

/// Everything needed to read one run's log.
pub(super) struct Source {
    pub(super) machines: Arc<dyn Machines>,
    pub(super) store: Arc<Store>,
    pub(super) task_uid: String,
    pub(super) run: String,
    pub(super) follow: bool,
    /// How the reader is told of a gap; a reader without gets the log up to the first gap.
    pub(super) gaps: Option<Mark>,
}

type Chunk = io::Result<Bytes>;

impl Source {
    /// The encoded log from an offset. It ends in order only when all of it was sent.
    pub(super) fn stream(self, offset: u64) -> BoxStream<'static, Chunk> {
        let (send, receive) = mpsc::channel(WAITING);
        let mut pump = JoinSet::new();
        pump.spawn(async move {
            if let Err(Stop::Broken(why)) = self.pump(offset, &send).await {
                tracing::info!(
                    run = self.run,
                    why,
                    "a log's stream was broken off; the reader goes on later"
                );
                let _ = send.send(Err(io::Error::other(why))).await;
            }
        });
        // The stream owns the pump: a reader that leaves ends it.
        futures::stream::unfold((receive, pump), |(mut receive, pump)| async move {
            receive.recv().await.map(|chunk| (chunk, (receive, pump)))
        })
        .boxed()
    }

    async fn pump(&self, mut offset: u64, send: &mpsc::Sender<Chunk>) -> Result<(), Stop> {
        let mut waiting_since: Option<Instant> = None;
        loop {
            let place = self.machines.place_of(&self.task_uid, &self.run);
            if self.stored(&mut offset, send).await? {
                continue;
            }
            let machine = match place {
                Whereabouts::On(machine) => machine,
                Whereabouts::Nowhere => return Ok(()),
                Whereabouts::Unknown => return Err(Stop::Broken(JUST_BEGUN.to_owned())),
            };
            match self.on_machine(&machine, &mut offset, send).await? {
                Progress::Done => return Ok(()),
                Progress::Some => waiting_since = None,
                Progress::None => {
                    let since = *waiting_since.get_or_insert_with(Instant::now);
                    if !self.follow && since.elapsed() > PATIENCE {
                        return Err(Stop::Broken(format!(
                            "the machine \"{}/{}\" does not answer",
                            machine.namespace, machine.name
                        )));
                    }
                    let mut changes = self.machines.changes();
                    tokio::select! {
                        _ = timeout(AGAIN, changes.changed()) => {}
                        () = send.closed() => return Err(Stop::Left),
                    }
                    // A watch may be closed, or change all the time.
                    sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }

    /// Sends the store's part from the offset; answers whether there was any.
    async fn stored(&self, offset: &mut u64, send: &mpsc::Sender<Chunk>) -> Result<bool, Stop> {
        let begin = *offset;
        let mut pieces = self.store.read_log(&self.task_uid, &self.run, begin);
        while let Some(piece) = pieces.next().await {
            let piece = piece.map_err(|error| Stop::Broken(format!("the result store: {error}")))?;
            match piece {
                Piece::Bytes(bytes) => {
                    *offset += bytes.len() as u64;
                    send.send(Ok(bytes)).await.map_err(|_| Stop::Left)?;
                }
                Piece::Gap(gap) => self.pass_over(gap, offset, send).await?,
            }
        }
        Ok(*offset > begin)
    }

    /// Goes on behind a gap.
    async fn pass_over(&self, gap: Gap, offset: &mut u64, send: &mpsc::Sender<Chunk>) -> Result<(), Stop> {
        let Some(mark) = &self.gaps else {
            let why = "the log has a gap, and the reader did not ask for what is behind it";
            return Err(Stop::Broken(why.to_owned()));
        };
        let line = mark.line(gap.start, gap.end, gap.why.as_str());
        send.send(Ok(line)).await.map_err(|_| Stop::Left)?;
        *offset = gap.end;
        Ok(())
    }

    /// Whether the store has bytes that the machine does not keep any more.
    async fn has_more(&self, offset: u64) -> bool {
        let end = self.store.log_end(&self.task_uid, &self.run).await;
        end.is_ok_and(|end| end > offset)
    }

    async fn on_machine(
        &self,
        machine: &MachineKey,
        offset: &mut u64,
        send: &mpsc::Sender<Chunk>,
    ) -> Result<Progress, Stop> {
        let Some(agent) = self.machines.agent(machine) else {
            return Ok(Progress::None);
        };
        let begin = *offset;
        let progress = |offset: u64| {
            if offset > begin {
                Progress::Some
            } else {
                Progress::None
            }
        };
        let mut chunks = match agent.read_log(&self.run, begin, self.follow).await {
            Ok(chunks) => chunks,
            // Not started yet, or forgotten: then the store has all of it by now.
            Err(AgentError::NotFound) => return Ok(Progress::None),
            Err(error) => {
                tracing::debug!(%error, run = self.run, "the agent does not give its log; trying again");
                return Ok(Progress::None);
            }
        };
        loop {
            let chunk = tokio::select! {
                chunk = chunks.next() => chunk,
                () = send.closed() => return Err(Stop::Left),
            };
            match chunk {
                // An older agent ends the stream of a run that it forgets as if all had been sent.
                None if self.has_more(*offset).await => return Ok(Progress::Some),
                None => return Ok(Progress::Done),
                Some(Err(error)) => {
                    tracing::debug!(%error, run = self.run, "the agent's log stream broke; going on where it was");
                    return Ok(progress(*offset));
                }
                Some(Ok(chunk)) => {
                    let data = chunk.data;
                    if data.is_empty() {
                        continue;
                    }
                    let end = chunk.offset.checked_add(data.len() as u64);
                    if end.is_none_or(|end| end > i64::MAX as u64) {
                        return Err(Stop::Broken(
                            "the machine sent an offset that no log has".to_owned(),
                        ));
                    }
                    if chunk.offset > *offset {
                        if self.has_more(*offset).await {
                            return Ok(Progress::Some);
                        }
                        let gap = Gap {
                            start: *offset,
                            end: chunk.offset,
                            why: Missing::OverLimit,
                        };
                        self.pass_over(gap, offset, send).await?;
                    }
                    // Bytes that were sent already are left out.
                    let known = offset.saturating_sub(chunk.offset);
                    let known = usize::try_from(known).unwrap_or(usize::MAX).min(data.len());
                    let data = data.slice(known..);
                    if data.is_empty() {
                        continue;
                    }
                    if !hand_on(data, offset, send).await? {
                        // Bytes that the machine sends meanwhile would pile up for the slow reader.
                        drop(chunks);
                        send.reserve().await.map_err(|_| Stop::Left)?;
                        return Ok(Progress::Some);
                    }
                }
            }
        }
    }
}

/// Hands bytes of a machine on in pieces of their own, so that none keeps a larger one; answers
/// whether the reader took all of them in time.
async fn hand_on(data: Bytes, offset: &mut u64, send: &mpsc::Sender<Chunk>) -> Result<bool, Stop> {
    for piece in data.chunks(PIECE) {
        match timeout(SLOW, send.reserve()).await {
            Ok(Ok(place)) => {
                place.send(Ok(Bytes::copy_from_slice(piece)));
                *offset += piece.len() as u64;
            }
            Ok(Err(_)) => return Err(Stop::Left),
            Err(_) => return Ok(false),
        }
    }
    Ok(true)
}

/// Why a stream ends early.
enum Stop {
    /// The reader has left.
    Left,
    /// The stream cannot go on.
    Broken(String),
}

/// How far a machine's part went.
enum Progress {
    /// All was sent.
    Done,
    /// The connection broke after some bytes.
    Some,
    /// Nothing came.
    None,
}
