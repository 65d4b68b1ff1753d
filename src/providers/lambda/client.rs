//! Lambda's endpoints as methods; nothing is decided here.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule},
    shared::{RestStore, SSH_KEYS},
};

use super::wire::{Instance, Region, TypeItem};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("lambda", "https://cloud.lambda.ai");

const LAUNCH: &str = "/api/v1/instance-operations/launch";
const TERMINATE: &str = "/api/v1/instance-operations/terminate";
/// Pointer to the content of every success. There are no pages.
const DATA: &str = "/data";

/// One call a second, and one launch in twelve; a little is added.
pub const LIMITS: &[Rule] = &[
    Rule::account(Rate::every(Duration::from_millis(1100))),
    Rule::call("POST", LAUNCH, Rate::every(Duration::from_millis(12_500))),
];

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    /// Every machine of the account.
    pub async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        let call = Call::get("list the instances", "/api/v1/instances");
        self.rest.list(call, List::one(DATA)).await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get("look at the instance", "/api/v1/instances/{id}").with(id);
        self.rest.find(call.wanting(DATA)).await
    }

    /// Orders a machine; answers with its id.
    pub async fn launch(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the instance", LAUNCH).json(body);
        self.rest.made(call.wanting("/data/instance_ids/0")).await
    }

    /// Ends a machine.
    pub async fn terminate(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::post("delete the instance", TERMINATE);
        self.rest.done(call.json(json!({ "instance_ids": [id] }))).await
    }

    /// Kinds of machines with prices, and the regions that have some.
    pub async fn types(&self) -> Result<BTreeMap<String, TypeItem>, ProviderError> {
        let call = Call::get("list the instance types", "/api/v1/instance-types");
        self.rest.read(call.wanting(DATA)).await
    }

    /// Regions.
    pub async fn regions(&self) -> Result<Vec<Region>, ProviderError> {
        let call = Call::get("list the regions", "/api/v1/regions");
        self.rest.list(call, List::one(DATA)).await
    }

    /// Keys of the account. They are added with their text: without one Lambda would make a pair.
    pub fn keys(&self) -> RestStore {
        RestStore {
            rest: self.rest.clone(),
            words: SSH_KEYS,
            path: "/api/v1/ssh-keys",
            entry: "/api/v1/ssh-keys/{id}",
            list: List::one(DATA),
            query: &[],
            content: "public_key",
            id: "/data/id",
        }
    }
}
