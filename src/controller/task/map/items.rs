//! The items of a map: read once where `forEach` says, and given out by their indices. Items that are written out or named
//! elsewhere are kept in the store when the map begins, and so is a matrix with some nulls ([`matrix`](super::matrix)); each
//! later leader reads them there, so that an index means the same item to all of them. (What is written out could change: see
//! the rules of `ForEach`.)

use std::{fmt, ops::Range};

use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde::{
    Deserializer as _,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use skyward_api::{
    Task,
    condition::{cut, reason},
    for_each::{ALL_BYTES, ConfigMapKey, ForEach, ITEM_BYTES, ItemsFrom, MOST_ITEMS},
    task::{BundleSource, Source},
};
use skyward_bundle::{LIMITS, Outline, Reader, START, head_bytes};
use skyward_planner::{
    base::key::Key,
    map::{
        lines::{BadLines, Lines},
        matrix::{BadMatrix, Combinations},
    },
    task::{message::MapOrder, model::RunId, references::Unresolved, status::Why},
};
use skyward_remote::agent::BundleBytes;
use skyward_store::{
    Error as StoreError,
    maps::{MapError, MapItems},
};
use tokio::sync::Semaphore;

use crate::{
    base::written::restore, context::Context, deadline::words, references::Place, task::collect::of_store,
};

/// Read at once.
const PIECE: u64 = 1024 * 1024;
/// Lists of items that are read where they are written, at once and over all Pools: each may take its
/// [`ALL_BYTES`] twice meanwhile.
static READING: Semaphore = Semaphore::const_new(2);
/// Letters of what went wrong that are repeated.
const SAID: usize = 500;

/// The items of one map.
pub(crate) enum Items {
    /// Their indices.
    Numbers(u32),
    Matrix(Box<Combinations>),
    /// Lines that the store keeps: where each of them is.
    Kept {
        items: MapItems,
        places: Vec<Range<u32>>,
    },
}

/// Why there are no items.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum NoItems {
    /// There never will be.
    Never(Why),
    /// They cannot be read now.
    NotNow(Why),
}

impl Items {
    /// How many there are.
    pub(crate) fn len(&self) -> u32 {
        match self {
            Self::Numbers(count) => *count,
            Self::Matrix(combinations) => combinations.len(),
            Self::Kept { places, .. } => u32::try_from(places.len()).unwrap_or(u32::MAX),
        }
    }

    /// How many of some neighbours, which are not none, may be in memory at once.
    pub(crate) fn at_once(&self, range: &Range<u32>) -> u32 {
        let most = match self {
            Self::Numbers(_) => return range.end - range.start,
            Self::Matrix(combinations) => PIECE as usize / combinations.largest().max(1),
            Self::Kept { places, .. } => {
                let places = places.get(range.start as usize..).unwrap_or_default();
                let begin = places.first().map_or(0, |first| first.start);
                places.partition_point(|place| u64::from(place.end - begin) <= PIECE)
            }
        };
        u32::try_from(most)
            .unwrap_or(u32::MAX)
            .clamp(1, (range.end - range.start).max(1))
    }

    /// The JSON of some neighbours; none where items are their indices.
    pub(crate) async fn get(&self, range: Range<u32>) -> Result<Vec<Bytes>, String> {
        let missing = || "there is no such item".to_owned();
        match self {
            Self::Numbers(_) => Ok(Vec::new()),
            Self::Matrix(combinations) => range
                .map(|index| {
                    let item = combinations.item(index).ok_or_else(missing)?;
                    Ok(Bytes::from(item.to_string()))
                })
                .collect(),
            Self::Kept { items, places } => {
                let places = places
                    .get(range.start as usize..range.end as usize)
                    .ok_or_else(missing)?;
                let (Some(first), Some(last)) = (places.first(), places.last()) else {
                    return Ok(Vec::new());
                };
                let (start, end) = (u64::from(first.start), u64::from(last.end));
                let read = items.read(start..end).await;
                let bytes = read.map_err(|error| error.to_string())?;
                let within = |place: &Range<u32>| {
                    let (from, to) = (place.start - first.start, place.end - first.start);
                    let is_there = to as usize <= bytes.len();
                    is_there.then(|| bytes.slice(from as usize..to as usize))
                };
                places
                    .iter()
                    .map(|place| within(place).ok_or_else(missing))
                    .collect()
            }
        }
    }
}

/// Reads the items of a Task.
pub(crate) async fn read(
    context: &Context,
    pool: &Key,
    order: &MapOrder,
    task: &Task,
) -> Result<Items, NoItems> {
    let Some(for_each) = task.spec.for_each.as_deref() else {
        return Err(never(reason::INVALID_ITEMS, "the Task has no forEach any more"));
    };
    let keeper = Keeper {
        context,
        pool,
        order,
        task,
    };
    match for_each {
        ForEach {
            items: Some(items), ..
        } => keeper.kept(Named::Here(&as_written(task, items))).await,
        ForEach {
            count: Some(count), ..
        } => Ok(Items::Numbers(*count)),
        ForEach {
            matrix: Some(matrix), ..
        } => {
            let (store, uid) = (&context.store, &*order.uid);
            store.charge(uid, &pool.namespace);
            let matrix = super::matrix::as_written(store, uid, task, matrix).await;
            let matrix = matrix.map_err(|error| keeper.of_map(&error))?;
            // Hundreds of exclusions in a million combinations take a part of a second.
            let looked_through = tokio::task::spawn_blocking(move || Combinations::of(&matrix)).await;
            of_matrix(looked_through.map_err(|error| not_now(reason::ITEMS_NOT_READ, error.to_string()))?)
        }
        ForEach {
            items_from: Some(from),
            ..
        } => keeper.kept(Named::Elsewhere(from)).await,
        ForEach { .. } => Err(never(
            reason::INVALID_ITEMS,
            "forEach needs items, count, matrix or itemsFrom; create another Task",
        )),
    }
}

/// Looks for the ConfigMap that has the items of a Task, before the Task gets a place. Items that are stored need it no
/// more. The error is for the user.
pub(crate) async fn look_for_config_map(
    context: &Context,
    pool: &Key,
    uid: &str,
    key: &ConfigMapKey,
) -> Result<(), Unresolved> {
    if matches!(context.store.map_items(uid).await, Ok(Some(_))) {
        return Ok(());
    }
    match config_map(context, &pool.namespace, key).await {
        Ok(_) => Ok(()),
        Err(NoItems::Never(why) | NoItems::NotNow(why)) => Err(why.message.into()),
    }
}

async fn config_map(context: &Context, namespace: &str, key: &ConfigMapKey) -> Result<Bytes, NoItems> {
    let ConfigMapKey { name, key } = key;
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(|error| {
        let why = words(&error);
        not_now(
            reason::ITEMS_NOT_READ,
            format!("ConfigMap \"{name}\" cannot be read: {why}"),
        )
    })?;
    let found = found.and_then(|map| {
        let text = map.data.and_then(|mut data| data.remove(key)).map(Bytes::from);
        text.or_else(|| Some(map.binary_data?.remove(key)?.0.into()))
    });
    found.ok_or_else(|| {
        not_now(
            reason::REFERENCE_NOT_FOUND,
            format!(
                "ConfigMap \"{name}\" with the key \"{key}\", which has the items, is not there; create it"
            ),
        )
    })
}

/// The items of a matrix. One of which nothing is left has a mistake in it: without work the Task would succeed.
fn of_matrix(found: Result<Combinations, BadMatrix>) -> Result<Items, NoItems> {
    match found {
        Ok(combinations) if combinations.is_empty() => Err(never(
            reason::INVALID_ITEMS,
            "matrix.exclude leaves no combination: create another Task with fewer entries in it, or with items in \
             matrix.include",
        )),
        Ok(combinations) => Ok(Items::Matrix(Box::new(combinations))),
        Err(bad @ (BadMatrix::TooMany(_) | BadMatrix::TooLarge(_))) => {
            Err(never(reason::TOO_MANY_ITEMS, bad.to_string()))
        }
        Err(bad @ BadMatrix::NoSuchAxis(_)) => Err(never(reason::INVALID_ITEMS, bad.to_string())),
    }
}

/// Items that are written out, with the nulls in them that `kubectl apply` has dropped.
fn as_written(task: &Task, items: &[serde_json::Value]) -> Vec<serde_json::Value> {
    let mut items = items.to_vec();
    restore(task, "/spec/forEach/items", &mut items);
    items
}

/// Items that are written out, as lines.
fn written(items: &[serde_json::Value]) -> Result<Bytes, NoItems> {
    let mut lines = BytesMut::new();
    for (index, item) in items.iter().enumerate() {
        let json = item.to_string();
        if json.len() > ITEM_BYTES {
            return Err(never(
                reason::TOO_MANY_ITEMS,
                format!(
                    "item {index} is larger than {} KiB: write what is large into files, and name these in the items",
                    ITEM_BYTES / 1024
                ),
            ));
        }
        lines.extend_from_slice(json.as_bytes());
        lines.extend_from_slice(b"\n");
    }
    Ok(lines.freeze())
}

fn never(reason: &'static str, message: impl Into<String>) -> NoItems {
    NoItems::Never(Why::new(reason, cut(&message.into(), SAID)))
}

fn not_now(reason: &'static str, message: impl Into<String>) -> NoItems {
    let message = message.into();
    NoItems::NotNow(Why::new(
        reason,
        format!("{}. That is tried again by itself", cut(&message, SAID)),
    ))
}

/// What it means for the items that the source is not there. What a machine fetched from git is kept once, and users have no
/// bundle of it that they could upload: a Task that waits for it would keep its places for ever.
fn without_source(source: &Source, path: &str, error: Unresolved) -> NoItems {
    if source.git.is_none() || error.reason != reason::BUNDLE_NOT_FOUND {
        return not_now(error.reason, error.message);
    }
    never(
        reason::INVALID_ITEMS,
        format!(
            "file \"{path}\", which has the items, cannot be read: the result store did not keep the files that a machine \
             fetched from git, as without room for them. Make room in the result store or in the quota of the namespace and \
             create the Task again, or take the items from a ConfigMap"
        ),
    )
}

fn bad_lines(bad: &BadLines) -> NoItems {
    let reason = match bad {
        BadLines::TooLong(_) | BadLines::TooMany | BadLines::TooLarge => reason::TOO_MANY_ITEMS,
        BadLines::NotJson(..) => reason::INVALID_ITEMS,
    };
    never(reason, bad.to_string())
}

/// Where items are written.
#[derive(Clone, Copy)]
enum Named<'a> {
    /// In the Task.
    Here(&'a [serde_json::Value]),
    Elsewhere(&'a ItemsFrom),
}

/// Keeps items that could change where they are written.
struct Keeper<'a> {
    context: &'a Context,
    pool: &'a Key,
    order: &'a MapOrder,
    task: &'a Task,
}

impl Keeper<'_> {
    /// The lines that the store keeps, which are read and kept first where it has none.
    async fn kept(&self, named: Named<'_>) -> Result<Items, NoItems> {
        let store = &self.context.store;
        let uid = &*self.order.uid;
        store.charge(uid, &self.pool.namespace);
        let items = if let Some(items) = self.stored().await? {
            items
        } else {
            let _turn = READING.acquire().await;
            let lines = match named {
                Named::Here(items) => written(items)?,
                Named::Elsewhere(from) => self.lines(from).await?,
            };
            // What is no list of items must not be kept. To look through the largest one takes a second.
            let looked_at = lines.clone();
            let checked = tokio::task::spawn_blocking(move || {
                let mut seen = Lines::default();
                seen.push(&looked_at, &mut |_| {})?;
                seen.finish(&mut |_| {})
            });
            let checked = checked.await;
            let checked = checked.map_err(|error| not_now(reason::ITEMS_NOT_READ, error.to_string()))?;
            checked.map_err(|bad| bad_lines(&bad))?;
            let kept = store.put_map_items(uid, lines).await;
            kept.map_err(|error| self.of_store(&error))?;
            let stored = self.stored().await?;
            stored.ok_or_else(|| not_now(reason::ITEMS_NOT_READ, "the items are not in the result store"))?
        };
        let mut seen = Lines::default();
        let mut places: Vec<Range<u32>> = Vec::new();
        // All of them take less than 4 GiB.
        let mut note = |place: Range<u64>| places.push(place.start as u32..place.end as u32);
        let mut reading = items.reading();
        while let Some(piece) = reading.more().await.map_err(|error| self.of_map(&error))? {
            seen.push(&piece, &mut note).map_err(|bad| bad_lines(&bad))?;
        }
        seen.finish(&mut note).map_err(|bad| bad_lines(&bad))?;
        Ok(Items::Kept { items, places })
    }

    /// The lines that the store keeps.
    async fn stored(&self) -> Result<Option<MapItems>, NoItems> {
        let found = self.context.store.map_items(&self.order.uid).await;
        found.map_err(|error| self.of_map(&error))
    }

    async fn lines(&self, from: &ItemsFrom) -> Result<Bytes, NoItems> {
        match from {
            ItemsFrom {
                config_map_key_ref: Some(key),
                ..
            } => config_map(self.context, &self.pool.namespace, key).await,
            ItemsFrom {
                task_result: Some(name),
                ..
            } => self.result(name).await,
            ItemsFrom {
                source_file: Some(path),
                ..
            } => self.source_file(path).await,
            ItemsFrom { .. } => Err(never(
                reason::INVALID_ITEMS,
                "forEach.itemsFrom needs sourceFile, configMapKeyRef or taskResult; create another Task",
            )),
        }
    }

    /// The result of a Task that has ended: each entry of the list becomes a line.
    async fn result(&self, name: &str) -> Result<Bytes, NoItems> {
        let found = self.order.dependencies.iter().find(|(task, _)| task == name);
        let Some((_, uid)) = found else {
            return Err(never(
                reason::INVALID_ITEMS,
                format!(
                    "Task \"{name}\", whose result has the items, is not named in dependsOn; create another Task"
                ),
            ));
        };
        let store = &self.context.store;
        let runs = store.runs(uid).await.map_err(|error| self.of_store(&error))?;
        let newest = runs
            .iter()
            .filter_map(|run| RunId::parse(run))
            .filter(|run| run.rank == 0)
            .max_by_key(|run| run.attempt);
        let gone = || {
            never(
                reason::INVALID_ITEMS,
                format!(
                    "Task \"{name}\" has no result, as a Task with forEach has none, or it has expired: let its function \
                     return a list, and create this Task again"
                ),
            )
        };
        let run = newest.ok_or_else(gone)?;
        let value = store.get_result(uid, &run.to_string(), 0).await;
        let value = value.map_err(|error| self.of_store(&error))?.ok_or_else(gone)?;
        if value.size > ALL_BYTES {
            return Err(bad_lines(&BadLines::TooLarge));
        }
        let mut bytes = BytesMut::with_capacity(value.size as usize);
        let mut pieces = value.bytes;
        while let Some(piece) = pieces.try_next().await.map_err(|error| self.of_store(&error))? {
            bytes.extend_from_slice(&piece);
        }
        let list = as_lines(bytes.freeze()).await;
        list.ok_or_else(|| {
            never(
                reason::INVALID_ITEMS,
                format!(
                    "the result of Task \"{name}\" is no list: let its function return one, whose entries become the items"
                ),
            )
        })
    }

    async fn source_file(&self, path: &str) -> Result<Bytes, NoItems> {
        let unread = |why: String| {
            not_now(
                reason::ITEMS_NOT_READ,
                format!("file \"{path}\" of the source, which has the items, cannot be read: {why}"),
            )
        };
        let Some(source) = &self.task.spec.source else {
            return Err(never(
                reason::INVALID_ITEMS,
                "forEach.itemsFrom.sourceFile needs spec.source; create another Task",
            ));
        };
        // What a machine fetched from git is in the store as a bundle.
        let fetched = source.git.is_some().then(|| Source {
            bundle: self.order.source.clone().map(|digest| BundleSource { digest }),
            ..Source::default()
        });
        let uid = self.context.caches.namespace_uid(&self.pool.namespace);
        let place = Place {
            namespace: &self.pool.namespace,
            uid: uid.as_deref(),
        };
        let found = self
            .context
            .references
            .source(place, fetched.as_ref().unwrap_or(source))
            .await;
        let bundle = found.map_err(|error| without_source(source, path, error))?;
        let start = bundle
            .part(0..bundle.bytes().min(START as u64))
            .await
            .map_err(unread)?;
        let head = head_bytes(&start).map_err(|error| unread(error.to_string()))?;
        let head = bundle.part(0..bundle.bytes().min(head)).await.map_err(unread)?;
        let reader = Reader::open(&*head, LIMITS).map_err(|error| unread(error.to_string()))?;
        let manifest = reader.manifest();
        let entries = manifest.entries();
        let Some(position) = entries.iter().position(|entry| entry.path == path) else {
            return Err(never(
                reason::INVALID_ITEMS,
                format!("the source has no file \"{path}\"; create another Task, whose source has it"),
            ));
        };
        let size = entries[position].size;
        if size > ALL_BYTES {
            return Err(bad_lines(&BadLines::TooLarge));
        }
        let begin = Outline::of(manifest).begin(position);
        let mut bytes = BytesMut::with_capacity(size as usize);
        while (bytes.len() as u64) < size {
            let at = begin + bytes.len() as u64;
            let piece = bundle
                .part(at..(begin + size).min(at + PIECE))
                .await
                .map_err(unread)?;
            if piece.is_empty() {
                return Err(unread("it ends too early".to_owned()));
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes.freeze())
    }

    fn of_map(&self, error: &MapError) -> NoItems {
        match error {
            MapError::Store(error) => self.of_store(error),
            MapError::Superseded | MapError::Damaged(_) | MapError::Missing(_) | MapError::TooLarge => {
                let message = format!("the items cannot be read: {error}");
                NoItems::NotNow(Why::new(reason::RESULT_STORE_UNAVAILABLE, message))
            }
        }
    }

    fn of_store(&self, error: &StoreError) -> NoItems {
        let why = of_store(error, &self.context.metrics).why();
        NoItems::NotNow(Why::new(
            why.reason,
            format!("the items cannot be kept or read: {error}. That is tried again by itself"),
        ))
    }
}

/// The entries of a JSON list, one in each line; `None`: it is no list. It may be large, so another thread reads it. Of
/// more entries than a Task may have items there is one too many.
async fn as_lines(json: Bytes) -> Option<Bytes> {
    let read = tokio::task::spawn_blocking(move || {
        let mut read = serde_json::Deserializer::from_slice(&json);
        let lines = read.deserialize_seq(Entries).ok()?;
        read.end().ok()?;
        Some(lines.freeze())
    });
    read.await.ok().flatten()
}

/// Makes lines of the entries of a list one by one: millions of them would take more memory than their text.
struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = BytesMut;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<BytesMut, A::Error> {
        let mut lines = BytesMut::new();
        for _ in 0..=MOST_ITEMS {
            let Some(entry) = list.next_element::<&RawValue>()? else {
                return Ok(lines);
            };
            // JSON has no end of a line but between its words.
            let line = entry.get().replace(['\n', '\r'], " ");
            lines.extend_from_slice(line.as_bytes());
            lines.extend_from_slice(b"\n");
        }
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(lines)
    }
}

/// How many items a Task may have.
const _: () = assert!(MOST_ITEMS <= u32::MAX as u64);

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use serde_json::json;
    use skyward_store::Store;

    use super::*;

    const TASK: &str = "0b5c6f5e-0000-4000-8000-000000000002";

    async fn kept(folder: &Path, lines: Bytes) -> MapItems {
        let store = Arc::new(Store::local(folder).unwrap().unmeasured());
        store.charge(TASK, "team");
        store.put_map_items(TASK, lines).await.unwrap();
        store.map_items(TASK).await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn items_are_given_out_as_json_and_numbers_are_not() {
        let lines = written(&[json!("a\nb"), json!({ "b": null }), json!(1.5)])
            .ok()
            .unwrap();
        assert_eq!(lines, "\"a\\nb\"\n{\"b\":null}\n1.5\n");
        let folder = tempfile::tempdir().unwrap();
        let items = Items::Kept {
            items: kept(folder.path(), lines).await,
            places: vec![0..6, 7..17, 18..21],
        };
        assert_eq!(items.len(), 3);
        assert_eq!(items.get(1..3).await.unwrap(), ["{\"b\":null}", "1.5"]);
        assert_eq!(items.get(0..1).await.unwrap(), ["\"a\\nb\""]);
        assert_eq!(items.at_once(&(1..3)), 2);
        assert!(items.get(2..4).await.is_err());
        assert_eq!(Items::Numbers(7).get(1..3).await.unwrap(), Vec::<Bytes>::new());
    }

    #[tokio::test]
    async fn no_more_large_items_are_in_memory_at_once_than_a_message_takes() {
        let each = ITEM_BYTES as u32;
        let folder = tempfile::tempdir().unwrap();
        let items = Items::Kept {
            items: kept(folder.path(), Bytes::new()).await,
            places: (0..100).map(|index| index * each..(index + 1) * each).collect(),
        };
        assert_eq!(
            [0..100, 50..51, 98..100].map(|range| items.at_once(&range)),
            [4, 1, 2]
        );
        let values = json!({ "axes": [{ "name": "a", "values": ["x".repeat(ITEM_BYTES / 2), "y"] }] });
        let matrix = Combinations::of(&serde_json::from_value(values).unwrap()).unwrap();
        assert_eq!(Items::Matrix(Box::new(matrix)).at_once(&(0..2)), 2);
        assert_eq!(Items::Numbers(9).at_once(&(2..9)), 7);
    }

    #[test]
    fn an_item_has_the_nulls_that_kubectl_apply_dropped() {
        let written = r#"{"spec":{"forEach":{"items":[{"a":null,"b":1},null]}}}"#;
        let task: Task = serde_json::from_value(json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Task",
            "metadata": { "name": "t", "annotations": { "kubectl.kubernetes.io/last-applied-configuration": written } },
            "spec": { "pool": "p", "command": ["true"] },
        }))
        .unwrap();
        let sent = [json!({ "b": 1 }), json!(null)];
        assert_eq!(
            as_written(&task, &sent),
            [json!({ "a": null, "b": 1 }), json!(null)]
        );
        let other = [json!({ "b": 2 })];
        assert_eq!(as_written(&task, &other), other);
    }

    #[tokio::test]
    async fn the_entries_of_a_list_become_lines_however_it_was_written() {
        let list = as_lines("[1, {\n \"a\": [\"x\\ny\"]}\n,\r\n null]".into())
            .await
            .unwrap();
        assert_eq!(list, "1\n{  \"a\": [\"x\\ny\"]}\nnull\n");
        assert_eq!(as_lines("{\"a\": 1}".into()).await, None);
        assert_eq!(as_lines("[1".into()).await, None);
        assert_eq!(as_lines("[1] [2]".into()).await, None);
        assert_eq!(as_lines(Bytes::from_static(b"[\"\xff\"]")).await, None);
    }

    #[tokio::test]
    async fn of_a_list_that_is_too_long_no_more_is_kept_than_says_so() {
        let long = format!("[{}1]", "1,".repeat(MOST_ITEMS as usize + 9));
        let lines = as_lines(long.into()).await.unwrap();
        let mut seen = Lines::default();
        assert_eq!(seen.push(&lines, &mut |_| {}), Err(BadLines::TooMany));
        assert_eq!(lines.len() as u64, (MOST_ITEMS + 1) * 2);
    }

    #[test]
    fn a_matrix_of_which_nothing_is_left_is_no_task_that_succeeds() {
        for (wanted, exclude) in [(1, json!([{ "a": 1 }])), (0, json!([{ "a": 1 }, { "a": 2 }]))] {
            let matrix = json!({ "axes": [{ "name": "a", "values": [1, 2] }], "exclude": exclude });
            let matrix = serde_json::from_value(matrix).unwrap();
            match of_matrix(Combinations::of(&matrix)) {
                Ok(items) => assert_eq!(items.len(), wanted),
                Err(NoItems::Never(why)) => assert_eq!((why.reason, wanted), (reason::INVALID_ITEMS, 0)),
                Err(NoItems::NotNow(why)) => panic!("{why:?}"),
            }
        }
    }

    #[test]
    fn files_from_git_that_were_not_kept_end_the_task_and_an_upload_that_is_missing_is_waited_for() {
        let missing = |source: serde_json::Value, reason| {
            let source: Source = serde_json::from_value(source).unwrap();
            let message = "upload the files".to_owned();
            without_source(&source, "items.jsonl", Unresolved { reason, message })
        };
        let git = json!({ "git": { "url": "https://git.example/team/embed.git" } });
        let NoItems::Never(why) = missing(git.clone(), reason::BUNDLE_NOT_FOUND) else {
            panic!("it is waited for");
        };
        assert_eq!(why.reason, reason::INVALID_ITEMS);
        assert!(why.message.contains("items.jsonl") && !why.message.contains("upload the files"));
        let unread = missing(git, reason::RESULT_STORE_UNAVAILABLE);
        assert!(matches!(unread, NoItems::NotNow(_)), "{unread:?}");
        let bundle = json!({ "bundle": { "digest": "sha256:0" } });
        let upload = missing(bundle, reason::BUNDLE_NOT_FOUND);
        assert!(matches!(upload, NoItems::NotNow(_)), "{upload:?}");
    }

    #[test]
    fn an_item_that_is_too_large_is_named() {
        let large = json!("x".repeat(ITEM_BYTES));
        let Err(NoItems::Never(why)) = written(&[json!(1), large]) else {
            panic!("it is taken");
        };
        assert_eq!(why.reason, reason::TOO_MANY_ITEMS);
        assert!(
            why.message.starts_with("item 1 is larger than 256 KiB"),
            "{}",
            why.message
        );
    }
}
