//! Signatures, permissions, temporary credentials, regions.

use http::{HeaderValue, Method};

use super::{ACCOUNT, Hand, KEY};
use crate::aws::sigv4::Secret;
use crate::core::account::CredentialState;
use crate::core::http::Request;
use jiff::SignedDuration;

fn set(hand: &Hand, state: CredentialState) {
    hand.sim.world(|world| {
        let account = world.accounts.get_mut(ACCOUNT).expect("an account");
        account.credentials[0].state = state;
    });
}

#[test]
fn a_signature_with_the_wrong_secret_is_refused_in_the_words_of_each_service() {
    let Some(mut hand) = Hand::new() else { return };
    assert_eq!(
        hand.sts("GetCallerIdentity").fine().text("Account"),
        Some(ACCOUNT)
    );
    hand.secret.secret = "wrong".to_owned();
    hand.ec2("DescribeRegions", &[]).fails(401, "AuthFailure");
    hand.sts("GetCallerIdentity").fails(403, "SignatureDoesNotMatch");
    assert_eq!(hand.parameter("x").json()["__type"], "InvalidSignatureException");
    hand.key = "AKIANOBODY".to_owned();
    hand.sts("GetCallerIdentity").fails(403, "InvalidClientTokenId");
    assert_eq!(
        hand.parameter("x").json()["__type"],
        "UnrecognizedClientException"
    );
}

#[test]
fn a_request_that_was_changed_after_it_was_signed_is_refused() {
    let Some(hand) = Hand::new() else { return };
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let mut request = hand.signed("ec2", &headers, "Action=DescribeRegions&Version=2016-11-15");
    request.body = "Action=DescribeVpcs&Version=2016-11-15".into();
    hand.send(request).expect("an answer").fails(401, "AuthFailure");
}

#[test]
fn a_clock_that_is_off_gives_request_expired() {
    let Some(hand) = Hand::new() else { return };
    let headers = [("content-type", "application/x-www-form-urlencoded")];
    let request = hand.signed("ec2", &headers, "Action=DescribeRegions&Version=2016-11-15");
    hand.sim.clock().advance(SignedDuration::from_mins(16));
    hand.send(request)
        .expect("an answer")
        .fails(400, "RequestExpired");
}

#[test]
fn a_client_on_the_clock_of_its_machine_is_heard_whatever_time_a_test_has() {
    let Some(hand) = Hand::new() else { return };
    let far = SignedDuration::from_hours(24 * 400);
    hand.sim.clock().advance(far);
    let real = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%SZ").to_string();
    let headers = [
        ("content-type", "application/x-www-form-urlencoded"),
        ("x-amz-date", real.as_str()),
    ];
    let request = hand.signed("ec2", &headers, "Action=DescribeRegions&Version=2016-11-15");
    hand.send(request).expect("an answer").fine();
}

#[test]
fn a_credential_that_is_revoked_expired_or_without_rights_is_told_apart() {
    let Some(hand) = Hand::new() else { return };
    set(&hand, CredentialState::Revoked);
    hand.ec2("DescribeRegions", &[]).fails(401, "AuthFailure");
    set(&hand, CredentialState::Expired);
    hand.ec2("DescribeRegions", &[]).fails(400, "RequestExpired");
    set(&hand, CredentialState::Forbidden);
    hand.ec2("DescribeRegions", &[])
        .fails(403, "UnauthorizedOperation");
    // Everybody may ask who they are.
    hand.sts("GetCallerIdentity").fine();
    set(&hand, CredentialState::Valid);
    hand.ec2("DescribeRegions", &[]).fine();
}

#[test]
fn a_single_permission_can_be_missing_also_that_of_tagging() {
    let Some(hand) = Hand::new() else { return };
    let deny = serde_json::json!({"account": ACCOUNT, "actions": ["ec2:CreateTags", "ec2:DescribeVpcs"]});
    hand.sim.control("deny", &deny).expect("known").expect("done");
    hand.ec2("DescribeVpcs", &[]).fails(403, "UnauthorizedOperation");
    hand.ec2("DescribeSubnets", &[]).fine();
    let tags = [
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "a"),
        ("TagSpecification.1.Tag.1.Value", "b"),
    ];
    hand.run("t3.micro", &tags).fails(403, "UnauthorizedOperation");
    hand.run("t3.micro", &[]).fine();
    hand.judged_clean();
}

#[test]
fn a_dry_run_says_that_it_would_have_succeeded_and_does_nothing() {
    let Some(hand) = Hand::new() else { return };
    hand.run("t3.micro", &[("DryRun", "true")])
        .fails(412, "DryRunOperation");
    assert_eq!(hand.sim.world(|world| world.machines.len()), 0);
    hand.judged_clean();
}

#[test]
fn a_web_identity_gets_temporary_credentials_that_end() {
    let Some(mut hand) = Hand::new() else { return };
    let body = format!(
        "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A{ACCOUNT}%3Arole%2Fskyward&RoleSessionName=session&WebIdentityToken=a.b.c&DurationSeconds=900"
    );
    let mut request = Request::new(Method::POST, "/", body);
    request.headers.insert(
        "content-type",
        HeaderValue::from_static("application/x-www-form-urlencoded"),
    );
    let reply = hand.send(request).expect("an answer").fine();
    let text = |name| reply.text(name).expect("an element").to_owned();
    hand.key = text("AccessKeyId");
    hand.secret = Secret {
        secret: text("SecretAccessKey"),
        token: Some(text("SessionToken")),
    };
    hand.ec2("DescribeRegions", &[]).fine();
    hand.secret.token = Some("another".to_owned());
    hand.ec2("DescribeRegions", &[]).fails(401, "AuthFailure");
    hand.secret.token = Some(text("SessionToken"));
    hand.wait(901);
    hand.ec2("DescribeRegions", &[]).fails(400, "RequestExpired");
    hand.judged_clean();
    assert_ne!(hand.key, KEY);
}

#[test]
fn accounts_and_regions_do_not_see_each_other() {
    let Some(hand) = Hand::new() else { return };
    let other = crate::core::account::Account::with_pair("210987654321", "AKIAOTHER", "other secret");
    hand.sim.world(|world| world.add_account(other));
    let id = hand.running("t3.micro", &[]);
    hand.in_region("us-west-2")
        .ec2("DescribeInstances", &[("InstanceId.1", &id)])
        .fails(400, "InvalidInstanceID.NotFound");
    let mut stranger = hand.in_region("us-east-1");
    stranger.key = "AKIAOTHER".to_owned();
    stranger.secret.secret = "other secret".to_owned();
    assert_eq!(
        stranger.sts("GetCallerIdentity").text("Account"),
        Some("210987654321")
    );
    stranger
        .ec2("TerminateInstances", &[("InstanceId.1", &id)])
        .fails(400, "InvalidInstanceID.NotFound");
    hand.in_region("mars-north-1")
        .ec2("DescribeInstances", &[])
        .fails(401, "OptInRequired");
}
