//! RunPod's endpoints as methods; nothing is decided here. REST v1 is retired since
//! 15 November 2026 and not used.

use reqwest::Method;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError};
use skyward_provider_kit::http::{Call, Effect, Http, List, Rest};

use super::{
    errors::{graph_error, provider_error},
    wire::{
        Cpu, Cpus, DataCenter, DataCenters, Gpu, GpuType, GpuTypes, Gpus, Graph, Made, Pod, Registries,
        Registry, Rented, Who,
    },
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
    rest: Rest,
}

impl Client {
    /// A client over this transport.
    pub fn new(http: Http) -> Self {
        Self {
            rest: Rest::new(http, provider_error),
        }
    }

    async fn graph<T: DeserializeOwned>(
        &self,
        operation: &'static str,
        effect: Effect,
        query: &'static str,
        variables: Value,
    ) -> Result<T, ProviderError> {
        let call = Call::new(operation, Method::POST, "/graphql", effect)
            .json(json!({ "query": query, "variables": variables }));
        let answer = self.rest.ok(call).await?;
        // Errors are read first: a failed part is null inside `data`, which the type does not
        // allow.
        let graph: Graph<Value> = answer.json()?;
        if !graph.errors.is_empty() || graph.data.is_none() {
            return Err(graph_error(&answer, &graph.errors));
        }
        let graph: Graph<T> = answer.json()?;
        graph.data.ok_or_else(|| graph_error(&answer, &[]))
    }

    /// Id of the account.
    pub async fn who(&self) -> Result<String, ProviderError> {
        let who: Who = self
            .graph("look at the account", Effect::Repeatable, WHO, json!({}))
            .await?;
        who.myself.map(|myself| myself.id).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::Credentials,
                "look at the account",
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
        let call = Call::new("create the pod", Method::POST, "/v2/pods", Effect::Creates).json(body);
        self.rest.read::<Made>(call).await.map(|made| made.id)
    }

    /// Orders a spot pod; answers with its id.
    pub async fn rent(&self, input: Value) -> Result<String, ProviderError> {
        let rented: Rented = self
            .graph(
                "create the spot pod",
                Effect::Creates,
                RENT,
                json!({ "input": input }),
            )
            .await?;
        rented.pod.map(|pod| pod.id).ok_or_else(|| {
            ProviderError::new(
                ErrorKind::NoCapacity,
                "create the spot pod",
                "RunPod has no such spot machine now",
            )
        })
    }

    /// Ends a pod and its disks.
    pub async fn terminate(&self, id: &str) -> Result<(), ProviderError> {
        let call = Call::new(
            "delete the pod",
            Method::DELETE,
            "/v2/pods/{id}",
            Effect::Repeatable,
        )
        .with(id);
        self.rest.done(call).await
    }

    /// Kinds of GPUs with prices, and the stock for so many in one machine.
    pub async fn gpus(&self, cloud: &'static str, count: u32) -> Result<Vec<Gpu>, ProviderError> {
        let call = Call::get("list the GPUs", "/v2/catalog/gpus")
            .query("include", "AVAILABILITY")
            .query("product", "POD")
            .query("cloud", cloud)
            .query("count", count.to_string());
        self.rest.read::<Gpus>(call).await.map(|body| body.gpus)
    }

    /// Flavours of machines without GPUs.
    pub async fn cpus(&self) -> Result<Vec<Cpu>, ProviderError> {
        let call = Call::get("list the CPUs", "/v2/catalog/cpus")
            .query("include", "AVAILABILITY")
            .query("product", "POD");
        self.rest.read::<Cpus>(call).await.map(|body| body.cpus)
    }

    /// Data centers.
    pub async fn data_centers(&self) -> Result<Vec<DataCenter>, ProviderError> {
        let call = Call::get("list the data centers", "/v2/catalog/datacenters");
        self.rest
            .read::<DataCenters>(call)
            .await
            .map(|body| body.data_centers)
    }

    /// Stored registry credentials.
    pub async fn registries(&self) -> Result<Vec<Registry>, ProviderError> {
        let call = Call::get("list the registry credentials", "/v2/registries");
        self.rest
            .read::<Registries>(call)
            .await
            .map(|body| body.registries)
    }

    /// What one GPU of each kind costs on the spot market of a cloud.
    pub async fn spot_prices(&self, secure: bool) -> Result<Vec<GpuType>, ProviderError> {
        let variables = json!({ "secure": secure });
        self.graph::<GpuTypes>("read the spot prices", Effect::Repeatable, PRICES, variables)
            .await
            .map(|body| body.gpu_types)
    }

    /// What one GPU of this kind costs there now, in a machine of so many.
    pub async fn bid(&self, id: &str, count: u32, secure: bool) -> Result<Option<GpuType>, ProviderError> {
        let variables = json!({ "id": id, "count": count, "secure": secure });
        self.graph::<GpuTypes>("read the spot price", Effect::Repeatable, BID, variables)
            .await
            .map(|body| body.gpu_types.into_iter().find(|gpu| gpu.id == id))
    }
}
