//! The clients that the clouds publish themselves, which test the simulators.

use std::path::PathBuf;
use std::process::Command;

/// Folder with an environment for each of them, which `hack/vendor-clients.sh` makes.
const FOLDER: &str = "SKYWARD_VENDOR_CLIENTS";

/// A program of the environment of this client. Prints a message and returns `None` where no
/// environments are installed; where they are, it must be there.
pub(crate) fn program(client: &str, name: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os(FOLDER).filter(|path| !path.is_empty()) else {
        eprintln!("skipped: {FOLDER} does not name the folder of {client} (make test installs it)");
        return None;
    };
    let program = PathBuf::from(folder).join(client).join("bin").join(name);
    assert!(program.exists(), "{} is not there", program.display());
    Some(program)
}

/// Runs one of the scripts of this folder in the client's Python to its end, away from the
/// runtime. Returns its output.
///
/// # Panics
/// When it fails, with its output.
pub(crate) async fn check(client: &'static str, script: &str, words: &[&str]) -> Option<String> {
    let mut command = Command::new(program(client, "python3")?);
    command
        .arg(format!("{}/{script}", env!("CARGO_MANIFEST_DIR")))
        .args(words)
        // The settings of this machine's user for Amazon's client must not matter.
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_CONFIG_FILE", "/dev/null")
        .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .expect("joined")
        .expect("started");
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{told}");
    Some(told)
}
