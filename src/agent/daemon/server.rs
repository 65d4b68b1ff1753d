//! The daemon itself: opens the home, takes up the runs, listens on the socket, and stops the
//! machine when its lease has run out.

use std::{
    fs::{self, File, Permissions, TryLockError},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use nix::{
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        signal::{Signal, kill},
    },
    unistd::{Pid, Uid},
};
use parking_lot::Mutex;
use tokio::{
    net::{UnixListener, UnixStream},
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;

use super::{
    bundles::{self, Bundles},
    files,
    git::Fetches,
    home::Home,
    items::Opened,
    lease::{self, Lease},
    ledger::Ledger,
    machine::{self, Probes},
    processes, python, reclaim,
    reserve::{RESERVE_BYTES, Reserve},
    runs::Runs,
    service::{Inner, Service},
};
use crate::protocol::{MAX_MESSAGE_BYTES, agent_server::AgentServer, items_server::ItemsServer};

/// Connections waiting to be served.
const BACKLOG: usize = 16;
/// How long the lock of a dead daemon may outlive it.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// A machine that did not stop is told again after this long.
const STOP_AGAIN: Duration = Duration::from_mins(1);

/// Options of the daemon.
#[derive(Clone, Debug)]
pub struct Options {
    /// The agent's folder.
    pub home: Home,
    /// The Machine's name, as `namespace/name`.
    pub machine: String,
    /// User of runs that name none; empty: the agent's own.
    pub user: String,
    /// User that fetches from git run as, where the agent is root.
    pub git_user: String,
    /// Shell command that stops the machine, instead of the usual way.
    pub stop_command: Option<String>,
    /// Shell command that prints when the cloud takes the machine back.
    pub reclaim_command: Option<String>,
}

/// Serves until SIGTERM.
pub(super) async fn serve(options: Options) -> anyhow::Result<()> {
    let Options {
        home,
        machine,
        user,
        git_user,
        stop_command,
        reclaim_command,
    } = options;
    make_home(&home).with_context(|| format!("cannot prepare {}", home.path().display()))?;
    let _lock = lock(&home).await?;
    raise_file_limit();
    python::install(&home).context("cannot write the Python package")?;
    let boot_id = machine::boot_id().context("cannot read the boot id")?;
    let reserve = Reserve::new(home.reserve(), RESERVE_BYTES);
    let (ledger, writer) =
        Ledger::open(&home.journal(), reserve, &boot_id).context("cannot open the journal")?;
    let shutdown = CancellationToken::new();
    let runs = Runs::new(
        home.clone(),
        ledger.clone(),
        boot_id.clone(),
        user,
        shutdown.child_token(),
    )?;
    runs.recover();

    let (notice, reclaim) = watch::channel(None);
    let asking = reclaim_command.map(|command| tokio::spawn(reclaim::watch(command, notice)));
    let began = Instant::now();
    let service = Service(Arc::new(Inner {
        machine,
        boot_id,
        digest: machine::digest().context("cannot read our own executable")?,
        ledger,
        bundles: Bundles::open(home.bundles(), bundles::MOST).context("cannot open the folder of bundles")?,
        fetches: Fetches::open(&home, &runs, git_user).context("cannot open the folder of fetches")?,
        runs: runs.clone(),
        items: Opened::default(),
        probes: Probes::default(),
        lease: Mutex::new(Lease::begin(lease::load(&home.lease()), began.elapsed())),
        reclaim,
        began,
        shutdown: shutdown.child_token(),
        home: home.clone(),
    }));
    let listener = listen(&home)?;
    tracing::info!(
        socket = %home.socket().display(),
        digest = &service.0.digest[..12],
        runs = service.0.ledger.counts().running,
        "the agent is ready"
    );

    let (connections, incoming) = mpsc::channel(BACKLOG);
    let accepting = tokio::spawn(accept(listener, connections));
    let watching = tokio::spawn(watch_lease(service.0.clone(), stop_command));
    let stopping = shutdown.clone();
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    tonic::transport::Server::builder()
        .initial_stream_window_size(4 * 1024 * 1024)
        .initial_connection_window_size(16 * 1024 * 1024)
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .add_service(
            ItemsServer::new(service.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .add_service(
            AgentServer::new(service)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        )
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async move {
            tokio::select! {
                _ = terminated.recv() => {}
                _ = interrupted.recv() => {}
            }
            // Streams that follow a log or facts would keep the server up.
            stopping.cancel();
        })
        .await?;
    accepting.abort();
    watching.abort();
    let _ = tokio::join!(accepting, watching);
    if let Some(asking) = asking {
        asking.abort();
        let _ = asking.await;
    }
    runs.close().await;
    drop(runs);
    let _ = fs::remove_file(home.socket());
    // The last ledger is gone: all promises are written.
    let _ = tokio::task::spawn_blocking(move || writer.join()).await;
    tracing::info!("the agent has stopped; runs go on under their shims");
    Ok(())
}

fn make_home(home: &Home) -> std::io::Result<()> {
    files::make_folders(home.path(), 0o755)?;
    files::make_folders(&home.runs(), 0o711)?;
    files::make_folders(&home.journal(), 0o700)?;
    // The users that work runs as must get through to their folders, whatever the umask was.
    for path in [home.path(), home.runs().as_path()] {
        let mode = fs::metadata(path)?.permissions().mode();
        if mode & 0o111 != 0o111 {
            fs::set_permissions(path, Permissions::from_mode(mode | 0o111))?;
        }
    }
    Ok(())
}

/// A daemon that was killed while it started a shim may still be held open by the new process
/// for an instant, with its lock: therefore the patience.
async fn lock(home: &Home) -> anyhow::Result<File> {
    let file = files::open(home.lock())?;
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(TryLockError::WouldBlock) => bail!("another agent serves {}", home.path().display()),
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the home"),
        }
    }
}

fn listen(home: &Home) -> anyhow::Result<UnixListener> {
    let path = home.socket();
    let _ = fs::remove_file(&path);
    let listener =
        UnixListener::bind(&path).with_context(|| format!("cannot listen on {}", path.display()))?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Each run takes a few descriptors of the daemon.
fn raise_file_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, soft.max(hard.min(65_536)), hard);
    }
}

/// Admits only our own user and root: a Task must not command its agent.
async fn accept(listener: UnixListener, connections: mpsc::Sender<std::io::Result<UnixStream>>) {
    let own = Uid::effective().as_raw();
    loop {
        let connection = match listener.accept().await {
            Ok((connection, _)) => connection,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        match connection.peer_cred() {
            Ok(peer) if peer.uid() == own || peer.uid() == 0 => {
                if connections.send(Ok(connection)).await.is_err() {
                    return;
                }
            }
            Ok(peer) => tracing::warn!(uid = peer.uid(), "a connection of another user was refused"),
            Err(error) => tracing::warn!(%error, "a connection without a user was refused"),
        }
    }
}

async fn watch_lease(own: Arc<Inner>, stop_command: Option<String>) {
    loop {
        let (expired, pause) = own.lease_expired();
        if let Some(why) = expired {
            tracing::error!(%why, "the machine stops itself");
            stop_machine(stop_command.as_deref()).await;
            tokio::time::sleep(STOP_AGAIN).await;
        }
        tokio::time::sleep(pause).await;
    }
}

/// Ordinary users may stop a machine through sudo alone, or where its polkit lets them.
const fn usual_stop(root: bool) -> &'static str {
    if root {
        "shutdown -h now"
    } else {
        "sudo -n shutdown -h now || shutdown -h now"
    }
}

async fn stop_machine(command: Option<&str>) {
    let command = match command {
        Some(command) => command,
        None if machine::is_container() => {
            // A container ends with its first process. A process that ignores the signal ends when
            // it has nothing left to wait for.
            let _ = kill(Pid::from_raw(1), Signal::SIGTERM);
            tokio::time::sleep(Duration::from_secs(10)).await;
            let own = std::process::id() as i32;
            for pid in processes::descendants(1).into_iter().filter(|pid| *pid != own) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            return;
        }
        None => usual_stop(Uid::effective().is_root()),
    };
    let run = tokio::process::Command::new("sh")
        .args(["-c", command])
        .current_dir(Path::new("/"))
        .stdin(Stdio::null())
        .status();
    match tokio::time::timeout(STOP_AGAIN, run).await {
        Ok(Ok(status)) if status.success() => {}
        other => tracing::error!(?other, command, "the machine could not be stopped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_is_not_root_asks_sudo_to_stop_the_machine_and_does_without_where_there_is_none() {
        assert_eq!(usual_stop(true), "shutdown -h now");
        for (sudo, expected) in [("return 0", ""), ("return 1", "plain -h now\n")] {
            // The name of the script does not matter to the shell that runs it.
            let script = format!(
                "sudo() {{ [ \"$*\" = '-n shutdown -h now' ] && {sudo}; }}\n(eval '{}')",
                usual_stop(false).replace("|| shutdown", "|| echo plain")
            );
            let output = std::process::Command::new("sh").args(["-c", &script]).output();
            assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), expected);
        }
    }
}
