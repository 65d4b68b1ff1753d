//! Compares the answers of EC2 and STS with the fields that this crate reads, for `skyward check-provider`. The SDK asks
//! last of all, when it has read a whole answer; outside of a look at an account nothing is done.

use aws_sdk_ec2::{
    config::{
        ConfigBag, Intercept, RuntimeComponents, interceptors::AfterDeserializationInterceptorContextRef,
    },
    error::BoxError,
};
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use skyward_provider_kit::http::shape;

use crate::{
    expected::{self, LISTS},
    xml,
};

/// Compares each good answer while answers are compared, even where the SDK cannot read it.
#[derive(Debug)]
pub(crate) struct Compared;

impl Intercept for Compared {
    fn name(&self) -> &'static str {
        "Compared"
    }

    // Only now the body is here: before, the SDK has its head alone.
    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let answer = context.response();
        if shape::is_watched()
            && answer.status().is_success()
            && let Some(call) = config.load::<Metadata>()
            && let Some(body) = answer.body().bytes()
        {
            compare(call.name(), body);
        }
        Ok(())
    }
}

/// Compares the answer to a call, by the name of the call. An answer that is no XML has nothing to compare, and is an
/// error of the SDK.
pub fn compare(call: &str, body: &[u8]) {
    let text = str::from_utf8(body).ok();
    let Some(answer) = text.and_then(|text| xml::value(text, LISTS)) else {
        return;
    };
    match call {
        "GetCallerIdentity" => {
            shape::compare::<expected::GetCallerIdentity>("check the credentials", "", &answer);
        }
        "DescribeInstances" => {
            shape::compare::<expected::DescribeInstances>("list the instances", "", &answer);
        }
        "DescribeInstanceTypes" => {
            shape::compare::<expected::DescribeInstanceTypes>("list the instance types", "", &answer);
        }
        "DescribeInstanceTypeOfferings" => {
            let words = "list the zones of the instance types";
            shape::compare::<expected::DescribeInstanceTypeOfferings>(words, "", &answer);
        }
        "DescribeSpotPriceHistory" => {
            shape::compare::<expected::DescribeSpotPriceHistory>("list the spot prices", "", &answer);
        }
        "DescribeSecurityGroups" => {
            shape::compare::<expected::DescribeSecurityGroups>("list the security groups", "", &answer);
        }
        "DescribeLaunchTemplates" => {
            shape::compare::<expected::DescribeLaunchTemplates>("list the launch templates", "", &answer);
        }
        // Only orders make the other calls.
        _ => {}
    }
}

#[cfg(test)]
#[path = "tests/answers.rs"]
mod tests;
