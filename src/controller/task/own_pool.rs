//! Makes and deletes the Pool of one Task at the API server. The dispatcher decides when.

use kube::{
    Api,
    api::{DeleteParams, PostParams, Preconditions},
};
use skyward_api::{Pool, labels};
use skyward_planner::{base::key::Key, task::message::PoolError};

use crate::{context::Context, deadline::words};

fn pools(context: &Context, key: &Key) -> Api<Pool> {
    Api::namespaced(context.client.clone(), &key.namespace)
}

/// Makes a Pool. One of its name that is there already is no failure: the watch shows for which Task it was made.
pub(super) async fn make(context: &Context, key: &Key, pool: &Pool) -> Result<(), PoolError> {
    let params = PostParams {
        field_manager: Some(labels::MANAGER.to_owned()),
        ..PostParams::default()
    };
    context.metrics.api_write("Pool");
    outcome(pools(context, key).create(&params, pool).await.map(drop))
}

fn outcome(answer: Result<(), kube::Error>) -> Result<(), PoolError> {
    match answer {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.is_already_exists() => Ok(()),
        Err(error) => Err(match &error {
            kube::Error::Api(answer) if is_refusal(answer.code) => PoolError::Refused(answer.message.clone()),
            _ => PoolError::Unknown(words(&error)),
        }),
    }
}

/// Whether the API server certainly made nothing, and says what would help.
fn is_refusal(code: u16) -> bool {
    // 409: a quota is counted by somebody else at this moment.
    (400..500).contains(&code) && ![408, 409, 429].contains(&code)
}

/// Deletes the Pool of that UID; one that is gone, or another one of its name, is no failure.
pub(super) async fn delete(context: &Context, key: &Key, uid: String) -> Result<(), String> {
    let params = DeleteParams::background().preconditions(Preconditions {
        uid: Some(uid),
        resource_version: None,
    });
    context.metrics.api_write("Pool");
    match pools(context, key).delete(&key.name, &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if [404, 409].contains(&answer.code) => Ok(()),
        Err(error) => Err(words(&error)),
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::of_its_name_is_there(409, "AlreadyExists", None)]
    #[case::a_quota_is_counted_at_this_moment(409, "Conflict", Some(false))]
    #[case::a_quota_is_used_up(403, "Forbidden", Some(true))]
    #[case::not_as_the_schema_has_it(422, "Invalid", Some(true))]
    #[case::busy(429, "TooManyRequests", Some(false))]
    #[case::an_answer_of_a_proxy(502, "", Some(false))]
    fn only_a_pool_of_its_name_counts_as_made(
        #[case] code: u16,
        #[case] reason: &str,
        #[case] refused: Option<bool>,
    ) {
        let answer = Status::failure("no", reason).with_code(code).boxed();
        let outcome = outcome(Err(kube::Error::Api(answer)));
        let is_refused = outcome.err().map(|error| matches!(error, PoolError::Refused(_)));
        assert_eq!(is_refused, refused);
    }
}
