//! Tokens that end: got by a grant of OAuth2, and renewed a minute before their end. Renewal happens
//! once, however many calls wait for it.

use std::time::Duration;

use aws_lc_rs::{rand::SystemRandom, rsa::KeyPair, signature::RSA_PKCS1_SHA256};
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};
use serde::Deserialize;
use serde_json::{Value, json};
use skyward_core::{ErrorKind, ProviderError, Secret};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{Call, Http, auth::Shown};

/// A token is renewed this long before it ends.
const BEFORE_END: Duration = Duration::from_mins(1);
/// How long an assertion is valid: the longest that Google admits.
const ASSERTION: i64 = 3600;
const LOG_IN: &str = "log in";

/// How tokens are got.
pub(super) enum Grant {
    /// The grant for clients: an id and its secret, at a path of the API.
    Client {
        path: &'static str,
        id: String,
        secret: Secret,
    },
    /// An assertion that a service account signs.
    ServiceAccount(ServiceAccount),
    /// The metadata server of Google Cloud.
    Metadata { address: String },
}

/// A service account: a key pair whose private half is in the Secret, in the JSON that Google gives
/// (`client_email`, `private_key_id`, `private_key` as PKCS #8 in PEM).
pub struct ServiceAccount {
    address: String,
    scope: &'static str,
    email: String,
    key_id: String,
    project: Option<String>,
    key: KeyPair,
}

#[derive(Deserialize)]
struct KeyFile {
    client_email: String,
    private_key_id: String,
    private_key: String,
    #[serde(default)]
    project_id: Option<String>,
}

impl ServiceAccount {
    /// From the JSON of its key. Tokens of this scope are got at `address`, which is not taken from
    /// the JSON: the author of that address would get the assertion. The error repeats nothing of
    /// the key.
    pub fn from_json(key: &Secret, address: String, scope: &'static str) -> Result<Self, ProviderError> {
        let unusable = |what: &str| {
            ProviderError::new(
                ErrorKind::Credentials,
                "read the key of the service account",
                format!(
                    "{what}. Make a key of the type JSON, and write the whole file into the Provider's Secret"
                ),
            )
        };
        // Other programs take the path under the same name.
        if key.expose().trim_end().ends_with("json") {
            return Err(unusable(
                "it is the path of a file, and not the content of the file",
            ));
        }
        let file: KeyFile = serde_json::from_str(key.expose())
            .map_err(|_| unusable("it is no JSON with client_email, private_key_id and private_key"))?;
        let der = PrivatePkcs8KeyDer::from_pem_slice(file.private_key.as_bytes())
            .map_err(|_| unusable("private_key is no key in PEM"))?;
        let key = KeyPair::from_pkcs8(der.secret_pkcs8_der())
            .map_err(|_| unusable("private_key is no RSA key of 2048 bits or more"))?;
        Ok(Self {
            address,
            scope,
            email: file.client_email,
            key_id: file.private_key_id,
            project: file.project_id,
            key,
        })
    }

    /// The project that the key is of, where its JSON says so.
    pub fn project(&self) -> Option<&str> {
        self.project.as_deref()
    }

    /// A JSON web token (RFC 7519) that asks for a token, signed with RS256.
    fn assertion(&self, now: Timestamp) -> Result<String, ProviderError> {
        let issued = now.as_second();
        let part = |value: Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let header = part(json!({ "alg": "RS256", "typ": "JWT", "kid": self.key_id }));
        let claims = part(json!({
            "iss": self.email,
            "scope": self.scope,
            "aud": self.address,
            "iat": issued,
            "exp": issued + ASSERTION,
        }));
        let signed = format!("{header}.{claims}");
        let mut signature = vec![0; self.key.public_modulus_len()];
        self.key
            .sign(
                &RSA_PKCS1_SHA256,
                &SystemRandom::new(),
                signed.as_bytes(),
                &mut signature,
            )
            .map_err(|_| ProviderError::new(ErrorKind::Credentials, LOG_IN, "the key cannot sign"))?;
        Ok(format!("{signed}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl Grant {
    /// The call that gets a token.
    fn call(&self, now: Timestamp) -> Result<Call, ProviderError> {
        Ok(match self {
            Self::Client { path, id, secret } => Call::post(LOG_IN, path).json(json!({
                "grant_type": "client_credentials",
                "client_id": id,
                "client_secret": secret.expose(),
            })),
            Self::ServiceAccount(account) => Call::post(LOG_IN, "").at(&account.address).form(vec![
                (
                    "grant_type",
                    "urn:ietf:params:oauth:grant-type:jwt-bearer".to_owned(),
                ),
                ("assertion", account.assertion(now)?),
            ]),
            // Without this header the server refuses, so that no web page can make a browser ask.
            Self::Metadata { address } => Call::get(LOG_IN, "")
                .at(address)
                .header("Metadata-Flavor", "Google"),
        }
        .reads()
        .unauthorised())
    }

    /// The credentials that the cloud refuses when it gives no token.
    const fn what(&self) -> &'static str {
        match self {
            Self::Client { .. } => "the client id or its secret",
            Self::ServiceAccount(_) => "the service account or its key",
            Self::Metadata { .. } => "the service account of the operator's Pod",
        }
    }

    const fn is_metadata(&self) -> bool {
        matches!(self, Self::Metadata { .. })
    }
}

/// The tokens of one account.
pub struct Tokens {
    grant: Grant,
    /// What to do when the cloud refuses it.
    remedy: &'static str,
    token: Mutex<Option<Token>>,
    turn: Semaphore,
}

#[derive(Clone)]
struct Token {
    shown: Shown,
    renew_at: Instant,
}

#[derive(Deserialize)]
struct Granted {
    access_token: String,
    #[serde(default)]
    expires_in: Option<f64>,
}

impl Tokens {
    pub(super) fn new(grant: Grant, remedy: &'static str) -> Self {
        Self {
            grant,
            remedy,
            token: Mutex::new(None),
            turn: Semaphore::new(1),
        }
    }

    /// Forgets a token that was refused. Another call may have renewed it meanwhile.
    pub(super) fn forget(&self, refused: Option<&Shown>) {
        let mut token = self.token.lock();
        if token.as_ref().map(|token| &token.shown) == refused {
            *token = None;
        }
    }

    fn valid(&self) -> Option<Shown> {
        let token = self.token.lock();
        token
            .as_ref()
            .filter(|token| Instant::now() < token.renew_at)
            .map(|token| token.shown.clone())
    }

    pub(super) async fn header(
        &self,
        http: &Http,
        operation: &'static str,
        limit: Duration,
    ) -> Result<Shown, ProviderError> {
        if let Some(shown) = self.valid() {
            return Ok(shown);
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
        if let Some(shown) = self.valid() {
            return Ok(shown);
        }
        let asked = Box::pin(http.send(self.grant.call(Timestamp::now())?)).await;
        let answer = asked.map_err(|mut error| {
            // Elsewhere than in that cloud there is no such server.
            if self.grant.is_metadata() {
                error.message = format!("its metadata server: {}. {}", error.message, self.remedy);
            }
            error
        })?;
        match answer.status.as_u16() {
            200..300 => {}
            status if matches!(status, 400 | 401 | 403) || status == 404 && self.grant.is_metadata() => {
                return Err(answer.error(
                    ErrorKind::Credentials,
                    format!(
                        "{} refuses {} (HTTP {}). {}",
                        http.cloud(),
                        self.grant.what(),
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
        let shown = Shown::bearer(&granted.access_token, operation)?;
        let lasts = Duration::try_from_secs_f64(granted.expires_in.unwrap_or(600.0)).unwrap_or(BEFORE_END);
        let renew_at = Instant::now() + lasts.saturating_sub(BEFORE_END).max(lasts / 2);
        *self.token.lock() = Some(Token {
            shown: shown.clone(),
            renew_at,
        });
        Ok(shown)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use aws_lc_rs::{
        encoding::AsDer as _,
        rsa::KeySize,
        signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey},
    };
    use base64::prelude::BASE64_STANDARD;

    use super::*;

    /// The file of a new key, and its public half.
    pub(in crate::http) fn key_file() -> (Secret, Vec<u8>) {
        let key = KeyPair::generate(KeySize::Rsa2048).unwrap();
        let der = BASE64_STANDARD.encode(key.as_der().unwrap().as_ref());
        let file = json!({
            "type": "service_account",
            "project_id": "lab",
            "client_email": "skyward@lab.example",
            "private_key_id": "kid-1",
            "private_key": format!("-----BEGIN PRIVATE KEY-----\n{der}\n-----END PRIVATE KEY-----\n"),
            "token_uri": "https://elsewhere.example/token",
        });
        (Secret::new(file.to_string()), key.public_key().as_ref().to_vec())
    }

    fn account(file: &Secret) -> Result<ServiceAccount, ProviderError> {
        ServiceAccount::from_json(file, "https://cloud.example/token".to_owned(), "scope")
    }

    #[test]
    fn an_assertion_is_signed_by_the_key_and_asks_for_a_token_of_an_hour_at_our_address() {
        let (file, public) = key_file();
        let account = account(&file).unwrap();
        let jwt = account
            .assertion("2026-11-23T10:00:00Z".parse().unwrap())
            .unwrap();
        let (signed, signature) = jwt.rsplit_once('.').unwrap();
        let decoded = |text| BASE64_URL_SAFE_NO_PAD.decode(text).unwrap();
        UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public)
            .verify(signed.as_bytes(), &decoded(signature))
            .unwrap();
        let (header, claims) = signed.split_once('.').unwrap();
        let header: Value = serde_json::from_slice(&decoded(header)).unwrap();
        let claims: Value = serde_json::from_slice(&decoded(claims)).unwrap();
        assert_eq!(header, json!({ "alg": "RS256", "typ": "JWT", "kid": "kid-1" }));
        assert_eq!(
            claims,
            json!({
                "iss": "skyward@lab.example",
                "scope": "scope",
                "aud": "https://cloud.example/token",
                "iat": 1_795_428_000,
                "exp": 1_795_431_600,
            })
        );
        assert_eq!(account.project(), Some("lab"));
    }

    #[test]
    fn a_path_in_the_place_of_a_key_is_told_as_one() {
        let error = account(&Secret::new("/home/canary/key.json\n")).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Credentials);
        assert!(error.message.contains("the path of a file"), "{error}");
        assert!(!error.message.contains("canary"), "{error}");
    }

    #[test]
    fn a_key_that_cannot_be_used_is_never_in_its_error() {
        let (file, _) = key_file();
        let mut cut: Value = serde_json::from_str(file.expose()).unwrap();
        cut["private_key"] = "-----BEGIN PRIVATE KEY-----\ncanary\n".into();
        let mut no_key: Value = cut.clone();
        no_key["private_key"] = format!(
            "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
            BASE64_STANDARD.encode("canary")
        )
        .into();
        for text in [
            "canary".to_owned(),
            "{}".to_owned(),
            cut.to_string(),
            no_key.to_string(),
        ] {
            let error = account(&Secret::new(text)).err().unwrap();
            assert_eq!(error.kind, ErrorKind::Credentials);
            assert!(!format!("{error:?}").contains("canary"), "{error}");
        }
    }
}
