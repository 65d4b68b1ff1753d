//! Signals as something to wait for. They are handled and not blocked, because a child would
//! inherit what is blocked and nobody between us and the work could undo it. A child inherits what
//! is ignored too, but not what is handled: so signals that whatever started the agent may
//! have ignored (a shell does so for what it runs in the background, as does `nohup`) are handled
//! as well.

use std::{
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use nix::sys::signal::Signal;
use signal_hook::{flag, low_level::pipe};

/// Signals that mean nothing to a shim.
const MEANINGLESS: [Signal; 7] = [
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Children that end, and wishes that we do.
pub(super) struct Signals {
    woken: UnixStream,
    terminate: Arc<AtomicBool>,
}

impl Signals {
    /// From now on signals are taken here.
    pub(super) fn listen() -> io::Result<Self> {
        let (woken, waker) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let terminate = Arc::new(AtomicBool::new(false));
        let nobody = Arc::new(AtomicBool::new(false));
        for signal in MEANINGLESS {
            flag::register(signal as i32, nobody.clone())?;
        }
        // Before the wakers: handlers run in the order in which they were registered.
        for signal in [Signal::SIGTERM, Signal::SIGINT] {
            flag::register(signal as i32, terminate.clone())?;
        }
        for signal in [Signal::SIGCHLD, Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            pipe::register(signal as i32, waker.try_clone()?)?;
        }
        Ok(Self { woken, terminate })
    }

    /// Takes what has come; whether somebody asked us to end.
    pub(super) fn take(&mut self) -> bool {
        let mut buffer = [0; 64];
        while matches!(self.woken.read(&mut buffer), Ok(1..)) {}
        self.terminate.swap(false, Ordering::Relaxed)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }
}
