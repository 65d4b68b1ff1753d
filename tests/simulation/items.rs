//! The service `Items` of a simulated machine's agent: one stream for each map, which tells of the workers that the map
//! has there, and takes items for them. Each order waits for its turn as a call does, and may be lost, late or refused;
//! what is told may break off in the middle. After any of that the stream is over, as a broken connection is.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::{StreamExt as _, stream};
use skyward_remote::protocol::{
    FromWorkers, ToWorkers, from_workers,
    items_server::Items,
    to_workers::{Ack, Message, Open, Recall},
};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};
use tonic::{Request, Response, Status, Streaming};

use crate::{
    agents::{Answer, Lie, Service, Streamed},
    shares::Heard,
    time::{HOUR, MINUTE, lasting, now},
    world::{Truth, percent},
};

/// Messages that wait for the controller.
const WAITING: usize = 16;

/// One stream of a map.
struct Session {
    service: Service,
    map: String,
    epoch: u64,
    /// No two streams of a machine have the same.
    number: u64,
    heard: BTreeMap<String, Heard>,
    out: mpsc::Sender<Result<FromWorkers, Status>>,
}

fn gone() -> Status {
    Status::unavailable("the machine is gone")
}

fn broken() -> Status {
    Status::unavailable("the connection is lost")
}

#[async_trait]
impl Items for Service {
    type WorkStream = Streamed<FromWorkers>;

    async fn work(&self, request: Request<Streaming<ToWorkers>>) -> Answer<Self::WorkStream> {
        let mut orders = request.into_inner();
        let first = orders.message().await?.and_then(|first| first.message);
        let Some(Message::Open(Open { epoch, task_uid })) = first else {
            return Err(Status::invalid_argument("the first message is Open"));
        };
        let map = task_uid.clone();
        let open = |truth: &mut Truth| {
            let journal = &mut self.there(truth).ok_or_else(gone)?.agent;
            let newest = journal.streams.get(&map).map_or(0, |(epoch, _)| *epoch);
            if epoch < newest {
                return Err(Status::failed_precondition("stale epoch"));
            }
            journal.opened += 1;
            let number = journal.opened;
            journal.streams.insert(map, (epoch, number));
            // The older stream ends.
            journal.tell();
            Ok((number, journal.news.subscribe()))
        };
        let opened = self.command(format!("open the items of {task_uid}"), epoch, open);
        let (number, news) = opened.await?;
        let (out, sending) = mpsc::channel(WAITING);
        let session = Session {
            service: self.clone(),
            map: task_uid,
            epoch,
            number,
            heard: BTreeMap::new(),
            out,
        };
        tokio::spawn(session.run(orders, news));
        let told = stream::unfold(sending, |mut sending| async move {
            let told = sending.recv().await?;
            Some((told, sending))
        });
        Ok(Response::new(told.boxed()))
    }
}

impl Session {
    /// Until the stream breaks, or nobody listens.
    async fn run(self, orders: Streaming<ToWorkers>, news: watch::Receiver<u64>) {
        let out = self.out.clone();
        let ended = tokio::select! {
            ended = self.serve(orders, news) => ended,
            () = out.closed() => return,
        };
        if let Err(status) = ended {
            // A controller that does not read learns it from the end of the stream.
            let _unread = out.try_send(Err(status));
        }
    }

    async fn serve(
        mut self,
        mut orders: Streaming<ToWorkers>,
        mut news: watch::Receiver<u64>,
    ) -> Result<(), Status> {
        loop {
            news.mark_unchanged();
            self.tell().await?;
            let until = self.next();
            tokio::select! {
                order = orders.message() => match order?.map(|order| order.message) {
                    Some(Some(order)) => self.carry_out(order).await?,
                    Some(None) => return Err(Status::unimplemented("an order that is not known")),
                    None => return Ok(()),
                },
                changed = news.changed() => changed.map_err(|_| gone())?,
                () = sleep(lasting(until)) => {}
            }
        }
    }

    fn prefix(&self) -> String {
        format!("{}-", self.map)
    }

    /// How long until there is something to tell by itself.
    fn next(&self) -> i64 {
        let mut truth = self.service.way.world.truth();
        let there = self.service.there(&mut truth);
        let next = there.and_then(|there| there.agent.next_item(&self.prefix()));
        next.map_or(HOUR, |next| (next.saturating_sub(now())).clamp(1, HOUR))
    }

    /// An error where a newer stream of the map was opened, or a newer leader commands the machine.
    fn counts(&self, truth: &mut Truth) -> Result<(), Status> {
        let journal = &self.service.there(truth).ok_or_else(gone)?.agent;
        let is_newest = journal.streams.get(&self.map) == Some(&(self.epoch, self.number));
        if is_newest && self.epoch >= journal.epoch.0 {
            return Ok(());
        }
        Err(Status::aborted("a newer stream of this map was opened"))
    }

    /// Tells what has happened. Sometimes the connection breaks in the middle of it.
    async fn tell(&mut self) -> Result<(), Status> {
        let Some((told, breaks)) = self.news()? else {
            return std::future::pending().await;
        };
        let count = if breaks { told.len() / 2 } else { told.len() };
        for told in told.into_iter().take(count) {
            if self.out.send(Ok(told)).await.is_err() {
                return Err(broken());
            }
        }
        if breaks { Err(broken()) } else { Ok(()) }
    }

    /// What is to be told, and whether the connection breaks meanwhile; `None`: the machine does not answer.
    fn news(&mut self) -> Result<Option<(Vec<FromWorkers>, bool)>, Status> {
        let world = self.service.way.world.clone();
        let mut truth = world.truth();
        if self.service.there(&mut truth).is_none() {
            return Ok(None);
        }
        self.counts(&mut truth)?;
        world.observe_items(&mut truth);
        let (calm, odds, planted) = (truth.calm, truth.odds.agents, truth.planted);
        let name = format!(
            "items of {} that {} tells at {}",
            self.map,
            self.service.id,
            now()
        );
        let lie = self
            .service
            .lie(&truth, &name, &[Lie::EarlyEnd, Lie::OthersEnd, Lie::Repeats]);
        let prefix = self.prefix();
        let elsewhere = truth.maps.runs_elsewhere(&self.map, &self.service.id);
        let journal = &mut self.service.there(&mut truth).ok_or_else(gone)?.agent;
        let mut told = journal.items_told(&prefix, &mut self.heard, planted);
        match lie {
            Some(Lie::Repeats) => {
                let is_end =
                    |told: &&FromWorkers| matches!(told.message, Some(from_workers::Message::Ended(_)));
                let ends: Vec<FromWorkers> = told.iter().filter(is_end).cloned().collect();
                told.extend(ends);
            }
            Some(Lie::OthersEnd) => {
                told.extend(elsewhere.and_then(|item| journal.others_end(&prefix, item)));
            }
            Some(_) => told.extend(journal.early_end(&prefix)),
            None => {}
        }
        let breaks = !told.is_empty() && !calm && percent(&mut world.chance(&name), odds);
        if !told.is_empty() {
            let words = if breaks { ", and the stream breaks" } else { "" };
            truth.tell(format!(
                "{} tells {} news of map {}{words}",
                self.service.id,
                told.len(),
                self.map
            ));
        }
        Ok(Some((told, breaks)))
    }

    /// Carries out what the controller says, when its turn has come.
    async fn carry_out(&mut self, order: Message) -> Result<(), Status> {
        let world = self.service.way.world.clone();
        let way = self.service.way.clone();
        let (what, run) = match &order {
            Message::Open(_) => return Err(Status::invalid_argument("a stream is opened once")),
            Message::Chunk(chunk) => ("give items to", chunk.run_id.clone()),
            Message::Recall(recall) => ("recall items of", recall.run_id.clone()),
            Message::Ack(ack) => ("acknowledge ends of", ack.run_id.clone()),
        };
        let carried_out = |truth: &mut Truth, _: &str| {
            self.counts(truth)?;
            world.observe_items(truth);
            let (planted, at) = (truth.planted, now());
            let id = &self.service.id;
            let journal = &mut self.service.there(truth).ok_or_else(gone)?.agent;
            match order {
                Message::Open(_) => Ok(None),
                Message::Chunk(chunk) => {
                    let given = journal.give(&way, &chunk, at);
                    truth.maps.given(&self.map, id, given);
                    world.observe_items(truth);
                    Ok(None)
                }
                Message::Recall(Recall { run_id, first, count }) => {
                    let range = first..first.saturating_add(count);
                    let released = journal.recall(&run_id, &range, planted);
                    Ok(released.map(|released| FromWorkers {
                        run_id,
                        message: Some(from_workers::Message::Released(released)),
                    }))
                }
                Message::Ack(Ack { run_id, position }) => {
                    let share = journal.runs.get_mut(&run_id).and_then(|run| run.share.as_mut());
                    let ends = share.map(|share| share.acknowledge(position)).unwrap_or_default();
                    world.may_acknowledge(truth, id, &self.map, &ends);
                    Ok(None)
                }
            }
        };
        // A machine that does not answer is a connection that breaks, in the end.
        let carried_out = self.service.call(format!("{what} {run}"), carried_out);
        let answer = timeout(lasting(MINUTE), carried_out).await;
        let answer = answer.map_err(|_| broken())??;
        if let Some(answer) = answer {
            // Ends come before the answer that follows from them.
            self.tell().await?;
            self.out.send(Ok(answer)).await.map_err(|_| broken())?;
        }
        Ok(())
    }
}
