//! Access to the metrics: for clients with a token of an account that may `get /metrics`.
//!
//! The API server decides both: whose token it is (TokenReview), and what that account may
//! do (SubjectAccessReview). Anybody may show any number of made-up tokens, and each costs the API
//! server a call in our name. So an accepted token counts for a while, an address whose token was
//! refused waits, and few tokens are reviewed at a time.

use std::{net::IpAddr, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, UserInfo},
    authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, api::PostParams};
use sha2::{Digest, Sha256};
use skyward_subresources::remembered::Remembered;
use tokio::{sync::Semaphore, time::timeout};

/// The path that the right is about.
pub(crate) const PATH: &str = "/metrics";
/// Longest token that is reviewed, in bytes; those of Kubernetes have one or two thousand.
const TOKEN: usize = 16 * 1024;
/// How long an accepted token counts, also after its right was revoked.
const YES_LASTS: Duration = Duration::from_mins(1);
/// How long an address waits after a token of it was refused.
const NO_LASTS: Duration = Duration::from_secs(1);
/// Most answers of either kind that are remembered.
const REMEMBERED: usize = 1024;
/// Tokens asked about at a time.
const AT_ONCE: usize = 2;
/// Longest wait for an answer, and for a turn to ask.
const DEADLINE: Duration = Duration::from_secs(5);

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The client may read.
    Granted,
    /// The client shows no token, or a token that the API server does not know.
    Unknown,
    /// Its account lacks the right.
    Forbidden(String),
    /// A token of this address was refused a moment ago.
    Later,
    /// The API server did not answer; the reason goes to the log.
    Unavailable(String),
}

/// Asks about a token.
#[async_trait]
pub(crate) trait Reviews: Send + Sync {
    /// Whether the token's account may read, or why that is not known.
    async fn review(&self, token: &str) -> Result<Access, String>;
}

/// The API server's, which needs `create` on `tokenreviews` and `subjectaccessreviews`.
#[async_trait]
impl Reviews for Client {
    async fn review(&self, token: &str) -> Result<Access, String> {
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let tokens: Api<TokenReview> = Api::all(self.clone());
        let answer = tokens.create(&PostParams::default(), &review).await;
        let status = answer
            .map_err(|error| error.to_string())?
            .status
            .unwrap_or_default();
        let Some(user) = status.user.filter(|_| status.authenticated == Some(true)) else {
            return Ok(Access::Unknown);
        };
        let name = user.username.clone().unwrap_or_default();
        let rights: Api<SubjectAccessReview> = Api::all(self.clone());
        let answer = rights.create(&PostParams::default(), &may_read(user)).await;
        let status = answer
            .map_err(|error| error.to_string())?
            .status
            .ok_or("the API server gave no decision")?;
        Ok(if status.allowed {
            Access::Granted
        } else {
            Access::Forbidden(name)
        })
    }
}

fn may_read(user: UserInfo) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(PATH.to_owned()),
                verb: Some("get".to_owned()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// Admits clients that may read.
pub(crate) struct Door<R> {
    reviews: R,
    /// Keyed by the digest of the token: no token is kept.
    granted: Remembered<[u8; 32], ()>,
    refused: Remembered<Option<IpAddr>, ()>,
    turns: Semaphore,
}

impl<R: Reviews> Door<R> {
    pub(crate) fn new(reviews: R) -> Self {
        Self {
            reviews,
            granted: Remembered::new(REMEMBERED),
            refused: Remembered::new(REMEMBERED),
            turns: Semaphore::new(AT_ONCE),
        }
    }

    /// Decides about the header `Authorization` of a request from that address.
    pub(crate) async fn ask(&self, header: Option<&str>, from: Option<IpAddr>) -> Access {
        let token = header
            .and_then(|header| header.split_once(' '))
            .filter(|(scheme, token)| {
                scheme.eq_ignore_ascii_case("bearer") && (1..=TOKEN).contains(&token.len())
            });
        let Some((_, token)) = token else {
            return Access::Unknown;
        };
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        if let Some(known) = self.known(digest, from) {
            return known;
        }
        let Ok(Ok(_turn)) = timeout(DEADLINE, self.turns.acquire()).await else {
            return Access::Unavailable("too many tokens are being asked about".to_owned());
        };
        // Another request of this address, or with this token, may have been answered meanwhile.
        if let Some(known) = self.known(digest, from) {
            return known;
        }
        let answer = match timeout(DEADLINE, self.reviews.review(token)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Access::Unavailable(error),
            Err(_) => return Access::Unavailable("the API server did not answer in time".to_owned()),
        };
        if answer == Access::Granted {
            self.granted.put(digest, (), YES_LASTS);
        } else {
            self.refused.put(from, (), NO_LASTS);
        }
        answer
    }

    fn known(&self, digest: [u8; 32], from: Option<IpAddr>) -> Option<Access> {
        if self.granted.get(&digest).is_some() {
            return Some(Access::Granted);
        }
        self.refused.get(&from).map(|()| Access::Later)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    /// Knows two tokens: Prometheus may read, a viewer may not.
    #[derive(Clone, Default)]
    struct Cluster(Arc<AtomicUsize>);

    #[async_trait]
    impl Reviews for Cluster {
        async fn review(&self, token: &str) -> Result<Access, String> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match token {
                "prometheus" => Ok(Access::Granted),
                "viewer" => Ok(Access::Forbidden("viewer".to_owned())),
                "away" => Err("away".to_owned()),
                "slow" => std::future::pending().await,
                _ => Ok(Access::Unknown),
            }
        }
    }

    fn door() -> (Door<Cluster>, Cluster) {
        let cluster = Cluster::default();
        (Door::new(cluster.clone()), cluster)
    }

    fn pod(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    #[tokio::test(start_paused = true)]
    async fn the_account_s_right_decides_and_nothing_else() {
        let (door, _) = door();
        let long = format!("Bearer {}", "x".repeat(TOKEN + 1));
        for (address, header, expected) in [
            (1, Some("Bearer prometheus"), Access::Granted),
            (2, Some("bearer viewer"), Access::Forbidden("viewer".to_owned())),
            (3, Some("Bearer stolen"), Access::Unknown),
            (4, Some("Basic prometheus"), Access::Unknown),
            (5, Some("Bearer "), Access::Unknown),
            (6, Some("prometheus"), Access::Unknown),
            (7, Some(long.as_str()), Access::Unknown),
            (8, None, Access::Unknown),
            (9, Some("Bearer away"), Access::Unavailable("away".to_owned())),
        ] {
            assert_eq!(door.ask(header, Some(pod(address))).await, expected, "{header:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_yes_counts_for_a_minute_and_failures_are_asked_again() {
        let (door, cluster) = door();
        let asked = || cluster.0.swap(0, Ordering::Relaxed);
        for _ in 0..5 {
            assert_eq!(
                door.ask(Some("Bearer prometheus"), Some(pod(1))).await,
                Access::Granted
            );
        }
        assert_eq!(asked(), 1);
        tokio::time::advance(YES_LASTS).await;
        door.ask(Some("Bearer prometheus"), Some(pod(1))).await;
        door.ask(Some("Bearer away"), Some(pod(1))).await;
        door.ask(Some("Bearer away"), Some(pod(1))).await;
        assert_eq!(asked(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn tokens_that_are_nobody_s_cost_the_api_server_one_call_a_second_and_address() {
        let (door, cluster) = door();
        let asked = || cluster.0.swap(0, Ordering::Relaxed);
        let tokens: Vec<String> = (0..100).map(|n| format!("Bearer made-up-{n}")).collect();
        let answers =
            futures::future::join_all(tokens.iter().map(|token| door.ask(Some(token), Some(pod(1))))).await;
        assert!(asked() <= AT_ONCE);
        assert!(answers.contains(&Access::Unknown) && answers.contains(&Access::Later));
        // Neither another address nor an accepted token waits for that.
        assert_eq!(
            door.ask(Some("Bearer prometheus"), Some(pod(2))).await,
            Access::Granted
        );
        assert_eq!(
            door.ask(Some("Bearer prometheus"), Some(pod(1))).await,
            Access::Granted
        );
        assert_eq!(asked(), 1);
        tokio::time::advance(NO_LASTS).await;
        assert_eq!(
            door.ask(Some("Bearer made-up"), Some(pod(1))).await,
            Access::Unknown
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_api_server_that_does_not_answer_holds_nobody_for_long() {
        let (door, _) = door();
        let asks = (0..6).map(|n| door.ask(Some("Bearer slow"), Some(pod(n))));
        let before = tokio::time::Instant::now();
        let answers = futures::future::join_all(asks).await;
        assert!(
            answers
                .iter()
                .all(|answer| matches!(answer, Access::Unavailable(_)))
        );
        assert!(before.elapsed() <= DEADLINE * 2);
    }
}
