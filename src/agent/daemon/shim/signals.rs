//! Signals as events to wait for. They are handled and not blocked, because a child would inherit
//! blocked signals and could not undo that before the work starts. A child inherits ignored signals
//! too, but not handlers: so signals that the agent's starter may have ignored (a shell does so for
//! its background jobs, as does `nohup`) are handled as well.

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

/// Signals that a shim takes and ignores.
const MEANINGLESS: [Signal; 7] = [
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// Ends of children, and requests that we end.
pub(super) struct Signals {
    woken: UnixStream,
    terminate: Arc<AtomicBool>,
}

impl Signals {
    /// Installs the handlers.
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

    /// Takes pending signals; answers whether one asked us to end.
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
