//! `/metrics`, `/healthz`, `/readyz` and `/debug/plans` over HTTP.
//!
//! Ready means: the Lease is decided (a standby replica is ready too), and the leader's
//! watches are synced. `/debug/plans` answers with the reasons of the last plan of each
//! Pool and Machine: the first place to look when something does not happen.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router, extract::State, http::StatusCode, http::header, response::IntoResponse, routing::get,
};
use jiff::Timestamp;
use serde::Serialize;
use skyward_subresources::serve::listen;
use tokio_util::sync::CancellationToken;

use crate::{context::Context, metrics::Metrics};

/// What the probes answer from.
#[derive(Default)]
pub struct Health {
    lease_decided: AtomicBool,
    leads: AtomicBool,
    synced: AtomicBool,
    hindrance: Mutex<Option<String>>,
    plans: Mutex<BTreeMap<String, LastPlan>>,
    context: RwLock<Option<Context>>,
}

/// The last plan of an object.
#[derive(Clone, Debug, Serialize)]
pub struct LastPlan {
    /// When it was made.
    pub at: Timestamp,
    /// Why it is as it is, step by step.
    pub reasons: Vec<String>,
    /// What it did.
    pub actions: Vec<String>,
}

impl Health {
    /// Somebody, perhaps we, holds the Lease.
    pub fn lease_decided(&self, leads: bool) {
        *self.hindrance.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.leads.store(leads, Ordering::Relaxed);
        self.lease_decided.store(true, Ordering::Relaxed);
    }

    /// This process cannot lead, whatever becomes of the Lease, until somebody does something.
    pub fn hindered(&self, reason: String) {
        *self.hindrance.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    /// All watches have their first list; from now on metrics show the caches.
    pub fn synced(&self, context: Context) {
        *self.context.write().unwrap_or_else(PoisonError::into_inner) = Some(context);
        self.synced.store(true, Ordering::Relaxed);
    }

    /// The controllers end.
    pub fn stopped(&self) {
        self.synced.store(false, Ordering::Relaxed);
        *self.context.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Remembers why a plan is as it is; the object is `Pool namespace/name`.
    pub fn planned(&self, object: String, reasons: Vec<String>, actions: Vec<String>) {
        let plan = LastPlan {
            at: Timestamp::now(),
            reasons,
            actions,
        };
        self.plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(object, plan);
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, object: &str) {
        self.plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(object);
    }

    /// Why it is not ready; `None` = it is.
    pub fn not_ready(&self) -> Option<String> {
        let hindrance = self.hindrance.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reason) = &*hindrance {
            return Some(reason.clone());
        }
        if !self.lease_decided.load(Ordering::Relaxed) {
            return Some("the leader Lease is not decided yet".to_owned());
        }
        if self.leads.load(Ordering::Relaxed) && !self.synced.load(Ordering::Relaxed) {
            return Some("the watches are not synced yet".to_owned());
        }
        None
    }
}

#[derive(Clone)]
struct Served {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
}

/// Serves until cancelled.
pub async fn serve(
    address: SocketAddr,
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    let listener = listen(address).await.map_err(|error| {
        std::io::Error::new(
            error.kind(),
            format!(
                "metrics and health cannot be served on {address}: {error}; choose another --metrics-address"
            ),
        )
    })?;
    axum::serve(listener, router(health, metrics))
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await
}

fn router(health: Arc<Health>, metrics: Arc<Metrics>) -> Router {
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .route("/debug/plans", get(plans))
        .with_state(Served { health, metrics })
}

async fn ready(State(served): State<Served>) -> impl IntoResponse {
    match served.health.not_ready() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

async fn render(State(served): State<Served>) -> impl IntoResponse {
    let context = served
        .health
        .context
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
    if let Some(context) = context {
        served.metrics.observe(&context);
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], served.metrics.render())
}

async fn plans(State(served): State<Served>) -> impl IntoResponse {
    Json(
        served
            .health
            .plans
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_standby_is_ready_and_a_leader_only_when_its_watches_are_synced() {
        let health = Health::default();
        assert!(health.not_ready().is_some());
        health.lease_decided(false);
        assert_eq!(health.not_ready(), None);
        health.lease_decided(true);
        assert_eq!(
            health.not_ready().as_deref(),
            Some("the watches are not synced yet")
        );
    }

    #[test]
    fn an_installation_beside_another_one_is_not_ready_until_the_other_is_gone() {
        let health = Health::default();
        health.hindered("another installation leads".to_owned());
        assert_eq!(health.not_ready().as_deref(), Some("another installation leads"));
        health.lease_decided(false);
        assert_eq!(health.not_ready(), None);
    }
}
