//! Tasks with `forEach`: which places their workers have, and when such a Task is over. What becomes of the items is
//! decided elsewhere (`planner/map/`), and told here as a whole, each time.
//!
//! A worker is a rank of the attempt, started, stopped, collected and forgotten as any run. Three things differ: ranks are
//! added while the attempt runs, each on record before it is started; a worker that ends, whatever ended it, ends no
//! other one; and no worker is forgotten before all that it told of its items is stored ([`Run::holds_items`]). Where no
//! worker is left and items are, the Task waits in the queue, as any other, for its next attempt.

mod anew;
mod demand;
mod unfit;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use skyward_api::{MAX_RANKS, condition::reason, task::ItemsStatus};

use super::{
    Dispatcher,
    state::{Attempt, Collect, QueueKey, Read, Run, RunStage, Stage, StopWhy, TaskState, Trouble, queue_key},
};
use crate::{
    base::time::elapsed,
    map::{
        items::Retries,
        leader::Life,
        plan::{Spec, Verdict},
    },
    task::{
        message::{Effect, MapNews, MapOrder, MapTold, MapWorker},
        model::{RunId, SlotAttempt, Uid},
        status::{self, Why},
    },
};

/// A worker that is to end and has nothing ends within this time.
const IDLE_GRACE: Duration = Duration::from_secs(10);
/// Least time between two writes of what became of the items; longer ones are a part of the time that the map has taken.
const RECOUNT: Duration = Duration::from_secs(5);
const RECOUNT_PART: u32 = 50;
/// Bytes of how a worker or an item ended that are told.
const SAID: usize = 300;
/// A worker that ends so cannot do its work, and no other one could.
const UNFIT: [&str; 2] = [reason::BAD_SOURCE, reason::START_FAILED];

/// How many items a Task has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HowMany {
    /// It has no `forEach`.
    NoMap,
    /// They are being read.
    Unread,
    /// So many.
    Items(u32),
}

/// Whether a map is over.
#[derive(Debug, PartialEq, Eq)]
enum End {
    GoesOn,
    Succeeded,
    Failed(Why),
}

/// What is known of the map of an attempt.
#[derive(Debug, Default)]
pub(super) struct MapState {
    /// The last report of the map.
    told: MapTold,
    /// The last news that it was sent.
    news: Option<MapNews>,
    /// Places of ranks that are on no record yet.
    growing: Vec<SlotAttempt>,
    /// When the items were last written.
    written_at: Option<Timestamp>,
    /// Attempts of items that had ended when that was first told.
    began_with: Option<u64>,
    /// Workers that have ended without being stopped.
    broke: usize,
    /// How often in a row that happened while no item succeeded, and how many had succeeded.
    fruitless: (u32, u32),
    /// No worker is added before.
    grow_at: Option<Timestamp>,
    /// Ranks of workers whose machine could not begin items, and how that ended.
    unfit: BTreeMap<u32, String>,
    /// The machines of these workers.
    resting: BTreeMap<SlotAttempt, unfit::Rest>,
    /// What keeps the map from going on.
    pub(super) trouble: Option<Trouble>,
}

impl Dispatcher {
    /// How many items a Task has, as far as that is known.
    pub(super) fn items_of(&self, uid: &Uid) -> HowMany {
        let Some(task) = self.tasks.get(uid).filter(|task| task.entry.map.is_some()) else {
            return HowMany::NoMap;
        };
        let map = match &task.stage {
            Stage::Running(attempt) => attempt.map.as_ref(),
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => None,
        };
        map.and_then(|map| map.told.total)
            .map_or(HowMany::Unread, HowMany::Items)
    }

    /// The map of an attempt that runs begins, and is told what it needs to know, if that is news.
    pub(super) fn tend_map(&mut self, uid: &Uid, now: Timestamp) {
        self.begin_map(uid);
        self.end_some_workers(uid, now);
        let Some(news) = self.map_news(uid) else { return };
        let Some(map) = self.map_mut(uid) else { return };
        if map.news.as_ref() != Some(&news) {
            map.news = Some(news.clone());
            self.effects.push(Effect::TellMap(uid.clone(), Box::new(news)));
        }
    }

    fn begin_map(&mut self, uid: &Uid) {
        let Some(pool) = self.pool.clone() else { return };
        let Some(task) = self.tasks.get_mut(uid).filter(|task| task.entry.map.is_some()) else {
            return;
        };
        let Stage::Running(attempt) = &mut task.stage else {
            return;
        };
        if attempt.map.is_some() {
            return;
        }
        attempt.map = Some(Box::default());
        self.maps.insert(uid.clone());
        let found = task.entry.status.dependencies.iter();
        let order = MapOrder {
            uid: uid.clone(),
            name: task.entry.name.clone(),
            attempt: attempt.number,
            refs: pool
                .env_from
                .iter()
                .chain(&task.entry.env_from)
                .cloned()
                .collect(),
            pool,
            source: task.entry.recorded_source().map(ToOwned::to_owned),
            dependencies: found
                .map(|found| (found.task.clone(), found.uid.clone()))
                .collect(),
        };
        self.effects.push(Effect::BeginMap(Box::new(order)));
    }

    /// The map of a Task is not needed any more.
    pub(super) fn end_map(&mut self, uid: &Uid) {
        if self.maps.remove(uid) {
            self.effects.push(Effect::EndMap(uid.clone()));
        }
    }

    fn map_mut(&mut self, uid: &Uid) -> Option<&mut MapState> {
        match &mut self.tasks.get_mut(uid)?.stage {
            Stage::Running(attempt) => attempt.map.as_deref_mut(),
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => None,
        }
    }

    fn running(&self, uid: &Uid) -> Option<(&TaskState, &Attempt, &MapState)> {
        let task = self.tasks.get(uid)?;
        let Stage::Running(attempt) = &task.stage else {
            return None;
        };
        Some((task, attempt, attempt.map.as_deref()?))
    }

    /// The news that the map needs now.
    fn map_news(&self, uid: &Uid) -> Option<MapNews> {
        let (task, attempt, _) = self.running(uid)?;
        let wanted = task.entry.map?;
        let policy = self.policy(&task.entry);
        let spec = Spec {
            retries: Retries {
                on_interruption: policy.on_interruption(),
                on_failure: policy.on_failure(),
            },
            max_failed: wanted.max_failed,
            buffer: self.pool.as_ref().map_or(0, |pool| pool.buffer),
            threads: self.items_at_once(task),
            runs: attempt.stop.is_none() && !task.entry.suspend,
        };
        let closing = self.closing(uid);
        let workers = self
            .attempt_runs(uid, attempt.number)
            .filter(|(_, run)| !matches!(run.stage, RunStage::Reserved))
            .map(|(id, run)| MapWorker {
                rank: id.rank,
                machine: run.machine.clone(),
                connection: self
                    .machines
                    .get(&run.place)
                    .and_then(|machine| machine.connection),
                life: if run.items_lost || matches!(run.stage, RunStage::Lost) {
                    Life::Lost
                } else if run.stop.is_some() || closing.contains(&id.rank) {
                    Life::Closing
                } else {
                    Life::Runs
                },
            })
            .collect();
        Some(MapNews {
            spec,
            workers,
            others_are_gone: self.others_are_gone(uid, attempt.number),
        })
    }

    /// Whether each machine has told all its runs, and none of them is one of another attempt of that Task.
    fn others_are_gone(&self, uid: &Uid, attempt: u32) -> bool {
        let all_told = self.machines.values().all(|machine| self.has_told(machine));
        let is_other = |id: &RunId| id.uid == *uid && id.attempt != attempt;
        all_told && !self.runs.keys().any(is_other) && !self.unclaimed.keys().any(|(id, _)| is_other(id))
    }

    /// Ranks of workers that are to end with the item that they run: their machine goes or changes, there are more
    /// than may run, or the attempt has had all its ranks, and another one could use many more places.
    fn closing(&self, uid: &Uid) -> BTreeSet<u32> {
        let Some((task, attempt, map)) = self.running(uid) else {
            return BTreeSet::new();
        };
        let mut closing = BTreeSet::new();
        let mut stay = Vec::new();
        for (id, run) in self.attempt_runs(uid, attempt.number) {
            if !run.is_active() || run.stop.is_some() {
                continue;
            }
            let goes = self
                .machines
                .get(&run.place)
                .is_some_and(|machine| machine.deleting || machine.changing || machine.reclaim_at.is_some());
            if goes || map.is_unfit(id.rank, run.place) {
                closing.insert(id.rank);
            } else {
                stay.push(id.rank);
            }
        }
        let limit = self.most_workers(task, stay.len(), &self.wishes(task.entry.priority));
        let is_used_up = attempt.places.len() >= MAX_RANKS as usize;
        let useful = limit.min(map.told.useful as usize);
        let limit = if is_used_up && stay.len() * 2 <= useful {
            0
        } else {
            limit
        };
        // Newer workers have less to lose.
        closing.extend(stay.into_iter().skip(limit));
        closing
    }

    /// How many items each worker of a map runs at the same time.
    fn items_at_once(&self, task: &TaskState) -> u32 {
        let map = task.entry.map.filter(|map| map.has_function);
        let pool = self.pool.as_ref();
        pool.zip(map)
            .map_or(1, |(pool, map)| pool.items_at_once(map.parallelism))
    }

    /// Workers that a map may have: fewer where Tasks of a higher priority wait for the places that it has, or are running
    /// maps that could use them.
    fn most_workers(&self, task: &TaskState, has: usize, wishes: &BTreeMap<i32, usize>) -> usize {
        let most = self.most_in_parallel(task);
        let urgent = self.queue.iter().take_while(|key| key.0.0 > task.entry.priority);
        let waits = |key: &&QueueKey| {
            self.tasks.get(&key.3).is_some_and(|task| match &task.stage {
                Stage::Waiting(waiting) => waiting.obstacle.is_none() && !task.pauses(),
                Stage::Placing(_) | Stage::Running(_) | Stage::Ending(_) => false,
            })
        };
        let wishes = wishes.iter().rev();
        let wishes = wishes.take_while(|(priority, _)| **priority > task.entry.priority);
        let yields = wishes.fold(urgent.filter(waits).count(), |all, (_, wish)| {
            all.saturating_add(*wish)
        });
        if yields == 0 {
            most
        } else {
            most.min(has.saturating_sub(yields))
        }
    }

    /// Workers that `forEach.parallelism` allows.
    fn most_in_parallel(&self, task: &TaskState) -> usize {
        let parallelism = task.entry.map.and_then(|map| map.parallelism);
        parallelism.map_or(usize::MAX, |most| {
            most.div_ceil(self.items_at_once(task)) as usize
        })
    }

    /// How many more workers the running maps above a priority could have, by their priority. A map that gets none on some
    /// machines for now counts for nothing: these machines might be the only ones that others can give up.
    fn wishes(&self, above: i32) -> BTreeMap<i32, usize> {
        let mut wishes = BTreeMap::new();
        for uid in &self.maps {
            let map = self
                .running(uid)
                .filter(|(task, _, map)| task.entry.priority > above && map.resting().is_empty());
            let Some((task, ..)) = map else { continue };
            let wish = self.wanted_within(uid, |_| self.most_in_parallel(task)) as usize;
            let all: &mut usize = wishes.entry(task.entry.priority).or_default();
            *all = all.saturating_add(wish);
        }
        wishes
    }

    /// How many more workers of a running map would have something to do.
    fn wanted(&self, uid: &Uid, wishes: &BTreeMap<i32, usize>) -> u32 {
        let Some((task, ..)) = self.running(uid) else {
            return 0;
        };
        self.wanted_within(uid, |has| self.most_workers(task, has, wishes))
    }

    /// The same within a limit, which is asked for with how many workers it has.
    fn wanted_within(&self, uid: &Uid, limit: impl FnOnce(usize) -> usize) -> u32 {
        let Some((task, attempt, map)) = self.running(uid) else {
            return 0;
        };
        let is_over = map.told.verdict.is_some() || map.told.fault.is_some() || attempt.stop.is_some();
        let pauses = map.grow_at.is_some();
        if is_over || pauses || task.entry.suspend || map.told.total.is_none() || task.aside {
            return 0;
        }
        let runs = self.attempt_runs(uid, attempt.number);
        let has = runs
            .filter(|(_, run)| run.is_active() && run.stop.is_none())
            .count();
        let limit = limit(has).min(map.told.useful as usize);
        let ranks = (MAX_RANKS as usize).saturating_sub(attempt.places.len());
        limit.saturating_sub(has).min(ranks) as u32
    }

    /// Running maps with something to do for more workers than they have, in the order of the queue, each with how many,
    /// and with the machines that get none of them.
    pub(super) fn hungry(&self) -> Vec<(QueueKey, Uid, u32, BTreeSet<SlotAttempt>)> {
        let mut hungry = Vec::new();
        let wishes = self.wishes(i32::MIN);
        for uid in &self.maps {
            let Some((task, _, map)) = self.running(uid) else {
                continue;
            };
            let busy = task.write.is_some() || task.read != Read::Not || !map.growing.is_empty();
            let wanted = if busy { 0 } else { self.wanted(uid, &wishes) };
            if wanted > 0 {
                hungry.push((queue_key(&task.entry), uid.clone(), wanted, map.resting()));
            }
        }
        hungry.sort_unstable();
        hungry
    }

    /// Reserves places for more workers and puts them on record; nothing is started before.
    pub(super) fn grow(&mut self, uid: &Uid, places: Vec<SlotAttempt>, now: Timestamp) {
        let Some((_, attempt, _)) = self.running(uid).filter(|_| !places.is_empty()) else {
            return;
        };
        let (number, first) = (attempt.number, attempt.places.len() as u32);
        for (rank, place) in (first..).zip(&places) {
            let mut run = Run::new(*place, self.machine_name(*place), RunStage::Reserved);
            run.price = self.price_of(*place);
            run.placed_at = Some(now);
            self.runs.insert(RunId::new(uid, number, rank), run);
        }
        if let Some(map) = self.map_mut(uid) {
            map.growing = places;
        }
        self.write_map(uid, now);
    }

    /// Writes what became of the items, and the places of workers that are about to be started.
    fn write_map(&mut self, uid: &Uid, now: Timestamp) {
        let Some((task, attempt, map)) = self.running(uid) else {
            return;
        };
        let items = map.told.total.map(|_| &map.told.items);
        let places: Vec<SlotAttempt> = attempt.places.iter().chain(&map.growing).copied().collect();
        let status = status::mapping(&task.entry, items, &places);
        if let Some(map) = self.map_mut(uid) {
            map.written_at = Some(now);
        }
        self.write(uid, status);
    }

    /// Starts the ranks that are on record by now; the places of ranks that never will be are free again.
    pub(super) fn take_growth(&mut self, uid: &Uid, now: Timestamp) {
        let Some(task) = self.tasks.get_mut(uid).filter(|task| task.entry.map.is_some()) else {
            return;
        };
        let Stage::Running(attempt) = &mut task.stage else {
            return;
        };
        let recorded = &task.entry.status;
        let known = attempt.places.len();
        let is_ours = recorded.attempt == attempt.number && recorded.placed.starts_with(&attempt.places);
        let new: Vec<SlotAttempt> = if is_ours {
            recorded.placed[known..].to_vec()
        } else {
            Vec::new()
        };
        let is_settled = task.write.is_none() && task.read == Read::Not;
        attempt.places.extend(&new);
        let (number, stop) = (attempt.number, attempt.stop);
        let grace = task.entry.grace;
        if let Some(map) = attempt
            .map
            .as_deref_mut()
            .filter(|_| is_settled || !new.is_empty())
        {
            map.growing.clear();
        }
        for (rank, place) in (known as u32..).zip(&new) {
            let name = self.machine_name(*place);
            let id = RunId::new(uid, number, rank);
            let run = self
                .runs
                .entry(id.clone())
                .or_insert_with(|| Run::new(*place, name, RunStage::Reserved));
            if matches!(run.stage, RunStage::Reserved) {
                run.stage = RunStage::Starting;
                if let Some(stop) = stop {
                    run.stop.get_or_insert((grace, stop.as_str()));
                }
            }
            self.drive(&id, now);
        }
        if is_settled {
            let last = (known + new.len()) as u32;
            let ids = self.runs_of(uid);
            for id in ids
                .into_iter()
                .filter(|id| id.attempt == number && id.rank >= last)
            {
                if self
                    .runs
                    .get(&id)
                    .is_some_and(|run| matches!(run.stage, RunStage::Reserved))
                {
                    self.runs.remove(&id);
                    self.dirty = true;
                }
            }
        }
        if !new.is_empty() {
            self.live(uid);
            self.tend_map(uid, now);
        }
    }

    /// The map tells how it stands.
    pub(super) fn on_map_told(&mut self, uid: &Uid, attempt: u32, told: MapTold, now: Timestamp) {
        let is_its = self
            .running(uid)
            .is_some_and(|(_, known, _)| known.number == attempt);
        if !is_its {
            return;
        }
        for rank in &told.done_with {
            if let Some(run) = self.runs.get_mut(&RunId::new(uid, attempt, *rank)) {
                run.holds_items = false;
            }
        }
        for rank in &told.close {
            self.stop_worker(&RunId::new(uid, attempt, *rank), IDLE_GRACE, "Recalled", now);
        }
        self.rest_machines(uid, &told.unfit, now);
        let Some(map) = self.map_mut(uid) else { return };
        let was_read = map.told.total.is_some();
        let why = told.trouble.clone().or_else(|| map.why_machines_rest());
        map.trouble = why.map(|why| Trouble {
            since: map.trouble.as_ref().map_or(now, |known| known.since),
            why,
        });
        if told.total.is_some() {
            map.began_with.get_or_insert(told.ends);
        }
        map.told = told;
        if !was_read {
            for id in self.runs_of(uid) {
                self.drive(&id, now);
            }
        }
        self.dirty = true;
        self.conclude(uid, now);
    }

    fn stop_worker(&mut self, id: &RunId, grace: Duration, why: &'static str, now: Timestamp) {
        if let Some(run) = self.runs.get_mut(id).filter(|run| run.is_active()) {
            run.stop.get_or_insert((grace, why));
            self.drive(id, now);
        }
    }

    /// Workers whose machine goes now have no longer than it.
    fn end_some_workers(&mut self, uid: &Uid, now: Timestamp) {
        let Some((task, attempt, _)) = self.running(uid) else {
            return;
        };
        let allowed = task.entry.grace;
        let ending: Vec<(RunId, Duration)> = self
            .attempt_runs(uid, attempt.number)
            .filter(|(_, run)| run.stop.is_none() && self.ends(run))
            .filter_map(|(id, run)| Some((id.clone(), self.machines.get(&run.place)?.grace(allowed, now))))
            .collect();
        for (id, grace) in ending {
            self.stop_worker(&id, grace, reason::INTERRUPTED, now);
        }
    }

    /// Machines that are not in a fresh list are gone: what their workers have not told of their items is lost.
    pub(super) fn lose_items(&mut self, there: &BTreeSet<SlotAttempt>, now: Timestamp) {
        let gone = |run: &Run| {
            run.keeps_items() && !self.machines.contains_key(&run.place) && !there.contains(&run.place)
        };
        let mut maps = BTreeSet::new();
        for id in self.run_ids(gone) {
            if let Some(run) = self.runs.get_mut(&id) {
                run.items_lost = true;
            }
            maps.insert(id.uid);
        }
        for uid in maps {
            self.tend_map(&uid, now);
        }
    }

    /// Writes what became of the items of maps, where enough time has passed.
    pub(super) fn tell_items(&mut self, now: Timestamp) {
        let due: Vec<Uid> = self
            .maps
            .iter()
            .filter(|uid| self.has_items_to_tell(uid, now))
            .cloned()
            .collect();
        for uid in due {
            if self.has_told_enough() {
                break;
            }
            self.told += 1;
            self.write_map(&uid, now);
        }
        for uid in self.maps.clone() {
            self.take_growth(&uid, now);
            self.tend_map(&uid, now);
            self.wake_machines(&uid, now);
            if let Some(map) = self.map_mut(&uid)
                && map.grow_at.is_some_and(|at| at <= now)
            {
                map.grow_at = None;
                self.dirty = true;
            }
        }
    }

    fn has_items_to_tell(&self, uid: &Uid, now: Timestamp) -> bool {
        let Some((task, attempt, map)) = self.running(uid) else {
            return false;
        };
        let busy = task.write.is_some() || task.read != Read::Not || task.write_at.is_some_and(|at| at > now);
        let is_news = map.told.total.is_some() && task.entry.status.items.as_ref() != Some(&map.told.items);
        let pause = RECOUNT.max(elapsed(attempt.started_at, now) / RECOUNT_PART);
        let is_due = map.written_at.is_none_or(|at| elapsed(at, now) >= pause);
        !busy && is_news && is_due && !self.is_held()
    }

    /// Decides what comes after the attempt of a Task with `forEach`, once all of it has ended.
    pub(super) fn conclude_map(&mut self, uid: &Uid, now: Timestamp) {
        self.tend_map(uid, now);
        self.pause_growth(uid, now);
        let Some((task, attempt, map)) = self.running(uid) else {
            return;
        };
        let (number, stop) = (attempt.number, attempt.stop);
        let unfit = self.attempt_runs(uid, number).find_map(|(_, run)| unfit(run));
        let end = why_over(&task.entry.name, &map.told, unfit);
        let items = map.told.total.map(|_| map.told.items.clone());
        let grace = task.entry.grace;
        let ids: Vec<RunId> = self.attempt_runs(uid, number).map(|(id, _)| id.clone()).collect();
        if end != End::GoesOn {
            for id in &ids {
                self.stop_worker(id, grace.min(IDLE_GRACE), "MapOver", now);
            }
        }
        // What machines of a deleted Pool have not told is not waited for: nothing would run it.
        let is_deleted = stop == Some(StopWhy::PoolDeleted);
        let is_settled = |run: &Run| run.is_settled() && (is_deleted || !run.holds_items);
        let all = ids.iter().filter_map(|id| self.runs.get(id)).all(is_settled);
        let has_grown = self
            .running(uid)
            .is_some_and(|(_, _, map)| !map.growing.is_empty());
        if !all || has_grown {
            return;
        }
        let because = match (end, stop) {
            (End::Succeeded, _) => None,
            (End::Failed(why), _) => Some(why),
            (End::GoesOn, stop) => return self.begin_anew(uid, &ids, items, stop, now),
        };
        self.end_with_items(uid, &ids, items, because, now);
    }

    /// What became of the items stands in each later status, too.
    fn keep_items(&mut self, uid: &Uid, items: Option<ItemsStatus>) {
        if let (Some(task), Some(items)) = (self.tasks.get_mut(uid), items) {
            task.entry.status.items = Some(ItemsStatus { active: 0, ..items });
        }
    }

    fn end_with_items(
        &mut self,
        uid: &Uid,
        ids: &[RunId],
        items: Option<ItemsStatus>,
        because: Option<Why>,
        now: Timestamp,
    ) {
        self.charge(uid, ids, now);
        self.end_map(uid);
        let Some(task) = self.tasks.get(uid) else { return };
        let started_at = match &task.stage {
            Stage::Running(attempt) => Some(attempt.started_at),
            Stage::Waiting(_) | Stage::Placing(_) | Stage::Ending(_) => None,
        };
        let status = status::mapped(&task.entry, task.counts, items.as_ref(), started_at, because, now);
        self.end_task(uid, status, now);
        self.live(uid);
    }
}

/// Why no worker can do the work, if one has ended so.
fn unfit(run: &Run) -> Option<Why> {
    let Collect::Done(collected) = &run.collect else {
        return None;
    };
    UNFIT
        .contains(&collected.reason)
        .then(|| Why::new(collected.reason, status::failure_message(&collected.result, 1, 1)))
}

/// Whether the map is over, and why the Task failed then. `name` is that of the Task.
fn why_over(name: &Arc<str>, told: &MapTold, unfit: Option<Why>) -> End {
    let ItemsStatus {
        total,
        succeeded,
        failed,
        failed_indexes,
        ..
    } = &told.items;
    let how = format!(
        "`kubectl skyward results {name} --failed` shows how, and `kubectl skyward retry {name}` runs them again"
    );
    match told.verdict {
        Some(Verdict::Complete) => return End::Succeeded,
        Some(Verdict::SomeFailed) => {
            let message = format!("{failed} of {total} items failed: {how}; their indices: {failed_indexes}");
            return End::Failed(Why::new(reason::ITEMS_FAILED, message));
        }
        Some(Verdict::TooManyFailed) => {
            let rest = total.saturating_sub(*succeeded).saturating_sub(*failed);
            let message = format!(
                "{failed} of {total} items failed, which is more than forEach.maxFailedItems allows, and {rest} were not \
                 run: {how}; indices of failed items: {failed_indexes}"
            );
            return End::Failed(Why::new(reason::TOO_MANY_FAILED_ITEMS, message));
        }
        None => {}
    }
    told.fault.clone().or(unfit).map_or(End::GoesOn, End::Failed)
}
