//! The contract of the controller's data endpoint, and its client.
//!
//! Only the leader holds connections to machines and the result store. Its address stands
//! in an annotation of the leader Lease; both ends show certificates that the controller
//! has made. Paths, all GET where nothing else is said (uploads of bundles are in `uploads.rs`):
//!
//! - `/v1/tasks/{namespace}/{uid}/runs`: [`Runs`] as JSON.
//! - `/v1/tasks/{namespace}/{uid}/log?run=&offset=&follow=&gaps=`: the encoded log from an
//!   offset. It ends in order only when all was sent; anything else breaks the connection.
//!   Empty lines in between keep it alive. In the place of a missing part stands a line with the
//!   word in `gaps` (see [`Mark`]); without that word the connection breaks there. 404: the run is
//!   not known (yet).
//! - `/v1/tasks/{namespace}/{uid}/result?run=&offset=`: a return value's JSON from an offset.
//! - `/v1/tasks/{namespace}/{uid}/items?from=|since=&failed=`: a page of what became of the items of a map (see
//!   [`crate::items`]).
//! - POST `/v1/tasks/{namespace}/{uid}/retry?name=&attempt=&failed=|index=`: has items of an ended map run again; answers with a
//!   line for the user.
//! - `/v1/machines/{namespace}/{name}/log`: the output of a Machine's bootstrap, as text, while it
//!   is prepared or if it is one of the last of its Pool that failed. 404: neither.
//!
//! A new leader answers 503: it does not know yet what runs, so it cannot tell whether a log is
//! complete.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    body::{Body, Bytes},
    http::{Method, Request, Response, StatusCode, header},
};
use futures::{StreamExt, stream::BoxStream};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use parking_lot::Mutex;
use rustls::{ClientConfig, pki_types::ServerName};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpStream, sync::watch, time::timeout};
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::{records::Mark, tls::DATA_SERVER_NAME};

/// The leader Lease, in the operator's namespace.
pub const LEASE: &str = "skyward-controller";
/// Its annotation with the address of the data endpoint.
pub const DATA_ADDRESS: &str = "skyward.dev/data-address";

/// How often the endpoint sends an empty line while a log is silent.
pub const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Silence after which the endpoint is taken for dead.
const SILENCE: Duration = Duration::from_secs(50);
/// Longest wait for the Lease to be read.
const LOOKUP: Duration = Duration::from_secs(5);
/// Longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// Longest wait for the head of an answer.
const ANSWER: Duration = Duration::from_secs(15);
/// The same where a log is read and written for it.
const RETRY: Duration = Duration::from_secs(50);

/// All runs of a Task that the leader knows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Runs {
    /// In order of attempt and rank.
    pub runs: Vec<Run>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Its id.
    pub id: String,
    /// The attempt.
    pub attempt: u32,
    /// The rank.
    pub rank: u32,
    /// Whether it is on a machine now, so that its log may still grow.
    pub live: bool,
    /// How many bytes of its log are in the store.
    pub stored: u64,
    /// How far its program says that it is, while it is on a machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Parts of its work that are done.
    pub done: u64,
    /// All parts; 0 where the program does not say.
    pub total: u64,
}

/// The id of a run.
pub fn run_id(task_uid: &str, attempt: u32, rank: u32) -> String {
    format!("{task_uid}-{attempt}-{rank}")
}

/// Attempt and rank of a run id of that Task.
pub fn parse_run_id(task_uid: &str, run: &str) -> Option<(u32, u32)> {
    let (attempt, rank) = run.strip_prefix(task_uid)?.strip_prefix('-')?.split_once('-')?;
    Some((attempt.parse().ok()?, rank.parse().ok()?))
}

/// Chunks of a log or result; an error means that the rest did not arrive.
pub type Chunks = BoxStream<'static, io::Result<Bytes>>;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DataError {
    /// The leader knows nothing of it.
    NotFound,
    /// No answer now; the text is for the user.
    Unavailable(String),
}

/// The questions of the aggregated API. Implemented by [`Leader`]; tests bring their own.
#[async_trait]
pub trait Data: Send + Sync {
    /// The runs of a Task.
    async fn runs(&self, namespace: &str, uid: &str) -> Result<Runs, DataError>;
    /// A run's encoded log from an offset, with marks where a part of it is missing.
    async fn log(
        &self,
        namespace: &str,
        uid: &str,
        run: &str,
        offset: u64,
        follow: bool,
        gaps: &Mark,
    ) -> Result<Chunks, DataError>;
    /// A run's return value from an offset.
    async fn result(&self, namespace: &str, uid: &str, run: &str, offset: u64) -> Result<Chunks, DataError>;
    /// The output of a Machine's bootstrap.
    async fn machine_log(&self, namespace: &str, name: &str) -> Result<Chunks, DataError>;
    /// A page of what became of the items of a map.
    async fn items(&self, _namespace: &str, _uid: &str, _query: &str) -> Result<Chunks, DataError> {
        Err(DataError::NotFound)
    }
    /// Has items of an ended map run again; the answer is for the user.
    async fn retry(
        &self,
        _namespace: &str,
        _name: &str,
        _uid: &str,
        _query: &str,
    ) -> Result<String, DataError> {
        Err(DataError::NotFound)
    }
}

/// The leader, wherever it is.
pub struct Leader {
    /// The Leases with its address; `None` = the address is fixed.
    leases: Option<Api<Lease>>,
    tls: watch::Receiver<Option<Arc<ClientConfig>>>,
    /// The address at which the leader was last.
    address: Mutex<Option<String>>,
}

impl Leader {
    /// A leader that is found through the Lease in that namespace.
    pub fn new(
        client: kube::Client,
        namespace: &str,
        tls: watch::Receiver<Option<Arc<ClientConfig>>>,
    ) -> Self {
        Self {
            leases: Some(Api::namespaced(client, namespace)),
            tls,
            address: Mutex::default(),
        }
    }

    /// A leader at a known address.
    pub fn at(address: &str, tls: Arc<ClientConfig>) -> Self {
        let address = Mutex::new(Some(address.to_owned()));
        Self {
            leases: None,
            tls: watch::channel(Some(tls)).1,
            address,
        }
    }

    async fn lookup(&self) -> Result<String, DataError> {
        let unavailable = DataError::Unavailable;
        let Some(leases) = &self.leases else {
            return Err(unavailable("it does not answer".to_owned()));
        };
        let lease = timeout(LOOKUP, leases.get_opt(LEASE))
            .await
            .map_err(|_| unavailable(format!("reading the Lease {LEASE:?} took too long; try again")))?
            .map_err(|error| unavailable(format!("the Lease {LEASE:?} cannot be read: {error}")))?;
        lease
            .filter(|lease| {
                let holder = lease
                    .spec
                    .as_ref()
                    .and_then(|spec| spec.holder_identity.as_deref());
                holder.is_some_and(|holder| !holder.is_empty())
            })
            .and_then(|lease| lease.metadata.annotations?.remove(DATA_ADDRESS))
            .filter(|address| !address.is_empty())
            .ok_or_else(|| {
                unavailable("no controller leads at the moment; try again in a few seconds".to_owned())
            })
    }

    fn remember(&self, address: Option<String>) {
        if self.leases.is_some() {
            *self.address.lock() = address;
        }
    }

    async fn get(&self, path: &str) -> Result<Chunks, DataError> {
        let path = path.to_owned();
        self.at_leader(|address, tls| ask(address, tls, path.clone()))
            .await?
    }

    /// A connection to the leader, for a request that can be sent once only.
    pub(crate) async fn connection(&self) -> Result<Connection, DataError> {
        self.at_leader(connect).await
    }

    /// Does this at the leader's last address, and where nobody answers there at the one in the Lease.
    async fn at_leader<T, F>(
        &self,
        ask: impl Fn(String, Arc<ClientConfig>) -> F + Send,
    ) -> Result<T, DataError>
    where
        F: Future<Output = Result<T, String>> + Send,
    {
        let tls = self.tls.borrow().clone().ok_or_else(|| {
            DataError::Unavailable(
                "the controller has made no certificates yet; try again in a few seconds".to_owned(),
            )
        })?;
        let mut failure = String::new();
        for fresh in [false, true] {
            let known = self.address.lock().clone();
            let address = match (fresh, known) {
                (false, None) => continue,
                (false, Some(address)) => address,
                (true, _) => self.lookup().await?,
            };
            match ask(address.clone(), Arc::clone(&tls)).await {
                Ok(answer) => {
                    self.remember(Some(address));
                    return Ok(answer);
                }
                Err(error) => {
                    self.remember(None);
                    failure = error;
                }
            }
        }
        Err(DataError::Unavailable(format!(
            "the controller cannot be reached ({failure}); try again in a few seconds"
        )))
    }
}

#[async_trait]
impl Data for Leader {
    async fn runs(&self, namespace: &str, uid: &str) -> Result<Runs, DataError> {
        let mut chunks = self.get(&format!("/v1/tasks/{namespace}/{uid}/runs")).await?;
        let mut body = Vec::new();
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(|error| DataError::Unavailable(error.to_string()))?);
            if body.len() > 16 * 1024 * 1024 {
                return Err(DataError::Unavailable("the list of runs is too long".to_owned()));
            }
        }
        serde_json::from_slice(&body).map_err(|error| {
            DataError::Unavailable(format!("the controller's answer cannot be read: {error}"))
        })
    }

    async fn log(
        &self,
        namespace: &str,
        uid: &str,
        run: &str,
        offset: u64,
        follow: bool,
        gaps: &Mark,
    ) -> Result<Chunks, DataError> {
        let gaps = gaps.word();
        self.get(&format!(
            "/v1/tasks/{namespace}/{uid}/log?run={run}&offset={offset}&follow={follow}&gaps={gaps}"
        ))
        .await
    }

    async fn result(&self, namespace: &str, uid: &str, run: &str, offset: u64) -> Result<Chunks, DataError> {
        self.get(&format!(
            "/v1/tasks/{namespace}/{uid}/result?run={run}&offset={offset}"
        ))
        .await
    }

    async fn machine_log(&self, namespace: &str, name: &str) -> Result<Chunks, DataError> {
        self.get(&format!("/v1/machines/{namespace}/{name}/log")).await
    }

    async fn items(&self, namespace: &str, uid: &str, query: &str) -> Result<Chunks, DataError> {
        self.get(&format!("/v1/tasks/{namespace}/{uid}/items?{query}"))
            .await
    }

    async fn retry(&self, namespace: &str, name: &str, uid: &str, query: &str) -> Result<String, DataError> {
        let path = format!("/v1/tasks/{namespace}/{uid}/retry?name={name}&{query}");
        let connection = self.connection().await?;
        let sent = connection.send(Method::POST, &path, Body::empty(), RETRY).await;
        // Whether it came to pass is not known; asking again is harmless.
        let (answer, _open) = sent.map_err(|why| {
            DataError::Unavailable(format!("the controller did not answer ({why}); try again"))
        })?;
        let is_done = answer.status() == StatusCode::OK;
        let text = words(answer).await;
        if is_done {
            Ok(text)
        } else {
            Err(DataError::Unavailable(text))
        }
    }
}

/// A connection to the leader.
pub(crate) struct Connection {
    address: String,
    sender: http1::SendRequest<Body>,
    driver: AbortOnDropHandle<()>,
}

async fn connect(address: String, tls: Arc<ClientConfig>) -> Result<Connection, String> {
    let connect = async {
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from(DATA_SERVER_NAME).map_err(io::Error::other)?;
        TlsConnector::from(tls).connect(name, stream).await
    };
    let stream = timeout(CONNECT, connect)
        .await
        .map_err(|_| format!("no connection to {address} within {} s", CONNECT.as_secs()))?
        .map_err(|error| format!("{address}: {error}"))?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| format!("{address}: {error}"))?;
    let driver = AbortOnDropHandle::new(tokio::spawn(async move {
        let _ = connection.await;
    }));
    Ok(Connection {
        address,
        sender,
        driver,
    })
}

impl Connection {
    /// The head of the answer; the error: none came in time. The connection lives as long as the handle.
    pub(crate) async fn send(
        mut self,
        method: Method,
        path: &str,
        body: Body,
        patience: Duration,
    ) -> Result<(Response<Incoming>, AbortOnDropHandle<()>), String> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, DATA_SERVER_NAME)
            .body(body)
            .map_err(|error| error.to_string())?;
        let address = self.address;
        let answer = timeout(patience, self.sender.send_request(request))
            .await
            .map_err(|_| format!("{address} did not answer within {} s", patience.as_secs()))?
            .map_err(|error| format!("{address}: {error}"))?;
        Ok((answer, self.driver))
    }
}

/// One request over a connection of its own. The outer error: no answer at that address.
async fn ask(
    address: String,
    tls: Arc<ClientConfig>,
    path: String,
) -> Result<Result<Chunks, DataError>, String> {
    let connection = connect(address, tls).await?;
    let (answer, driver) = connection.send(Method::GET, &path, Body::empty(), ANSWER).await?;
    Ok(match answer.status() {
        StatusCode::OK => Ok(chunks(answer.into_body(), driver)),
        StatusCode::NOT_FOUND => Err(DataError::NotFound),
        status => {
            let text = words(answer).await;
            tracing::info!(%status, %text, "the controller refused a request");
            Err(DataError::Unavailable(format!(
                "the controller answered {status}: {text}"
            )))
        }
    })
}

/// The text of an answer.
pub(crate) async fn words(answer: Response<Incoming>) -> String {
    let text = axum::body::to_bytes(Body::new(answer.into_body()), 4096)
        .await
        .unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// The body's chunks. They own the connection; nothing follows an error, such as a long silence.
fn chunks(body: Incoming, connection: AbortOnDropHandle<()>) -> Chunks {
    let data = Body::new(body).into_data_stream();
    futures::stream::unfold(Some((data, connection)), |state| async move {
        let (mut data, connection) = state?;
        match timeout(SILENCE, data.next()).await {
            Ok(None) => None,
            Ok(Some(Ok(chunk))) => Some((Ok(chunk), Some((data, connection)))),
            Ok(Some(Err(error))) => Some((Err(io::Error::other(error)), None)),
            Err(_) => Some((Err(io::Error::from(io::ErrorKind::TimedOut)), None)),
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_says_attempt_and_rank() {
        let uid = "0b0e4c3a-1111-4222-8333-444455556666";
        assert_eq!(parse_run_id(uid, &run_id(uid, 3, 17)), Some((3, 17)));
        assert_eq!(parse_run_id(uid, "other-3-17"), None);
        assert_eq!(parse_run_id(uid, uid), None);
    }
}
