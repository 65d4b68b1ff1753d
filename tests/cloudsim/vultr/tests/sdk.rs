//! The simulator tested with the Python client that Vultr itself publishes.

use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::rest::Rest;
use crate::core::simulator::Builder;
use crate::published;
use crate::vultr::Vultr;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
    let simulator = Builder::new()
        .cloud(Rest::new(Vultr).without_rate_limits())
        .start()
        .await
        .expect("a simulator");
    let vultr = simulator.cloud("vultr");
    vultr.world(|world| {
        world.add_account(Account::with_key("acme", "key"));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
    });
    let words = [simulator.url("vultr"), "key"];
    let Some(told) = published::check("vultr-python-client", "vultr/vultr-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(vultr.complaints(), Vec::<String>::new());
    assert!(vultr.meter(|meter| meter.leftovers("acme").is_empty()));
    assert!(vultr.meter(|meter| meter.billed_now().is_empty()));
}
