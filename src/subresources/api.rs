//! The aggregated API's routes, and the users who may use them. Uploads are in `uploads.rs`.

use std::{collections::BTreeMap, str::FromStr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::StreamExt;
use jiff::Timestamp;
use skyward_api::{Task, task::Kept};
use tokio::sync::watch;

use crate::{
    GROUP, VERSION,
    authorize::{Access, Authorizer, Decision},
    data::{Chunks, Data, DataError},
    discovery,
    frontproxy::{RequestHeader, Unauthenticated, User},
    items::{self, Again, ItemsQuery},
    limits::{Limits, Of, Permit},
    log,
    options::{self, LogOptions},
    progress,
    reading::{Reading, patiently},
    result,
    serve::Peer,
    status::Failure,
    tasks::Tasks,
    uploads::{self, Uploads},
};

/// Most streams that one user may hold open, and most that may be open for one namespace's Tasks,
/// of the 1024 that the leader has. A log that is followed has one for each rank.
const STREAMS_EACH: usize = 256;

/// The state of the handlers.
#[derive(Clone)]
pub struct Parts {
    /// The identity of the front proxy; `None` = not known yet.
    pub front_proxy: watch::Receiver<Option<RequestHeader>>,
    /// Decides which user may read what.
    pub authorizer: Arc<dyn Authorizer>,
    /// Reads Tasks.
    pub tasks: Arc<dyn Tasks>,
    /// Reads logs and results.
    pub data: Arc<dyn Data>,
    /// Takes uploads.
    pub uploads: Arc<dyn Uploads>,
    /// How long the leader may be away before a request fails.
    pub patience: Duration,
    /// Whether the certificates exist.
    pub ready: watch::Receiver<bool>,
}

#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) parts: Parts,
    limits: Limits,
    /// Parts of uploads that are on their way.
    pub(crate) uploads: Limits,
}

/// All routes.
pub fn router(parts: Parts) -> Router {
    let shared = Shared {
        parts,
        limits: Limits::new(STREAMS_EACH),
        uploads: Limits::new(uploads::EACH),
    };
    let resource = |kind: &str, rest: &str| {
        format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{kind}/{{name}}/{rest}")
    };
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
        .route(&resource("tasks", "log"), get(read_log))
        .route(&resource("tasks", "result"), get(read_result))
        // The right to read results is the right to read these.
        .route(&resource("tasks", "result/values"), get(read_values))
        .route(&resource("tasks", "result/items"), get(read_items))
        .route(&resource("tasks", "retry"), post(retry))
        .route(&resource("tasks", "progress"), get(read_progress))
        .route(&resource("machines", "log"), get(read_machine_log))
        .route(
            &format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/bundles/{{name}}"),
            get(uploads::state).put(uploads::put),
        )
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
        // Only the log has the reason: anybody may ask here.
        (StatusCode::SERVICE_UNAVAILABLE, "not ready")
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

/// Whether this user may do that.
pub(crate) async fn allow(shared: &Shared, user: &User, access: &Access) -> Result<(), Failure> {
    match shared.parts.authorizer.decide(user, access).await {
        Ok(Decision::Allowed) => Ok(()),
        Ok(Decision::Denied(why)) => Err(Failure::forbidden(user, access, &why)),
        Err(error) => {
            tracing::warn!(error, "a SubjectAccessReview failed");
            Err(Failure::unavailable(
                "the API server could not say whether you may do this; try again",
            ))
        }
    }
}

/// Whether this user may read, and whether there is room.
async fn permit(shared: &Shared, user: &User, access: &Access) -> Result<Permit, Failure> {
    allow(shared, user, access).await?;
    let Access {
        namespace,
        resource,
        name,
        ..
    } = access;
    // An invalid name is not looked up: it would become part of a path.
    if !is_name(namespace) || !is_name(name) {
        return Err(not_found(resource, name));
    }
    let limit = shared.limits.each;
    shared
        .limits
        .take(&user.name, namespace)
        .map_err(|of| match of {
            Of::User => Failure::too_many(format!(
                "you have {limit} logs or results open, which is the most for one user; close some"
            )),
            Of::Namespace => Failure::too_many(format!(
                "{limit} logs or results of namespace {namespace:?} are open, by all who read there, which is the most for one namespace; close some"
            )),
        })
}

pub(crate) fn not_found(resource: &str, name: &str) -> Failure {
    Failure::not_found(format!("{resource}.skyward.dev {name:?} not found"))
}

/// The checks before the answer: the user may read, the Task exists, there is room.
async fn admit(
    shared: &Shared,
    user: &User,
    namespace: String,
    name: String,
    subresource: &'static str,
) -> Result<(Reading, Task, Permit), Failure> {
    admit_to(shared, user, ("get", subresource), namespace, name).await
}

async fn admit_to(
    shared: &Shared,
    user: &User,
    (verb, subresource): (&'static str, &'static str),
    namespace: String,
    name: String,
) -> Result<(Reading, Task, Permit), Failure> {
    let access = Access {
        verb,
        namespace,
        resource: "tasks",
        name,
        subresource,
    };
    let permit = permit(shared, user, &access).await?;
    let Access { namespace, name, .. } = access;
    let task = shared
        .parts
        .tasks
        .get(&namespace, &name)
        .await
        .map_err(|error| {
            tracing::warn!(error, "a Task could not be read");
            Failure::unavailable("the Task could not be read at the moment; try again")
        })?
        .ok_or_else(|| not_found("tasks", &name))?;
    let uid = task.metadata.uid.clone().unwrap_or_default();
    let reading = Reading {
        data: Arc::clone(&shared.parts.data),
        tasks: Arc::clone(&shared.parts.tasks),
        namespace,
        name,
        uid,
        patience: shared.parts.patience,
    };
    Ok((reading, task, permit))
}

/// What a reader can do about expired logs or values.
const READ_ANEW: &str = "how its runs ended stands in its status; create the Task again to have new ones";
/// What a user can do whose items cannot run again, since their outcomes have expired.
const RUN_ANEW: &str =
    "the outcomes of its items expired with them, so no item can run again; create the Task again";

/// Refuses what has expired, also before it is deleted: nobody is told anything else a moment later.
fn still_kept(task: &Task, of: Kept, remedy: &str, now: Timestamp) -> Result<(), Failure> {
    let Some(at) = task.expiry(of).filter(|at| *at <= now) else {
        return Ok(());
    };
    let name = task.metadata.name.as_deref().unwrap_or_default();
    let (what, field) = match of {
        Kept::Logs => ("logs", "logs"),
        Kept::Results => ("return values", "results"),
    };
    Err(Failure::expired(format!(
        "the {what} of Task {name:?} expired at {} (spec.retention.{field}); {remedy}",
        at.strftime("%Y-%m-%d %H:%M:%S UTC")
    )))
}

pub(crate) fn is_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && text
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && !text.split('.').any(str::is_empty)
}

pub(crate) type Route = Path<(String, String)>;
pub(crate) type Pairs = Query<BTreeMap<String, String>>;

async fn read_log(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let (reading, task, permit) = admit(&shared, &user, namespace, name, "log").await?;
    still_kept(&task, Kept::Logs, READ_ANEW, Timestamp::now())?;
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
    still_kept(&task, Kept::Results, READ_ANEW, Timestamp::now())?;
    let Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let rank = number(&query, "rank")?;
    let offset = number(&query, "offset")?;
    let chunks = result::open(reading, task, rank, offset).await?;
    Ok(answer(with_permit(chunks, permit), "application/json"))
}

async fn read_values(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let (reading, task, permit) = admit(&shared, &user, namespace, name, "result").await?;
    // They are results, and lie in the log.
    for kept in [Kept::Results, Kept::Logs] {
        still_kept(&task, kept, READ_ANEW, Timestamp::now())?;
    }
    let Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let options = LogOptions::parse(&query, Timestamp::now()).map_err(Failure::bad_request)?;
    result::has_function(&reading.name, &task)?;
    let chunks = log::open(reading, task, options.of_values(), permit).await?;
    Ok(answer(
        result::records_in_part(chunks),
        "text/plain; charset=utf-8",
    ))
}

async fn read_items(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let (reading, task, permit) = admit(&shared, &user, namespace, name, "result").await?;
    still_kept(&task, Kept::Results, READ_ANEW, Timestamp::now())?;
    let Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let query = ItemsQuery::parse(&query).map_err(Failure::bad_request)?;
    let chunks = items::open(&reading, &task, &query).await?;
    Ok(answer(with_permit(chunks, permit), "application/jsonl"))
}

async fn retry(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Failure> {
    let right = ("create", "retry");
    let (reading, task, _permit) = admit_to(&shared, &user, right, namespace, name).await?;
    still_kept(&task, Kept::Results, RUN_ANEW, Timestamp::now())?;
    let Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let again = Again::parse(&query).map_err(Failure::bad_request)?;
    let attempt = items::attempt(&query).map_err(Failure::bad_request)?;
    let said = items::retry(&reading, &task, &again, attempt).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")], said).into_response())
}

async fn read_progress(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
) -> Result<Response, Failure> {
    let (reading, task, _permit) = admit(&shared, &user, namespace, name, "progress").await?;
    let progress = progress::read(&reading, &task).await?;
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(progress)).into_response())
}

async fn read_machine_log(
    State(shared): State<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path((namespace, name)): Route,
) -> Result<Response, Failure> {
    let access = Access {
        verb: "get",
        namespace,
        resource: "machines",
        name,
        subresource: "log",
    };
    let permit = permit(&shared, &user, &access).await?;
    let Access { namespace, name, .. } = access;
    let Parts { data, patience, .. } = &shared.parts;
    let log = || data.machine_log(&namespace, &name);
    let asked = patiently(*patience, log, |error| *error != DataError::NotFound).await;
    let chunks = asked.map_err(|error| match error {
        DataError::NotFound => Failure::not_found(format!(
            "no log of a bootstrap is there of Machine {name:?}: it is kept while the Machine is prepared, and of the last of its Pool that failed, as long as the Pool lives and its namespace has room in the result store"
        )),
        DataError::Unavailable(text) => Failure::unavailable(text),
    })?;
    Ok(answer(with_permit(chunks, permit), "text/plain; charset=utf-8"))
}

pub(crate) fn number<T: FromStr>(query: &BTreeMap<String, String>, name: &str) -> Result<Option<T>, Failure> {
    let number = query.get(name).map(|text| options::number(name, text));
    number.transpose().map_err(Failure::bad_request)
}

/// The permit lives as long as the stream.
fn with_permit(chunks: Chunks, permit: Permit) -> Chunks {
    let held = move |_: &_| {
        let _held = &permit;
    };
    chunks.inspect(held).boxed()
}

fn answer(chunks: Chunks, kind: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    ];
    (headers, Body::from_stream(chunks)).into_response()
}
