//! What starts the agent after the machine rebooted while no controller looked: without it
//! the machine would have no dead man's switch any more. Only decides what is written;
//! `scripts/boot.sh` writes it.
//!
//! It starts the supervisor, as `skyward-agent start` does: of two supervisors the second one
//! ends at once, so it does not matter who comes first.

use super::{Spec, plan::Facts, script::Script};
use crate::quote::quote;

const BOOT: &str = include_str!("scripts/boot.sh");
/// Where systemd has units of the machine's own.
const UNITS: &str = "/etc/systemd/system";
/// Exists where systemd is the first process.
const SYSTEMD: &str = "/run/systemd/system";

/// Installs it, or nothing: a machine has one home of an agent that boots with it, the usual one.
pub(super) fn install(spec: &Spec, facts: &Facts, agent: &str, arguments: &[(&str, &str)]) -> Script {
    if spec.home.is_some() || !is_plain(&facts.home) || !is_plain(&facts.user) {
        return Script::default();
    }
    in_folders(UNITS, SYSTEMD, facts, agent, arguments)
}

fn in_folders(units: &str, systemd: &str, facts: &Facts, agent: &str, arguments: &[(&str, &str)]) -> Script {
    Script::default()
        .set("launcher", &launcher(facts, agent, arguments))
        .set("unit", &unit(facts))
        .set("units", units)
        .set("systemd", systemd)
        .then(BOOT)
}

/// Means nothing but itself in a unit.
fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

/// A script, since units have rules of their own for what commands may hold.
fn launcher(facts: &Facts, agent: &str, arguments: &[(&str, &str)]) -> String {
    let program = format!("{}/bin/{agent}", facts.home);
    let mut words = vec![quote(&program), "supervise".to_owned()];
    for (name, value) in arguments.iter().filter(|(_, value)| !value.is_empty()) {
        words.extend([format!("--{name}"), quote(value)]);
    }
    format!(
        "#!/bin/sh\n# Written by Skyward for skyward-agent.service.\nexec {}\n",
        words.join(" ")
    )
}

/// Shims and their work outlive the supervisor, and one that runs out of memory or has many
/// processes is no matter of the agent's. What an image lets logins lock in memory (for RDMA),
/// units do not inherit.
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

    /// Runs the script as somebody who may do what root may.
    fn run(folder: &Path, machine: &str) -> String {
        let (units, systemd) = (folder.join("units"), folder.join("systemd"));
        let arguments = [
            ("machine", machine),
            ("stop-command", "it's \"over\"; $HOME"),
            ("user", ""),
        ];
        let boot = in_folders(
            &units.display().to_string(),
            &systemd.display().to_string(),
            &facts(folder),
            "agent",
            &arguments,
        );
        let script = Script::default()
            .set("home", &folder.display().to_string())
            .then("as_root() { \"$@\"; }\n")
            .before(boot);
        let output = Command::new("/bin/sh").args(["-c", &script.text("::t")]).output();
        String::from_utf8(output.unwrap().stderr).unwrap()
    }

    #[test]
    fn a_machine_that_systemd_runs_starts_the_same_agent_at_each_boot() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("systemd")).unwrap();
        fs::create_dir_all(path("units")).unwrap();
        assert_eq!(run(folder.path(), "ns/old"), "");
        assert_eq!(run(folder.path(), "ns/m"), "");
        let wanted = path("units/multi-user.target.wants/skyward-agent.service");
        let unit = fs::read_to_string(wanted).unwrap();
        let start = format!("\nExecStart=/bin/sh {}/boot.sh\n", folder.path().display());
        assert!(
            unit.contains(&start) && unit.contains("\nUser=ubuntu\n"),
            "{unit}"
        );
        assert!(unit.contains("\nLimitMEMLOCK=infinity\n"), "{unit}");
        assert_eq!(
            fs::read_dir(path("units")).unwrap().count(),
            2,
            "nothing is left over"
        );

        fs::create_dir(path("bin")).unwrap();
        fs::write(path("bin/agent"), "#!/bin/sh\nprintf '%s|' \"$@\"\n").unwrap();
        fs::set_permissions(path("bin/agent"), fs::Permissions::from_mode(0o755)).unwrap();
        let started = Command::new("/bin/sh").arg(path("boot.sh")).output().unwrap();
        assert_eq!(
            String::from_utf8(started.stdout).unwrap(),
            "supervise|--machine|ns/m|--stop-command|it's \"over\"; $HOME|"
        );
    }

    #[test]
    fn a_machine_without_systemd_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(run(folder.path(), "ns/m"), "");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_cannot_be_written_is_said_and_fails_nothing() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("systemd")).unwrap();
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
        assert!(text(&usual, "/home/ubuntu/.skyward").contains(UNITS));
        assert!(!text(&usual, "/home/it's me/.skyward").contains(UNITS));
        let other = Spec {
            home: Some("/opt/skyward".into()),
            ..Spec::default()
        };
        assert!(!text(&other, "/opt/skyward").contains(UNITS));
    }
}
