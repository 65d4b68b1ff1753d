//! Another environment for the runs of a machine whose agent a session holds.
//!
//! The controller asks for it when the machine has no runs and gets none. Steps that fail change nothing. While steps
//! run it is not said which environment is in use: an answer from before is no answer to what is asked for now.

use futures::FutureExt as _;
use tokio::time::Instant;
use tracing::{info, warn};

use super::{Attached, Interruption, Session, violation};
use crate::{
    bootstrap::{self, Bootstrap, BootstrapError, Change, Deadline, Progress, Spec},
    mask::Mask,
    sessions::{MachineKey, SessionSpec},
    ssh::Connection,
    transcript::Transcript,
};

impl Session {
    /// Makes the environment that the spec asks for, while others keep the lease. Ends when runs find another one.
    pub(super) async fn keep_environment(
        &self,
        connection: &Connection,
        attached: &Attached,
    ) -> Interruption {
        if attached.ahead {
            return std::future::pending().await;
        }
        let mut updates = self.spec.clone();
        let mut in_use = attached.environment.clone();
        loop {
            let spec = updates.borrow_and_update().clone();
            let target = spec.bootstrap.target();
            let failed = self.published.lock().state.environment.failed.clone();
            let has_failed = failed.is_some_and(|(hash, _)| Some(hash.as_str()) == target);
            match target.filter(|_| !has_failed && self.is_due(&spec.bootstrap, &in_use)) {
                Some(target) => {
                    let change = Box::pin(self.change(&spec, connection)).await;
                    match change {
                        Ok(Change::Made { lock }) => {
                            info!(machine = %spec.machine, environment = target, "runs find another environment");
                            self.publish(|p| {
                                let environment = &mut p.state.environment;
                                environment.lock = lock.map(|lock| (target.to_owned(), lock));
                                environment.failed = None;
                            });
                            return Interruption::Changed;
                        }
                        Ok(Change::Failed { failure, environment }) => {
                            let why = failure.in_words();
                            warn!(machine = %spec.machine, environment = target, why, "the environment of a machine could not be changed");
                            in_use = environment;
                            self.publish(|p| {
                                let state = &mut p.state.environment;
                                state.failed = Some((target.to_owned(), Box::new(failure)));
                                state.in_use = Some(in_use.clone());
                                state.step = None;
                            });
                        }
                        Err(BootstrapError::Broken(broken)) => return violation(broken),
                        Err(BootstrapError::Lost(why)) => return Interruption::Lost(why),
                        Err(BootstrapError::Failed(failure)) => return Interruption::Failed(failure),
                    }
                }
                None => self.tell_environment(&in_use, target.is_none()),
            }
            if updates.changed().await.is_err() {
                // The session is being removed.
                return std::future::pending().await;
            }
        }
    }

    /// Whether the environment of this spec is still to be made, or it is in use and the versions of its packages are
    /// not known: a controller that ended before it had kept them left them on the machine.
    pub(super) fn is_due(&self, spec: &Spec, in_use: &str) -> bool {
        let Some(target) = spec.target() else {
            return false;
        };
        let known = self.published.lock().state.environment.lock.clone();
        let lacks_versions =
            !spec.pip.is_empty() && spec.lock.is_none() && known.is_none_or(|(of, _)| of != target);
        target != in_use || lacks_versions
    }

    /// Publishes which environment is in use, if that is news. What came of an earlier change is forgotten when none
    /// is asked for any more.
    fn tell_environment(&self, in_use: &str, is_settled: bool) {
        let known = self.published.lock().state.environment.clone();
        let mut news = known.clone();
        news.in_use = Some(in_use.to_owned());
        if is_settled {
            (news.failed, news.lock) = (None, None);
        }
        if news != known {
            self.publish(|p| {
                p.state.environment = news;
                p.transcript = None;
            });
        }
    }

    /// The steps of a change. What they print can be read as that of a bootstrap.
    async fn change(&self, spec: &SessionSpec, connection: &Connection) -> Result<Change, BootstrapError> {
        let shared = self.shared.clone();
        let deadline = Deadline::after(spec.bootstrap.total_timeout);
        let machine = spec.machine.to_string();
        let transcript = Transcript::new(self.account.clone(), Mask::new(spec.bootstrap.masked.clone()));
        self.publish(|p| {
            p.state.environment.in_use = None;
            p.transcript = Some(transcript.clone());
        });
        let bootstrap = Bootstrap {
            connection,
            account: &self.account,
            spec: &spec.bootstrap,
            transcript: &transcript,
            machine: &machine,
            binaries: &shared.binaries,
            uploads: &|| {
                let MachineKey { namespace, name } = &spec.machine;
                shared.uploads.wait(namespace, name).boxed()
            },
            versions: &|kind| {
                let turn = shared.locks.turn(&spec.bootstrap.environment, kind);
                let deadline = &deadline;
                async move {
                    let since = Instant::now();
                    let turn = turn.await;
                    deadline.extend(since.elapsed());
                    turn
                }
                .boxed()
            },
            deadline: &deadline,
        };
        let mut progress = |progress: Progress| {
            let Progress { step, index, total } = &progress;
            let text = format!("{index}/{total} {step}");
            transcript.begin(&text);
            self.publish(|p| p.state.environment.step = Some(text));
        };
        bootstrap::change(&bootstrap, &mut progress).await
    }
}
