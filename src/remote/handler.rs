//! Our half of an SSH connection: which host key is accepted, why the connection ended, and what a
//! server must not do.

use std::sync::Arc;

use parking_lot::Mutex;
use russh::{
    ChannelId,
    client::{self, DisconnectReason},
    keys::{PublicKey, PublicKeyOrCertificate},
};

use crate::{
    cut::Lost,
    key,
    limits::{self, Breach, Broken},
    ssh::{Channel, ConnectError},
};

/// Data in one packet.
pub(crate) const DATA: usize = 16 * 1024;

/// Our half of the conversation.
pub(crate) struct Client {
    pub(crate) pinned: Option<PublicKey>,
    pub(crate) shown: Arc<Mutex<Option<String>>>,
    pub(crate) lost: Arc<Lost>,
    pub(crate) breach: Breach,
}

/// Errors that end the connection.
#[derive(Debug)]
pub(crate) enum ClientError {
    HostKeyChanged {
        expected: String,
        found: String,
    },
    HostCertificate,
    /// The server asked for something that we did not offer.
    Broken(String),
    Library(russh::Error),
}

impl From<russh::Error> for ClientError {
    fn from(error: russh::Error) -> Self {
        Self::Library(error)
    }
}

impl ClientError {
    pub(crate) fn into_connect_error(self) -> ConnectError {
        match self {
            Self::HostKeyChanged { expected, found } => ConnectError::HostKeyChanged { expected, found },
            Self::HostCertificate => ConnectError::Unsupported(
                "the machine shows a host certificate; a plain ed25519 key is needed".into(),
            ),
            Self::Broken(why) => ConnectError::Unreachable(why),
            Self::Library(russh::Error::NoCommonAlgo {
                kind: russh::AlgorithmKind::Key,
                theirs,
                ..
            }) => ConnectError::Unsupported(format!(
                "the SSH server has no ed25519 host key (it offers {}): make one with `ssh-keygen -A` and restart sshd",
                limits::reason(&theirs.join(", "))
            )),
            Self::Library(russh::Error::NoCommonAlgo { kind, theirs, .. }) => {
                ConnectError::Unsupported(format!(
                    "the SSH server is too old: it offers no {kind:?} algorithm that we use (only {})",
                    limits::reason(&theirs.join(", "))
                ))
            }
            Self::Library(russh::Error::Disconnect | russh::Error::HUP) => ConnectError::Unreachable(
                "something accepts connections and closes them before SSH answers".into(),
            ),
            Self::Library(error) => ConnectError::Unreachable(format!("SSH could not be set up: {error}")),
        }
    }
}

/// Handlers of channels that a server opens to us: none may.
macro_rules! refused {
    ($($handler:ident($($argument:ty),*);)*) => {$(
        async fn $handler(
            &mut self,
            $(_: $argument,)*
            _: &mut client::Session,
        ) -> Result<(), Self::Error> {
            Err(self.opened())
        }
    )*};
}

impl client::Handler for Client {
    type Error = ClientError;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, Self::Error> {
        let PublicKeyOrCertificate::PublicKey { key, .. } = key else {
            return Err(ClientError::HostCertificate);
        };
        if let Some(pinned) = &self.pinned
            && pinned.key_data() != key.key_data()
        {
            let print = |key: &PublicKey| key.fingerprint(russh::keys::HashAlg::Sha256).to_string();
            return Err(ClientError::HostKeyChanged {
                expected: print(pinned),
                found: print(key),
            });
        }
        *self.shown.lock() = Some(key::bare_line(key));
        Ok(true)
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Self::Error>) -> Result<(), Self::Error> {
        self.lost.because(match reason {
            DisconnectReason::ReceivedDisconnect(info) => {
                format!("the machine closed it: {}", info.message.trim())
            }
            DisconnectReason::Error(ClientError::Library(russh::Error::KeepaliveTimeout)) => {
                "no sign of life for a minute".into()
            }
            DisconnectReason::Error(ClientError::Library(russh::Error::Disconnect | russh::Error::HUP)) => {
                "the machine closed the connection".into()
            }
            DisconnectReason::Error(ClientError::Library(error)) => error.to_string(),
            DisconnectReason::Error(ClientError::Broken(why)) => why,
            DisconnectReason::Error(ClientError::HostKeyChanged { .. } | ClientError::HostCertificate) => {
                "its host key changed".into()
            }
        });
        Ok(())
    }

    // The library does not check that a server keeps to the agreed size.
    async fn data(&mut self, _: ChannelId, data: &[u8], _: &mut client::Session) -> Result<(), Self::Error> {
        self.received(data)
    }
    async fn extended_data(
        &mut self,
        _: ChannelId,
        _: u32,
        data: &[u8],
        _: &mut client::Session,
    ) -> Result<(), Self::Error> {
        self.received(data)
    }

    // Nothing is forwarded, so a server has no channel to open; the library would accept any
    // number.
    refused! {
        server_channel_open_forwarded_tcpip(Channel, &str, u32, &str, u32, client::ChannelOpenHandle);
        server_channel_open_forwarded_streamlocal(Channel, &str, client::ChannelOpenHandle);
        server_channel_open_agent_forward(Channel, client::ChannelOpenHandle);
        server_channel_open_session(Channel, client::ChannelOpenHandle);
        server_channel_open_direct_tcpip(Channel, &str, u32, &str, u32, client::ChannelOpenHandle);
        server_channel_open_direct_streamlocal(Channel, &str, client::ChannelOpenHandle);
        server_channel_open_x11(Channel, &str, u32, client::ChannelOpenHandle);
    }
}

impl Client {
    fn received(&self, data: &[u8]) -> Result<(), ClientError> {
        if data.len() <= DATA {
            return Ok(());
        }
        let words = format!(
            "{} bytes in one SSH packet; at most {DATA} are allowed",
            data.len()
        );
        Err(self.broken(words))
    }

    /// The server opened a channel to us.
    fn opened(&self) -> ClientError {
        self.broken("a channel that its SSH server opened; none may")
    }

    fn broken(&self, words: impl Into<String>) -> ClientError {
        let broken = Broken::new(words);
        self.breach.report(&broken);
        ClientError::Broken(broken.to_string())
    }
}
