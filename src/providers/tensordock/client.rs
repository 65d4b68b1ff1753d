//! TensorDock's endpoints as methods; nothing is decided here.

use serde_json::Value;
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::http::{Call, Rate, Rest, Rule};

use super::wire::{self, Location, Machine};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("tensordock", "https://dashboard.tensordock.com");

const INSTANCES: &str = "/api/v2/instances";
const INSTANCE: &str = "/api/v2/instances/{id}";

const LIST: &str = "list the instances";
const LOOK: &str = "look at the instance";
/// The call that orders, in words.
pub const ORDER: &str = "create the instance";

/// 100 calls a minute for the organization, which another Provider may share.
pub const LIMITS: &[Rule] = &[Rule::account(Rate::per_minute(48))];

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    /// Every machine of the organization, some perhaps by id, name and status alone. There are no pages.
    pub async fn machines(&self) -> Result<Vec<Machine>, ProviderError> {
        let body = self.rest.read(Call::get(LIST, INSTANCES)).await?;
        wire::machines(&body).ok_or_else(|| odd(ErrorKind::Transient, LIST))
    }

    /// One machine; an unknown id is an answer here.
    pub async fn machine(&self, id: &str) -> Result<Option<Machine>, ProviderError> {
        let Some(body) = self.rest.find(Call::get(LOOK, INSTANCE).with(id)).await? else {
            return Ok(None);
        };
        let found = wire::machine(body).filter(|found| found.id == id);
        found.map(Some).ok_or_else(|| odd(ErrorKind::Transient, LOOK))
    }

    /// Orders a machine; answers with its id, and perhaps its name.
    pub async fn create(&self, body: Value) -> Result<Machine, ProviderError> {
        let body = self.rest.read(Call::create(ORDER, INSTANCES).json(body)).await?;
        wire::machine(body).ok_or_else(|| odd(ErrorKind::Indeterminate, ORDER))
    }

    /// Ends a machine, with its disk and its ports.
    pub async fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::delete("delete the instance", INSTANCE, id);
        self.rest.done(call).await
    }

    /// What is sold at each place.
    pub async fn locations(&self) -> Result<Vec<Location>, ProviderError> {
        let call = Call::get(wire::LOCATIONS, "/api/v2/locations");
        let told: Vec<Value> = self.rest.read(call.wanting("/data/locations")).await?;
        Ok(wire::locations(&told))
    }
}

/// The error of an answer without the machine that should be in it.
fn odd(kind: ErrorKind, operation: &'static str) -> ProviderError {
    let what = "TensorDock answered without the id of the machine, or with something unexpected beside it. If it stays so, its API changed: upgrade the operator";
    ProviderError::new(kind, operation, what)
}
