//! A provider's list of machines. Where each namespace is listed by itself, a refused namespace
//! says nothing about the others: its machines are unknown, which is not the same as none.

use std::{collections::BTreeMap, time::Duration};

use futures::{StreamExt, stream};
use skyward_core::{Provider, ProviderMachine, Scope};
use tokio::time::timeout;

/// Lists of one provider that are asked for at the same time.
const AT_ONCE: usize = 8;

/// The listed machines, and the lists that failed.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The machines in the lists that were answered.
    pub(crate) machines: Vec<ProviderMachine>,
    /// Whether any list was answered.
    answered: bool,
    /// Why a list failed, by its namespace; `None` = the one list of everything.
    unknown: BTreeMap<Option<String>, String>,
}

impl Listing {
    /// Asks for every list, each with that deadline.
    pub(crate) async fn ask(provider: &dyn Provider, scope: &Scope, deadline: Duration) -> Self {
        let mut namespaces: Vec<Option<String>> = provider.namespaces().iter().cloned().map(Some).collect();
        if namespaces.is_empty() {
            namespaces.push(None);
        }
        let lists = namespaces.into_iter().map(|namespace| async move {
            let scope = Scope {
                namespace: namespace.clone(),
                ..scope.clone()
            };
            let listed = match timeout(deadline, provider.list(&scope)).await {
                Ok(listed) => listed.map_err(|error| error.to_string()),
                Err(_) => Err("no answer in time".to_owned()),
            };
            (namespace, listed)
        });
        let lists: Vec<_> = stream::iter(lists).buffer_unordered(AT_ONCE).collect().await;
        let mut listing = Self::default();
        for (namespace, listed) in lists {
            match listed {
                Ok(machines) => {
                    listing.answered = true;
                    listing.machines.extend(machines);
                }
                Err(why) => {
                    listing.unknown.insert(namespace, why);
                }
            }
        }
        listing
    }

    /// Whether no list was answered.
    pub(crate) const fn says_nothing(&self) -> bool {
        !self.answered
    }

    /// Whether it has all machines of that namespace, so that an unlisted one is missing.
    pub(crate) fn covers(&self, namespace: &str) -> bool {
        let is_unknown = |known: &Option<String>| known.as_deref().is_none_or(|name| name == namespace);
        !self.unknown.keys().any(is_unknown)
    }

    /// Which lists failed, and why; `None` = none did.
    pub(crate) fn problem(&self) -> Option<String> {
        let each = self.unknown.iter().map(|(namespace, why)| match namespace {
            Some(namespace) => format!("in namespace \"{namespace}\": {why}"),
            None => why.clone(),
        });
        (!self.unknown.is_empty()).then(|| each.collect::<Vec<_>>().join("; "))
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use skyward_core::{
        Accepted, Capabilities, Deletion, ErrorKind, MachineRef, Mark, Offer, Order, ProviderError,
        ProviderPhase, machine::Rental,
    };

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(1);

    /// Has a machine in each namespace, and may not look into `refused`.
    struct Apart {
        namespaces: Vec<String>,
        refused: &'static str,
        capabilities: Capabilities,
    }

    impl Apart {
        fn of(namespaces: &[&str], refused: &'static str) -> Self {
            Self {
                namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
                refused,
                capabilities: Capabilities::of("apart"),
            }
        }
    }

    #[async_trait]
    impl Provider for Apart {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn namespaces(&self) -> &[String] {
            &self.namespaces
        }

        async fn account(&self) -> Result<String, ProviderError> {
            Ok("account".to_owned())
        }

        async fn offers(&self) -> Result<Vec<Offer>, ProviderError> {
            Ok(Vec::new())
        }

        async fn create(&self, _: &Order) -> Result<Accepted, ProviderError> {
            unreachable!("nothing is ordered here")
        }

        async fn get(&self, _: &MachineRef) -> Result<Option<ProviderMachine>, ProviderError> {
            unreachable!("nothing is looked at here")
        }

        async fn list(&self, scope: &Scope) -> Result<Vec<ProviderMachine>, ProviderError> {
            let namespace = scope.namespace.clone().unwrap_or_default();
            if namespace == self.refused {
                return Err(ProviderError::new(ErrorKind::Permission, "list", "forbidden"));
            }
            Ok(vec![ProviderMachine {
                id: format!("id-{namespace}"),
                mark: Mark {
                    cluster: "here".into(),
                    namespace,
                    pool: "train".into(),
                    pool_uid: "p".into(),
                    machine: "m".into(),
                    machine_uid: "u".into(),
                    slot: 0,
                    attempt: 1,
                },
                phase: ProviderPhase::Running,
                endpoint: None,
                private_address: None,
                private_interface: None,
                host_key: None,
                rental: Rental::default(),
            }])
        }

        async fn delete(&self, _: &MachineRef) -> Result<Deletion, ProviderError> {
            unreachable!("nothing is deleted here")
        }
    }

    async fn ask(provider: &Apart) -> Listing {
        let scope = Scope {
            cluster: "here".into(),
            pool_uid: None,
            namespace: None,
            regions: Vec::new(),
        };
        Listing::ask(provider, &scope, DEADLINE).await
    }

    #[tokio::test]
    async fn a_namespace_that_refuses_hides_its_own_machines_and_nobody_elses() {
        let listing = ask(&Apart::of(&["team-a", "team-b"], "team-a")).await;
        let ids: Vec<&str> = listing
            .machines
            .iter()
            .map(|machine| machine.id.as_str())
            .collect();
        assert_eq!(ids, ["id-team-b"]);
        assert!(!listing.says_nothing());
        assert!(listing.covers("team-b"));
        assert!(!listing.covers("team-a"), "its machines are not missing");
        let problem = listing.problem().unwrap();
        assert!(
            problem.contains("team-a") && problem.contains("forbidden"),
            "{problem}"
        );
    }

    #[tokio::test]
    async fn one_list_of_everything_that_fails_says_nothing() {
        let listing = ask(&Apart::of(&[], "")).await;
        assert!(listing.says_nothing() && listing.machines.is_empty());
        assert!(!listing.covers("team-a"));
        let listing = ask(&Apart::of(&[], "nowhere")).await;
        assert_eq!(listing.machines.len(), 1);
        assert!(listing.covers("team-a") && listing.problem().is_none());
    }
}
