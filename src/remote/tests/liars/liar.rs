//! The liars: an SSH server, and behind it hostile HTTP/2.

use std::{
    io::Write as _,
    net::SocketAddr,
    sync::{Arc, atomic::AtomicU64, atomic::Ordering},
    time::Duration,
};

use h2::{RecvStream, server::SendResponse};
use prost::{Message, bytes::Bytes};
use russh::{
    Channel, ChannelId,
    keys::PrivateKey,
    server::{self, Auth, ChannelOpenHandle, Handler, Msg, Session},
};
use skyward_agent::protocol::{
    Chunk, Fact, Finished, HelloReply, INLINE_BYTES, LeaseReply, Replayed, fact, finished::Ending,
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    time::sleep,
};
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};

/// The lie of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// The machine is honest.
    None,
    /// Its Hello has 60 MiB.
    HugeHello,
    /// Its Hello names more accelerators than any machine has.
    ManyAccelerators,
    /// It tells of runs that nobody started, each with 64 KiB of log and of result, without end.
    Facts,
    /// It tells of small facts without end.
    SmallFacts,
    /// It ends the recorded facts again and again, each time with as many promised runs as it may.
    Replayed,
    /// A fact is larger than any fact.
    HugeFact,
    /// It sends a malformed fact.
    BadFact,
    /// Its trailers have a MiB.
    Trailers,
    /// It sends informational responses without end.
    Informational,
    /// The end of its message never comes.
    SlowDrip,
    /// Each byte is a frame.
    SmallFrames,
    /// It sends a log without end.
    Log,
    /// Its bootstrap scripts print lines without end.
    Lines,
    /// Its bootstrap scripts print one line without end.
    LongLine,
    /// The same line, a byte at a time.
    SlowLine,
    /// It lets the agent be uploaded, and takes none of it.
    Stalls,
    /// It opens channels to the controller.
    Channels,
    /// It closes each connection as soon as somebody has logged in.
    Reconnects,
}

/// In this order again and again.
pub(crate) const LIES: [Lie; 18] = [
    Lie::HugeHello,
    Lie::ManyAccelerators,
    Lie::Facts,
    Lie::SmallFacts,
    Lie::Replayed,
    Lie::HugeFact,
    Lie::BadFact,
    Lie::Trailers,
    Lie::Informational,
    Lie::SlowDrip,
    Lie::SmallFrames,
    Lie::Log,
    Lie::Lines,
    Lie::LongLine,
    Lie::SlowLine,
    Lie::Stalls,
    Lie::Channels,
    Lie::Reconnects,
];

impl Lie {
    /// The lie of a machine, from its name: `m7`, or `honest`.
    pub(crate) fn of(machine: &str) -> Self {
        let number: Option<usize> = machine.strip_prefix('m').and_then(|number| number.parse().ok());
        number.map_or(Self::None, |number| LIES[number % LIES.len()])
    }

    /// Whether it certainly breaks a limit, and does not merely use up its budget.
    pub(crate) fn breaks_a_limit(self) -> bool {
        matches!(
            self,
            Self::HugeHello
                | Self::ManyAccelerators
                | Self::HugeFact
                | Self::BadFact
                | Self::Lines
                | Self::Channels
        )
    }
}

/// Serves until it is killed; says the port that it listens on.
pub(crate) fn serve(arguments: &[String]) {
    let digest = arguments.first().cloned().unwrap_or_default();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async move {
        let (key, _) = skyward_remote::key::generate_keypair("liars").expect("a key");
        let key = PrivateKey::from_openssh(key.expose()).expect("our own form");
        let config = Arc::new(server::Config {
            keys: vec![key],
            maximum_packet_size: 32 * 1024,
            ..server::Config::default()
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let address: SocketAddr = listener.local_addr().expect("its address");
        writeln!(std::io::stdout(), "{}", address.port()).expect("somebody reads the port");
        while let Ok((stream, _)) = listener.accept().await {
            let (config, digest) = (config.clone(), digest.clone());
            tokio::spawn(async move {
                let machine = Machine {
                    name: String::new(),
                    lie: Lie::None,
                    digest,
                    uploads: false,
                };
                if let Ok(running) = server::run_stream(config, stream, machine).await {
                    let _ = running.await;
                }
            });
        }
    });
}

#[derive(Clone)]
struct Machine {
    name: String,
    lie: Lie,
    digest: String,
    /// Whether the command is an upload and no script.
    uploads: bool,
}

impl Handler for Machine {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        user: &str,
        _: server::VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        user.clone_into(&mut self.name);
        // The controller logs in as `namespace.name`.
        self.lie = Lie::of(user.rsplit('.').next().unwrap_or_default());
        Ok(Auth::Accept)
    }

    async fn auth_succeeded(&mut self, session: &mut Session) -> Result<(), Self::Error> {
        match self.lie {
            Lie::Reconnects => return Err(russh::Error::Disconnect),
            Lie::Channels => {
                let handle = session.handle();
                tokio::spawn(async move {
                    while let Ok(_channel) = handle
                        .channel_open_forwarded_tcpip("127.0.0.1", 1, "127.0.0.1", 2)
                        .await
                    {}
                });
            }
            _ => {}
        }
        Ok(())
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_streamlocal(
        &mut self,
        channel: Channel<Msg>,
        _: &str,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), Self::Error> {
        reply.accept().await;
        let machine = self.clone();
        tokio::spawn(async move { machine.speak(channel.into_stream()).await });
        Ok(())
    }

    async fn exec_request(
        &mut self,
        channel: ChannelId,
        command: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        self.uploads = !command.starts_with(b"exec /bin/sh -s");
        session.channel_success(channel)
    }

    /// The script of a bootstrap: only the mark of its lines matters.
    async fn data(
        &mut self,
        channel: ChannelId,
        data: &[u8],
        session: &mut Session,
    ) -> Result<(), Self::Error> {
        if self.lie == Lie::Stalls && self.uploads {
            // The network is full soon.
            std::future::pending::<()>().await;
        }
        let text = String::from_utf8_lossy(data);
        let Some((_, rest)) = text.split_once("skyward_tag=") else {
            return Ok(());
        };
        let line = rest.lines().next().unwrap_or_default();
        let tag = line.trim_matches('\'').to_owned();
        let (handle, lie) = (session.handle(), self.lie);
        let facts = format!(
            "{tag} os Linux\n{tag} arch {}\n{tag} uid 0\n{tag} user root\n{tag} path /bin\n{tag} home /opt/skyward\n\
             {tag} disk_free_kb 9000000\n{tag} python 3.11.2\n{tag} agent_digest {}\n{tag} socket yes\n{tag} prepared yes\n",
            std::env::consts::ARCH,
            if lie == Lie::Stalls { "none" } else { &self.digest }
        );
        tokio::spawn(async move {
            let endless = match lie {
                Lie::Lines => Some(format!("{tag} a\n").repeat(500)),
                Lie::LongLine => Some("x".repeat(16 * 1024)),
                _ => None,
            };
            if lie == Lie::SlowLine {
                while handle.data(channel, "x").await.is_ok() {}
                return;
            }
            if let Some(piece) = endless {
                while handle.data(channel, piece.clone()).await.is_ok() {}
                return;
            }
            let _ = handle.data(channel, facts).await;
            let _ = handle.exit_status_request(channel, 0).await;
            let _ = handle.eof(channel).await;
            let _ = handle.close(channel).await;
        });
        Ok(())
    }
}

impl Machine {
    /// Answers requests until the connection ends.
    async fn speak(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut builder = h2::server::Builder::new();
        builder.max_send_buffer_size(1 << 20);
        let Ok(mut connection) = builder.handshake::<_, Bytes>(stream).await else {
            return;
        };
        while let Some(Ok((request, respond))) = connection.accept().await {
            let machine = self.clone();
            tokio::spawn(async move { machine.answer(request, respond).await });
        }
    }

    async fn answer(self, request: Request<RecvStream>, mut respond: SendResponse<Bytes>) -> Option<()> {
        let call = request
            .uri()
            .path()
            .rsplit('/')
            .next()
            .unwrap_or_default()
            .to_owned();
        if self.lie == Lie::Informational && call == "RenewLease" {
            loop {
                let hint = Response::builder().status(103).body(()).ok()?;
                respond.send_informational(hint).ok()?;
                tokio::task::yield_now().await;
            }
        }
        let head = Response::builder()
            .header("content-type", "application/grpc")
            .body(())
            .ok()?;
        let stream = respond.send_response(head, false).ok()?;
        let mut body = Sending(stream);
        match (call.as_str(), self.lie) {
            ("Hello", Lie::HugeHello) => {
                body.bytes(frame_head(60 << 20)).await?;
                loop {
                    body.bytes(vec![b'x'; 16 * 1024]).await?;
                }
            }
            ("Hello", lie) => {
                let many = if lie == Lie::ManyAccelerators { 65 } else { 1 };
                let hello = HelloReply {
                    protocol: 1,
                    agent_version: "0.0.0-liar".into(),
                    agent_digest: self.digest.clone(),
                    machine: self.name.replace('.', "/"),
                    boot_id: "boot".into(),
                    python: "3.11.2".into(),
                    accelerators: vec!["H100".into(); many],
                    marks_replay: true,
                    ..HelloReply::default()
                };
                body.message(&hello).await?;
            }
            ("RenewLease", Lie::Trailers) => {
                body.message(&LeaseReply::default()).await?;
                let mut trailers = HeaderMap::new();
                let value = HeaderValue::from_str(&"x".repeat(1 << 20)).ok()?;
                trailers.insert("grpc-message", value);
                return body.0.send_trailers(trailers).ok();
            }
            ("RenewLease", _) => body.message(&LeaseReply::default()).await?,
            ("Watch", lie) => return watch(lie, body).await,
            ("ReadLog", Lie::Log) => {
                for number in 0_u64.. {
                    let chunk = Chunk {
                        offset: number * (256 << 10),
                        data: vec![0; 256 << 10].into(),
                    };
                    body.message(&chunk).await?;
                }
            }
            _ => {}
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        body.0.send_trailers(trailers).ok()
    }
}

/// A run that nobody started.
fn run_id() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!(
        "00000000-0000-4000-8000-{:012}-1-0",
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

fn end(output: usize) -> Fact {
    Fact {
        seq: 1,
        run_id: run_id(),
        fact: Some(fact::Fact::Finished(Finished {
            ending: Ending::Exited.into(),
            message: "m".repeat(1000),
            log_bytes: output as u64,
            log: vec![b'x'; output],
            log_tail: vec![b'x'; 2048],
            result_bytes: output as u64,
            result: vec![b'1'; output],
            has_result: output > 0,
            ..Finished::default()
        })),
    }
}

async fn watch(lie: Lie, mut body: Sending) -> Option<()> {
    match lie {
        Lie::Facts => loop {
            body.message(&end(INLINE_BYTES)).await?;
        },
        Lie::SmallFacts => loop {
            body.message(&end(0)).await?;
        },
        Lie::Replayed => loop {
            let accepted = (0..1024).map(|_| run_id()).collect();
            let mark = Fact {
                fact: Some(fact::Fact::Replayed(Replayed { accepted })),
                ..Fact::default()
            };
            body.message(&mark).await?;
        },
        Lie::HugeFact => loop {
            body.message(&end(200 << 10)).await?;
        },
        Lie::BadFact => {
            let fact = Fact {
                run_id: "../../etc".into(),
                ..end(0)
            };
            body.message(&fact).await?;
        }
        Lie::SlowDrip => {
            body.bytes(frame_head(130 << 10)).await?;
            body.bytes(vec![0; 129 << 10]).await?;
        }
        Lie::SmallFrames => {
            body.bytes(frame_head(130 << 10)).await?;
            for _ in 0..129 << 10 {
                body.bytes(vec![0]).await?;
            }
        }
        _ => {
            let mark = Fact {
                fact: Some(fact::Fact::Replayed(Replayed::default())),
                ..Fact::default()
            };
            body.message(&mark).await?;
        }
    }
    // The stream stays open.
    loop {
        sleep(Duration::from_mins(1)).await;
    }
}

fn frame_head(length: u32) -> Vec<u8> {
    [&[0][..], &length.to_be_bytes()].concat()
}

/// A response's body, sent as fast as the other side takes it.
struct Sending(h2::SendStream<Bytes>);

impl Sending {
    async fn message(&mut self, message: &impl Message) -> Option<()> {
        let bytes = message.encode_to_vec();
        let mut framed = frame_head(u32::try_from(bytes.len()).ok()?);
        framed.extend(bytes);
        self.bytes(framed).await
    }

    async fn bytes(&mut self, bytes: Vec<u8>) -> Option<()> {
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            self.0.reserve_capacity(bytes.len());
            let room = std::future::poll_fn(|cx| self.0.poll_capacity(cx)).await?.ok()?;
            self.0
                .send_data(bytes.split_to(room.min(bytes.len())), false)
                .ok()?;
        }
        Some(())
    }
}
