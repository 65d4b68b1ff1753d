//! Calls whose answers are JSON, or a failure in the cloud's own words: the base of every
//! `client.rs` of a REST API. Its `errors.rs` says what a failure means.

use std::{collections::BTreeMap, sync::Arc};

use serde::de::DeserializeOwned;
use serde_json::Value;
use skyward_core::{ErrorKind, ProviderError};

use super::{
    Answer, Call, Http,
    pages::{List, Step, Walk},
    shape,
};

/// How often a list that changes while it is read is begun anew.
const WALKS: usize = 3;

/// The way to a REST API, with what its failures mean.
#[derive(Clone, Debug)]
pub struct Rest {
    http: Http,
    error: fn(&Answer) -> ProviderError,
    refused: fn(&Answer) -> bool,
    /// Addresses by their names.
    addresses: Arc<BTreeMap<&'static str, String>>,
}

impl Rest {
    /// A client over this transport; `error` reads failures.
    pub fn new(http: Http, error: fn(&Answer) -> ProviderError) -> Self {
        Self {
            http,
            error,
            refused: |answer| !answer.is_success(),
            addresses: Arc::default(),
        }
    }

    /// With the addresses of all APIs of the cloud, by their names.
    #[must_use]
    pub fn with(mut self, addresses: BTreeMap<&'static str, String>) -> Self {
        self.addresses = Arc::new(addresses);
        self
    }

    /// A call to the API whose address has this name.
    pub fn to(&self, name: &str, call: Call) -> Call {
        match self.addresses.get(name) {
            Some(address) => call.at(address),
            None => call,
        }
    }

    /// For clouds that also refuse with a status of success.
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

    /// The body of a success by its status alone, where what says otherwise in it is no failure.
    pub async fn flagged<T: DeserializeOwned>(&self, call: Call) -> Result<T, ProviderError> {
        let answer = self.any(call).await?;
        if answer.is_success() {
            answer.json()
        } else {
            Err((self.error)(&answer))
        }
    }

    /// Ignores the body of a success.
    pub async fn done(&self, call: Call) -> Result<(), ProviderError> {
        self.ok(call).await.map(|_| ())
    }

    /// The value in a success, at the JSON pointer of the call.
    pub async fn read<T: DeserializeOwned>(&self, call: Call) -> Result<T, ProviderError> {
        let wanted = call.wanted;
        let answer = self.ok(call).await?;
        if wanted.is_empty() {
            answer.json()
        } else {
            answer.json_at(wanted)
        }
    }

    /// The id of a new object, at the JSON pointer of the call ([`Answer::id`]).
    pub async fn made(&self, call: Call) -> Result<String, ProviderError> {
        let wanted = call.wanted;
        self.ok(call).await?.id(wanted)
    }

    /// Like [`Rest::read`], with `None` where the cloud says that there is no such object.
    pub async fn find<T: DeserializeOwned>(&self, call: Call) -> Result<Option<T>, ProviderError> {
        match self.read(call).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every entry of a list, to the last page.
    pub async fn list<T: DeserializeOwned>(&self, call: Call, list: List) -> Result<Vec<T>, ProviderError> {
        let operation = call.operation;
        let wrong = |what: String| {
            let what = format!("a page of {} {what}", self.http.cloud());
            ProviderError::new(ErrorKind::Transient, operation, what)
        };
        'list: for _ in 0..WALKS {
            let mut walk = Walk::new(list);
            let mut query = walk.first();
            loop {
                let call = query
                    .into_iter()
                    .fold(call.clone(), |call, (name, value)| call.with_query(name, value));
                let page: Value = self.read(call).await?;
                let lack = shape::lack(&page, list.entries);
                let step = walk.add(page).map_err(|what| {
                    shape::note(operation, lack);
                    wrong(what)
                });
                match step? {
                    Step::Page(next) => query = next,
                    Step::Again => continue 'list,
                    Step::Done => break,
                }
            }
            let entries = Value::Array(walk.entries());
            shape::compare::<Vec<T>>(operation, list.entries, &entries);
            return serde_path_to_error::deserialize(entries)
                .map_err(|error| wrong(format!("has something unexpected at {}", error.path())));
        }
        Err(wrong("changes whenever it is read".to_owned()))
    }
}
