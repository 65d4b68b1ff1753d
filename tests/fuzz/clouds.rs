//! The answers of the clouds over REST and GraphQL, through everything that reads them: an answer is an error,
//! machines or offers, and offers become objects of the cluster. Each cloud has a file of its own.

use std::{sync::LazyLock, time::Duration};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use skyward_api::Provider;
use skyward_core::{ErrorKind, Offer, ProviderError, ProviderMachine, Usd};
use skyward_planner::provider::catalogue::{self, catalogue};
use skyward_provider_kit::{
    http::{Answer, Effect},
    lookup::Listed,
};

use crate::{document::document, input::Input};

/// Most Offers of one Provider.
const MOST: usize = 1000;
/// Most bytes of a message about a failure.
const WORDS: usize = 4096;

/// Reads a fixture of the providers' own tests.
macro_rules! fixture {
    ($cloud:literal, $file:literal) => {
        serde_json::from_str::<Value>(include_str!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../src/providers/tests/fixtures/",
            $cloud,
            "/",
            $file
        )))
        .expect("a fixture is JSON")
    };
}

pub(crate) mod digitalocean;
pub(crate) mod gcp;
pub(crate) mod hyperstack;
pub(crate) mod jarvislabs;
pub(crate) mod lambda;
pub(crate) mod massedcompute;
pub(crate) mod novita;
pub(crate) mod runpod;
pub(crate) mod scaleway;
pub(crate) mod tensordock;
pub(crate) mod vastai;
pub(crate) mod verda;
pub(crate) mod vultr;

/// The bodies of recorded failures.
fn bodies(recorded: Value) -> Vec<Value> {
    let Value::Array(all) = recorded else {
        return Vec::new();
    };
    all.into_iter()
        .map(|mut exchange| exchange["body"].take())
        .collect()
}

/// An answer of a cloud and the document in its body.
struct Heard {
    answer: Answer,
    body: Value,
}

impl Heard {
    /// The answer that an input stands for: how it came, then the changes of a known document.
    fn of(data: &[u8], cloud: &'static str, known: &[Value]) -> Self {
        let mut input = Input(data);
        // An input that is JSON itself came with HTTP 200.
        let (status, effect, body) = if matches!(data.first(), Some(b'{' | b'[')) {
            (200, Effect::Repeatable, document(data, known))
        } else {
            let status = input.one_of(&[
                200, 201, 202, 207, 400, 401, 402, 403, 404, 409, 422, 429, 500, 503,
            ]);
            let effect = input.one_of(&[Effect::Repeatable, Effect::Creates]);
            (status, effect, document(input.rest(), known))
        };
        let answer = Answer::new("list the instances", effect, cloud, status, &body.to_string());
        Self { answer, body }
    }

    /// What stands at this place of the body, as that type.
    fn at<T: DeserializeOwned>(&self, pointer: &str) -> Option<T> {
        let read = if pointer.is_empty() {
            self.answer.json()
        } else {
            self.answer.json_at(pointer)
        };
        match read {
            Ok(found) => Some(found),
            Err(error) => {
                failed(&error);
                None
            }
        }
    }

    /// The entries of a list there: one that cannot be read does not hide the others from us.
    fn each<T: DeserializeOwned>(&self, pointer: &str) -> Vec<T> {
        let found = self.body.pointer(pointer).and_then(Value::as_array);
        let read = |entry: &Value| serde_json::from_value(entry.clone()).ok();
        found.into_iter().flatten().filter_map(read).collect()
    }

    /// Everything that a client does with any answer.
    fn judged(&self, error: fn(&Answer) -> ProviderError, ids: &[&'static str]) {
        failed(&error(&self.answer));
        for pointer in ids {
            match self.answer.id(pointer) {
                Ok(id) => assert!(!id.is_empty() && id.len() <= 128),
                Err(error) => failed(&error),
            }
        }
    }
}

fn failed(error: &ProviderError) {
    let words = error.to_string();
    assert!(words.len() <= WORDS, "{} bytes of words", words.len());
}

/// Machines are told apart by their ids, and none is believed to be ours without a mark.
fn machine<M: Listed>(listed: &M, seen: Option<&ProviderMachine>) {
    let _ = (listed.id(), listed.gone());
    assert_eq!(listed.mark().is_some(), seen.is_some());
    if let Some(seen) = seen {
        assert_eq!(Some(&seen.mark), listed.mark().as_ref());
        if let Some(price) = seen.rental.hourly_price {
            assert_eq!(
                price.exact().parse(),
                Ok(price),
                "a price is read as it was written"
            );
        }
    }
}

static PROVIDER: LazyLock<Provider> = LazyLock::new(|| {
    serde_json::from_value(json!({
        "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
        "metadata": { "name": "acme", "uid": "u" },
        "spec": { "allowedNamespaces": {} }
    }))
    .expect("a Provider")
});

/// Offers become objects, which can be written, and read as they were written.
pub(crate) fn offered(offers: &[Offer]) {
    let made = catalogue(&PROVIDER, offers, &[]);
    assert!(made.objects.len() <= MOST);
    for object in &made.objects {
        let written = serde_json::to_string(&object.spec).expect("an Offer is JSON");
        let read: skyward_api::OfferSpec = serde_json::from_str(&written).expect("an Offer can be read");
        assert_eq!(read, object.spec);
        for price in [&read.on_demand_price, &read.spot_price, &read.lowest_price] {
            let price = price.as_ref().map(|price| price.parse::<Usd>());
            assert!(price.is_none_or(|price| price.is_ok()));
        }
    }
    let (written, gone) = catalogue::difference(&PROVIDER, made, &[]);
    assert!(written.len() <= MOST && gone.is_empty());
}

/// What a cloud answers instead of what was asked for; nothing where all goes well.
pub(crate) fn refusal(number: u64) -> Option<ProviderError> {
    let kind = match number {
        1 => ErrorKind::Transient,
        2 => ErrorKind::RateLimited(Some(Duration::MAX)),
        3 => ErrorKind::RateLimited(None),
        4 => ErrorKind::NoCapacity,
        5 => ErrorKind::Indeterminate,
        6 => ErrorKind::Quota("of GPUs".into()),
        7 => ErrorKind::NoCredit,
        8 => ErrorKind::Credentials,
        9 => ErrorKind::InvalidOrder,
        10 => ErrorKind::Unsupported,
        11 => ErrorKind::MachineFailed,
        12 => ErrorKind::NotFound,
        13 => ErrorKind::AlreadyExists,
        14 => ErrorKind::Outage,
        _ => return None,
    };
    Some(ProviderError::new(kind, "call the cloud", "the cloud refuses"))
}

fn now() -> Timestamp {
    Timestamp::from_second(1_795_000_000).expect("a time of this century")
}

/// The seeds of known documents: each as it is, as a success and as a failure.
fn seeds(known: &[Value]) -> Vec<Vec<u8>> {
    let number = u8::try_from(known.len()).unwrap_or(u8::MAX);
    (0..number)
        .flat_map(|at| [vec![0, 0, at], vec![4, 1, at]])
        .collect()
}
