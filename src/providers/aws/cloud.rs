//! The SDK's clients of one account: made at the first call, one for each region. No
//! decisions here; every call has a deadline and its error mapped.

use std::{collections::BTreeMap, future::Future, sync::Arc, time::Duration};

use aws_config::{BehaviorVersion, Region as Name, SdkConfig, retry::RetryConfig, timeout::TimeoutConfig};
use aws_sdk_ec2::{
    config::{Credentials as Keys, http::HttpResponse},
    error::{ProvideErrorMetadata, SdkError},
};
use parking_lot::Mutex;
use skyward_core::{Account, ProviderError};
use skyward_provider_kit::http::Effect;
use tokio::sync::OnceCell;

use crate::{
    answers::Compared,
    errors::{provider_error, timed_out},
    fenced::Fenced,
    question::{Call, PARAMETER, PRICES, QUOTAS, Question},
};

/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(5);
/// Tries of a call that may be repeated.
const TRIES: u32 = 3;
/// The price list is served in few regions, and tells the prices of all.
const PRICING_REGION: &str = "us-east-1";

/// Name of the address of all its APIs at once.
pub const ALL: &str = "aws";
/// Names of the addresses of its APIs, with AWS's own. `{region}` stands for the region.
pub const ENDPOINTS: &[(&str, &str)] = &[
    ("aws-ec2", "https://ec2.{region}.amazonaws.com"),
    ("aws-ssm", "https://ssm.{region}.amazonaws.com"),
    ("aws-sts", "https://sts.{region}.amazonaws.com"),
    ("aws-pricing", "https://api.pricing.{region}.amazonaws.com"),
    (
        "aws-servicequotas",
        "https://servicequotas.{region}.amazonaws.com",
    ),
];

/// The SDK's defaults, as of this day.
fn version() -> BehaviorVersion {
    BehaviorVersion::v2026_01_12()
}

/// The clients of one account.
pub struct Cloud {
    account: Account,
    home: String,
    config: OnceCell<SdkConfig>,
    prices: OnceCell<Question>,
    regions: Mutex<BTreeMap<String, Region>>,
}

/// The clients of one region.
#[derive(Clone)]
pub struct Region {
    /// Its name.
    pub name: Arc<str>,
    /// EC2 in it.
    pub ec2: aws_sdk_ec2::Client,
    /// SSM in it, for images.
    pub parameter: Question,
}

impl Cloud {
    /// Clients for the account's credentials; without keys the default chain of AWS is used.
    pub fn new(account: Account, home: String) -> Self {
        Self {
            account,
            home,
            config: OnceCell::new(),
            prices: OnceCell::new(),
            regions: Mutex::new(BTreeMap::new()),
        }
    }

    async fn config(&self) -> Result<&SdkConfig, ProviderError> {
        self.config
            .get_or_try_init(|| async {
                let Account {
                    credentials,
                    request_timeout,
                    ..
                } = &self.account;
                let loader = aws_config::defaults(version())
                    .region(Name::new(self.home.clone()))
                    .retry_config(RetryConfig::standard().with_max_attempts(TRIES))
                    .timeout_config(
                        TimeoutConfig::builder()
                            .connect_timeout(CONNECT)
                            .operation_attempt_timeout(*request_timeout)
                            .operation_timeout(*request_timeout)
                            .build(),
                    );
                let loader = if credentials.is_empty() || self.only_names_a_region() {
                    loader
                } else {
                    let key = credentials.require("AWS_ACCESS_KEY_ID")?.expose().trim();
                    let secret = credentials.require("AWS_SECRET_ACCESS_KEY")?.expose().trim();
                    let session = credentials
                        .get("AWS_SESSION_TOKEN")
                        .map(|token| token.expose().trim().to_owned());
                    loader.credentials_provider(Keys::new(key, secret, session, None, "Secret"))
                };
                Ok(loader.load().await)
            })
            .await
    }

    /// A Secret that only names a region: the credentials come from the default chain.
    fn only_names_a_region(&self) -> bool {
        self.account
            .credentials
            .names()
            .all(|name| matches!(name, "AWS_REGION" | "AWS_DEFAULT_REGION"))
    }

    /// Where an API is, if not at AWS's own address: by its own name, or that of them all.
    pub(crate) fn endpoint(&self, name: &str, region: &str) -> Option<String> {
        let endpoints = &self.account.endpoints;
        endpoints
            .get(name)
            .or_else(|| endpoints.get(ALL))
            .map(|address| address.replace("{region}", region))
    }

    /// A question at a region, with the addresses that the SDK's clients know by themselves.
    fn question(&self, config: &SdkConfig, call: Call, name: &str, region: &str) -> Question {
        let own = ENDPOINTS
            .iter()
            .find(|(known, _)| *known == name)
            .map_or("", |(_, address)| *address);
        let address = self
            .endpoint(name, region)
            .unwrap_or_else(|| own.replace("{region}", region));
        Question::new(config, version(), call, region, &address)
    }

    /// The clients of a region.
    pub async fn region(&self, name: &str) -> Result<Region, ProviderError> {
        let name = if name.is_empty() { &self.home } else { name };
        if let Some(known) = self.regions.lock().get(name) {
            return Ok(known.clone());
        }
        let config = self.config().await?;
        let mut ec2 = aws_sdk_ec2::config::Builder::from(config)
            .region(Name::new(name.to_owned()))
            .interceptor(Fenced(self.account.fence.clone()))
            .interceptor(Compared);
        ec2.set_endpoint_url(self.endpoint("aws-ec2", name));
        let region = Region {
            name: name.into(),
            ec2: aws_sdk_ec2::Client::from_conf(ec2.build()),
            parameter: self.question(config, PARAMETER, "aws-ssm", name),
        };
        let mut regions = self.regions.lock();
        Ok(regions.entry(name.to_owned()).or_insert(region).clone())
    }

    /// STS in the home region.
    pub async fn sts(&self) -> Result<aws_sdk_sts::Client, ProviderError> {
        let mut builder = aws_sdk_sts::config::Builder::from(self.config().await?).interceptor(Compared);
        builder.set_endpoint_url(self.endpoint("aws-sts", &self.home));
        Ok(aws_sdk_sts::Client::from_conf(builder.build()))
    }

    /// The price list.
    pub async fn prices(&self) -> Result<&Question, ProviderError> {
        self.prices
            .get_or_try_init(|| async {
                let config = self.config().await?;
                Ok(self.question(config, PRICES, "aws-pricing", PRICING_REGION))
            })
            .await
    }

    /// Service Quotas of a region. Only `skyward check-provider` asks it, so nothing is remembered.
    pub(crate) async fn quotas(&self, region: &str) -> Result<Question, ProviderError> {
        let config = self.config().await?;
        Ok(self.question(config, QUOTAS, "aws-servicequotas", region))
    }
}

/// One call that reads, or may be repeated freely.
pub async fn call<T, E>(
    operation: &'static str,
    answer: impl Future<Output = Result<T, SdkError<E, HttpResponse>>> + Send,
) -> Result<T, ProviderError>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    answer
        .await
        .map_err(|error| provider_error(operation, Effect::Repeatable, &error))
}

/// Ends a question of many pages that takes too long.
pub async fn within<T>(
    operation: &'static str,
    limit: Duration,
    answer: impl Future<Output = Result<T, ProviderError>> + Send,
) -> Result<T, ProviderError> {
    match tokio::time::timeout(limit, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(timed_out(operation, Effect::Repeatable, limit)),
    }
}
