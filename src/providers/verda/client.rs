//! Verda's endpoints as methods; nothing is decided here.

use reqwest::Method;
use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_kit::{
    http::{Call, Effect, List, Rate, Rest, Rule, pages::End},
    shared::{RestStore, SCRIPTS, SSH_KEYS},
};

use super::wire::{ActionResult, Availability, Instance, InstanceType, Location, Volume};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("verda", "https://api.verda.com");
const INSTANCES: &str = "/v1/instances";
/// Scripts in one page.
const PAGE: usize = 100;

/// Verda's limits: 500 calls a minute for a project, 60 for each method and path, 120
/// for the lists that everybody polls.
pub const LIMITS: &[Rule] = &[
    Rule::account(Rate::per_minute(500)),
    Rule::call("GET", "/v1/instances", Rate::per_minute(120)),
    Rule::call("GET", "/v1/volumes", Rate::per_minute(120)),
    Rule::each(Rate::per_minute(60)),
];

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

/// The outcome of an action on a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acted {
    /// It was accepted, or was done already.
    Done,
    /// It was refused, in these words.
    Refused(String),
}

impl Client {
    /// Every machine of the project.
    pub async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        self.rest.read(Call::get("list the instances", INSTANCES)).await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get("look at the instance", "/v1/instances/{id}");
        self.rest.find(call.with(id)).await
    }

    /// Money of the project: `amount` and `currency`.
    pub async fn balance(&self) -> Result<Value, ProviderError> {
        self.rest.read(Call::get("read the balance", "/v1/balance")).await
    }

    /// Orders a machine; answers with its id, which is the whole answer or a field of it.
    pub async fn deploy(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the instance", INSTANCES).json(body);
        self.rest.made(call.wanting("/id")).await
    }

    /// Orders the end of a machine with these volumes, for good.
    pub async fn delete(&self, id: &str, volumes: &[String]) -> Result<Acted, ProviderError> {
        let call = Call::new("delete the instance", Method::PUT, INSTANCES, Effect::Repeatable);
        let answer = self.rest.ok(call.json(deletion(id, volumes))).await?;
        // 204: done already. 202 and 207 have a result for each machine.
        let results: Vec<ActionResult> = answer.maybe().unwrap_or_default();
        Ok(results
            .into_iter()
            .find(|result| result.status == "error")
            .map_or(Acted::Done, |result| {
                Acted::Refused(
                    result
                        .error
                        .unwrap_or_else(|| format!("status {:?}", result.status_code)),
                )
            }))
    }

    /// Kinds of machines with their prices.
    pub async fn types(&self) -> Result<Vec<InstanceType>, ProviderError> {
        let call = Call::get("list the instance types", "/v1/instance-types");
        self.rest.read(call.query("currency", "usd")).await
    }

    /// What is in stock on one market.
    pub async fn availability(&self, spot: bool) -> Result<Vec<Availability>, ProviderError> {
        let call = Call::get("read the stock", "/v1/instance-availability");
        self.rest.read(call.query("is_spot", spot.to_string())).await
    }

    /// Locations.
    pub async fn locations(&self) -> Result<Vec<Location>, ProviderError> {
        self.rest
            .read(Call::get("list the locations", "/v1/locations"))
            .await
    }

    /// Keys of the project.
    pub fn keys(&self) -> RestStore {
        RestStore {
            rest: self.rest.clone(),
            words: SSH_KEYS,
            path: "/v1/ssh-keys",
            entry: "/v1/ssh-keys/{id}",
            list: List::one(""),
            query: &[],
            content: "key",
            id: "/id",
        }
    }

    /// Start-up scripts of the project; lists do not show their text.
    pub fn scripts(&self) -> RestStore {
        RestStore {
            words: SCRIPTS,
            path: "/v1/scripts",
            entry: "/v1/scripts/{id}",
            list: List::numbered("", "page", End::Shorter(PAGE)),
            query: &[("pageSize", "100")],
            content: "script",
            ..self.keys()
        }
    }

    /// Disks that belong to no machine.
    pub async fn detached_volumes(&self) -> Result<Vec<Volume>, ProviderError> {
        let call = Call::get("list the volumes", "/v1/volumes");
        self.rest.read(call.query("status", "detached")).await
    }

    /// Deletes a disk, for good.
    pub async fn remove_volume(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::delete("delete the volume", "/v1/volumes/{id}", id);
        self.rest.done(call.json(json!({ "is_permanent": true }))).await
    }
}

/// The body that deletes a machine and these disks. Without names its own disk is deleted all the
/// same, into the trash; an empty list would keep it.
fn deletion(id: &str, volumes: &[String]) -> Value {
    let mut body = json!({ "action": "delete", "id": id, "delete_permanently": true });
    if !volumes.is_empty() {
        body["volume_ids"] = json!(volumes);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_deletion_asks_to_keep_the_disks() {
        assert_eq!(deletion("m", &["v".to_owned()])["volume_ids"], json!(["v"]));
        assert_eq!(deletion("m", &[]).get("volume_ids"), None);
    }
}
