//! Who is asking, and temporary credentials for web identities.

use serde_json::{Value, json};

use super::context::{Context, moment};
use super::failure::{Failure, Outcome};
use super::input::{int, needed};
use crate::core::account::{Credential, CredentialState};

/// `GetCallerIdentity`.
pub fn caller_identity(context: &Context<'_, '_>) -> Outcome {
    let account = &context.visit.account;
    Ok(json!({
        "UserId": "AIDASIMULATEDUSER0001",
        "Account": account,
        "Arn": format!("arn:aws:iam::{account}:user/skyward"),
    }))
}

/// `AssumeRoleWithWebIdentity`: the account is the one of the role.
pub fn assume_role_with_web_identity(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let role = needed(input, "RoleArn")?;
    let session = needed(input, "RoleSessionName")?;
    let token = needed(input, "WebIdentityToken")?;
    let parts: Vec<&str> = role.split(':').collect();
    let ["arn", "aws", "iam", "", account, resource] = parts[..] else {
        return Err(Failure::client("ValidationError", format!("{role} is invalid")));
    };
    let refused = || {
        Failure::new(
            403,
            "AccessDenied",
            "Not authorized to perform sts:AssumeRoleWithWebIdentity",
        )
    };
    let name = resource.strip_prefix("role/").ok_or_else(refused)?;
    // A token of a cluster is a JWT: three parts.
    if token.split('.').count() != 3 {
        return Err(Failure::client(
            "InvalidIdentityToken",
            "The ID Token provided is not a valid JWT.",
        ));
    }
    let seconds = int(input, "DurationSeconds").unwrap_or(3_600);
    let chance = &mut context.visit.world.chance;
    let access_key = format!("ASIA{}", chance.text(16, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"));
    let secret = chance.text(
        40,
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/",
    );
    let session_token = chance.text(
        120,
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
    );
    let owner = context
        .visit
        .world
        .accounts
        .get_mut(account)
        .ok_or_else(refused)?;
    owner.credentials.push(Credential {
        id: access_key.clone(),
        secret: secret.clone(),
        state: CredentialState::Valid,
    });
    context
        .state
        .session_tokens
        .insert(access_key.clone(), session_token.clone());
    let expires = context.visit.now() + jiff::SignedDuration::from_secs(seconds);
    context.visit.world.remind(
        jiff::SignedDuration::from_secs(seconds),
        format!("{EXPIRES}{access_key}"),
    );
    Ok(json!({
        "Credentials": {
            "AccessKeyId": access_key,
            "SecretAccessKey": secret,
            "SessionToken": session_token,
            "Expiration": moment(expires),
        },
        "AssumedRoleUser": {
            "AssumedRoleId": format!("AROASIMULATEDROLE0001:{session}"),
            "Arn": format!("arn:aws:sts::{account}:assumed-role/{name}/{session}"),
        },
        "SubjectFromWebIdentityToken": "system:serviceaccount:skyward-system:skyward",
    }))
}

/// What a reminder that temporary credentials end begins with.
pub const EXPIRES: &str = "credentials end: ";
