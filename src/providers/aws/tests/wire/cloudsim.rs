//! Stories against the cloud simulator, which refuses requests that the service models of AWS do
//! not allow, and meters the bill.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use serde_json::{Value, json};
use skyward_cloudsim::{Account, Builder, Simulator, aws::Aws as Simulated};
use skyward_core::{
    Deletion, ErrorKind, Market, Order, Provider, ProviderPhase, machine::FailureKind, order::PoolShape,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{KEY, PATIENCE, SECRET, deleted, order, provider_at, reference, released, scope};

/// A simulator, for one test: faults, stock and clock are its own.
struct Server {
    address: SocketAddr,
    simulator: Simulator,
}

/// Starts a simulator; `None`, with a line of output, without the service models.
async fn simulator() -> Option<Server> {
    let cloud = Simulated::from_environment()?;
    let account = Account::with_pair("123456789012", KEY, SECRET);
    // Its time passes when a story says so: nothing waits for boots and ends.
    let simulator = Builder::manual().seed(7).cloud(cloud).start().await.unwrap();
    simulator.cloud("aws").world(|world| world.add_account(account));
    let url = simulator.url("aws").trim_start_matches("http://");
    let address = url.trim_end_matches('/').parse().unwrap();
    // Requests are signed with the real time.
    let behind = Timestamp::now().duration_since(simulator.clock().now());
    simulator.advance(behind.as_secs());
    Some(Server { address, simulator })
}

/// A call of the simulator's controls.
async fn control(server: &Server, method: &str, path: &str, body: Value) -> Value {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let body = if body.is_null() {
        String::new()
    } else {
        body.to_string()
    };
    let request = format!(
        "{method} /_sim/{path} HTTP/1.1\r\nhost: sim\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.contains(" 200 ") || head.contains(" 204 "),
        "{path}: {answer}"
    );
    serde_json::from_str(body).unwrap_or(Value::Null)
}

/// A few seconds of the simulator's time.
async fn later(server: &Server) {
    server.simulator.advance(3);
    tokio::task::yield_now().await;
}

/// Asserts that a story made no request that AWS would refuse, and left nothing billed.
async fn nothing_wrong(server: &Server) {
    for record in ["violations", "mistakes"] {
        assert_eq!(
            control(server, "GET", record, Value::Null).await,
            json!([]),
            "{record}"
        );
    }
}

async fn nothing_left(server: &Server) {
    nothing_wrong(server).await;
    for record in [
        "billed",
        "leftovers?account=123456789012",
        "doubled?by=tag:skyward:machine-uid",
    ] {
        let left = control(server, "GET", record, Value::Null).await;
        assert!(left == json!([]) || left == json!({}), "{record}: {left}");
    }
}

fn provider(server: &Server) -> Arc<dyn Provider> {
    provider_at(server.address, None, json!({}))
}

/// Waits for the machine to run.
async fn running(server: &Server, provider: &dyn Provider, order: &Order, id: &str) {
    let machine = reference(order, Some(id.to_owned()));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let phase = provider.get(&machine).await.unwrap().map(|found| found.phase);
        if phase == Some(ProviderPhase::Running) {
            return;
        }
        assert!(Instant::now() < deadline, "it does not run: {phase:?}");
        later(server).await;
    }
}

async fn quick_boots(server: &Server) {
    control(
        server,
        "POST",
        "boot",
        json!({ "takesSeconds": 0, "ends": "runs" }),
    )
    .await;
}

#[tokio::test]
async fn the_account_is_told_and_offers_are_complete() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    assert_eq!(provider.account().await.unwrap(), "123456789012");
    let offers = provider.offers().await.unwrap();
    let gpu = offers
        .iter()
        .find(|offer| {
            offer
                .accelerators
                .as_ref()
                .is_some_and(|found| found.name == "L4" && found.count == 1.0)
        })
        .expect("it sells an L4");
    assert!(
        gpu.on_demand.is_some() && gpu.spot.is_some() && gpu.spot < gpu.on_demand,
        "{gpu:?}"
    );
    assert!(offers.iter().any(|offer| offer.accelerators.is_none()));
    assert!(
        offers
            .iter()
            .filter_map(|offer| offer.accelerators.as_ref())
            .any(|found| found.count < 1.0),
        "parts of GPUs"
    );
    // The second time nothing is looked up again.
    control(&server, "DELETE", "requests", Value::Null).await;
    assert_eq!(provider.offers().await.unwrap(), offers);
    assert_eq!(control(&server, "GET", "requests", Value::Null).await, json!([]));
    nothing_wrong(&server).await;
}

#[tokio::test]
async fn quotas_are_told_for_each_region_and_a_refusal_of_them_hides_nothing_else() {
    let Some(server) = simulator().await else { return };
    let settings = json!({ "region": "us-east-1", "regions": ["eu-central-1"] });
    let provider = provider_at(server.address, None, settings);
    let facts = async || {
        let facts = provider.account_facts().await.unwrap();
        let told: Vec<&str> = facts.iter().map(|fact| fact.what).collect();
        assert_eq!(told, ["user or role", "quotas", "quotas"]);
        [facts[1].value.clone(), facts[2].value.clone()]
    };
    for (region, told) in ["us-east-1", "eu-central-1"].iter().zip(facts().await) {
        let first = format!("{region}: Running On-Demand P instances 0 vCPUs, ");
        assert!(told.starts_with(&first), "{told}");
        // A quota of the last page.
        assert!(told.contains("Spot Instance Requests 128 vCPUs"), "{told}");
        assert!(!told.contains("Elastic IPs") && !told.contains("Hosts"), "{told}");
    }
    let refused = json!({ "call": "servicequotas.ListServiceQuotas", "fault": "forbidden" });
    control(&server, "POST", "faults", refused).await;
    for told in facts().await {
        assert!(
            told.contains("the credentials lack the permission servicequotas:ListServiceQuotas"),
            "{told}"
        );
    }
    nothing_wrong(&server).await;
}

#[tokio::test]
async fn machines_are_ordered_used_and_returned_and_nothing_is_billed_after() {
    let Some(server) = simulator().await else { return };
    quick_boots(&server).await;
    let provider = provider(&server);
    for (pool, market) in [("demand", Market::OnDemand), ("spot", Market::Spot)] {
        let order = Order {
            market,
            ..order(pool, 0)
        };
        let accepted = provider.create(&order).await.unwrap();
        running(&server, &*provider, &order, &accepted.id).await;
        let machine = reference(&order, Some(accepted.id.clone()));
        let found = provider.get(&machine).await.unwrap().unwrap();
        assert_eq!(found.mark, order.mark);
        assert!(found.endpoint.is_some() && found.rental.billed_since.is_some());
        assert_eq!(
            found.rental.hourly_price.is_some(),
            market == Market::Spot,
            "{:?}",
            found.rental
        );
        assert_eq!(provider.list(&scope(Some(pool))).await.unwrap().len(), 1);
        assert_eq!(provider.leftovers(&scope(Some(pool))).await.unwrap().len(), 2);
        deleted(&*provider, &machine, async || later(&server).await).await;
        released(&*provider, pool, async || later(&server).await).await;
        assert_eq!(provider.leftovers(&scope(Some(pool))).await.unwrap(), []);
    }
    nothing_left(&server).await;
}

#[tokio::test]
async fn ordering_twice_gives_one_machine() {
    let Some(server) = simulator().await else { return };
    let order = order("twice", 0);
    let first = provider(&server).create(&order).await.unwrap();
    // Another process, which knows nothing of the first, and finds a newer spec.
    let provider = provider(&server);
    assert_eq!(provider.create(&order).await.unwrap(), first);
    let changed = Order {
        disk_bytes: Some(300 << 30),
        ..order.clone()
    };
    // Its token is used, so EC2 refuses it: the machine is looked for, and shows up.
    let deadline = Instant::now() + PATIENCE;
    let again = loop {
        match provider.create(&changed).await {
            Ok(again) => break again,
            Err(error) => assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}"),
        }
        assert!(Instant::now() < deadline, "it does not show up");
        later(&server).await;
    };
    assert_eq!(again, first);
    assert_eq!(provider.list(&scope(None)).await.unwrap().len(), 1);
    deleted(&*provider, &reference(&order, Some(first.id)), async || {
        later(&server).await;
    })
    .await;
    released(&*provider, "twice", async || later(&server).await).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_lost_answer_leaves_a_machine_that_is_found_by_its_mark() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    let faults = [
        json!({ "cut": { "when": "after" } }),
        json!({ "server": { "status": 500, "when": "after" } }),
    ];
    for (slot, fault) in (0..).zip(faults) {
        let rule = json!({ "call": "ec2.CreateFleet", "fault": fault, "times": 1 });
        control(&server, "POST", "faults", rule).await;
        let order = order("lost", slot);
        let error = provider.create(&order).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
        assert!(!error.to_string().contains(SECRET), "{error}");
        // The machine was made, and shows up later.
        let machine = reference(&order, None);
        let deadline = Instant::now() + PATIENCE;
        let found = loop {
            if let Some(found) = provider.get(&machine).await.unwrap() {
                break found;
            }
            assert!(Instant::now() < deadline, "it was made");
            later(&server).await;
        };
        assert_eq!(provider.create(&order).await.unwrap().id, found.id);
        deleted(&*provider, &machine, async || later(&server).await).await;
    }
    released(&*provider, "lost", async || later(&server).await).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn machines_that_must_reach_each_other_stand_in_one_zone() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    let together = |slot| Order {
        market: Market::Spot,
        pool: PoolShape {
            machines: 6,
            connected: true,
        },
        ..order("together", slot)
    };
    let orders: Vec<Order> = (0..4).map(together).collect();
    let started = futures::future::try_join_all(orders.iter().map(|order| provider.create(order)))
        .await
        .unwrap();
    // A new process follows the machines that exist.
    let fifth = together(4);
    let another = self::provider(&server).create(&fifth).await.unwrap();
    let machines = control(&server, "GET", "machines", Value::Null).await;
    let zones: BTreeSet<String> = machines
        .as_array()
        .unwrap()
        .iter()
        .map(|machine| machine["detail"]["zone"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(zones.len(), 1, "{zones:?}");
    for (order, accepted) in orders
        .iter()
        .chain([&fifth])
        .zip(started.iter().chain([&another]))
    {
        deleted(
            &*provider,
            &reference(order, Some(accepted.id.clone())),
            async || later(&server).await,
        )
        .await;
    }
    released(&*provider, "together", async || later(&server).await).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_refusal_comes_at_once_and_says_which() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    let since = Instant::now();
    provider.create(&order("refused", 0)).await.unwrap();
    // A refusal that is not waited for takes less time than an order that is carried out, whose
    // time depends on the load of this machine.
    let at_once = Duration::from_secs(1).max(since.elapsed() * 5);
    for (slot, (fault, name)) in [
        (json!("no-capacity"), "no_capacity"),
        (json!({ "quota": { "what": "L-DB2E81BA" } }), "quota"),
        (json!({ "too-many": { "retryAfter": null } }), "rate_limited"),
        (json!("unauthorized"), "credentials"),
        (json!("expired"), "credentials"),
        (json!("forbidden"), "permission"),
        (json!({ "maintenance": { "when": "before" } }), "outage"),
    ]
    .into_iter()
    .enumerate()
    {
        control(
            &server,
            "POST",
            "faults",
            json!({ "call": "ec2.CreateFleet", "fault": fault, "times": 1 }),
        )
        .await;
        let since = Instant::now();
        let error = provider
            .create(&order("refused", 1 + slot as u32))
            .await
            .unwrap_err();
        assert_eq!(error.kind.name(), name, "{error}");
        assert!(since.elapsed() < at_once, "{error} took {:?}", since.elapsed());
        assert!(!error.to_string().contains(SECRET), "{error}");
    }
    nothing_wrong(&server).await;
}

#[tokio::test]
async fn an_order_that_was_refused_is_made_once_the_cause_is_mended() {
    let Some(server) = simulator().await else { return };
    let profile = |name: &str| json!({ "instanceProfileArn": format!("arn:aws:iam::123456789012:instance-profile/{name}") });
    let first = provider_at(server.address, None, profile("late"));
    let orders = [order("mended", 0), order("mended", 1)];
    for order in &orders {
        // EC2 would repeat its answer to a token for ever.
        for _ in 0..2 {
            let error = first.create(order).await.unwrap_err();
            assert_eq!(error.kind, ErrorKind::InvalidOrder, "{error}");
        }
    }
    // One cause is mended at AWS, and the other in the settings, which makes another client.
    control(
        &server,
        "POST",
        "cloud/profiles",
        json!({ "names": ["gpu-node", "late"] }),
    )
    .await;
    let second = provider_at(server.address, None, profile("gpu-node"));
    for (order, provider) in orders.iter().zip([first, second]) {
        let made = provider.create(order).await.unwrap();
        assert_eq!(provider.create(order).await.unwrap(), made, "and once only");
        deleted(&*provider, &reference(order, Some(made.id)), async || {
            later(&server).await;
        })
        .await;
    }
    released(&*provider(&server), "mended", async || later(&server).await).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_permission_that_lacks_is_named() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    control(
        &server,
        "POST",
        "faults",
        json!({ "call": "ec2.CreateFleet", "fault": "forbidden", "times": 1 }),
    )
    .await;
    let error = provider.create(&order("denied", 0)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(error.message.contains("ec2:CreateFleet"), "{error}");
    nothing_wrong(&server).await;
}

#[tokio::test]
async fn a_spot_machine_that_is_taken_back_says_so() {
    let Some(server) = simulator().await else { return };
    quick_boots(&server).await;
    let provider = provider(&server);
    let order = Order {
        market: Market::Spot,
        ..order("reclaimed", 0)
    };
    let accepted = provider.create(&order).await.unwrap();
    running(&server, &*provider, &order, &accepted.id).await;
    control(
        &server,
        "POST",
        "reclaim",
        json!({ "machine": accepted.id, "noticeSeconds": 0 }),
    )
    .await;
    let machine = reference(&order, Some(accepted.id));
    let deadline = Instant::now() + PATIENCE;
    let failure = loop {
        match provider.get(&machine).await.unwrap().map(|found| found.phase) {
            Some(ProviderPhase::Failed(failure)) => break failure,
            phase => assert!(Instant::now() < deadline, "{phase:?}"),
        }
        later(&server).await;
    };
    assert_eq!(failure.kind, FailureKind::Reclaimed, "{}", failure.message);
    deleted(&*provider, &machine, async || later(&server).await).await;
    released(&*provider, "reclaimed", async || later(&server).await).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn what_aws_does_not_show_yet_is_not_gone() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    control(
        &server,
        "POST",
        "lag",
        json!({ "createdSeconds": 5, "endedSeconds": 0 }),
    )
    .await;
    let order = order("young", 0);
    let accepted = provider.create(&order).await.unwrap();
    for id in [Some(accepted.id.clone()), None] {
        assert_eq!(
            provider.delete(&reference(&order, id)).await.unwrap(),
            Deletion::InProgress
        );
    }
    deleted(&*provider, &reference(&order, None), async || {
        later(&server).await;
    })
    .await;
    released(&*provider, "young", async || later(&server).await).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_page_that_is_cut_short_is_an_error_and_no_shorter_list() {
    let Some(server) = simulator().await else { return };
    let provider = provider(&server);
    provider.create(&order("pages", 0)).await.unwrap();
    for _ in 0..10 {
        later(&server).await;
    }
    control(
        &server,
        "POST",
        "faults",
        json!({ "call": "ec2.DescribeInstances", "fault": { "cut": { "when": "after" } } }),
    )
    .await;
    let error = provider.list(&scope(None)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient, "{error}");
    control(&server, "DELETE", "faults", Value::Null).await;
    assert_eq!(provider.list(&scope(None)).await.unwrap().len(), 1);
    nothing_wrong(&server).await;
}
