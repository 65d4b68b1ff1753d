//! How many bytes and files of the store each namespace holds, and which write may take room.
//! Pure: no files are looked at here, and the state of the volume is an argument.
//!
//! There are two limits. A namespace has a quota, so that no namespace fills the whole store.
//! And a tenth of the volume is kept free of logs and large values, so that runs can
//! end although the rest is full. Both hold for files as for bytes: a volume that can hold no
//! more files is as full as one without a free block.
//!
//! A namespace is charged the room on the volume: whole blocks, at least one for each object, and
//! some for the folders of each run and Task. So many small objects are not free.

use std::{
    collections::{BTreeMap, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    ops::{Add, AddAssign},
    sync::Arc,
};

use crate::quota::Quota;

/// Objects take whole blocks of this size, and at least one.
pub(crate) const BLOCK: u64 = 4 * 1024;
/// Counted for each Task: its folder, and the file that names its namespace.
pub(crate) const TASK: Held = Held {
    bytes: 2 * BLOCK,
    files: 2,
};
/// Counted for each run: its folder, and the folders of its log and of a value in pieces.
pub(crate) const RUN: Held = Held {
    bytes: 3 * BLOCK,
    files: 3,
};
/// A value of at most this size is small: the protocol sends it with the end of its run.
pub const SMALL: u64 = 64 * 1024;
/// This part of the volume is kept for ends of runs and small values, and small values may
/// go beyond their namespace's quota by this part of it.
const KEPT: u64 = 10;

/// The class of an object, which decides how much room it may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Logs and large values.
    Bulk,
    /// Return values of at most [`SMALL`] bytes.
    Small,
    /// The outcome of a run, without which its Task could not end.
    End,
}

impl Class {
    /// The class of a return value of this size.
    pub const fn of_value(bytes: u64) -> Self {
        if bytes <= SMALL { Self::Small } else { Self::Bulk }
    }
}

/// The room of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// All bytes that it can hold.
    pub total: u64,
    /// How many of these bytes are free.
    pub free: u64,
    /// All files and folders that it can hold; 0 where the file system does not count them.
    pub files: u64,
    /// How many more files and folders it can hold.
    pub files_free: u64,
}

/// Room in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) bytes: u64,
    pub(crate) files: u64,
}

impl Held {
    const NOTHING: Self = Self { bytes: 0, files: 0 };
    pub(crate) const EVERYTHING: Self = Self {
        bytes: u64::MAX,
        files: u64::MAX,
    };

    /// The room that an object of that size takes.
    pub(crate) const fn object(size: u64) -> Self {
        let blocks = size.div_ceil(BLOCK);
        Self {
            bytes: (if blocks == 0 { 1 } else { blocks }).saturating_mul(BLOCK),
            files: 1,
        }
    }

    /// Less so much, but never below zero.
    pub(crate) const fn less(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(other.bytes),
            files: self.files.saturating_sub(other.files),
        }
    }

    const fn times(self, count: u64) -> Self {
        Self {
            bytes: self.bytes.saturating_mul(count),
            files: self.files.saturating_mul(count),
        }
    }

    const fn part(self, of: u64) -> Self {
        Self {
            bytes: self.bytes / of,
            files: self.files / of,
        }
    }

    const fn fits(self, limit: Self) -> bool {
        self.bytes <= limit.bytes && self.files <= limit.files
    }
}

impl Add for Held {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            files: self.files.saturating_add(other.files),
        }
    }
}

impl AddAssign for Held {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl std::iter::Sum for Held {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::NOTHING, Add::add)
    }
}

/// Why a write gets no room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The namespace holds as much as it may.
    Namespace {
        namespace: Arc<str>,
        used: Held,
        quota: Held,
    },
    /// The free room is kept for ends of runs and small values.
    Volume,
}

/// Whether a namespace that holds `used` of its `quota` may write `wanted` more of that class, on a
/// volume where `pending` more than its `space` shows is promised to other writes.
fn admit(
    class: Class,
    wanted: Held,
    used: Held,
    quota: Held,
    pending: Held,
    space: Option<Space>,
) -> Admission {
    let is_scarce = space.is_some_and(|space| !leaves_a_tenth(space, pending + wanted));
    let may_hold = match class {
        Class::Bulk => quota,
        Class::Small => quota + quota.part(KEPT),
        // A namespace must not fill the volume with ends of runs either: while little is free, a
        // namespace that holds twice its quota waits.
        Class::End if is_scarce => quota + quota,
        Class::End => Held::EVERYTHING,
    };
    if !(used + wanted).fits(may_hold) {
        Admission::NamespaceFull
    } else if class == Class::Bulk && is_scarce {
        Admission::VolumeFull
    } else {
        Admission::Fits
    }
}

/// Whether a tenth of the volume stays free after so much more is written.
const fn leaves_a_tenth(space: Space, more: Held) -> bool {
    let Space {
        total,
        free,
        files,
        files_free,
    } = space;
    let has_bytes = free >= (total / KEPT).saturating_add(more.bytes);
    let has_files = files == 0 || files_free >= (files / KEPT).saturating_add(more.files);
    has_bytes && has_files
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Fits,
    NamespaceFull,
    VolumeFull,
}

/// The account of one Task's files.
#[derive(Debug, Default)]
struct Entry {
    namespace: Option<Arc<str>>,
    /// The room that its objects take, including objects that are just being written.
    objects: Held,
    /// How many objects each run has, by a hash of its id, sorted.
    runs: Vec<(u64, u64)>,
    /// The part of `objects` that is just being written, with its run.
    pending: Vec<(u64, Held)>,
    /// Whether its files were looked at.
    counted: bool,
    /// Whether the store itself names its namespace.
    labelled: bool,
}

impl Entry {
    /// All the room that it takes.
    fn total(&self) -> Held {
        if self.objects.files == 0 && !self.labelled {
            return Held::NOTHING;
        }
        TASK + RUN.times(self.runs.len() as u64) + self.objects
    }

    fn add(&mut self, run: u64, objects: Held) {
        self.objects += objects;
        match self.runs.binary_search_by_key(&run, |(run, _)| *run) {
            Ok(at) => self.runs[at].1 += objects.files,
            Err(at) if objects.files > 0 => self.runs.insert(at, (run, objects.files)),
            Err(_) => {}
        }
    }

    fn subtract(&mut self, run: u64, objects: Held) {
        self.objects = self.objects.less(objects);
        if let Ok(at) = self.runs.binary_search_by_key(&run, |(run, _)| *run) {
            self.runs[at].1 = self.runs[at].1.saturating_sub(objects.files);
            if self.runs[at].1 == 0 {
                self.runs.remove(at);
            }
        }
    }
}

/// A short key for a run: runs are only told apart, and ids are long.
fn key(run: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    run.hash(&mut hasher);
    hasher.finish()
}

/// What must be done before a Task's account is right.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// Look at its files.
    pub(crate) count: bool,
    /// Store that it is of this namespace.
    pub(crate) label: Option<Arc<str>>,
}

/// The files of a Task that a look finds.
#[derive(Debug, Default)]
pub(crate) struct Found {
    runs: BTreeMap<u64, Held>,
    labelled: bool,
}

impl Found {
    /// An object of a run.
    pub(crate) fn object(&mut self, run: &str, size: u64) {
        *self.runs.entry(key(run)).or_default() += Held::object(size);
    }

    /// The file that names the Task's namespace.
    pub(crate) fn label(&mut self) {
        self.labelled = true;
    }

    pub(crate) fn is_labelled(&self) -> bool {
        self.labelled
    }
}

/// The accounts of all namespaces.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    tasks: HashMap<Box<str>, Entry>,
    namespaces: BTreeMap<Arc<str>, Held>,
    /// What all Tasks hold, those of no known namespace too.
    all: Held,
    pending: Held,
}

impl Ledger {
    /// Notes which namespace a Task is charged to.
    pub(crate) fn charge(&mut self, task: &str, namespace: &str) {
        if self
            .tasks
            .get(task)
            .is_some_and(|entry| entry.namespace.is_some())
        {
            return;
        }
        let namespace = match self.namespaces.get_key_value(namespace) {
            Some((known, _)) => known.clone(),
            None => namespace.into(),
        };
        let entry = self.tasks.entry(task.into()).or_default();
        entry.namespace = Some(namespace.clone());
        let total = entry.total();
        self.change(Some(&namespace), Held::NOTHING, total);
    }

    pub(crate) fn due(&self, task: &str) -> Due {
        match self.tasks.get(task) {
            None => Due {
                count: true,
                label: None,
            },
            Some(entry) => Due {
                count: !entry.counted,
                label: entry.namespace.clone().filter(|_| !entry.labelled),
            },
        }
    }

    /// Notes the files that a look found.
    pub(crate) fn counted(&mut self, task: &str, found: &Found) {
        self.tasks.entry(task.into()).or_default();
        self.update(task, |entry| {
            entry.labelled |= found.labelled;
            if entry.counted {
                return;
            }
            entry.counted = true;
            entry.objects = Held::NOTHING;
            entry.runs.clear();
            for (run, object) in entry.pending.clone() {
                entry.add(run, object);
            }
            for (run, objects) in &found.runs {
                entry.add(*run, *objects);
            }
        });
    }

    /// Notes that the store itself names the Task's namespace now.
    pub(crate) fn labelled(&mut self, task: &str) {
        self.update(task, |entry| entry.labelled = true);
    }

    /// Whether one more object of a run may be written; takes no room.
    pub(crate) fn look(
        &self,
        (task, run): (&str, &str),
        object: Held,
        class: Class,
        quota: Quota,
        space: Option<Space>,
    ) -> Result<(), Refusal> {
        let entry = self.tasks.get(task);
        let namespace = entry.and_then(|entry| entry.namespace.clone());
        let used = namespace
            .as_ref()
            .and_then(|namespace| self.namespaces.get(namespace))
            .copied()
            .unwrap_or_default();
        let quota = match namespace {
            Some(_) => quota.limit(space),
            None => Held::EVERYTHING,
        };
        let mut wanted = object;
        if entry.is_none_or(|entry| entry.total() == Held::NOTHING) {
            wanted += TASK;
        }
        let run = key(run);
        let is_known = |entry: &Entry| entry.runs.binary_search_by_key(&run, |(run, _)| *run).is_ok();
        if !entry.is_some_and(is_known) {
            wanted += RUN;
        }
        match (admit(class, wanted, used, quota, self.pending, space), namespace) {
            (Admission::NamespaceFull, Some(namespace)) => Err(Refusal::Namespace {
                namespace,
                used,
                quota,
            }),
            (Admission::VolumeFull, _) => Err(Refusal::Volume),
            (Admission::Fits | Admission::NamespaceFull, _) => Ok(()),
        }
    }

    /// Takes room for a write that is about to happen: an object of a run, or the growth of one.
    pub(crate) fn take(
        &mut self,
        of: (&str, &str),
        object: Held,
        class: Class,
        quota: Quota,
        space: Option<Space>,
    ) -> Result<(), Refusal> {
        self.look(of, object, class, quota, space)?;
        let (task, run) = of;
        self.tasks.entry(task.into()).or_default();
        self.pending += object;
        self.update(task, |entry| {
            entry.add(key(run), object);
            entry.pending.push((key(run), object));
        });
        Ok(())
    }

    /// The write for which room was taken is done; or its outcome is not known, and the Task's
    /// files are looked at again before the next write.
    pub(crate) fn settle(&mut self, (task, run): (&str, &str), object: Held, written: bool) {
        self.pending = self.pending.less(object);
        if let Some(entry) = self.tasks.get_mut(task) {
            let settled = (key(run), object);
            if let Some(at) = entry.pending.iter().position(|pending| *pending == settled) {
                entry.pending.swap_remove(at);
            }
            entry.counted &= written;
        }
    }

    /// Objects of a run are gone, or smaller.
    pub(crate) fn give_back(&mut self, (task, run): (&str, &str), objects: Held) {
        self.update(task, |entry| entry.subtract(key(run), objects));
    }

    /// All of a Task is gone.
    pub(crate) fn remove(&mut self, task: &str) {
        if let Some(entry) = self.tasks.remove(task) {
            self.all = self.all.less(entry.total());
            self.change(entry.namespace.as_ref(), entry.total(), Held::NOTHING);
        }
    }

    /// Forgets Tasks without stored data; each is charged anew before its next write.
    pub(crate) fn tidy(&mut self) {
        self.tasks
            .retain(|_, entry| entry.total() != Held::NOTHING || !entry.pending.is_empty());
    }

    /// Whether the stored size of a Task is known.
    pub(crate) fn knows(&self, task: &str) -> bool {
        self.tasks.get(task).is_some_and(|entry| entry.counted)
    }

    /// Whether a Task has stored data and no known namespace.
    pub(crate) fn is_nobodys(&self, task: &str) -> bool {
        self.tasks
            .get(task)
            .is_some_and(|entry| entry.namespace.is_none() && entry.total() != Held::NOTHING)
    }

    /// Room that each namespace holds; a namespace without data is left out.
    pub(crate) fn usage(&self) -> BTreeMap<String, Held> {
        let of = |(namespace, held): (&Arc<str>, &Held)| (namespace.to_string(), *held);
        self.namespaces.iter().map(of).collect()
    }

    /// The room that everything takes, without what is just being written.
    pub(crate) fn written(&self) -> Held {
        self.all.less(self.pending)
    }

    /// Bytes that the accounts of one folder take, by namespace.
    pub(crate) fn usage_in(&self, folder: &str) -> BTreeMap<String, u64> {
        let mut usage = BTreeMap::new();
        for (owner, entry) in &self.tasks {
            let is_there = owner.split_once('/').is_some_and(|(of, _)| of == folder);
            if let Some(namespace) = entry.namespace.as_ref().filter(|_| is_there) {
                *usage.entry(namespace.to_string()).or_default() += entry.total().bytes;
            }
        }
        usage
    }

    /// Tasks of a namespace with stored data.
    pub(crate) fn tasks_of(&self, namespace: &str) -> Vec<String> {
        let is_theirs =
            |entry: &Entry| entry.total() != Held::NOTHING && entry.namespace.as_deref() == Some(namespace);
        let theirs = self.tasks.iter().filter(|(_, entry)| is_theirs(entry));
        theirs.map(|(uid, _)| uid.to_string()).collect()
    }

    /// Changes the account of a Task, and with it that of its namespace.
    fn update(&mut self, task: &str, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.tasks.get_mut(task) {
            let before = entry.total();
            change(entry);
            let (after, namespace) = (entry.total(), entry.namespace.clone());
            self.all = self.all.less(before) + after;
            self.change(namespace.as_ref(), before, after);
        }
    }

    fn change(&mut self, namespace: Option<&Arc<str>>, before: Held, after: Held) {
        let Some(namespace) = namespace else { return };
        let held = self.namespaces.entry(namespace.clone()).or_default();
        *held = held.less(before) + after;
        if *held == Held::NOTHING {
            self.namespaces.remove(namespace);
        }
    }
}

#[cfg(test)]
mod tests;
