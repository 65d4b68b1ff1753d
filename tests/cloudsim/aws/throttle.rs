//! How often an account may call in a region: a bucket of tokens for each action.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::service::{Operation, Service};

/// Buckets by account, region and action.
#[derive(Debug, Default)]
pub struct Buckets(BTreeMap<String, (f64, Timestamp)>);

/// Size of a bucket, and tokens that it gets back in a second.
fn size(operation: &Operation) -> (f64, f64) {
    match (operation.service, operation.name) {
        (Service::Pricing | Service::Quotas, _) => (10.0, 10.0),
        (Service::Ssm, _) => (40.0, 40.0),
        (Service::Sts, _) => (600.0, 600.0),
        (Service::Ec2, "RunInstances") => (5.0, 2.0),
        (Service::Ec2, "CreateFleet" | "TerminateInstances" | "CreateTags") => (100.0, 5.0),
        (Service::Ec2, name) if name.starts_with("Describe") || name.starts_with("Get") => (100.0, 20.0),
        (Service::Ec2, _) => (50.0, 5.0),
    }
}

impl Buckets {
    /// Takes a token; false when the bucket is empty.
    pub fn take(&mut self, account: &str, region: &str, operation: &Operation, now: Timestamp) -> bool {
        let (most, refill) = size(operation);
        let key = format!(
            "{account}/{region}/{}.{}",
            operation.service.signing_name(),
            operation.name
        );
        let (left, since) = self.0.get(&key).copied().unwrap_or((most, now));
        let filled = (left + now.duration_since(since).as_secs_f64() * refill).min(most);
        let allowed = filled >= 1.0;
        self.0
            .insert(key, (if allowed { filled - 1.0 } else { filled }, now));
        allowed
    }
}
