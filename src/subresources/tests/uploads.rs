//! Uploads of bundles: who may send them, how much, and where they go on.

use parking_lot::Mutex;

use super::*;
use crate::uploads::{State, Upload, UploadError, Uploads};

/// A leader that keeps what it is sent.
#[derive(Default)]
pub(super) struct Kept(Mutex<BTreeMap<(String, String, String), Vec<u8>>>);

fn key(upload: &Upload) -> (String, String, String) {
    (
        upload.namespace.clone(),
        upload.digest.to_string(),
        upload.id.clone(),
    )
}

#[async_trait]
impl Uploads for Kept {
    async fn state(&self, upload: &Upload) -> Result<State, UploadError> {
        let kept = self.0.lock();
        let offset = kept.get(&key(upload)).map_or(0, |bytes| bytes.len() as u64);
        Ok(State {
            complete: false,
            offset,
        })
    }

    async fn put(&self, upload: &Upload, offset: u64, size: u64, body: Body) -> Result<State, UploadError> {
        if size == 13 {
            return Err(UploadError::Refused(
                StatusCode::INSUFFICIENT_STORAGE,
                "its quota is 2Gi".into(),
            ));
        }
        let bytes = axum::body::to_bytes(body, usize::MAX)
            .await
            .map_err(|error| UploadError::Unavailable(error.to_string()))?;
        let mut kept = self.0.lock();
        let known = kept.entry(key(upload)).or_default();
        if known.len() as u64 == offset {
            known.extend_from_slice(&bytes);
        }
        let offset = known.len() as u64;
        Ok(State {
            complete: offset == size,
            offset,
        })
    }
}

const DIGEST: &str = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

impl Server {
    async fn put_as(&self, user: &str, path: &str, body: &[u8]) -> (StatusCode, Value) {
        let tls = self.client(&self.proxy, "front-proxy-client");
        let path = format!("{BASE}/bundles/{path}");
        let body = Body::from(body.to_vec());
        let (status, text) = self
            .send(tls, Method::PUT, &path, Some(user), body)
            .await
            .unwrap();
        (status, serde_json::from_str(&text).unwrap_or_default())
    }
}

#[tokio::test]
async fn an_upload_comes_in_parts_and_each_answer_says_where_it_goes_on() {
    let server = Server::start(World::default()).await;
    let path = format!("{BASE}/bundles/{DIGEST}");
    assert_eq!(server.get(&path).await.0, StatusCode::NOT_FOUND);
    let (status, first) = server
        .put_as("ana", &format!("{DIGEST}?offset=0&size=6"), b"abcd")
        .await;
    assert_eq!(status, StatusCode::OK, "{first}");
    assert_eq!(
        (&first["kind"], &first["metadata"]["name"]),
        (&json!("Bundle"), &json!(DIGEST))
    );
    assert_eq!(first["status"], json!({ "complete": false, "offset": 4 }));
    let (_, there) = server.get(&path).await;
    assert!(there.contains(r#""offset":4"#), "{there}");
    let (_, elsewhere) = server
        .put_as("ana", &format!("{DIGEST}?offset=2&size=6"), b"cdef")
        .await;
    assert_eq!(elsewhere["status"]["offset"], 4);
    let (_, last) = server
        .put_as("ana", &format!("{DIGEST}?offset=4&size=6"), b"ef")
        .await;
    assert_eq!(last["status"], json!({ "complete": true, "offset": 6 }));
}

#[tokio::test]
async fn who_may_not_upload_gets_403_with_the_verb_and_the_resource() {
    let server = Server::start(World::default()).await;
    let (status, body) = server
        .put_as("eve", &format!("{DIGEST}?offset=0&size=6"), b"abcd")
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let message = body["message"].as_str().unwrap();
    assert!(
        message.contains("User \"eve\" cannot update resource \"bundles\" in API group"),
        "{message}"
    );
    let (status, body) = server.get_as("eve", &format!("{BASE}/bundles/{DIGEST}")).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{body}");
    assert!(body.contains("cannot get resource"), "{body}");
}

#[tokio::test]
async fn a_part_that_is_too_large_or_names_no_bundle_is_refused_in_words() {
    let server = Server::start(World::default()).await;
    for (path, body, status, word) in [
        (
            "..%2Fx?offset=0&size=1".to_owned(),
            &b"x"[..],
            StatusCode::BAD_REQUEST,
            "is no digest",
        ),
        (
            "sha256:12?offset=0&size=1".to_owned(),
            b"x",
            StatusCode::BAD_REQUEST,
            "is no digest",
        ),
        (
            format!("{DIGEST}?offset=0"),
            b"x",
            StatusCode::BAD_REQUEST,
            "size: say",
        ),
        (
            format!("{DIGEST}?offset=-1&size=1"),
            b"x",
            StatusCode::BAD_REQUEST,
            "offset",
        ),
        (
            format!("{DIGEST}?offset=0&size=999999999"),
            b"x",
            StatusCode::PAYLOAD_TOO_LARGE,
            "too large",
        ),
        (
            format!("{DIGEST}?offset=0&size=13"),
            b"x",
            StatusCode::INSUFFICIENT_STORAGE,
            "its quota is 2Gi",
        ),
    ] {
        let (got, body) = server.put_as("ana", &path, body).await;
        assert_eq!(got, status, "{path}: {body}");
        let message = body["message"].as_str().unwrap_or_default();
        assert!(message.contains(word), "{path}: {message}");
        assert_eq!(body["kind"], "Status");
    }
}
