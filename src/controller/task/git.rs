//! Has a machine fetch the files of a Task from git, and keeps them for the other machines.
//!
//! The controller itself never speaks to a git host: it would reach what a tenant may not. It reads the Secret,
//! sends it to the machine for this one fetch, and records what came of it. The files become a bundle of the
//! namespace in the result store, as an upload; without room for them there each machine fetches the commit.

use std::{collections::HashMap, io, sync::Arc};

use axum::{body::Body, http::StatusCode};
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use skyward_api::{
    condition::reason,
    task::{GitSource, Source, SourceStatus},
};
use skyward_bundle::{Digest, LIMITS};
use skyward_planner::{
    base::key::Key,
    task::{
        git::{Credential, credential, fault},
        message::{FetchKey, FetchedSource, StartError},
        references::Unresolved,
    },
};
use skyward_remote::{
    Agent, AgentError,
    protocol::{Chunk, FetchGitReply, FetchGitRequest, GitCredential, fetch_git_reply::Fault},
};
use tokio_util::sync::CancellationToken;

use crate::{
    context::Context,
    task::delivery::outdated,
    uploads::{Failure, Part},
};

/// The fetches and starts under way, by which a dispatcher ends them.
#[derive(Debug, Default)]
pub(crate) struct UnderWay(Mutex<HashMap<(Key, FetchKey), Arc<CancellationToken>>>);

impl UnderWay {
    /// From now on it can be cancelled.
    pub(crate) fn begin(&self, pool: &Key, fetch: FetchKey) {
        self.0.lock().insert((pool.clone(), fetch), Arc::default());
    }

    /// What has begun; the error says that it was cancelled already.
    pub(crate) fn begun(&self, pool: &Key, fetch: FetchKey) -> Result<Begun<'_>, StartError> {
        let key = (pool.clone(), fetch);
        let token = self.0.lock().get(&key).cloned().ok_or_else(given_up)?;
        Ok(Begun {
            under_way: self,
            key,
            token,
        })
    }

    /// It ends now, if it is under way.
    pub(crate) fn cancel(&self, pool: &Key, fetch: FetchKey) {
        if let Some(token) = self.0.lock().remove(&(pool.clone(), fetch)) {
            token.cancel();
        }
    }
}

fn given_up() -> StartError {
    StartError::NotNow("the fetch was given up: nobody waits for it".to_owned())
}

/// A fetch or start that has begun. It is forgotten with this, also where its future is dropped.
pub(crate) struct Begun<'a> {
    under_way: &'a UnderWay,
    key: (Key, FetchKey),
    token: Arc<CancellationToken>,
}

impl Begun<'_> {
    /// Does `work` unless it is cancelled.
    pub(crate) async fn unless_cancelled<T>(
        &self,
        work: impl Future<Output = Result<T, StartError>>,
    ) -> Result<T, StartError> {
        let done = self.token.run_until_cancelled(work).await;
        done.unwrap_or_else(|| Err(given_up()))
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut under_way = self.under_way.0.lock();
        // Over another connection the same run may have begun again.
        if under_way
            .get(&self.key)
            .is_some_and(|token| Arc::ptr_eq(token, &self.token))
        {
            under_way.remove(&self.key);
        }
    }
}

/// All that a fetch needs besides its source.
pub(crate) struct Fetcher<'a> {
    pub(crate) context: &'a Context,
    pub(crate) namespace: &'a str,
    /// Name of the machine.
    pub(crate) machine: &'a str,
    pub(crate) agent: &'a Agent,
}

impl Fetcher<'_> {
    /// Fetches what the source names now, and keeps it for other machines.
    pub(crate) async fn first(&self, source: &Source) -> Result<FetchedSource, StartError> {
        let (source, bytes) = self.fetch(source, "").await?;
        let kept = self.keep(&source.digest, bytes).await;
        let not_kept = kept.map_err(StartError::References)?;
        Ok(FetchedSource { source, not_kept })
    }

    /// Fetches the files that are on record to the machine, which has not got them.
    pub(crate) async fn again(&self, source: &Source, digest: &str, commit: &str) -> Result<(), StartError> {
        if commit.is_empty() {
            return Err(StartError::References(Unresolved {
                reason: reason::SOURCE_REFUSED,
                message: "the status of the Task does not say which commit it runs, as after a change by hand; delete the Task and create it again".to_owned(),
            }));
        }
        let (found, _) = self.fetch(source, commit).await?;
        same(&found.digest, digest, self.machine).map_err(StartError::References)
    }

    /// Puts the bundle into the result store; returns why it is not there, where that passes.
    async fn keep(&self, digest: &str, size: u64) -> Result<Option<String>, Unresolved> {
        let named: Digest = digest.parse()?;
        let upload = upload_of(self.machine);
        let whole = Part {
            namespace: self.namespace,
            digest: named,
            upload: &upload,
            offset: 0,
            size,
        };
        let kept = self.context.uploads.keep(whole, |offset| {
            let (agent, digest) = (self.agent.clone(), digest.to_owned());
            // The machine is not asked before there is a turn for it.
            let chunks = stream::once(async move { agent.read_bundle(&digest, offset).await });
            Body::from_stream(joined(chunks.try_flatten(), offset))
        });
        let kept = kept.await.map(|()| None);
        kept.or_else(|failure| without_store(failure, self.machine))
    }

    async fn fetch(&self, source: &Source, commit: &str) -> Result<(SourceStatus, u64), StartError> {
        let fetched = self.ask(source, commit).await;
        self.context.metrics.source_fetched(match &fetched {
            Ok(_) => "Fetched",
            Err(StartError::References(error)) => error.reason,
            Err(StartError::Agent(_) | StartError::NotNow(_) | StartError::TaskGone) => "Lost",
        });
        fetched
    }

    async fn ask(&self, source: &Source, commit: &str) -> Result<(SourceStatus, u64), StartError> {
        let Some(git) = &source.git else {
            let why = "spec.source names no git repository; create another Task";
            return Err(StartError::References(why.into()));
        };
        if !self.agent.fetches_git() {
            return Err(StartError::References(outdated(
                self.machine,
                "does not fetch from git",
            )));
        }
        let credential = self.credential(git).await.map_err(StartError::References)?;
        let asked = request(source, git, commit, credential.as_ref());
        let reply = self.agent.fetch_git(asked).await;
        let reply = reply.map_err(|error| not_fetched(error, self.machine, credential.as_ref()))?;
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

/// The upload of a machine: none of a user has such a name.
fn upload_of(machine: &str) -> String {
    let hash: [u8; 32] = Sha256::digest(machine).into();
    let mut id = [0; 16];
    id.copy_from_slice(&hash[..16]);
    format!("git-{:032x}", u128::from_be_bytes(id))
}

/// The bytes of the chunks, from an offset on, as long as each begins where the one before ends.
fn joined(
    chunks: impl Stream<Item = Result<Chunk, AgentError>>,
    offset: u64,
) -> impl Stream<Item = io::Result<Bytes>> {
    let mut end = offset;
    chunks.map(move |chunk| {
        let Chunk { offset, data } = chunk.map_err(io::Error::other)?;
        if offset != end {
            return Err(io::Error::other("bytes of the bundle are missing"));
        }
        end += data.len() as u64;
        Ok(data)
    })
}

/// What it means that a bundle is not in the store: an error where the machine gave out other files than it named, else
/// why, where that passes by itself. Room for the bundle does not come by itself.
fn without_store((code, why): Failure, machine: &str) -> Result<Option<String>, Unresolved> {
    if code == StatusCode::UNPROCESSABLE_ENTITY {
        let why = "the files that it gives out are not those that it named";
        return Err(fault(false, machine, why));
    }
    tracing::info!(machine, %why, "files from git are not kept in the result store: each machine fetches them");
    let is_fault = code.is_server_error() && code != StatusCode::INSUFFICIENT_STORAGE;
    Ok((is_fault || code == StatusCode::TOO_MANY_REQUESTS).then_some(why))
}

/// Why there is no reply of the machine, which has seen the credential.
fn not_fetched(error: AgentError, machine: &str, credential: Option<&Credential>) -> StartError {
    let masked = |why: &str| credential.map_or_else(|| why.to_owned(), |credential| credential.masked(why));
    match error {
        // The run must not fail for it: a Secret can be changed, a machine replaced.
        AgentError::Refused(_) | AgentError::NotFound => {
            let why = format!(
                "its agent does not fetch source.git: {}",
                masked(&error.to_string())
            );
            StartError::References(fault(true, machine, &why))
        }
        AgentError::Busy(why) => StartError::Agent(AgentError::Busy(masked(&why))),
        AgentError::Disconnected(why) => StartError::Agent(AgentError::Disconnected(masked(&why))),
        error => StartError::Agent(error),
    }
}

fn request(
    source: &Source,
    git: &GitSource,
    commit: &str,
    credential: Option<&Credential>,
) -> FetchGitRequest {
    FetchGitRequest {
        url: git.url.clone(),
        reference: git.reference().to_owned(),
        commit: commit.to_owned(),
        path: git.path.clone().unwrap_or_default(),
        include: source.include.clone(),
        exclude: source.exclude.clone(),
        known_hosts: git.known_hosts.clone().unwrap_or_default(),
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

#[cfg(test)]
mod tests {
    use skyward_planner::task::model::RunId;

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
        under_way.begin(&pool, key.clone());
        let begun = under_way.begun(&pool, key.clone()).ok().unwrap();
        let work = begun.unless_cancelled(std::future::pending::<Result<(), _>>());
        let (ended, ()) = tokio::join!(work, async { under_way.cancel(&pool, key.clone()) });
        assert!(matches!(ended, Err(StartError::NotNow(_))));
        // One that was cancelled before it began.
        let other = FetchKey::Run(RunId::new(&"t".into(), 1, 0));
        under_way.begin(&pool, other.clone());
        under_way.cancel(&pool, other.clone());
        assert!(matches!(
            under_way.begun(&pool, other),
            Err(StartError::NotNow(_))
        ));
        // Another Pool's fetch of the same number goes on, and one that began again stays.
        under_way.begin(&pool, key.clone());
        under_way.cancel(&Key::new("n", "other"), key.clone());
        drop(begun);
        let begun = under_way.begun(&pool, key).ok().unwrap();
        assert_eq!(begun.unless_cancelled(async { Ok(7) }).await, Ok(7));
        drop(begun);
        assert!(under_way.0.lock().is_empty());
    }

    #[test]
    fn a_request_names_the_source_its_selection_and_the_commit_on_record() {
        let git = GitSource {
            url: "https://git.example/a".into(),
            path: Some("exp".into()),
            ..GitSource::default()
        };
        let source = Source {
            include: vec!["*.py".into()],
            exclude: vec!["data/".into()],
            ..Source::default()
        };
        let asked = request(&source, &git, "abc", None);
        assert_eq!(
            (
                asked.reference.as_str(),
                asked.commit.as_str(),
                asked.path.as_str()
            ),
            ("HEAD", "abc", "exp")
        );
        assert_eq!((asked.include, asked.exclude), (source.include, source.exclude));
        assert!(asked.credential.is_none());
    }

    #[test]
    fn a_machine_that_does_not_fetch_fails_no_run_and_shows_no_credential() {
        let credential = Credential {
            password: "canary".into(),
            ..Credential::default()
        };
        let with = |error| not_fetched(error, "p-0", Some(&credential));
        for error in [AgentError::Refused("no canary".into()), AgentError::NotFound] {
            let StartError::References(error) = with(error) else {
                panic!("the run would fail");
            };
            assert_eq!(error.reason, reason::SOURCE_INVALID);
            assert!(!error.message.contains("canary"), "{}", error.message);
        }
        for (error, masked) in [
            (AgentError::Busy("canary".into()), AgentError::Busy("***".into())),
            (
                AgentError::Disconnected("canary".into()),
                AgentError::Disconnected("***".into()),
            ),
            (AgentError::StaleEpoch, AgentError::StaleEpoch),
        ] {
            assert_eq!(with(error), StartError::Agent(masked));
        }
    }

    #[test]
    fn only_a_machine_that_gives_out_other_files_is_not_believed_where_nothing_is_stored() {
        let of = |code: StatusCode| without_store((code, "why".into()), "p-0");
        for (code, passes) in [
            (StatusCode::INSUFFICIENT_STORAGE, false),
            (StatusCode::TOO_MANY_REQUESTS, true),
            (StatusCode::NOT_FOUND, false),
            (StatusCode::INTERNAL_SERVER_ERROR, true),
            (StatusCode::BAD_GATEWAY, true),
            (StatusCode::GATEWAY_TIMEOUT, true),
        ] {
            assert_eq!(of(code), Ok(passes.then(|| "why".to_owned())), "{code}");
        }
        let error = of(StatusCode::UNPROCESSABLE_ENTITY).unwrap_err();
        assert_eq!(error.reason, reason::SOURCE_UNAVAILABLE);
    }

    #[tokio::test]
    async fn chunks_that_do_not_join_end_the_bytes() {
        let chunk = |offset, data: &'static [u8]| {
            Ok(Chunk {
                offset,
                data: Bytes::from_static(data),
            })
        };
        let lost = || Err(AgentError::Disconnected("lost".into()));
        for (chunks, expected) in [
            (vec![chunk(3, b"ab"), chunk(5, b"c")], &[true, true][..]),
            (vec![chunk(0, b"ab")], &[false]),
            (vec![chunk(3, b"ab"), chunk(6, b"c")], &[true, false]),
            (vec![chunk(3, b"ab"), lost()], &[true, false]),
        ] {
            let bytes: Vec<_> = joined(stream::iter(chunks), 3).collect().await;
            let good: Vec<bool> = bytes.iter().map(Result::is_ok).collect();
            assert_eq!(good, expected);
        }
    }

    #[test]
    fn an_upload_of_a_machine_is_none_of_a_user_and_of_no_other_machine() {
        let names = ["p-0", "p-1", "a.b-0", "a-b-0"].map(upload_of);
        let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
        assert!(
            names
                .iter()
                .all(|name| name.starts_with("git-") && name.len() == 36)
        );
    }
}
