//! The protocol between the daemon and the watcher of a place, and the daemon's connections to its watchers.
//!
//! The daemon says, in order, `give FIRST COUNT ATTEMPT BYTES` with so many bytes of items behind it, `recall FIRST END`
//! and `sync NUMBER`; the watcher answers `released FIRST COUNT` and `synced NUMBER`. The watcher answers when all events
//! before its answer are written (`share.rs`). So `synced` means: items that were given before it are in the share, or
//! never will be. The watcher says `idle` when an item has ended and none waits: the daemon then reports this end at once,
//! since the controller sends the next item in return.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::queue::{Chunk, Released};

/// Orders that wait for one watcher: more than a leader has on their way to one.
const WAITING: usize = 1024;

/// What the daemon asks of a watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// To run these items, which come in so many bytes.
    Give(Chunk, usize),
    /// To let go of those of these items that have not begun.
    Recall(Range<u32>),
    /// To answer when all that came before is written.
    Sync(u64),
}

/// What a watcher answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has not begun these items, and never will.
    Released(Released),
    /// What came before that order is written.
    Synced(u64),
    /// An item has ended, and the place has none that could begin.
    Idle,
}

/// The line of an order; `None`: it is none.
pub(crate) fn order(line: &str) -> Option<Order> {
    let words: Vec<&str> = line.split(' ').collect();
    Some(match words[..] {
        ["give", first, count, attempt, bytes] => {
            let chunk = Chunk {
                first: first.parse().ok()?,
                count: count.parse().ok()?,
                attempt: attempt.parse().ok()?,
            };
            Order::Give(chunk, bytes.parse().ok()?)
        }
        ["recall", first, end] => Order::Recall(first.parse().ok()?..end.parse().ok()?),
        ["sync", number] => Order::Sync(number.parse().ok()?),
        _ => return None,
    })
}

/// The order to run these items; no items: they are their indices.
pub(crate) fn give(chunk: Chunk, items: &[Bytes]) -> Bytes {
    let length: usize = items.iter().map(|item| 4 + item.len()).sum();
    let Chunk {
        first,
        count,
        attempt,
    } = chunk;
    let line = format!("give {first} {count} {attempt} {length}\n");
    let mut bytes = BytesMut::with_capacity(line.len() + length);
    bytes.extend_from_slice(line.as_bytes());
    for item in items {
        // A message of the protocol is shorter than that.
        bytes.put_u32_le(item.len() as u32);
        bytes.extend_from_slice(item);
    }
    bytes.freeze()
}

/// The items that came with an order.
pub(crate) fn items(mut bytes: Bytes) -> Vec<Bytes> {
    let mut items = Vec::new();
    while bytes.len() >= 4 {
        let length = (bytes.get_u32_le() as usize).min(bytes.len());
        items.push(bytes.split_to(length));
    }
    items
}

/// The order to let go of items.
pub(crate) fn recall(range: &Range<u32>) -> Bytes {
    format!("recall {} {}\n", range.start, range.end).into()
}

/// The order to answer.
pub(crate) fn sync(number: u64) -> Bytes {
    format!("sync {number}\n").into()
}

/// The line of an answer; `None`: it is none.
pub(crate) fn answer(line: &str) -> Option<Answer> {
    let words: Vec<&str> = line.split(' ').collect();
    Some(match words[..] {
        ["released", first, count] => Answer::Released(Released {
            first: first.parse().ok()?,
            count: count.parse().ok()?,
        }),
        ["synced", number] => Answer::Synced(number.parse().ok()?),
        ["idle"] => Answer::Idle,
        _ => return None,
    })
}

/// The answer that names items.
pub(crate) fn released(Released { first, count }: Released) -> String {
    format!("released {first} {count}\n")
}

/// What is said where no item waits.
pub(crate) const IDLE: &str = "idle\n";

/// The answer to [`sync`].
pub(crate) fn synced(number: u64) -> String {
    format!("synced {number}\n")
}

/// The way to one watcher, as long as the daemon is connected to it.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    /// No two links of one daemon have the same.
    pub(crate) number: u64,
    /// Bytes for the watcher.
    pub(crate) orders: mpsc::Sender<Bytes>,
}

#[derive(Debug, Default)]
struct Known {
    link: Option<Link>,
    /// Who hears what the watcher answers.
    listener: Option<mpsc::UnboundedSender<Answer>>,
}

/// The ways to all watchers; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Links(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    known: Mutex<BTreeMap<String, Known>>,
    changes: watch::Sender<u64>,
    /// Numbers of the orders to answer that were given out.
    syncs: AtomicU64,
}

impl Default for Links {
    fn default() -> Self {
        let known = Mutex::default();
        let changes = watch::Sender::new(0);
        let syncs = AtomicU64::new(0);
        Self(Arc::new(Inner {
            known,
            changes,
            syncs,
        }))
    }
}

impl Links {
    /// The daemon is connected to the watcher of that run; what is to be said to it comes out of the answer.
    pub(crate) fn connected(&self, run_id: &str) -> mpsc::Receiver<Bytes> {
        let (orders, waiting) = mpsc::channel(WAITING);
        self.0.changes.send_modify(|number| *number += 1);
        let number = *self.0.changes.borrow();
        let mut known = self.0.known.lock();
        known.entry(run_id.to_owned()).or_default().link = Some(Link { number, orders });
        drop(known);
        self.0.changes.send_modify(|number| *number += 1);
        waiting
    }

    /// The watcher, or the connection to it, is gone.
    pub(crate) fn disconnected(&self, run_id: &str) {
        let mut all = self.0.known.lock();
        if let Some(known) = all.get_mut(run_id) {
            known.link = None;
            if known
                .listener
                .as_ref()
                .is_none_or(mpsc::UnboundedSender::is_closed)
            {
                all.remove(run_id);
            }
        }
        drop(all);
        self.0.changes.send_modify(|number| *number += 1);
    }

    /// The way to that watcher, if there is one.
    pub(crate) fn to(&self, run_id: &str) -> Option<Link> {
        self.0.known.lock().get(run_id)?.link.clone()
    }

    /// The number of an order to answer: no two have the same, so that no stream takes the answer to another one's order
    /// for its own.
    pub(crate) fn sync_number(&self) -> u64 {
        self.0.syncs.fetch_add(1, Ordering::Relaxed)
    }

    /// Tells when watchers come and go.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// From here on this one alone hears what the watcher of that run answers.
    pub(crate) fn listen(&self, run_id: &str) -> mpsc::UnboundedReceiver<Answer> {
        let (listener, answers) = mpsc::unbounded_channel();
        let mut known = self.0.known.lock();
        known.entry(run_id.to_owned()).or_default().listener = Some(listener);
        answers
    }

    /// A watcher has said a line. Answers whether it was an answer.
    pub(crate) fn heard(&self, run_id: &str, line: &str) -> bool {
        let Some(answer) = answer(line) else { return false };
        if let Some(known) = self.0.known.lock().get(run_id)
            && let Some(listener) = &known.listener
        {
            // Nobody waits for it any more.
            let _ = listener.send(answer);
        }
        true
    }

    /// Forgets listeners that are gone.
    pub(crate) fn tidy(&self) {
        let mut known = self.0.known.lock();
        known.retain(|_, known| {
            known.link.is_some()
                || known
                    .listener
                    .as_ref()
                    .is_some_and(|listener| !listener.is_closed())
        });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(bytes: &Bytes) -> (String, Bytes) {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
        let line = String::from_utf8(bytes[..end].to_vec()).unwrap();
        (line, bytes.slice(end + 1..))
    }

    proptest! {
        #[test]
        fn what_one_side_says_the_other_one_hears(
            (first, count, attempt) in (any::<u32>(), any::<u32>(), any::<u32>()),
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6),
            number: u64,
        ) {
            let chunk = Chunk { first, count, attempt };
            let sent: Vec<Bytes> = texts.into_iter().map(Bytes::from).collect();
            let (order, rest) = line(&give(chunk, &sent));
            prop_assert_eq!(super::order(&order), Some(Order::Give(chunk, rest.len())));
            prop_assert_eq!(items(rest), sent);
            let (order, _) = line(&recall(&(first..count)));
            prop_assert_eq!(super::order(&order), Some(Order::Recall(first..count)));
            let (order, _) = line(&sync(number));
            prop_assert_eq!(super::order(&order), Some(Order::Sync(number)));
            let released = Released { first, count };
            prop_assert_eq!(answer(super::released(released).trim_end()), Some(Answer::Released(released)));
            prop_assert_eq!(answer(synced(number).trim_end()), Some(Answer::Synced(number)));
            prop_assert_eq!(answer(IDLE.trim_end()), Some(Answer::Idle));
        }

        #[test]
        fn no_bytes_of_items_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let all: usize = items(bytes.clone().into()).iter().map(|item| 4 + item.len()).sum();
            prop_assert!(all <= bytes.len());
        }
    }

    #[tokio::test]
    async fn only_the_newest_listener_hears_a_watcher() {
        let links = Links::default();
        let mut orders = links.connected("a");
        links.to("a").unwrap().orders.send(sync(1)).await.unwrap();
        assert_eq!(orders.recv().await, Some(sync(1)));
        let mut first = links.listen("a");
        let mut second = links.listen("a");
        assert!(links.heard("a", "synced 1") && !links.heard("a", "started 5 6"));
        assert_eq!(second.recv().await, Some(Answer::Synced(1)));
        assert_eq!(first.recv().await, None);
        drop(second);
        links.disconnected("a");
        assert!(links.to("a").is_none());
        links.tidy();
        assert!(links.0.known.lock().is_empty());
    }
}
