//! Which machines of an account's list no record stands for, so that they are ended.
//!
//! A machine must be seen twice, a settle time apart. What the list says about this cluster's own
//! memory is judged first: [`crate::restore`].

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use kube_core::ResourceExt as _;
use skyward_api::{
    Machine, MachinePhase,
    provider::{AfterRestore, RestoreDecision},
};
use skyward_core::{MachineRef, ProviderMachine, ProviderPhase};

use crate::{
    base::time::elapsed,
    restore::evidence::{self, Evidence, Orphan, Remembered, Standing, brake},
};

/// When each orphan of one Provider was first seen, by the provider's id.
pub type Sightings = BTreeMap<String, Timestamp>;

/// What to do about the machines of one Provider.
#[derive(Debug, Default, PartialEq)]
pub struct Plan {
    /// Seen long enough: to be deleted.
    pub delete: Vec<MachineRef>,
    /// Seen, but not long enough.
    pub watch: BTreeSet<String>,
    /// Machines without a trace of their Pool: when each was first seen is remembered.
    pub strange: BTreeSet<String>,
    /// How many of the machines in `delete` are of Pools that are gone.
    pub forgotten: usize,
    /// What the list says of this cluster's memory.
    pub evidence: Evidence,
}

/// The rules that a plan is made by, besides the list.
#[derive(Clone, Copy, Debug)]
pub struct Rules<'a> {
    /// Whether a machine that this cluster cannot have ordered proves that its memory is old.
    pub marks_prove: bool,
    /// Whether such a machine is ended like a machine of a Pool that is gone: it is a Pod of this
    /// cluster, whose backup has it too, and users of a namespace can write its mark.
    pub strange_end: bool,
    /// Whether the Provider is held.
    pub held: bool,
    /// A person's decision.
    pub decision: Option<&'a RestoreDecision>,
    /// How many machines of Pools that are gone were ended within the last hour.
    pub ended_lately: usize,
}

/// Decides for the complete list of one Provider. While there is proof of old memory, only the
/// machines that a person named are ended: the records that make an orphan ordinary are as old.
pub fn plan(
    cluster: &str,
    listed: &[ProviderMachine],
    remembered: &Remembered,
    rules: &Rules<'_>,
    sightings: &Sightings,
    settle: Duration,
    now: Timestamp,
) -> Plan {
    let told = |id: &String, what| {
        rules
            .decision
            .is_some_and(|decision| decision.about(id) == Some(what))
    };
    let mut plan = Plan {
        evidence: Evidence {
            listed: listed
                .iter()
                .filter(|machine| machine.mark.cluster == cluster)
                .count(),
            marks_prove: rules.marks_prove,
            ..Evidence::default()
        },
        ..Plan::default()
    };
    let mut found = Vec::new();
    for (machine, standing) in evidence::orphans(cluster, listed, remembered) {
        let standing = match standing {
            Standing::Strange if rules.strange_end => Standing::Forgotten,
            other => other,
        };
        let ends = told(&machine.id, AfterRestore::End);
        let is_adopted = told(&machine.id, AfterRestore::Adopt);
        let is_over = matches!(
            machine.phase,
            ProviderPhase::Stopped(_) | ProviderPhase::Failed(_)
        );
        if is_adopted && !is_over {
            continue;
        }
        // Nothing runs on the machine any more, and some clouds bill it until it is ended.
        let standing = if is_adopted { Standing::Ordinary } else { standing };
        let is_seen_twice = || {
            let first = sightings.get(&machine.id);
            first.is_some_and(|first| elapsed(*first, now) >= settle)
        };
        let is_in_doubt = standing == Standing::Strange && evidence::is_traceless(machine, remembered);
        if is_in_doubt {
            plan.strange.insert(machine.id.clone());
        }
        let confirmed = !is_in_doubt || is_seen_twice();
        if !confirmed {
            plan.watch.insert(machine.id.clone());
        }
        if !ends && !is_adopted {
            plan.evidence.orphans.push(Orphan {
                id: machine.id.clone(),
                machine: format!("{}/{}", machine.mark.namespace, machine.mark.machine),
                pool_uid: machine.mark.pool_uid.clone(),
                attempt: machine.mark.attempt,
                hourly: machine.rental.hourly_price,
                standing,
                confirmed,
            });
        }
        found.push((machine, standing, ends));
    }
    let forgotten = found
        .iter()
        .filter(|(_, standing, ends)| *standing == Standing::Forgotten && !ends)
        .count();
    plan.evidence.too_many = forgotten > 0 && forgotten + rules.ended_lately > brake(plan.evidence.listed);
    let held = rules.held || plan.evidence.may_prove();
    for (machine, standing, ends) in found {
        let may_end = ends
            || !held
                && match standing {
                    Standing::Ordinary => true,
                    Standing::Forgotten => !plan.evidence.too_many,
                    Standing::Strange => false,
                };
        if !may_end {
            continue;
        }
        let first = sightings.get(&machine.id);
        if first.is_some_and(|first| elapsed(*first, now) >= settle) {
            plan.forgotten += usize::from(standing == Standing::Forgotten && !ends);
            plan.delete.push(MachineRef {
                id: Some(machine.id.clone()),
                mark: machine.mark.clone(),
                region: machine.rental.region.clone().unwrap_or_default(),
                started: false,
            });
        } else {
            plan.watch.insert(machine.id.clone());
        }
    }
    plan
}

/// Whether a list tells something of a Machine that is not on record: it is missing, it runs
/// no more, or it will be taken back. A Ready Machine is looked at only for such news.
pub fn is_news(machine: &Machine, listed: &[ProviderMachine]) -> bool {
    let status = machine.status.as_ref();
    let uid = machine.uid().unwrap_or_default();
    let Some(status) = status.filter(|status| !status.id.is_empty()) else {
        return false;
    };
    let shown = listed.iter().find(|listed| listed.mark.machine_uid == uid);
    shown.is_none_or(|shown| {
        let halted = status.phase == Some(MachinePhase::Ready) && shown.phase != ProviderPhase::Running;
        let reclaimed = status.reclaim_at.is_none() && shown.rental.reclaim_at.is_some();
        halted || reclaimed
    })
}

#[cfg(test)]
mod tests {
    use skyward_core::Mark;

    use super::*;

    const SETTLE: Duration = Duration::from_secs(10);

    fn machine(id: &str, cluster: &str, phase: ProviderPhase) -> ProviderMachine {
        ProviderMachine {
            id: id.into(),
            mark: Mark {
                cluster: cluster.into(),
                namespace: "team".into(),
                pool: "train".into(),
                pool_uid: "p".into(),
                machine: format!("m-{id}"),
                machine_uid: format!("uid-{id}"),
                slot: 0,
                attempt: 1,
            },
            phase,
            endpoint: None,
            private_address: None,
            private_interface: None,
            host_key: None,
            rental: skyward_core::machine::Rental::default(),
        }
    }

    #[test]
    fn a_ready_machine_is_looked_at_when_the_list_tells_what_is_not_on_record() {
        let record = |phase: &str, reclaim_at: Option<&str>| -> Machine {
            serde_json::from_value(serde_json::json!({
                "apiVersion": "skyward.dev/v1alpha1", "kind": "Machine", "metadata": { "name": "m-1", "uid": "uid-1" },
                "spec": {
                    "pool": "p", "poolUid": "p", "slot": 0, "attempt": 1, "provider": "a", "offer": "o", "instanceType": "x",
                    "market": "Spot", "hourlyPrice": "1", "token": "t", "templateHash": "h"
                },
                "status": { "id": "1", "phase": phase, "reclaimAt": reclaim_at }
            }))
            .unwrap()
        };
        let ready = record("Ready", None);
        let runs = machine("1", "here", ProviderPhase::Running);
        assert!(!is_news(&ready, std::slice::from_ref(&runs)));
        assert!(is_news(&ready, &[]), "it is missing");
        let halted = machine("1", "here", ProviderPhase::Stopped("exited".into()));
        assert!(is_news(&ready, &[halted]));
        let mut taken = runs;
        taken.rental.reclaim_at = Some("2026-01-01T00:02:00Z".parse().unwrap());
        assert!(is_news(&ready, std::slice::from_ref(&taken)));
        let told = record("Ready", Some("2026-01-01T00:02:00Z"));
        assert!(!is_news(&told, &[taken]), "that is known");
        let boots = machine("1", "here", ProviderPhase::Starting(None));
        assert!(
            !is_news(&record("Accepted", None), &[boots]),
            "it looks by itself"
        );
    }

    fn decide(
        listed: &[ProviderMachine],
        known: &[(&str, &str)],
        sightings: &Sightings,
        second: i64,
    ) -> Plan {
        let remembered = Remembered {
            records: known
                .iter()
                .map(|&(uid, id)| (uid.to_owned(), id.to_owned()))
                .collect(),
            attempts: BTreeMap::new(),
            recorded: BTreeSet::new(),
            pools: [("p".to_owned(), 1)].into(),
            had: BTreeSet::new(),
        };
        let rules = Rules {
            marks_prove: true,
            strange_end: false,
            held: false,
            decision: None,
            ended_lately: 0,
        };
        let now = Timestamp::from_second(second).unwrap();
        plan("here", listed, &remembered, &rules, sightings, SETTLE, now)
    }

    fn does_nothing(plan: &Plan) -> bool {
        plan.delete.is_empty() && plan.watch.is_empty()
    }

    #[test]
    fn an_orphan_is_deleted_at_its_second_sighting_a_settle_time_later() {
        let listed = [machine("a", "here", ProviderPhase::Running)];
        assert_eq!(
            decide(&listed, &[], &Sightings::new(), 0).watch,
            BTreeSet::from(["a".to_owned()])
        );
        let seen = Sightings::from([("a".to_owned(), Timestamp::UNIX_EPOCH)]);
        assert!(decide(&listed, &[], &seen, 9).delete.is_empty());
        assert_eq!(decide(&listed, &[], &seen, 10).delete.len(), 1);
    }

    #[test]
    fn what_is_recorded_or_foreign_or_stopping_is_left_alone() {
        let listed = [
            machine("a", "here", ProviderPhase::Running),
            machine("b", "elsewhere", ProviderPhase::Running),
            machine("c", "here", ProviderPhase::Stopping),
        ];
        let seen = ["a", "b", "c"]
            .map(|id| (id.to_owned(), Timestamp::UNIX_EPOCH))
            .into();
        assert!(does_nothing(&decide(&listed, &[("uid-a", "a")], &seen, 100)));
    }

    #[test]
    fn the_second_machine_of_one_record_is_deleted_once_it_is_known_which_is_the_first() {
        let mut double = machine("b", "here", ProviderPhase::Running);
        double.mark = machine("a", "here", ProviderPhase::Running).mark;
        let listed = [machine("a", "here", ProviderPhase::Running), double];
        let seen = Sightings::from([("b".to_owned(), Timestamp::UNIX_EPOCH)]);
        let ids = |plan: Plan| {
            plan.delete
                .into_iter()
                .filter_map(|machine| machine.id)
                .collect::<Vec<_>>()
        };
        assert_eq!(ids(decide(&listed, &[("uid-a", "a")], &seen, 100)), ["b"]);
        assert!(does_nothing(&decide(&listed, &[("uid-a", "")], &seen, 100)));
    }
}
