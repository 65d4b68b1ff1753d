//! The simulator tested with boto3, Amazon's own client.

use super::{ACCOUNT, KEY, SECRET, models};
use crate::aws::Aws;
use crate::core::account::Account;
use crate::core::machine::BootPlan;
use crate::core::simulator::Builder;
use crate::published;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_understands_every_answer_and_is_understood() {
    let Some(models) = models() else {
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
    let words = [simulator.url("aws"), KEY, SECRET];
    let Some(told) = published::check("boto3", "aws/boto3-check.py", &words).await else {
        return;
    };
    println!("{told}");
    assert_eq!(aws.violations(), []);
    assert_eq!(aws.mistakes(), []);
    assert_eq!(aws.meter(|meter| meter.leftovers(ACCOUNT).len()), 0);
}
