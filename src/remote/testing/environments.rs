//! Another environment for the runs of a machine whose agent is held.

use std::{collections::BTreeMap, fs, sync::atomic::Ordering, time::Duration};

use super::{
    fake::{FakeAgent, Server},
    is_ready, sessions, spec,
    sshd::Sshd,
    wait,
};
use crate::{SessionSpec, sessions::SessionState};

/// A machine with the environment `name`, where a snippet finds the value of a variable.
fn with(spec: &SessionSpec, name: &str, snippet: &str) -> SessionSpec {
    let mut spec = spec.clone();
    spec.bootstrap.environment = name.into();
    spec.bootstrap.shell_vars = [("A".to_owned(), snippet.to_owned())].into();
    spec
}

/// The same machine, connected as it is.
fn kept(spec: &SessionSpec) -> SessionSpec {
    let mut spec = spec.clone();
    spec.bootstrap = spec.bootstrap.as_it_is();
    spec
}

/// The environment that runs find, and its variable.
fn found(sshd: &Sshd) -> (String, String) {
    let link = fs::read_link(sshd.path("agent/venv")).unwrap();
    let variables: BTreeMap<String, String> = serde_json::from_str(&sshd.read("env.json")).unwrap();
    (link.display().to_string(), variables["A"].clone())
}

fn is_in_use(state: &SessionState, name: &str) -> bool {
    assert!(
        is_ready(state) || state.ready_at.is_none(),
        "its agent is held: {state:?}"
    );
    is_ready(state) && state.environment.in_use.as_deref() == Some(name)
}

#[tokio::test]
async fn a_held_machine_changes_its_environment_over_the_connection_that_there_is_and_goes_back() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let plain = spec(&sshd, "m");
    let (sessions, _changed) = sessions(&fake);
    sessions.ensure(with(&plain, "a", "echo 1"));
    wait(&sessions, &plain.machine, |state| is_in_use(state, "a")).await;
    assert_eq!(found(&sshd), ("envs/a".to_owned(), "1".to_owned()));
    sessions.ensure(kept(&plain));
    wait(&sessions, &plain.machine, |state| is_in_use(state, "a")).await;
    for (name, value) in [("b", "2"), ("a", "1")] {
        sessions.ensure(with(&plain, name, &format!("echo {value}")));
        wait(&sessions, &plain.machine, |state| is_in_use(state, name)).await;
        assert_eq!(found(&sshd), (format!("envs/{name}"), value.to_owned()));
        sessions.ensure(kept(&plain));
        wait(&sessions, &plain.machine, |state| is_in_use(state, name)).await;
    }
    assert_eq!(
        sshd.read("started").lines().count(),
        1,
        "its agent was started once"
    );
    sessions.shutdown().await;
}

#[tokio::test]
async fn a_step_that_fails_leaves_the_environment_in_use_as_it_was_and_the_agent_is_held() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let plain = spec(&sshd, "m");
    let (sessions, _changed) = sessions(&fake);
    sessions.ensure(with(&plain, "a", "echo 1"));
    wait(&sessions, &plain.machine, |state| is_in_use(state, "a")).await;
    sessions.ensure(with(&plain, "b", "echo broken >&2; exit 4"));
    let state = wait(&sessions, &plain.machine, |state| {
        is_in_use(state, "a") && state.environment.failed.is_some()
    })
    .await;
    let (name, failure) = state.environment.failed.unwrap();
    assert_eq!(
        (name.as_str(), failure.step.as_deref()),
        ("b", Some("shell_vars"))
    );
    assert!(failure.message.contains("broken"), "{}", failure.message);
    let text = sessions.transcript(&plain.machine).unwrap().text();
    assert!(text.contains("shell_vars ---\nbroken\n"), "{text}");
    assert_eq!(found(&sshd), ("envs/a".to_owned(), "1".to_owned()));
    // The failure is forgotten when it is connected as it is, and the same is tried again when it is asked for again.
    sessions.ensure(kept(&plain));
    wait(&sessions, &plain.machine, |state| {
        is_in_use(state, "a") && state.environment.failed.is_none()
    })
    .await;
    sessions.ensure(with(&plain, "b", "echo 2"));
    wait(&sessions, &plain.machine, |state| is_in_use(state, "b")).await;
    assert_eq!(found(&sshd), ("envs/b".to_owned(), "2".to_owned()));
    assert!(server.leases.load(Ordering::Relaxed) > 0);
    sessions.shutdown().await;
}

/// The change is given up and reported: else the machine would begin it again and again and take no runs.
#[tokio::test]
async fn a_change_fails_also_where_its_folder_cannot_be_made_or_the_time_for_all_steps_is_over() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let plain = spec(&sshd, "m");
    let (sessions, _changed) = sessions(&fake);
    sessions.ensure(with(&plain, "a", "echo 1"));
    wait(&sessions, &plain.machine, |state| is_in_use(state, "a")).await;
    // A file stands for a disk without room for another folder.
    fs::write(sshd.path("agent/envs/b"), "").unwrap();
    let mut slow = with(&plain, "c", "sleep 60");
    slow.bootstrap.total_timeout = Duration::from_secs(1);
    for (changed, said) in [
        (with(&plain, "b", "echo 2"), "cannot be made"),
        (slow, "did not end within"),
    ] {
        let name = changed.bootstrap.environment.clone();
        sessions.ensure(changed);
        let state = wait(&sessions, &plain.machine, |state| {
            let failed = state.environment.failed.as_ref();
            is_in_use(state, "a") && failed.is_some_and(|(hash, _)| *hash == name)
        })
        .await;
        let (_, failure) = state.environment.failed.unwrap();
        assert!(failure.message.contains(said), "{}", failure.message);
        assert_eq!(found(&sshd), ("envs/a".to_owned(), "1".to_owned()));
    }
    sessions.shutdown().await;
}

/// As after a crash in the middle: another controller finds what is done, and does the rest.
#[tokio::test]
async fn a_change_that_another_controller_began_is_ended_and_its_finished_steps_are_not_done_again() {
    let (sshd, fake) = (Sshd::start(), FakeAgent::new());
    let _server = Server::start(&sshd.agent_home(), "tests/m", &fake.digest(), 0);
    let plain = spec(&sshd, "m");
    let (first, _changed) = sessions(&fake);
    first.ensure(with(&plain, "a", "echo 1"));
    let state = wait(&first, &plain.machine, |state| is_in_use(state, "a")).await;
    let done = sshd.path("done");
    let snippet = format!("echo x >>{}; echo 2", done.display());
    let mut changed = with(&plain, "b", &snippet);
    first.ensure(changed.clone());
    wait(&first, &plain.machine, |state| is_in_use(state, "b")).await;
    first.shutdown().await;
    // The last rename is lost.
    fs::remove_file(sshd.path("agent/venv")).unwrap();
    std::os::unix::fs::symlink("envs/a", sshd.path("agent/venv")).unwrap();
    fs::create_dir_all(sshd.path("agent/envs/a/.skyward")).unwrap();
    changed.ready_at = state.ready_at;
    let (second, _changed) = sessions(&fake);
    second.ensure(changed);
    wait(&second, &plain.machine, |state| {
        is_ready(state) && state.environment.in_use.as_deref() == Some("b")
    })
    .await;
    assert_eq!(found(&sshd), ("envs/b".to_owned(), "2".to_owned()));
    assert_eq!(fs::read_to_string(done).unwrap(), "x\n");
    second.shutdown().await;
}
