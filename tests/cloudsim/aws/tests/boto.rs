//! The simulator under boto3, which is not ours.

use std::process::Command;

use super::{ACCOUNT, KEY, SECRET, models};
use crate::aws::Aws;
use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;

/// A Python that has boto3: the one that `SKYWARD_BOTO3_PYTHON` names, or any.
fn python() -> Option<String> {
    let named = std::env::var("SKYWARD_BOTO3_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let found = Command::new(&named).args(["-c", "import boto3"]).output();
    if found.is_ok_and(|output| output.status.success()) {
        return Some(named);
    }
    println!("skipped: {named} has no boto3; install it, and name that Python in SKYWARD_BOTO3_PYTHON");
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_understands_every_answer_and_is_understood() {
    let (Some(models), Some(python)) = (models(), python()) else {
        return;
    };
    let simulator = Builder::new()
        .cloud(Aws::new(models))
        .start()
        .await
        .expect("a simulator");
    let aws = simulator.cloud("aws");
    aws.world(|world| {
        world.add_account(Account::with_pair(ACCOUNT, KEY, SECRET));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
        world.lag.created = jiff::SignedDuration::from_millis(200);
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/aws/boto3-check.py");
    let url = simulator.url("aws").to_owned();
    let run = tokio::task::spawn_blocking(move || {
        Command::new(python)
            .args([script, &url, KEY, SECRET])
            .env("AWS_EC2_METADATA_DISABLED", "true")
            .env("AWS_CONFIG_FILE", "/dev/null")
            .env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
            .output()
    });
    let output = run.await.expect("joined").expect("started");
    let told = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "{told}");
    println!("{told}");
    assert_eq!(aws.violations(), []);
    assert_eq!(aws.mistakes(), []);
    assert_eq!(aws.meter(|meter| meter.leftovers(ACCOUNT).len()), 0);
}
