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
        let _ = copy(&mut io::stdin().lock(), &mut to_agent);
        // The other end is done; the agent answers what it has and closes.
        let _ = to_agent.shutdown(Shutdown::Write);
    });
    // Output must not wait in a buffer for the end of a line.
    let mut output = std::fs::File::from(std::os::fd::AsFd::as_fd(&io::stdout()).try_clone_to_owned()?);
    let _ = copy(&mut from_agent, &mut output);
    Ok(())
}

/// Copies by hand: `io::copy` would splice, and a splice that waits for the socket holds the
/// lock of the pipe to sshd, whose whole connection then stands still.
fn copy(from: &mut impl io::Read, to: &mut impl io::Write) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(&buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
