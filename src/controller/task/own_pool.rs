//! Makes and deletes the Pool of one Task at the API server. When, is the dispatcher's to decide.

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
    match pools(context, key).create(&params, pool).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(answer)) if answer.code == 409 => Ok(()),
        Err(error) => Err(match &error {
            kube::Error::Api(answer) if is_refusal(answer.code) => PoolError::Refused(answer.message.clone()),
            _ => PoolError::Unknown(words(&error)),
        }),
    }
}

/// Whether the API server certainly made nothing, and says what would help.
fn is_refusal(code: u16) -> bool {
    (400..500).contains(&code) && ![408, 429].contains(&code)
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
