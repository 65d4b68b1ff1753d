//! The driver with a controller that does as each test says. Time is virtual.

use axum::http::Response;
use kube::Client;
use skyward_api::Pool;
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::*;
use crate::events::Events;

/// What the controller of the tests does in each round.
#[derive(Clone, Copy, PartialEq)]
enum Step {
    Then(Next),
    Fail(Retry),
    BreakRules,
    Panic,
}

/// Counts in its memory how often an object was observed.
struct Counting {
    step: Mutex<Step>,
    observed: Mutex<Vec<u32>>,
    acted: Mutex<u32>,
    said: Arc<Mutex<Vec<u32>>>,
}

#[derive(Debug, thiserror::Error)]
#[error("as the test says")]
struct Failed {
    retry: Retry,
    said: Arc<Mutex<Vec<u32>>>,
}

impl Failure for Failed {
    fn category(&self) -> &'static str {
        "test"
    }

    fn retry(&self) -> Retry {
        self.retry
    }
}

impl Reconcile for Counting {
    const KIND: &'static str = "Pool";
    const CONTROLLER: &'static str = "pool";

    type Object = Pool;
    type Memory = u32;
    type Seen = ();
    type Plan = Step;
    type Outcomes = ();
    type Error = Failed;

    async fn observe(&self, _: &Arc<Pool>, memory: &mut u32, (): ()) {
        self.observed.lock().push(*memory);
        *memory += 1;
    }

    fn plan(&self, (): &(), _: &mut u32, _: Timestamp) -> Step {
        let step = *self.step.lock();
        assert!(step != Step::Panic, "planted by the test");
        step
    }

    fn audit(&self, _: &Key, (): &(), plan: &Step) -> bool {
        *plan != Step::BreakRules
    }

    fn next(plan: &Step) -> Next {
        match plan {
            Step::Then(next) => *next,
            _ => Next::Wait,
        }
    }

    async fn act(&self, _: &mut Record<'_, Pool>, _: &mut u32, (): &(), plan: Step) -> Result<(), Failed> {
        *self.acted.lock() += 1;
        match plan {
            Step::Fail(retry) => Err(Failed {
                retry,
                said: self.said.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn warn(_: &Key, error: &Failed, _: Option<String>, times: u32) {
        error.said.lock().push(times);
    }
}

fn driver() -> Driver<Counting> {
    let service = service_fn(|_| std::future::pending::<Result<Response<kube::client::Body>, Infallible>>());
    let metrics = Arc::<Metrics>::default();
    // The writer ends with the runtime.
    let (events, _writing) = Events::start(Client::new(service, "default"), "test".into(), metrics.clone());
    let panics = Panics::new(metrics.clone(), events, CancellationToken::new());
    let counting = Counting {
        step: Mutex::new(Step::Then(Next::Wait)),
        observed: Mutex::default(),
        acted: Mutex::default(),
        said: Arc::default(),
    };
    Driver::new(counting, Arc::new(panics), metrics, Arc::default())
}

impl Driver<Counting> {
    /// Reconciles the one Pool, whose UID this is.
    async fn does(&self, step: Step, uid: &str) -> Action {
        *self.reconcile.step.lock() = step;
        let spec = serde_json::from_value(serde_json::json!({ "provider": "local" })).unwrap();
        let mut pool = Pool::new("train", spec);
        pool.metadata.namespace = Some("team".into());
        pool.metadata.uid = Some(uid.into());
        self.reconcile(Arc::new(pool)).await
    }

    fn observed(&self) -> Vec<u32> {
        self.reconcile.observed.lock().clone()
    }
}

const WAIT: Step = Step::Then(Next::Wait);

#[tokio::test(start_paused = true)]
async fn plans_that_want_another_one_at_once_end_when_others_shall_get_their_turn() {
    let driver = driver();
    let action = driver.does(Step::Then(Next::Again), "a").await;
    assert_eq!(action, Action::requeue(AFTER_CONFLICT));
    assert_eq!(driver.observed(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(driver.does(WAIT, "a").await, Action::await_change());
}

#[tokio::test(start_paused = true)]
async fn a_panic_forgets_what_was_remembered_of_the_object_and_its_next_turn_waits() {
    let driver = driver();
    driver.does(WAIT, "a").await;
    let rest = Action::requeue(Duration::from_secs(10));
    assert_eq!(driver.does(Step::Panic, "a").await, rest);
    assert_eq!(driver.does(WAIT, "a").await, rest, "it is left alone");
    tokio::time::advance(Duration::from_secs(10)).await;
    driver.does(WAIT, "a").await;
    assert_eq!(driver.observed(), [0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn what_goes_on_failing_is_tried_less_often_and_said_at_powers_of_two() {
    let driver = driver();
    let doubled = Step::Fail(Retry::Doubled(Duration::from_secs(3)));
    for wait in [3, 6, 12, 24, 48] {
        let action = driver.does(doubled, "a").await;
        assert_eq!(action, Action::requeue(Duration::from_secs(wait)));
        // A conflict between two failures is no success.
        let unsaid = Step::Fail(Retry::Unsaid(AFTER_CONFLICT));
        assert_eq!(driver.does(unsaid, "a").await, Action::requeue(AFTER_CONFLICT));
    }
    let said = || driver.reconcile.said.lock().clone();
    assert_eq!(said(), [1, 2, 4]);
    driver.does(WAIT, "a").await;
    driver.does(doubled, "a").await;
    assert_eq!(said(), [1, 2, 4, 1]);
    assert_eq!(driver.observed().last(), Some(&11), "an error forgets nothing");
}

#[tokio::test(start_paused = true)]
async fn an_object_of_the_same_name_that_was_made_anew_begins_with_no_memory() {
    let driver = driver();
    for uid in ["a", "a", "b", "b"] {
        driver.does(WAIT, uid).await;
    }
    driver.forget(&Key::new("team", "train"));
    driver.does(WAIT, "b").await;
    assert_eq!(driver.observed(), [0, 1, 0, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn a_plan_that_breaks_its_own_rules_is_not_carried_out() {
    let driver = driver();
    let action = driver.does(Step::BreakRules, "a").await;
    assert_eq!(action, Action::requeue(AFTER_VIOLATION));
    assert_eq!(*driver.reconcile.acted.lock(), 0);
}
