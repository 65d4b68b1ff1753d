//! How far Tasks are, as their programs say it: kept for each rank, and written with the next status, or by itself
//! where enough time has passed. What is not written yet is lost with the leader; agents tell it again.

use std::{mem, time::Duration};

use jiff::Timestamp;
use skyward_api::TaskPhase;

use super::{
    Dispatcher,
    state::{Read, Stage, TaskState},
};
use crate::task::{
    message::Effect,
    model::{RunId, SlotAttempt, Uid},
    run::Progress,
};

/// Least time between two writes about one Task.
const RECOUNT: Duration = Duration::from_secs(30);

impl Dispatcher {
    /// An agent says how far a run is.
    pub(super) fn on_progress(&mut self, place: SlotAttempt, id: &RunId, progress: Progress) {
        let Some(task) = self.tasks.get_mut(&id.uid) else {
            return;
        };
        let Stage::Running(attempt) = &task.stage else {
            return;
        };
        // A machine speaks of its own runs only.
        let is_its = attempt.places.get(id.rank as usize) == Some(&place);
        if is_its && attempt.number == id.attempt {
            if task.progress.ranks.insert(id.rank, progress) == Some(progress) {
                return;
            }
            self.effects.push(Effect::Progress(id.clone(), progress));
            if !mem::replace(&mut task.progress.is_queued, true) {
                self.progressed.push_back(id.uid.clone());
            }
        }
    }

    /// Whether how far one of the Tasks is may be written now.
    pub fn has_progress(&mut self, now: Timestamp) -> bool {
        // What has been written meanwhile, or has ended, is no news.
        let tasks = &mut self.tasks;
        self.progressed.retain(|uid| {
            tasks.get_mut(uid).is_some_and(|task| {
                task.progress.is_queued = task.has_news();
                task.progress.is_queued
            })
        });
        !self.is_held() && self.progressed.iter().any(|uid| self.may_tell(uid, now))
    }

    fn may_tell(&self, uid: &Uid, now: Timestamp) -> bool {
        self.tasks.get(uid).is_some_and(|task| {
            let busy =
                task.write.is_some() || task.read != Read::Not || task.write_at.is_some_and(|at| at > now);
            let recently = task.progress.told_at.is_some_and(|at| at + RECOUNT > now);
            !busy && !recently && task.entry.phase() == TaskPhase::Running
        })
    }

    /// Writes how far the Task is that waits longest for it.
    pub(super) fn tell_progress(&mut self, now: Timestamp) {
        let Some(at) = (0..self.progressed.len()).find(|at| self.may_tell(&self.progressed[*at], now)) else {
            return;
        };
        let Some(uid) = self.progressed.remove(at) else {
            return;
        };
        if let Some(task) = self.tasks.get_mut(&uid) {
            task.progress.told_at = Some(now);
            task.progress.is_queued = false;
            let status = task.entry.status.clone();
            self.write(&uid, status);
        }
    }
}

impl TaskState {
    /// Whether its status does not say yet how far it is.
    fn has_news(&self) -> bool {
        let is_told = matches!(self.stage, Stage::Running(_)) && self.entry.map.is_none();
        is_told && self.progress.text() != self.entry.status.progress
    }
}
