//! An SSH connection: the identity of the host, commands, files, and streams to the agent's socket.
//!
//! ed25519 only, for our keys and for host keys: every OpenSSH of the last ten years has
//! it, and one kind means that a host key cannot seem changed because another kind was
//! offered. Everything has a deadline. Dropping a [`Connection`] cuts it.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::future::OptionFuture;
use parking_lot::Mutex;
use russh::{
    ChannelMsg, Disconnect, MethodKind, MethodSet, Preferred, cipher,
    client::{self, AuthResult},
    keys::{Algorithm, PrivateKey, PrivateKeyWithHashAlg},
};
use skyward_core::Secret;
use tokio::{
    fs::File,
    io::AsyncReadExt as _,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::{
    connector::WINDOW,
    cut::{Cuttable, Lost},
    dial::Stream,
    handler::{Client, ClientError, DATA},
    key,
    limits::{self, Breach},
    meter::Meter,
};

/// Time for the greeting, the key exchange and the login.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// Time for a channel to open.
const OPEN: Duration = Duration::from_secs(10);
/// Time for the last output to arrive after the exit status.
const DRAIN: Duration = Duration::from_secs(2);
/// Pause between signs of life on a silent connection; three without an answer end it.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Most input on its way to the machine at once. The library's buffers stay as large as the largest
/// piece for the life of the connection.
const PIECE: usize = 8 * 1024;

/// Packets of a channel that wait to be taken, at most. With fewer, both directions could wait
/// for each other: the library writes nothing while it waits for a packet to be taken.
const PACKETS: usize = 8;

pub(crate) type Channel = russh::Channel<client::Msg>;
type WriteHalf = russh::ChannelWriteHalf<client::Msg>;

/// Why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It broke or did not answer; trying again may help.
    #[error("{0}")]
    Unreachable(String),
    /// The machine shows another host key than the pinned one.
    #[error("the machine shows another host key ({found}) than before ({expected})")]
    HostKeyChanged {
        /// Fingerprint of the pinned key.
        expected: String,
        /// Fingerprint of the key it shows.
        found: String,
    },
    /// It lets us in, and has not proved its host key; trying again may help.
    #[error("its host key is not proved yet: {0}")]
    Unproved(String),
    /// The machine's proof is of another host key.
    #[error("the machine shows a host key ({found}) that its proof is not of")]
    HostKeyNotProved {
        /// Fingerprint of the key it shows.
        found: String,
    },
    /// The machine refuses our login.
    #[error("the machine does not accept {tried} for user \"{user}\" (it offers: {methods})")]
    AuthRefused {
        /// What was tried.
        tried: &'static str,
        /// User to log in as.
        user: String,
        /// The methods that it offers.
        methods: String,
    },
    /// We cannot talk with the machine at all.
    #[error("{0}")]
    Unsupported(String),
}

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExecError {
    /// The connection is gone; whether the command ran is not known.
    #[error("the SSH connection is lost: {0}")]
    Lost(String),
    /// The machine does not run commands for us.
    #[error("the machine refused to run a command: {0}")]
    Refused(String),
    /// It took longer than its deadline.
    #[error("no end within {} s", .0.as_secs())]
    TimedOut(Duration),
}

/// What a command gets on its standard input.
pub enum Input {
    /// These bytes.
    Bytes(Bytes),
    /// A file from its current position; an error ends it early.
    File(File),
}

impl Default for Input {
    fn default() -> Self {
        Self::Bytes(Bytes::new())
    }
}

impl From<Bytes> for Input {
    fn from(bytes: Bytes) -> Self {
        Self::Bytes(bytes)
    }
}

impl Input {
    async fn next(&mut self) -> Option<Bytes> {
        let piece = match self {
            Self::Bytes(bytes) => bytes.split_to(bytes.len().min(PIECE)),
            Self::File(file) => {
                let mut piece = BytesMut::with_capacity(PIECE);
                file.read_buf(&mut piece).await.ok()?;
                piece.freeze()
            }
        };
        (!piece.is_empty()).then_some(piece)
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// With this status.
    Status(u32),
    /// By this signal.
    Signal(String),
    /// The machine did not tell.
    Unknown,
}

/// Which of a command's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The user who logs in, and the address.
#[derive(Clone, Debug)]
pub struct Login<'a> {
    /// User.
    pub user: &'a str,
    /// Private key in OpenSSH form.
    pub private_key: &'a Secret,
    /// The user's password, for a machine that does not know the key yet.
    pub password: Option<&'a Secret>,
    /// Pinned host key in OpenSSH form; `None` = accept and report.
    pub host_key: Option<&'a str>,
}

/// A connection on which we are logged in.
pub struct Connection {
    handle: client::Handle<Client>,
    host_key: String,
    lost: Arc<Lost>,
    meter: Arc<Meter>,
    breach: Breach,
    /// Whether the server does not forward Unix sockets, so that we do not ask again.
    bridge_only: AtomicBool,
    _cut: DropGuard,
}

impl Connection {
    /// Greets, checks the host key and logs in.
    pub(crate) async fn open(
        stream: Box<dyn Stream>,
        login: &Login<'_>,
        meter: Arc<Meter>,
    ) -> Result<Self, ConnectError> {
        let handshake = timeout(HANDSHAKE, Self::handshake(stream, login, meter)).await;
        handshake.map_err(|_| {
            ConnectError::Unreachable(format!(
                "something accepts connections but SSH did not answer within {} s",
                HANDSHAKE.as_secs()
            ))
        })?
    }

    async fn handshake(
        stream: Box<dyn Stream>,
        login: &Login<'_>,
        meter: Arc<Meter>,
    ) -> Result<Self, ConnectError> {
        let unusable = |error: key::KeyError| ConnectError::Unsupported(error.to_string());
        let private = key::parse_private(login.private_key).map_err(unusable)?;
        let pinned = login
            .host_key
            .map(|key| key::parse_public(key, "host"))
            .transpose()
            .map_err(unusable)?;
        let lost = Arc::new(Lost::default());
        let cut = CancellationToken::new();
        let guard = cut.clone().drop_guard();
        let shown = Arc::new(Mutex::new(None));
        let breach = Breach::default();
        let client = Client {
            pinned,
            shown: shown.clone(),
            lost: lost.clone(),
            breach: breach.clone(),
        };
        let stream = Cuttable::new(stream, cut, lost.clone(), meter.clone(), breach.clone());
        let mut handle = client::connect_stream(config(), stream, client)
            .await
            .map_err(ClientError::into_connect_error)?;
        authenticate(&mut handle, login, private, &lost).await?;
        let host_key = shown.lock().take().unwrap_or_default();
        Ok(Self {
            handle,
            host_key,
            lost,
            meter,
            breach,
            bridge_only: AtomicBool::new(false),
            _cut: guard,
        })
    }

    /// The host key that the machine showed, in OpenSSH form.
    pub fn host_key(&self) -> &str {
        &self.host_key
    }

    /// Waits until the connection is lost; says why.
    pub async fn lost(&self) -> String {
        self.lost.token.cancelled().await;
        self.lost.reason()
    }

    /// Whether the machine broke a limit on this connection. Data before the login is not
    /// authenticated, and does not count.
    pub(crate) fn breach(&self) -> &Breach {
        &self.breach
    }

    /// Bytes that the network has taken so far.
    pub(crate) fn written(&self) -> u64 {
        self.lost.written()
    }

    /// The meter of its messages.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// Closes the connection politely. Without this it is cut when dropped.
    pub async fn close(&self) {
        let goodbye = self.handle.disconnect(Disconnect::ByApplication, "", "en");
        if timeout(Duration::from_millis(250), goodbye).await.is_ok() {
            // The library sends the message in its next turn, then ends the connection.
            let _ = timeout(Duration::from_millis(250), self.lost.token.cancelled()).await;
        }
    }

    /// Runs a command through the login shell, feeds it `input`, and hands its output on
    /// as it comes.
    pub async fn exec(
        &self,
        command: &str,
        input: impl Into<Input>,
        limit: Duration,
        output: impl FnMut(Output, &[u8]) + Send,
    ) -> Result<Exit, ExecError> {
        let exec = self.exec_to_its_end(command, input.into(), output);
        timeout(limit, exec)
            .await
            .unwrap_or(Err(ExecError::TimedOut(limit)))
    }

    async fn exec_to_its_end(
        &self,
        command: &str,
        mut input: Input,
        mut output: impl FnMut(Output, &[u8]) + Send,
    ) -> Result<Exit, ExecError> {
        let (mut read, write) = self.open_session().await?.split();
        let write = ClosedOnDrop(Some(write));
        let channel = write.get();
        channel
            .exec(true, command)
            .await
            .map_err(|error| self.lost_error(&error))?;
        // A command that ends without reading its input never opens the window again, so
        // feeding must not be waited for.
        let feed = async {
            // One piece at a time, the next when the network has taken it: the library's buffer
            // grows with what it is given and never shrinks. Counted anew for each piece, since
            // more bytes go out than the pieces have.
            while let Some(piece) = input.next().await {
                let taken = self.lost.written() + piece.len() as u64;
                if channel.data_bytes(piece).await.is_err() {
                    break;
                }
                self.lost.wait_written(taken).await;
            }
            let _ = channel.eof().await;
            std::future::pending::<()>().await;
        };
        tokio::pin!(feed);
        let mut exit = None;
        let mut deadline = None::<Instant>;
        loop {
            let message = tokio::select! {
                message = read.wait() => message,
                () = &mut feed => continue,
                Some(()) = OptionFuture::from(deadline.map(sleep_until)) => break,
            };
            match message {
                Some(ChannelMsg::Data { data }) => output(Output::Out, &data),
                Some(ChannelMsg::ExtendedData { data, .. }) => output(Output::Err, &data),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    exit = Some(Exit::Status(exit_status));
                    // A process that it left behind may hold its output open for ever.
                    deadline = Some(Instant::now() + DRAIN);
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    exit = Some(Exit::Signal(limits::reason(&format!("{signal_name:?}"))));
                    deadline = Some(Instant::now() + DRAIN);
                }
                Some(ChannelMsg::Failure) => {
                    return Err(ExecError::Refused(
                        "the SSH server started no command: it allows none for this user, or the machine has no room for another process".into(),
                    ));
                }
                Some(ChannelMsg::Eof) if exit.is_some() => break,
                Some(ChannelMsg::Close) | None => break,
                Some(_) => {}
            }
        }
        match exit {
            Some(exit) => Ok(exit),
            None if self.lost.token.is_cancelled() => Err(ExecError::Lost(self.lost.reason())),
            None => Ok(Exit::Unknown),
        }
    }

    /// A stream to a Unix socket on the machine, or, where the server does not forward
    /// sockets, to the standard input and output of the command `bridge` (then with `true`).
    pub async fn socket(&self, path: &str, bridge: &str) -> Result<(Box<dyn Stream>, bool), ExecError> {
        if !self.bridge_only.load(Ordering::Relaxed) {
            match timeout(OPEN, self.handle.channel_open_direct_streamlocal(path)).await {
                Ok(Ok(channel)) => return Ok((Box::new(channel.into_stream()), false)),
                // OpenSSH gives the same answer for "forbidden" and "nobody listens": the
                // bridge finds out.
                Ok(Err(russh::Error::ChannelOpenFailure(_))) => {}
                Ok(Err(error)) => return Err(self.lost_error(&error)),
                Err(_) => return Err(ExecError::TimedOut(OPEN)),
            }
        }
        let mut channel = self.open_session().await?;
        let request = async {
            channel.exec(true, bridge).await?;
            while let Some(message) = channel.wait().await {
                match message {
                    ChannelMsg::Success => return Ok(true),
                    ChannelMsg::Failure | ChannelMsg::Close => return Ok(false),
                    _ => {}
                }
            }
            Err(russh::Error::Disconnect)
        };
        match timeout(OPEN, request).await {
            Ok(Ok(true)) => Ok((Box::new(channel.into_stream()), true)),
            Ok(Ok(false)) => Err(ExecError::Refused(
                "the SSH server forwards no sockets and allows no commands".into(),
            )),
            Ok(Err(error)) => Err(self.lost_error(&error)),
            Err(_) => Err(ExecError::TimedOut(OPEN)),
        }
    }

    /// An agent answered through the bridge: this server does not forward sockets.
    pub fn prefer_bridge(&self) {
        self.bridge_only.store(true, Ordering::Relaxed);
    }

    async fn open_session(&self) -> Result<Channel, ExecError> {
        match timeout(OPEN, self.handle.channel_open_session()).await {
            Ok(Ok(channel)) => Ok(channel),
            Ok(Err(russh::Error::ChannelOpenFailure(reason))) => Err(ExecError::Refused(format!(
                "the SSH server opens no session ({reason:?}); MaxSessions must be at least 2"
            ))),
            Ok(Err(error)) => Err(self.lost_error(&error)),
            Err(_) => Err(ExecError::TimedOut(OPEN)),
        }
    }

    fn lost_error(&self, error: &russh::Error) -> ExecError {
        ExecError::Lost(if self.lost.token.is_cancelled() {
            self.lost.reason()
        } else {
            error.to_string()
        })
    }
}

/// Logs in by the key, and by the password where there is one and the machine does not know the key. The host key is
/// checked before that: no other host than the pinned one is sent a password.
async fn authenticate(
    handle: &mut client::Handle<Client>,
    login: &Login<'_>,
    private: PrivateKey,
    lost: &Lost,
) -> Result<(), ConnectError> {
    let key = PrivateKeyWithHashAlg::new(Arc::new(private), None);
    let answer = handle.authenticate_publickey(login.user, key).await;
    let Some(methods) = refused(handle, answer, lost)? else {
        return Ok(());
    };
    let takes_passwords = methods.contains(&MethodKind::Password);
    let (tried, methods) = match login.password.filter(|_| takes_passwords) {
        None => ("the Pool's key", methods),
        Some(password) => {
            let answer = handle.authenticate_password(login.user, password.expose()).await;
            match refused(handle, answer, lost)? {
                None => return Ok(()),
                Some(methods) => ("the Pool's key and the password that its cloud tells", methods),
            }
        }
    };
    let methods: Vec<&str> = methods.iter().map(Into::into).collect();
    Err(ConnectError::AuthRefused {
        tried,
        user: login.user.to_owned(),
        methods: if methods.is_empty() {
            "nothing".to_owned()
        } else {
            limits::reason(&methods.join(", "))
        },
    })
}

/// The methods that a machine offers instead of one that it refused; none where it lets us in.
fn refused(
    handle: &client::Handle<Client>,
    answer: Result<AuthResult, russh::Error>,
    lost: &Lost,
) -> Result<Option<MethodSet>, ConnectError> {
    match answer {
        Ok(AuthResult::Success) => Ok(None),
        // The library gives the same answer when the connection broke in between.
        Ok(AuthResult::Failure { .. }) if handle.is_closed() || lost.token.is_cancelled() => {
            Err(ConnectError::Unreachable(format!(
                "the connection was closed during login: {}",
                lost.reason()
            )))
        }
        Ok(AuthResult::Failure {
            remaining_methods, ..
        }) => Ok(Some(remaining_methods)),
        Err(error) => Err(ConnectError::Unreachable(format!("the login broke: {error}"))),
    }
}

fn config() -> Arc<client::Config> {
    let mut preferred = Preferred::DEFAULT;
    preferred.key = Cow::Borrowed(&[Algorithm::Ed25519]);
    // With hardware AES several times faster than ChaCha20, and always there in OpenSSH.
    preferred.cipher = Cow::Borrowed(&[
        cipher::AES_256_GCM,
        cipher::CHACHA20_POLY1305,
        cipher::AES_256_CTR,
        cipher::AES_192_CTR,
        cipher::AES_128_CTR,
    ]);
    preferred.compression = Cow::Borrowed(&[russh::compression::NONE]);
    Arc::new(client::Config {
        client_id: russh::SshId::Standard(Cow::Borrowed(concat!(
            "SSH-2.0-Skyward_",
            env!("CARGO_PKG_VERSION")
        ))),
        // Bytes that one round trip may carry: below those of the connection to the agent.
        window_size: 2 * WINDOW,
        maximum_packet_size: DATA as u32,
        // Packets that are not taken yet; while they wait nothing is read.
        channel_buffer_size: PACKETS,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 3,
        nodelay: true,
        preferred,
        ..client::Config::default()
    })
}

/// Closes the channel when dropped, so that a command that was given up does not keep
/// its place in the connection.
struct ClosedOnDrop(Option<WriteHalf>);

impl ClosedOnDrop {
    fn get(&self) -> &WriteHalf {
        self.0.as_ref().expect("taken only when dropped")
    }
}

impl Drop for ClosedOnDrop {
    fn drop(&mut self) {
        if let (Some(channel), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            // A detached task, gone within a second.
            runtime.spawn(timeout(
                Duration::from_secs(1),
                async move { channel.close().await },
            ));
        }
    }
}
