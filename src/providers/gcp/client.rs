//! Compute Engine's endpoints as methods; nothing is decided here. What a call begins is an operation, which is
//! looked at by itself.

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;
use skyward_core::{Endpoints, ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule},
    shared::{Store, Stored, Words},
};

use super::{
    errors,
    map::firewall,
    wire::{AcceleratorType, Instance, MachineType, Operation, Place, Scope, Zone},
};

/// Name of the address of the API, and Google's own.
pub const ENDPOINT: (&str, &str) = ("gcp", "https://compute.googleapis.com");
/// The same of the server that gives a service account its tokens.
const TOKENS: (&str, &str) = ("gcp-token", "https://oauth2.googleapis.com");
/// The same of the metadata server.
const METADATA: (&str, &str) = ("gcp-metadata", "http://metadata.google.internal");
/// All of them.
pub const ENDPOINTS: &[(&str, &str)] = &[ENDPOINT, TOKENS, METADATA];
/// What tokens are good for: the rights of the service account say how far.
pub const SCOPE: &str = "https://www.googleapis.com/auth/compute";

/// The call that orders, in words.
pub const CREATE: &str = "create the instance";

/// Google allows some 1500 calls a minute for a project and region, which other programs share.
pub const LIMITS: &[Rule] = &[Rule::account(Rate::per_minute(600))];

/// The largest pages that there are.
const PAGE: (&str, &str) = ("maxResults", "500");
/// The machines of Skyward in a project.
const OURS: &str = "labels.managed-by=skyward";

/// The path of one machine.
const INSTANCE: &str = "/compute/v1/projects/{project}/zones/{zone}/instances/{instance}";
/// The path of all rules of firewalls.
const RULES: &str = "/compute/v1/projects/{project}/global/firewalls";

/// A list in pages. One without entries is left out.
const fn pages(entries: &'static str) -> List {
    List::cursor(entries, "pageToken", "/nextPageToken")
}

/// What all zones have, by their names.
const ZONES: List = pages("/items").whole_unless("/unreachables");

/// Rules of a network's firewall, each for the machines of one Pool.
pub const FIREWALLS: Words = Words {
    one: "firewall rule",
    list: "list the firewall rules",
    add: "add the firewall rule",
    remove: "remove the firewall rule",
};

/// Where a service account gets its tokens.
pub fn tokens(endpoints: &Endpoints) -> String {
    format!("{}/token", endpoints.or_own(TOKENS))
}

/// Where the metadata server gives tokens.
pub fn metadata(endpoints: &Endpoints) -> String {
    let path = "computeMetadata/v1/instance/service-accounts/default/token";
    format!("{}/{path}", endpoints.or_own(METADATA))
}

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
    /// The project that all calls are about.
    pub project: String,
}

impl Client {
    /// The project: its `id` is a number that it always has.
    pub async fn project<T: DeserializeOwned>(&self) -> Result<T, ProviderError> {
        let call = Call::get("look at the project", "/compute/v1/projects/{project}");
        self.rest.read(call.with(&self.project)).await
    }

    /// A list of what the project has, in pages.
    fn listing(&self, what: &'static str, pattern: &'static str) -> Call {
        Call::get(what, pattern).with(&self.project).query(PAGE.0, PAGE.1)
    }

    /// The regions with their quotas.
    pub async fn regions(&self) -> Result<Vec<Place>, ProviderError> {
        let call = self.listing("list the regions", "/compute/v1/projects/{project}/regions");
        self.rest.list(call, pages("/items")).await
    }

    /// The machines in all zones, with the zones in which there are none: those with our label, or every one.
    pub async fn instances(&self, every: bool) -> Result<Vec<(String, Scope<Instance>)>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/aggregated/instances";
        let call = self.listing("list the instances", pattern);
        let call = if every { call } else { call.query("filter", OURS) };
        self.rest.list(call, ZONES).await
    }

    /// One machine, by its id or its name; an unknown one is an answer here.
    pub async fn instance(&self, zone: &str, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get("look at the instance", INSTANCE).with(&self.project);
        self.rest.find(call.with(zone).with(id)).await
    }

    /// Orders a machine. The same request is answered by the same operation for an hour.
    pub async fn create(&self, zone: &str, request: &str, body: Value) -> Result<Operation, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/instances";
        let call = Call::create(CREATE, pattern).with(&self.project);
        let call = call.with(zone).query("requestId", request).json(body);
        self.rest.read(call).await
    }

    /// Ends a machine, by its id. Its disk and its address go with it.
    pub async fn delete(&self, zone: &str, id: &str) -> Result<(), ProviderError> {
        let call = Call::delete("delete the instance", INSTANCE, &self.project);
        self.rest.done(call.with(zone).with(id)).await
    }

    /// What became of a call about a zone; `None` for one that is forgotten.
    pub async fn operation(&self, zone: &str, name: &str) -> Result<Option<Operation>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/operations/{operation}";
        let call = Call::get("look at the operation", pattern).with(&self.project);
        self.rest.find(call.with(zone).with(name)).await
    }

    /// Zones of all regions.
    pub async fn zones(&self) -> Result<Vec<Zone>, ProviderError> {
        let call = self.listing("list the zones", "/compute/v1/projects/{project}/zones");
        self.rest.list(call, pages("/items")).await
    }

    /// Types of machines of a zone.
    pub async fn machine_types(&self, zone: &str) -> Result<Vec<MachineType>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/machineTypes";
        let call = self.listing("list the machine types", pattern).with(zone);
        self.rest.list(call, pages("/items").or_none()).await
    }

    /// Types of GPUs of a zone.
    pub async fn accelerator_types(&self, zone: &str) -> Result<Vec<AcceleratorType>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/acceleratorTypes";
        let call = self.listing("list the accelerator types", pattern).with(zone);
        self.rest.list(call, pages("/items").or_none()).await
    }
}

/// Rules of the firewalls of a project. The content of one says which network it is of and what it lets in.
pub struct Firewalls(pub Client);

#[async_trait]
impl Store for Firewalls {
    fn words(&self) -> Words {
        FIREWALLS
    }

    async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
        let call = self.0.listing(FIREWALLS.list, RULES);
        let rules: Vec<Value> = self.0.rest.list(call, pages("/items").or_none()).await?;
        let stored = |rule: &Value| {
            let name = rule["name"].as_str()?.to_owned();
            Some(Stored {
                id: name.clone(),
                name,
                content: rule["description"].as_str().map(str::to_owned),
            })
        };
        Ok(rules.iter().filter_map(stored).collect())
    }

    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
        let call = Call::post(FIREWALLS.add, RULES).with(&self.0.project);
        let begun: Operation = self.0.rest.read(call.json(firewall(name, content))).await?;
        let ended = if begun.is_done() {
            begun
        } else {
            // Google answers when it is done, or after some time. A rule that fails is told here, or by nobody.
            let pattern = "/compute/v1/projects/{project}/global/operations/{operation}/wait";
            let wait = Call::post(FIREWALLS.add, pattern).reads().with(&self.0.project);
            match self.0.rest.read(wait.with(&begun.name)).await {
                // Else nobody would learn why a rule is not there.
                Err(error) if error.kind == ErrorKind::Permission => return Err(error),
                // The next look at the rules tells.
                waited => waited.unwrap_or(begun),
            }
        };
        errors::of_operation(&ended, FIREWALLS.add).map_or(Ok(name.to_owned()), Err)
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        let pattern = "/compute/v1/projects/{project}/global/firewalls/{firewall}";
        let call = Call::delete(FIREWALLS.remove, pattern, &self.0.project);
        self.0.rest.done(call.with(id)).await
    }
}
