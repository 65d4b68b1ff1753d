//! The client against servers that others wrote: moto, an EC2 server from PyPI, where
//! `SKYWARD_MOTO` names a `moto_server`; and our cloud simulator, which its author made
//! from the service models of AWS in the folder that `SKYWARD_SPECS` names. Without these a test
//! says that it did not run.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::float_cmp,
    reason = "helpers of tests; counts of accelerators are exact"
)]

mod cloudsim;
mod moto;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use skyward_core::{
    Account, Credentials, Deletion, Endpoints, Fence, MachineRef, Mark, Order, PoolScope, Provider, Scope,
    Secret, order::PoolShape,
};
use skyward_provider_aws::connect;

const CLUSTER: &str = "6f0d3c3e-0000-4000-8000-000000000001";
const REGION: &str = "us-east-1";
const KEY: &str = "AKIAEXAMPLE";
const SECRET: &str = "canary-of-the-secret-key";
/// How long a request, or what is asked again and again, may take: unit tests get what stories on a cluster leave of the
/// processors (hack/test.sh), and moto's list of instance types takes some seconds of one.
const PATIENCE: Duration = Duration::from_mins(5);

/// A moment of real time.
async fn moment() {
    tokio::time::sleep(Duration::from_millis(50)).await;
}

/// The client of an account at this server; its prices may come from elsewhere.
fn provider_at(server: SocketAddr, prices: Option<String>, settings: serde_json::Value) -> Arc<dyn Provider> {
    let everywhere = format!("http://{server}");
    connect(Account {
        provider: "aws-main".to_owned(),
        settings,
        request_timeout: PATIENCE,
        credentials: Credentials::new([
            ("AWS_ACCESS_KEY_ID".to_owned(), Secret::new(KEY)),
            ("AWS_SECRET_ACCESS_KEY".to_owned(), Secret::new(SECRET)),
        ]),
        endpoints: Endpoints::new(
            prices
                .map(|prices| ("aws-pricing".to_owned(), prices))
                .into_iter()
                .chain([("aws".to_owned(), everywhere)]),
        ),
        fence: Fence::always_open(),
    })
    .unwrap()
}

fn order(pool: &str, slot: u32) -> Order {
    Order {
        mark: Mark {
            cluster: CLUSTER.to_owned(),
            namespace: "team".to_owned(),
            pool: pool.to_owned(),
            pool_uid: format!("uid-of-{pool}"),
            machine: format!("{pool}-{slot}-1"),
            machine_uid: format!("uid-of-{pool}-{slot}-1"),
            slot,
            attempt: 1,
        },
        token: format!("uid-of-{pool}-{slot}-1"),
        instance_type: "g4dn.xlarge".to_owned(),
        region: REGION.to_owned(),
        authorized_key: "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO pool".to_owned(),
        boot_script: "true\n".to_owned(),
        pool: PoolShape {
            machines: 1,
            connected: false,
        },
        ..Order::default()
    }
}

fn reference(order: &Order, id: Option<String>) -> MachineRef {
    MachineRef {
        id,
        mark: order.mark.clone(),
        region: order.region.clone(),
        started: false,
    }
}

fn scope(pool: Option<&str>) -> Scope {
    Scope {
        cluster: CLUSTER.to_owned(),
        pool_uid: pool.map(|pool| format!("uid-of-{pool}")),
        namespace: None,
        regions: vec![REGION.to_owned()],
    }
}

/// Deletes a machine; `tick` lets time pass between two looks.
async fn deleted(provider: &dyn Provider, machine: &MachineRef, tick: impl AsyncFn()) {
    let deadline = Instant::now() + PATIENCE;
    while provider.delete(machine).await.unwrap() == Deletion::InProgress {
        assert!(Instant::now() < deadline, "it is not gone");
        tick().await;
    }
}

/// Returns the shared resources of a Pool.
async fn released(provider: &dyn Provider, pool: &str, tick: impl AsyncFn()) {
    let pool = PoolScope {
        cluster: CLUSTER.to_owned(),
        pool_uid: format!("uid-of-{pool}"),
        regions: vec![REGION.to_owned()],
    };
    let deadline = Instant::now() + PATIENCE;
    while provider.release(&pool).await.unwrap() == Deletion::InProgress {
        assert!(Instant::now() < deadline, "the Pool's things are still in use");
        tick().await;
    }
}
