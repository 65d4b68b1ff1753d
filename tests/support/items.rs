//! What must hold of the items of a map, whatever happened to its machines: the items tell a [`Ledger`](crate::Ledger)
//! when they begin and end, and the plugin prints what the operator made of it. The rules are pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    str::FromStr,
};

use anyhow::Context as _;
use serde_json::Value;

use crate::{Cluster, Result};

/// A function for items: it tells the ledger of `LEDGER` that an item begins, waits so many seconds, tells that the
/// item ends, and returns the index. A process that runs several items keeps its connection.
pub const ITEM_SOURCE: &str = "
import os, socket, time
ledger = None
def tell(side, index):
    global ledger
    if ledger is None:
        host, port = os.environ['LEDGER'].split()
        ledger = socket.create_connection((host, int(port)), 60).makefile('rw')
    worker = os.environ['SKYWARD_ATTEMPT'] + '-' + os.environ['SKYWARD_NODE_RANK']
    ledger.write(f'{side} {index} {worker} {socket.gethostname()}\\n')
    ledger.flush()
    if ledger.readline() != 'ok\\n':
        raise RuntimeError('the ledger does not answer')
def main(index, seconds):
    tell('begin', index)
    if seconds:
        time.sleep(seconds)
    tell('end', index)
    return index
";

/// Which half of an item's run told it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemSide {
    /// Before all else.
    Begin,
    /// Last of all.
    End,
}

/// One line of the ledger: which item, which worker of the map (attempt and rank of its run), and on which machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemMark {
    /// Begin or end.
    pub side: ItemSide,
    /// The item.
    pub index: u32,
    /// The worker that ran it.
    pub worker: String,
    /// The machine of the worker.
    pub machine: String,
}

impl FromStr for ItemMark {
    type Err = anyhow::Error;

    fn from_str(line: &str) -> Result<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [side, index, worker, machine] = words[..] else {
            anyhow::bail!("\"{line}\" is no mark of an item");
        };
        let side = match side {
            "begin" => ItemSide::Begin,
            "end" => ItemSide::End,
            _ => anyhow::bail!("\"{line}\" is no mark of an item"),
        };
        Ok(Self {
            side,
            index: index.parse().with_context(|| line.to_owned())?,
            worker: worker.to_owned(),
            machine: machine.to_owned(),
        })
    }
}

/// What the operator says of one item.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemOutcome {
    /// The item.
    pub index: u32,
    /// The attempt that counts.
    pub attempt: u32,
    /// How it ended.
    pub reason: String,
    /// What it returned.
    pub value: Value,
}

impl ItemOutcome {
    /// Reads a line of `kubectl skyward results TASK -o jsonl`.
    pub fn of(line: &Value) -> Result<Self> {
        let number = |name: &str| {
            let found = line[name].as_u64().and_then(|found| u32::try_from(found).ok());
            found.with_context(|| format!("no {name} in {line}"))
        };
        Ok(Self {
            index: number("index")?,
            attempt: number("attempt")?,
            reason: line["reason"].as_str().unwrap_or_default().to_owned(),
            value: line["value"].clone(),
        })
    }
}

impl Cluster {
    /// The items of a Task that have an outcome, by their indices, as the plugin prints them.
    pub async fn items(&self, namespace: &str, task: &str) -> Result<Vec<ItemOutcome>> {
        let args = ["skyward", "results", task, "-o", "jsonl", "-n", namespace];
        let printed = self.kubectl(&args).await?.ok()?;
        let items = printed
            .lines()
            .map(|line| ItemOutcome::of(&serde_json::from_str(line)?));
        items.collect()
    }
}

/// All that is known of a map of [`ITEM_SOURCE`] at its end.
#[derive(Clone, Debug, Default)]
pub struct MapRecord {
    /// How many items it had.
    pub total: u32,
    /// The ledger.
    pub marks: Vec<ItemMark>,
    /// What the operator says.
    pub outcomes: Vec<ItemOutcome>,
    /// Items whose outcome the operator told before the end, and how long the ledger was then.
    pub seen: BTreeMap<u32, usize>,
    /// Machines on which something happened that may interrupt items or make them fail.
    pub hit: BTreeSet<String>,
}

impl MapRecord {
    /// Notes which items have an outcome while the map runs; `length` of the ledger, taken after they were read.
    pub fn note_seen(&mut self, outcomes: &[ItemOutcome], length: usize) {
        for outcome in outcomes {
            self.seen.entry(outcome.index).or_insert(length);
        }
    }

    /// Each broken rule, in words. `excused`: which other ends than success there may be.
    pub fn broken(&self, excused: impl Fn(&ItemOutcome) -> bool) -> Vec<String> {
        let mut problems = self.wrong_outcomes(excused);
        let mut begun: BTreeMap<u32, Vec<(usize, &ItemMark)>> = BTreeMap::new();
        let mut open: BTreeMap<u32, &ItemMark> = BTreeMap::new();
        for (at, mark) in self.marks.iter().enumerate() {
            match mark.side {
                ItemSide::Begin => {
                    begun.entry(mark.index).or_default().push((at, mark));
                    open.insert(mark.index, mark);
                }
                ItemSide::End => {
                    let began = open.remove(&mark.index);
                    let is_same = began
                        .is_some_and(|began| began.worker == mark.worker && began.machine == mark.machine);
                    if !is_same {
                        problems.push(format!("{mark:?} is not the end of the newest run, {began:?}"));
                    }
                }
            }
        }
        for index in begun.keys().filter(|index| **index >= self.total) {
            problems.push(format!("there is no item {index}, and it ran"));
        }
        for outcome in &self.outcomes {
            let runs = begun.get(&outcome.index).map_or(&[][..], Vec::as_slice);
            problems.extend(self.unexplained(outcome, runs));
        }
        problems
    }

    /// Each item has exactly one outcome.
    fn wrong_outcomes(&self, excused: impl Fn(&ItemOutcome) -> bool) -> Vec<String> {
        let mut problems = Vec::new();
        let mut counts: BTreeMap<u32, u32> = BTreeMap::new();
        for outcome in &self.outcomes {
            *counts.entry(outcome.index).or_default() += 1;
            let is_right = outcome.reason == "Succeeded" && outcome.value == outcome.index;
            if !is_right && !excused(outcome) {
                problems.push(format!("the outcome of an item is wrong: {outcome:?}"));
            }
        }
        let missing: Vec<u32> = (0..self.total)
            .filter(|index| !counts.contains_key(index))
            .collect();
        if !missing.is_empty() {
            problems.push(format!("{} items have no outcome: {missing:?}", missing.len()));
        }
        let odd = counts
            .iter()
            .filter(|(index, count)| **count > 1 || **index >= self.total);
        problems.extend(odd.map(|(index, count)| format!("item {index} has {count} outcomes")));
        problems
    }

    /// An item runs once for each of its attempts at most, each run but the last one was on a machine that was hit, and
    /// none began after its outcome was known.
    fn unexplained(&self, outcome: &ItemOutcome, runs: &[(usize, &ItemMark)]) -> Vec<String> {
        let (index, attempt) = (outcome.index, outcome.attempt);
        let mut problems = Vec::new();
        if runs.len() > attempt as usize {
            problems.push(format!(
                "item {index} began {} times in {attempt} attempts",
                runs.len()
            ));
        }
        if outcome.reason == "Succeeded" && runs.is_empty() {
            problems.push(format!("item {index} succeeded and never began"));
        }
        if attempt > 1 && self.hit.is_empty() {
            problems.push(format!(
                "item {index} had {attempt} attempts, and nothing interrupts items"
            ));
        }
        if let Some((_, earlier)) = runs.split_last() {
            for (_, run) in earlier.iter().filter(|(_, run)| !self.hit.contains(&run.machine)) {
                problems.push(format!(
                    "{run:?} was not the last one, and its machine was not hit"
                ));
            }
        }
        let seen_at = self.seen.get(&index).copied().unwrap_or(usize::MAX);
        if let Some((_, run)) = runs.iter().find(|(at, _)| *at >= seen_at) {
            problems.push(format!("{run:?} came after the outcome was known"));
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A map of two items: the first one ended with that attempt.
    fn record(attempt: u32, lines: &[&str]) -> MapRecord {
        let outcome = |index: u32, attempt: u32| ItemOutcome {
            index,
            attempt,
            reason: "Succeeded".to_owned(),
            value: index.into(),
        };
        let other = ["begin 1 1-1 m2", "end 1 1-1 m2"];
        let lines = lines.iter().chain(&other);
        MapRecord {
            total: 2,
            marks: lines.map(|line| line.parse().unwrap()).collect(),
            outcomes: vec![outcome(0, attempt), outcome(1, 1)],
            ..MapRecord::default()
        }
    }

    fn hit(mut record: MapRecord, machine: &str) -> MapRecord {
        record.hit.insert(machine.to_owned());
        record
    }

    fn problem(record: &MapRecord) -> String {
        record.broken(|_| false).join("; ")
    }

    const ONCE: [&str; 2] = ["begin 0 1-0 m1", "end 0 1-0 m1"];
    const AGAIN: [&str; 3] = ["begin 0 1-0 m1", "begin 0 1-1 m2", "end 0 1-1 m2"];

    #[test]
    fn items_that_ran_once_and_items_of_a_machine_that_was_hit_break_no_rule() {
        assert_eq!(problem(&record(1, &ONCE)), "");
        assert_eq!(problem(&hit(record(2, &AGAIN), "m1")), "");
        // What a lost machine was given and had not begun counts as interrupted.
        assert_eq!(problem(&hit(record(2, &ONCE), "m3")), "");
        // Its machine was lost before it could tell of the end.
        let lines = [&ONCE[..], &AGAIN[1..]].concat();
        assert_eq!(problem(&hit(record(2, &lines), "m1")), "");
    }

    #[test]
    fn a_run_without_an_attempt_or_without_a_reason_is_found() {
        let told = problem(&hit(record(1, &AGAIN), "m1"));
        assert_eq!(told, "item 0 began 2 times in 1 attempts");
        let told = problem(&hit(record(2, &AGAIN), "m2"));
        assert!(told.contains("its machine was not hit"), "{told}");
        assert!(problem(&record(2, &ONCE)).contains("nothing interrupts items"));
    }

    #[test]
    fn a_run_after_the_outcome_was_known_is_found() {
        let mut late = hit(record(2, &AGAIN), "m1");
        let known = late.outcomes.clone();
        late.note_seen(&known[..1], 1);
        late.note_seen(&known, 9);
        assert_eq!(
            late.seen,
            BTreeMap::from([(0, 1), (1, 9)]),
            "the first look counts"
        );
        assert!(problem(&late).contains("came after the outcome was known"));
    }

    #[test]
    fn two_runs_of_an_item_at_once_are_found() {
        let lines = [AGAIN[0], AGAIN[1], "end 0 1-0 m1", AGAIN[2]];
        let told = problem(&hit(record(2, &lines), "m1"));
        assert!(told.contains("is not the end of the newest run"), "{told}");
    }

    #[test]
    fn missing_double_wrong_and_foreign_outcomes_are_found() {
        let mut missing = record(1, &ONCE);
        let last = missing.outcomes.pop();
        assert_eq!(problem(&missing), "1 items have no outcome: [1]");
        missing.outcomes.extend([last.clone().unwrap(), last.unwrap()]);
        assert_eq!(problem(&missing), "item 1 has 2 outcomes");
        let mut wrong = record(1, &ONCE);
        wrong.outcomes[1].value = json!(7);
        assert!(problem(&wrong).contains("the outcome of an item is wrong"));
        assert_eq!(wrong.broken(|outcome| outcome.index == 1), [""; 0]);
        let never = record(1, &[]);
        assert_eq!(problem(&never), "item 0 succeeded and never began");
        let mut foreign = record(1, &ONCE);
        foreign.marks.push("begin 5 1-0 m1".parse().unwrap());
        assert_eq!(problem(&foreign), "there is no item 5, and it ran");
    }

    #[test]
    fn what_the_plugin_prints_is_read_and_what_is_no_mark_is_refused() {
        let line = json!({"index": 3, "attempt": 2, "reason": "Succeeded", "milliseconds": 1, "value": 3});
        let expected = ItemOutcome {
            index: 3,
            attempt: 2,
            reason: "Succeeded".to_owned(),
            value: 3.into(),
        };
        assert_eq!(ItemOutcome::of(&line).unwrap(), expected);
        assert!(ItemOutcome::of(&json!({"next": 3})).is_err());
        for line in ["", "begin", "began 1 1-0 m", "begin x 1-0 m", "begin 1 1-0 m m"] {
            assert!(line.parse::<ItemMark>().is_err(), "{line}");
        }
    }
}
