//! Standard input and output as a connection to the agent's socket, for SSH servers that do
//! not forward to sockets.

use std::{io, net::Shutdown, os::unix::net::UnixStream};

use anyhow::Context;

use super::home::Home;

/// Copies both ways until both are at their end.
pub(super) fn bridge(home: &Home) -> anyhow::Result<()> {
    let socket = home.socket();
    let mut from_agent =
        UnixStream::connect(&socket).with_context(|| format!("cannot connect to {}", socket.display()))?;
    let mut to_agent = from_agent.try_clone()?;
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut to_agent);
        // The other end is done; the agent answers what it has and closes.
        let _ = to_agent.shutdown(Shutdown::Write);
    });
    // Output must not wait in a buffer for the end of a line.
    let mut output = std::fs::File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?);
    let _ = io::copy(&mut from_agent, &mut output);
    Ok(())
}
