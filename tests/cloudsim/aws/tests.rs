//! Tests with hand-written, signed requests, passed to the simulator without a socket.

mod boto;
mod credentials;
mod descriptions;
mod fleets;
mod keys;
mod launches;
mod metadata;
mod networks;
mod offers;
mod quotas;
mod roles;
mod wire;

use std::fmt::Write as _;
use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method};
use jiff::SignedDuration;
use serde_json::Value;

use super::Aws;
use super::model::Models;
use super::sigv4::{self, Secret, Signed};
use crate::backend::Reports;
use crate::backend::memory::Memory;
use crate::core::account::Account;
use crate::core::clock::Clock;
use crate::core::http::Request;
use crate::core::sim::{Outcome, Sim};

/// The models; `None`, with a message, where the environment has none.
pub(super) fn models() -> Option<Arc<Models>> {
    let Some(models) = Models::from_environment() else {
        println!("skipped: SKYWARD_SPECS is not set");
        return None;
    };
    Some(models.expect("models of AWS"))
}

const ACCOUNT: &str = "123456789012";
const KEY: &str = "AKIASIMULATED0000001";
const SECRET: &str = "a secret that nobody else has";

/// A customer with an account, in a region.
struct Hand {
    sim: Arc<Sim>,
    region: String,
    key: String,
    secret: Secret,
}

/// An answer.
#[derive(Debug, Clone)]
struct Reply {
    status: u16,
    body: String,
}

impl Reply {
    /// The text of the first element of this name.
    fn text(&self, element: &str) -> Option<&str> {
        self.all(element).first().copied()
    }

    /// The contents of all elements of this name.
    fn all(&self, element: &str) -> Vec<&str> {
        let (open, close) = (format!("<{element}>"), format!("</{element}>"));
        self.body
            .split(&open)
            .skip(1)
            .filter_map(|rest| rest.split(&close).next())
            .collect()
    }

    #[track_caller]
    fn fine(self) -> Self {
        assert_eq!(self.status, 200, "{}", self.body);
        self
    }

    #[track_caller]
    fn fails(&self, status: u16, code: &str) {
        assert_eq!(
            (self.status, self.text("Code")),
            (status, Some(code)),
            "{}",
            self.body
        );
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).expect("JSON")
    }
}

impl Hand {
    /// A fresh AWS with one account, or nothing where there are no models.
    fn new() -> Option<Self> {
        let models = models()?;
        let clock = Clock::manual("2026-11-21T00:00:00Z".parse().expect("a moment"));
        let reports = Reports::default();
        let backend = Arc::new(Memory::new(reports.clone()));
        let sim = Arc::new(Sim::new(Box::new(Aws::new(models)), clock, 7, backend, reports));
        sim.world(|world| world.add_account(Account::with_pair(ACCOUNT, KEY, SECRET)));
        let secret = Secret {
            secret: SECRET.to_owned(),
            token: None,
        };
        Some(Self {
            sim,
            region: "us-east-1".to_owned(),
            key: KEY.to_owned(),
            secret,
        })
    }

    fn in_region(&self, region: &str) -> Self {
        Self {
            sim: self.sim.clone(),
            region: region.to_owned(),
            key: self.key.clone(),
            secret: self.secret.clone(),
        }
    }

    /// A signed request.
    fn signed(&self, service: &str, headers: &[(&str, &str)], body: &str) -> Request {
        let mut request = Request::new(Method::POST, "/", body.to_owned());
        let now = self.sim.clock().now().strftime("%Y%m%dT%H%M%SZ").to_string();
        let mut put = |name: &str, value: &str| {
            let name: HeaderName = name.parse().expect("a name");
            request
                .headers
                .insert(name, HeaderValue::from_str(value).expect("a value"));
        };
        put("host", "127.0.0.1:1234");
        put("x-amz-date", &now);
        if let Some(token) = &self.secret.token {
            put("x-amz-security-token", token);
        }
        for (name, value) in headers {
            put(name, value);
        }
        let map = super::header_map(&request);
        let signed = Signed {
            method: "POST",
            path: "/",
            query: &[],
            headers: &map,
            body: body.as_bytes(),
        };
        let header = sigv4::sign(signed, &self.key, &self.secret.secret, &self.region, service);
        request
            .headers
            .insert("authorization", HeaderValue::from_str(&header).expect("a value"));
        request
    }

    fn send(&self, request: Request) -> Option<Reply> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        match runtime.block_on(self.sim.handle(request)) {
            Outcome::Answer(answer) => Some(Reply {
                status: answer.status,
                body: String::from_utf8_lossy(&answer.body).into_owned(),
            }),
            Outcome::Cut => None,
        }
    }

    /// A call by a form; parameters as `Name=value` with plain values.
    fn form(&self, service: &str, version: &str, action: &str, parameters: &[(&str, &str)]) -> Reply {
        let mut body = format!("Action={action}&Version={version}");
        for (name, value) in parameters {
            let _ = write!(body, "&{name}={}", escape(value));
        }
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        self.send(self.signed(service, &headers, &body))
            .expect("an answer")
    }

    fn ec2(&self, action: &str, parameters: &[(&str, &str)]) -> Reply {
        self.form("ec2", "2016-11-15", action, parameters)
    }

    fn sts(&self, action: &str) -> Reply {
        self.form("sts", "2011-06-15", action, &[])
    }

    fn json(&self, service: &str, target: &str, body: &Value) -> Reply {
        let headers = [
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", target),
        ];
        self.send(self.signed(service, &headers, &body.to_string()))
            .expect("an answer")
    }

    fn parameter(&self, name: &str) -> Reply {
        self.json(
            "ssm",
            "AmazonSSM.GetParameter",
            &serde_json::json!({"Name": name}),
        )
    }

    fn image(&self, architecture: &str) -> String {
        let name = format!(
            "/aws/service/canonical/ubuntu/server/24.04/stable/current/{architecture}/hvm/ebs-gp3/ami-id"
        );
        self.parameter(&name).fine().json()["Parameter"]["Value"]
            .as_str()
            .expect("an id")
            .to_owned()
    }

    /// Subnets of the default VPC with their zones.
    fn subnets(&self) -> Vec<(String, String)> {
        let reply = self
            .ec2(
                "DescribeSubnets",
                &[("Filter.1.Name", "default-for-az"), ("Filter.1.Value.1", "true")],
            )
            .fine();
        let ids = reply.all("subnetId").into_iter().map(str::to_owned);
        ids.zip(reply.all("availabilityZone").into_iter().map(str::to_owned))
            .collect()
    }

    fn subnet_in(&self, zone: &str) -> String {
        self.subnets()
            .into_iter()
            .find(|(_, found)| found == zone)
            .expect("a subnet")
            .0
    }

    /// One instance, with more parameters.
    fn run(&self, kind: &str, more: &[(&str, &str)]) -> Reply {
        let image = self.image("amd64");
        let mut parameters = vec![
            ("ImageId", image.as_str()),
            ("InstanceType", kind),
            ("MinCount", "1"),
            ("MaxCount", "1"),
        ];
        for (name, value) in more {
            parameters.retain(|(given, _)| given != name);
            parameters.push((name, value));
        }
        self.ec2("RunInstances", &parameters)
    }

    /// One instance that runs.
    fn running(&self, kind: &str, more: &[(&str, &str)]) -> String {
        let id = self
            .run(kind, more)
            .fine()
            .text("instanceId")
            .expect("an id")
            .to_owned();
        self.wait(60);
        assert_eq!(self.state(&id), "running");
        id
    }

    fn state(&self, id: &str) -> String {
        let reply = self.ec2("DescribeInstances", &[("InstanceId.1", id)]).fine();
        let state = reply.text("instanceState").expect("a state");
        state
            .split("<name>")
            .nth(1)
            .and_then(|rest| rest.split('<').next())
            .expect("a name")
            .to_owned()
    }

    fn wait(&self, seconds: i64) {
        self.sim.clock().advance(SignedDuration::from_secs(seconds));
        self.sim.catch_up();
    }

    /// Asserts that every request and answer of this test is as described.
    #[track_caller]
    fn judged_clean(&self) {
        assert_eq!(self.sim.violations(), []);
        assert_eq!(self.sim.mistakes(), []);
    }
}

fn escape(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}
