//! The state of a machine after bootstrap.

use std::{collections::BTreeMap, fs, os::unix::fs::MetadataExt as _};

use skyward_core::Secret;

use super::{
    fake::{FakeAgent, Server},
    is_failed, is_ready, sessions, spec,
    sshd::Sshd,
    wait,
};
use crate::{
    SessionSpec,
    sessions::{FailureKind, SessionFailure, Stage},
};

/// Brings a machine to Ready with a controller of its own.
pub(super) async fn bootstrap(fake: &FakeAgent, spec: &SessionSpec) {
    let (sessions, _changed) = sessions(fake);
    sessions.ensure(spec.clone());
    wait(&sessions, &spec.machine, |state| {
        assert!(!is_failed(state), "{state:?}");
        is_ready(state)
    })
    .await;
    sessions.shutdown().await;
}

/// Why it does not become Ready.
pub(super) async fn failure(fake: &FakeAgent, spec: &SessionSpec) -> SessionFailure {
    let (sessions, _changed) = sessions(fake);
    sessions.ensure(spec.clone());
    let state = wait(&sessions, &spec.machine, is_failed).await;
    sessions.shutdown().await;
    match state.stage {
        Stage::Failed(failure) => failure,
        other => panic!("{other:?}"),
    }
}

pub(super) fn environment(sshd: &Sshd) -> BTreeMap<String, String> {
    serde_json::from_str(&sshd.read("env.json")).unwrap()
}

#[tokio::test]
async fn the_machine_has_our_key_alone_the_agent_and_an_environment() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let ssh = sshd.path("home/.ssh");
    fs::create_dir(&ssh).unwrap();
    fs::write(
        ssh.join("authorized_keys"),
        "ssh-ed25519 AAAA another key of the account\n",
    )
    .unwrap();
    fs::write(ssh.join("authorized_keys2"), "ssh-ed25519 AAAA and one more\n").unwrap();

    let mut spec = spec(&sshd, "m");
    spec.bootstrap.worker_user = Some("root".into());
    spec.bootstrap.stop_command = Some("echo it's over".into());
    bootstrap(&fake, &spec).await;

    assert_eq!(
        fs::read_to_string(ssh.join("authorized_keys")).unwrap(),
        format!("{}\n", sshd.public_key)
    );
    assert_eq!(
        fs::metadata(ssh.join("authorized_keys")).unwrap().mode() & 0o777,
        0o600
    );
    assert!(!ssh.join("authorized_keys2").exists());
    let agent = sshd
        .path("agent/bin")
        .join(format!("skyward-agent-{}", &fake.digest()[..12]));
    assert_eq!(fs::metadata(&agent).unwrap().mode() & 0o777, 0o755);
    assert_eq!(
        fs::read_dir(sshd.path("agent/bin")).unwrap().count(),
        1,
        "no half-written files"
    );
    assert_eq!(sshd.read("env.json"), "{}");
    assert_eq!(
        fs::metadata(sshd.path("agent/env.json")).unwrap().mode() & 0o777,
        0o600
    );
    let user = if sshd.user == "root" { "root" } else { &sshd.user };
    assert_eq!(
        sshd.read("started").trim(),
        format!(
            "start --home {} --machine tests/m --user {user} --stop-command echo it's over",
            sshd.agent_home()
        )
    );

    // A second controller finds everything done: nothing is uploaded or started again.
    let inode = |path: &std::path::Path| fs::metadata(path).unwrap().ino();
    let before = (
        inode(&agent),
        inode(&ssh.join("authorized_keys")),
        inode(&sshd.path("agent/env.json")),
    );
    bootstrap(&fake, &spec).await;
    assert_eq!(
        before,
        (
            inode(&agent),
            inode(&ssh.join("authorized_keys")),
            inode(&sshd.path("agent/env.json"))
        )
    );
    assert_eq!(sshd.read("started").lines().count(), 1);

    // A damaged agent is replaced.
    fs::write(&agent, "damaged").unwrap();
    bootstrap(&fake, &spec).await;
    assert_ne!(fs::read_to_string(&agent).unwrap(), "damaged");
}

#[tokio::test]
async fn an_agent_that_is_sent_compressed_arrives_whole_and_what_cannot_be_unpacked_is_told() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let compressed = fake.compress();
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let spec = spec(&sshd, "m");
    bootstrap(&fake, &spec).await;
    let agent = sshd
        .path("agent/bin")
        .join(format!("skyward-agent-{}", &fake.digest()[..12]));
    let digest = |path: &std::path::Path| crate::binaries::Binary::new(path).unwrap().digest;
    assert_eq!(digest(&agent), fake.digest());

    fs::write(&agent, "damaged").unwrap();
    fs::write(&compressed, "not compressed").unwrap();
    let failure = failure(&fake, &spec).await;
    assert_eq!(
        (failure.kind, failure.step.as_deref()),
        (FailureKind::StepFailed, Some("agent"))
    );
    assert!(failure.message.contains("gzip"), "{}", failure.message);
    assert_eq!(fs::read_dir(sshd.path("agent/bin")).unwrap().count(), 1);
}

#[tokio::test]
async fn what_the_cloud_keeps_for_itself_is_out_of_login_files_and_hidden_from_the_agent() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let file = sshd.path("home/.bashrc");
    let lines =
        "A=SKYWARD_TEST_KEY=1\n  export SKYWARD_TEST_KEY='canary'\nSKYWARD_TEST_KEY=canary\n# the end\n";
    fs::write(&file, lines).unwrap();
    let mut spec = spec(&sshd, "m");
    spec.bootstrap.hidden_environment = ["SKYWARD_TEST_KEY", "no|name", "SKYWARD_TEST_TOKEN"]
        .map(String::from)
        .to_vec();
    spec.bootstrap.reclaim_command = Some("echo \"it's\" over".into());
    bootstrap(&fake, &spec).await;
    assert_eq!(
        fs::read_to_string(file).unwrap(),
        "A=SKYWARD_TEST_KEY=1\n# the end\n"
    );
    let started = sshd.read("started");
    let end = "--reclaim-command echo \"it's\" over --hide SKYWARD_TEST_KEY,SKYWARD_TEST_TOKEN";
    assert!(started.trim().ends_with(end), "{started}");
}

#[tokio::test]
async fn an_agent_of_another_digest_is_told_to_start_anew() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", "older", 0);
    let spec = spec(&sshd, "m");
    bootstrap(&fake, &spec).await;
    bootstrap(&fake, &spec).await;
    assert_eq!(sshd.read("started").lines().count(), 2);
}

#[tokio::test]
async fn shell_variables_and_certificates_reach_every_run() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let mut spec = spec(&sshd, "m");
    let captured = sshd.path("captured");
    spec.bootstrap
        .env_for_steps
        .insert("GREETING".into(), "it's \"me\"\n$HOME".into());
    spec.bootstrap.ca_bundle = Some("-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----".into());
    spec.bootstrap.shell_vars = BTreeMap::from([
        ("PLAIN".to_owned(), "echo 1; cat".to_owned()),
        (
            "FROM_ENV".to_owned(),
            format!("echo x >> {}; printf '%s' \"$GREETING\"", captured.display()),
        ),
        ("CERTIFICATES".to_owned(), "echo $SSL_CERT_FILE".to_owned()),
        ("NOT UTF 8".to_owned(), "echo no".to_owned()),
        ("ODD".to_owned(), "printf 'a\\377b'; echo noise >&2".to_owned()),
    ]);
    bootstrap(&fake, &spec).await;
    let bundle = format!("{}/envs/default/certificates/bundle.crt", sshd.agent_home());
    let expected = [
        ("PLAIN", "1"),
        ("FROM_ENV", "it's \"me\"\n$HOME"),
        ("CERTIFICATES", &bundle),
        ("ODD", "a\u{fffd}b"),
        ("SSL_CERT_FILE", &bundle),
        ("PIP_CERT", &bundle),
        ("REQUESTS_CA_BUNDLE", &bundle),
        ("CURL_CA_BUNDLE", &bundle),
    ];
    let expected: BTreeMap<String, String> = expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    assert_eq!(environment(&sshd), expected);
    let installed = fs::read_to_string(&bundle).unwrap();
    assert!(
        installed.contains("\nabc\n") && installed.len() > 100,
        "with the machine's own"
    );

    // Another controller takes the captured values.
    bootstrap(&fake, &spec).await;
    assert_eq!(environment(&sshd), expected);
    assert_eq!(fs::read_to_string(&captured).unwrap(), "x\n");
    assert_eq!(sshd.read("started").lines().count(), 1);
    // Another snippet is another digest.
    spec.bootstrap.shell_vars.insert("PLAIN".into(), "echo 2".into());
    bootstrap(&fake, &spec).await;
    assert_eq!(environment(&sshd)["PLAIN"], "2");
    assert_eq!(
        sshd.read("started").lines().count(),
        2,
        "a changed environment reaches the agent"
    );
}

#[tokio::test]
async fn a_failed_step_says_which_and_what_it_said_last_without_secrets() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let mut spec = spec(&sshd, "m");
    spec.bootstrap
        .env_for_steps
        .insert("TOKEN".into(), "canary-in-a-secret".into());
    spec.bootstrap.masked = std::sync::Arc::new(vec![Secret::new("canary-in-a-secret")]);
    let snippet =
        "seq 2000; echo the token is $TOKEN >&2; echo at https://me:hunter2@index.example/x; exit 4";
    // Standard error is output; standard output is the value.
    spec.bootstrap
        .shell_vars
        .insert("A".into(), format!("{{ {snippet}; }} >&2"));
    let failure = failure(&fake, &spec).await;
    assert_eq!(
        (failure.kind, failure.step.as_deref()),
        (FailureKind::StepFailed, Some("shell_vars"))
    );
    let diagnosis = failure.diagnosis.unwrap();
    assert_eq!(diagnosis.ended, "failed (exit code 1)");
    assert_eq!(
        diagnosis.line,
        "the snippet for variable \"A\" failed with exit code 4"
    );
    let message = failure.message;
    assert!(message.starts_with("failed (exit code 1): "), "{message}");
    assert!(message.ends_with("the token is ***\nat https://***@index.example/x\nthe snippet for variable \"A\" failed with exit code 4"), "{message}");
    assert!(message.len() < 2200 && message.contains("2000") && !message.contains("\n100\n"));
    assert!(!format!("{:?}", spec.bootstrap).contains("canary"));
}

#[tokio::test]
async fn all_that_the_steps_printed_can_be_read_while_they_run_and_after_they_failed_without_secrets() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let mut spec = spec(&sshd, "m");
    spec.bootstrap
        .env_for_steps
        .insert("TOKEN".into(), "canary-in-a-secret".into());
    spec.bootstrap.masked = std::sync::Arc::new(vec![Secret::new("canary-in-a-secret")]);
    let go = sshd.path("go");
    let snippet = format!(
        "seq 2000; echo the token is $TOKEN; while ! [ -e {} ]; do sleep 0.05; done; exit 4",
        go.display()
    );
    spec.bootstrap
        .shell_vars
        .insert("A".into(), format!("{{ {snippet}; }} >&2"));
    let (sessions, _changed) = sessions(&fake);
    sessions.ensure(spec.clone());
    let text = || {
        sessions
            .transcript(&spec.machine)
            .map(|transcript| transcript.text())
    };
    super::until("what the snippet printed is there", || {
        text().is_some_and(|text| text.contains("the token is ***\n"))
    })
    .await;
    fs::write(go, "").unwrap();
    wait(&sessions, &spec.machine, is_failed).await;
    let text = text().unwrap();
    assert!(
        text.contains("probe ---\n") && text.contains("shell_vars ---\n1\n2\n"),
        "{text}"
    );
    assert!(
        text.ends_with("2000\nthe token is ***\nthe snippet for variable \"A\" failed with exit code 4\n")
    );
    assert!(!text.contains("canary"));
    sessions.remove(&spec.machine);
    assert!(sessions.transcript(&spec.machine).is_none());
    sessions.shutdown().await;
}

#[tokio::test]
async fn a_step_that_hangs_is_ended_on_the_machine_too() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let mut spec = spec(&sshd, "m");
    // The steps before it have the same limit.
    spec.bootstrap.step_timeout = std::time::Duration::from_secs(5);
    let pid = sshd.path("pid");
    spec.bootstrap.shell_vars.insert(
        "A".into(),
        format!("echo $$ > {}; sleep 100; echo no", pid.display()),
    );
    let failure = failure(&fake, &spec).await;
    assert_eq!(
        (failure.kind, failure.step.as_deref()),
        (FailureKind::StepTimedOut, Some("shell_vars"))
    );
    let pid = fs::read_to_string(pid).unwrap();
    super::until("the snippet is gone", || {
        !fs::exists(format!("/proc/{}", pid.trim())).unwrap()
    })
    .await;
}

#[tokio::test]
async fn what_cannot_work_is_said_plainly() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let mut certificates = spec(&sshd, "m");
    certificates.bootstrap.ca_bundle = Some("nonsense".into());
    let said = failure(&fake, &certificates).await;
    assert_eq!(said.step.as_deref(), Some("certificates"));
    assert!(said.message.contains("no PEM certificate"), "{}", said.message);

    let mut home = spec(&sshd, "m");
    home.bootstrap.home = Some("/dev/null/skyward".into());
    let said = failure(&fake, &home).await;
    assert_eq!(said.step.as_deref(), Some("probe"));
    assert!(said.message.contains("cannot be made"), "{}", said.message);

    let other = SessionSpec {
        bootstrap: spec(&sshd, "m").bootstrap,
        ..spec(&sshd, "m")
    };
    let nothing = tempfile::tempdir().unwrap();
    fs::create_dir(nothing.path().join("riscv64")).unwrap();
    fs::create_dir(nothing.path().join("arm64")).unwrap();
    fs::write(nothing.path().join("arm64/skyward-agent"), "x").unwrap();
    if std::env::consts::ARCH == "x86_64" {
        let (sender, _receiver) = tokio::sync::mpsc::channel(8);
        let binaries = crate::AgentBinaries::from_directory(nothing.path()).unwrap();
        let sessions = crate::Sessions::new(binaries, None, sender);
        sessions.ensure(other.clone());
        let state = wait(&sessions, &other.machine, is_failed).await;
        let Stage::Failed(said) = state.stage else {
            unreachable!()
        };
        assert_eq!(said.kind, FailureKind::Unsupported);
        assert!(
            said.message.contains("x86_64") && said.message.contains("aarch64"),
            "{}",
            said.message
        );
        sessions.shutdown().await;
    }
}

#[tokio::test]
async fn installed_packages_need_no_apt_get() {
    if !fs::exists("/usr/bin/dpkg-query").unwrap() {
        eprintln!("skipped: this machine has no dpkg");
        return;
    }
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let mut spec = spec(&sshd, "m");
    spec.bootstrap.apt = vec!["dpkg".into(), "openssh-server".into()];
    bootstrap(&fake, &spec).await;
    assert_eq!(sshd.read("bootstrap/apt.done").trim().len(), 64);
}

/// Index of Python packages for tests that need one, for example the public one.
fn package_index() -> String {
    std::env::var("SKYWARD_TEST_INDEX").expect("SKYWARD_TEST_INDEX names an index of Python packages")
}

#[tokio::test]
#[ignore = "needs an index of Python packages in SKYWARD_TEST_INDEX"]
async fn python_packages_come_from_their_indexes_into_an_environment_that_runs_find() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let mut spec = spec(&sshd, "m");
    spec.bootstrap.step_timeout = std::time::Duration::from_mins(2);
    spec.bootstrap.total_timeout = std::time::Duration::from_mins(3);
    spec.bootstrap.pip = vec!["iniconfig".into(), "PluggY>=1".into()];
    spec.bootstrap.pip_indexes = vec![crate::bootstrap::PipIndex {
        url: package_index(),
        packages: vec!["pluggy".into()],
        credentials: None,
    }];
    spec.bootstrap.shell_vars = [(
        "FOUND".to_owned(),
        "python -c 'import iniconfig, pluggy; print(pluggy.__name__)'".to_owned(),
    )]
    .into();
    bootstrap(&fake, &spec).await;
    let environment = environment(&sshd);
    assert_eq!(environment["FOUND"], "pluggy");
    assert!(environment["PATH"].starts_with(&format!("{}/envs/default/bin:", sshd.agent_home())));
    let inode = || {
        fs::metadata(sshd.path("agent/envs/default/.skyward/packages.done"))
            .unwrap()
            .ino()
    };
    let before = inode();
    bootstrap(&fake, &spec).await;
    assert_eq!(inode(), before, "nothing is installed twice");

    spec.bootstrap.pip = vec!["skyward-no-such-package".into()];
    let failure = failure(&fake, &spec).await;
    assert_eq!(
        (failure.kind, failure.step.as_deref()),
        (FailureKind::StepFailed, Some("packages"))
    );
    assert!(
        failure.message.contains("skyward-no-such-package"),
        "{}",
        failure.message
    );
}

#[tokio::test]
#[ignore = "downloads a Python"]
async fn another_python_is_installed_beside_the_machines_own() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let mut spec = spec(&sshd, "m");
    spec.bootstrap.step_timeout = std::time::Duration::from_mins(2);
    spec.bootstrap.total_timeout = std::time::Duration::from_mins(3);
    spec.bootstrap.python = Some("3.13".into());
    spec.bootstrap.shell_vars = [("FOUND".to_owned(), "python3 --version".to_owned())].into();
    bootstrap(&fake, &spec).await;
    assert!(environment(&sshd)["FOUND"].starts_with("Python 3.13."));
}

#[tokio::test]
#[ignore = "installs a Debian package"]
async fn debian_packages_are_installed() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let mut spec = spec(&sshd, "m");
    spec.bootstrap.step_timeout = std::time::Duration::from_mins(2);
    spec.bootstrap.total_timeout = std::time::Duration::from_mins(3);
    spec.bootstrap.apt = vec!["hello".into()];
    bootstrap(&fake, &spec).await;
    assert!(fs::exists("/usr/bin/hello").unwrap());
    spec.bootstrap.apt = vec!["skyward-no-such-package".into()];
    let failure = failure(&fake, &spec).await;
    assert_eq!(
        (failure.kind, failure.step.as_deref()),
        (FailureKind::StepFailed, Some("apt"))
    );
    assert!(
        failure.message.contains("skyward-no-such-package"),
        "{}",
        failure.message
    );
}
