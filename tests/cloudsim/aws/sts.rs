//! The caller's identity, and temporary credentials for roles.
//!
//! Nobody makes roles here: each account has every role, and trusts every caller of its own
//! and every web identity. Session policies are read and do not restrict anything.

use serde_json::{Value, json};

use super::context::{Context, moment};
use super::failure::{Failure, Outcome};
use super::input::{int, list, needed, text};
use super::{header_map, sigv4};
use crate::core::account::{Credential, CredentialState};

/// The longest session of a caller that assumes a role with the credentials of another one.
const CHAINED: i64 = 3_600;

/// A role that was assumed.
#[derive(Debug, Clone)]
pub struct Assumed {
    /// Role and session, as `GetCallerIdentity` has them.
    id: String,
    /// The same as a name.
    arn: String,
}

/// The name of the caller.
pub fn name_of_caller(context: &Context<'_, '_>) -> String {
    match assumed(context) {
        Some(role) => role.arn.clone(),
        None => format!("arn:aws:iam::{}:user/skyward", context.visit.account),
    }
}

/// The role that the caller has assumed.
fn assumed<'a>(context: &'a Context<'_, '_>) -> Option<&'a Assumed> {
    let scope = sigv4::scope(&header_map(context.visit.request)).ok()?;
    context.state.roles.get(&scope.access_key)
}

/// `GetCallerIdentity`.
pub fn caller_identity(context: &Context<'_, '_>) -> Outcome {
    let id = assumed(context).map_or("AIDASIMULATEDUSER0001", |role| role.id.as_str());
    Ok(json!({
        "UserId": id,
        "Account": context.visit.account,
        "Arn": name_of_caller(context),
    }))
}

/// The account and the name in the ARN of a role.
fn parts(role: &str) -> Result<(&str, &str), Failure> {
    let parts: Vec<&str> = role.split(':').collect();
    let ["arn", "aws", "iam", "", account, resource] = parts[..] else {
        return Err(Failure::client("ValidationError", format!("{role} is invalid")));
    };
    // A role may be in a folder, which its sessions do not show.
    resource
        .strip_prefix("role/")
        .and_then(|path| path.rsplit('/').next())
        .filter(|name| !name.is_empty())
        .map(|name| (account, name))
        .ok_or_else(|| Failure::new(403, "AccessDenied", "Not authorized to perform sts:AssumeRole"))
}

fn session_name(input: &Value) -> Result<&str, Failure> {
    let session = needed(input, "RoleSessionName")?;
    let allowed = |letter: char| letter.is_ascii_alphanumeric() || "_+=,.@-".contains(letter);
    if session.chars().all(allowed) {
        Ok(session)
    } else {
        Err(Failure::client(
            "ValidationError",
            format!(
                "1 validation error detected: Value '{session}' at 'roleSessionName' failed to satisfy constraint: Member must satisfy regular expression pattern: [\\w+=,.@-]*"
            ),
        ))
    }
}

/// Makes credentials of an account for a session of a role. They expire.
fn issue(
    context: &mut Context<'_, '_>,
    account: &str,
    role: &str,
    session: &str,
    seconds: i64,
) -> Option<Value> {
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
    let owner = context.visit.world.accounts.get_mut(account)?;
    owner.credentials.push(Credential {
        id: access_key.clone(),
        secret: secret.clone(),
        state: CredentialState::Valid,
    });
    context
        .state
        .session_tokens
        .insert(access_key.clone(), session_token.clone());
    let assumed = Assumed {
        id: format!("AROASIMULATEDROLE0001:{session}"),
        arn: format!("arn:aws:sts::{account}:assumed-role/{role}/{session}"),
    };
    let user = json!({"AssumedRoleId": assumed.id, "Arn": assumed.arn});
    context.state.roles.insert(access_key.clone(), assumed);
    let expires = context.visit.now() + jiff::SignedDuration::from_secs(seconds);
    context.visit.world.remind(
        jiff::SignedDuration::from_secs(seconds),
        format!("{EXPIRES}{access_key}"),
    );
    Some(json!({
        "Credentials": {
            "AccessKeyId": access_key,
            "SecretAccessKey": secret,
            "SessionToken": session_token,
            "Expiration": moment(expires),
        },
        "AssumedRoleUser": user,
    }))
}

/// `AssumeRole`: a role of the account itself, as nobody trusts another one.
pub fn assume_role(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let role = needed(input, "RoleArn")?;
    let session = session_name(input)?;
    let (account, name) = parts(role)?;
    let seconds = int(input, "DurationSeconds").unwrap_or(CHAINED);
    if seconds > CHAINED && assumed(context).is_some() {
        return Err(Failure::client(
            "ValidationError",
            "The requested DurationSeconds exceeds the 1 hour session limit for roles assumed by role chaining.",
        ));
    }
    if let Some(policy) = text(input, "Policy")
        && serde_json::from_str::<serde_json::Map<String, Value>>(policy).is_err()
    {
        return Err(Failure::client(
            "MalformedPolicyDocument",
            "Syntax errors in policy.",
        ));
    }
    let refused = || {
        let caller = name_of_caller(context);
        Failure::new(
            403,
            "AccessDenied",
            format!("User: {caller} is not authorized to perform: sts:AssumeRole on resource: {role}"),
        )
    };
    if account != context.visit.account {
        return Err(refused());
    }
    let mut answer = issue(context, account, name, session, seconds)
        .ok_or_else(|| Failure::internal("the account of the caller is gone"))?;
    if let Some(source) = text(input, "SourceIdentity") {
        answer["SourceIdentity"] = json!(source);
    }
    let restricted = text(input, "Policy").is_some()
        || ["PolicyArns", "Tags"]
            .iter()
            .any(|name| !list(input, name).is_empty());
    if restricted {
        // How much of the room for policies and tags is used, in percent.
        answer["PackedPolicySize"] = json!(6);
    }
    Ok(answer)
}

/// `AssumeRoleWithWebIdentity`: the account is the one of the role.
pub fn assume_role_with_web_identity(context: &mut Context<'_, '_>, input: &Value) -> Outcome {
    let role = needed(input, "RoleArn")?;
    let session = session_name(input)?;
    let token = needed(input, "WebIdentityToken")?;
    let (account, name) = parts(role)?;
    // A token of a cluster is a JWT: three parts.
    if token.split('.').count() != 3 {
        return Err(Failure::client(
            "InvalidIdentityToken",
            "The ID Token provided is not a valid JWT.",
        ));
    }
    let seconds = int(input, "DurationSeconds").unwrap_or(3_600);
    let mut answer = issue(context, account, name, session, seconds).ok_or_else(|| {
        Failure::new(
            403,
            "AccessDenied",
            "Not authorized to perform sts:AssumeRoleWithWebIdentity",
        )
    })?;
    answer["SubjectFromWebIdentityToken"] = json!("system:serviceaccount:skyward-system:skyward");
    Ok(answer)
}

/// What a reminder that temporary credentials end begins with.
pub const EXPIRES: &str = "credentials end: ";
