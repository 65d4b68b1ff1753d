//! The fence before EC2: the SDK asks it last of all, once for each try of each call. Calls that
//! only describe go through.

use aws_sdk_ec2::{
    config::{ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextRef},
    error::BoxError,
};
use aws_smithy_runtime_api::client::orchestrator::Metadata;
use skyward_core::Fence;

/// Refuses calls that may change something while the fence is closed.
#[derive(Debug)]
pub(crate) struct Fenced(pub(crate) Fence);

impl Intercept for Fenced {
    fn name(&self) -> &'static str {
        "Fenced"
    }

    fn read_before_transmit(
        &self,
        _request: &BeforeTransmitInterceptorContextRef<'_>,
        _components: &RuntimeComponents,
        config: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        if config.load::<Metadata>().is_some_and(|call| reads(call.name())) {
            return Ok(());
        }
        self.0.admit().map_err(Into::into)
    }
}

/// Whether a call of EC2 changes nothing, by its name. All are POST.
fn reads(call: &str) -> bool {
    call.starts_with("Describe") || call.starts_with("Get")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_describes_passes_a_closed_fence() {
        for call in [
            "DescribeInstances",
            "DescribeSpotPriceHistory",
            "GetConsoleOutput",
        ] {
            assert!(reads(call), "{call}");
        }
        for call in [
            "CreateFleet",
            "CreateLaunchTemplate",
            "TerminateInstances",
            "DeleteSecurityGroup",
            "AuthorizeSecurityGroupIngress",
            "",
        ] {
            assert!(!reads(call), "{call}");
        }
    }
}
