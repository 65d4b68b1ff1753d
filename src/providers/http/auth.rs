//! What a call shows: a key that never changes, or a token that is got with a client id
//! and a secret and renewed a minute before it ends. Renewal happens once, however many
//! calls wait for it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use reqwest::{Method, header::HeaderValue};
use serde::Deserialize;
use serde_json::json;
use skyward_core::{ErrorKind, ProviderError, Secret};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{Call, Effect, Http};

/// A token is renewed this long before it ends.
const BEFORE_END: Duration = Duration::from_mins(1);

/// What calls show.
pub enum Auth {
    /// `Authorization: Bearer` with a key.
    Bearer(Secret),
    /// The same with a token of the OAuth2 grant for clients.
    Client(Client),
}

/// A client of an account, as OAuth2 has it.
pub struct Client {
    path: &'static str,
    id: String,
    secret: Secret,
    /// What to do when the cloud refuses them.
    remedy: &'static str,
    token: Mutex<Option<Token>>,
    turn: Semaphore,
}

#[derive(Clone)]
struct Token {
    header: HeaderValue,
    renew_at: Instant,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Option<f64>,
}

impl Auth {
    /// A client that gets its tokens at this path.
    pub fn client(path: &'static str, id: String, secret: Secret, remedy: &'static str) -> Self {
        Self::Client(Client {
            path,
            id,
            secret,
            remedy,
            token: Mutex::new(None),
            turn: Semaphore::new(1),
        })
    }

    /// The header, got or renewed first where that is due.
    pub(super) async fn header(
        &self,
        http: &Http,
        operation: &'static str,
        limit: Duration,
    ) -> Result<HeaderValue, ProviderError> {
        match self {
            Self::Bearer(key) => bearer(key.expose(), operation),
            Self::Client(client) => client.header(http, operation, limit).await,
        }
    }

    /// Forgets a header that was refused; whether there can be another.
    pub(super) fn renew(&self, refused: Option<&HeaderValue>) -> bool {
        match self {
            Self::Bearer(_) => false,
            Self::Client(client) => {
                let mut token = client.token.lock().unwrap_or_else(PoisonError::into_inner);
                // Another call may have renewed it meanwhile.
                if token.as_ref().map(|token| &token.header) == refused {
                    *token = None;
                }
                true
            }
        }
    }
}

impl Client {
    fn valid(&self) -> Option<HeaderValue> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        token
            .as_ref()
            .filter(|token| Instant::now() < token.renew_at)
            .map(|token| token.header.clone())
    }

    async fn header(
        &self,
        http: &Http,
        operation: &'static str,
        limit: Duration,
    ) -> Result<HeaderValue, ProviderError> {
        if let Some(header) = self.valid() {
            return Ok(header);
        }
        let late = || {
            ProviderError::new(
                ErrorKind::Transient,
                operation,
                format!("no token of {} came in time", http.cloud()),
            )
        };
        // One at a time: a call that waited finds the token of the call before.
        let _turn = timeout(limit, self.turn.acquire()).await.map_err(|_| late())?;
        if let Some(header) = self.valid() {
            return Ok(header);
        }
        let call = Call::new("log in", Method::POST, self.path, Effect::Repeatable)
            .unauthorised()
            .json(json!({
                "grant_type": "client_credentials",
                "client_id": self.id,
                "client_secret": self.secret.expose(),
            }));
        let answer = Box::pin(http.send(call)).await?;
        match answer.status.as_u16() {
            200..300 => {}
            400 | 401 | 403 => {
                return Err(answer.error(
                    ErrorKind::Credentials,
                    format!(
                        "{} refuses the client id or its secret (HTTP {}). {}",
                        http.cloud(),
                        answer.status.as_u16(),
                        self.remedy
                    ),
                ));
            }
            status => {
                return Err(answer.error(
                    ErrorKind::Transient,
                    format!("{} gave no token (HTTP {status})", http.cloud()),
                ));
            }
        }
        let granted: Granted = answer.json()?;
        let header = bearer(&granted.access_token, operation)?;
        let lasts = Duration::try_from_secs_f64(granted.expires_in.unwrap_or(600.0)).unwrap_or(BEFORE_END);
        let renew_at = Instant::now() + lasts.saturating_sub(BEFORE_END).max(lasts / 2);
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(Token {
            header: header.clone(),
            renew_at,
        });
        Ok(header)
    }
}

fn bearer(key: &str, operation: &'static str) -> Result<HeaderValue, ProviderError> {
    let mut header = HeaderValue::from_str(&format!("Bearer {}", key.trim())).map_err(|_| {
        ProviderError::new(
            ErrorKind::Credentials,
            operation,
            "the key has characters that no key has, such as a line break; write it into the Secret again",
        )
    })?;
    header.set_sensitive(true);
    Ok(header)
}
