//! Several clouds on one clock, each at an address of its own, for tests and the program.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jiff::{SignedDuration, Timestamp};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::backend::memory::Memory;
use crate::backend::{Backend, Reports};
use crate::core::clock::Clock;
use crate::core::cloud::Cloud;
use crate::core::server;
use crate::core::sim::Sim;

/// How often a cloud on the real clock carries out what is due, without a request.
const TICK: Duration = Duration::from_millis(100);

/// The cloud that a back end is made for.
#[derive(Debug)]
pub struct Site {
    /// The cloud.
    pub cloud: &'static str,
    /// Where it listens.
    pub address: SocketAddr,
    /// Where the back end tells what happens.
    pub reports: Reports,
}

/// Makes the back end of a cloud.
pub type MakeBackend = dyn Fn(Site) -> Arc<dyn Backend>;

/// Clouds to be started.
pub struct Builder {
    clock: Clock,
    seed: u64,
    clouds: Vec<(Box<dyn Cloud>, SocketAddr)>,
    backend: Box<MakeBackend>,
}

impl Builder {
    /// On the real clock, with machines in memory.
    pub fn new() -> Self {
        Self {
            clock: Clock::real(),
            seed: 1,
            clouds: Vec::new(),
            backend: Box::new(|site| Arc::new(Memory::new(site.reports))),
        }
    }

    /// On a clock that tests move; it begins in November 2026.
    pub fn manual() -> Self {
        let start: Timestamp = jiff::civil::date(2026, 11, 21)
            .at(0, 0, 0, 0)
            .to_zoned(jiff::tz::TimeZone::UTC)
            .map_or(Timestamp::UNIX_EPOCH, |zoned| zoned.timestamp());
        Self {
            clock: Clock::manual(start),
            ..Self::new()
        }
    }

    /// With this seed.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// With this clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// With machines made of something else.
    #[must_use]
    pub fn backend(mut self, make: impl Fn(Site) -> Arc<dyn Backend> + 'static) -> Self {
        self.backend = Box::new(make);
        self
    }

    /// With this cloud, at a free port of this machine.
    #[must_use]
    pub fn cloud(self, cloud: impl Cloud) -> Self {
        self.cloud_at(Box::new(cloud), SocketAddr::from(([127, 0, 0, 1], 0)))
    }

    /// With this cloud at an address.
    #[must_use]
    pub fn cloud_at(mut self, cloud: Box<dyn Cloud>, address: SocketAddr) -> Self {
        self.clouds.push((cloud, address));
        self
    }

    /// Listens. The clouds answer until the [`Simulator`] is dropped.
    pub async fn start(self) -> anyhow::Result<Simulator> {
        let mut tasks = JoinSet::new();
        let mut clouds = BTreeMap::new();
        for (number, (cloud, address)) in self.clouds.into_iter().enumerate() {
            let name = cloud.name();
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("the simulator of {name} cannot listen on {address}"))?;
            let address = listener.local_addr()?;
            let reports = Reports::default();
            let backend = (self.backend)(Site {
                cloud: name,
                address,
                reports: reports.clone(),
            });
            let seed = self.seed.wrapping_add(number as u64);
            let sim = Arc::new(Sim::new(cloud, self.clock.clone(), seed, backend, reports));
            let url = format!("http://{address}");
            tasks.spawn(serve_and_tick(listener, sim.clone()));
            clouds.insert(name, (sim, url));
        }
        Ok(Simulator {
            clock: self.clock,
            clouds,
            _tasks: tasks,
        })
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self::new()
    }
}

async fn serve_and_tick(listener: TcpListener, sim: Arc<Sim>) {
    let ticks = async {
        while sim.clock().is_real() {
            tokio::time::sleep(TICK).await;
            sim.catch_up();
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        _ = server::serve(listener, sim.clone()) => {}
        () = ticks => {}
    }
}

/// Running clouds.
pub struct Simulator {
    clock: Clock,
    clouds: BTreeMap<&'static str, (Arc<Sim>, String)>,
    // Dropping ends them.
    _tasks: JoinSet<()>,
}

impl Simulator {
    /// The base address of a cloud.
    ///
    /// # Panics
    /// When it was not started: a mistake of the test.
    pub fn url(&self, cloud: &str) -> &str {
        &self.entry(cloud).1
    }

    /// A cloud.
    ///
    /// # Panics
    /// When it was not started: a mistake of the test.
    pub fn cloud(&self, cloud: &str) -> &Arc<Sim> {
        &self.entry(cloud).0
    }

    /// All clouds with their addresses.
    pub fn clouds(&self) -> impl Iterator<Item = (&Arc<Sim>, &str)> {
        self.clouds.values().map(|(sim, url)| (sim, url.as_str()))
    }

    /// The clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Moves the manual clock, and carries out what is due then.
    pub fn advance(&self, seconds: i64) {
        self.clock.advance(SignedDuration::from_secs(seconds));
        for (sim, _) in self.clouds.values() {
            sim.catch_up();
        }
    }

    #[expect(clippy::panic, reason = "only tests name clouds in code")]
    fn entry(&self, cloud: &str) -> &(Arc<Sim>, String) {
        self.clouds
            .get(cloud)
            .unwrap_or_else(|| panic!("the cloud {cloud:?} was not started"))
    }
}
