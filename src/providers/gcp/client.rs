//! Compute Engine's endpoints as methods; nothing is decided here. What a call begins is an operation, which is
//! looked at by itself.

use async_trait::async_trait;
use serde_json::Value;
use skyward_core::{Endpoints, ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule},
    shared::{Store, Stored, Words},
};

use super::{
    errors,
    map::firewall,
    wire::{AcceleratorType, Instance, MachineType, Operation, Scope, Zone},
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
    pub async fn project(&self) -> Result<Value, ProviderError> {
        let call = Call::get("look at the project", "/compute/v1/projects/{project}");
        self.rest.read(call.with(&self.project)).await
    }

    /// The machines with our label in all zones, with the zones in which there are none.
    pub async fn instances(&self) -> Result<Vec<(String, Scope<Instance>)>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/aggregated/instances";
        let call = Call::get("list the instances", pattern).with(&self.project);
        let call = call.query("filter", OURS).query(PAGE.0, PAGE.1);
        self.rest.list(call, ZONES).await
    }

    /// Every machine of the project, likewise.
    pub async fn all_instances(&self) -> Result<Vec<(String, Scope<Instance>)>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/aggregated/instances";
        let call = Call::get("list the instances", pattern).with(&self.project);
        self.rest.list(call.query(PAGE.0, PAGE.1), ZONES).await
    }

    /// One machine, by its id or its name; an unknown one is an answer here.
    pub async fn instance(&self, zone: &str, id: &str) -> Result<Option<Instance>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/instances/{instance}";
        let call = Call::get("look at the instance", pattern).with(&self.project);
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
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/instances/{instance}";
        let call = Call::delete("delete the instance", pattern, &self.project);
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
        let call = Call::get("list the zones", "/compute/v1/projects/{project}/zones");
        let call = call.with(&self.project).query(PAGE.0, PAGE.1);
        self.rest.list(call, pages("/items")).await
    }

    /// Types of machines of a zone.
    pub async fn machine_types(&self, zone: &str) -> Result<Vec<MachineType>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/machineTypes";
        let call = Call::get("list the machine types", pattern).with(&self.project);
        let call = call.with(zone).query(PAGE.0, PAGE.1);
        self.rest.list(call, pages("/items").or_none()).await
    }

    /// Types of GPUs of a zone.
    pub async fn accelerator_types(&self, zone: &str) -> Result<Vec<AcceleratorType>, ProviderError> {
        let pattern = "/compute/v1/projects/{project}/zones/{zone}/acceleratorTypes";
        let call = Call::get("list the accelerator types", pattern).with(&self.project);
        let call = call.with(zone).query(PAGE.0, PAGE.1);
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
        let pattern = "/compute/v1/projects/{project}/global/firewalls";
        let call = Call::get(FIREWALLS.list, pattern).with(&self.0.project);
        let call = call.query(PAGE.0, PAGE.1);
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
        let pattern = "/compute/v1/projects/{project}/global/firewalls";
        let call = Call::post(FIREWALLS.add, pattern).with(&self.0.project);
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
