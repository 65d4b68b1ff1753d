//! What a machine is told at its first boot: the countdown that ends it when no
//! controller ever reaches it.
//!
//! The agent's lease takes over with the first contact. Everything that a cloud needs
//! besides (keys, an SSH server) is the business of that provider.

use std::time::Duration;

/// The agent makes one of these files with its first lease, which disarms the countdown: in
/// its home, that of root or of the user it runs as.
pub const LEASE_FILES: &str = "/opt/skyward/lease.json /root/.skyward/lease.json /home/*/.skyward/lease.json";

/// A POSIX shell script, to be run once as root at the first boot, that returns at once
/// and ends the machine by `stop` after `limit` unless a lease was given by then.
///
/// `stop` is a shell command and is run again every minute until it works.
pub fn countdown(limit: Duration, stop: &str) -> String {
    let seconds = limit.as_secs();
    format!(
        "(\n\
         trap '' HUP\n\
         sleep {seconds}\n\
         while :; do\n\
         for file in {LEASE_FILES}; do\n\
         if [ -e \"$file\" ]; then exit 0; fi\n\
         done\n\
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
    fn the_countdown_ends_a_machine_without_a_lease_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let lease = folder.path().join("lease.json");
        let stopped = folder.path().join("stopped");
        // The stop command also ends the countdown here.
        let stop = format!("touch {}; exit 0", stopped.display());
        let run = |script: String| {
            let script = script.replace(LEASE_FILES, &lease.display().to_string());
            let script = format!("{script}wait");
            assert!(
                Command::new("sh")
                    .args(["-c", &script])
                    .status()
                    .unwrap()
                    .success()
            );
        };
        std::fs::write(&lease, "{}").unwrap();
        run(countdown(Duration::ZERO, &stop));
        assert!(!stopped.exists(), "it has a lease");
        std::fs::remove_file(&lease).unwrap();
        run(countdown(Duration::ZERO, &stop));
        assert!(stopped.exists());
    }

    #[test]
    fn the_countdown_is_a_script_that_a_shell_accepts_and_that_returns_at_once() {
        let script = countdown(Duration::from_secs(900), "shutdown -h now");
        let read = Command::new("sh").args(["-n", "-c", &script]).status().unwrap();
        assert!(read.success());
        assert!(script.contains("sleep 900\n") && script.contains(LEASE_FILES));
        assert!(script.trim_end().ends_with('&'), "it would hold up the boot");
    }
}
