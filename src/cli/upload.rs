//! `kubectl skyward upload`.

use std::{
    io::{self, IsTerminal as _, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Result;
use clap::{Args, ValueEnum};
use skyward_bundle::Selection;
use skyward_subresources::uploads::{PART_BYTES, State};
use tokio::time::{Instant, sleep};

use crate::{
    api::{Cluster, Failure},
    complain,
    folder::{Files, LEFT_OUT, amount},
};

/// Bytes of the first part; the next ones grow while the connection is fast.
const FIRST: u64 = 256 * 1024;
/// The store takes no smaller parts.
const LEAST: u64 = 64 * 1024;
/// A part that takes longer is followed by smaller ones: the API server cuts requests off after 60 s.
const SLOW: Duration = Duration::from_secs(15);
/// A part that takes less time is followed by larger ones.
const FAST: Duration = Duration::from_secs(4);
/// Most tries in a row without progress: a controller that is replaced is back before.
const TRIES: u32 = 10;
/// Longest pause between two tries.
const PAUSE: Duration = Duration::from_secs(5);

/// Arguments of `upload`.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// The folder with the files.
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Only files that match, as in a .gitignore; may be given several times.
    #[arg(long, value_name = "GLOB")]
    include: Vec<String>,
    /// No files that match; may be given several times.
    #[arg(long, value_name = "GLOB")]
    exclude: Vec<String>,
    /// What is printed.
    #[arg(short, long, value_enum, default_value_t = Output::Digest)]
    output: Output,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// The digest.
    Digest,
    /// The source of a Task's spec.
    Yaml,
}

impl Arguments {
    /// The files that are meant.
    pub(crate) fn read(&self) -> Result<Files> {
        let left_out = LEFT_OUT.map(str::to_owned);
        let exclude: Vec<String> = self.exclude.iter().cloned().chain(left_out).collect();
        let selection = Selection::new(&self.include, &exclude)?;
        Files::read(&self.folder, &selection)
    }
}

/// Uploads the files, and prints their digest.
pub(crate) async fn run(cluster: &Cluster, arguments: Arguments, files: &Files) -> Result<ExitCode> {
    let mut progress = Progress {
        shows: io::stderr().is_terminal(),
        bytes: files.bytes(),
    };
    let sent = transfer(cluster, files, |offset| progress.show(offset)).await;
    progress.end();
    let what = format!("{} files, {}", files.count(), amount(files.bytes()));
    let namespace = &cluster.namespace;
    complain(&match sent? {
        0 => format!("{what}: they were in the namespace {namespace:?} already"),
        _ => format!("{what}: uploaded into the namespace {namespace:?}"),
    });
    let digest = files.digest;
    let mut out = io::stdout();
    match arguments.output {
        Output::Digest => writeln!(out, "{digest}")?,
        Output::Yaml => writeln!(out, "source:\n  bundle:\n    digest: {digest}")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Sends what the namespace lacks, and answers how many bytes that were.
async fn transfer(cluster: &Cluster, files: &Files, mut show: impl FnMut(u64)) -> Result<u64, Failure> {
    let size = files.bytes();
    let (mut at, mut sent, mut part, mut failures) = (None, 0, FIRST, 0);
    loop {
        // Where it goes on is asked first, and after each failure.
        let (offset, bytes) = match at {
            None => (0, Vec::new()),
            Some(offset) => {
                let end = size.min(offset + part);
                let bytes = files.part(offset..end).map_err(Failure::Lasting)?;
                (offset, bytes)
            }
        };
        let (asked, length, begun) = (at.is_none(), bytes.len() as u64, Instant::now());
        let failure = match cluster.put_part(files.digest, offset, size, bytes).await {
            Ok(State { complete: true, .. }) => {
                show(size);
                return Ok(sent + length);
            }
            Ok(State { offset: next, .. }) => {
                show(next);
                at = Some(next);
                sent += next.saturating_sub(offset).min(length);
                if asked {
                    continue;
                }
                if next > offset {
                    failures = 0;
                    part = next_part(part, begun.elapsed());
                    continue;
                }
                Failure::Passing(anyhow::anyhow!(
                    "the connection is too slow: {} did not arrive in {} s; try again where it is faster, and the upload goes on where it was",
                    amount(length),
                    begun.elapsed().as_secs()
                ))
            }
            Err(Failure::Passing(error)) => {
                at = None;
                Failure::Passing(error)
            }
            Err(lasting) => return Err(lasting),
        };
        failures += 1;
        if failures == TRIES {
            return Err(failure);
        }
        part = (part / 4).max(LEAST);
        sleep(PAUSE.min(Duration::from_millis(200 << failures))).await;
    }
}

/// The length of the next part, after one that took so long.
fn next_part(part: u64, took: Duration) -> u64 {
    if took < FAST {
        (part * 2).min(PART_BYTES)
    } else if took > SLOW {
        (part / 2).max(LEAST)
    } else {
        part
    }
}

/// A line on the terminal that says how far it is.
struct Progress {
    shows: bool,
    bytes: u64,
}

impl Progress {
    fn show(&mut self, offset: u64) {
        if self.shows {
            let percent = offset * 100 / self.bytes.max(1);
            let (offset, bytes) = (amount(offset), amount(self.bytes));
            // Nothing can be done when the terminal is gone.
            let _ = write!(io::stderr(), "\r\x1b[K{percent} % ({offset} of {bytes})");
        }
    }

    fn end(&mut self) {
        if self.shows {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, sync::Arc};

    use hyper::{Request, Response, StatusCode};
    use kube::{Client, client::Body};
    use parking_lot::Mutex;
    use serde_json::json;
    use tower::service_fn;

    use super::*;

    /// A namespace that takes uploads, and is away or takes half of a part now and then.
    #[derive(Default)]
    struct World {
        bytes: Vec<u8>,
        /// Requests that came, with the length of their part.
        parts: Vec<usize>,
        /// So many requests from the start find nobody.
        away: usize,
        /// Bytes that are taken of each part.
        most: Option<usize>,
        refused: bool,
    }

    impl World {
        fn answer(&mut self, path: &str, query: &str, part: &[u8]) -> (StatusCode, serde_json::Value) {
            assert!(path.contains("/namespaces/team/bundles/sha256:"), "{path}");
            self.parts.push(part.len());
            let failure = |code: u16, message: &str| json!({ "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": "x" });
            if self.parts.len() <= self.away {
                let away = failure(503, "no controller leads");
                return (StatusCode::SERVICE_UNAVAILABLE, away);
            }
            if self.refused {
                let full = failure(507, "its quota is 2Gi");
                return (StatusCode::INSUFFICIENT_STORAGE, full);
            }
            let number = |name: &str| -> usize {
                let pair = query.split('&').find_map(|pair| pair.strip_prefix(name));
                pair.unwrap().strip_prefix('=').unwrap().parse().unwrap()
            };
            if number("offset") == self.bytes.len() {
                let taken = part.len().min(self.most.unwrap_or(usize::MAX));
                self.bytes.extend_from_slice(&part[..taken]);
            }
            let complete = self.bytes.len() == number("size");
            (
                StatusCode::OK,
                json!({ "kind": "Bundle", "status": { "complete": complete, "offset": self.bytes.len() } }),
            )
        }
    }

    fn cluster(world: World) -> (Cluster, Arc<Mutex<World>>) {
        let world = Arc::new(Mutex::new(world));
        let of = world.clone();
        let service = service_fn(move |request: Request<Body>| {
            let world = of.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap();
                let query = head.uri.query().unwrap_or_default();
                let (code, answer) = world.lock().answer(head.uri.path(), query, &body);
                let body = Body::from(answer.to_string().into_bytes());
                Ok::<_, Infallible>(Response::builder().status(code).body(body).unwrap())
            }
        });
        (Cluster::of(Client::new(service, "team")), world)
    }

    /// A folder of so many bytes.
    fn files(bytes: usize) -> (tempfile::TempDir, Files) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("data.bin"), vec![7; bytes]).unwrap();
        let arguments = Arguments {
            folder: folder.path().to_owned(),
            include: Vec::new(),
            exclude: Vec::new(),
            output: Output::Digest,
        };
        let files = arguments.read().unwrap();
        (folder, files)
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_goes_on_where_the_namespace_says_and_its_parts_grow() {
        let (_folder, files) = files(3_000_000);
        let begun = World {
            bytes: files.part(0..1000).unwrap(),
            away: 2,
            ..World::default()
        };
        let (cluster, world) = cluster(begun);
        let mut shown = Vec::new();
        let sent = transfer(&cluster, &files, |offset| shown.push(offset)).await;
        assert_eq!(sent.ok(), Some(files.bytes() - 1000));
        let world = world.lock();
        assert!(world.bytes == files.part(0..files.bytes()).unwrap());
        assert_eq!(
            world.parts[..5],
            [0, 0, 0, 64 * 1024, 128 * 1024],
            "{:?}",
            world.parts
        );
        assert!(shown.is_sorted() && shown.first() == Some(&1000) && shown.last() == Some(&files.bytes()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_there_already_is_not_sent_again() {
        let (_folder, files) = files(10);
        let there = World {
            bytes: files.part(0..files.bytes()).unwrap(),
            ..World::default()
        };
        let (cluster, world) = cluster(there);
        assert_eq!(transfer(&cluster, &files, |_| {}).await.ok(), Some(0));
        assert_eq!(world.lock().parts, [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn half_parts_are_progress_and_none_is_not() {
        let (_folder, files) = files(1_000_000);
        let halves = World {
            most: Some(70_000),
            ..World::default()
        };
        let (one, world) = cluster(halves);
        assert!(transfer(&one, &files, |_| {}).await.is_ok());
        assert_eq!(world.lock().bytes.len() as u64, files.bytes());
        let nothing = World {
            most: Some(0),
            ..World::default()
        };
        let (one, world) = cluster(nothing);
        let Err(error) = transfer(&one, &files, |_| {}).await else {
            panic!("nothing arrived")
        };
        let error = anyhow::Error::from(error).to_string();
        assert!(error.contains("too slow"), "{error}");
        assert_eq!(world.lock().parts.len(), 1 + TRIES as usize);
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_namespace_refuses_is_said_at_once() {
        let (_folder, files) = files(10);
        let full = World {
            refused: true,
            ..World::default()
        };
        let (cluster, world) = cluster(full);
        let Err(error) = transfer(&cluster, &files, |_| {}).await else {
            panic!("it was refused")
        };
        assert!(
            anyhow::Error::from(error)
                .to_string()
                .contains("its quota is 2Gi")
        );
        assert_eq!(world.lock().parts.len(), 1);
    }

    #[test]
    fn parts_are_as_large_as_a_connection_bears() {
        let second = Duration::from_secs(1);
        assert_eq!(next_part(FIRST, second), 2 * FIRST);
        assert_eq!(next_part(PART_BYTES, second), PART_BYTES);
        assert_eq!(next_part(FIRST, 10 * second), FIRST);
        assert_eq!(next_part(FIRST, 20 * second), FIRST / 2);
        assert_eq!(next_part(LEAST, 50 * second), LEAST);
    }
}
