//! Machines that are Pods with OpenSSH: for stories in which somebody really logs in.
//!
//! The Pod has a root file system of its own, the user, keys and port that the cloud would
//! give it, and runs the client's user data or command (`start.sh`). It is reached at its
//! own address, also where the cloud would put a port of a shared address in front.
//! Halting deletes the Pod: unlike at a cloud, what was on its disk is lost.

mod cloud_config;
#[cfg(test)]
mod intruder;
#[cfg(test)]
mod live;
mod manifest;

use std::collections::BTreeMap;
use std::pin::pin;
use std::time::Duration;

use anyhow::Context;
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, DeleteParams, ListParams, PostParams};
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub use self::manifest::Settings;
use crate::backend::{Backend, Boot, Command, Report, Reports};
use crate::core::machine::{Endpoint, MachineId};

/// Commands that wait for one machine. More than a few are a mistake.
const WAITING: usize = 64;
/// No call of the API server takes longer, or it is tried again.
const DEADLINE: Duration = Duration::from_secs(20);
/// How often a key is tried on a machine that does not run yet.
const TRIES: usize = 60;
/// Puts the key `$2` into the `authorized_keys` of the user `$1`.
const PUT_KEY: &str = r#"home=$(getent passwd "$1" | cut -d: -f6) && mkdir -p "$home/.ssh" &&
printf '%s\n' "$2" >>"$home/.ssh/authorized_keys" && chown -R "$1:" "$home/.ssh""#;

/// The back end.
#[derive(Debug)]
pub struct Pods {
    command_tx: mpsc::Sender<Command>,
    // Ends its actors with it.
    _actors: JoinSet<()>,
}

impl Pods {
    /// A back end for one cloud. Must be made inside a tokio runtime.
    pub fn new(client: Client, settings: Settings, reports: Reports) -> Self {
        let (command_tx, command_rx) = mpsc::channel(4_096);
        let mut actors = JoinSet::new();
        actors.spawn(give_out(
            command_rx,
            Actor {
                client,
                settings,
                reports,
            },
        ));
        Self {
            command_tx,
            _actors: actors,
        }
    }
}

impl Backend for Pods {
    fn carry_out(&self, command: Command) {
        if let Err(error) = self.command_tx.try_send(command) {
            tracing::error!(%error, "a command of a machine was lost");
        }
    }
}

/// Removes all Pods that simulators made in a namespace.
pub async fn clear(client: Client, namespace: &str) -> kube::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let all = ListParams::default().labels(manifest::LABEL);
    pods.delete_collection(&DeleteParams::default().grace_period(0), &all)
        .await
        .map(drop)
}

/// Commands --each to the queue of its machine--> one actor for each machine.
async fn give_out(mut command_rx: mpsc::Receiver<Command>, actor: Actor) {
    let mut queues: BTreeMap<MachineId, mpsc::Sender<Command>> = BTreeMap::new();
    let mut actors = JoinSet::new();
    loop {
        let command = tokio::select! {
            command = command_rx.recv() => command,
            Some(_) = actors.join_next() => continue,
        };
        let Some(command) = command else { return };
        let (machine, last) = match &command {
            Command::Start(machine, _)
            | Command::Halt(machine)
            | Command::Authorize(machine, _)
            | Command::Notice(machine, _) => (machine.clone(), false),
            Command::End(machine) => (machine.clone(), true),
        };
        let queue = queues.entry(machine.clone()).or_insert_with(|| {
            let (queue_tx, queue_rx) = mpsc::channel(WAITING);
            actors.spawn(actor.clone().run(machine.clone(), queue_rx));
            queue_tx
        });
        if queue.try_send(command).is_err() {
            tracing::error!(machine, "a command of a machine was lost");
        }
        if last {
            queues.remove(&machine);
        }
    }
}

/// What happens to one machine, in order.
#[derive(Clone)]
struct Actor {
    client: Client,
    settings: Settings,
    reports: Reports,
}

/// Why watching a Pod ended.
enum Seen {
    Finished,
    Gone,
}

impl Actor {
    async fn run(self, machine: MachineId, mut queue_rx: mpsc::Receiver<Command>) {
        let mut next = queue_rx.recv().await;
        while let Some(command) = next.take() {
            next = match command {
                Command::Start(_, boot) => self.live(&machine, &boot, &mut queue_rx).await,
                Command::Halt(_) => {
                    self.delete(&machine, 0).await;
                    queue_rx.recv().await
                }
                Command::End(_) => {
                    self.delete(&machine, 0).await;
                    None
                }
                // What the guest may know, it asks the metadata service; one that does not run
                // gets its keys when it starts.
                Command::Notice(..) | Command::Authorize(..) => queue_rx.recv().await,
            };
        }
    }

    /// From the start of a Pod to the next command, which is returned.
    async fn live(
        &self,
        machine: &str,
        boot: &Boot,
        queue_rx: &mut mpsc::Receiver<Command>,
    ) -> Option<Command> {
        let pod = match self.settings.pod(machine, boot) {
            Ok(pod) => pod,
            Err(why) => {
                self.reports.tell(Report::Died {
                    machine: machine.to_owned(),
                    why,
                });
                return queue_rx.recv().await;
            }
        };
        let port = Settings::port(machine, boot);
        tokio::select! {
            // What is ordered next comes before what can be seen.
            biased;
            command = queue_rx.recv() => return command,
            result = self.create(machine, &pod) => if let Err(error) = result {
                self.reports.tell(Report::Died { machine: machine.to_owned(), why: error.to_string() });
                return queue_rx.recv().await;
            },
        }
        let mut keys = JoinSet::new();
        let mut watch = pin!(self.watch(machine, port));
        let seen = loop {
            tokio::select! {
                biased;
                command = queue_rx.recv() => match command {
                    // What the guest may know, it asks the metadata service.
                    Some(Command::Notice(..)) => {}
                    Some(Command::Authorize(_, key)) => {
                        keys.spawn(self.clone().authorize(machine.to_owned(), boot.user.clone(), key));
                    }
                    command => return command,
                },
                Some(_) = keys.join_next() => {}
                seen = &mut watch => break seen,
            }
        };
        let report = match seen {
            Seen::Finished => Report::Halted {
                machine: machine.to_owned(),
            },
            Seen::Gone => Report::Died {
                machine: machine.to_owned(),
                why: "somebody deleted its Pod".to_owned(),
            },
        };
        self.reports.tell(report);
        queue_rx.recv().await
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.settings.namespace)
    }

    /// Creates the Pod; one that is left of an earlier life has to go first.
    async fn create(&self, machine: &str, pod: &Pod) -> kube::Result<()> {
        loop {
            let created =
                tokio::time::timeout(DEADLINE, self.pods().create(&PostParams::default(), pod)).await;
            match created {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(kube::Error::Api(status))) if status.code == 409 => self.delete(machine, 0).await,
                Ok(Err(kube::Error::Api(status))) if status.code < 500 => {
                    return Err(kube::Error::Api(status));
                }
                Ok(Err(error)) => tracing::warn!(machine, %error, "the Pod is tried again"),
                Err(_) => tracing::warn!(machine, "creating the Pod took too long and is tried again"),
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }

    /// Tells the address as soon as there is one, and returns when the Pod has ended.
    async fn watch(&self, machine: &str, port: u16) -> Seen {
        let mut told = false;
        let mut seen = false;
        let name = self.settings.name(machine);
        let mut changes = watch_object(self.pods(), &name).boxed();
        while let Some(change) = changes.next().await {
            let pod = match change {
                Ok(Some(pod)) => pod,
                Ok(None) if seen => return Seen::Gone,
                Ok(None) => continue,
                Err(error) => {
                    tracing::warn!(machine, %error, "watching the Pod");
                    continue;
                }
            };
            seen = true;
            let Some(status) = pod.status else { continue };
            match (status.phase.as_deref(), status.pod_ip) {
                (Some("Running"), Some(address)) if !told => {
                    told = true;
                    let endpoint = Endpoint { address, port };
                    self.reports.tell(Report::Reachable {
                        machine: machine.to_owned(),
                        endpoint,
                    });
                }
                (Some("Succeeded" | "Failed"), _) => return Seen::Finished,
                _ => {}
            }
        }
        Seen::Gone
    }

    /// Puts a key on a machine, as soon as it runs.
    async fn authorize(self, machine: MachineId, user: String, key: String) {
        let mut result = self.put_key(&machine, &user, &key).await;
        for _ in 0..TRIES {
            if result.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            result = self.put_key(&machine, &user, &key).await;
        }
        tracing::error!(machine, ?result, "a key did not reach the machine");
    }

    async fn put_key(&self, machine: &str, user: &str, key: &str) -> anyhow::Result<()> {
        let parameters = AttachParams::default().stdout(false).stderr(true);
        let words = ["sh", "-c", PUT_KEY, "sh", user, key];
        let (pods, name) = (self.pods(), self.settings.name(machine));
        let started = pods.exec(&name, words, &parameters);
        let mut process = tokio::time::timeout(DEADLINE, started).await??;
        let status = process.take_status().context("the API server tells no status")?;
        let status = tokio::time::timeout(DEADLINE, status)
            .await?
            .context("the command was cut off")?;
        anyhow::ensure!(status.status.as_deref() == Some("Success"), "{status:?}");
        Ok(())
    }

    /// Deletes the Pod and waits until it is gone.
    async fn delete(&self, machine: &str, grace: u32) {
        let name = self.settings.name(machine);
        loop {
            let parameters = DeleteParams::default().grace_period(grace);
            match tokio::time::timeout(DEADLINE, self.pods().delete(&name, &parameters)).await {
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => return,
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!(machine, %error, "deleting the Pod"),
                Err(_) => tracing::warn!(machine, "deleting the Pod took too long and is tried again"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
