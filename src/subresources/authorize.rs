//! Whether a user may read a log or result, or upload a bundle: the API server is asked for each request, and its
//! decision is remembered for a moment.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::{Api, api::PostParams};
use tokio::time::timeout;

use crate::{GROUP, VERSION, frontproxy::User, remembered::Remembered};

/// How long the API server may take.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a yes is remembered, also after the right was revoked.
const YES_LASTS: Duration = Duration::from_secs(5);
/// How long a no is remembered.
const NO_LASTS: Duration = Duration::from_secs(1);
/// Most decisions remembered.
const REMEMBERED: usize = 4096;

/// What a user wants to do.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Access {
    /// `get`, or `update` of a bundle.
    pub verb: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// `tasks`, `machines` or `bundles`.
    pub resource: &'static str,
    /// Name of the object.
    pub name: String,
    /// `log` or `result`; empty: the object itself.
    pub subresource: &'static str,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Allowed,
    /// No; with the authoriser's reason, which may be empty.
    Denied(String),
}

/// Decides.
#[async_trait]
pub trait Authorizer: Send + Sync {
    /// Returns the decision, or why there is none.
    async fn decide(&self, user: &User, access: &Access) -> Result<Decision, String>;
}

/// Asks the API server with a SubjectAccessReview.
pub struct Reviews {
    client: kube::Client,
}

impl Reviews {
    /// Asks with this client, whose account needs `create` on `subjectaccessreviews`.
    pub fn new(client: kube::Client) -> Self {
        Self { client }
    }
}

#[async_trait]
impl Authorizer for Reviews {
    async fn decide(&self, user: &User, access: &Access) -> Result<Decision, String> {
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
                groups: Some(user.groups.clone()),
                extra: Some(user.extra.clone()).filter(|extra| !extra.is_empty()),
                resource_attributes: Some(ResourceAttributes {
                    namespace: Some(access.namespace.clone()),
                    name: Some(access.name.clone()),
                    verb: Some(access.verb.to_owned()),
                    group: Some(GROUP.to_owned()),
                    version: Some(VERSION.to_owned()),
                    resource: Some(access.resource.to_owned()),
                    subresource: Some(access.subresource.to_owned()).filter(|name| !name.is_empty()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let api: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let answer = timeout(DEADLINE, api.create(&PostParams::default(), &review))
            .await
            .map_err(|_| "the API server did not answer in time".to_owned())?
            .map_err(|error| error.to_string())?;
        let status = answer.status.ok_or("the API server gave no decision")?;
        if status.allowed {
            return Ok(Decision::Allowed);
        }
        if let Some(error) = status.evaluation_error.filter(|text| !text.is_empty()) {
            tracing::warn!(
                error,
                "the API server could not evaluate all of its authorization rules"
            );
        }
        Ok(Decision::Denied(status.reason.unwrap_or_default()))
    }
}

/// Remembers decisions for a moment, so that a client that polls does not double its
/// requests at the API server.
pub struct Remembering<A> {
    inner: A,
    /// How long a yes and a no are remembered.
    lasting: (Duration, Duration),
    known: Remembered<(User, Access), Decision>,
}

impl<A: Authorizer> Remembering<A> {
    /// Remembers the decisions of this authoriser.
    pub fn new(inner: A) -> Arc<Self> {
        Self::lasting(inner, YES_LASTS, NO_LASTS)
    }

    fn lasting(inner: A, yes: Duration, no: Duration) -> Arc<Self> {
        Arc::new(Self {
            inner,
            lasting: (yes, no),
            known: Remembered::new(REMEMBERED),
        })
    }
}

#[async_trait]
impl<A: Authorizer> Authorizer for Remembering<A> {
    async fn decide(&self, user: &User, access: &Access) -> Result<Decision, String> {
        let key = (user.clone(), access.clone());
        if let Some(decision) = self.known.get(&key) {
            return Ok(decision);
        }
        let decision = self.inner.decide(user, access).await?;
        let lasts = match decision {
            Decision::Allowed => self.lasting.0,
            Decision::Denied(_) => self.lasting.1,
        };
        self.known.put(key, decision.clone(), lasts);
        Ok(decision)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Counting(AtomicUsize);

    #[async_trait]
    impl Authorizer for Counting {
        async fn decide(&self, user: &User, _: &Access) -> Result<Decision, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match user.name.as_str() {
                "ana" => Ok(Decision::Allowed),
                "ben" => Ok(Decision::Denied("no".into())),
                _ => Err("away".into()),
            }
        }
    }

    #[tokio::test]
    async fn decisions_are_remembered_for_a_moment_and_failures_never() {
        let long = Duration::from_hours(1);
        let authorizer = Remembering::lasting(Counting(AtomicUsize::new(0)), long, Duration::ZERO);
        let asked = || authorizer.inner.0.swap(0, Ordering::Relaxed);
        let access = |name: &str| Access {
            verb: "get",
            namespace: "n".into(),
            resource: "tasks",
            name: name.into(),
            subresource: "log",
        };
        let user = |name: &str| User {
            name: name.into(),
            ..User::default()
        };
        for _ in 0..3 {
            assert_eq!(
                authorizer.decide(&user("ana"), &access("t")).await,
                Ok(Decision::Allowed)
            );
        }
        assert_eq!(asked(), 1);
        authorizer.decide(&user("ana"), &access("other")).await.unwrap();
        assert_eq!(asked(), 1, "another Task is another question");
        authorizer.decide(&user("ben"), &access("t")).await.unwrap();
        authorizer.decide(&user("ben"), &access("t")).await.unwrap();
        assert_eq!(asked(), 2, "what is remembered for no time is asked again");
        authorizer.decide(&user("eve"), &access("t")).await.unwrap_err();
        authorizer.decide(&user("eve"), &access("t")).await.unwrap_err();
        assert_eq!(asked(), 2);
    }
}
