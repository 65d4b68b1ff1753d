use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use tempfile::TempDir;

use super::{Error, Store};

const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000001";
const RUN: &str = "0b5c6f5e-0000-4000-8000-000000000001-1-0";

fn store() -> (TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path().join("results")).unwrap();
    (folder, Arc::new(store))
}

async fn log(store: &Arc<Store>, offset: u64) -> Vec<u8> {
    store.read_log(TASK, RUN, offset).try_concat_bytes().await
}

trait Concat {
    async fn try_concat_bytes(self) -> Vec<u8>;
}

impl<S: futures::Stream<Item = Result<Bytes, Error>> + Unpin> Concat for S {
    async fn try_concat_bytes(mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.try_next().await.unwrap() {
            all.extend_from_slice(&piece);
        }
        all
    }
}

#[tokio::test]
async fn a_log_in_many_pieces_is_read_back_whole_and_from_any_offset() {
    let (_folder, store) = store();
    let mut whole = Vec::new();
    for index in 0..300_u32 {
        let piece = format!("1700000000000 o F line {index}\n").into_bytes();
        let end = store
            .put_log_segment(TASK, RUN, whole.len() as u64, piece.clone().into())
            .await
            .unwrap();
        whole.extend_from_slice(&piece);
        assert_eq!(end, whole.len() as u64);
    }
    assert_eq!(store.log_end(TASK, RUN).await.unwrap(), whole.len() as u64);
    assert_eq!(log(&store, 0).await, whole);
    assert_eq!(log(&store, 1234).await, whole[1234..]);
    assert!(log(&store, whole.len() as u64 + 7).await.is_empty());
    let objects = std::fs::read_dir(store.root.as_ref().unwrap().join(TASK).join(RUN).join("log")).unwrap();
    assert!(objects.count() <= 12);
}

#[tokio::test]
async fn a_piece_sent_twice_counts_once_and_a_gap_is_refused() {
    let (_folder, store) = store();
    assert_eq!(
        store.put_log_segment(TASK, RUN, 0, "abc".into()).await.unwrap(),
        3
    );
    assert_eq!(
        store.put_log_segment(TASK, RUN, 0, "abc".into()).await.unwrap(),
        3
    );
    assert_eq!(
        store.put_log_segment(TASK, RUN, 1, "bcde".into()).await.unwrap(),
        5
    );
    let gap = store.put_log_segment(TASK, RUN, 9, "x".into()).await.unwrap_err();
    assert!(matches!(gap, Error::Gap { start: 9, end: 5 }));
    assert_eq!(log(&store, 0).await, b"abcde");
}

#[tokio::test]
async fn a_merge_interrupted_before_it_cleaned_up_loses_nothing() {
    let (_folder, store) = store();
    store.put_log_segment(TASK, RUN, 0, "aaaa".into()).await.unwrap();
    let log_folder = store.root.as_ref().unwrap().join(TASK).join(RUN).join("log");
    std::fs::write(log_folder.join(format!("{:016}", 2)), "aa").unwrap();
    std::fs::write(log_folder.join(format!("{:016}#1", 4)), "torn").unwrap();
    assert_eq!(log(&store, 0).await, b"aaaa");
    assert_eq!(store.put_log_segment(TASK, RUN, 4, "b".into()).await.unwrap(), 5);
    assert_eq!(log(&store, 0).await, b"aaaab");
    assert!(!log_folder.join(format!("{:016}", 2)).exists());
}

#[tokio::test]
async fn a_result_appears_whole_or_not_at_all() {
    let (_folder, store) = store();
    let broken = stream::iter([Ok(Bytes::from_static(b"[1,")), Err("connection lost")]);
    let error = store.put_result_stream(TASK, RUN, 100, broken).await.unwrap_err();
    assert!(matches!(error, Error::Source(_)));
    assert!(store.get_result(TASK, RUN, 0).await.unwrap().is_none());

    let large = stream::iter([Ok::<_, String>(Bytes::from_static(b"0123456789"))]);
    let error = store.put_result_stream(TASK, RUN, 9, large).await.unwrap_err();
    assert!(matches!(error, Error::TooLarge { limit: 9 }));
    assert!(store.get_result(TASK, RUN, 0).await.unwrap().is_none());

    let piece = Bytes::from(vec![b'7'; 1 << 20]);
    let pieces = stream::iter((0..12).map(|_| Ok::<_, String>(piece.clone())));
    assert_eq!(
        store.put_result_stream(TASK, RUN, 1 << 30, pieces).await.unwrap(),
        12 << 20
    );
    let result = store.get_result(TASK, RUN, 0).await.unwrap().unwrap();
    assert_eq!(result.size, 12 << 20);
    let mut bytes = result.bytes;
    let mut read = 0;
    while let Some(piece) = bytes.next().await {
        let piece = piece.unwrap();
        assert!(piece.len() as u64 <= super::READ_PIECE);
        read += piece.len();
    }
    assert_eq!(read, 12 << 20);
    for (offset, left) in [(12 << 20, 0), ((12 << 20) - 5, 5), (u64::MAX, 0)] {
        let result = store.get_result(TASK, RUN, offset).await.unwrap().unwrap();
        let rest: Vec<Bytes> = result.bytes.map(Result::unwrap).collect().await;
        assert_eq!(rest.concat().len(), left, "from {offset}");
    }
}

#[tokio::test]
async fn deleting_a_task_leaves_nothing_of_it() {
    let (_folder, store) = store();
    store.put_log_segment(TASK, RUN, 0, "abc".into()).await.unwrap();
    store.put_result(TASK, RUN, "42".into()).await.unwrap();
    assert_eq!(store.runs(TASK).await.unwrap(), [RUN]);
    assert_eq!(store.task_uids().await.unwrap(), [TASK]);
    assert!(store.age(TASK).await.unwrap().unwrap().as_secs() < 3600);
    store.delete_task(TASK).await.unwrap();
    store.delete_task(TASK).await.unwrap();
    assert!(store.task_uids().await.unwrap().is_empty());
    assert!(store.runs(TASK).await.unwrap().is_empty());
    assert!(store.age(TASK).await.unwrap().is_none());
    assert_eq!(store.log_end(TASK, RUN).await.unwrap(), 0);
}

#[tokio::test]
async fn an_id_that_is_a_path_is_refused() {
    let (_folder, store) = store();
    for id in ["..", "", "a/b", "A", "%2e"] {
        assert!(
            matches!(store.log_end(id, RUN).await, Err(Error::BadId(_))),
            "{id}"
        );
        assert!(
            matches!(store.get_result(TASK, id, 0).await, Err(Error::BadId(_))),
            "{id}"
        );
        assert!(
            matches!(store.delete_task(id).await, Err(Error::BadId(_))),
            "{id}"
        );
    }
}

#[test]
fn a_full_disk_is_named() {
    let io = std::io::Error::from(std::io::ErrorKind::StorageFull);
    assert!(matches!(Error::from(io), Error::Full(_)));
}
