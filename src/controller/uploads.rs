//! Takes bundles into the result store: those that users upload (`logs`), and those that machines fetched from git
//! (`task`). Where the bytes come from is not decided here.
//!
//! The bytes of a part are stored as they come, a slice at a time, so that an upload that breaks off goes on
//! behind the last slice. With the last byte the whole bundle is looked through: only then it is there. No
//! lock and no turn of another upload waits for a client that sends slowly.

use std::{
    io::{self, Read},
    sync::Arc,
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
};
use bytes::{Buf as _, BytesMut};
use futures::{StreamExt, stream::BoxStream};
use skyward_bundle::{Digest, LIMITS, Reader};
use skyward_remote::turns::Turns;
use skyward_store::{BundleId, Error, Sealed, Store};
use skyward_subresources::uploads::State as Progress;
use tokio::{sync::mpsc, time::timeout};

use crate::metrics::Metrics;

/// Parts that are taken at once, of all namespaces and of one: each holds a slice in memory.
const PARTS: usize = 64;
const EACH: usize = 4;
/// Bundles that are looked through at once, of all namespaces and of one: each holds its manifest.
const CHECKS: usize = 2;
/// Bytes that are stored at once.
const SLICE: usize = 1024 * 1024;
/// Fewer bytes are not worth an object, unless they are the last ones.
const LEAST: usize = 64 * 1024;
/// How long no byte of a part may come.
const SILENCE: Duration = Duration::from_secs(20);
/// Pieces between the store and the look through a bundle.
const PIECES: usize = 4;

/// Longest taking over of a bundle from a machine, with the wait for a turn. The machine that fetched it is fast, or the
/// others fetch for themselves.
const KEEP: Duration = Duration::from_mins(2);
/// Longest deletion of what is left of it: a store that hangs must not hold up the Task.
const CLEAR: Duration = Duration::from_secs(20);

/// The UID of a namespace that is served.
pub(crate) type UidOf = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Takes uploads.
pub(crate) struct Uploads {
    store: Arc<Store>,
    uid_of: UidOf,
    metrics: Arc<Metrics>,
    parts: Arc<Turns>,
    checks: Arc<Turns>,
}

/// A refusal or failure, in words for the user.
pub(crate) type Failure = (StatusCode, String);

/// A part of an upload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) digest: Digest,
    /// Tells the uploads of users and machines apart.
    pub(crate) upload: &'a str,
    pub(crate) offset: u64,
    /// Bytes of the whole bundle.
    pub(crate) size: u64,
}

pub(crate) fn failure(error: Error) -> Failure {
    let code = match &error {
        Error::Full(_) | Error::Kept | Error::QuotaExceeded { .. } | Error::TooManyFiles { .. } => {
            StatusCode::INSUFFICIENT_STORAGE
        }
        Error::TooManyUploads => StatusCode::TOO_MANY_REQUESTS,
        Error::BadId(_) => StatusCode::BAD_REQUEST,
        Error::Gap { .. }
        | Error::TooLarge
        | Error::Contended
        | Error::Strange(_)
        | Error::Misnamed(_)
        | Error::Other(_) => {
            tracing::warn!(%error, "an upload could not be stored");
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    (code, error.to_string())
}

impl Uploads {
    pub(crate) fn new(store: Arc<Store>, uid_of: UidOf, metrics: Arc<Metrics>) -> Self {
        Self {
            store,
            uid_of,
            metrics,
            parts: Turns::new(PARTS, EACH),
            checks: Turns::new(CHECKS, 1),
        }
    }

    pub(crate) fn id(&self, namespace: &str, digest: Digest) -> Result<BundleId, Failure> {
        let uid = (self.uid_of)(namespace).ok_or_else(|| {
            let text = format!("there is no namespace \"{namespace}\" that the operator serves");
            (StatusCode::NOT_FOUND, text)
        })?;
        BundleId::new(&uid, &digest.hex()).map_err(failure)
    }

    /// How much of an upload is there.
    pub(crate) async fn known(&self, id: &BundleId, upload: &str) -> Result<Progress, Error> {
        if let Some(whole) = self.store.bundle(id).await? {
            return Ok(Progress {
                complete: true,
                offset: whole.bytes,
            });
        }
        Ok(Progress {
            complete: false,
            offset: self.store.upload_end(id, upload).await?,
        })
    }

    /// Stores a part, and tells where the upload goes on.
    pub(crate) async fn put(&self, part: Part<'_>, body: Body) -> Result<Progress, Failure> {
        let Part {
            namespace,
            upload,
            size,
            ..
        } = part;
        let id = self.id(namespace, part.digest)?;
        if size > LIMITS.packed() {
            let text = format!("a bundle of {size} bytes is too large");
            return Err((StatusCode::PAYLOAD_TOO_LARGE, text));
        }
        let known = self.known(&id, upload).await.map_err(failure)?;
        if known.complete {
            self.store.renew_bundle(&id).await.map_err(failure)?;
            return Ok(known);
        }
        let mut end = known.offset;
        if end < size && end == part.offset {
            let stored = self.take(&id, part, body).await;
            end = stored.inspect_err(|(code, _)| {
                if *code == StatusCode::INSUFFICIENT_STORAGE {
                    self.metrics.upload("full");
                }
            })?;
        }
        if end < size {
            return Ok(Progress {
                complete: false,
                offset: end,
            });
        }
        self.finish(&id, part, end).await
    }

    /// Stores a whole bundle that `read` gives from an offset on, unless it is there. What cannot be stored as a whole is
    /// deleted: it would take the room of the namespace for a day.
    pub(crate) async fn keep(
        &self,
        whole: Part<'_>,
        read: impl FnOnce(u64) -> Body + Send,
    ) -> Result<(), Failure> {
        let Part {
            namespace,
            digest,
            upload,
            ..
        } = whole;
        let id = self.id(namespace, digest)?;
        let work = async {
            let offset = self.known(&id, upload).await.map_err(failure)?.offset;
            let part = Part { offset, ..whole };
            self.put(part, read(offset)).await
        };
        let late = |_| {
            let text = format!("it took more than {} s", KEEP.as_secs());
            Err((StatusCode::GATEWAY_TIMEOUT, text))
        };
        let stored = timeout(KEEP, work).await.unwrap_or_else(late);
        self.clear(&id, upload).await;
        match stored? {
            Progress { complete: true, .. } => Ok(()),
            Progress { offset, .. } => {
                let text = format!("the bytes ended at {offset} of {}", whole.size);
                Err((StatusCode::BAD_GATEWAY, text))
            }
        }
    }

    /// Deletes an upload that did not become the bundle.
    async fn clear(&self, id: &BundleId, upload: &str) {
        let cleared = timeout(CLEAR, self.store.drop_upload(id, upload)).await;
        if !matches!(cleared, Ok(Ok(()))) {
            // The sweep finds it.
            let bundle = id.bundle();
            tracing::warn!(
                bundle,
                "a part of a bundle stays in the result store for now, which could not delete it"
            );
        }
    }

    /// Stores what comes of a part.
    async fn take(&self, id: &BundleId, part: Part<'_>, body: Body) -> Result<u64, Failure> {
        let Part {
            namespace,
            upload,
            offset,
            size,
            ..
        } = part;
        let _turn = self.parts.wait(namespace, upload).await;
        let mut body = body.into_data_stream();
        let mut came = BytesMut::new();
        let mut end = offset;
        let mut goes_on = true;
        while goes_on {
            match timeout(SILENCE, body.next()).await {
                Ok(Some(Ok(bytes))) => came.extend_from_slice(&bytes),
                // What came before the connection broke counts.
                Ok(Some(Err(_)) | None) | Err(_) => goes_on = false,
            }
            if end + came.len() as u64 > size {
                let text = format!(
                    "more bytes came than the bundle has, which are {size}; say its right size, and send it again"
                );
                return Err((StatusCode::UNPROCESSABLE_ENTITY, text));
            }
            let is_last = end + came.len() as u64 == size;
            while came.len() >= SLICE || (!came.is_empty() && (is_last || !goes_on && came.len() >= LEAST)) {
                let slice = came.split_to(came.len().min(SLICE)).freeze();
                let (length, expected) = (slice.len() as u64, end + slice.len() as u64);
                let stored = self.store.put_upload(namespace, id, upload, end, slice).await;
                end = stored.map_err(failure)?;
                self.metrics.stored("bundle", length);
                if end != expected {
                    // The same user sends these bytes over another connection, too.
                    return Ok(end);
                }
            }
        }
        Ok(end)
    }

    /// All bytes are there, up to `end`, if the size is right: looks whether they are the bundle.
    async fn finish(&self, id: &BundleId, part: Part<'_>, end: u64) -> Result<Progress, Failure> {
        let Part {
            namespace,
            digest,
            upload,
            size,
            ..
        } = part;
        let _turn = self.checks.wait(namespace, upload).await;
        let check = move |bytes| look(bytes, digest);
        let sealed = self.store.seal_bundle(id, upload, check).await;
        match sealed.map_err(failure)? {
            Sealed::Whole => {
                self.metrics.upload("complete");
                // A bundle is no object, so no Event can be about it.
                tracing::info!(namespace, %digest, bytes = size, "a bundle is stored");
                Ok(Progress {
                    complete: true,
                    offset: size,
                })
            }
            Sealed::Unfinished => {
                self.metrics.upload("refused");
                let text = format!(
                    "the bundle {digest} does not end with its first {end} bytes, which are there: its size is not {size}. They stay; say its right size, and go on at byte {end}"
                );
                Err((StatusCode::UNPROCESSABLE_ENTITY, text))
            }
            Sealed::Refused(why) => {
                self.metrics.upload("refused");
                let text = format!(
                    "the bytes are not the bundle {digest}: {why}. They were deleted; upload them again, and leave the files alone meanwhile"
                );
                Err((StatusCode::UNPROCESSABLE_ENTITY, text))
            }
        }
    }
}

/// Looks through the bytes of a bundle on a thread of its own.
async fn look(mut bytes: BoxStream<'static, Result<Bytes, Error>>, digest: Digest) -> Result<Sealed, Error> {
    let (send, receive) = mpsc::channel(PIECES);
    let rest = Bytes::new();
    let is_read = false;
    let pieces = Pieces {
        receive,
        rest,
        is_read,
    };
    let looking = tokio::task::spawn_blocking(move || verdict(pieces, digest));
    while let Some(piece) = bytes.next().await {
        // A reader that has seen enough takes no more.
        if send.send(piece?).await.is_err() {
            break;
        }
    }
    drop(send);
    Ok(looking.await.map_err(io::Error::other)?)
}

fn verdict(mut pieces: Pieces, digest: Digest) -> Sealed {
    match verify(&mut pieces, digest) {
        Ok(()) => Sealed::Whole,
        // Of bytes that are right so far, and of these alone, it wants more than there are.
        Err(_) if pieces.is_read => Sealed::Unfinished,
        Err(why) => Sealed::Refused(why),
    }
}

fn verify(bytes: impl Read, digest: Digest) -> Result<(), String> {
    let reader = Reader::open(bytes, LIMITS).map_err(|error| error.to_string())?;
    let found = reader.digest();
    if found != digest {
        return Err(format!("they are those of {found}"));
    }
    reader.verify().map_err(|error| error.to_string())
}

/// The pieces as one reader.
struct Pieces {
    receive: mpsc::Receiver<Bytes>,
    rest: Bytes,
    /// Whether the reader came to their end.
    is_read: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let Some(piece) = self.receive.blocking_recv() else {
                self.is_read = true;
                return Ok(0);
            };
            self.rest = piece;
        }
        let length = self.rest.len().min(buffer.len());
        self.rest.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use skyward_bundle::{File, Packed, pack};

    use super::*;

    pub(crate) const UID: &str = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";

    /// Uploads into the namespace `n`, the only one.
    pub(crate) fn uploads(store: &Arc<Store>) -> Uploads {
        let uid_of: UidOf = Arc::new(|name| (name == "n").then(|| UID.to_owned()));
        Uploads::new(store.clone(), uid_of, Arc::default())
    }

    pub(crate) fn bundle(bytes: usize) -> Packed {
        let content: Vec<u8> = (0..bytes).map(|n| (n % 251) as u8).collect();
        let file = File {
            path: "train.py",
            executable: false,
            content: &content,
        };
        pack([file], LIMITS).unwrap()
    }

    fn world() -> (tempfile::TempDir, Arc<Store>, Uploads) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        let uploads = uploads(&store);
        (folder, store, uploads)
    }

    fn part(digest: Digest, offset: u64, size: u64) -> Part<'static> {
        Part {
            namespace: "n",
            digest,
            upload: "ana",
            offset,
            size,
        }
    }

    fn at(offset: u64) -> Progress {
        Progress {
            complete: false,
            offset,
        }
    }

    #[tokio::test]
    async fn a_bundle_in_parts_is_there_when_the_last_one_came_and_once() {
        let (_folder, store, uploads) = world();
        let Packed { digest, bytes } = bundle(3 * SLICE);
        let size = bytes.len() as u64;
        let send = async |from: usize, to: usize| {
            let body = Body::from(bytes[from..to].to_vec());
            uploads.put(part(digest, from as u64, size), body).await
        };
        let half = SLICE + 100_000;
        assert_eq!(send(0, half).await, Ok(at(half as u64)));
        assert_eq!(
            send(0, half).await,
            Ok(at(half as u64)),
            "an answer that was lost is given again"
        );
        assert_eq!(send(2 * SLICE, 2 * SLICE + 9).await, Ok(at(half as u64)));
        // A few bytes in the middle are not kept, and the answer says so.
        assert_eq!(send(half, half + 10).await, Ok(at(half as u64)));
        let whole = Progress {
            complete: true,
            offset: size,
        };
        assert_eq!(send(half, bytes.len()).await, Ok(whole));
        assert_eq!(send(0, 0).await, Ok(whole));
        let id = uploads.id("n", digest).unwrap();
        let stored = store.bundle(&id).await.unwrap().unwrap();
        let read = store.read_bundle(&id, &stored, 0..size).await.unwrap().unwrap();
        assert!(read == bytes, "other bytes are stored");
        let metrics = uploads.metrics.render();
        let counted = "skyward_uploads_total{outcome=\"complete\"} 1\n";
        assert!(metrics.contains(counted), "{metrics}");
    }

    #[tokio::test]
    async fn what_came_before_a_connection_broke_is_kept() {
        let (_folder, _store, uploads) = world();
        let Packed { digest, bytes } = bundle(3 * SLICE);
        let pieces = [
            Ok(Bytes::from(bytes[..SLICE + 70_000].to_vec())),
            Err(io::Error::from(io::ErrorKind::ConnectionReset)),
        ];
        let body = Body::from_stream(futures::stream::iter(pieces));
        let went_on = uploads.put(part(digest, 0, bytes.len() as u64), body).await;
        assert_eq!(went_on, Ok(at(SLICE as u64 + 70_000)));
    }

    #[tokio::test]
    async fn bytes_that_are_not_the_bundle_are_refused_and_deleted() {
        let (_folder, _store, uploads) = world();
        let Packed { digest, bytes } = bundle(100);
        let other: Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
        let mut forged = bytes.clone();
        *forged.last_mut().unwrap() ^= 1;
        for (named, bytes, why) in [
            (other, bytes.clone(), "they are those of"),
            (digest, forged, "is not the one that the bundle names"),
            (digest, b"no bundle at all, but bytes".to_vec(), "no bundle"),
        ] {
            let size = bytes.len() as u64;
            let (code, text) = uploads
                .put(part(named, 0, size), Body::from(bytes))
                .await
                .unwrap_err();
            assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY);
            assert!(text.contains(why), "{text}");
            let id = uploads.id("n", named).unwrap();
            assert_eq!(uploads.known(&id, "ana").await.unwrap(), at(0), "{why}");
        }
        let longer = uploads.put(part(digest, 0, 10), Body::from(bytes)).await;
        assert_eq!(longer.unwrap_err().0, StatusCode::UNPROCESSABLE_ENTITY);
    }

    #[tokio::test]
    async fn a_size_that_is_too_small_is_refused_and_leaves_the_upload_as_it_was() {
        let (_folder, _store, uploads) = world();
        let Packed { digest, bytes } = bundle(3 * SLICE);
        let size = bytes.len() as u64;
        // In the middle of the manifest, and in that of a content.
        for end in [60, SLICE as u64] {
            let id = uploads.id("n", digest).unwrap();
            let from = uploads.known(&id, "ana").await.unwrap().offset;
            let body = Body::from(bytes[from as usize..end as usize].to_vec());
            let first = uploads.put(part(digest, from, end), body).await;
            let (code, text) = first.unwrap_err();
            assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY);
            assert!(text.contains(&format!("go on at byte {end}")), "{text}");
            for wrong in [0, 1, end - 1, end] {
                let refused = uploads.put(part(digest, 0, wrong), Body::empty()).await;
                let (code, text) = refused.unwrap_err();
                assert_eq!(code, StatusCode::UNPROCESSABLE_ENTITY);
                assert!(
                    text.contains(&format!("its size is not {wrong}. They stay")),
                    "{text}"
                );
                assert_eq!(uploads.known(&id, "ana").await.unwrap(), at(end));
            }
        }
        let rest = Body::from(bytes[SLICE..].to_vec());
        let whole = uploads.put(part(digest, SLICE as u64, size), rest).await.unwrap();
        assert!(whole.complete);
    }

    #[tokio::test]
    async fn what_is_too_large_or_of_no_namespace_of_ours_is_refused() {
        let (_folder, _store, uploads) = world();
        let Packed { digest, .. } = bundle(1);
        let large = uploads.put(part(digest, 0, LIMITS.packed() + 1), Body::empty());
        assert_eq!(large.await.unwrap_err().0, StatusCode::PAYLOAD_TOO_LARGE);
        let elsewhere = Part {
            namespace: "other",
            ..part(digest, 0, 10)
        };
        let (code, text) = uploads.put(elsewhere, Body::empty()).await.unwrap_err();
        assert_eq!(code, StatusCode::NOT_FOUND);
        assert!(text.contains("\"other\""), "{text}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stands_still_holds_up_no_other_upload() {
        let (_folder, _store, uploads) = world();
        let (small, large) = (bundle(100), bundle(3 * SLICE));
        let silent = || Body::from_stream(futures::stream::pending::<io::Result<Bytes>>());
        let slow = uploads.put(part(large.digest, 0, large.bytes.len() as u64), silent());
        tokio::pin!(slow);
        assert!(timeout(SILENCE / 2, &mut slow).await.is_err());
        // Even one of the same bundle.
        for packed in [small, large] {
            let size = packed.bytes.len() as u64;
            let other = Part {
                upload: "ben",
                ..part(packed.digest, 0, size)
            };
            let done = uploads.put(other, Body::from(packed.bytes)).await.unwrap();
            assert!(done.complete);
        }
        assert_eq!(slow.await, Ok(at(0)));
    }

    #[tokio::test]
    async fn a_bundle_from_a_machine_is_stored_once_and_what_is_not_whole_leaves_nothing() {
        let (_folder, store, uploads) = world();
        let Packed { digest, bytes } = bundle(3 * SLICE);
        let size = bytes.len() as u64;
        let id = uploads.id("n", digest).unwrap();
        let pieces = |bytes: &[u8], offset: u64| -> Vec<io::Result<Bytes>> {
            let rest = &bytes[offset as usize..];
            rest.chunks(100_000)
                .map(|piece| Ok(piece.to_vec().into()))
                .collect()
        };
        let body =
            |bytes: &[u8], offset: u64| Body::from_stream(futures::stream::iter(pieces(bytes, offset)));
        let mut forged = bytes.clone();
        *forged.last_mut().unwrap() ^= 1;
        let longer = [&bytes[..], b"x"].concat();
        for (bytes, code) in [
            (&forged, StatusCode::UNPROCESSABLE_ENTITY),
            (&longer, StatusCode::UNPROCESSABLE_ENTITY),
            (&bytes[..2 * SLICE].to_vec(), StatusCode::BAD_GATEWAY),
        ] {
            let kept = uploads.keep(part(digest, 0, size), |offset| body(bytes, offset));
            assert_eq!(kept.await.unwrap_err().0, code);
            assert_eq!(uploads.known(&id, "ana").await.unwrap(), at(0), "{code}");
        }
        // An earlier try was given up in its middle, as when its Task was deleted.
        let half = 2 * SLICE as u64;
        let first = uploads.put(part(digest, 0, size), Body::from(bytes[..half as usize].to_vec()));
        assert_eq!(first.await, Ok(at(half)));
        let mut from = None;
        let kept = uploads.keep(part(digest, 0, size), |offset| {
            from = Some(offset);
            body(&bytes, offset)
        });
        assert_eq!((kept.await, from), (Ok(()), Some(half)));
        let stored = store.bundle(&id).await.unwrap().unwrap();
        let read = store.read_bundle(&id, &stored, 0..size).await.unwrap().unwrap();
        assert!(read == bytes, "other bytes are stored");
        // Another machine's is not read any more.
        let other = Part {
            upload: "ben",
            ..part(digest, 0, size)
        };
        let unread = || -> io::Result<Bytes> { panic!("it is read") };
        let kept = uploads.keep(other, |_| {
            Body::from_stream(futures::stream::once(async move { unread() }))
        });
        assert_eq!(kept.await, Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_drips_is_given_up_and_leaves_nothing() {
        let (_folder, _store, uploads) = world();
        let Packed { digest, bytes } = bundle(3 * SLICE);
        let size = bytes.len() as u64;
        let drip = futures::stream::unfold(0_usize, move |at| {
            let piece = vec![bytes[at]];
            async move {
                tokio::time::sleep(SILENCE / 2).await;
                Some((Ok::<_, io::Error>(Bytes::from(piece)), at + 1))
            }
        });
        let kept = uploads.keep(part(digest, 0, size), |_| Body::from_stream(drip));
        assert_eq!(kept.await.unwrap_err().0, StatusCode::GATEWAY_TIMEOUT);
        let id = uploads.id("n", digest).unwrap();
        assert_eq!(uploads.known(&id, "ana").await.unwrap(), at(0));
    }

    #[tokio::test]
    async fn a_namespace_without_room_keeps_no_part_of_a_bundle() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::local(folder.path()).unwrap().unmeasured();
        let quota = skyward_store::Quota::Bytes(2 * SLICE as u64);
        let store = Arc::new(store.with_quota(quota));
        let uploads = uploads(&store);
        let Packed { digest, bytes } = bundle(3 * SLICE);
        let size = bytes.len() as u64;
        let kept = uploads.keep(part(digest, 0, size), |_| Body::from(bytes));
        assert_eq!(kept.await.unwrap_err().0, StatusCode::INSUFFICIENT_STORAGE);
        let id = uploads.id("n", digest).unwrap();
        assert_eq!(uploads.known(&id, "ana").await.unwrap(), at(0));
    }
}
