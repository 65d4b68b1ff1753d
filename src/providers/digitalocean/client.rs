//! DigitalOcean's endpoints as methods; nothing is decided here.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule, pages::End},
    shared::{RestStore, SSH_KEYS, Store, Stored, Words},
};

use super::{
    map::{firewall, tag_of},
    wire::{Droplet, Size, Tag},
};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("digitalocean", "https://api.digitalocean.com");

/// The largest pages that there are.
const PAGE: (&str, &str) = ("per_page", "200");

/// A list in pages, which all say how many entries there are.
const fn pages(entries: &'static str) -> List {
    List::numbered(entries, "page", End::Total("/meta/total"))
}

/// 250 calls a minute and 5000 an hour for one token, which other programs may share.
pub const LIMITS: &[Rule] = &[
    Rule::account(Rate::per_minute(200)),
    Rule::account(Rate {
        calls: 4000,
        window: Duration::from_hours(1),
    }),
];

/// Firewalls, each with its tag.
pub const FIREWALLS: Words = Words {
    one: "firewall",
    list: "list the firewalls",
    add: "add the firewall",
    remove: "remove the firewall",
};

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    /// The account of the token: a user, and the team whose machines and bills these are.
    pub async fn account(&self) -> Result<Value, ProviderError> {
        let call = Call::get("read the account", "/v2/account");
        self.rest.read(call.wanting("/account")).await
    }

    /// Every machine with GPUs; machines without any stand in another list.
    pub async fn droplets(&self) -> Result<Vec<Droplet>, ProviderError> {
        let call = Call::get("list the Droplets", "/v2/droplets")
            .query("type", "gpus")
            .query(PAGE.0, PAGE.1);
        self.rest.list(call, pages("/droplets")).await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn droplet(&self, id: &str) -> Result<Option<Droplet>, ProviderError> {
        let call = Call::get("look at the Droplet", "/v2/droplets/{id}").with(id);
        self.rest.find(call.wanting("/droplet")).await
    }

    /// Orders a machine; answers with its id.
    pub async fn create(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the Droplet", "/v2/droplets").json(body);
        self.rest.made(call.wanting("/droplet/id")).await
    }

    /// Ends a machine.
    pub async fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::delete("delete the Droplet", "/v2/droplets/{id}", id);
        self.rest.done(call).await
    }

    /// Kinds of machines with their prices and the regions that have them now.
    pub async fn sizes(&self) -> Result<Vec<Size>, ProviderError> {
        let call = Call::get("list the sizes", "/v2/sizes").query(PAGE.0, PAGE.1);
        self.rest.list(call, pages("/sizes")).await
    }

    /// Every tag of the account.
    pub async fn tags(&self) -> Result<Vec<Tag>, ProviderError> {
        let call = Call::get("list the tags", "/v2/tags").query(PAGE.0, PAGE.1);
        self.rest.list(call, pages("/tags")).await
    }

    /// One tag.
    pub async fn tag(&self, name: &str) -> Result<Option<Tag>, ProviderError> {
        let call = Call::get("look at the tag", "/v2/tags/{id}").with(name);
        self.rest.find(call.wanting("/tag")).await
    }

    /// Removes a tag, also from what carries it.
    pub async fn remove_tag(&self, name: &str) -> Result<(), ProviderError> {
        let call = Call::delete("remove the tag", "/v2/tags/{id}", name);
        self.rest.done(call).await
    }

    /// Keys of the account.
    pub fn keys(&self) -> RestStore {
        RestStore {
            rest: self.rest.clone(),
            words: SSH_KEYS,
            path: "/v2/account/keys",
            entry: "/v2/account/keys/{id}",
            list: pages("/ssh_keys"),
            query: &[PAGE],
            content: "public_key",
            id: "/ssh_key/id",
        }
    }

    /// Firewalls of the account.
    pub fn firewalls(&self) -> Firewalls {
        Firewalls(RestStore {
            rest: self.rest.clone(),
            words: FIREWALLS,
            path: "/v2/firewalls",
            entry: "/v2/firewalls/{id}",
            list: pages("/firewalls"),
            query: &[PAGE],
            // A list shows no text of ours, which the name has a digest of.
            content: "",
            id: "/firewall/id",
        })
    }
}

/// Firewalls of the account. The content of one names what it lets in.
pub struct Firewalls(RestStore);

#[async_trait]
impl Store for Firewalls {
    fn words(&self) -> Words {
        FIREWALLS
    }

    async fn list(&self) -> Result<Vec<Stored>, ProviderError> {
        self.0.list().await
    }

    async fn add(&self, name: &str, content: &str) -> Result<String, ProviderError> {
        // A firewall can only name a tag that exists.
        let tag = Call::post("add the tag", "/v2/tags").json(json!({ "name": tag_of(name) }));
        match self.0.rest.done(tag).await {
            // If it was refused for another reason, so is the firewall.
            Err(error) if matches!(error.kind, ErrorKind::AlreadyExists | ErrorKind::InvalidOrder) => {}
            added => added?,
        }
        self.0.post(firewall(name, content)).await
    }

    async fn remove(&self, id: &str) -> Result<(), ProviderError> {
        self.0.remove(id).await
    }
}
