//! `…/tasks/NAME/log`: the logs of a Task's runs as one stream; `…/tasks/NAME/result/values`: what its
//! function yields, which is another stream of the same logs.
//!
//! Each run has a reader that asks the leader and, after a loss of connection, asks again
//! at the offset after the last whole record; so a restart of the controller neither loses
//! nor doubles a line. With `follow` the stream goes on through the attempts until the Task
//! has ended. All channels are bounded: a slow client slows its readers, nothing piles up.

use std::{collections::BTreeSet, io, time::Duration};

use axum::body::Bytes;
use futures::{StreamExt, stream::BoxStream};
use jiff::Timestamp;
use skyward_api::Task;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::{
    data::{DataError, Run, Runs, run_id},
    limits::{Of, Permit},
    options::{Format, LogOptions},
    reading::{Now, Reading, attempt, describe, has_lost_log, pause, phase, ranks},
    records::{
        Decoder, Gap, Item, Mark, Record, frame, frame_attempt, frame_gap, frame_notice, frame_position,
    },
    status::Failure,
    text::{Joiner, Style},
};

/// Most runs followed by one request: each takes one of the leader's streams.
const MAX_FOLLOWED: usize = 128;
/// Bytes of the first look at a log's end for its last lines; the next looks take four times more.
const TAIL_WINDOW: u64 = 64 * 1024;
/// How long an unfinished line may wait for its end before it is shown, when following.
const PROMPT: Duration = Duration::from_millis(500);
/// How often an empty line keeps a silent stream of records alive.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Failures in a row after which a client that follows is told.
const TOLD_AFTER: u32 = 4;

/// Opens the stream; an error that is known at the start has a status code of its own.
pub(crate) async fn open(
    reading: Reading,
    task: Task,
    options: LogOptions,
    mut permit: Permit,
) -> Result<BoxStream<'static, io::Result<Bytes>>, Failure> {
    let last = attempt(&task);
    let name = &reading.name;
    if let Some(wanted) = options.attempt
        && wanted > last
    {
        return Err(Failure::bad_request(format!(
            "Task {name:?} has had {last} attempts, not {wanted}"
        )));
    }
    if last == 0 && (!options.follow || phase(&task).is_finished()) {
        return Err(Failure::bad_request(format!(
            "Task {name:?} has not started, so it has no log: it is {}; follow=true (kubectl skyward logs -f) waits for it",
            describe(&task)
        )));
    }
    let resumed = options.positions.iter().map(|position| position.attempt).max();
    let first = options.attempt.or(resumed).unwrap_or(last).min(last);
    let mut runs = None;
    if first > 0 {
        let known = reading.runs(&task).await.map_err(|error| match error {
            DataError::NotFound => Failure::unavailable("the controller does not know this Task yet"),
            DataError::Unavailable(text) => Failure::unavailable(text),
        })?;
        let ranks = ranks(&task, &known, first);
        if let Some(rank) = options.rank
            && !ranks.is_empty()
            && !ranks.contains(&rank)
        {
            let last = ranks.last().copied().unwrap_or_default();
            return Err(Failure::bad_request(format!(
                "Task {name:?} has no rank {rank} in attempt {first}; its highest rank is {last}"
            )));
        }
        if has_lost_log(&task, &known, first, options.rank) {
            return Err(Failure::expired(format!(
                "what Task {name:?} printed is not in the result store any more, as after an earlier spec.retention.logs; \
                 the end of it stands in its status"
            )));
        }
        if options.follow && options.rank.is_none() {
            may_follow(name, ranks.len(), &mut permit)?;
        }
        runs = Some(known);
    }
    let (send, receive) = mpsc::channel(8);
    let mut pump = JoinSet::new();
    pump.spawn(async move {
        let mut writer = Writer::new(&options, send);
        // An error means that the client has left or got all it asked for.
        let _ = Pump { reading, options }
            .run(task, first, runs, &mut permit, &mut writer)
            .await;
    });
    // The stream owns the pump: a client that leaves ends it and all its readers.
    Ok(
        futures::stream::unfold((receive, pump), |(mut receive, pump)| async move {
            receive.recv().await.map(|chunk| (chunk, (receive, pump)))
        })
        .boxed(),
    )
}

/// The stream ends here: the client reads no more, or `limitBytes` is reached.
struct Ended;

/// From records to bytes of the answer.
struct Writer {
    send: mpsc::Sender<io::Result<Bytes>>,
    format: Format,
    timestamps: bool,
    joiner: Joiner,
    left: Option<u64>,
    buffer: Vec<u8>,
}

impl Writer {
    fn new(options: &LogOptions, send: mpsc::Sender<io::Result<Bytes>>) -> Self {
        Self {
            send,
            format: options.format,
            timestamps: options.timestamps,
            joiner: Joiner::default(),
            left: options.limit_bytes,
            buffer: Vec::new(),
        }
    }

    async fn begin_attempt(&mut self, attempt: u32, runs: usize) -> Result<(), Ended> {
        self.joiner.break_line(&mut self.buffer);
        self.joiner = Joiner::new(Style {
            ranks: runs > 1,
            timestamps: self.timestamps,
        });
        if self.format == Format::Records {
            frame_attempt(&mut self.buffer, attempt, u32::try_from(runs).unwrap_or(u32::MAX));
        }
        self.flush().await
    }

    async fn items(&mut self, attempt: u32, rank: u32, items: &[Item]) -> Result<(), Ended> {
        for item in items {
            match (self.format, item) {
                (Format::Text, Item::Record(record)) => self.joiner.push(rank, record, &mut self.buffer),
                (Format::Text, Item::Gap(gap)) => self.joiner.gap(rank, gap, &mut self.buffer),
                (Format::Records, Item::Record(record)) => frame(&mut self.buffer, attempt, rank, record),
                (Format::Records, Item::Gap(gap)) => frame_gap(&mut self.buffer, attempt, rank, gap),
            }
            if self.buffer.len() >= 32 * 1024 {
                self.flush().await?;
            }
        }
        self.flush().await
    }

    /// Tells that the records of that rank before the offset were left out; the client need not
    /// read them again.
    async fn position(&mut self, attempt: u32, rank: u32, offset: u64) -> Result<(), Ended> {
        if self.format == Format::Records {
            frame_position(&mut self.buffer, attempt, rank, offset);
        }
        self.flush().await
    }

    async fn notice(&mut self, text: &str) -> Result<(), Ended> {
        match self.format {
            Format::Text => {
                self.joiner.break_line(&mut self.buffer);
                self.buffer
                    .extend_from_slice(format!("[skyward] {text}\n").as_bytes());
            }
            Format::Records => frame_notice(&mut self.buffer, text),
        }
        self.flush().await
    }

    async fn idle(&mut self) -> Result<(), Ended> {
        if self.format == Format::Text {
            self.joiner.idle(&mut self.buffer);
        }
        self.flush().await
    }

    async fn keep_alive(&mut self) -> Result<(), Ended> {
        if self.format == Format::Records {
            self.buffer.push(b'\n');
        }
        self.flush().await
    }

    async fn end_attempt(&mut self) -> Result<(), Ended> {
        if self.format == Format::Text {
            self.joiner.finish(&mut self.buffer);
        }
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), Ended> {
        if let Some(left) = &mut self.left {
            let allowed = usize::try_from(*left).unwrap_or(usize::MAX);
            self.buffer.truncate(allowed);
            *left -= self.buffer.len() as u64;
        }
        if !self.buffer.is_empty() {
            let bytes = Bytes::from(std::mem::take(&mut self.buffer));
            self.send.send(Ok(bytes)).await.map_err(|_| Ended)?;
        }
        if self.left == Some(0) || self.send.is_closed() {
            Err(Ended)
        } else {
            Ok(())
        }
    }
}

/// Messages of readers to the pump.
enum Event {
    Items(u32, Vec<Item>),
    /// No record of this rank before the offset will come.
    Position(u32, u64),
    Notice(String),
}

/// Checks that so many ranks can be followed at once, and takes room for their streams.
fn may_follow(name: &str, ranks: usize, permit: &mut Permit) -> Result<(), Failure> {
    if ranks > MAX_FOLLOWED {
        return Err(Failure::bad_request(format!(
            "Task {name:?} has {ranks} ranks, and at most {MAX_FOLLOWED} can be followed at once: choose one with rank=N (kubectl skyward logs --rank N)"
        )));
    }
    permit.widen(ranks).map_err(|of| {
        let whose = match of {
            Of::User => "with the logs that you have open that is more than you may follow at once",
            Of::Namespace => {
                "with the logs that are open of its namespace, by all who read there, that is more than may be followed at once"
            }
        };
        Failure::too_many(format!(
            "Task {name:?} has {ranks} ranks, and {whose}: close some, or choose one with rank=N (kubectl skyward logs --rank N)"
        ))
    })
}

struct Pump {
    reading: Reading,
    options: LogOptions,
}

impl Pump {
    async fn run(
        &self,
        mut task: Task,
        mut number: u32,
        mut runs: Option<Runs>,
        permit: &mut Permit,
        writer: &mut Writer,
    ) -> Result<(), Ended> {
        // An attempt that begins while the client follows is shown from its first line.
        let first = number;
        loop {
            if number > 0 {
                let known = match runs.take() {
                    Some(known) => known,
                    None => self.runs(writer).await?,
                };
                let mut wanted = ranks(&task, &known, number);
                if let Some(rank) = self.options.rank {
                    // The run may not have been started yet; its reader waits for it.
                    wanted = BTreeSet::from([rank]);
                }
                // The number of runs is known only now if the attempt was followed before it began.
                if self.options.follow
                    && let Err(refused) = may_follow(&self.reading.name, wanted.len(), permit)
                {
                    return writer.notice(&refused.message).await;
                }
                if !wanted.is_empty() {
                    writer.begin_attempt(number, wanted.len()).await?;
                    let tail = self.options.tail_lines.filter(|_| number == first);
                    self.stream(number, &wanted, &known, tail, writer).await?;
                    writer.end_attempt().await?;
                } else if self.options.follow && number == attempt(&task) && !phase(&task).is_finished() {
                    // Placed a moment ago: the leader does not list its runs yet.
                    let Some(fresh) = self.wait(number, number, writer).await? else {
                        return Ok(());
                    };
                    task = fresh;
                    continue;
                }
            }
            if !self.options.follow || self.options.attempt.is_some() {
                return Ok(());
            }
            let Some(fresh) = self.wait(number, number + 1, writer).await? else {
                return Ok(());
            };
            // One after the other: an attempt that began and ended meanwhile has its log, too.
            number += 1;
            task = fresh;
        }
    }

    /// The runs; waits however long the leader is away, since the client follows.
    async fn runs(&self, writer: &mut Writer) -> Result<Runs, Ended> {
        let mut failures = 0;
        loop {
            let Reading {
                data, namespace, uid, ..
            } = &self.reading;
            match data.runs(namespace, uid).await {
                Ok(runs) => return Ok(runs),
                Err(DataError::NotFound) => {}
                Err(DataError::Unavailable(text)) => {
                    failures += 1;
                    if failures == TOLD_AFTER {
                        writer.notice(&text).await?;
                    }
                }
            }
            self.pause(pause(failures), writer).await?;
        }
    }

    /// Waits until the Task has an attempt of at least that number that the leader may know; `None`
    /// = the Task has ended, or is gone.
    async fn wait(&self, seen: u32, wanted: u32, writer: &mut Writer) -> Result<Option<Task>, Ended> {
        let mut rounds = 0;
        loop {
            if wanted == seen || rounds > 0 {
                self.pause(pause(rounds), writer).await?;
            }
            rounds += 1;
            match self.reading.look().await {
                Now::There(task) if attempt(&task) >= wanted => return Ok(Some(*task)),
                Now::There(task) if phase(&task).is_finished() => return Ok(None),
                Now::There(_) | Now::Unknown => {}
                Now::Gone => return Ok(None),
            }
        }
    }

    async fn pause(&self, length: Duration, writer: &mut Writer) -> Result<(), Ended> {
        tokio::select! {
            () = sleep(length) => {}
            () = writer.send.closed() => return Err(Ended),
        }
        // Between attempts nothing else keeps the connection alive.
        if length >= Duration::from_secs(1) {
            writer.keep_alive().await?;
        }
        Ok(())
    }

    /// All runs of one attempt: side by side when following, else one after the other.
    async fn stream(
        &self,
        number: u32,
        wanted: &BTreeSet<u32>,
        known: &Runs,
        tail: Option<u64>,
        writer: &mut Writer,
    ) -> Result<(), Ended> {
        let (send, mut events) = mpsc::channel(16);
        let mut readers = JoinSet::new();
        let each: Vec<Reader> = wanted
            .iter()
            .map(|&rank| Reader {
                reading: self.reading.clone(),
                run: run_id(&self.reading.uid, number, rank),
                known: known
                    .runs
                    .iter()
                    .find(|run| run.attempt == number && run.rank == rank)
                    .cloned(),
                attempt: number,
                rank,
                tail,
                options: self.options.clone(),
                mark: Mark::random(),
                send: send.clone(),
            })
            .collect();
        drop(send);
        if self.options.follow {
            for reader in each {
                readers.spawn(reader.run());
            }
        } else {
            readers.spawn(async move {
                for reader in each {
                    reader.run().await;
                }
            });
        }
        let mut quiet_since = Instant::now();
        let mut shown = true;
        loop {
            let patience = if shown { KEEP_ALIVE } else { PROMPT };
            let event = tokio::select! {
                event = timeout(patience, events.recv()) => event,
                () = writer.send.closed() => return Err(Ended),
            };
            match event {
                Ok(None) => return Ok(()),
                Ok(Some(Event::Items(rank, items))) => {
                    writer.items(number, rank, &items).await?;
                    shown = !self.options.follow;
                    quiet_since = Instant::now();
                }
                Ok(Some(Event::Position(rank, offset))) => writer.position(number, rank, offset).await?,
                Ok(Some(Event::Notice(text))) => writer.notice(&text).await?,
                Err(_) => {
                    if !shown {
                        writer.idle().await?;
                        shown = true;
                    }
                    if quiet_since.elapsed() >= KEEP_ALIVE {
                        writer.keep_alive().await?;
                        quiet_since = Instant::now();
                    }
                }
            }
        }
    }
}

/// Reads one run's log to its end.
struct Reader {
    reading: Reading,
    run: String,
    known: Option<Run>,
    attempt: u32,
    rank: u32,
    /// Only so many of the lines that exist already.
    tail: Option<u64>,
    options: LogOptions,
    /// The mark that stands in the place of a missing part.
    mark: Mark,
    send: mpsc::Sender<Event>,
}

/// How far a reader is.
#[derive(Default)]
struct Progress {
    decoder: Decoder,
    /// How many lines are still to be left out.
    skip: u64,
    /// Where the log ended when they were counted.
    counted: u64,
    /// The last gap. It is sent with the record behind it: a gap among omitted lines does not
    /// matter.
    gap: Option<Gap>,
    /// A gap was seen: lines that were counted may never come.
    overtaken: bool,
    /// Only the last lines are wanted, and none of them has come yet.
    tail: bool,
}

impl Reader {
    async fn run(self) {
        // An error means that the pump has ended.
        let _ = self.read().await;
    }

    async fn read(&self) -> Result<(), Ended> {
        let follow = self.options.follow;
        let mut progress = self.start().await?;
        if self.options.tail_lines.is_some() && progress.decoder.position() == 0 && progress.skip == 0 {
            self.event(Event::Position(self.rank, 0)).await?;
        }
        let mut failures = 0;
        let mut heard_at = Instant::now();
        loop {
            match self.ask(progress.decoder.position(), follow).await {
                Ok(mut chunks) => {
                    loop {
                        match chunks.next().await {
                            None => {
                                let Some(gap) = progress.gap else { return Ok(()) };
                                return self.items(vec![Item::Gap(gap)]).await;
                            }
                            Some(Ok(chunk)) => {
                                failures = 0;
                                heard_at = Instant::now();
                                progress.decoder.push(&chunk);
                                self.pass(&mut progress).await?;
                            }
                            Some(Err(error)) => {
                                tracing::debug!(%error, run = self.run, "the log's stream broke; going on where it was");
                                break;
                            }
                        }
                    }
                    progress.decoder.reconnect();
                    failures += 1;
                }
                Err(DataError::NotFound) => {
                    // Not started yet, or nothing of it is left.
                    if !follow {
                        return Ok(());
                    }
                    match self.reading.look().await {
                        Now::Gone => return Ok(()),
                        Now::There(task) if attempt(&task) != self.attempt || phase(&task).is_finished() => {
                            return Ok(());
                        }
                        Now::There(_) | Now::Unknown => {}
                    }
                    sleep(Duration::from_millis(300)).await;
                    continue;
                }
                Err(DataError::Unavailable(text)) => {
                    failures += 1;
                    if failures == TOLD_AFTER && follow {
                        self.notice(&text).await?;
                    }
                }
            }
            if !follow && heard_at.elapsed() >= self.reading.patience {
                let why = "the rest of this log cannot be read at the moment; try again in a few seconds";
                return self.notice(why).await;
            }
            sleep(pause(failures)).await;
        }
    }

    async fn ask(&self, offset: u64, follow: bool) -> Result<crate::data::Chunks, DataError> {
        let Reading {
            data, namespace, uid, ..
        } = &self.reading;
        data.log(namespace, uid, &self.run, offset, follow, &self.mark)
            .await
    }

    async fn event(&self, event: Event) -> Result<(), Ended> {
        self.send.send(event).await.map_err(|_| Ended)
    }

    async fn notice(&self, text: &str) -> Result<(), Ended> {
        self.event(Event::Notice(format!("rank {}: {text}", self.rank)))
            .await
    }

    async fn items(&self, items: Vec<Item>) -> Result<(), Ended> {
        self.event(Event::Items(self.rank, items)).await
    }

    async fn pass(&self, progress: &mut Progress) -> Result<(), Ended> {
        let mut items = Vec::new();
        let mut left_out = None;
        while let Some(item) = progress.decoder.next_item() {
            let record = match item {
                Item::Record(record) => record,
                Item::Gap(gap) => {
                    progress.overtaken = true;
                    progress.gap = Some(progress.gap.map_or(gap, |before| before.and(gap)));
                    continue;
                }
            };
            if is_before(&record, self.options.since) {
                left_out = Some(record.end);
                progress.gap = None;
                continue;
            }
            if !self.options.wants(record.stream) {
                // A client that goes on there must neither count lines anew nor miss a gap.
                if progress.skip == 0 && progress.gap.is_none() {
                    left_out = Some(record.end);
                }
                continue;
            }
            if progress.skip > 0 && (!progress.overtaken || record.end <= progress.counted) {
                progress.skip -= u64::from(record.complete);
                progress.gap = None;
                // Only after the last of them: a client that goes on there counts no lines.
                left_out = (progress.skip == 0).then_some(record.end);
                continue;
            }
            // The last lines are all there: a gap right before them does not matter either.
            if std::mem::take(&mut progress.tail) && progress.skip == 0 {
                progress.gap = None;
            }
            progress.skip = 0;
            items.extend(progress.gap.take().map(Item::Gap));
            items.push(Item::Record(record));
        }
        if !items.is_empty() {
            self.items(items).await
        } else if let Some(offset) = left_out {
            self.event(Event::Position(self.rank, offset)).await
        } else {
            Ok(())
        }
    }

    /// Where to begin, and how many lines to leave out from there.
    async fn start(&self) -> Result<Progress, Ended> {
        let from = |decoder: Decoder| Progress {
            decoder: decoder.with(self.mark.clone()),
            ..Progress::default()
        };
        let mine = |p: &&crate::options::Position| p.attempt == self.attempt && p.rank == self.rank;
        if let Some(position) = self.options.positions.iter().find(mine) {
            return Ok(from(Decoder::at(position.offset)));
        }
        let (Some(lines), Some(run)) = (self.tail, &self.known) else {
            return Ok(from(Decoder::at(0)));
        };
        let mut window = TAIL_WINDOW;
        let (mut failures, began_at) = (0, Instant::now());
        loop {
            let offset = run.stored.saturating_sub(window);
            match self.count(offset).await {
                Some(counted) if counted.lines >= lines || counted.reaches_since || offset == 0 => {
                    return Ok(Progress {
                        skip: counted.lines.saturating_sub(lines),
                        counted: counted.end,
                        tail: counted.lines > lines,
                        ..from(Decoder::seeking(offset))
                    });
                }
                Some(_) => window = window.saturating_mul(4),
                None => {
                    failures += 1;
                    if !self.options.follow && began_at.elapsed() >= self.reading.patience {
                        return Ok(from(Decoder::at(0)));
                    }
                    sleep(pause(failures)).await;
                }
            }
        }
    }

    /// Counts lines from an offset to where the log ends now; `None` = it could not be read.
    async fn count(&self, offset: u64) -> Option<Counted> {
        let mut chunks = match self.ask(offset, false).await {
            Ok(chunks) => chunks,
            Err(DataError::NotFound) => return Some(Counted::default()),
            Err(DataError::Unavailable(_)) => return None,
        };
        let mut decoder = Decoder::seeking(offset).with(self.mark.clone());
        let mut counted = Counted::default();
        let mut unfinished = false;
        while let Some(chunk) = chunks.next().await {
            decoder.push(&chunk.ok()?);
            while let Some(item) = decoder.next_item() {
                let Item::Record(record) = item else { continue };
                if is_before(&record, self.options.since) {
                    counted.reaches_since = true;
                    continue;
                }
                if !self.options.wants(record.stream) {
                    continue;
                }
                counted.lines += u64::from(record.complete);
                unfinished = !record.complete;
            }
        }
        counted.lines += u64::from(unfinished);
        counted.end = decoder.position();
        Some(counted)
    }
}

#[derive(Default)]
struct Counted {
    lines: u64,
    /// Where the log ended.
    end: u64,
    /// Lines from before `since` were seen: going further back finds no more that count.
    reaches_since: bool,
}

fn is_before(record: &Record, since: Option<Timestamp>) -> bool {
    since.is_some_and(|since| record.millis < since.as_millisecond())
}
