//! Calls of one process wait for their turn, so that a seed decides in which order they have their
//! effects, and what befalls each.
//!
//! A call has a name that says what it is and how many like it came before. Its place among the calls that
//! wait, and its luck, are chances of that name: so what happens hardly depends on the order in which
//! equal tasks of a process are polled, which differs from run to run.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{FutureExt, future::BoxFuture};
use kube::client::Body;
use parking_lot::Mutex;
use rand::Rng;
use skyward_apisim::{Call, Fate, Network, Verb};
use tokio::{
    sync::{Notify, oneshot},
    time::sleep,
};
use tower::{BoxError, Service, ServiceExt};

use crate::{
    branches,
    time::{MINUTE, Moment, SECOND, lasting},
    world::{World, one_of, percent},
};

/// What befalls a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Luck {
    /// It works.
    #[default]
    Good,
    /// It is refused before it does anything: which refusal, as a number.
    Refused(u8),
    /// It is lost, and had no effect.
    LostBefore,
    /// The answer is lost, and the call had its effect.
    LostAfter,
    /// The answer comes so much later.
    Late(Moment),
    /// The process dies before the call.
    DiesBefore,
    /// The process dies when the call had its effect.
    DiesAfter,
    /// The process stands still for so long just before the call, and then goes on with it.
    StandsStill(Moment),
}

/// Where the calls go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    Api,
    Cloud,
    Agent,
    /// Writes of the logs of maps.
    Store,
}

/// What became of the calls that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// No call waits.
    Nothing,
    /// A call has its turn.
    Given,
    /// The process stands still for so long.
    StandsStill(Moment),
}

/// A call that waits: it is told its full name and its luck.
type Turn = oneshot::Sender<(String, Luck)>;

struct Waiting {
    turn: Turn,
    to: To,
    /// Whether it may change something.
    changes: bool,
}

/// The way of a process to the world.
pub(crate) struct Way {
    pub(crate) world: Arc<World>,
    /// Number of the process.
    pub(crate) process: u32,
    /// The process' identity in the election.
    pub(crate) identity: String,
    waiting: Mutex<BTreeMap<(u64, String), Waiting>>,
    /// The call before which the process stands still.
    halted: Mutex<Option<(Turn, String)>>,
    counts: Mutex<BTreeMap<String, u32>>,
    /// Notified when a call begins to wait, or the process dies.
    pub(crate) stirs: Notify,
    dead: AtomicBool,
    /// The name and the luck of the call of the API server whose turn it is, until it is on its way.
    coming: Mutex<Option<(String, Luck)>>,
    /// The same of the call that is being served.
    served: Mutex<Option<(String, Luck)>>,
}

impl Way {
    pub(crate) fn new(world: Arc<World>, process: u32, identity: String) -> Arc<Self> {
        Arc::new(Self {
            world,
            process,
            identity,
            waiting: Mutex::default(),
            halted: Mutex::default(),
            counts: Mutex::default(),
            stirs: Notify::new(),
            dead: AtomicBool::new(false),
            coming: Mutex::default(),
            served: Mutex::default(),
        })
    }

    /// Whether the process died.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.world.truth().tell(format!("process {} dies", self.process));
        self.stirs.notify_one();
    }

    /// Gives the next call its turn.
    pub(crate) fn next(&self) -> Next {
        loop {
            let Some(((_, name), Waiting { turn, to, changes })) = self.waiting.lock().pop_first() else {
                return Next::Nothing;
            };
            // Who waits may have given up.
            if turn.is_closed() {
                continue;
            }
            let luck = self.luck(&name, to, changes);
            if let Luck::StandsStill(time) = luck {
                let words = format!("process {} stands still before {name}", self.process);
                self.world.truth().tell(words);
                *self.halted.lock() = Some((turn, name));
                return Next::StandsStill(time);
            }
            if turn.send((name, luck)).is_ok() {
                return Next::Given;
            }
        }
    }

    /// The process goes on where it stood still: the call comes before anything that could notice.
    pub(crate) fn goes_on(&self) {
        if let Some((turn, name)) = self.halted.lock().take() {
            self.world
                .truth()
                .tell(format!("process {} goes on", self.process));
            let _given_up = turn.send((name, Luck::Good));
        }
    }

    /// Waits for the turn of a call; answers with its full name and its luck. Never ends if the process
    /// dies before.
    pub(crate) async fn turn(&self, what: String, to: To, changes: bool) -> (String, Luck) {
        let number = self.count(&what);
        let name = format!("{}: {what} #{number}", self.process);
        let place = self.world.chance(&name).random();
        let (turn, comes) = oneshot::channel();
        let waiting = Waiting { turn, to, changes };
        self.waiting.lock().insert((place, name), waiting);
        self.stirs.notify_one();
        let Ok((name, luck)) = comes.await else {
            return std::future::pending().await;
        };
        if self.is_dead() {
            return std::future::pending().await;
        }
        if luck == Luck::DiesBefore {
            self.die();
            return std::future::pending().await;
        }
        (name, luck)
    }

    /// How many of that kind there were.
    fn count(&self, what: &str) -> u32 {
        let mut counts = self.counts.lock();
        let count = counts.entry(what.to_owned()).or_default();
        *count += 1;
        *count
    }

    /// What befalls the call.
    fn luck(&self, name: &str, to: To, changes: bool) -> Luck {
        let mut truth = self.world.truth();
        truth.calls += 1;
        if let Some(luck) = branches::befalls(truth.calls, changes) {
            return luck;
        }
        if truth.calm {
            return Luck::Good;
        }
        let odds = truth.odds;
        drop(truth);
        let mut random = self.world.chance(&format!("luck of {name}"));
        if odds.crash > 0 && random.random_ratio(odds.crash, 10_000) {
            return one_of(&mut random, &[Luck::DiesBefore, Luck::DiesAfter]);
        }
        if odds.halt > 0 && random.random_ratio(odds.halt, 10_000) {
            let time = one_of(&mut random, &[30 * SECOND, 2 * MINUTE, 5 * MINUTE]);
            return Luck::StandsStill(time);
        }
        let faults = match to {
            To::Api => odds.api,
            To::Cloud => odds.clouds,
            To::Agent => odds.agents,
            To::Store => odds.store,
        };
        if !percent(&mut random, faults) {
            return Luck::Good;
        }
        match random.random_range(0..5) {
            0 => Luck::Refused(random.random()),
            1 => Luck::LostBefore,
            2 | 3 => Luck::LostAfter,
            _ => Luck::Late(one_of(&mut random, &[SECOND / 4, 3 * SECOND, 25 * SECOND])),
        }
    }

    /// After the effect of a call: the answer is on its way. True if it is lost.
    pub(crate) async fn answered(&self, luck: Luck) -> bool {
        match luck {
            Luck::DiesAfter => {
                self.die();
                std::future::pending().await
            }
            Luck::Late(by) => {
                sleep(lasting(by)).await;
                if self.is_dead() {
                    std::future::pending().await
                } else {
                    false
                }
            }
            luck => luck == Luck::LostAfter,
        }
    }
}

/// A service whose requests wait for their turn before anything of it sees them: a process that stands still
/// between its decision and its request does so before the fence, which is asked right before a request goes.
pub(crate) fn in_turn<S, B>(
    way: Arc<Way>,
    service: S,
) -> impl Service<http::Request<Body>, Response = http::Response<B>, Error = BoxError, Future: Send> + Clone + Send
where
    S: Service<http::Request<Body>, Response = http::Response<B>, Error: Into<BoxError>, Future: Send>
        + Clone
        + Send
        + 'static,
    B: Send + 'static,
{
    tower::service_fn(move |request: http::Request<Body>| {
        let (way, service) = (way.clone(), service.clone());
        async move {
            let call = Call::read(request.method(), request.uri(), request.headers());
            let changes = call.as_ref().is_none_or(|call| !call.reads());
            let what = call.as_ref().map(words).unwrap_or_default();
            let turn = way.turn(what, To::Api, changes).await;
            *way.coming.lock() = Some(turn);
            service.oneshot(request).await.map_err(Into::<BoxError>::into)
        }
    })
}

/// The network between a process and the API server.
pub(crate) struct Net(pub(crate) Arc<Way>);

/// What a call of the API server is, in words that are the same in each run.
fn words(call: &Call) -> String {
    let verb = match call.verb {
        Verb::Get => "get",
        Verb::List => "list",
        Verb::Watch => "watch",
        Verb::Create => "create",
        Verb::Replace => "replace",
        Verb::Patch(_) => "patch",
        Verb::Delete => "delete",
    };
    let status = if call.status { "/status" } else { "" };
    format!("{verb} {} {}{status}", call.resource.plural, call.name)
}

impl Network for Net {
    fn before(&self, _: &Call) -> BoxFuture<'static, Fate> {
        let way = &self.0;
        let (name, luck) = way.coming.lock().take().unwrap_or_default();
        let fate = match luck {
            Luck::LostBefore => {
                way.world.truth().tell(format!("{name} is lost"));
                Fate::Lost
            }
            Luck::Refused(which) => {
                way.world.truth().tell(format!("{name} is refused"));
                Fate::Refused([429, 500, 503][usize::from(which) % 3])
            }
            _ => {
                *way.served.lock() = Some((name, luck));
                Fate::Arrives
            }
        };
        std::future::ready(fate).boxed()
    }

    fn after(&self, call: &Call, code: u16) -> BoxFuture<'static, Fate> {
        let way = self.0.clone();
        let (name, luck) = way.served.lock().take().unwrap_or_default();
        way.world.truth().tell(format!("{name}: {code}{}", luck.words()));
        way.world.wrote(&way, call);
        async move {
            if way.answered(luck).await {
                Fate::Lost
            } else {
                Fate::Arrives
            }
        }
        .boxed()
    }

    fn event(&self, call: &Call) -> BoxFuture<'static, ()> {
        let way = self.0.clone();
        let what = format!("{}: event of {}", way.process, call.resource.plural);
        async move {
            let (calm, stale) = {
                let truth = way.world.truth();
                (truth.calm, truth.odds.stale)
            };
            if calm || stale == 0 {
                return;
            }
            let number = way.count(&what);
            let mut random = way.world.chance(&format!("{what} #{number}"));
            if percent(&mut random, stale) {
                let lag = random.random_range(0..5 * SECOND);
                sleep(lasting(lag)).await;
            }
        }
        .boxed()
    }
}

impl Luck {
    /// For the story.
    pub(crate) fn words(self) -> String {
        match self {
            Self::Good => String::new(),
            Self::LostAfter => ", and the answer is lost".into(),
            Self::Late(by) => format!(", and the answer is {by} ms late"),
            Self::DiesAfter => ", and the process dies".into(),
            Self::Refused(_) | Self::LostBefore | Self::DiesBefore | Self::StandsStill(_) => {
                format!("{self:?}")
            }
        }
    }
}
