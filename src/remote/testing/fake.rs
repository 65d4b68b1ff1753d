//! An agent that does nothing: a shell script to upload, and a server behind its socket.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    pin::Pin,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use futures::Stream;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::{
    binaries::AgentBinaries,
    protocol::{
        CHUNK_BYTES, Chunk, Fact, FetchGitReply, FetchGitRequest, ForgetReply, ForgetRequest, HelloReply,
        HelloRequest, LeaseReply, LeaseRequest, PutBundleReply, PutBundleRequest, ReadBundleRequest,
        ReadLogRequest, ReadResultRequest, RunState, StartRequest, Started, StopRequest, WatchRequest,
        agent_server::{Agent, AgentServer},
        fact,
    },
};

/// The uploaded script: notes how it was started, and bridges with Python.
const SCRIPT: &str = r#"#!/bin/sh
case $1 in
  start)
    echo "$*" >> "$3/started"
    [ ! -e "$3/broken" ] || { echo "cannot start: $(cat "$3/broken")" >&2; exit 7; } ;;
  bridge)
    exec python3 -c '
import socket, sys, threading, os
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
def up():
    while True:
        b = os.read(0, 65536)
        if not b: break
        s.sendall(b)
    s.shutdown(socket.SHUT_WR)
threading.Thread(target=up, daemon=True).start()
while True:
    b = s.recv(65536)
    if not b: break
    os.write(1, b)
' "$3/agent.sock" ;;
esac
"#;

/// A client that asks for facts after this one is told of a run with an impossible id.
pub(super) const LIE: u64 = 666;
/// From this epoch on, the fake names the newest one that it saw instead of refusing an older.
pub(super) const NEWER: u64 = 100;

/// The executable to upload.
pub(super) struct FakeAgent {
    directory: tempfile::TempDir,
}

impl FakeAgent {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("skyward-agent");
        fs::write(&path, SCRIPT).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        Self { directory }
    }

    /// Puts the same beside it, compressed. Returns the path of that file.
    pub(super) fn compress(&self) -> std::path::PathBuf {
        let plain = self.directory.path().join("skyward-agent");
        let gzip = Command::new("gzip").arg("-k").arg(&plain).status().unwrap();
        assert!(gzip.success());
        plain.with_extension("gz")
    }

    pub(super) fn binaries(&self) -> AgentBinaries {
        AgentBinaries::of_this_architecture(self.directory.path().join("skyward-agent")).unwrap()
    }

    pub(super) fn digest(&self) -> String {
        self.binaries()
            .get(std::env::consts::ARCH)
            .unwrap()
            .digest
            .clone()
    }
}

/// The server behind an agent's socket, until dropped.
pub(super) struct Server {
    pub(super) leases: Arc<AtomicU64>,
    pub(super) hellos: Arc<AtomicU64>,
    /// Whether it answers Hello, and refuses our epoch in every later call.
    pub(super) refuses_commands: Arc<AtomicBool>,
    stop: CancellationToken,
    socket: std::path::PathBuf,
}

impl Server {
    /// Serves as that machine; refuses epochs below `epoch`.
    pub(super) fn start(home: &str, machine: &str, digest: &str, epoch: u64) -> Self {
        Self::start_in("boot", home, machine, digest, epoch)
    }

    /// Serves in another life of the machine.
    pub(super) fn start_in(boot: &str, home: &str, machine: &str, digest: &str, epoch: u64) -> Self {
        fs::create_dir_all(home).unwrap();
        let socket = std::path::Path::new(home).join("agent.sock");
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).unwrap();
        let stop = CancellationToken::new();
        let (leases, hellos) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let refuses_commands = Arc::<AtomicBool>::default();
        let service = Service {
            machine: machine.to_owned(),
            boot: boot.to_owned(),
            digest: digest.to_owned(),
            epoch,
            newer_epoch: epoch >= NEWER,
            leases: leases.clone(),
            hellos: hellos.clone(),
            refuses_commands: refuses_commands.clone(),
        };
        let service = AgentServer::new(service).max_encoding_message_size(64 << 20);
        let server = tonic::transport::Server::builder();
        let stopped = stop.clone();
        tokio::spawn(async move {
            // Dropped as it is, connections included: an agent that was killed.
            tokio::select! {
                () = stopped.cancelled() => {}
                result = server.serve_with_incoming(service, cut(listener, stopped.clone())) => result.unwrap(),
            }
        });
        Self {
            leases,
            hellos,
            refuses_commands,
            stop,
            socket,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
        let _ = fs::remove_file(&self.socket);
    }
}

/// Connections that end when the server does: tonic serves each in a task of its own.
fn cut(
    listener: UnixListener,
    stop: CancellationToken,
) -> impl Stream<Item = io::Result<tokio::io::DuplexStream>> {
    use futures::StreamExt as _;
    UnixListenerStream::new(listener).map(move |stream| {
        let mut stream = stream?;
        let (ours, mut theirs) = tokio::io::duplex(1 << 20);
        let stop = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = stop.cancelled() => {}
                _ = tokio::io::copy_bidirectional_with_sizes(&mut stream, &mut theirs, 1 << 17, 1 << 17) => {}
            }
        });
        Ok(ours)
    })
}

struct Service {
    machine: String,
    boot: String,
    digest: String,
    epoch: u64,
    newer_epoch: bool,
    leases: Arc<AtomicU64>,
    hellos: Arc<AtomicU64>,
    refuses_commands: Arc<AtomicBool>,
}

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Agent for Service {
    async fn hello(&self, request: Request<HelloRequest>) -> Answer<HelloReply> {
        self.hellos.fetch_add(1, Ordering::Relaxed);
        if request.get_ref().epoch < self.epoch && !self.newer_epoch {
            return Err(Status::failed_precondition("epoch too old"));
        }
        Ok(Response::new(HelloReply {
            protocol: 1,
            agent_version: "0.0.0-fake".into(),
            agent_digest: self.digest.clone(),
            machine: self.machine.clone(),
            boot_id: self.boot.clone(),
            last_seq: 0,
            python: "3.11.2".into(),
            accelerators: vec!["H100".into()],
            newest_epoch: self.epoch,
            epoch_proof: format!("proof of {}", self.epoch),
            ..HelloReply::default()
        }))
    }

    async fn start(&self, _: Request<StartRequest>) -> Answer<RunState> {
        Err(Status::resource_exhausted("the journal has no room"))
    }

    async fn put_bundle(&self, _: Request<PutBundleRequest>) -> Answer<PutBundleReply> {
        Err(Status::resource_exhausted("there is no room"))
    }

    async fn fetch_git(&self, _: Request<FetchGitRequest>) -> Answer<FetchGitReply> {
        Err(Status::resource_exhausted("there is no room"))
    }

    type ReadBundleStream = Streamed<Chunk>;
    async fn read_bundle(&self, _: Request<ReadBundleRequest>) -> Answer<Self::ReadBundleStream> {
        Err(Status::not_found("no such bundle"))
    }

    async fn stop(&self, _: Request<StopRequest>) -> Answer<RunState> {
        Err(Status::not_found("no such run"))
    }

    type WatchStream = Streamed<Fact>;
    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Self::WatchStream> {
        let first = Fact {
            seq: request.get_ref().since + 1,
            run_id: "../r".into(),
            fact: (request.get_ref().since == LIE).then(|| fact::Fact::Started(Started::default())),
        };
        use futures::StreamExt as _;
        Ok(Response::new(Box::pin(
            futures::stream::iter([Ok(first)]).chain(futures::stream::pending()),
        )))
    }

    type ReadLogStream = Streamed<Chunk>;
    async fn read_log(&self, _: Request<ReadLogRequest>) -> Answer<Self::ReadLogStream> {
        Ok(Response::new(Box::pin(futures::stream::empty())))
    }

    type ReadResultStream = Streamed<Chunk>;
    /// Zeros: `offset` says how many MiB.
    async fn read_result(&self, request: Request<ReadResultRequest>) -> Answer<Self::ReadResultStream> {
        let size = request.get_ref().offset << 20;
        let chunks = (0..size).step_by(CHUNK_BYTES).map(|offset| {
            Ok(Chunk {
                offset,
                data: vec![0; CHUNK_BYTES].into(),
            })
        });
        Ok(Response::new(Box::pin(futures::stream::iter(
            chunks.collect::<Vec<_>>(),
        ))))
    }

    async fn forget(&self, _: Request<ForgetRequest>) -> Answer<ForgetReply> {
        if self.refuses_commands.load(Ordering::Relaxed) {
            return Err(Status::failed_precondition("stale epoch"));
        }
        Ok(Response::new(ForgetReply {}))
    }

    async fn renew_lease(&self, _: Request<LeaseRequest>) -> Answer<LeaseReply> {
        self.leases.fetch_add(1, Ordering::Relaxed);
        Ok(Response::new(LeaseReply {
            running: 0,
            uncollected: 0,
        }))
    }
}
