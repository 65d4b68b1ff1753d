//! The simulator under the Python client that Verda itself publishes.

use std::process::Command;

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::verda::Verda;

/// A Python that has verda: the one that `SKYWARD_VERDA_PYTHON` names, or any.
fn python() -> Option<String> {
    let named = std::env::var("SKYWARD_VERDA_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    // Isolated: the folder of this simulator has the same name, and would be taken for it.
    let found = Command::new(&named).args(["-I", "-c", "import verda"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(named);
    }
    println!("skipped: {named} has no verda; install it, and name that Python in SKYWARD_VERDA_PYTHON");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
    let Some(python) = python() else {
        return;
    };
    let simulator = Builder::new()
        .cloud(Verda::new().without_rate_limits())
        .start()
        .await
        .expect("a simulator");
    let verda = simulator.cloud("verda");
    verda.world(|world| {
        world.add_account(Account::with_pair("acme", "id", "secret"));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/verda/verda-check.py");
    let url = simulator.url("verda").to_owned();
    let run = tokio::task::spawn_blocking(move || {
        Command::new(python).args([script, &url, "id", "secret"]).output()
    });
    let output = run.await.expect("joined").expect("started");
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{told}");
    println!("{told}");
    assert_eq!(verda.complaints(), Vec::<String>::new());
    assert!(verda.meter(|meter| meter.leftovers("acme").is_empty()));
    assert!(verda.meter(|meter| meter.billed_now().is_empty()));
}
