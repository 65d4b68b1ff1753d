//! Operations: what became of a call that changes something.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::lists::list;
use super::{Gcp, date, enter, missing, target, url};
use crate::core::account::AccountId;
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::{Answer, Request};
use crate::core::machine::{Machine, Phase};
use crate::core::rest::bad;

/// How long the operations last that do not wait for an instance.
pub(super) const TAKES: SignedDuration = SignedDuration::from_secs(2);
/// How long a `requestId` is known.
const KNOWN: SignedDuration = SignedDuration::from_mins(60);

/// Why an operation failed: the code, the text, the status that a call would have had, and details.
#[derive(Clone, Debug)]
pub(super) struct Failure(&'static str, String, (u16, &'static str), Value);

impl Failure {
    /// A zone is short of what was ordered.
    pub(super) fn short(account: &str, zone: &str) -> Self {
        let text = format!(
            "The zone 'projects/{account}/zones/{zone}' does not have enough resources available to fulfill the \
             request.  Try a different zone, or try again later."
        );
        let details = json!([
            { "localizedMessage": { "locale": "en-US", "message": text } },
            { "errorInfo": { "reason": "resource_availability", "domain": "compute.googleapis.com" } },
        ]);
        let status = (503, "SERVICE UNAVAILABLE");
        Self("ZONE_RESOURCE_POOL_EXHAUSTED", text, status, details)
    }

    /// A quota of the project is used up, everywhere or in a region, as this text says.
    pub(super) fn quota(metric: &str, limit: u64, text: String) -> Self {
        let info = json!({ "metricName": metric, "limitName": metric, "limit": limit as f64 });
        let details = json!([{ "quotaInfo": info }]);
        Self("QUOTA_EXCEEDED", text, (403, "FORBIDDEN"), details)
    }

    /// An instance could not be made.
    pub(super) fn internal() -> Self {
        let text = "Internal error. Please try again or contact Google Support.";
        let status = (500, "INTERNAL SERVER ERROR");
        Self("INTERNAL_ERROR", text.to_owned(), status, json!([]))
    }
}

/// When an operation is done.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// When this instance runs, or will not.
    Runs(String),
    /// When this instance is gone.
    Gone(String),
    /// At a moment.
    At(Timestamp),
    /// At a moment, without success.
    Fails(Timestamp, Failure),
}

/// An operation.
#[derive(Clone, Debug)]
pub(super) struct Operation {
    id: String,
    name: String,
    account: AccountId,
    /// "" where it is global.
    zone: String,
    kind: String,
    /// The collection, name and id of what it is about.
    target: [String; 3],
    began: Timestamp,
    end: End,
}

/// What an operation is about: the account, the zone ("" where there is none), the kind of operation, and the
/// collection, name and id of the thing.
pub(super) type About<'a> = [&'a str; 6];

/// All operations, and the requests that were given an id.
#[derive(Debug, Default)]
pub(super) struct Operations {
    all: Vec<Operation>,
    /// When a request came, what it was, and the place of its operation.
    requests: BTreeMap<(AccountId, String), (Timestamp, String, usize)>,
    last: u64,
}

impl Operation {
    /// When it was done, if it is done. `machine` looks instances up.
    fn ended<'a>(&self, now: Timestamp, machine: impl Fn(&str) -> Option<&'a Machine>) -> Option<Timestamp> {
        match &self.end {
            End::At(at) | End::Fails(at, _) => Some(*at).filter(|at| *at <= now),
            End::Gone(id) => machine(id)?.since(Phase::Ended),
            End::Runs(id) => {
                let mut past = machine(id)?.history.iter();
                let later = past.find(|(at, phase)| *phase != Phase::Pending && *at >= self.began);
                later.map(|(at, _)| *at)
            }
        }
    }

    fn shown(&self, now: Timestamp, ended: Option<Timestamp>) -> Value {
        let place = match self.zone.as_str() {
            "" => format!("projects/{}/global", self.account),
            zone => format!("projects/{}/zones/{zone}", self.account),
        };
        let status = match ended {
            Some(_) => "DONE",
            None if now == self.began => "PENDING",
            None => "RUNNING",
        };
        let [collection, name, id] = &self.target;
        let mut shown = json!({
            "kind": "compute#operation", "id": self.id, "name": self.name, "operationType": self.kind,
            "targetLink": url(&format!("{place}/{collection}/{name}")), "targetId": id, "status": status,
            "progress": if ended.is_some() { 100 } else { 0 }, "insertTime": date(self.began),
            "startTime": date(self.began), "selfLink": url(&format!("{place}/operations/{}", self.name)),
        });
        if !self.zone.is_empty() {
            shown["zone"] = url(&place).into();
        }
        let Some(at) = ended else {
            return shown;
        };
        shown["endTime"] = date(at).into();
        if let End::Fails(_, failure) = &self.end {
            let Failure(code, message, status, details) = failure;
            let error = json!({ "code": code, "message": message, "errorDetails": details });
            shown["error"] = json!({ "errors": [error] });
            shown["httpErrorStatusCode"] = status.0.into();
            shown["httpErrorMessage"] = status.1.into();
        }
        shown
    }
}

/// What a request is, to tell one from another with the same `requestId`.
fn fingerprint(request: &Request) -> String {
    let body = String::from_utf8_lossy(&request.body);
    format!("{} {} {body}", request.method, request.path)
}

impl Operations {
    /// The next id of anything. All have the same number of digits, so that a later one comes later in lists.
    pub(super) fn id(&mut self) -> String {
        self.last += 1;
        (4_000_000_000_000_000_000 + self.last).to_string()
    }

    /// Begins an operation of this request. Its answer is what the call answers.
    pub(super) fn begin(&mut self, request: &Request, about: About<'_>, now: Timestamp, end: End) -> Answer {
        let shown = self.happens(about, now, end);
        if let Some(id) = request.parameter("requestId") {
            let known = (now, fingerprint(request), self.all.len() - 1);
            self.requests.insert((about[0].to_owned(), id.to_owned()), known);
        }
        Answer::json(200, &shown)
    }

    /// Begins an operation that no request asked for.
    pub(super) fn happens(&mut self, about: About<'_>, now: Timestamp, end: End) -> Value {
        let id = self.id();
        let [account, zone, kind, collection, name, target] = about.map(str::to_owned);
        let operation = Operation {
            name: format!("operation-{}-{:06x}", now.as_millisecond(), self.last),
            id,
            account,
            zone,
            kind,
            target: [collection, name, target],
            began: now,
            end,
        };
        let shown = operation.shown(now, None);
        self.all.push(operation);
        shown
    }

    /// The order of this instance fails.
    pub(super) fn fail(&mut self, machine: &str, now: Timestamp, failure: &Failure) {
        for operation in &mut self.all {
            if matches!(&operation.end, End::Runs(id) if id == machine) {
                operation.end = End::Fails(now, failure.clone());
            }
        }
    }
}

/// Refuses a request whose `requestId` was seen before, with what was answered then as it is now.
pub(super) fn is_new(api: &Gcp, visit: &Visit<'_>) -> Result<(), Refusal> {
    let Some(id) = visit.request.parameter("requestId") else {
        return Ok(());
    };
    let groups: Vec<usize> = id.split('-').map(str::len).collect();
    let mut digits = id.chars().filter(|letter| *letter != '-');
    let is_hex = digits.clone().all(|digit| digit.is_ascii_hexdigit());
    if groups != [8, 4, 4, 4, 12] || !is_hex || digits.all(|digit| digit == '0') {
        return bad("Invalid value for field 'requestId': It must be a UUID that is not zero.");
    }
    let own = (visit.account.clone(), id.to_owned());
    let known = api.operations.requests.get(&own);
    let known = known.filter(|(at, ..)| visit.now().duration_since(*at) < KNOWN);
    match known.map(|(_, request, place)| (request, api.operations.all.get(*place))) {
        Some((request, Some(operation))) if *request == fingerprint(visit.request) => {
            let shown = now_shown(visit, operation);
            Err(Refusal::Answer(Answer::json(200, &shown)))
        }
        Some(_) => bad("Invalid value for field 'requestId': It was used by another request."),
        None => Ok(()),
    }
}

fn now_shown(visit: &Visit<'_>, operation: &Operation) -> Value {
    let ended = operation.ended(visit.now(), |id| visit.world.machines.get(id));
    operation.shown(visit.now(), ended)
}

/// The operations of a zone, or the global ones.
fn of_place<'a>(api: &'a Gcp, visit: &'a Visit<'_>, zone: &'a str) -> impl Iterator<Item = &'a Operation> {
    let all = api.operations.all.iter();
    all.filter(move |operation| operation.account == visit.account && operation.zone == zone)
}

/// An operation as it is now; to wait for it returns early.
pub(super) fn get(api: &mut Gcp, visit: &mut Visit<'_>, _: &str) -> Result<Answer, Refusal> {
    let place = enter(api, visit)?;
    let segments = visit.request.segments();
    let is_global = segments.get(4).is_some_and(|part| part == "global");
    let zone = if is_global { "" } else { place.as_str() };
    let name = segments.get(if is_global { 6 } else { 7 });
    let is_meant = |known: &&Operation| name == Some(&known.name) || name == Some(&known.id);
    let found = of_place(api, visit, zone).find(is_meant);
    let operation = found.ok_or_else(|| missing(&target(visit.request)))?;
    Ok(Answer::json(200, &now_shown(visit, operation)))
}

pub(super) fn list_all(api: &Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let zone = enter(api, visit)?;
    let items = of_place(api, visit, &zone);
    let items = items.map(|operation| (String::new(), operation.id.clone(), now_shown(visit, operation)));
    list(visit, "operation", items.collect())
}
