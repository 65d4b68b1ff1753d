//! The simulator tested with the Python package that RunPod itself publishes.

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::published;
use crate::runpod::Runpod;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_package_understands_every_answer_and_is_understood() {
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
    let words = [simulator.url("runpod"), "rpa_key"];
    let Some(told) = published::check("runpod", "runpod/runpod-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(runpod.complaints(), Vec::<String>::new());
    assert_eq!(runpod.meter(|meter| meter.billed_now().len()), 0);
    assert_eq!(runpod.meter(|meter| meter.leftovers("acme").len()), 0);
}
