//! The state of one cloud, and its changes as time passes.
//!
//! The world knows no API. Clouds change it through its methods; what is due later (a boot
//! that ends, a reclaim) waits in a queue and happens at its own time, so that a jump of
//! the clock by hours gives the same bill as a walk through them.

use std::collections::{BTreeMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use rust_decimal::Decimal;

use crate::backend::{Command, Intruder, Report};
use crate::core::account::{Account, AccountId, Credential};
use crate::core::billing::{Billing, Tab};
use crate::core::chance::Chance;
use crate::core::machine::{BootEnd, BootPlan, Cause, Machine, MachineId, NewMachine, Phase};
use crate::core::market::{InstanceType, Market, Shelf, Stock};
use crate::core::resource::Resource;

/// How far lists are behind the truth.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lag {
    /// A new machine is not listed for this long.
    pub created: SignedDuration,
    /// A machine that ends is listed as it was for this long.
    pub ended: SignedDuration,
}

/// An event that no request caused; each cloud decides what follows from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The machine runs and can be reached.
    Running(MachineId),
    /// Its boot failed (it is `Failed` now).
    BootFailed(MachineId),
    /// The guest may now know that it will be taken back.
    Noticed(MachineId),
    /// The cloud takes it back: the cloud's module ends or halts it now.
    Reclaimed(MachineId),
    /// The guest halted itself: the cloud's module says whether that ends it.
    HaltedItself(MachineId),
    /// Its host is lost: the cloud's module says what it becomes.
    Died(MachineId),
    /// It exists no more.
    Ended(MachineId),
    /// A timer of the cloud's own ([`World::remind`]).
    Reminder(String),
}

#[derive(Clone, Debug)]
enum Due {
    BootDone(MachineId, BootEnd),
    EndDone(MachineId),
    Decided(MachineId, SignedDuration),
    Happens(Happening),
}

/// The world of one cloud.
pub struct World {
    now: Timestamp,
    billing: Billing,
    due: BTreeMap<(Timestamp, u64), Due>,
    order: u64,
    commands: Vec<Command>,
    happened: VecDeque<Happening>,
    /// Randomness, for ids and faults.
    pub chance: Chance,
    /// The customers.
    pub accounts: BTreeMap<AccountId, Account>,
    /// What can be rented, by name.
    pub types: BTreeMap<String, InstanceType>,
    /// The regions or zones.
    pub regions: Vec<String>,
    /// What is left of it.
    pub stock: Stock,
    /// All machines, ended ones too, by id.
    pub machines: BTreeMap<MachineId, Machine>,
    /// All else that clients make, by id.
    pub resources: BTreeMap<String, Resource>,
    /// How boots go that no test scripted.
    pub boot: BootPlan,
    /// Attackers in front of new machines, by account.
    pub intruders: BTreeMap<AccountId, Intruder>,
    /// How long the end of a machine takes.
    pub end_takes: SignedDuration,
    /// How far lists are behind.
    pub lag: Lag,
    /// The most items on a page of a list, whatever a client asks for.
    pub page: Option<usize>,
}

impl World {
    /// A world without anything in it.
    pub fn new(now: Timestamp, seed: u64, billing: Billing) -> Self {
        Self {
            now,
            billing,
            due: BTreeMap::new(),
            order: 0,
            commands: Vec::new(),
            happened: VecDeque::new(),
            chance: Chance::new(seed),
            accounts: BTreeMap::new(),
            types: BTreeMap::new(),
            regions: Vec::new(),
            stock: Stock::default(),
            machines: BTreeMap::new(),
            resources: BTreeMap::new(),
            boot: BootPlan::takes(20),
            intruders: BTreeMap::new(),
            end_takes: SignedDuration::from_secs(5),
            lag: Lag::default(),
            page: None,
        }
    }

    /// The time of whatever happens now.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The billing rules of this cloud.
    pub fn billing(&self) -> &Billing {
        &self.billing
    }

    /// Adds a customer.
    pub fn add_account(&mut self, account: Account) {
        self.accounts.insert(account.id.clone(), account);
    }

    /// Adds something to rent.
    pub fn add_type(&mut self, instance_type: InstanceType) {
        self.types.insert(instance_type.name.clone(), instance_type);
    }

    /// The account and credential with this credential id.
    pub fn credential(&self, id: &str) -> Option<(&Account, &Credential)> {
        self.accounts.values().find_map(|account| {
            account
                .credentials
                .iter()
                .find(|credential| credential.id == id)
                .map(|credential| (account, credential))
        })
    }

    /// The machines of an account, ended ones too.
    pub fn machines_of<'a>(&'a self, account: &'a str) -> impl Iterator<Item = &'a Machine> {
        self.machines
            .values()
            .filter(move |machine| machine.account == account)
    }

    /// The phase that lists show of a machine now, `None` while it is not listed yet. `Ended` is
    /// included: each cloud decides whether to show ended machines.
    pub fn listed(&self, machine: &Machine) -> Option<Phase> {
        if machine
            .created()
            .saturating_add(self.lag.created)
            .is_ok_and(|at| at > self.now)
        {
            return None;
        }
        match machine.phase {
            Phase::Ending | Phase::Ended => {
                let then = self.now.saturating_sub(self.lag.ended).unwrap_or(self.now);
                Some(machine.phase_at(then).unwrap_or(Phase::Pending))
            }
            phase @ (Phase::Pending | Phase::Running | Phase::Halted | Phase::Failed) => Some(phase),
        }
    }

    /// Takes one from the shelf; false when there is none.
    pub fn take_stock(&mut self, instance_type: &str, region: &str, market: Market) -> bool {
        self.stock.take(&Shelf::new(instance_type, region, market))
    }

    /// A halted machine gives its place back, as at clouds where it may not get it again.
    pub fn release_stock(&mut self, id: &str) {
        if let Some(machine) = self.machines.get_mut(id).filter(|machine| machine.holds_stock) {
            machine.holds_stock = false;
            self.stock.put_back(&Shelf::new(
                &machine.instance_type,
                &machine.region,
                machine.market,
            ));
        }
    }

    /// A halted machine takes a place again; false when there is none left.
    pub fn hold_stock(&mut self, id: &str) -> bool {
        let Some(machine) = self.machines.get_mut(id) else {
            return false;
        };
        if !machine.holds_stock {
            machine.holds_stock = self.stock.take(&Shelf::new(
                &machine.instance_type,
                &machine.region,
                machine.market,
            ));
        }
        machine.holds_stock
    }

    /// Makes a machine: it costs from now on as the billing rules say, and boots.
    pub fn create(&mut self, new: NewMachine) -> MachineId {
        let mut machine = Machine {
            id: new.id.clone(),
            account: new.account,
            mark: new.mark,
            instance_type: new.instance_type,
            region: new.region,
            market: new.market,
            price: new.price,
            on_demand_price: new.on_demand_price,
            disk_price: new.disk_price,
            phase: Phase::Pending,
            cause: None,
            history: vec![(self.now, Phase::Pending)],
            reclaim_at: None,
            noticed: None,
            endpoint: None,
            holds_stock: true,
            booted: false,
            boot: new.boot,
            detail: new.detail,
            tab: Tab::default(),
        };
        machine.boot.intruder = self.intruders.get(&machine.account).copied();
        machine.tab.charge(
            self.now,
            self.billing
                .rate(Phase::Pending, machine.price, machine.disk_price),
        );
        self.commands
            .push(Command::Start(machine.id.clone(), Box::new(machine.boot.clone())));
        self.machines.insert(new.id.clone(), machine);
        self.boot_from_now(&new.id, new.plan);
        new.id
    }

    fn boot_from_now(&mut self, id: &str, plan: BootPlan) {
        match plan.ends {
            BootEnd::Never => {}
            ends @ (BootEnd::Runs | BootEnd::Fails(_)) => {
                self.after(plan.takes, Due::BootDone(id.to_owned(), ends));
            }
        }
    }

    /// Halts a machine; it may be started again.
    pub fn halt(&mut self, id: &str, cause: Cause) {
        if self.is_in(id, &[Phase::Pending, Phase::Running]) {
            self.enter(id, Phase::Halted, Some(cause));
            self.commands.push(Command::Halt(id.to_owned()));
        }
    }

    /// Starts a halted machine again.
    pub fn resume(&mut self, id: &str, plan: BootPlan) {
        if !self.is_in(id, &[Phase::Halted]) {
            return;
        }
        self.enter(id, Phase::Pending, None);
        if let Some(machine) = self.machines.get_mut(id) {
            machine.booted = false;
            machine.endpoint = None;
            machine.reclaim_at = None;
            machine.noticed = None;
            self.commands
                .push(Command::Start(id.to_owned(), Box::new(machine.boot.clone())));
        }
        self.boot_from_now(id, plan);
    }

    /// A machine that will not run again, and still exists.
    pub fn fail(&mut self, id: &str, cause: Cause) {
        if self.is_in(id, &[Phase::Pending, Phase::Running, Phase::Halted]) {
            self.enter(id, Phase::Failed, Some(cause));
            self.commands.push(Command::Halt(id.to_owned()));
        }
    }

    /// Ends a machine; it is gone after `takes`.
    pub fn end(&mut self, id: &str, cause: Cause, takes: SignedDuration) {
        if self.is_in(
            id,
            &[Phase::Pending, Phase::Running, Phase::Halted, Phase::Failed],
        ) {
            self.enter(id, Phase::Ending, Some(cause));
            self.commands.push(Command::End(id.to_owned()));
            self.after(takes, Due::EndDone(id.to_owned()));
        }
    }

    /// Puts one more public key on a machine.
    pub fn authorize(&mut self, id: &str, key: &str) {
        if let Some(machine) = self.machines.get_mut(id) {
            machine.boot.authorized_keys.push(key.to_owned());
            self.commands
                .push(Command::Authorize(id.to_owned(), key.to_owned()));
        }
    }

    /// Decides that a spot machine is taken back after `notice`; the guest may know from now on.
    pub fn reclaim(&mut self, id: &str, notice: SignedDuration) {
        let at = self.now.saturating_add(notice).unwrap_or(self.now);
        let Some(machine) = self.machines.get_mut(id) else {
            return;
        };
        machine.reclaim_at = Some(at);
        if notice > SignedDuration::ZERO {
            machine.noticed = Some(self.now);
            self.happened.push_back(Happening::Noticed(id.to_owned()));
        }
        self.after(notice, Due::Happens(Happening::Reclaimed(id.to_owned())));
    }

    /// The cloud charges nothing at all for a machine, not even what it has cost already.
    pub fn waive(&mut self, id: &str) {
        if let Some(machine) = self.machines.get_mut(id) {
            machine.price = Decimal::ZERO;
            machine.tab = Tab::default();
        }
    }

    /// Changes the price of an hour of a machine from now on.
    pub fn reprice(&mut self, id: &str, price: Decimal) {
        let (now, billing) = (self.now, self.billing);
        if let Some(machine) = self.machines.get_mut(id) {
            machine.price = price;
            machine
                .tab
                .charge(now, billing.rate(machine.phase, price, machine.disk_price));
        }
    }

    /// Something happens to the cloud's own module after a time.
    pub fn remind(&mut self, after: SignedDuration, what: impl Into<String>) {
        self.after(after, Due::Happens(Happening::Reminder(what.into())));
    }

    /// Something happens in so many seconds.
    pub fn later(&mut self, seconds: i64, happening: Happening) {
        self.after(SignedDuration::from_secs(seconds), Due::Happens(happening));
    }

    /// In `after`, it is decided that a machine is taken back `notice` later.
    pub fn reclaim_later(&mut self, id: &str, after: SignedDuration, notice: SignedDuration) {
        self.after(after, Due::Decided(id.to_owned(), notice));
    }

    /// Something happens now.
    pub fn happen(&mut self, happening: Happening) {
        self.happened.push_back(happening);
    }

    /// What a back end tells.
    pub fn report(&mut self, report: Report) {
        match report {
            Report::Reachable { machine, endpoint } => {
                if let Some(machine) = self.machines.get_mut(&machine) {
                    machine.endpoint = Some(endpoint);
                }
                self.run_if_complete(&machine);
            }
            Report::Halted { machine } => {
                if self.is_in(&machine, &[Phase::Pending, Phase::Running]) {
                    self.happen(Happening::HaltedItself(machine));
                }
            }
            Report::Died { machine, why } => {
                tracing::warn!(machine, why, "the back end lost a machine");
                if self.is_in(&machine, &[Phase::Pending, Phase::Running]) {
                    self.happen(Happening::Died(machine));
                }
            }
        }
    }

    /// The next thing that happens until `until`, at its own time; `None` when that is all.
    /// Afterwards the time of the world is `until`.
    pub fn step(&mut self, until: Timestamp) -> Option<Happening> {
        loop {
            if let Some(happening) = self.happened.pop_front() {
                return Some(happening);
            }
            let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= until) else {
                self.now = self.now.max(until);
                return None;
            };
            let ((at, _), due) = entry.remove_entry();
            self.now = self.now.max(at);
            match due {
                Due::Happens(happening) => return Some(happening),
                Due::Decided(id, notice) => self.reclaim(&id, notice),
                Due::BootDone(id, ends) => self.boot_done(&id, ends),
                Due::EndDone(id) => {
                    if self.is_in(&id, &[Phase::Ending]) {
                        self.enter(&id, Phase::Ended, None);
                        return Some(Happening::Ended(id));
                    }
                }
            }
        }
    }

    /// What the back end should do since the last call.
    pub fn take_commands(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.commands)
    }

    fn boot_done(&mut self, id: &str, ends: BootEnd) {
        if !self.is_in(id, &[Phase::Pending]) {
            return;
        }
        match ends {
            BootEnd::Runs => {
                if let Some(machine) = self.machines.get_mut(id) {
                    machine.booted = true;
                }
                self.run_if_complete(id);
            }
            BootEnd::Fails(cause) => {
                self.fail(id, cause);
                self.happen(Happening::BootFailed(id.to_owned()));
            }
            BootEnd::Never => {}
        }
    }

    fn run_if_complete(&mut self, id: &str) {
        let complete = self
            .machines
            .get(id)
            .is_some_and(|machine| machine.booted && machine.endpoint.is_some());
        if complete && self.is_in(id, &[Phase::Pending]) {
            self.enter(id, Phase::Running, None);
            self.happen(Happening::Running(id.to_owned()));
        }
    }

    fn is_in(&self, id: &str, phases: &[Phase]) -> bool {
        self.machines
            .get(id)
            .is_some_and(|machine| phases.contains(&machine.phase))
    }

    fn enter(&mut self, id: &str, phase: Phase, cause: Option<Cause>) {
        let (now, billing) = (self.now, self.billing);
        let Some(machine) = self.machines.get_mut(id) else {
            return;
        };
        machine.phase = phase;
        machine.history.push((now, phase));
        if phase != Phase::Ended {
            machine.cause = cause;
        }
        machine
            .tab
            .charge(now, billing.rate(phase, machine.price, machine.disk_price));
        if phase == Phase::Ended {
            self.release_stock(id);
        }
    }

    fn after(&mut self, time: SignedDuration, due: Due) {
        let at = self
            .now
            .saturating_add(time.max(SignedDuration::ZERO))
            .unwrap_or(self.now);
        self.order += 1;
        self.due.insert((at, self.order), due);
    }
}
