//! The world: objects, machines, and messages under way.

use super::{
    agents::{Machine, fact_of},
    *,
};
use crate::task::own_pool;

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) pool: Option<PoolView>,
    pub(super) others: Vec<String>,
    pub(super) machines: BTreeMap<SlotAttempt, Machine>,
    pub(super) objects: BTreeMap<Uid, Task>,
    pub(super) version: u64,
    connections: u64,
    attempts: u32,
    pub(super) dispatcher: Dispatcher,
    pub(super) effects: Vec<Effect>,
    /// What the watch will show, in order.
    pub(super) watch: VecDeque<Event>,
    /// Answers and facts; facts of one machine stay in order.
    pub(super) answers: VecDeque<Event>,
    /// Terminal transitions of each Task.
    pub(super) ends: BTreeMap<Uid, u32>,
    /// How often each Task's status was written.
    pub(super) writes: BTreeMap<Uid, u32>,
    pub(super) deleted_stored: Vec<Uid>,
    pub(super) published: Vec<&'static str>,
    /// What the metrics count: causes of further attempts, and reasons of Tasks that failed.
    pub(super) counted: Vec<String>,
    /// Machines whose agents made it doubt that this process leads.
    pub(super) doubted: Vec<Arc<str>>,
    /// What the result store has of ends.
    pub(super) outcomes: BTreeMap<RunId, Box<Collected>>,
    /// Why the result store takes and gives nothing now.
    pub(super) store_problem: Option<CollectError>,
    /// Since when runs wait for room in the store, as the store knows it.
    pub(super) waits_since: BTreeMap<RunId, Timestamp>,
    /// Whether the start of a wait cannot be recorded.
    pub(super) writes_no_since: bool,
    /// Whether machines withhold the logs and results of their runs.
    pub(super) withholds: bool,
    /// Runs whose value was given up.
    pub(super) gave_up: Vec<RunId>,
    pub(super) missing_references: bool,
    /// Why the API server refuses Pools.
    pub(super) refuses_pools: Option<&'static str>,
    /// Whether watches show Pools as they are; else the dispatcher sees none of what happens to them.
    pub(super) shows_pools: bool,
    /// How often it was asked to make one, how many were made, and the UIDs of Pools that were deleted.
    pub(super) pools_asked_for: u32,
    pub(super) pools_made: u32,
    pub(super) pools_deleted: Vec<String>,
    /// Digest of the files that every source has now; `None`: each source has the files that are on record.
    pub(super) content: Option<&'static str>,
    /// What a fetch from git answers; `None`: nothing, as a slow host.
    pub(super) repository: Option<Result<SourceStatus, StartError>>,
    /// How often a Task was read that others depend on.
    pub(super) dependency_reads: u32,
    /// The fetches that were asked for, and the fetches that were given up.
    pub(super) fetches: Vec<FetchOrder>,
    pub(super) cancelled: Vec<FetchKey>,
    /// The files that runs were started with, in order.
    pub(super) started_with: Vec<(Uid, Option<String>)>,
    /// How many machines each run was told of, and how many ranks of each.
    pub(super) told_of: BTreeMap<RunId, (usize, u32)>,
    /// Names of Tasks whose statuses the API server will never take.
    pub(super) invalid: BTreeSet<String>,
    /// Maps that run, each with what it was told last.
    pub(super) maps: BTreeMap<Uid, Option<MapNews>>,
    /// Tell the history, to look into one.
    pub(super) told: bool,
    /// What is written down of it, and the last heading there.
    pub(super) story: Option<(String, String)>,
    /// Each try to store what a run left is written down.
    pub(super) tells_collections: bool,
}

pub(super) fn view(concurrency: u32, desired: u32) -> PoolView {
    PoolView {
        name: "p".into(),
        uid: "pool-uid".into(),
        owner: None,
        created: Timestamp::from_second(1).unwrap(),
        deleted_at: None,
        why_suspended: None,
        desired,
        min: desired,
        concurrency,
        threads: None,
        devices: skyward_api::pool::Devices::default(),
        shutdown: Duration::from_mins(1),
        retries: skyward_api::task::Retries {
            on_interruption: Some(1000),
            ..Default::default()
        },
        not_ready: None,
        env: Vec::new(),
        env_from: Vec::new(),
        log_limit: 256 << 20,
        user: None,
        preload: Vec::new(),
        reuse_processes: true,
        buffer: 0,
        reference: Default::default(),
    }
}

impl World {
    pub(super) fn new(concurrency: u32, desired: u32) -> Self {
        let mut world = Self {
            now: Timestamp::from_second(1_000_000).unwrap(),
            pool: Some(view(concurrency, desired)),
            others: Vec::new(),
            machines: BTreeMap::new(),
            objects: BTreeMap::new(),
            version: 1,
            connections: 0,
            attempts: 0,
            dispatcher: Dispatcher::new(Key::new("n", "p")),
            effects: Vec::new(),
            watch: VecDeque::new(),
            answers: VecDeque::new(),
            ends: BTreeMap::new(),
            writes: BTreeMap::new(),
            deleted_stored: Vec::new(),
            published: Vec::new(),
            counted: Vec::new(),
            doubted: Vec::new(),
            outcomes: BTreeMap::new(),
            store_problem: None,
            waits_since: BTreeMap::new(),
            writes_no_since: false,
            withholds: false,
            gave_up: Vec::new(),
            missing_references: false,
            refuses_pools: None,
            shows_pools: true,
            pools_asked_for: 0,
            pools_made: 0,
            pools_deleted: Vec::new(),
            content: Some("sha256:first"),
            repository: Some(Ok(SourceStatus {
                digest: "sha256:first".into(),
                commit: "c1".into(),
            })),
            dependency_reads: 0,
            fetches: Vec::new(),
            cancelled: Vec::new(),
            started_with: Vec::new(),
            told_of: BTreeMap::new(),
            invalid: BTreeSet::new(),
            maps: BTreeMap::new(),
            told: std::env::var_os("SKYWARD_TASK_HISTORY").is_some(),
            story: None,
            tells_collections: true,
        };
        for slot in 0..desired {
            world.add_machine(slot);
        }
        world.restart();
        world
    }

    pub(super) fn add_machine(&mut self, slot: u32) -> SlotAttempt {
        self.attempts += 1;
        let place = SlotAttempt {
            slot,
            attempt: self.attempts,
        };
        self.connections += 1;
        let machine = Machine {
            connection: Some(self.connections),
            following: None,
            runs: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            ready: true,
            changing: false,
            environment: "",
            deleting: false,
            ending: false,
            out_of_memory: None,
            refuses_epoch: false,
        };
        self.machines.insert(place, machine);
        place
    }

    pub(super) fn views(&self) -> Event {
        let machines = self.machines.iter().map(|(place, machine)| MachineView {
            place: *place,
            name: format!("p-{place}").into(),
            ready: machine.ready && !machine.deleting,
            changing: machine.changing,
            environment: machine.environment.into(),
            deleting: machine.deleting,
            ending: machine.ending,
            reclaim_at: None,
            address: format!("10.0.0.{}", place.slot),
            public_address: None,
            accelerator: None,
            out_of_memory: machine.out_of_memory.clone(),
            hourly_price: skyward_core::Usd::cents(250),
            connection: machine.connection,
        });
        Event::Views {
            pool: self.pool.clone().map(Arc::new),
            machines: machines.collect(),
            others: self.others.clone(),
        }
    }

    /// The API server takes a Pool of one machine, unless one is there.
    pub(super) fn make_pool(&mut self, pool: &skyward_api::Pool) -> Result<(), PoolError> {
        self.pools_asked_for += 1;
        if let Some(why) = self.refuses_pools {
            return Err(PoolError::Refused(why.to_owned()));
        }
        if self.pool.is_none() {
            self.pools_made += 1;
            self.pool = Some(PoolView {
                uid: format!("pool-{}", self.pools_made),
                owner: own_pool::owner(pool),
                created: self.now,
                ..view(1, 1)
            });
            self.pools_changed();
        }
        Ok(())
    }

    /// A Pool that is deleted stays until its machines are gone.
    pub(super) fn delete_pool(&mut self, uid: &str) {
        let now = self.now;
        if let Some(pool) = self
            .pool
            .as_mut()
            .filter(|pool| pool.uid == uid && pool.deleted_at.is_none())
        {
            pool.deleted_at = Some(now);
            self.pools_deleted.push(uid.to_owned());
            self.pools_changed();
        }
    }

    fn pools_changed(&mut self) {
        if self.shows_pools {
            let views = self.views();
            self.watch.push_back(views);
        }
    }

    pub(super) fn show_views(&mut self) {
        let views = self.views();
        self.tell(views);
    }

    /// The controller dies and another one starts: all that was under way is lost.
    pub(super) fn restart(&mut self) {
        self.effects.clear();
        self.watch.clear();
        self.answers.clear();
        self.maps.clear();
        self.dispatcher = Dispatcher::new(Key::new("n", "p"));
        for machine in self.machines.values_mut() {
            machine.following = None;
            if machine.connection.is_some() {
                self.connections += 1;
                machine.connection = Some(self.connections);
            }
        }
        self.show_views();
        for task in self.objects.values() {
            let entry = Entry::of(task).unwrap();
            if !entry.phase().is_finished() {
                self.watch.push_back(Event::Task(Box::new(entry)));
            }
        }
        self.watch.push_back(Event::Synced);
    }

    pub(super) fn create(&mut self, name: &str, placement: serde_json::Value) -> Uid {
        self.create_with(
            name,
            json!({ "pool": "p", "command": ["true"], "placement": placement }),
        )
    }

    pub(super) fn create_with(&mut self, name: &str, spec: serde_json::Value) -> Uid {
        self.version += 1;
        let uid = format!("uid-{name}");
        let task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": name, "namespace": "n", "uid": uid, "generation": 1,
                          "resourceVersion": self.version.to_string(),
                          "creationTimestamp": self.now.to_string() },
            "spec": spec,
        }))
        .unwrap();
        let uid: Uid = uid.into();
        self.objects.insert(uid.clone(), task);
        self.show(&uid);
        self.tell_dependents(name);
        uid
    }

    pub(super) fn edit(&mut self, uid: &Uid, change: impl FnOnce(&mut Task)) {
        self.version += 1;
        let version = self.version.to_string();
        let Some(task) = self.objects.get_mut(uid) else {
            return;
        };
        change(task);
        task.metadata.resource_version = Some(version);
        self.show(uid);
    }

    pub(super) fn delete(&mut self, uid: &Uid) {
        if let Some(task) = self.objects.remove(uid) {
            self.watch.push_back(Event::Left(uid.clone()));
            self.tell_dependents(task.metadata.name.as_deref().unwrap_or_default());
        }
    }

    /// As the router does when a Task comes, ends or is deleted that others wait for.
    fn tell_dependents(&mut self, name: &str) {
        let mut dependencies = self.objects.values().flat_map(|task| &task.spec.depends_on);
        if dependencies.any(|dependency| dependency.task == name) {
            self.watch.push_back(Event::DependencyChanged(name.into()));
        }
    }

    fn show(&mut self, uid: &Uid) {
        let entry = Entry::of(&self.objects[uid]).unwrap();
        if entry.phase().is_finished() {
            self.watch.push_back(Event::Left(uid.clone()));
            self.tell_dependents(&entry.name);
        } else {
            self.watch.push_back(Event::Task(Box::new(entry)));
        }
    }

    pub(super) fn tell(&mut self, event: Event) {
        if self.told {
            println!("{} told {event:?}", self.now);
        }
        self.dispatcher.on(event, self.now);
        self.effects.extend(self.dispatcher.settle(self.now));
        self.check();
    }

    pub(super) fn status(&self, uid: &Uid) -> TaskStatus {
        self.objects
            .get(uid)
            .and_then(|task| task.status.clone())
            .unwrap_or_default()
    }

    fn check(&self) {
        let mut counted = (0, 0);
        for task in self.dispatcher.tasks.values() {
            match &task.stage {
                Stage::Waiting(_) => counted.0 += u32::from(task.queues()),
                Stage::Placing(_) | Stage::Running(_) => counted.1 += 1,
                Stage::Ending(_) => {}
            }
        }
        let (waiting, running, _, _) = self.dispatcher.counts();
        assert_eq!((waiting, running), counted, "Tasks that wait, and that run");
        let Some(pool) = &self.pool else { return };
        for (place, machine) in &self.machines {
            let active = machine.runs.values().filter(|run| run.finished.is_none()).count();
            assert!(
                active <= pool.concurrency as usize,
                "{active} runs on {place}, which takes {}",
                pool.concurrency
            );
        }
    }

    /// Somebody on the machine asks a run to end.
    pub(super) fn stop_run(&mut self, place: SlotAttempt, id: &RunId) {
        self.machines
            .get_mut(&place)
            .unwrap()
            .runs
            .get_mut(id)
            .unwrap()
            .stopping = true;
    }

    /// A run ends by itself, or because it was asked to.
    pub(super) fn finish(&mut self, place: SlotAttempt, id: &RunId, code: i32) {
        self.end_run(place, id, Ending::Exited, code, "");
    }

    /// The function of a run raises, unless the run was asked to end.
    pub(super) fn raise(&mut self, place: SlotAttempt, id: &RunId, exception: &str) {
        self.end_run(place, id, Ending::FunctionRaised, 1, exception);
    }

    fn end_run(&mut self, place: SlotAttempt, id: &RunId, ending: Ending, code: i32, exception: &str) {
        let now = self.now.as_millisecond() as u64;
        let machine = self.machines.get_mut(&place).unwrap();
        let run = machine.runs.get_mut(id).unwrap();
        let ending = if run.stopping { Ending::Stopped } else { ending };
        let finished = Finished {
            ending,
            exit_code: code,
            message: id.to_string(),
            exception: exception.to_owned(),
            started_ms: now,
            finished_ms: now,
            // Larger than what the fact carries: somebody must fetch it.
            log_bytes: 100_000,
            ..Finished::default()
        };
        run.finished = Some(finished.clone());
        if machine.following.is_some() && machine.following == machine.connection {
            self.answers.push_back(fact_of(place, id, Some(finished)));
        }
    }

    pub(super) fn active(&self) -> Vec<(SlotAttempt, RunId)> {
        let of = |(place, machine): (&SlotAttempt, &Machine)| {
            let runs = machine.runs.iter().filter(|(_, run)| run.finished.is_none());
            runs.map(|(id, _)| (*place, id.clone())).collect::<Vec<_>>()
        };
        self.machines.iter().flat_map(of).collect()
    }

    /// The one run that has not ended.
    pub(super) fn only_run(&self) -> (SlotAttempt, RunId) {
        let active = self.active();
        assert_eq!(active.len(), 1, "{active:?}");
        active[0].clone()
    }

    /// No more faults: time passes until nothing is left to do.
    pub(super) fn calm(&mut self) {
        for _ in 0..2000 {
            if let Some(event) = self.watch.pop_front().or_else(|| self.answers.pop_front()) {
                self.tell(event);
            } else if let Some(effect) = (!self.effects.is_empty()).then(|| self.effects.remove(0)) {
                self.carry_out(effect, false, false);
            } else if let Some((place, id)) = self.active().into_iter().next() {
                self.finish(place, &id, 0);
            } else if self.dispatcher.is_empty() {
                return;
            } else {
                self.now += Duration::from_secs(1);
                self.tell(Event::Tick);
            }
        }
    }

    /// Until no message is under way; runs go on and time stands still.
    pub(super) fn quiet(&mut self) {
        for _ in 0..2000 {
            if let Some(event) = self.watch.pop_front().or_else(|| self.answers.pop_front()) {
                self.tell(event);
            } else if self.effects.is_empty() {
                return;
            } else {
                let effect = self.effects.remove(0);
                self.carry_out(effect, false, false);
            }
        }
        panic!("it does not come to rest");
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += Duration::from_secs(1);
            self.tell(Event::Tick);
            self.quiet();
        }
    }

    /// So many quarters of a second, each with what came in it.
    pub(super) fn moments(&mut self, moments: u64) {
        for _ in 0..moments {
            self.now += Duration::from_millis(250);
            if self.dispatcher.has_newcomers() {
                self.tell(Event::Newcomers);
            }
            self.quiet();
        }
    }

    pub(super) fn lose_machine(&mut self, place: SlotAttempt) {
        self.machines.remove(&place);
        self.answers
            .retain(|event| !matches!(event, Event::Fact(at, _) if *at == place));
        self.show_views();
    }

    /// The kernel kills the whole machine for want of memory.
    pub(super) fn starve(&mut self, place: SlotAttempt) {
        if let Some(machine) = self.machines.get_mut(&place) {
            machine.out_of_memory = Some("give the Pool more memory".into());
            machine.ready = false;
        }
        self.flap(place, false);
    }

    /// The machine is given up, and does not wait for its runs.
    pub(super) fn take_back(&mut self, place: SlotAttempt) {
        if let Some(machine) = self.machines.get_mut(&place) {
            (machine.deleting, machine.ending) = (true, true);
        }
        self.show_views();
    }

    pub(super) fn flap(&mut self, place: SlotAttempt, back: bool) {
        let Some(machine) = self.machines.get_mut(&place) else {
            return;
        };
        machine.following = None;
        self.answers
            .retain(|event| !matches!(event, Event::Fact(at, _) if *at == place));
        machine.connection = back.then(|| {
            self.connections += 1;
            self.connections
        });
        self.show_views();
    }
}
