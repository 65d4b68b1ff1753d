//! How work starts, and why it sometimes cannot.

use std::os::unix::fs::PermissionsExt;

use skyward_agent::{
    log,
    protocol::{RunSpec, finished::Ending},
};

use crate::machine::{Machine, bash, command, function, processes_with, program, until};

#[tokio::test]
async fn the_reason_why_work_did_not_start_is_said() {
    let mut machine = Machine::start().await;
    let cases = [
        (
            command("a", &["no-such-program"]),
            "there is no program \"no-such-program\" on the machine (looked in /",
        ),
        (command("b", &["/etc/passwd"]), "may not be executed"),
        (
            RunSpec {
                working_dir: "/no/such".into(),
                ..command("c", &["true"])
            },
            "working directory /no/such does not exist",
        ),
        (
            RunSpec {
                user: "no-such-user".into(),
                ..command("d", &["true"])
            },
            "no user \"no-such-user\"",
        ),
        (command("e", &[]), "its command is empty"),
        (
            RunSpec {
                env: [("A=B".into(), "c".into())].into(),
                ..command("f", &["true"])
            },
            "A=B",
        ),
        (
            RunSpec {
                env: [("A".into(), "x".repeat(200_000))].into(),
                ..command("g", &["true"])
            },
            "larger than the machine's limit",
        ),
        (
            RunSpec {
                work: None,
                ..command("h", &[])
            },
            "older than the controller",
        ),
    ];
    let root = nix::unistd::Uid::effective().is_root();
    // An agent that is not root runs all work as itself.
    let cases = cases.into_iter().filter(|(spec, _)| root || spec.user.is_empty());
    for (spec, expected) in cases {
        let finished = machine.run(spec.clone()).await;
        assert_eq!(
            finished.ending(),
            Ending::StartFailed,
            "{spec:?}: {}",
            finished.message
        );
        assert!(
            finished.message.contains(expected),
            "{spec:?}: {}",
            finished.message
        );
    }
}

#[tokio::test]
async fn nothing_of_the_agents_own_environment_reaches_the_work() {
    let mut machine = Machine::start().await;
    std::fs::write(machine.home().join("env.json"), r#"{"FROM_BOOTSTRAP": "yes"}"#).unwrap();
    let spec = RunSpec {
        env: [("FROM_TASK".into(), "yes".into())].into(),
        ..command("r", &["env"])
    };
    let finished = machine.run(spec).await;
    let output = String::from_utf8(log::decode(&finished.log, None)).unwrap();
    let mut names: Vec<&str> = output
        .lines()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "FROM_BOOTSTRAP",
            "FROM_TASK",
            "HOME",
            "LANG",
            "LOGNAME",
            "PATH",
            "PYTHONPATH",
            "PYTHONUNBUFFERED",
            "SKYWARD_PROGRESS_FILE",
            "SKYWARD_RUN_FOLDER",
            "TMPDIR",
            "USER"
        ]
    );
}

#[tokio::test]
async fn temporary_files_are_a_runs_own_and_go_when_it_ends_however_it_does() {
    let mut machine = Machine::start().await;
    for (name, end) in [("a", "exit 0"), ("b", "kill -9 $$")] {
        let script = format!("f=$(mktemp) && stat -c %a \"$TMPDIR\" && echo \"$f\"; mkdir $TMPDIR/d; {end}");
        let finished = machine.run(bash(name, &script)).await;
        let output = String::from_utf8(log::decode(&finished.log, None)).unwrap();
        let lines: Vec<&str> = output.lines().collect();
        let [mode, file] = lines[..] else {
            panic!("{output}");
        };
        let folder = machine.run_folder(name).join("tmp");
        assert_eq!(mode, "700");
        assert!(std::path::Path::new(file).starts_with(&folder), "{file}");
        assert!(!folder.exists(), "it is gone when the end is told");
    }
}

#[tokio::test]
async fn what_the_cloud_keeps_for_itself_is_not_even_in_the_agents_environment() {
    let folder = tempfile::tempdir().unwrap();
    let started = std::process::Command::new(program())
        .args([
            "start",
            "--machine",
            "tests/machine",
            "--hide",
            "OTHER_KEY,CLOUD_KEY",
            "--stop-command",
            "true",
            "--home",
        ])
        .arg(folder.path())
        .env("CLOUD_KEY", "canary")
        .env("CLOUD_ID", "kept")
        .output();
    assert!(started.unwrap().status.success());
    let home = folder.path().to_string_lossy();
    let environments = || -> Vec<String> {
        processes_with(&home)
            .iter()
            .filter_map(|pid| std::fs::read(format!("/proc/{pid}/environ")).ok())
            .map(|environment| String::from_utf8_lossy(&environment).into_owned())
            .collect()
    };
    // What they start has their arguments for an instant.
    until("the supervisor and the daemon are alone", || {
        environments().len() == 2
    })
    .await;
    let environments = environments();
    for pid in processes_with(&home) {
        let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
    }
    for environment in environments {
        assert!(environment.contains("CLOUD_ID=kept"), "{environment}");
        assert!(!environment.contains("CLOUD_KEY"), "{environment}");
    }
}

/// The loader of a program that has the debugging variables of the C library writes a file, as the
/// user who runs the program: what another one preloads would have run as that user.
#[tokio::test]
async fn no_variable_of_a_task_reaches_a_program_that_runs_as_root() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let mut machine = Machine::start_with(&["--user", "nobody"]).await;
    let left = tempfile::tempdir().unwrap();
    std::fs::set_permissions(left.path(), PermissionsExt::from_mode(0o1777)).unwrap();
    let env = [
        ("LD_DEBUG".to_owned(), "libs".to_owned()),
        (
            "LD_DEBUG_OUTPUT".to_owned(),
            left.path().join("by").display().to_string(),
        ),
        ("TOKEN".to_owned(), "a value of theirs".to_owned()),
    ];
    // A directory that the Task names is entered by the helper.
    let spec = RunSpec {
        env: env.into(),
        working_dir: "/".into(),
        ..command("r", &["sh", "-c", "echo $TOKEN"])
    };
    let finished = machine.run(spec).await;
    assert_eq!(
        log::decode(&finished.log, None),
        b"a value of theirs\n",
        "{}",
        finished.message
    );
    let files = std::fs::read_dir(left.path()).unwrap();
    let users: Vec<u32> = files
        .map(|file| std::os::unix::fs::MetadataExt::uid(&file.unwrap().metadata().unwrap()))
        .collect();
    assert!(
        !users.is_empty() && users.iter().all(|user| *user == 65534),
        "{users:?}"
    );
}

#[tokio::test]
async fn no_descriptor_of_the_agent_reaches_the_work() {
    let mut machine = Machine::start().await;
    let finished = machine
        .run(command("r", &["bash", "-c", "readlink /proc/$$/fd/*; ulimit -c"]))
        .await;
    let output = String::from_utf8(log::decode(&finished.log, None)).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(
        (lines.len(), lines[0], lines[3]),
        (4, "/dev/null", "0"),
        "{output}"
    );
    assert!(
        lines[1].starts_with("pipe:") && lines[2].starts_with("pipe:"),
        "{output}"
    );
}

#[tokio::test]
async fn work_of_another_user_has_a_directory_of_its_own_and_no_way_to_the_agent() {
    if !nix::unistd::Uid::effective().is_root() {
        return;
    }
    let mut machine = Machine::start_with(&["--user", "nobody"]).await;
    let home = machine.home().display().to_string();
    let script = format!(
        "id -un; pwd; touch mine && echo wrote; kill -9 $PPID 2>/dev/null || echo 'may not kill'; ls {home}/journal 2>/dev/null || echo 'may not read'; ulimit -u"
    );
    let finished = machine.run(bash("r", &script)).await;
    assert_eq!(finished.ending(), Ending::Exited, "{}", finished.message);
    let output = String::from_utf8(log::decode(&finished.log, None)).unwrap();
    let lines: Vec<&str> = output.lines().collect();
    let work = machine.run_folder("r").join("work");
    assert_eq!(
        lines[..5],
        [
            "nobody",
            work.to_str().unwrap(),
            "wrote",
            "may not kill",
            "may not read"
        ]
    );
    assert_ne!(lines[5], "unlimited");
    let info = r#"{"node": 1, "total_nodes": 2}"#.to_owned();
    let source = "import os, skyward\ndef main(): return [os.getuid(), skyward.instance_info().node]";
    let finished = machine
        .run(RunSpec {
            instance_info: info,
            ..function("f", source, "[]")
        })
        .await;
    assert_eq!(finished.result, b"[65534,1]", "{}", finished.message);
    assert_eq!(
        std::fs::metadata(work).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!(
        std::fs::metadata(machine.home().join("agent.sock"))
            .unwrap()
            .permissions()
            .mode()
            & 0o777,
        0o600
    );
}

#[tokio::test]
async fn no_signal_is_blocked_or_ignored_in_the_work_whichever_way_it_starts() {
    let mut machine = Machine::start().await;
    let show = ["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"];
    let direct = machine.run(command("direct", &show)).await;
    // A directory that the Task names is entered by the helper.
    let helped = RunSpec {
        working_dir: "/".into(),
        ..command("helped", &show)
    };
    let helped = machine.run(helped).await;
    for finished in [direct, helped] {
        let output = String::from_utf8(log::decode(&finished.log, None)).unwrap();
        let masks = output.lines().map(|line| line.split_once('\t').unwrap().1);
        // Signals above 31 belong to the C library.
        let masks: Vec<u64> = masks
            .map(|mask| u64::from_str_radix(mask, 16).unwrap() & 0x7fff_ffff)
            .collect();
        assert_eq!(masks, [0, 0], "{output}");
    }
}
