//! The metadata service: of the operator's node, where the control `metadata` gives it an account, and of each
//! instance at `/_imds/INSTANCE`, where a Pod's own proxy finds it.

use super::Gcp;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::machine::{Cause, Machine};

/// The header that each request must have, and each answer has.
const FLAVOR: [&str; 2] = ["metadata-flavor", "Google"];

fn plain(status: u16, text: &str) -> Answer {
    Answer::new(status, "application/text", text.to_owned()).with(FLAVOR[0], FLAVOR[1])
}

/// A request without the header may come from a page in a browser: it is refused.
fn check(visit: &Visit<'_>) -> Result<(), Refusal> {
    if visit.request.header(FLAVOR[0]) == Some(FLAVOR[1]) {
        return Ok(());
    }
    let text = "Missing Metadata-Flavor:Google header.";
    Err(Refusal::Answer(plain(403, text)))
}

fn found(text: Option<String>) -> Result<Answer, Refusal> {
    let text = text.ok_or_else(|| Refusal::Answer(plain(404, "404 page not found")))?;
    Ok(plain(200, &text))
}

pub(super) fn token(api: &mut Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    check(visit)?;
    let account = api.node.as_ref().and_then(|node| visit.world.accounts.get(node));
    let credential = account.and_then(|account| account.credentials.first());
    let Some(credential) = credential.map(|credential| credential.id.clone()) else {
        return found(None);
    };
    let token = api.tokens.issue(visit.world, &credential)?;
    Ok(Answer::json(200, &token).with(FLAVOR[0], FLAVOR[1]))
}

pub(super) fn project(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    check(visit)?;
    found(api.node.clone())
}

/// What the guest can read of its instance. A request that waits for a change is answered at once.
pub(super) fn of_guest(visit: &mut Visit<'_>, key: &str) -> Result<Answer, Refusal> {
    check(visit)?;
    let id = visit.request.segments().get(1).cloned().unwrap_or_default();
    let machine = visit.world.machines.get(&id).filter(|machine| machine.exists());
    let is_told = |machine: &Machine| machine.noticed.is_some() || machine.cause == Some(Cause::Reclaimed);
    let told = machine.filter(|_| key == "preempted").map(is_told);
    found(told.map(|is_told| if is_told { "TRUE" } else { "FALSE" }.to_owned()))
}
