//! Makes a fresh machine ready for runs: steps, each checked, run and verified.
//!
//! Every step can be interrupted anywhere and started again. A finished step is marked on the
//! machine with the digest of its inputs, so that a second controller, or this one after a restart,
//! finds it done. The steps of an environment (certificates, Python, packages, variables) work in a folder of its
//! own, `envs/NAME`, beside the one that runs find; the link `venv` leads there after the last step. So the
//! same steps change the environment of a machine that took runs. `plan.rs` decides which steps there are, `steps.rs` writes their scripts (files
//! in `scripts/`), `requirements.rs` the packages as uv reads them, `reboot.rs` what starts the agent at the next boot, `run.rs` runs the steps.

pub(crate) mod hostile;
pub(crate) mod lock;
mod plan;
mod reboot;
mod requirements;
mod run;
mod script;
mod steps;

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use skyward_core::Secret;

pub(crate) use run::{Bootstrap, BootstrapError, Change, Deadline, Prepared, change, prepare};
pub(crate) use script::printable;

/// An index that only some packages come from.
#[derive(Clone, PartialEq, Eq)]
pub struct PipIndex {
    /// Its URL.
    pub url: String,
    /// The packages that come from it.
    pub packages: Vec<String>,
    /// User name and password for the index.
    pub credentials: Option<(Secret, Secret)>,
}

/// What must be on a machine.
#[derive(Clone, PartialEq, Eq)]
pub struct Spec {
    /// Name of the environment that is made of the fields below: lower-case letters and digits.
    pub environment: String,
    /// Versions of its Python packages that machines found for it: for each kind of machine a line that begins with
    /// `#` and names it, and below it a `name==version` on each line.
    pub lock: Option<Arc<str>>,
    /// Version of Python; `None` or `auto` = the machine's own if it is 3.10 or newer, else 3.12.
    pub python: Option<String>,
    /// Python packages, as pip takes them.
    pub pip: Vec<String>,
    /// Indexes for some of them.
    pub pip_indexes: Vec<PipIndex>,
    /// Debian or Ubuntu packages.
    pub apt: Vec<String>,
    /// Environment of the steps, such as proxies; names that the shell keeps for itself are left out.
    pub env_for_steps: BTreeMap<String, String>,
    /// The same, from Secrets: a changed value makes another environment and repeats no step of this one.
    pub secret_env_for_steps: Arc<BTreeMap<String, Secret>>,
    /// Values from Secrets, which are masked in failures.
    pub masked: Arc<Vec<Secret>>,
    /// Shell snippets whose output becomes a variable of every run.
    pub shell_vars: BTreeMap<String, String>,
    /// Certificates to trust besides the machine's own, PEM.
    pub ca_bundle: Option<Arc<str>>,
    /// Whether the machine keeps the environment that its runs find: it is only connected.
    pub prepared: bool,
    /// User that runs run as, made where SSH logs in as root; `None` = root.
    pub worker_user: Option<String>,
    /// User that fetches from git run as, made where SSH logs in as root; `None` = it is not made.
    pub git_user: Option<String>,
    /// The one key that may log in, in OpenSSH form.
    pub authorized_key: String,
    /// The agent's home; `None` = `/opt/skyward` as root, else `$HOME/.skyward`.
    pub home: Option<String>,
    /// How the agent stops the machine when its lease has run out; `None` = the agent's own way.
    pub stop_command: Option<String>,
    /// How the agent asks whether the cloud takes the machine back; `None` = it does not ask.
    pub reclaim_command: Option<String>,
    /// Environment variables that the cloud put on the machine for itself: no run sees them.
    pub hidden_environment: Vec<String>,
    /// Longest time for one step.
    pub step_timeout: Duration,
    /// Longest time for all of them.
    pub total_timeout: Duration,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            environment: "default".to_owned(),
            lock: None,
            python: None,
            pip: Vec::new(),
            pip_indexes: Vec::new(),
            apt: Vec::new(),
            env_for_steps: BTreeMap::new(),
            secret_env_for_steps: Arc::default(),
            masked: Arc::default(),
            shell_vars: BTreeMap::new(),
            ca_bundle: None,
            prepared: false,
            worker_user: None,
            git_user: None,
            authorized_key: String::new(),
            home: None,
            stop_command: None,
            reclaim_command: None,
            hidden_environment: Vec::new(),
            step_timeout: Duration::from_mins(5),
            total_timeout: Duration::from_mins(5),
        }
    }
}

impl Spec {
    /// Name of the environment to make; none on a machine that keeps the one that it has.
    pub fn target(&self) -> Option<&str> {
        (!self.prepared).then_some(self.environment.as_str())
    }

    /// The same for a machine that keeps the environment that it has. Each field is named: a new one is of the
    /// environment, or of the machine, which also gets it where an older release made it Ready.
    pub(crate) fn as_it_is(&self) -> Self {
        let nothing = Self::default();
        Self {
            environment: nothing.environment,
            lock: nothing.lock,
            python: nothing.python,
            pip: nothing.pip,
            pip_indexes: nothing.pip_indexes,
            apt: nothing.apt,
            env_for_steps: nothing.env_for_steps,
            secret_env_for_steps: nothing.secret_env_for_steps,
            masked: nothing.masked,
            shell_vars: nothing.shell_vars,
            ca_bundle: nothing.ca_bundle,
            prepared: true,
            worker_user: self.worker_user.clone(),
            git_user: self.git_user.clone(),
            authorized_key: self.authorized_key.clone(),
            home: self.home.clone(),
            stop_command: self.stop_command.clone(),
            reclaim_command: self.reclaim_command.clone(),
            hidden_environment: self.hidden_environment.clone(),
            step_timeout: self.step_timeout,
            total_timeout: self.total_timeout,
        }
    }
}

impl fmt::Debug for Spec {
    /// Without values of variables and addresses of indexes: they may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("environment", &self.environment)
            .field("python", &self.python)
            .field("pip", &self.pip.len())
            .field("apt", &self.apt)
            .field("env_for_steps", &self.env_for_steps.keys())
            .field("secret_env_for_steps", &self.secret_env_for_steps.keys())
            .field("shell_vars", &self.shell_vars.keys())
            .field("prepared", &self.prepared)
            .field("worker_user", &self.worker_user)
            .field("home", &self.home)
            .finish_non_exhaustive()
    }
}

/// How far bootstrap is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Name of the step.
    pub step: String,
    /// Its number, from 1.
    pub index: u32,
    /// How many there are.
    pub total: u32,
}
