//! Uploads of bundles over the aggregated API: what is asked, and what is answered.

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, State},
    http::StatusCode,
};
use skyward_bundle::Digest;
use skyward_subresources::uploads::State as Progress;

use super::Shared;
use crate::uploads::{Failure, Part, failure};

#[derive(serde::Deserialize)]
pub(super) struct StateQuery {
    upload: String,
}

#[derive(serde::Deserialize)]
pub(super) struct PutQuery {
    upload: String,
    offset: u64,
    size: u64,
}

pub(super) async fn state(
    State(shared): State<Shared>,
    Path((namespace, digest)): Path<(String, String)>,
    Query(query): Query<StateQuery>,
) -> Result<Json<Progress>, Failure> {
    let uploads = &shared.uploads;
    let id = uploads.id(&namespace, read(&digest)?)?;
    let known = uploads.known(&id, &query.upload).await;
    known.map(Json).map_err(failure)
}

pub(super) async fn put(
    State(shared): State<Shared>,
    Path((namespace, digest)): Path<(String, String)>,
    Query(query): Query<PutQuery>,
    body: Body,
) -> Result<Json<Progress>, Failure> {
    let part = Part {
        namespace: &namespace,
        digest: read(&digest)?,
        upload: &query.upload,
        offset: query.offset,
        size: query.size,
    };
    shared.uploads.put(part, body).await.map(Json)
}

fn read(digest: &str) -> Result<Digest, Failure> {
    digest.parse().map_err(|why| (StatusCode::BAD_REQUEST, why))
}
