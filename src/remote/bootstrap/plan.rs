//! Which steps a machine needs: decided from the spec and the probe's facts, without I/O.

use std::collections::BTreeMap;

use super::{Spec, script::Said};
use crate::{binaries::AgentBinaries, budget::Room, quote::is_name};

/// Oldest Python that functions can run on.
const OLDEST_PYTHON: (u32, u32) = (3, 10);
/// Python that is installed where the machine's own is too old.
const DEFAULT_PYTHON: &str = "3.12";
/// Most characters of the name of an environment, which a session keeps as long as its machine is connected.
const NAME: usize = 64;
/// Room for the agent and its journal, in KiB.
const LEAST_DISK_KB: u64 = 100 * 1024;

/// A step of the bootstrap, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    /// What kind of machine is it.
    Probe,
    /// Our key and no other.
    AuthorizedKeys,
    /// The worker's user.
    User,
    /// Certificates to trust.
    Certificates,
    /// Debian or Ubuntu packages.
    Apt,
    /// A Python other than the machine's own.
    Python,
    /// Python packages.
    Packages,
    /// Variables captured from snippets.
    ShellVars,
    /// Upload of the agent.
    Agent,
    /// Start of the agent.
    Start,
}

impl Step {
    /// Its name in progress, conditions and marks.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Probe => "probe",
            Self::AuthorizedKeys => "authorized_keys",
            Self::User => "user",
            Self::Certificates => "certificates",
            Self::Apt => "apt",
            Self::Python => "python",
            Self::Packages => "packages",
            Self::ShellVars => "shell_vars",
            Self::Agent => "agent",
            Self::Start => "start",
        }
    }

    /// Whether it makes a part of the environment of runs, which may change.
    pub(crate) const fn is_of_environment(self) -> bool {
        match self {
            Self::Certificates | Self::Apt | Self::Python | Self::Packages | Self::ShellVars => true,
            Self::Probe | Self::AuthorizedKeys | Self::User | Self::Agent | Self::Start => false,
        }
    }

    /// The step of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Probe, Self::AuthorizedKeys, Self::User, Self::Agent]
            .into_iter()
            .find(|step| step.name() == name)
    }
}

/// The facts that the probe of a machine found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) os: String,
    pub(crate) architecture: String,
    pub(crate) root: bool,
    pub(crate) user: String,
    /// The agent's home, resolved.
    pub(crate) home: String,
    pub(crate) path: String,
    pub(crate) disk_free_kb: Option<u64>,
    /// Whether the machine can unpack what is compressed.
    pub(crate) gzip: bool,
    /// Version of the machine's own Python.
    pub(crate) python: Option<String>,
    /// SHA-256 of the agent's file, if it is there.
    pub(crate) agent_digest: Option<String>,
    /// Whether an agent's socket is there.
    pub(crate) socket: bool,
    /// Name of the environment that runs find; `""` = one without a name, or none.
    pub(crate) environment: String,
    pub(crate) env_digest: Option<String>,
    /// Digest of the inputs with which each step was done.
    pub(crate) done: BTreeMap<String, String>,
    /// Variables captured earlier.
    pub(crate) variables: BTreeMap<String, String>,
    /// The charge for these facts.
    pub(crate) room: Room,
}

impl Facts {
    /// Reads the lines of `prepare.sh`.
    pub(crate) fn read(said: &Said) -> Self {
        let text = |word: &str| said.get(word).unwrap_or_default().to_owned();
        let some = |word: &str| {
            said.get(word)
                .filter(|value| !value.is_empty())
                .map(str::to_owned)
        };
        Self {
            os: text("os"),
            architecture: text("arch"),
            root: said.get("uid") == Some("0"),
            user: text("user"),
            home: text("home"),
            path: text("path"),
            disk_free_kb: said.get("disk_free_kb").and_then(|value| value.parse().ok()),
            gzip: said.get("gzip").is_some(),
            python: some("python"),
            agent_digest: some("agent_digest"),
            socket: said.get("socket").is_some(),
            environment: said
                .get("environment")
                .map(|name| name.chars().take(NAME).collect())
                .unwrap_or_default(),
            env_digest: some("env_digest"),
            done: said
                .all("done")
                .filter_map(|line| line.split_once(' '))
                .map(owned)
                .collect(),
            variables: variables(said),
            room: said.room.clone(),
        }
    }
}

fn owned((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.trim().to_owned())
}

/// Captured variables, which travel in hexadecimal.
pub(crate) fn variables(said: &Said) -> BTreeMap<String, String> {
    said.all("var")
        .map(|line| line.split_once(' ').unwrap_or((line, "")))
        .filter(|(name, _)| is_name(name))
        .map(|(name, value)| (name.to_owned(), from_hex(value)))
        .collect()
}

fn from_hex(text: &str) -> String {
    let digits = text.as_bytes().chunks_exact(2);
    let bytes: Vec<u8> = digits
        .filter_map(|pair| {
            std::str::from_utf8(pair)
                .ok()
                .and_then(|pair| u8::from_str_radix(pair, 16).ok())
        })
        .collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Which Python runs find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Python {
    /// The machine's own, or none if it has none and none is asked for.
    Own,
    /// This version, installed beside it.
    Installed(String),
}

/// Which Python is needed; the error says why the version cannot be had.
pub(crate) fn choose_python(wanted: Option<&str>, own: Option<&str>) -> Python {
    match wanted.filter(|wanted| *wanted != "auto") {
        None => match own.and_then(major_minor) {
            Some(version) if version < OLDEST_PYTHON => Python::Installed(DEFAULT_PYTHON.into()),
            // Commands need no Python: where none exists, it is installed when a version or a
            // package is asked for (see `python`).
            Some(_) | None => Python::Own,
        },
        Some(wanted) => match own {
            Some(own) if own == wanted || own.starts_with(&format!("{wanted}.")) => Python::Own,
            _ => Python::Installed(wanted.to_owned()),
        },
    }
}

fn major_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Steps that the spec asks for on this machine, in order; steps already done are among
/// them, so that the numbers of progress mean the same on every machine.
pub(crate) fn steps(spec: &Spec, facts: Option<&Facts>) -> Vec<Step> {
    let own = facts.and_then(|facts| facts.python.as_deref());
    let mut steps = vec![Step::Probe, Step::AuthorizedKeys];
    if spec.worker_user.is_some() && facts.is_none_or(|facts| facts.root) {
        steps.push(Step::User);
    }
    if spec.prepared {
        steps.extend([Step::Agent, Step::Start]);
        return steps;
    }
    if spec.ca_bundle.is_some() {
        steps.push(Step::Certificates);
    }
    if !spec.apt.is_empty() {
        steps.push(Step::Apt);
    }
    if facts.is_some() && python(spec, own) != Python::Own {
        steps.push(Step::Python);
    }
    if asks_for_packages(spec) {
        steps.push(Step::Packages);
    }
    if !spec.shell_vars.is_empty() {
        steps.push(Step::ShellVars);
    }
    steps.extend([Step::Agent, Step::Start]);
    steps
}

/// The Python that runs will find, packages considered.
pub(crate) fn python(spec: &Spec, own: Option<&str>) -> Python {
    match choose_python(spec.python.as_deref(), own) {
        Python::Own if own.is_none() && asks_for_packages(spec) => Python::Installed(DEFAULT_PYTHON.into()),
        chosen => chosen,
    }
}

/// What found versions of packages are right for: the architecture and the Python, which is the machine's own unless
/// another one is installed.
pub(crate) fn kind(facts: &Facts, installed: Option<&str>) -> String {
    let version = installed.or(facts.python.as_deref()).unwrap_or_default();
    let version =
        major_minor(version).map_or_else(|| version.to_owned(), |(major, minor)| format!("{major}.{minor}"));
    // It becomes a line of a file.
    format!("{} {version}", facts.architecture)
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || " ._-".contains(*c))
        .take(64)
        .collect()
}

/// Whether any Python package is to be installed.
pub(crate) fn asks_for_packages(spec: &Spec) -> bool {
    !spec.pip.is_empty()
}

/// Whether runs find an environment of our own first.
pub(crate) fn has_environment(spec: &Spec, facts: &Facts) -> bool {
    asks_for_packages(spec) || python(spec, facts.python.as_deref()) != Python::Own
}

/// Why this machine cannot be used at all; the text is for the user.
pub(crate) fn unusable(facts: &Facts, binaries: &AgentBinaries) -> Option<String> {
    if facts.os != "Linux" {
        return Some(format!(
            "the machine runs {}; only Linux machines can be used",
            facts.os
        ));
    }
    if binaries.get(&facts.architecture).is_none() {
        return Some(format!(
            "the machine's architecture is {}; this controller has agents for {}",
            facts.architecture,
            binaries.architectures().collect::<Vec<_>>().join(", ")
        ));
    }
    match facts.disk_free_kb {
        // An existing agent has its own room: a disk that runs have filled since must not keep us
        // from their results.
        Some(free) if free < LEAST_DISK_KB && facts.agent_digest.is_none() => Some(format!(
            "the machine's disk has {} MiB free at {}; the agent needs {} MiB. Order a larger disk",
            free / 1024,
            facts.home,
            LEAST_DISK_KB / 1024
        )),
        _ => None,
    }
}

/// The folder of the environment that is made.
pub(crate) fn folder(spec: &Spec, facts: &Facts) -> String {
    format!("{}/envs/{}", facts.home, spec.environment)
}

/// The environment of every run, as the agent reads it.
pub(crate) fn run_environment(
    spec: &Spec,
    facts: &Facts,
    variables: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut environment = step_certificates(spec, facts);
    if has_environment(spec, facts) {
        // By its own name: a run goes on with the environment that it began with.
        let directory = folder(spec, facts);
        environment.insert("PATH".into(), format!("{directory}/bin:{}", facts.path));
        environment.insert("VIRTUAL_ENV".into(), directory);
    }
    environment.extend(
        variables
            .iter()
            .map(|(name, value)| (name.clone(), value.clone())),
    );
    environment
}

/// Where programs find the certificates to trust, for steps and runs.
pub(crate) fn step_certificates(spec: &Spec, facts: &Facts) -> BTreeMap<String, String> {
    if spec.ca_bundle.is_none() {
        return BTreeMap::new();
    }
    let bundle = format!("{}/certificates/bundle.crt", folder(spec, facts));
    [
        "SSL_CERT_FILE",
        "PIP_CERT",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
    ]
    .map(|name| (name.to_owned(), bundle.clone()))
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            os: "Linux".into(),
            architecture: "x86_64".into(),
            root: true,
            home: "/opt/skyward".into(),
            path: "/usr/bin:/bin".into(),
            python: Some("3.11.2".into()),
            ..Facts::default()
        }
    }

    fn names(spec: &Spec, facts: Option<&Facts>) -> String {
        steps(spec, facts)
            .into_iter()
            .map(Step::name)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn the_name_of_an_environment_that_a_machine_makes_up_is_cut() {
        let said = Said {
            lines: vec![("environment".to_owned(), "x".repeat(60_000))],
            ..Said::default()
        };
        assert_eq!(Facts::read(&said).environment.len(), NAME);
    }

    #[test]
    fn found_versions_are_right_for_one_architecture_and_one_python() {
        assert_eq!(kind(&facts(), None), "x86_64 3.11");
        assert_eq!(kind(&facts(), Some("3.13.1")), "x86_64 3.13");
        let odd = Facts {
            architecture: "a\n# b".into(),
            python: None,
            ..facts()
        };
        assert_eq!(kind(&odd, Some("pypy3.10\nevil==1")), "a b pypy3.10evil1");
    }

    #[test]
    fn nothing_asked_is_four_steps() {
        assert_eq!(
            names(&Spec::default(), Some(&facts())),
            "probe authorized_keys agent start"
        );
        assert_eq!(names(&Spec::default(), None), "probe authorized_keys agent start");
    }

    #[test]
    fn everything_asked_is_in_order() {
        let spec = Spec {
            python: Some("3.13".into()),
            pip: vec!["numpy".into()],
            apt: vec!["ffmpeg".into()],
            shell_vars: BTreeMap::from([("A".into(), "echo 1".into())]),
            ca_bundle: Some("x".into()),
            worker_user: Some("skyward".into()),
            ..Spec::default()
        };
        assert_eq!(
            names(&spec, Some(&facts())),
            "probe authorized_keys user certificates apt python packages shell_vars agent start"
        );
        let kept = Spec {
            python: Some("3.13".into()),
            ..spec.as_it_is()
        };
        assert_eq!(
            names(&kept, Some(&facts())),
            "probe authorized_keys user agent start"
        );
        let ordinary = Facts {
            root: false,
            ..facts()
        };
        assert!(!names(&spec, Some(&ordinary)).contains("user"));
    }

    #[test]
    fn python_is_the_machines_own_if_it_will_do() {
        let installed = |version: &str| Python::Installed(version.into());
        for (wanted, own, expected) in [
            (None, Some("3.11.2"), Python::Own),
            (Some("auto"), Some("3.10.0"), Python::Own),
            (None, Some("3.9.18"), installed("3.12")),
            (None, Some("3.6.8"), installed("3.12")),
            (None, None, Python::Own),
            (Some("3.11"), Some("3.11.2"), Python::Own),
            (Some("3.11.2"), Some("3.11.2"), Python::Own),
            (Some("3.1"), Some("3.11.2"), installed("3.1")),
            (Some("3.12"), Some("3.11.2"), installed("3.12")),
            (Some("3.12"), None, installed("3.12")),
        ] {
            assert_eq!(choose_python(wanted, own), expected, "{wanted:?} on {own:?}");
        }
        let packages = Spec {
            pip: vec!["numpy".into()],
            ..Spec::default()
        };
        assert_eq!(python(&packages, None), installed("3.12"));
        assert_eq!(python(&packages, Some("3.11.2")), Python::Own);
    }

    fn binaries(directory: &std::path::Path) -> AgentBinaries {
        std::fs::create_dir(directory.join("x86_64")).unwrap();
        std::fs::write(directory.join("x86_64/skyward-agent"), b"agent").unwrap();
        AgentBinaries::from_directory(directory).unwrap()
    }

    #[test]
    fn an_unusable_machine_is_told_from_a_usable_one() {
        let directory = tempfile::tempdir().unwrap();
        let binaries = binaries(directory.path());
        assert_eq!(unusable(&facts(), &binaries), None);
        for (other, expected) in [
            (
                Facts {
                    os: "Darwin".into(),
                    ..facts()
                },
                "Linux",
            ),
            (
                Facts {
                    architecture: "riscv64".into(),
                    ..facts()
                },
                "x86_64",
            ),
            (
                Facts {
                    disk_free_kb: Some(10),
                    ..facts()
                },
                "larger disk",
            ),
        ] {
            assert!(
                unusable(&other, &binaries).unwrap().contains(expected),
                "{other:?}"
            );
        }
    }

    #[test]
    fn a_machine_whose_runs_filled_the_disk_is_usable_still() {
        let directory = tempfile::tempdir().unwrap();
        let binaries = binaries(directory.path());
        let full = Facts {
            disk_free_kb: Some(0),
            agent_digest: Some("of the agent that is there".into()),
            ..facts()
        };
        assert_eq!(unusable(&full, &binaries), None);
    }

    #[test]
    fn runs_find_the_environment_the_certificates_and_the_variables() {
        let spec = Spec {
            pip: vec!["numpy".into()],
            ca_bundle: Some("x".into()),
            ..Spec::default()
        };
        let variables = BTreeMap::from([("GPU".to_owned(), "H100".to_owned())]);
        let environment = run_environment(&spec, &facts(), &variables);
        assert_eq!(environment["PATH"], "/opt/skyward/envs/default/bin:/usr/bin:/bin");
        assert_eq!(
            environment["SSL_CERT_FILE"],
            "/opt/skyward/envs/default/certificates/bundle.crt"
        );
        assert_eq!(environment["GPU"], "H100");
        assert!(run_environment(&Spec::default(), &facts(), &BTreeMap::new()).is_empty());
    }

    #[test]
    fn captured_variables_are_read_whatever_they_contain() {
        let said = Said {
            lines: vec![
                ("var".into(), "A c3a9270a".into()),
                ("var".into(), "EMPTY".into()),
                ("var".into(), "b-d 41".into()),
            ],
            tail: String::new(),
            ..Said::default()
        };
        assert_eq!(
            variables(&said),
            BTreeMap::from([
                ("A".to_owned(), "é'\n".to_owned()),
                ("EMPTY".to_owned(), String::new())
            ])
        );
    }
}
