//! Stories against moto. Moto has no price list: a few lines here stand in for it.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
    sync::{Arc, OnceLock, Weak},
    time::Instant,
};

use parking_lot::Mutex;
use skyward_core::{
    Deletion, ErrorKind, Market, Order, Provider, ProviderPhase, machine::Dial, order::PoolShape,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::{PATIENCE, deleted, moment, order, provider_at, reference, released, scope};

/// A moto of our own, ended with the tests that use it.
struct Server {
    address: SocketAddr,
    process: Child,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn answers(server: &Server) {
    let deadline = Instant::now() + PATIENCE;
    while TcpStream::connect(server.address).await.is_err() {
        assert!(Instant::now() < deadline, "the server did not start");
        moment().await;
    }
}

/// The moto that all tests share as long as one of them runs; `None`, with a line of output, where
/// there is none.
async fn moto() -> Option<Arc<Server>> {
    static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let moto = {
        let mut shared = SHARED.lock();
        if let Some(moto) = shared.upgrade() {
            moto
        } else {
            let moto = Arc::new(start()?);
            *shared = Arc::downgrade(&moto);
            moto
        }
    };
    answers(&moto).await;
    Some(moto)
}

fn start() -> Option<Server> {
    static SAID: OnceLock<()> = OnceLock::new();
    let Some(program) = std::env::var_os("SKYWARD_MOTO").filter(|path| !path.is_empty()) else {
        SAID.get_or_init(|| {
            eprintln!("skipped: SKYWARD_MOTO does not name a moto_server (make test installs one)");
        });
        return None;
    };
    // Below the ports that the kernel gives to connections: it takes seconds until it is bound.
    let free = |port: &u16| std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    let begin = 18_000 + u16::try_from(std::process::id() % 1000).unwrap();
    let port = (begin..19_900).find(free).expect("a free port");
    let process = Command::new(program)
        .args(["-H", "127.0.0.1", "-p", &port.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("SKYWARD_MOTO names a program");
    Some(Server {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        process,
    })
}

/// A price list with three types, on two pages.
async fn price_list() -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_prices(stream));
        }
    });
    format!("http://{address}")
}

async fn answer_prices(mut stream: TcpStream) {
    let entry = |kind: &str, price: &str| {
        serde_json::json!({
            "product": { "attributes": { "instanceType": kind } },
            "terms": { "OnDemand": { "a": { "priceDimensions": { "b": { "pricePerUnit": { "USD": price } } } } } },
        })
        .to_string()
    };
    let mut got = Vec::new();
    let mut part = [0; 4096];
    loop {
        let Ok(length) = stream.read(&mut part).await else {
            return;
        };
        if length == 0 {
            return;
        }
        got.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&got).to_string();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let expected = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase()
                    .strip_prefix("content-length: ")
                    .map(str::to_owned)
            })
            .and_then(|length| length.parse::<usize>().ok())
            .unwrap_or(0);
        if body.len() < expected {
            continue;
        }
        assert!(head.contains("AWSPriceListService.GetProducts"), "{head}");
        let answer = if body.contains("NextToken") {
            serde_json::json!({ "FormatVersion": "aws_v1", "PriceList": [entry("c5.large", "0.085")] })
        } else {
            serde_json::json!({
                "FormatVersion": "aws_v1",
                "PriceList": [entry("g4dn.xlarge", "0.526"), entry("p4d.24xlarge", "32.7726")],
                "NextToken": "more",
            })
        }
        .to_string();
        let reply = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.1\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        );
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
        got.clear();
    }
}

/// An image that moto has: its copy of the SSM parameters has none of ours.
const AMI: &str = "ami-1e749f67";

async fn provider(moto: &Server) -> Arc<dyn Provider> {
    provider_with(moto, serde_json::json!({ "ami": AMI })).await
}

async fn provider_with(moto: &Server, settings: serde_json::Value) -> Arc<dyn Provider> {
    provider_at(moto.address, Some(price_list().await), settings)
}

#[tokio::test]
async fn the_credentials_are_proved_by_a_call() {
    let Some(moto) = moto().await else { return };
    assert_eq!(provider(&moto).await.account().await.unwrap(), "123456789012");
}

#[tokio::test]
async fn offers_have_types_zones_and_both_prices() {
    let Some(moto) = moto().await else { return };
    let offers = provider(&moto).await.offers().await.unwrap();
    let named = |name: &str| offers.iter().find(|offer| offer.instance_type == name);
    let gpu = named("g4dn.xlarge").expect("moto has this type");
    assert_eq!(gpu.on_demand, Some("0.526".parse().unwrap()));
    let accelerators = gpu.accelerators.as_ref().unwrap();
    assert_eq!((accelerators.name.as_str(), accelerators.count), ("T4", 1.0));
    assert_eq!(accelerators.memory_gb, Some(16.0));
    assert_eq!(
        named("p4d.24xlarge")
            .unwrap()
            .accelerators
            .as_ref()
            .unwrap()
            .memory_gb,
        Some(40.0)
    );
    // The second page of the price list was read.
    assert_eq!(
        named("c5.large").unwrap().on_demand,
        Some("0.085".parse().unwrap())
    );
    let ids: BTreeSet<_> = offers.iter().map(|offer| &offer.id).collect();
    assert_eq!(ids.len(), offers.len());
    assert!(ids.iter().all(|id| {
        id.len() <= 63
            && id
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    }));
}

#[tokio::test]
async fn a_machine_is_ordered_found_and_returned_with_everything_around_it() {
    let Some(moto) = moto().await else { return };
    let provider = provider(&moto).await;
    let order = order("life", 0);
    let accepted = provider.create(&order).await.unwrap();
    let machine = reference(&order, Some(accepted.id.clone()));

    let found = provider.get(&machine).await.unwrap().expect("it exists");
    assert_eq!(
        (found.id.as_str(), &found.mark),
        (accepted.id.as_str(), &order.mark)
    );
    assert_eq!(found.phase, ProviderPhase::Running);
    let endpoint = found.endpoint.unwrap();
    assert_eq!(endpoint.user, "root");
    assert!(
        matches!(endpoint.dial, Dial::Address(address) if address.port() == 22),
        "{endpoint:?}"
    );
    assert!(found.private_address.is_some() && found.rental.billed_since.is_some());

    // By its mark alone, as after a lost answer.
    let unknown = reference(&order, None);
    assert_eq!(
        provider.get(&unknown).await.unwrap().map(|found| found.id),
        Some(accepted.id.clone())
    );
    let listed = provider.list(&scope(Some("life"))).await.unwrap();
    assert_eq!(
        listed.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(),
        [accepted.id.as_str()]
    );
    assert_eq!(provider.list(&scope(Some("other"))).await.unwrap(), []);

    let kinds: Vec<_> = provider
        .leftovers(&scope(Some("life")))
        .await
        .unwrap()
        .into_iter()
        .map(|left| left.kind)
        .collect();
    assert_eq!(kinds, ["launch template", "security group"]);

    deleted(&*provider, &machine, moment).await;
    assert_eq!(provider.list(&scope(Some("life"))).await.unwrap(), []);
    released(&*provider, "life", moment).await;
    assert_eq!(provider.leftovers(&scope(Some("life"))).await.unwrap(), []);
    released(&*provider, "life", moment).await;
}

#[tokio::test]
async fn a_spot_machine_is_ordered_with_its_ceiling() {
    let Some(moto) = moto().await else { return };
    let provider = provider(&moto).await;
    let order = Order {
        market: Market::Spot,
        max_hourly_cost: Some("0.5".parse().unwrap()),
        ..order("spot", 0)
    };
    let accepted = provider.create(&order).await.unwrap();
    let machine = reference(&order, Some(accepted.id));
    assert!(provider.get(&machine).await.unwrap().is_some());
    deleted(&*provider, &machine, moment).await;
}

#[tokio::test]
async fn machines_of_a_connected_pool_share_a_group_and_a_template() {
    let Some(moto) = moto().await else { return };
    let provider = provider(&moto).await;
    let orders: Vec<Order> = (0..4)
        .map(|slot| Order {
            pool: PoolShape {
                machines: 4,
                connected: true,
            },
            ..order("together", slot)
        })
        .collect();
    let ids = futures::future::try_join_all(orders.iter().map(|order| provider.create(order)))
        .await
        .unwrap();
    let ids: BTreeSet<_> = ids.into_iter().map(|accepted| accepted.id).collect();
    assert_eq!(ids.len(), 4);
    let listed = provider.list(&scope(Some("together"))).await.unwrap();
    assert_eq!(
        listed.iter().map(|one| one.id.clone()).collect::<BTreeSet<_>>(),
        ids
    );
    assert_eq!(
        provider.leftovers(&scope(Some("together"))).await.unwrap().len(),
        2
    );
}

#[tokio::test]
async fn what_never_existed_is_none_and_gone() {
    let Some(moto) = moto().await else { return };
    let provider = provider(&moto).await;
    let order = order("never", 0);
    for id in [None, Some("i-0123456789abcdef0".to_owned())] {
        let machine = reference(&order, id);
        assert_eq!(provider.get(&machine).await.unwrap(), None);
        assert_eq!(provider.delete(&machine).await.unwrap(), Deletion::Gone);
    }
}

#[tokio::test]
async fn an_image_that_is_not_published_is_named_with_the_remedy() {
    let Some(moto) = moto().await else { return };
    let provider = provider_with(&moto, serde_json::json!({ "ubuntuVersion": "18.04" })).await;
    let error = provider.create(&order("image", 0)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::InvalidOrder);
    assert!(
        error.message.contains("18.04") && error.message.contains("aws.ami"),
        "{error}"
    );
    assert!(!error.to_string().contains("canary"), "{error}");
}

#[tokio::test]
async fn who_does_not_answer_is_not_known_to_have_refused() {
    let Some(moto) = start() else { return };
    answers(&moto).await;
    let provider = provider(&moto).await;
    provider.create(&order("lost", 0)).await.unwrap();
    drop(moto);
    let error = provider.create(&order("lost", 1)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Indeterminate, "{error}");
    let error = provider.list(&scope(None)).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Transient, "{error}");
}
