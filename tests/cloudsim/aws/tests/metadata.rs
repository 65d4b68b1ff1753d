//! The metadata service, asked as a machine would.

use http::{HeaderName, HeaderValue, Method};
use rust_decimal::Decimal;
use serde_json::json;

use super::{Hand, Reply};
use crate::aws::Aws;
use crate::backend::Boot;
use crate::core::client::Client;
use crate::core::http::Request;
use crate::core::machine::{BootPlan, Mark, NewMachine};
use crate::core::market::Market;
use crate::core::simulator::Builder;

fn ask(hand: &Hand, method: Method, id: &str, path: &str, headers: &[(&'static str, &str)]) -> Reply {
    let mut request = Request::new(method, &format!("/_imds/{id}/{path}"), "");
    for (name, value) in headers {
        let name: HeaderName = name.parse().expect("a name");
        request
            .headers
            .insert(name, HeaderValue::from_str(value).expect("a value"));
    }
    hand.send(request).expect("an answer")
}

const TTL: (&str, &str) = ("x-aws-ec2-metadata-token-ttl-seconds", "21600");
const TOKEN: &str = "x-aws-ec2-metadata-token";

fn token(hand: &Hand, id: &str) -> String {
    let reply = ask(hand, Method::PUT, id, "latest/api/token", &[TTL]);
    assert_eq!(reply.status, 200);
    reply.body
}

fn get(hand: &Hand, id: &str, token: &str, path: &str) -> Reply {
    ask(
        hand,
        Method::GET,
        id,
        &format!("latest/{path}"),
        &[(TOKEN, token)],
    )
}

#[test]
fn a_token_is_needed_belongs_to_one_machine_and_ends() {
    let Some(hand) = Hand::new() else { return };
    let required = [("MetadataOptions.HttpTokens", "required")];
    let (one, two) = (
        hand.running("t3.micro", &required),
        hand.running("t3.micro", &required),
    );
    assert_eq!(
        ask(&hand, Method::GET, &one, "latest/meta-data/instance-id", &[]).status,
        401
    );
    let token = token(&hand, &one);
    assert_eq!(get(&hand, &one, &token, "meta-data/instance-id").body, one);
    assert_eq!(get(&hand, &two, &token, "meta-data/instance-id").status, 401);
    assert_eq!(ask(&hand, Method::PUT, &one, "latest/api/token", &[]).status, 400);
    assert_eq!(
        ask(
            &hand,
            Method::PUT,
            &one,
            "latest/api/token",
            &[TTL, ("x-forwarded-for", "1.2.3.4")]
        )
        .status,
        403
    );
    hand.wait(21_601);
    assert_eq!(get(&hand, &one, &token, "meta-data/instance-id").status, 401);
}

#[test]
fn the_old_version_works_only_where_tokens_are_optional() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("t3.micro", &[]);
    assert_eq!(
        ask(&hand, Method::GET, &id, "latest/meta-data/instance-id", &[]).body,
        id
    );
    let off = hand.running("t3.micro", &[("MetadataOptions.HttpEndpoint", "disabled")]);
    assert_eq!(
        ask(&hand, Method::GET, &off, "latest/meta-data/instance-id", &[]).status,
        403
    );
}

#[test]
fn the_hop_limit_keeps_containers_away() {
    let Some(hand) = Hand::new() else { return };
    let near = hand.running("t3.micro", &[("MetadataOptions.HttpPutResponseHopLimit", "1")]);
    let far = hand.running("t3.micro", &[("MetadataOptions.HttpPutResponseHopLimit", "2")]);
    let from_container = [TTL, ("x-sim-hops", "2")];
    assert_eq!(
        ask(&hand, Method::PUT, &near, "latest/api/token", &from_container).status,
        504
    );
    assert_eq!(
        ask(&hand, Method::PUT, &far, "latest/api/token", &from_container).status,
        200
    );
}

#[test]
fn a_spot_notice_is_there_two_minutes_ahead_and_not_before() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running("g5.xlarge", &[("InstanceMarketOptions.MarketType", "spot")]);
    let token = token(&hand, &id);
    assert_eq!(
        get(&hand, &id, &token, "meta-data/instance-life-cycle").body,
        "spot"
    );
    assert_eq!(
        get(&hand, &id, &token, "meta-data/spot/instance-action").status,
        404
    );
    hand.sim
        .control("rebalance", &json!({"machine": id}))
        .expect("known")
        .expect("done");
    assert!(
        get(&hand, &id, &token, "meta-data/events/recommendations/rebalance").json()["noticeTime"]
            .is_string()
    );
    hand.sim
        .world(|world| world.reclaim(&id, jiff::SignedDuration::from_mins(2)));
    let at = hand.sim.clock().now() + jiff::SignedDuration::from_mins(2);
    let action = get(&hand, &id, &token, "meta-data/spot/instance-action").json();
    assert_eq!(
        action,
        json!({"action": "terminate", "time": at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()})
    );
    hand.wait(121);
    assert_eq!(hand.state(&id), "shutting-down");
}

#[test]
fn user_data_keys_and_place_are_told() {
    let Some(hand) = Hand::new() else { return };
    let id = hand.running(
        "t3.micro",
        &[
            ("UserData", "IyEvYmluL3NoCmVjaG8gaGk="),
            ("SubnetId", &hand.subnet_in("us-east-1c")),
        ],
    );
    let token = token(&hand, &id);
    assert_eq!(get(&hand, &id, &token, "user-data").body, "#!/bin/sh\necho hi");
    assert_eq!(
        get(&hand, &id, &token, "meta-data/placement/availability-zone").body,
        "us-east-1c"
    );
    assert_eq!(
        get(&hand, &id, &token, "dynamic/instance-identity/document").json()["instanceId"],
        id.as_str()
    );
    assert_eq!(
        get(&hand, &id, &token, "meta-data/iam/security-credentials/").status,
        404
    );
    assert_eq!(hand.sim.violations(), []);
}

/// The proxy that machines use that are Pods, on a port of this machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_proxy_passes_requests_on_and_keeps_lost_answers_to_itself() {
    let Some(models) = super::models() else { return };
    let simulator = Builder::new()
        .cloud(Aws::new(models))
        .start()
        .await
        .expect("a simulator");
    let aws = simulator.cloud("aws");
    aws.world(|world| {
        let mut new = machine();
        new.detail["hopLimit"] = json!(1);
        world.create(new);
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/aws/imds-proxy.py");
    let mut proxy = std::process::Command::new("python3")
        .args([script, "127.0.0.1", "0"])
        .env("SKYWARD_SIM_IMDS", format!("{}/_imds/i-1", simulator.url("aws")))
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("python3");
    let mut port = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(proxy.stdout.as_mut().expect("its output")),
        &mut port,
    )
    .expect("the port where it listens");
    let client = Client::new(&format!("http://127.0.0.1:{}", port.trim()));
    let put = |hops: &'static str| {
        let client = client.clone().with(TTL.0, TTL.1).with("x-sim-hops", hops);
        async move { client.call(Method::PUT, "/latest/api/token").await }
    };
    let token = put("1").await.expect("the proxy answers");
    assert_eq!(token.status, 200);
    let id = client
        .clone()
        .with(TOKEN, &token.body)
        .get("/latest/meta-data/instance-id")
        .await
        .expect("an answer");
    assert_eq!(id.body, "i-1");
    assert!(
        put("2").await.is_err(),
        "an answer came from further away than the hop limit"
    );
    proxy.kill().expect("killed");
    proxy.wait().expect("ended");
}

fn machine() -> NewMachine {
    NewMachine {
        id: "i-1".to_owned(),
        account: "a".to_owned(),
        mark: Mark::default(),
        instance_type: "t3.micro".to_owned(),
        region: "us-east-1a".to_owned(),
        market: Market::OnDemand,
        price: Decimal::ONE,
        on_demand_price: Decimal::ONE,
        disk_price: Decimal::ZERO,
        plan: BootPlan::takes(0),
        boot: Boot::default(),
        detail: json!({"tokens": "required"}),
    }
}
