//! JarvisLabs' endpoints as methods; nothing is decided here. Each region has an API of its own, in which machines
//! are made and destroyed; lists and keys are at the first one for all regions.

use serde_json::Value;
use skyward_core::ProviderError;
use skyward_provider_kit::{
    http::{Call, List, Rest},
    shared::{RestStore, SSH_KEYS, Unanswered},
};

use super::{
    config::{Currency, REGIONS, Region},
    errors,
    wire::Machine,
};

/// Name of the address of the first region, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("jarvislabs", "https://backendn.jarvislabs.net");
/// Those of all regions, in the order of [`REGIONS`].
pub const ENDPOINTS: &[(&str, &str)] = &[
    ENDPOINT,
    ("jarvislabs-in1", "https://backendc.jarvislabs.net"),
    ("jarvislabs-eu1", "https://backendeu.jarvislabs.net"),
];

/// The call that looks at one machine.
pub const LOOK: &str = "look at the instance";

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
    /// Addresses of the regions, in their order.
    pub addresses: Vec<String>,
}

impl Client {
    /// A call to the API of a region.
    fn there(&self, region: &Region, call: Call) -> Call {
        let mut all = REGIONS.iter().zip(&self.addresses);
        match all.find(|(one, _)| one.id == region.id) {
            Some((_, address)) => call.at(address),
            None => call,
        }
    }

    /// Every machine of the account, in all regions.
    pub async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        let call = Call::get("list the instances", "/users/fetch");
        self.rest.list(call, List::one("/instances")).await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn machine(&self, id: u64) -> Result<Option<Machine>, ProviderError> {
        let call = Call::get(LOOK, "/users/fetch/{id}").with(id.to_string());
        let found: Option<Option<Machine>> = self.rest.find(call.wanting("/instance")).await?;
        Ok(found.flatten())
    }

    /// Orders a machine of this template; answers with its id.
    pub async fn create(
        &self,
        region: &Region,
        template: &str,
        body: Value,
    ) -> Result<String, ProviderError> {
        let call = Call::create("create the instance", "/templates/{template}/create");
        let call = call.with(template).json(body).wanting("/machine_id");
        self.rest.made(self.there(region, call)).await
    }

    /// Destroys a machine with its disk.
    pub async fn destroy(&self, region: &Region, machine: &Machine) -> Result<(), ProviderError> {
        let pattern = if machine.is_vm() {
            "/templates/vm/destroy"
        } else {
            "/misc/destroy"
        };
        let call = Call::post("destroy the instance", pattern);
        let call = call.query("machine_id", machine.id.to_string());
        self.rest.done(self.there(region, call)).await
    }

    /// Groups of servers with what is free in them and what it costs.
    pub async fn servers(&self) -> Result<Vec<Value>, ProviderError> {
        let call = Call::get("list the servers", "/misc/server_meta");
        self.rest.list(call, List::one("/server_meta")).await
    }

    /// The currency that the account is billed in. The flag of success tells it, and no failure.
    pub async fn currency(&self) -> Result<Currency, ProviderError> {
        let answer = self.rest.any(Call::get("read the currency", "/misc/")).await?;
        if !answer.is_success() {
            return Err(errors::provider_error(&answer));
        }
        Ok(Currency::told(&answer.json()?))
    }

    /// The keys of the account, which JarvisLabs puts onto every new machine.
    pub fn keys(&self) -> Unanswered {
        let store = RestStore {
            rest: self.rest.clone(),
            words: SSH_KEYS,
            path: "/ssh/",
            entry: "/ssh/{key_id}",
            list: List::one(""),
            query: &[],
            content: "ssh_key",
            id: "",
        };
        Unanswered {
            store,
            id: "key_id",
            name: "key_name",
        }
    }
}
