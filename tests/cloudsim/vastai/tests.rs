//! Tests with hand-written requests, passed to the simulator without a socket.

mod bids;
mod bulk;
mod cli;
mod commands;
mod contracts;
mod keys;
mod lists;
mod money;
mod sdk;
mod searches;
mod templates;
mod volumes;

use std::sync::Arc;

use http::{HeaderValue, Method};
use jiff::SignedDuration;
use serde_json::{Value, json};

use super::Vastai;
use crate::backend::Reports;
use crate::backend::memory::Memory;
use crate::core::account::Account;
use crate::core::clock::Clock;
use crate::core::http::Request;
use crate::core::sim::{Outcome, Sim};

const ACCOUNT: &str = "acme";
const KEY: &str = "a key of vast";

/// A customer with an account.
struct Hand {
    sim: Arc<Sim>,
    key: String,
}

impl Hand {
    /// A fresh marketplace with one account, in which calls may follow one another
    /// as quickly as they like.
    fn new() -> Self {
        let hand = Self::limited();
        hand.control("limits", json!({"enabled": false}));
        hand
    }

    /// The same with the service's limits.
    fn limited() -> Self {
        let clock = Clock::manual("2026-11-21T00:00:00Z".parse().expect("a moment"));
        let reports = Reports::default();
        let backend = Arc::new(Memory::new(reports.clone()));
        let sim = Arc::new(Sim::new(Box::new(Vastai::new()), clock, 7, backend, reports));
        sim.world(|world| world.add_account(Account::with_key(ACCOUNT, KEY)));
        Self {
            sim,
            key: KEY.to_owned(),
        }
    }

    fn control(&self, name: &str, body: Value) {
        self.sim.control(name, &body).expect("a control").expect("done");
    }

    /// A call: status and body, which is text where it is no JSON.
    fn call(&self, method: &Method, target: &str, body: Option<&Value>) -> (u16, Value) {
        let text = body.map(Value::to_string).unwrap_or_default();
        let mut request = Request::new(method.clone(), target, text);
        if !self.key.is_empty() {
            let key = HeaderValue::from_str(&format!("Bearer {}", self.key)).expect("a value");
            request.headers.insert("authorization", key);
        }
        request
            .headers
            .insert("host", HeaderValue::from_static("127.0.0.1:1"));
        if body.is_some() {
            request
                .headers
                .insert("content-type", HeaderValue::from_static("application/json"));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        match runtime.block_on(self.sim.handle(request)) {
            Outcome::Answer(answer) => {
                let body = serde_json::from_slice(&answer.body)
                    .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&answer.body).into_owned()));
                (answer.status, body)
            }
            Outcome::Cut => (0, Value::Null),
        }
    }

    fn get(&self, target: &str) -> (u16, Value) {
        self.call(&Method::GET, target, None)
    }

    fn put(&self, target: &str, body: Value) -> (u16, Value) {
        self.call(&Method::PUT, target, Some(&body))
    }

    fn post(&self, target: &str, body: Value) -> (u16, Value) {
        self.call(&Method::POST, target, Some(&body))
    }

    fn delete(&self, target: &str, body: Value) -> (u16, Value) {
        self.call(&Method::DELETE, target, Some(&body))
    }

    fn offers(&self, body: Value) -> Vec<Value> {
        let (status, found) = self.post("/api/v0/bundles/", body);
        assert_eq!(status, 200, "{found}");
        found["offers"].as_array().expect("offers").clone()
    }

    /// An offer of a host.
    fn offer_of(&self, machine: i64, gpus: i64, kind: &str) -> Value {
        let found = self.offers(json!({
            "type": kind,
            "limit": 500,
            "verified": {"in": [true, false]},
            "machine_id": {"eq": machine},
            "num_gpus": {"in": [gpus]},
        }));
        found.first().cloned().expect("an offer")
    }

    fn create(&self, offer: &Value, more: Value) -> (u16, Value) {
        let mut body = json!({
            "client_id": "me",
            "image": "nvidia/cuda:12.9.1-runtime-ubuntu24.04",
            "disk": 100,
            "label": "pool/0",
            "runtype": "ssh_direct",
            "cancel_unavail": true,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.put(&format!("/api/v0/asks/{}/", offer["id"]), body)
    }

    /// An instance that runs.
    fn running(&self, offer: &Value, more: Value) -> String {
        let (status, body) = self.create(offer, more);
        assert_eq!((status, &body["success"]), (200, &json!(true)), "{body}");
        let id = body["new_contract"].to_string();
        self.wait(60);
        assert_eq!(self.instance(&id)["actual_status"], "running");
        id
    }

    /// An instance as the service shows it; null where there is none.
    fn instance(&self, id: &str) -> Value {
        let (status, body) = self.get(&format!("/api/v0/instances/{id}/?owner=me"));
        assert_eq!(status, 200, "{body}");
        body["instances"].clone()
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
