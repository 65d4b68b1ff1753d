//! What an HTTP status means where a cloud says nothing else. Pure. A cloud's `errors.rs` asks here
//! last, after the codes and words by which it differs.

use skyward_core::ErrorKind;

use super::Answer;
use crate::text::says;

/// Remedies for refusals, in the words of one cloud.
#[derive(Clone, Copy, Debug)]
pub struct Remedies {
    /// About an order that is refused as it is: which settings to correct.
    pub settings: &'static str,
    /// About credentials that are refused: where to make others, and which keys of the Secret to
    /// write.
    pub credentials: &'static str,
    /// About a right that the credentials lack.
    pub permission: &'static str,
    /// About an account that cannot pay.
    pub credit: &'static str,
}

/// Kind of a failure, with the remedy.
///
/// | status | reading, deleting | creating |
/// | --- | --- | --- |
/// | 401, 402, 403 | `Credentials`, `NoCredit`, `Permission` | the same |
/// | 404, 410 | `NotFound` | `InvalidOrder`: what the order names does not exist |
/// | 409 | `AlreadyExists` | the same |
/// | 408, 425 | `Transient` | `Indeterminate` |
/// | 423 | `Transient` | the same: nothing was made |
/// | 429 | `RateLimited` | the same |
/// | another 4xx | `InvalidOrder` | the same |
/// | 500 and more, with the word maintenance | `Transient` | `Outage` |
/// | any other | `Transient` | `Indeterminate` |
pub fn judge(answer: &Answer, remedies: &Remedies) -> (ErrorKind, Option<&'static str>) {
    let creates = answer.effect() == super::Effect::Creates;
    match answer.status.as_u16() {
        401 => (ErrorKind::Credentials, Some(remedies.credentials)),
        402 => (ErrorKind::NoCredit, Some(remedies.credit)),
        403 => (ErrorKind::Permission, Some(remedies.permission)),
        404 | 410 if !creates => (ErrorKind::NotFound, None),
        409 => (ErrorKind::AlreadyExists, None),
        408 | 425 => (answer.lost(), None),
        423 => (ErrorKind::Transient, None),
        429 => (ErrorKind::RateLimited(answer.retry_after), None),
        400..500 => (
            ErrorKind::InvalidOrder,
            Some(remedies.settings).filter(|_| creates),
        ),
        500.. if is_maintenance(&answer.text()) => (answer.effect().unavailable(), None),
        _ => (answer.lost(), None),
    }
}

/// Whether the words of an answer say that the cloud is under maintenance. A failing server alone
/// may have done what it was asked.
pub fn is_maintenance(words: &str) -> bool {
    says(words, &["maintenance"])
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::http::Effect;

    const REMEDIES: Remedies = Remedies {
        settings: "correct the settings",
        credentials: "make a key",
        permission: "ask for the right",
        credit: "pay",
    };

    #[rstest]
    #[case(401, "credentials make a key", "credentials make a key")]
    #[case(402, "no_credit pay", "no_credit pay")]
    #[case(403, "permission ask for the right", "permission ask for the right")]
    #[case(404, "not_found ", "invalid_order correct the settings")]
    #[case(410, "not_found ", "invalid_order correct the settings")]
    #[case(409, "already_exists ", "already_exists ")]
    #[case(408, "transient ", "indeterminate ")]
    #[case(423, "transient ", "transient ")]
    #[case(429, "rate_limited ", "rate_limited ")]
    #[case(400, "invalid_order ", "invalid_order correct the settings")]
    #[case(422, "invalid_order ", "invalid_order correct the settings")]
    #[case(500, "transient ", "indeterminate ")]
    #[case(502, "transient ", "indeterminate ")]
    #[case(503, "transient ", "indeterminate ")]
    #[case(200, "transient ", "indeterminate ")]
    fn each_status_has_a_kind_and_what_a_person_can_mend_says_how(
        #[case] status: u16,
        #[case] reading: &str,
        #[case] creating: &str,
    ) {
        for (effect, expected) in [(Effect::Repeatable, reading), (Effect::Creates, creating)] {
            let (kind, remedy) = judge(&Answer::new("call", effect, "Somewhere", status, ""), &REMEDIES);
            assert_eq!(
                format!("{} {}", kind.name(), remedy.unwrap_or_default()),
                expected,
                "{effect:?}"
            );
        }
    }

    #[rstest]
    #[case::a_page(503, "<h1>Scheduled Maintenance</h1>", ErrorKind::Outage)]
    #[case::a_gateway(502, r#"{"error":"under maintenance"}"#, ErrorKind::Outage)]
    #[case::a_setting_of_that_name(503, "onHostMaintenance", ErrorKind::Indeterminate)]
    #[case::an_order_that_is_wrong(400, "maintenance window", ErrorKind::InvalidOrder)]
    fn an_order_that_meets_maintenance_was_refused_in_words(
        #[case] status: u16,
        #[case] body: &str,
        #[case] expected: ErrorKind,
    ) {
        let answer = |effect| Answer::new("call", effect, "Somewhere", status, body);
        assert_eq!(judge(&answer(Effect::Creates), &REMEDIES).0, expected);
        assert_ne!(
            judge(&answer(Effect::Repeatable), &REMEDIES).0,
            ErrorKind::Outage
        );
    }
}
