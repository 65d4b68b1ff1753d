//! Orders: what they name, and where an instance is put.

use serde_json::{Value, json};

use super::{IMAGE, order, refusal, spot, usd, world};
use crate::backend::{SshWay, Start};
use crate::{Left, Market, Shelf};

#[tokio::test]
async fn an_order_is_put_where_hosts_have_the_cuda_version_that_it_asks_for() {
    let world = world().await;
    let cluster = async |order: Value| {
        let id = world.order(order).await;
        world.instance(&id).await["clusterName"].clone()
    };
    assert_eq!(cluster(order()).await, "US-CA-06", "12.9 is asked for");
    let mut older = order();
    older["minCudaVersion"] = "12.4".into();
    older["imageUrl"] = "nvidia/cuda:12.4.1-runtime-ubuntu22.04".into();
    assert_eq!(cluster(older).await, "EU-RO-01", "the first one has 12.4");
    let short = (400, "INSUFFICIENT_RESOURCE".to_owned());
    assert_eq!(world.refused("minCudaVersion", "13.1".into()).await, short);
    assert_eq!(
        world.refused("clusterId", "12".into()).await,
        short,
        "EU-RO-01 has hosts with 12.4"
    );
    world.is_content();
}

#[tokio::test]
async fn an_image_with_a_later_cuda_version_than_its_host_does_not_start() {
    let world = world().await;
    let mut order = order();
    order.as_object_mut().unwrap().remove("minCudaVersion");
    let id = world.order(order).await;
    world.0.advance(20);
    let instance = world.instance(&id).await;
    assert_eq!(
        (&instance["clusterName"], &instance["statusError"]["state"]),
        (&json!("EU-RO-01"), &json!("CREATE_CONTAINER_FAILED"))
    );
    world.is_content();
}

#[tokio::test]
async fn a_market_without_stock_or_with_too_few_gpus_at_once_is_a_shortage() {
    let world = world().await;
    let short = (400, "INSUFFICIENT_RESOURCE".to_owned());
    assert_eq!(world.refused("productId", "prod-l40s".into()).await, short);
    let mut many = order();
    many["productId"] = "prod-5090".into();
    many["gpuNum"] = 8.into();
    assert_eq!(refusal(&world.act("create", many).await), short);
    world.order(spot()).await;
    let shelf = Shelf::new("prod-4090", "US-CA-06", Market::Spot);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(0)));
    assert_eq!(refusal(&world.act("create", spot()).await), short);
    world.order(order()).await;
    world.is_content();
}

#[tokio::test]
async fn a_spot_price_alone_sells_nothing_and_nor_does_the_method_alone() {
    let world = world().await;
    for product in ["prod-5090", "prod-a100"] {
        let mut order = spot();
        order["productId"] = product.into();
        let refused = refusal(&world.act("create", order).await);
        assert_eq!(refused, (400, "INVALID_ARGUMENT".to_owned()), "{product}");
    }
    world.is_content();
}

#[tokio::test]
async fn an_order_names_a_product_a_cluster_a_disk_and_ports_that_there_are() {
    let world = world().await;
    let invalid = (400, "INVALID_ARGUMENT".to_owned());
    for (name, value) in [
        ("productId", json!("prod-none")),
        ("clusterId", json!("99")),
        ("rootfsSize", json!(501)),
        ("name", json!("pool_0")),
        ("ports", json!("2223/tcp")),
        ("ports", json!("22")),
        ("ports", json!("22/udp")),
        ("minCudaVersion", json!("latest")),
    ] {
        assert_eq!(
            world.refused(name, value.clone()).await,
            invalid,
            "{name} {value}"
        );
    }
    let many: Vec<String> = (8_000..8_016).map(|port| format!("{port}/http")).collect();
    assert_eq!(world.refused("ports", many.join(",").into()).await, invalid);
    for (name, value) in [
        ("kind", json!("cpu")),
        ("billingMode", json!("monthly")),
        ("imageAuth", json!("me:secret")),
        ("networkStorages", json!([{"Id": "n", "mountPoint": "/data"}])),
    ] {
        assert_eq!(world.refused(name, value).await.0, 501, "{name}");
    }
    assert_eq!(world.sim().world(|world| world.machines.len()), 0);
    world.is_content();
    assert_eq!(
        world.refused("colour", "red".into()).await,
        invalid,
        "the description"
    );
    assert_eq!(
        world.refused("ports", json!(["22/tcp"])).await,
        invalid,
        "it is a text"
    );
    assert!(!world.sim().violations().is_empty());
}

#[tokio::test]
async fn a_container_runs_its_command_beside_ssh_with_the_variables_of_its_order() {
    let world = world().await;
    let mut order = order();
    order["entrypoint"] = "/bin/sh -c".into();
    order["command"] = "'sleep infinity'".into();
    order["gpuNum"] = 2.into();
    let id = world.running(order).await;
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(
        boot.start,
        Start::OnStart("/bin/sh -c 'sleep infinity'".to_owned())
    );
    assert_eq!(
        (boot.user.as_str(), boot.ssh, boot.image.as_str(), boot.gpus.len()),
        ("root", SshWay::Mapped, IMAGE, 2)
    );
    assert_eq!(boot.env["POOL"], "p");
    assert!(boot.authorized_keys.is_empty());
    let price = world.sim().world(|world| world.machines[&id].price);
    assert_eq!(price, usd("0.7"));
    world.is_content();
}
