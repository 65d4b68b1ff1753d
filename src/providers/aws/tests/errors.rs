use aws_sdk_ec2::{
    error::{ConnectorError, ErrorMetadata},
    types::{FleetLaunchTemplateOverrides, LaunchTemplateAndOverridesResponse},
};
use rstest::rstest;
use skyward_core::error::ErrorClass;

use super::*;

#[rstest]
#[case("InsufficientInstanceCapacity", 500, ErrorKind::NoCapacity)]
#[case("UnfulfillableCapacity", 200, ErrorKind::NoCapacity)]
#[case("Unsupported", 400, ErrorKind::NoCapacity)]
#[case("SpotMaxPriceTooLow", 400, ErrorKind::NoCapacity)]
#[case("InsufficientFreeAddressesInSubnet", 400, ErrorKind::NoCapacity)]
#[case("VcpuLimitExceeded", 400, ErrorKind::Quota("because".into()))]
#[case("MaxSpotInstanceCountExceeded", 400, ErrorKind::Quota("because".into()))]
#[case("PendingVerification", 400, ErrorKind::Quota("because".into()))]
#[case("RequestLimitExceeded", 503, ErrorKind::RateLimited(None))]
#[case("ThrottlingException", 400, ErrorKind::RateLimited(None))]
#[case("", 429, ErrorKind::RateLimited(None))]
#[case("InternalError", 500, ErrorKind::Transient)]
#[case("Unavailable", 503, ErrorKind::Transient)]
#[case("ConcurrentTagAccess", 400, ErrorKind::Transient)]
#[case("InvalidGroup.NotFound", 400, ErrorKind::Transient)]
#[case("InvalidLaunchTemplateName.NotFoundException", 400, ErrorKind::Transient)]
#[case("InvalidInstanceID.NotFound", 400, ErrorKind::NotFound)]
#[case("InvalidPermission.Duplicate", 400, ErrorKind::AlreadyExists)]
#[case("IdempotentParameterMismatch", 400, ErrorKind::Indeterminate)]
#[case("AuthFailure", 401, ErrorKind::Credentials)]
#[case("InvalidClientTokenId", 403, ErrorKind::Credentials)]
#[case("ExpiredToken", 403, ErrorKind::Credentials)]
#[case("RequestExpired", 400, ErrorKind::Credentials)]
#[case("UnauthorizedOperation", 403, ErrorKind::Permission)]
#[case("AccessDeniedException", 400, ErrorKind::Permission)]
#[case("OptInRequired", 401, ErrorKind::Permission)]
#[case("InvalidAMIID.NotFound", 400, ErrorKind::InvalidOrder)]
#[case("InvalidSubnetID.NotFound", 400, ErrorKind::InvalidOrder)]
#[case("InvalidParameterValue", 400, ErrorKind::InvalidOrder)]
#[case("MissingParameter", 400, ErrorKind::InvalidOrder)]
#[case("SomethingNew", 400, ErrorKind::Transient)]
fn codes_become_kinds(#[case] code: &str, #[case] status: u16, #[case] expected: ErrorKind) {
    let error = from_code("do it", Effect::Repeatable, code, "because", status);
    assert_eq!(error.kind, expected);
    assert!(error.message.contains("because"), "{error}");
    // An error that only a person can mend names a remedy.
    if error.kind.class() == ErrorClass::Config {
        assert!(error.message.len() > "because. ".len() + 10, "{error}");
    }
}

#[test]
fn a_lost_answer_to_an_order_is_not_known_to_have_failed() {
    for code in ["InternalError", "SomethingNew"] {
        assert_eq!(
            from_code("create", Effect::Creates, code, "", 500).kind,
            ErrorKind::Indeterminate
        );
    }
    for (said, expected) in [
        ("", ErrorKind::Indeterminate),
        ("We are under maintenance", ErrorKind::Outage),
    ] {
        for code in ["Unavailable", "ServiceUnavailable", ""] {
            assert_eq!(
                from_code("create", Effect::Creates, code, said, 503).kind,
                expected
            );
        }
    }
    let lost: SdkError<AnyError, HttpResponse> =
        SdkError::dispatch_failure(ConnectorError::io("connection reset".into()));
    assert_eq!(
        provider_error("create", Effect::Creates, &lost).kind,
        ErrorKind::Indeterminate
    );
    assert_eq!(
        provider_error("look", Effect::Repeatable, &lost).kind,
        ErrorKind::Transient
    );
    let late: SdkError<AnyError, HttpResponse> = SdkError::timeout_error("late");
    assert_eq!(
        provider_error("create", Effect::Creates, &late).kind,
        ErrorKind::Indeterminate
    );
}

#[test]
fn who_has_no_credentials_is_told_where_they_come_from() {
    let missing: SdkError<AnyError, HttpResponse> = SdkError::dispatch_failure(ConnectorError::other(
        CredentialsError::not_loaded("no providers in chain").into(),
        None,
    ));
    let error = provider_error("create", Effect::Creates, &missing);
    assert_eq!(error.kind, ErrorKind::CredentialsMissing);
    assert!(
        error.message.contains("credentialsSecretRef") && error.message.contains("IRSA"),
        "{error}"
    );
}

#[test]
fn a_missing_permission_is_named_and_the_encoded_part_is_left_out() {
    let said = "You are not authorized to perform this operation. User: arn:aws:iam::123456789012:user/sky is not authorized to perform: ec2:CreateFleet on resource: arn:aws:ec2:us-east-1:123456789012:fleet/* because no identity-based policy allows the ec2:CreateFleet action. Encoded authorization failure message: AbCdEf";
    let error = from_code(
        "create the instance",
        Effect::Creates,
        "UnauthorizedOperation",
        said,
        403,
    );
    assert_eq!(error.kind, ErrorKind::Permission);
    assert!(
        error
            .message
            .starts_with("the credentials lack the permission ec2:CreateFleet. "),
        "{error}"
    );
    assert!(
        !error.message.contains("AbCdEf") && error.message.contains("docs/providers/aws.md"),
        "{error}"
    );
}

#[test]
fn a_permission_that_aws_does_not_name_is_named_by_the_call() {
    for (operation, permission) in [
        ("read the price list", "pricing:GetProducts"),
        ("list the quotas", "servicequotas:ListServiceQuotas"),
    ] {
        let error = from_code(operation, Effect::Repeatable, "AccessDeniedException", "no", 400);
        let lacks = format!("the credentials lack the permission {permission}. no");
        assert!(error.message.starts_with(&lacks), "{error}");
    }
}

#[test]
fn the_policy_of_the_page_allows_every_call() {
    let page = include_str!("../../../../docs/providers/aws.md");
    let (_, policy) = page.split_once("```json").unwrap();
    let (policy, _) = policy.split_once("```").unwrap();
    let policy: serde_json::Value = serde_json::from_str(policy).unwrap();
    let allowed = policy["Statement"].to_string();
    for (call, actions) in NEEDED {
        for action in actions.split(" or ") {
            assert!(allowed.contains(&format!("\"{action}\"")), "{call}: {action}");
        }
    }
    // Every call has an entry in that list.
    for source in [
        include_str!("../catalogue.rs"),
        include_str!("../images.rs"),
        include_str!("../look.rs"),
        include_str!("../network.rs"),
        include_str!("../order.rs"),
    ] {
        for (_, after) in source
            .match_indices("call(\n")
            .map(|(at, _)| source.split_at(at + 6))
        {
            let name = after
                .trim_start()
                .trim_start_matches('"')
                .split('"')
                .next()
                .unwrap();
            assert!(needed_action(name).is_some(), "{name}");
        }
    }
}

#[test]
fn a_signed_header_that_aws_repeats_is_not_passed_on() {
    let said = "The Canonical String for this request should have been 'POST / x-amz-security-token:canary'";
    let error = from_code(
        "check the credentials",
        Effect::Repeatable,
        "SignatureDoesNotMatch",
        said,
        403,
    );
    assert_eq!(error.kind, ErrorKind::Credentials);
    assert!(!error.to_string().contains("canary"), "{error}");
}

fn refusal(code: &str, zone: &str) -> CreateFleetError {
    CreateFleetError::builder()
        .error_code(code)
        .error_message(format!("{code} it is."))
        .launch_template_and_overrides(
            LaunchTemplateAndOverridesResponse::builder()
                .overrides(
                    FleetLaunchTemplateOverrides::builder()
                        .availability_zone(zone)
                        .build(),
                )
                .build(),
        )
        .build()
}

#[rstest]
#[case(&["InsufficientInstanceCapacity", "InsufficientInstanceCapacity"], ErrorKind::NoCapacity)]
#[case(&["Unsupported", "InsufficientInstanceCapacity"], ErrorKind::NoCapacity)]
#[case(&["InsufficientInstanceCapacity", "VcpuLimitExceeded"], ErrorKind::Quota("VcpuLimitExceeded it is.".into()))]
#[case(&["InsufficientInstanceCapacity", "UnauthorizedOperation"], ErrorKind::Permission)]
#[case(&["InvalidParameterValue"], ErrorKind::InvalidOrder)]
#[case(&["InternalError", "InsufficientInstanceCapacity"], ErrorKind::NoCapacity)]
#[case(&[], ErrorKind::NoCapacity)]
fn a_fleet_that_started_nothing_says_why(#[case] codes: &[&str], #[case] expected: ErrorKind) {
    let refusals: Vec<_> = codes
        .iter()
        .zip(["us-east-1a", "us-east-1b"])
        .map(|(code, zone)| refusal(code, zone))
        .collect();
    let error = fleet_error("create the instance", &refusals);
    assert_eq!(error.kind, expected, "{error}");
    for code in codes {
        assert!(error.to_string().contains(code), "{error}");
    }
}

#[test]
fn the_zone_that_refused_is_named() {
    let error = fleet_error(
        "create the instance",
        &[refusal("InsufficientInstanceCapacity", "us-east-1c")],
    );
    assert!(error.message.starts_with("us-east-1c: "), "{error}");
}

/// Stands for the error of some operation.
#[derive(Debug)]
struct AnyError(ErrorMetadata);

impl std::fmt::Display for AnyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for AnyError {}

impl ProvideErrorMetadata for AnyError {
    fn meta(&self) -> &ErrorMetadata {
        &self.0
    }
}
