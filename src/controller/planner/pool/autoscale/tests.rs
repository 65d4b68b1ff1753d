//! The judge of the decisions: a thousand load curves against the best that could be done.
//!
//! Each curve runs through [`decide`] step by step. The judge knows afterwards when how many machines were of use, and
//! what the cheapest machines for that would have cost: for each number of machines, and each gap in which so many were
//! unneeded, either keeping the machine or starting another one after the gap. It bills by the second, and serves all
//! work when it was served.

use std::{cmp::Reverse, collections::BTreeMap};

use super::{shrink::goes_in, *};
use crate::pool::load::{Demand, PoolLoad, Uses};

/// Seconds of a step.
const STEP: i64 = 30;
/// Seconds from the order of a machine until it takes work.
const STARTS: i64 = 120;
const CURVES: u64 = 1000;

/// A generator of numbers that every machine makes alike.
struct Dice(u64);

impl Dice {
    fn of(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn below(&mut self, bound: i64) -> i64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        i64::try_from(self.0 >> 33).unwrap() % bound
    }

    fn one_of(&mut self, values: &[i64]) -> i64 {
        values[usize::try_from(self.below(values.len() as i64)).unwrap()]
    }
}

/// A load curve, and the terms of its Pool and cloud.
struct Curve {
    ceiling: u32,
    after: i64,
    billing_step: i64,
    billing_minimum: i64,
    /// For each step: how long each piece of work lasts that comes then, in seconds.
    arrivals: Vec<Vec<i64>>,
}

impl Curve {
    /// Bursts, square waves with gaps around the timeouts, ramps and noise, with pieces that all last alike, that vary,
    /// or that drift to a hundred times their length.
    fn of(seed: u64) -> Self {
        let mut dice = Dice::of(seed);
        let after = dice.one_of(&[60, 120, 120, 300, 600]);
        let length = dice.one_of(&[5, 30, 90, 300, 900]);
        let (shape, steadiness) = (dice.below(4), dice.below(3));
        let steps = 60 + dice.below(40);
        let near = [
            after - STEP,
            after,
            after + STEP,
            STARTS,
            STARTS + STEP,
            3 * after,
        ];
        let gap = dice.one_of(&near).max(STEP) / STEP;
        let work = 4 + dice.below(10);
        let size = 1 + dice.below(8);
        let ceiling = 2 + dice.below(7);
        // As much as all machines can do in that time.
        let mut room = ceiling * steps * STEP;
        let mut arrivals = Vec::new();
        for step in 0..steps {
            let pieces = match shape {
                0 if step % 40 == 0 => size * 3,
                1 if step % (gap + work) < work => size,
                2 => step * size / steps,
                3 if dice.below(12) == 0 => 1 + dice.below(size),
                _ => 0,
            };
            let mut each = Vec::new();
            for _ in 0..pieces {
                let length = match steadiness {
                    0 => length,
                    1 => (length / 2 + dice.below(length.max(2))).max(1),
                    _ if step > steps / 2 => (length * 100).min(7200),
                    _ => length,
                };
                room -= length;
                if room >= 0 {
                    each.push(length);
                }
            }
            arrivals.push(each);
        }
        Self {
            ceiling: u32::try_from(ceiling).unwrap(),
            after,
            billing_step: dice.one_of(&[1, 1, 60, 600, 3600]),
            billing_minimum: dice.one_of(&[0, 0, 60, 600]),
            arrivals,
        }
    }

    fn bill(&self, from: i64, until: i64) -> i64 {
        let seconds = (until - from).max(self.billing_minimum);
        (seconds + self.billing_step - 1) / self.billing_step * self.billing_step
    }
}

/// A machine of the judge's cloud.
struct Rented {
    ordered: i64,
    ready: i64,
    /// When the run that it has began and ends.
    run: Option<(i64, i64)>,
    gone: Option<i64>,
}

/// A history of one curve.
#[derive(Default)]
struct Story {
    now: i64,
    target: u32,
    machines: Vec<Rented>,
    queue: std::collections::VecDeque<i64>,
    ended: std::collections::VecDeque<i64>,
    uses: Uses,
    /// For each step, how many machines were busy.
    busy: Vec<usize>,
    /// For each number of machines: whether so many were of use since there are so many.
    reached: BTreeMap<usize, bool>,
    /// Machines that went, and machines among them of which so many were never of use.
    gone: i64,
    unused: i64,
    served: usize,
}

impl Story {
    fn of(curve: &Curve) -> Self {
        let mut story = Self {
            target: 1,
            machines: vec![Rented {
                ordered: 0,
                ready: 0,
                run: None,
                gone: None,
            }],
            ..Self::default()
        };
        let mut step = 0;
        loop {
            story.now = step * STEP;
            let arrivals = curve.arrivals.get(usize::try_from(step).unwrap());
            story.queue.extend(arrivals.into_iter().flatten());
            story.work();
            let decision = story.decide(curve);
            story.carry_out(curve, &decision);
            let is_over = arrivals.is_none() && story.queue.is_empty() && story.live().count() <= 1;
            if is_over && story.machines.iter().all(|machine| machine.run.is_none()) {
                return story;
            }
            step += 1;
            assert!(step < 20_000, "machines stay, or work does");
        }
    }

    fn live(&self) -> impl Iterator<Item = &Rented> {
        self.machines.iter().filter(|machine| machine.gone.is_none())
    }

    fn work(&mut self) {
        for machine in &mut self.machines {
            if let Some((began, ends)) = machine.run.filter(|(_, ends)| *ends <= self.now) {
                machine.run = None;
                self.served += 1;
                self.ended.push_back(ends - began);
                if self.ended.len() > 16 {
                    self.ended.pop_front();
                }
            }
        }
        for machine in &mut self.machines {
            let is_free = machine.gone.is_none() && machine.ready <= self.now && machine.run.is_none();
            if is_free && let Some(length) = self.queue.pop_front() {
                machine.run = Some((self.now, self.now + length));
            }
        }
        // Little work is spread over all machines, as Tasks are.
        self.machines.rotate_left(1);
        let busy = self
            .machines
            .iter()
            .filter(|machine| machine.run.is_some())
            .count();
        self.busy.push(busy);
        for (level, reached) in &mut self.reached {
            *reached |= *level <= busy;
        }
    }

    fn load(&mut self, now: Timestamp) -> PoolLoad {
        let mut starts: Vec<i64> = self
            .machines
            .iter()
            .filter_map(|machine| Some(machine.run?.0))
            .collect();
        starts.sort_unstable();
        let mut lengths: Vec<i64> = self.ended.iter().copied().collect();
        lengths.sort_unstable();
        let typical = lengths.get(lengths.len() / 2).map(|length| seconds(*length));
        let places = u32::try_from(self.queue.len()).unwrap();
        let mut load = PoolLoad {
            places_each: 1,
            demand: Demand {
                places,
                backlog: typical.map(|typical| typical * places),
                typical,
                running_since: starts.get(starts.len() / 2).map(|start| at(*start)),
                ..Demand::default()
            },
            ..PoolLoad::default()
        };
        if !starts.is_empty() {
            load.runs
                .insert(String::new(), u32::try_from(starts.len()).unwrap());
        }
        self.uses.note(load.machines_in_use(), now);
        load.uses = self.uses.clone();
        load
    }

    fn decide(&mut self, curve: &Curve) -> Decision {
        let now = at(self.now);
        let load = self.load(now);
        let unit = |(slot, machine): (usize, &Rented)| {
            let so_far = self.now - machine.ordered;
            let left = (curve.bill(machine.ordered, self.now) - so_far).max(1);
            let step = if so_far < curve.billing_minimum {
                curve.billing_step.max(curve.billing_minimum)
            } else {
                curve.billing_step
            };
            Unit {
                ready: machine.ready <= self.now,
                idle: machine.run.is_none(),
                ordered_at: Some(at(machine.ordered)),
                billed: true,
                price: Usd::from(1),
                slot: u32::try_from(slot).unwrap(),
                head: false,
                goes_in: goes_in(seconds(step), seconds(left)),
            }
        };
        let sight = Sight {
            floor: 1,
            ceiling: curve.ceiling,
            target: self.target,
            affordable: None,
            load: Some(&load),
            machines: self.live().enumerate().map(unit).collect(),
            start: seconds(STARTS),
            minimum: seconds(curve.billing_minimum.max(curve.billing_step)),
            after: seconds(curve.after),
        };
        decide(&sight, now)
    }

    fn carry_out(&mut self, curve: &Curve, decision: &Decision) {
        assert!((1..=curve.ceiling).contains(&decision.target), "{decision:?}");
        assert!(
            decision.target <= self.target || decision.gone.is_empty(),
            "{decision:?}"
        );
        self.target = decision.target;
        let live: Vec<usize> = (0..self.machines.len())
            .filter(|at| self.machines[*at].gone.is_none())
            .collect();
        let mut gone = decision.gone.clone();
        gone.sort_by_key(|at| Reverse(*at));
        for (before, at) in gone.iter().enumerate() {
            let machine = &mut self.machines[live[*at]];
            assert!(machine.run.is_none(), "a busy machine goes");
            assert!(
                self.now - machine.ordered >= curve.after,
                "a machine goes that has just come"
            );
            machine.gone = Some(self.now);
            self.gone += 1;
            let level = live.len() - before;
            self.unused += i64::from(self.reached.remove(&level) == Some(false));
        }
        for level in self.live().count() + 1..=self.target as usize {
            self.reached.insert(level, false);
            self.machines.push(Rented {
                ordered: self.now,
                ready: self.now + STARTS,
                run: None,
                gone: None,
            });
        }
    }

    fn bill(&self, curve: &Curve) -> i64 {
        let end = |machine: &Rented| machine.gone.unwrap_or(self.now);
        self.machines
            .iter()
            .map(|machine| curve.bill(machine.ordered, end(machine)))
            .sum()
    }

    /// The cheapest bill for the same work at the same times, and how often so many machines ceased to be of use.
    fn optimum(&self) -> (i64, i64) {
        let most = self.busy.iter().copied().max().unwrap_or_default();
        let (mut bill, mut falls) = (self.now, 0);
        for level in 2..=most {
            let gaps = self.gaps(level);
            let busy = self.busy.iter().filter(|busy| **busy >= level).count() as i64;
            bill += busy * STEP + STARTS + cheapest(&gaps);
            falls += gaps.len() as i64 + 1;
        }
        (bill, falls)
    }

    /// How long each gap was between times when so many machines were of use.
    fn gaps(&self, level: usize) -> Vec<i64> {
        let mut gaps = Vec::new();
        let mut last: Option<usize> = None;
        for (step, _) in self.busy.iter().enumerate().filter(|(_, busy)| **busy >= level) {
            gaps.extend(
                last.map(|last| (step - last - 1) as i64 * STEP)
                    .filter(|gap| *gap > 0),
            );
            last = Some(step);
        }
        gaps
    }
}

/// Each gap is bridged or costs another start.
fn cheapest(gaps: &[i64]) -> i64 {
    gaps.iter().map(|gap| (*gap).min(STARTS)).sum()
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap())
}

#[test]
fn the_bill_is_never_above_the_optimum_by_more_than_the_wait_and_one_billing_step_for_each_scale_down() {
    let (mut bills, mut optima, mut worst) = (0, 0, (0.0, 0));
    for seed in 0..CURVES {
        let curve = Curve::of(seed);
        let story = Story::of(&curve);
        let pieces: usize = curve.arrivals.iter().map(Vec::len).sum();
        assert_eq!(story.served, pieces, "curve {seed} leaves work undone");
        let (optimum, falls) = story.optimum();
        let bill = story.bill(&curve);
        let billing_step = curve.billing_step.max(curve.billing_minimum);
        // A wait that is longer than a start is asked for: the Pool bridges gaps that the optimum does not.
        let allowed = if curve.after > STARTS {
            (falls + story.unused + 1) * (curve.after + billing_step)
        } else {
            // The loads here are looked at once in each step; a machine whose work was done before it came costs its start.
            story.gone * (curve.after + STEP + billing_step) + story.unused * STARTS + billing_step
        };
        assert!(
            bill <= optimum + allowed,
            "curve {seed}: {bill} machine-seconds, optimum {optimum}, allowed {allowed} more for {} scale-downs, {falls} \
             falls, {} unused",
            story.gone,
            story.unused
        );
        (bills, optima) = (bills + bill, optima + optimum);
        let ratio = bill as f64 / optimum as f64;
        if ratio > worst.0 {
            worst = (ratio, seed);
        }
    }
    let ratio = bills as f64 / optima as f64;
    println!(
        "bill / optimum: {ratio:.3} over {CURVES} curves; at most {:.2}, curve {}",
        worst.0, worst.1
    );
    assert!(ratio < 1.3, "{ratio}");
}

#[test]
fn the_optimum_of_the_judge_is_that_of_trying_everything() {
    for seed in 0..200 {
        let mut dice = Dice::of(seed);
        let gaps: Vec<i64> = (0..dice.below(9)).map(|_| STEP * (1 + dice.below(9))).collect();
        let choices = (0..1_u32 << gaps.len()).map(|kept| {
            let each = gaps.iter().enumerate();
            each.map(|(at, gap)| if (kept >> at) & 1 == 1 { *gap } else { STARTS })
                .sum::<i64>()
        });
        assert_eq!(choices.min(), Some(cheapest(&gaps)), "{gaps:?}");
    }
}

/// A Pool of one machine, whose work all waits.
fn waiting(places: u32) -> PoolLoad {
    let typical = Duration::from_hours(1);
    PoolLoad {
        places_each: 1,
        runs: BTreeMap::from([("m".to_owned(), 1)]),
        demand: Demand {
            places,
            backlog: Some(typical * places),
            typical: Some(typical),
            running_since: Some(at(0)),
            ..Demand::default()
        },
        ..PoolLoad::default()
    }
}

fn sight(load: Option<&PoolLoad>, target: u32, machines: u32) -> Sight<'_> {
    let unit = |slot| Unit {
        ready: slot == 0,
        idle: slot > 0,
        ordered_at: Some(at(0)),
        billed: slot == 0,
        price: Usd::from(1),
        slot,
        head: slot == 0,
        goes_in: Duration::ZERO,
    };
    Sight {
        floor: 1,
        ceiling: 6,
        target,
        affordable: None,
        load,
        machines: (0..machines).map(unit).collect(),
        start: Duration::from_mins(2),
        minimum: Duration::ZERO,
        after: Duration::from_mins(2),
    }
}

#[test]
fn one_decision_orders_all_machines_and_the_next_ones_order_none_while_they_come() {
    let load = waiting(20);
    let first = decide(&sight(Some(&load), 1, 1), at(10));
    assert_eq!((first.target, first.because), (6, Because::Work));
    for machines in 1..=6 {
        let next = decide(&sight(Some(&load), 6, machines), at(20));
        assert_eq!(
            (next.target, next.because, next.gone),
            (6, Because::Unchanged, vec![])
        );
    }
}

#[test]
fn a_new_leader_that_knows_no_load_finishes_what_was_decided_and_decides_nothing() {
    let decision = decide(&sight(None, 5, 2), at(100_000));
    assert_eq!((decision.target, decision.because), (5, Because::Unchanged));
    assert!(decision.gone.is_empty() && decision.look.is_some());
}

#[test]
fn orders_for_which_no_work_waits_any_more_are_not_made() {
    let mut load = PoolLoad::default();
    load.uses.note(0, at(0));
    let decision = decide(&sight(Some(&load), 5, 2), at(60));
    assert_eq!((decision.target, decision.because), (2, Because::Idle));
    assert!(
        decision.gone.is_empty(),
        "a machine on its way stays for as long as it may be idle"
    );
    let later = decide(&sight(Some(&load), 2, 2), at(121));
    assert_eq!((later.target, later.gone), (1, vec![1]));
}

#[test]
fn orders_that_could_not_be_made_are_not_made_later_for_work_that_is_not_worth_them() {
    let mut load = waiting(20);
    let held_up = decide(&sight(Some(&load), 6, 1), at(3000));
    assert_eq!((held_up.target, held_up.because), (6, Because::Unchanged));
    load.demand.places = 1;
    load.demand.typical = Some(Duration::from_secs(5));
    load.demand.backlog = Some(Duration::from_secs(5));
    load.demand.running_since = Some(at(2999));
    let decision = decide(&sight(Some(&load), 6, 1), at(3000));
    assert_eq!(
        (decision.target, decision.because, decision.gone),
        (1, Because::Idle, vec![])
    );
}

#[test]
fn a_budget_and_the_bounds_limit_a_growth() {
    let load = waiting(20);
    let poor = Sight {
        affordable: Some(2),
        ..sight(Some(&load), 1, 1)
    };
    assert_eq!(decide(&poor, at(10)).target, 3);
    let idle = PoolLoad::default();
    let raised = Sight {
        floor: 3,
        ..sight(Some(&idle), 1, 1)
    };
    let decision = decide(&raised, at(10));
    assert_eq!((decision.target, decision.because), (3, Because::Bounds));
    let lowered = Sight {
        ceiling: 2,
        ..sight(Some(&load), 6, 6)
    };
    assert_eq!(decide(&lowered, at(10)).target, 2);
}

#[test]
fn a_broadcast_that_waits_keeps_every_machine_and_orders_none() {
    let mut load = PoolLoad::default();
    (load.demand.fixed, load.demand.broadcasts) = (1, 1);
    load.uses.note(1, at(0));
    let decision = decide(&sight(Some(&load), 3, 3), at(100_000));
    assert_eq!((decision.target, decision.gone), (3, vec![]));
}

#[test]
fn a_task_that_waits_for_the_head_keeps_no_machine_that_is_of_no_use_to_it() {
    let mut load = PoolLoad::default();
    load.runs.insert("head".into(), 1);
    load.demand.fixed = 1;
    load.uses.note(3, at(0));
    load.uses.note(1, at(1));
    let decision = decide(&sight(Some(&load), 3, 3), at(100_000));
    assert_eq!((decision.target, decision.gone), (1, vec![2, 1]));
}

#[test]
fn the_place_of_a_machine_that_was_lost_is_kept_until_its_runs_wait_again() {
    let mut load = PoolLoad {
        runs: (0..5).map(|machine| (format!("m-{machine}"), 1)).collect(),
        places_each: 4,
        ..PoolLoad::default()
    };
    load.uses.note(5, at(0));
    let decision = decide(&sight(Some(&load), 5, 4), at(100_000));
    assert_eq!((decision.target, decision.because), (5, Because::Unchanged));
}

#[test]
fn a_leader_that_died_before_the_deletions_it_recorded_takes_no_machine_that_has_work_again() {
    let mut load = waiting(20);
    load.runs = (0..4).map(|machine| (format!("m-{machine}"), 1)).collect();
    let busy = |mut sight: Sight<'_>| {
        for machine in &mut sight.machines {
            (machine.ready, machine.idle) = (true, false);
        }
        decide(&sight, at(100_000))
    };
    let grown = busy(sight(Some(&load), 1, 4));
    assert_eq!((grown.target, grown.gone), (6, vec![]));
    load.demand = Demand::default();
    let kept = busy(sight(Some(&load), 1, 4));
    assert_eq!(
        (kept.target, kept.gone),
        (1, vec![]),
        "they go when they are idle"
    );
}
