//! Calls whose answers are JSON, or a failure in the cloud's own words: what every
//! `client.rs` of a REST API is made of. What a failure means is said by its `errors.rs`.

use serde::de::DeserializeOwned;
use skyward_core::{ErrorKind, ProviderError};

use super::{Answer, Call, Http};

/// The way to a REST API, with what its failures mean.
#[derive(Clone, Debug)]
pub struct Rest {
    http: Http,
    error: fn(&Answer) -> ProviderError,
    refused: fn(&Answer) -> bool,
}

impl Rest {
    /// Over this way; `error` reads an answer that is none of success.
    pub fn new(http: Http, error: fn(&Answer) -> ProviderError) -> Self {
        Self {
            http,
            error,
            refused: |answer| !answer.is_success(),
        }
    }

    /// For clouds that refuse in answers of success too.
    #[must_use]
    pub fn refused_when(mut self, refused: fn(&Answer) -> bool) -> Self {
        self.refused = refused;
        self
    }

    /// Any answer, also one of failure.
    pub async fn any(&self, call: Call) -> Result<Answer, ProviderError> {
        self.http.send(call).await
    }

    /// An answer of success.
    pub async fn ok(&self, call: Call) -> Result<Answer, ProviderError> {
        let answer = self.any(call).await?;
        if (self.refused)(&answer) {
            Err((self.error)(&answer))
        } else {
            Ok(answer)
        }
    }

    /// Done, whatever the answer of success says.
    pub async fn done(&self, call: Call) -> Result<(), ProviderError> {
        self.ok(call).await.map(|_| ())
    }

    /// What an answer of success holds.
    pub async fn read<T: DeserializeOwned>(&self, call: Call) -> Result<T, ProviderError> {
        self.ok(call).await?.json()
    }

    /// The same, where the cloud saying that there is no such thing is an answer.
    pub async fn find<T: DeserializeOwned>(&self, call: Call) -> Result<Option<T>, ProviderError> {
        match self.read(call).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
