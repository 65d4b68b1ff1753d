//! Scaleway's endpoints as methods; nothing is decided here. Each zone has an API of its own.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_kit::http::{Call, Effect, List, Rate, Rest, Rule, pages::End};

use super::wire::{Disk, Image, Kind, Server};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("scaleway", "https://api.scaleway.com");

/// The largest pages that there are.
const PAGE: usize = 100;
const SIZE: &str = "100";

/// A list of the API of servers, whose bodies may not say how many entries there are.
const fn pages(entries: &'static str) -> List {
    List::numbered(entries, "page", End::Shorter(PAGE))
}

/// Scaleway publishes no limits; its support once named 100 calls a second.
pub const LIMITS: &[Rule] = &[Rule::account(Rate {
    calls: 25,
    window: Duration::from_secs(1),
})];

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
    /// The project whose servers and disks these are.
    pub project: String,
}

impl Client {
    /// Every server of a zone.
    pub async fn servers(&self, zone: &str) -> Result<Vec<Server>, ProviderError> {
        let call = Call::get("list the servers", "/instance/v1/zones/{zone}/servers").with(zone);
        let call = call.query("project", &*self.project).query("per_page", SIZE);
        self.rest.list(call, pages("/servers")).await
    }

    /// One server; an unknown id is an answer here.
    pub async fn server(&self, zone: &str, id: &str) -> Result<Option<Server>, ProviderError> {
        let call = Call::get("look at the server", "/instance/v1/zones/{zone}/servers/{id}");
        self.rest.find(call.with(zone).with(id).wanting("/server")).await
    }

    /// Makes a server that is switched off; answers with its id.
    pub async fn create(&self, zone: &str, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the server", "/instance/v1/zones/{zone}/servers");
        let call = call.with(zone).json(body).wanting("/server/id");
        self.rest.made(call).await
    }

    /// Writes what the server runs at its first boot.
    pub async fn boot_data(&self, zone: &str, id: &str, data: String) -> Result<(), ProviderError> {
        let pattern = "/instance/v1/zones/{zone}/servers/{id}/user_data/cloud-init";
        let call = Call::new("write the boot data", Method::PATCH, pattern, Effect::Repeatable);
        self.rest.done(call.with(zone).with(id).text(data)).await
    }

    /// Switches a server on (`poweron`), or ends it (`terminate`).
    pub async fn act(&self, zone: &str, id: &str, action: &str) -> Result<(), ProviderError> {
        let pattern = "/instance/v1/zones/{zone}/servers/{id}/action";
        let call = Call::post("switch the server", pattern);
        let call = call.with(zone).with(id).json(json!({ "action": action }));
        self.rest.done(call).await
    }

    /// Deletes a server that is switched off.
    pub async fn delete(&self, zone: &str, id: &str) -> Result<(), ProviderError> {
        let pattern = "/instance/v1/zones/{zone}/servers/{id}";
        let call = Call::delete("delete the server", pattern, zone).with(id);
        self.rest.done(call).await
    }

    /// Every disk in the block storage of a zone.
    pub async fn disks(&self, zone: &str) -> Result<Vec<Disk>, ProviderError> {
        let call = Call::get("list the disks", "/block/v1alpha1/zones/{zone}/volumes").with(zone);
        let call = call.query("project_id", &*self.project).query("page_size", SIZE);
        let list = List::numbered("/volumes", "page", End::Total("/total_count"));
        self.rest.list(call, list).await
    }

    /// Gives a disk its name and its tags; whether it is there.
    pub async fn name_disk(&self, zone: &str, id: &str, names: Value) -> Result<bool, ProviderError> {
        let pattern = "/block/v1alpha1/zones/{zone}/volumes/{id}";
        let call = Call::new("mark the disk", Method::PATCH, pattern, Effect::Repeatable);
        let named: Option<Value> = self.rest.find(call.with(zone).with(id).json(names)).await?;
        Ok(named.is_some())
    }

    /// Deletes a disk that no server has.
    pub async fn delete_disk(&self, zone: &str, id: &str) -> Result<(), ProviderError> {
        let pattern = "/block/v1alpha1/zones/{zone}/volumes/{id}";
        let call = Call::delete("delete the disk", pattern, zone).with(id);
        self.rest.done(call).await
    }

    /// Kinds of servers of a zone by name, with their prices.
    pub async fn kinds(&self, zone: &str) -> Result<Vec<(String, Kind)>, ProviderError> {
        let call = Call::get("list the types", "/instance/v1/zones/{zone}/products/servers");
        let call = call.with(zone).query("per_page", SIZE);
        self.rest.list(call, pages("/servers")).await
    }

    /// The stock of a zone by the names of the kinds: `availability` is `available`, `scarce` or `shortage`.
    pub async fn stock(&self, zone: &str) -> Result<Vec<(String, Value)>, ProviderError> {
        let pattern = "/instance/v1/zones/{zone}/products/servers/availability";
        let call = Call::get("read the stock", pattern).with(zone);
        self.rest
            .list(call.query("per_page", SIZE), pages("/servers"))
            .await
    }

    /// Public images of a zone.
    pub async fn images(&self, zone: &str) -> Result<Vec<Image>, ProviderError> {
        let call = Call::get("list the images", "/instance/v1/zones/{zone}/images").with(zone);
        let call = call.query("public", "true").query("arch", "x86_64");
        self.rest
            .list(call.query("per_page", SIZE), pages("/images"))
            .await
    }
}
