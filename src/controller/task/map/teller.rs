//! How a map stands, told to its dispatcher: at once where something depends on it, else from time to time.

use std::time::Duration;

use skyward_api::task::ItemsStatus;
use skyward_planner::task::message::{Event, MapOrder, MapTold};
use tokio::{sync::mpsc, time::Instant};

use super::ACCOUNT;

/// Tells the dispatcher how the map stands.
pub(super) struct Teller<'a> {
    order: &'a MapOrder,
    events: mpsc::Sender<Event>,
    told: MapTold,
    at: Option<Instant>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(order: &'a MapOrder, events: mpsc::Sender<Event>) -> Self {
        Self {
            order,
            events,
            told: MapTold::default(),
            at: None,
        }
    }

    /// Tells it, if that is news; what nothing depends on only from time to time.
    pub(super) async fn tell(&mut self, told: MapTold, is_due: bool) {
        let counts = |told: &MapTold| MapTold {
            items: ItemsStatus::default(),
            useful: 0,
            work: Duration::ZERO,
            ends: 0,
            ..told.clone()
        };
        let matters = counts(&told) != counts(&self.told);
        let is_known = told == self.told && self.at.is_some();
        if is_known || !(matters || is_due) {
            return;
        }
        self.told = told.clone();
        self.at = Some(Instant::now());
        let event = Event::MapTold(self.order.uid.clone(), self.order.attempt, Box::new(told));
        // A dispatcher that ended needs no events any more.
        let _ = self.events.send(event).await;
    }

    pub(super) fn is_due(&self) -> bool {
        self.at.is_none_or(|at| at.elapsed() >= ACCOUNT)
    }
}
