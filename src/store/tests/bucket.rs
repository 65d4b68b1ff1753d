//! The store in buckets of servers that others wrote, behind a proxy that does them wrong.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path as FilePath,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
    time::{Instant, timeout},
};

use super::*;
use crate::{Access, Exclusion};

const BUCKET: &str = "results";
const KEY: &str = "test-access-key";
const SECRET: &str = "test-secret-key";
/// Everything here is over by then.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks, and between two tries.
const MOMENT: Duration = Duration::from_millis(20);

/// A server of our own, ended with its test.
struct Server {
    address: SocketAddr,
    process: Child,
    _folder: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that is free now.
fn free_port() -> SocketAddr {
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

fn versitygw(program: &FilePath, address: SocketAddr, folder: &FilePath) -> Command {
    let (data, metadata) = (folder.join("data"), folder.join("metadata"));
    // A folder there is a bucket.
    std::fs::create_dir_all(data.join(BUCKET)).unwrap();
    std::fs::create_dir_all(&metadata).unwrap();
    let mut command = Command::new(program.join("versitygw"));
    command
        .args([
            "--port",
            &address.to_string(),
            "--access",
            KEY,
            "--secret",
            SECRET,
        ])
        .args(["posix", "--sidecar"])
        .args([metadata, data]);
    command
}

fn gofakes3(program: &FilePath, address: SocketAddr, _folder: &FilePath) -> Command {
    let mut command = Command::new(program.join("gofakes3"));
    command.args([
        "-host",
        &address.to_string(),
        "-backend",
        "memory",
        "-initialbucket",
        BUCKET,
    ]);
    command
}

/// Both servers; none, with a line of output, where they are not installed.
async fn servers() -> Vec<Server> {
    let Some(programs) = std::env::var_os("SKYWARD_S3_SERVERS").filter(|path| !path.is_empty()) else {
        eprintln!("skipped: SKYWARD_S3_SERVERS does not name a folder (hack/s3-servers.sh makes one)");
        return Vec::new();
    };
    let programs = FilePath::new(&programs);
    let mut servers = Vec::new();
    for command in [versitygw, gofakes3] {
        let folder = tempfile::tempdir().unwrap();
        let address = free_port();
        let process = command(programs, address, folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("SKYWARD_S3_SERVERS has the program");
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect(address).await.is_err() {
            assert!(Instant::now() < deadline, "the server did not start");
            tokio::time::sleep(MOMENT).await;
        }
        servers.push(Server {
            address,
            process,
            _folder: folder,
        });
    }
    servers
}

/// What a proxy does to some requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    /// Nothing.
    Nothing,
    /// It answers 503 itself.
    Busy,
    /// It answers 503 when the server has done what was asked.
    BusyAfterwards,
    /// It answers 409 to a PUT itself, as S3 does where two creates meet.
    Conflict,
    /// It sends the answer in small parts with pauses.
    Slow,
    /// It sends half of the answer.
    Cut,
}

/// A proxy in front of a server, which does one of six requests wrong.
struct Proxy {
    address: SocketAddr,
    served: JoinHandle<()>,
    requests: Arc<AtomicU32>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.served.abort();
    }
}

const EACH: u32 = 6;

/// A number that looks as if it were drawn, always the same for one number.
fn mixed(number: u32) -> u32 {
    let one = (number ^ (number >> 16)).wrapping_mul(0x7feb_352d);
    let two = (one ^ (one >> 15)).wrapping_mul(0x846c_a68b);
    two ^ (two >> 16)
}

impl Proxy {
    async fn before(server: SocketAddr, wrong: Wrong) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(AtomicU32::new(0));
        let count = requests.clone();
        let served = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let number = count.fetch_add(1, Ordering::SeqCst);
                // Without a period, which a call of as many requests would meet at each try.
                let wrong = if mixed(number).is_multiple_of(EACH) {
                    wrong
                } else {
                    Wrong::Nothing
                };
                tokio::spawn(async move {
                    // A client that goes away is its own affair.
                    let _ = timeout(PATIENCE, pass(client, server, wrong)).await;
                });
            }
        });
        Self {
            address,
            served,
            requests,
        }
    }
}

/// One request, with its body, as it came but that its connection is not used again.
async fn request(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let head = loop {
        if let Some(at) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    };
    let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
        .map_or(0, |length| length.trim().parse().unwrap_or(0));
    while bytes.len() < head + length {
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    let line = text.find("\r\n").unwrap_or_default() + 2;
    let rest = bytes.split_off(line);
    bytes.extend_from_slice(b"connection: close\r\n");
    bytes.extend_from_slice(&rest);
    Ok(bytes)
}

async fn pass(mut client: TcpStream, server: SocketAddr, wrong: Wrong) -> std::io::Result<()> {
    let request = request(&mut client).await?;
    let own = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    let is_put = request.starts_with(b"PUT ");
    match wrong {
        Wrong::Busy => return client.write_all(own("503 Service Unavailable").as_bytes()).await,
        Wrong::Conflict if is_put => return client.write_all(own("409 Conflict").as_bytes()).await,
        _ => {}
    }
    let mut upstream = TcpStream::connect(server).await?;
    upstream.write_all(&request).await?;
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).await?;
    match wrong {
        Wrong::BusyAfterwards => client.write_all(own("503 Service Unavailable").as_bytes()).await,
        Wrong::Cut => client.write_all(&answer[..answer.len() / 2]).await,
        Wrong::Slow => {
            for part in answer.chunks(answer.len() / 5 + 1) {
                client.write_all(part).await?;
                tokio::time::sleep(MOMENT).await;
            }
            Ok(())
        }
        Wrong::Nothing | Wrong::Busy | Wrong::Conflict => client.write_all(&answer).await,
    }
}

/// A process with a store in the bucket behind that address.
fn process(address: SocketAddr, installation: &str) -> Arc<Store> {
    let keys = tempfile::tempdir().unwrap();
    std::fs::write(keys.path().join("AWS_ACCESS_KEY_ID"), KEY).unwrap();
    std::fs::write(keys.path().join("AWS_SECRET_ACCESS_KEY"), SECRET).unwrap();
    let access = Access {
        region: Some("us-east-1".to_owned()),
        endpoint: Some(format!("http://{address}")),
        credentials: Some(keys.path().to_owned()),
    };
    let bucket = format!("s3://{BUCKET}/of/tests").parse().unwrap();
    let store = Store::bucket(&bucket, &access, installation, 1 << 30).unwrap();
    Arc::new(store.with_quota(Quota::Percent(100)))
}

/// What a call answers in the end: callers of the store try again.
async fn at_last<T>(mut call: impl AsyncFnMut() -> Result<T, Error>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(
                Instant::now() < deadline,
                "{error}: {:?}",
                std::error::Error::source(&error)
            ),
        }
        tokio::time::sleep(MOMENT).await;
    }
}

async fn whole_log(store: &Arc<Store>) -> Vec<u8> {
    at_last(async || {
        let pieces: Vec<Piece> = store.read_log(TASK, RUN_ID, 0).try_collect().await?;
        let mut whole = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => whole.extend_from_slice(&bytes),
                Piece::Gap(gap) => return Err(Error::Strange(format!("{gap:?}"))),
            }
        }
        Ok(whole)
    })
    .await
}

/// A log, values and a bundle's part are stored, read, counted and deleted.
async fn all_of_it(server: SocketAddr, wrong: Wrong) {
    let proxy = Proxy::before(server, wrong).await;
    let installation = format!("{wrong:?}").to_ascii_lowercase();
    let store = process(proxy.address, &installation);
    let exclusion = at_last(async || store.exclusion().await).await;
    assert_eq!(exclusion, Exclusion::One, "{wrong:?}");
    store.charge(TASK, "team");
    let text: Vec<u8> = (0..2000_u32).map(|at| (at % 251) as u8).collect();
    for at in (0..text.len()).step_by(100) {
        let piece = Bytes::copy_from_slice(&text[at..at + 100]);
        let end = at_last(async || {
            let piece = piece.clone();
            store.put_log_segment(TASK, RUN_ID, at as u64, piece).await
        });
        assert_eq!(end.await, at as u64 + 100, "{wrong:?}");
    }
    assert_eq!(whole_log(&store).await, text, "{wrong:?}");
    let value = Bytes::from(vec![b'7'; 300_000]);
    at_last(async || store.put_result(TASK, RUN_ID, value.clone()).await).await;
    at_last(async || store.put_outcome(TASK, RUN_ID, "{}".into()).await).await;
    let read = at_last(async || {
        let Some(stored) = store.get_result(TASK, RUN_ID, 0).await? else {
            return Ok(Vec::new());
        };
        let pieces: Vec<Bytes> = stored.bytes.try_collect().await?;
        Ok(pieces.concat())
    });
    assert_eq!(read.await, value, "{wrong:?}");

    // The next process finds all of it, and counts the same.
    let next = process(proxy.address, &installation);
    at_last(async || store.count().await).await;
    at_last(async || next.count().await).await;
    assert_eq!(next.usage(), store.usage(), "{wrong:?}");
    assert_eq!(whole_log(&next).await, text, "{wrong:?}");
    // Another installation in the same bucket sees nothing of it.
    let other = process(proxy.address, "another");
    let uids = at_last(async || other.task_uids().await).await;
    assert_eq!(uids, Vec::<String>::new(), "{wrong:?}");
    at_last(async || next.delete_task(TASK).await).await;
    let uids = at_last(async || next.task_uids().await).await;
    assert_eq!(uids, Vec::<String>::new(), "{wrong:?}");
    let requests = proxy.requests.load(Ordering::SeqCst);
    assert!(requests > 50, "the requests went through the proxy: {requests}");
}

#[tokio::test]
async fn a_bucket_keeps_what_a_directory_keeps_whatever_happens_to_its_answers() {
    let wrongs = [
        Wrong::Nothing,
        Wrong::Busy,
        Wrong::BusyAfterwards,
        Wrong::Conflict,
        Wrong::Slow,
        Wrong::Cut,
    ];
    let servers = servers().await;
    let all = servers
        .iter()
        .flat_map(|server| wrongs.map(|wrong| all_of_it(server.address, wrong)));
    // Each has an installation of its own in the bucket of its server, and mostly waits.
    futures::future::join_all(all).await;
}

#[tokio::test]
async fn two_leaders_at_once_write_a_log_that_has_each_byte_once() {
    for server in servers().await {
        for round in 0..5 {
            let installation = format!("installation-{round}");
            let leaders = [
                process(server.address, &installation),
                process(server.address, &installation),
            ];
            let text: Vec<u8> = (0..3000_u32).map(|at| (at % 251) as u8).collect();
            let write = async |store: &Arc<Store>| {
                let mut at = 0;
                while at < text.len() {
                    let piece = Bytes::copy_from_slice(&text[at..text.len().min(at + 50)]);
                    let start = at as u64;
                    let end = at_last(async || {
                        let piece = piece.clone();
                        store.put_log_segment(TASK, RUN_ID, start, piece).await
                    });
                    at = end.await as usize;
                }
            };
            tokio::join!(write(&leaders[0]), write(&leaders[1]));
            for store in &leaders {
                assert_eq!(whole_log(store).await, text);
            }
        }
    }
}

#[tokio::test]
async fn a_task_of_more_runs_than_a_page_of_a_list_has_is_listed_and_deleted_whole() {
    const RUNS: usize = 1100;
    // One of the servers is enough.
    for server in servers().await.into_iter().take(1) {
        let store = process(server.address, "pages");
        store.charge(TASK, "team");
        let put = |run: usize| {
            let store = store.clone();
            async move {
                let run = format!("run-{run}");
                store.put_outcome(TASK, &run, "{}".into()).await
            }
        };
        put(0).await.unwrap();
        let mut written = futures::stream::iter((1..RUNS).map(put)).buffer_unordered(16);
        while let Some(one) = written.next().await {
            one.unwrap();
        }
        drop(written);
        assert_eq!(store.runs(TASK).await.unwrap().len(), RUNS);
        let next = process(server.address, "pages");
        next.count().await.unwrap();
        assert_eq!(next.usage(), store.usage());
        next.delete_task(TASK).await.unwrap();
        assert_eq!(store.runs(TASK).await.unwrap(), Vec::<String>::new());
        assert_eq!(store.task_uids().await.unwrap(), Vec::<String>::new());
    }
}
