//! Runs the steps over a connection.

use std::{collections::BTreeMap, time::Duration};

use tokio::{fs::File, sync::Semaphore, time::Instant};

use super::{
    Progress, Spec,
    plan::{self, Facts, Python, Step},
    script::{self, Said, ScriptError},
    steps::{self, Marked},
};
use crate::{
    binaries::{AgentBinaries, Binary},
    mask::Mask,
    quote::quote,
    ssh::{Connection, Input},
};

/// Longest time for a step that only looks, or moves a few files.
const SHORT: Duration = Duration::from_mins(1);
/// Longest time for the agent to arrive over a slow line.
const UPLOAD: Duration = Duration::from_mins(3);

/// Why a machine is not ready for runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum BootstrapError {
    /// The connection is gone; to be tried again.
    Lost(String),
    /// A step failed.
    Failed {
        /// Which.
        step: &'static str,
        /// What happened, with its last output.
        message: String,
    },
    /// A step took too long.
    TimedOut {
        /// Which.
        step: &'static str,
        /// What happened, with its last output.
        message: String,
    },
    /// This machine cannot be used at all.
    Unsupported(String),
}

/// Everything about one bootstrap.
pub(crate) struct Bootstrap<'a> {
    pub(crate) connection: &'a Connection,
    pub(crate) spec: &'a Spec,
    /// Name of the machine, as `namespace/name`.
    pub(crate) machine: &'a str,
    pub(crate) binaries: &'a AgentBinaries,
    /// Bounds uploads at the same time.
    pub(crate) uploads: &'a Semaphore,
    /// End of the time for all steps.
    pub(crate) deadline: Instant,
}

/// A machine with everything but a running agent.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    facts: Facts,
    pub(crate) binary: Binary,
    environment: BTreeMap<String, String>,
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

/// Where a bootstrap is, in terms of its own steps.
struct Position {
    steps: Vec<Step>,
}

impl Position {
    fn at(&self, step: Step) -> Progress {
        let index = self.steps.iter().position(|s| *s == step).unwrap_or_default();
        Progress {
            step: step.name().to_owned(),
            index: index as u32 + 1,
            total: self.steps.len() as u32,
        }
    }
}

/// Does everything but start the agent. Called again at any point it finds what is done.
pub(crate) async fn prepare(
    bootstrap: &Bootstrap<'_>,
    progress: &mut (dyn FnMut(Progress) + Send),
) -> Result<Prepared, BootstrapError> {
    let Bootstrap { spec, binaries, .. } = bootstrap;
    progress(
        Position {
            steps: plan::steps(spec, None),
        }
        .at(Step::Probe),
    );
    let facts = bootstrap.look().await?;
    if let Some(reason) = plan::unusable(&facts, binaries) {
        return Err(BootstrapError::Unsupported(reason));
    }
    let binary = binaries.get(&facts.architecture).cloned().ok_or_else(|| {
        BootstrapError::Unsupported(format!(
            "there is no agent for architecture {}",
            facts.architecture
        ))
    })?;
    let position = Position {
        steps: plan::steps(spec, Some(&facts)),
    };
    let python = plan::python(spec, facts.python.as_deref());
    let mut variables = facts.variables.clone();
    let mut all_done = true;
    for step in &position.steps {
        let limit = bootstrap.limit(spec.step_timeout);
        let Marked { script, digest } = match step {
            // Done by the first look, or below.
            Step::Probe | Step::AuthorizedKeys | Step::User | Step::Agent | Step::Start => continue,
            Step::Certificates => steps::certificates(spec, &facts),
            Step::Apt => steps::apt(spec, &facts, limit),
            Step::Python => match &python {
                Python::Installed(version) => steps::python(spec, &facts, version),
                Python::Own => continue,
            },
            Step::Packages => match &python {
                Python::Installed(version) => steps::packages(spec, &facts, Some(version)),
                Python::Own => steps::packages(spec, &facts, None),
            },
            Step::ShellVars => steps::shell_vars(spec, &facts),
        };
        if facts.done.get(step.name()) == Some(&digest) {
            continue;
        }
        all_done = false;
        progress(position.at(*step));
        let said = script::run(bootstrap.connection, &script, limit, &bootstrap.mask())
            .await
            .map_err(|error| describe(step.name(), error))?;
        if *step == Step::ShellVars {
            variables = plan::variables(&said);
        }
    }
    if facts.agent_digest.as_ref() != Some(&binary.digest) {
        all_done = false;
        progress(position.at(Step::Agent));
        bootstrap.upload(&facts, &binary).await?;
    }
    let environment = plan::run_environment(spec, &facts, &variables);
    let may_run = all_done && facts.socket;
    Ok(Prepared {
        binary,
        environment,
        may_run,
        start: position.at(Step::Start),
        facts,
    })
}

impl Bootstrap<'_> {
    /// Starts the agent, if none runs.
    pub(crate) async fn start(
        &self,
        prepared: &Prepared,
        progress: &mut (dyn FnMut(Progress) + Send),
    ) -> Result<(), BootstrapError> {
        progress(prepared.start.clone());
        let script = steps::start(
            self.spec,
            &prepared.facts,
            &prepared.binary,
            self.machine,
            &prepared.environment,
        );
        let result = script::run(self.connection, &script, self.limit(SHORT), &self.mask()).await;
        result
            .map(|_| ())
            .map_err(|error| describe(Step::Start.name(), error))
    }

    async fn look(&self) -> Result<Facts, BootstrapError> {
        let script = steps::prepare(self.spec, self.binaries);
        match script::run(self.connection, &script, self.limit(SHORT), &self.mask()).await {
            Ok(said) if said.get("prepared") == Some("yes") => Ok(Facts::read(&said)),
            Ok(said) => Err(describe(
                Step::Probe.name(),
                ScriptError::Failed {
                    how: "its login shell runs no /bin/sh".into(),
                    said,
                },
            )),
            Err(error) => {
                // One script, several steps: it says where it was.
                let at = match &error {
                    ScriptError::Failed { said, .. } | ScriptError::TimedOut { said, .. } => said.get("step"),
                    ScriptError::Lost(_) => None,
                };
                let step = at.and_then(Step::named).unwrap_or(Step::Probe);
                Err(describe(step.name(), error))
            }
        }
    }

    async fn upload(&self, facts: &Facts, binary: &Binary) -> Result<(), BootstrapError> {
        let step = Step::Agent.name();
        let failed = |message: String| BootstrapError::Failed { step, message };
        // Never closed, so an error is impossible; without a permit nothing is lost.
        let _permit = self.uploads.acquire().await;
        let file = File::open(&binary.path).await.map_err(|error| {
            failed(format!(
                "the controller cannot read its own copy of the agent: {error}"
            ))
        })?;
        let command = steps::upload(facts, binary);
        let result = script::run_command(
            self.connection,
            &command,
            Input::File(file),
            "",
            self.limit(UPLOAD),
            &self.mask(),
        )
        .await;
        result.map(|_: Said| ()).map_err(|error| describe(step, error))
    }

    /// A step's own limit within what is left for all.
    fn limit(&self, own: Duration) -> Duration {
        own.min(self.deadline.saturating_duration_since(Instant::now()))
    }

    fn mask(&self) -> Mask {
        Mask::new(self.spec.masked.iter().map(skyward_core::Secret::expose))
    }
}

/// A script's failure in words for the user; the step is named by whoever shows them.
fn describe(step: &'static str, error: ScriptError) -> BootstrapError {
    let with_output = |what: String, said: &Said| match said.tail.as_str() {
        "" => what,
        tail => format!("{what}: {tail}"),
    };
    match error {
        ScriptError::Lost(why) => BootstrapError::Lost(why),
        ScriptError::Failed { how, said } => BootstrapError::Failed {
            step,
            message: with_output(format!("failed ({how})"), &said),
        },
        ScriptError::TimedOut { limit, said } => BootstrapError::TimedOut {
            step,
            message: with_output(
                format!("did not end within {} s", limit.as_secs_f32().round()),
                &said,
            ),
        },
    }
}
