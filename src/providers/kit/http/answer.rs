//! An answer: status, body, and `Retry-After`.

use std::time::Duration;

use jiff::Timestamp;
use reqwest::{RequestBuilder, StatusCode, header::RETRY_AFTER};
use serde::de::DeserializeOwned;
use serde_json::Value;
use skyward_core::{ErrorKind, ProviderError};

use super::{Effect, shape};
use crate::{
    said,
    text::{message, plain},
};

/// Longest id that is believed.
const LONGEST_ID: usize = 128;

/// Longest `Retry-After` that is believed.
const LONGEST_RETRY_AFTER: Duration = Duration::from_hours(1);

/// An answer of a cloud. `Debug` shows no body: it may hold tokens and keys.
pub struct Answer {
    /// Its status.
    pub status: StatusCode,
    /// How long the cloud asks us to wait, if it does.
    pub retry_after: Option<Duration>,
    body: Vec<u8>,
    operation: &'static str,
    effect: Effect,
    cloud: &'static str,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer")
            .field("status", &self.status)
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

impl Answer {
    /// An answer by itself, for tests of what reads it.
    pub fn new(
        operation: &'static str,
        effect: Effect,
        cloud: &'static str,
        status: u16,
        body: &str,
    ) -> Self {
        Self {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::IM_A_TEAPOT),
            retry_after: None,
            body: body.as_bytes().to_vec(),
            operation,
            effect,
            cloud,
        }
    }

    /// Which call it answers, in words.
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// What the call did.
    pub fn effect(&self) -> Effect {
        self.effect
    }

    /// Its body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Whether it says that all went well.
    pub fn is_success(&self) -> bool {
        self.status.is_success()
    }

    /// Its body as a type. The error names the place, never the content.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, ProviderError> {
        if shape::is_watched()
            && let Some(body) = self.maybe::<Value>()
        {
            shape::compare::<T>(self.operation, "", &body);
        }
        let mut reader = serde_json::Deserializer::from_slice(&self.body);
        serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let what = match error.inner().classify() {
                serde_json::error::Category::Data => "something unexpected",
                serde_json::error::Category::Syntax => "no JSON",
                serde_json::error::Category::Eof | serde_json::error::Category::Io => "an incomplete answer",
            };
            self.unexpected(what, &error.path().to_string())
        })
    }

    /// The value at this JSON pointer of its body as a type.
    pub fn json_at<T: DeserializeOwned>(&self, pointer: &str) -> Result<T, ProviderError> {
        let mut body: Value = self.json()?;
        if self.is_success() {
            shape::note(self.operation, shape::lack(&body, pointer));
        }
        let found = body.pointer_mut(pointer).map(Value::take);
        let found = found.ok_or_else(|| self.unexpected("something unexpected", pointer))?;
        shape::compare::<T>(self.operation, pointer, &found);
        serde_path_to_error::deserialize(found)
            .map_err(|error| self.unexpected("something unexpected", &format!("{pointer}/{}", error.path())))
    }

    fn unexpected(&self, what: &str, at: &str) -> ProviderError {
        let status = self.status.as_u16();
        self.error(
            self.lost(),
            format!(
                "{} answered {what} (HTTP {status}, at {at}). If it stays so, its API changed: upgrade the operator",
                self.cloud
            ),
        )
    }

    /// Its body as a type, or `None` for another body: for bodies of errors.
    pub fn maybe<T: DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.body).ok()
    }

    /// The id of the new object, at this JSON pointer of the body. A body that is no object is
    /// the id itself, in quotes or without.
    pub fn id(&self, pointer: &str) -> Result<String, ProviderError> {
        let text = self.text();
        let text = text.trim();
        let id = if text.starts_with(['{', '[']) {
            let body: Value = self.maybe().unwrap_or_default();
            match body.pointer(pointer) {
                Some(Value::String(id)) => Some(id.clone()),
                Some(Value::Number(id)) => Some(id.to_string()),
                _ => None,
            }
        } else {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            Some(text.trim_matches('"').to_owned()).filter(|id| id.chars().all(plain))
        };
        id.filter(|id| !id.is_empty() && id.len() <= LONGEST_ID && !id.contains(char::is_whitespace))
            .ok_or_else(|| {
                let what = format!("{} answered without the id of what it made", self.cloud);
                self.error(self.lost(), what)
            })
    }

    /// All that it says at these JSON pointers of its body, in one line: the words of a failure, and what they are
    /// about. No answer lacks any of them: most have none.
    pub fn told(&self, pointers: &[&str]) -> String {
        let body: Value = self.maybe().unwrap_or_default();
        let all = pointers
            .iter()
            .map(|pointer| body.pointer(pointer).map(plain).unwrap_or_default());
        let all: Vec<String> = all.filter(|words| !words.is_empty()).collect();
        all.join(": ")
    }

    /// What an answer that cannot be understood means for the call.
    pub fn lost(&self) -> ErrorKind {
        self.effect.lost()
    }

    /// The error of a failure: its code and words, and the remedy.
    pub fn failure(&self, kind: ErrorKind, code: &str, words: &str, remedy: Option<&str>) -> ProviderError {
        let otherwise = format!("{} answered HTTP {}", self.cloud, self.status.as_u16());
        let mut error = self.error(kind, message(words, &otherwise, remedy));
        error.code = (!code.is_empty()).then(|| said(code));
        error
    }

    /// An error of this call.
    pub fn error(&self, kind: ErrorKind, message: impl Into<String>) -> ProviderError {
        ProviderError::new(kind, self.operation, message)
    }
}

/// Why there is no answer.
pub(super) enum Broken {
    Way(reqwest::Error),
    TooLong,
}

/// Sends and reads to the end.
pub(super) async fn read(
    request: RequestBuilder,
    operation: &'static str,
    effect: Effect,
    cloud: &'static str,
    max: usize,
) -> Result<Answer, Broken> {
    let mut response = request.send().await.map_err(Broken::Way)?;
    let status = response.status();
    let retry_after = response
        .headers()
        .get(RETRY_AFTER)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| retry_after(text, Timestamp::now()));
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(Broken::Way)? {
        if body.len() + chunk.len() > max {
            return Err(Broken::TooLong);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Answer {
        status,
        retry_after,
        body,
        operation,
        effect,
        cloud,
    })
}

/// `Retry-After`: seconds, or a date.
fn retry_after(text: &str, now: Timestamp) -> Option<Duration> {
    let text = text.trim();
    let wait = if let Ok(seconds) = text.parse::<f64>() {
        Duration::try_from_secs_f64(seconds).ok()?
    } else {
        let at = jiff::fmt::rfc2822::parse(text).ok()?.timestamp();
        Duration::try_from(at.duration_since(now)).unwrap_or(Duration::ZERO)
    };
    Some(wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_and_as_a_date() {
        let now: Timestamp = "2026-11-20T10:00:00Z".parse().unwrap();
        assert_eq!(retry_after("7", now), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("0.5", now), Some(Duration::from_millis(500)));
        assert_eq!(
            retry_after("Fri, 20 Nov 2026 10:00:30 GMT", now),
            Some(Duration::from_secs(30))
        );
        // A date that is over means now, and nobody waits for a day.
        assert_eq!(
            retry_after("Fri, 20 Nov 2026 09:00:00 GMT", now),
            Some(Duration::ZERO)
        );
        assert_eq!(retry_after("86400", now), Some(LONGEST_RETRY_AFTER));
        assert_eq!(retry_after("soon", now), None);
        assert_eq!(retry_after("-1", now), None);
    }

    #[rstest]
    #[case("0dc16ed0-f7fb", "/id", Some("0dc16ed0-f7fb"))]
    #[case("\"0dc16ed0-f7fb\"\n", "/id", Some("0dc16ed0-f7fb"))]
    #[case(r#"{"id":"0dc16ed0-f7fb"}"#, "/id", Some("0dc16ed0-f7fb"))]
    #[case(r#"{"data":{"instance_ids":["a","b"]}}"#, "/data/instance_ids/0", Some("a"))]
    #[case(r#"{"droplet":{"id":3164494}}"#, "/droplet/id", Some("3164494"))]
    #[case("", "/id", None)]
    #[case("{}", "/id", None)]
    #[case("<html>oops", "/id", None)]
    #[case("<html> oops", "/id", None)]
    #[case(r#"{"id":"a b"}"#, "/id", None)]
    #[case(r#"{"id":{}}"#, "/id", None)]
    fn an_id_is_read_in_each_form_and_an_order_without_one_is_indeterminate(
        #[case] body: &str,
        #[case] pointer: &str,
        #[case] expected: Option<&str>,
    ) {
        let answer = Answer::new("create the instance", Effect::Creates, "Somewhere", 202, body);
        let found = answer.id(pointer).map_err(|error| error.kind);
        assert_eq!(found, expected.map(str::to_owned).ok_or(ErrorKind::Indeterminate));
    }

    #[test]
    fn all_that_a_failure_says_is_one_line() {
        let body = r#"{"message": "no", "details": [{"quota": 0, "resource": "L4"}], "fields": {"size": ["too large", "odd"]}}"#;
        let answer = Answer::new("order", Effect::Creates, "Somewhere", 403, body);
        let pointers = ["/message", "/help", "/fields", "/details"];
        assert_eq!(
            answer.told(&pointers),
            "no: size too large, odd: quota 0, resource L4"
        );
        assert_eq!(answer.told(&["/help"]), "");
        let gateway = Answer::new("order", Effect::Creates, "Somewhere", 502, "<html>");
        assert_eq!(gateway.told(&pointers), "");
    }

    #[test]
    fn an_answer_that_cannot_be_read_names_the_place_and_not_the_content() {
        #[derive(serde::Deserialize, Debug)]
        struct Shape {
            #[expect(dead_code, reason = "only its type matters")]
            items: Vec<u32>,
        }
        let answer = Answer::new(
            "look",
            Effect::Repeatable,
            "Somewhere",
            200,
            r#"{"items":[1,"canary"]}"#,
        );
        let error = answer.json::<Shape>().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Transient);
        assert!(error.message.contains("items[1]"), "{error}");
        assert!(!error.message.contains("canary"), "{error}");
        assert!(!format!("{answer:?}").contains("canary"));
        // After an order it says nothing about whether it was taken.
        let answer = Answer::new("order", Effect::Creates, "Somewhere", 201, "<html>");
        assert_eq!(answer.json::<Shape>().unwrap_err().kind, ErrorKind::Indeterminate);
    }
}
