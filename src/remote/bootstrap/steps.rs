//! The script of each step, and the digest of its inputs.

use std::{collections::BTreeMap, fmt::Write as _, path::Path, time::Duration};

use super::{
    Spec,
    lock::MOST,
    plan::{Facts, folder, step_certificates},
    reboot,
    requirements::requirements,
    script::Script,
};
use crate::{
    binaries::{AgentBinaries, Binary, digest_of},
    quote::quote,
};

#[cfg(test)]
mod tests;

const PREPARE: &str = include_str!("scripts/prepare.sh");
const UPLOAD: &str = include_str!("scripts/upload.sh");
/// Where an image may bring agents, under the names that they have on machines: `hack/images/node.sh` puts one there.
const OF_IMAGE: &str = "/usr/local/share/skyward";
const CERTIFICATES: &str = concat!(
    include_str!("scripts/bundle.sh"),
    include_str!("scripts/certificates.sh")
);
const APT: &str = concat!(include_str!("scripts/bundle.sh"), include_str!("scripts/apt.sh"));
const UV: &str = concat!(include_str!("scripts/bundle.sh"), include_str!("scripts/uv.sh"));
const PYTHON: &str = include_str!("scripts/python.sh");
const REQUIREMENTS: &str = include_str!("scripts/requirements.sh");
const RESOLVE: &str = include_str!("scripts/resolve.sh");
const PACKAGES: &str = include_str!("scripts/packages.sh");
const BYTECODE: &str = include_str!("scripts/bytecode.py");
const SHELL_VARS: &str = include_str!("scripts/shell_vars.sh");
const SWITCH: &str = include_str!("scripts/switch.sh");
const START: &str = include_str!("scripts/start.sh");

/// A step that is marked as done on the machine.
pub(super) struct Marked {
    pub(super) script: Script,
    pub(super) digest: String,
}

impl Marked {
    /// Puts this before the script, outside of the digest.
    fn after(self, head: Script) -> Self {
        Self {
            script: head.before(self.script),
            ..self
        }
    }
}

/// The first look: probe, keys, user.
pub(super) fn prepare(spec: &Spec, binaries: &AgentBinaries) -> Script {
    let file = |architecture: &str| {
        binaries
            .get(architecture)
            .map(Binary::file_name)
            .unwrap_or_default()
    };
    Script::default()
        .set("wanted_home", spec.home.as_deref().unwrap_or_default())
        .set("home", "")
        .set("authorized_key", spec.authorized_key.trim())
        .set("worker_user", spec.worker_user.as_deref().unwrap_or_default())
        .set("git_user", spec.git_user.as_deref().unwrap_or_default())
        .set("hidden", &hidden(spec, "|"))
        .set("environment", spec.target().unwrap_or_default())
        .set("agent_x86_64", &file("x86_64"))
        .set("agent_aarch64", &file("aarch64"))
        .set("of_image", OF_IMAGE)
        .then(PREPARE)
}

/// The file to send, and the command that receives it on its standard input. The compressed file comes first: it is less than
/// half the size, and OpenSSH's server copies all that waits whenever more arrives than the command has taken. The command is
/// one line without quotes of its own, so that every login shell hands it on as it is.
pub(super) fn upload<'a>(facts: &Facts, binary: &'a Binary) -> (&'a Path, String) {
    let (file, unpack) = match &binary.compressed {
        Some(compressed) if facts.gzip => (compressed, "gzip -dc"),
        _ => (&binary.path, "cat"),
    };
    let script = UPLOAD.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    debug_assert!(!script.contains('\''), "upload.sh must not contain single quotes");
    let command = format!(
        "exec /bin/sh -c '{script}' sh {} {} {} {}",
        quote(&facts.home),
        quote(&binary.file_name()),
        quote(&binary.digest),
        quote(unpack)
    );
    (file, command)
}

/// Certificates to trust.
pub(super) fn certificates(spec: &Spec, facts: &Facts) -> Marked {
    let bundle = spec.ca_bundle.as_deref().unwrap_or_default();
    marked(
        Script::default()
            .set("home", &facts.home)
            .set("env", &folder(spec, facts))
            .set("certificates", bundle),
        CERTIFICATES,
    )
}

/// Debian or Ubuntu packages.
pub(super) fn apt(spec: &Spec, facts: &Facts, limit: Duration) -> Marked {
    // apt waits for its lock for most of the step's time.
    let wait = limit.as_secs().saturating_sub(30).max(5);
    let script = Script::default()
        .set("home", &facts.home)
        .set("packages", &spec.apt.join(" "));
    // The packages are the machine's, whatever the environment that is being made.
    let head = variables(spec, facts).set("env", &folder(spec, facts));
    marked(script, APT).after(head.set("lock_wait", &wait.to_string()))
}

/// A Python of that version.
pub(super) fn python(spec: &Spec, facts: &Facts, version: &str) -> Marked {
    let script = in_environment(spec, facts).set("version", version);
    marked(script, &format!("{UV}{PYTHON}")).after(variables(spec, facts))
}

/// The versions of the Python packages, in an environment on that Python (`None`: the machine's own).
pub(super) fn resolve(spec: &Spec, facts: &Facts, python: Option<&str>) -> Marked {
    let script = with_requirements(spec, facts, python).set("most", &MOST.to_string());
    marked(script, &format!("{UV}{REQUIREMENTS}{RESOLVE}")).after(with_credentials(spec, facts))
}

/// Python packages of these versions.
pub(super) fn packages(spec: &Spec, facts: &Facts, python: Option<&str>, lock: &str) -> Marked {
    let script = with_requirements(spec, facts, python)
        .set("lock", lock)
        .set("bytecode", BYTECODE);
    marked(script, &format!("{UV}{REQUIREMENTS}{PACKAGES}")).after(with_credentials(spec, facts))
}

fn with_requirements(spec: &Spec, facts: &Facts, python: Option<&str>) -> Script {
    let (requirements, project) = requirements(&spec.pip, &spec.pip_indexes);
    in_environment(spec, facts)
        .set("requirements", &requirements)
        .set("project", &project)
        .set("version", python.unwrap_or_default())
}

fn with_credentials(spec: &Spec, facts: &Facts) -> Script {
    let credentials = spec.pip_indexes.iter().enumerate();
    let known = credentials.filter_map(|(number, index)| Some((number, index.credentials.as_ref()?)));
    // uv reads the credentials of an index from variables with its name: they are in no file and no
    // argument.
    known.fold(variables(spec, facts), |script, (number, (user, password))| {
        script
            .export(&format!("UV_INDEX_INDEX_{number}_USERNAME"), user.expose())
            .export(&format!("UV_INDEX_INDEX_{number}_PASSWORD"), password.expose())
    })
}

/// Variables captured from snippets.
pub(super) fn shell_vars(spec: &Spec, facts: &Facts) -> Marked {
    let mut snippets = String::from("snippets() {\n:\n");
    for (name, snippet) in &spec.shell_vars {
        if crate::quote::is_name(name) {
            // Writing to a String cannot fail.
            let _ = writeln!(snippets, "capture {name} {}", quote(snippet));
        }
    }
    snippets.push_str("}\n");
    marked(in_environment(spec, facts).then(&snippets), SHELL_VARS).after(variables(spec, facts))
}

/// The environment that was made becomes the one that runs find, with these variables; `None`: it is already.
pub(super) fn switch(spec: &Spec, facts: &Facts, environment: &BTreeMap<String, String>) -> Option<Script> {
    let json = serde_json::to_string_pretty(environment).unwrap_or_else(|_| "{}".into());
    let is_known = facts.environment == spec.environment
        && facts.env_digest.as_deref() == Some(digest_of(&json).as_str());
    let script = || {
        Script::default()
            .set("home", &facts.home)
            .set("env", &folder(spec, facts))
            .set("environment", &spec.environment)
            .set("env_json", &json)
            .then(SWITCH)
    };
    (!is_known).then(script)
}

/// Start of the agent.
pub(super) fn start(spec: &Spec, facts: &Facts, binary: &Binary, machine: &str) -> Script {
    // An ordinary user cannot run anything as another user.
    let user = if facts.root {
        spec.worker_user.as_deref().unwrap_or("root")
    } else {
        facts.user.as_str()
    };
    let agent = binary.file_name();
    let stop_command = spec.stop_command.as_deref().unwrap_or_default();
    let reclaim_command = spec.reclaim_command.as_deref().unwrap_or_default();
    // The arguments of start.sh, without those for variables that are hidden from the agent itself.
    let arguments = [
        ("home", facts.home.as_str()),
        ("machine", machine),
        ("user", user),
        ("stop-command", stop_command),
        ("reclaim-command", reclaim_command),
    ];
    Script::default()
        .set("home", &facts.home)
        .set("agent", &agent)
        .set("machine", machine)
        .set("worker_user", user)
        .set("stop_command", stop_command)
        .set("reclaim_command", reclaim_command)
        .set("hidden", &hidden(spec, ","))
        .before(reboot::install(spec, facts, &agent, &arguments))
        .then(START)
}

/// Names of variables, each a literal word of a pattern.
pub(super) fn hidden(spec: &Spec, between: &str) -> String {
    let names = spec.hidden_environment.iter().map(String::as_str);
    names
        .filter(|name| crate::quote::is_name(name))
        .collect::<Vec<_>>()
        .join(between)
}

/// A step that works in the folder of the environment.
fn in_environment(spec: &Spec, facts: &Facts) -> Script {
    // Work that runs as root could write into the cache through a file that is one with it.
    let is_shared = facts.root && spec.worker_user.is_some();
    Script::default()
        .set("home", &facts.home)
        .set("env", &folder(spec, facts))
        .set("link_mode", if is_shared { "hardlink" } else { "copy" })
}

/// The variables of the steps: from Secrets, then the Pool's own, which win, then those about certificates. They are
/// no part of any digest: what changes an environment is part of its name.
fn variables(spec: &Spec, facts: &Facts) -> Script {
    let secrets = spec.secret_env_for_steps.iter();
    let secrets = secrets.fold(Script::default(), |script, (name, value)| {
        script.export(name, value.expose())
    });
    let mut own = spec.env_for_steps.clone();
    own.extend(step_certificates(spec, facts));
    own.iter()
        .fold(secrets, |script, (name, value)| script.export(name, value))
}

/// Adds the script's text and the digest of all its inputs.
fn marked(script: Script, text: &str) -> Marked {
    let script = script.then(text);
    let digest = digest_of(&script.text(""));
    Marked {
        script: Script::default().set("digest", &digest).before(script),
        digest,
    }
}
