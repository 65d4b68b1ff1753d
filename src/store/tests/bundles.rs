//! Uploads and bundles: what is whole is right, what is nobody's goes, and no namespace sees another's.

use std::{sync::atomic::AtomicBool, time::Duration};

use super::*;
use crate::{BundleId, Sealed};

const NAMESPACE: &str = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";
const BUNDLE: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
const BYTES: &[u8] = b"the bytes of a bundle";

fn id() -> BundleId {
    BundleId::new(NAMESPACE, BUNDLE).unwrap()
}

async fn put(store: &Arc<Store>, upload: &str, start: u64, bytes: &'static [u8]) -> Result<u64, Error> {
    store.put_upload("team", &id(), upload, start, bytes.into()).await
}

async fn seal(store: &Arc<Store>, upload: &str) -> Sealed {
    let check = |bytes: futures::stream::BoxStream<'static, Result<Bytes, Error>>| async move {
        let found: Vec<Bytes> = bytes.try_collect().await?;
        Ok(if found.concat() == BYTES {
            Sealed::Whole
        } else if BYTES.starts_with(&found.concat()) {
            Sealed::Unfinished
        } else {
            Sealed::Refused("they are others".to_owned())
        })
    };
    store.seal_bundle(&id(), upload, check).await.unwrap()
}

async fn whole(store: &Arc<Store>) {
    put(store, "ana", 0, BYTES).await.unwrap();
    assert_eq!(seal(store, "ana").await, Sealed::Whole);
}

async fn read(store: &Arc<Store>, range: std::ops::Range<u64>) -> Option<Bytes> {
    let whole = store.bundle(&id()).await.unwrap()?;
    store.read_bundle(&id(), &whole, range).await.unwrap()
}

#[tokio::test]
async fn an_upload_goes_on_at_the_byte_that_the_store_names_and_is_a_bundle_once_it_is_right() {
    let (_folder, store) = store();
    assert_eq!(store.upload_end(&id(), "ana").await.unwrap(), 0);
    assert_eq!(put(&store, "ana", 0, &BYTES[..9]).await.unwrap(), 9);
    // A part behind the end is not taken, and one that came before is not written again.
    assert_eq!(put(&store, "ana", 12, &BYTES[12..]).await.unwrap(), 9);
    assert_eq!(put(&store, "ana", 0, &BYTES[..9]).await.unwrap(), 9);
    assert_eq!(put(&store, "ana", 4, &BYTES[4..15]).await.unwrap(), 15);
    assert_eq!(seal(&store, "ana").await, Sealed::Unfinished);
    assert_eq!(put(&store, "ana", 15, &BYTES[15..]).await.unwrap(), 21);
    assert_eq!(store.bundle(&id()).await.unwrap(), None);
    assert_eq!(seal(&store, "ana").await, Sealed::Whole);
    let whole = store.bundle(&id()).await.unwrap().unwrap();
    assert_eq!(whole.bytes, 21);
    assert_eq!(read(&store, 0..21).await.unwrap(), BYTES);
    assert_eq!(read(&store, 7..16).await.unwrap(), BYTES[7..16]);
    assert_eq!(read(&store, 7..22).await, None, "there is no more");
}

#[tokio::test]
async fn wrong_bytes_of_one_user_spoil_nobody_s_upload_and_do_not_stay() {
    let (_folder, store) = store();
    put(&store, "eve", 0, b"wrong").await.unwrap();
    put(&store, "ana", 0, &BYTES[..5]).await.unwrap();
    assert_eq!(
        seal(&store, "eve").await,
        Sealed::Refused("they are others".into())
    );
    assert_eq!(store.upload_end(&id(), "eve").await.unwrap(), 0);
    put(&store, "ana", 5, &BYTES[5..]).await.unwrap();
    put(&store, "ben", 0, &BYTES[..3]).await.unwrap();
    assert_eq!(seal(&store, "ana").await, Sealed::Whole);
    assert_eq!(
        store.upload_end(&id(), "ben").await.unwrap(),
        0,
        "it is there once"
    );
    assert_eq!(seal(&store, "ben").await, Sealed::Whole, "and nobody needs more");
    assert_eq!(read(&store, 0..21).await.unwrap(), BYTES);
}

#[tokio::test]
async fn a_digest_of_one_namespace_opens_nothing_in_another_and_no_name_leads_elsewhere() {
    let (_folder, store) = store();
    whole(&store).await;
    let other = BundleId::new("0b5c6f5e-0000-4000-8000-00000000000a", BUNDLE).unwrap();
    assert_eq!(store.bundle(&other).await.unwrap(), None);
    for (namespace, bundle) in [("..", BUNDLE), (NAMESPACE, "../x"), ("", "x"), ("a/b", "x")] {
        assert!(BundleId::new(namespace, bundle).is_err(), "{namespace} {bundle}");
    }
    assert!(put(&store, "../ana", 0, BYTES).await.is_err());
    // They are no Tasks: nothing that looks for Tasks may delete them.
    assert_eq!(store.task_uids().await.unwrap(), Vec::<String>::new());
    assert_eq!(store.tasks_of("team"), Vec::<String>::new());
    assert!(store.delete_task("_bundles").await.is_err());
    assert_eq!(store.bundle_namespaces().await.unwrap(), [NAMESPACE]);
}

#[tokio::test]
async fn bundles_count_to_the_quota_of_their_namespace_also_after_a_restart() {
    let (folder, store) = store();
    whole(&store).await;
    let used = store.usage()["team"];
    assert_eq!(store.bundle_usage(), [("team".to_owned(), used)].into());
    // The namespace's folder, that of the bundle, its part, and the note that it is whole.
    assert_eq!(used, BESIDE + 2 * BLOCK);
    let again = Arc::new(Store::local(folder.path().join("results")).unwrap().unmeasured());
    again.count().await.unwrap();
    assert_eq!(again.usage()["team"], used);
    again.mark_bundle(&id()).await.unwrap();
    assert!(again.delete_bundle(&id()).await.unwrap());
    assert!(again.usage()["team"] < used);
    again.delete_bundles_of(NAMESPACE).await.unwrap();
    assert!(again.usage().is_empty(), "{:?}", again.usage());

    let small = tempfile::tempdir().unwrap();
    let small = Store::local(small.path()).unwrap().unmeasured();
    let small = Arc::new(small.with_quota(Quota::Bytes(BESIDE)));
    let full = put(&small, "ana", 0, BYTES).await.unwrap_err();
    assert!(matches!(full, Error::QuotaExceeded { .. }), "{full}");
}

#[tokio::test]
async fn few_uploads_of_a_namespace_are_unfinished_at_a_time() {
    let (_folder, store) = store();
    let begin = async |bundle: &str, upload: &str| {
        let id = BundleId::new(NAMESPACE, bundle).unwrap();
        store.put_upload("team", &id, upload, 0, "x".into()).await
    };
    whole(&store).await;
    for number in 0..8 {
        assert_eq!(begin(&format!("b-{number}"), "ana").await.unwrap(), 1);
    }
    let more = begin("b-8", "ana").await.unwrap_err();
    assert!(matches!(more, Error::TooManyUploads), "{more}");
    // Those that began go on, and make room when they have ended.
    let first = BundleId::new(NAMESPACE, "b-0").unwrap();
    let on = store.put_upload("team", &first, "ana", 1, "y".into()).await;
    assert_eq!(on.unwrap(), 2);
    let right = |_: futures::stream::BoxStream<'static, Result<Bytes, Error>>| async { Ok(Sealed::Whole) };
    store.seal_bundle(&first, "ana", right).await.unwrap();
    assert_eq!(begin("b-8", "ana").await.unwrap(), 1);
}

#[tokio::test]
async fn what_nobody_went_on_with_is_dropped_and_what_is_whole_stays() {
    let (_folder, store) = store();
    whole(&store).await;
    let other = BundleId::new(NAMESPACE, "other").unwrap();
    store
        .put_upload("team", &other, "ana", 0, "x".into())
        .await
        .unwrap();
    let day = Duration::from_hours(24);
    assert_eq!(store.drop_uploads(NAMESPACE, day).await.unwrap(), 0);
    assert_eq!(store.drop_uploads(NAMESPACE, Duration::ZERO).await.unwrap(), 1);
    assert_eq!(store.upload_end(&other, "ana").await.unwrap(), 0);
    assert_eq!(read(&store, 0..21).await.unwrap(), BYTES);
}

#[tokio::test]
async fn an_upload_that_is_given_up_leaves_no_other_one_shorter() {
    let (_folder, store) = store();
    put(&store, "git", 0, &BYTES[..9]).await.unwrap();
    put(&store, "ana", 0, &BYTES[..5]).await.unwrap();
    store.drop_upload(&id(), "git").await.unwrap();
    assert_eq!(store.upload_end(&id(), "git").await.unwrap(), 0);
    assert_eq!(put(&store, "ana", 5, &BYTES[5..]).await.unwrap(), 21);
    assert_eq!(seal(&store, "ana").await, Sealed::Whole);
    store.drop_upload(&id(), "ana").await.unwrap();
    assert_eq!(read(&store, 0..21).await.unwrap(), BYTES, "it is the bundle");
    assert!(store.drop_upload(&id(), "../ana").await.is_err());
}

#[tokio::test]
async fn a_bundle_that_is_marked_is_not_found_until_it_is_kept_or_uploaded_again() {
    let (_folder, store) = store();
    whole(&store).await;
    let stored = store.bundles(NAMESPACE).await.unwrap()[0].bytes;
    assert_eq!(stored, (BYTES.len() + "21 ana".len()) as u64);
    let marked = async || store.bundles(NAMESPACE).await.unwrap()[0].leaving;
    assert!(!marked().await);
    assert!(!store.delete_bundle(&id()).await.unwrap(), "it is not marked");
    store.mark_bundle(&id()).await.unwrap();
    assert!(marked().await && read(&store, 0..21).await.is_none());
    store.keep_bundle(&id()).await.unwrap();
    assert!(!marked().await && read(&store, 0..21).await.is_some());
    store.mark_bundle(&id()).await.unwrap();
    store.renew_bundle(&id()).await.unwrap();
    assert!(!marked().await);
    // Another user uploads it anew while it is marked.
    store.mark_bundle(&id()).await.unwrap();
    put(&store, "ben", 0, BYTES).await.unwrap();
    assert_eq!(seal(&store, "ben").await, Sealed::Whole);
    assert_eq!(read(&store, 0..21).await.unwrap(), BYTES);
    store.mark_bundle(&id()).await.unwrap();
    assert!(store.delete_bundle(&id()).await.unwrap());
    assert_eq!(store.bundles(NAMESPACE).await.unwrap(), []);
    // It can be uploaded again as if it had never been there.
    whole(&store).await;
    assert_eq!(read(&store, 0..21).await.unwrap(), BYTES);
}

#[tokio::test]
async fn a_bundle_that_is_being_looked_through_does_not_hold_up_the_logs_of_runs() {
    let (_folder, store) = store();
    put(&store, "ana", 0, BYTES).await.unwrap();
    let (begun, looking) = tokio::sync::oneshot::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let done = Arc::new(AtomicBool::new(false));
    let sealing = {
        let (store, done) = (store.clone(), done.clone());
        tokio::spawn(async move {
            let check = move |_: futures::stream::BoxStream<'static, Result<Bytes, Error>>| async move {
                let _ = begun.send(());
                let _ = ended.await;
                done.store(true, std::sync::atomic::Ordering::SeqCst);
                Ok(Sealed::Whole)
            };
            store.seal_bundle(&id(), "ana", check).await
        })
    };
    looking.await.unwrap();
    // As many runs as there are locks.
    for run in 0..300 {
        let run = format!("{TASK}-{run}-0");
        store.put_log_segment(TASK, &run, 0, "x".into()).await.unwrap();
    }
    assert!(!done.load(std::sync::atomic::Ordering::SeqCst));
    end.send(()).unwrap();
    assert_eq!(sealing.await.unwrap().unwrap(), Sealed::Whole);
}
