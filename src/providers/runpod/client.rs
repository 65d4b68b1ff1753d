//! RunPod's endpoints as methods; nothing is decided here. REST v1 is retired since
//! 15 November 2026 and not used.

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::http::{Call, Effect, List, Rest};

use super::{
    errors::graph_error,
    wire::{Cpu, DataCenter, DataCenters, Gpu, GpuType, Graph, Id, Pod, Registry},
};

/// Name of the address, and the cloud's own.
pub const ENDPOINT: (&str, &str) = ("runpod", "https://api.runpod.io");

const WHO: &str = "query Who { myself { id } }";
const PRICES: &str = "query Prices($secure: Boolean!) { gpuTypes { id lowestPrice(input: { gpuCount: 1, secureCloud: $secure }) { minimumBidPrice uninterruptablePrice minVcpu minMemory stockStatus } } }";
const BID: &str = "query Bid($id: String!, $count: Int!, $secure: Boolean!) { gpuTypes(input: { id: $id }) { id lowestPrice(input: { gpuCount: $count, secureCloud: $secure }) { minimumBidPrice } } }";
const RENT: &str = "mutation Rent($input: PodRentInterruptableInput!) { podRentInterruptable(input: $input) { id desiredStatus costPerHr } }";

/// The endpoints.
#[derive(Clone, Debug)]
pub struct Client {
    /// The API.
    pub rest: Rest,
}

impl Client {
    async fn graph<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        effect: Effect,
        query: &'static str,
        variables: Value,
        wanted: &'static str,
    ) -> Result<T, ProviderError> {
        let call = Call::new(operation, Method::POST, "/graphql", effect)
            .json(json!({ "query": query, "variables": variables }));
        let call = if query.starts_with("query ") {
            call.reads()
        } else {
            call
        };
        let answer = self.rest.ok(call).await?;
        // Errors are read first: a failed part is null inside `data`, which the type does not
        // allow.
        let graph: Graph = answer.json()?;
        if !graph.errors.is_empty() || graph.data.is_none() {
            return Err(graph_error(&answer, &graph.errors));
        }
        answer.json_at(wanted)
    }

    /// Id of the account.
    pub async fn who(&self) -> Result<String, ProviderError> {
        let operation = "look at the account";
        let myself: Option<Id> = self
            .graph(operation, Effect::Repeatable, WHO, json!({}), "/data/myself")
            .await?;
        myself.map(|myself| myself.id).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::Credentials,
                operation,
                "RunPod knows no account for this key. Write another as RUNPOD_API_KEY into the Provider's Secret",
            )
        })
    }

    /// Every pod of the account, over all pages. RunPod's description has no pages, but its own
    /// tool reads them.
    pub async fn pods(&self) -> Result<Vec<Pod>, ProviderError> {
        let call = Call::get("list the pods", "/v2/pods").query("includeClusterPods", "true");
        let list = List::cursor("/pods", "cursor", "/pagination/nextCursor");
        self.rest.list(call, list.more("/pagination/hasNextPage")).await
    }

    /// One pod; an unknown id is an answer here.
    pub async fn pod(&self, id: &str) -> Result<Option<Pod>, ProviderError> {
        self.rest
            .find(Call::get("look at the pod", "/v2/pods/{id}").with(id))
            .await
    }

    /// Orders a pod on demand; answers with its id.
    pub async fn deploy(&self, body: Value) -> Result<String, ProviderError> {
        let call = Call::create("create the pod", "/v2/pods").json(body);
        let made: Id = self.rest.read(call).await?;
        Ok(made.id)
    }

    /// Orders a spot pod; answers with its id.
    pub async fn rent(&self, input: Value) -> Result<String, ProviderError> {
        let operation = "create the spot pod";
        let input = json!({ "input": input });
        let pod: Option<Id> = self
            .graph(
                operation,
                Effect::Creates,
                RENT,
                input,
                "/data/podRentInterruptable",
            )
            .await?;
        pod.map(|pod| pod.id).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::NoCapacity,
                operation,
                "RunPod has no such spot machine now",
            )
        })
    }

    /// Ends a pod and its disks.
    pub async fn terminate(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::delete("delete the pod", "/v2/pods/{id}", id);
        self.rest.done(call).await
    }

    /// Kinds of GPUs with prices, and the stock for so many in one machine.
    pub async fn gpus(&self, cloud: &'static str, count: u32) -> Result<Vec<Gpu>, ProviderError> {
        let call = Call::get("list the GPUs", "/v2/catalog/gpus")
            .query("include", "AVAILABILITY")
            .query("product", "POD")
            .query("cloud", cloud)
            .query("count", count.to_string());
        self.rest.read(call.wanting("/gpus")).await
    }

    /// Flavours of machines without GPUs.
    pub async fn cpus(&self) -> Result<Vec<Cpu>, ProviderError> {
        let call = Call::get("list the CPUs", "/v2/catalog/cpus")
            .query("include", "AVAILABILITY")
            .query("product", "POD");
        self.rest.read(call.wanting("/cpus")).await
    }

    /// Data centers.
    pub async fn data_centers(&self) -> Result<Vec<DataCenter>, ProviderError> {
        let call = Call::get("list the data centers", "/v2/catalog/datacenters");
        let body: DataCenters = self.rest.read(call).await?;
        Ok(body.data_centers)
    }

    /// Stored registry credentials.
    pub async fn registries(&self) -> Result<Vec<Registry>, ProviderError> {
        let call = Call::get("list the registry credentials", "/v2/registries");
        self.rest.read(call.wanting("/registries")).await
    }

    /// What one GPU of each kind costs on the spot market of a cloud.
    pub async fn spot_prices(&self, secure: bool) -> Result<Vec<GpuType>, ProviderError> {
        let variables = json!({ "secure": secure });
        self.gpu_types("read the spot prices", PRICES, variables).await
    }

    /// What one GPU of this kind costs there now, in a machine of so many.
    pub async fn bid(&self, id: &str, count: u32, secure: bool) -> Result<Option<GpuType>, ProviderError> {
        let variables = json!({ "id": id, "count": count, "secure": secure });
        let found = self.gpu_types("read the spot price", BID, variables).await?;
        Ok(found.into_iter().find(|gpu| gpu.id == id))
    }

    async fn gpu_types(
        &self,
        operation: &'static str,
        query: &'static str,
        variables: Value,
    ) -> Result<Vec<GpuType>, ProviderError> {
        self.graph(operation, Effect::Repeatable, query, variables, "/data/gpuTypes")
            .await
    }
}
