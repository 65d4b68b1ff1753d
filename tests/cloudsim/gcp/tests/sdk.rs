//! The simulator tested with the Python client that Google itself publishes.

use crate::core::machine::BootPlan;
use crate::core::rest::Rest;
use crate::core::simulator::Builder;
use crate::gcp::{Gcp, account, key_file};
use crate::published;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
    let simulator = Builder::new()
        .cloud(Rest::new(Gcp::default()).without_rate_limits())
        .start()
        .await
        .expect("a simulator");
    let cloud = simulator.cloud("gcp");
    let acme = account("acme", "skyward@acme.example.com");
    let url = simulator.url("gcp");
    let file = key_file(&acme, url).to_string();
    cloud.world(|world| {
        world.add_account(acme);
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::from_millis(200);
    });
    let words = [url, file.as_str()];
    let Some(told) = published::check("google-cloud-compute", "gcp/gcp-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(cloud.complaints(), Vec::<String>::new());
    assert!(cloud.meter(|meter| meter.leftovers("acme").is_empty()));
    assert!(cloud.meter(|meter| meter.billed_now().is_empty()));
}
