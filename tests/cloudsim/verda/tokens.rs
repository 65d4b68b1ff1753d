//! OAuth2: tokens for a client id and secret, an hour long.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::error;
use super::wire::{Grant, given};
use crate::core::account::{AccountId, CredentialState};
use crate::core::cloud::{Refusal, Visit, holder};
use crate::core::http::Answer;
use crate::core::world::World;

const LIFE: SignedDuration = SignedDuration::from_secs(3_600);

/// The tokens that were given out.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    access: BTreeMap<String, Token>,
    refresh: BTreeMap<String, String>,
}

#[derive(Debug)]
struct Token {
    client: String,
    expires: Timestamp,
}

impl Tokens {
    /// Whose token this is.
    pub(super) fn account(&self, world: &World, token: Option<&str>) -> Result<AccountId, Refusal> {
        let token = token
            .and_then(|token| self.access.get(token))
            .ok_or(Refusal::Unauthorized)?;
        if token.expires <= world.now() {
            return Err(Refusal::Expired);
        }
        holder(world, Some(&token.client))
    }

    /// Gives out a token.
    pub(super) fn issue(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal> {
        let wrong = || {
            Refusal::Answer(error(
                401,
                "unauthorized_request",
                "Invalid client id or client secret",
            ))
        };
        let client = match given::<Grant>(visit.request)? {
            Grant::ClientCredentials {
                client_id,
                client_secret,
            } => {
                let (_, credential) = visit.world.credential(&client_id).ok_or_else(wrong)?;
                if credential.secret != client_secret {
                    return Err(wrong());
                }
                client_id
            }
            Grant::RefreshToken { refresh_token } => self.refresh.remove(&refresh_token).ok_or_else(wrong)?,
        };
        match visit
            .world
            .credential(&client)
            .map(|(_, credential)| credential.state)
        {
            Some(CredentialState::Valid | CredentialState::Forbidden) => {}
            Some(CredentialState::Revoked | CredentialState::Expired) | None => return Err(wrong()),
        }
        let access = visit
            .world
            .chance
            .text(48, "abcdefghijklmnopqrstuvwxyz0123456789");
        let refresh = visit
            .world
            .chance
            .text(48, "abcdefghijklmnopqrstuvwxyz0123456789");
        let expires = visit.now().saturating_add(LIFE).unwrap_or(Timestamp::MAX);
        self.access.insert(
            access.clone(),
            Token {
                client: client.clone(),
                expires,
            },
        );
        self.refresh.insert(refresh.clone(), client);
        Ok(Answer::json(
            200,
            &json!({
                "access_token": access, "token_type": "Bearer", "expires_in": LIFE.as_secs(),
                "refresh_token": refresh, "scope": "cloud-api-v1",
            }),
        ))
    }
}
