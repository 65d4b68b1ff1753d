//! The service `Items`: the controller's orders to the workers of a map on this machine, and the reports about these
//! workers (`map/teller.rs`). One lock covers both the decision which stream counts and the order to the watcher:
//! no message of an older stream reaches a watcher once a newer stream was opened.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::{
    map::{
        links,
        queue::Chunk,
        streams::{Stale, Stream, Streams},
        teller::{Run, Stop, Teller},
    },
    service::{Sending, Service},
};
use crate::protocol::{
    CHUNK_ITEMS, FromWorkers, ToWorkers,
    finished::Ending,
    is_run_id,
    items_server::Items,
    to_workers::{self, Message},
};

/// Messages that wait for the controller.
const WAITING: usize = 16;

/// The streams that are open.
#[derive(Debug, Default)]
pub(super) struct Opened(Mutex<Streams>, Mutex<BTreeMap<String, CancellationToken>>);

impl Opened {
    /// Opens a stream of a map; the older one ends.
    fn open(&self, map: &str, epoch: u64, commanding: u64) -> Result<(Stream, CancellationToken), Stale> {
        // Held until the older stream is told: of two that are opened at once, the one that counts goes on.
        let mut streams = self.0.lock();
        let stream = streams.open(map, epoch, commanding)?;
        let ends = CancellationToken::new();
        if let Some(older) = self.1.lock().insert(map.to_owned(), ends.clone()) {
            older.cancel();
        }
        Ok((stream, ends))
    }

    fn close(&self, map: &str, stream: &Stream, ends: &CancellationToken) {
        let mut streams = self.0.lock();
        streams.close(stream);
        let mut all = self.1.lock();
        // A newer stream has cancelled ours.
        if !ends.is_cancelled() {
            all.remove(map);
        }
    }
}

#[tonic::async_trait]
impl Items for Service {
    type WorkStream = Sending<FromWorkers>;

    async fn work(
        &self,
        request: Request<Streaming<ToWorkers>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let mut orders = request.into_inner();
        let first = orders.message().await?.and_then(|first| first.message);
        let Some(Message::Open(to_workers::Open { epoch, task_uid })) = first else {
            return Err(Status::invalid_argument(
                "the first message of a stream of items is Open",
            ));
        };
        if !is_run_id(&task_uid) {
            return Err(Status::invalid_argument(
                "a Task's UID is 1 to 128 of a-z, 0-9 and -",
            ));
        }
        self.0.ledger.admit(epoch).await?;
        let opened = self.0.items.open(&task_uid, epoch, self.0.ledger.epoch());
        let (stream, ends) = opened.map_err(|Stale| {
            Status::failed_precondition("stale epoch: a newer leader has opened a stream")
        })?;
        let (out, sending) = mpsc::channel(WAITING);
        let session = Session {
            service: self.clone(),
            prefix: format!("{task_uid}-"),
            stream,
            out,
            workers: BTreeMap::new(),
            tellers: JoinSet::new(),
        };
        let shutdown = self.0.shutdown.clone();
        tokio::spawn(async move {
            let out = session.out.clone();
            let service = session.service.clone();
            let stream = session.stream.clone();
            let ended = tokio::select! {
                ended = session.serve(orders) => ended,
                () = ends.cancelled() => Err(Status::aborted("a newer stream of this map was opened")),
                () = shutdown.cancelled() => Err(Status::unavailable("the agent is stopping")),
            };
            if let Err(status) = ended {
                // A controller that does not read learns it from the end of the stream.
                let _ = out.try_send(Err(status));
            }
            service.0.items.close(&task_uid, &stream, &ends);
            service.0.runs.links().tidy();
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(sending))))
    }
}

/// One worker, as a stream knows it.
struct Worker {
    run: watch::Sender<Run>,
    acknowledged: mpsc::UnboundedSender<u64>,
}

/// One stream.
struct Session {
    service: Service,
    /// With which the ids of the map's runs begin.
    prefix: String,
    stream: Stream,
    out: mpsc::Sender<Result<FromWorkers, Status>>,
    workers: BTreeMap<String, Worker>,
    tellers: JoinSet<Stop>,
}

impl Session {
    /// Until the controller has hung up, or nothing more can be told.
    async fn serve(mut self, mut orders: Streaming<ToWorkers>) -> Result<(), Status> {
        let mut newest = self.service.0.ledger.newest();
        loop {
            newest.mark_unchanged();
            self.look();
            tokio::select! {
                order = orders.message() => match order? {
                    Some(order) => self.pass_on(order)?,
                    None => return Ok(()),
                },
                changed = newest.changed() => {
                    changed.map_err(|_| Status::unavailable("the agent is stopping"))?;
                }
                Some(stopped) = self.tellers.join_next() => match stopped {
                    Ok(Stop::Over | Stop::Unheard) | Err(_) => {}
                    Ok(Stop::Broken) => {
                        return Err(Status::unavailable("the connection to the watcher of a worker broke"));
                    }
                    Ok(Stop::Unreadable(error)) => {
                        return Err(Status::unavailable(format!("the items of a worker cannot be read: {error}")));
                    }
                },
                () = self.out.closed() => return Ok(()),
            }
        }
    }

    /// Begins to tell of workers that are new, and notes which have ended.
    fn look(&mut self) {
        let own = &self.service.0;
        for (run_id, ending) in own.ledger.beginning_with(&self.prefix) {
            let run = match ending {
                None => Run::Runs,
                Some(Ending::MachineRestarted) => Run::Cut,
                Some(_) => Run::Ended,
            };
            if let Some(worker) = self.workers.get(&run_id) {
                worker
                    .run
                    .send_if_modified(|known| std::mem::replace(known, run) != run);
                continue;
            }
            let (run, seen) = watch::channel(run);
            let (acknowledged, positions) = mpsc::unbounded_channel();
            let teller = Teller {
                run_id: run_id.clone(),
                share: own.home.run(&run_id).share(),
                links: own.runs.links().clone(),
                run: seen,
                acknowledged: positions,
                out: self.out.clone(),
            };
            self.tellers.spawn(teller.tell());
            self.workers.insert(run_id, Worker { run, acknowledged });
        }
    }

    /// Carries out what the controller says.
    fn pass_on(&self, order: ToWorkers) -> Result<(), Status> {
        match order.message {
            // An order that this version does not know cannot be left out.
            None => Err(Status::unimplemented("the agent is older than the controller")),
            Some(Message::Open(_)) => Err(Status::invalid_argument("a stream of items is opened once")),
            Some(Message::Ack(to_workers::Ack { run_id, position })) => {
                if let Some(worker) = self.workers.get(&run_id) {
                    // Its teller has ended with the stream.
                    let _ = worker.acknowledged.send(position);
                }
                Ok(())
            }
            Some(Message::Recall(to_workers::Recall { run_id, first, count })) => {
                let end = first.checked_add(count).ok_or_else(no_such_items)?;
                self.order(&run_id, links::recall(&(first..end)))
            }
            Some(Message::Chunk(chunk)) => {
                let to_workers::Chunk {
                    run_id,
                    first,
                    count,
                    attempt,
                    items,
                } = chunk;
                let is_whole = (1..=CHUNK_ITEMS).contains(&count)
                    && first.checked_add(count).is_some()
                    && (items.is_empty() || items.len() == count as usize);
                if !is_whole {
                    return Err(no_such_items());
                }
                let chunk = Chunk {
                    first,
                    count,
                    attempt,
                };
                self.order(&run_id, links::give(chunk, &items))
            }
        }
    }

    /// Hands an order to the watcher of a worker, if this stream still counts.
    fn order(&self, run_id: &str, order: bytes::Bytes) -> Result<(), Status> {
        let own = &self.service.0;
        if !run_id.starts_with(&self.prefix) {
            return Err(Status::invalid_argument("that run is no worker of this map"));
        }
        // A worker that has ended takes nothing, which its last Told says.
        let Some(link) = own.runs.links().to(run_id) else {
            return Ok(());
        };
        let streams = own.items.0.lock();
        if !streams.counts(&self.stream, own.ledger.epoch()) {
            return Err(Status::aborted("a newer stream of this map was opened"));
        }
        match link.orders.try_send(order) {
            Ok(()) | Err(mpsc::error::TrySendError::Closed(_)) => Ok(()),
            Err(mpsc::error::TrySendError::Full(_)) => Err(Status::unavailable(
                "the watcher of a worker does not take what it is given",
            )),
        }
    }
}

fn no_such_items() -> Status {
    Status::invalid_argument(
        "a chunk has 1 to 65,536 items with numbers of 32 bits, and all of their values or none",
    )
}
