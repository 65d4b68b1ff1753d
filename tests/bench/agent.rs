//! Time and processor time of one run on its machine: the agent alone, without cluster and network.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use skyward_agent::{
    daemon::{Home, connect},
    protocol::{
        Command as Argv, Fact, Finished, ForgetRequest, RunSpec, StartRequest, StopRequest, WatchRequest,
        agent_client::AgentClient, fact, run_spec::Work,
    },
};
use tokio::sync::broadcast;
use tonic::transport::Channel;

use crate::{
    cpu::{Snapshot, Spent},
    measure::{figure, ms, percentile},
};

/// Runs one after the other.
const ALONE: u32 = 200;
/// Runs of which some are under way at once.
const CROWD: u32 = 400;
const AT_ONCE: usize = 8;

/// A daemon with a home of its own; it ends with this.
pub(crate) struct Daemon {
    process: Child,
    home: tempfile::TempDir,
    agent: AgentClient<Channel>,
    facts: broadcast::Sender<Fact>,
}

impl Daemon {
    pub(crate) async fn start(program: &Path, arguments: &[&str]) -> anyhow::Result<Self> {
        let home = tempfile::tempdir()?;
        // Users of runs must be able to enter.
        fs::set_permissions(home.path(), Permissions::from_mode(0o755))?;
        let process = Command::new(program)
            .args([
                "daemon",
                "--machine",
                "bench/agent",
                "--stop-command",
                "true",
                "--home",
            ])
            .arg(home.path())
            .args(arguments)
            .stdin(Stdio::null())
            .spawn()
            .with_context(|| format!("the agent {} does not start", program.display()))?;
        let deadline = Instant::now() + Duration::from_secs(10);
        let channel = loop {
            match connect(&Home::new(home.path())).await {
                Ok(channel) => break channel,
                Err(error) if Instant::now() > deadline => bail!("the agent does not answer: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        let mut agent = AgentClient::new(channel);
        let mut stream = agent
            .watch(WatchRequest {
                since: 0,
                mark_replay: false,
            })
            .await?
            .into_inner();
        let facts = broadcast::Sender::new(4096);
        let told = facts.clone();
        // It ends with the daemon.
        tokio::spawn(async move {
            while let Ok(Some(fact)) = stream.message().await {
                let _ = told.send(fact);
            }
        });
        Ok(Self {
            process,
            home,
            agent,
            facts,
        })
    }

    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    async fn run(&self, run_id: String) -> anyhow::Result<Duration> {
        let spec = RunSpec {
            run_id,
            work: Some(Work::Command(Argv {
                argv: vec!["true".to_owned()],
            })),
            grace_ms: 1000,
            ..RunSpec::default()
        };
        Ok(self.finished(spec).await?.0)
    }

    /// Starts a run.
    pub(crate) async fn begin(&self, spec: RunSpec) -> anyhow::Result<()> {
        let request = StartRequest {
            epoch: 1,
            spec: Some(spec),
        };
        self.agent.clone().start(request).await?;
        Ok(())
    }

    /// Stops a run, and waits for its end.
    pub(crate) async fn stop(&self, run_id: &str) -> anyhow::Result<()> {
        let mut facts = self.facts.subscribe();
        let request = StopRequest {
            epoch: 1,
            run_id: run_id.to_owned(),
            grace_ms: 1000,
            why: "Stopped".to_owned(),
        };
        self.agent.clone().stop(request).await?;
        loop {
            let fact = tokio::time::timeout(Duration::from_secs(20), facts.recv()).await??;
            if fact.run_id == run_id && matches!(fact.fact, Some(fact::Fact::Finished(_))) {
                return Ok(());
            }
        }
    }

    /// Time from the call of Start until the run is reported as finished, and how it ended.
    pub(crate) async fn finished(&self, spec: RunSpec) -> anyhow::Result<(Duration, Finished)> {
        let mut facts = self.facts.subscribe();
        let mut agent = self.agent.clone();
        let run_id = spec.run_id.clone();
        let start = Instant::now();
        self.begin(spec).await?;
        let finished = loop {
            let fact = tokio::time::timeout(Duration::from_secs(20), facts.recv()).await??;
            if fact.run_id == run_id
                && let Some(fact::Fact::Finished(finished)) = fact.fact
            {
                anyhow::ensure!(finished.exit_code == 0, "a run failed: {}", finished.message);
                break finished;
            }
        };
        let took = start.elapsed();
        let request = ForgetRequest {
            epoch: 1,
            run_ids: vec![run_id],
        };
        agent.forget(request).await?;
        Ok((took, finished))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Start → finished, for a single run and for many at once, and the processor time of a run.
pub(crate) async fn run(program: &Path) -> anyhow::Result<()> {
    let daemon = Daemon::start(program, &[]).await?;
    let mut alone = Vec::new();
    for i in 0..ALONE {
        alone.push(daemon.run(format!("alone-{i}")).await?);
    }
    let raw = format!("start and wait for the same program {:.1} ms", ms(raw_process()?));
    figure(
        "agent_start_to_finished_p50",
        ms(percentile(&mut alone, 0.5)),
        "ms",
        "10",
        &raw,
    );
    let before = Snapshot::take();
    let begun = Instant::now();
    let mut crowd: Vec<Duration> = stream::iter(0..CROWD)
        .map(|i| daemon.run(format!("crowd-{i}")))
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await?;
    let rate = f64::from(CROWD) / begun.elapsed().as_secs_f64();
    let mut spent = Spent::default();
    spent.add(&before, &Snapshot::take());
    figure(
        "agent_start_to_finished_p50_of_8",
        ms(percentile(&mut crowd, 0.5)),
        "ms",
        "-",
        &format!("{rate:.0} runs per second"),
    );
    figure(
        "cpu_per_run",
        (spent.of("agent") + spent.of("runs")) / f64::from(CROWD),
        "ms",
        "-",
        &format!("{:.1} ms of it the daemon", spent.of("agent") / f64::from(CROWD)),
    );
    Ok(())
}

fn raw_process() -> anyhow::Result<Duration> {
    let mut samples = Vec::new();
    for _ in 0..ALONE {
        let start = Instant::now();
        Command::new("true").status()?;
        samples.push(start.elapsed());
    }
    Ok(percentile(&mut samples, 0.5))
}
