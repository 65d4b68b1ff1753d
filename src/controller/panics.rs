//! A panic ends one object's turn, not the process.
//!
//! One process serves every tenant, and a mistake of ours in the work on one object must not
//! end the work on all others, again after each restart. Each turn of a reconciler, each account's
//! sweep and each dispatcher is caught by itself ([`Panics::turn`]); everything remembered of the
//! object is dropped, and after a pause its records are read anew. An object whose turns go on
//! panicking is left alone for an hour. A task that runs for ever, such as a watch, begins anew
//! ([`Panics::keep`]).
//!
//! Nothing here repairs: data behind our locks is consistent at every instant, so a panic poisons none of
//! them, and data in memory is only a hint.

use std::{collections::HashMap, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::ObjectReference;
use parking_lot::Mutex;
use skyward_planner::events::{EventSpec, reason};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    base::caught::{Panicked, caught},
    events::Events,
    metrics::Metrics,
};

#[cfg(test)]
mod tests;

/// How long a panic counts, and how long an object with too many is left alone.
const HOUR: Duration = Duration::from_hours(1);
/// So many panics within an hour are too many.
const TOO_MANY: usize = 3;
/// The pause after the first panic of an object, and after the second.
const PAUSES: [Duration; 2] = [Duration::from_secs(10), Duration::from_mins(1)];
/// The first pause of a task that runs for ever; it doubles up to the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_mins(1);

/// Why a turn has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken {
    /// The object's next turn is in so long.
    pub(crate) rest: Duration,
    /// Whether the turn panicked, so that the caller must forget the object; else the object was
    /// left alone.
    pub(crate) panicked: bool,
}

/// The unit that panics are counted for: a controller and an object.
type Subject = (&'static str, String);

/// Panics of the last hour.
pub struct Panics {
    counted: Mutex<HashMap<Subject, Vec<Instant>>>,
    metrics: Arc<Metrics>,
    events: Events,
    shutdown: CancellationToken,
}

impl Panics {
    /// Starts without panics.
    pub fn new(metrics: Arc<Metrics>, events: Events, shutdown: CancellationToken) -> Self {
        Self {
            counted: Mutex::default(),
            metrics,
            events,
            shutdown,
        }
    }

    /// One turn of an object, unless the object is left alone.
    pub(crate) async fn turn<T>(
        &self,
        controller: &'static str,
        object: &ObjectReference,
        turn: impl Future<Output = T>,
    ) -> Result<T, Broken> {
        let rest = self.rest(controller, object);
        if !rest.is_zero() {
            let panicked = false;
            return Err(Broken { rest, panicked });
        }
        match caught(turn).await {
            Ok(done) => Ok(done),
            Err(panicked) => Err(self.met(controller, object, &panicked)),
        }
    }

    /// How much longer an object is left alone.
    pub(crate) fn rest(&self, controller: &'static str, object: &ObjectReference) -> Duration {
        let counted = self.counted.lock();
        let Some(panics) = counted.get(&subject(controller, object)) else {
            return Duration::ZERO;
        };
        let until = panics.last().map(|last| *last + pause(panics.len()));
        until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        })
    }

    /// A turn panicked: counts it, and tells people.
    pub(crate) fn met(
        &self,
        controller: &'static str,
        object: &ObjectReference,
        panicked: &Panicked,
    ) -> Broken {
        let times = self.count(subject(controller, object));
        let rest = pause(times);
        let (kind, name) = (object.kind.as_deref(), object.name.as_deref());
        tracing::error!(
            controller,
            kind,
            namespace = object.namespace,
            name,
            times,
            pause_seconds = rest.as_secs(),
            panic = panicked.0,
            "the operator met an internal error and begins anew with this object; please report this"
        );
        self.metrics.panicked(controller);
        let what = format!(
            "An internal error of the operator ended its work on this {}",
            kind.unwrap_or("object")
        );
        let note = if times >= TOO_MANY {
            format!(
                "{what}, {times} times within an hour: it is left alone for an hour, and what it rents is billed meanwhile. Please report what the operator's log says of this; deleting the object waits for the hour, a restart of the operator does not"
            )
        } else {
            format!(
                "{what}; it is taken up again in {} s. Please report what the operator's log says of this",
                rest.as_secs()
            )
        };
        self.events.publish(
            object,
            EventSpec::warning(reason::INTERNAL_ERROR, "Recover", note),
        );
        let panicked = true;
        Broken { rest, panicked }
    }

    /// Keeps a task going until it ends by itself: after a panic it begins anew, after a pause.
    pub(crate) async fn keep<F: Future<Output = ()>>(
        &self,
        what: &'static str,
        mut begin: impl FnMut() -> F,
    ) {
        while let Err(panicked) = caught(begin()).await {
            self.before_anew(what, &panicked).await;
            if self.shutdown.is_cancelled() {
                return;
            }
        }
    }

    /// A task that runs for ever panicked: publishes an Event, and waits until it may begin anew.
    pub(crate) async fn before_anew(&self, what: &'static str, panicked: &Panicked) {
        let times = self.count((what, String::new()));
        let doubled = u32::try_from(times.saturating_sub(1)).unwrap_or(u32::MAX).min(16);
        let rest = FIRST.saturating_mul(1 << doubled).min(LONGEST);
        tracing::error!(
            what,
            times,
            pause_seconds = rest.as_secs(),
            panic = panicked.0,
            "a part of the operator met an internal error and begins anew; please report this"
        );
        self.metrics.panicked(what);
        self.shutdown.run_until_cancelled(sleep(rest)).await;
    }

    /// Counts a panic; answers how many there were within an hour.
    fn count(&self, subject: Subject) -> usize {
        let now = Instant::now();
        let mut counted = self.counted.lock();
        // An object that is left alone keeps its panics until the hour is over.
        counted.retain(|_, panics| panics.last().is_some_and(|last| now.duration_since(*last) < HOUR));
        let panics = counted.entry(subject).or_default();
        panics.retain(|at| now.duration_since(*at) < HOUR);
        panics.push(now);
        panics.len()
    }
}

/// How long an object is left alone after so many panics within an hour.
fn pause(times: usize) -> Duration {
    match times {
        0 => Duration::ZERO,
        times if times >= TOO_MANY => HOUR,
        times => PAUSES[times - 1],
    }
}

/// An object that was made anew under the same name is another object.
fn subject(controller: &'static str, object: &ObjectReference) -> Subject {
    let name = object.uid.clone().unwrap_or_else(|| {
        format!(
            "{}/{}",
            object.namespace.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default()
        )
    });
    (controller, name)
}
