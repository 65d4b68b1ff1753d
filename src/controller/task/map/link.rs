//! The stream to the workers that a map has on one machine. Messages wait here and are sent in their order; a chunk gets
//! its items when it is sent. Any error ends the stream: the map opens another one, and asks again what the workers hold.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::StreamExt;
use skyward_planner::{map::plan::Chunk, task::model::Uid};
use skyward_remote::{
    Agent, AgentError,
    agent::AgentStream,
    protocol::{CHUNK_ITEM_BYTES, FromWorkers, ToWorkers, to_workers},
};
use tokio::{sync::mpsc, time::Instant};

use super::items::Items;

/// What is said to a worker.
#[derive(Debug)]
pub(crate) enum Say {
    /// Run these items.
    Chunk(String, Chunk),
    /// Let go of those of these items that have not begun.
    Recall(String, Range<u32>),
    /// All ends up to this position are stored.
    Acknowledge(String, u64),
}

/// What came of a stream.
#[derive(Debug)]
pub(crate) enum Heard {
    /// It is open, after that time.
    Opened(Duration),
    /// A worker tells something.
    Told(Box<FromWorkers>),
    /// It has ended.
    Closed(AgentError),
}

/// One message about the stream to a machine. No two streams have the same session.
#[derive(Debug)]
pub(crate) struct News {
    pub(crate) machine: Arc<str>,
    pub(crate) session: u64,
    pub(crate) heard: Heard,
}

/// One stream.
pub(crate) struct Link {
    pub(crate) agent: Agent,
    pub(crate) uid: Uid,
    pub(crate) machine: Arc<str>,
    pub(crate) session: u64,
    pub(crate) items: Arc<Items>,
    pub(crate) say: mpsc::UnboundedReceiver<Say>,
    pub(crate) news: mpsc::Sender<News>,
}

impl Link {
    /// Until the stream ends, or nobody needs it.
    pub(crate) async fn run(mut self) {
        let error = match self.talk().await {
            Ok(()) => return,
            Err(error) => error,
        };
        self.tell(Heard::Closed(error)).await;
    }

    async fn talk(&mut self) -> Result<(), AgentError> {
        let began = Instant::now();
        let (orders, told) = self.agent.work(&self.uid).await?;
        self.tell(Heard::Opened(began.elapsed())).await;
        let Self {
            items,
            say,
            news,
            machine,
            session,
            ..
        } = self;
        tokio::select! {
            said = speak(items, say, &orders) => said,
            heard = listen(told, news, machine, *session) => heard,
        }
    }

    async fn tell(&self, heard: Heard) {
        let news = News {
            machine: self.machine.clone(),
            session: self.session,
            heard,
        };
        // A map that has ended needs no news.
        let _ = self.news.send(news).await;
    }
}

async fn listen(
    mut told: AgentStream<FromWorkers>,
    news: &mpsc::Sender<News>,
    machine: &Arc<str>,
    session: u64,
) -> Result<(), AgentError> {
    while let Some(message) = told.next().await {
        let told = News {
            machine: machine.clone(),
            session,
            heard: Heard::Told(Box::new(message?)),
        };
        if news.send(told).await.is_err() {
            return Ok(());
        }
    }
    Err(AgentError::Disconnected(
        "the agent has ended the stream of items".to_owned(),
    ))
}

async fn speak(
    items: &Items,
    say: &mut mpsc::UnboundedReceiver<Say>,
    orders: &mpsc::Sender<ToWorkers>,
) -> Result<(), AgentError> {
    while let Some(say) = say.recv().await {
        match say {
            Say::Recall(run_id, range) => {
                let recall = to_workers::Message::Recall(to_workers::Recall {
                    run_id,
                    first: range.start,
                    count: range.end - range.start,
                });
                order(orders, recall).await?;
            }
            Say::Acknowledge(run_id, position) => {
                let acknowledgement = to_workers::Message::Ack(to_workers::Ack { run_id, position });
                order(orders, acknowledgement).await?;
            }
            Say::Chunk(run_id, chunk) => {
                let mut rest = chunk.first..chunk.first + chunk.count;
                // Thousands of large items would take gigabytes, and the machine may be slow.
                while !rest.is_empty() {
                    let part = Chunk {
                        first: rest.start,
                        count: items.at_once(&rest),
                        ..chunk
                    };
                    rest.start += part.count;
                    let values = items.get(part.first..rest.start).await;
                    for message in parts(&run_id, part, values.map_err(AgentError::Busy)?) {
                        order(orders, message).await?;
                    }
                }
            }
        }
    }
    Ok(())
}

async fn order(orders: &mpsc::Sender<ToWorkers>, message: to_workers::Message) -> Result<(), AgentError> {
    let message = Some(message);
    orders
        .send(ToWorkers { message })
        .await
        .map_err(|_| AgentError::Disconnected("nothing can be said to the workers any more".to_owned()))
}

/// A chunk in messages that an agent takes: large items are divided among several ones.
fn parts(run_id: &str, chunk: Chunk, values: Vec<Bytes>) -> Vec<to_workers::Message> {
    let Chunk {
        first,
        count,
        attempt,
    } = chunk;
    let message = |first: u32, count: u32, items: Vec<Bytes>| {
        to_workers::Message::Chunk(to_workers::Chunk {
            run_id: run_id.to_owned(),
            first,
            count,
            attempt,
            items,
        })
    };
    if values.is_empty() {
        return vec![message(first, count, values)];
    }
    let mut messages = Vec::new();
    let (mut part, mut bytes, mut begin) = (Vec::new(), 0, first);
    for value in values {
        if bytes + value.len() > CHUNK_ITEM_BYTES && !part.is_empty() {
            let count = part.len() as u32;
            messages.push(message(begin, count, std::mem::take(&mut part)));
            (begin, bytes) = (begin + count, 0);
        }
        bytes += value.len();
        part.push(value);
    }
    let count = part.len() as u32;
    messages.push(message(begin, count, part));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(values: Vec<Bytes>) -> Vec<(u32, u32, usize)> {
        let chunk = Chunk {
            first: 10,
            count: 4,
            attempt: 2,
        };
        let parts = parts("run", chunk, values);
        let range = |message| match message {
            to_workers::Message::Chunk(part) => {
                assert_eq!((part.run_id.as_str(), part.attempt), ("run", 2));
                (part.first, part.count, part.items.len())
            }
            other => panic!("{other:?}"),
        };
        parts.into_iter().map(range).collect()
    }

    #[test]
    fn a_chunk_of_large_items_goes_in_parts_that_follow_each_other() {
        let small = Bytes::from_static(b"1");
        let large = Bytes::from(vec![b' '; CHUNK_ITEM_BYTES - 1]);
        assert_eq!(ranges(Vec::new()), [(10, 4, 0)]);
        assert_eq!(ranges(vec![small.clone(); 4]), [(10, 4, 4)]);
        let mixed = vec![small.clone(), large.clone(), small, large];
        assert_eq!(ranges(mixed), [(10, 2, 2), (12, 2, 2)]);
    }
}
