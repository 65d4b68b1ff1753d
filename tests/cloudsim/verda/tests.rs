//! Tests with hand-written requests, after the facts about the cloud.

mod errors;
mod life;
mod market;
mod sdk;
mod volumes;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::Verda;
use crate::core::client::{Client, Reply};
use crate::core::sim::Sim;
use crate::{Account, Builder, Simulator};

/// A simulated Verda with one customer who holds a token.
pub(super) struct World {
    pub(super) simulator: Simulator,
    client: Mutex<Client>,
}

pub(super) async fn world() -> World {
    let simulator = Builder::manual().cloud(Verda::new()).start().await.unwrap();
    simulator
        .cloud("verda")
        .world(|world| world.add_account(Account::with_pair("acme", "id", "secret")));
    let client = login(&simulator, "id", "secret").await;
    World {
        simulator,
        client: Mutex::new(client),
    }
}

pub(super) async fn login(simulator: &Simulator, id: &str, secret: &str) -> Client {
    let client = Client::new(simulator.url("verda"));
    let grant = json!({"grant_type": "client_credentials", "client_id": id, "client_secret": secret});
    let reply = client
        .json(Method::POST, "/v1/oauth2/token", grant)
        .await
        .unwrap();
    assert_eq!(reply.status, 200, "{}", reply.body);
    let token = reply.json()["access_token"].as_str().unwrap().to_owned();
    client.with("authorization", &format!("Bearer {token}"))
}

/// The id in an answer that is an id alone, quoted or not.
pub(super) fn id(reply: &Reply) -> String {
    reply.body.trim().trim_matches('"').to_owned()
}

pub(super) fn order(hostname: &str) -> Value {
    json!({
        "instance_type": "1H100.80S.22V", "image": "ubuntu-24.04-cuda-13.0-open", "hostname": hostname,
        "location_code": "FIN-01", "tags": [{"key": "Pool", "value": "p"}],
        "os_volume": {"name": "os", "size": 100},
    })
}

pub(super) fn spot(hostname: &str, on_discontinue: &str) -> Value {
    let mut order = order(hostname);
    order["is_spot"] = true.into();
    order["os_volume"]["on_spot_discontinue"] = on_discontinue.into();
    order
}

impl World {
    pub(super) fn sim(&self) -> &Sim {
        self.simulator.cloud("verda")
    }

    /// Sends a request, null for no body, with a new token when the old one has ended.
    pub(super) async fn send(&self, method: Method, path: &str, body: Value) -> anyhow::Result<Reply> {
        let client = self.client.lock().clone();
        let once = async |client: &Client| match &body {
            Value::Null => client.call(method.clone(), path).await,
            body => client.json(method.clone(), path, body.clone()).await,
        };
        let reply = once(&client).await?;
        if reply.status != 401 {
            return Ok(reply);
        }
        let client = login(&self.simulator, "id", "secret").await;
        *self.client.lock() = client.clone();
        once(&client).await
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, Value::Null).await.unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Reply {
        self.send(Method::POST, path, body).await.unwrap()
    }

    pub(super) async fn put(&self, body: Value) -> Reply {
        self.send(Method::PUT, "/v1/instances", body).await.unwrap()
    }

    /// Orders an instance and waits until it runs.
    pub(super) async fn running(&self, order: Value) -> String {
        let reply = self.post("/v1/instances", order).await;
        assert_eq!(reply.status, 202, "{}", reply.body);
        self.simulator.advance(20);
        id(&reply)
    }

    pub(super) async fn instance(&self, id: &str) -> Value {
        self.get(&format!("/v1/instances/{id}")).await.json()
    }

    /// Neither a request nor an answer was other than described.
    pub(super) fn all_as_described(&self) {
        assert_eq!(self.sim().complaints(), Vec::<String>::new());
        let known = self.sim().known_calls();
        for entry in self.sim().requests() {
            assert!(
                known.iter().any(|call| call.name == entry.call),
                "{} is in no list of calls",
                entry.call
            );
        }
    }
}
