//! One connection: login, host keys, commands, streams.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::{echo, sshd::Sshd, until};
use crate::{
    key,
    ssh::{ConnectError, Connection, ExecError, Exit, Output},
};

const LIMIT: Duration = Duration::from_mins(3);

async fn exec(connection: &Connection, command: &str, input: &str) -> (Exit, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let sort = |source, bytes: &[u8]| match source {
        Output::Out => out.extend_from_slice(bytes),
        Output::Err => err.extend_from_slice(bytes),
    };
    let exit = connection
        .exec(command, Bytes::from(input.to_owned()), LIMIT, sort)
        .await
        .unwrap();
    (
        exit,
        String::from_utf8(out).unwrap(),
        String::from_utf8(err).unwrap(),
    )
}

#[tokio::test]
async fn the_right_key_logs_in_and_commands_have_input_output_and_status() {
    let sshd = Sshd::start();
    let connection = sshd.login().await;
    let result = exec(&connection, "cat; echo problem >&2; exit 3", "hello").await;
    assert_eq!(result, (Exit::Status(3), "hello".into(), "problem\n".into()));
    assert_eq!(
        exec(&connection, "kill -KILL $$", "").await.0,
        Exit::Signal("KILL".into())
    );
    // Nobody reads this input.
    assert_eq!(
        exec(&connection, "exit 0", &"x".repeat(40 << 20)).await.0,
        Exit::Status(0)
    );
}

#[tokio::test]
async fn a_wrong_key_is_refused() {
    let sshd = Sshd::start();
    let (other, _) = key::generate_keypair("other").unwrap();
    let error = sshd.connect(&other, None).await.err().unwrap();
    let ConnectError::AuthRefused { user, methods, tried } = error else {
        panic!("{error:?}")
    };
    assert_eq!((user, methods), (sshd.user.clone(), "publickey".to_owned()));
    assert_eq!(tried, "the Pool's key");
}

#[tokio::test]
async fn a_host_key_is_learnt_and_a_changed_one_refused() {
    let mut sshd = Sshd::start();
    let learnt = sshd.login().await.host_key().to_owned();
    let file = std::fs::read_to_string(sshd.path("host_key.pub")).unwrap();
    assert!(file.starts_with(&learnt), "{file} {learnt}");
    // Pinned as in a file, with a comment.
    assert!(sshd.connect(&sshd.private_key, Some(&file)).await.is_ok());

    sshd.kill();
    sshd.new_host_key("ed25519");
    sshd.run();
    let error = sshd
        .connect(&sshd.private_key, Some(&learnt))
        .await
        .err()
        .unwrap();
    let ConnectError::HostKeyChanged { expected, found } = error else {
        panic!("{error:?}")
    };
    assert_eq!(expected, key::fingerprint(&learnt).unwrap());
    let new = std::fs::read_to_string(sshd.path("host_key.pub")).unwrap();
    assert_eq!(found, key::fingerprint(&new).unwrap());
}

#[tokio::test]
async fn a_server_with_only_an_rsa_key_is_told_what_it_lacks() {
    let mut sshd = Sshd::prepared("rsa", "");
    sshd.run();
    let error = sshd.connect(&sshd.private_key, None).await.err().unwrap();
    let ConnectError::Unsupported(message) = error else {
        panic!("{error:?}")
    };
    assert!(
        message.contains("no ed25519 host key") && message.contains("ssh-keygen -A"),
        "{message}"
    );
}

#[tokio::test]
async fn a_command_that_leaves_something_running_has_ended() {
    let sshd = Sshd::start();
    let connection = sshd.login().await;
    let started = Instant::now();
    let (exit, out, _) = exec(&connection, "sleep 300 & echo $!", "").await;
    assert_eq!(exit, Exit::Status(0));
    assert!(started.elapsed() < Duration::from_mins(1));
    exec(&connection, &format!("kill {out}"), "").await;
}

#[tokio::test]
async fn a_command_has_a_deadline_and_the_connection_goes_on() {
    let sshd = Sshd::start();
    let connection = sshd.login().await;
    let limit = Duration::from_millis(200);
    let result = connection
        .exec("exec sleep 3", Bytes::new(), limit, |_, _| {})
        .await;
    assert_eq!(result, Err(ExecError::TimedOut(limit)));
    assert_eq!(exec(&connection, "echo on", "").await.1, "on\n");
}

#[tokio::test]
async fn a_killed_server_is_a_lost_connection() {
    let mut sshd = Sshd::start();
    let connection = sshd.login().await;
    let (result, ()) = tokio::join!(
        connection.exec("exec sleep 30", Bytes::new(), LIMIT, |_, _| {}),
        async {
            until("the command runs", || sshd.connections() == 1).await;
            sshd.kill();
        }
    );
    assert!(matches!(result, Err(ExecError::Lost(_))), "{result:?}");
    assert!(!connection.lost().await.is_empty());
}

#[tokio::test]
async fn closing_and_dropping_end_the_connection_at_the_server() {
    let sshd = Sshd::start();
    let connection = sshd.login().await;
    connection.close().await;
    until("the server ended the closed connection", || {
        sshd.connections() == 0
    })
    .await;

    let connection = sshd.login().await;
    // A stream that is still held does not keep the connection.
    let (_stream, _) = connection.socket("/nowhere", "exec cat").await.unwrap();
    drop(connection);
    until("the server ended the dropped connection", || {
        sshd.connections() == 0
    })
    .await;
}

/// An echo server at a Unix socket.
fn echo_server(path: std::path::PathBuf) {
    let listener = tokio::net::UnixListener::bind(path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = stream.into_split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            });
        }
    });
}

#[tokio::test]
async fn a_unix_socket_is_reached_directly() {
    let sshd = Sshd::start();
    echo_server(sshd.path("socket"));
    let connection = sshd.login().await;
    let (stream, bridged) = connection
        .socket(sshd.path("socket").to_str().unwrap(), "exec false")
        .await
        .unwrap();
    assert!(!bridged);
    assert_eq!(echo(stream, b"through the socket").await, b"through the socket");
}

#[tokio::test]
async fn a_server_that_forwards_no_sockets_is_bridged() {
    let sshd = Sshd::with("AllowStreamLocalForwarding no");
    echo_server(sshd.path("socket"));
    let connection = sshd.login().await;
    let (stream, bridged) = connection
        .socket(sshd.path("socket").to_str().unwrap(), "exec cat")
        .await
        .unwrap();
    assert!(bridged);
    assert_eq!(echo(stream, b"through the bridge").await, b"through the bridge");
}

/// A helper that is easy to get wrong: prints rates, fails only when far too slow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bytes_go_both_ways_at_a_useful_rate() {
    const SIZE: usize = 128 << 20;
    let sshd = Sshd::start();
    let connection = sshd.login().await;
    let rate = |started: Instant| SIZE as f64 / 1e6 / started.elapsed().as_secs_f64();

    let started = Instant::now();
    let mut count = 0;
    let exit = connection
        .exec(
            &format!("head -c {SIZE} /dev/zero"),
            Bytes::new(),
            LIMIT,
            |_, b| count += b.len(),
        )
        .await;
    assert_eq!((exit.unwrap(), count), (Exit::Status(0), SIZE));
    let down = rate(started);

    let started = Instant::now();
    let exit = connection
        .exec("wc -c >&2", Bytes::from(vec![0; SIZE]), LIMIT, |_, _| {})
        .await;
    assert_eq!(exit.unwrap(), Exit::Status(0));
    println!(
        "SSH over loopback: {down:.0} MB/s from the machine, {:.0} MB/s to it",
        rate(started)
    );
}
