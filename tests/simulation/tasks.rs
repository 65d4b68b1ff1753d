//! Tasks: what users do with them, and the rules. The world keeps a ledger of every run that an agent began, which
//! no agent and no process can change.
//!
//! A liar's machine, and a machine without a record (somebody tore the record off, or a restore forgot it), excuse
//! what happens to their own runs. After a restore a run from before may begin a second time
//! (docs/decisions/0011-restored-clusters.md says when).

use std::collections::{BTreeMap, BTreeSet, btree_map::Range};

use futures::{FutureExt as _, StreamExt as _};
use kube::ResourceExt as _;
use object_store::ObjectStore as _;
use rand::Rng;
use serde_json::json;
use skyward_api::{Task, TaskPhase};
use skyward_apisim::Change;
use skyward_planner::task::model::{RunId, Uid};
use skyward_remote::protocol::RunSpec;

use crate::{
    journal::{End, Run},
    play::Play,
    rules::{read, text},
    time::{Moment, now},
    world::{CLUSTER, TEAM, Truth, World, one_of},
};

/// A run that an agent began.
#[derive(Clone, Debug)]
struct Begun {
    /// The cloud's id of its machine.
    machine: String,
    ends: (Moment, End),
    /// Whether it began before the API server went back to a backup.
    is_old: bool,
}

/// What the rules remember of runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tasks {
    begun: BTreeMap<RunId, Begun>,
    /// UIDs of Tasks that are gone.
    gone: BTreeSet<String>,
    /// How many Tasks users made.
    made: u32,
}

impl Tasks {
    /// A run that another machine has than this one, for a liar to tell of.
    pub(crate) fn run_elsewhere(&self, machine: &str) -> Option<String> {
        let mut others = self.begun.iter().rev();
        let other = others.find(|(_, begun)| begun.machine != machine);
        other.map(|(id, _)| id.to_string())
    }

    /// The API server went back to an earlier state.
    pub(crate) fn begin_anew(&mut self) {
        for begun in self.begun.values_mut() {
            begun.is_old = true;
        }
        self.gone.clear();
    }

    fn of(&self, uid: &str) -> Range<'_, RunId, Begun> {
        let uid = Uid::from(uid);
        let all = RunId::new(&uid, 0, 0)..=RunId::new(&uid, u32::MAX, u32::MAX);
        self.begun.range(all)
    }
}

impl Truth {
    /// Whether what that machine does, and what becomes of its runs, breaks no rule.
    pub(crate) fn is_excused(&self, id: &str) -> bool {
        let machine = self.machine(id);
        self.liars.contains(id) || machine.is_none_or(|machine| self.torn.contains(&machine.mark.machine_uid))
    }

    /// Whether a machine runs what it has.
    fn works(&self, id: &str) -> bool {
        let at = now();
        let works = |machine: &crate::cloud::Rented| {
            machine.exists(at) && at < machine.fails_at && at < machine.halts_at
        };
        self.machine(id).is_some_and(works)
    }

    /// The agent of that machine changed how its runs end.
    pub(crate) fn note_ends(&mut self, machine: &str) {
        let runs = self.machine(machine).map(|machine| &machine.agent.runs);
        let ends: Vec<(RunId, (Moment, End))> = runs
            .into_iter()
            .flatten()
            .filter_map(|(id, run)| Some((RunId::parse(id)?, run.ends)))
            .collect();
        for (id, ends) in ends {
            if let Some(begun) = self.tasks.begun.get_mut(&id)
                && begun.machine == machine
            {
                begun.ends = ends;
            }
        }
    }
}

impl World {
    fn task(&self, name: &str, uid: &str) -> Option<Task> {
        let object = self.server.get("tasks", TEAM, name)?;
        (text(&object, "/metadata/uid") == uid).then(|| read(&object))
    }

    /// An agent begins a run: no run begins twice, while another attempt of its Task goes on, before it is on
    /// record, or when its Task has ended.
    pub(crate) fn may_start(&self, truth: &mut Truth, machine: &str, spec: &RunSpec, run: &Run) {
        let Some(id) = RunId::parse(&spec.run_id) else {
            return truth.rule(false, || format!("{:?} is the id of no run", spec.run_id));
        };
        if !truth.is_excused(machine) {
            let counts = |begun: &&Begun| !begun.is_old && !truth.is_excused(&begun.machine);
            let before = truth.tasks.begun.get(&id).filter(counts);
            let before = before.map(|begun| begun.machine.clone());
            let mut others = truth
                .tasks
                .of(&id.uid)
                .filter(|(other, _)| other.attempt != id.attempt);
            let beside = others
                .find(|(_, begun)| counts(begun) && begun.ends.0 > now() && truth.works(&begun.machine));
            let beside = beside.map(|(other, _)| other.clone());
            truth.rule(before.is_none(), || {
                format!("{id} begins at {machine}, and has begun at {before:?}")
            });
            truth.rule(beside.is_none(), || {
                format!("{id} begins at {machine} while {beside:?} goes on")
            });
            if let Some(task) = self.task(&spec.task, &id.uid) {
                let mut awaited = task.spec.depends_on.iter();
                let early = awaited.find(|awaited| !self.has_succeeded(&awaited.task));
                truth.rule(early.is_none(), || {
                    format!("{id} begins before {early:?}, which its Task depends on, has succeeded")
                });
                let status = task.status.unwrap_or_default();
                let phase = status.phase.unwrap_or_default();
                truth.rule(!phase.is_finished(), || {
                    format!("{id} begins although its Task is {}", phase.as_str())
                });
                truth.rule(status.attempt >= id.attempt, || {
                    format!("{id} begins, and on record is attempt {}", status.attempt)
                });
                let limit = task.spec.timeout.and_then(|limit| limit.parse());
                let limit = limit.map_or(Moment::MAX, |limit| limit.as_millis() as Moment);
                let takes = run.ends.0 - now();
                // That of a map is the limit of each item.
                truth.rule(takes <= limit || spec.worker.is_some(), || {
                    format!("{id} takes {takes} ms, and its Task says {limit}")
                });
            }
        }
        let begun = Begun {
            machine: machine.to_owned(),
            ends: run.ends,
            is_old: false,
        };
        truth.tasks.begun.insert(id, begun);
    }

    /// Before an agent forgets a run: its end is on record, or its Task needs it no more.
    pub(crate) fn may_forget(&self, truth: &mut Truth, machine: &str, run: &str) {
        let Some(id) = RunId::parse(run) else { return };
        self.observe_items(truth);
        let objects = self.server.all("tasks");
        let task = objects
            .iter()
            .find(|task| text(task, "/metadata/uid") == &*id.uid);
        let status = task
            .and_then(|task| read::<Task>(task).status)
            .unwrap_or_default();
        let mut is_needed = status.phase == Some(TaskPhase::Running) && status.attempt == id.attempt;
        // A worker of a map is needed for what it has told of no item.
        let share = truth
            .machine(machine)
            .and_then(|machine| machine.agent.runs.get(run)?.share.as_ref());
        if let Some(share) = share {
            is_needed &= share.has_untold();
        }
        let is_its = truth
            .tasks
            .begun
            .get(&id)
            .is_some_and(|begun| begun.machine == machine);
        let excused = truth.is_excused(machine);
        truth.rule(!is_needed || !is_its || excused, || {
            format!("{id} is forgotten before its end is on record")
        });
    }

    /// Runs that a machine has, and that the only copy of their Task's outcome is of.
    pub(crate) fn needed_runs(&self, truth: &Truth, id: &str) -> Vec<String> {
        let there = truth.machine(id).filter(|machine| machine.answers(now()));
        let Some(machine) = there.filter(|_| !truth.is_excused(id)) else {
            return Vec::new();
        };
        let objects = self.server.all("tasks");
        let is_needed = |run: &RunId| {
            let mut named = objects
                .iter()
                .filter(|task| text(task, "/metadata/uid") == &*run.uid);
            named.any(|object| {
                let task: Task = read(object);
                let status = task.status.unwrap_or_default();
                // What other runs of an attempt did says nothing where one of them was lost.
                status.phase == Some(TaskPhase::Running)
                    && status.attempt == run.attempt
                    && status.placed.len() == 1
                    && task.spec.suspend != Some(true)
            })
        };
        let own = machine
            .agent
            .runs
            .iter()
            .filter(|(_, run)| run.ends.1.is_its_own() && run.share.is_none());
        own.filter_map(|(id, _)| RunId::parse(id))
            .filter(is_needed)
            .map(|run| run.to_string())
            .collect()
    }

    /// A Task was written: it ends once, succeeds when its runs did, and runs again only if it did not end by
    /// itself.
    pub(crate) fn task_changed(&self, change: &Change) {
        let uid = text(&change.object, "/metadata/uid");
        let mut truth = self.truth();
        let Some(before) = &change.before else { return };
        if change.gone {
            // Of ended Tasks, which are not watched, the hourly sweep deletes what is stored.
            let status = read::<Task>(before).status.unwrap_or_default();
            if !status.phase.unwrap_or_default().is_finished() {
                truth.tasks.gone.insert(uid.to_owned());
            }
            return;
        }
        let name = text(&change.object, "/metadata/name");
        let old = read::<Task>(before).status.unwrap_or_default();
        let new = read::<Task>(&change.object).status.unwrap_or_default();
        let phase = old.phase.unwrap_or_default();
        if phase.is_finished() {
            let is_same = (old.phase, old.attempt, &old.results) == (new.phase, new.attempt, &new.results);
            return truth.rule(is_same, || {
                format!("Task {name} had ended ({}), and ends again", phase.as_str())
            });
        }
        if new.attempt > old.attempt && old.attempt > 0 {
            let truth = &mut *truth;
            let ended_by_itself = |begun: &Begun| {
                begun.ends.1.is_its_own()
                    && begun.ends.0 <= now()
                    && !begun.is_old
                    && truth.works(&begun.machine)
                    && !truth.is_excused(&begun.machine)
            };
            let runs: Vec<&Begun> = truth
                .tasks
                .of(uid)
                .filter(|(id, _)| id.attempt == old.attempt)
                .map(|(_, begun)| begun)
                .collect();
            let needs_another = runs.len() != old.placed.len()
                || runs.is_empty()
                || !runs.iter().all(|begun| ended_by_itself(begun));
            let spec = read::<Task>(before).spec;
            let on_failure = spec
                .retries
                .and_then(|retries| retries.on_failure)
                .unwrap_or_default();
            let is_retried = on_failure > 0
                && old.failures <= on_failure
                && runs.iter().any(|begun| begun.ends.1 != End::Exits(0));
            truth.rule(needs_another || is_retried, || {
                format!(
                    "Task {name} runs again, and attempt {} had ended by itself",
                    old.attempt
                )
            });
        }
        let task: Task = read(&change.object);
        if task.spec.for_each.is_some() {
            if new.phase.unwrap_or_default().is_finished() {
                self.map_may_end(&mut truth, &task);
            }
            return;
        }
        if new.phase == Some(TaskPhase::Succeeded) {
            let truth = &mut *truth;
            let runs = truth.tasks.of(uid).filter(|(id, _)| id.attempt == new.attempt);
            let (mut count, mut failed) = (0, None);
            for (id, begun) in runs {
                count += 1;
                let succeeded = begun.ends.1 == End::Exits(0) && begun.ends.0 <= now();
                if !succeeded && !truth.is_excused(&begun.machine) {
                    failed = Some(format!("{id}: {begun:?}"));
                }
            }
            truth.rule(count > 0 || !truth.liars.is_empty(), || {
                format!("Task {name} succeeds without a run")
            });
            truth.rule(failed.is_none(), || {
                format!("Task {name} succeeds although {}", failed.unwrap_or_default())
            });
        }
    }

    /// Tasks that could have ended and have not, and runs that agents still have; nothing once all is calm.
    pub(crate) fn task_unrest(&self) -> Vec<String> {
        let mut unrest = Vec::new();
        let pools = self.server.all("pools");
        for object in self.server.all("tasks") {
            let task: Task = read(&object);
            let status = task.status.clone().unwrap_or_default();
            let phase = status.phase.unwrap_or_default();
            let pool = pools
                .iter()
                .find(|pool| text(pool, "/metadata/name") == task.pool());
            // A Pool of its own is yet to be made.
            let without = u64::from(task.spec.pool_template.is_some());
            let desired = pool.map_or(without, |pool| {
                pool["spec"]["nodes"]["desired"].as_u64().unwrap_or(1)
            });
            let may_wait = desired == 0 && phase != TaskPhase::Running;
            if !phase.is_finished() && !may_wait {
                let name = task.name_any();
                unrest.push(format!("Task {name} is {}: {}", phase.as_str(), status.reason));
            }
        }
        unrest.extend(self.runs_left());
        unrest
    }

    /// Runs at agents of machines on record.
    pub(crate) fn runs_left(&self) -> Vec<String> {
        let records = self.server.all("machines");
        let recorded: BTreeSet<&str> = records
            .iter()
            .map(|record| text(record, "/metadata/uid"))
            .collect();
        let truth = self.truth();
        let machines = truth.clouds.values().flat_map(|cloud| &cloud.rented);
        let checked = machines.filter(|machine| {
            machine.answers(now())
                && machine.mark.cluster == CLUSTER
                && recorded.contains(machine.mark.machine_uid.as_str())
                && !truth.liars.contains(&machine.id)
        });
        let left = checked.flat_map(|machine| {
            let runs = machine.agent.runs.keys();
            runs.map(move |run| format!("{} still has run {run}", machine.id))
        });
        left.collect()
    }

    /// What the store has of Tasks that are gone, where no process died: the store's hourly sweep, which finds
    /// the rest, reads the times of the host.
    pub(crate) fn stored_in_vain(&self) -> Vec<String> {
        let stored = self.store.list(None).collect::<Vec<_>>().now_or_never();
        let truth = self.truth();
        if truth.processes > 1 {
            return Vec::new();
        }
        let paths = stored.into_iter().flatten().filter_map(Result::ok);
        let paths = paths.map(|object| object.location.to_string());
        let of_gone = |path: &String| path.split('/').any(|part| truth.tasks.gone.contains(part));
        paths
            .filter(of_gone)
            .map(|path| format!("{path} is stored in vain"))
            .collect()
    }
}

impl Play {
    /// A user makes a Task.
    pub(crate) fn add_task(&mut self) {
        let placement = one_of(&mut self.random, &["One", "One", "All", "Head"]);
        self.add_task_of(placement);
    }

    /// A user makes a Task for one of the Pools.
    pub(crate) fn add_task_of(&mut self, placement: &str) {
        let Some(pool) = self.one_named("pools") else {
            return;
        };
        let timeout = one_of(&mut self.random, &[None, None, Some("5s"), Some("30s")]);
        let retries = one_of(&mut self.random, &[None, Some(0), Some(5)]);
        let number = {
            let mut truth = self.world.truth();
            truth.tasks.made += 1;
            truth.tasks.made
        };
        let task = json!({ "metadata": { "name": format!("t{number}") }, "spec": {
            "pool": pool,
            "command": ["work"],
            "placement": placement,
            "timeout": timeout,
            "retries": retries.map(|retries| json!({ "onInterruption": retries })),
        }});
        self.tell(format!("somebody makes a Task: {task}"));
        let made = self.world.server.put("tasks", TEAM, task);
        made.expect("it is not there yet");
        self.note();
    }

    /// A user makes a Task with a Pool of its own.
    pub(crate) fn add_whole_job(&mut self, name: &str, provider: &str, desired: u32) {
        let task = json!({ "metadata": { "name": name }, "spec": {
            "command": ["work"],
            "placement": "All",
            "poolTemplate": { "spec": {
                "provider": provider,
                "nodes": { "desired": desired },
                "topology": "Independent",
                "provisionRetryDelay": "5s",
            } },
        }});
        self.tell(format!("somebody makes a Task with a Pool of its own: {task}"));
        let made = self.world.server.put("tasks", TEAM, task);
        made.expect("it is not there yet");
        self.note();
    }

    /// A user changes a Task's mind.
    pub(crate) fn happen_to_a_task(&mut self) {
        let what = self.random.random_range(0..5);
        let Some(name) = self.one_named("tasks").filter(|_| what > 1) else {
            return self.add_task();
        };
        if what == 2 {
            self.tell(format!("somebody deletes Task {name}"));
            let _gone = self.world.server.delete("tasks", TEAM, &name);
        } else {
            let suspend = self.random.random_bool(0.5);
            self.suspend_task(&name, suspend);
        }
        self.note();
    }

    fn suspend_task(&self, name: &str, suspend: bool) {
        self.tell(format!("Task {name} is suspended: {suspend}"));
        let spec = json!({ "spec": { "suspend": suspend } });
        let _gone = self.world.server.change("tasks", TEAM, name, spec);
    }

    pub(crate) fn resume_tasks(&mut self) {
        for name in self.names("tasks") {
            self.suspend_task(&name, false);
        }
        self.note();
    }

    /// The agent of a machine dies and begins anew, or its machine restarts.
    pub(crate) fn happen_to_an_agent(&mut self) {
        let (which, restarts) = (self.random.random_range(0..1000), self.random.random_bool(0.3));
        let at = now();
        let mut truth = self.world.truth();
        let machines = truth.clouds.values().flat_map(|cloud| &cloud.rented);
        let there = machines.filter(|machine| machine.answers(at) && machine.mark.cluster == CLUSTER);
        let ids: Vec<String> = there.map(|machine| machine.id.clone()).collect();
        if ids.is_empty() {
            return;
        }
        let id = &ids[which % ids.len()];
        self.world.observe_items(&mut truth);
        truth.tell(format!(
            "the agent of {id} dies; its machine restarts: {restarts}"
        ));
        if let Some(machine) = truth.rented(id) {
            if restarts {
                machine.agent.restart(at);
            } else {
                machine.agent.die();
            }
        }
        truth.note_ends(id);
    }
}
