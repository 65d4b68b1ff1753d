//! Serves logs and results of runs to the aggregated API, and takes uploads of bundles from it.
//!
//! Only the leader serves it, because only the leader holds connections to machines and the
//! result store; its address stands in the leader Lease. [`crate::certificates`]
//! makes its certificates, [`source`] joins the log in the store with that on the machine, [`bootstraps`] has
//! the output of Machines' bootstraps, [`items`] has what became of the items of maps, in [`pages`], and [`uploads`] takes
//! bundles. The contract is in `skyward-subresources`,
//! `data` and `uploads`.

mod bootstraps;
mod items;
mod pages;
mod source;
#[cfg(test)]
mod tests;
mod uploads;

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::{StreamExt, TryStreamExt, stream::BoxStream};
use rustls::ServerConfig;
use skyward_core::clock;
use skyward_planner::task::run::Progress;
use skyward_remote::MachineKey;
use skyward_store::Store;
use skyward_subresources::{
    connections::Limits,
    data::{self, KEEP_ALIVE, Run, Runs, parse_run_id},
    records::Mark,
    reload::key,
    serve::{self, Transport},
    tls::{self, Clients},
};
use tokio::{
    sync::{Semaphore, watch},
    time::{sleep, timeout},
};

use crate::{
    certificates::{issuer, trust},
    context::Context,
    hints::live::Live,
    logs::{
        bootstraps::{Bootstraps, Known},
        source::{JUST_BEGUN, LiveMachines, Machines, Source, Whereabouts},
    },
    uploads::Uploads,
};

/// Most logs and results read at once.
const STREAMS: usize = 1024;
/// Most connections at once: one for each stream, and some. Unknown clients are in their handshake:
/// many at once when all readers of logs find a new leader.
const CONNECTIONS: Limits = Limits {
    known: STREAMS + 128,
    anonymous: 256,
};
/// Logs of maps that are looked through at once: that of a million items takes some 50 MB meanwhile.
const MAPS: usize = 2;
/// How often certificates are looked at.
const LOOK: Duration = Duration::from_mins(1);
/// After a failure.
const RETRY: Duration = Duration::from_secs(3);

/// Makes certificates and serves logs and results, while this process leads.
pub async fn run(context: Context) {
    let (send, receive) = watch::channel(None);
    tokio::join!(keep_certificates(&context, send), listen(&context, receive));
}

async fn keep_certificates(context: &Context, ready: watch::Sender<Option<Arc<ServerConfig>>>) {
    let namespace = &context.config.namespace;
    let mut used = issuer::Data::new();
    loop {
        let mut pause = LOOK;
        match trust::refresh(&context.client, namespace, clock::now()).await {
            Err(error) => {
                tracing::warn!(%error, "our certificates could not be looked after; trying again");
                pause = RETRY;
            }
            Ok(data) => {
                let get = |key: &str| data.get(key).map(Vec::as_slice).unwrap_or_default();
                if data != used {
                    let authorities = Some(get(key::AUTHORITIES));
                    match tls::server(
                        get(key::SERVER_CERTIFICATE),
                        get(key::SERVER_KEY),
                        authorities,
                        Clients::Required,
                    ) {
                        Ok(config) => {
                            ready.send_replace(Some(config));
                            used.clone_from(&data);
                        }
                        Err(error) => tracing::error!(%error, "the certificates just made cannot be used"),
                    }
                }
                if let Err(error) = trust::register(&context.client, namespace, get(key::AUTHORITIES)).await {
                    tracing::warn!(%error, "the aggregated API could not be registered; trying again");
                    pause = RETRY;
                }
                if let Err(error) = trust::publish(&context.client, namespace, get(key::AUTHORITIES)).await {
                    tracing::warn!(%error, "the authority of our certificates could not be published; trying again");
                    pause = RETRY;
                }
            }
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = context.shutdown.cancelled() => return,
        }
    }
}

async fn listen(context: &Context, mut ready: watch::Receiver<Option<Arc<ServerConfig>>>) {
    let first = tokio::select! {
        config = ready.wait_for(Option::is_some) => config.ok().and_then(|config| config.clone()),
        () = context.shutdown.cancelled() => return,
    };
    let Some(first) = first else { return };
    let (send, tls) = watch::channel(first);
    let address = context.config.data_address;
    let listener = loop {
        match serve::listen(address).await {
            Ok(listener) => break listener,
            // A predecessor in the same Pod may not have ended yet.
            Err(error) => {
                tracing::error!(%error, %address, "logs and results cannot be served; trying again");
            }
        }
        tokio::select! {
            () = sleep(RETRY) => {}
            () = context.shutdown.cancelled() => return,
        }
    };
    tracing::info!(%address, "logs and results are served to the aggregated API");
    let references = context.references.clone();
    let shared = Shared {
        uploads: context.uploads.clone(),
        machines: Arc::new(LiveMachines {
            live: context.live.clone(),
            sessions: context.sessions.clone(),
        }),
        bootstraps: Arc::new(Known {
            sessions: context.sessions.clone(),
            pools: context.caches.pools.clone(),
        }),
        live: context.live.clone(),
        store: context.store.clone(),
        streams: Arc::new(Semaphore::new(STREAMS)),
        maps: Arc::new(Semaphore::new(MAPS)),
        last_read: Arc::default(),
        retrying: Arc::default(),
        client: Some(context.client.clone()),
        forget: Arc::new(move |namespace| references.forget(namespace)),
        epoch: context.epoch,
    };
    let pass_on = async {
        while ready.changed().await.is_ok() {
            let config = ready.borrow_and_update().clone();
            if let Some(config) = config {
                send.send_replace(config);
            }
        }
    };
    let serving = serve::serve(
        listener,
        Transport::Tls(tls),
        router(shared),
        CONNECTIONS,
        context.shutdown.clone(),
    );
    tokio::join!(serving, context.shutdown.run_until_cancelled(pass_on));
}

/// The state of the handlers.
#[derive(Clone)]
struct Shared {
    uploads: Arc<Uploads>,
    machines: Arc<dyn Machines>,
    bootstraps: Arc<dyn Bootstraps>,
    live: Arc<Live>,
    store: Arc<Store>,
    streams: Arc<Semaphore>,
    /// Logs of maps that are looked through.
    maps: Arc<Semaphore>,
    last_read: Arc<pages::LastRead>,
    retrying: Arc<items::Retrying>,
    /// `None` in tests, which retry nothing.
    client: Option<kube::Client>,
    /// What was read of Secrets and ConfigMaps of a namespace is read anew.
    forget: Arc<dyn Fn(&str) + Send + Sync>,
    epoch: u64,
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/v1/tasks/{namespace}/{uid}/runs", get(runs))
        .route("/v1/tasks/{namespace}/{uid}/log", get(log))
        .route("/v1/tasks/{namespace}/{uid}/result", get(result))
        .route("/v1/tasks/{namespace}/{uid}/items", get(items::read))
        .route("/v1/tasks/{namespace}/{uid}/retry", post(items::retry))
        .route("/v1/machines/{namespace}/{name}/log", get(machine_log))
        .route(
            "/v1/bundles/{namespace}/{digest}",
            get(uploads::state).put(uploads::put),
        )
        .with_state(shared)
}

type Answer = Result<Response, (StatusCode, String)>;

fn broken(error: impl std::fmt::Display) -> (StatusCode, String) {
    tracing::warn!(%error, "the result store could not be read");
    (
        StatusCode::INTERNAL_SERVER_ERROR,
        format!("the result store could not be read: {error}"),
    )
}

fn just_begun() -> (StatusCode, String) {
    (StatusCode::SERVICE_UNAVAILABLE, JUST_BEGUN.to_owned())
}

fn not_found() -> (StatusCode, String) {
    (StatusCode::NOT_FOUND, "nothing is known of it".to_owned())
}

type Task = Path<(String, String)>;

async fn runs(State(shared): State<Shared>, Path((_namespace, uid)): Task) -> Answer {
    // Machines first, then the store: a run on its way from one to the other is in both.
    let live = shared.live.lookup(&uid).ok_or_else(just_begun)?;
    let mut ids = BTreeMap::new();
    for run in live {
        let progress = run
            .progress
            .map(|Progress { done, total }| data::Progress { done, total });
        ids.insert((run.attempt, run.rank), (run.run_id, true, progress));
    }
    for id in shared.store.runs(&uid).await.map_err(broken)? {
        if let Some(place) = parse_run_id(&uid, &id) {
            ids.entry(place).or_insert((id, false, None));
        }
    }
    let runs: Vec<Run> = futures::stream::iter(ids)
        .map(|((attempt, rank), (id, live, progress))| {
            let (store, uid) = (shared.store.clone(), uid.clone());
            async move {
                let stored = store.log_end(&uid, &id).await?;
                Ok::<_, skyward_store::Error>(Run {
                    id,
                    attempt,
                    rank,
                    live,
                    stored,
                    progress,
                })
            }
        })
        .buffered(16)
        .try_collect()
        .await
        .map_err(broken)?;
    Ok(Json(Runs { runs }).into_response())
}

#[derive(serde::Deserialize)]
struct LogQuery {
    run: String,
    #[serde(default)]
    offset: u64,
    #[serde(default)]
    follow: bool,
    #[serde(default)]
    gaps: String,
}

async fn log(
    State(shared): State<Shared>,
    Path((_namespace, uid)): Task,
    Query(query): Query<LogQuery>,
) -> Answer {
    let LogQuery {
        run,
        offset,
        follow,
        gaps,
    } = query;
    parse_run_id(&uid, &run).ok_or_else(not_found)?;
    let permit = room(&shared)?;
    match shared.machines.place_of(&uid, &run) {
        Whereabouts::On(_) => {}
        Whereabouts::Nowhere if shared.store.log_end(&uid, &run).await.map_err(broken)? > 0 => {}
        Whereabouts::Nowhere => return Err(not_found()),
        // The reader would take the store's part of a growing log for the whole log.
        Whereabouts::Unknown => return Err(just_begun()),
    }
    let source = Source {
        machines: shared.machines,
        store: shared.store,
        task_uid: uid,
        run,
        follow,
        gaps: Mark::parse(&gaps),
    };
    Ok(body(kept_alive(source.stream(offset)), permit))
}

#[derive(serde::Deserialize)]
struct ResultQuery {
    run: String,
    #[serde(default)]
    offset: u64,
}

async fn result(
    State(shared): State<Shared>,
    Path((_namespace, uid)): Task,
    Query(ResultQuery { run, offset }): Query<ResultQuery>,
) -> Answer {
    parse_run_id(&uid, &run).ok_or_else(not_found)?;
    let permit = room(&shared)?;
    let stored = shared
        .store
        .get_result(&uid, &run, offset)
        .await
        .map_err(broken)?
        .ok_or_else(not_found)?;
    Ok(body(stored.bytes.map_err(io::Error::other).boxed(), permit))
}

async fn machine_log(
    State(shared): State<Shared>,
    Path((namespace, name)): Path<(String, String)>,
) -> Answer {
    let permit = room(&shared)?;
    let machine = MachineKey::new(namespace, name);
    let read = bootstraps::read(shared.bootstraps.as_ref(), &shared.store, &machine).await;
    let text = read.map_err(broken)?.ok_or_else(not_found)?;
    let whole = futures::stream::once(async { Ok(Bytes::from(text)) });
    Ok(body(whole.boxed(), permit))
}

type Permit = tokio::sync::OwnedSemaphorePermit;

fn room(shared: &Shared) -> Result<Permit, (StatusCode, String)> {
    Arc::clone(&shared.streams).try_acquire_owned().map_err(|_| {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{STREAMS} logs are being read, which is the most; try again"),
        )
    })
}

fn body(chunks: BoxStream<'static, io::Result<Bytes>>, permit: Permit) -> Response {
    // The permit lives as long as the stream.
    let chunks = chunks.map(move |chunk| {
        let _held = &permit;
        chunk
    });
    (
        [(header::CONTENT_TYPE, "application/octet-stream")],
        Body::from_stream(chunks),
    )
        .into_response()
}

/// Adds an empty line now and then while a log is silent, but only between records.
fn kept_alive(chunks: BoxStream<'static, io::Result<Bytes>>) -> BoxStream<'static, io::Result<Bytes>> {
    futures::stream::unfold((chunks, true), |(mut chunks, mut between)| async move {
        loop {
            match timeout(KEEP_ALIVE, chunks.next()).await {
                Ok(chunk) => {
                    let chunk = chunk?;
                    if let Ok(bytes) = &chunk {
                        between = bytes.last().map_or(between, |last| *last == b'\n');
                    }
                    return Some((chunk, (chunks, between)));
                }
                Err(_) if between => return Some((Ok(Bytes::from_static(b"\n")), (chunks, between))),
                Err(_) => {}
            }
        }
    })
    .boxed()
}
