//! The simulator tested with the Python client that Verda itself publishes.

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::published;
use crate::verda::Verda;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
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
    let words = [simulator.url("verda"), "id", "secret"];
    let Some(told) = published::check("verda", "verda/verda-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(verda.complaints(), Vec::<String>::new());
    assert!(verda.meter(|meter| meter.leftovers("acme").is_empty()));
    assert!(verda.meter(|meter| meter.billed_now().is_empty()));
}
