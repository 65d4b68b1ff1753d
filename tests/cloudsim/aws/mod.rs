//! Amazon Web Services: EC2, SSM, Pricing, Service Quotas and STS at one address.
//!
//! Which requests are allowed, and how answers are written, comes from the botocore
//! models in the folder that `SKYWARD_SPECS` names; without them there is no AWS.
//! Service and region of a request are taken from its signature, as all endpoints are
//! one address here.
//!
//! | fact | where |
//! | --- | --- |
//! | form in, XML out; names by `queryName`, `locationName`; flat lists | `query`, `xml` |
//! | what the model does not know is refused and recorded | `query`, `json`, `check` below |
//! | signatures, clock skew, permissions | `sigv4`, `access` |
//! | temporary credentials of roles, and their holders | `sts` |
//! | error codes, their status, their form at each service | `failure` |
//! | regions, zones, default VPC, a private VPC | `network` |
//! | security groups, and their rules as permissions | `groups`, `rules` |
//! | instance types with GPUs, parts of GPUs, Neuron; where they are carried | `catalogue`, `records`, `offers` |
//! | the price list as strings, with products nobody wants; its services and attributes | `price_list` |
//! | Service Quotas in short pages: those of the account, others made up and not enforced | `quotas` |
//! | spot prices by zone with their past; requests and their status | `spot` |
//! | images by SSM parameter; combinations that are missing | `images` |
//! | key pairs: import, duplicates, deletion of what is not there | `keys` |
//! | key pairs that the service makes: files, public halves, fingerprints | `pairs` |
//! | launch templates | `templates` |
//! | launches: images, architectures, networks, user data, volumes, profiles | `launch`, `launch_network` |
//! | zones that carry a type, stock, vCPU quotas, prices of a launch | `room` |
//! | `RunInstances`: client tokens, partial success down to `MinCount` | `run` |
//! | `CreateFleet`: status 200 with errors inside, partial results, single zone | `fleet` |
//! | fleets of the types instant and request, and what each tells | `fleets` |
//! | visibility, pages, filters, termination of all or none | `instances`, `instance_filters` |
//! | states, reasons, addresses, network interfaces | `described` |
//! | tags, of volumes, interfaces and spot requests too | `tags`, `parts` |
//! | metadata service with tokens, hop limit, spot notices | `imds`, `imds-proxy.py` |
//! | token buckets by action and region, 503 | `throttle` |
//! | billing by the second, at least a minute, running time only; stopped ones cost their volumes | `billing` below |
//! | an instance that halts itself ends or stops by its shutdown behaviour | `happened` below |
//!
//! Amazon's own client for Python judges it in `tests/boto.rs` (`boto3-check.py`).
//!
//! What differs from the real thing: a spot instance keeps the price of its launch,
//! root volumes of running instances are not on the bill, no fleet launches again what
//! ended, every account has all roles, and RSA keys differ each time, whatever the seed.
//!
//! Not here: whatever our part of the description does not have, as `DescribeVolumes`,
//! `StopInstances` or `DescribeRouteTables`.

pub mod access;
pub mod catalogue;
pub mod context;
pub mod controls;
pub mod described;
pub mod dispatch;
pub mod failure;
pub mod fleet;
pub mod fleets;
pub mod groups;
pub mod images;
pub mod imds;
pub mod input;
pub mod instance_filters;
pub mod instances;
pub mod json;
pub mod keys;
pub mod launch;
pub mod launch_network;
pub mod model;
pub mod network;
pub mod offers;
pub mod pairs;
pub mod parts;
pub mod price_list;
pub mod query;
pub mod quotas;
pub mod records;
pub mod room;
pub mod rules;
pub mod run;
pub mod service;
pub mod sigv4;
pub mod spot;
pub mod sts;
pub mod tags;
pub mod templates;
#[cfg(test)]
mod tests;
pub mod throttle;
pub mod xml;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::SignedDuration;
use serde_json::Value;

pub use self::catalogue::Quota;
pub use self::room::quota_name;

use self::context::{Context, State};
use self::failure::Failure;
use self::model::Models;
use self::service::{Operation, Service, WEB_IDENTITY, Wire};
use self::throttle::Buckets;
use crate::core::account::{AccountId, CredentialState};
use crate::core::billing::{Billing, Halted};
use crate::core::cloud::{Call, Cloud, Effect, Refusal, Visit};
use crate::core::http::{Answer, Request};
use crate::core::machine::Cause;
use crate::core::market::{InstanceType, Left, Market, Shelf};
use crate::core::world::{Happening, World};

/// The header of answers that are mistakes of the simulator.
const MISTAKE: &str = "x-sim-mistake";

/// The simulated AWS.
pub struct Aws {
    models: Arc<Models>,
    state: State,
    buckets: Buckets,
}

impl Aws {
    /// AWS as these models describe it.
    pub fn new(models: Arc<Models>) -> Self {
        let state = State {
            profiles: ["gpu-node".to_owned()].into(),
            ..State::default()
        };
        Self {
            models,
            state,
            buckets: Buckets::default(),
        }
    }

    /// AWS by the models in the folder that the environment names; `None` where it
    /// names none.
    ///
    /// # Panics
    /// When the folder is named and its models cannot be used.
    #[expect(clippy::panic, reason = "a test that means to check and cannot must fail")]
    pub fn from_environment() -> Option<Self> {
        match Models::from_environment() {
            Some(Ok(models)) => Some(Self::new(models)),
            Some(Err(error)) => panic!("the models of AWS cannot be used: {error}"),
            None => {
                crate::core::sim::say_that_descriptions_are_missing();
                None
            }
        }
    }

    fn perform(&mut self, visit: &mut Visit<'_>, operation: Operation) -> Result<Value, Failure> {
        let decoded = operation
            .decode(&self.models, visit.request)
            .map_err(Failure::internal)?;
        if !decoded.problems.is_empty() {
            return Err(Failure::of_problems(operation.service, &decoded.problems));
        }
        let input = decoded.input;
        let region = region(visit.request);
        let context = &mut Context {
            state: &mut self.state,
            visit,
            region,
        };
        context.may(&format!(
            "{}:{}",
            operation.service.signing_name(),
            operation.name
        ))?;
        if input::flag(&input, "DryRun") {
            return Err(Failure::new(
                412,
                "DryRunOperation",
                "Request would have succeeded, but DryRun flag is set.",
            ));
        }
        dispatch::dispatch(context, operation, &input)
    }

    fn written(&self, operation: Operation, output: &Value, request_id: &str) -> Result<Answer, String> {
        let model = operation.service.model(&self.models);
        match operation.service.wire() {
            Wire::Form(dialect) => {
                let body = xml::answer(model, dialect, operation.name, output, request_id)?;
                Ok(Answer::new(200, "text/xml;charset=UTF-8", body))
            }
            Wire::Json => {
                let wrong = json::check_output(model, operation.name, output)?;
                if !wrong.is_empty() {
                    return Err(wrong.join("; "));
                }
                Ok(Answer::new(200, "application/x-amz-json-1.1", output.to_string()))
            }
        }
    }

    fn failed(&self, service: Service, failure: &Failure, request: &Request) -> Answer {
        failure.answer(
            service,
            service.model(&self.models).namespace(),
            &request_id(request),
        )
    }
}

/// The headers of a request by lower-case name.
fn header_map(request: &Request) -> BTreeMap<String, String> {
    let mut headers: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in &request.headers {
        let value = value.to_str().unwrap_or_default();
        headers
            .entry(name.as_str().to_owned())
            .and_modify(|all| {
                all.push(',');
                all.push_str(value);
            })
            .or_insert_with(|| value.to_owned());
    }
    headers
}

fn region(request: &Request) -> String {
    sigv4::scope(&header_map(request)).map_or_else(|_| "us-east-1".to_owned(), |scope| scope.region)
}

/// The same for the same request, so that answers can be compared.
fn request_id(request: &Request) -> String {
    let text = format!(
        "{:?} {}",
        request.headers.get("x-amz-date"),
        String::from_utf8_lossy(&request.body)
    );
    let digits = context::digits(&text, 32);
    format!(
        "{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    )
}

impl Cloud for Aws {
    fn name(&self) -> &'static str {
        "aws"
    }

    fn billing(&self) -> Billing {
        Billing {
            step: SignedDuration::from_secs(1),
            minimum: SignedDuration::from_secs(60),
            pending: false,
            halted: Halted::Disk,
            failed: true,
            ending: false,
        }
    }

    fn furnish(&mut self, world: &mut World) {
        for kind in catalogue::TYPES {
            let (gpus, gpu, gpu_memory_gb) = match kind.device {
                catalogue::Device::Gpus(_, name, count, memory)
                | catalogue::Device::Neuron(name, count, memory, ..) => (count, name, memory / 1024),
                catalogue::Device::Inference(count, memory) => (count, "Inferentia", memory / 1024),
                catalogue::Device::None | catalogue::Device::Fraction(..) => (0, "", 0),
            };
            world.add_type(InstanceType {
                name: kind.name.to_owned(),
                vcpus: kind.vcpus,
                memory_gb: (kind.memory / 1024) as u32,
                gpus,
                gpu: gpu.to_owned(),
                gpu_memory_gb,
                architecture: kind.architecture.to_owned(),
                on_demand: kind.on_demand_price("us-east-1"),
                // Each zone has its own; one that is set here holds everywhere.
                spot: None,
                detail: Value::Null,
            });
        }
        for (region, ..) in catalogue::REGIONS {
            for zone in catalogue::zones(region) {
                for kind in catalogue::TYPES.iter().filter(|kind| kind.carried_in(&zone)) {
                    world
                        .stock
                        .set(Shelf::new(kind.name, &zone, Market::OnDemand), Left::Plenty);
                    if kind.spot {
                        world
                            .stock
                            .set(Shelf::new(kind.name, &zone, Market::Spot), Left::Plenty);
                    }
                }
                world.regions.push(zone);
            }
        }
        // What was just made is not found for a moment.
        world.lag.created = SignedDuration::from_secs(1);
        world.end_takes = SignedDuration::from_secs(20);
    }

    fn recognise(&self, request: &Request) -> Option<Call> {
        if request.path.starts_with(imds::PREFIX) {
            return Some(Call::new("imds", Effect::Read));
        }
        Operation::of(request).map(Operation::call)
    }

    fn check(&self, request: &Request, call: &Call) -> Vec<String> {
        let _ = call;
        let Some(operation) = Operation::of(request).filter(|_| !request.path.starts_with(imds::PREFIX))
        else {
            return Vec::new();
        };
        let mut wrong = operation.check_envelope(&self.models, request);
        match operation.decode(&self.models, request) {
            Ok(decoded) => wrong.extend(decoded.problems.into_iter().map(|problem| problem.text)),
            Err(error) => wrong.push(error),
        }
        wrong
    }

    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        call: &Call,
    ) -> Result<Option<AccountId>, Refusal> {
        let Some(operation) = Operation::of(request) else {
            return Ok(None);
        };
        if call.name == "imds" || operation.name == WEB_IDENTITY {
            return Ok(None);
        }
        let refused = |failure: Failure| Refusal::Answer(self.failed(operation.service, &failure, request));
        access::account(&self.state, world, request, operation, refused).map(Some)
    }

    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        let Some(operation) = Operation::of(visit.request) else {
            return Ok(());
        };
        let allowed = self
            .buckets
            .take(&visit.account, &region(visit.request), &operation, visit.now());
        if allowed {
            Ok(())
        } else {
            Err(Refusal::TooMany { retry_after: None })
        }
    }

    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        if visit.request.path.starts_with(imds::PREFIX) {
            return Ok(imds::answer(&mut self.state.sessions, visit.world, visit.request));
        }
        let Some(operation) = Operation::of(visit.request) else {
            return Err(Refusal::UnknownCall);
        };
        let output = match self.perform(visit, operation) {
            Ok(output) => output,
            Err(failure) => {
                return Err(Refusal::Answer(self.failed(
                    operation.service,
                    &failure,
                    visit.request,
                )));
            }
        };
        match self.written(operation, &output, &request_id(visit.request)) {
            Ok(answer) => Ok(answer),
            Err(error) => {
                let failure = Failure::internal(error.clone());
                Ok(self
                    .failed(operation.service, &failure, visit.request)
                    .with(MISTAKE, error))
            }
        }
    }

    fn refuse(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Answer {
        if let Refusal::Answer(answer) = refusal {
            return answer.clone();
        }
        let service = Service::of(request);
        let mut failure = Failure::of_refusal(service, refusal);
        if let (Refusal::Invalid(_), Some(operation)) = (refusal, Operation::of(request))
            && let Ok(decoded) = operation.decode(&self.models, request)
            && !decoded.problems.is_empty()
        {
            // The code says what kind of deviation it is.
            failure = Failure::of_problems(service, &decoded.problems);
        }
        let inside = matches!(refusal, Refusal::NoCapacity | Refusal::Quota(_));
        if inside
            && call.is_some_and(|call| call.name == "ec2.CreateFleet")
            && let Some(operation) = Operation::of(request)
        {
            // A fleet that gets nothing is no failed call.
            let output = serde_json::json!({
                "FleetId": format!("fleet-{}", request_id(request)),
                "Errors": [{"ErrorCode": failure.code, "ErrorMessage": failure.message}],
                "Instances": [],
            });
            if let Ok(answer) = self.written(operation, &output, &request_id(request)) {
                return answer;
            }
        }
        self.failed(service, &failure, request)
    }

    fn finish(&mut self, world: &World, request: &Request, answer: &mut Answer) {
        if !request.path.starts_with(imds::PREFIX) {
            let date = world.now().strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            // Clients measure the skew of their clock by this.
            answer.headers.push(("date".to_owned(), date));
            answer
                .headers
                .push(("x-amzn-requestid".to_owned(), request_id(request)));
        }
    }

    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        let _ = request;
        answer.header(MISTAKE).map(str::to_owned).into_iter().collect()
    }

    fn happened(&mut self, world: &mut World, happening: &Happening) {
        match happening {
            Happening::Running(_) | Happening::Noticed(_) | Happening::Ended(_) => {}
            Happening::BootFailed(id) => {
                let cause = world.machines.get(id).and_then(|machine| machine.cause.clone());
                instances::end(world, id, cause.unwrap_or(Cause::Installation(String::new())));
            }
            Happening::Reclaimed(id) => {
                let Some(machine) = world.machines.get(id) else {
                    return;
                };
                if machine.detail["interruption"] == "terminate" {
                    instances::end(world, id, Cause::Reclaimed);
                } else {
                    world.halt(id, Cause::Reclaimed);
                }
            }
            Happening::HaltedItself(id) => {
                let Some(machine) = world.machines.get(id) else {
                    return;
                };
                // A one-time spot request ends with its instance, whatever was asked.
                if machine.detail["shutdown"] == "terminate" || machine.market == Market::Spot {
                    instances::end(world, id, Cause::Itself);
                } else {
                    world.halt(id, Cause::Itself);
                }
            }
            Happening::Died(id) => {
                let Some(machine) = world.machines.get(id) else {
                    return;
                };
                // With a volume of its own an instance survives its host, stopped.
                if machine.market == Market::Spot {
                    instances::end(world, id, Cause::Died);
                } else {
                    world.halt(id, Cause::Died);
                }
            }
            Happening::Reminder(what) => {
                if let Some(key) = what.strip_prefix(sts::EXPIRES) {
                    let credentials = world
                        .accounts
                        .values_mut()
                        .flat_map(|account| &mut account.credentials);
                    for credential in credentials.filter(|credential| credential.id == key) {
                        credential.state = CredentialState::Expired;
                    }
                }
            }
        }
    }

    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        controls::control(&mut self.state, world, name, body)
    }
}
