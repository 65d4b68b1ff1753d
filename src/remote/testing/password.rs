//! A machine that lets in by a password until it knows the Pool's key. No real user of this computer has a password,
//! so its SSH server is the library's.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use russh::{
    keys::PrivateKey,
    server::{self, Auth, Handler},
};
use skyward_core::{Secret, machine::Dial};
use tokio::net::TcpListener;

use crate::{
    budget::Budget,
    dial, key,
    meter::Meter,
    ssh::{ConnectError, Connection, Login},
};

const PASSWORD: &str = "canary-of-a-password";

/// The machine, and what was said to it.
#[derive(Clone, Default)]
struct Door {
    knows_key: Arc<AtomicBool>,
    passwords: Arc<Mutex<Vec<String>>>,
}

impl Handler for Door {
    type Error = russh::Error;

    async fn auth_publickey(
        &mut self,
        _: &str,
        _: server::VerifiedPublicKey<'_>,
    ) -> Result<Auth, Self::Error> {
        Ok(if self.knows_key.load(Ordering::Relaxed) {
            Auth::Accept
        } else {
            Auth::reject()
        })
    }

    async fn auth_password(&mut self, _: &str, password: &str) -> Result<Auth, Self::Error> {
        self.passwords.lock().push(password.to_owned());
        Ok(if password == PASSWORD {
            Auth::Accept
        } else {
            Auth::reject()
        })
    }
}

impl Door {
    /// Serves in the background, with a host key of its own.
    async fn open(&self) -> SocketAddr {
        let (host_key, _) = key::generate_keypair("host").unwrap();
        let config = Arc::new(server::Config {
            keys: vec![PrivateKey::from_openssh(host_key.expose()).unwrap()],
            auth_rejection_time: Duration::ZERO,
            ..server::Config::default()
        });
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let door = self.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (config, door) = (config.clone(), door.clone());
                tokio::spawn(async move {
                    if let Ok(running) = server::run_stream(config, stream, door).await {
                        let _ = running.await;
                    }
                });
            }
        });
        address
    }

    /// The passwords that were sent to it so far.
    fn heard(&self) -> Vec<String> {
        self.passwords.lock().clone()
    }
}

async fn log_in(
    address: SocketAddr,
    password: Option<&str>,
    host_key: Option<&str>,
) -> Result<Connection, ConnectError> {
    let (private_key, _) = key::generate_keypair("pool").unwrap();
    let stream = dial::dial(&Dial::Address(address), None).await.unwrap();
    let password = password.map(Secret::new);
    let login = Login {
        user: "root",
        private_key: &private_key,
        password: password.as_ref(),
        host_key,
    };
    Connection::open(stream, &login, Meter::new(Budget::default().account("tests"))).await
}

#[tokio::test]
async fn a_machine_that_does_not_know_the_key_yet_lets_in_by_the_password_and_later_by_the_key_alone() {
    let door = Door::default();
    let address = door.open().await;
    let first = log_in(address, Some(PASSWORD), None).await.ok().unwrap();
    assert_eq!(door.heard(), [PASSWORD]);
    // As after the first step of the bootstrap.
    door.knows_key.store(true, Ordering::Relaxed);
    let host_key = first.host_key().to_owned();
    log_in(address, Some(PASSWORD), Some(&host_key))
        .await
        .ok()
        .unwrap();
    assert_eq!(door.heard().len(), 1, "the key was enough");
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_told_without_it() {
    let door = Door::default();
    let address = door.open().await;
    let error = log_in(address, Some("canary-of-another"), None)
        .await
        .err()
        .unwrap();
    let words = format!("{error} {error:?}");
    assert!(matches!(error, ConnectError::AuthRefused { .. }), "{words}");
    assert!(
        words.contains("the password that its cloud tells") && !words.contains("canary"),
        "{words}"
    );
}

#[tokio::test]
async fn no_password_is_sent_where_there_is_none_and_to_no_other_host() {
    let door = Door::default();
    let address = door.open().await;
    let error = log_in(address, None, None).await.err().unwrap();
    assert!(matches!(error, ConnectError::AuthRefused { .. }), "{error:?}");
    let (_, pinned) = key::generate_keypair("another host").unwrap();
    let error = log_in(address, Some(PASSWORD), Some(&pinned))
        .await
        .err()
        .unwrap();
    assert!(matches!(error, ConnectError::HostKeyChanged { .. }), "{error:?}");
    assert_eq!(door.heard(), [""; 0]);
}
