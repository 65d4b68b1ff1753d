//! A store that dies at each of its writes, before or after the effect, and leaders that do not know of each other.

use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures::{StreamExt, stream::BoxStream};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as Answer, memory::InMemory,
};
use proptest::prelude::*;

use super::*;

const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000001";
const A: Writer = Writer([1; 16]);
const B: Writer = Writer([2; 16]);

/// When a change of the store fails.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Before,
    /// It happens, and its answer is lost.
    After,
}

/// Objects in memory. From one change on, all calls fail, as for a process that is gone.
#[derive(Debug)]
struct Mortal {
    objects: Arc<InMemory>,
    changes: AtomicUsize,
    dies: Option<(usize, Fault)>,
    /// Only that one change fails.
    once: bool,
}

impl std::fmt::Display for Mortal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mortal")
    }
}

fn lost() -> object_store::Error {
    object_store::Error::Generic {
        store: "test",
        source: "no answer".into(),
    }
}

impl Mortal {
    /// Whether a change happens, and whether it has an answer.
    fn change(&self) -> (bool, bool) {
        let number = self.changes.fetch_add(1, Ordering::SeqCst);
        match self.dies {
            Some((at, fault)) if number == at => (matches!(fault, Fault::After), false),
            Some((at, _)) if number > at && !self.once => (false, false),
            _ => (true, true),
        }
    }

    fn look(&self) -> Answer<()> {
        let changes = self.changes.load(Ordering::SeqCst);
        match self.dies {
            Some((at, _)) if changes > at && !self.once => Err(lost()),
            _ => Ok(()),
        }
    }
}

#[async_trait]
impl ObjectStore for Mortal {
    async fn put_opts(&self, path: &Path, bytes: PutPayload, options: PutOptions) -> Answer<PutResult> {
        let (happens, answers) = self.change();
        if !happens {
            return Err(lost());
        }
        let done = self.objects.put_opts(path, bytes, options).await;
        if answers { done } else { Err(lost()) }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Answer<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Answer<GetResult> {
        self.look()?;
        self.objects.get_opts(path, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Answer<Path>>) -> BoxStream<'static, Answer<Path>> {
        let (happens, answers) = self.change();
        let deleted = if happens {
            self.objects.delete_stream(paths)
        } else {
            futures::stream::once(async { Err(lost()) }).boxed()
        };
        if happens && !answers {
            return deleted.map(|_| Err(lost())).boxed();
        }
        deleted
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Answer<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Answer<ListResult> {
        self.look()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Answer<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

fn store_over(objects: &Arc<InMemory>, dies: Option<(usize, Fault)>, once: bool) -> Arc<Store> {
    let store = Store::over(Arc::new(Mortal {
        objects: objects.clone(),
        changes: AtomicUsize::new(0),
        dies,
        once,
    }));
    store.charge(TASK, "team");
    Arc::new(store)
}

fn healthy(objects: &Arc<InMemory>) -> Arc<Store> {
    store_over(objects, None, false)
}

fn ended(index: u32, attempt: u32, body: &str) -> Record {
    let ended = Ended {
        index,
        attempt,
        cause: 0,
        is_final: true,
    };
    Record::Ended(ended, Bytes::copy_from_slice(body.as_bytes()))
}

fn note(text: impl Into<String>) -> Record {
    Record::Note(text.into())
}

/// The notes of a log, and the epochs of its leaders as `#n`.
fn told(records: &[Heads]) -> Vec<String> {
    let heads = records.iter().flat_map(|part| part.heads.iter());
    heads
        .filter_map(|head| match head {
            Head::Leader(epoch) => Some(format!("#{epoch}")),
            Head::Note(text) => Some(text.clone()),
            Head::Ended(..) => None,
        })
        .collect()
}

/// The final outcomes of these items, in their order. Of two with the same attempt the first one counts, and an
/// outcome of a later attempt counts more.
fn outcomes(records: &[Heads], items: &std::ops::Range<u32>) -> Vec<Outcome> {
    let mut found: BTreeMap<u32, Outcome> = BTreeMap::new();
    for part in records {
        for head in part.heads.iter() {
            let Head::Ended(ended, body) = head else { continue };
            let is_newer = found
                .get(&ended.index)
                .is_none_or(|known| known.ended.attempt < ended.attempt);
            if ended.is_final && items.contains(&ended.index) && is_newer {
                let outcome = Outcome {
                    ended: *ended,
                    place: part.place,
                    body: *body,
                };
                found.insert(ended.index, outcome);
            }
        }
    }
    found.into_values().collect()
}

async fn body(store: &Store, outcome: &Outcome) -> Bytes {
    store
        .map_bodies(TASK, std::slice::from_ref(outcome))
        .await
        .unwrap()
        .remove(0)
}

/// Writes notes `0`, `1`, … and merges in between, until the store dies. Answers how many notes have an answer.
async fn write_until_death(store: &Arc<Store>, notes: usize) -> usize {
    let Ok((mut log, _)) = store.lead_map(TASK, A, 1).await else {
        return 0;
    };
    for number in 0..notes {
        if log.append(&[note(number.to_string())]).await.is_err() {
            return number;
        }
        while let Ok(true) = log.merge().await {}
    }
    notes
}

#[tokio::test]
async fn a_leader_that_dies_at_any_change_leaves_what_it_was_told_is_stored() {
    const NOTES: usize = 20;
    for fault in [Fault::Before, Fault::After] {
        for at in 0..80 {
            let objects = Arc::new(InMemory::new());
            let answered = write_until_death(&store_over(&objects, Some((at, fault)), false), NOTES).await;
            let store = healthy(&objects);
            let (mut log, records) = store.lead_map(TASK, B, 2).await.unwrap();
            let mut said = told(&records);
            assert_eq!(said.pop().unwrap(), "#2", "{fault:?} at change {at}");
            if !said.is_empty() {
                assert_eq!(said.remove(0), "#1");
            }
            let expected: Vec<String> = (0..said.len()).map(|number| number.to_string()).collect();
            assert_eq!(said, expected, "{fault:?} at change {at}");
            // The write whose answer was lost may be there or not.
            assert!(
                (answered..=answered + 1).contains(&said.len()),
                "{fault:?} at change {at}"
            );
            // And the log goes on, with what the merge left.
            log.append(&[note("on")]).await.unwrap();
            while log.merge().await.unwrap() {}
            let again = told(&store.map_records(TASK, 0, &[]).await.unwrap());
            assert_eq!(again.last().unwrap(), "on");
            assert_eq!(again.len(), told(&records).len() + 1);
        }
    }
}

#[tokio::test]
async fn a_write_without_an_answer_is_made_again_with_the_same_bytes_and_counts_once() {
    for fault in [Fault::Before, Fault::After] {
        // The first change names the Task's namespace, the second one marks the leader.
        for at in 2..5 {
            let objects = Arc::new(InMemory::new());
            let store = store_over(&objects, Some((at, fault)), true);
            let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
            for number in 0..3 {
                let written = log.append(&[note(format!("note {number}"))]).await;
                if written.is_err() {
                    log.settle().await.unwrap();
                }
            }
            let said = told(&store.map_records(TASK, 0, &[]).await.unwrap());
            assert_eq!(
                said,
                ["#1", "note 0", "note 1", "note 2"],
                "{fault:?} at change {at}"
            );
        }
    }
}

#[tokio::test]
async fn of_two_leaders_the_older_one_stops_however_long_it_slept() {
    let objects = Arc::new(InMemory::new());
    let store = healthy(&objects);
    for sleeps_after in 0..20_u64 {
        store.delete_task(TASK).await.unwrap();
        store.charge(TASK, "team");
        let (mut older, _) = store.lead_map(TASK, A, 1).await.unwrap();
        for number in 0..sleeps_after {
            older.append(&[note(format!("old {number}"))]).await.unwrap();
            while older.merge().await.unwrap() {}
        }
        let (mut newer, records) = store.lead_map(TASK, B, 2).await.unwrap();
        assert_eq!(told(&records).len() as u64, sleeps_after + 2);
        for number in 0..200 {
            newer.append(&[note(format!("new {number}"))]).await.unwrap();
            while newer.merge().await.unwrap() {}
        }
        assert!(matches!(
            older.append(&[note("late")]).await,
            Err(MapError::Superseded)
        ));
        assert!(
            matches!(older.settle().await, Err(MapError::Superseded)),
            "for good"
        );
        // What the older one still merges changes nothing.
        while let Ok(true) = older.merge().await {}
        newer.append(&[note("last")]).await.unwrap();
        let said = told(&store.map_records(TASK, 0, &[]).await.unwrap());
        assert_eq!(said.len() as u64, sleeps_after + 2 + 200 + 1);
        assert!(!said.iter().any(|text| text == "late"));
        assert_eq!(said.last().unwrap(), "last");
    }
}

#[tokio::test]
async fn a_log_of_many_writes_has_few_objects_and_its_bodies_are_where_it_says() {
    let objects = Arc::new(InMemory::new());
    let store = healthy(&objects);
    let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
    for number in 0..600_u32 {
        // In no order.
        let index = number * 7 % 600;
        log.append(&[ended(index, 1, &format!("value {index}"))])
            .await
            .unwrap();
        log.merge().await.unwrap();
    }
    while log.merge().await.unwrap() {}
    let records = store.map_records(TASK, 0, &[]).await.unwrap();
    assert!(records.len() < 40, "{} objects", records.len());
    let found = outcomes(&records, &(0..600));
    assert_eq!(found.len(), 600);
    for (index, outcome) in (0..).zip(&found) {
        assert_eq!(outcome.ended.index, index);
        let body = body(&store, outcome).await;
        assert_eq!(body, format!("value {index}"));
    }
    assert_eq!(
        store.runs(TASK).await.unwrap(),
        Vec::<String>::new(),
        "a map is no run"
    );
}

#[tokio::test]
async fn a_reader_that_was_overtaken_by_a_merge_finds_the_body_in_the_merged_object() {
    let objects = Arc::new(InMemory::new());
    let store = healthy(&objects);
    let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
    for index in 0..15 {
        log.append(&[ended(index, 1, &format!("value {index}"))])
            .await
            .unwrap();
    }
    let before = outcomes(&store.map_records(TASK, 0, &[]).await.unwrap(), &(0..15));
    assert!(log.merge().await.unwrap());
    for outcome in before {
        let body = body(&store, &outcome).await;
        assert_eq!(body, format!("value {}", outcome.ended.index));
    }
}

#[tokio::test]
async fn an_outcome_counts_once_for_each_attempt_and_the_last_attempt_counts() {
    let objects = Arc::new(InMemory::new());
    let store = healthy(&objects);
    let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
    let not_final = Ended {
        index: 1,
        attempt: 1,
        cause: 1,
        is_final: false,
    };
    let records = [
        ended(0, 1, "first"),
        ended(0, 1, "the same once more"),
        Record::Ended(not_final, Bytes::new()),
        ended(2, 2, "later"),
        ended(2, 1, "earlier"),
    ];
    log.append(&records).await.unwrap();
    let found = outcomes(&store.map_records(TASK, 0, &[]).await.unwrap(), &(0..3));
    let mut bodies = Vec::new();
    for outcome in &found {
        bodies.push(body(&store, outcome).await);
    }
    assert_eq!(bodies, ["first", "later"]);
}

#[tokio::test]
async fn a_reader_of_the_end_of_a_log_reads_no_more_of_it_and_nothing_that_it_knows() {
    let objects = Arc::new(InMemory::new());
    let store = healthy(&objects);
    let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
    for number in 0..30 {
        log.append(&[note(format!("note {number}"))]).await.unwrap();
        while log.merge().await.unwrap() {}
    }
    let all = store.map_records(TASK, 0, &[]).await.unwrap();
    // One write is the mark of the leader.
    let end = store.map_records(TASK, 29, &[]).await.unwrap();
    assert_eq!(told(&end), ["note 28", "note 29"]);
    assert_eq!(end, all[all.len() - 2..]);
    assert_eq!(store.map_records(TASK, 31, &[]).await.unwrap(), []);
    let within = store.map_records(TASK, 12, &[]).await.unwrap();
    assert_eq!(
        told(&within)[0],
        "note 7",
        "the object that holds it, from its beginning"
    );
    // What is known is not read again.
    let known = &all[..all.len() - 1];
    for part in known {
        let path = log_path(TASK, part.place.0).unwrap();
        objects.put(&path, "damaged".into()).await.unwrap();
    }
    assert_eq!(store.map_records(TASK, 0, known).await.unwrap(), all);
    assert!(store.map_records(TASK, 0, &[]).await.is_err());
}

#[tokio::test]
async fn a_log_with_a_hole_is_not_read_as_if_it_had_none() {
    let objects = Arc::new(InMemory::new());
    let store = healthy(&objects);
    let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
    for number in 0..4 {
        log.append(&[note(format!("note {number}"))]).await.unwrap();
    }
    let path = log_path(TASK, Span::single(2)).unwrap();
    objects.delete(&path).await.unwrap();
    assert!(matches!(
        store.map_records(TASK, 0, &[]).await,
        Err(MapError::Missing(2))
    ));
    objects.put(&path, "half".into()).await.unwrap();
    assert!(matches!(
        store.map_records(TASK, 0, &[]).await,
        Err(MapError::Damaged(_))
    ));
    assert!(store.lead_map(TASK, B, 2).await.is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn leaders_in_any_order_make_one_log_of_what_each_was_told_is_stored(
        steps in proptest::collection::vec((0_usize..4, 0_u8..10), 1..120),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let store = healthy(&Arc::new(InMemory::new()));
            let mut logs: Vec<Option<MapLog>> = (0..4).map(|_| None).collect();
            let (mut epoch, mut stored) = (0, Vec::new());
            for (who, what) in steps {
                if what == 0 || logs[who].is_none() {
                    epoch += 1;
                    let (log, records) = store.lead_map(TASK, Writer([epoch; 16]), u64::from(epoch)).await.unwrap();
                    stored.push(format!("#{epoch}"));
                    assert_eq!(told(&records), stored);
                    logs[who] = Some(log);
                    continue;
                }
                let Some(log) = &mut logs[who] else { continue };
                if what < 8 {
                    let text = format!("{who} {}", stored.len());
                    match log.append(&[note(text.clone())]).await {
                        Ok(()) => stored.push(text),
                        Err(MapError::Superseded) => {}
                        Err(error) => panic!("{error}"),
                    }
                } else {
                    // One that leads no more may find its objects merged.
                    while let Ok(true) = log.merge().await {}
                }
            }
            assert_eq!(told(&store.map_records(TASK, 0, &[]).await.unwrap()), stored);
        });
    }
}

#[tokio::test]
async fn what_a_full_store_does_not_take_is_written_once_there_is_room_and_nothing_comes_before_it() {
    let store = Store::over(Arc::new(InMemory::new())).with_quota(crate::Quota::Bytes(96 * 1024));
    let store = Arc::new(store);
    for task in [TASK, "other"] {
        store.charge(task, "team");
    }
    let large = "x".repeat(64 * 1024);
    store
        .put_log_segment("other", "run", 0, large.clone().into())
        .await
        .unwrap();
    // A leader can begin although nothing else fits.
    let (mut log, _) = store.lead_map(TASK, A, 1).await.unwrap();
    let refused = log.append(&[ended(0, 1, &large)]).await;
    assert!(
        matches!(refused, Err(MapError::Store(Error::QuotaExceeded { .. }))),
        "{refused:?}"
    );
    assert!(log.settle().await.is_err());
    assert!(
        log.append(&[note("later")]).await.is_err(),
        "a note takes little, and still comes after it"
    );
    assert_eq!(told(&store.map_records(TASK, 0, &[]).await.unwrap()), ["#1"]);
    store.delete_task("other").await.unwrap();
    log.append(&[note("later")]).await.unwrap();
    let records = store.map_records(TASK, 0, &[]).await.unwrap();
    assert_eq!(told(&records), ["#1", "later"]);
    let found = outcomes(&records, &(0..1));
    assert_eq!(body(&store, &found[0]).await, large);
    assert_eq!((found[0].place.0, log.len()), (Span::single(1), 3));
}

#[tokio::test]
async fn a_leader_that_dies_between_pieces_of_the_items_leaves_none_or_all_of_what_it_read() {
    let lines = |byte: u8, pieces: u64| Bytes::from(vec![byte; (pieces * items::PIECE) as usize + 1]);
    let (first, second) = (lines(b'1', 2), lines(b'2', 1));
    for fault in [Fault::Before, Fault::After] {
        // Its changes: the name of the namespace, two pieces, and the last one.
        for at in 0..5 {
            // The next leader reads the same items, or they have changed meanwhile.
            for next in [&first, &second] {
                let objects = Arc::new(InMemory::new());
                let dying = store_over(&objects, Some((at, fault)), false);
                let answered = dying.put_map_items(TASK, first.clone()).await.is_ok();
                let store = healthy(&objects);
                let is_there = store.map_items(TASK).await.unwrap().is_some();
                assert!(is_there || !answered, "{at} {fault:?}");
                store.put_map_items(TASK, next.clone()).await.unwrap();
                let items = store.map_items(TASK).await.unwrap().unwrap();
                let expected = if is_there { &first } else { next };
                let (mut reading, mut read) = (items.reading(), Vec::new());
                while let Some(bytes) = reading.more().await.unwrap() {
                    read.extend_from_slice(&bytes);
                }
                assert!(read == expected[..], "{at} {fault:?}");
            }
        }
    }
}

#[tokio::test]
async fn pieces_of_items_that_are_there_are_not_sent_again() {
    let lines = Bytes::from(vec![b'1'; 2 * items::PIECE as usize + 1]);
    let objects = Arc::new(InMemory::new());
    // It dies at the last piece.
    let dying = store_over(&objects, Some((3, Fault::Before)), false);
    assert!(dying.put_map_items(TASK, lines.clone()).await.is_err());
    // Of this one the third change would fail.
    let next = store_over(&objects, Some((2, Fault::Before)), false);
    next.put_map_items(TASK, lines).await.unwrap();
}
