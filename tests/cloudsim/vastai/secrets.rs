//! Variables of the account that every new instance has in its environment.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::context::Context;
use super::reply::{Failure, Outcome};

fn known<'a>(context: &'a Context<'_, '_>) -> impl Iterator<Item = (&'a String, &'a String)> {
    let account = &context.visit.account;
    context
        .state
        .secrets
        .iter()
        .filter(move |((owner, _), _)| owner == account)
        .map(|((_, name), value)| (name, value))
}

/// The secrets of the account.
pub fn of_account(context: &Context<'_, '_>) -> BTreeMap<String, String> {
    known(context)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

fn failure(code: &'static str, text: &str) -> Failure {
    Failure::new(400, code, text)
}

/// Account, name in capitals, and value of a body.
fn given(context: &Context<'_, '_>) -> Result<((String, String), String), Failure> {
    let body = context.body()?;
    let name = Context::text(&body, "key").to_uppercase();
    if name.is_empty() {
        return Err(failure("missing_input", "Both 'key' and 'value' are required."));
    }
    let key = (context.visit.account.clone(), name);
    Ok((key, Context::text(&body, "value")))
}

/// `GET /api/v0/secrets/`.
pub fn list(context: &Context<'_, '_>) -> Outcome {
    Ok(json!({"success": true, "secrets": of_account(context)}))
}

/// `POST /api/v0/secrets/`.
pub fn create(context: &mut Context<'_, '_>) -> Outcome {
    let (key, value) = given(context)?;
    if value.is_empty() {
        return Err(failure("missing_input", "Both 'key' and 'value' are required."));
    }
    if context.state.secrets.contains_key(&key) {
        return Err(failure("existing_key", "The variable exists; update it."));
    }
    context.state.secrets.insert(key, value);
    Ok(done("Environment variable added successfully"))
}

/// `PUT /api/v0/secrets/`.
pub fn change(context: &mut Context<'_, '_>) -> Outcome {
    let (key, value) = given(context)?;
    match context.state.secrets.get_mut(&key) {
        Some(secret) => *secret = value,
        None => return Err(failure("nonexistent_key", "There is no such variable.")),
    }
    Ok(done("Environment variable updated successfully"))
}

/// `DELETE /api/v0/secrets/`.
pub fn delete(context: &mut Context<'_, '_>) -> Outcome {
    let (key, _) = given(context)?;
    match context.state.secrets.remove(&key) {
        Some(_) => Ok(done("Environment variable deleted successfully")),
        None => Err(failure("nonexistent_key", "There is no such variable.")),
    }
}

fn done(text: &str) -> Value {
    json!({"success": true, "msg": text})
}
