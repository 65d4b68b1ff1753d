//! Vast.ai's endpoints as methods; nothing is decided here. Paths end in a slash, as its
//! own tool writes them: a redirect would lose the body.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_kit::http::{Answer, Call, Effect, List, Rate, Rest, Rule};

use super::{
    errors::provider_error,
    wire::{Ask, Failure, Instance, One, Ordered, Overlay},
};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("vastai", "https://console.vast.ai");
/// Machines in one page, the most there may be.
const PAGE: usize = 25;

const ASK: &str = "/api/v0/asks/{id}/";
const ONE: &str = "/api/v0/instances/{id}/";
const LIST: &str = "/api/v1/instances/";
const OVERLAY: &str = "/api/v0/overlay/";

/// Vast.ai demands a least time between two calls of one kind. The values were observed and are not
/// documented; a little is added.
pub const LIMITS: &[Rule] = &[
    Rule::call("PUT", ASK, every(4600)),
    Rule::call("DELETE", ONE, every(3100)),
    Rule::call("GET", ONE, every(2100)),
    Rule::call("GET", LIST, every(2100)),
    Rule::each(every(1100)),
];

const fn every(milliseconds: u64) -> Rate {
    Rate::every(Duration::from_millis(milliseconds))
}

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    rest: Rest,
}

impl Client {
    /// A client of this API.
    pub fn new(rest: Rest) -> Self {
        Self {
            rest: rest.refused_when(refused),
        }
    }

    /// Id of the account.
    pub async fn user(&self) -> Result<u64, ProviderError> {
        let call = Call::get("look at the account", "/api/v0/users/current/");
        self.rest.read(call.wanting("/id")).await
    }

    /// The account, with its money.
    pub async fn account(&self) -> Result<Value, ProviderError> {
        self.rest
            .read(Call::get("look at the account", "/api/v0/users/current/"))
            .await
    }

    /// What is for rent.
    pub async fn search(&self, query: Value) -> Result<Vec<Ask>, ProviderError> {
        let call = Call::post("search the offers", "/api/v0/bundles/")
            .reads()
            .json(query);
        self.rest.read(call.wanting("/offers")).await
    }

    /// Rents; answers with the id of the machine.
    pub async fn rent(&self, ask: u64, body: Value) -> Result<u64, ProviderError> {
        let call = Call::new("create the instance", Method::PUT, ASK, Effect::Creates)
            .with(ask.to_string())
            .json(body);
        let answer = self.rest.ok(call).await?;
        let ordered: Ordered = answer.json()?;
        ordered
            .new_contract
            .ok_or_else(|| answer.error(answer.lost(), "Vast.ai answered without the id of the instance"))
    }

    /// Every machine of the account, to the last page.
    pub async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        let call = Call::get("list the instances", LIST)
            .query("limit", PAGE.to_string())
            .query("order_by", json!([{ "col": "id", "dir": "asc" }]).to_string());
        let list = List::cursor("/instances", "after_token", "/next_token");
        self.rest.list(call, list).await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get("look at the instance", ONE)
            .with(id)
            .query("owner", "me");
        let found: Option<One> = self.rest.find(call).await?;
        Ok(found.and_then(|one| one.instances))
    }

    /// Destroys a machine and its disk.
    pub async fn destroy(&self, id: u64) -> Result<(), ProviderError> {
        let call = Call::delete("delete the instance", ONE, id.to_string());
        self.rest.done(call.json(json!({}))).await
    }

    /// Lets a key log in to one machine.
    pub async fn attach_key(&self, id: u64, key: &str) -> Result<(), ProviderError> {
        let call = Call::post("attach the SSH key", "/api/v0/instances/{id}/ssh/")
            .with(id.to_string())
            .json(json!({ "ssh_key": key }));
        let answer = self.rest.any(call).await?;
        let there = answer
            .maybe::<Failure>()
            .and_then(|failure| failure.msg)
            .is_some_and(|words| words.contains("already associated"));
        if answer.is_success() || there {
            Ok(())
        } else {
            Err(provider_error(&answer))
        }
    }
}

/// Overlay networks; none of these is in the official description.
impl Client {
    /// All networks of the account; `None` where Vast.ai has no such path. That says nothing about
    /// networks, but must not hold up a Pool either.
    pub async fn overlays(&self) -> Result<Option<Vec<Overlay>>, ProviderError> {
        self.rest.find(Call::get("list the overlays", OVERLAY)).await
    }

    /// Makes a network.
    pub async fn make_overlay(&self, name: &str, cluster: u64) -> Result<(), ProviderError> {
        let call =
            Call::create("create the overlay", OVERLAY).json(json!({ "cluster_id": cluster, "name": name }));
        self.rest.done(call).await
    }

    /// Puts a machine into a network.
    pub async fn join_overlay(&self, name: &str, instance: u64) -> Result<(), ProviderError> {
        let call = Call::new("join the overlay", Method::PUT, OVERLAY, Effect::Repeatable)
            .json(json!({ "name": name, "instance_id": instance }));
        self.rest.done(call).await
    }

    /// Deletes a network, *and every machine in it*.
    pub async fn remove_overlay(&self, name: &str) -> Result<(), ProviderError> {
        let call = Call::new("delete the overlay", Method::DELETE, OVERLAY, Effect::Repeatable)
            .json(json!({ "overlay_name": name }));
        self.rest.done(call).await
    }
}

/// Some refusals come as a success with `success: false`.
fn refused(answer: &Answer) -> bool {
    !answer.is_success()
        || answer
            .maybe::<Value>()
            .is_some_and(|body| body.get("success") == Some(&Value::Bool(false)))
}
