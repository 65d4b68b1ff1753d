//! What a machine is told at its first boot: the countdown that ends it when no
//! controller ever reaches it.
//!
//! The agent's lease takes over with the first contact. Everything that a cloud needs
//! besides (keys, an SSH server) is the business of that provider.

use std::time::Duration;

/// The agent makes this file with its first lease; it disarms the countdown. The folder
/// is open to all users, since an agent may run as one that is not root.
pub const DISARM_FILE: &str = "/run/skyward/leased";

/// A POSIX shell script, to be run once as root at the first boot, that returns at once
/// and ends the machine by `stop` after `limit` unless a lease was given by then.
///
/// `stop` is a shell command and is run again every minute until it works.
pub fn countdown(limit: Duration, stop: &str) -> String {
    let seconds = limit.as_secs();
    format!(
        "mkdir -p /run/skyward && chmod 1777 /run/skyward\n\
         (\n\
         trap '' HUP\n\
         sleep {seconds}\n\
         while [ ! -e {DISARM_FILE} ]; do\n\
         {stop}\n\
         sleep 60\n\
         done\n\
         ) >/dev/null 2>&1 </dev/null &\n"
    )
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_countdown_is_a_script_that_a_shell_accepts_and_that_returns_at_once() {
        let script = countdown(Duration::from_secs(900), "shutdown -h now");
        let read = Command::new("sh").args(["-n", "-c", &script]).status().unwrap();
        assert!(read.success());
        assert!(script.contains("sleep 900\n") && script.contains(DISARM_FILE));
        assert!(script.trim_end().ends_with('&'), "it would hold up the boot");
    }
}
