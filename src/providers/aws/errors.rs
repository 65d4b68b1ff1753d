//! Maps errors of AWS to kinds of the contract. Pure but for its input, the SDK's error type.

use std::time::Duration;

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_ec2::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    types::CreateFleetError,
};
use skyward_core::{ErrorKind, NotLeading, ProviderError};
use skyward_provider_kit::{
    chain,
    http::{Effect, is_maintenance},
};

use crate::quotas;

/// So many bytes of an answer that is not in the service's form are looked at.
const PAGE: usize = 4096;

/// The error of one call.
pub fn provider_error<E>(
    operation: &'static str,
    effect: Effect,
    error: &SdkError<E, HttpResponse>,
) -> ProviderError
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    if let Some(refused) = NotLeading::caused(error) {
        return refused.of(operation);
    }
    match error {
        SdkError::ServiceError(answer) => from_code(
            operation,
            effect,
            answer.err().code().unwrap_or_default(),
            // What stands before the service answers in its own form.
            answer.err().message().unwrap_or_else(|| page(answer.raw())),
            answer.raw().status().as_u16(),
        ),
        SdkError::ConstructionFailure(_) => {
            ProviderError::new(ErrorKind::InvalidOrder, operation, chain(error))
        }
        SdkError::DispatchFailure(_) if no_credentials(error) => ProviderError::new(
            ErrorKind::CredentialsMissing,
            operation,
            format!(
                "there are no AWS credentials: {}. Give the Provider a credentialsSecretRef with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the operator's service account a role (IRSA or EKS Pod Identity)",
                chain(error).trim_end_matches('.')
            ),
        ),
        _ => ProviderError::new(effect.lost(), operation, chain(error)),
    }
}

/// The text of an answer that is not in the service's form.
fn page(answer: &HttpResponse) -> &str {
    let body = answer.body().bytes().unwrap_or_default();
    str::from_utf8(&body[..body.len().min(PAGE)]).unwrap_or_default()
}

/// The call did not end within its deadline.
pub fn timed_out(operation: &'static str, effect: Effect, after: Duration) -> ProviderError {
    ProviderError::new(
        effect.lost(),
        operation,
        format!("AWS did not answer within {} s", after.as_secs()),
    )
}

/// The SDK found no credentials.
fn no_credentials(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(inner) = cause {
        if inner.is::<CredentialsError>() {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// The error of a code and a message.
pub fn from_code(
    operation: &'static str,
    effect: Effect,
    code: &str,
    said: &str,
    status: u16,
) -> ProviderError {
    let (kind, remedy) = if status >= 500 && is_maintenance(said) {
        (effect.unavailable(), None)
    } else {
        judge(effect, code, status)
    };
    let said = readable(code, said);
    let mut message = said.trim_end_matches('.').to_owned();
    if kind == ErrorKind::Permission
        && let Some(action) = denied_action(&said).or_else(|| needed_action(operation))
    {
        message = format!("the credentials lack the permission {action}. {message}");
    }
    if let Some(remedy) = remedy {
        message = format!("{message}. {remedy}");
    }
    ProviderError {
        kind: match kind {
            ErrorKind::Quota(_) => ErrorKind::Quota(said),
            other => other,
        },
        operation,
        code: (!code.is_empty()).then(|| code.to_owned()),
        message,
        quota_region: None,
    }
}

/// AWS's message, without unhelpful or sensitive parts.
fn readable(code: &str, said: &str) -> String {
    match code {
        // Some services repeat the signed headers, a session token among them.
        "SignatureDoesNotMatch" | "IncompleteSignature" => {
            "the signature of the request is not what AWS computed".to_owned()
        }
        _ if said.is_empty() => "AWS gave no reason".to_owned(),
        _ => said
            .split("Encoded authorization failure message:")
            .next()
            .unwrap_or(said)
            .trim()
            .to_owned(),
    }
}

/// `ec2:CreateFleet` from "… is not authorized to perform: ec2:CreateFleet on resource …".
fn denied_action(said: &str) -> Option<&str> {
    let (_, after) = said.split_once("not authorized to perform: ")?;
    let action = after.split_whitespace().next()?;
    Some(action.trim_end_matches(['.', ','])).filter(|action| action.contains(':'))
}

/// The right that each call needs, for answers that do not name it. Every call of the client is
/// here.
const NEEDED: &[(&str, &str)] = &[
    ("create the instance", "ec2:CreateFleet or ec2:RunInstances"),
    (
        "create the launch template",
        "ec2:CreateLaunchTemplate or ec2:CreateTags",
    ),
    (
        "create the security group",
        "ec2:CreateSecurityGroup or ec2:CreateTags",
    ),
    ("open the security group", "ec2:AuthorizeSecurityGroupIngress"),
    ("delete the instance", "ec2:TerminateInstances"),
    ("delete the launch template", "ec2:DeleteLaunchTemplate"),
    ("delete the security group", "ec2:DeleteSecurityGroup"),
    ("list the instances", "ec2:DescribeInstances"),
    ("look at the instance", "ec2:DescribeInstances"),
    ("list the security groups", "ec2:DescribeSecurityGroups"),
    ("look for the security group", "ec2:DescribeSecurityGroups"),
    ("list the launch templates", "ec2:DescribeLaunchTemplates"),
    ("list the subnets", "ec2:DescribeSubnets"),
    ("look for the default VPC", "ec2:DescribeVpcs"),
    ("list the instance types", "ec2:DescribeInstanceTypes"),
    ("look at the instance type", "ec2:DescribeInstanceTypes"),
    (
        "list the zones of the instance types",
        "ec2:DescribeInstanceTypeOfferings",
    ),
    ("list the spot prices", "ec2:DescribeSpotPriceHistory"),
    ("look at the spot price", "ec2:DescribeSpotPriceHistory"),
    ("look at the image", "ec2:DescribeImages"),
    ("look up the image", "ssm:GetParameter"),
    ("read the price list", "pricing:GetProducts"),
    (quotas::OPERATION, "servicequotas:ListServiceQuotas"),
];

fn needed_action(operation: &str) -> Option<&'static str> {
    NEEDED
        .iter()
        .find(|(call, _)| *call == operation)
        .map(|(_, action)| *action)
}

const POLICY: &str = "Attach the policy of the provider's page (docs/providers/aws.md) to the user or role";
const KEYS: &str = "Put a valid AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into the Secret of the Provider (or give the operator's service account a role); the operator reads it again by itself";
const CLOCK: &str = "Check AWS_SECRET_ACCESS_KEY in the Secret, and the clock of the operator's node";
const CHOOSE: &str = "Another offer is tried; more regions, zones or types in the Pool make that likelier";
const QUOTA: &str = "Ask for more at Service Quotas (Amazon EC2, vCPUs of this family, on-demand and spot apart), or use another region";

fn judge(effect: Effect, code: &str, status: u16) -> (ErrorKind, Option<&'static str>) {
    match code {
        "InsufficientInstanceCapacity"
        | "InsufficientHostCapacity"
        | "InsufficientReservedInstanceCapacity"
        | "InsufficientCapacity"
        | "InsufficientCapacityOnHost"
        | "UnfulfillableCapacity"
        | "ReservationCapacityExceeded"
        | "Unsupported"
        | "UnsupportedOperation"
        | "InsufficientFreeAddressesInSubnet"
        | "capacity-not-available" => (ErrorKind::NoCapacity, Some(CHOOSE)),
        "SpotMaxPriceTooLow" | "price-too-low" => (
            ErrorKind::NoCapacity,
            Some("The spot price is above what the Pool pays (maxHourlyCost)"),
        ),
        "VcpuLimitExceeded"
        | "MaxSpotInstanceCountExceeded"
        | "InstanceLimitExceeded"
        | "MaxSpotFleetRequestCountExceeded"
        | "FleetLimitExceeded"
        | "VolumeLimitExceeded"
        | "MaxIOPSLimitExceeded"
        | "SecurityGroupLimitExceeded"
        | "LaunchTemplateLimitExceeded"
        | "AddressLimitExceeded"
        | "NetworkInterfaceLimitExceeded" => (ErrorKind::Quota(String::new()), Some(QUOTA)),
        "PendingVerification" => (
            ErrorKind::Quota(String::new()),
            Some("AWS checks new accounts; that takes minutes to hours"),
        ),
        "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "ThrottledException"
        | "EC2ThrottledException"
        | "RequestThrottled"
        | "RequestThrottledException"
        | "TooManyRequestsException"
        | "SlowDown"
        | "BandwidthLimitExceeded" => (ErrorKind::RateLimited(None), None),
        "ConcurrentTagAccess" | "IncorrectState" | "IncorrectInstanceState" | "DependencyViolation" => {
            (ErrorKind::Transient, None)
        }
        // Made a moment ago and not visible everywhere yet, or deleted by somebody: the cache
        // forgets it, and the next try makes or finds it anew.
        "InvalidLaunchTemplateName.NotFoundException"
        | "InvalidLaunchTemplateId.NotFound"
        | "InvalidLaunchTemplateId.NotFoundException"
        | "InvalidGroup.NotFound"
        | "InvalidSecurityGroupID.NotFound" => (ErrorKind::Transient, None),
        "IdempotentParameterMismatch" => (
            ErrorKind::Indeterminate,
            Some("An earlier order of this machine asked for something else; the next look at AWS decides"),
        ),
        "InvalidInstanceID.NotFound" | "ParameterNotFound" => (ErrorKind::NotFound, None),
        "InvalidGroup.Duplicate"
        | "InvalidPermission.Duplicate"
        | "InvalidLaunchTemplateName.AlreadyExistsException" => (ErrorKind::AlreadyExists, None),
        "AuthFailure"
        | "InvalidClientTokenId"
        | "UnrecognizedClientException"
        | "InvalidAccessKeyId"
        | "MissingAuthenticationToken" => (ErrorKind::Credentials, Some(KEYS)),
        "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" => (
            ErrorKind::Credentials,
            Some("The session token is over. Renew AWS_SESSION_TOKEN and both keys in the Secret"),
        ),
        "SignatureDoesNotMatch" | "IncompleteSignature" | "RequestExpired" | "InvalidSignatureException" => {
            (ErrorKind::Credentials, Some(CLOCK))
        }
        "OptInRequired" | "Blocked" => (
            ErrorKind::Permission,
            Some("Sign the account up for this service or region in the AWS console"),
        ),
        "UnauthorizedOperation"
        | "AccessDenied"
        | "AccessDeniedException"
        | "AuthFailure.ServiceLinkedRoleCreationNotPermitted" => (ErrorKind::Permission, Some(POLICY)),
        "OperationNotPermitted" => (
            ErrorKind::Permission,
            Some("Switch the termination protection of the instance off"),
        ),
        "InvalidAMIID.NotFound" | "InvalidAMIID.Malformed" | "InvalidAMIID.Unavailable" => (
            ErrorKind::InvalidOrder,
            Some("Correct aws.ami: an AMI belongs to one region and must be shared with the account"),
        ),
        "InvalidSubnetID.NotFound" | "InvalidSubnetId.NotFound" | "InvalidSubnet.NotFound" => {
            (ErrorKind::InvalidOrder, Some("Correct aws.subnetId"))
        }
        "InvalidGroupId.Malformed" | "InvalidGroup.InUse" | "InvalidSecurityGroupId.Malformed" => {
            (ErrorKind::InvalidOrder, Some("Correct aws.securityGroupId"))
        }
        "VPCIdNotSpecified" | "DefaultVpcDoesNotExist" => (
            ErrorKind::InvalidOrder,
            Some("The region has no default VPC: make one (aws ec2 create-default-vpc), or set aws.subnetId"),
        ),
        "InvalidIamInstanceProfile.NotFound" | "InvalidIamInstanceProfileArn.Malformed" => {
            (ErrorKind::InvalidOrder, Some("Correct aws.instanceProfileArn"))
        }
        _ if code.starts_with("Invalid") || code.starts_with("Missing") => (
            ErrorKind::InvalidOrder,
            Some("Correct the settings of the Provider, or what the Pool overrides"),
        ),
        "InternalError" | "InternalFailure" | "InternalServiceError" => (effect.lost(), None),
        _ => match status {
            401 => (ErrorKind::Credentials, Some(KEYS)),
            403 => (ErrorKind::Permission, Some(POLICY)),
            429 => (ErrorKind::RateLimited(None), None),
            _ => (effect.lost(), None),
        },
    }
}

/// The error of an EC2 Fleet that started nothing, from one error for each zone that it tried.
pub fn fleet_error(operation: &'static str, errors: &[CreateFleetError]) -> ProviderError {
    let mut all: Vec<ProviderError> = Vec::new();
    for error in errors {
        let mut mapped = from_code(
            operation,
            // The answer came: nothing was started.
            Effect::Repeatable,
            error.error_code().unwrap_or_default(),
            error.error_message().unwrap_or_default(),
            200,
        );
        let zone = error
            .launch_template_and_overrides()
            .and_then(|used| used.overrides())
            .and_then(|used| used.availability_zone());
        if let Some(zone) = zone
            && !mapped.message.contains(zone)
        {
            mapped.message = format!("{zone}: {}", mapped.message);
        }
        if !all.iter().any(|known| known.code == mapped.code) {
            all.push(mapped);
        }
    }
    // The most helpful error hides the others.
    let weight = |error: &ProviderError| match error.kind {
        ErrorKind::CredentialsMissing | ErrorKind::Credentials => 0,
        ErrorKind::Permission => 1,
        ErrorKind::Quota(_) | ErrorKind::NoCredit => 2,
        ErrorKind::NoCapacity => 3,
        ErrorKind::RateLimited(_) => 4,
        ErrorKind::Transient | ErrorKind::Indeterminate | ErrorKind::Outage | ErrorKind::NotLeading => 5,
        ErrorKind::InvalidOrder
        | ErrorKind::Unsupported
        | ErrorKind::MachineFailed
        | ErrorKind::NotFound
        | ErrorKind::AlreadyExists => 6,
    };
    all.sort_by_key(weight);
    let mut all = all.into_iter();
    let Some(mut first) = all.next() else {
        return ProviderError::new(
            ErrorKind::NoCapacity,
            operation,
            "EC2 Fleet started no instance and gave no reason",
        );
    };
    let others: Vec<String> = all.filter_map(|error| error.code).collect();
    if !others.is_empty() {
        first.message = format!("{} (other zones: {})", first.message, others.join(", "));
    }
    first
}

#[cfg(test)]
#[path = "tests/errors.rs"]
mod tests;
