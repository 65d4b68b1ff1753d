//! The whole truth: objects, clouds, runs, the time; and chance.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jiff::Timestamp;
use rand::{Rng, SeedableRng, rngs::StdRng};
use skyward_api::{Offer, Provider};

use super::{
    cloud::{Cloud, second},
    kinds::{ALL, Kind},
    planted::Fault,
    process::Process,
    restored::Restores,
    rules::Settled,
    server::Server,
};

/// The process died; its next effect does not happen.
pub(super) struct Crashed;

/// How often faults happen, in percent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Odds {
    /// The process dies between two effects.
    pub(super) crash: u32,
    /// A call to a cloud fails, or its answer is lost.
    pub(super) calls: u32,
    /// A write to the API server is refused, or its answer is lost.
    pub(super) writes: u32,
    /// A cloud shows outdated state.
    pub(super) lag: u32,
    /// Watches have not caught up.
    pub(super) stale: u32,
    /// Something happens: to machines, to what users want, to accounts.
    pub(super) happens: u32,
}

/// The Secret of a Provider: credentials of an account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Secret {
    pub(super) account: String,
    pub(super) version: u32,
}

/// The world.
pub(super) struct World {
    pub(super) random: StdRng,
    pub(super) now: i64,
    pub(super) odds: Odds,
    /// Whether the world is calm: no faults, and no changes by users.
    pub(super) calm: bool,
    pub(super) server: Server,
    /// By account.
    pub(super) clouds: BTreeMap<String, Cloud>,
    /// Offer objects, by name.
    pub(super) published: BTreeMap<String, Arc<Offer>>,
    /// By Provider.
    pub(super) secrets: BTreeMap<String, Secret>,
    /// On machines, by name.
    pub(super) runs: BTreeMap<String, u32>,
    pub(super) process: Process,
    /// Effect boundaries that were passed.
    pub(super) boundaries: u64,
    /// The process dies at exactly this one.
    pub(super) crash_at: Option<u64>,
    /// When something last changed.
    pub(super) changed_at: i64,
    /// UIDs of records that somebody removed by force.
    pub(super) torn: BTreeSet<String>,
    /// Attempts that were used, by UID of the Pool.
    pub(super) attempts: BTreeSet<(String, u32)>,
    /// Machines whose records are gone, with the costs in these.
    pub(super) settled: Vec<Settled>,
    /// The truth about a restore from a backup, in a history that has one.
    pub(super) restores: Option<Restores>,
    /// The bug that the operator has on purpose.
    pub(super) planted: Option<Fault>,
    /// Rules that were broken.
    pub(super) broken: Vec<String>,
    /// The story, if it is to be printed.
    pub(super) story: Option<Vec<String>>,
}

impl World {
    pub(super) fn new(seed: u64, tells: bool) -> Self {
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            now: 1_000_000,
            odds: Odds::default(),
            calm: false,
            server: Server::default(),
            clouds: BTreeMap::new(),
            published: BTreeMap::new(),
            secrets: BTreeMap::new(),
            runs: BTreeMap::new(),
            process: Process::default(),
            boundaries: 0,
            crash_at: None,
            changed_at: 1_000_000,
            torn: BTreeSet::new(),
            attempts: BTreeSet::new(),
            settled: Vec::new(),
            restores: None,
            planted: None,
            broken: Vec::new(),
            story: tells.then(Vec::new),
        };
        world.odds = world.some_odds();
        world
    }

    /// Odds of this history.
    fn some_odds(&mut self) -> Odds {
        Odds {
            crash: self.one_of(&[0, 1, 4, 10]),
            calls: self.one_of(&[0, 5, 20]),
            writes: self.one_of(&[0, 0, 5]),
            lag: self.one_of(&[0, 30, 80]),
            stale: self.one_of(&[0, 30, 60]),
            happens: self.one_of(&[10, 30, 60]),
        }
    }

    /// A Provider of that kind, with its account.
    pub(super) fn add_provider(&mut self, name: &str, kind: &'static Kind) {
        let account = format!("{name}-1");
        self.clouds.insert(account.clone(), Cloud::new(kind));
        self.clouds.insert(format!("{name}-2"), Cloud::new(kind));
        let secret = Secret { account, version: 1 };
        self.secrets.insert(name.to_owned(), secret);
        let settings = serde_json::json!({ "regions": kind.regions });
        let provider: Provider = serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider", "metadata": { "name": name },
            "spec": { kind.name(): settings, "allowedNamespaces": {} }
        }))
        .expect("this is a Provider");
        let now = self.time();
        let _made = self
            .server
            .providers
            .create(&mut self.server.version, provider, now);
    }

    pub(super) fn some_kind(&mut self) -> &'static Kind {
        self.one_of(&ALL)
    }

    pub(super) fn kind_of(&self, provider: &str) -> &'static Kind {
        self.clouds[&format!("{provider}-1")].kind
    }

    pub(super) fn time(&self) -> Timestamp {
        second(self.now)
    }

    /// True with that chance in percent; never while it is calm.
    pub(super) fn chance(&mut self, percent: u32) -> bool {
        !self.calm && percent > 0 && self.random.random_ratio(percent.min(100), 100)
    }

    pub(super) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.random.random_range(0..all.len())]
    }

    /// The moment between two effects.
    pub(super) fn boundary(&mut self) -> Result<(), Crashed> {
        self.boundaries += 1;
        let dies = self.crash_at == Some(self.boundaries) || self.chance(self.odds.crash);
        if dies {
            self.crash();
            return Err(Crashed);
        }
        Ok(())
    }

    /// Whether the operator has that bug.
    pub(super) fn has(&self, fault: Fault) -> bool {
        self.planted == Some(fault)
    }

    /// A rule of the world.
    pub(super) fn rule(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            let what = what();
            self.tell(|| format!("BROKEN: {what}"));
            self.broken.push(what);
        }
    }

    pub(super) fn tell(&mut self, what: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(format!("{:>7} {}", self.now - 1_000_000, what()));
        }
    }

    /// Notes that something changed.
    pub(super) const fn change(&mut self) {
        self.changed_at = self.now;
    }
}
