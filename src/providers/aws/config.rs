//! Settings of an AWS Provider, and their defaults.

use aws_sdk_ec2::types::SpotAllocationStrategy;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use skyward_core::{Credentials, ErrorKind, ProviderError};

/// Default region of orders.
const REGION: &str = "us-east-1";
/// Default user that machines are prepared as.
pub const ROOT: &str = "root";

/// One account at Amazon Web Services: machines are EC2 instances.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Settings {
    /// Region in which machines are ordered. Default: `AWS_REGION` or `AWS_DEFAULT_REGION`
    /// of the Secret, else `us-east-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$"))]
    pub region: Option<String>,
    /// More regions to offer machines from, besides `region`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(max = 32), regex(pattern = r"^[a-z]{2,4}(-[a-z]+)+-[0-9]{1,2}$"))
    )]
    pub regions: Vec<String>,
    /// Image of the machines: an AMI with cloud-init, sshd and, for GPUs, their drivers. It
    /// belongs to one region. Default: the newest of `ubuntuVersion` that fits the machine,
    /// looked up in the SSM Parameter Store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32), regex(pattern = r"^ami-[0-9a-f]{8,17}$"))]
    pub ami: Option<String>,
    /// Version of Ubuntu of images that are looked up. Default `24.04`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 5), regex(pattern = r"^[0-9]{2}\.04$"))]
    pub ubuntu_version: Option<String>,
    /// Subnet of the machines; they get a public address if the subnet gives one. Default:
    /// the subnets of the region's default VPC, with public addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^subnet-[0-9a-f]{8,17}$"))]
    pub subnet_id: Option<String>,
    /// Security group of the machines; it must let SSH (port 22) in, and all traffic
    /// between machines of one Pool. Default: one is made for each Pool, and returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64), regex(pattern = r"^sg-[0-9a-f]{8,17}$"))]
    pub security_group_id: Option<String>,
    /// Instance profile of the machines. Everything that runs there can use its role.
    /// Default: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 256),
        regex(pattern = r"^arn:aws[a-z-]*:iam::[0-9]{12}:instance-profile/.+$")
    )]
    pub instance_profile_arn: Option<String>,
    /// User that SSH logs in as. Default `root`. Any other is made if the image lacks it,
    /// may use sudo, and then runs the agent: packages of the Pool's `image.apt` and a
    /// `worker.user` need root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 32), regex(pattern = r"^[a-z_][a-z0-9_-]*$"))]
    pub username: Option<String>,
    /// How EC2 Fleet chooses among availability zones for spot machines. Default
    /// `price-capacity-optimized`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_strategy: Option<AllocationStrategy>,
    /// Leaves out burstable types (t2, t3, t3a, t4g), which slow down when their credits
    /// are used up. Default `false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclude_burstable: Option<bool>,
}

impl Settings {
    /// Version of Ubuntu of images that are looked up.
    pub fn ubuntu(&self) -> &str {
        self.ubuntu_version.as_deref().unwrap_or("24.04")
    }

    /// User that SSH logs in as.
    pub fn user(&self) -> &str {
        self.username.as_deref().unwrap_or(ROOT)
    }
}

/// How EC2 Fleet chooses among the pools of spot capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AllocationStrategy {
    /// A low price where an interruption is unlikely.
    #[default]
    PriceCapacityOptimized,
    /// Where an interruption is least likely.
    CapacityOptimized,
    /// The same, in the order of the overrides where it makes no difference.
    CapacityOptimizedPrioritized,
    /// Spread over all.
    Diversified,
    /// The lowest price, with the most interruptions.
    LowestPrice,
}

impl JsonSchema for AllocationStrategy {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "AllocationStrategy".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "enum": [
                "price-capacity-optimized", "capacity-optimized", "capacity-optimized-prioritized",
                "diversified", "lowest-price",
            ],
        })
    }
}

impl From<AllocationStrategy> for SpotAllocationStrategy {
    fn from(strategy: AllocationStrategy) -> Self {
        match strategy {
            AllocationStrategy::PriceCapacityOptimized => Self::PriceCapacityOptimized,
            AllocationStrategy::CapacityOptimized => Self::CapacityOptimized,
            AllocationStrategy::CapacityOptimizedPrioritized => Self::CapacityOptimizedPrioritized,
            AllocationStrategy::Diversified => Self::Diversified,
            AllocationStrategy::LowestPrice => Self::LowestPrice,
        }
    }
}

/// Settings of the account as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Regions that machines are offered in; the first is home.
    pub regions: Vec<String>,
    /// Whether burstable types are left out.
    pub exclude_burstable: bool,
}

impl Reach {
    /// The region for calls that belong to no region.
    pub fn home(&self) -> &str {
        self.regions.first().map_or(REGION, String::as_str)
    }
}

/// Prefixes of regions in other partitions, with accounts, prices and addresses of their own.
const APART: &[&str] = &["cn-", "us-gov-", "us-iso", "eu-iso", "eusc-"];

/// Resolves the settings of the account as a whole, from its settings and its Secret.
pub fn reach(settings: &Settings, credentials: &Credentials) -> Result<Reach, ProviderError> {
    let said = ["AWS_REGION", "AWS_DEFAULT_REGION"]
        .iter()
        .find_map(|key| credentials.get(key))
        .map(|secret| secret.expose().trim().to_owned());
    let home = settings
        .region
        .clone()
        .or(said)
        .unwrap_or_else(|| REGION.to_owned());
    let mut regions = vec![home];
    for region in &settings.regions {
        if !regions.contains(region) {
            regions.push(region.clone());
        }
    }
    if let Some(apart) = regions
        .iter()
        .find(|region| APART.iter().any(|apart| region.starts_with(apart)))
    {
        return Err(ProviderError::new(
            ErrorKind::Unsupported,
            "read the settings",
            format!(
                "{apart} is a region of another partition of AWS (China, GovCloud, isolated or sovereign), which cannot be rented from yet; choose regions of the commercial one"
            ),
        ));
    }
    Ok(Reach {
        regions,
        exclude_burstable: settings.exclude_burstable.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use skyward_core::Secret;
    use skyward_provider_kit::kind::overridden;

    use super::*;
    use crate::KIND;

    fn settings(value: serde_json::Value) -> Settings {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn nothing_set_means_the_defaults_of_the_python_library() {
        let reach = reach(&Settings::default(), &Credentials::default()).unwrap();
        assert_eq!(reach.regions, ["us-east-1"]);
        assert!(!reach.exclude_burstable);
        let settings: Settings = overridden(KIND, &json!({}), &serde_json::Value::Null).unwrap();
        assert_eq!((settings.ubuntu(), settings.user()), ("24.04", "root"));
        let strategy = settings.allocation_strategy.unwrap_or_default();
        assert_eq!(strategy, AllocationStrategy::PriceCapacityOptimized);
        assert_eq!(settings.instance_profile_arn, None);
    }

    #[test]
    fn the_region_comes_from_the_settings_then_from_the_secret() {
        let secret = Credentials::new([("AWS_DEFAULT_REGION".to_owned(), Secret::new("eu-west-1\n"))]);
        assert_eq!(reach(&Settings::default(), &secret).unwrap().home(), "eu-west-1");
        let both = settings(json!({ "region": "us-west-2", "regions": ["eu-west-1", "us-west-2"] }));
        assert_eq!(reach(&both, &secret).unwrap().regions, ["us-west-2", "eu-west-1"]);
    }

    #[test]
    fn regions_of_other_partitions_are_refused_by_name() {
        for region in ["cn-north-1", "us-gov-west-1", "eusc-de-east-1"] {
            let settings = settings(json!({ "regions": [region] }));
            let error = reach(&settings, &Credentials::default()).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Unsupported);
            assert!(error.message.contains(region), "{error}");
        }
    }

    #[test]
    fn a_pool_overrides_single_settings() {
        let base = json!({ "ami": "ami-00000001", "username": "ubuntu" });
        let overrides = json!({ "ami": "ami-00000002", "allocationStrategy": "lowest-price" });
        let settings: Settings = overridden(KIND, &base, &overrides).unwrap();
        assert_eq!(settings.ami.as_deref(), Some("ami-00000002"));
        assert_eq!(settings.user(), "ubuntu");
        assert_eq!(
            settings.allocation_strategy,
            Some(AllocationStrategy::LowestPrice)
        );
    }

    #[test]
    fn a_setting_that_does_not_exist_is_refused_by_its_name() {
        let error = overridden::<Settings>(KIND, &json!({}), &json!({ "useSsm": true })).unwrap_err();
        assert_eq!(error.kind, ErrorKind::InvalidOrder);
        assert!(
            error.message.contains("useSsm") && error.message.contains("candidates[].settings"),
            "{error}"
        );
    }
}
