//! Deletes a Provider: before it goes, nothing with our mark may be left at its account.
//!
//! Machines that have a record hold their Provider anyway. Machines that lost theirs are ended
//! by the sweep, which needs the account for that. What Pools shared (keys, groups) is
//! returned here: a Pool that is deleted together with its Provider may come too late, and
//! a Pool that stays would have no account left to return things to.
//!
//! An account that does not answer does not hold its Provider for ever: machines are certainly gone
//! by then, resources that may be left cost nothing, and an Event names them.

use std::{collections::BTreeSet, time::Duration};

use jiff::Timestamp;
use kube_core::ResourceExt;
use skyward_api::{Machine, Pool, Provider, condition::reason};
use skyward_core::{Leftover, PoolScope, ProviderMachine, ProviderPhase};

use crate::{
    base::time::elapsed,
    events::{self, EventSpec},
};

/// How long an account may fail to answer or to take back shared resources.
const PATIENCE: Duration = Duration::from_mins(2);

/// Machines and shared resources of ours that the account still has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Left {
    /// The account was not asked.
    NotAsked,
    /// The account did not answer.
    Unknown(String),
    /// The complete lists.
    Known {
        /// Machines without a record.
        orphans: usize,
        /// Pools whose machines shared something.
        shared: Vec<PoolScope>,
    },
}

/// The plan for a Provider that is deleted and has no machines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeletionPlan {
    /// Whether it goes now.
    pub goes: bool,
    /// Shared resources that are returned first.
    pub release: Vec<PoolScope>,
    /// What it waits for: reason and message.
    pub waits_for: Option<(&'static str, String)>,
    /// An Event for people, who can no longer change anything about it.
    pub event: Option<EventSpec>,
}

/// The Machines and Pools that would end or return what an account lists. Several Providers may be
/// of one account.
#[derive(Debug, Default)]
pub struct Owners {
    /// UIDs of Machines on record.
    machines: BTreeSet<String>,
    /// UIDs of Pools that use a region through another Provider of the account, and that
    /// region.
    pools: BTreeSet<(String, String)>,
}

impl Owners {
    /// The owners among these objects; Providers of the same account as `provider` count, as far as
    /// they stay.
    pub fn of<'a>(
        provider: &Provider,
        providers: impl IntoIterator<Item = &'a Provider>,
        machines: impl IntoIterator<Item = &'a Machine>,
        pools: impl IntoIterator<Item = &'a Pool>,
    ) -> Self {
        let account = |provider: &Provider| {
            let status = provider.status.clone().unwrap_or_default();
            (status.type_, status.account)
        };
        let ours = account(provider);
        let siblings: BTreeSet<String> = providers
            .into_iter()
            .filter(|other| {
                let stays = other.metadata.deletion_timestamp.is_none();
                stays && other.uid() != provider.uid() && account(other) == ours
            })
            .map(ResourceExt::name_any)
            .collect();
        let used = pools.into_iter().flat_map(|pool| {
            let uid = pool.uid().unwrap_or_default();
            let places = pool.status.iter().flat_map(|status| &status.places);
            places
                .filter(|place| siblings.contains(&place.provider))
                .map(|place| (uid.clone(), place.region.clone()))
                .collect::<Vec<_>>()
        });
        Self {
            pools: used.collect(),
            machines: machines.into_iter().filter_map(ResourceExt::uid).collect(),
        }
    }
}

/// The listed machines and resources that no owner would end or return.
pub fn left(cluster: &str, listed: &[ProviderMachine], leftovers: &[Leftover], owners: &Owners) -> Left {
    let orphans = listed.iter().filter(|machine| {
        machine.mark.cluster == cluster
            && machine.phase != ProviderPhase::Stopping
            && !owners.machines.contains(&machine.mark.machine_uid)
    });
    let mut shared: Vec<PoolScope> = Vec::new();
    for leftover in leftovers {
        if owners
            .pools
            .contains(&(leftover.pool_uid.clone(), leftover.region.clone()))
        {
            continue;
        }
        let known = shared
            .iter()
            .position(|scope| scope.pool_uid == leftover.pool_uid);
        let at = known.unwrap_or_else(|| {
            shared.push(PoolScope {
                cluster: cluster.to_owned(),
                pool_uid: leftover.pool_uid.clone(),
                regions: Vec::new(),
            });
            shared.len() - 1
        });
        let regions = &mut shared[at].regions;
        if !leftover.region.is_empty() && !regions.contains(&leftover.region) {
            regions.push(leftover.region.clone());
        }
    }
    Left::Known {
        orphans: orphans.count(),
        shared,
    }
}

/// Decides for a Provider that is deleted and has no machines.
pub fn plan(provider: &Provider, left: &Left, now: Timestamp) -> DeletionPlan {
    let since = provider.metadata.deletion_timestamp.as_ref();
    let waited = since.map_or(Duration::ZERO, |since| elapsed(since.0, now));
    let goes = DeletionPlan {
        goes: true,
        ..DeletionPlan::default()
    };
    let waits_for = |why, what: String| DeletionPlan {
        waits_for: Some((why, what)),
        ..DeletionPlan::default()
    };
    let gives_up = |what: String| DeletionPlan {
        event: Some(EventSpec::warning(events::reason::LEFT_BEHIND, "Delete", what)),
        ..goes.clone()
    };
    let was_connected = provider
        .status
        .as_ref()
        .is_some_and(|status| !status.account.is_empty());
    match left {
        _ if !was_connected => goes,
        Left::Known { orphans: 0, shared } if shared.is_empty() => goes,
        Left::Known { orphans: 0, .. } if waited >= PATIENCE => gives_up(
            "The account did not take back all keys, groups or scripts that Pools shared there; they cost nothing and carry the mark of this installation".to_owned(),
        ),
        Left::Known { orphans: 0, shared } => DeletionPlan {
            release: shared.clone(),
            ..waits_for(
                reason::MACHINES_REMAIN,
                "What Pools shared at the account is being returned".to_owned(),
            )
        },
        Left::Known { orphans, .. } => waits_for(
            reason::MACHINES_REMAIN,
            format!("{orphans} of our machines at the account have no record any more; they are being ended"),
        ),
        Left::Unknown(why) if waited >= PATIENCE => gives_up(format!(
            "The account could not be asked whether anything is left there ({why}); look for what carries the mark of this installation"
        )),
        Left::Unknown(why) => waits_for(
            reason::PROVIDER_UNAVAILABLE,
            format!("Whether anything of ours is left at the account is not known yet: {why}"),
        ),
        Left::NotAsked => waits_for(
            reason::PROVIDER_UNAVAILABLE,
            "The account is asked whether anything of ours is left there".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELETED: i64 = 1_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(DELETED + second).unwrap()
    }

    fn provider(account: &str) -> Provider {
        named("a", account)
    }

    fn named(name: &str, account: &str) -> Provider {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Provider",
            "metadata": { "name": name, "uid": name, "deletionTimestamp": (name == "a").then(|| at(0).to_string()) },
            "spec": { "container": {}, "allowedNamespaces": {} },
            "status": { "account": account, "type": "verda" }
        }))
        .unwrap()
    }

    fn shared(pool_uid: &str) -> PoolScope {
        PoolScope {
            cluster: "c".into(),
            pool_uid: pool_uid.into(),
            regions: vec!["eu".into()],
        }
    }

    fn key(pool_uid: &str, region: &str) -> Leftover {
        Leftover {
            kind: "key",
            id: format!("{pool_uid}-{region}"),
            region: region.into(),
            pool_uid: pool_uid.into(),
        }
    }

    #[test]
    fn a_provider_goes_when_its_account_has_nothing_of_ours() {
        let known = |orphans, shared| Left::Known { orphans, shared };
        let plan = |left: &Left| plan(&provider("acc"), left, at(1));
        assert!(plan(&known(0, vec![])).goes);
        assert!(!plan(&known(1, vec![])).goes);
        assert!(!plan(&Left::NotAsked).goes);
        let returns = plan(&known(0, vec![shared("p")]));
        assert!(!returns.goes);
        assert_eq!(returns.release, [shared("p")]);
    }

    #[test]
    fn an_account_that_does_not_answer_holds_it_for_a_while_and_machines_hold_it_for_ever() {
        let unknown = Left::Unknown("HTTP 401".into());
        assert!(!plan(&provider("acc"), &unknown, at(119)).goes);
        let late = plan(&provider("acc"), &unknown, at(120));
        assert!(late.goes && late.event.is_some_and(|event| event.note.contains("HTTP 401")));
        let stays = Left::Known {
            orphans: 0,
            shared: vec![shared("p")],
        };
        assert!(plan(&provider("acc"), &stays, at(120)).goes);
        let costs = Left::Known {
            orphans: 1,
            shared: vec![],
        };
        assert!(!plan(&provider("acc"), &costs, at(86_400)).goes);
    }

    #[test]
    fn one_that_never_worked_goes_at_once() {
        assert!(plan(&provider(""), &Left::Unknown("HTTP 401".into()), at(0)).goes);
    }

    #[test]
    fn what_is_used_through_another_provider_of_the_account_stays() {
        let found = [key("p", "eu"), key("p", "us"), key("p", "asia"), key("q", "eu")];
        let place = |provider, region| serde_json::json!({ "provider": provider, "region": region });
        let pool: Pool = serde_json::from_value(serde_json::json!({
            "apiVersion": "skyward.dev/v1alpha1", "kind": "Pool", "metadata": { "name": "p", "uid": "p" },
            "spec": { "provider": "b", "nodes": { "desired": 0 } },
            "status": { "places": [place("a", "us"), place("b", "eu"), place("c", "asia")] }
        }))
        .unwrap();
        let (a, b, c) = (provider("acc"), named("b", "acc"), named("c", "another"));
        let owners = Owners::of(&a, [&a, &b, &c], [], [&pool]);
        let left = left("c", &[], &found, &owners);
        let Left::Known { orphans: 0, shared } = left else {
            panic!("{left:?}");
        };
        let of = |uid: &str| {
            let mut scopes = shared.iter().filter(|scope| scope.pool_uid == uid);
            scopes.next().map(|scope| scope.regions.join(" "))
        };
        assert_eq!(
            (of("p").as_deref(), of("q").as_deref()),
            (Some("us asia"), Some("eu"))
        );
    }
}
