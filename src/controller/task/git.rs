//! Has a machine fetch the files of a Task from git, and keeps them for the other machines.
//!
//! The controller itself never speaks to a git host: it would reach what a tenant may not. It reads the Secret,
//! sends it to the machine for this one fetch, and records what came of it.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use skyward_api::{
    condition::reason,
    task::{GitSource, SourceStatus},
};
use skyward_bundle::LIMITS;
use skyward_planner::{
    base::key::Key,
    task::{
        git::{Credential, credential, fault},
        message::{FetchKey, StartError},
        references::Unresolved,
    },
};
use skyward_remote::{
    Agent, AgentError,
    agent::AgentStream,
    protocol::{Chunk, FetchGitReply, FetchGitRequest, GitCredential, fetch_git_reply::Fault},
};
use tokio_util::sync::CancellationToken;

use crate::context::Context;

/// Where bundles lie that a machine made, for the other machines of their namespace.
#[async_trait]
pub(crate) trait BundleStore: Send + Sync {
    /// Takes a bundle, piece by piece and in order; its digest is computed from the pieces.
    async fn keep(
        &self,
        namespace: &str,
        digest: &str,
        bytes: u64,
        pieces: AgentStream<Chunk>,
    ) -> Result<(), StartError>;

    /// Brings a bundle to a machine; `false`: it is not here.
    async fn bring(&self, namespace: &str, digest: &str, agent: &Agent) -> Result<bool, StartError>;
}

/// A store that keeps nothing: each machine fetches for itself, by the commit that is on record.
pub(crate) struct Nowhere;

#[async_trait]
impl BundleStore for Nowhere {
    async fn keep(&self, _: &str, _: &str, _: u64, _: AgentStream<Chunk>) -> Result<(), StartError> {
        Ok(())
    }

    async fn bring(&self, _: &str, _: &str, _: &Agent) -> Result<bool, StartError> {
        Ok(false)
    }
}

/// The fetches under way, by which a dispatcher ends them.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<HashMap<(Key, FetchKey), CancellationToken>>);

impl UnderWay {
    /// A fetch is about to begin.
    pub(crate) fn begin(&self, pool: &Key, fetch: FetchKey) -> CancellationToken {
        let token = CancellationToken::new();
        self.0.lock().insert((pool.clone(), fetch), token.clone());
        token
    }

    /// By which a fetch that has begun is ended.
    pub(crate) fn token(&self, pool: &Key, fetch: &FetchKey) -> Option<CancellationToken> {
        self.0.lock().get(&(pool.clone(), fetch.clone())).cloned()
    }

    /// The fetch ends now, if it is under way.
    pub(crate) fn cancel(&self, pool: &Key, fetch: FetchKey) {
        if let Some(token) = self.0.lock().remove(&(pool.clone(), fetch)) {
            token.cancel();
        }
    }

    /// Does `work` unless it is cancelled.
    pub(crate) async fn until_cancelled<T>(
        &self,
        pool: &Key,
        fetch: FetchKey,
        token: CancellationToken,
        work: impl Future<Output = Result<T, StartError>>,
    ) -> Result<T, StartError> {
        let _ends = Ends {
            under_way: self,
            key: (pool.clone(), fetch),
        };
        let done = token.run_until_cancelled(work).await;
        done.unwrap_or_else(|| {
            Err(StartError::NotNow(
                "the fetch was given up: nobody waits for it".to_owned(),
            ))
        })
    }
}

/// Forgets a fetch, also one whose future is dropped.
struct Ends<'a> {
    under_way: &'a UnderWay,
    key: (Key, FetchKey),
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.under_way.0.lock().remove(&self.key);
    }
}

/// All that a fetch needs besides its source.
pub(crate) struct Fetcher<'a> {
    pub(crate) context: &'a Context,
    pub(crate) store: &'a dyn BundleStore,
    pub(crate) namespace: &'a str,
    /// Name of the machine.
    pub(crate) machine: &'a str,
    pub(crate) agent: &'a Agent,
}

impl Fetcher<'_> {
    /// Fetches what the source names now, and keeps it for other machines.
    pub(crate) async fn first(&self, source: &GitSource) -> Result<SourceStatus, StartError> {
        let (found, bytes) = self.fetch(source, "").await?;
        let pieces = self.agent.read_bundle(&found.digest, 0).await;
        let pieces = pieces.map_err(StartError::Agent)?;
        self.store
            .keep(self.namespace, &found.digest, bytes, pieces)
            .await?;
        Ok(found)
    }

    /// Brings the files that are on record to the machine, which has not got them.
    pub(crate) async fn again(
        &self,
        source: &GitSource,
        digest: &str,
        commit: &str,
    ) -> Result<(), StartError> {
        if self.store.bring(self.namespace, digest, self.agent).await? {
            return Ok(());
        }
        if commit.is_empty() {
            return Err(StartError::References(Unresolved {
                reason: reason::SOURCE_REFUSED,
                message: "the status of the Task does not say which commit it runs, as after a change by hand; delete the Task and create it again".to_owned(),
            }));
        }
        let (found, _) = self.fetch(source, commit).await?;
        same(&found.digest, digest, self.machine).map_err(StartError::References)
    }

    async fn fetch(&self, source: &GitSource, commit: &str) -> Result<(SourceStatus, u64), StartError> {
        let fetched = self.ask(source, commit).await;
        self.context.metrics.source_fetched(match &fetched {
            Ok(_) => "Fetched",
            Err(StartError::References(error)) => error.reason,
            Err(StartError::Agent(_) | StartError::NotNow(_) | StartError::TaskGone) => "Lost",
        });
        fetched
    }

    async fn ask(&self, source: &GitSource, commit: &str) -> Result<(SourceStatus, u64), StartError> {
        if !self.agent.fetches_git() {
            return Err(StartError::References(Unresolved {
                reason: reason::AGENT_OUTDATED,
                message: format!(
                    "the agent of machine \"{}\" is of an earlier version, which does not fetch from git; it is replaced once the runs there have ended, and the Task goes on by itself",
                    self.machine
                ),
            }));
        }
        let credential = self.credential(source).await.map_err(StartError::References)?;
        let asked = request(source, commit, credential.as_ref());
        let reply = self.agent.fetch_git(asked).await.map_err(|error| {
            // The machine has seen the credential.
            StartError::Agent(match (error, &credential) {
                (AgentError::Refused(why), Some(credential)) => AgentError::Refused(credential.masked(&why)),
                (AgentError::Busy(why), Some(credential)) => AgentError::Busy(credential.masked(&why)),
                (AgentError::Disconnected(why), Some(credential)) => {
                    AgentError::Disconnected(credential.masked(&why))
                }
                (error, _) => error,
            })
        })?;
        judged(reply, self.machine, credential.as_ref()).map_err(StartError::References)
    }

    async fn credential(&self, source: &GitSource) -> Result<Option<Credential>, Unresolved> {
        let Some(named) = &source.credentials_secret_ref else {
            return Ok(None);
        };
        let references = &self.context.references;
        match references.secret(self.namespace, &named.name).await? {
            Some(texts) => credential(source, &named.name, &texts).map(Some),
            None if named.optional => Ok(None),
            None => Err(format!(
                "there is no Secret \"{}\" in namespace \"{}\", which source.git names; create it, and the Task goes on by itself",
                named.name, self.namespace
            )
            .into()),
        }
    }
}

fn request(source: &GitSource, commit: &str, credential: Option<&Credential>) -> FetchGitRequest {
    FetchGitRequest {
        url: source.url.clone(),
        reference: source.reference().to_owned(),
        commit: commit.to_owned(),
        path: source.path.clone().unwrap_or_default(),
        known_hosts: source.known_hosts.clone().unwrap_or_default(),
        credential: credential.map(|credential| GitCredential {
            host: credential.host.clone(),
            username: credential.username.clone(),
            password: credential.password.clone(),
            ssh_key: credential.ssh_key.clone(),
        }),
        ..FetchGitRequest::default()
    }
}

/// What came of a fetch, with the length of its bundle.
fn judged(
    reply: FetchGitReply,
    machine: &str,
    credential: Option<&Credential>,
) -> Result<(SourceStatus, u64), Unresolved> {
    let FetchGitReply {
        commit,
        digest,
        bytes,
        fault: found,
        message,
    } = reply;
    if found != i32::from(Fault::None) {
        let message = credential.map_or_else(|| message.clone(), |credential| credential.masked(&message));
        return Err(fault(found == i32::from(Fault::Invalid), machine, &message));
    }
    if bytes > LIMITS.packed() {
        let why = format!("it has a bundle of {bytes} bytes, which is more than any");
        return Err(fault(true, machine, &why));
    }
    Ok((SourceStatus { digest, commit }, bytes))
}

/// Refuses other files than those on record: a commit has the same files each time.
fn same(found: &str, recorded: &str, machine: &str) -> Result<(), Unresolved> {
    if found == recorded {
        return Ok(());
    }
    let why = format!("the commit that is on record gave {found}, and {recorded} is on record");
    Err(fault(true, machine, &why))
}

/// A store that can be shared.
pub(crate) type Bundles = Arc<dyn BundleStore>;

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(fault: Fault, message: &str) -> FetchGitReply {
        FetchGitReply {
            commit: "c".repeat(40),
            digest: "sha256:d".to_owned(),
            bytes: 10,
            fault: fault.into(),
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_fault_is_told_with_its_machine_and_without_the_credential() {
        let credential = Credential {
            password: "canary".into(),
            ..Credential::default()
        };
        for (found, reason) in [
            (Fault::Unavailable, reason::SOURCE_UNAVAILABLE),
            (Fault::Invalid, reason::SOURCE_INVALID),
        ] {
            let error = judged(reply(found, "fatal: canary"), "p-0", Some(&credential)).unwrap_err();
            assert_eq!(error.reason, reason);
            assert!(
                error.message.contains("\"p-0\": fatal: ***;"),
                "{}",
                error.message
            );
        }
        let unknown = FetchGitReply {
            fault: 99,
            ..reply(Fault::None, "")
        };
        let error = judged(unknown, "p-0", None).unwrap_err();
        assert_eq!(error.reason, reason::SOURCE_UNAVAILABLE);
    }

    #[test]
    fn a_bundle_that_no_machine_takes_is_refused_before_a_byte_of_it_is_read() {
        assert_eq!(judged(reply(Fault::None, ""), "p-0", None).unwrap().1, 10);
        let large = FetchGitReply {
            bytes: LIMITS.packed() + 1,
            ..reply(Fault::None, "")
        };
        assert!(judged(large, "p-0", None).is_err());
    }

    #[test]
    fn other_files_than_those_on_record_are_refused() {
        assert!(same("sha256:a", "sha256:a", "p-0").is_ok());
        let error = same("sha256:b", "sha256:a", "p-0").unwrap_err();
        assert_eq!(error.reason, reason::SOURCE_INVALID);
    }

    #[tokio::test]
    async fn a_fetch_that_is_cancelled_ends_and_nothing_of_it_is_kept() {
        let under_way = UnderWay::default();
        let pool = Key::new("n", "p");
        let key = FetchKey::Number(1);
        let token = under_way.begin(&pool, key.clone());
        let work =
            under_way.until_cancelled(&pool, key.clone(), token, std::future::pending::<Result<(), _>>());
        let (ended, ()) = tokio::join!(work, async { under_way.cancel(&pool, key.clone()) });
        assert!(matches!(ended, Err(StartError::NotNow(_))));
        assert!(under_way.0.lock().is_empty());
        // Another Pool's fetch of the same number goes on.
        let token = under_way.begin(&pool, key.clone());
        under_way.cancel(&Key::new("n", "other"), key.clone());
        let work = under_way.until_cancelled(&pool, key, token, async { Ok(7) });
        assert_eq!(work.await, Ok(7));
        assert!(under_way.0.lock().is_empty());
    }

    #[test]
    fn a_request_names_the_source_and_the_commit_on_record() {
        let source = GitSource {
            url: "https://git.example/a".into(),
            path: Some("exp".into()),
            ..GitSource::default()
        };
        let asked = request(&source, "abc", None);
        assert_eq!(
            (
                asked.reference.as_str(),
                asked.commit.as_str(),
                asked.path.as_str()
            ),
            ("HEAD", "abc", "exp")
        );
        assert!(asked.credential.is_none());
    }
}
