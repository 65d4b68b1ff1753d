//! One simulated cloud: the order in which a request meets faults, checks and the world.

use std::sync::{Arc, Once};
use std::time::Duration;

use jiff::SignedDuration;
use parking_lot::{Mutex, MutexGuard};

use crate::backend::{Backend, Command, Reports};
use crate::core::clock::Clock;
use crate::core::cloud::{Call, Cloud, Refusal, Visit};
use crate::core::fault::{Fault, Faults, Rule, When};
use crate::core::http::{Answer, Request};
use crate::core::meter::Meter;
use crate::core::record::{Entry, Violation};
use crate::core::world::{Happening, World};

/// Number of requests that are remembered. Campaigns make more, but tests look at recent ones only.
const LOG: usize = 100_000;

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// An answer.
    Answer(Answer),
    /// A connection that ends without one.
    Cut,
}

/// One simulated cloud.
pub struct Sim {
    name: &'static str,
    clock: Clock,
    backend: Arc<dyn Backend>,
    reports: Reports,
    inner: Mutex<Inner>,
}

struct Inner {
    cloud: Box<dyn Cloud>,
    world: World,
    faults: Faults,
    log: std::collections::VecDeque<Entry>,
    violations: Vec<Violation>,
    mistakes: Vec<Violation>,
}

impl Sim {
    /// A cloud over a back end. The world begins furnished and without accounts.
    pub fn new(
        mut cloud: Box<dyn Cloud>,
        clock: Clock,
        seed: u64,
        backend: Arc<dyn Backend>,
        reports: Reports,
    ) -> Self {
        let mut world = World::new(clock.now(), seed, cloud.billing());
        cloud.furnish(&mut world);
        Self {
            name: cloud.name(),
            clock,
            backend,
            reports,
            inner: Mutex::new(Inner {
                cloud,
                world,
                faults: Faults::default(),
                log: std::collections::VecDeque::new(),
                violations: Vec::new(),
                mistakes: Vec::new(),
            }),
        }
    }

    /// The name of the cloud.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The clock of all clouds.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Reads or changes the world, after all due events.
    pub fn world<R>(&self, look: impl FnOnce(&mut World) -> R) -> R {
        let mut inner = self.caught_up();
        let result = look(&mut inner.world);
        self.settle(&mut inner);
        result
    }

    /// Asks the meter, after all due events.
    pub fn meter<R>(&self, ask: impl FnOnce(&Meter<'_>) -> R) -> R {
        let inner = self.caught_up();
        ask(&Meter::new(&inner.world))
    }

    /// Scripts a fault.
    pub fn fault(&self, rule: Rule) {
        self.lock().faults.add(rule);
    }

    /// Forgets all faults.
    pub fn clear_faults(&self) {
        self.lock().faults.clear();
    }

    /// Forgets the faults that strike this account alone.
    pub fn clear_faults_of(&self, account: &str) {
        self.lock().faults.clear_of(account);
    }

    /// Faults that have not struck as often as they should: a test that ends with some did
    /// not test what it says.
    pub fn pending_faults(&self) -> Vec<Rule> {
        self.lock().faults.pending().into_iter().cloned().collect()
    }

    /// Requests that the official description does not allow. Tests assert that there are none.
    pub fn violations(&self) -> Vec<Violation> {
        self.lock().violations.clone()
    }

    /// Answers of this simulator that the official description does not allow: bugs of ours.
    pub fn mistakes(&self) -> Vec<Violation> {
        self.lock().mistakes.clone()
    }

    /// All that should make a test fail, as texts: requests and answers of ours that are not
    /// described, and scripted faults that never struck.
    pub fn complaints(&self) -> Vec<String> {
        let of = |kind: &str, all: Vec<Violation>| -> Vec<String> {
            all.into_iter()
                .map(|found| format!("{kind} {}: {}", found.request, found.what))
                .collect()
        };
        let mut all = of("violation by", self.violations());
        all.extend(of("mistake of the simulator at", self.mistakes()));
        all.extend(
            self.pending_faults()
                .iter()
                .map(|rule| format!("a fault that never struck: {rule:?}")),
        );
        all
    }

    /// The requests so far.
    pub fn requests(&self) -> Vec<Entry> {
        self.lock().log.iter().cloned().collect()
    }

    /// All calls that the cloud knows, for tests that try each with each fault.
    pub fn known_calls(&self) -> Vec<Call> {
        self.lock().cloud.calls()
    }

    /// How often a call was made.
    pub fn calls(&self, name: &str) -> usize {
        self.lock().log.iter().filter(|entry| entry.call == name).count()
    }

    /// Forgets requests and violations.
    pub fn forget(&self) {
        let mut inner = self.lock();
        inner.log.clear();
        inner.violations.clear();
        inner.mistakes.clear();
    }

    /// A control of the cloud's own; `None` when it has none of that name.
    pub fn control(&self, name: &str, body: &serde_json::Value) -> Option<Result<serde_json::Value, String>> {
        let mut inner = self.caught_up();
        let Inner { cloud, world, .. } = &mut *inner;
        let result = cloud.control(world, name, body);
        self.settle(&mut inner);
        result
    }

    /// Carries out all that is due.
    pub fn catch_up(&self) {
        drop(self.caught_up());
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request) -> Outcome {
        let struck = {
            let mut guard = self.caught_up();
            let Inner {
                cloud, world, faults, ..
            } = &mut *guard;
            match cloud.recognise(&request) {
                Some(call) => {
                    let account = cloud.authenticate(world, &request, &call).ok().flatten();
                    faults.strike(&call, account.as_deref(), &mut world.chance)
                }
                None => Default::default(),
            }
        };
        let outcome = self.answer(&request, struck.fault);
        if struck.latency > SignedDuration::ZERO {
            // The effect comes first: a client that gives up has ordered all the same.
            self.clock
                .sleep(Duration::try_from(struck.latency).unwrap_or_default())
                .await;
        }
        outcome
    }

    fn answer(&self, request: &Request, fault: Option<Fault>) -> Outcome {
        let mut guard = self.caught_up();
        let inner = &mut *guard;
        let mut entry = Entry {
            at: inner.world.now(),
            method: request.method.to_string(),
            path: target(request),
            call: String::new(),
            account: None,
            subject: None,
            status: None,
            effect: false,
            fault: fault.as_ref().map(Fault::name),
        };
        let reshaped = match &fault {
            Some(Fault::Reshaped { field, to }) => Some((field.clone(), to.clone())),
            Some(_) | None => None,
        };
        let mut outcome = match inner.cloud.recognise(request) {
            None => {
                inner.violation(
                    request,
                    "there is no such call, or the simulator does not have it".to_owned(),
                );
                Outcome::Answer(inner.cloud.refuse(&Refusal::UnknownCall, request, None))
            }
            Some(call) => {
                call.name.clone_into(&mut entry.call);
                inner.carry_out(request, &call, fault, &mut entry)
            }
        };
        if let Outcome::Answer(answer) = &mut outcome {
            inner.cloud.finish(&inner.world, request, answer);
            entry.status = Some(answer.status);
            for what in inner.cloud.check_answer(request, answer) {
                let mistake = Violation {
                    at: inner.world.now(),
                    request: entry.path.clone(),
                    what,
                };
                tracing::error!(
                    ?mistake,
                    "the simulator answered what the description does not allow"
                );
                inner.mistakes.push(mistake);
            }
            if let Some((field, to)) = &reshaped
                && answer.status < 300
            {
                answer.reshape(field.as_deref(), to.as_deref());
            }
        }
        if inner.log.len() == LOG {
            inner.log.pop_front();
        }
        inner.log.push_back(entry);
        self.settle(inner);
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    fn caught_up(&self) -> MutexGuard<'_, Inner> {
        let mut inner = self.lock();
        self.settle(&mut inner);
        inner
    }

    /// Carries out what is due, and gives the back end its orders, until nothing is left.
    fn settle(&self, inner: &mut Inner) {
        let now = self.clock.now();
        loop {
            let mut quiet = true;
            while let Some(report) = self.reports.take() {
                quiet = false;
                inner.world.report(report);
            }
            while let Some(happening) = inner.world.step(now) {
                quiet = false;
                if let Happening::Noticed(machine) = &happening
                    && let Some(at) = inner
                        .world
                        .machines
                        .get(machine)
                        .and_then(|machine| machine.reclaim_at)
                {
                    self.backend.carry_out(Command::Notice(machine.clone(), at));
                }
                inner.cloud.happened(&mut inner.world, &happening);
            }
            for command in inner.world.take_commands() {
                quiet = false;
                self.backend.carry_out(command);
            }
            if quiet {
                return;
            }
        }
    }
}

impl Inner {
    fn carry_out(
        &mut self,
        request: &Request,
        call: &Call,
        fault: Option<Fault>,
        entry: &mut Entry,
    ) -> Outcome {
        let wrong = self.cloud.check(request, call);
        for what in &wrong {
            self.violation(request, what.clone());
        }
        match fault {
            Some(Fault::Cut { when: When::Before }) => return Outcome::Cut,
            Some(Fault::Maintenance { when: When::Before }) => return Outcome::Answer(maintenance()),
            _ => {}
        }
        let refusal = fault.as_ref().and_then(refusal_before);
        let account = match refusal {
            Some(refusal) => Err(refusal),
            None => self.cloud.authenticate(&mut self.world, request, call),
        };
        let account = match account {
            Ok(account) => account,
            Err(refusal) => return Outcome::Answer(self.cloud.refuse(&refusal, request, Some(call))),
        };
        entry.account.clone_from(&account);
        let mut boot = self.world.boot.clone();
        if let Some(Fault::Boot(plan)) = &fault {
            boot = plan.clone();
        }
        let keep = match &fault {
            Some(Fault::PartialPage { keep }) => Some(*keep),
            Some(_) | None => None,
        };
        let mut visit = Visit {
            world: &mut self.world,
            request,
            call,
            account: account.unwrap_or_default(),
            boot,
            keep,
            subject: None,
            made: Vec::new(),
        };
        let result = match self.cloud.limit(&mut visit) {
            Ok(()) if !wrong.is_empty() => Err(Refusal::Invalid(wrong)),
            Ok(()) => self.cloud.answer(&mut visit),
            Err(refusal) => Err(refusal),
        };
        entry.subject = visit.subject.take();
        entry.effect = result.is_ok();
        let made = visit.made;
        if let Some(fault) = &fault {
            self.misfortune(&made, fault);
        }
        match (result, fault) {
            (Ok(_), Some(Fault::Cut { when: When::After })) => Outcome::Cut,
            (Ok(_), Some(Fault::Maintenance { when: When::After })) => Outcome::Answer(maintenance()),
            (
                Ok(_),
                Some(Fault::Server {
                    status,
                    when: When::After,
                }),
            ) => Outcome::Answer(self.cloud.refuse(&Refusal::Server(status), request, Some(call))),
            (Ok(answer), _) => Outcome::Answer(answer),
            (Err(refusal), _) => Outcome::Answer(self.cloud.refuse(&refusal, request, Some(call))),
        }
    }

    /// Applies the scripted fault to the machines that a call made.
    fn misfortune(&mut self, made: &[String], fault: &Fault) {
        for id in made {
            match fault {
                Fault::Dies { after } => self.world.later(*after, Happening::Died(id.clone())),
                Fault::Halts { after } => self.world.later(*after, Happening::HaltedItself(id.clone())),
                Fault::Reclaim { after, notice } => {
                    self.world.reclaim_later(
                        id,
                        SignedDuration::from_secs(*after),
                        SignedDuration::from_secs(*notice),
                    );
                }
                _ => {}
            }
        }
    }

    fn violation(&mut self, request: &Request, what: String) {
        let violation = Violation {
            at: self.world.now(),
            request: format!("{} {}", request.method, target(request)),
            what,
        };
        tracing::warn!(?violation, "a request that the description does not allow");
        self.violations.push(violation);
    }
}

fn maintenance() -> Answer {
    let page = "<html><body><h1>Down for maintenance</h1>Please try again later.</body></html>";
    Answer::new(503, "text/html", page)
}

fn refusal_before(fault: &Fault) -> Option<Refusal> {
    match fault {
        Fault::TooMany { retry_after } => Some(Refusal::TooMany {
            retry_after: *retry_after,
        }),
        Fault::Server {
            status,
            when: When::Before,
        } => Some(Refusal::Server(*status)),
        Fault::NoCapacity => Some(Refusal::NoCapacity),
        Fault::Quota { what } => Some(Refusal::Quota(what.clone())),
        Fault::Funds => Some(Refusal::Funds),
        Fault::Unauthorized => Some(Refusal::Unauthorized),
        Fault::Expired => Some(Refusal::Expired),
        Fault::Forbidden => Some(Refusal::Forbidden),
        Fault::Latency { .. }
        | Fault::Server {
            when: When::After, ..
        }
        | Fault::Cut { .. }
        | Fault::Maintenance { .. }
        | Fault::PartialPage { .. }
        | Fault::Reshaped { .. }
        | Fault::Boot(_)
        | Fault::Dies { .. }
        | Fault::Halts { .. }
        | Fault::Reclaim { .. } => None,
    }
}

/// Path and query for the log. Keys in queries (`api_key`) are left out.
fn target(request: &Request) -> String {
    let query: Vec<String> = request
        .query
        .iter()
        .map(|(key, value)| {
            if key.contains("key") {
                format!("{key}=…")
            } else {
                format!("{key}={value}")
            }
        })
        .collect();
    if query.is_empty() {
        request.path.clone()
    } else {
        format!("{}?{}", request.path, query.join("&"))
    }
}

/// Says once that no official descriptions are there to check against.
pub fn say_that_descriptions_are_missing() {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        #[expect(clippy::print_stderr, reason = "tests have no subscriber, and must tell that they test less")]
        {
            eprintln!("skipped: SKYWARD_SPECS is not set, so requests are not checked against the official descriptions");
        }
    });
}
