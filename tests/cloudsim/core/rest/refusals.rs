//! Status, code and text of a cloud's refusals.

use super::RestApi;
use crate::core::cloud::Refusal;
use crate::core::http::Answer;

/// Status, code and text of one refusal. `{}` in the text is where details go.
#[derive(Clone, Copy, Debug)]
pub struct Problem(pub u16, pub &'static str, pub &'static str);

/// The answer to each [`Refusal`]. `Invalid` and `Bad` share one; the status of a failing
/// server is the one that the fault names.
#[derive(Clone, Copy, Debug)]
pub struct Refusals {
    /// Too many requests.
    pub too_many: Problem,
    /// The cloud fails.
    pub server: Problem,
    /// Nothing of the ordered type is left.
    pub no_capacity: Problem,
    /// A quota is used up: its name.
    pub quota: Problem,
    /// The account has no money.
    pub funds: Problem,
    /// Wrong credentials.
    pub unauthorized: Problem,
    /// Credentials that have expired.
    pub expired: Problem,
    /// Credentials that may not do this.
    pub forbidden: Problem,
    /// The request is wrong; `{}` says in what.
    pub invalid: Problem,
    /// The named object does not exist; `{}` is its name.
    pub not_found: Problem,
    /// No such call.
    pub unknown_call: Problem,
}

impl Refusals {
    /// A refusal as this cloud answers it.
    pub fn answer<A: RestApi>(&self, refusal: &Refusal) -> Answer {
        let say = |Problem(status, code, text): Problem, detail: &str| {
            A::problem(status, code, &text.replace("{}", detail))
        };
        match refusal {
            Refusal::TooMany { retry_after } => {
                let answer = say(self.too_many, "");
                match retry_after {
                    Some(seconds) => answer.with("retry-after", seconds.to_string()),
                    None => answer,
                }
            }
            Refusal::Server(status) => say(Problem(*status, self.server.1, self.server.2), ""),
            Refusal::NoCapacity => say(self.no_capacity, ""),
            Refusal::Quota(what) => say(self.quota, what),
            Refusal::Funds => say(self.funds, ""),
            Refusal::Unauthorized => say(self.unauthorized, ""),
            Refusal::Expired => say(self.expired, ""),
            Refusal::Forbidden => say(self.forbidden, ""),
            Refusal::Invalid(what) => say(self.invalid, &what.join("; ")),
            Refusal::Bad(what) => say(self.invalid, what),
            Refusal::NotFound(what) => say(self.not_found, what),
            Refusal::UnknownCall => say(self.unknown_call, ""),
            Refusal::Answer(answer) => answer.clone(),
        }
    }
}
