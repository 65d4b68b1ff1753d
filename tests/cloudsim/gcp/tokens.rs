//! Credentials: what gives a token, and whose token or signed statement a request has.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use aws_lc_rs::encoding::{AsDer as _, Pkcs8V1Der};
use aws_lc_rs::rsa::{self, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{Gcp, after};
use crate::core::account::{Account, CredentialState};
use crate::core::cloud::{Refusal, Visit};
use crate::core::http::Answer;
use crate::core::pem::{framed, unframed};
use crate::core::world::World;

/// How long a token is valid.
const LIFE: SignedDuration = SignedDuration::from_secs(3_599);
/// How far the clock of a client may be ahead, in seconds.
const AHEAD: i64 = 60;
/// How long a statement may be valid, in seconds.
const LONGEST: i64 = 3_600;
/// What a token for Compute Engine may be for.
const SCOPES: [&str; 2] = [
    "https://www.googleapis.com/auth/cloud-platform",
    "https://www.googleapis.com/auth/compute",
];
/// Whom a statement is for that is a token itself.
const AUDIENCE: &str = "https://compute.googleapis.com/";

/// A project with one service account of this email. All of a process have the same key: to make one takes a while.
pub fn account(project: &str, email: &str) -> Account {
    static KEY: OnceLock<String> = OnceLock::new();
    let key = KEY.get_or_init(|| make_key().unwrap_or_default());
    Account::with_pair(project, email, key)
}

fn make_key() -> Option<String> {
    let made = rsa::KeyPair::generate(KeySize::Rsa2048).ok()?;
    let document: Pkcs8V1Der<'static> = made.as_der().ok()?;
    Some(framed("PRIVATE KEY", document.as_ref()) + "\n")
}

/// The key file of the first service account of a project. `url` is the address of this cloud.
pub fn key_file(account: &Account, url: &str) -> Value {
    let first = account.credentials.first();
    let (email, key) = first.map_or(("", ""), |first| (first.id.as_str(), first.secret.as_str()));
    json!({
        "type": "service_account", "project_id": account.id, "private_key_id": "0123456789abcdef", "private_key": key,
        "client_email": email, "client_id": "100000000000000000000", "token_uri": format!("{url}/token"),
    })
}

/// The tokens that were given out: the credential that each is of, and when it expires.
#[derive(Debug, Default)]
pub(super) struct Tokens(BTreeMap<String, (String, Timestamp)>);

/// What a service account states.
#[derive(Debug, Deserialize)]
struct Claims {
    iss: String,
    #[serde(default)]
    aud: String,
    #[serde(default)]
    scope: String,
    iat: i64,
    exp: i64,
}

#[derive(Debug, Deserialize)]
struct Header {
    alg: String,
}

impl Claims {
    fn is_timely(&self, now: Timestamp) -> bool {
        let now = now.as_second();
        self.iat <= now + AHEAD && now < self.exp && self.exp - self.iat <= LONGEST
    }

    fn has_scope(&self) -> bool {
        self.scope.split(' ').any(|scope| SCOPES.contains(&scope))
    }
}

fn part<T: DeserializeOwned>(text: &str) -> Option<T> {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

/// What a signed statement says, where its service account signed it and it is valid now.
fn stated(world: &World, statement: &str) -> Result<Claims, &'static str> {
    const FORM: &str = "Invalid JWT: Failed to parse.";
    let (message, signature) = statement.rsplit_once('.').ok_or(FORM)?;
    let (header, claims) = message.split_once('.').ok_or(FORM)?;
    let header: Header = part(header).ok_or(FORM)?;
    let claims: Claims = part(claims).ok_or(FORM)?;
    let known = world.credential(&claims.iss);
    let (_, credential) = known.ok_or("Invalid grant: account not found")?;
    let is_signed = || {
        let private = rsa::KeyPair::from_pkcs8(&unframed(&credential.secret)?).ok()?;
        let public: &[u8] = private.public_key().as_ref();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, public);
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        public.verify(message.as_bytes(), &signature).ok()
    };
    if header.alg != "RS256" || is_signed().is_none() {
        return Err("Invalid JWT Signature.");
    }
    // A client cannot know a clock that tests move.
    if !claims.is_timely(world.now()) && !claims.is_timely(Timestamp::now()) {
        return Err("Invalid JWT: Token must be a short-lived token (60 minutes).");
    }
    Ok(claims)
}

/// A failure as the token services write it.
fn error(status: u16, code: &str, text: &str) -> Answer {
    Answer::json(status, &json!({ "error": code, "error_description": text }))
}

/// A refusal of a call for tokens.
pub(super) fn refusal(refusal: &Refusal) -> Answer {
    match refusal {
        Refusal::Answer(answer) => answer.clone(),
        Refusal::TooMany { .. } => error(429, "rate_limit_exceeded", "Rate Limit Exceeded"),
        Refusal::Server(status) => error(*status, "internal_failure", "Internal error."),
        Refusal::Unauthorized | Refusal::Expired => error(400, "invalid_grant", "Account not found"),
        _ => error(403, "access_denied", "Account restricted."),
    }
}

fn denied<T>(text: &str) -> Result<T, Refusal> {
    Err(Refusal::Answer(error(400, "invalid_grant", text)))
}

impl Tokens {
    /// The credential whose token, or whose statement for Compute Engine, this is.
    pub(super) fn credential(&self, world: &World, bearer: Option<&str>) -> Result<String, Refusal> {
        let bearer = bearer.ok_or(Refusal::Unauthorized)?;
        if let Some((credential, expires)) = self.0.get(bearer) {
            let is_valid = *expires > world.now();
            return is_valid.then(|| credential.clone()).ok_or(Refusal::Expired);
        }
        let claims = stated(world, bearer).map_err(|_| Refusal::Unauthorized)?;
        if claims.aud != AUDIENCE && !claims.has_scope() {
            return Err(Refusal::Unauthorized);
        }
        Ok(claims.iss)
    }

    /// Gives out a token of a credential.
    pub(super) fn issue(&mut self, world: &mut World, credential: &str) -> Result<Value, Refusal> {
        let known = world.credential(credential).map(|(_, known)| known.state);
        if !matches!(known, Some(CredentialState::Valid | CredentialState::Forbidden)) {
            return denied("Invalid JWT Signature.");
        }
        let token = format!("ya29.{}", world.chance.hex(60));
        let new = (credential.to_owned(), after(world.now(), LIFE));
        self.0.insert(token.clone(), new);
        Ok(json!({ "access_token": token, "expires_in": LIFE.as_secs(), "token_type": "Bearer" }))
    }
}

/// Whether the secret of a credential is this one.
fn is_secret(world: &World, [credential, secret]: [&str; 2]) -> bool {
    let known = world.credential(credential);
    known.is_some_and(|(_, known)| known.secret == secret)
}

/// A token for a signed statement, for the refresh token of a user, or for the token of another service, such as a
/// cluster: of the last, the audience is the credential.
pub(super) fn grant(api: &mut Gcp, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
    let fields: BTreeMap<String, String> = visit.request.form().into_iter().collect();
    let field = |name: &str| fields.get(name).map_or("", String::as_str);
    let kind = field("grant_type");
    let kind = kind.rsplit(':').next().unwrap_or(kind);
    let pair = match kind {
        "refresh_token" => [field("client_id"), field("refresh_token")],
        _ => [field("audience"), field("subject_token")],
    };
    let credential = match kind {
        "jwt-bearer" => {
            let claims = stated(visit.world, field("assertion")).or_else(denied)?;
            if !claims.aud.ends_with("/token") || !claims.has_scope() {
                return denied("Invalid JWT: the audience or the scope is wrong.");
            }
            claims.iss
        }
        "refresh_token" | "token-exchange" if is_secret(visit.world, pair) => pair[0].to_owned(),
        _ => return denied("Token has been expired or revoked."),
    };
    let mut token = api.tokens.issue(visit.world, &credential)?;
    if kind == "token-exchange" {
        token["issued_token_type"] = "urn:ietf:params:oauth:token-type:access_token".into();
    }
    Ok(Answer::json(200, &token))
}
