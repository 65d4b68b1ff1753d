//! The daemon's reports about one worker over one stream, in their order: `Holds`, every end that was not acknowledged, and
//! `Told`; then each further end; and `Told` again, as the last report, when the worker has ended.
//!
//! The daemon reads what a place holds from its share after the watcher has answered that all earlier orders are written:
//! otherwise the watcher could still take an order of an older stream after that.

use std::{io, path::PathBuf, time::Duration};

use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::{
    links::{self, Answer, Links},
    outbox::{Outbox, Told},
    queue::{Ended, Holds, Queue},
    share,
};
use crate::protocol::{
    self, EXCEPTION_BYTES, FromWorkers, ItemEnded, LAST_SIGNAL, MESSAGE_BYTES, VALUE_BYTES,
    from_workers::{self, Message},
    is_exception,
};

/// Pause between two looks for ends, after one that found many: what ended meanwhile goes to the disk in one flush.
const SHORT: Duration = Duration::from_millis(10);
/// The same after one that found some: each look costs the agent and the controller as much as several short items do.
const USUAL: Duration = Duration::from_millis(40);
/// The longest such pause. Leaders keep items waiting at a place for so long (`planner/map/leader.rs`).
const LONG: Duration = Duration::from_millis(160);
/// Ends that are many.
const MANY: usize = 20;

/// How a worker's run stands, as its daemon knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// It goes on.
    Runs,
    /// It has ended, and its share is closed.
    Ended,
    /// The machine was restarted while it ran: its share is as it was written.
    Cut,
}

/// Why no further report follows.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The worker has ended, and all its ends were reported.
    Over,
    /// The stream has no receiver any more.
    Unheard,
    /// The connection to the watcher broke: the stream begins anew.
    Broken,
    /// The share cannot be read.
    Unreadable(io::Error),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Reports about one worker.
pub(crate) struct Teller {
    /// The worker.
    pub(crate) run_id: String,
    /// Where its share is, or will be.
    pub(crate) share: PathBuf,
    /// The way to its watcher.
    pub(crate) links: Links,
    /// How its run stands.
    pub(crate) run: watch::Receiver<Run>,
    /// Positions up to which the controller has everything.
    pub(crate) acknowledged: mpsc::UnboundedReceiver<u64>,
    /// The stream.
    pub(crate) out: mpsc::Sender<Result<FromWorkers, tonic::Status>>,
}

impl Teller {
    /// Reports until the worker has ended or the stream has no receiver.
    pub(crate) async fn tell(mut self) -> Stop {
        match self.tell_all().await {
            Ok(stop) | Err(stop) => stop,
        }
    }

    async fn tell_all(&mut self) -> Result<Stop, Stop> {
        let mut answers = self.links.listen(&self.run_id);
        let link = self.synced(&mut answers).await?;
        let queue = self.queue().await?;
        self.say(Message::Holds(holds(&queue.holds()))).await?;
        let mut outbox = self.outbox().await?;
        outbox = self.drain(outbox).await?;
        if *self.run.borrow() != Run::Runs {
            // Its end may have come after the look.
            outbox = self.drain(outbox).await?;
            return self.say_over(outbox).await;
        }
        self.say(Message::Told(from_workers::Told::default())).await?;
        let mut changes = self.links.changes();
        let mut pause = SHORT;
        let mut look_at = Instant::now() + pause;
        loop {
            let is_linked = self.links.to(&self.run_id).map(|known| known.number) == link;
            let run = *self.run.borrow();
            if run != Run::Runs {
                outbox = self.drain(outbox).await?;
                return self.say_over(outbox).await;
            }
            if !is_linked {
                // Orders for the watcher may be lost. Where it has ended, that is told in a moment.
                self.ended_soon().await?;
                continue;
            }
            tokio::select! {
                () = sleep_until(look_at) => {
                    // Not until there is none: where items end without a pause, nothing else would have its turn.
                    let found;
                    (outbox, found) = self.tell_next(outbox).await?;
                    pause = match found {
                        0 => (pause * 2).min(LONG),
                        1..MANY => USUAL,
                        _ => SHORT,
                    };
                    look_at = Instant::now() + pause;
                }
                Some(answer) = answers.recv() => match answer {
                    Answer::Released(released) => {
                        let released = from_workers::Released { first: released.first, count: released.count };
                        self.say(Message::Released(released)).await?;
                    }
                    Answer::Idle => look_at = Instant::now(),
                    Answer::Synced(_) => {}
                },
                Some(position) = self.acknowledged.recv() => {
                    outbox = blocking(move || {
                        outbox.acknowledge(position)?;
                        Ok(outbox)
                    })
                    .await?;
                    // More work comes.
                    pause = SHORT;
                    look_at = look_at.min(Instant::now() + pause);
                }
                Ok(()) = changes.changed() => {}
                _ = self.run.changed() => {}
                () = self.out.closed() => return Err(Stop::Unheard),
            }
        }
    }

    /// Waits until the watcher has written all that it was told before. Answers the number of the link over which that
    /// is so; none: the worker's run has ended.
    async fn synced(&mut self, answers: &mut mpsc::UnboundedReceiver<Answer>) -> Result<Option<u64>, Stop> {
        let mut changes = self.links.changes();
        let mut asked = None;
        loop {
            if *self.run.borrow() != Run::Runs {
                return Ok(None);
            }
            if let Some(link) = self.links.to(&self.run_id)
                && asked.is_none_or(|(known, _)| known != link.number)
            {
                let number = self.links.sync_number();
                asked = Some((link.number, number));
                // A link that is gone meanwhile is another one soon.
                let _ = link.orders.send(links::sync(number)).await;
            }
            tokio::select! {
                Some(answer) = answers.recv() => {
                    if let (Answer::Synced(answered), Some((link, number))) = (answer, asked)
                        && answered == number
                    {
                        return Ok(Some(link));
                    }
                }
                Ok(()) = changes.changed() => {}
                _ = self.run.changed() => {}
                () = self.out.closed() => return Err(Stop::Unheard),
            }
        }
    }

    /// The watcher is not connected: its run has ended, or the stream has to begin anew.
    async fn ended_soon(&mut self) -> Result<(), Stop> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let run = &mut self.run;
        let ended = async { drop(run.wait_for(|run| *run != Run::Runs).await) };
        tokio::select! {
            _ = tokio::time::timeout(PATIENCE, ended) => {}
            () = self.out.closed() => return Err(Stop::Unheard),
        }
        if *self.run.borrow() == Run::Runs {
            return Err(Stop::Broken);
        }
        Ok(())
    }

    /// The last word about the worker, and what is acknowledged after that.
    async fn say_over(&mut self, mut outbox: Outbox) -> Result<Stop, Stop> {
        let cut = *self.run.borrow() == Run::Cut;
        self.say(Message::Told(from_workers::Told { over: true, cut }))
            .await?;
        loop {
            tokio::select! {
                position = self.acknowledged.recv() => {
                    let Some(position) = position else { return Ok(Stop::Over) };
                    outbox = blocking(move || {
                        outbox.acknowledge(position)?;
                        Ok(outbox)
                    })
                    .await?;
                }
                () = self.out.closed() => return Ok(Stop::Unheard),
            }
        }
    }

    /// What the share says that the place holds.
    async fn queue(&self) -> Result<Queue, Stop> {
        let is_over = *self.run.borrow() == Run::Ended;
        let share = self.share.clone();
        let queue = blocking(move || match share::replay(&share) {
            Ok((queue, ..)) => Ok(queue),
            // Its watcher has ended before it could make one.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Queue::default()),
            Err(error) => Err(error),
        })
        .await?;
        // A share that is closed holds nothing.
        Ok(if is_over { Queue::default() } else { queue })
    }

    async fn outbox(&self) -> Result<Outbox, Stop> {
        let share = self.share.clone();
        blocking(move || match Outbox::open(&share) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Outbox::nothing(&share)),
            opened => opened,
        })
        .await
    }

    /// Tells all ends that there are, of a place that gets no more items meanwhile.
    async fn drain(&self, mut outbox: Outbox) -> Result<Outbox, Stop> {
        loop {
            let found;
            (outbox, found) = self.tell_next(outbox).await?;
            if found == 0 {
                return Ok(outbox);
            }
        }
    }

    /// Tells the next ends, as many as go to the disk in one flush. Answers how many there were.
    async fn tell_next(&self, mut outbox: Outbox) -> Result<(Outbox, usize), Stop> {
        let told;
        (outbox, told) = blocking(move || {
            let told = outbox.next()?;
            Ok((outbox, told))
        })
        .await?;
        let found = told.len();
        for Told { position, ended } in told {
            self.say(Message::Ended(item_ended(position, ended))).await?;
        }
        Ok((outbox, found))
    }

    async fn say(&self, message: Message) -> Result<(), Stop> {
        let message = FromWorkers {
            run_id: self.run_id.clone(),
            message: Some(message),
        };
        self.out.send(Ok(message)).await.map_err(|_| Stop::Unheard)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Stop> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other).flatten().map_err(Stop::Unreadable)
}

fn holds(holds: &Holds) -> from_workers::Holds {
    let range = |first, count, attempt| from_workers::Range {
        first,
        count,
        attempt,
    };
    let running = holds
        .running
        .iter()
        .map(|item| range(item.index, 1, item.attempt));
    let chunks = holds
        .chunks
        .iter()
        .map(|chunk| range(chunk.first, chunk.count, chunk.attempt));
    from_workers::Holds {
        ranges: running.chain(chunks).collect(),
    }
}

/// An end as it is sent. Work that shares the agent's user may have written into the share: a controller ends a machine
/// that sends impossible values, so they are bounded here.
fn item_ended(position: u64, ended: Ended) -> ItemEnded {
    let Ended {
        index,
        attempt,
        ending,
        exit_code,
        signal,
        mut message,
        microseconds,
        mut value,
        mut exception,
    } = ended;
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES + '…'.len_utf8()));
    if !is_exception(&exception) {
        exception.truncate(exception.floor_char_boundary(EXCEPTION_BYTES));
        if !is_exception(&exception) {
            exception.clear();
        }
    }
    let mut ending = ending;
    if value.len() > VALUE_BYTES {
        value.clear();
        ending = protocol::finished::Ending::ResultTooLarge.into();
    }
    ItemEnded {
        position,
        index,
        attempt,
        ending,
        exit_code,
        signal: signal.clamp(0, LAST_SIGNAL),
        message,
        exception,
        microseconds,
        value,
    }
}
