//! Novita's endpoints as methods (its API of version 1); nothing is decided here.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::http::{Answer, Call, List, Rate, Rest, Rule, pages::End};

use super::wire::{Instance, Product};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("novita", "https://api.novita.ai");

/// No limit is published; other clients of Novita keep one second between two calls.
pub const LIMITS: &[Rule] = &[Rule::account(Rate::every(Duration::from_secs(1)))];

/// The call that ends a machine, in words.
const DELETE: &str = "delete the instance";

/// Path of the call that makes one.
const CREATE: &str = "/gpu-instance/openapi/v1/gpu/instance/create";

/// Machines in one page.
const PAGE: &str = "100";

/// Pages count from 0. A cloud that counts from 1 gives the same page for 0 and for 1.
const PAGES: List = List::numbered("/instances", "pageNum", End::Total("/total")).from_zero();

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    rest: Rest,
}

impl Client {
    /// A client of this API.
    pub fn new(rest: Rest) -> Self {
        Self {
            rest: rest.refused_when(is_refused),
        }
    }

    /// Every machine of the account, to the last page.
    pub async fn machines(&self) -> Result<Vec<Instance>, ProviderError> {
        let operation = "list the instances";
        let call = Call::get(operation, "/gpu-instance/openapi/v1/gpu/instances").query("pageSize", PAGE);
        let listed: Vec<Instance> = self.rest.list(call, PAGES).await?;
        let ids: BTreeSet<&str> = listed.iter().map(|machine| machine.id.as_str()).collect();
        if ids.len() < listed.len() || ids.contains("") {
            // With one machine twice another one may be missing.
            let what =
                "a machine has no id, or stands on two pages of Novita's list, which changes meanwhile";
            return Err(ProviderError::new(ErrorKind::Transient, operation, what));
        }
        Ok(listed)
    }

    /// One machine; an unknown id is an answer here.
    pub async fn machine(&self, id: &str) -> Result<Option<Instance>, ProviderError> {
        let call = Call::get("look at the instance", "/gpu-instance/openapi/v1/gpu/instance");
        match self.rest.ok(call.query("instanceId", id)).await {
            Ok(answer) => one(&answer),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Orders a machine; answers with its id.
    pub async fn create(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the instance", CREATE);
        let answer = self.rest.ok(call.json(body)).await?;
        answer.id("/id").or_else(|_| answer.id("/instanceId"))
    }

    /// Ends a machine and its disk.
    pub async fn delete(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::post(DELETE, "/gpu-instance/openapi/v1/gpu/instance/delete");
        self.rest.done(call.json(json!({ "instanceId": id }))).await
    }

    /// What is sold with so many GPUs in one machine, in this cluster or in all.
    pub async fn products(&self, count: u32, cluster: Option<&str>) -> Result<Vec<Product>, ProviderError> {
        let call = Call::get("list the products", "/gpu-instance/openapi/v1/products");
        let call = call.query("gpuNum", count.to_string()).wanting("/data");
        let call = cluster
            .into_iter()
            .fold(call, |call, id| call.query("clusterId", id));
        self.rest.read(call).await
    }
}

/// The machine in an answer, which may stand one level deeper. Of a machine that is gone an answer may be empty.
pub fn one(answer: &Answer) -> Result<Option<Instance>, ProviderError> {
    if answer.text().trim().is_empty() {
        return Ok(None);
    }
    let body: Value = answer.json()?;
    let places = ["", "/instance"];
    let place = places
        .into_iter()
        .find(|place| body.pointer(place).is_some_and(|found| is_said(&found["id"])));
    place.map(|place| answer.json_at(place)).transpose()
}

/// Whether an answer refuses, which Novita may do with a status of success. An answer that has what was asked for
/// refuses nothing, whatever is said beside it: a machine that was made is on the bill. What the answer to a deletion
/// says is not published, and the next look tells.
pub fn is_refused(answer: &Answer) -> bool {
    let says = |names: &[&str]| {
        let body: Value = answer.maybe().unwrap_or_default();
        names.iter().any(|name| is_said(&body[*name]))
    };
    let holds = || says(&["id", "instanceId", "instance", "instances", "data"]);
    let complains = || says(&["reason", "error"]) || answer.operation() != DELETE && says(&["message"]);
    !answer.is_success() || complains() && !holds()
}

fn is_said(value: &Value) -> bool {
    !value.is_null() && value != ""
}

#[cfg(test)]
#[path = "tests/client.rs"]
mod tests;
