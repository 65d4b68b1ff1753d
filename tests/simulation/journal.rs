//! What the agent of a simulated machine keeps for as long as the machine exists: the newest epoch, and its runs,
//! with facts that have numbers. Runs take the time, and end in the way, that their names choose.

use std::{collections::BTreeMap, sync::Arc};

use rand::Rng;
use skyward_remote::protocol::{
    Fact, Finished, RunSpec, RunState, Started, fact, finished::Ending, run_state::Phase,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    calls::Way,
    shares::{Happened, Share},
    time::{Moment, NEVER, SECOND, timestamp},
    world::one_of,
};

/// How far the numbers of facts jump when a machine restarts.
const RESTARTED: u64 = 1 << 20;

/// How a run ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Its process exits with that code.
    Exits(i32),
    /// At the end of its timeout.
    TimedOut,
    /// Because it was asked to.
    Stopped,
    /// Its watcher is killed.
    Interrupted,
    /// Its machine restarts.
    Restarted,
}

impl End {
    /// Whether the run came to its end by itself, so that it does not run again.
    pub(crate) const fn is_its_own(self) -> bool {
        matches!(self, Self::Exits(_) | Self::TimedOut)
    }
}

/// A run as its agent has it.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    started: (u64, Moment),
    /// When it ends, and how.
    pub(crate) ends: (Moment, End),
    /// Number of the fact that it has ended.
    pub(crate) finished: Option<u64>,
    /// What it prints and returns, and whether its facts carry that.
    pub(crate) output: (&'static [u8], &'static [u8], bool),
    /// Of a worker of a map: its items.
    pub(crate) share: Option<Share>,
}

/// What the agent of a machine knows.
#[derive(Clone, Debug)]
pub(crate) struct Journal {
    /// The newest epoch that the agent was told, with its proof.
    pub(crate) epoch: (u64, String),
    pub(crate) runs: BTreeMap<String, Run>,
    pub(crate) next: u64,
    pub(crate) boot: u32,
    /// Cancelled when the agent's process dies.
    pub(crate) life: CancellationToken,
    /// Changed with each change of a run.
    pub(crate) news: Arc<watch::Sender<u64>>,
    /// The stream of each map that was opened last: the epoch of its leader, and its number.
    pub(crate) streams: BTreeMap<String, (u64, u64)>,
    /// How many streams of items were opened.
    pub(crate) opened: u64,
    /// What happened to items and no rule has looked at.
    pub(crate) happened: Vec<Happened>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            epoch: (0, String::new()),
            runs: BTreeMap::new(),
            next: 1,
            boot: 1,
            life: CancellationToken::new(),
            news: Arc::new(watch::Sender::new(0)),
            streams: BTreeMap::new(),
            opened: 0,
            happened: Vec::new(),
        }
    }
}

impl Journal {
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    pub(crate) fn tell(&self) {
        self.news.send_modify(|count| *count += 1);
    }

    /// The agent's process dies, and another one begins with the journal.
    pub(crate) fn die(&mut self) {
        self.life.cancel();
        self.life = CancellationToken::new();
        self.streams.clear();
    }

    /// The machine restarts: what ran there has ended.
    pub(crate) fn restart(&mut self, now: Moment) {
        for run in self.runs.values_mut().filter(|run| run.ends.0 > now) {
            run.ends = (now, End::Restarted);
        }
        self.boot += 1;
        self.next += RESTARTED;
        self.die();
    }

    /// Gives numbers to the ends that have come.
    pub(crate) fn settle(&mut self, now: Moment) {
        self.work(now);
        let open = |run: &&mut Run| run.finished.is_none() && run.ends.0 <= now;
        let mut ended: Vec<&mut Run> = self.runs.values_mut().filter(open).collect();
        ended.sort_by_key(|run| run.ends.0);
        for run in ended {
            run.finished = Some(self.next);
            self.next += 1;
        }
    }

    /// When the next run ends.
    pub(crate) fn next_end(&self) -> Option<Moment> {
        let open = self.runs.values().filter(|run| run.finished.is_none());
        open.map(|run| run.ends.0).min()
    }

    /// Facts after that one, in the order of their numbers.
    pub(crate) fn facts(&mut self, since: u64, now: Moment) -> Vec<Fact> {
        self.settle(now);
        let mut facts = Vec::new();
        for (id, run) in &self.runs {
            facts.push(told(run.started.0, id, fact::Fact::Started(run.start())));
            if let Some(number) = run.finished {
                facts.push(told(number, id, fact::Fact::Finished(run.end())));
            }
        }
        facts.retain(|fact| fact.seq > since);
        facts.sort_by_key(|fact| fact.seq);
        facts
    }

    pub(crate) fn state(&mut self, id: &str, now: Moment) -> Option<RunState> {
        self.settle(now);
        let run = self.runs.get(id)?;
        let is_over = run.finished.is_some();
        let phase = if is_over { Phase::Finished } else { Phase::Running };
        Some(RunState {
            run_id: id.to_owned(),
            phase: phase.into(),
            started_ms: milliseconds(run.started.1),
            finished: is_over.then(|| run.end()),
        })
    }
}

pub(crate) fn told(seq: u64, run_id: &str, fact: fact::Fact) -> Fact {
    Fact {
        seq,
        run_id: run_id.to_owned(),
        fact: Some(fact),
    }
}

pub(crate) fn milliseconds(at: Moment) -> u64 {
    u64::try_from(timestamp(at).as_millisecond()).unwrap_or(0)
}

impl Run {
    /// A run of that name, which takes and does what its name chooses.
    pub(crate) fn of(spec: &RunSpec, way: &Way, started: (u64, Moment)) -> Self {
        let mut random = way.world.chance(&format!("run {}", spec.run_id));
        let takes = random.random_range(1..60) * SECOND;
        let end = match random.random_range(0..10) {
            0 => End::Exits(1),
            1 => End::Interrupted,
            _ => End::Exits(0),
        };
        let limit = Moment::try_from(spec.timeout_ms).unwrap_or(Moment::MAX);
        let ends = if limit > 0 && limit < takes {
            (started.1 + limit, End::TimedOut)
        } else {
            (started.1 + takes, end)
        };
        // A worker goes on until it is stopped, or its watcher is killed.
        let ends = match (&spec.worker, end) {
            (None, _) => ends,
            (Some(_), End::Interrupted) => (started.1 + takes, end),
            (Some(_), _) => (NEVER, End::Exits(0)),
        };
        let log: &[u8] = one_of(&mut random, &[b"".as_slice(), b"some output"]);
        let value: &[u8] = one_of(&mut random, &[b"".as_slice(), b"7"]);
        Self {
            started,
            ends,
            finished: None,
            output: (log, value, random.random()),
            share: spec.worker.is_some().then(Share::default),
        }
    }

    fn start(&self) -> Started {
        Started {
            at_ms: milliseconds(self.started.1),
            pid: 1,
        }
    }

    pub(crate) fn value(&self) -> &'static [u8] {
        match self.ends.1 {
            End::Exits(0) => self.output.1,
            _ => b"",
        }
    }

    fn end(&self) -> Finished {
        let (log, value, carried) = (self.output.0, self.value(), self.output.2);
        let (ending, exit_code, message) = match self.ends.1 {
            End::Exits(code) => (Ending::Exited, code, ""),
            End::TimedOut => (Ending::TimedOut, 0, "it took too long"),
            End::Stopped => (Ending::Stopped, 0, "it was stopped"),
            End::Interrupted => (Ending::Interrupted, 0, "its watcher was killed"),
            End::Restarted => (Ending::MachineRestarted, 0, "its machine restarted"),
        };
        let inside = |bytes: &[u8]| if carried { bytes.to_vec() } else { Vec::new() };
        Finished {
            ending: ending.into(),
            exit_code,
            message: message.to_owned(),
            started_ms: milliseconds(self.started.1),
            finished_ms: milliseconds(self.ends.0),
            log_bytes: log.len() as u64,
            log: inside(log),
            result_bytes: value.len() as u64,
            result: inside(value),
            has_result: !value.is_empty(),
            ..Finished::default()
        }
    }
}
