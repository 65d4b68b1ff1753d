//! Loads that move through time: the plan of a Pool decides again and again, and clouds, leaders and work do what they may
//! do to it.
//!
//! The world here carries out what a plan says and shows the next plan what came of that, in steps of [`STEP`] seconds.
//! What must hold: machines are ordered beyond the floor only for work, never beyond the ceiling, and go only idle; work that
//! comes again before a machine may go finds it there, and each wave of work orders each machine once at most.

use std::collections::VecDeque;

use super::*;
use crate::{
    base::time::elapsed,
    pool::load::{Demand, Uses},
};

/// Seconds of a step.
const STEP: i64 = 10;
/// Seconds from an order until the machine takes work.
const STARTS: i64 = 60;
/// `scaleDownAfter` of the Pool.
const AFTER: i64 = 120;
/// Between these the Pool scales.
const BOUNDS: (usize, usize) = (1, 4);
/// Work of a wave: so many pieces, of so many seconds each.
const WAVE: (usize, i64) = (24, 60);
const WAVES: usize = 6;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Luck {
    Good,
    /// Each third machine fails before it takes work.
    OrdersFail,
    /// Each third machine takes ten times as long to start.
    SlowOrders,
    /// A machine that works vanishes now and then.
    MachinesVanish,
    /// A leader dies between the record of a decision and its orders, and the next one knows no load for a while.
    LeadersDie,
    /// The record of a decision is refused, as one that an old view was made from.
    WritesAreRefused,
}

/// A machine, beside what the plan sees of it.
struct Rented {
    facts: MachineFacts,
    ready_at: i64,
    fails: bool,
    /// Since when it runs something, and until when.
    run: Option<(i64, i64)>,
}

struct Scene {
    seen: Observed,
    luck: Luck,
    now: i64,
    machines: Vec<Rented>,
    queue: VecDeque<i64>,
    lasted: VecDeque<i64>,
    uses: Uses,
    /// Until when nothing is known of the load.
    unknown_until: i64,
    /// Plans that did something, machines that failed or vanished, and machines that were ordered.
    acted: usize,
    lost: usize,
    ordered: usize,
    served: usize,
}

impl Scene {
    fn new(luck: Luck) -> Self {
        let mut seen = world(1);
        seen.pool.spec = serde_json::from_value(serde_json::json!({
            "provider": "local", "nodes": { "desired": BOUNDS.0, "max": BOUNDS.1 },
            "autoscale": { "scaleDownAfter": format!("{AFTER}s") }
        }))
        .unwrap();
        seen.pool.status.desired_machines = Some(1);
        Self {
            seen,
            luck,
            now: NOW,
            machines: Vec::new(),
            queue: VecDeque::new(),
            lasted: VecDeque::new(),
            uses: Uses::default(),
            unknown_until: 0,
            acted: 0,
            lost: 0,
            ordered: 0,
            served: 0,
        }
    }

    /// Waves of work, each so many seconds after the end of the one before, and then nothing.
    fn of_waves(luck: Luck, gap: i64) -> Self {
        let mut scene = Self::new(luck);
        for _ in 0..WAVES {
            scene.queue.extend(std::iter::repeat_n(WAVE.1, WAVE.0));
            scene.work_until_all_is_done();
            scene.pass(gap);
        }
        scene.come_to_rest();
        assert_eq!(scene.served, WAVES * WAVE.0, "{luck:?}: work is undone");
        scene
    }

    fn work_until_all_is_done(&mut self) {
        let end = self.now + 24 * 3600;
        while !self.queue.is_empty() || self.machines.iter().any(|machine| machine.run.is_some()) {
            self.step();
            assert!(self.now < end, "{:?}: work is never done", self.luck);
        }
    }

    fn pass(&mut self, seconds: i64) {
        for _ in 0..seconds / STEP {
            self.step();
        }
    }

    /// Only the floor is left, whatever went wrong.
    fn come_to_rest(&mut self) {
        self.luck = Luck::Good;
        self.pass(20 * STARTS + 2 * AFTER);
        let left = self.machines.iter().filter(|machine| machine.facts.ready);
        assert_eq!(
            (left.count(), self.machines.len()),
            (BOUNDS.0, BOUNDS.0),
            "machines stay"
        );
    }

    fn step(&mut self) {
        self.now += STEP;
        self.let_machines_live();
        self.let_work_run();
        self.show();
        let plan = decide_at(&self.seen, self.now);
        self.check(&plan);
        self.carry_out(&plan);
    }

    fn let_machines_live(&mut self) {
        let now = self.now;
        for machine in &mut self.machines {
            let facts = &mut machine.facts;
            if facts.ready || facts.failure.is_some() || machine.ready_at > now {
                continue;
            }
            if machine.fails {
                facts.failure = failed(facts.slot, now).failure;
                facts.phase = MachinePhase::Failed;
                self.lost += 1;
            } else {
                facts.ready = true;
                facts.ready_at = Some(at(now));
                facts.phase = MachinePhase::Ready;
                facts.concern = None;
                facts.provisioned = true;
            }
        }
        // A machine that drains goes when its run has ended.
        self.machines
            .retain(|machine| !machine.facts.deleting || machine.run.is_some());
        let vanishes = self.luck == Luck::MachinesVanish && now % (37 * STEP) == 0;
        let works = |machine: &&mut Rented| machine.facts.ready && machine.facts.is_live();
        if vanishes && let Some(machine) = self.machines.iter_mut().rev().find(works) {
            let mut failure = failed(0, now).failure.unwrap();
            failure.reason = reason::MACHINE_LOST.into();
            machine.facts.failure = Some(failure);
            machine.facts.phase = MachinePhase::Failed;
            machine.facts.ready = false;
            self.lost += 1;
        }
    }

    fn let_work_run(&mut self) {
        let now = self.now;
        for machine in &mut self.machines {
            // The dispatcher hears that a machine is lost one step after the Pool's plan.
            let is_lost = machine.facts.failure.is_some() && machine.facts.deleting;
            match machine.run {
                Some((began, ends)) if is_lost => {
                    machine.run = None;
                    self.queue.push_front(ends - began);
                }
                Some((began, ends)) if ends <= now && machine.facts.failure.is_none() => {
                    machine.run = None;
                    self.served += 1;
                    self.lasted.push_back(ends - began);
                    self.lasted = self.lasted.split_off(self.lasted.len().saturating_sub(16));
                }
                _ => {}
            }
            let takes = machine.facts.ready && machine.facts.is_live() && machine.run.is_none();
            if takes && let Some(length) = self.queue.pop_front() {
                machine.run = Some((now, now + length));
            }
        }
        // Work is spread over machines, as Tasks are.
        if !self.machines.is_empty() {
            self.machines.rotate_left(1);
        }
    }

    fn load(&mut self) -> Option<PoolLoad> {
        let mut load = PoolLoad {
            places_each: 1,
            ..PoolLoad::default()
        };
        let runs = self
            .machines
            .iter()
            .filter_map(|machine| Some((machine, machine.run?)));
        let mut began: Vec<i64> = Vec::new();
        for (machine, (since, _)) in runs {
            load.runs.insert(machine.facts.name.clone(), 1);
            began.push(since);
        }
        began.sort_unstable();
        let mut lasted: Vec<i64> = self.lasted.iter().copied().collect();
        lasted.sort_unstable();
        let typical = lasted
            .get(lasted.len() / 2)
            .map(|seconds| std::time::Duration::from_secs(*seconds as u64));
        let places = self.queue.len() as u32;
        load.demand = Demand {
            places,
            backlog: typical.map(|typical| typical * places),
            typical,
            running_since: began.get(began.len() / 2).map(|since| at(*since)),
            ..Demand::default()
        };
        if self.now < self.unknown_until {
            return None;
        }
        self.uses.note(load.machines_in_use(), at(self.now));
        load.uses = self.uses.clone();
        Some(load)
    }

    /// What the next plan sees.
    fn show(&mut self) {
        self.seen.load = self.load();
        let load = self.seen.load.as_ref();
        let facts = self.machines.iter().map(|machine| MachineFacts {
            runs: load.map(|load| load.runs.get(&machine.facts.name).copied().unwrap_or(0)),
            ..machine.facts.clone()
        });
        self.seen.machines = facts.collect();
    }

    fn check(&self, plan: &Plan) {
        let wanted = plan.status.desired_machines.unwrap() as usize;
        let before = self.seen.pool.status.desired_machines.unwrap() as usize;
        assert!(
            (BOUNDS.0..=BOUNDS.1).contains(&wanted),
            "{:?}: {wanted}",
            self.luck
        );
        let load = self.seen.load.as_ref();
        let waits = load.is_some_and(|load| load.demand.waits());
        assert!(wanted <= before || waits, "the Pool grows without work");
        let live = self
            .machines
            .iter()
            .filter(|machine| machine.facts.is_live())
            .count();
        let about_to_wait = load.is_some_and(|load| load.busy_machines() as usize > live);
        assert!(
            created(plan).is_empty() || live < BOUNDS.0 || waits || about_to_wait || load.is_none(),
            "{:?}: a machine is ordered without work",
            self.luck
        );
        for (name, why, _) in deleted(plan) {
            let machine = self
                .machines
                .iter()
                .find(|machine| machine.facts.name == name)
                .unwrap();
            if [Why::Failed, Why::Lost].contains(&why) {
                continue;
            }
            assert_eq!(why, Why::Idle, "{:?}", self.luck);
            assert_eq!(machine.run, None, "{:?}: a busy machine goes", self.luck);
            let age = elapsed(machine.facts.ordered_at.unwrap(), at(self.now));
            assert!(
                age.as_secs() >= AFTER as u64,
                "{:?}: it came {age:?} ago",
                self.luck
            );
        }
    }

    fn carry_out(&mut self, plan: &Plan) {
        self.acted += usize::from(!plan.actions.is_empty());
        let unlucky = !plan.actions.is_empty() && self.acted.is_multiple_of(3);
        if unlucky && self.luck == Luck::WritesAreRefused {
            return;
        }
        self.seen.pool.status = plan.status.clone();
        if unlucky && self.luck == Luck::LeadersDie {
            self.unknown_until = self.now + 3 * STEP;
            self.uses = Uses::default();
            return;
        }
        for (name, _, _) in deleted(plan) {
            let machine = self
                .machines
                .iter_mut()
                .find(|machine| machine.facts.name == name);
            machine.unwrap().facts.deleting = true;
        }
        for action in &plan.actions {
            if let Action::CreateMachine { name, spec } = action {
                self.ordered += 1;
                let is_third = self.ordered.is_multiple_of(3);
                let slow = is_third && self.luck == Luck::SlowOrders;
                let facts = MachineFacts {
                    name: name.clone(),
                    uid: Some(name.clone()),
                    attempt: spec.attempt,
                    ordered_at: Some(at(self.now)),
                    ..booting(spec.slot)
                };
                self.machines.push(Rented {
                    facts,
                    ready_at: self.now + STARTS * if slow { 10 } else { 1 },
                    fails: is_third && self.luck == Luck::OrdersFail,
                    run: None,
                });
            }
        }
    }
}

/// Machines that the first wave and each later one order at most, besides the floor.
const MORE: usize = BOUNDS.1 - BOUNDS.0;

#[rstest]
#[case::long_before_it(AFTER - WAVE.1 - 3 * STEP, 1)]
#[case::just_before_it(AFTER - STEP, WAVES)]
#[case::at_it(AFTER, WAVES)]
#[case::just_after_it(AFTER + STEP, WAVES)]
#[case::a_start_after_it(AFTER + STARTS, WAVES)]
#[case::much_later(10 * AFTER, WAVES)]
fn a_square_wave_whose_gap_is_near_the_wait_orders_each_machine_once_for_a_wave_at_most(
    #[case] gap: i64,
    #[case] times: usize,
) {
    let scene = Scene::of_waves(Luck::Good, gap);
    let most = BOUNDS.0 + MORE * times;
    assert!(
        scene.ordered <= most,
        "{} machines were ordered, {most} are enough",
        scene.ordered
    );
    assert!(scene.ordered > BOUNDS.0, "the Pool never grew");
}

#[rstest]
fn whatever_befalls_orders_machines_and_leaders_no_rule_is_broken_and_no_machine_is_ordered_anew_without_cause(
    #[values(
        Luck::OrdersFail,
        Luck::SlowOrders,
        Luck::MachinesVanish,
        Luck::LeadersDie,
        Luck::WritesAreRefused
    )]
    luck: Luck,
    #[values(AFTER - STEP, AFTER + STEP, 5 * AFTER)] gap: i64,
) {
    let scene = Scene::of_waves(luck, gap);
    // Each machine that was lost has one successor.
    let most = BOUNDS.0 + MORE * WAVES + scene.lost;
    assert!(
        scene.ordered <= most,
        "{luck:?}: {} machines were ordered, {most} are enough",
        scene.ordered
    );
}

#[test]
fn work_that_lasts_a_hundred_times_as_long_as_before_grows_the_pool_once_and_not_up_and_down() {
    let mut scene = Scene::new(Luck::Good);
    scene.pass(2 * STARTS);
    // Work of a moment is no reason to order anything.
    for _ in 0..20 {
        scene.queue.push_back(6);
        scene.pass(2 * STEP);
    }
    assert_eq!(scene.ordered, BOUNDS.0);
    scene.queue.extend(std::iter::repeat_n(600, 12));
    scene.work_until_all_is_done();
    assert_eq!(scene.ordered, BOUNDS.1);
    // And back: short work on the machines that are there.
    for _ in 0..20 {
        scene.queue.push_back(6);
        scene.pass(2 * STEP);
    }
    scene.come_to_rest();
    assert_eq!(scene.ordered, BOUNDS.1, "nothing was ordered twice");
}
