use super::*;
use rstest::rstest;
use skyward_core::error::ErrorClass;

fn answer(code: u16, reason: &str, message: &str) -> kube::Error {
    kube::Error::Api(Box::new(Status::failure(message, reason).with_code(code)))
}

fn create(code: u16, reason: &str, message: &str) -> ProviderError {
    provider_error("create the Pod", Effect::Creates, &answer(code, reason, message))
}

#[rstest]
#[case(
    403,
    "Forbidden",
    "pods \"a\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2",
    ErrorClass::Capacity,
    "ResourceQuota"
)]
#[case(
    403,
    "Forbidden",
    "pods \"a\" is forbidden: failed quota: q: must specify cpu for: machine",
    ErrorClass::Config,
    "cpu"
)]
#[case(
    403,
    "Forbidden",
    "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true",
    ErrorClass::Config,
    "securityProfile: Restricted"
)]
#[case(
    403,
    "Forbidden",
    "pods \"a\" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi",
    ErrorClass::Config,
    "LimitRange"
)]
#[case(
    403,
    "Forbidden",
    "pods \"a\" is forbidden: error looking up service account n/x: serviceaccount \"x\" not found",
    ErrorClass::Config,
    "serviceAccountName"
)]
#[case(
    403,
    "Forbidden",
    "pods \"a\" is forbidden: error looking up service account n/default: serviceaccount \"default\" not found",
    ErrorClass::Retryable,
    "default"
)]
#[case(
    403,
    "Forbidden",
    "pods is forbidden: User \"system:serviceaccount:s:s\" cannot create resource \"pods\"",
    ErrorClass::Config,
    "RBAC"
)]
#[case(
    400,
    "BadRequest",
    "admission webhook \"x\" denied the request: no",
    ErrorClass::Config,
    "no"
)]
#[case(
    422,
    "Invalid",
    "Pod \"a\" is invalid: spec.tolerations[0]: Invalid value",
    ErrorClass::Config,
    "container settings"
)]
#[case(
    404,
    "NotFound",
    "namespaces \"n\" not found",
    ErrorClass::Terminal,
    "namespace is gone"
)]
#[case(401, "Unauthorized", "Unauthorized", ErrorClass::Config, "service account")]
#[case(429, "TooManyRequests", "slow down", ErrorClass::Retryable, "slow down")]
#[case(
    500,
    "InternalError",
    "Internal error occurred: failed calling webhook \"x\": timeout",
    ErrorClass::Retryable,
    "webhook"
)]
fn a_refusal_has_its_class_and_keeps_the_servers_words(
    #[case] code: u16,
    #[case] reason: &str,
    #[case] message: &str,
    #[case] class: ErrorClass,
    #[case] remedy: &str,
) {
    let error = create(code, reason, message);
    assert_eq!(error.kind.class(), class, "{error}");
    assert!(error.message.contains(remedy), "{error}");
    assert!(error.message.contains(message.trim_end_matches('.')), "{error}");
}

#[test]
fn a_namespace_that_is_deleted_ends_the_machine() {
    let mut status = Status::failure(
        "pods \"a\" is forbidden: unable to create new content",
        "Forbidden",
    )
    .with_code(403);
    status.details = serde_json::from_str(r#"{"causes": [{"reason": "NamespaceTerminating"}]}"#).unwrap();
    let error = provider_error(
        "create the Pod",
        Effect::Creates,
        &kube::Error::Api(Box::new(status)),
    );
    assert_eq!(error.kind, ErrorKind::MachineFailed);
}

#[rstest]
#[case(500, "etcdserver: request timed out")]
#[case(504, "the server was unable to return a response in time")]
fn a_lost_answer_to_a_creation_is_indeterminate(#[case] code: u16, #[case] message: &str) {
    assert_eq!(
        create(code, "InternalError", message).kind,
        ErrorKind::Indeterminate
    );
    let read = provider_error(
        "look at the Pod",
        Effect::Repeatable,
        &answer(code, "InternalError", message),
    );
    assert_eq!(read.kind, ErrorKind::Transient);
    let late = timed_out("create the Pod", Effect::Creates, Duration::from_secs(15));
    assert_eq!(late.kind, ErrorKind::Indeterminate);
}

#[test]
fn facts_are_no_failures() {
    assert_eq!(
        create(409, "AlreadyExists", "pods \"a\" already exists").kind,
        ErrorKind::AlreadyExists
    );
    let gone = provider_error(
        "delete the Pod",
        Effect::Repeatable,
        &answer(404, "NotFound", "pods \"a\" not found"),
    );
    assert_eq!(gone.kind, ErrorKind::NotFound);
}

#[test]
fn the_server_says_when_to_come_back() {
    let mut status = Status::failure("too many requests", "TooManyRequests").with_code(429);
    status.details = serde_json::from_str(r#"{"retryAfterSeconds": 7}"#).unwrap();
    let error = provider_error(
        "list the Pods",
        Effect::Repeatable,
        &kube::Error::Api(Box::new(status)),
    );
    assert_eq!(error.kind, ErrorKind::RateLimited(Some(Duration::from_secs(7))));
}
