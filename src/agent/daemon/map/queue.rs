//! What one place has still to run: the items that run, and the chunks behind them in their order. Most places run one item
//! at a time; `place.rs` says how many. Every change of the queue is an event, which is written before it counts
//! (`share.rs`): the events alone yield the same queue.

use std::{collections::VecDeque, ops::Range};

use prost::Message;

/// Consecutive items of one attempt.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Chunk {
    #[prost(uint32, tag = "1")]
    pub(crate) first: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) count: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) attempt: u32,
}

/// One attempt of an item.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Item {
    #[prost(uint32, tag = "1")]
    pub(crate) index: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
}

/// Items that the place has let go of without beginning them.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Released {
    #[prost(uint32, tag = "1")]
    pub(crate) first: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) count: u32,
}

/// How an attempt of an item ended.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Ended {
    #[prost(uint32, tag = "1")]
    pub(crate) index: u32,
    #[prost(uint32, tag = "2")]
    pub(crate) attempt: u32,
    /// As in the protocol.
    #[prost(int32, tag = "3")]
    pub(crate) ending: i32,
    #[prost(int32, tag = "4")]
    pub(crate) exit_code: i32,
    #[prost(int32, tag = "5")]
    pub(crate) signal: i32,
    /// One sentence for the user, or nothing.
    #[prost(string, tag = "6")]
    pub(crate) message: String,
    /// How long it ran.
    #[prost(uint64, tag = "7")]
    pub(crate) microseconds: u64,
    /// The return value; empty where there is none.
    #[prost(bytes = "bytes", tag = "8")]
    pub(crate) value: bytes::Bytes,
    /// Module and name of the class of what a function raised.
    #[prost(string, tag = "9")]
    pub(crate) exception: String,
}

/// All that a place holds at one moment.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Holds {
    #[prost(message, repeated, tag = "1")]
    pub(crate) running: Vec<Item>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) chunks: Vec<Chunk>,
}

/// What happens to a place.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub(crate) enum Event {
    /// What it holds: the first of a file.
    #[prost(message, tag = "1")]
    Holds(Holds),
    /// It was given a chunk.
    #[prost(message, tag = "2")]
    Took(Chunk),
    #[prost(message, tag = "3")]
    Released(Released),
    /// An item begins: from here on it must not begin again.
    #[prost(message, tag = "4")]
    Began(Item),
    #[prost(message, tag = "5")]
    Ended(Ended),
}

/// What a place has still to run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queue {
    /// In the order in which they began.
    running: Vec<Item>,
    chunks: VecDeque<Chunk>,
}

impl Queue {
    /// What runs now.
    pub(crate) fn running(&self) -> &[Item] {
        &self.running
    }

    /// The item that is next to begin.
    pub(crate) fn next(&self) -> Option<Item> {
        let chunk = self.chunks.front()?;
        Some(Item {
            index: chunk.first,
            attempt: chunk.attempt,
        })
    }

    /// Whether nothing runs and nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.running.is_empty() && self.chunks.is_empty()
    }

    /// All of it.
    pub(crate) fn holds(&self) -> Holds {
        Holds {
            running: self.running.clone(),
            chunks: self.chunks.iter().copied().collect(),
        }
    }

    /// The items of a range that have not begun, as an answer to one who wants them back: none of them begins after
    /// that event. A place runs in order, so these are neighbours; where they were given in several chunks, those of
    /// the last one.
    pub(crate) fn recall(&self, range: Range<u32>) -> Released {
        let last = self.chunks.iter().rev().find_map(|chunk| overlap(*chunk, &range));
        let last = last.unwrap_or(range.end..range.end);
        Released {
            first: last.start,
            count: last.end - last.start,
        }
    }

    /// What is to be written when the watcher of the place is gone: the items that ran ended so, and nothing else
    /// begins.
    pub(crate) fn close(&self, ended: impl Fn(Item) -> Ended) -> Vec<Event> {
        let ended = self.running.iter().map(|item| Event::Ended(ended(*item)));
        let released = self.chunks.iter().map(|chunk| {
            Event::Released(Released {
                first: chunk.first,
                count: chunk.count,
            })
        });
        ended.chain(released).collect()
    }

    /// Takes in what happened. An event that cannot have happened changes nothing.
    pub(crate) fn apply(&mut self, event: &Event) {
        match event {
            Event::Holds(Holds { running, chunks }) => {
                self.running.clone_from(running);
                self.chunks = chunks.iter().copied().filter(is_whole).collect();
            }
            Event::Took(chunk) => self.chunks.extend(Some(*chunk).filter(is_whole)),
            Event::Released(Released { first, count }) => {
                let range = *first..first.saturating_add(*count);
                let kept = self.chunks.drain(..).flat_map(|chunk| without(chunk, &range));
                self.chunks = kept.collect::<Vec<_>>().into();
            }
            Event::Began(item) => {
                if self.next() == Some(*item)
                    && let Some(chunk) = self.chunks.front_mut()
                {
                    self.running.push(*item);
                    chunk.first += 1;
                    chunk.count -= 1;
                    if chunk.count == 0 {
                        self.chunks.pop_front();
                    }
                }
            }
            Event::Ended(ended) => {
                let Ended { index, attempt, .. } = *ended;
                self.running.retain(|item| *item != Item { index, attempt });
            }
        }
    }
}

/// Whether a chunk has items, and numbers for all of them.
fn is_whole(chunk: &Chunk) -> bool {
    chunk.count > 0 && chunk.first.checked_add(chunk.count).is_some()
}

fn items(chunk: Chunk) -> Range<u32> {
    chunk.first..chunk.first + chunk.count
}

/// The part of a chunk in a range.
fn overlap(chunk: Chunk, range: &Range<u32>) -> Option<Range<u32>> {
    let items = items(chunk);
    let common = items.start.max(range.start)..items.end.min(range.end);
    (!common.is_empty()).then_some(common)
}

/// What is left of a chunk without a range.
fn without(chunk: Chunk, range: &Range<u32>) -> Vec<Chunk> {
    let Some(common) = overlap(chunk, range) else {
        return vec![chunk];
    };
    let items = items(chunk);
    [items.start..common.start, common.end..items.end]
        .into_iter()
        .filter(|left| !left.is_empty())
        .map(|left| Chunk {
            first: left.start,
            count: left.end - left.start,
            ..chunk
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(first: u32, count: u32) -> Event {
        Event::Took(Chunk {
            first,
            count,
            attempt: 1,
        })
    }

    fn began(index: u32) -> Event {
        Event::Began(Item { index, attempt: 1 })
    }

    fn ended(item: Item) -> Ended {
        Ended {
            index: item.index,
            attempt: item.attempt,
            ..Ended::default()
        }
    }

    fn after(events: &[Event]) -> Queue {
        let mut queue = Queue::default();
        for event in events {
            queue.apply(event);
        }
        queue
    }

    #[test]
    fn items_begin_in_their_order_and_end_in_any() {
        let mut queue = after(&[chunk(3, 2), chunk(9, 1)]);
        let item = |index| Item { index, attempt: 1 };
        for index in [3, 4, 9] {
            assert_eq!(queue.next(), Some(item(index)));
            queue.apply(&began(7));
            queue.apply(&began(index));
        }
        assert_eq!(queue.running(), [3, 4, 9].map(item), "7 is not next");
        for (index, left) in [(4, &[3, 9][..]), (3, &[9][..]), (9, &[][..])] {
            queue.apply(&Event::Ended(ended(Item { index, attempt: 2 })));
            assert!(queue.running().contains(&item(index)), "of another attempt");
            queue.apply(&Event::Ended(ended(item(index))));
            let left: Vec<Item> = left.iter().copied().map(item).collect();
            assert_eq!(queue.running(), left);
        }
        assert!(queue.is_empty());
    }

    #[test]
    fn what_has_begun_is_not_let_go_of() {
        let mut queue = after(&[chunk(0, 10), began(0)]);
        let released = queue.recall(0..10);
        assert_eq!(released, Released { first: 1, count: 9 });
        queue.apply(&Event::Released(released));
        assert_eq!(queue.holds().chunks, []);
        assert_eq!(queue.recall(0..10), Released { first: 10, count: 0 });
        assert_eq!(
            after(&[chunk(0, 10)]).recall(6..20),
            Released { first: 6, count: 4 }
        );
        let two = after(&[chunk(0, 2), chunk(4, 2)]);
        assert_eq!(two.recall(0..6), Released { first: 4, count: 2 });
    }

    #[test]
    fn a_place_without_its_watcher_ends_what_ran_and_lets_go_of_the_rest() {
        let mut queue = after(&[chunk(0, 4), chunk(7, 2), began(0), began(1)]);
        let events = queue.close(ended);
        assert_eq!(events.len(), 4);
        for event in &events {
            queue.apply(event);
        }
        assert!(queue.is_empty());
        assert_eq!(queue.close(ended), []);
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let number = prop_oneof![4 => 0_u32..12, 1 => any::<u32>()];
        let pair = (number.clone(), number.clone());
        let chunk = (number.clone(), number, 0_u32..3).prop_map(|(first, count, attempt)| Chunk {
            first,
            count,
            attempt,
        });
        let item = (0_u32..12, 0_u32..3).prop_map(|(index, attempt)| Item { index, attempt });
        prop_oneof![
            (
                proptest::collection::vec(item.clone(), 0..3),
                proptest::collection::vec(chunk.clone(), 0..3)
            )
                .prop_map(|(running, chunks)| Event::Holds(Holds { running, chunks })),
            chunk.prop_map(Event::Took),
            pair.prop_map(|(first, count)| Event::Released(Released { first, count })),
            item.clone().prop_map(Event::Began),
            item.prop_map(|item| Event::Ended(ended(item))),
        ]
    }

    proptest! {
        #[test]
        fn no_events_make_it_panic_and_what_it_holds_makes_it_anew(
            events in proptest::collection::vec(any_event(), 0..40),
            range: (u32, u32),
        ) {
            let mut queue = Queue::default();
            for event in &events {
                queue.apply(event);
                let anew = after(&[Event::Holds(queue.holds())]);
                prop_assert_eq!(&anew, &queue);
                let released = queue.recall(range.0.min(range.1)..range.0.max(range.1));
                let mut less = queue.clone();
                less.apply(&Event::Released(released));
                prop_assert_eq!(less.running(), queue.running());
                prop_assert!(released.count == 0 || less != queue);
            }
        }
    }
}
