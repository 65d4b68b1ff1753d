//! Machines without records, and clusters that were restored: what one list says of each machine,
//! and what is decided about them.

use std::{collections::BTreeMap, fmt::Write as _};

use skyward_api::{condition, provider::RestoreDecision};
use skyward_core::{ProviderMachine, ProviderPhase};

use super::{render::Block, tells};
use crate::{
    accounts::orphans::{self, Rules, Sightings},
    restore::{
        evidence::Remembered,
        tests::{PATIENCE, SETTLE, at, machine},
        verdict::{Seen, verdict},
    },
};

/// A Provider whose list is looked at again and again.
#[derive(Default)]
struct Account {
    listed: Vec<ProviderMachine>,
    sightings: Sightings,
    conditions: Vec<k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition>,
    decision: Option<RestoreDecision>,
    annotation: Option<String>,
    held: bool,
    text: String,
}

impl Account {
    fn of(listed: impl IntoIterator<Item = ProviderMachine>) -> Self {
        Self {
            listed: listed.into_iter().collect(),
            ..Self::default()
        }
    }

    fn happens(&mut self, second: i64, what: &str) {
        write!(self.text, "\nat {second}s -- {what}\n").unwrap();
    }

    /// One list, what it says, and what is decided then.
    fn look(&mut self, second: i64) {
        let now = at(second);
        // The Pool "here" has counted 5 attempts; the Pool "gone" is gone.
        let remembered = Remembered {
            records: [("uid-recorded".to_owned(), "recorded".to_owned())].into(),
            pools: [("here".to_owned(), 5)].into(),
            had: ["gone".to_owned()].into(),
            ..Remembered::default()
        };
        let rules = Rules {
            marks_prove: true,
            strange_end: false,
            held: self.held,
            decision: self.decision.as_ref(),
            ended_lately: 0,
        };
        let plan = orphans::plan(
            "here",
            &self.listed,
            &remembered,
            &rules,
            &self.sightings,
            SETTLE,
            now,
        );
        let verdict = verdict(
            &Seen {
                evidence: Some(&plan.evidence),
                epoch: None,
                conditions: &self.conditions,
                decision: self.decision.as_ref(),
                annotation: self.annotation.as_deref(),
                heard: true,
                patience: PATIENCE,
            },
            now,
        );
        let mut block = Block::default();
        let mut seen: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for orphan in &plan.evidence.orphans {
            let kind = format!("{:?}, of Pool {}", orphan.standing, orphan.pool_uid);
            let machine = format!("{} (attempt {})", orphan.id, orphan.attempt);
            seen.entry(kind).or_default().push(machine);
        }
        for (kind, machines) in seen {
            block.line("sees", format!("{kind}: {}", machines.join(", ")));
        }
        if plan.evidence.too_many {
            block.line("sees", "too many of Pools that are gone");
        }
        let held = if verdict.held {
            "the Provider is held"
        } else {
            "the Provider is not held"
        };
        block.line("because", held);
        let drafts: Vec<_> = verdict.condition.clone().into_iter().collect();
        let conditions = condition::apply(&self.conditions, &drafts, None, now);
        let of = |conditions| BTreeMap::from([("conditions", conditions)]);
        block.status(&of(&self.conditions), &of(&conditions));
        if let Some(decided) = &verdict.decided {
            block.line("decides", format!("{decided:?}"));
            self.decision = Some(decided.clone());
        }
        for id in &plan.watch {
            block.line("does", format!("waits whether {id} is seen again"));
            self.sightings.entry(id.clone()).or_insert(now);
        }
        for gone in &plan.delete {
            let id = gone.id.clone().unwrap_or_default();
            block.line("does", format!("ends {id}"));
            self.listed.retain(|machine| machine.id != id);
        }
        (self.held, self.conditions) = (verdict.held, conditions);
        write!(self.text, "\nat {second}s\n{}", block.text()).unwrap();
    }
}

#[test]
fn the_sweep_ends_a_machine_without_a_record_when_it_has_seen_it_twice() {
    let mut account = Account::of([machine("recorded", "here", 1), machine("lost", "here", 3)]);
    account.look(0);
    account.look(5);
    account.look(20);
    account.look(40);
    tells!(account.text);
}

#[test]
fn machines_of_other_clusters_are_never_touched() {
    let mut other = machine("theirs", "here", 3);
    other.mark.cluster = "there".into();
    let mut account = Account::of([other]);
    account.look(0);
    account.look(20);
    tells!(account.text);
}

#[test]
fn the_machine_of_a_pool_that_is_gone_is_ended_too() {
    let mut account = Account::of([machine("recorded", "here", 1), machine("left", "gone", 2)]);
    account.look(0);
    account.look(20);
    tells!(account.text);
}

#[test]
fn so_many_machines_of_pools_that_are_gone_are_not_ended_by_themselves() {
    let left = (0..12).map(|number| machine(&format!("left-{number:02}"), "gone", number));
    let mut account = Account::of(left);
    account.look(0);
    account.look(20);
    tells!(account.text);
}

fn restored() -> Account {
    Account::of([
        machine("recorded", "here", 1),
        machine("later-1", "here", 8),
        machine("later-2", "new", 1),
    ])
}

/// The annotation that the condition tells a person to write.
fn told(account: &Account, what: &str) -> String {
    let message = &account.conditions[0].message;
    let (_, after) = message.split_once(&format!("{what}@")).unwrap();
    let digest: String = after.chars().take_while(char::is_ascii_alphanumeric).collect();
    format!("{what}@{digest}")
}

#[test]
fn a_restored_cluster_holds_its_provider_until_a_person_ends_the_machines() {
    let mut account = restored();
    account.look(0);
    account.look(60);
    account.happens(120, "a person writes that they end");
    account.annotation = Some(told(&account, "End"));
    account.look(120);
    account.look(130);
    account.look(150);
    account.look(160);
    tells!(account.text);
}

#[test]
fn a_restored_cluster_holds_its_provider_until_a_person_adopts_the_machines() {
    let mut account = restored();
    account.look(0);
    account.look(60);
    account.happens(120, "a person writes that they stay");
    account.annotation = Some(told(&account, "Adopt"));
    account.look(120);
    account.look(150);
    account.happens(200, "one of them has halted");
    account.listed[1].phase = ProviderPhase::Stopped("it halted".into());
    account.look(200);
    account.look(220);
    tells!(account.text);
}

#[test]
fn a_decision_about_other_machines_than_those_that_wait_does_not_count() {
    let mut account = restored();
    account.annotation = Some("End@000000000000".into());
    account.look(0);
    tells!(account.text);
}

#[test]
fn a_restored_cluster_without_any_decision_goes_on_after_a_day() {
    let mut account = restored();
    account.look(0);
    account.look(86_400);
    account.look(86_420);
    tells!(account.text);
}
