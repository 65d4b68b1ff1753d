//! The way to an instance: the proxy, the password, the ports.

use serde_json::{Value, json};

use super::{World, order, world};

const BLANK: [&str; 2] = ["", ""];

/// The command and the password that an instance tells.
fn told(instance: &Value) -> [&str; 2] {
    let ssh = &instance["connectComponentSSH"];
    ["sshCommand", "password"].map(|field| ssh[field].as_str().unwrap_or_default())
}

async fn listed(world: &World) -> Value {
    let listed = world.get("gpu/instances?pageSize=20&pageNum=0").await.json();
    listed["instances"][0].clone()
}

#[tokio::test]
async fn an_instance_runs_before_it_tells_the_way_to_its_ssh_and_tells_that_before_ssh_runs() {
    let world = world().await;
    let id = world.order(order()).await;
    assert_eq!(world.instance(&id).await["portMappings"], json!([]));
    world.0.advance(20);
    let early = world.instance(&id).await;
    assert_eq!((&early["status"], told(&early)), (&json!("running"), BLANK));
    world.0.advance(2);
    let later = world.instance(&id).await;
    let [command, password] = told(&later);
    assert!(
        command.starts_with("ssh -p 1") && command.contains(" root@"),
        "{command}"
    );
    assert_eq!(later["connectComponentSSH"]["isRunning"], false);
    let boot = world.sim().world(|world| world.machines[&id].boot.clone());
    assert_eq!(boot.password.as_deref(), Some(password));
    assert!(password.len() == 16 && boot.authorized_keys.is_empty());
    world.0.advance(2);
    assert_eq!(
        world.instance(&id).await["connectComponentSSH"]["isRunning"],
        true
    );
    assert_eq!(told(&listed(&world).await), told(&world.instance(&id).await));
    world.ask("stop", &id).await;
    assert_eq!(told(&world.instance(&id).await), BLANK);
    world.is_content();
}

#[tokio::test]
async fn each_instance_has_a_password_of_its_own() {
    let world = world().await;
    for _ in 0..2 {
        world.order(order()).await;
    }
    let passwords: std::collections::BTreeSet<_> = world.sim().world(|world| {
        let machines = world.machines.values();
        machines.map(|machine| machine.boot.password.clone()).collect()
    });
    assert!(
        passwords.len() == 2 && !passwords.contains(&None),
        "{passwords:?}"
    );
}

#[tokio::test]
async fn a_password_that_is_given_once_is_in_the_first_instance_that_is_read_and_in_no_list() {
    let world = world().await;
    world.forms(&["password-once"]);
    let id = world.running(order()).await;
    // What `running` read was the first.
    let [command, password] = told(&world.instance(&id).await).map(str::to_owned);
    assert!(!command.is_empty() && password.is_empty(), "{command} {password}");
    let other = world.order(order()).await;
    world.0.advance(20);
    assert_eq!(told(&world.instance(&other).await), BLANK, "it told nothing yet");
    world.0.advance(5);
    let all = world.get("gpu/instances?pageSize=20&pageNum=0").await.json();
    for instance in all["instances"].as_array().unwrap() {
        assert_eq!(told(instance)[1], "", "{instance}");
    }
    assert_ne!(told(&world.instance(&other).await)[1], "");
    assert_eq!(told(&world.instance(&other).await)[1], "");
    world.is_content();
}

#[tokio::test]
async fn the_password_may_stand_above_the_way_to_ssh() {
    let world = world().await;
    world.forms(&["password-above"]);
    let id = world.running(order()).await;
    let instance = world.instance(&id).await;
    assert_eq!(told(&instance)[1], "");
    assert_eq!(instance["sshPassword"].as_str().map(str::len), Some(16));
    world.is_content();
}

#[tokio::test]
async fn the_ports_of_an_order_are_mapped_by_the_proxy() {
    let world = world().await;
    let mut order = order();
    order["ports"] = "22/tcp,8888/http,9000/tcp".into();
    let id = world.running(order).await;
    let instance = world.instance(&id).await;
    let mapped = instance["portMappings"].as_array().unwrap();
    let ports: Vec<_> = mapped.iter().map(|port| (&port["port"], &port["type"])).collect();
    assert_eq!(
        ports,
        [
            (&json!(22), &json!("tcp")),
            (&json!(8888), &json!("http")),
            (&json!(9000), &json!("tcp"))
        ]
    );
    let endpoint = |place: usize| mapped[place]["endpoint"].as_str().unwrap();
    let [command, _] = told(&instance);
    let (port, host) = command
        .trim_start_matches("ssh -p ")
        .split_once(" root@")
        .unwrap();
    assert_eq!(endpoint(0), format!("{host}:{port}"));
    assert!(endpoint(1).starts_with("https://"), "{}", endpoint(1));
    world.is_content();
}
