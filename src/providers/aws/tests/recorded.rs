//! Recorded answers of AWS, through the SDK's own reading of them. The answers are written from
//! AWS's documentation, with made-up ids.

use aws_sdk_ec2::{
    config::{BehaviorVersion, Credentials as Keys, Region, retry::RetryConfig},
    types::Reservation,
};
use aws_smithy_runtime_api::client::{
    http::{HttpConnector, HttpConnectorFuture, SharedHttpClient, SharedHttpConnector, http_client_fn},
    orchestrator::{HttpRequest, HttpResponse},
};
use aws_smithy_types::body::SdkBody;
use serde::Deserialize;
use serde_json::Value;
use skyward_core::{ProviderPhase, machine::FailureKind};

use skyward_provider_kit::http::Effect;

use crate::{
    answers::Compared,
    cloud::call,
    errors::{from_code, provider_error},
    map, question,
};

/// Gives one answer to every call.
#[derive(Clone, Debug)]
struct Recorded {
    status: u16,
    body: String,
}

impl HttpConnector for Recorded {
    fn call(&self, _: HttpRequest) -> HttpConnectorFuture {
        let status = self.status.try_into().unwrap();
        HttpConnectorFuture::ready(Ok(HttpResponse::new(status, SdkBody::from(self.body.clone()))))
    }
}

pub(crate) fn ec2(status: u16, body: &str) -> aws_sdk_ec2::Client {
    let recorded = Recorded {
        status,
        body: body.to_owned(),
    };
    let http: SharedHttpClient = http_client_fn(move |_, _| SharedHttpConnector::new(recorded.clone()));
    let config = aws_sdk_ec2::Config::builder()
        .behavior_version(BehaviorVersion::v2026_01_12())
        .region(Region::new("us-east-1"))
        .credentials_provider(Keys::new("AKIAEXAMPLE", "secret", None, None, "test"))
        .retry_config(RetryConfig::disabled())
        .http_client(http)
        .interceptor(Compared)
        .build();
    aws_sdk_ec2::Client::from_conf(config)
}

#[derive(Deserialize)]
struct Exchange {
    name: String,
    service: String,
    effect: String,
    status: u16,
    body: Value,
    kind: String,
    says: String,
}

#[tokio::test]
async fn each_recorded_failure_has_its_kind_and_remedy() {
    let recorded = include_str!("../../tests/fixtures/aws/errors.json");
    for exchange in serde_json::from_str::<Vec<Exchange>>(recorded).unwrap() {
        let name = &exchange.name;
        let error = if exchange.service == "ec2" {
            let client = ec2(exchange.status, exchange.body.as_str().unwrap());
            let answer = client.describe_instances().send().await.unwrap_err();
            let effect = match exchange.effect.as_str() {
                "creates" => Effect::Creates,
                "repeatable" => Effect::Repeatable,
                other => panic!("{name}: {other}"),
            };
            provider_error("create the instance", effect, &answer)
        } else {
            let body = exchange.body.to_string();
            let refusal = question::answer(false, None, body.as_bytes()).unwrap_err();
            let refusal = refusal.as_operation_error().unwrap();
            from_code(
                "look up the image",
                Effect::Repeatable,
                refusal.code().unwrap_or_default(),
                refusal.message().unwrap_or_default(),
                exchange.status,
            )
        };
        assert_eq!(error.kind.name(), exchange.kind, "{name}: {error}");
        assert!(error.to_string().contains(&exchange.says), "{name}: {error}");
        assert!(!error.to_string().contains("4HDjbg0yJ"), "{name}: {error}");
    }
}

#[tokio::test]
async fn recorded_instances_become_machines_and_those_of_others_do_not() {
    let client = ec2(200, include_str!("../../tests/fixtures/aws/instances.xml"));
    let answer = call("list the instances", client.describe_instances().send())
        .await
        .unwrap();
    let machines: Vec<_> = answer
        .reservations()
        .iter()
        .flat_map(Reservation::instances)
        .filter_map(|instance| map::machine(instance, "us-east-1"))
        .collect();
    let ids: Vec<&str> = machines.iter().map(|machine| machine.id.as_str()).collect();
    assert_eq!(ids, ["i-0aaaaaaaaaaaaaaa1", "i-0aaaaaaaaaaaaaaa2"]);
    assert_eq!(machines[0].phase, ProviderPhase::Running);
    assert_eq!(machines[0].mark.machine_uid, "c3a1f3a0-0");
    assert!(machines[0].endpoint.is_some());
    let ProviderPhase::Failed(failure) = &machines[1].phase else {
        panic!("{:?}", machines[1].phase);
    };
    assert_eq!(failure.kind, FailureKind::Reclaimed);
    assert_eq!(machines[1].mark.slot, 1);
}
