//! Every metric of the controller, with its help text and its labels.
//!
//! Labels are closed sets (kind, operation, phase, error category); the only names are those of
//! Providers, Pools and namespaces, read from the caches at a scrape, and the only ids those of
//! machines that wait for a decision after a restore, at most a hundred of a Provider. No label is
//! made of a message.

mod cost;
mod restore;

use std::{sync::Arc, time::Duration};

use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry, Unit},
};
use skyward_api::{MachinePhase, PoolPhase, TaskPhase, condition, pool::ScalingReason};
use skyward_core::clock;
use skyward_planner::{
    base::{key::Key, time::elapsed},
    restore::evidence::Evidence,
    task::message::Cause,
};
use skyward_remote::{
    Connections,
    sessions::{MachineKey, Stage},
};
use skyward_store::Store;

use crate::{accounts::fleet::Fleet, caches::Caches, hints::pool_loads::PoolLoads};

/// The sources that a scrape reads.
#[derive(Clone)]
pub struct Sources {
    /// Objects, as the watches show them.
    pub caches: Caches,
    /// The Machines of all Pools.
    pub fleet: Arc<Fleet>,
    /// Connections to machines.
    pub sessions: Arc<dyn Connections>,
    /// Logs and results.
    pub store: Arc<Store>,
    /// What dispatchers know.
    pub loads: Arc<PoolLoads>,
}

type Labels = Vec<(&'static str, String)>;

/// The metrics and their registry.
pub struct Metrics {
    registry: Registry,
    reconciles: Family<Labels, Counter>,
    reconcile_seconds: Family<Labels, Histogram>,
    reconcile_errors: Family<Labels, Counter>,
    provider_calls: Family<Labels, Counter>,
    provider_seconds: Family<Labels, Histogram>,
    machines: Family<Labels, Gauge>,
    machine_ready_seconds: Histogram,
    environment_changes: Family<Labels, Counter>,
    pools: Family<Labels, Gauge>,
    desired_machines: Family<Labels, Gauge>,
    pool_scalings: Family<Labels, Counter>,
    queued_tasks: Family<Labels, Gauge>,
    queued_items: Family<Labels, Gauge>,
    running_tasks: Family<Labels, Gauge>,
    queue_age: Family<Labels, Gauge>,
    task_transitions: Family<Labels, Counter>,
    task_failures: Family<Labels, Counter>,
    task_retries: Family<Labels, Counter>,
    runs: Family<Labels, Counter>,
    items: Family<Labels, Counter>,
    functions: Family<Labels, Counter>,
    sessions: Family<Labels, Gauge>,
    events_dropped: Counter,
    store_bytes: Family<Labels, Counter>,
    source_bytes: Counter,
    source_fetches: Family<Labels, Counter>,
    store_failures: Family<Labels, Counter>,
    stored_now: Family<Labels, Gauge>,
    store_creates: Family<Labels, Gauge>,
    bundles_now: Family<Labels, Gauge>,
    uploads: Family<Labels, Counter>,
    unstored_runs: Family<Labels, Gauge>,
    api_writes: Family<Labels, Counter>,
    invalid_objects: Family<Labels, Counter>,
    orphans_deleted: Counter,
    panics: Family<Labels, Counter>,
    restore: restore::RestoreMetrics,
    leader: Gauge,
    cost: cost::CostMetrics,
}

/// Registers a metric, and gives it back to be counted with.
fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a metric that has a unit.
fn register_in<M: Metric + Clone>(
    registry: &mut Registry,
    unit: Unit,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    registry.register_with_unit(name, help, unit, metric.clone());
    metric
}

/// The one label of a value.
fn by(label: &'static str, value: impl Into<String>) -> Labels {
    vec![(label, value.into())]
}

fn seconds() -> Histogram {
    Histogram::new([0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("skyward");
        let r = &mut registry;
        Self {
            cost: cost::CostMetrics::register(r),
            restore: restore::RestoreMetrics::register(r),
            reconciles: register(r, "reconciles", "Reconciles, by kind"),
            reconcile_seconds: register_in(
                r,
                Unit::Seconds,
                "reconcile",
                "Time of a reconcile, by kind",
                Family::new_with_constructor(seconds),
            ),
            reconcile_errors: register(
                r,
                "reconcile_errors",
                "Reconciles that failed, by kind and category",
            ),
            provider_calls: register(
                r,
                "provider_calls",
                "Calls to providers, by provider, operation and outcome",
            ),
            provider_seconds: register_in(
                r,
                Unit::Seconds,
                "provider_call",
                "Time of a call to a provider, by provider and operation",
                Family::new_with_constructor(seconds),
            ),
            machines: register(r, "machines", "Machines, by phase"),
            machine_ready_seconds: register_in(
                r,
                Unit::Seconds,
                "machine_ready",
                "From the order of a machine until it takes runs",
                Histogram::new([1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0]),
            ),
            environment_changes: register(
                r,
                "environment_changes",
                "Changes of environments of machines, by what became of them",
            ),
            pools: register(r, "pools", "Pools, by phase"),
            desired_machines: register(
                r,
                "pool_desired_machines",
                "Machines that each Pool works towards",
            ),
            pool_scalings: register(
                r,
                "pool_scalings",
                "Decisions about numbers of machines, by their reasons",
            ),
            queued_tasks: register(r, "queued_tasks", "Tasks that wait, by Pool"),
            queued_items: register(r, "queued_items", "Items of running maps that wait, by Pool"),
            running_tasks: register(r, "running_tasks", "Tasks that run, by Pool"),
            queue_age: register_in(
                r,
                Unit::Seconds,
                "queue_age",
                "How long the Task has waited for a start that has waited longest, by Pool",
                Family::default(),
            ),
            task_transitions: register(r, "task_transitions", "Tasks that entered a phase"),
            task_failures: register(
                r,
                "task_failures",
                "Tasks that failed, by the reason of their condition Failed",
            ),
            task_retries: register(
                r,
                "task_retries",
                "Attempts of Tasks that another one follows, by the cause of that",
            ),
            runs: register(r, "runs", "Runs, by what became of them"),
            items: register(
                r,
                "items",
                "Attempts of items of maps that ended, by what became of them",
            ),
            functions: register(
                r,
                "function_starts",
                "Functions that ended, by how their process started",
            ),
            sessions: register(r, "sessions", "Connections to machines, by stage"),
            events_dropped: register(r, "events_dropped", "Kubernetes Events that could not be written"),
            store_bytes: register_in(
                r,
                Unit::Bytes,
                "store_written",
                "Written to the result store, by kind",
                Family::default(),
            ),
            source_bytes: register_in(
                r,
                Unit::Bytes,
                "source_sent",
                "Files of Tasks that were sent to machines",
                Counter::default(),
            ),
            source_fetches: register(
                r,
                "source_fetches",
                "Fetches of Tasks' files from git by machines, by result",
            ),
            store_failures: register(
                r,
                "store_failures",
                "Calls to the result store that failed, by kind",
            ),
            store_creates: register(
                r,
                "store_creates",
                "1 for how many of several writes that create the same object in the result store succeed",
            ),
            stored_now: register_in(
                r,
                Unit::Bytes,
                "store",
                "What the result store holds, by namespace",
                Family::default(),
            ),
            bundles_now: register_in(
                r,
                Unit::Bytes,
                "bundle",
                "Uploaded bundles that the result store holds, by namespace",
                Family::default(),
            ),
            uploads: register(r, "uploads", "Uploads of bundles that ended, by outcome"),
            unstored_runs: register(
                r,
                "unstored_runs",
                "Runs that ended and whose logs or results cannot be stored, by Pool",
            ),
            api_writes: register(r, "api_writes", "Writes to the API server, by kind"),
            invalid_objects: register(
                r,
                "invalid_objects",
                "Objects that could not be understood, by kind",
            ),
            orphans_deleted: register(
                r,
                "orphans_deleted",
                "Machines that belonged to nothing and were deleted",
            ),
            panics: register(
                r,
                "panics",
                "Internal errors that were caught, by the part of the operator that met them",
            ),
            leader: register(r, "leader", "1 while this process leads"),
            registry,
        }
    }
}

impl Metrics {
    /// A reconcile ended; `error` is its category, if it failed.
    pub fn reconciled(&self, kind: &'static str, took: Duration, error: Option<&'static str>) {
        let labels = by("kind", kind);
        self.reconciles.get_or_create(&labels).inc();
        self.reconcile_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        if let Some(category) = error {
            self.reconcile_errors
                .get_or_create(&vec![
                    ("kind", kind.to_owned()),
                    ("category", category.to_owned()),
                ])
                .inc();
        }
    }

    /// A provider answered; `outcome` is `ok` or the kind of error.
    pub fn provider_call(&self, provider: &str, operation: &str, outcome: &str, took: Duration) {
        let mut labels = vec![
            ("provider", provider.to_owned()),
            ("operation", operation.to_owned()),
        ];
        self.provider_seconds
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        labels.push(("outcome", outcome.to_owned()));
        self.provider_calls.get_or_create(&labels).inc();
    }

    /// A machine takes runs for the first time.
    pub fn machine_ready(&self, since_order: Duration) {
        self.machine_ready_seconds.observe(since_order.as_secs_f64());
    }

    /// The environment of a machine changed (`done`), or a step of the change failed (`failed`).
    pub fn environment_changed(&self, outcome: &'static str) {
        self.environment_changes
            .get_or_create(&by("outcome", outcome))
            .inc();
    }

    /// A Pool works towards another number of machines.
    pub fn pool_scaled(&self, reason: ScalingReason) {
        self.pool_scalings
            .get_or_create(&by("reason", reason.as_str()))
            .inc();
    }

    /// A Task entered a phase.
    pub fn task_entered(&self, phase: TaskPhase) {
        self.task_transitions
            .get_or_create(&by("phase", phase.as_str()))
            .inc();
    }

    /// A Task failed; the reason is one of the condition `Failed`.
    pub fn task_failed(&self, reason: String) {
        self.task_failures.get_or_create(&by("reason", reason)).inc();
    }

    /// Another attempt of a Task follows.
    pub fn task_retried(&self, cause: Cause) {
        self.task_retries
            .get_or_create(&by("cause", cause.as_str()))
            .inc();
    }

    /// A run ended (or, `started`, began); the outcome is one of our condition reasons.
    pub fn run(&self, outcome: &'static str) {
        self.runs.get_or_create(&by("outcome", outcome)).inc();
    }

    /// The end of an attempt of an item is stored.
    pub fn item(&self, outcome: &'static str) {
        self.items.get_or_create(&by("outcome", outcome)).inc();
    }

    /// A function ended whose process was forked from a warm parent, or was a fresh interpreter. `None`: other work.
    pub fn function(&self, forked: Option<bool>) {
        let Some(forked) = forked else { return };
        let start = if forked { "forked" } else { "fresh" };
        self.functions.get_or_create(&by("start", start)).inc();
    }

    /// An Event could not be written.
    pub fn event_dropped(&self) {
        self.events_dropped.inc();
    }

    /// An upload ended: `complete`, `refused` (other bytes than its digest names) or `full` (no room).
    pub fn upload(&self, outcome: &'static str) {
        self.uploads.get_or_create(&by("outcome", outcome)).inc();
    }

    /// Bytes went to the result store; `kind` is `log`, `result` or `bundle`.
    pub fn stored(&self, kind: &'static str, bytes: u64) {
        self.store_bytes.get_or_create(&by("kind", kind)).inc_by(bytes);
    }

    /// The files of a Task went to a machine.
    pub fn source_sent(&self, bytes: u64) {
        self.source_bytes.inc_by(bytes);
    }

    /// A machine fetched the files of Tasks from git; `result` is `Fetched`, `Lost` or the reason of the failure.
    pub fn source_fetched(&self, result: &'static str) {
        self.source_fetches.get_or_create(&by("result", result)).inc();
    }

    /// A call to the result store failed; `kind` is `full`, `quota`, `late` or `other`.
    pub fn store_failed(&self, kind: &'static str) {
        self.store_failures.get_or_create(&by("kind", kind)).inc();
    }

    /// A write to the API server.
    pub fn api_write(&self, kind: &'static str) {
        self.api_writes.get_or_create(&by("kind", kind)).inc();
    }

    /// A watch gave an object that could not be understood.
    pub fn invalid_object(&self, kind: &str) {
        self.invalid_objects.get_or_create(&by("kind", kind)).inc();
    }

    /// Decisions that a Provider waits for after a restore.
    pub fn restore(&self, provider: &str, held: bool, evidence: Option<&Evidence>) {
        self.restore.show(provider, held, evidence);
    }

    /// The sweep deleted an orphan.
    pub fn orphan_deleted(&self) {
        self.orphans_deleted.inc();
    }

    /// A part of the operator panicked and begins anew.
    pub fn panicked(&self, controller: &'static str) {
        self.panics.get_or_create(&by("controller", controller)).inc();
    }

    /// Whether this process leads.
    pub fn leading(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Sets the metrics that are read from the caches; called at each scrape.
    pub fn observe(&self, sources: &Sources) {
        let now = clock::now();
        self.cost.observe(sources, now);
        self.machines.clear();
        self.sessions.clear();
        for phase in MACHINE_PHASES {
            self.machines.get_or_create(&by("phase", phase.as_str())).set(0);
        }
        for machine in sources.caches.machines.state() {
            let phase = machine.status.as_ref().and_then(|s| s.phase).unwrap_or_default();
            self.machines.get_or_create(&by("phase", phase.as_str())).inc();
            if let (Some(namespace), Some(name)) = (&machine.metadata.namespace, &machine.metadata.name) {
                let key = MachineKey::new(namespace.as_str(), name.as_str());
                if let Some(state) = sources.sessions.state(&key) {
                    let stage = by("stage", stage_name(&state.stage));
                    self.sessions.get_or_create(&stage).inc();
                }
            }
        }
        self.store_creates.clear();
        if let Some(exclusion) = sources.store.known_exclusion() {
            let winners = by("winners", exclusion.as_str());
            self.store_creates.get_or_create(&winners).set(1);
        }
        self.stored_now.clear();
        for (namespace, bytes) in sources.store.usage() {
            self.stored_now
                .get_or_create(&by("namespace", namespace))
                .set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.bundles_now.clear();
        for (namespace, bytes) in sources.store.bundle_usage() {
            self.bundles_now
                .get_or_create(&by("namespace", namespace))
                .set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        self.pools.clear();
        self.desired_machines.clear();
        self.queued_tasks.clear();
        self.queued_items.clear();
        self.running_tasks.clear();
        self.queue_age.clear();
        self.unstored_runs.clear();
        for pool in sources.caches.pools.state() {
            let phase = pool.status.as_ref().and_then(|s| s.phase).unwrap_or_default();
            self.pools.get_or_create(&by("phase", pool_phase(phase))).inc();
            let (Some(namespace), Some(name)) = (&pool.metadata.namespace, &pool.metadata.name) else {
                continue;
            };
            let labels = vec![("namespace", namespace.clone()), ("pool", name.clone())];
            if let Some(desired) = pool.status.as_ref().and_then(|status| status.desired_machines) {
                self.desired_machines
                    .get_or_create(&labels)
                    .set(i64::from(desired));
            }
            if let Some(load) = sources.loads.load(&Key::new(namespace, name)) {
                self.queued_tasks
                    .get_or_create(&labels)
                    .set(i64::from(load.queued));
                self.queued_items
                    .get_or_create(&labels)
                    .set(i64::from(load.queued_items));
                self.running_tasks
                    .get_or_create(&labels)
                    .set(i64::from(load.running));
                let age = load.oldest.map_or(Duration::ZERO, |since| elapsed(since, now));
                self.queue_age
                    .get_or_create(&labels)
                    .set(i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
                self.unstored_runs
                    .get_or_create(&labels)
                    .set(i64::from(load.unstored));
            }
        }
    }

    /// All metrics in the text format of OpenMetrics.
    pub fn render(&self) -> String {
        let mut text = String::new();
        if encode(&mut text, &self.registry).is_err() {
            text.clear();
        }
        text
    }
}

/// Name of a stage.
const fn stage_name(stage: &Stage) -> &'static str {
    match stage {
        Stage::Dialing { .. } => "dialing",
        Stage::Unproved { .. } => "unproved",
        Stage::Bootstrapping { .. } => "bootstrapping",
        Stage::Ready => "ready",
        Stage::EpochAhead => "epoch_ahead",
        Stage::Reconnecting { .. } => "reconnecting",
        Stage::Failed(_) => "failed",
    }
}

const MACHINE_PHASES: [MachinePhase; 8] = [
    MachinePhase::Ordered,
    MachinePhase::Accepted,
    MachinePhase::Reachable,
    MachinePhase::Bootstrapping,
    MachinePhase::Ready,
    MachinePhase::Draining,
    MachinePhase::Deleting,
    MachinePhase::Failed,
];

/// The phase as in the API.
pub const fn pool_phase(phase: PoolPhase) -> &'static str {
    match phase {
        PoolPhase::Pending => "Pending",
        PoolPhase::Provisioning => "Provisioning",
        PoolPhase::Ready => "Ready",
        PoolPhase::Degraded => "Degraded",
        PoolPhase::Stalled => condition::STALLED,
        PoolPhase::Off => "Off",
        PoolPhase::Sleeping => "Sleeping",
        PoolPhase::Suspended => "Suspended",
        PoolPhase::Deleting => "Deleting",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_counted_by_how_they_started_and_other_work_is_not() {
        let metrics = Metrics::default();
        metrics.function(None);
        assert!(!metrics.render().contains("function_starts_total{"));
        for forked in [true, true, false] {
            metrics.function(Some(forked));
        }
        let text = metrics.render();
        for line in [
            "skyward_function_starts_total{start=\"forked\"} 2",
            "skyward_function_starts_total{start=\"fresh\"} 1",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn one_page_lists_every_metric_and_no_other() {
        let metrics = Metrics::default();
        // A family without values is not printed.
        metrics.reconciled("Pool", Duration::ZERO, Some("conflict"));
        metrics.provider_call("p", "create", "ok", Duration::ZERO);
        metrics.machine_ready(Duration::ZERO);
        metrics.environment_changed("done");
        metrics.task_entered(TaskPhase::Running);
        metrics.task_failed("TimedOut".to_owned());
        metrics.task_retried(Cause::Failure);
        metrics.run("Succeeded");
        metrics.item("Succeeded");
        metrics.pool_scaled(ScalingReason::WorkWaits);
        metrics.function(Some(true));
        metrics.stored("log", 1);
        metrics.upload("complete");
        metrics.source_fetched("Fetched");
        metrics.store_failed("full");
        metrics.api_write("Pool");
        metrics.invalid_object("Pool");
        metrics.panicked("pool");
        metrics.restore("p", true, Some(&restore::tests::waiting(&["a"])));
        let Metrics {
            machines,
            pools,
            queued_tasks,
            queued_items,
            running_tasks,
            queue_age,
            unstored_runs,
            stored_now,
            bundles_now,
            sessions,
            desired_machines,
            store_creates,
            ..
        } = &metrics;
        for family in [
            desired_machines,
            store_creates,
            machines,
            pools,
            queued_tasks,
            queued_items,
            running_tasks,
            queue_age,
            unstored_runs,
            stored_now,
            bundles_now,
            sessions,
        ] {
            family.get_or_create(&Vec::new()).set(1);
        }
        for family in metrics.cost.families() {
            family.get_or_create(&Vec::new()).set(1.0);
        }
        let text = metrics.render();
        let mut there: Vec<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "))
            .filter_map(|line| line.split_once(' '))
            .map(|(name, kind)| match kind {
                "counter" => format!("{name}_total"),
                _ => name.to_owned(),
            })
            .collect();
        there.sort();
        let page = include_str!("../../docs/reference/metrics.md");
        let mut listed: Vec<String> = page
            .lines()
            .filter_map(|line| line.strip_prefix("| `"))
            .filter_map(|line| line.split_once('`'))
            .map(|(name, _)| name.to_owned())
            .collect();
        listed.sort();
        assert_eq!(
            listed, there,
            "docs/reference/metrics.md (left) and the code (right) differ"
        );
    }

    #[test]
    fn every_metric_has_our_prefix_and_closed_labels() {
        let metrics = Metrics::default();
        metrics.reconciled("Pool", Duration::from_millis(5), Some("conflict"));
        metrics.provider_call("container", "create", "ok", Duration::from_millis(5));
        metrics.task_entered(TaskPhase::Running);
        let text = metrics.render();
        assert!(
            text.contains(r#"skyward_reconcile_errors_total{kind="Pool",category="conflict"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(
                r#"skyward_provider_calls_total{provider="container",operation="create",outcome="ok"} 1"#
            ),
            "{text}"
        );
        assert!(text.contains("skyward_reconcile_seconds_bucket"), "{text}");
    }
}
