//! Vultr's endpoints as methods; nothing is decided here.

use std::{collections::BTreeSet, time::Duration};

use serde_json::Value;
use skyward_core::ProviderError;
use skyward_provider_kit::{
    http::{Call, List, Rate, Rest, Rule},
    shared::{RestStore, SSH_KEYS},
};

use super::{
    config::Mode,
    wire::{Instance, Plan},
};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("vultr", "https://api.vultr.com");

/// The largest pages that there are.
const PAGE: (&str, &str) = ("per_page", "500");

const fn pages(entries: &'static str) -> List {
    List::cursor(entries, "cursor", "/meta/links/next")
}

/// 30 calls a second for one address of the Internet, which other Providers of the operator may share.
pub const LIMITS: &[Rule] = &[Rule::account(Rate {
    calls: 15,
    window: Duration::from_secs(1),
})];

/// The words in which the APIs of virtual machines and of bare metal differ.
struct Words {
    path: &'static str,
    entry: &'static str,
    all: &'static str,
    one: &'static str,
    id: &'static str,
    plans: &'static str,
    all_plans: &'static str,
    /// Type of plans, in queries.
    plan_type: &'static str,
}

const fn words(mode: Mode) -> Words {
    match mode {
        Mode::Cloud => Words {
            path: "/v2/instances",
            entry: "/v2/instances/{id}",
            all: "/instances",
            one: "/instance",
            id: "/instance/id",
            plans: "/v2/plans",
            all_plans: "/plans",
            plan_type: "vcg",
        },
        Mode::BareMetal => Words {
            path: "/v2/bare-metals",
            entry: "/v2/bare-metals/{id}",
            all: "/bare_metals",
            one: "/bare_metal",
            id: "/bare_metal/id",
            plans: "/v2/plans-metal",
            all_plans: "/plans_metal",
            plan_type: "vbm",
        },
    }
}

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    /// The account: its rights and its money, and no id.
    pub async fn account(&self) -> Result<Value, ProviderError> {
        let call = Call::get("read the account", "/v2/account");
        self.rest.read(call.wanting("/account")).await
    }

    /// Every machine of one API.
    pub async fn instances(&self, mode: Mode) -> Result<Vec<Instance>, ProviderError> {
        let words = words(mode);
        let call = Call::get("list the instances", words.path).query(PAGE.0, PAGE.1);
        let all: Vec<Instance> = self.rest.list(call, pages(words.all)).await?;
        Ok(all
            .into_iter()
            .map(|instance| Instance { mode, ..instance })
            .collect())
    }

    /// One machine of one API; an unknown id is an answer here.
    pub async fn instance(&self, mode: Mode, id: &str) -> Result<Option<Instance>, ProviderError> {
        let words = words(mode);
        let call = Call::get("look at the instance", words.entry).with(id);
        let found: Option<Instance> = self.rest.find(call.wanting(words.one)).await?;
        Ok(found.map(|instance| Instance { mode, ..instance }))
    }

    /// Orders a machine; answers with its id.
    pub async fn create(&self, mode: Mode, body: Value) -> Result<String, ProviderError> {
        let words = words(mode);
        let call = Call::create("create the instance", words.path).json(body);
        self.rest.made(call.wanting(words.id)).await
    }

    /// Ends a machine.
    pub async fn delete(&self, mode: Mode, id: &str) -> Result<(), ProviderError> {
        let call = Call::delete("delete the instance", words(mode).entry, id);
        self.rest.done(call).await
    }

    /// Kinds of machines with their prices; of the virtual ones, those with GPUs.
    pub async fn plans(&self, mode: Mode) -> Result<Vec<Plan>, ProviderError> {
        let words = words(mode);
        let call = Call::get("list the plans", words.plans).query(PAGE.0, PAGE.1);
        let call = match mode {
            Mode::Cloud => call.query("type", words.plan_type),
            Mode::BareMetal => call,
        };
        let all: Vec<Plan> = self.rest.list(call, pages(words.all_plans)).await?;
        Ok(all.into_iter().map(|plan| Plan { mode, ..plan }).collect())
    }

    /// Ids of the plans that a region has now.
    pub async fn stock(&self, mode: Mode, region: &str) -> Result<BTreeSet<String>, ProviderError> {
        let call = Call::get("read the stock", "/v2/regions/{id}/availability").with(region);
        let call = call.query("type", words(mode).plan_type);
        self.rest.read(call.wanting("/available_plans")).await
    }

    /// Keys of the account.
    pub fn keys(&self) -> RestStore {
        RestStore {
            rest: self.rest.clone(),
            words: SSH_KEYS,
            path: "/v2/ssh-keys",
            entry: "/v2/ssh-keys/{id}",
            list: pages("/ssh_keys"),
            query: &[PAGE],
            content: "ssh_key",
            id: "/ssh_key/id",
        }
    }
}
