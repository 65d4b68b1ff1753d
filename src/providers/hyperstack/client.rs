//! Hyperstack's endpoints as methods; nothing is decided here.

use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule, pages::End},
    shared::{RestStore, SSH_KEYS, Words, Written},
};

use super::wire::{Flavor, Group, Image, Machine, Price};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("hyperstack", "https://infrahub-api.nexgencloud.com");

/// 500 calls a minute for one address of the Internet, which other Providers of the operator may share.
pub const LIMITS: &[Rule] = &[Rule::account(Rate::per_minute(240))];

/// Without it a page has ten entries.
const PAGE: (&str, &str) = ("pageSize", "100");

/// A list in pages, which all have a count: whether of all entries or of their own is not published.
const fn pages(entries: &'static str) -> List {
    List::numbered(entries, "page", End::Counted("/count", 100))
}

/// Environments, each with its region.
pub const ENVIRONMENTS: Words = Words {
    one: "environment",
    list: "list the environments",
    add: "add the environment",
    remove: "remove the environment",
};

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    /// Every machine of the organization.
    pub async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        let call = Call::get("list the virtual machines", "/v1/core/virtual-machines");
        let call = call.query(PAGE.0, PAGE.1);
        self.rest.list(call, pages("/instances")).await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn machine(&self, id: &str) -> Result<Option<Machine>, ProviderError> {
        let call = Call::get("look at the virtual machine", "/v1/core/virtual-machines/{id}");
        self.rest.find(call.with(id).wanting("/instance")).await
    }

    /// Orders a machine; answers with its id.
    pub async fn create(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the virtual machine", "/v1/core/virtual-machines");
        self.rest.made(call.json(body).wanting("/instances/0/id")).await
    }

    /// Ends a machine. Its public address and its disk go with it.
    pub async fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let pattern = "/v1/core/virtual-machines/{id}";
        let call = Call::delete("delete the virtual machine", pattern, id);
        self.rest.done(call).await
    }

    /// Kinds of machines in all regions.
    pub async fn flavors(&self) -> Result<Vec<Group<Flavor>>, ProviderError> {
        let call = Call::get("list the flavors", "/v1/core/flavors");
        self.rest.read(call.wanting("/data")).await
    }

    /// What an hour of each resource costs.
    pub async fn prices(&self) -> Result<Vec<Price>, ProviderError> {
        let call = Call::get("read the price book", "/v1/pricebook");
        self.rest.read(call).await
    }

    /// Images of a region.
    pub async fn images(&self, region: &str) -> Result<Vec<Group<Image>>, ProviderError> {
        let call = Call::get("list the images", "/v1/core/images").query("region", region);
        let call = call.query("include_public", "true");
        self.rest.read(call.wanting("/images")).await
    }

    /// The network of an environment (`cidr`), and how many machines it may have.
    pub async fn network(&self, environment: &str) -> Result<Value, ProviderError> {
        let pattern = "/v1/core/environments/{id}/vm-quota";
        let call = Call::get("read the network", pattern).with(environment);
        self.rest.read(call).await
    }

    /// Environments of the organization. The content of one is its region.
    pub fn environments(&self) -> RestStore {
        RestStore {
            rest: self.rest.clone(),
            words: ENVIRONMENTS,
            path: "/v1/core/environments",
            entry: "/v1/core/environments/{id}",
            list: pages("/environments"),
            query: &[PAGE],
            content: "region",
            id: "/environment/id",
        }
    }

    /// Keys in all environments of the organization. The last word of one, its comment, names its environment.
    pub fn keys(&self) -> Written {
        let store = RestStore {
            words: SSH_KEYS,
            path: "/v1/core/keypairs",
            // It has another path than the others.
            entry: "/v1/core/keypair/{id}",
            list: pages("/keypairs"),
            content: "public_key",
            id: "/keypair/id",
            ..self.environments()
        };
        let body = |name: &str, key: &str| {
            let environment = key.rsplit(' ').next();
            json!({ "name": name, "environment_name": environment, "public_key": key })
        };
        Written { store, body }
    }
}
