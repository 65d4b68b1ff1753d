//! The simulator tested with the Python client that Scaleway itself publishes.

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::rest::Rest;
use crate::core::simulator::Builder;
use crate::published;
use crate::scaleway::Scaleway;

// The client takes nothing but UUIDs.
const ORGANIZATION: &str = "0a9b2c3d-0000-4000-8000-00000000000a";
const SECRET: &str = "5ec3e700-0000-4000-8000-00000000000b";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
    let simulator = Builder::new()
        .cloud(Rest::new(Scaleway::default()).without_rate_limits())
        .start()
        .await
        .expect("a simulator");
    let cloud = simulator.cloud("scaleway");
    cloud.world(|world| {
        world.add_account(Account::with_key(ORGANIZATION, SECRET));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
    });
    let words = [simulator.url("scaleway"), SECRET];
    let Some(told) = published::check("scaleway", "scaleway/scaleway-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(cloud.complaints(), Vec::<String>::new());
    assert!(cloud.meter(|meter| meter.leftovers(ORGANIZATION).is_empty()));
    assert!(cloud.meter(|meter| meter.billed_now().is_empty()));
}
