//! Roles that are taken with the credentials of an account.

use super::{ACCOUNT, Hand, KEY, Reply};
use crate::aws::sigv4::Secret;
use crate::core::account::Account;

const OTHER: &str = "210987654321";

fn take(hand: &Hand, role: &str, more: &[(&str, &str)]) -> Reply {
    let mut parameters = vec![("RoleArn", role)];
    if !more.iter().any(|(name, _)| *name == "RoleSessionName") {
        parameters.push(("RoleSessionName", "session-1"));
    }
    parameters.extend(more);
    hand.form("sts", "2011-06-15", "AssumeRole", &parameters)
}

fn role(account: &str) -> String {
    format!("arn:aws:iam::{account}:role/team/operator")
}

#[test]
fn whoever_takes_a_role_is_that_role_until_the_session_ends() {
    let Some(mut hand) = Hand::new() else { return };
    let more = [("DurationSeconds", "900"), ("SourceIdentity", "somebody")];
    let taken = take(&hand, &role(ACCOUNT), &more).fine();
    let name = format!("arn:aws:sts::{ACCOUNT}:assumed-role/operator/session-1");
    assert_eq!(taken.text("Arn"), Some(name.as_str()));
    assert_eq!(taken.text("SourceIdentity"), Some("somebody"));
    assert_eq!(taken.text("Expiration"), Some("2026-11-21T00:15:00.000Z"));
    assert!(taken.body.contains("<AssumeRoleResult>"), "{}", taken.body);
    let text = |element| taken.text(element).expect("an element").to_owned();
    hand.key = text("AccessKeyId");
    hand.secret = Secret {
        secret: text("SecretAccessKey"),
        token: Some(text("SessionToken")),
    };
    assert_ne!(hand.key, KEY);
    let caller = hand.sts("GetCallerIdentity").fine();
    assert_eq!(
        (caller.text("Arn"), caller.text("Account")),
        (Some(name.as_str()), Some(ACCOUNT))
    );
    assert_eq!(caller.text("UserId"), taken.text("AssumedRoleId"));
    hand.running("t3.micro", &[]);
    hand.wait(900);
    hand.ec2("DescribeRegions", &[]).fails(400, "RequestExpired");
    hand.sts("GetCallerIdentity").fails(403, "ExpiredToken");
    hand.judged_clean();
}

#[test]
fn a_role_that_is_taken_by_a_role_lasts_an_hour_at_most() {
    let Some(mut hand) = Hand::new() else { return };
    let long = [("DurationSeconds", "7200")];
    let taken = take(&hand, &role(ACCOUNT), &long).fine();
    let text = |element| taken.text(element).expect("an element").to_owned();
    hand.key = text("AccessKeyId");
    hand.secret = Secret {
        secret: text("SecretAccessKey"),
        token: Some(text("SessionToken")),
    };
    take(&hand, &role(ACCOUNT), &long).fails(400, "ValidationError");
    take(&hand, &role(ACCOUNT), &[]).fine();
    hand.judged_clean();
}

#[test]
fn a_role_of_others_and_a_request_that_cannot_be_are_refused() {
    let Some(hand) = Hand::new() else { return };
    hand.sim
        .world(|world| world.add_account(Account::with_pair(OTHER, "AKIAOTHER", "other secret")));
    take(&hand, &role(OTHER), &[]).fails(403, "AccessDenied");
    take(&hand, &format!("arn:aws:iam::{ACCOUNT}:user/somebody"), &[]).fails(403, "AccessDenied");
    take(&hand, "arn:aws:s3:::a-bucket-of-somebody", &[]).fails(400, "ValidationError");
    let named = [("RoleSessionName", "two words")];
    take(&hand, &role(ACCOUNT), &named).fails(400, "ValidationError");
    take(&hand, &role(ACCOUNT), &[("Policy", "{")]).fails(400, "MalformedPolicyDocument");
    let policy = [("Policy", "{\"Version\": \"2012-10-17\", \"Statement\": []}")];
    let taken = take(&hand, &role(ACCOUNT), &policy).fine();
    assert!(taken.text("PackedPolicySize").is_some());
    let deny = serde_json::json!({"account": ACCOUNT, "actions": ["sts:AssumeRole"]});
    hand.sim.control("deny", &deny).expect("known").expect("done");
    take(&hand, &role(ACCOUNT), &[]).fails(403, "AccessDenied");
    hand.judged_clean();
    take(&hand, &role(ACCOUNT), &[("DurationSeconds", "60")]).fails(400, "ValidationError");
    assert_eq!(hand.sim.violations().len(), 1);
}

#[test]
fn a_refusal_of_ec2_names_who_asked_and_for_what() {
    let Some(hand) = Hand::new() else { return };
    let deny = serde_json::json!({"account": ACCOUNT, "actions": ["ec2:DescribeVpcs"]});
    hand.sim.control("deny", &deny).expect("known").expect("done");
    let refused = hand.ec2("DescribeVpcs", &[]);
    refused.fails(403, "UnauthorizedOperation");
    let said = format!(
        "User: arn:aws:iam::{ACCOUNT}:user/skyward is not authorized to perform: ec2:DescribeVpcs on"
    );
    assert!(
        refused
            .text("Message")
            .is_some_and(|message| message.contains(&said)),
        "{}",
        refused.body
    );
}
