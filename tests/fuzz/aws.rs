//! The answers of AWS: XML through the SDK's own reading of it, the price list, and codes of errors.

use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use aws_sdk_ec2::{
    config::{BehaviorVersion, Credentials, Region, retry::RetryConfig},
    types::Reservation,
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn},
    orchestrator::{HttpRequest, HttpResponse},
};
use aws_smithy_types::body::SdkBody;
use serde_json::{Value, json};
use skyward_core::ProviderError;
use skyward_provider_aws::{
    answers,
    errors::{from_code, provider_error},
    map, offers, prices,
};
use skyward_provider_kit::http::{Effect, shape};
use tokio::runtime::{Builder, Runtime};

use crate::{
    clouds::offered,
    document::document,
    input::{Input, Maker},
};

const REGION: &str = "us-east-1";
const INSTANCES: &str = include_str!("../../src/providers/tests/fixtures/aws/instances.xml");
const TYPES: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeInstanceTypesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><instanceTypeSet><item>
<instanceType>g6.xlarge</instanceType><supportedUsageClasses><item>on-demand</item><item>spot</item></supportedUsageClasses>
<bareMetal>false</bareMetal><burstablePerformanceSupported>false</burstablePerformanceSupported>
<processorInfo><supportedArchitectures><item>x86_64</item></supportedArchitectures></processorInfo>
<vCpuInfo><defaultVCpus>4</defaultVCpus></vCpuInfo><memoryInfo><sizeInMiB>16384</sizeInMiB></memoryInfo>
<gpuInfo><gpus><item><name>L4</name><manufacturer>NVIDIA</manufacturer><count>1</count><gpuPartitionSize>0.125</gpuPartitionSize>
<logicalGpuCount>1</logicalGpuCount><memoryInfo><sizeInMiB>22888</sizeInMiB></memoryInfo></item></gpus>
<totalGpuMemoryInMiB>22888</totalGpuMemoryInMiB></gpuInfo>
<neuronInfo><neuronDevices><item><name>Trainium</name><count>1</count><memoryInfo><sizeInMiB>32768</sizeInMiB></memoryInfo></item></neuronDevices></neuronInfo>
</item></instanceTypeSet></DescribeInstanceTypesResponse>"#;

/// The answer to the next call.
#[derive(Clone, Debug, Default)]
struct Told(Arc<Mutex<(u16, Vec<u8>)>>);

impl HttpConnector for Told {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let (status, body) = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let status = status.try_into().expect("a status of HTTP");
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(body))))
    }
}

struct Ec2 {
    told: Told,
    client: aws_sdk_ec2::Client,
    runtime: Runtime,
}

static EC2: LazyLock<Ec2> = LazyLock::new(|| {
    let told = Told::default();
    let connector = told.clone();
    let http: SharedHttpClient = http_client_fn(move |_, _| SharedHttpConnector::new(connector.clone()));
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new(REGION))
        .credentials_provider(Credentials::new("AKIAEXAMPLE", "secret", None, None, "test"))
        .retry_config(RetryConfig::disabled())
        .http_client(http)
        .build();
    Ec2 {
        told,
        client: aws_sdk_ec2::Client::from_conf(config),
        runtime: Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime"),
    }
});

fn page() -> Value {
    let entry = json!({
        "product": { "attributes": { "instanceType": "g6.xlarge" } },
        "terms": { "OnDemand": { "a": { "priceDimensions": { "b": { "pricePerUnit": { "USD": "0.8048" } } } } } }
    });
    json!({ "FormatVersion": "aws_v1", "PriceList": [entry.to_string()], "NextToken": "more" })
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let failures: Value =
        serde_json::from_str(include_str!("../../src/providers/tests/fixtures/aws/errors.json"))
            .expect("a fixture is JSON");
    let texts = failures
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|failure| failure["body"].as_str());
    let mut all: Vec<Vec<u8>> = texts.map(|text| Maker::default().u8(0).u8(1).end(text)).collect();
    all.push(Maker::default().u8(0).u8(0).end(INSTANCES));
    all.push(Maker::default().u8(1).u8(0).end(TYPES));
    all.push(Maker::default().u8(2).end([0]));
    all.push(
        Maker::default()
            .u8(3)
            .u8(1)
            .sized("UnauthorizedOperation")
            .end("You are not authorized to perform: ec2:CreateFleet. Encoded authorization failure message: 4HDjbg0yJ"),
    );
    all
}

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    match input.u8() % 4 {
        0 => instances(input),
        1 => types(input),
        2 => listed(&input),
        _ => {
            let effect = input.one_of(&[Effect::Repeatable, Effect::Creates]);
            let code = input.text();
            let said = String::from_utf8_lossy(input.rest()).into_owned();
            failed(&from_code("create the instance", effect, &code, &said, 400));
        }
    }
}

/// Administrators can decode what AWS encodes in its refusals, so it is for them alone.
fn failed(error: &ProviderError) {
    let said = &error.message;
    assert!(!said.contains("Encoded authorization failure message:"), "{said}");
}

/// The next answer has this body, as `skyward check-provider` compares it.
fn tell(call: &str, mut input: Input<'_>) {
    let status = input.one_of(&[200, 400, 403, 500, 503]);
    let body = input.rest();
    let compared = shape::watched(async { answers::compare(call, body) });
    let _ = EC2.runtime.block_on(compared);
    let mut told = EC2.told.0.lock().unwrap_or_else(PoisonError::into_inner);
    *told = (status, body.to_vec());
}

fn instances(input: Input<'_>) {
    tell("DescribeInstances", input);
    let answer = EC2.runtime.block_on(EC2.client.describe_instances().send());
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            return failed(&provider_error("list the instances", Effect::Repeatable, &error));
        }
    };
    let all: Vec<_> = answer
        .reservations()
        .iter()
        .flat_map(Reservation::instances)
        .cloned()
        .collect();
    for instance in &all {
        let machine = map::machine(instance, REGION);
        assert!(machine.is_none() || map::mark(instance.tags()).is_some());
        let _ = (
            map::launched(instance),
            map::is_spot(instance),
            map::was_returned(instance),
        );
    }
    let _ = map::common_zone(&all, "c3a1f3a0-0");
}

fn types(input: Input<'_>) {
    tell("DescribeInstanceTypes", input);
    let answer = EC2.runtime.block_on(EC2.client.describe_instance_types().send());
    let Ok(answer) = answer else { return };
    let kinds: Vec<_> = answer.instance_types().iter().filter_map(offers::kind).collect();
    let zones = kinds
        .iter()
        .map(|kind| (kind.name.clone(), ["a".to_owned()].into()));
    let prices = kinds
        .iter()
        .map(|kind| (kind.name.clone(), skyward_core::Usd::cents(80)));
    offered(&offers::offers(
        REGION,
        &kinds,
        &zones.collect(),
        &prices.collect(),
        &offers::SpotPrices::new(),
        false,
    ));
}

/// A page of the price list.
fn listed(input: &Input<'_>) {
    let read = shape::watched(async { prices::page(document(input.0, &[page()])) });
    let Ok(page) = EC2.runtime.block_on(read).0 else {
        return;
    };
    let _ = prices::question(REGION, page.next.as_deref());
    for entry in &page.entries {
        if let Some((name, price)) = prices::price(entry) {
            assert!(!name.is_empty() && price > skyward_core::Usd::ZERO);
        }
    }
    // Entries are JSON in a text, which changes of the page do not reach.
    let entry: Value = page
        .entries
        .first()
        .and_then(|entry| serde_json::from_str(entry).ok())
        .unwrap_or_default();
    let changed = document(input.0, &[entry]);
    let _ = prices::price(&changed.to_string());
}
