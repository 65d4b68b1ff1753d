//! The script of each step, and the digest of its inputs.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use super::{
    PipIndex, Spec,
    lock::MOST,
    plan::{Facts, folder, step_certificates},
    reboot,
    script::Script,
};
use crate::{
    binaries::{AgentBinaries, Binary, digest_of},
    quote::quote,
};

const PREPARE: &str = include_str!("scripts/prepare.sh");
const UPLOAD: &str = include_str!("scripts/upload.sh");
const CERTIFICATES: &str = include_str!("scripts/certificates.sh");
const APT: &str = include_str!("scripts/apt.sh");
const UV: &str = include_str!("scripts/uv.sh");
const PYTHON: &str = include_str!("scripts/python.sh");
const REQUIREMENTS: &str = include_str!("scripts/requirements.sh");
const RESOLVE: &str = include_str!("scripts/resolve.sh");
const PACKAGES: &str = include_str!("scripts/packages.sh");
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
        .then(PREPARE)
}

/// The command that receives the agent on its standard input. One line without quotes of
/// its own, so that every login shell hands it on as it is.
pub(super) fn upload(facts: &Facts, binary: &Binary) -> String {
    let script = UPLOAD.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    debug_assert!(!script.contains('\''), "upload.sh must not contain single quotes");
    format!(
        "exec /bin/sh -c '{script}' sh {} {} {}",
        quote(&facts.home),
        quote(&binary.file_name()),
        quote(&binary.digest)
    )
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
    marked(script, APT).after(variables(spec, facts).set("lock_wait", &wait.to_string()))
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
    let script = with_requirements(spec, facts, python).set("lock", lock);
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

/// Packages as a requirements file, and packages from an index of their own as a project: uv
/// knows such indexes only in projects.
fn requirements(pip: &[String], indexes: &[PipIndex]) -> (String, String) {
    let index_of = |package: &str| {
        let name = normalized(package);
        indexes
            .iter()
            .position(|index| index.packages.iter().any(|listed| normalized(listed) == name))
    };
    let (own, others): (Vec<&String>, Vec<&String>) =
        pip.iter().partition(|package| index_of(package).is_some());
    let mut plain = others.into_iter().cloned().collect::<Vec<_>>().join("\n");
    plain.push('\n');
    if own.is_empty() {
        return (plain, String::new());
    }
    let mut project =
        String::from("[project]\nname = \"skyward-image\"\nversion = \"0\"\ndependencies = [\n");
    // Writing to a String cannot fail.
    for package in &own {
        let _ = writeln!(project, "  {},", toml_string(package));
    }
    project.push_str("]\n");
    for (number, index) in indexes.iter().enumerate() {
        let url = toml_string(&index.url);
        let _ = write!(
            project,
            "\n[[tool.uv.index]]\nname = \"index-{number}\"\nurl = {url}\nexplicit = true\n"
        );
    }
    project.push_str("\n[tool.uv.sources]\n");
    let sources: BTreeMap<String, usize> = own
        .iter()
        .filter_map(|package| Some((normalized(package), index_of(package)?)))
        .collect();
    for (name, number) in sources {
        let _ = writeln!(project, "{name} = {{ index = \"index-{number}\" }}");
    }
    (plain, project)
}

/// The normalized name of a requirement such as `Torch[cuda] >= 2`.
fn normalized(requirement: &str) -> String {
    let name = requirement
        .trim()
        .split(|c: char| !(c.is_ascii_alphanumeric() || "._-".contains(c)))
        .next();
    name.unwrap_or_default()
        .to_ascii_lowercase()
        .split(['.', '_', '-'])
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("-")
}

/// A basic string of TOML; JSON strings are such.
fn toml_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        Facts {
            home: "/opt/skyward".into(),
            root: true,
            user: "root".into(),
            ..Facts::default()
        }
    }

    /// The step of a controller that was killed goes on for a while beside the next one's.
    #[cfg(target_os = "linux")]
    #[test]
    fn an_installation_that_is_under_way_is_waited_for() {
        use std::{fs, os::unix::fs::PermissionsExt, process, thread, time::Duration};

        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        let program = |name: &str, text: &str| {
            fs::create_dir_all(path(name).parent().unwrap()).unwrap();
            fs::write(path(name), format!("#!/bin/sh\n{text}\n")).unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).unwrap();
        };
        fs::create_dir_all(path("bootstrap")).unwrap();
        let installs = format!(
            "case \"$*\" in *venv*) : >{}/installs ;; esac; exit 1",
            home.path().display()
        );
        program("bin/python3", &installs);
        let lock = fs::File::create(path("bootstrap/uv.lock")).unwrap();
        lock.lock().unwrap();

        let text = Script::default()
            .set("home", &home.path().display().to_string())
            .set("env", "nowhere")
            .set("link_mode", "copy")
            .then(UV)
            .then("\necho \"$skyward_uv\"")
            .text("x");
        let mut step = process::Command::new("sh")
            .args(["-c", &text])
            .env("PATH", format!("{}:/usr/bin:/bin", path("bin").display()))
            .stdout(process::Stdio::piped())
            .spawn()
            .unwrap();
        // Waits until it asks for the lock, or has ended without it.
        let asks = |id: u32| {
            let open = fs::read_dir(format!("/proc/{id}/fd"))
                .into_iter()
                .flatten()
                .flatten();
            let mut open = open.filter_map(|entry| fs::read_link(entry.path()).ok());
            open.any(|file| file == path("bootstrap/uv.lock"))
        };
        while !asks(step.id()) && step.try_wait().unwrap().is_none() {
            thread::sleep(Duration::from_millis(5));
        }
        program("uv/bin/uv", "exit 0");
        lock.unlock().unwrap();
        let output = step.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let found = path("uv/bin/uv").display().to_string();
        assert_eq!(said.lines().last(), Some(found.as_str()));
        assert!(!path("installs").exists(), "it took what the other one made");
    }

    #[test]
    fn only_named_packages_come_from_their_index() {
        let indexes = vec![PipIndex {
            url: "https://index.example/cu128".into(),
            packages: vec!["Torch".into(), "torch_vision".into()],
            credentials: None,
        }];
        let pip = [
            "numpy>=2",
            "torch==2.8",
            "torch-vision[extra]; python_version > \"3.9\"",
        ]
        .map(String::from);
        let (requirements, project) = requirements(&pip, &indexes);
        assert_eq!(requirements, "numpy>=2\n");
        assert_eq!(
            project,
            r#"[project]
name = "skyward-image"
version = "0"
dependencies = [
  "torch==2.8",
  "torch-vision[extra]; python_version > \"3.9\"",
]

[[tool.uv.index]]
name = "index-0"
url = "https://index.example/cu128"
explicit = true

[tool.uv.sources]
torch = { index = "index-0" }
torch-vision = { index = "index-0" }
"#
        );
        assert_eq!(
            super::requirements(&pip[..1], &indexes),
            ("numpy>=2\n".into(), String::new())
        );
    }

    #[test]
    fn a_secret_reaches_the_steps_alone_and_its_rotation_does_none_again() {
        let with = |value: &str| {
            let secret = skyward_core::Secret::new(value);
            Spec {
                pip: vec!["torch".into()],
                apt: vec!["git".into()],
                shell_vars: BTreeMap::from([("A".to_owned(), "echo".to_owned())]),
                env_for_steps: BTreeMap::from([("BOTH".to_owned(), "of the Pool".to_owned())]),
                secret_env_for_steps: std::sync::Arc::new(BTreeMap::from([
                    ("https_proxy".to_owned(), secret.clone()),
                    ("BOTH".to_owned(), secret.clone()),
                ])),
                pip_indexes: vec![PipIndex {
                    url: "https://index.example/simple".into(),
                    packages: vec!["torch".into()],
                    credentials: Some((skyward_core::Secret::new("robot"), secret)),
                }],
                ..Spec::default()
            }
        };
        let facts = facts();
        let marked = |spec: &Spec| {
            [
                apt(spec, &facts, Duration::from_secs(60)),
                python(spec, &facts, "3.12"),
                resolve(spec, &facts, None),
                packages(spec, &facts, None, "torch==2"),
                shell_vars(spec, &facts),
            ]
        };
        let (old, new) = (marked(&with("canary-1")), marked(&with("canary-2")));
        for (old, new) in old.into_iter().zip(new) {
            assert_eq!(old.digest, new.digest);
            let text = old.script.text("");
            assert!(text.contains("https_proxy=canary-1"), "{text}");
            let [secret, own] = ["BOTH=canary-1", "BOTH='of the Pool'"].map(|line| text.find(line));
            assert!(secret < own, "the Pool's own value stands last: {text}");
        }
        let text = packages(&with("canary-1"), &facts, None, "").script.text("");
        assert!(
            text.contains("UV_INDEX_INDEX_0_USERNAME=robot")
                && text.contains("UV_INDEX_INDEX_0_PASSWORD=canary-1"),
            "{text}"
        );
        let binary = Binary {
            path: "agent".into(),
            digest: "0".repeat(64),
            size: 0,
        };
        let environment = super::super::plan::run_environment(&with("canary-1"), &facts, &BTreeMap::new());
        let start = start(&with("canary-1"), &facts, &binary, "team/m").text("");
        let switch = switch(&with("canary-1"), &facts, &environment).unwrap().text("");
        assert!(
            !start.contains("canary") && !switch.contains("canary"),
            "runs do not find it"
        );
    }

    /// A variable of the user with the name of one of ours would be changed for what the
    /// script runs, and would change what the script does.
    #[test]
    fn a_script_that_has_the_users_variables_assigns_none_that_might_be_theirs() {
        let theirs = ["PATH", "LC_ALL", "DEBIAN_FRONTEND", "NEEDRESTART_MODE"];
        for text in [
            include_str!("scripts/common.sh"),
            APT,
            UV,
            PYTHON,
            REQUIREMENTS,
            RESOLVE,
            PACKAGES,
            SHELL_VARS,
        ] {
            let code = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
            let words = code
                .clone()
                .flat_map(|line| line.split([' ', ';', '(', '{', '|', '&', '!']));
            let assigned = words.filter_map(|word| Some(word.split_once('=')?.0));
            let looped = code.filter_map(|line| line.strip_prefix("for ")?.split(' ').next());
            for name in assigned.chain(looped) {
                assert!(
                    !crate::quote::is_name(name)
                        || name.starts_with("skyward_")
                        || name.starts_with("UV_")
                        || theirs.contains(&name),
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn what_a_user_calls_a_variable_changes_nothing_but_what_it_runs() {
        let home = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(home.path().join("envs/default/.skyward")).unwrap();
        let facts = Facts {
            home: home.path().display().to_string(),
            ..facts()
        };
        let names = [
            "tag",
            "home",
            "digest",
            "values",
            "value",
            "shell",
            "size",
            "encoded",
            "IFS",
            "UID",
            "OPTIND",
            "PPID",
            "skyward_home",
        ];
        let spec = Spec {
            env_for_steps: names.map(|name| (name.to_owned(), "mine 5".to_owned())).into(),
            shell_vars: BTreeMap::from([
                (
                    "A".to_owned(),
                    "printf %s \"$tag $home $value $values $digest\"".to_owned(),
                ),
                ("B".to_owned(), "printf %s \"$value\"".to_owned()),
            ]),
            ..Spec::default()
        };
        let Marked { script, digest } = shell_vars(&spec, &facts);
        for shell in ["/bin/sh", "bash"] {
            let output = std::process::Command::new(shell)
                .args(["-c", &script.text("::t")])
                .output();
            let Ok(output) = output else { continue };
            let said = String::from_utf8(output.stdout).unwrap();
            let hex = |text: &str| {
                text.bytes()
                    .fold(String::new(), |hex, b| hex + &format!("{b:02x}"))
            };
            let all = hex(&["mine 5"; 5].join(" "));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                said.contains(&format!("::t var A {all}\n")),
                "{shell}: {said}{errors}"
            );
            assert!(
                said.contains(&format!("::t var B {}\n", hex("mine 5"))),
                "{shell}: {said}"
            );
            let done = home.path().join("envs/default/.skyward/shell_vars.done");
            assert_eq!(std::fs::read_to_string(&done).unwrap().trim(), digest);
            std::fs::remove_file(done).unwrap();
        }
    }

    #[test]
    fn the_digest_follows_the_inputs_and_nothing_else() {
        let spec = Spec {
            apt: vec!["ffmpeg".into()],
            ..Spec::default()
        };
        let second = |seconds| apt(&spec, &facts(), Duration::from_secs(seconds)).digest;
        assert_eq!(second(100), second(200));
        let other = Spec {
            apt: vec!["git".into()],
            ..Spec::default()
        };
        assert_ne!(
            second(100),
            apt(&other, &facts(), Duration::from_secs(100)).digest
        );
        let own = packages(&spec, &facts(), None, "a==1").digest;
        assert_ne!(own, packages(&spec, &facts(), Some("3.12"), "a==1").digest);
        assert_ne!(own, packages(&spec, &facts(), None, "a==2").digest);
        let with_variable = Spec {
            env_for_steps: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
            ..spec.clone()
        };
        assert_eq!(
            own,
            packages(&with_variable, &facts(), None, "a==1").digest,
            "`env` repeats no step"
        );
    }

    #[test]
    fn the_upload_command_is_one_line_that_any_shell_hands_on() {
        let binary = Binary {
            path: "x".into(),
            digest: "a".repeat(64),
            size: 1,
        };
        let command = upload(
            &Facts {
                home: "/home/it's me/.skyward".into(),
                ..facts()
            },
            &binary,
        );
        assert!(!command.contains('\n'));
        assert!(!command.contains('!') || !command.contains("!'"));
        assert!(command.ends_with(&format!(
            "sh '/home/it'\\''s me/.skyward' skyward-agent-aaaaaaaaaaaa {}",
            "a".repeat(64)
        )));
    }

    #[test]
    fn an_environment_that_is_right_is_not_switched_to_again() {
        let environment = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        let spec = Spec::default();
        let fresh = switch(&spec, &facts(), &environment).unwrap().text("");
        assert!(fresh.contains("\"A\": \"1\""), "{fresh}");
        let known = Facts {
            environment: "default".into(),
            env_digest: Some(digest_of(&serde_json::to_string_pretty(&environment).unwrap())),
            ..facts()
        };
        assert!(switch(&spec, &known, &environment).is_none());
        let other = Facts {
            environment: "other".into(),
            ..known
        };
        assert!(switch(&spec, &other, &environment).is_some());
    }

    /// What runs find in a home: where the link leads, and the variables.
    #[cfg(unix)]
    fn found(home: &std::path::Path) -> (Option<String>, String) {
        let link = std::fs::read_link(home.join("venv")).ok();
        let variables = std::fs::read_to_string(home.join("env.json")).unwrap_or_default();
        (link.map(|link| link.display().to_string()), variables)
    }

    #[cfg(unix)]
    fn switched(home: &std::path::Path, name: &str, value: &str) {
        let spec = Spec {
            environment: name.into(),
            ..Spec::default()
        };
        let facts = Facts {
            home: home.display().to_string(),
            ..facts()
        };
        std::fs::create_dir_all(home.join("envs").join(name).join(".skyward")).unwrap();
        let environment = BTreeMap::from([("A".to_owned(), value.to_owned())]);
        let text = switch(&spec, &facts, &environment).unwrap().text("::t");
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", &text])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert!(said.contains(&format!("::t environment {name}\n")), "{said}");
    }

    #[cfg(unix)]
    #[test]
    fn one_rename_makes_runs_find_the_new_environment_with_its_variables_and_again_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        for (name, value) in [("a", "1"), ("b", "2"), ("b", "2"), ("a", "1")] {
            switched(home.path(), name, value);
            let (link, variables) = found(home.path());
            assert_eq!(link, Some(format!("envs/{name}")));
            assert!(variables.contains(&format!("\"A\": \"{value}\"")), "{variables}");
        }
        let left: Vec<_> = std::fs::read_dir(home.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(left.len(), 3, "envs, venv, env.json: {left:?}");
    }

    #[cfg(unix)]
    #[test]
    fn the_folder_of_an_older_release_is_taken_over_and_gone_afterwards() {
        for has_packages in [true, false] {
            let home = tempfile::tempdir().unwrap();
            std::fs::write(home.path().join("env.json"), "old").unwrap();
            if has_packages {
                std::fs::create_dir_all(home.path().join("venv/bin")).unwrap();
            }
            switched(home.path(), "b", "2");
            let (link, variables) = found(home.path());
            assert_eq!(link.as_deref(), Some("envs/b"));
            assert!(variables.contains("\"A\": \"2\""), "{variables}");
        }
    }

    #[test]
    fn a_machine_that_keeps_its_environment_gets_what_a_newer_release_wants_on_every_machine() {
        let spec = Spec {
            worker_user: Some("worker".into()),
            git_user: Some("fetcher".into()),
            authorized_key: "ssh-ed25519 AAAA".into(),
            hidden_environment: vec!["CLOUD_KEY".into()],
            pip: vec!["numpy".into()],
            masked: std::sync::Arc::new(vec![skyward_core::Secret::new("canary")]),
            ..Spec::default()
        };
        let kept = spec.as_it_is();
        assert_eq!((kept.target(), kept.pip.len(), kept.masked.len()), (None, 0, 0));
        let text = prepare(&kept, &AgentBinaries::default()).text("");
        for part in ["worker", "fetcher", "'ssh-ed25519 AAAA'", "CLOUD_KEY"] {
            assert!(text.contains(&format!("={part}\n")), "{part}: {text}");
        }
    }

    /// What was killed in the middle leaves packages that have a name and not all of their files.
    #[cfg(unix)]
    #[test]
    fn half_an_installation_is_begun_anew_and_a_whole_one_is_left_alone() {
        use std::os::unix::fs::PermissionsExt as _;

        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        for name in ["bootstrap", "cache", "uv/bin", "envs/default/.skyward"] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        let uv = "#!/bin/sh\nif [ \"$1\" = venv ]; then\n  for last; do :; done\n  mkdir -p \"$last/bin\" && ln -sf \"$(command -v python3)\" \"$last/bin/python\"\nfi\n";
        std::fs::write(path("uv/bin/uv"), uv).unwrap();
        std::fs::set_permissions(path("uv/bin/uv"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let spec = Spec {
            pip: vec!["numpy".into()],
            ..Spec::default()
        };
        let facts = Facts {
            home: home.path().display().to_string(),
            ..facts()
        };
        let text = packages(&spec, &facts, None, "numpy==2").script.text("::t");
        let install = || {
            let output = std::process::Command::new("/bin/sh").args(["-c", &text]).output();
            let output = output.unwrap();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{errors}");
        };
        install();
        let left = path("envs/default/lib/left");
        for (is_whole, stays) in [(true, true), (false, false)] {
            std::fs::create_dir_all(left.parent().unwrap()).unwrap();
            std::fs::write(&left, "").unwrap();
            if !is_whole {
                std::fs::remove_file(path("envs/default/.skyward/packages.done")).unwrap();
            }
            install();
            assert_eq!(left.exists(), stays);
            assert!(path("envs/default/bin/python").exists());
        }
    }

    /// It may be wanted again while its removal goes on: half of it must not be found with the marks of its steps.
    #[cfg(unix)]
    #[test]
    fn an_environment_that_goes_is_gone_by_its_name_before_its_files_are_removed() {
        use std::os::unix::fs::PermissionsExt as _;

        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| home.path().join(name);
        for name in [
            "envs/a/.skyward",
            "envs/b/.skyward",
            "envs/c",
            "programs",
            "login/.ssh",
        ] {
            std::fs::create_dir_all(path(name)).unwrap();
        }
        std::os::unix::fs::symlink("envs/a", path("venv")).unwrap();
        // The removal has not begun yet.
        std::fs::write(path("programs/rm"), "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(path("programs/rm"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let spec = Spec {
            environment: "c".into(),
            home: Some(home.path().display().to_string()),
            ..Spec::default()
        };
        let text = prepare(&spec, &AgentBinaries::default()).text("::t");
        let output = std::process::Command::new("/bin/sh")
            .args(["-c", &text])
            .env("PATH", format!("{}:/usr/bin:/bin", path("programs").display()))
            .env("HOME", path("login"))
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{errors}");
        let left = ["a", "b", "c"].map(|name| path("envs").join(name).exists());
        assert_eq!(left, [true, false, true], "{errors}");
    }

    #[test]
    fn every_script_is_posix_shell() {
        let spec = Spec {
            pip: vec!["numpy".into()],
            apt: vec!["git".into()],
            env_for_steps: BTreeMap::from([("PROXY".into(), "it's".into())]),
            shell_vars: BTreeMap::from([("A".into(), "echo \"it's\"".into())]),
            ca_bundle: Some("pem".into()),
            ..Spec::default()
        };
        let binary = Binary {
            path: "x".into(),
            digest: "a".repeat(64),
            size: 1,
        };
        let scripts = [
            ("prepare", prepare(&spec, &AgentBinaries::default())),
            ("certificates", certificates(&spec, &facts()).script),
            ("apt", apt(&spec, &facts(), Duration::from_mins(1)).script),
            ("python", python(&spec, &facts(), "3.12").script),
            ("resolve", resolve(&spec, &facts(), None).script),
            ("packages", packages(&spec, &facts(), None, "a==1").script),
            ("switch", switch(&spec, &facts(), &BTreeMap::new()).unwrap()),
            ("shell_vars", shell_vars(&spec, &facts()).script),
            ("start", start(&spec, &facts(), &binary, "ns/m")),
        ];
        for (name, script) in scripts {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), script.text("::t")).unwrap();
            let output = std::process::Command::new("/bin/sh")
                .arg("-n")
                .arg(file.path())
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{name}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }
}
