mod bucket;
mod bundles;
mod places;
mod writers;

use std::sync::Arc;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use tempfile::TempDir;

use super::{
    Class, Error, Extent, Gap, Held, Missing, Piece, Quota, Space, Store, Volume,
    ledger::{BLOCK, RUN, TASK as EACH_TASK},
};

const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000001";
const RUN_ID: &str = "0b5c6f5e-0000-4000-8000-000000000001-1-0";
/// Charged for a Task with one run beside its objects.
const BESIDE: u64 = EACH_TASK.bytes + RUN.bytes;

fn store() -> (TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::local(folder.path().join("results")).unwrap().unmeasured();
    (folder, Arc::new(store))
}

async fn log(store: &Arc<Store>, offset: u64) -> Vec<u8> {
    store.read_log(TASK, RUN_ID, offset).try_concat_bytes().await
}

trait Concat {
    async fn try_concat_bytes(self) -> Vec<u8>;
}

impl<S: futures::Stream<Item = Result<Piece, Error>> + Unpin> Concat for S {
    async fn try_concat_bytes(mut self) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(piece) = self.try_next().await.unwrap() {
            match piece {
                Piece::Bytes(bytes) => all.extend_from_slice(&bytes),
                Piece::Gap(gap) => panic!("{gap:?} in a log without gaps"),
            }
        }
        all
    }
}

/// A log with its gaps: the stored bytes, and the offsets of the missing ones.
async fn sparse(store: &Arc<Store>, offset: u64) -> (Vec<u8>, Vec<(u64, u64)>) {
    let (mut bytes, mut gaps) = (Vec::new(), Vec::new());
    let mut at = offset;
    let mut pieces = store.read_log(TASK, RUN_ID, offset);
    while let Some(piece) = pieces.try_next().await.unwrap() {
        match piece {
            Piece::Bytes(piece) => {
                at += piece.len() as u64;
                bytes.extend_from_slice(&piece);
            }
            Piece::Gap(Gap { start, end, .. }) => {
                assert_eq!(start, at);
                at = end;
                gaps.push((start, end));
            }
        }
    }
    (bytes, gaps)
}

fn gap(start: u64, end: u64) -> Gap {
    let why = Missing::OverLimit;
    Gap { start, end, why }
}

#[tokio::test]
async fn a_log_goes_on_behind_a_gap_with_the_offsets_of_the_whole() {
    let (_folder, store) = store();
    store
        .put_log_segment(TASK, RUN_ID, 0, "0123456789".into())
        .await
        .unwrap();
    assert_eq!(store.put_log_gap(TASK, RUN_ID, gap(10, 90)).await.unwrap(), 90);
    assert_eq!(store.log_end(TASK, RUN_ID).await.unwrap(), 90);
    for index in 0..30 {
        let start = 90 + index;
        store
            .put_log_segment(TASK, RUN_ID, start, "x".into())
            .await
            .unwrap();
    }
    let extent = Extent {
        end: 120,
        bytes: 40,
        gaps: 1,
    };
    assert_eq!(store.log_extent(TASK, RUN_ID).await.unwrap(), extent);
    let tail = vec![b'x'; 30];
    let whole = [&b"0123456789"[..], &tail].concat();
    assert_eq!(sparse(&store, 0).await, (whole, vec![(10, 90)]));
    assert_eq!(sparse(&store, 50).await, (tail.clone(), vec![(50, 90)]));
    assert_eq!(sparse(&store, 100).await, (tail[..20].to_vec(), vec![]));
}

#[tokio::test]
async fn a_gap_takes_nothing_away_that_is_stored() {
    let (_folder, store) = store();
    store
        .put_log_segment(TASK, RUN_ID, 0, "0123456789".into())
        .await
        .unwrap();
    // The copy got further than the part that the machine kept.
    assert_eq!(store.put_log_gap(TASK, RUN_ID, gap(4, 8)).await.unwrap(), 10);
    assert_eq!(store.put_log_gap(TASK, RUN_ID, gap(4, 20)).await.unwrap(), 20);
    // Noted again, as after a crash before the answer; then the gap grows.
    assert_eq!(store.put_log_gap(TASK, RUN_ID, gap(10, 20)).await.unwrap(), 20);
    assert_eq!(store.put_log_gap(TASK, RUN_ID, gap(20, 30)).await.unwrap(), 30);
    assert_eq!(sparse(&store, 0).await, (b"0123456789".to_vec(), vec![(10, 30)]));
    let beyond = store.put_log_gap(TASK, RUN_ID, gap(31, 40)).await.unwrap_err();
    assert!(matches!(beyond, Error::Gap { start: 31, end: 30 }));
    let huge = store
        .put_log_gap(TASK, RUN_ID, gap(30, 1 << 63))
        .await
        .unwrap_err();
    assert!(matches!(huge, Error::Gap { .. }));
}

#[tokio::test]
async fn a_log_in_many_pieces_is_read_back_whole_and_from_any_offset() {
    let (_folder, store) = store();
    let mut whole = Vec::new();
    for index in 0..300_u32 {
        let piece = format!("1700000000000 o F line {index}\n").into_bytes();
        let end = store
            .put_log_segment(TASK, RUN_ID, whole.len() as u64, piece.clone().into())
            .await
            .unwrap();
        whole.extend_from_slice(&piece);
        assert_eq!(end, whole.len() as u64);
    }
    assert_eq!(store.log_end(TASK, RUN_ID).await.unwrap(), whole.len() as u64);
    assert_eq!(log(&store, 0).await, whole);
    assert_eq!(log(&store, 1234).await, whole[1234..]);
    assert!(log(&store, whole.len() as u64 + 7).await.is_empty());
    let objects =
        std::fs::read_dir(store.root.as_ref().unwrap().join(TASK).join(RUN_ID).join("log")).unwrap();
    assert!(objects.count() <= 12);
}

#[tokio::test]
async fn a_piece_sent_twice_counts_once_and_a_gap_is_refused() {
    let (_folder, store) = store();
    assert_eq!(
        store
            .put_log_segment(TASK, RUN_ID, 0, "abc".into())
            .await
            .unwrap(),
        3
    );
    assert_eq!(
        store
            .put_log_segment(TASK, RUN_ID, 0, "abc".into())
            .await
            .unwrap(),
        3
    );
    assert_eq!(
        store
            .put_log_segment(TASK, RUN_ID, 1, "bcde".into())
            .await
            .unwrap(),
        5
    );
    let gap = store
        .put_log_segment(TASK, RUN_ID, 9, "x".into())
        .await
        .unwrap_err();
    assert!(matches!(gap, Error::Gap { start: 9, end: 5 }));
    assert_eq!(log(&store, 0).await, b"abcde");
}

#[tokio::test]
async fn a_merge_interrupted_before_it_cleaned_up_loses_nothing() {
    let (folder, first) = store();
    for at in [0, 2] {
        first
            .put_log_segment(TASK, RUN_ID, at, "aa".into())
            .await
            .unwrap();
    }
    let log_folder = folder.path().join("results").join(TASK).join(RUN_ID).join("log");
    std::fs::write(log_folder.join(format!("{:016}-{:016}", 0, 4)), "aaaa").unwrap();
    std::fs::write(log_folder.join(format!("{:016}-{:016}#1", 4, 5)), "torn").unwrap();
    let next = Arc::new(Store::local(folder.path().join("results")).unwrap().unmeasured());
    assert_eq!(log(&next, 0).await, b"aaaa");
    assert_eq!(
        next.put_log_segment(TASK, RUN_ID, 4, "b".into()).await.unwrap(),
        5
    );
    assert_eq!(log(&next, 0).await, b"aaaab");
    let mut left: Vec<_> = std::fs::read_dir(&log_folder).unwrap().collect();
    left.retain(|entry| {
        !entry
            .as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .contains('#')
    });
    assert_eq!(left.len(), 2, "what is merged, and the new piece: {left:?}");
}

#[tokio::test]
async fn a_log_of_a_version_that_wrote_over_objects_goes_on() {
    let (folder, store) = store();
    let log_folder = folder.path().join("results").join(TASK).join(RUN_ID).join("log");
    std::fs::create_dir_all(&log_folder).unwrap();
    // Merged under the name of the first piece; the second was not deleted any more.
    std::fs::write(log_folder.join(format!("{:016}", 0)), "aaaa").unwrap();
    std::fs::write(log_folder.join(format!("{:016}", 2)), "aa").unwrap();
    assert_eq!(log(&store, 1).await, b"aaa");
    for at in 4..40 {
        let end = store.put_log_segment(TASK, RUN_ID, at, "b".into()).await.unwrap();
        assert_eq!(end, at + 1);
    }
    assert_eq!(
        log(&store, 0).await,
        [&b"aaaa"[..], &[b'b'; 36]].concat(),
        "merged with what is new"
    );
}

const MIB: usize = 1 << 20;

#[tokio::test]
async fn a_large_value_goes_on_where_it_was_and_is_there_only_when_all_of_it_is() {
    let (folder, store) = store();
    let value: Vec<u8> = (0..12 * MIB).map(|at| (at / 1000) as u8).collect();
    let size = value.len() as u64;
    let piece = |start: usize, end: usize| Bytes::copy_from_slice(&value[start..end]);
    for at in 0..7 {
        let end = (at + 1) * MIB;
        let stored = store.put_result_piece(TASK, RUN_ID, (at * MIB) as u64, piece(at * MIB, end), size);
        assert_eq!(stored.await.unwrap(), end as u64);
    }
    assert!(store.get_result(TASK, RUN_ID, 0).await.unwrap().is_none());
    drop(store);
    let store = Arc::new(Store::local(folder.path().join("results")).unwrap().unmeasured());
    assert_eq!(store.result_end(TASK, RUN_ID).await.unwrap(), 7 << 20);
    for at in 7..12 {
        store
            .put_result_piece(
                TASK,
                RUN_ID,
                (at * MIB) as u64,
                piece(at * MIB, (at + 1) * MIB),
                size,
            )
            .await
            .unwrap();
    }
    assert!(
        store.get_result(TASK, RUN_ID, 0).await.unwrap().is_none(),
        "not sealed"
    );
    store.seal_result(TASK, RUN_ID, size).await.unwrap();
    for offset in [0, 5, 3 * MIB + 17, 12 * MIB - 5, 12 * MIB, usize::MAX] {
        let result = store
            .get_result(TASK, RUN_ID, offset as u64)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(result.size, size);
        let pieces: Vec<Bytes> = result.bytes.map(Result::unwrap).collect().await;
        assert!(pieces.iter().all(|piece| piece.len() as u64 <= super::READ_PIECE));
        assert_eq!(pieces.concat(), value[offset.min(value.len())..], "from {offset}");
    }
}

#[tokio::test]
async fn a_value_that_is_given_up_takes_no_room() {
    let (_folder, store) = store();
    store.charge(TASK, "team");
    store
        .put_result_piece(TASK, RUN_ID, 0, vec![0; MIB].into(), 3 << 20)
        .await
        .unwrap();
    assert!(store.usage()["team"] > 1 << 20);
    store.drop_result(TASK, RUN_ID).await.unwrap();
    store.drop_result(TASK, RUN_ID).await.unwrap();
    assert_eq!(store.usage()["team"], EACH_TASK.bytes);
    assert_eq!(store.result_end(TASK, RUN_ID).await.unwrap(), 0);
}

#[tokio::test]
async fn a_small_value_is_read_from_any_offset() {
    let (_folder, store) = store();
    store.put_result(TASK, RUN_ID, "0123456789".into()).await.unwrap();
    for (offset, left) in [(0, 10), (5, 5), (10, 0), (u64::MAX, 0)] {
        let result = store.get_result(TASK, RUN_ID, offset).await.unwrap().unwrap();
        let rest: Vec<Bytes> = result.bytes.map(Result::unwrap).collect().await;
        assert_eq!((result.size, rest.concat().len()), (10, left), "from {offset}");
    }
}

/// A volume of 20 MiB that holds the files of a folder.
struct Small(std::path::PathBuf);

fn bytes_in(folder: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => bytes_in(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

impl Volume for Small {
    fn space(&self) -> std::io::Result<Space> {
        let total = 20 << 20;
        let free = u64::saturating_sub(total, bytes_in(&self.0));
        Ok(Space {
            total,
            free,
            files: 0,
            files_free: 0,
        })
    }
}

fn small(quota: Quota) -> (TempDir, Arc<Store>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let store = Store::local(&path)
        .unwrap()
        .with_quota(quota)
        .with_volume(Arc::new(Small(path)));
    (folder, Arc::new(store))
}

/// Writes the log of a Task until a piece is refused; returns the stored MiB and the error.
async fn fill(store: &Arc<Store>, task: &str) -> (u64, Error) {
    for at in 0.. {
        let piece = Bytes::from(vec![b'x'; MIB]);
        if let Err(error) = store.put_log_segment(task, "run", at << 20, piece).await {
            return (at, error);
        }
    }
    unreachable!("it never is full")
}

#[tokio::test]
async fn a_namespace_that_fills_its_quota_takes_nothing_from_another_one() {
    let (_folder, store) = small(Quota::Percent(20));
    store.charge("loud", "a");
    store.charge("quiet", "b");
    let (stored, why) = fill(&store, "loud").await;
    assert_eq!(stored, 3, "of 4 MiB, which the Task itself takes a little of");
    let words = why.to_string();
    assert!(
        matches!(why, Error::QuotaExceeded { ref namespace, .. } if namespace == "a"),
        "{words}"
    );
    for part in [
        "\"a\"",
        "3 MiB",
        "4 MiB",
        "delete Tasks",
        "ttlSecondsAfterFinished",
    ] {
        assert!(words.contains(part), "{part}: {words}");
    }
    store.charge("loud-2", "a");
    let more = store
        .put_log_segment("loud-2", "run", 0, vec![0; MIB].into())
        .await;
    assert!(
        matches!(more, Err(Error::QuotaExceeded { .. })),
        "the quota is of the namespace"
    );
    let large = store.has_room("loud", "run", 1 << 20, Class::Bulk).await;
    assert!(matches!(large, Err(Error::QuotaExceeded { .. })), "{large:?}");
    store.put_outcome("loud", "run", "{}".into()).await.unwrap();
    assert_eq!(fill(&store, "quiet").await.0, 3);
    // Room appears as soon as a Task goes.
    store.delete_task("loud").await.unwrap();
    assert!(!store.usage().contains_key("a"));
    assert_eq!(fill(&store, "loud-2").await.0, 3);
}

#[tokio::test]
async fn runs_can_end_and_return_small_values_although_others_have_filled_the_volume() {
    let (_folder, store) = small(Quota::Percent(100));
    store.charge("loud", "a");
    store.charge("quiet", "b");
    let (stored, why) = fill(&store, "loud").await;
    assert!((17..=18).contains(&stored), "a tenth is kept: {stored} MiB");
    assert!(matches!(why, Error::Kept), "{why}");
    let log = store
        .put_log_segment("quiet", "run", 0, vec![0; MIB].into())
        .await;
    assert!(matches!(log, Err(Error::Kept)), "{log:?}");
    store
        .put_result("quiet", "run", vec![b'1'; 60_000].into())
        .await
        .unwrap();
    store.put_outcome("quiet", "run", "{}".into()).await.unwrap();
    store.end_log("quiet", "run", "1 e F cut\n".into()).await.unwrap();
}

#[tokio::test]
async fn runs_that_store_next_to_nothing_and_notes_of_gaps_are_charged_for_their_blocks() {
    let (_folder, store) = small(Quota::Bytes(1 << 20));
    store.charge("loud", "a");
    let mut runs = 0;
    let why = loop {
        let run = format!("run-{runs}");
        match store.put_log_segment("loud", &run, 0, "x".into()).await {
            Ok(_) => runs += 1,
            Err(why) => break why,
        }
    };
    assert!(matches!(why, Error::QuotaExceeded { .. }), "{why}");
    assert!((32..=64).contains(&runs), "{runs} runs of 16 KiB in 1 MiB");

    store.charge("holes", "b");
    let (mut gaps, mut at) = (0, 0);
    let why = loop {
        match store.put_log_gap("holes", "run", gap(at, at + 1)).await {
            Ok(_) => (gaps, at) = (gaps + 1, at + 1),
            Err(why) => break why,
        }
    };
    assert!(matches!(why, Error::QuotaExceeded { .. }), "{why}");
    assert!((200..=256).contains(&gaps), "{gaps} notes of 4 KiB in 1 MiB");
}

/// A volume that has bytes, and so many files left of a thousand.
struct Files(u64);

impl Volume for Files {
    fn space(&self) -> std::io::Result<Space> {
        Ok(Space {
            total: 1 << 40,
            free: 1 << 40,
            files: 1000,
            files_free: self.0,
        })
    }
}

#[tokio::test]
async fn a_volume_that_can_hold_few_more_files_keeps_them_for_ends_and_small_values() {
    for (files_free, has_room) in [(200, true), (101, false)] {
        let (_folder, store) = store();
        let store = Arc::into_inner(store).unwrap();
        let store = Arc::new(store.with_volume(Arc::new(Files(files_free))));
        store.charge(TASK, "team");
        let log = store.put_log_segment(TASK, RUN_ID, 0, "x".into()).await;
        assert_eq!(log.is_ok(), has_room, "{log:?}");
        assert!(has_room || matches!(log, Err(Error::Kept)), "{log:?}");
        store.put_result(TASK, RUN_ID, "42".into()).await.unwrap();
        store.put_outcome(TASK, RUN_ID, "{}".into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_namespace_may_hold_its_part_of_the_files_too_and_is_told_so() {
    let (_folder, store) = store();
    let store = Arc::into_inner(store).unwrap();
    let store = store.with_quota(Quota::Percent(5));
    let store = Arc::new(store.with_volume(Arc::new(Files(900))));
    store.charge(TASK, "team");
    for run in 0..12 {
        let id = format!("run-{run}");
        store.put_log_segment(TASK, &id, 0, "x".into()).await.unwrap();
    }
    let more = store.put_log_segment(TASK, "more", 0, "x".into()).await;
    let why = more.unwrap_err();
    assert!(
        matches!(
            why,
            Error::TooManyFiles {
                used: 50,
                quota: 50,
                ..
            }
        ),
        "{why}"
    );
    assert!(why.to_string().contains("\"team\" holds 50 files"), "{why}");
}

#[tokio::test]
async fn what_a_merge_and_a_drop_free_is_freed_what_is_there_counts_once_and_a_recount_comes_to_the_same() {
    let (folder, store) = store();
    store.charge(TASK, "team");
    let mut end = 0;
    for at in 0..200_u64 {
        let piece = Bytes::from(vec![b'x'; 300 + (at as usize * 37) % 5000]);
        end = store.put_log_segment(TASK, RUN_ID, end, piece).await.unwrap();
    }
    store.put_log_gap(TASK, RUN_ID, gap(end, end + 9)).await.unwrap();
    store
        .put_result(TASK, RUN_ID, vec![b'1'; 9000].into())
        .await
        .unwrap();
    // Again, as after a lost answer: what is stored stays.
    store.put_result(TASK, RUN_ID, "1".into()).await.unwrap();
    store
        .put_result_piece(TASK, "other", 0, vec![0; 70_000].into(), 100_000)
        .await
        .unwrap();
    store.drop_result(TASK, "other").await.unwrap();
    let again = Store::local(folder.path().join("results")).unwrap().unmeasured();
    again.count().await.unwrap();
    assert_eq!(store.usage(), again.usage());
    // The log in few objects, with at most a block too much for each.
    assert!(store.usage()["team"] <= end + BESIDE + 24 * BLOCK);
}

#[tokio::test]
async fn what_each_namespace_holds_is_known_after_a_restart() {
    let (folder, store) = store();
    for (task, namespace) in [("one", "a"), ("two", "a"), ("three", "b")] {
        store.charge(task, namespace);
        store
            .put_log_segment(task, "run", 0, vec![0; 5000].into())
            .await
            .unwrap();
        store.put_result(task, "run", "42".into()).await.unwrap();
        // Written again, as after a lost answer: it counts once.
        store.put_result(task, "run", "43".into()).await.unwrap();
    }
    let before = store.usage();
    assert_eq!(
        before["a"],
        2 * (BESIDE + Held::object(5000).bytes + Held::object(2).bytes)
    );
    let again = Store::local(folder.path().join("results")).unwrap().unmeasured();
    assert!(again.usage().is_empty());
    again.count().await.unwrap();
    again.count().await.unwrap();
    assert_eq!(again.usage(), before);
    again.delete_task("three").await.unwrap();
    assert_eq!(again.usage().keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test]
async fn a_folder_of_the_file_system_itself_is_nobodys_task() {
    let (folder, store) = store();
    std::fs::create_dir_all(folder.path().join("results/lost+found")).unwrap();
    store.put_result(TASK, RUN_ID, "42".into()).await.unwrap();
    assert_eq!(store.task_uids().await.unwrap(), [TASK]);
    store.count().await.unwrap();
}

#[tokio::test]
async fn what_an_older_version_stored_is_read_and_charged_once_its_namespace_is_known() {
    let (folder, store) = store();
    let run = folder.path().join("results").join(TASK).join(RUN_ID);
    std::fs::create_dir_all(run.join("log")).unwrap();
    std::fs::write(run.join("log").join(format!("{:016}", 0)), "abc").unwrap();
    std::fs::write(run.join("result.json"), "[1,2]").unwrap();
    store.count().await.unwrap();
    assert!(store.is_nobodys(TASK) && store.usage().is_empty());
    store.adopt(TASK, "team").await.unwrap();
    assert!(!store.is_nobodys(TASK));
    assert_eq!(store.usage()["team"], BESIDE + 2 * BLOCK);
    assert_eq!(log(&store, 0).await, b"abc");
    assert_eq!(store.get_result(TASK, RUN_ID, 0).await.unwrap().unwrap().size, 5);
    assert_eq!(store.runs(TASK).await.unwrap(), [RUN_ID]);
    let again = Store::local(folder.path().join("results")).unwrap().unmeasured();
    again.count().await.unwrap();
    assert_eq!(again.usage(), store.usage());
}

#[tokio::test]
async fn since_when_a_run_waits_for_room_is_known_to_the_next_process_and_lies_not_in_the_future() {
    let (folder, store) = store();
    let at = |seconds| std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    assert_eq!(store.waits_since(TASK, RUN_ID, at(1000)).await.unwrap(), at(1000));
    let again = Store::local(folder.path().join("results")).unwrap().unmeasured();
    assert_eq!(again.waits_since(TASK, RUN_ID, at(1600)).await.unwrap(), at(1000));
    assert_eq!(
        again.waits_since(TASK, RUN_ID, at(900)).await.unwrap(),
        at(900),
        "the clock was set back"
    );
}

#[tokio::test]
async fn a_log_never_grows_beyond_what_the_protocol_allows() {
    let (_folder, store) = store();
    let folder = store.root.as_ref().unwrap().join(TASK).join(RUN_ID).join("log");
    std::fs::create_dir_all(&folder).unwrap();
    let file = std::fs::File::create(folder.join(format!("{:016}", 0))).unwrap();
    // A file with a hole: it takes no room here.
    file.set_len(super::MOST - 10).unwrap();
    let at = super::MOST - 10;
    assert_eq!(
        store
            .put_log_segment(TASK, RUN_ID, at, vec![b'x'; 10].into())
            .await
            .unwrap(),
        super::MOST
    );
    let more = store.put_log_segment(TASK, RUN_ID, super::MOST, "x".into()).await;
    assert!(matches!(more, Err(Error::TooLarge)), "{more:?}");
    store.end_log(TASK, RUN_ID, "1 e F cut\n".into()).await.unwrap();
}

#[tokio::test]
async fn deleting_a_task_leaves_nothing_of_it() {
    let (_folder, store) = store();
    store
        .put_log_segment(TASK, RUN_ID, 0, "abc".into())
        .await
        .unwrap();
    store.put_result(TASK, RUN_ID, "42".into()).await.unwrap();
    assert_eq!(store.runs(TASK).await.unwrap(), [RUN_ID]);
    assert_eq!(store.task_uids().await.unwrap(), [TASK]);
    assert!(store.age(TASK).await.unwrap().unwrap().as_secs() < 3600);
    store.delete_task(TASK).await.unwrap();
    store.delete_task(TASK).await.unwrap();
    assert!(store.task_uids().await.unwrap().is_empty());
    assert!(store.runs(TASK).await.unwrap().is_empty());
    assert!(store.age(TASK).await.unwrap().is_none());
    assert_eq!(store.log_end(TASK, RUN_ID).await.unwrap(), 0);
}

#[tokio::test]
async fn an_id_that_is_a_path_is_refused() {
    let (_folder, store) = store();
    for id in ["..", "", "a/b", "A", "%2e"] {
        assert!(
            matches!(store.log_end(id, RUN_ID).await, Err(Error::BadId(_))),
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
