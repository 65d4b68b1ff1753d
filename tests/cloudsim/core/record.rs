//! Records of the requests to a cloud, and of the ones that its description does not allow.

use jiff::Timestamp;
use serde::Serialize;

/// One request, for tests and for counting calls.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// When it came.
    pub at: Timestamp,
    /// Its method.
    pub method: String,
    /// Its path with the query. Never headers: they carry credentials.
    pub path: String,
    /// What call of the cloud that is ("" when none).
    pub call: String,
    /// The account that asked.
    pub account: Option<String>,
    /// The machine or resource that it named or made.
    pub subject: Option<String>,
    /// The status of the answer; `None` when the connection was cut.
    pub status: Option<u16>,
    /// Whether the call was carried out (also when its answer was lost).
    pub effect: bool,
    /// The fault that struck.
    pub fault: Option<String>,
}

/// A request that the official description does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// When it came.
    pub at: Timestamp,
    /// What it was.
    pub request: String,
    /// What is wrong with it.
    pub what: String,
}
