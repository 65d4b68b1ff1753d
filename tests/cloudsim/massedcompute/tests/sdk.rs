//! The simulator tested with the Python program that Massed Compute itself publishes.

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::rest::Rest;
use crate::core::simulator::Builder;
use crate::massedcompute::MassedCompute;
use crate::published;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
    let simulator = Builder::new()
        .cloud(Rest::new(MassedCompute::default()))
        .start()
        .await
        .expect("a simulator");
    let cloud = simulator.cloud("massedcompute");
    cloud.world(|world| {
        world.add_account(Account::with_key("acme", "token"));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
    });
    let words = [simulator.url("massedcompute"), "token"];
    let script = "massedcompute/massedcompute-check.py";
    let Some(told) = published::check("massed-compute-mcp", script, &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(cloud.complaints(), Vec::<String>::new());
    assert!(cloud.meter(|meter| meter.leftovers("acme").is_empty()));
    assert!(cloud.meter(|meter| meter.billed_now().is_empty()));
}
