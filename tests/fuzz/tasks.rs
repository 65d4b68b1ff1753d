//! Tasks as the API server may hold them, with any value in any field, and whatever machines tell of their runs,
//! through the dispatcher of a Pool: nothing panics, and what is written can be read again.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skyward_api::{
    Machine, Pool, Task, labels,
    task::{RunResult, SourceStatus},
};
use skyward_core::session::AgentError;
use skyward_planner::{
    base::key::Key,
    map::plan::Verdict,
    pool::resolved::ResolvedPool,
    task::{
        dependencies::Found,
        dispatcher::{Dispatcher, is_complete},
        message::{
            ClusterMemory, CollectError, Collected, Effect, Event, FetchedSource, MapTold, PoolError,
            Remembered, StartError, WriteError,
        },
        model::{Entry, MachineView, PoolView, RunId, SlotAttempt, Uid},
        references::Resolved,
        run::{Ending, Fact, Finished, RunState, Told},
        status,
    },
};

use crate::document::{clock, document};

/// Most rounds of effects and answers.
const ROUNDS: usize = 12;
/// Most effects of one round that are answered.
const ANSWERED: usize = 64;

const ENDINGS: [Ending; 16] = [
    Ending::Exited,
    Ending::Unknown,
    Ending::Signaled,
    Ending::TimedOut,
    Ending::Stopped,
    Ending::StartFailed,
    Ending::ShimLost,
    Ending::DiskFull,
    Ending::FunctionRaised,
    Ending::BadSource,
    Ending::ResultNotJson,
    Ending::ResultTooLarge,
    Ending::MachineRestarted,
    Ending::OutOfMemory,
    Ending::Interrupted,
    Ending::Exited,
];

fn known() -> Vec<Value> {
    let metadata = |name: &str, uid: &str| {
        json!({
            "name": name, "namespace": "team", "uid": uid, "generation": 1, "resourceVersion": "7",
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": [labels::FINALIZER]
        })
    };
    let task = |name: &str, uid: &str, work: Value| {
        let mut task = json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task", "metadata": metadata(name, uid),
            "spec": {
                "pool": "train", "placement": "All", "timeout": "1h", "terminationGracePeriod": "30s",
                "activeDeadline": "6h", "queueTimeout": "1h",
                "retries": {
                    "onInterruption": 2, "onFailure": 2, "backoff": { "initial": "2s", "max": "1m" },
                    "rules": [
                        { "exitCodes": [64], "action": "Fail" }, { "reasons": ["TimedOut"], "action": "Ignore" },
                        { "exceptions": ["a.B"], "action": "Retry" }
                    ]
                },
                "priority": 5, "env": [{ "name": "A", "value": "b" }],
                "envFrom": [{ "configMapRef": { "name": "c", "optional": true }, "prefix": "P_" }],
                "workingDir": "/tmp", "suspend": false, "ttlSecondsAfterFinished": 60
            }
        });
        if let (Some(spec), Value::Object(work)) = (task["spec"].as_object_mut(), work) {
            spec.extend(work);
        }
        task
    };
    let machine = |slot: u32| {
        json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine",
            "metadata": metadata(&format!("train-{slot}-1"), &format!("m{slot}")),
            "spec": {
                "pool": "train", "poolUid": "p", "slot": slot, "attempt": 1, "provider": "acme", "offer": "acme-h100",
                "instanceType": "h100", "market": "OnDemand", "hourlyPrice": "2", "token": "t", "templateHash": "h",
                "grantedAccelerator": { "name": "H100", "count": 8, "memory": "80Gi" }
            },
            "status": {
                "phase": "Ready", "id": "i", "address": "192.0.2.1", "privateAddress": "10.0.0.1", "reclaimAt": null,
                "conditions": [{ "type": "Ready", "status": "True", "reason": "Ready", "message": "",
                                 "lastTransitionTime": "2026-01-01T00:04:00Z" }]
            }
        })
    };
    let world = json!({
        "now": "2026-01-01T00:05:00Z", "pass": [0, 1, 5, 60, 4000],
        "pool": {
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": metadata("train", "p"),
            "spec": { "provider": "acme", "nodes": { "desired": 2 }, "worker": { "concurrency": 2 }, "logs": { "limit": "1Gi" } }
        },
        "machines": [machine(0), machine(1)],
        "tasks": [
            task("command", "t1", json!({ "command": ["uname", "-a"] })),
            task("function", "t2", json!({ "placement": 1, "function": { "source": "def f(): pass", "entrypoint": "f", "args": [1], "kwargs": { "a": null } } })),
            task("script", "t3", json!({ "placement": "One", "script": { "interpreter": "bash", "source": "true" } })),
            task("after", "t4", json!({ "placement": "One", "command": ["true"], "dependsOn": [
                { "task": "command" }, { "task": "function", "status": "Finished" }, { "task": "missing" }
            ] })),
            task("map", "t5", json!({ "placement": "One", "command": ["true", "$(SKYWARD_ITEM)"],
                                      "forEach": { "count": 9, "parallelism": 2, "maxFailedItems": 3 } }))
        ],
        "connections": [1, 2, null],
        "answers": [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 2],
        "end": { "ending": 0, "code": 0, "signal": 0, "message": "it exited", "exception": "a.B", "started": 1, "finished": 2, "logBytes": 5,
                 "dropped": 0, "log": "1 o F", "tail": "end", "resultBytes": 4, "result": "null", "hasResult": true },
        "facts": ["t1-1-0", "t1-1-1", "t9-1-0"],
        "value": { "a": [1, 2.5, "x"] }
    });
    let mut placed = world.clone();
    placed["tasks"][0]["status"] = json!({
        "phase": "Running", "attempt": 1, "restarts": 0, "interruptions": 0, "mode": "command",
        "placed": [{ "slot": 0, "attempt": 1 }, { "slot": 1, "attempt": 1 }], "startedAt": "2026-01-01T00:04:00Z",
        "conditions": [{ "type": "Running", "status": "True", "reason": "Started", "message": "", "lastTransitionTime": "2026-01-01T00:04:00Z" }]
    });
    let mut going = placed.clone();
    going["tasks"][0]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:04:30Z");
    going["pool"]["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:04:30Z");
    vec![world, placed, going]
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![vec![0], vec![1], vec![2]]
}

pub(crate) fn run(data: &[u8]) {
    static KNOWN: LazyLock<Vec<Value>> = LazyLock::new(known);
    let raw = document(data, &KNOWN);
    let Some(now) = read(&raw["now"]).map(clock) else {
        return;
    };
    let mut world = World {
        dispatcher: Dispatcher::new(Key::new("team", "train")).holding_for(Duration::from_secs(60)),
        tasks: BTreeMap::new(),
        asked: 0,
        now,
        raw,
    };
    world.play();
}

fn read<T: serde::de::DeserializeOwned>(value: &Value) -> Option<T> {
    serde_json::from_value(value.clone()).ok()
}

fn each<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    value.as_array().into_iter().flatten().filter_map(read).collect()
}

struct World {
    dispatcher: Dispatcher,
    tasks: BTreeMap<Uid, Task>,
    asked: usize,
    now: Timestamp,
    raw: Value,
}

impl World {
    fn on(&mut self, event: Event) {
        self.dispatcher.on(event, self.now);
    }

    /// What becomes of the next effect: 0 is success.
    fn outcome(&mut self) -> u64 {
        let answers = self.raw["answers"].as_array().map_or(&[][..], Vec::as_slice);
        let answer = answers
            .get(self.asked % answers.len().max(1))
            .and_then(Value::as_u64);
        self.asked += 1;
        answer.unwrap_or_default() % 6
    }

    fn play(&mut self) {
        self.views();
        for task in each::<Task>(&self.raw["tasks"]) {
            if let Some(entry) = Entry::of(&task) {
                assert!(entry.status.results.is_empty());
                self.tasks.insert(entry.uid.clone(), task);
                self.on(Event::Task(Box::new(entry)));
            }
        }
        self.on(Event::Memory(ClusterMemory::Whole));
        self.on(Event::Synced);
        let pass = each::<i64>(&self.raw["pass"]);
        for round in 0..ROUNDS {
            let effects = self.dispatcher.settle(self.now);
            for effect in effects.into_iter().take(ANSWERED) {
                self.carry_out(effect);
            }
            let seconds = pass.get(round % pass.len().max(1)).copied().unwrap_or_default();
            let later = self.now.checked_add(SignedDuration::from_secs(seconds));
            self.now = clock(later.unwrap_or(Timestamp::MAX)).max(self.now);
            self.on(Event::Tick);
            self.on(Event::Newcomers);
            let _ = (self.dispatcher.load(), self.dispatcher.wants_ticks());
            if round == ROUNDS / 2 {
                self.views();
                let uids: Vec<Uid> = self.tasks.keys().cloned().collect();
                for uid in uids {
                    self.on(Event::Left(uid));
                }
            }
        }
        let _ = (self.dispatcher.is_empty(), self.dispatcher.has_newcomers());
    }

    fn views(&mut self) {
        let pool = read::<Pool>(&self.raw["pool"]);
        let pool = pool.and_then(|pool| PoolView::of(&pool, &ResolvedPool::of(&pool.spec)));
        let connections = &self.raw["connections"];
        let machines = each::<Machine>(&self.raw["machines"]);
        let machines = machines.iter().enumerate();
        let views: Vec<MachineView> = machines
            .filter_map(|(number, machine)| MachineView::of(machine, None, connections[number].as_u64()))
            .collect();
        for view in &views {
            let _ = (
                view.peer(),
                view.grace(Duration::from_secs(30), self.now),
                view.takes_runs(),
            );
        }
        self.on(Event::Views {
            pool: pool.map(Arc::new),
            machines: views,
            others: Vec::new(),
        });
    }

    fn end(&self) -> Finished {
        let end = &self.raw["end"];
        let text = |name: &str| end[name].as_str().unwrap_or_default().to_owned();
        let number = |name: &str| end[name].as_u64().unwrap_or_default();
        let signed = |name: &str| end[name].as_i64().unwrap_or_default() as i32;
        Finished {
            ending: ENDINGS[number("ending") as usize % ENDINGS.len()],
            exit_code: signed("code"),
            signal: signed("signal"),
            message: text("message"),
            exception: text("exception"),
            started_ms: number("started"),
            finished_ms: number("finished"),
            log_bytes: number("logBytes"),
            log_dropped_bytes: number("dropped"),
            log: text("log").into_bytes(),
            log_tail: text("tail").into_bytes(),
            result_bytes: number("resultBytes"),
            result: text("result").into_bytes(),
            has_result: end["hasResult"] == json!(true),
            forked: end["forked"].as_bool(),
        }
    }

    fn collected(&self, run: &RunId) -> Box<Collected> {
        let end = self.end();
        let _ = is_complete(&end);
        let result: RunResult = serde_json::from_value(json!({
            "rank": run.rank, "machine": "train-0-1", "attempt": run.attempt, "reason": "Completed",
            "exitCode": end.exit_code, "message": end.message, "value": self.raw["value"],
            "logTail": String::from_utf8_lossy(&end.log_tail)
        }))
        .expect("a result");
        let reason = if end.exit_code == 0 {
            "Completed"
        } else {
            "ExitCode"
        };
        Box::new(Collected { result, reason })
    }

    fn state(&mut self) -> Box<Told<RunState>> {
        let state = match self.outcome() {
            1 => RunState::Finished(self.end()),
            2 => RunState::Unknown,
            _ => RunState::Running,
        };
        Box::new(state.into())
    }

    fn carry_out(&mut self, effect: Effect) {
        let outcome = self.outcome();
        let lost = || AgentError::Disconnected("gone".into());
        match effect {
            Effect::Resolve { uid, .. } => {
                let resolved = match outcome {
                    0 => Ok(Arc::new(Resolved::default())),
                    _ => Err("there is no Secret of that name".into()),
                };
                self.on(Event::Resolved(uid, resolved));
            }
            Effect::Fetch(order) => {
                let result = match outcome {
                    0 => Ok(FetchedSource {
                        source: SourceStatus {
                            digest: "sha256:first".into(),
                            commit: "first".into(),
                        },
                        not_kept: (order.number % 2 == 1).then(|| "the store is busy".into()),
                    }),
                    1 => Err(StartError::References("there is no Secret of that name".into())),
                    2 => Err(StartError::NotNow("given up".into())),
                    3 => Err(StartError::Agent(AgentError::Refused("no".into()))),
                    _ => Err(StartError::Agent(lost())),
                };
                let number = order.number;
                self.on(Event::Fetched { number, result });
            }
            Effect::Write {
                uid,
                write,
                status,
                version,
                ..
            } => {
                let written = serde_json::to_string(&*status).expect("a status is JSON");
                assert!(
                    written.len() <= status::MAX,
                    "a status of {} bytes",
                    written.len()
                );
                assert_eq!(serde_json::from_str(&written).ok().as_ref(), Some(&*status));
                let _ = status::patch(&uid, &version, &status);
                let result = match (outcome, self.tasks.get_mut(&uid)) {
                    (_, None) | (1, _) => Err(WriteError::Gone),
                    (2, _) => Err(WriteError::Conflict),
                    (3, _) => Err(WriteError::Invalid("no".into())),
                    (4, _) => Err(WriteError::Unknown("timed out".into())),
                    (_, Some(task)) => {
                        task.status = Some(*status);
                        let version: u64 = version.parse().unwrap_or(1);
                        task.metadata.resource_version = Some(version.saturating_add(1).to_string());
                        Ok(Arc::new(task.clone()))
                    }
                };
                self.on(Event::Written { uid, write, result });
            }
            Effect::Reread { uid, .. } => {
                let read = match outcome {
                    0 => Ok(self.tasks.get(&uid).cloned().map(Arc::new)),
                    1 => Ok(None),
                    _ => Err("timed out".into()),
                };
                self.on(Event::Reread(uid, read));
            }
            Effect::ReadDependency(name) => {
                let named = |task: &&Task| task.metadata.name.as_deref() == Some(&*name);
                let found = self.tasks.values().find(named).and_then(Found::of);
                let read = match outcome {
                    0 | 1 => Ok(found),
                    2 => Ok(None),
                    _ => Err("timed out".into()),
                };
                if outcome == 1 {
                    self.on(Event::DependencyChanged(name.clone()));
                    self.on(Event::Circle("t4".into(), [name.clone()].into()));
                }
                self.on(Event::Dependency(name, read));
            }
            Effect::MakePool(pool) => {
                let _ = serde_json::to_string(&*pool).expect("a Pool is JSON");
                let made = match outcome {
                    0 => Ok(()),
                    1 => Err(PoolError::Refused("no".into())),
                    _ => Err(PoolError::Unknown("timed out".into())),
                };
                self.on(Event::PoolMade(made));
            }
            Effect::DeletePool(_) => {
                let deleted = if outcome == 0 {
                    Ok(())
                } else {
                    Err("timed out".into())
                };
                self.on(Event::PoolDeleted(deleted));
            }
            Effect::ListMachines => {
                let places = each::<Machine>(&self.raw["machines"])
                    .into_iter()
                    .map(|machine| SlotAttempt {
                        slot: machine.spec.slot,
                        attempt: machine.spec.attempt,
                    });
                let listed = match outcome {
                    0 => Ok(places.collect()),
                    1 => Ok(Vec::new()),
                    _ => Err("timed out".into()),
                };
                self.on(Event::MachinesListed(listed));
            }
            Effect::Follow {
                place, connection, ..
            } => self.facts(place, connection, outcome),
            Effect::Start(order) => {
                let result = match outcome {
                    0 => Ok(self.state()),
                    1 => Err(StartError::TaskGone),
                    2 => Err(StartError::NotNow("timed out".into())),
                    3 => Err(StartError::Agent(AgentError::Refused("too large".into()))),
                    _ => Err(StartError::Agent(lost())),
                };
                self.on(Event::Started {
                    run: order.run.clone(),
                    connection: order.connection,
                    result,
                });
            }
            Effect::Stop { run, connection, .. } => {
                let result = if outcome == 0 {
                    Ok(self.state())
                } else {
                    Err(lost())
                };
                self.on(Event::Stopped {
                    run,
                    connection,
                    result,
                });
            }
            Effect::Forget { runs, .. } => self.on(Event::Forgotten {
                runs,
                result: if outcome == 0 { Ok(()) } else { Err(lost()) },
            }),
            Effect::Collect(order) => {
                let run = order.run.clone();
                if outcome > 2 {
                    self.on(Event::Held(run.clone(), self.now));
                }
                let collected = collected(outcome, || self.collected(&run));
                self.on(Event::Collected(run, collected));
            }
            Effect::Recall(run) => {
                let recalled = collected(outcome, || self.collected(&run)).map(Some);
                self.on(Event::Recalled(run, recalled));
            }
            Effect::RecallTask { uid, after } => {
                let run = RunId::new(&uid, after, 0);
                let outcome = collected(outcome, || self.collected(&run)).map(|collected| Remembered {
                    newest: after.saturating_add(1),
                    outcome: Some((after.saturating_add(1), collected)),
                });
                self.on(Event::TaskRecalled(uid, outcome));
            }
            Effect::CopyLog { run, .. } => self.on(Event::LogCopied(run)),
            Effect::BeginMap(order) => {
                let told = match outcome {
                    0 => under_way(),
                    1 => MapTold {
                        fault: Some(status::Why::new("InvalidItems", "no")),
                        ..MapTold::default()
                    },
                    _ => MapTold {
                        trouble: Some(status::Why::new("ItemsNotRead", "not now")),
                        ..MapTold::default()
                    },
                };
                self.on(Event::MapTold(order.uid.clone(), order.attempt, Box::new(told)));
            }
            Effect::TellMap(uid, news) => {
                let ranks: Vec<u32> = news.workers.iter().map(|worker| worker.rank).collect();
                let told = MapTold {
                    close: if outcome == 1 { ranks.clone() } else { Vec::new() },
                    done_with: if outcome > 1 { ranks } else { Vec::new() },
                    verdict: [
                        None,
                        None,
                        None,
                        Some(Verdict::Complete),
                        Some(Verdict::SomeFailed),
                    ]
                    .get(outcome as usize)
                    .copied()
                    .unwrap_or(Some(Verdict::TooManyFailed)),
                    ..under_way()
                };
                let task = self.tasks.get(&uid);
                let attempt = task.and_then(|task| Some(task.status.as_ref()?.attempt));
                self.on(Event::MapTold(uid, attempt.unwrap_or(1), Box::new(told)));
            }
            _ => {}
        }
    }

    /// An agent tells of its runs.
    fn facts(&mut self, place: SlotAttempt, connection: u64, outcome: u64) {
        for text in each::<String>(&self.raw["facts"]).iter().take(16) {
            let Some(run) = RunId::parse(text) else { continue };
            for finished in [None, Some(self.end())].into_iter().take(1 + outcome as usize) {
                let fact = Fact {
                    run: run.clone(),
                    finished,
                };
                self.on(Event::Fact(place, Box::new(fact.into())));
            }
        }
        self.on(Event::Replayed { place, connection });
        if outcome > 3 {
            self.on(Event::FollowEnded { place, connection });
        }
    }
}

fn under_way() -> MapTold {
    MapTold {
        total: Some(9),
        useful: 9,
        ..MapTold::default()
    }
}

fn collected(outcome: u64, found: impl FnOnce() -> Box<Collected>) -> Result<Box<Collected>, CollectError> {
    match outcome {
        0 => Ok(found()),
        1 => Err(CollectError::Machine("gone".into())),
        2 => Err(CollectError::Full("full".into())),
        3 => Err(CollectError::Quota("full".into())),
        4 => Err(CollectError::TooLarge("large".into())),
        _ => Err(CollectError::Store("broken".into())),
    }
}
