//! What the scripts of the steps hold, and what they do with the words of users.

#[cfg(unix)]
mod certificates;
mod environments;

use super::*;
use crate::bootstrap::PipIndex;

fn facts() -> Facts {
    Facts {
        home: "/opt/skyward".into(),
        root: true,
        user: "root".into(),
        ..Facts::default()
    }
}

/// A script that finds or installs uv, and says where it is.
#[cfg(target_os = "linux")]
fn finds_uv(home: &std::path::Path) -> String {
    Script::default()
        .set("home", &home.display().to_string())
        .set("env", "nowhere")
        .set("link_mode", "copy")
        .then(UV)
        .then("\necho \"$skyward_uv\"")
        .text("x")
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

    let text = finds_uv(home.path());
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

/// Finds or installs uv in this home, on a machine that has Python alone, from this index.
#[cfg(target_os = "linux")]
fn find_uv(home: &std::path::Path, index: &str) -> std::process::Output {
    use std::{fs, os::unix::fs::PermissionsExt, process};

    for folder in ["bootstrap", "bin"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    // There may be a uv beside the interpreter of this machine.
    let found = process::Command::new("python3")
        .args(["-c", "import sys; print(sys.executable)"])
        .output()
        .unwrap();
    let found = String::from_utf8(found.stdout).unwrap();
    let program = |name: &str, line: &str| {
        let path = home.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{line}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("python3", &format!("exec {} \"$@\"", found.trim()));
    // Hides one that this machine has.
    program("uv", "exit 1");
    process::Command::new("sh")
        .args(["-c", &finds_uv(home)])
        .env("PATH", format!("{}:/usr/bin:/bin", home.join("bin").display()))
        .env("HOME", home)
        .env("PIP_INDEX_URL", index)
        .env("no_proxy", "localhost")
        .output()
        .unwrap()
}

/// A new environment with a pip of its own takes twice as long.
#[cfg(target_os = "linux")]
#[test]
fn uv_comes_from_the_users_index_without_a_pip_that_nobody_needs() {
    let index = crate::testing::packages::Index::public();
    index.has_program("uv", "#!/bin/sh\necho uv 1.0\n");
    let home = tempfile::tempdir().unwrap();
    let output = find_uv(home.path(), &index.simple());
    let said = String::from_utf8_lossy(&output.stdout);
    let uv = home.path().join("uv/bin/uv").display().to_string();
    assert_eq!(said.lines().last(), Some(uv.as_str()), "{output:?}");
    assert!(!home.path().join("uv/bin/pip").exists());
}

#[cfg(target_os = "linux")]
#[test]
fn an_index_without_uv_is_told_by_pip_itself_and_asked_once() {
    let index = crate::testing::packages::Index::public();
    let home = tempfile::tempdir().unwrap();
    let output = find_uv(home.path(), &index.simple());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert_eq!(
        said.matches("No matching distribution found for uv").count(),
        1,
        "{said}"
    );
    assert!(
        said.contains("uv could not be installed") && !said.contains("Traceback"),
        "{said}"
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
        compressed: None,
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
        include_str!("../scripts/common.sh"),
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
    for (compressed, gzip, file, unpack) in [
        (None, true, "x", "cat"),
        (Some("x.gz"), true, "x.gz", "'gzip -dc'"),
        (Some("x.gz"), false, "x", "cat"),
    ] {
        let binary = Binary {
            path: "x".into(),
            digest: "a".repeat(64),
            size: 1,
            compressed: compressed.map(Into::into),
        };
        let facts = Facts {
            home: "/home/it's me/.skyward".into(),
            gzip,
            ..facts()
        };
        let (sent, command) = upload(&facts, &binary);
        assert_eq!(sent.to_str(), Some(file));
        assert!(!command.contains('\n'));
        assert!(!command.contains('!') || !command.contains("!'"));
        assert!(command.ends_with(&format!(
            "sh '/home/it'\\''s me/.skyward' skyward-agent-aaaaaaaaaaaa {} {unpack}",
            "a".repeat(64)
        )));
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
        compressed: None,
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
