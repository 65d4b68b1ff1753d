//! The aggregated API's routes, and who may use them.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::StreamExt;
use jiff::Timestamp;
use skyward_api::Task;
use tokio::sync::watch;

use crate::{
    GROUP, VERSION,
    authorize::{Access, Authorizer, Decision},
    data::Data,
    discovery,
    frontproxy::{RequestHeader, Unauthenticated, User},
    limits::{Limits, Permit},
    log,
    options::LogOptions,
    reading::Reading,
    result,
    serve::Peer,
    status::Failure,
    tasks::Tasks,
};

/// Most streams that one user may hold open, of 1024 that the leader has. A log that is followed
/// has one for each rank.
const STREAMS_PER_USER: usize = 256;

/// What the handlers use.
#[derive(Clone)]
pub struct Parts {
    /// Who the front proxy is; `None` = not known yet.
    pub front_proxy: watch::Receiver<Option<RequestHeader>>,
    /// Who may read what.
    pub authorizer: Arc<dyn Authorizer>,
    /// Where Tasks are read.
    pub tasks: Arc<dyn Tasks>,
    /// Where logs and results are read.
    pub data: Arc<dyn Data>,
    /// How long those may be away before a request fails.
    pub patience: Duration,
    /// Whether certificates are there.
    pub ready: watch::Receiver<bool>,
}

#[derive(Clone)]
struct Shared {
    parts: Parts,
    limits: Limits,
}

/// All routes.
pub fn router(parts: Parts) -> Router {
    let shared = Shared {
        parts,
        limits: Limits::new(STREAMS_PER_USER),
    };
    let resource =
        |rest: &str| format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/tasks/{{name}}/{rest}");
    let document = |value: fn() -> serde_json::Value| get(move || async move { Json(value()) });
    let behind_the_proxy = Router::new()
        .route("/apis", document(discovery::groups))
        .route(&format!("/apis/{GROUP}"), document(discovery::this_group))
        .route(
            &format!("/apis/{GROUP}/{VERSION}"),
            document(discovery::resources),
        )
        .route("/openapi/v2", document(discovery::openapi_v2))
        .route("/openapi/v3", document(discovery::openapi_v3))
        .route(
            &format!("/openapi/v3/apis/{GROUP}/{VERSION}"),
            document(discovery::openapi_v3_document),
        )
        .route(&resource("log"), get(read_log))
        .route(&resource("result"), get(read_result))
        .fallback(|| async { Failure::not_found("the server could not find the requested resource") })
        .method_not_allowed_fallback(|| async { Failure::method_not_allowed() })
        .layer(middleware::from_fn_with_state(shared.clone(), authenticate))
        .with_state(shared.clone());
    Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .with_state(shared)
        .fallback_service(behind_the_proxy)
}

async fn ready(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if *shared.parts.ready.borrow() {
        (StatusCode::OK, "ok")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "waiting for certificates: the controller makes them, the API server publishes its own",
        )
    }
}

async fn authenticate(State(shared): State<Shared>, mut request: Request, next: Next) -> Response {
    let peer = request.extensions().get::<Peer>().cloned().unwrap_or_default();
    let user = {
        let known = shared.parts.front_proxy.borrow();
        match known.as_ref() {
            None => Err(Unauthenticated::NotReady),
            Some(front_proxy) => front_proxy.identify(peer.certificate.as_deref(), request.headers()),
        }
    };
    match user {
        Ok(user) => {
            request.extensions_mut().insert(Arc::new(user));
            next.run(request).await
        }
        Err(reason) => {
            tracing::info!(%reason, "a request was refused: it did not come through the Kubernetes API server");
            Failure::unauthorized().into_response()
        }
    }
}

/// Everything before the answer itself: may this user, does the Task exist, is there room.
async fn admit(
    shared: &Shared,
    user: &User,
    namespace: String,
    name: String,
    subresource: &'static str,
) -> Result<(Reading, Task, Permit), Failure> {
    let access = Access {
        namespace,
        name,
        subresource,
    };
    match shared.parts.authorizer.decide(user, &access).await {
        Ok(Decision::Allowed) => {}
        Ok(Decision::Denied(why)) => return Err(Failure::forbidden(user, &access, &why)),
        Err(error) => {
            tracing::warn!(error, "a SubjectAccessReview failed");
            return Err(Failure::unavailable(
                "whether you may read this could not be found out; try again",
            ));
        }
    }
    let Access { namespace, name, .. } = access;
    let not_found = || Failure::not_found(format!("tasks.skyward.dev {name:?} not found"));
    // What is no name is not looked up: it becomes part of a path.
    if !is_name(&namespace) || !is_name(&name) {
        return Err(not_found());
    }
    let limit = shared.limits.each();
    let permit = shared.limits.take(&user.name).ok_or_else(|| {
        Failure::too_many(format!(
            "you have {limit} logs or results open, which is the most; close some"
        ))
    })?;
    let task = shared
        .parts
        .tasks
        .get(&namespace, &name)
        .await
        .map_err(|error| {
            tracing::warn!(error, "a Task could not be read");
            Failure::unavailable("the Task could not be read at the moment; try again")
        })?
        .ok_or_else(not_found)?;
    let uid = task.metadata.uid.clone().unwrap_or_default();
    let (data, tasks) = (Arc::clone(&shared.parts.data), Arc::clone(&shared.parts.tasks));
    Ok((
        Reading {
            data,
            tasks,
            namespace,
            name,
            uid,
            patience: shared.parts.patience,
        },
        task,
        permit,
    ))
}

fn is_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && !text.split('.').any(str::is_empty)
}

type Route = Path<(String, String)>;
type Pairs = Query<BTreeMap<String, String>>;

async fn read_log(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let (reading, task, permit) = admit(&shared, &user, namespace, name, "log").await?;
    let Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let options = LogOptions::parse(&query, Timestamp::now()).map_err(Failure::bad_request)?;
    let chunks = log::open(reading, task, options, permit).await?;
    Ok(answer(chunks, "text/plain; charset=utf-8"))
}

async fn read_result(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let (reading, task, permit) = admit(&shared, &user, namespace, name, "result").await?;
    let Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let rank = number(&query, "rank")?;
    let offset = number(&query, "offset")?;
    let chunks = result::open(reading, task, rank, offset).await?;
    // The permit lives as long as the stream.
    let chunks = chunks.map(move |chunk| {
        let _held = &permit;
        chunk
    });
    Ok(answer(chunks.boxed(), "application/json"))
}

fn number<T: std::str::FromStr>(query: &BTreeMap<String, String>, name: &str) -> Result<Option<T>, Failure> {
    query
        .get(name)
        .map(|text| {
            text.parse()
                .map_err(|_| Failure::bad_request(format!("{name}: {text:?} is not a whole number from 0")))
        })
        .transpose()
}

fn answer(chunks: crate::data::Chunks, kind: &'static str) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    (headers, Body::from_stream(chunks)).into_response()
}
