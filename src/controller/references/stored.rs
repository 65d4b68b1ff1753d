//! Bundles in the result store, uploaded or fetched from git: read part by part, also where `include` and
//! `exclude` take a part of the files of an upload. Such a part is a bundle of its own, with a head of its own,
//! whose contents lie in the stored one; it is nowhere stored, and never held whole.

use std::{ops::Range, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use skyward_api::{condition::reason, task::BundleSource};
use skyward_bundle::{Digest, LIMITS, Outline, Piece, Reader, START, Selection, head_bytes};
use skyward_planner::task::references::Unresolved;
use skyward_store::{BundleId, Error, Store, WholeBundle};
use tokio::time::timeout;

use super::{Place, sources::refused};

/// The longest head of a bundle of which a part can be taken: the names of some ten thousand files.
const HEAD: u64 = 4 * 1024 * 1024;
/// Most bytes that are read at once: contents that lie close together are read together.
const SPAN: u64 = 2 * 1024 * 1024;
/// Longest wait for the store: a machine that is sent files has a turn, for which others wait.
const DEADLINE: Duration = Duration::from_secs(20);

/// A stored bundle, or a part of its files.
pub(super) struct Stored {
    store: Arc<Store>,
    id: BundleId,
    whole: WholeBundle,
    part: Option<View>,
}

/// A bundle whose contents lie in another one.
struct View {
    outline: Outline,
    /// Where each content begins in the other one.
    begins: Vec<u64>,
}

impl View {
    /// The part of the bundle with this head that is selected, with its digest.
    fn of(head: &[u8], selection: &Selection) -> Result<(Digest, Self), String> {
        let reader = Reader::open(head, LIMITS).map_err(|error| error.to_string())?;
        let all = reader.manifest();
        let some = all.select(selection).map_err(|error| error.to_string())?;
        let whole = Outline::of(all);
        // Both are sorted by name.
        let mut rest = all.entries().iter().enumerate();
        let begins = some.entries().iter().filter_map(|entry| {
            let (file, _) = rest.find(|(_, of_all)| of_all.path == entry.path)?;
            Some(whole.begin(file))
        });
        let view = Self {
            begins: begins.collect(),
            outline: Outline::of(&some),
        };
        Ok((some.digest(), view))
    }

    /// The first bytes of this range that are in the head, and where the others lie.
    fn places(&self, range: Range<u64>) -> (&[u8], Vec<Range<u64>>) {
        let mut head: &[u8] = &[];
        let mut contents = Vec::new();
        for piece in self.outline.pieces(range) {
            match piece {
                Piece::Head(range) => head = &self.outline.head()[range],
                Piece::Content { file, range } => {
                    let begin = self.begins[file];
                    contents.push(begin + range.start..begin + range.end);
                }
            }
        }
        (head, contents)
    }
}

/// Ranges in ascending order, grouped so that each group spans few bytes.
fn spans(ranges: &[Range<u64>]) -> impl Iterator<Item = &[Range<u64>]> {
    let mut rest = ranges;
    std::iter::from_fn(move || {
        let first = rest.first()?.start;
        let close = rest.iter().take_while(|range| range.end - first <= SPAN).count();
        let (span, further) = rest.split_at(close.max(1));
        rest = further;
        Some(span)
    })
}

impl Stored {
    /// The bundle that a source names, with the digest of the selected files.
    pub(super) async fn find(
        store: &Arc<Store>,
        place: Place<'_>,
        source: &BundleSource,
        selection: Selection,
    ) -> Result<(String, Self), Unresolved> {
        let namespace = place.namespace;
        let digest: Digest = source.digest.parse().map_err(refused)?;
        let uid = place.uid.ok_or_else(|| {
            format!(
                "the operator does not know the namespace \"{namespace}\" yet; the Task goes on by itself"
            )
        })?;
        let id = BundleId::new(uid, &digest.hex()).map_err(|error| unreadable(&error.to_string()))?;
        let found = in_time(store.bundle(&id)).await;
        let found = found.map_err(|why| unreadable(&why))?;
        let whole = found.ok_or_else(|| missing(namespace, digest))?;
        let mut stored = Self {
            store: store.clone(),
            id,
            whole,
            part: None,
        };
        if selection.is_everything() {
            return Ok((digest.to_string(), stored));
        }
        let gone = || missing(namespace, digest);
        let head = stored.head().await?.ok_or_else(gone)?;
        let selected = tokio::task::spawn_blocking(move || View::of(&head, &selection)).await;
        let (digest, view) = selected.map_err(|error| error.to_string())?.map_err(|why| {
            refused(format!(
                "the files of bundle {digest}: {why}; create another Task"
            ))
        })?;
        stored.part = Some(view);
        Ok((digest.to_string(), stored))
    }

    /// All that stands in front of the contents in the store.
    async fn head(&self) -> Result<Option<Bytes>, Unresolved> {
        let read = async |end: u64| {
            let read = in_time(self.store.read_bundle(&self.id, &self.whole, 0..end));
            read.await.map_err(|why| unreadable(&why))
        };
        let Some(start) = read(START as u64).await? else {
            return Ok(None);
        };
        let bytes = head_bytes(&start).map_err(|error| refused(error.to_string()))?;
        if bytes > HEAD {
            return Err(refused(format!(
                "the bundle has too many files for include and exclude: their names take {bytes} bytes, and at most {HEAD} are looked through; leave files out when you upload it (kubectl skyward upload --exclude), and create another Task"
            )));
        }
        read(bytes).await
    }

    pub(super) fn bytes(&self) -> u64 {
        match &self.part {
            Some(view) => view.outline.bytes(),
            None => self.whole.bytes,
        }
    }

    /// Bytes that it takes in memory.
    pub(super) fn held(&self) -> usize {
        let of = |view: &View| view.outline.head().len() + 16 * view.begins.len();
        self.part.as_ref().map_or(0, of)
    }

    /// Some of its bytes.
    pub(super) async fn part(&self, range: Range<u64>) -> Result<Bytes, String> {
        let Some(view) = &self.part else {
            return self.read(range).await;
        };
        let (head, contents) = view.places(range);
        let mut bytes = BytesMut::from(head);
        for span in spans(&contents) {
            let (Some(first), Some(last)) = (span.first(), span.last()) else {
                continue;
            };
            let read = self.read(first.start..last.end).await?;
            for content in span {
                let (start, end) = (content.start - first.start, content.end - first.start);
                bytes.extend_from_slice(&read[start as usize..end as usize]);
            }
        }
        Ok(bytes.freeze())
    }

    async fn read(&self, range: Range<u64>) -> Result<Bytes, String> {
        let read = in_time(self.store.read_bundle(&self.id, &self.whole, range)).await;
        read.map_err(|why| format!("the result store cannot be read: {why}"))?
            .ok_or_else(|| "the bundle was deleted from the result store".to_owned())
    }
}

/// A call of the store, with its deadline.
async fn in_time<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, String> {
    match timeout(DEADLINE, call).await {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err("it does not answer".to_owned()),
    }
}

fn unreadable(why: &str) -> Unresolved {
    format!("the result store, which has uploaded bundles, cannot be read: {why}; the Task goes on by itself")
        .into()
}

fn missing(namespace: &str, digest: Digest) -> Unresolved {
    Unresolved {
        reason: reason::BUNDLE_NOT_FOUND,
        message: format!(
            "namespace \"{namespace}\" has no bundle {digest}: it was not uploaded there, or no Task named it for 24 hours; upload the files (kubectl skyward upload FOLDER -n {namespace}), and the Task goes on by itself if the command prints that digest"
        ),
    }
}

#[cfg(test)]
mod tests {
    use skyward_bundle::{File, Packed, pack, pack_selected};
    use skyward_store::Sealed;

    use super::*;

    const UID: &str = "5b9d2c54-2c3e-4c39-9d2b-5c1d9a7f0b22";

    async fn stored(packed: &Packed) -> (tempfile::TempDir, Arc<Store>) {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::local(folder.path()).unwrap().unmeasured());
        let id = BundleId::new(UID, &packed.digest.hex()).unwrap();
        let bytes = packed.bytes.clone().into();
        store.put_upload("n", &id, "ana", 0, bytes).await.unwrap();
        let sealed = store
            .seal_bundle(&id, "ana", |_| async { Ok(Sealed::Whole) })
            .await;
        assert_eq!(sealed.unwrap(), Sealed::Whole);
        (folder, store)
    }

    async fn find(
        store: &Arc<Store>,
        uid: Option<&str>,
        digest: Digest,
        exclude: &[&str],
    ) -> Result<(String, Stored), Unresolved> {
        let source = BundleSource {
            digest: digest.to_string(),
        };
        let place = Place { namespace: "n", uid };
        let selection = Selection::new(&[], exclude).unwrap();
        Stored::find(store, place, &source, selection).await
    }

    fn file<'a>(path: &'a str, content: &'a [u8]) -> File<'a> {
        File {
            path,
            executable: false,
            content,
        }
    }

    #[tokio::test]
    async fn a_selection_of_an_upload_is_the_bundle_of_these_files_in_parts_of_any_size() {
        let large = vec![7; 3 * 1024 * 1024];
        let files = [
            file("a.csv", b"1,2"),
            file("a.py", b"print(1)"),
            file("b/large.bin", &large),
            file("b/x.csv", b"3"),
            file("b/y.py", b"print(2)"),
            file("empty", b""),
            file("z.csv", b"4,5,6"),
            file("z.py", b"print(3)"),
        ];
        let all = pack(files, LIMITS).unwrap();
        let (_folder, store) = stored(&all).await;
        for exclude in [&[][..], &["*.csv"], &["b"], &["large.bin", "a.*"], &["*.py"]] {
            let selection = Selection::new(&[], exclude).unwrap();
            let expected = pack_selected(files, &selection, LIMITS).unwrap();
            let (digest, stored) = find(&store, Some(UID), all.digest, exclude).await.unwrap();
            assert_eq!(digest, expected.digest.to_string(), "{exclude:?}");
            let bytes = stored.bytes();
            assert_eq!(bytes, expected.bytes.len() as u64);
            for size in [700_000, bytes] {
                let mut read = Vec::new();
                while (read.len() as u64) < bytes {
                    let at = read.len() as u64;
                    read.extend_from_slice(&stored.part(at..bytes.min(at + size)).await.unwrap());
                }
                assert!(read == expected.bytes, "{exclude:?} in parts of {size}");
            }
        }
    }

    #[tokio::test]
    async fn a_bundle_that_is_not_in_the_namespace_is_said_with_the_command_that_brings_it() {
        let all = pack([file("a.csv", b"1,2")], LIMITS).unwrap();
        let (_folder, store) = stored(&all).await;
        let refusal = async |uid: Option<&str>, digest: Digest, exclude: &[&str]| {
            let error = find(&store, uid, digest, exclude).await.err().unwrap();
            (error.reason, error.message)
        };
        let other = "0b5c6f5e-0000-4000-8000-00000000000a";
        let (reason, message) = refusal(Some(other), all.digest, &[]).await;
        assert_eq!(reason, reason::BUNDLE_NOT_FOUND);
        assert!(
            message.contains("kubectl skyward upload FOLDER -n n"),
            "{message}"
        );
        let (reason, _) = refusal(None, all.digest, &[]).await;
        assert_eq!(reason, reason::REFERENCE_NOT_FOUND);
        let (reason, message) = refusal(Some(UID), all.digest, &["*.csv"]).await;
        assert_eq!(reason, reason::SOURCE_REFUSED);
        assert!(message.contains("leave none of the files"), "{message}");
    }

    #[test]
    fn contents_that_lie_close_together_are_read_together_and_never_too_many_at_once() {
        let groups = |ranges: &[Range<u64>]| -> Vec<usize> { spans(ranges).map(<[_]>::len).collect() };
        assert_eq!(groups(&[]), Vec::<usize>::new());
        assert_eq!(groups(&[0..10, 20..30, SPAN - 1..SPAN]), [3]);
        assert_eq!(groups(&[0..10, 20..30, SPAN..SPAN + 1]), [2, 1]);
        assert_eq!(groups(&[0..2 * SPAN, 2 * SPAN..2 * SPAN + 1]), [1, 1]);
    }
}
