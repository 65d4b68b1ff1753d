//! Too many or too few machines.
//!
//! A slot has at most one live machine. A machine that drains keeps its slot until it is
//! gone, so there are never more machines than wanted; a failed or lost machine gives it up at
//! once. Too many: machines that never took runs go first, then idle ones, then busy ones, which
//! finish their runs; among equals the highest slot first and the head last. A machine whose load
//! is not known is not touched.
//!
//! Machines that must reach each other stand at one place: that of the first, and when the others
//! are not available there, all of them move.

use std::collections::{BTreeMap, BTreeSet};

use skyward_api::{condition::reason, machine::Market, pool::Place};
use skyward_core::Usd;

use super::{
    admission,
    draft::{Action, Block, Draft, Why},
    growth,
};
use crate::{
    accounts::{
        facts::ProviderFacts,
        limits::{Binding, binding},
    },
    events::{self, EventSpec},
    pool::{
        choice::{Choice, Request, Usable, choose, explain::explain, fits},
        facts::MachineFacts,
        template::machine_spec,
    },
    records::machine_name,
};

/// Between two looks at records that cannot be read.
const UNREAD_LOOK: std::time::Duration = std::time::Duration::from_secs(10);

/// Gives up one of two live machines in one slot, where an old leader's last order arrived late.
pub(crate) fn plan_duplicates(draft: &mut Draft<'_>) {
    let mut slots: BTreeMap<u32, Vec<&MachineFacts>> = BTreeMap::new();
    for machine in draft.live() {
        slots.entry(machine.slot).or_default().push(machine);
    }
    for (_, mut machines) in slots.into_iter().filter(|(_, machines)| machines.len() > 1) {
        // Best last: the machine that took runs, then the older attempt, which is further.
        machines.sort_by_key(|machine| {
            (
                machine.ready,
                machine.ready_at.is_some(),
                std::cmp::Reverse(machine.attempt),
            )
        });
        machines.pop();
        for machine in machines {
            if machine.is_idle() {
                draft.give_up(machine, Why::Duplicate, true);
            }
        }
    }
}

/// Gives up machines that the cloud takes back, while there is time to end their runs; their slots
/// are free at once.
pub(crate) fn plan_reclaimed(draft: &mut Draft<'_>) {
    let reclaimed: Vec<_> = draft.live().filter(|machine| machine.reclaimed).collect();
    for machine in reclaimed {
        draft.give_up(machine, Why::Reclaimed, false);
    }
}

pub(crate) fn plan(draft: &mut Draft<'_>) {
    if draft.is_suspended() {
        let live: Vec<_> = draft.live().collect();
        for machine in live {
            draft.give_up(machine, Why::Suspended, false);
        }
        draft.because("suspended: every machine is returned");
        return;
    }
    if draft.is_ended() {
        draft.because("the budget is spent or the lifetime over: every machine is returned");
        return;
    }
    let wanted = draft.wanted();
    let live = count(draft.live());
    let most = most_kept(draft);
    if live > most {
        shrink(draft, live - most);
        return;
    }
    let mut occupied: BTreeSet<u32> = draft.holding().map(|machine| machine.slot).collect();
    // The machine of an unreadable record may run: nothing is ordered beside it.
    occupied.extend(draft.seen.unread.iter().filter_map(|unread| unread.slot));
    let unread = u32::try_from(draft.seen.unread.len()).unwrap_or(u32::MAX);
    let there = count(draft.holding()).saturating_add(unread);
    let missing = wanted.min(growth::most(draft)).saturating_sub(there);
    if missing == 0 {
        draft.because(format!(
            "{live} of {wanted} machines exist or are on their way, {unread} cannot be read"
        ));
    } else {
        grow(draft, missing, &occupied);
    }
    tell_unread(draft);
    if wanted > there.saturating_add(missing) {
        growth::tell(draft);
    }
}

/// How many machines may stay. Of a Pool that grows, machines below `nodes.max` go by [`super::autoscale`] alone, which
/// takes no busy one: a leader that died between the record of its decision and the deletions must not let another
/// leader take machines that have got work since.
fn most_kept(draft: &Draft<'_>) -> u32 {
    let nodes = &draft.seen.pool.spec.nodes;
    let wanted = draft.wanted();
    if draft.asleep || !nodes.grows() {
        wanted
    } else {
        wanted.max(nodes.most())
    }
}

/// Says which records cannot be read.
fn tell_unread(draft: &mut Draft<'_>) {
    let Some(first) = draft.seen.unread.first() else {
        return;
    };
    // The end or repair of such a record wakes no Pool.
    draft.requeue_after(UNREAD_LOOK);
    if draft.block.is_some() {
        return;
    }
    let others = match draft.seen.unread.len() - 1 {
        0 => String::new(),
        more => format!(" The same is true of {more} more."),
    };
    let message = format!(
        "Machine \"{}\" cannot be read by this version ({}), so its slot is kept: it may run, and nothing is ordered in its place. Upgrade the operator or mend the Machine. Where neither can be, delete it and take its finalizer off: then the sweep ends what it had.{others}",
        first.name, first.error
    );
    draft.block(Block::stalled(reason::MACHINE_UNREADABLE, message));
}

fn count<'a>(machines: impl Iterator<Item = &'a MachineFacts>) -> u32 {
    u32::try_from(machines.count()).unwrap_or(u32::MAX)
}

fn shrink(draft: &mut Draft<'_>, mut surplus: u32) {
    let head = draft.live().map(|machine| machine.slot).min();
    let mut candidates: Vec<_> = draft.live().collect();
    candidates.sort_by_key(|machine| {
        let rank = match (machine.ready_at, machine.runs) {
            (None, _) => 0,
            (Some(_), Some(0)) => 1,
            (Some(_), Some(_)) => 2,
            (Some(_), None) => 3,
        };
        (rank, Some(machine.slot) == head, std::cmp::Reverse(machine.slot))
    });
    let why = if draft.asleep { Why::Asleep } else { Why::NotWanted };
    let mut unknown = 0;
    for machine in candidates {
        if surplus == 0 {
            break;
        }
        if machine.ready_at.is_some() && machine.runs.is_none() {
            unknown += 1;
        } else if draft.give_up(machine, why, true) {
            surplus -= 1;
        }
    }
    if surplus > 0 {
        draft.because(format!(
            "{surplus} machines too many stay for now; whether {unknown} of them are idle is not known"
        ));
    }
}

fn grow(draft: &mut Draft<'_>, missing: u32, occupied: &BTreeSet<u32>) {
    if draft.block.is_some() {
        draft.because(format!("{missing} machines are missing and cannot be ordered"));
        return;
    }
    let seen = draft.seen;
    if !is_had_here(draft) && can_move(draft) {
        move_all(draft);
        return;
    }
    let mut basket = OrderPlan::new(draft);
    let mut orders = Vec::new();
    let slots = (0_u32..)
        .filter(|slot| !occupied.contains(slot))
        .take(missing as usize);
    for slot in slots {
        let Some(choice) = basket.next(draft) else { break };
        orders.push((slot, choice));
    }
    let short = missing - u32::try_from(orders.len()).unwrap_or(missing);
    if short > 0 {
        let mut block = nothing_fits(draft, &basket, short);
        // Machines beyond `nodes.desired` are a gain: a person need not act where there are none.
        block.stalled &= count(draft.live()) < seen.pool.spec.nodes.desired;
        draft.block(block);
        // No event tells this Pool that another Pool returned machines.
        draft.requeue_after(std::time::Duration::from_secs(10));
    }
    if orders.is_empty() {
        return;
    }
    let pool = &seen.pool;
    draft.actions.push(Action::EnsureKey);
    // Even if somebody edited the status, no attempt of a known machine is used again.
    let known = seen.machines.iter().map(|machine| machine.attempt).max();
    draft.status.last_attempt = draft.status.last_attempt.max(known.unwrap_or(0));
    let spare = spare(draft, &basket.ordered);
    for (slot, choice) in orders {
        let Some(provider) = seen.providers.get(&choice.candidate.provider) else {
            continue;
        };
        draft.status.last_attempt = draft.status.last_attempt.saturating_add(1);
        let attempt = draft.status.last_attempt;
        let name = machine_name(&pool.name, &pool.uid, slot, attempt);
        let spec = Box::new(machine_spec(
            pool,
            provider,
            slot,
            attempt,
            &choice,
            spare.get(&choice.candidate.provider).copied(),
            seen.nonce,
        ));
        let before = seen
            .machines
            .iter()
            .filter(|machine| machine.slot == slot)
            .max_by_key(|m| m.attempt);
        draft.events.push(match before {
            Some(old) => EventSpec::normal(
                events::reason::MACHINE_REPLACED,
                "Replace",
                format!("Machine \"{name}\" replaces \"{}\"", old.name),
            ),
            None => EventSpec::normal(
                events::reason::MACHINE_ORDERED,
                "Create",
                format!(
                    "Machine \"{name}\" is ordered from Provider \"{}\", Offer \"{}\"",
                    spec.provider, spec.offer
                ),
            ),
        });
        draft.because(format!("\"{name}\" is ordered of Offer \"{}\"", spec.offer));
        let place = Place {
            provider: spec.provider.clone(),
            region: spec.region.clone(),
        };
        if !draft.status.places.contains(&place) {
            draft.status.places.push(place);
            draft.status.places.sort();
        }
        draft.actions.push(Action::CreateMachine { name, spec });
        draft.ordered.push(slot);
    }
}

/// What each order may cost per hour beyond its price, by Provider: what its limits leave, in
/// equal parts. Providers without such limits are left out.
fn spare(draft: &Draft<'_>, ordered: &BTreeMap<String, (u32, Usd)>) -> BTreeMap<String, Usd> {
    let spare = |(name, &(machines, hourly)): (&String, &(u32, Usd))| {
        let facts = draft.seen.providers.get(name)?;
        let left = admission::hourly_room(facts, facts.used.with(machines, hourly))?;
        let each = left.max(Usd::ZERO) / machines.max(1);
        Some((name.clone(), each.trunc_dp(6)))
    };
    ordered.iter().filter_map(spare).collect()
}

/// The Offer that could be ordered now, at any place.
pub(crate) fn could_order<'a>(draft: &Draft<'a>) -> Option<Choice<'a>> {
    let mut basket = OrderPlan::new(draft);
    // Machines that are given up make room at their place.
    basket.pinned = None;
    basket.next(draft)
}

/// Whether a machine that was just refused is ordered again at once, because another Offer was not
/// refused: at the place of the others, or at one to which all of them can move.
pub(crate) fn moves_on(draft: &Draft<'_>) -> bool {
    is_had_here(draft) || can_move(draft)
}

/// The Offer that one more machine would be ordered of now, at the place of the others.
pub(crate) fn next_order<'a>(draft: &Draft<'a>) -> Option<Choice<'a>> {
    OrderPlan::new(draft).next(draft)
}

/// Whether an Offer at the place of the others was not refused lately.
fn is_had_here(draft: &Draft<'_>) -> bool {
    next_order(draft).is_some_and(|choice| choice.shortage.is_none())
}

/// The orders of one plan: each narrows the next.
struct OrderPlan<'a> {
    /// Whether machines must reach each other.
    connected: bool,
    /// The place where all of them stand.
    pinned: Option<Place>,
    /// Whether only places with room for all of them count.
    whole: bool,
    /// Ordered from each Provider by this plan: machines, and USD per hour.
    ordered: BTreeMap<String, (u32, Usd)>,
    /// Machines of the spot market, including the orders of this plan.
    spot: u32,
    /// Machines on demand, including the orders of this plan.
    on_demand: u32,
    /// Whether nothing fits on the spot market: its share of `spotPercent` is not available.
    no_spot: bool,
    /// The last choice, good until what it was made from changes.
    last: Option<(Option<Market>, Choice<'a>)>,
}

impl<'a> OrderPlan<'a> {
    fn new(draft: &Draft<'a>) -> Self {
        let of = |market| count(draft.holding().filter(|machine| machine.market == market));
        let nodes = &draft.seen.pool.spec.nodes;
        // The first machine of a Pool that grows stands where others can join it.
        let several = draft.wanted() > 1 || nodes.grows();
        let connected = draft.seen.pool.spec.is_connected() && several;
        Self {
            connected,
            // Machines that go do not pin the others to their place.
            pinned: draft
                .holding()
                .find(|machine| connected && machine.is_live())
                .map(|machine| machine.place.clone()),
            whole: false,
            ordered: BTreeMap::new(),
            spot: of(Market::Spot),
            on_demand: of(Market::OnDemand),
            no_spot: false,
            last: None,
        }
    }

    /// The best Offer for one more machine.
    fn next(&mut self, draft: &Draft<'a>) -> Option<Choice<'a>> {
        let market = self.market(draft);
        let choice = match self.last.take() {
            Some((same, choice)) if same == market && self.has_room(draft, &choice) => choice,
            _ => match self.choose(draft, market) {
                Some(choice) => choice,
                None => return self.next_on_demand(draft, market),
            },
        };
        let taken = self.ordered.entry(choice.candidate.provider.clone()).or_default();
        taken.0 += 1;
        taken.1 += choice.price;
        match choice.market {
            Market::Spot => self.spot += 1,
            Market::OnDemand => self.on_demand += 1,
        }
        if self.connected && self.pinned.is_none() {
            self.pinned = Some(Place {
                provider: choice.candidate.provider.clone(),
                region: choice.offer.spec().region.clone(),
            });
        }
        self.last = Some((market, choice.clone()));
        Some(choice)
    }

    /// The share on demand does not wait for the share of the spot market.
    fn next_on_demand(&mut self, draft: &Draft<'a>, market: Option<Market>) -> Option<Choice<'a>> {
        if market != Some(Market::Spot) || self.no_spot {
            return None;
        }
        self.no_spot = true;
        if self.market(draft) == market {
            return None;
        }
        self.next(draft)
    }

    fn has_room(&self, draft: &Draft<'_>, choice: &Choice<'_>) -> bool {
        let usable = admission::usable(draft.seen, &self.ordered);
        matches!(
            usable.get(&choice.candidate.provider),
            Some(Usable::Yes(room)) if room.is_none_or(|room| choice.price <= room)
        )
    }

    /// The market that `spotPercent` wants for the next machine.
    fn market(&self, draft: &Draft<'_>) -> Option<Market> {
        let percent = u64::from(draft.seen.pool.spec.spot_percent?);
        let wanted = u64::from(draft.wanted());
        let least = (wanted * percent).div_ceil(100);
        let others = wanted.saturating_sub(least);
        let is_short = u64::from(self.spot) < least;
        let may_wait = self.no_spot && u64::from(self.on_demand) < others;
        Some(if is_short && !may_wait {
            Market::Spot
        } else {
            Market::OnDemand
        })
    }

    fn choose(&self, draft: &Draft<'a>, market: Option<Market>) -> Option<Choice<'a>> {
        let choose_of = |taken: &BTreeMap<String, (u32, Usd)>| {
            let providers = admission::usable(draft.seen, taken);
            choose(
                draft.candidates,
                &draft.seen.offers,
                &self.request(draft, &providers, market),
            )
        };
        if !self.connected || self.pinned.is_some() {
            return choose_of(&self.ordered);
        }
        // The first order decides the place of all: best a place with room for all.
        let others = draft.wanted().saturating_sub(1);
        let mut all = self.ordered.clone();
        for provider in draft.seen.providers.keys() {
            all.entry(provider.clone()).or_default().0 += others;
        }
        choose_of(&all).or_else(|| {
            if self.whole {
                None
            } else {
                choose_of(&self.ordered)
            }
        })
    }

    fn request<'b>(
        &'b self,
        draft: &'b Draft<'_>,
        providers: &'b BTreeMap<String, Usable>,
        market: Option<Market>,
    ) -> Request<'b> {
        Request {
            pool: &draft.seen.pool.uid,
            selection: draft.seen.pool.resolved.selection,
            providers,
            connected: self.connected,
            pinned: self.pinned.as_ref(),
            unavailable: &draft.seen.unavailable,
            architectures: &draft.seen.architectures,
            now: draft.now,
            market,
        }
    }
}

/// Whether all machines can move to another place, when the missing machines are not available
/// where the others are, and more machines are available there than stand here: with
/// `spotPercent` one place may sell one market and another place the other. No working Pool moves:
/// not while `nodes.min` machines are there, or a run goes on.
fn can_move(draft: &Draft<'_>) -> bool {
    let live: Vec<_> = draft.live().collect();
    let wanted = draft.wanted();
    let least = draft.least();
    let mut anywhere = OrderPlan::new(draft);
    let here = anywhere.pinned.take();
    anywhere.whole = true;
    // All of them move.
    (anywhere.spot, anywhere.on_demand) = (0, 0);
    if !anywhere.connected
        || live.is_empty()
        || count(live.iter().copied()) >= least
        || !live
            .iter()
            .all(|machine| machine.is_idle() && machine.uid.is_some())
    {
        return false;
    }
    let is_had = |choice: Choice<'_>| choice.shortage.is_none();
    let had = (0..wanted)
        .take_while(|_| anywhere.next(draft).is_some_and(is_had))
        .count();
    had > live.len() && anywhere.pinned != here
}

fn move_all(draft: &mut Draft<'_>) {
    let live: Vec<_> = draft.live().collect();
    for machine in live {
        draft.give_up(machine, Why::Moved, true);
    }
    draft.because("the missing machines are not available where the others stand: all of them move");
}

/// Why the missing machines cannot be ordered.
fn nothing_fits(draft: &Draft<'_>, basket: &OrderPlan<'_>, short: u32) -> Block {
    let market = basket.market(draft);
    let providers = admission::usable(draft.seen, &basket.ordered);
    // Without limits: an Offer that does not fit then is not kept out by a limit.
    let unlimited: BTreeMap<String, Usable> = providers
        .into_iter()
        .map(|(name, usable)| match usable {
            Usable::Yes(_) | Usable::Full => (name, Usable::Yes(None)),
            refused @ Usable::No(_) => (name, refused),
        })
        .collect();
    let request = basket.request(draft, &unlimited, market);
    let bound = bound(draft, basket, &request);
    let Some((_, first)) = bound.first() else {
        let message = explain(draft.candidates, &draft.seen.offers, &request);
        return Block::stalled(reason::NO_AVAILABLE_PROVIDER, message);
    };
    // Failed machines count until they are gone, which makes room by itself.
    let going = count(
        draft
            .seen
            .machines
            .iter()
            .filter(|machine| machine.deleting || machine.failure.is_some()),
    );
    let named: Vec<String> = bound
        .iter()
        .map(|(provider, binding)| binding.words(provider, &draft.seen.pool.namespace))
        .collect();
    Block {
        reason: reason::LIMIT_REACHED,
        message: format!(
            "{}: {short} machine(s) cannot be ordered. {}",
            named.join("; "),
            first.remedy()
        ),
        stalled: short > going,
    }
}

/// The limit of each Provider that alone keeps out fitting Offers.
fn bound<'a>(draft: &Draft<'a>, basket: &OrderPlan<'_>, unlimited: &Request<'_>) -> Vec<(&'a str, Binding)> {
    let bound = |(name, facts): (&'a String, &'a ProviderFacts)| {
        let index = draft.seen.offers.get(name)?;
        let candidates = draft
            .candidates
            .iter()
            .filter(|candidate| candidate.provider == *name);
        let cheapest = candidates
            .flat_map(|candidate| index.entries().iter().map(move |offer| (candidate, offer)))
            .filter_map(|(candidate, offer)| fits(unlimited, candidate, offer).ok())
            .map(|fit| fit.price)
            .min()?;
        let (machines, hourly) = basket.ordered.get(name).copied().unwrap_or_default();
        let used = facts.used.with(machines, hourly);
        Some((name.as_str(), binding(facts, used, 1, cheapest)?))
    };
    let can_be_used = |(name, _): &(&String, &ProviderFacts)| {
        matches!(unlimited.providers.get(*name), Some(Usable::Yes(_)))
    };
    draft
        .seen
        .providers
        .iter()
        .filter(can_be_used)
        .filter_map(bound)
        .collect()
}
