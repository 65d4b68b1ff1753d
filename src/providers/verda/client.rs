//! Verda's endpoints as methods; nothing is decided here.

use reqwest::Method;
use serde_json::{Value, json};
use skyward_core::{ProviderError, Secret};

use super::{
    errors::provider_error,
    wire::{ActionResult, Availability, Instance, InstanceType, Location, Script, SshKey, Volume},
};
use skyward_provider_kit::http::{Answer, Auth, Call, Effect, Http, Limits, Rate, Rest, Rule};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("verda", "https://api.verda.com");
/// Scripts in one page.
const PAGE: usize = 100;

/// Verda's limits: 500 calls a minute for a project, 60 for each method and path, 120
/// for the lists that everybody polls.
pub fn limits() -> Limits {
    Limits::new(vec![
        Rule::account(Rate::per_minute(500)),
        Rule::call("GET", "/v1/instances", Rate::per_minute(120)),
        Rule::call("GET", "/v1/volumes", Rate::per_minute(120)),
        Rule::each(Rate::per_minute(60)),
    ])
}

/// How calls are authorised.
pub fn auth(id: String, secret: Secret) -> Auth {
    Auth::client(
        "/v1/oauth2/token",
        id,
        secret,
        "Make a Cloud API credential in the console of Verda and write VERDA_CLIENT_ID and VERDA_CLIENT_SECRET into the Provider's Secret",
    )
}

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    rest: Rest,
}

/// What an action on a machine came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acted {
    /// It was accepted, or is so already.
    Done,
    /// It was refused, in these words.
    Refused(String),
}

impl Client {
    /// Over this way.
    pub fn new(http: Http) -> Self {
        Self {
            rest: Rest::new(http, provider_error),
        }
    }

    /// Every machine of the project.
    pub async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        self.rest
            .read(Call::get("list the instances", "/v1/instances"))
            .await
    }

    /// One machine; an unknown id is an answer here.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        self.rest
            .find(Call::get("look at the instance", "/v1/instances/{id}").with(id))
            .await
    }

    /// Orders a machine; answers with its id.
    pub async fn deploy(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::new(
            "create the instance",
            Method::POST,
            "/v1/instances",
            Effect::Creates,
        )
        .json(body);
        let answer = self.rest.ok(call).await?;
        id_of(&answer)
    }

    /// Orders the end of a machine with these volumes, for good.
    pub async fn delete(&self, id: &str, volumes: &[String]) -> Result<Acted, ProviderError> {
        let call = Call::new(
            "delete the instance",
            Method::PUT,
            "/v1/instances",
            Effect::Repeatable,
        )
        .json(deletion(id, volumes));
        let answer = self.rest.ok(call).await?;
        // 204: it is so already. 202 and 207 have a result for each machine.
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
        self.rest
            .read(Call::get("list the instance types", "/v1/instance-types").query("currency", "usd"))
            .await
    }

    /// What is in stock on one market.
    pub async fn availability(&self, spot: bool) -> Result<Vec<Availability>, ProviderError> {
        let call = Call::get("read the stock", "/v1/instance-availability");
        self.rest
            .read(call.query("is_spot", if spot { "true" } else { "false" }))
            .await
    }

    /// Locations.
    pub async fn locations(&self) -> Result<Vec<Location>, ProviderError> {
        self.rest
            .read(Call::get("list the locations", "/v1/locations"))
            .await
    }

    /// Keys of the project.
    pub async fn keys(&self) -> Result<Vec<SshKey>, ProviderError> {
        self.rest
            .read(Call::get("list the SSH keys", "/v1/ssh-keys"))
            .await
    }

    /// Adds a key. A second one of the same name does no harm: both are returned by name.
    pub async fn add_key(&self, name: &str, key: &str) -> Result<String, ProviderError> {
        let call = Call::new(
            "add the SSH key",
            Method::POST,
            "/v1/ssh-keys",
            Effect::Repeatable,
        )
        .json(json!({ "name": name, "key": key }));
        id_of(&self.rest.ok(call).await?)
    }

    /// Removes a key.
    pub async fn remove_key(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::new(
            "remove the SSH key",
            Method::DELETE,
            "/v1/ssh-keys/{id}",
            Effect::Repeatable,
        );
        self.rest.done(call.with(id)).await
    }

    /// Start-up scripts of the project, to the last page.
    pub async fn scripts(&self) -> Result<Vec<Script>, ProviderError> {
        let mut scripts = Vec::new();
        for page in 1_usize.. {
            let call = Call::get("list the start-up scripts", "/v1/scripts")
                .query("page", page.to_string())
                .query("pageSize", PAGE.to_string());
            let found: Vec<Script> = self.rest.read(call).await?;
            let last = found.len() < PAGE;
            scripts.extend(found);
            if last {
                break;
            }
        }
        Ok(scripts)
    }

    /// Adds a start-up script, as [`Self::add_key`] adds a key.
    pub async fn add_script(&self, name: &str, script: &str) -> Result<String, ProviderError> {
        let call = Call::new(
            "add the start-up script",
            Method::POST,
            "/v1/scripts",
            Effect::Repeatable,
        )
        .json(json!({ "name": name, "script": script }));
        id_of(&self.rest.ok(call).await?)
    }

    /// Removes a start-up script.
    pub async fn remove_script(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::new(
            "remove the start-up script",
            Method::DELETE,
            "/v1/scripts/{id}",
            Effect::Repeatable,
        );
        self.rest.done(call.with(id)).await
    }

    /// Disks that belong to no machine.
    pub async fn detached_volumes(&self) -> Result<Vec<Volume>, ProviderError> {
        self.rest
            .read(Call::get("list the volumes", "/v1/volumes").query("status", "detached"))
            .await
    }

    /// Deletes a disk, for good.
    pub async fn remove_volume(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::new(
            "delete the volume",
            Method::DELETE,
            "/v1/volumes/{id}",
            Effect::Repeatable,
        )
        .with(id)
        .json(json!({ "is_permanent": true }));
        self.rest.done(call).await
    }
}

/// The id that an answer is: JSON, a text in quotes, or a text without them.
fn id_of(answer: &Answer) -> Result<String, ProviderError> {
    let text = answer.text();
    let text = text.trim();
    let id = if text.starts_with(['{', '[']) {
        answer
            .maybe::<Value>()
            .and_then(|value| value.get("id")?.as_str().map(str::to_owned))
    } else {
        Some(text.trim_matches('"').to_owned())
    };
    id.filter(|id| !id.is_empty() && id.len() <= 128 && !id.contains(char::is_whitespace))
        .ok_or_else(|| answer.error(answer.lost(), "Verda answered without the id of what it made"))
}

/// The body that deletes a machine and these disks. None of them named deletes its own disk all
/// the same, into the trash; an empty list would keep it.
fn deletion(id: &str, volumes: &[String]) -> Value {
    let mut body = json!({ "action": "delete", "id": id, "delete_permanently": true });
    if !volumes.is_empty() {
        body["volume_ids"] = json!(volumes);
    }
    body
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use skyward_core::ErrorKind;

    use super::*;

    fn answer(body: &str) -> Answer {
        Answer::new("create the instance", Effect::Creates, "Verda", 202, body)
    }

    #[rstest]
    #[case("0dc16ed0-f7fb")]
    #[case("\"0dc16ed0-f7fb\"\n")]
    #[case("{\"id\":\"0dc16ed0-f7fb\"}")]
    fn an_id_is_read_in_each_form_that_was_seen(#[case] body: &str) {
        assert_eq!(id_of(&answer(body)).unwrap(), "0dc16ed0-f7fb");
    }

    #[rstest]
    #[case("")]
    #[case("{}")]
    #[case("<html> oops")]
    fn an_order_without_an_id_is_indeterminate(#[case] body: &str) {
        assert_eq!(id_of(&answer(body)).unwrap_err().kind, ErrorKind::Indeterminate);
    }

    #[test]
    fn no_deletion_asks_to_keep_the_disks() {
        assert_eq!(deletion("m", &["v".to_owned()])["volume_ids"], json!(["v"]));
        assert_eq!(deletion("m", &[]).get("volume_ids"), None);
    }
}
