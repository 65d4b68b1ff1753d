//! What the store needs of a place, and what it does where a place gives less: creates that several win, that are
//! unknown, that are refused beside another one, and answers that are lost.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use async_trait::async_trait;
use futures::{FutureExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, memory::InMemory, path::Path,
};
use tokio::time::{Instant, advance};

use super::*;
use crate::{Exclusion, creates::Creates, room::Room};

/// What goes wrong with creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Nothing.
    None,
    /// An object that is there is written over.
    Ignored,
    /// The store says that it does not know them.
    Unknown,
    /// A store that does not answer.
    Silent,
    /// As at S3: two of three creates are refused as if they met another one, and nothing is written.
    Conflicts,
    /// The object is written, and the client's second try finds it.
    SecondTry,
    /// The object is written, and the answer is lost.
    Lost,
    /// In the first race the winner's answer is lost, and nothing is deleted after it.
    Hiccup,
    /// Objects are deleted, and the answers are lost.
    LostDeletes,
    /// Lists have no answer.
    Hanging,
    /// Nothing, but calls of several processes come one between the other, in an order that follows from the seed.
    Shuffled(u64),
}

/// Creates of the first race.
const FIRST_RACE: u32 = 8;

/// A place in memory with that fault.
#[derive(Debug)]
struct Place {
    objects: Arc<InMemory>,
    fault: Fault,
    creates: AtomicU32,
    requests: AtomicU32,
    random: AtomicU64,
}

impl Place {
    fn count(&self) {
        self.requests.fetch_add(1, Ordering::SeqCst);
    }

    /// Lets others come between, or not.
    fn turn(&self) -> impl Future<Output = ()> + Send + use<> {
        let yields = match self.fault {
            Fault::Shuffled(_) => {
                let step = |random: u64| {
                    Some(
                        random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1_442_695_040_888_963_407),
                    )
                };
                let random = self.random.fetch_update(Ordering::SeqCst, Ordering::SeqCst, step);
                random.unwrap_or_default() >> 61
            }
            _ => 1,
        };
        async move {
            for _ in 0..yields {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

fn failure() -> object_store::Error {
    object_store::Error::Generic {
        store: "Place",
        source: "no answer".into(),
    }
}

fn exists(path: &Path) -> object_store::Error {
    object_store::Error::AlreadyExists {
        path: path.to_string(),
        source: "409".into(),
    }
}

#[async_trait]
impl ObjectStore for Place {
    async fn put_opts(
        &self,
        path: &Path,
        bytes: PutPayload,
        mut options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.count();
        if options.mode != PutMode::Create {
            return self.objects.put_opts(path, bytes, options).await;
        }
        let count = self.creates.fetch_add(1, Ordering::SeqCst);
        match self.fault {
            Fault::Silent => return Err(failure()),
            Fault::Unknown => {
                return Err(object_store::Error::NotImplemented {
                    operation: "create".into(),
                    implementer: self.to_string(),
                });
            }
            Fault::Conflicts if !count.is_multiple_of(3) => return Err(exists(path)),
            Fault::Ignored => options.mode = PutMode::Overwrite,
            _ => {}
        }
        self.turn().await;
        let written = self.objects.put_opts(path, bytes, options).await;
        match self.fault {
            Fault::SecondTry if written.is_ok() => Err(exists(path)),
            Fault::Lost if written.is_ok() && count > 100 => Err(failure()),
            Fault::Hiccup if written.is_ok() && count < FIRST_RACE => Err(failure()),
            _ => written,
        }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.count();
        self.turn().await;
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.count();
        if self.fault == Fault::Hiccup && self.creates.load(Ordering::SeqCst) <= FIRST_RACE {
            return paths.map(|_| Err(failure())).boxed();
        }
        let (turn, objects) = (self.turn(), self.objects.clone());
        let deleted = async move {
            turn.await;
            objects.delete_stream(paths)
        };
        let deleted = deleted.flatten_stream();
        if self.fault == Fault::LostDeletes {
            return deleted.map(|_| Err(failure())).boxed();
        }
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.count();
        if self.fault == Fault::Hanging {
            return futures::stream::pending().boxed();
        }
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.count();
        self.turn().await;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// A store in a bucket with those objects and that fault, as a process that has just started has it.
fn process(objects: &Arc<InMemory>, fault: Fault) -> (Arc<Place>, Arc<Store>) {
    let place = Arc::new(Place {
        objects: objects.clone(),
        fault,
        creates: AtomicU32::new(0),
        requests: AtomicU32::new(0),
        random: AtomicU64::new(match fault {
            Fault::Shuffled(seed) => seed,
            _ => 0,
        }),
    });
    let store = Store::new(place.clone(), Room::new(None), Creates::of_a_bucket());
    (place, Arc::new(store))
}

fn bucket(fault: Fault) -> Arc<Store> {
    process(&Arc::default(), fault).1
}

async fn put(store: &Arc<Store>, start: u64, bytes: &'static str) -> Result<u64, Error> {
    store.put_log_segment(TASK, RUN_ID, start, bytes.into()).await
}

#[tokio::test(start_paused = true)]
async fn what_a_place_promises_is_found_out_by_a_race_that_leaves_nothing() {
    for (fault, expected) in [
        (Fault::None, Exclusion::One),
        (Fault::SecondTry, Exclusion::One),
        (Fault::Conflicts, Exclusion::One),
        (Fault::Ignored, Exclusion::Several),
        (Fault::Unknown, Exclusion::Unsupported),
    ] {
        let objects = Arc::default();
        let (_, store) = process(&objects, fault);
        assert_eq!(store.known_exclusion(), None);
        assert_eq!(store.exclusion().await.unwrap(), expected, "{fault:?}");
        assert_eq!(store.known_exclusion(), Some(expected), "{fault:?}");
        assert_eq!(objects.list(None).count().await, 0, "{fault:?}");
    }
}

#[tokio::test]
async fn nothing_is_known_of_a_place_that_does_not_answer_and_it_is_asked_again() {
    let (place, store) = process(&Arc::default(), Fault::Silent);
    assert!(matches!(store.exclusion().await, Err(Error::Other(_))));
    assert!(matches!(put(&store, 0, "abc").await, Err(Error::Other(_))));
    assert_eq!(store.known_exclusion(), None);
    assert!(place.creates.load(Ordering::SeqCst) > 8, "each call asks");
}

#[tokio::test]
async fn what_a_race_without_an_answer_left_does_not_spoil_the_next_one() {
    let objects = Arc::default();
    let (_, store) = process(&objects, Fault::Hiccup);
    assert!(matches!(store.exclusion().await, Err(Error::Other(_))));
    assert_eq!(
        objects.list(None).count().await,
        1,
        "the winner's object is there"
    );
    assert_eq!(store.exclusion().await.unwrap(), Exclusion::One);
}

#[tokio::test]
async fn a_run_takes_few_requests_and_a_look_at_its_log_takes_none() {
    let (place, store) = process(&Arc::default(), Fault::None);
    store.exclusion().await.unwrap();
    let mut before = place.requests.load(Ordering::SeqCst);
    let mut since = || {
        let now = place.requests.load(Ordering::SeqCst);
        now - std::mem::replace(&mut before, now)
    };
    store.charge(TASK, "team");
    store.has_room(TASK, RUN_ID, 1, Class::Bulk).await.unwrap();
    for _ in 0..10 {
        assert_eq!(store.log_extent(TASK, RUN_ID).await.unwrap().end, 0);
    }
    assert_eq!(since(), 2, "a list of the Task, and one of the log");
    put(&store, 0, "abc").await.unwrap();
    assert_eq!(since(), 2, "the namespace, and the piece");
    put(&store, 3, "def").await.unwrap();
    for _ in 0..10 {
        assert_eq!(store.log_extent(TASK, RUN_ID).await.unwrap().end, 6);
    }
    assert_eq!(since(), 1, "the piece");
    store.put_result(TASK, RUN_ID, "42".into()).await.unwrap();
    store.put_outcome(TASK, RUN_ID, "{}".into()).await.unwrap();
    assert_eq!(since(), 2, "the value, and the outcome");
    store.delete_task(TASK).await.unwrap();
    assert_eq!(since(), 2, "a list, and all of it at once");
}

#[tokio::test]
async fn the_room_of_deleted_objects_is_free_although_the_answers_were_lost() {
    let objects = Arc::default();
    let (_, store) = process(&objects, Fault::LostDeletes);
    store.charge(TASK, "team");
    for at in 0..5 {
        put(&store, at, "x").await.unwrap();
    }
    store.put_outcome(TASK, RUN_ID, "{}".into()).await.unwrap();
    for _ in 0..5 {
        assert!(matches!(store.drop_logs(TASK).await, Err(Error::Other(_))));
    }
    assert!(!store.drop_logs(TASK).await.unwrap());
    store.count().await.unwrap();
    let (_, next) = process(&objects, Fault::None);
    next.count().await.unwrap();
    assert_eq!(store.usage(), next.usage());
    assert!(matches!(store.delete_task(TASK).await, Err(Error::Other(_))));
    // Each try deletes some of it.
    while store.delete_task(TASK).await.is_err() {}
    assert!(store.usage().is_empty(), "{:?}", store.usage());
}

#[tokio::test(start_paused = true)]
async fn a_place_that_hangs_delays_one_deletion_and_not_those_after_it() {
    let (place, store) = process(&Arc::default(), Fault::Hanging);
    let begun = Instant::now();
    let asked = || place.requests.load(Ordering::SeqCst);
    for round in 1..=2 {
        let before = asked();
        assert!(matches!(store.discard(TASK).await, Err(Error::Other(_))));
        let after = asked();
        assert!(after > before, "round {round}");
        for _ in 0..100 {
            store.discard(TASK).await.unwrap();
        }
        assert_eq!(asked(), after, "round {round}");
        if round == 1 {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
            advance(Duration::from_mins(1)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn logs_and_values_are_whole_in_every_place_that_answers() {
    for fault in [
        Fault::None,
        Fault::Ignored,
        Fault::Unknown,
        Fault::Conflicts,
        Fault::SecondTry,
    ] {
        let store = bucket(fault);
        store.charge(TASK, "team");
        for at in 0..100 {
            assert_eq!(put(&store, at, "x").await.unwrap(), at + 1, "{fault:?}");
        }
        store.put_log_gap(TASK, RUN_ID, gap(100, 120)).await.unwrap();
        put(&store, 120, "y").await.unwrap();
        let whole = [&[b'x'; 100][..], b"y"].concat();
        assert_eq!(sparse(&store, 0).await, (whole, vec![(100, 120)]), "{fault:?}");
        store.put_result(TASK, RUN_ID, "42".into()).await.unwrap();
        store.put_result(TASK, RUN_ID, "42".into()).await.unwrap();
        let stored = store.get_result(TASK, RUN_ID, 0).await.unwrap().unwrap();
        assert_eq!(stored.size, 2, "{fault:?}");
        let before = store.usage();
        store.recount(TASK, RUN_ID);
        store.count().await.unwrap();
        assert_eq!(store.usage(), before, "{fault:?}");
        store.delete_task(TASK).await.unwrap();
        assert_eq!(
            store.task_uids().await.unwrap(),
            Vec::<String>::new(),
            "{fault:?}"
        );
    }
}

#[tokio::test]
async fn a_piece_whose_answer_was_lost_is_stored_once() {
    let objects = Arc::default();
    let (place, store) = process(&objects, Fault::Lost);
    store.charge(TASK, "team");
    put(&store, 0, "abc").await.unwrap();
    place.creates.store(1000, Ordering::SeqCst);
    assert!(matches!(put(&store, 3, "def").await, Err(Error::Other(_))));
    // It was stored: the log goes on behind it, with the next piece alone.
    assert_eq!(put(&store, 3, "def").await.unwrap(), 6);
    assert_eq!(log(&store, 0).await, b"abcdef");
    place.creates.store(0, Ordering::SeqCst);
    assert_eq!(put(&store, 6, "ghi").await.unwrap(), 9);
    assert_eq!(log(&store, 0).await, b"abcdefghi");
    let again = process(&objects, Fault::None).1;
    again.count().await.unwrap();
    assert_eq!(store.usage(), again.usage());
}

#[tokio::test]
async fn a_process_that_led_before_takes_nothing_away_from_the_one_that_leads_now() {
    let objects = Arc::default();
    let (_, old) = process(&objects, Fault::None);
    let (_, new) = process(&objects, Fault::None);
    put(&old, 0, "abc").await.unwrap();
    // The new leader goes on where the log ends.
    for at in 3..6 {
        assert_eq!(put(&new, at, "n").await.unwrap(), at + 1);
    }
    assert_eq!(old.log_end(TASK, RUN_ID).await.unwrap(), 6, "as it is now");
    // The old one remembers a log of three bytes, and adds what is there already.
    assert_eq!(put(&old, 3, "nnn").await.unwrap(), 6);
    assert_eq!(log(&old, 0).await, b"abcnnn");
    // The new one merges what there is; the old one, behind what it remembers, ends the log.
    for at in 6..40 {
        assert_eq!(put(&new, at, "n").await.unwrap(), at + 1);
    }
    old.end_log(TASK, RUN_ID, "cut\n".into()).await.unwrap();
    let whole = [b"abc".as_slice(), &[b'n'; 37]].concat();
    assert_eq!(log(&new, 0).await, whole);
    let next = process(&objects, Fault::None).1;
    assert_eq!(put(&next, 40, "z").await.unwrap(), 41);
    assert_eq!(log(&next, 0).await, [whole.as_slice(), b"z"].concat());
    // What is stored of a run is not changed any more.
    new.put_outcome(TASK, RUN_ID, "new".into()).await.unwrap();
    old.put_outcome(TASK, RUN_ID, "old".into()).await.unwrap();
    assert_eq!(old.get_outcome(TASK, RUN_ID).await.unwrap().unwrap(), "new");
}

/// Writes a log in pieces of that size. Each process has the same bytes, those of the machine.
async fn write(store: &Arc<Store>, text: &[u8], size: usize) {
    let mut at = 0;
    while at < text.len() {
        let piece = Bytes::copy_from_slice(&text[at..text.len().min(at + size)]);
        at = match store.put_log_segment(TASK, RUN_ID, at as u64, piece).await {
            Ok(end) | Err(Error::Gap { end, .. }) => end as usize,
            // Others were there first, each time.
            Err(Error::Contended) => at,
            Err(error) => panic!("{error}"),
        };
    }
}

#[tokio::test]
async fn of_processes_that_write_one_log_at_once_none_takes_a_byte_away_in_any_order_of_their_calls() {
    let text: Vec<u8> = (0..120).collect();
    for seed in 0..300_u64 {
        let objects = Arc::default();
        let processes: Vec<_> = (0..3)
            .map(|number| process(&objects, Fault::Shuffled(seed * 3 + number)).1)
            .collect();
        let sizes = [1, 1 + seed as usize % 4, 3];
        let writes = processes
            .iter()
            .zip(sizes)
            .map(|(store, size)| write(store, &text, size));
        futures::future::join_all(writes).await;
        let next = process(&objects, Fault::None).1;
        assert_eq!(log(&next, 0).await, text, "seed {seed}");
        // What is not needed goes with the next piece, and nothing else.
        assert_eq!(put(&next, 120, "z").await.unwrap(), 121, "seed {seed}");
        assert_eq!(
            log(&next, 0).await,
            [text.as_slice(), b"z"].concat(),
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn a_value_that_another_process_gave_up_is_not_sealed() {
    let objects = Arc::default();
    let (_, old) = process(&objects, Fault::None);
    let (_, new) = process(&objects, Fault::None);
    new.put_result_piece(TASK, RUN_ID, 0, "abc".into(), 6)
        .await
        .unwrap();
    old.drop_result(TASK, RUN_ID).await.unwrap();
    new.put_result_piece(TASK, RUN_ID, 3, "def".into(), 6)
        .await
        .unwrap();
    let sealed = new.seal_result(TASK, RUN_ID, 6).await;
    assert!(matches!(sealed, Err(Error::Gap { end: 0, .. })), "{sealed:?}");
    assert!(new.get_result(TASK, RUN_ID, 0).await.unwrap().is_none());
    for (at, part) in [(0, "abc"), (3, "def")] {
        new.put_result_piece(TASK, RUN_ID, at, part.into(), 6)
            .await
            .unwrap();
    }
    new.seal_result(TASK, RUN_ID, 6).await.unwrap();
    let stored = new.get_result(TASK, RUN_ID, 0).await.unwrap().unwrap();
    let bytes: Vec<Bytes> = stored.bytes.map(Result::unwrap).collect().await;
    assert_eq!(bytes.concat(), b"abcdef");
}

#[tokio::test]
async fn a_bucket_takes_no_more_than_it_is_told_to_and_keeps_a_tenth_for_ends() {
    let objects = Arc::default();
    let place: Arc<dyn ObjectStore> = process(&objects, Fault::None).0;
    let mut room = Room::new(None);
    room.size = Some(20 << 20);
    let store = Store::new(place, room, Creates::exact()).with_quota(Quota::Percent(100));
    let store = Arc::new(store);
    store.charge("loud", "a");
    store.charge("quiet", "b");
    let (stored, why) = fill(&store, "loud").await;
    assert!((17..=18).contains(&stored), "{stored} MiB");
    assert!(matches!(why, Error::Kept), "{why}");
    store.put_outcome("quiet", "run", "{}".into()).await.unwrap();
    store.delete_task("loud").await.unwrap();
    assert_eq!(fill(&store, "quiet").await.0, stored);
}

#[tokio::test]
async fn an_object_that_is_too_large_to_be_ours_is_not_read() {
    let objects: Arc<InMemory> = Arc::default();
    let path = Path::from_iter([TASK, RUN_ID, "outcome.json"]);
    objects.put(&path, vec![b'x'; 5 << 20].into()).await.unwrap();
    let (_, store) = process(&objects, Fault::None);
    let read = store.get_outcome(TASK, RUN_ID).await;
    assert!(matches!(read, Err(Error::Strange(_))), "{read:?}");
}

#[tokio::test]
async fn a_directory_without_hard_links_is_written_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let objects = object_store::local::LocalFileSystem::new_with_prefix(folder.path()).unwrap();
    let creates = Creates::of_a_directory(false);
    let store = Arc::new(Store::new(Arc::new(objects), Room::new(None), creates));
    assert_eq!(store.known_exclusion(), Some(Exclusion::Unsupported));
    for at in 0..20 {
        assert_eq!(put(&store, at, "x").await.unwrap(), at + 1);
    }
    assert_eq!(log(&store, 0).await, [b'x'; 20]);
    store.put_outcome(TASK, RUN_ID, "{}".into()).await.unwrap();
    store.put_outcome(TASK, RUN_ID, "[]".into()).await.unwrap();
    assert_eq!(store.get_outcome(TASK, RUN_ID).await.unwrap().unwrap(), "{}");
}
