//! Runs the steps over a connection.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::{
    fs::File,
    time::{Instant, sleep},
};

use super::{
    Progress, Spec,
    lock::{self, Found},
    plan::{self, Facts, Python, Step},
    script::{self, Said, Script, ScriptError},
    steps::{self, Marked},
};
use crate::{
    binaries::{AgentBinaries, Binary},
    budget::Account,
    diagnosis::Diagnosis,
    quote::quote,
    sessions::{FailureKind, SessionFailure},
    ssh::{Connection, Input},
    transcript::Transcript,
    turns::Turn,
};

/// Longest time for a step that only looks, or moves a few files.
const SHORT: Duration = Duration::from_mins(1);
/// The step that makes runs find the environment, in messages.
const SWITCH: &str = "switch";
/// Longest time for the agent to arrive over a slow line.
const UPLOAD: Duration = Duration::from_mins(3);
/// An upload is looked at that often,
const LOOK: Duration = Duration::from_secs(10);
/// and is given up when fewer bytes went out since the last look: others wait for its turn.
const LEAST: u64 = 64 * 1024 * LOOK.as_secs();

/// The deadline of all steps. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Deadline(Arc<Mutex<Instant>>);

impl Deadline {
    /// A deadline so long from now.
    pub(crate) fn after(time: Duration) -> Self {
        Self(Arc::new(Mutex::new(Instant::now() + time)))
    }

    /// Extends the deadline by time that was spent waiting.
    pub(crate) fn extend(&self, by: Duration) {
        *self.0.lock() += by;
    }

    fn left(&self) -> Duration {
        self.0.lock().saturating_duration_since(Instant::now())
    }
}

/// Why a machine is not ready for runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BootstrapError {
    /// The connection is gone; to be tried again.
    Lost(String),
    /// A step failed or took too long, or this machine cannot be used at all.
    Failed(SessionFailure),
    /// The machine broke a limit.
    Broken(String),
}

/// Everything about one bootstrap.
pub(crate) struct Bootstrap<'a> {
    pub(crate) connection: &'a Connection,
    /// The account that the scripts' output is charged to.
    pub(crate) account: &'a Account,
    pub(crate) spec: &'a Spec,
    /// Gets what the steps print.
    pub(crate) transcript: &'a Transcript,
    /// Name of the machine, as `namespace/name`.
    pub(crate) machine: &'a str,
    pub(crate) binaries: &'a AgentBinaries,
    /// Waits for the turn to upload something. The deadline is later afterwards.
    pub(crate) uploads: &'a (dyn Fn() -> BoxFuture<'a, Turn> + Send + Sync),
    /// Waits for the turn to find the versions of the Python packages for that kind of machine. The deadline is
    /// later afterwards.
    pub(crate) versions: &'a (dyn Fn(String) -> BoxFuture<'a, Found> + Send + Sync),
    pub(crate) deadline: &'a Deadline,
}

/// A machine with everything but a running agent.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    facts: Facts,
    pub(crate) binary: Binary,
    /// Name of the environment that runs find; `""` = one without a name, or none.
    pub(crate) environment: String,
    /// Versions of its packages, where this machine was told or found them now.
    pub(crate) lock: Option<Arc<str>>,
    /// Whether an agent with the right environment may be running already.
    pub(crate) may_run: bool,
    start: Progress,
}

impl Prepared {
    /// The agent's socket.
    pub(crate) fn socket(&self) -> String {
        format!("{}/agent.sock", self.facts.home)
    }

    /// The command that connects its input and output with that socket.
    pub(crate) fn bridge(&self) -> String {
        let agent = format!("{}/bin/{}", self.facts.home, self.binary.file_name());
        format!("exec {} bridge --home {}", quote(&agent), quote(&self.facts.home))
    }
}

/// How far a bootstrap with these steps is at one of them.
fn at(step: Step, steps: &[Step]) -> Progress {
    let index = steps.iter().position(|s| *s == step).unwrap_or_default();
    Progress {
        step: step.name().to_owned(),
        index: index as u32 + 1,
        total: steps.len() as u32,
    }
}

/// How a change of the environment ended.
#[derive(Debug)]
pub(crate) enum Change {
    /// Runs find it.
    Made {
        /// The versions of its packages.
        lock: Option<Arc<str>>,
    },
    /// A step failed; runs find what they found before.
    Failed {
        /// Why.
        failure: SessionFailure,
        /// Name of the environment that runs find.
        environment: String,
    },
}

/// Makes the environment of the spec beside the one that runs find, and switches to it. Nothing runs meanwhile.
pub(crate) async fn change(
    bootstrap: &Bootstrap<'_>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Change, BootstrapError> {
    let made = async {
        let mut facts = bootstrap.look(bootstrap.spec, bootstrap.limit(SHORT)).await?;
        let steps: Vec<Step> = plan::steps(bootstrap.spec, Some(&facts))
            .into_iter()
            .filter(|step| step.is_of_environment())
            .collect();
        bootstrap.environment(&mut facts, &steps, progress).await
    };
    match made.await {
        Ok(made) => Ok(Change::Made { lock: made.lock }),
        Err(BootstrapError::Failed(failure)) => {
            // What made the change fail must not hide what runs find: a full disk has no room for the folder of
            // the new environment, and the time for the steps may be over.
            let kept = bootstrap.spec.as_it_is();
            let environment = bootstrap.look(&kept, SHORT).await?.environment;
            Ok(Change::Failed { failure, environment })
        }
        Err(error) => Err(error),
    }
}

/// The environment of runs after its steps.
struct Made {
    /// Whether there was nothing to do.
    all_done: bool,
    lock: Option<Arc<str>>,
}

/// Does everything but start the agent. Called again at any point, it skips the finished steps.
pub(crate) async fn prepare(
    bootstrap: &Bootstrap<'_>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Prepared, BootstrapError> {
    let Bootstrap { spec, binaries, .. } = bootstrap;
    progress(at(Step::Probe, &plan::steps(spec, None)));
    let mut facts = bootstrap.look(spec, bootstrap.limit(SHORT)).await?;
    if let Some(reason) = plan::unusable(&facts, binaries) {
        return Err(unsupported(reason));
    }
    let binary = binaries.get(&facts.architecture).cloned().ok_or_else(|| {
        unsupported(format!(
            "there is no agent for architecture {}",
            facts.architecture
        ))
    })?;
    let steps = plan::steps(spec, Some(&facts));
    let mut all_done = true;
    let mut lock = None;
    if !spec.prepared {
        let made = bootstrap.environment(&mut facts, &steps, progress).await?;
        all_done = made.all_done;
        lock = made.lock;
    }
    if facts.agent_digest.as_ref() != Some(&binary.digest) {
        all_done = false;
        progress(at(Step::Agent, &steps));
        bootstrap.upload(&facts, &binary).await?;
    }
    let may_run = all_done && facts.socket;
    Ok(Prepared {
        binary,
        environment: facts.environment.clone(),
        lock,
        may_run,
        start: at(Step::Start, &steps),
        facts,
    })
}

impl Bootstrap<'_> {
    /// The steps of the environment, and the switch to it.
    async fn environment(
        &self,
        facts: &mut Facts,
        steps: &[Step],
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<Made, BootstrapError> {
        let spec = self.spec;
        let python = match plan::python(spec, facts.python.as_deref()) {
            Python::Installed(version) => Some(version),
            Python::Own => None,
        };
        let mut variables = facts.variables.clone();
        let mut all_done = true;
        let mut lock = None;
        for step in steps.iter().filter(|step| step.is_of_environment()) {
            if *step == Step::Packages {
                let known = self.versions(facts, python.as_deref(), || progress(at(*step, steps)));
                lock = Some(known.await?);
            }
            let limit = self.limit(spec.step_timeout);
            let Marked { script, digest } = match step {
                Step::Certificates => steps::certificates(spec, facts),
                Step::Apt => steps::apt(spec, facts, limit),
                Step::Python => steps::python(spec, facts, python.as_deref().unwrap_or_default()),
                Step::Packages => {
                    let lock = lock.as_deref().unwrap_or_default();
                    steps::packages(spec, facts, python.as_deref(), lock)
                }
                Step::ShellVars => steps::shell_vars(spec, facts),
                // Of the machine, whatever its environment.
                Step::Probe | Step::AuthorizedKeys | Step::User | Step::Agent | Step::Start => continue,
            };
            if facts.done.get(step.name()) == Some(&digest) {
                continue;
            }
            all_done = false;
            progress(at(*step, steps));
            let said = self
                .run(&script, limit)
                .await
                .map_err(|error| describe(step.name(), error))?;
            if *step == Step::ShellVars {
                variables = plan::variables(&said);
                // Variables captured earlier are not needed any more.
                facts.variables.clear();
                facts.room = said.room;
            }
        }
        let environment = plan::run_environment(spec, facts, &variables);
        if let Some(script) = steps::switch(spec, facts, &environment) {
            all_done = false;
            let switched = self.run(&script, self.limit(SHORT)).await;
            switched.map_err(|error| describe(SWITCH, error))?;
        }
        facts.environment.clone_from(&spec.environment);
        Ok(Made { all_done, lock })
    }

    /// The versions of the Python packages: those that the spec names, else those that another machine of its kind
    /// found, else this machine finds them, and others wait for that.
    async fn versions(
        &self,
        facts: &Facts,
        python: Option<&str>,
        mut begins: impl FnMut(),
    ) -> Result<Arc<str>, BootstrapError> {
        let kind = plan::kind(facts, python);
        let kept = self.spec.lock.as_deref();
        if let Some(lock) = kept.and_then(|lists| lock::among(lists, &kind)) {
            return Ok(lock.into());
        }
        let mut found = (self.versions)(kind.clone()).await;
        if let Some(lock) = &*found {
            return Ok(lock.clone());
        }
        begins();
        let step = Step::Packages.name();
        let Marked { script, .. } = steps::resolve(self.spec, facts, python);
        let said = self.run(&script, self.limit(self.spec.step_timeout)).await;
        let said = said.map_err(|error| describe(step, error))?;
        let lock = lock::read(&said).ok_or_else(|| {
            BootstrapError::Broken("no list of versions where a machine of ours sends one".to_owned())
        })?;
        let lock: Arc<str> = lock::of_kind(&kind, &lock).into();
        *found = Some(lock.clone());
        Ok(lock)
    }

    /// Starts the agent, if none runs.
    pub(crate) async fn start(
        &self,
        prepared: &Prepared,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), BootstrapError> {
        progress(prepared.start.clone());
        let script = steps::start(self.spec, &prepared.facts, &prepared.binary, self.machine);
        let result = self.run(&script, self.limit(SHORT)).await;
        result
            .map(|_| ())
            .map_err(|error| describe(Step::Start.name(), error))
    }

    async fn look(&self, spec: &Spec, limit: Duration) -> Result<Facts, BootstrapError> {
        let script = steps::prepare(spec, self.binaries);
        match self.run(&script, limit).await {
            Ok(said) if said.get("prepared") == Some("yes") => Ok(Facts::read(&said)),
            Ok(said) => Err(describe(
                Step::Probe.name(),
                ScriptError::Failed {
                    how: "its login shell runs no /bin/sh".into(),
                    said,
                },
            )),
            Err(error) => {
                // One script does several steps: its output names the current one.
                let at = match &error {
                    ScriptError::Failed { said, .. } | ScriptError::TimedOut { said, .. } => said.get("step"),
                    ScriptError::Lost(_) | ScriptError::Broken(_) => None,
                };
                let step = at.and_then(Step::named).unwrap_or(Step::Probe);
                Err(describe(step.name(), error))
            }
        }
    }

    async fn upload(&self, facts: &Facts, binary: &Binary) -> Result<(), BootstrapError> {
        let step = Step::Agent.name();
        let _turn = (self.uploads)().await;
        let (path, command) = steps::upload(facts, binary);
        let file = File::open(path).await.map_err(|error| {
            let message = format!("the controller cannot read its own copy of the agent: {error}");
            let diagnosis = Diagnosis::of(&message, "");
            failed(FailureKind::StepFailed, step, message, diagnosis)
        })?;
        let size = file.metadata().await.map_or(u64::MAX, |metadata| metadata.len());
        let upload = script::run_command(
            self.connection,
            self.account,
            &command,
            Input::File(file),
            "",
            self.limit(UPLOAD),
            self.transcript,
        );
        let result = tokio::select! {
            result = upload => result,
            () = stalls(|| self.connection.written(), size) => {
                return Err(BootstrapError::Lost(format!(
                    "the machine took less than {} KiB of the agent in {} s",
                    LEAST / 1024,
                    LOOK.as_secs()
                )));
            }
        };
        result.map(|_: Said| ()).map_err(|error| describe(step, error))
    }

    async fn run(&self, script: &Script, limit: Duration) -> Result<Said, ScriptError> {
        script::run(self.connection, self.account, script, limit, self.transcript).await
    }

    /// A step's own limit, at most the rest of the time for all.
    fn limit(&self, own: Duration) -> Duration {
        own.min(self.deadline.left())
    }
}

/// Waits until an unfinished upload has sent less than [`LEAST`] between two looks.
async fn stalls(written: impl Fn() -> u64, size: u64) {
    let begin = written();
    let mut before = begin;
    loop {
        sleep(LOOK).await;
        let now = written();
        if now - begin >= size {
            // The rest is the machine's own work.
            return std::future::pending().await;
        }
        if now - before < LEAST {
            return;
        }
        before = now;
    }
}

fn unsupported(why: String) -> BootstrapError {
    BootstrapError::Failed(SessionFailure::unsupported(why))
}

fn failed(kind: FailureKind, step: &str, message: String, diagnosis: Diagnosis) -> BootstrapError {
    BootstrapError::Failed(SessionFailure {
        kind,
        step: Some(step.to_owned()),
        message,
        diagnosis: Some(Box::new(diagnosis)),
    })
}

/// A script's failure in words for the user; the caller names the step.
fn describe(step: &'static str, error: ScriptError) -> BootstrapError {
    let with_output = |what: String, said: &Said| match said.tail.as_str() {
        "" => what,
        tail => format!("{what}: {tail}"),
    };
    match error {
        ScriptError::Lost(why) => BootstrapError::Lost(why),
        ScriptError::Broken(broken) => BootstrapError::Broken(broken),
        ScriptError::Failed { how, said } => {
            let ended = format!("failed ({how})");
            let diagnosis = Diagnosis::of(&ended, &said.tail);
            failed(
                FailureKind::StepFailed,
                step,
                with_output(ended, &said),
                diagnosis,
            )
        }
        ScriptError::TimedOut { limit, said } => {
            let ended = format!("did not end within {} s", limit.as_secs_f32().round());
            // Its limit depends on the other steps, so the diagnosis leaves it out.
            let diagnosis = Diagnosis::of("timed out", &said.tail);
            failed(
                FailureKind::StepTimedOut,
                step,
                with_output(ended, &said),
                diagnosis,
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use tokio::time::timeout;

    use super::*;

    /// How long an upload of 10 MiB has its turn on a line of that rate.
    async fn turn_at(bytes_per_second: u64) -> Option<Duration> {
        let written = AtomicU64::new(7);
        let line = async {
            loop {
                sleep(Duration::from_secs(1)).await;
                written.fetch_add(bytes_per_second, Ordering::Relaxed);
            }
        };
        let begin = Instant::now();
        let stalled = tokio::select! {
            stalled = timeout(UPLOAD, stalls(|| written.load(Ordering::Relaxed), 10 << 20)) => stalled.is_ok(),
            () = line => false,
        };
        stalled.then(|| begin.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_to_a_machine_that_takes_nothing_gives_its_turn_back() {
        assert_eq!(turn_at(0).await, Some(LOOK));
        assert_eq!(turn_at(32 * 1024).await, Some(LOOK));
        assert_eq!(turn_at(80 * 1024).await, None, "slow, but it goes on");
        assert_eq!(
            turn_at(100 << 20).await,
            None,
            "what follows is the machine's work"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_for_the_steps_does_not_run_while_others_are_waited_for() {
        let deadline = Deadline::after(Duration::from_secs(300));
        sleep(Duration::from_secs(400)).await;
        assert_eq!(deadline.left(), Duration::ZERO);
        deadline.extend(Duration::from_secs(380));
        assert_eq!(deadline.left(), Duration::from_secs(280));
    }
}
