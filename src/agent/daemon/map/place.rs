//! What the watcher of a place does next: which item begins, what the watcher answers, when it ends. This module starts no
//! process and opens no file: the shim does, and passes the outcome in.
//!
//! No event counts before it is written. While the disk is full, no item begins and no order is answered; ends of items
//! wait here, and the place begins no other item.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Range,
};

use bytes::Bytes;

use super::{
    queue::{Chunk, Ended, Event, Item, Queue, Released},
    share::Share,
};

/// Where events are written: the share.
pub(crate) trait Record {
    /// Writes these events, and events that an earlier call could not write.
    fn write(&mut self, events: &[Event]) -> io::Result<()>;
    /// What the place holds with all of them.
    fn queue(&self) -> &Queue;
}

impl Record for Share {
    fn write(&mut self, events: &[Event]) -> io::Result<()> {
        Share::write(self, events)
    }

    fn queue(&self) -> &Queue {
        Share::queue(self)
    }
}

/// What the shim is to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// Run this item: its JSON, or nothing where items are their indices.
    Run(Item, Bytes),
    /// Tell the daemon that these items never begin.
    Answer(Released),
}

/// A place with its watcher.
#[derive(Debug)]
pub(crate) struct Place<R> {
    record: R,
    /// Of items that have not begun.
    items: BTreeMap<u32, Bytes>,
    /// How many items may run at the same time.
    slots: usize,
    /// Their beginnings are with the record, and may not be written yet.
    starting: VecDeque<(Item, Bytes)>,
    answers: VecDeque<Released>,
    /// Whether something waits to be written.
    waits: bool,
    /// Whether no item begins for now.
    pausing: bool,
    /// Whether no further item begins.
    closing: bool,
}

impl<R: Record> Place<R> {
    /// A place that holds nothing, for so many items at the same time.
    pub(crate) fn new(record: R, slots: usize) -> Self {
        Self {
            record,
            items: BTreeMap::new(),
            slots,
            starting: VecDeque::new(),
            answers: VecDeque::new(),
            waits: false,
            pausing: false,
            closing: false,
        }
    }

    /// The daemon gives it items.
    pub(crate) fn give(&mut self, chunk: Chunk, items: Vec<Bytes>) -> Vec<Action> {
        if self.closing || chunk.count == 0 || chunk.first.checked_add(chunk.count).is_none() {
            return Vec::new();
        }
        self.items
            .extend((chunk.first..).zip(items).take(chunk.count as usize));
        let events = self.with_next(vec![Event::Took(chunk)]);
        self.write(&events)
    }

    /// The daemon wants items back that have not begun.
    pub(crate) fn recall(&mut self, range: Range<u32>) -> Vec<Action> {
        let released = self.record.queue().recall(range);
        self.answers.push_back(released);
        if released.count == 0 {
            return self.write(&[]);
        }
        self.drop_items(released);
        self.write(&[Event::Released(released)])
    }

    /// An item has ended; the next one begins.
    pub(crate) fn ended(&mut self, ended: Ended) -> Vec<Action> {
        let events = self.with_next(vec![Event::Ended(ended)]);
        self.write(&events)
    }

    /// No item begins for now, or items begin again.
    pub(crate) fn pause(&mut self, pausing: bool) -> Vec<Action> {
        if self.pausing == pausing {
            return Vec::new();
        }
        self.pausing = pausing;
        let events = self.with_next(Vec::new());
        self.write(&events)
    }

    /// No further item begins, and what has not begun is let go of.
    pub(crate) fn close(&mut self) -> Vec<Action> {
        self.closing = true;
        let chunks = self.record.queue().holds().chunks;
        let events: Vec<Event> = chunks
            .iter()
            .map(|chunk| {
                Event::Released(Released {
                    first: chunk.first,
                    count: chunk.count,
                })
            })
            .collect();
        self.items.clear();
        self.write(&events)
    }

    /// Whether all that it was given has begun, as it is written.
    pub(crate) fn is_idle(&self) -> bool {
        !self.waits && self.record.queue().next().is_none()
    }

    /// Whether no item begins for now.
    pub(crate) const fn pauses(&self) -> bool {
        self.pausing
    }

    /// What could not be written is tried again.
    pub(crate) fn try_again(&mut self) -> Vec<Action> {
        self.write(&[])
    }

    /// Whether something waits for room on the disk.
    pub(crate) const fn waits(&self) -> bool {
        self.waits
    }

    /// Whether the watcher has nothing more to do.
    pub(crate) fn is_over(&self) -> bool {
        self.closing && !self.waits && self.record.queue().is_empty()
    }

    /// These events, and the beginnings of all items that can begin after them, to be written.
    fn with_next(&mut self, mut events: Vec<Event>) -> Vec<Event> {
        if self.closing || self.pausing {
            return events;
        }
        let mut queue = self.record.queue().clone();
        for event in &events {
            queue.apply(event);
        }
        while queue.running().len() < self.slots
            && let Some(next) = queue.next()
        {
            let json = self.items.remove(&next.index).unwrap_or_default();
            self.starting.push_back((next, json));
            let began = Event::Began(next);
            queue.apply(&began);
            events.push(began);
        }
        events
    }

    fn drop_items(&mut self, released: Released) {
        let end = released.first.saturating_add(released.count);
        for index in released.first..end {
            self.items.remove(&index);
        }
    }

    fn write(&mut self, events: &[Event]) -> Vec<Action> {
        self.waits = self.record.write(events).is_err();
        if self.waits {
            return Vec::new();
        }
        let answers = self.answers.drain(..).map(Action::Answer);
        let started = self
            .starting
            .drain(..)
            .map(|(item, json)| Action::Run(item, json));
        answers.chain(started).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// A record whose disk may be full, and which knows what is written.
    #[derive(Debug, Default)]
    struct Disk {
        is_full: bool,
        queue: Queue,
        unwritten: Vec<Event>,
        written: Vec<Event>,
    }

    impl Record for Disk {
        fn write(&mut self, events: &[Event]) -> io::Result<()> {
            for event in events {
                self.queue.apply(event);
                self.unwritten.push(event.clone());
            }
            if self.is_full {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.written.append(&mut self.unwritten);
            Ok(())
        }

        fn queue(&self) -> &Queue {
            &self.queue
        }
    }

    fn chunk(first: u32, count: u32) -> Chunk {
        let attempt = 1;
        Chunk {
            first,
            count,
            attempt,
        }
    }

    fn item(index: u32) -> Item {
        Item { index, attempt: 1 }
    }

    fn ended(item: Item) -> Ended {
        Ended {
            index: item.index,
            attempt: item.attempt,
            ..Ended::default()
        }
    }

    #[test]
    fn items_run_one_after_the_other_each_with_its_own_value() {
        let mut place = Place::new(Disk::default(), 1);
        let items = vec![Bytes::from("\"a\""), Bytes::from("\"b\"")];
        assert_eq!(
            place.give(chunk(5, 2), items),
            [Action::Run(item(5), "\"a\"".into())]
        );
        assert_eq!(place.give(chunk(9, 1), vec![]), []);
        assert_eq!(
            place.ended(ended(item(5))),
            [Action::Run(item(6), "\"b\"".into())]
        );
        assert!(!place.is_idle());
        assert_eq!(place.ended(ended(item(6))), [Action::Run(item(9), Bytes::new())]);
        assert_eq!(place.ended(ended(item(9))), []);
        assert!(place.is_idle());
        assert_eq!(place.close(), []);
        assert!(place.is_over());
    }

    #[test]
    fn while_the_disk_is_full_nothing_begins_and_nothing_is_answered() {
        let mut place = Place::new(Disk::default(), 1);
        place.give(chunk(0, 4), vec![]);
        place.record.is_full = true;
        assert_eq!(place.ended(ended(item(0))), []);
        assert_eq!(place.recall(2..4), []);
        assert_eq!(place.try_again(), []);
        assert!(place.waits());
        place.record.is_full = false;
        let released = Released { first: 2, count: 2 };
        assert_eq!(
            place.try_again(),
            [Action::Answer(released), Action::Run(item(1), Bytes::new())]
        );
        assert_eq!(place.try_again(), [], "it runs once");
    }

    #[test]
    fn a_place_that_closes_ends_with_the_item_that_runs() {
        let mut place = Place::new(Disk::default(), 1);
        place.give(chunk(0, 3), vec![]);
        assert_eq!(place.close(), []);
        assert_eq!(place.give(chunk(7, 1), vec![]), []);
        assert!(!place.is_over());
        assert_eq!(place.ended(ended(item(0))), []);
        assert!(place.is_over());
    }

    #[test]
    fn a_place_with_room_for_several_runs_so_many_and_none_while_it_pauses() {
        let run = |index| Action::Run(item(index), Bytes::new());
        let mut place = Place::new(Disk::default(), 3);
        assert_eq!(place.give(chunk(0, 2), vec![]), [run(0), run(1)]);
        assert_eq!(place.give(chunk(2, 4), vec![]), [run(2)]);
        assert_eq!(place.ended(ended(item(1))), [run(3)]);
        assert_eq!(place.pause(true), []);
        assert_eq!(place.ended(ended(item(0))), []);
        assert_eq!(place.ended(ended(item(3))), []);
        assert_eq!(place.pause(false), [run(4), run(5)]);
        assert_eq!(place.pause(false), []);
        place.close();
        for index in [5, 2, 4] {
            assert!(!place.is_over());
            assert_eq!(place.ended(ended(item(index))), []);
        }
        assert!(place.is_over());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Give(u32),
        Recall(u32, u32),
        End(usize),
        Pause(bool),
        Full(bool),
        Again,
        Close,
    }

    fn any_step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1_u32..5).prop_map(Step::Give),
            2 => (0_u32..30, 0_u32..10).prop_map(|(first, count)| Step::Recall(first, count)),
            8 => (0_usize..3).prop_map(Step::End),
            1 => any::<bool>().prop_map(Step::Pause),
            2 => any::<bool>().prop_map(Step::Full),
            2 => Just(Step::Again),
            1 => Just(Step::Close),
        ]
    }

    proptest! {
        #[test]
        fn whatever_a_kill_leaves_each_item_has_run_once_at_most_and_is_told_as_it_was(
            steps in proptest::collection::vec(any_step(), 0..60),
            slots in 1_usize..4,
        ) {
            let mut place = Place::new(Disk::default(), slots);
            let (mut next, mut running) = (0, Vec::new());
            let (mut ran, mut given_back) = (BTreeSet::new(), BTreeSet::new());
            for step in steps {
                let actions = match step {
                    Step::Give(count) => {
                        next += count;
                        place.give(chunk(next - count, count), vec![])
                    }
                    Step::Recall(first, count) => place.recall(first..first + count),
                    Step::End(at) if at < running.len() => place.ended(ended(running.remove(at))),
                    Step::End(_) => vec![],
                    Step::Pause(pausing) => place.pause(pausing),
                    Step::Full(is_full) => {
                        place.record.is_full = is_full;
                        vec![]
                    }
                    Step::Again => place.try_again(),
                    Step::Close => place.close(),
                };
                for action in actions {
                    match action {
                        Action::Run(item, _) => {
                            running.push(item);
                            prop_assert!(running.len() <= slots, "{running:?} run at the same time");
                            prop_assert!(ran.insert(item.index), "{item:?} ran twice");
                            prop_assert!(!given_back.contains(&item.index), "{item:?} was given back");
                        }
                        Action::Answer(released) => {
                            let items = released.first..released.first + released.count;
                            prop_assert!(ran.range(items.clone()).next().is_none(), "{released:?} has begun");
                            given_back.extend(items);
                        }
                    }
                }
                // The watcher is killed here: the daemon reads what is written.
                let mut left = Queue::default();
                let mut begun = BTreeSet::new();
                for event in &place.record.written {
                    left.apply(event);
                    if let Event::Began(item) = event {
                        begun.insert(item.index);
                    }
                }
                prop_assert_eq!(&begun, &ran, "what runs is written, and nothing else");
                for item in left.running() {
                    prop_assert!(running.contains(item) || place.waits());
                }
                for event in left.close(ended) {
                    if let Event::Released(Released { first, count }) = event {
                        prop_assert!(ran.range(first..first + count).next().is_none());
                    }
                }
            }
        }
    }
}
