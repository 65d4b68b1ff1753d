//! The five services at one address, the operations that are simulated, and the effect of each.

use super::model::{Model, Models};
use super::query::{self, Decoded, Dialect};
use super::{json, sigv4};
use crate::core::cloud::{Call, Effect};
use crate::core::http::Request;

/// A service of AWS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Service {
    /// Machines.
    Ec2,
    /// Parameters with the ids of images.
    Ssm,
    /// The price list.
    Pricing,
    /// How much an account may run.
    Quotas,
    /// The caller's identity.
    Sts,
}

/// The protocol of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    /// Form in, XML out.
    Form(Dialect),
    /// JSON both ways.
    Json,
}

impl Service {
    /// Its protocol.
    pub fn wire(self) -> Wire {
        match self {
            Self::Ec2 => Wire::Form(Dialect::Ec2),
            Self::Sts => Wire::Form(Dialect::Query),
            Self::Ssm | Self::Pricing | Self::Quotas => Wire::Json,
        }
    }

    /// Its name in signatures and permissions.
    pub fn signing_name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::Ssm => "ssm",
            Self::Pricing => "pricing",
            Self::Quotas => "servicequotas",
            Self::Sts => "sts",
        }
    }

    /// Its description.
    pub fn model(self, models: &Models) -> &Model {
        match self {
            Self::Ec2 => &models.ec2,
            Self::Ssm => &models.ssm,
            Self::Pricing => &models.pricing,
            Self::Quotas => &models.quotas,
            Self::Sts => &models.sts,
        }
    }

    /// The service that a request is for, as far as can be seen: by the target
    /// header, by the version of the form, else by the signature.
    pub fn of(request: &Request) -> Self {
        if let Some(target) = request.header("x-amz-target") {
            return match target.split_once('.') {
                Some(("AWSPriceListService", _)) => Self::Pricing,
                Some(("ServiceQuotasV20190624", _)) => Self::Quotas,
                _ => Self::Ssm,
            };
        }
        let version = parameters(request)
            .into_iter()
            .find(|(name, _)| name == "Version");
        let signed = super::header_map(request);
        let scope = sigv4::scope(&signed).map(|scope| scope.service);
        match (
            version.as_ref().map(|(_, version)| version.as_str()),
            scope.as_deref(),
        ) {
            (Some("2011-06-15"), _) | (_, Ok("sts")) => Self::Sts,
            (_, Ok("ssm")) => Self::Ssm,
            (_, Ok("pricing")) => Self::Pricing,
            (_, Ok("servicequotas")) => Self::Quotas,
            _ => Self::Ec2,
        }
    }
}

/// The parameters of a Query request, which may come as a form or in the address.
pub fn parameters(request: &Request) -> Vec<(String, String)> {
    if request.method == http::Method::GET {
        request.query.clone()
    } else {
        request.form()
    }
}

/// An operation that is simulated.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// Of which service.
    pub service: Service,
    /// Its name.
    pub name: &'static str,
    /// The call, for the log and for faults: `ec2.RunInstances`.
    call: &'static str,
    effect: Effect,
}

const fn operation(service: Service, call: &'static str, name: &'static str, effect: Effect) -> Operation {
    Operation {
        service,
        name,
        call,
        effect,
    }
}

use Effect::{Change, Create, Delete, Read};
use Service::{Ec2, Pricing, Quotas, Ssm, Sts};

const OPERATIONS: [Operation; 42] = [
    operation(
        Ec2,
        "ec2.AuthorizeSecurityGroupIngress",
        "AuthorizeSecurityGroupIngress",
        Change,
    ),
    operation(
        Ec2,
        "ec2.CancelSpotInstanceRequests",
        "CancelSpotInstanceRequests",
        Change,
    ),
    operation(Ec2, "ec2.CreateFleet", "CreateFleet", Create),
    operation(Ec2, "ec2.CreateKeyPair", "CreateKeyPair", Change),
    operation(Ec2, "ec2.CreateLaunchTemplate", "CreateLaunchTemplate", Change),
    operation(Ec2, "ec2.CreateSecurityGroup", "CreateSecurityGroup", Change),
    operation(Ec2, "ec2.CreateTags", "CreateTags", Change),
    operation(Ec2, "ec2.DeleteFleets", "DeleteFleets", Delete),
    operation(Ec2, "ec2.DeleteKeyPair", "DeleteKeyPair", Change),
    operation(Ec2, "ec2.DeleteLaunchTemplate", "DeleteLaunchTemplate", Change),
    operation(Ec2, "ec2.DeleteSecurityGroup", "DeleteSecurityGroup", Change),
    operation(
        Ec2,
        "ec2.DescribeAvailabilityZones",
        "DescribeAvailabilityZones",
        Read,
    ),
    operation(Ec2, "ec2.DescribeFleetInstances", "DescribeFleetInstances", Read),
    operation(Ec2, "ec2.DescribeFleets", "DescribeFleets", Read),
    operation(Ec2, "ec2.DescribeImages", "DescribeImages", Read),
    operation(Ec2, "ec2.DescribeInstanceStatus", "DescribeInstanceStatus", Read),
    operation(
        Ec2,
        "ec2.DescribeInstanceTypeOfferings",
        "DescribeInstanceTypeOfferings",
        Read,
    ),
    operation(Ec2, "ec2.DescribeInstanceTypes", "DescribeInstanceTypes", Read),
    operation(Ec2, "ec2.DescribeInstances", "DescribeInstances", Read),
    operation(Ec2, "ec2.DescribeKeyPairs", "DescribeKeyPairs", Read),
    operation(
        Ec2,
        "ec2.DescribeLaunchTemplates",
        "DescribeLaunchTemplates",
        Read,
    ),
    operation(Ec2, "ec2.DescribeRegions", "DescribeRegions", Read),
    operation(Ec2, "ec2.DescribeSecurityGroups", "DescribeSecurityGroups", Read),
    operation(
        Ec2,
        "ec2.DescribeSpotInstanceRequests",
        "DescribeSpotInstanceRequests",
        Read,
    ),
    operation(
        Ec2,
        "ec2.DescribeSpotPriceHistory",
        "DescribeSpotPriceHistory",
        Read,
    ),
    operation(Ec2, "ec2.DescribeSubnets", "DescribeSubnets", Read),
    operation(Ec2, "ec2.DescribeTags", "DescribeTags", Read),
    operation(Ec2, "ec2.DescribeVpcs", "DescribeVpcs", Read),
    operation(Ec2, "ec2.GetConsoleOutput", "GetConsoleOutput", Read),
    operation(Ec2, "ec2.GetSpotPlacementScores", "GetSpotPlacementScores", Read),
    operation(Ec2, "ec2.ImportKeyPair", "ImportKeyPair", Change),
    operation(Ec2, "ec2.RunInstances", "RunInstances", Create),
    operation(Ec2, "ec2.TerminateInstances", "TerminateInstances", Delete),
    operation(Ssm, "ssm.GetParameter", "GetParameter", Read),
    operation(Ssm, "ssm.GetParameters", "GetParameters", Read),
    operation(Ssm, "ssm.GetParametersByPath", "GetParametersByPath", Read),
    operation(Pricing, "pricing.DescribeServices", "DescribeServices", Read),
    operation(Pricing, "pricing.GetAttributeValues", "GetAttributeValues", Read),
    operation(Pricing, "pricing.GetProducts", "GetProducts", Read),
    operation(
        Quotas,
        "servicequotas.ListServiceQuotas",
        "ListServiceQuotas",
        Read,
    ),
    operation(Sts, "sts.AssumeRole", "AssumeRole", Read),
    operation(Sts, "sts.GetCallerIdentity", "GetCallerIdentity", Read),
];

/// The call of web identities, which carries no signature.
pub const WEB_IDENTITY: &str = "AssumeRoleWithWebIdentity";
const WEB_IDENTITY_OPERATION: Operation =
    operation(Sts, "sts.AssumeRoleWithWebIdentity", WEB_IDENTITY, Effect::Read);

impl Operation {
    /// The operation that a request asks for, if it is simulated.
    pub fn of(request: &Request) -> Option<Self> {
        let service = Service::of(request);
        let name = match service.wire() {
            Wire::Json => request.header("x-amz-target")?.split_once('.')?.1.to_owned(),
            Wire::Form(_) => {
                parameters(request)
                    .into_iter()
                    .find(|(name, _)| name == "Action")?
                    .1
            }
        };
        OPERATIONS
            .iter()
            .chain([&WEB_IDENTITY_OPERATION])
            .find(|operation| operation.service == service && operation.name == name)
            .copied()
    }

    /// The call that it is for the core.
    pub fn call(self) -> Call {
        Call::new(self.call, self.effect)
    }

    /// Its parameters, checked against the description.
    pub fn decode(self, models: &Models, request: &Request) -> Result<Decoded, String> {
        let model = self.service.model(models);
        match self.service.wire() {
            Wire::Form(dialect) => query::decode(model, dialect, self.name, &parameters(request)),
            Wire::Json => json::decode(model, self.name, &request.body),
        }
    }

    /// What the description wants of the request around its parameters.
    pub fn check_envelope(self, models: &Models, request: &Request) -> Vec<String> {
        let model = self.service.model(models);
        let mut wrong = Vec::new();
        let content_type = request.header("content-type").unwrap_or_default();
        match self.service.wire() {
            Wire::Form(_) => {
                let version = parameters(request)
                    .into_iter()
                    .find(|(name, _)| name == "Version");
                if version.as_ref().map(|(_, version)| version) != Some(&model.metadata.api_version) {
                    wrong.push(format!(
                        "Version has to be {}, got {version:?}",
                        model.metadata.api_version
                    ));
                }
                if request.method == http::Method::POST
                    && !content_type.starts_with("application/x-www-form-urlencoded")
                {
                    wrong.push(format!(
                        "a form has to be application/x-www-form-urlencoded, not '{content_type}'"
                    ));
                }
            }
            Wire::Json => {
                let target = request.header("x-amz-target").unwrap_or_default();
                let wanted = format!(
                    "{}.{}",
                    model.metadata.target_prefix.as_deref().unwrap_or_default(),
                    self.name
                );
                if target != wanted {
                    wrong.push(format!("X-Amz-Target has to be {wanted}, not {target}"));
                }
                if content_type != "application/x-amz-json-1.1" {
                    wrong.push(format!(
                        "the body has to be application/x-amz-json-1.1, not '{content_type}'"
                    ));
                }
            }
        }
        if request.path != "/" {
            wrong.push(format!("the path has to be /, not {}", request.path));
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_of_the_descriptions_is_simulated_and_no_other() {
        let Some(models) = super::super::tests::models() else {
            return;
        };
        let mut simulated = std::collections::BTreeSet::new();
        for operation in OPERATIONS.iter().chain([&WEB_IDENTITY_OPERATION]) {
            assert_eq!(
                operation.call,
                format!("{}.{}", operation.service.signing_name(), operation.name)
            );
            simulated.insert(operation.call.to_owned());
        }
        let described: std::collections::BTreeSet<String> = [Ec2, Ssm, Pricing, Quotas, Sts]
            .into_iter()
            .flat_map(|service| {
                let names = service.model(&models).operations.keys();
                names.map(move |name| format!("{}.{name}", service.signing_name()))
            })
            .collect();
        assert_eq!(simulated, described);
    }
}
