//! Three calls in JSON: the image at SSM, the price list, and quotas. Each would need a whole SDK crate for
//! one call, which costs minutes of compiling, so the requests are written here; the SDK's own
//! orchestrator does the hard parts (signatures, sources of credentials, clock skew, retries,
//! deadlines).

use aws_config::{BehaviorVersion, Region as Name, SdkConfig};
use aws_runtime::{
    auth::{
        SigV4OperationSigningConfig,
        sigv4::{SCHEME_ID, SigV4AuthScheme},
    },
    retries::classifiers::AwsErrorCodeClassifier,
    service_clock_skew::{ServiceClockSkewClassifier, ServiceClockSkewInterceptor},
};
use aws_smithy_runtime::client::{
    orchestrator::operation::Operation,
    retries::classifiers::{HttpStatusCodeClassifier, TransientErrorClassifier},
};
use aws_smithy_runtime_api::{
    box_error::BoxError,
    client::{
        auth::{AuthSchemeOptionResolverParams, static_resolver::StaticAuthSchemeOptionResolver},
        orchestrator::{HttpRequest, HttpResponse, OrchestratorError},
        result::SdkError,
        runtime_components::RuntimeComponentsBuilder,
        runtime_plugin::StaticRuntimePlugin,
    },
};
use aws_smithy_types::{body::SdkBody, config_bag::Layer, error::ErrorMetadata};
use aws_types::SigningName;
use serde_json::Value;

/// Which question.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Service that it is signed for.
    service: &'static str,
    /// Its name among the service's calls, as the header `x-amz-target` has it.
    target: &'static str,
}

/// Where the newest image is, at SSM.
pub const PARAMETER: Call = Call {
    service: "ssm",
    target: "AmazonSSM.GetParameter",
};
/// One page of the price list.
pub const PRICES: Call = Call {
    service: "pricing",
    target: "AWSPriceListService.GetProducts",
};
/// One page of the quotas of a region.
pub const QUOTAS: Call = Call {
    service: "servicequotas",
    target: "ServiceQuotasV20190624.ListServiceQuotas",
};

/// A question that can be asked again and again, at one region.
#[derive(Clone, Debug)]
pub struct Question(Operation<Value, Value, ErrorMetadata>);

impl Question {
    /// For the credentials, retries and deadlines of this configuration.
    pub fn new(
        config: &SdkConfig,
        version: BehaviorVersion,
        call: Call,
        region: &str,
        address: &str,
    ) -> Self {
        let mut layer = Layer::new("question");
        layer.store_put(SigV4OperationSigningConfig {
            region: Some(Name::new(region.to_owned()).into()),
            name: Some(SigningName::from_static(call.service)),
            ..SigV4OperationSigningConfig::default()
        });
        layer.store_put(AuthSchemeOptionResolverParams::new(()));
        let mut components = RuntimeComponentsBuilder::new("question")
            .with_auth_scheme(SigV4AuthScheme::new())
            .with_auth_scheme_option_resolver(Some(StaticAuthSchemeOptionResolver::new(vec![SCHEME_ID])))
            .with_interceptor(ServiceClockSkewInterceptor::new());
        if let Some(credentials) = config.credentials_provider() {
            components.set_identity_resolver(SCHEME_ID, credentials);
        }
        let mut builder = Operation::builder()
            .service_name(call.service)
            .operation_name(call.target)
            .behavior_version(version)
            .endpoint_url(address)
            .runtime_plugin(
                StaticRuntimePlugin::new()
                    .with_config(layer.freeze())
                    .with_runtime_components(components),
            )
            .retry_classifier(HttpStatusCodeClassifier::default())
            .retry_classifier(TransientErrorClassifier::<ErrorMetadata>::new())
            .retry_classifier(AwsErrorCodeClassifier::<ErrorMetadata>::new())
            .retry_classifier(ServiceClockSkewClassifier::<ErrorMetadata>::new());
        if let Some(retries) = config.retry_config() {
            builder = builder.standard_retry(retries);
        }
        if let Some(deadlines) = config.timeout_config() {
            builder = builder.timeout_config(deadlines.clone());
        }
        let operation = builder
            .serializer(move |input: Value| request(call, &input))
            .deserializer(|response: &HttpResponse| {
                let said = |name: &str| response.headers().get(name);
                answer(
                    response.status().is_success(),
                    said("x-amzn-errortype"),
                    response.body().bytes().unwrap_or_default(),
                )
            })
            .build();
        Self(operation)
    }

    /// Asks; the SDK's own error, as of its clients.
    pub async fn ask(&self, input: Value) -> Result<Value, SdkError<ErrorMetadata, HttpResponse>> {
        self.0.invoke(input).await
    }
}

fn request(call: Call, input: &Value) -> Result<HttpRequest, BoxError> {
    let mut request = HttpRequest::new(SdkBody::from(input.to_string()));
    request.set_method("POST")?;
    request.set_uri("/")?;
    let headers = request.headers_mut();
    headers.insert("content-type", "application/x-amz-json-1.1");
    headers.insert("x-amz-target", call.target);
    Ok(request)
}

/// Reads an answer; a refusal by its code, wherever the service writes it.
pub(crate) fn answer(
    success: bool,
    header: Option<&str>,
    body: &[u8],
) -> Result<Value, OrchestratorError<ErrorMetadata>> {
    let read: Result<Value, _> = serde_json::from_slice(body);
    if success {
        return read.map_err(|error| {
            OrchestratorError::response(
                format!("the answer is not the JSON that it should be: {error}").into(),
            )
        });
    }
    let said = read.unwrap_or_default();
    let text = |names: &[&str]| names.iter().find_map(|name| said[*name].as_str());
    let mut refusal = ErrorMetadata::builder();
    if let Some(code) = header.or_else(|| text(&["__type", "code"])) {
        // `com.amazonaws.ssm#ParameterNotFound:http://internal.amazon.com/…`
        let code = code.split(':').next().unwrap_or(code);
        refusal = refusal.code(code.rsplit('#').next().unwrap_or(code));
    }
    if let Some(message) = text(&["message", "Message", "errorMessage"]) {
        refusal = refusal.message(message);
    }
    Err(OrchestratorError::operation(refusal.build()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_question_is_json_that_names_its_call() {
        let request = request(PARAMETER, &json!({ "Name": "/a" })).unwrap();
        assert_eq!((request.method(), request.uri()), ("POST", "/"));
        assert_eq!(
            request.headers().get("x-amz-target"),
            Some("AmazonSSM.GetParameter")
        );
        assert_eq!(
            request.headers().get("content-type"),
            Some("application/x-amz-json-1.1")
        );
        assert_eq!(request.body().bytes(), Some(br#"{"Name":"/a"}"#.as_slice()));
    }

    #[test]
    fn a_refusal_is_told_by_its_code_wherever_that_is_written() {
        for (header, body) in [
            (None, json!({ "__type": "ParameterNotFound", "message": "no" })),
            (
                None,
                json!({ "__type": "com.amazonaws.ssm#ParameterNotFound", "Message": "no" }),
            ),
            (None, json!({ "code": "ParameterNotFound", "message": "no" })),
            (
                Some("ParameterNotFound:http://internal.amazon.com/coral/"),
                json!({ "message": "no" }),
            ),
        ] {
            let error = answer(false, header, body.to_string().as_bytes()).unwrap_err();
            let refusal = error.as_operation_error().unwrap();
            assert_eq!(
                (refusal.code(), refusal.message()),
                (Some("ParameterNotFound"), Some("no"))
            );
        }
        // A gateway's page has neither, and is judged by its status.
        let error = answer(false, None, b"<html>").unwrap_err();
        assert_eq!(error.as_operation_error().unwrap().code(), None);
    }

    #[test]
    fn an_answer_that_is_cut_short_is_no_answer() {
        assert_eq!(answer(true, None, br#"{"A":1}"#).unwrap(), json!({ "A": 1 }));
        assert!(answer(true, None, br#"{"A":"#).unwrap_err().is_response_error());
    }
}
