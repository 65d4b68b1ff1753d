//! Carries events of the Task watch from the router to the dispatcher of one Pool.
//!
//! The router serves every Pool, so it never waits for a dispatcher that is slow or stands
//! still. It keeps only the newest event of each kind and Task, so it holds no more events than its Pool has
//! Tasks and Tasks that these wait for, however often a user changes one.

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
    /// What the events are about, the oldest first.
    order: VecDeque<About>,
    events: HashMap<About, Event>,
    closed: bool,
}

/// What an event is about: a newer one takes the place of one that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum About {
    Task(Uid),
    /// Tasks that wait for each other, this one among them.
    Circle(Uid),
    /// The Task of that name, which others wait for.
    Dependency(Arc<str>),
    Synced,
}

impl Inbox {
    fn put(&self, about: About, event: Event) {
        let State { order, events, .. } = &mut *self.state.lock();
        if events.insert(about.clone(), event).is_none() {
            order.push_back(about);
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
        self.0
            .put(About::Task(entry.uid.clone()), Event::Task(Box::new(entry)));
    }

    /// A Task left the watch.
    pub(crate) fn left(&self, uid: &Uid) {
        self.0.put(About::Task(uid.clone()), Event::Left(uid.clone()));
    }

    /// The Task of that name came or left, and others wait for it.
    pub(crate) fn dependency(&self, name: &Arc<str>) {
        let event = Event::DependencyChanged(name.clone());
        self.0.put(About::Dependency(name.clone()), event);
    }

    /// A Task is in a circle of Tasks that wait for each other, or in none any more.
    pub(crate) fn circle(&self, uid: &Uid, names: Arc<[Arc<str>]>) {
        self.0
            .put(About::Circle(uid.clone()), Event::Circle(uid.clone(), names));
    }

    /// Every existing Task was shown once.
    pub(crate) fn synced(&self) {
        self.0.put(About::Synced, Event::Synced);
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
        let about = order.pop_front()?;
        events.remove(&about)
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
            Some(Event::DependencyChanged(name)) => format!("dependency {name}"),
            Some(Event::Circle(uid, _)) => format!("circle {uid}"),
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
            sender.dependency(&"u1".into());
            sender.circle(&uid(1), Arc::default());
        }
        assert_eq!(sender.0.state.lock().order.len(), 5);
        let mut order = Vec::new();
        for _ in 0..6 {
            order.push(said(receiver.try_recv()));
        }
        assert_eq!(
            order,
            [
                "left u1",
                "left u2",
                "synced",
                "dependency u1",
                "circle u1",
                "none"
            ]
        );
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
