//! The simulator tested with the Python client that Vast.ai itself publishes.

use serde_json::json;

use super::{ACCOUNT, KEY};
use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::published;
use crate::vastai::Vastai;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_services_own_client_understands_every_answer_and_is_understood() {
    let simulator = Builder::new()
        .cloud(Vastai::new())
        .start()
        .await
        .expect("a simulator");
    let vast = simulator.cloud("vastai");
    vast.world(|world| {
        world.add_account(Account::with_key(ACCOUNT, KEY));
        world.boot = BootPlan::takes(0);
        world.end_takes = jiff::SignedDuration::ZERO;
    });
    vast.control("limits", &json!({"enabled": false}))
        .expect("known")
        .expect("done");
    let words = [simulator.url("vastai"), KEY];
    let Some(told) = published::check("vastai", "vastai/vastai-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(vast.complaints(), Vec::<String>::new());
    assert!(vast.meter(|meter| meter.leftovers(ACCOUNT).is_empty()));
    assert!(vast.meter(|meter| meter.billed_now().is_empty()));
}
