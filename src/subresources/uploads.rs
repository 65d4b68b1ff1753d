//! `…/bundles/DIGEST`: uploads of code, which Tasks name by its digest.
//!
//! A bundle comes in parts, and each answer says at which byte the upload goes on, whatever became of the
//! part before. The parts go to the leading controller as they arrive, and nothing of them is kept here.
//! A client that sends slowly is cut off with such an answer before the API server would do it; it holds one
//! of the few places of its user and its namespace meanwhile, and nothing of anybody else.
//!
//! Paths at the leader, with `upload`, which tells the uploads of several users apart:
//!
//! - GET `/v1/bundles/{namespace}/{digest}?upload=`: [`State`] as JSON. 404: there is no such namespace.
//! - PUT `/v1/bundles/{namespace}/{digest}?upload=&offset=&size=`: the body is bytes of a bundle of `size`
//!   bytes from `offset` on, or is empty to ask where to go on. Answers with [`State`]; other answers are
//!   refusals in words for the user.

use std::{io, sync::Arc, time::Duration};

use async_trait::async_trait;
use axum::{
    Json,
    body::{Body, Bytes},
    extract::{Path, Request, State as Shares},
    http::{Method, Response, StatusCode, header},
    response::IntoResponse as _,
};
use futures::{Stream, StreamExt};
use hyper::body::Incoming;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use skyward_bundle::{Digest, LIMITS};
use tokio::time::{Instant, timeout_at};

use crate::{
    GROUP, VERSION,
    api::{Pairs, Route, Shared, allow, is_name, not_found, number},
    authorize::Access,
    data::{DataError, Leader, words},
    frontproxy::User,
    limits::{Of, Permit},
    status::Failure,
};

/// Most bytes of one part.
pub const PART_BYTES: u64 = 8 * 1024 * 1024;
/// Most parts of one user, and of one namespace, that are on their way at a time.
pub(crate) const EACH: usize = 4;
/// How long a part may be on its way, and how long nothing of it may come: the API server cuts a request
/// off after 60 s.
const PART: Duration = Duration::from_secs(40);
const SILENCE: Duration = Duration::from_secs(15);
/// How long the leader may take: with the last part it looks through the whole bundle.
const ANSWER: Duration = Duration::from_secs(57);

/// How much of a bundle is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// Whether it is there, and its digest was found to be right.
    pub complete: bool,
    /// The byte at which the upload goes on.
    pub offset: u64,
}

/// An upload of one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Into which namespace.
    pub namespace: String,
    /// What is uploaded.
    pub digest: Digest,
    /// Tells the uploads of users apart.
    pub id: String,
}

/// Why an upload does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UploadError {
    /// No answer now; the text is for the user.
    Unavailable(String),
    /// The leader refused it, in words for the user.
    Refused(StatusCode, String),
}

/// Takes uploads. Implemented by [`Leader`]; tests bring their own.
#[async_trait]
pub trait Uploads: Send + Sync {
    /// How much of it is there.
    async fn state(&self, upload: &Upload) -> Result<State, UploadError>;
    /// Adds bytes from an offset on, of a bundle of `size` bytes.
    async fn put(&self, upload: &Upload, offset: u64, size: u64, body: Body) -> Result<State, UploadError>;
}

impl Upload {
    /// The upload of that user.
    fn of(user: &User, namespace: String, digest: Digest) -> Self {
        let hash: [u8; 32] = Sha256::new()
            .chain_update(&user.name)
            .chain_update([0_u8])
            .chain_update(&user.uid)
            .finalize()
            .into();
        let id = hash[..16]
            .iter()
            .fold(0_u128, |id, byte| id << 8 | u128::from(*byte));
        let id = format!("{id:032x}");
        Self {
            namespace,
            digest,
            id,
        }
    }

    fn path(&self) -> String {
        let Self {
            namespace,
            digest,
            id,
        } = self;
        format!("/v1/bundles/{namespace}/{digest}?upload={id}")
    }
}

impl Leader {
    async fn upload(&self, method: Method, path: &str, body: Body) -> Result<State, UploadError> {
        let connection = self.connection().await.map_err(|error| match error {
            DataError::Unavailable(text) => UploadError::Unavailable(text),
            DataError::NotFound => UploadError::Unavailable("no controller answers; try again".to_owned()),
        })?;
        // What was sent is not sent again from here: the user's client knows how to go on.
        let (answer, _open) = connection.send(method, path, body, ANSWER).await.map_err(|why| {
            UploadError::Unavailable(format!(
                "the controller did not take the bytes ({why}); try again"
            ))
        })?;
        read(answer).await
    }
}

async fn read(answer: Response<Incoming>) -> Result<State, UploadError> {
    let status = answer.status();
    let text = words(answer).await;
    match status {
        StatusCode::OK => serde_json::from_str(&text).map_err(|error| {
            UploadError::Unavailable(format!("the controller's answer cannot be read: {error}"))
        }),
        // It knows no such path.
        _ if status.is_client_error() && text.is_empty() => Err(UploadError::Unavailable(
            "the controller is of an earlier version, which takes no uploads; try again when it is upgraded"
                .to_owned(),
        )),
        _ if status.is_client_error() || status == StatusCode::INSUFFICIENT_STORAGE => {
            Err(UploadError::Refused(status, text))
        }
        _ => Err(UploadError::Unavailable(text)),
    }
}

#[async_trait]
impl Uploads for Leader {
    async fn state(&self, upload: &Upload) -> Result<State, UploadError> {
        self.upload(Method::GET, &upload.path(), Body::empty()).await
    }

    async fn put(&self, upload: &Upload, offset: u64, size: u64, body: Body) -> Result<State, UploadError> {
        let path = format!("{}&offset={offset}&size={size}", upload.path());
        self.upload(Method::PUT, &path, body).await
    }
}

impl From<UploadError> for Failure {
    fn from(error: UploadError) -> Self {
        match error {
            UploadError::Unavailable(text) => Self::unavailable(text),
            UploadError::Refused(StatusCode::TOO_MANY_REQUESTS, text) => Self::too_many(text),
            UploadError::Refused(code, text) => Self::refused(code, text),
        }
    }
}

/// The checks before the answer: the user may do that, the names are right, there is room.
async fn admit(
    shared: &Shared,
    user: &User,
    verb: &'static str,
    (namespace, name): (String, String),
) -> Result<(Upload, Permit), Failure> {
    let access = Access {
        verb,
        namespace,
        resource: "bundles",
        name,
        subresource: "",
    };
    allow(shared, user, &access).await?;
    let Access { namespace, name, .. } = access;
    if !is_name(&namespace) {
        return Err(not_found("namespaces", &namespace));
    }
    let digest: Digest = name.parse().map_err(Failure::bad_request)?;
    let permit = shared
        .uploads
        .take(&user.name, &namespace)
        .map_err(|of| match of {
            Of::User => Failure::too_many(format!("you send {EACH} parts of bundles at the moment, which is the most for one user; wait until one has arrived")),
            Of::Namespace => Failure::too_many(format!("{EACH} parts of bundles are on their way into namespace {namespace:?}, which is the most for one namespace; wait until one has arrived")),
        })?;
    Ok((Upload::of(user, namespace, digest), permit))
}

/// GET: how much of the bundle is there.
pub(crate) async fn state(
    Shares(shared): Shares<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path(names): Route,
) -> Result<axum::response::Response, Failure> {
    let (upload, _permit) = admit(&shared, &user, "get", names).await?;
    let state = shared.parts.uploads.state(&upload).await?;
    if state == State::default() {
        return Err(not_found("bundles", &upload.digest.to_string()));
    }
    Ok(answer(&upload, state))
}

/// PUT: a part.
pub(crate) async fn put(
    Shares(shared): Shares<Shared>,
    axum::Extension(user): axum::Extension<Arc<User>>,
    Path(names): Route,
    query: Result<Pairs, axum::extract::rejection::QueryRejection>,
    request: Request,
) -> Result<axum::response::Response, Failure> {
    let (upload, _permit) = admit(&shared, &user, "update", names).await?;
    let axum::extract::Query(query) = query.map_err(|error| Failure::bad_request(error.to_string()))?;
    let offset = number(&query, "offset")?.unwrap_or_default();
    let size: u64 = number(&query, "size")?
        .ok_or_else(|| Failure::bad_request("size: say how many bytes the whole bundle has"))?;
    if size > LIMITS.packed() {
        let most = LIMITS.bytes;
        return Err(Failure::refused(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("a bundle of {size} bytes is too large: its files may have {most} bytes together"),
        ));
    }
    let body = Body::from_stream(bounded(request.into_body(), Instant::now() + PART));
    let state = shared.parts.uploads.put(&upload, offset, size, body).await?;
    Ok(answer(&upload, state))
}

/// The body as far as it comes in time and is no longer than a part: the answer says where to go on.
fn bounded(body: Body, end: Instant) -> impl Stream<Item = io::Result<Bytes>> + Send {
    let state = Some((body.into_data_stream(), PART_BYTES));
    futures::stream::unfold(state, move |state| async move {
        let (mut body, left) = state?;
        let until = end.min(Instant::now() + SILENCE);
        match timeout_at(until, body.next()).await.ok()?? {
            Ok(mut bytes) => {
                bytes.truncate(usize::try_from(left).unwrap_or(usize::MAX));
                let left = left - bytes.len() as u64;
                Some((Ok(bytes), (left > 0).then_some((body, left))))
            }
            Err(error) => Some((Err(io::Error::other(error)), None)),
        }
    })
}

fn answer(upload: &Upload, state: State) -> axum::response::Response {
    let object = json!({
        "kind": "Bundle",
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "metadata": { "name": upload.digest.to_string(), "namespace": upload.namespace },
        "status": state,
    });
    ([(header::CACHE_CONTROL, "no-store")], Json(object)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_body_that_comes_slowly_or_never_ends_is_cut_and_what_came_is_passed_on() {
        let read = async |pieces: usize, each: Duration, size: usize| {
            let stream = futures::stream::iter(0..pieces).then(move |_| async move {
                tokio::time::sleep(each).await;
                Ok::<_, io::Error>(Bytes::from(vec![b'x'; size]))
            });
            let begun = Instant::now();
            let body = bounded(Body::from_stream(stream), begun + PART);
            let pieces: Vec<io::Result<Bytes>> = body.collect().await;
            let bytes: usize = pieces.into_iter().map(|piece| piece.unwrap().len()).sum();
            (bytes, begun.elapsed())
        };
        let second = Duration::from_secs(1);
        assert_eq!(read(3, second, 10).await, (30, second * 3));
        assert_eq!(read(1000, second * 9, 10).await, (40, PART), "it drips");
        assert_eq!(
            read(2, Duration::from_hours(1), 10).await,
            (0, SILENCE),
            "it stands still"
        );
        let (bytes, _) = read(100, Duration::ZERO, 1 << 20).await;
        assert_eq!(bytes as u64, PART_BYTES, "it is too long");
    }

    #[test]
    fn uploads_of_two_users_are_told_apart_and_those_of_one_are_the_same() {
        let digest: Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let of = |name: &str, uid: &str| {
            let user = User {
                name: name.into(),
                uid: uid.into(),
                ..User::default()
            };
            Upload::of(&user, "n".into(), digest).id
        };
        assert_eq!(of("ana", "1"), of("ana", "1"));
        for other in [of("ben", "1"), of("ana", "2"), of("ana1", ""), of("", "ana1")] {
            assert_ne!(of("ana", "1"), other);
        }
        assert_eq!(of("ana", "1").len(), 32);
    }
}
