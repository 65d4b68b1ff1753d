//! A world and the processes in it, moved through time.

use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::StdRng};
use skyward_controller::runtime::Error;

use crate::{
    process::{Process, Stop},
    time::{self, MINUTE, Moment, NEVER, SECOND, now},
    world::{Odds, World, one_of},
};

/// How long processes that run side by side run in turn.
const TURN: Moment = SECOND / 4;
/// How often calm is looked for, at first and later on.
const LOOKS: (Moment, Moment) = (5 * SECOND, MINUTE);

/// A process, and until when it stands still.
struct Running {
    process: Process,
    still_until: Moment,
}

/// Everything.
pub(crate) struct Play {
    pub(crate) world: Arc<World>,
    pub(crate) random: StdRng,
    processes: Vec<Running>,
    /// When another process starts.
    starts: Moment,
    number: u32,
    identity: String,
    /// How long a Lease lasts, in seconds.
    lease: u64,
}

impl Play {
    /// A world of this seed in which everything works.
    pub(crate) fn new(seed: u64, odds: impl FnOnce(&mut StdRng) -> Odds) -> Self {
        time::stand_still(0);
        let mut random = StdRng::seed_from_u64(seed);
        let odds = odds(&mut random);
        Self {
            world: World::new(seed, odds),
            random,
            processes: Vec::new(),
            starts: 0,
            number: 0,
            identity: "controller-1".to_owned(),
            lease: 60,
        }
    }

    /// Whether a rule is broken.
    pub(crate) fn is_broken(&self) -> bool {
        !self.world.truth().broken.is_empty()
    }

    /// Adds to the story.
    pub(crate) fn tell(&self, what: String) {
        self.world.truth().tell(what);
    }

    /// Somebody changed an object.
    pub(crate) fn note(&self) {
        self.world.look();
    }

    /// A while in which anything may happen.
    pub(crate) fn turbulence(&mut self, steps: u32) {
        self.world.truth().calm = false;
        for _ in 0..steps {
            if self.is_broken() {
                break;
            }
            let time = self.random.random_range(0..20 * SECOND);
            self.pass(time);
            self.happen();
        }
        self.world.truth().calm = true;
    }

    /// So much time passes.
    pub(crate) fn pass(&mut self, time: Moment) {
        let end = now() + time;
        while now() < end {
            let begun = now();
            let awake = self.awake(begun);
            if awake == 0 && self.starts <= begun {
                self.start();
                continue;
            }
            let wakes = self.processes.iter().map(|running| running.still_until);
            let next = wakes.chain([self.starts]).filter(|at| *at > begun).min();
            let mut until = end.min(next.unwrap_or(NEVER));
            if awake > 1 {
                until = until.min(begun + TURN);
            }
            let reached = self.run(begun, until);
            time::stand_still(reached);
        }
    }

    /// How many processes do not stand still.
    fn awake(&self, at: Moment) -> usize {
        let awake = self.processes.iter().filter(|running| running.still_until <= at);
        awake.count()
    }

    fn start(&mut self) {
        self.number += 1;
        self.starts = NEVER;
        // A process that stands still keeps its identity.
        if !self.processes.is_empty() {
            self.identity = format!("controller-{}", self.number);
        }
        let process = Process::start(&self.world, self.number, &self.identity, self.lease);
        self.processes.push(Running {
            process,
            still_until: 0,
        });
    }

    /// All processes die.
    pub(crate) fn all_die(&mut self) {
        self.tell("all processes die".to_owned());
        self.processes.clear();
        self.gone();
    }

    /// Runs the processes that are awake, one after the other; answers with the moment that was reached.
    fn run(&mut self, from: Moment, until: Moment) -> Moment {
        let mut reached = (self.awake(from) == 0).then_some(until);
        for mut running in std::mem::take(&mut self.processes) {
            if running.still_until > from {
                self.processes.push(running);
                continue;
            }
            time::stand_still(from);
            let number = running.process.way.process;
            match running.process.run_until(until) {
                Stop::Time => self.processes.push(running),
                Stop::Died => self.gone(),
                Stop::StandsStill(time) => {
                    running.still_until = now() + time;
                    self.processes.push(running);
                    // Another process waits for the Lease.
                    self.starts_soon();
                }
                Stop::Ended(result) => {
                    let is_usual = matches!(
                        result,
                        Err(Error::LeaseLost | Error::Superseded(_) | Error::EpochRaised | Error::Seal(_))
                    );
                    let mut truth = self.world.truth();
                    truth.tell(format!("process {number} ends: {result:?}"));
                    truth.rule(is_usual, || format!("process {number} ends: {result:?}"));
                    drop(truth);
                    self.gone();
                }
            }
            reached = reached.max(Some(now()));
        }
        reached.unwrap_or(until)
    }

    /// A process is no more; another one starts a moment later, in the same Pod or in another one.
    fn gone(&mut self) {
        if self.random.random_bool(0.5) {
            self.identity = format!("controller-{}", self.number + 1);
        }
        self.starts_soon();
    }

    fn starts_soon(&mut self) {
        self.starts = now() + SECOND * self.random.random_range(1..15);
    }

    /// Waits until nothing is wrong any more, for at least `least` and at most `most`.
    pub(crate) fn settle(&mut self, least: Moment, most: Moment, wrong: impl Fn(&World) -> Vec<String>) {
        let (least, end) = (now() + least, now() + most);
        let (mut look, longest) = LOOKS;
        loop {
            self.pass(look);
            look = longest.min(look * 3 / 2);
            if self.is_broken() {
                return;
            }
            let wrong = wrong(&self.world);
            if wrong.is_empty() && now() >= least {
                self.tell("all is calm".to_owned());
                return;
            }
            if now() >= end {
                let mut truth = self.world.truth();
                for what in wrong {
                    let what = format!("after {} minutes of calm: {what}", most / MINUTE);
                    truth.rule(false, || what);
                }
                return;
            }
        }
    }

    /// Odds of a history.
    pub(crate) fn some_odds(random: &mut StdRng) -> Odds {
        Odds {
            crash: one_of(random, &[0, 20, 50, 200]),
            halt: one_of(random, &[0, 0, 20, 50]),
            clouds: one_of(random, &[0, 5, 20]),
            api: one_of(random, &[0, 0, 2, 5]),
            lag: one_of(random, &[0, 30, 80]),
            stale: one_of(random, &[0, 5, 30]),
            happens: one_of(random, &[10, 30, 60]),
            lies: one_of(random, &[0, 0, 2]),
            tasks: one_of(random, &[0, 30, 60]),
            agents: one_of(random, &[0, 0, 5, 20]),
            store: 0,
        }
    }
}
