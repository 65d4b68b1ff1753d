//! Carries events of the Task watch from the router to the dispatcher of one Pool.
//!
//! The router serves every Pool, so it never waits for a dispatcher that is slow or stands
//! still. It keeps only the newest event of each Task, so it holds no more events than its Pool has
//! Tasks, however often a user changes one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use skyward_planner::task::{
    message::Event,
    model::{Entry, Uid},
};
use tokio::sync::Notify;

#[derive(Default)]
struct Inbox {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// Tasks whose event waits, the oldest first. `None` stands for [`Event::Synced`].
    order: VecDeque<Option<Uid>>,
    events: HashMap<Uid, Event>,
    closed: bool,
}

impl Inbox {
    fn put(&self, uid: Uid, event: Event) {
        let State { order, events, .. } = &mut *self.state.lock();
        if events.insert(uid.clone(), event).is_none() {
            order.push_back(Some(uid));
        }
        self.changed.notify_one();
    }
}

/// The router's half. Dropped, it ends the dispatcher.
pub(crate) struct Sender(Arc<Inbox>);

/// The dispatcher's half.
pub(crate) struct Receiver(Arc<Inbox>);

pub(crate) fn inbox() -> (Sender, Receiver) {
    let inbox = Arc::<Inbox>::default();
    (Sender(inbox.clone()), Receiver(inbox))
}

impl Sender {
    /// A Task was added or changed.
    pub(crate) fn task(&self, entry: Entry) {
        self.0.put(entry.uid.clone(), Event::Task(Box::new(entry)));
    }

    /// A Task left the watch.
    pub(crate) fn left(&self, uid: &Uid) {
        self.0.put(uid.clone(), Event::Left(uid.clone()));
    }

    /// Every existing Task was shown once.
    pub(crate) fn synced(&self) {
        let mut state = self.0.state.lock();
        if !state.order.contains(&None) {
            state.order.push_back(None);
        }
        self.0.changed.notify_one();
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.state.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Receiver {
    /// The next event, if one waits.
    pub(crate) fn try_recv(&mut self) -> Option<Event> {
        let State { order, events, .. } = &mut *self.0.state.lock();
        match order.pop_front()? {
            Some(uid) => events.remove(&uid),
            None => Some(Event::Synced),
        }
    }

    /// Waits for the next event; `None` when the router is done with this Pool.
    pub(crate) async fn recv(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.try_recv() {
                return Some(event);
            }
            if self.0.state.lock().closed {
                return None;
            }
            self.0.changed.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn uid(number: u32) -> Uid {
        Uid::from(format!("u{number}").as_str())
    }

    fn said(event: Option<Event>) -> String {
        match event {
            Some(Event::Left(uid)) => format!("left {uid}"),
            Some(Event::Synced) => "synced".to_owned(),
            Some(_) => "another".to_owned(),
            None => "none".to_owned(),
        }
    }

    #[tokio::test]
    async fn a_task_that_changes_without_end_takes_the_room_of_one_and_keeps_its_place() {
        let (sender, mut receiver) = inbox();
        sender.left(&uid(1));
        sender.left(&uid(2));
        for _ in 0..10_000 {
            sender.left(&uid(1));
            sender.synced();
        }
        assert_eq!(sender.0.state.lock().order.len(), 3);
        let mut order = Vec::new();
        for _ in 0..4 {
            order.push(said(receiver.try_recv()));
        }
        assert_eq!(order, ["left u1", "left u2", "synced", "none"]);
    }

    #[tokio::test]
    async fn what_waits_is_received_before_the_end() {
        let (sender, mut receiver) = inbox();
        assert!(receiver.recv().now_or_never().is_none(), "nothing is there");
        sender.left(&uid(1));
        drop(sender);
        assert_eq!(said(receiver.recv().await), "left u1");
        assert_eq!(said(receiver.recv().await), "none");
    }
}
