//! JarvisLabs' endpoints as methods; nothing is decided here. Each region has an API of its own, in which machines
//! are made and destroyed; lists and keys are at the first one for all regions.

use serde_json::Value;
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::http::{Call, List, Rest};

use super::{
    config::{Currency, REGIONS, Region, Settings},
    offers::Catalogue,
    wire::{self, Group, Machine},
};

/// Names of the addresses of all regions, and the cloud's own.
pub const ENDPOINTS: &[(&str, &str)] = &[REGIONS[0].api, REGIONS[1].api, REGIONS[2].api];

/// The call that looks at one machine.
pub const LOOK: &str = "look at the instance";
/// Fields of a key: its id, its name and itself.
pub const KEY: [&str; 3] = ["key_id", "key_name", "ssh_key"];
const DESTROY: &str = "destroy the instance";

/// The endpoints.
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
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

    /// Orders a machine of a region and a template; answers with its id.
    pub async fn create(&self, of: (&Region, &str), body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the instance", "/templates/{template}/create");
        let call = call.with(of.1).json(body).wanting("/machine_id");
        self.rest.made(self.rest.to(of.0.api.0, call)).await
    }

    /// Destroys a machine with its disk.
    pub async fn destroy(&self, machine: &Machine) -> Result<(), ProviderError> {
        let Some(region) = machine.region() else {
            let what = "it stands in a region whose address is not known. Destroy it in the console of JarvisLabs, or upgrade the operator";
            return Err(ProviderError::new(ErrorKind::Unsupported, DESTROY, what));
        };
        let of_vms = machine.is_vm().then_some("/templates/vm/destroy");
        let call = Call::post(DESTROY, of_vms.unwrap_or("/misc/destroy"));
        let call = call.query("machine_id", machine.id.to_string());
        self.rest.done(self.rest.to(region.api.0, call)).await
    }

    /// Groups of servers with what is free in them and what it costs.
    pub async fn catalogue(&self, settings: &Settings) -> Result<Catalogue, ProviderError> {
        let call = Call::get("list the servers", "/misc/server_meta");
        let servers: Vec<Group> = self.rest.list(call, List::one("/server_meta")).await?;
        let in_rupees = if let Some(currency) = settings.currency {
            currency == Currency::Inr
        } else {
            // The flag of success tells whether the account is billed in rupees, and no failure.
            let call = Call::get("read the currency", "/misc/");
            wire::success(&self.rest.flagged::<Value>(call).await?) == Some(true)
        };
        Ok(Catalogue {
            servers: servers.into_iter().map(|group| group.0).collect(),
            in_rupees,
            rate: settings.exchange_rate.clone(),
        })
    }
}
