//! The simulator under the Python package that RunPod itself publishes.

use std::process::Command;

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::runpod::Runpod;

/// A Python that has runpod: the one that `SKYWARD_RUNPOD_PYTHON` names, or any.
fn python() -> Option<String> {
    let named = std::env::var("SKYWARD_RUNPOD_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    // Isolated: the folder of this simulator has the same name, and would be taken for it.
    let found = Command::new(&named).args(["-I", "-c", "import runpod"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(named);
    }
    println!("skipped: {named} has no runpod; install it, and name that Python in SKYWARD_RUNPOD_PYTHON");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_package_understands_every_answer_and_is_understood() {
    let Some(python) = python() else {
        return;
    };
    let simulator = Builder::new()
        .cloud(Runpod::new())
        .start()
        .await
        .expect("a simulator");
    let runpod = simulator.cloud("runpod");
    runpod.world(|world| {
        world.add_account(Account::with_key("acme", "rpa_key"));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/runpod/runpod-check.py");
    let url = simulator.url("runpod").to_owned();
    let run =
        tokio::task::spawn_blocking(move || Command::new(python).args([script, &url, "rpa_key"]).output());
    let output = run.await.expect("joined").expect("started");
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{told}");
    println!("{told}");
    assert_eq!(runpod.complaints(), Vec::<String>::new());
    assert_eq!(runpod.meter(|meter| meter.billed_now().len()), 0);
}
