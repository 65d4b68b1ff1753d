//! Recorded failures of clouds, for the tables over each `errors.rs`.

use serde::Deserialize;
use serde_json::Value;

use super::{Answer, Effect};

/// One failure, and what is to be made of it.
pub(crate) struct Exchange {
    pub(crate) name: String,
    /// The answer to an operation of a cloud.
    pub(crate) answer: Box<dyn Fn(&'static str, &'static str) -> Answer>,
    /// Name of the kind of error.
    pub(crate) kind: String,
    /// What the message must hold.
    pub(crate) says: String,
}

#[derive(Deserialize)]
struct Recorded {
    name: String,
    effect: String,
    status: u16,
    body: Value,
    kind: String,
    says: String,
}

/// The failures of one file. A body that is a text is sent as it stands.
pub(crate) fn exchanges(file: &str) -> Vec<Exchange> {
    let recorded: Vec<Recorded> = serde_json::from_str(file).expect("a list of exchanges");
    recorded
        .into_iter()
        .map(
            |Recorded {
                 name,
                 effect,
                 status,
                 body,
                 kind,
                 says,
             }| {
                let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
                let effect = match effect.as_str() {
                    "creates" => Effect::Creates,
                    _ => Effect::Repeatable,
                };
                Exchange {
                    name,
                    answer: Box::new(move |operation, cloud| {
                        Answer::new(operation, effect, cloud, status, &body)
                    }),
                    kind,
                    says,
                }
            },
        )
        .collect()
}
