//! Kubernetes Events: one publisher for the whole process.
//!
//! Publishing never blocks and never fails its caller: Events are for people, and a
//! reconcile must not wait for them. An Event that is repeated within some minutes becomes one with
//! a count; starts and completions of Tasks, and commits of their git sources, above one per second
//! and Pool become one Event of the Pool with their number. Failures are never merged away.
//!
//! Events are written through the core API: only there may they carry the old times and count
//! beside the new ones, and `kubectl get events --sort-by=.lastTimestamp` sorts by the old ones.
//! `docs/events.md` lists every reason.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::{Event, EventSeries, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta, Time},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use skyward_api::condition::cut;
use skyward_core::clock;
use skyward_planner::events::{EventKind, EventSpec, reason};
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior},
};

use crate::{base::caught::caught, metrics::Metrics};

type Message = (ObjectReference, EventSpec);

/// Publishes Events. Cheap to clone.
#[derive(Clone)]
pub struct Events {
    event_tx: mpsc::Sender<Message>,
    metrics: Arc<Metrics>,
}

/// Most Events that wait for the API server; further ones are dropped and counted.
const QUEUE: usize = 4096;
/// Within this time the same Event is counted up instead of written again.
const SERIES: Duration = Duration::from_mins(5);
/// Events remembered for counting up.
const REMEMBERED: usize = 1024;

impl Events {
    /// A publisher and the task that writes; it ends when all clones are dropped.
    pub fn start(client: Client, instance: String, metrics: Arc<Metrics>) -> (Self, JoinHandle<()>) {
        // from every publisher --Message--> to the writer
        let (event_tx, event_rx) = mpsc::channel(QUEUE);
        let mut writer = Writer {
            client,
            instance,
            recent: Recent::default(),
            metrics: metrics.clone(),
        };
        let counted = metrics.clone();
        let writing = async move {
            let mut event_rx = event_rx;
            // An Event whose write panics is lost, and the next one is written.
            while caught(writer.run(&mut event_rx)).await.is_err() {
                counted.panicked("events");
            }
        };
        (Self { event_tx, metrics }, tokio::spawn(writing))
    }

    /// A publisher that forgets everything, for tests.
    pub fn silent(metrics: Arc<Metrics>) -> Self {
        let (event_tx, _) = mpsc::channel(1);
        Self { event_tx, metrics }
    }

    /// Publishes soon. Never blocks.
    pub fn publish(&self, regarding: &ObjectReference, spec: EventSpec) {
        if self.event_tx.try_send((regarding.clone(), spec)).is_err() {
            self.metrics.event_dropped();
        }
    }
}

struct Writer {
    client: Client,
    instance: String,
    recent: Recent,
    metrics: Arc<Metrics>,
}

impl Writer {
    async fn run(&mut self, event_rx: &mut mpsc::Receiver<Message>) {
        let mut merger = Merger::default();
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = event_rx.recv() => match message {
                    Some((regarding, spec)) => {
                        if let Some((regarding, spec)) = merger.admit(regarding, spec) {
                            self.write(&regarding, &spec).await;
                        }
                    }
                    None => break,
                },
                _ = tick.tick(), if !merger.is_quiet() => {
                    for (regarding, spec) in merger.tick() {
                        self.write(&regarding, &spec).await;
                    }
                }
            }
        }
        for (regarding, spec) in merger.tick() {
            self.write(&regarding, &spec).await;
        }
    }

    async fn write(&mut self, regarding: &ObjectReference, spec: &EventSpec) {
        let namespace = regarding.namespace.as_deref().unwrap_or("default");
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let now = clock::now();
        let outcome = if let Some((name, count)) = self.recent.count_up(regarding, spec) {
            let patch = Patch::Merge(repeated(count, now));
            let params = PatchParams::default();
            events.patch(&name, &params, &patch).await.map(drop)
        } else {
            let event = render(regarding, spec, &self.instance, now);
            let name = event.metadata.name.clone().unwrap_or_default();
            let written = events.create(&PostParams::default(), &event).await.map(drop);
            if written.is_ok() {
                self.recent.remember(regarding, spec, name);
            }
            written
        };
        self.metrics.api_write("Event");
        match outcome {
            Ok(()) => {}
            // The namespace is being deleted: nobody will read the Event.
            Err(kube::Error::Api(status)) if status.code == 403 || status.code == 404 => {
                self.metrics.event_dropped();
            }
            Err(error) => {
                self.metrics.event_dropped();
                tracing::warn!(reason = spec.reason, %error, "an Event could not be written");
            }
        }
    }
}

/// The changed fields of an Event that happened once more.
fn repeated(count: i32, now: Timestamp) -> serde_json::Value {
    let series = EventSeries {
        count: Some(count),
        last_observed_time: Some(MicroTime(now)),
    };
    serde_json::json!({ "series": series, "count": count, "lastTimestamp": Time(now) })
}

/// The controller that Events name as their reporter.
const CONTROLLER: &str = "skyward.dev/controller";

fn render(regarding: &ObjectReference, spec: &EventSpec, instance: &str, now: Timestamp) -> Event {
    let object = regarding.name.as_deref().unwrap_or("skyward");
    Event {
        action: Some(spec.action.to_owned()),
        event_time: Some(MicroTime(now)),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        source: Some(EventSource {
            component: Some(CONTROLLER.to_owned()),
            ..Default::default()
        }),
        metadata: ObjectMeta {
            // An Event's name is its object's name and a time, at most 253 characters.
            name: Some(format!("{}.{:x}", cut_name(object), now.as_nanosecond())),
            namespace: regarding.namespace.clone().or_else(|| Some("default".to_owned())),
            ..Default::default()
        },
        message: Some(cut(&spec.note, 1024)),
        reason: Some(spec.reason.to_owned()),
        involved_object: regarding.clone(),
        related: spec.related.clone(),
        reporting_component: Some(CONTROLLER.to_owned()),
        reporting_instance: Some(instance.chars().take(128).collect()),
        type_: Some(
            match spec.kind {
                EventKind::Normal => "Normal",
                EventKind::Warning => "Warning",
            }
            .to_owned(),
        ),
        ..Default::default()
    }
}

fn cut_name(name: &str) -> &str {
    let end = name.len().min(230);
    name.get(..end).unwrap_or("skyward").trim_end_matches(['-', '.'])
}

/// Which Events were written lately, so that a repetition is counted up.
#[derive(Default)]
struct Recent {
    known: HashMap<RecentKey, (String, i32, Instant)>,
    order: VecDeque<RecentKey>,
}

type RecentKey = (String, &'static str, String);

fn recent_key(regarding: &ObjectReference, spec: &EventSpec) -> RecentKey {
    let object = format!(
        "{}/{}/{}/{}",
        regarding.kind.as_deref().unwrap_or_default(),
        regarding.namespace.as_deref().unwrap_or_default(),
        regarding.name.as_deref().unwrap_or_default(),
        regarding.uid.as_deref().unwrap_or_default(),
    );
    (object, spec.reason, spec.note.clone())
}

impl Recent {
    fn count_up(&mut self, regarding: &ObjectReference, spec: &EventSpec) -> Option<(String, i32)> {
        let (name, count, at) = self.known.get_mut(&recent_key(regarding, spec))?;
        if at.elapsed() > SERIES {
            return None;
        }
        *count += 1;
        Some((name.clone(), *count))
    }

    fn remember(&mut self, regarding: &ObjectReference, spec: &EventSpec, name: String) {
        let key = recent_key(regarding, spec);
        if self
            .known
            .insert(key.clone(), (name, 1, Instant::now()))
            .is_none()
        {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

/// Merges Events that come more than once per second and Pool.
#[derive(Default)]
struct Merger {
    // Pool and reason → what came in this second after the first.
    windows: BTreeMap<(String, &'static str), Window>,
}

struct Window {
    pool: ObjectReference,
    action: &'static str,
    held: u32,
    last: Option<Message>,
}

impl Merger {
    fn is_quiet(&self) -> bool {
        self.windows.is_empty()
    }

    /// The Event to write now, if any; [`Merger::tick`] gives the ones that are held back.
    fn admit(&mut self, regarding: ObjectReference, spec: EventSpec) -> Option<Message> {
        let Some(pool) = spec.merge_into.clone().filter(|_| spec.kind == EventKind::Normal) else {
            return Some((regarding, spec));
        };
        let pool_key = pool.uid.clone().or_else(|| pool.name.clone()).unwrap_or_default();
        match self.windows.get_mut(&(pool_key.clone(), spec.reason)) {
            None => {
                let window = Window {
                    pool,
                    action: spec.action,
                    held: 0,
                    last: None,
                };
                self.windows.insert((pool_key, spec.reason), window);
                Some((regarding, spec))
            }
            Some(window) => {
                window.held += 1;
                window.last = Some((regarding, spec));
                None
            }
        }
    }

    /// Called once a second: gives the Events that were held back, and closes windows without news.
    fn tick(&mut self) -> Vec<Message> {
        let mut due = Vec::new();
        self.windows.retain(|(_, reason), window| {
            let held = std::mem::take(&mut window.held);
            match (held, window.last.take()) {
                (0, _) | (_, None) => false,
                (1, Some(only)) => {
                    due.push(only);
                    true
                }
                (many, Some(_)) => {
                    let what = match *reason {
                        reason::TASK_STARTED => "started",
                        reason::SOURCE_RESOLVED => "got the commit of their git source",
                        _ => "completed",
                    };
                    due.push((
                        window.pool.clone(),
                        EventSpec::normal(
                            reason,
                            window.action,
                            format!("{many} Tasks {what} within a second"),
                        ),
                    ));
                    true
                }
            }
        });
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: &str, name: &str) -> ObjectReference {
        ObjectReference {
            kind: Some(kind.into()),
            name: Some(name.into()),
            namespace: Some("team".into()),
            uid: Some(format!("{kind}-{name}")),
            ..Default::default()
        }
    }

    fn completed() -> EventSpec {
        EventSpec::normal(reason::TASK_COMPLETED, "Complete", "Task completed")
            .merged_into(object("Pool", "train"))
    }

    #[test]
    fn a_lone_completion_is_its_tasks_own_event() {
        let mut merger = Merger::default();
        let (about, _) = merger.admit(object("Task", "a"), completed()).unwrap();
        assert_eq!(about.name.as_deref(), Some("a"));
        assert!(merger.tick().is_empty());
        assert!(merger.is_quiet());
    }

    #[test]
    fn a_thousand_completions_in_a_second_are_two_events() {
        let mut merger = Merger::default();
        let direct = (0..1000)
            .filter_map(|i| merger.admit(object("Task", &i.to_string()), completed()))
            .count();
        let merged = merger.tick();
        assert_eq!((direct, merged.len()), (1, 1));
        assert_eq!(merged[0].0.kind.as_deref(), Some("Pool"));
        assert_eq!(merged[0].1.note, "999 Tasks completed within a second");
    }

    #[test]
    fn a_merged_event_says_what_happened_to_its_tasks() {
        for (reason, note) in [
            (reason::TASK_STARTED, "2 Tasks started within a second"),
            (reason::TASK_COMPLETED, "2 Tasks completed within a second"),
            (
                reason::SOURCE_RESOLVED,
                "2 Tasks got the commit of their git source within a second",
            ),
        ] {
            let mut merger = Merger::default();
            for name in ["a", "b", "c"] {
                let event = EventSpec::normal(reason, "Act", name).merged_into(object("Pool", "train"));
                merger.admit(object("Task", name), event);
            }
            let merged = merger.tick();
            assert_eq!(merged[0].1.note, note);
        }
    }

    #[test]
    fn failures_are_never_merged() {
        let mut merger = Merger::default();
        let failed = EventSpec::warning(reason::TASK_FAILED, "Fail", "exit code 1")
            .merged_into(object("Pool", "train"));
        let direct = (0..100)
            .filter_map(|i| merger.admit(object("Task", &i.to_string()), failed.clone()))
            .count();
        assert_eq!(direct, 100);
    }

    #[test]
    fn a_repeated_event_is_counted_up() {
        let mut recent = Recent::default();
        let pool = object("Pool", "train");
        let spec = EventSpec::warning(reason::POOL_STALLED, "Plan", "no offer fits");
        assert_eq!(recent.count_up(&pool, &spec), None);
        recent.remember(&pool, &spec, "train.1".into());
        assert_eq!(recent.count_up(&pool, &spec), Some(("train.1".into(), 2)));
        let other = EventSpec {
            note: "another".into(),
            ..spec
        };
        assert_eq!(recent.count_up(&pool, &other), None);
    }

    #[test]
    fn events_sort_by_the_time_of_their_last_occurrence_also_as_kubectl_did_it_of_old() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut event =
            serde_json::to_value(render(&object("Task", "a"), &completed(), "me", at(100))).unwrap();
        assert_eq!(
            event["apiVersion"], "v1",
            "the API of the others takes no lastTimestamp"
        );
        assert_eq!(event["firstTimestamp"], "1970-01-01T00:01:40Z");
        assert_eq!(event["lastTimestamp"], event["firstTimestamp"]);
        assert_eq!(event["count"], 1);
        let patch = repeated(2, at(160));
        for (field, value) in patch.as_object().unwrap() {
            event[field] = value.clone();
        }
        assert_eq!(event["lastTimestamp"], "1970-01-01T00:02:40Z");
        assert_eq!(
            (&event["count"], &event["series"]["count"]),
            (&2.into(), &2.into())
        );
        assert_eq!(event["firstTimestamp"], "1970-01-01T00:01:40Z");
    }

    #[test]
    fn an_event_of_a_long_name_is_admitted() {
        let event = render(
            &object("Task", &"n".repeat(253)),
            &completed(),
            &"i".repeat(300),
            Timestamp::UNIX_EPOCH,
        );
        assert!(event.metadata.name.unwrap().len() <= 253);
        assert!(event.reporting_instance.unwrap().len() <= 128);
    }
}
