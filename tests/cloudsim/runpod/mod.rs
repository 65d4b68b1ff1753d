//! RunPod: REST v2 and GraphQL over the same pods, which are containers.
//!
//! Written from `providers/runpod.md` and the description `runpod-rest-v2.json`. Where what
//! is done here comes from:
//!
//! | fact | where |
//! | --- | --- |
//! | REST v1 is retired: 410, unless the control `v1` brings it back | [`Runpod::refuse`], `v1/` |
//! | one bearer key for REST and GraphQL; a pod has a key of its own with which it can end itself | [`Runpod::authenticate`] |
//! | catalogue: prices for one GPU by cloud, stock by data center, CUDA versions; `include` and `product` belong together | `catalogue.rs`, `cpus.rs` |
//! | create: exactly one of gpu and cpu; cross-field rules and no capacity are both 400 | `order.rs`, `pods.rs` |
//! | status; `ssh.direct` null until some time after RUNNING, and without `22/tcp`; cost 0 when EXITED | `pods.rs` |
//! | delete 204, then 404; members of clusters 409 and hidden from the list | `pods.rs`, `clusters.rs` |
//! | spot only by GraphQL: floor price, bid, `SUPPLY_CONSTRAINT` with or without code in a 200; `podBidResume` | `graphql/` |
//! | `desiredStatus` says RUNNING at once, `runtime` is null until it runs | `graphql/answers.rs` |
//! | an out-bid pod becomes EXITED, gives its GPU back, and its disks cost | [`Runpod::happened`] |
//! | `terminateAfter`, `stopAfter` | `order.rs`, [`Runpod::happened`] |
//! | changes of a pod: no other kind of mount, no other network volume | `edit.rs` |
//! | templates give what an order leaves out; of variables each by itself; none is deleted while a pod refers to it | `templates.rs` |
//! | registry credentials are never shown, and not deleted while a pod pulls with them | `registries.rs` |
//! | network volumes cost until they are deleted, only grow, and hold their pods in their data center of SECURE | `volumes.rs`, `order.rs` |
//! | billing in buckets of time | `billing.rs` |
//! | `PUT /v2/account/ssh-keys` replaces all keys | `account.rs` |
//! | `application/problem+json`; `RateLimit` headers on every answer, `Retry-After` on 429 | [`Runpod::refuse`], [`Runpod::finish`] |
//!
//! Quotas of an account: `pods`. Controls: `POST /_sim/cloud/market {"gpu", "bid", "cloud"}` moves
//! the floor of bids and stops who bids less, `POST /_sim/cloud/rate {"calls"}` sets the calls in a minute,
//! `POST /_sim/cloud/pages {"pods"}` lists pods in pages of so many, `POST /_sim/cloud/v1 {"served"}`
//! answers REST v1 as before its end, for clients that others publish.
//!
//! Pages of pods (`limit`, `cursor`, `pagination`) are not in the description, which is of August
//! 2026: RunPod's own `runpodctl` asks and reads so since October. A request with them is checked
//! against the description without them.
//!
//! Not here, and answered with 501: serverless, logs of pods, changes of clusters, ECR delegations.
//! There are secrets and savings plans in GraphQL, which are nowhere here.
//!
//! RunPod's own Python package judges its GraphQL in `tests/sdk.rs`.
//!
//! Assumed, since no fact says it: the number of the rate limit (600 a minute), that `env` of a
//! pod in GraphQL is a list of `NAME=value`, that a pod costs from its order, that a bid below the
//! floor is a lack of capacity, that a GB of disk of a stopped pod costs 0.0003 an hour, that a
//! month has 730 hours and network volumes cost by the second (RunPod charges them by the hour), what
//! fast ones cost, that a volume is not deleted under a pod, that names of templates and
//! credentials are unique in an account in each API (v1 says so), and that `deployCpuPod` wants
//! `deployCost` or a template: each client that is known gives one of them.

mod account;
mod args;
mod billing;
mod calls;
mod catalogue;
mod clusters;
mod cpus;
mod edit;
mod graphql;
mod order;
mod pods;
mod registries;
mod templates;
mod v1;
mod volumes;
mod wire;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::SignedDuration;
use rust_decimal::Decimal;
use serde_json::{Value, json};

use crate::core::account::AccountId;
use crate::core::billing::{Billing, Halted};
use crate::core::cloud::{Call, Cloud, Refusal, Visit, holder};
use crate::core::description::Description;
use crate::core::http::{Answer, Request};
use crate::core::limits::Windows;
use crate::core::machine::{Cause, Phase};
use crate::core::resource::Resource;
use crate::core::world::{Happening, World};

/// The simulated RunPod.
pub struct Runpod {
    description: Option<Arc<Description>>,
    /// REST v1, while it is answered.
    v1: Option<v1::Served>,
    pods: BTreeMap<String, pods::Extra>,
    clusters: BTreeMap<String, clusters::Cluster>,
    /// Keys of pods: the account and the pod.
    pod_keys: BTreeMap<String, (AccountId, String)>,
    ssh_keys: BTreeMap<AccountId, Vec<String>>,
    templates: BTreeMap<String, templates::Template>,
    /// Accounts that have deleted the registry credential that all begin with.
    given_up: BTreeSet<AccountId>,
    windows: Windows,
    rate: usize,
    room: Option<usize>,
    /// Pods in a page of the list; `None`: all are in one.
    page: Option<usize>,
    direct_after: SignedDuration,
}

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// The answer to a client that asks for something that RunPod has and this simulator has not.
const LEFT_OUT: &str = "this simulator leaves that out: it has pods, clusters and what they refer to";

impl Runpod {
    /// RunPod with its rate limit.
    pub fn new() -> Self {
        Self {
            description: Description::load("runpod-rest-v2.json"),
            v1: None,
            pods: BTreeMap::new(),
            clusters: BTreeMap::new(),
            pod_keys: BTreeMap::new(),
            ssh_keys: BTreeMap::new(),
            templates: templates::catalogue(),
            given_up: BTreeSet::new(),
            windows: Windows::default(),
            rate: 600,
            room: None,
            page: None,
            direct_after: SignedDuration::from_secs(3),
        }
    }

    /// With another number of calls in a minute.
    #[must_use]
    pub fn rate(mut self, calls: usize) -> Self {
        self.rate = calls;
        self
    }
}

impl Default for Runpod {
    fn default() -> Self {
        Self::new()
    }
}

/// The error body of REST v2.
fn problem(status: u16, detail: impl Into<String>) -> Answer {
    let title = http::StatusCode::from_u16(status)
        .ok()
        .and_then(|status| status.canonical_reason())
        .unwrap_or("Error");
    let body = json!({"title": title, "status": status, "detail": detail.into()});
    Answer::new(status, "application/problem+json", body.to_string())
}

/// Something of this kind that an account has.
fn owned<'a>(world: &'a World, account: &str, kind: &str, id: &str) -> Option<&'a Resource> {
    let found = world.resources.get(id).filter(|found| found.kind == kind);
    found.filter(|found| found.account == account && found.exists())
}

/// All that an account has of a kind, the oldest first.
fn all_of<'a>(world: &'a World, account: &'a str, kind: &'a str) -> Vec<&'a Resource> {
    let mut all: Vec<&Resource> = world.resources_of(account, kind).collect();
    all.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
    all
}

impl Cloud for Runpod {
    fn name(&self) -> &'static str {
        "runpod"
    }

    fn billing(&self) -> Billing {
        Billing {
            halted: Halted::Disk,
            ..Billing::per_second()
        }
    }

    fn furnish(&mut self, world: &mut World) {
        world.end_takes = SignedDuration::from_secs(2);
        catalogue::furnish(world);
        cpus::furnish(world);
    }

    fn calls(&self) -> Vec<Call> {
        calls::all()
    }

    fn recognise(&self, request: &Request) -> Option<Call> {
        if graphql::is_meant(request) {
            return graphql::call(request);
        }
        calls::rest(request, self.v1.is_some())
    }

    fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        if call.name.starts_with("graphql") {
            return graphql::check(request);
        }
        if let Some(v1) = self.v1.as_ref().filter(|_| call.name.starts_with("v1.")) {
            return v1.check(request, call);
        }
        let mut wrong = wire::check(request, call);
        if let Some(description) = &self.description {
            let mut request = request.clone();
            if call.name == "pods.list" {
                request
                    .query
                    .retain(|(name, _)| !["limit", "cursor"].contains(&name.as_str()));
            }
            wrong.extend(description.check(&request));
        }
        wrong
    }

    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        call: &Call,
    ) -> Result<Option<AccountId>, Refusal> {
        let Some(key) = request.bearer() else {
            let public = call.name.starts_with("graphql") && graphql::is_public(request);
            return if public {
                Ok(None)
            } else {
                Err(Refusal::Unauthorized)
            };
        };
        if let Some((account, pod)) = self.pod_keys.get(key) {
            let itself = match call.name {
                "pods.delete" | "v1.pods.delete" => request.path.ends_with(pod.as_str()),
                "graphql.podTerminate" => String::from_utf8_lossy(&request.body).contains(pod.as_str()),
                _ => false,
            };
            return if itself {
                Ok(Some(account.clone()))
            } else {
                Err(Refusal::Forbidden)
            };
        }
        holder(world, Some(key)).map(Some)
    }

    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        match self
            .windows
            .call(&visit.account, self.rate, MINUTE, visit.world.now())
        {
            Ok(left) => {
                self.room = Some(left);
                Ok(())
            }
            Err(wait) => {
                self.room = Some(0);
                Err(Refusal::TooMany {
                    retry_after: Some(u32::try_from(wait.as_secs() + 1).unwrap_or(60)),
                })
            }
        }
    }

    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let segments = visit.request.segments();
        let part = |at: usize| segments.get(at).cloned().unwrap_or_default();
        match visit.call.name {
            "pods.list" => Ok(self.list_pods(visit)),
            "pods.create" => self.create_by_rest(visit),
            "pods.get" => self.get_pod(visit, &part(2)),
            "pods.update" => self.update_pod(visit, &part(2)),
            "pods.delete" => self.delete_pod(visit, &part(2)),
            "pods.action" => self.act_on_pod(visit, &part(2)),
            "clusters.list" => Ok(self.list_clusters(visit)),
            "clusters.create" => self.create_cluster(visit),
            "clusters.get" => self.get_cluster(visit, &part(2)),
            "clusters.pods" => self.pods_of_cluster(visit, &part(2)),
            "clusters.delete" => self.delete_cluster(visit, &part(2)),
            "gpus.list" => catalogue::gpus(visit, None),
            "gpus.get" => catalogue::gpus(visit, Some(&part(3))),
            "cpus.list" => cpus::cpus(visit, None),
            "cpus.get" => cpus::cpus(visit, Some(&part(3))),
            "datacenters.list" => catalogue::data_centers(visit, None),
            "datacenters.get" => catalogue::data_centers(visit, Some(&part(3))),
            "templates.public" => Ok(self.public_templates(visit)),
            "templates.list" => Ok(self.list_templates(visit)),
            "templates.create" => self.create_template(visit),
            "templates.get" => self.get_template(visit, &part(2)),
            "templates.update" => self.update_template(visit, &part(2)),
            "templates.delete" => self.delete_template(visit, &part(2)),
            "volumes.list" => Ok(volumes::list(visit)),
            "volumes.create" => volumes::create(visit),
            "volumes.get" => volumes::get(visit, &part(2)),
            "volumes.update" => volumes::update(visit, &part(2)),
            "volumes.delete" => self.delete_volume(visit, &part(2)),
            "registries.list" => Ok(self.list_registries(visit)),
            "registries.create" => self.create_registry(visit),
            "registries.get" => self.get_registry(visit, &part(2)),
            "registries.delete" => self.delete_registry(visit, &part(2)),
            "billing.all" => self.bill_all(visit),
            "billing.pods" => self.bill_pods(visit),
            "billing.clusters" => self.bill_clusters(visit),
            "billing.volumes" => billing::bill_volumes(visit),
            "keys.get" => Ok(self.get_keys(visit)),
            "keys.replace" => self.replace_keys(visit),
            name if name.starts_with("graphql") => self.answer_graphql(visit),
            name if name.starts_with("v1.") => self.answer_v1(visit, &part(2)),
            _ => Err(Refusal::UnknownCall),
        }
    }

    fn refuse(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Answer {
        if call.is_some_and(|call| call.name.starts_with("graphql")) {
            return graphql::refuse(refusal, call.map_or("", |call| call.name));
        }
        if request.path.starts_with("/v1") && self.v1.is_some() {
            return v1::refuse(refusal, request);
        }
        match refusal {
            Refusal::TooMany { retry_after } => {
                problem(429, "rate limit exceeded").with("retry-after", retry_after.unwrap_or(1).to_string())
            }
            Refusal::Server(status) => problem(*status, "internal error"),
            Refusal::NoCapacity => problem(
                400,
                "There are no longer any instances available with the requested specifications. Please refresh and try again.",
            ),
            Refusal::Quota(what) => problem(400, format!("You have reached your limit of {what}")),
            Refusal::Funds => problem(402, "Your balance is too low to rent this pod"),
            Refusal::Unauthorized | Refusal::Expired => problem(401, "invalid bearer token"),
            Refusal::Forbidden => problem(403, "access denied"),
            Refusal::Invalid(what) => {
                let body = json!({
                    "title": "Unprocessable Entity", "status": 422, "detail": "Request validation failed.", "errors": what,
                });
                Answer::new(422, "application/problem+json", body.to_string())
            }
            Refusal::Bad(what) => problem(400, what.clone()),
            Refusal::NotFound(what) => problem(404, what.clone()),
            Refusal::UnknownCall if request.path.starts_with("/v1") => Answer::json(
                410,
                &json!({"error": "The REST API v1 was retired on 15 November 2026. Use v2."}),
            ),
            Refusal::UnknownCall if graphql::is_meant(request) => graphql::left_out(),
            Refusal::UnknownCall if calls::is_left_out(request) => problem(501, LEFT_OUT),
            Refusal::UnknownCall => problem(404, "resource not found"),
            Refusal::Answer(answer) => answer.clone(),
        }
    }

    fn finish(&mut self, _world: &World, _request: &Request, answer: &mut Answer) {
        if let Some(left) = self.room.take() {
            answer.headers.push((
                "ratelimit-policy".to_owned(),
                format!("\"minute\";q={};w=60", self.rate),
            ));
            answer
                .headers
                .push(("ratelimit".to_owned(), format!("\"minute\";r={left};t=60")));
        }
    }

    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        let described = |description: &Arc<Description>| description.check_answer(request, answer);
        match &self.description {
            Some(description) if request.path.starts_with("/v2") => described(description),
            Some(_) | None => match &self.v1 {
                Some(v1) if request.path.starts_with("/v1") => v1.check_answer(request, answer),
                Some(_) | None => Vec::new(),
            },
        }
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            // Out-bid or wanted on demand: stopped with its disks, and its GPU is somebody else's.
            Happening::Reclaimed(id) => {
                world.halt(id, Cause::Reclaimed);
                world.release_stock(id);
            }
            Happening::HaltedItself(id) => {
                world.halt(id, Cause::Itself);
                world.release_stock(id);
            }
            Happening::Died(id) => world.fail(id, Cause::Died),
            Happening::Reminder(what) => match what.split_once(' ') {
                Some(("terminate", id)) => self.terminate(world, id, SignedDuration::ZERO),
                Some(("stop", id)) => pods::stop(world, id),
                _ => {}
            },
            Happening::Running(_)
            | Happening::BootFailed(_)
            | Happening::Noticed(_)
            | Happening::Ended(_) => {}
        }
    }

    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        match name {
            "market" => Some(self.move_floor(world, body)),
            "pages" => {
                let pods = body.get("pods").and_then(Value::as_u64);
                self.page = pods
                    .and_then(|pods| usize::try_from(pods).ok())
                    .filter(|pods| *pods > 0);
                Some(Ok(json!({ "pods": self.page })))
            }
            "v1" => {
                let served = body.get("served") == Some(&Value::Bool(true));
                self.v1 = served.then(v1::Served::new);
                Some(Ok(json!({ "served": served })))
            }
            "rate" => Some(match body.get("calls").and_then(Value::as_u64) {
                Some(calls) => {
                    self.rate = usize::try_from(calls).unwrap_or(usize::MAX);
                    Ok(json!({ "calls": calls }))
                }
                None => Err("give {\"calls\"}".to_owned()),
            }),
            _ => None,
        }
    }
}

impl Runpod {
    /// The floor of bids for one GPU moves (in SECURE unless said), and pods with lower bids stop.
    fn move_floor(&self, world: &mut World, body: &Value) -> Result<Value, String> {
        let gpu = body
            .get("gpu")
            .and_then(Value::as_str)
            .ok_or("give {\"gpu\", \"bid\"}")?;
        let bid = body
            .get("bid")
            .and_then(Value::as_str)
            .and_then(|bid| bid.parse::<Decimal>().ok());
        let bid = bid.ok_or("\"bid\" is a decimal in quotes")?;
        let community = body.get("cloud").and_then(Value::as_str) == Some("COMMUNITY");
        let tier = if community {
            wire::Tier::Community
        } else {
            wire::Tier::Secure
        };
        let found = world
            .types
            .get_mut(gpu)
            .ok_or_else(|| format!("no GPU is called {gpu:?}"))?;
        if community {
            found.detail["communityBid"] = json!(bid);
        } else {
            found.spot = Some(bid);
        }
        let out_bid: Vec<String> = world
            .machines
            .values()
            .filter(|machine| {
                machine.instance_type == gpu && matches!(machine.phase, Phase::Pending | Phase::Running)
            })
            .filter(|machine| {
                let pod = self.pods.get(&machine.id).filter(|pod| pod.tier == tier);
                pod.and_then(|pod| pod.bid).is_some_and(|own| own < bid)
            })
            .map(|machine| machine.id.clone())
            .collect();
        for id in &out_bid {
            world.reclaim(id, SignedDuration::ZERO);
        }
        Ok(json!({"outBid": out_bid}))
    }
}
