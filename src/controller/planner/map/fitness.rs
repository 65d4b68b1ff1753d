//! What follows from how an attempt of an item ended: whether it counts as a failure of the item, or as an interruption
//! because its machine cannot begin items now. A machine that ends each item as soon as it begins would else have all
//! items of a map within a moment, and fail them. A program that cannot start on any machine is a failure of the items:
//! machine after machine would else rest for a name that is written wrongly.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use skyward_api::{condition::reason, task::RetryAction};

use super::{indices::Index, record::Cause};

/// An attempt that meets a full disk so soon after its begin is not what filled it.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Starts in a row that have to fail on one machine before more than these attempts follows from it.
const STARTS: u32 = 3;
/// Items that could not start and are remembered. One that is forgotten runs out of interruptions instead.
const REMEMBERED: usize = 4096;

/// Whose fault it is that an item could not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nobody's, as far as is known: the item started, or the next starts have to show it.
    Unknown,
    /// That of the machine: other items start elsewhere, or may.
    Machine,
    /// That of the item, or of the work of all items.
    Work,
}

/// What the items of one attempt of a Task tell of where programs start. Another leader begins without it, and learns it
/// from the next starts.
#[derive(Clone, Debug, Default)]
pub struct Starts {
    /// Whether any item has started on any machine.
    begun: bool,
    /// Machines on which the last items could not start, each with how many in a row.
    machines: BTreeMap<Arc<str>, u32>,
    /// Items that could not start: on which machine first, and how often.
    items: BTreeMap<Index, (Arc<str>, u32)>,
}

impl Starts {
    /// Of a map in which items have succeeded already, or not.
    pub fn new(begun: bool) -> Self {
        Self {
            begun,
            ..Self::default()
        }
    }

    /// Whether no item has started on that machine since one could not.
    pub fn fails_on(&self, machine: &str) -> bool {
        self.machines.contains_key(machine)
    }

    /// Takes in the end of an attempt, which must count, and judges it. `others_may`: items are with machines on which no
    /// start has failed.
    pub fn on_end(&mut self, machine: &Arc<str>, index: Index, why: &str, others_may: bool) -> Fault {
        match why {
            reason::START_FAILED => {}
            // These say nothing of whether the program had started.
            reason::DISK_FULL | reason::INTERRUPTED | reason::STOPPED => return Fault::Unknown,
            _ => {
                self.begun = true;
                self.machines.remove(machine);
                self.items.remove(&index);
                return Fault::Unknown;
            }
        }
        let in_a_row = self.machines.entry(machine.clone()).or_default();
        *in_a_row = in_a_row.saturating_add(1);
        let is_often = *in_a_row >= STARTS;
        let (first, times) = self.items.entry(index).or_insert_with(|| (machine.clone(), 0));
        *times = times.saturating_add(1);
        let is_of_item = *first != *machine || *times >= STARTS;
        let is_nowhere = !self.begun && !others_may && (is_often || self.machines.len() > 1);
        if self.items.len() > REMEMBERED {
            self.items.pop_first();
        }
        if is_of_item || is_nowhere {
            Fault::Work
        } else if is_often {
            Fault::Machine
        } else {
            Fault::Unknown
        }
    }
}

/// How an attempt counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// As what.
    pub cause: Cause,
    /// Whether a rule of the Task says that no other attempt follows.
    pub for_good: bool,
    /// Whether its machine gets no other item for now.
    pub is_unfit: bool,
    /// Whether the map is no further with it: the attempt did not begin, and the item has no failure from it.
    pub is_vain: bool,
}

/// Judges the end of an attempt that took so long. `action` is what the Task says of such a failure, and `fault` counts
/// where the item could not start.
pub fn judge(why: &str, action: RetryAction, took: Duration, fault: Fault) -> Judgement {
    let counts = |cause| Judgement {
        cause,
        for_good: false,
        is_unfit: false,
        is_vain: false,
    };
    let could_not_start = why == reason::START_FAILED;
    let meets_full_disk = why == reason::DISK_FULL && took < AT_ONCE;
    let is_unfit = meets_full_disk || (could_not_start && fault != Fault::Unknown);
    let is_vain = meets_full_disk || could_not_start;
    match (why, action) {
        (reason::SUCCEEDED, _) => counts(Cause::Success),
        (reason::INTERRUPTED, _) => counts(Cause::Interruption),
        (reason::STOPPED, _) => counts(Cause::Uncounted),
        (_, RetryAction::Fail) => Judgement {
            for_good: true,
            ..counts(Cause::Failure)
        },
        // Attempts that count for nothing would follow each other without an end, if the machine did not rest.
        (_, RetryAction::Ignore) => Judgement {
            is_unfit,
            is_vain,
            ..counts(Cause::Uncounted)
        },
        (_, RetryAction::Retry) if could_not_start && fault == Fault::Work => counts(Cause::Failure),
        (_, RetryAction::Retry) if is_vain => Judgement {
            is_unfit,
            is_vain,
            ..counts(Cause::Interruption)
        },
        (_, RetryAction::Retry) => counts(Cause::Failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_that_its_machine_cannot_begin_is_interrupted_and_one_that_fills_the_disk_has_failed() {
        let (short, long) = (Duration::from_millis(2), Duration::from_mins(1));
        let (failure, interruption) = (Cause::Failure, Cause::Interruption);
        for (why, took, fault, cause, is_unfit, is_vain) in [
            (
                reason::START_FAILED,
                short,
                Fault::Machine,
                interruption,
                true,
                true,
            ),
            // It may have waited for a mount that hangs.
            (
                reason::START_FAILED,
                long,
                Fault::Machine,
                interruption,
                true,
                true,
            ),
            (
                reason::START_FAILED,
                short,
                Fault::Unknown,
                interruption,
                false,
                true,
            ),
            (reason::START_FAILED, short, Fault::Work, failure, false, false),
            (reason::DISK_FULL, short, Fault::Unknown, interruption, true, true),
            (reason::DISK_FULL, long, Fault::Unknown, failure, false, false),
            (
                reason::NON_ZERO_EXIT,
                short,
                Fault::Unknown,
                failure,
                false,
                false,
            ),
            (
                reason::INTERRUPTED,
                short,
                Fault::Unknown,
                interruption,
                false,
                false,
            ),
            (
                reason::STOPPED,
                short,
                Fault::Unknown,
                Cause::Uncounted,
                false,
                false,
            ),
            (
                reason::SUCCEEDED,
                short,
                Fault::Unknown,
                Cause::Success,
                false,
                false,
            ),
        ] {
            let expected = Judgement {
                cause,
                for_good: false,
                is_unfit,
                is_vain,
            };
            assert_eq!(
                judge(why, RetryAction::Retry, took, fault),
                expected,
                "{why} after {took:?}, {fault:?}"
            );
        }
    }

    #[test]
    fn what_a_rule_of_the_task_says_of_such_a_failure_counts() {
        let judged = |action, fault| judge(reason::START_FAILED, action, Duration::ZERO, fault);
        let failed = judged(RetryAction::Fail, Fault::Unknown);
        assert_eq!((failed.cause, failed.for_good), (Cause::Failure, true));
        for (fault, is_unfit) in [
            (Fault::Unknown, false),
            (Fault::Machine, true),
            (Fault::Work, true),
        ] {
            let ignored = judged(RetryAction::Ignore, fault);
            assert_eq!(
                (ignored.cause, ignored.is_unfit, ignored.is_vain),
                (Cause::Uncounted, is_unfit, true)
            );
        }
    }

    /// The faults of ends, one after the other: machine, item and reason of each.
    fn faults(starts: &mut Starts, others_may: bool, ends: &[(&str, Index, &str)]) -> Vec<Fault> {
        ends.iter()
            .map(|(machine, index, why)| starts.on_end(&Arc::from(*machine), *index, why, others_may))
            .collect()
    }

    const FAILED: &str = reason::START_FAILED;
    const EXITED: &str = reason::NON_ZERO_EXIT;

    #[test]
    fn a_program_that_starts_on_no_machine_is_no_fault_of_the_second_machine() {
        let mut starts = Starts::default();
        let ends = [("a", 0, FAILED), ("b", 1, FAILED), ("a", 2, FAILED)];
        let expected = [Fault::Unknown, Fault::Work, Fault::Work];
        assert_eq!(faults(&mut starts, false, &ends), expected);
        // On the only machine several starts have to fail.
        let ends = [("a", 0, FAILED), ("a", 1, FAILED), ("a", 2, FAILED)];
        let expected = [Fault::Unknown, Fault::Unknown, Fault::Work];
        assert_eq!(faults(&mut Starts::default(), false, &ends), expected);
    }

    #[test]
    fn machines_on_which_nothing_starts_are_at_fault_where_others_start_items_or_may_do_so() {
        let ends: Vec<(&str, Index, &str)> = (0..3)
            .flat_map(|i| [("a", i, FAILED), ("b", i + 9, FAILED)])
            .collect();
        let mut expected = vec![Fault::Unknown; 4];
        expected.extend([Fault::Machine, Fault::Machine]);
        for (begun, others_may) in [(true, false), (false, true)] {
            assert_eq!(
                faults(&mut Starts::new(begun), others_may, &ends),
                expected,
                "{begun} {others_may}"
            );
        }
        let mut starts = Starts::default();
        faults(&mut starts, false, &[("c", 7, EXITED)]);
        assert_eq!(faults(&mut starts, false, &ends), expected);
        assert!(starts.fails_on("a") && !starts.fails_on("c"));
    }

    #[test]
    fn a_machine_that_starts_other_items_does_not_rest_for_items_that_cannot_start() {
        let mut starts = Starts::default();
        for index in 0..20 {
            let ends = [("a", index * 2, FAILED), ("a", index * 2 + 1, EXITED)];
            assert_eq!(faults(&mut starts, false, &ends), [Fault::Unknown; 2]);
        }
        // Of such an item two machines say enough, or the only one, which says so several times.
        assert_eq!(faults(&mut starts, false, &[("b", 0, FAILED)]), [Fault::Work]);
        let ends = [("a", 2, FAILED), ("a", 99, EXITED), ("a", 2, FAILED)];
        let expected = [Fault::Unknown, Fault::Unknown, Fault::Work];
        assert_eq!(faults(&mut starts, false, &ends), expected);
    }

    #[test]
    fn ends_that_do_not_tell_whether_the_program_had_started_prove_no_start() {
        let mut starts = Starts::default();
        let ends = [
            ("a", 0, FAILED),
            ("a", 1, reason::STOPPED),
            ("a", 2, reason::INTERRUPTED),
            ("a", 3, reason::DISK_FULL),
            ("b", 4, FAILED),
        ];
        assert_eq!(faults(&mut starts, false, &ends)[4], Fault::Work);
    }

    #[test]
    fn items_that_cannot_start_take_no_more_memory_than_some() {
        let mut starts = Starts::new(true);
        for index in 0..2 * REMEMBERED as Index {
            starts.on_end(&Arc::from("a"), index, FAILED, false);
        }
        assert_eq!(starts.items.len(), REMEMBERED);
    }
}
