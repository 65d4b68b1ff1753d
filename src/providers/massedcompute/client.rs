//! Massed Compute's endpoints as methods; nothing is decided here.

use std::time::Duration;

use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule},
    shared::{RestStore, SSH_KEYS, Written},
};

use super::wire::{Instance, Inventory, Told};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("massedcompute", "https://vm.massedcompute.com");

/// Massed Compute publishes no limit; this is the pace of careful clients.
pub const LIMITS: &[Rule] = &[Rule::account(Rate::every(Duration::from_secs(1)))];

/// The call that looks at one machine, in words.
pub const LOOK: &str = "look at the instance";
/// The call that ends a machine, in words.
pub const TERMINATE: &str = "terminate the instance";

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    /// Every machine of the account; the list has no pages.
    pub async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        let call = Call::get("list the instances", "/api/v1/instance");
        self.rest.list(call, List::one("/runningInstances")).await
    }

    /// One machine. Of an id that is not known the API says "not found", or shows no machine.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get(LOOK, "/api/v1/instance/{uuid}").with(id);
        let told: Option<Told> = self.rest.find(call).await?;
        Ok(told.and_then(|told| told.0.into_iter().find(|instance| instance.uuid == id)))
    }

    /// Orders a machine; answers with its id.
    pub async fn launch(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the instance", "/api/v1/instance/launch");
        self.rest.made(call.json(body).wanting("/response")).await
    }

    /// Orders the end of a machine and its disk.
    pub async fn terminate(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::post(TERMINATE, "/api/v1/instance/terminate");
        self.rest.done(call.json(json!({ "instanceUuids": [id] }))).await
    }

    /// What is sold now.
    pub async fn inventory(&self) -> Result<Inventory, ProviderError> {
        let call = Call::get("read the inventory", "/api/v1/gpu-inventory");
        self.rest.read(call.wanting("/gpu_inventory")).await
    }

    /// Keys of the account.
    pub fn keys(&self) -> Written {
        let store = RestStore {
            rest: self.rest.clone(),
            words: SSH_KEYS,
            path: "/api/v1/ssh-keys",
            entry: "/api/v1/ssh-keys/{id}",
            list: List::one("/sshKeys"),
            query: &[],
            content: "public_key",
            id: "/sshKey/id",
        };
        let body = |name: &str, key: &str| json!({ "name": name, "publicKey": key });
        Written { store, body }
    }
}
