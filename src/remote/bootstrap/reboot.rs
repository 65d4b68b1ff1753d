//! Starts the agent after a reboot without a controller: otherwise the machine would have no dead
//! man's switch any more. With systemd a unit does it, with OpenRC a local script, elsewhere a line
//! of cron; on a machine without these, such as a container, the controller starts the agent once it
//! is back. This module only decides what is written; `scripts/boot.sh` writes it.
//!
//! The boot script starts the supervisor, as `skyward-agent start` does: the second of two
//! supervisors ends at once, so their order does not matter.

use super::{Spec, plan::Facts, script::Script, steps::hidden};
use crate::quote::quote;

const BOOT: &str = include_str!("scripts/boot.sh");
/// The folders of boot scripts, by init system, and the folders that exist where systemd and OpenRC
/// run.
const FOLDERS: [(&str, &str); 5] = [
    ("units", "/etc/systemd/system"),
    ("systemd", "/run/systemd/system"),
    ("locals", "/etc/local.d"),
    ("openrc", "/run/openrc"),
    ("entries", "/etc/cron.d"),
];

/// Installs the boot script, but only for the usual home: a machine boots one agent.
pub(super) fn install(spec: &Spec, facts: &Facts, agent: &str, arguments: &[(&str, &str)]) -> Script {
    if spec.home.is_some() || !is_plain(&facts.home) || !is_plain(&facts.user) {
        return Script::default();
    }
    below("", spec, facts, agent, arguments)
}

fn below(root: &str, spec: &Spec, facts: &Facts, agent: &str, arguments: &[(&str, &str)]) -> Script {
    let script = Script::default()
        .set("launcher", &launcher(spec, facts, agent, arguments))
        .set("unit", &unit(facts))
        .set("local", &local(facts))
        .set("entry", &entry(facts));
    let with_folders = FOLDERS.iter().fold(script, |script, (name, path)| {
        script.set(name, &format!("{root}{path}"))
    });
    with_folders.then(BOOT)
}

/// Whether a text has no special characters of units.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

/// A script, since units have syntax rules of their own for commands. It hides the cloud's own
/// variables, as when we start the agent.
fn launcher(spec: &Spec, facts: &Facts, agent: &str, arguments: &[(&str, &str)]) -> String {
    let program = format!("{}/bin/{agent}", facts.home);
    let mut words = vec![quote(&program), "supervise".to_owned()];
    for (name, value) in arguments.iter().filter(|(_, value)| !value.is_empty()) {
        words.extend([format!("--{name}"), quote(value)]);
    }
    let hidden = hidden(spec, " ");
    let unset = if hidden.is_empty() {
        String::new()
    } else {
        format!("unset {hidden}\n")
    };
    format!(
        "#!/bin/sh\n# Written by Skyward: starts its agent when the machine boots.\n{unset}exec {}\n",
        words.join(" ")
    )
}

/// The launcher in the background, as the login, with the log where the agent has it.
fn in_background(facts: &Facts) -> String {
    let Facts { home, .. } = facts;
    format!("/bin/sh {home}/boot.sh </dev/null >>{home}/agent.log 2>&1 &")
}

fn local(facts: &Facts) -> String {
    let start = in_background(facts);
    let user = &facts.user;
    let command = if user == "root" {
        start
    } else {
        format!("su {user} -s /bin/sh -c '{start}'")
    };
    format!(
        "#!/bin/sh\n# Written by Skyward: the machine stops itself when nobody needs it, also after a reboot.\n{command}"
    )
}

fn entry(facts: &Facts) -> String {
    format!(
        "# Written by Skyward: the machine stops itself when nobody needs it, also after a reboot.\n@reboot {} {}",
        facts.user,
        in_background(facts)
    )
}

/// Shims and their work outlive the supervisor, and the unit must not limit their memory and
/// processes. Units do not inherit how much memory logins may lock (for RDMA), so it is set.
fn unit(facts: &Facts) -> String {
    let Facts { home, user, .. } = facts;
    format!(
        "# Written by Skyward: the machine stops itself when nobody needs it, also after a reboot.\n\
         [Unit]\n\
         Description=The agent of Skyward\n\
         After=remote-fs.target\n\
         \n\
         [Service]\n\
         User={user}\n\
         ExecStart=/bin/sh {home}/boot.sh\n\
         KillMode=process\n\
         OOMPolicy=continue\n\
         TasksMax=infinity\n\
         LimitMEMLOCK=infinity\n\
         \n\
         [Install]\n\
         WantedBy=multi-user.target"
    )
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

    use super::*;

    fn facts(home: &Path) -> Facts {
        Facts {
            home: home.display().to_string(),
            user: "ubuntu".into(),
            ..Facts::default()
        }
    }

    /// Runs the script with root's rights, on a machine whose files are in `root`.
    fn run(folder: &Path, machine: &str) -> String {
        let spec = Spec {
            hidden_environment: vec!["CLOUD_KEY".into()],
            ..Spec::default()
        };
        let arguments = [
            ("machine", machine),
            ("stop-command", "it's \"over\"; $HOME"),
            ("user", ""),
        ];
        let root = folder.join("root");
        let boot = below(
            &root.display().to_string(),
            &spec,
            &facts(folder),
            "agent",
            &arguments,
        );
        let script = Script::default()
            .set("home", &folder.display().to_string())
            .then("as_root() { \"$@\"; }\nhave() { [ \"$1\" = cron ]; }\n")
            .before(boot);
        let output = Command::new("/bin/sh").args(["-c", &script.text("::t")]).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    }

    /// The command that the init system would run from that file at a boot.
    fn started(folder: &Path) -> String {
        fs::create_dir_all(folder.join("bin")).unwrap();
        let agent = folder.join("bin/agent");
        fs::write(&agent, "#!/bin/sh\nprintf '%s|' \"$@\" \"${CLOUD_KEY-hidden}\"\n").unwrap();
        fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
        let started = Command::new("/bin/sh")
            .arg(folder.join("boot.sh"))
            .env("CLOUD_KEY", "canary")
            .output();
        String::from_utf8(started.unwrap().stdout).unwrap()
    }

    const STARTED: &str = "supervise|--machine|ns/m|--stop-command|it's \"over\"; $HOME|hidden|";

    #[test]
    fn a_machine_that_systemd_runs_starts_the_same_agent_at_each_boot() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join("root").join(name);
        for name in ["run/systemd/system", "etc/systemd/system", "etc/cron.d"] {
            fs::create_dir_all(path(name)).unwrap();
        }
        assert_eq!(run(folder.path(), "ns/old"), "");
        assert_eq!(run(folder.path(), "ns/m"), "");
        let wanted = path("etc/systemd/system/multi-user.target.wants/skyward-agent.service");
        let unit = fs::read_to_string(wanted).unwrap();
        let start = format!("\nExecStart=/bin/sh {}/boot.sh\n", folder.path().display());
        assert!(
            unit.contains(&start) && unit.contains("\nUser=ubuntu\n"),
            "{unit}"
        );
        assert!(unit.contains("\nLimitMEMLOCK=infinity\n"), "{unit}");
        assert_eq!(
            fs::read_dir(path("etc/systemd/system")).unwrap().count(),
            2,
            "nothing is left over"
        );
        assert_eq!(fs::read_dir(path("etc/cron.d")).unwrap().count(), 0);
        assert_eq!(started(folder.path()), STARTED);
    }

    #[test]
    fn a_machine_without_systemd_starts_it_with_what_it_has() {
        for (present, expected) in [
            (
                vec!["run/openrc", "etc/local.d", "etc/cron.d"],
                "etc/local.d/skyward-agent.start",
            ),
            (vec!["etc/local.d", "etc/cron.d"], "etc/cron.d/skyward-agent"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let path = |name: &str| folder.path().join("root").join(name);
            for name in present {
                fs::create_dir_all(path(name)).unwrap();
            }
            assert_eq!(run(folder.path(), "ns/m"), "");
            assert_eq!(run(folder.path(), "ns/m"), "");
            let file = path(expected);
            let text = fs::read_to_string(&file).unwrap();
            let home = folder.path().display();
            let start = format!("/bin/sh {home}/boot.sh </dev/null >>{home}/agent.log 2>&1 &");
            let last = text.trim_end().lines().last().unwrap();
            if std::path::Path::new(expected).extension() == Some("start".as_ref()) {
                assert_eq!(last, format!("su ubuntu -s /bin/sh -c '{start}'"));
                assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o755);
            } else {
                assert_eq!(last, format!("@reboot ubuntu {start}"));
            }
            assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1);
            assert_eq!(started(folder.path()), STARTED);
        }
    }

    #[test]
    fn a_machine_that_nothing_boots_has_only_what_its_first_process_may_start() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(run(folder.path(), "ns/m"), "");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        assert_eq!(started(folder.path()), STARTED);
    }

    #[test]
    fn what_cannot_be_written_is_said_and_fails_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("root/run/systemd/system")).unwrap();
        let said = run(folder.path(), "ns/m");
        assert!(
            said.ends_with("will not be started when the machine reboots\n"),
            "{said}"
        );
    }

    #[test]
    fn only_the_usual_home_boots_with_its_machine() {
        let text = |spec: &Spec, home: &str| install(spec, &facts(Path::new(home)), "agent", &[]).text("");
        let usual = Spec::default();
        assert!(text(&usual, "/home/ubuntu/.skyward").contains("/etc/systemd/system"));
        assert!(!text(&usual, "/home/it's me/.skyward").contains("/etc/systemd/system"));
        let other = Spec {
            home: Some("/opt/skyward".into()),
            ..Spec::default()
        };
        assert!(!text(&other, "/opt/skyward").contains("/etc/systemd/system"));
    }
}
