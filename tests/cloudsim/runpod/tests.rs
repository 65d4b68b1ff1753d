//! Tests with hand-written requests, after the facts about the cloud.

mod bids;
mod billing;
mod catalogue;
mod changes;
mod clients;
mod published;
mod rest;
mod sdk;
mod templates;
mod v1;
mod volumes;

use http::Method;
use serde_json::{Value, json};

use super::Runpod;
use crate::core::client::{Client, Reply};
use crate::core::sim::Sim;
use crate::{Account, Builder, Simulator};

pub(super) const GPU: &str = "NVIDIA GeForce RTX 4090";

pub(super) struct World {
    pub(super) simulator: Simulator,
    pub(super) client: Client,
}

pub(super) async fn world() -> World {
    let simulator = Builder::manual().cloud(Runpod::new()).start().await.unwrap();
    simulator
        .cloud("runpod")
        .world(|world| world.add_account(Account::with_key("acme", "rpa_key")));
    let client = Client::new(simulator.url("runpod")).with("authorization", "Bearer rpa_key");
    World { simulator, client }
}

pub(super) fn order(name: &str) -> Value {
    json!({
        "name": name, "image": "runpod/base:1.0.3-cuda1290-ubuntu2204", "gpu": {"id": GPU, "count": 1, "minCudaVersion": "12.8"},
        "cloud": "SECURE", "disk": 50, "mounts": {"persistent": {"size": 20, "path": "/workspace"}}, "ports": ["22/tcp"],
        "env": {"PUBLIC_KEY": "ssh-ed25519 AAAA test", "POOL": "p"}, "startSsh": true,
    })
}

pub(super) const RENT: &str = "mutation Rent($input: PodRentInterruptableInput!) { \
    podRentInterruptable(input: $input) { id desiredStatus costPerHr machine { dataCenterId } } }";

pub(super) fn bid(price: f64) -> Value {
    json!({
        "name": "s", "imageName": "runpod/base:1.0.3", "gpuTypeId": GPU, "gpuCount": 2, "cloudType": "SECURE",
        "containerDiskInGb": 50, "volumeInGb": 20, "volumeMountPath": "/workspace", "ports": "22/tcp",
        "env": [{"key": "PUBLIC_KEY", "value": "ssh-ed25519 AAAA test"}], "bidPerGpu": price,
    })
}

impl World {
    pub(super) fn sim(&self) -> &Sim {
        self.simulator.cloud("runpod")
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.client.get(path).await.unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: Value) -> Reply {
        self.client.json(Method::POST, path, body).await.unwrap()
    }

    pub(super) async fn patch(&self, path: &str, body: Value) -> Reply {
        self.client.json(Method::PATCH, path, body).await.unwrap()
    }

    /// The id of what a POST makes.
    pub(super) async fn made(&self, path: &str, body: Value) -> String {
        let reply = self.post(path, body).await;
        assert!(matches!(reply.status, 200 | 201), "{}", reply.body);
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    /// The data of a query by GraphQL that is not refused.
    pub(super) async fn asked(&self, query: &str) -> Value {
        let reply = self.graphql(query, json!({})).await;
        let body = reply.json();
        assert!(reply.status == 200 && body["errors"].is_null(), "{}", reply.body);
        body["data"].clone()
    }

    pub(super) async fn delete(&self, path: &str) -> Reply {
        self.client.call(Method::DELETE, path).await.unwrap()
    }

    pub(super) async fn graphql(&self, query: &str, variables: Value) -> Reply {
        self.post("/graphql", json!({"query": query, "variables": variables}))
            .await
    }

    /// Rents a pod and waits until it runs and has its port.
    pub(super) async fn running(&self, name: &str) -> String {
        let reply = self.post("/v2/pods", order(name)).await;
        assert_eq!(reply.status, 201, "{}", reply.body);
        self.simulator.advance(23);
        reply.json()["id"].as_str().unwrap().to_owned()
    }

    /// Rents a spot pod and waits until it runs.
    pub(super) async fn spot(&self, price: f64) -> String {
        let reply = self.graphql(RENT, json!({"input": bid(price)})).await;
        let id = reply.json()["data"]["podRentInterruptable"]["id"]
            .as_str()
            .map(str::to_owned);
        self.simulator.advance(23);
        id.unwrap_or_else(|| panic!("{}", reply.body))
    }

    pub(super) async fn pod(&self, id: &str) -> Value {
        self.get(&format!("/v2/pods/{id}")).await.json()
    }

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
