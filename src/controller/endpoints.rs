//! Endpoints about this process itself, each for its own clients.
//!
//! - Probes (`/healthz`, `/readyz`): for anybody, over plain HTTP, so they answer with a status and
//!   a fixed word.
//! - Metrics (`/metrics`): over TLS, for clients with a token of an account that may read them
//!   ([`crate::access`]), since they name Pools and their costs.
//! - Plans (`/debug/plans`), and why this process is not ready (`/readyz`): on a loopback address,
//!   so for users who may `kubectl port-forward` to the Pod.
//!
//! Why a process cannot lead becomes an Event of its Pod, too.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use k8s_openapi::api::core::v1::{ObjectReference, Pod, Secret};
use kube::{Api, Client, runtime::reflector::ObjectRef};
use rustls::ServerConfig;
use skyward_planner::events::{self, EventSpec};
use skyward_subresources::{
    connections::Limits,
    reload::{CONTROLLER_CERTS_SECRET, key},
    serve::{Peer, Transport, listen, serve as serve_on},
    tls::{self, Clients},
};
use tokio::{
    net::TcpListener,
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    access::{self, Access, Door, Reviews},
    config::Config,
    deadline::words,
    events::Events,
    health::Health,
    metrics::Metrics,
};

/// Most connections of each of the three.
const CONNECTIONS: Limits = Limits {
    known: 32,
    anonymous: 32,
};
/// How often certificates are read anew.
const LOOK: Duration = Duration::from_secs(30);
/// How often while there are none: the first leader makes them.
const SOON: Duration = Duration::from_secs(2);
/// Longest wait for the last Events to be written.
const DEADLINE: Duration = Duration::from_secs(10);

/// The state that the endpoints show. The client must not be fenced: a process that does not lead
/// answers, too.
pub struct Parts {
    /// Settings.
    pub config: Arc<Config>,
    /// Client of the API server.
    pub client: Client,
    /// State of this process.
    pub health: Arc<Health>,
    /// Its metrics.
    pub metrics: Arc<Metrics>,
    /// Cancelled when the process shall end.
    pub shutdown: CancellationToken,
}

/// Serves until cancelled.
pub async fn serve(parts: Parts) -> io::Result<()> {
    let Parts {
        config,
        client,
        health,
        metrics,
        shutdown,
    } = parts;
    let probes_on = bind(config.health_address, "probes", "--health-address").await?;
    let metrics_on = bind(config.metrics_address, "metrics", "--metrics-address").await?;
    let plans_on = bind(config.debug_address, "plans", "--debug-address").await?;
    // from the Secret --our certificate--> to each new connection
    let (certificate, certificate_now) = watch::channel(tls::provisional().map_err(io::Error::other)?);
    let metered = Metered {
        health: health.clone(),
        metrics: metrics.clone(),
        door: Arc::new(Door::new(client.clone())),
    };
    let run =
        |listener, transport, router| serve_on(listener, transport, router, CONNECTIONS, shutdown.clone());
    tokio::join!(
        run(probes_on, Transport::Plain, probes(health.clone())),
        run(metrics_on, Transport::Tls(certificate_now), measured(metered)),
        run(plans_on, Transport::Plain, plans(health.clone())),
        shutdown.run_until_cancelled(keep_certificate(&client, &config.namespace, certificate)),
        announce(&client, &config, &health, &metrics, &shutdown),
    );
    Ok(())
}

async fn bind(address: SocketAddr, what: &str, flag: &str) -> io::Result<TcpListener> {
    listen(address).await.map_err(|error| {
        let text = format!("{what} cannot be served on {address}: {error}; choose another {flag}");
        io::Error::new(error.kind(), text)
    })
}

fn probes(health: Arc<Health>) -> Router {
    let ready = async |State(health): State<Arc<Health>>| match health.not_ready() {
        None => (StatusCode::OK, "ok\n"),
        Some(_) => (StatusCode::SERVICE_UNAVAILABLE, "not ready\n"),
    };
    Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .with_state(health)
}

fn plans(health: Arc<Health>) -> Router {
    let ready = async |State(health): State<Arc<Health>>| match health.not_ready() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    };
    let plans = async |State(health): State<Arc<Health>>| Json(health.plans());
    Router::new()
        .route("/debug/plans", get(plans))
        .route("/readyz", get(ready))
        .with_state(health)
}

struct Metered<R> {
    health: Arc<Health>,
    metrics: Arc<Metrics>,
    door: Arc<Door<R>>,
}

impl<R> Clone for Metered<R> {
    fn clone(&self) -> Self {
        Self {
            health: self.health.clone(),
            metrics: self.metrics.clone(),
            door: self.door.clone(),
        }
    }
}

fn measured<R: Reviews + 'static>(metered: Metered<R>) -> Router {
    Router::new()
        .route(access::PATH, get(render::<R>))
        .with_state(metered)
}

async fn render<R: Reviews>(
    State(metered): State<Metered<R>>,
    Extension(peer): Extension<Peer>,
    headers: HeaderMap,
) -> Response {
    let shown = headers.get(header::AUTHORIZATION);
    let shown = shown.and_then(|header| header.to_str().ok());
    match metered.door.ask(shown, peer.address).await {
        Access::Granted => {}
        Access::Unknown => {
            let asks_for = [(header::WWW_AUTHENTICATE, "Bearer")];
            return (StatusCode::UNAUTHORIZED, asks_for, "a bearer token is needed\n").into_response();
        }
        Access::Forbidden(user) => {
            let text = format!(
                "{user:?} may not get {}; bind the ClusterRole skyward-metrics-reader to it\n",
                access::PATH
            );
            return (StatusCode::FORBIDDEN, text).into_response();
        }
        Access::Later => {
            let retry = [(header::RETRY_AFTER, "1")];
            return (StatusCode::TOO_MANY_REQUESTS, retry, "try again in a second\n").into_response();
        }
        Access::Unavailable(error) => {
            tracing::warn!(error, "who may read metrics could not be found out");
            return (StatusCode::SERVICE_UNAVAILABLE, "try again\n").into_response();
        }
    }
    if peer.standing.is_some_and(|standing| !standing.vouch()) {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many connections\n").into_response();
    }
    if let Some(sources) = metered.health.sources() {
        metered.metrics.observe(&sources);
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], metered.metrics.render()).into_response()
}

/// Reads the certificate that the leader makes, again and again: it is renewed.
async fn keep_certificate(client: &Client, namespace: &str, certificate: watch::Sender<Arc<ServerConfig>>) {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let mut used = None;
    let mut said = String::new();
    loop {
        let problem = match secrets.get_opt(CONTROLLER_CERTS_SECRET).await {
            Ok(None) => None,
            Ok(Some(secret)) => {
                let mut data = secret.data.unwrap_or_default();
                let mut take = |key: &str| data.remove(key).unwrap_or_default().0;
                let pair = (take(key::METRICS_CERTIFICATE), take(key::METRICS_KEY));
                if used.as_ref() == Some(&pair) {
                    None
                } else {
                    match tls::server(&pair.0, &pair.1, None, Clients::Optional) {
                        Ok(config) => {
                            certificate.send_replace(config);
                            used = Some(pair);
                            None
                        }
                        Err(error) => Some(error.to_string()),
                    }
                }
            }
            Err(error) => Some(words(&error)),
        };
        // A repeated problem is logged once.
        if let Some(problem) = problem
            && problem != said
        {
            tracing::warn!(problem, "the certificate of the metrics could not be read");
            said = problem;
        }
        sleep(if used.is_some() { LOOK } else { SOON }).await;
    }
}

/// Publishes as Events of our Pod why this process cannot lead.
async fn announce(
    client: &Client,
    config: &Config,
    health: &Health,
    metrics: &Arc<Metrics>,
    shutdown: &CancellationToken,
) {
    let Some(pod) = pod(config) else { return };
    let (events, writer) = Events::start(client.clone(), config.identity.clone(), metrics.clone());
    let mut hindrance = health.hindrance();
    loop {
        let now = hindrance.borrow_and_update().clone();
        if let Some(why) = now {
            events.publish(&pod, EventSpec::warning(events::reason::CANNOT_LEAD, "Lead", why));
        }
        tokio::select! {
            changed = hindrance.changed() => if changed.is_err() { break },
            () = shutdown.cancelled() => break,
        }
    }
    drop(events);
    // The writer ends when it has written the remaining Events.
    let _ = timeout(DEADLINE, writer).await;
}

/// Our own Pod; `None` outside of a cluster.
fn pod(config: &Config) -> Option<ObjectReference> {
    Some(ObjectReference {
        uid: Some(config.pod_uid.clone()?),
        ..ObjectRef::<Pod>::new(&config.identity)
            .within(&config.namespace)
            .into()
    })
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use axum::{
        body::{Body, to_bytes},
        http::Request,
    };
    use tower::ServiceExt as _;

    use super::*;

    async fn ask(router: Router, path: &str, token: Option<&str>) -> (u16, String) {
        let mut request = Request::get(path).extension(Peer::default());
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        let answer = router
            .oneshot(request.body(Body::empty()).unwrap())
            .await
            .unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn hindered() -> Arc<Health> {
        let health = Arc::new(Health::default());
        health.planned("Pool secret/tenant".into(), vec!["a reason".into()], Vec::new());
        health.hindered("another installation leads".to_owned());
        health
    }

    #[tokio::test]
    async fn probes_tell_nobody_why_nor_of_whom() {
        let health = hindered();
        let probe = async |path| ask(probes(health.clone()), path, None).await;
        assert_eq!(probe("/healthz").await, (200, "ok\n".to_owned()));
        assert_eq!(probe("/readyz").await, (503, "not ready\n".to_owned()));
        for path in ["/debug/plans", "/metrics"] {
            assert_eq!(probe(path).await, (404, String::new()));
        }
        health.lease_decided(false);
        assert_eq!(probe("/readyz").await, (200, "ok\n".to_owned()));
    }

    #[tokio::test]
    async fn who_may_port_forward_reads_why_and_the_plans() {
        let health = hindered();
        let (status, why) = ask(plans(health.clone()), "/readyz", None).await;
        assert_eq!((status, why.as_str()), (503, "another installation leads\n"));
        let (_, text) = ask(plans(health), "/debug/plans", None).await;
        assert!(
            text.contains("secret/tenant") && text.contains("a reason"),
            "{text}"
        );
    }

    /// One token may read.
    struct One;

    #[async_trait]
    impl Reviews for One {
        async fn review(&self, token: &str) -> Result<Access, String> {
            Ok(match token {
                "prometheus" => Access::Granted,
                "viewer" => Access::Forbidden("vera".to_owned()),
                _ => Access::Unknown,
            })
        }
    }

    #[tokio::test]
    async fn metrics_are_for_tokens_that_may_read_them() {
        let router = || {
            measured(Metered {
                health: Arc::default(),
                metrics: Arc::default(),
                door: Arc::new(Door::new(One)),
            })
        };
        for (token, expected, words) in [
            (Some("prometheus"), 200, "skyward_leader"),
            (Some("viewer"), 403, "skyward-metrics-reader"),
            (Some("made-up"), 401, "token is needed"),
            (None, 401, "token is needed"),
        ] {
            let (status, text) = ask(router(), "/metrics", token).await;
            assert_eq!(status, expected, "{token:?}");
            assert!(text.contains(words), "{text}");
            assert_eq!(text.contains("skyward_leader"), status == 200);
        }
        assert_eq!(ask(router(), "/debug/plans", Some("prometheus")).await.0, 404);
    }
}
