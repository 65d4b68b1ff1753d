//! Lists and what they filter, sizes, keys, tags, firewalls.

use serde_json::{Value, json};

use super::{KEY, order, refusal, world};
use crate::{Left, Market, Shelf};

#[tokio::test]
async fn sizes_tell_all_memory_of_their_gpus_and_the_regions_that_have_some() {
    let world = world().await;
    let sizes = async || {
        let listed = world.get("sizes?per_page=200").await.json();
        move |slug: &str| {
            let sizes = listed["sizes"].as_array().unwrap();
            sizes.iter().find(|size| size["slug"] == slug).unwrap().clone()
        }
    };
    let eight = sizes().await("gpu-h100x8-640gb");
    assert_eq!(
        eight["gpu_info"],
        json!({"count": 8, "model": "nvidia_h100", "vram": {"amount": 640, "unit": "gib"}})
    );
    assert_eq!(
        (&eight["price_hourly"], &eight["memory"]),
        (&json!(23.92), &json!(1_920 * 1_024))
    );
    assert_eq!(sizes().await("gpu-6000adax1-48gb")["regions"], json!([]));
    let plain = sizes().await("s-2vcpu-4gb");
    assert_eq!(plain["gpu_info"], Value::Null);
    assert_ne!(plain["price_hourly"], 0.04, "it went through 32 bits");

    let contracted = sizes().await("gpu-mi300x8-1536gb-contracted");
    assert_eq!(contracted["available"], true);
    let mut contract = order();
    contract["size"] = contracted["slug"].clone();
    contract["region"] = contracted["regions"][0].clone();
    assert_eq!(world.post("droplets", contract).await.status, 422);

    let shelf = Shelf::new("gpu-h100x1-80gb", "tor1", Market::OnDemand);
    world.sim().world(|world| world.stock.set(shelf, Left::Count(1)));
    assert_eq!(
        sizes().await("gpu-h100x1-80gb")["regions"],
        json!(["nyc2", "tor1"])
    );
    world.order(order()).await;
    assert_eq!(sizes().await("gpu-h100x1-80gb")["regions"], json!(["nyc2"]));
    let regions = world.get("regions").await.json();
    let toronto = regions["regions"]
        .as_array()
        .unwrap()
        .iter()
        .find(|region| region["slug"] == "tor1");
    assert!(
        !toronto.unwrap()["sizes"]
            .as_array()
            .unwrap()
            .contains(&json!("gpu-h100x1-80gb"))
    );
    world.is_content();
}

#[tokio::test]
async fn plain_lists_and_tags_find_no_droplet_with_gpus_and_pages_link_to_each_other() {
    let world = world().await;
    for number in 0..5 {
        let mut plain = order();
        plain["name"] = format!("plain-{number}").into();
        plain["size"] = "s-2vcpu-4gb".into();
        world.order(plain).await;
    }
    world.order(order()).await;
    for (query, count) in [
        ("", 5),
        ("?type=droplets", 5),
        ("?type=gpus", 1),
        ("?tag_name=pool:p", 5),
        ("?tag_name=other", 0),
        ("?name=plain-1", 1),
        ("?type=gpus&name=pool-0", 1),
    ] {
        assert_eq!(
            world.get(&format!("droplets{query}")).await.json()["meta"]["total"],
            count,
            "{query}"
        );
    }
    assert_eq!(world.get("droplets?tag_name=skyward&type=gpus").await.status, 422);

    let page = world.get("droplets?tag_name=skyward&per_page=2").await.json();
    let pages = &page["links"]["pages"];
    assert_eq!((&pages["first"], &pages["prev"]), (&Value::Null, &Value::Null));
    let next = pages["next"]
        .as_str()
        .unwrap()
        .strip_prefix(world.0.url("digitalocean"))
        .unwrap();
    assert_eq!(next, "/v2/droplets?page=2&tag_name=skyward&per_page=2");
    assert!(pages["last"].as_str().unwrap().contains("page=3&"));
    let second = world.1.get(next).await.unwrap().json();
    assert_eq!(second["droplets"].as_array().unwrap().len(), 2);
    assert_ne!(second["droplets"][0]["id"], page["droplets"][0]["id"]);
    let last = world
        .get("droplets?tag_name=skyward&per_page=2&page=3")
        .await
        .json();
    assert_eq!(last["links"]["pages"]["next"], Value::Null);
    assert!(
        last["links"]["pages"]["prev"]
            .as_str()
            .unwrap()
            .contains("page=2&")
    );
    world.is_content();
    assert_eq!(world.get("droplets?per_page=201").await.status, 422);
}

#[tokio::test]
async fn images_are_found_by_id_and_slug_and_none_is_an_application_or_private() {
    let world = world().await;
    let images = world.get("images?type=distribution").await.json();
    let slugs: Vec<&Value> = images["images"]
        .as_array()
        .unwrap()
        .iter()
        .map(|image| &image["slug"])
        .collect();
    assert!(slugs.contains(&&json!("gpu-h100x1-base")), "{slugs:?}");
    for query in ["type=application", "private=true", "tag_name=mine"] {
        assert_eq!(
            world.get(&format!("images?{query}")).await.json()["meta"]["total"],
            0,
            "{query}"
        );
    }
    let image = world.get("images/ubuntu-24-04-x64").await.json()["image"].clone();
    let by_id = world.get(&format!("images/{}", image["id"])).await.json();
    assert_eq!(by_id["image"], image);
    assert_eq!(world.get("images/none").await.status, 404);
    let mut numbered = order();
    numbered["image"] = image["id"].clone();
    assert_eq!(world.order(numbered).await["image"], image);
    world.is_content();
}

#[tokio::test]
async fn a_key_is_there_once_and_is_found_by_its_number_and_fingerprint() {
    let world = world().await;
    let key = json!({"name": "mine", "public_key": KEY});
    let made = world.post("account/keys", key.clone()).await;
    assert_eq!(made.status, 201, "{}", made.body);
    let made = made.json()["ssh_key"].clone();
    assert_eq!(made["fingerprint"].as_str().unwrap().split(':').count(), 16);
    let again = refusal(&world.post("account/keys", key).await);
    assert_eq!(
        again,
        (422, "SSH Key is already in use on your account".to_owned())
    );
    for named in [
        made["id"].to_string(),
        made["fingerprint"].as_str().unwrap().to_owned(),
    ] {
        let found = world.get(&format!("account/keys/{named}")).await.json();
        assert_eq!(found["ssh_key"], made, "{named}");
    }
    let mut order = order();
    order["ssh_keys"] = json!([made["fingerprint"]]);
    let id = world.order(order).await["id"].to_string();
    let keys = world
        .sim()
        .world(|world| world.machines[&id].boot.authorized_keys.clone());
    assert_eq!(keys, [KEY]);
    assert_eq!(
        world
            .post("account/keys", json!({"name": "n", "public_key": "text"}))
            .await
            .status,
        422
    );
    assert_eq!(
        world.delete(&format!("account/keys/{}", made["id"])).await.status,
        204
    );
    assert_eq!(
        world.delete(&format!("account/keys/{}", made["id"])).await.status,
        404
    );
    world.is_content();
}

#[tokio::test]
async fn tags_are_made_by_orders_keep_their_case_and_stay_until_they_are_deleted() {
    let world = world().await;
    let made = world.post("tags", json!({"name": "PROD"})).await;
    assert_eq!(
        (made.status, &made.json()["tag"]["resources"]["count"]),
        (201, &json!(0))
    );
    let mut tagged = order();
    tagged["tags"] = json!(["prod", "new"]);
    let droplet = world.order(tagged).await;
    assert_eq!(droplet["tags"], json!(["PROD", "new"]));
    let tags = world.get("tags").await.json();
    let names: Vec<&Value> = tags["tags"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tag| &tag["name"])
        .collect();
    assert_eq!(names, ["new", "PROD"]);
    assert_eq!(
        world.get("tags/PROD").await.json()["tag"]["resources"]["droplets"]["count"],
        1
    );
    assert_eq!(
        world.get("tags/prod").await.status,
        404,
        "only its own case names it"
    );
    world.0.advance(20);
    assert_eq!(
        world.delete(&format!("droplets/{}", droplet["id"])).await.status,
        204
    );
    world.0.advance(20);
    assert_eq!(world.get("tags/new").await.json()["tag"]["resources"]["count"], 0);

    let other = world.order(order()).await;
    assert_eq!(world.delete("tags/skyward").await.status, 204);
    assert_eq!(world.droplet(&other["id"]).await["tags"], json!(["pool:p"]));
    assert_eq!(world.delete("tags/skyward").await.status, 404);
    world.is_content();
}

#[tokio::test]
async fn a_firewall_names_tags_that_exist_and_is_set_after_a_while() {
    let world = world().await;
    let rule = json!({"protocol": "tcp", "ports": "22", "sources": {"addresses": ["0.0.0.0/0"]}});
    let mut firewall = json!({"name": "fw", "inbound_rules": [rule], "tags": ["pool-p"]});
    let refused = refusal(&world.post("firewalls", firewall.clone()).await);
    assert_eq!(refused, (422, "tag pool-p does not exist".to_owned()));
    world.post("tags", json!({"name": "pool-p"})).await;
    let made = world.post("firewalls", firewall.clone()).await;
    assert_eq!(made.status, 202, "{}", made.body);
    let made = made.json()["firewall"].clone();
    assert_eq!(
        (&made["status"], &made["tags"]),
        (&json!("waiting"), &json!(["pool-p"]))
    );
    world.0.advance(5);
    let id = made["id"].as_str().unwrap();
    let set = world.get(&format!("firewalls/{id}")).await.json();
    assert_eq!(set["firewall"]["status"], "succeeded");
    assert_eq!(world.get("firewalls").await.json()["firewalls"][0]["name"], "fw");
    assert_eq!(world.sim().meter(|meter| meter.leftovers("acme").len()), 1);
    firewall["inbound_rules"] = json!([]);
    assert_eq!(world.post("firewalls", firewall).await.status, 422);
    assert_eq!(world.delete(&format!("firewalls/{id}")).await.status, 204);
    assert_eq!(world.delete(&format!("firewalls/{id}")).await.status, 404);
    world.is_content();
}
