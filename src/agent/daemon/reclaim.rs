//! Whether the cloud takes this machine back. Where the machine itself can find out, the agent runs
//! a command every few seconds until the answer is yes. A daemon that starts again asks anew, so
//! nothing is stored.

use std::{path::Path, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use tokio::sync::watch;

/// Between two questions; a notice leaves about two minutes.
const PAUSE: Duration = Duration::from_secs(5);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Asks until the cloud takes the machine back, and publishes when, as Unix time in milliseconds.
pub(super) async fn watch(command: String, notice: watch::Sender<Option<u64>>) {
    let mut strange = false;
    loop {
        if let Some(answer) = ask(&command).await {
            if let Some(at_ms) = time(&answer) {
                tracing::warn!(at = answer.trim(), "the cloud takes this machine back");
                notice.send_replace(Some(at_ms));
                return;
            }
            if !strange {
                tracing::warn!(answer, "the notice of the cloud names no time, so it is none");
                strange = true;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// The command's output, if it succeeds in time.
async fn ask(command: &str) -> Option<String> {
    let child = tokio::process::Command::new("sh")
        .args(["-c", command])
        .current_dir(Path::new("/"))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .inspect_err(|error| tracing::warn!(%error, "the cloud cannot be asked for a notice"))
        .ok()?;
    let group = child.id();
    let answer = child.wait_with_output();
    tokio::pin!(answer);
    if let Ok(answer) = tokio::time::timeout(PATIENCE, &mut answer).await {
        let output = answer.ok().filter(|output| output.status.success())?;
        return Some(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    // The shell was not waited for yet, so the number is still that of its group.
    if let Some(group) = group {
        let _ = killpg(Pid::from_raw(group as i32), Signal::SIGKILL);
    }
    None
}

/// The time in the first line of an answer.
pub(super) fn time(answer: &str) -> Option<u64> {
    let at: jiff::Timestamp = answer.lines().next()?.trim().parse().ok()?;
    u64::try_from(at.as_millisecond()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_a_line_with_a_time_and_anything_else_is_none() {
        assert_eq!(time("2026-01-02T03:04:05Z\n"), Some(1_767_323_045_000));
        for none in ["", "\n", "soon", "<html>2026-01-02T03:04:05Z</html>"] {
            assert_eq!(time(none), None, "{none:?}");
        }
    }

    #[tokio::test]
    async fn a_command_that_fails_has_no_answer_whatever_it_prints() {
        assert_eq!(ask("echo now; false").await, None);
        assert_eq!(ask("echo now").await, Some("now\n".to_owned()));
    }
}
