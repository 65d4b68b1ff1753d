//! A shim's connection to the daemon. When the daemon goes away, the shim listens on a socket in the run's folder for
//! the next daemon, and tells it again that the work has started. The daemon's messages are lines; bytes may follow a line.

use std::{
    io::{ErrorKind, Read, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::{UnixListener, UnixStream},
    },
    time::{Duration, Instant},
};

use nix::unistd::Pid;

use super::{super::files, RunFolder, take_line};

/// Read at once.
const READ_BYTES: usize = 64 * 1024;
/// A full disk has no room for a socket; then it is tried again after this.
const AGAIN: Duration = Duration::from_secs(1);

/// The connection, or the wait for one.
#[derive(Debug)]
pub(super) struct Control {
    folder: RunFolder,
    /// The daemon.
    connection: Option<UnixStream>,
    /// Where the next daemon can connect, while there is none.
    listener: Option<UnixListener>,
    /// When it is tried again to make that.
    listens_at: Option<Instant>,
    /// What the daemon has said, and nobody took yet.
    received: Vec<u8>,
    /// The first line for each daemon.
    started: String,
}

impl Control {
    pub(super) fn new(folder: &RunFolder, connection: UnixStream) -> Self {
        Self {
            folder: folder.clone(),
            connection: Some(connection),
            listener: None,
            listens_at: None,
            received: Vec::new(),
            started: String::new(),
        }
    }

    /// The work has started: this daemon is told, and each later one.
    pub(super) fn say_started(&mut self, pid: Pid, at_ms: u64) {
        self.started = format!("started {pid} {at_ms}\n");
        self.say(&self.started.clone());
    }

    /// Tells the daemon a line, if there is a daemon.
    pub(super) fn say(&mut self, line: &str) {
        if let Some(connection) = &mut self.connection
            && connection.write_all(line.as_bytes()).is_err()
        {
            self.lose();
        }
    }

    /// What to wait for.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        let connection = self.connection.as_ref().map(AsFd::as_fd);
        connection.or_else(|| self.listener.as_ref().map(AsFd::as_fd))
    }

    /// Takes what has come: bytes, or the next daemon. Answers whether the daemon is another one from here on; what
    /// the one before had not said to its end is gone.
    pub(super) fn take(&mut self) -> bool {
        let Some(connection) = &mut self.connection else {
            self.take_connection();
            return true;
        };
        let mut buffer = vec![0; READ_BYTES];
        match connection.read(&mut buffer) {
            Ok(count @ 1..) => {
                self.received.extend_from_slice(&buffer[..count]);
                false
            }
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => false,
            Ok(0) | Err(_) => {
                self.lose();
                true
            }
        }
    }

    /// The next line of the daemon, if it is whole.
    pub(super) fn line(&mut self) -> Option<String> {
        take_line(&mut self.received)
    }

    /// The next bytes of the daemon, if so many have come.
    pub(super) fn bytes(&mut self, count: usize) -> Option<Vec<u8>> {
        (self.received.len() >= count).then(|| self.received.drain(..count).collect())
    }

    /// When to call [`Control::listen_again`].
    pub(super) const fn listens_at(&self) -> Option<Instant> {
        self.listens_at
    }

    /// Makes the socket that could not be made before, once that is due.
    pub(super) fn listen_again(&mut self, now: Instant) {
        if self.listens_at.is_some_and(|at| now >= at) {
            self.listen();
        }
    }

    /// The daemon is gone; the next one finds us through a socket in our folder.
    fn lose(&mut self) {
        self.connection = None;
        self.received.clear();
        self.listen();
    }

    fn listen(&mut self) {
        let _ = std::fs::remove_file(self.folder.control());
        self.listener = files::short(&self.folder.control())
            .and_then(|short| UnixListener::bind(short.name()))
            .ok();
        self.listens_at = self.listener.is_none().then(|| Instant::now() + AGAIN);
    }

    fn take_connection(&mut self) {
        let Some((connection, _)) = self.listener.as_ref().and_then(|listener| listener.accept().ok()) else {
            return;
        };
        self.listener = None;
        let _ = std::fs::remove_file(self.folder.control());
        self.connection = Some(connection);
        self.say(&self.started.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::home::Home;

    #[test]
    fn a_socket_for_the_next_daemon_that_could_not_be_made_is_made_later() {
        let folder = tempfile::tempdir().unwrap();
        let run = Home::new(folder.path()).run("r");
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut control = Control::new(&run, ours);
        drop(theirs);
        // There is no folder for it, as there may be no room on the disk.
        assert!(control.take() && control.fd().is_none());
        std::fs::create_dir_all(run.path()).unwrap();
        let at = control.listens_at().unwrap();
        control.listen_again(Instant::now());
        assert!(control.fd().is_none(), "not before its time");
        control.listen_again(at);
        assert!(control.fd().is_some() && control.listens_at().is_none());
        let short = files::short(&run.control()).unwrap();
        let _daemon = UnixStream::connect(short.name()).unwrap();
        assert!(control.take());
    }
}
