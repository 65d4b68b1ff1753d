//! Tasks that other Tasks depend on: whether a dependent Task may start, and which Tasks wait for each other in a
//! circle. Pure: what was read of Tasks comes in, nothing is read here.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use skyward_api::{
    Task, TaskPhase,
    condition::reason,
    task::{Dependency, DependencyCondition, DependencyStatus, awaited},
};

use crate::task::{
    model::{Entry, Uid},
    status::Why,
};

/// Tasks that are looked at in the search for a circle: one user may make chains of thousands, and the search is
/// made for each of them. Circles of more Tasks are not named; each of their Tasks still says which ones it waits for.
const MOST: usize = 256;

/// A Task that others depend on, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its UID.
    pub uid: Uid,
    /// Its phase.
    pub phase: TaskPhase,
    /// The reason of its phase, such as `NonZeroExit`.
    pub reason: String,
    /// Whether outcomes of its items are kept: created again, it would run all items again.
    pub has_items: bool,
}

impl Found {
    /// From the object; `None` when the API server left out its UID, which it never does.
    pub fn of(task: &Task) -> Option<Self> {
        let status = task.status.as_ref();
        Some(Self {
            uid: task.metadata.uid.as_deref()?.into(),
            phase: status.and_then(|status| status.phase).unwrap_or_default(),
            reason: status.map(|status| status.reason.clone()).unwrap_or_default(),
            has_items: status.is_some_and(|status| status.items.is_some()),
        })
    }
}

/// What is known of the Task of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Known {
    /// It has not been read yet.
    #[default]
    Unread,
    /// There is no Task of that name.
    Missing,
    /// There is one.
    There(Found),
}

/// Whether a Task may start, by the Tasks that it depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// One of them has to be read first.
    Unread,
    /// It waits for them.
    Waits(Why),
    /// All of them ended as they must.
    Satisfied,
    /// It never starts.
    Failed(Why),
}

/// The names of the Tasks that a Task waits for, by its record: of none once it was placed.
pub fn waits_for(entry: &Entry) -> Vec<Arc<str>> {
    if entry.status.attempt > 0 {
        return Vec::new();
    }
    let names = awaited(&entry.depends_on, &entry.status.dependencies);
    names.map(Arc::from).collect()
}

/// The names of the Tasks whose results a Task may still read: the Tasks that a map depends on, until it has its items.
pub fn reads(entry: &Entry) -> Vec<Arc<str>> {
    if entry.map.is_none() || entry.status.items.is_some() {
        return Vec::new();
    }
    let names = entry.depends_on.iter().map(|other| other.task.as_str());
    names.map(Arc::from).collect()
}

/// Decides from what is known of the Tasks that one depends on, and notes in `records` what is found out.
pub fn judge<'a>(
    wanted: &[Dependency],
    records: &mut Vec<DependencyStatus>,
    known: impl Fn(&str) -> &'a Known,
) -> Verdict {
    let (mut is_unread, mut failure) = (false, None);
    let (mut running, mut missing) = (Vec::new(), Vec::new());
    for dependency in wanted {
        let name = dependency.task.as_str();
        let at = records.iter().position(|record| record.task == name);
        let record = at.and_then(|at| records.get_mut(at));
        if record.as_ref().is_some_and(|record| record.satisfied) {
            continue;
        }
        match (record, known(name)) {
            (_, Known::Unread) => is_unread = true,
            (None, Known::Missing) => missing.push(name),
            (Some(record), Known::There(found)) if *record.uid == *found.uid => {
                match end(dependency, found) {
                    End::Awaited => running.push(name),
                    End::AsWanted => record.satisfied = true,
                    End::Otherwise(why) => failure = failure.or(Some(why)),
                }
            }
            // The Task that was found first counts, and not a later one of its name.
            (Some(_), Known::Missing | Known::There(_)) => failure = failure.or_else(|| Some(deleted(name))),
            (None, Known::There(found)) => {
                let end = end(dependency, found);
                records.push(DependencyStatus {
                    task: name.to_owned(),
                    uid: found.uid.to_string(),
                    satisfied: matches!(end, End::AsWanted),
                });
                match end {
                    End::Awaited => running.push(name),
                    End::AsWanted => {}
                    End::Otherwise(why) => failure = failure.or(Some(why)),
                }
            }
        }
    }
    match failure {
        Some(why) => Verdict::Failed(why),
        None if is_unread => Verdict::Unread,
        None if running.is_empty() && missing.is_empty() => Verdict::Satisfied,
        None => Verdict::Waits(waits(&running, &missing)),
    }
}

/// How a Task that was found stands to what is wanted of it.
enum End {
    Awaited,
    AsWanted,
    Otherwise(Why),
}

fn end(dependency: &Dependency, found: &Found) -> End {
    match (dependency.status.unwrap_or_default(), found.phase) {
        (_, TaskPhase::Pending | TaskPhase::Running | TaskPhase::Suspended) => End::Awaited,
        (_, TaskPhase::Succeeded) | (DependencyCondition::Finished, TaskPhase::Failed) => End::AsWanted,
        (DependencyCondition::Complete, TaskPhase::Failed) => {
            let name = &dependency.task;
            let again = if found.has_items {
                format!(
                    "run its items that are left (`kubectl skyward retry {name}`), then create this Task again"
                )
            } else {
                "then create both Tasks again".to_owned()
            };
            End::Otherwise(Why::new(
                reason::DEPENDENCY_FAILED,
                format!(
                    "Task \"{name}\", which this Task depends on, failed with {}; mend its cause, {again}",
                    found.reason
                ),
            ))
        }
    }
}

fn deleted(name: &str) -> Why {
    Why::new(
        reason::DEPENDENCY_FAILED,
        format!(
            "Task \"{name}\", which this Task depends on, was deleted before it ended; create this Task again to have \
             it wait for a new one of that name"
        ),
    )
}

/// For the user. The text changes with the record only, so that a status is written once for each change of it.
fn waits(running: &[&str], missing: &[&str]) -> Why {
    let tasks = |names: &[&str]| {
        let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
        let kind = if names.len() == 1 { "Task" } else { "the Tasks" };
        format!("{kind} {}", quoted.join(", "))
    };
    let lacks = |names: &[&str]| {
        let verb = if names.len() == 1 { "does" } else { "do" };
        format!("{}, which {verb} not exist yet", tasks(names))
    };
    let message = match (running, missing) {
        (running, []) => format!("waits for the end of {}", tasks(running)),
        ([], missing) => format!("waits for {}", lacks(missing)),
        (running, missing) => format!(
            "waits for the end of {}, and for {}",
            tasks(running),
            lacks(missing)
        ),
    };
    Why::new(reason::WAITING_FOR_TASK, message)
}

/// Why none of the Tasks of a circle starts, for the user.
pub fn in_circle(names: &[Arc<str>]) -> Why {
    let next = names.iter().cycle().skip(1);
    let pairs = names.iter().zip(next);
    let told: Vec<String> = pairs
        .map(|(name, next)| format!("\"{name}\" waits for \"{next}\""))
        .collect();
    Why::new(
        reason::DEPENDENCY_CYCLE,
        format!(
            "Tasks depend on each other in a circle, so that none of them starts: delete one of them and create it \
             without that dependency: {}",
            told.join(", ")
        ),
    )
}

/// News about a Task: the Tasks that wait for each other, beginning anywhere; none any more when empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Circle {
    /// Pool of the Task.
    pub pool: String,
    /// UID of the Task.
    pub uid: Uid,
    /// Names of the Tasks of the circle.
    pub names: Arc<[Arc<str>]>,
}

/// Which Tasks of one namespace wait for which others, over all Pools.
#[derive(Debug, Default)]
pub struct Graph {
    /// Tasks that wait for others, by their names.
    nodes: HashMap<Arc<str>, Node>,
    /// Names that are waited for, each with the names of the Tasks that do.
    dependents: HashMap<Arc<str>, BTreeSet<Arc<str>>>,
}

#[derive(Debug)]
struct Node {
    uid: Uid,
    pool: String,
    waits_for: Vec<Arc<str>>,
    in_circle: bool,
}

impl Graph {
    /// Whether no Task waits for another one.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Takes in for which Tasks one waits now. Answers for which Tasks it is news that they are in a circle, or are
    /// in none any more.
    pub fn set(&mut self, entry: &Entry, waits_for: Vec<Arc<str>>) -> Vec<Circle> {
        let known = self.nodes.get(&entry.name);
        let is_same = known.is_some_and(|node| node.uid == entry.uid && node.waits_for == waits_for);
        if is_same || (known.is_none() && waits_for.is_empty()) {
            return Vec::new();
        }
        let was_in_circle = known.is_some_and(|node| node.in_circle);
        let was_itself = known.is_some_and(|node| node.uid == entry.uid && node.in_circle);
        self.take_out(&entry.name);
        if waits_for.is_empty() {
            return self.freed(&entry.name, was_in_circle);
        }
        for name in &waits_for {
            let dependents = self.dependents.entry(name.clone()).or_default();
            dependents.insert(entry.name.clone());
        }
        let node = Node {
            uid: entry.uid.clone(),
            pool: entry.pool.clone(),
            waits_for,
            in_circle: false,
        };
        self.nodes.insert(entry.name.clone(), node);
        let names = self.circle(&entry.name);
        let mut news = self.freed(&entry.name, was_in_circle);
        if names.is_empty() && was_itself {
            news.push(Circle {
                pool: entry.pool.clone(),
                uid: entry.uid.clone(),
                names: names.clone(),
            });
        }
        for name in &*names {
            if let Some(node) = self.nodes.get_mut(name) {
                node.in_circle = true;
                news.push(Circle {
                    pool: node.pool.clone(),
                    uid: node.uid.clone(),
                    names: names.clone(),
                });
            }
        }
        news
    }

    /// The Task is gone, or has ended. Answers which other Tasks are in no circle any more.
    pub fn remove(&mut self, name: &str, uid: &Uid) -> Vec<Circle> {
        let Some(node) = self.nodes.get(name).filter(|node| node.uid == *uid) else {
            return Vec::new();
        };
        let was_in_circle = node.in_circle;
        self.take_out(name);
        self.freed(name, was_in_circle)
    }

    /// The Tasks that were in a circle with the Task of that name, which waits for others than before, and are in none any
    /// more.
    fn freed(&mut self, name: &str, was_in_circle: bool) -> Vec<Circle> {
        let mut found: BTreeSet<Arc<str>> = BTreeSet::new();
        let mut next: VecDeque<Arc<str>> = VecDeque::new();
        if was_in_circle {
            next.push_back(name.into());
        }
        while let Some(at) = next.pop_front() {
            for dependent in self.dependents.get(&at).into_iter().flatten() {
                let was_too = self.nodes.get(dependent).is_some_and(|node| node.in_circle);
                if was_too && found.len() < MOST && found.insert(dependent.clone()) {
                    next.push_back(dependent.clone());
                }
            }
        }
        let mut news = Vec::new();
        for name in found {
            if !self.circle(&name).is_empty() {
                continue;
            }
            if let Some(node) = self.nodes.get_mut(&name) {
                node.in_circle = false;
                news.push(Circle {
                    pool: node.pool.clone(),
                    uid: node.uid.clone(),
                    names: Arc::default(),
                });
            }
        }
        news
    }

    /// The Pools of the Tasks that wait for the Task of that name.
    pub fn pools_waiting_for(&self, name: &str) -> BTreeSet<&str> {
        let names = self.dependents.get(name).into_iter().flatten();
        let nodes = names.filter_map(|name| self.nodes.get(name));
        nodes.map(|node| node.pool.as_str()).collect()
    }

    fn take_out(&mut self, name: &str) {
        let Some(node) = self.nodes.remove(name) else {
            return;
        };
        for other in &node.waits_for {
            if let Some(dependents) = self.dependents.get_mut(other) {
                dependents.remove(name);
                if dependents.is_empty() {
                    self.dependents.remove(other);
                }
            }
        }
    }

    /// The shortest circle that a Task is in, from it on; empty when there is none.
    fn circle(&self, name: &str) -> Arc<[Arc<str>]> {
        let Some((start, _)) = self.nodes.get_key_value(name) else {
            return Arc::default();
        };
        let mut came_from: HashMap<&str, &Arc<str>> = HashMap::new();
        let mut next = VecDeque::from([start]);
        while let Some(at) = next.pop_front() {
            for other in self.nodes.get(at).into_iter().flat_map(|node| &node.waits_for) {
                if other == start {
                    let back = std::iter::successors(Some(at), |at| came_from.get(&***at).copied());
                    let mut names: Vec<Arc<str>> = back.cloned().collect();
                    names.reverse();
                    return names.into();
                }
                let is_new = self.nodes.contains_key(other) && !came_from.contains_key(&**other);
                if is_new && came_from.len() < MOST {
                    came_from.insert(other, at);
                    next.push_back(other);
                }
            }
        }
        Arc::default()
    }
}

#[cfg(test)]
mod tests;
