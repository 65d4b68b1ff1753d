//! Lambda's endpoints as methods; nothing is decided here.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use skyward_core::ProviderError;

use super::{
    errors::provider_error,
    wire::{Data, Instance, Launched, Region, SshKey, TypeItem},
};
use skyward_provider_kit::http::{Call, Effect, Http, Limits, Rate, Rest, Rule};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("lambda", "https://cloud.lambda.ai");

const LAUNCH: &str = "/api/v1/instance-operations/launch";

/// One call a second, and one launch in twelve; a little is added.
pub fn limits() -> Limits {
    Limits::new(vec![
        Rule::account(Rate::every(Duration::from_millis(1100))),
        Rule::call("POST", LAUNCH, Rate::every(Duration::from_millis(12_500))),
    ])
}

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    rest: Rest,
}

impl Client {
    /// Over this way.
    pub fn new(http: Http) -> Self {
        Self {
            rest: Rest::new(http, provider_error),
        }
    }

    /// Every machine of the account.
    pub async fn instances(&self) -> Result<Vec<Instance>, ProviderError> {
        let call = Call::get("list the instances", "/api/v1/instances");
        self.rest.read::<Data<_>>(call).await.map(|body| body.data)
    }

    /// One machine; an unknown id is an answer here.
    pub async fn instance(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get("look at the instance", "/api/v1/instances/{id}").with(id);
        let found: Option<Data<Instance>> = self.rest.find(call).await?;
        Ok(found.map(|body| body.data))
    }

    /// Orders a machine; answers with its id.
    pub async fn launch(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::new("create the instance", Method::POST, LAUNCH, Effect::Creates).json(body);
        let answer = self.rest.ok(call).await?;
        let launched: Data<Launched> = answer.json()?;
        let mut ids = launched.data.instance_ids.into_iter();
        ids.next()
            .ok_or_else(|| answer.error(answer.lost(), "Lambda answered without the id of what it made"))
    }

    /// Ends a machine.
    pub async fn terminate(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::new(
            "delete the instance",
            Method::POST,
            "/api/v1/instance-operations/terminate",
            Effect::Repeatable,
        );
        self.rest.done(call.json(json!({ "instance_ids": [id] }))).await
    }

    /// Kinds of machines with prices, and the regions that have some.
    pub async fn types(&self) -> Result<BTreeMap<String, TypeItem>, ProviderError> {
        let call = Call::get("list the instance types", "/api/v1/instance-types");
        self.rest.read::<Data<_>>(call).await.map(|body| body.data)
    }

    /// Regions.
    pub async fn regions(&self) -> Result<Vec<Region>, ProviderError> {
        let call = Call::get("list the regions", "/api/v1/regions");
        self.rest.read::<Data<_>>(call).await.map(|body| body.data)
    }

    /// Keys of the account.
    pub async fn keys(&self) -> Result<Vec<SshKey>, ProviderError> {
        let call = Call::get("list the SSH keys", "/api/v1/ssh-keys");
        self.rest.read::<Data<_>>(call).await.map(|body| body.data)
    }

    /// Adds a key. Always with its text: without one Lambda would make a pair.
    pub async fn add_key(&self, name: &str, key: &str) -> Result<String, ProviderError> {
        let call = Call::new(
            "add the SSH key",
            Method::POST,
            "/api/v1/ssh-keys",
            Effect::Repeatable,
        )
        .json(json!({ "name": name, "public_key": key }));
        let added: Data<SshKey> = self.rest.read(call).await?;
        Ok(added.data.id)
    }

    /// Removes a key.
    pub async fn remove_key(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::new(
            "remove the SSH key",
            Method::DELETE,
            "/api/v1/ssh-keys/{id}",
            Effect::Repeatable,
        );
        self.rest.done(call.with(id)).await
    }
}
