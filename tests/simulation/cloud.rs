//! The true state of one account at a cloud: machines with the moments of their lives, shared
//! resources, and the meter. Nothing here fails, lags or forgets; [`crate::client`] does.

use std::collections::BTreeSet;

use skyward_core::{
    Leftover, Mark, Order, ProviderMachine, ProviderPhase, Usd,
    machine::{Dial, Endpoint, FailureKind, Rental},
    offer::Market,
};

use crate::{
    journal::Journal,
    kinds::Kind,
    time::{Moment, NEVER, SECOND, timestamp},
};

/// One account.
pub(crate) struct Cloud {
    pub(crate) kind: &'static Kind,
    pub(crate) rented: Vec<Rented>,
    pub(crate) shared: Vec<Shared>,
    /// Offers that are sold out on a market (`true`: spot).
    pub(crate) sold_out: BTreeSet<(String, bool)>,
    /// Whether its credentials are refused.
    pub(crate) revoked: bool,
}

/// A machine, from its order to its end and beyond.
#[derive(Clone, Debug)]
pub(crate) struct Rented {
    pub(crate) id: String,
    pub(crate) mark: Mark,
    pub(crate) token: String,
    pub(crate) region: String,
    pub(crate) spot: bool,
    pub(crate) hourly: Usd,
    /// From then on it exists and is billed.
    pub(crate) created: Moment,
    /// How much later than the answer to its order it was created.
    pub(crate) late: Moment,
    pub(crate) runs_at: Moment,
    pub(crate) fails_at: Moment,
    pub(crate) halts_at: Moment,
    /// From when until when nothing reaches it, while it works on.
    pub(crate) silent: (Moment, Moment),
    /// From when until when lists lack it, although it is there.
    pub(crate) forgotten: (Moment, Moment),
    /// Whether a person took its mark away.
    pub(crate) is_unmarked: bool,
    /// When the cloud takes it back, and since when it says so.
    pub(crate) reclaim: Option<(Moment, Moment)>,
    pub(crate) end_ordered: Moment,
    /// From then on it does not exist and is not billed.
    pub(crate) gone: Moment,
    /// The host key that its address shows.
    pub(crate) host_key: String,
    /// What its agent knows.
    pub(crate) agent: Journal,
}

/// A resource that machines of a Pool share.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) pool_uid: String,
    pub(crate) region: String,
    pub(crate) made: Moment,
    pub(crate) returned: Moment,
}

impl Rented {
    pub(crate) const fn exists(&self, at: Moment) -> bool {
        self.created <= at && at < self.gone
    }

    /// Whether it exists, or an order under way will make it.
    pub(crate) const fn will_exist(&self, at: Moment) -> bool {
        at < self.gone
    }

    /// Whether SSH answers.
    pub(crate) const fn answers(&self, at: Moment) -> bool {
        let is_silent = self.silent.0 <= at && at < self.silent.1;
        let is_up = self.exists(at) && self.runs_at <= at && !is_silent;
        is_up && at < self.fails_at && at < self.halts_at && at < self.end_ordered
    }

    /// Whether lists lack it, although it is there.
    pub(crate) const fn is_forgotten(&self, at: Moment) -> bool {
        self.forgotten.0 <= at && at < self.forgotten.1
    }

    /// All that its workers do until that moment, or until it works no more.
    pub(crate) fn work(&mut self, now: Moment) {
        let until = now.min(self.fails_at).min(self.halts_at).min(self.gone);
        self.agent.work(until);
    }

    fn phase(&self, at: Moment) -> ProviderPhase {
        let failed = ProviderPhase::failed;
        if self.end_ordered <= at {
            ProviderPhase::Stopping
        } else if self.fails_at <= at {
            failed(FailureKind::Lost, "its host failed")
        } else if self.halts_at <= at && self.spot {
            failed(FailureKind::Reclaimed, "the cloud took it back")
        } else if self.halts_at <= at {
            ProviderPhase::Stopped("it was shut down".into())
        } else if self.runs_at <= at {
            ProviderPhase::Running
        } else {
            ProviderPhase::Starting(None)
        }
    }

    /// The machine as its cloud shows its state at that time.
    pub(crate) fn shown(&self, kind: &Kind, at: Moment) -> Option<ProviderMachine> {
        if !self.exists(at) {
            return None;
        }
        let phase = self.phase(at);
        let runs = phase == ProviderPhase::Running;
        let reclaim = self.reclaim.filter(|(said, _)| *said <= at);
        Some(ProviderMachine {
            id: self.id.clone(),
            mark: self.mark.clone(),
            endpoint: runs.then(endpoint),
            private_address: runs.then(|| "10.0.0.7".to_owned()),
            private_interface: None,
            host_key: None,
            rental: Rental {
                region: Some(self.region.clone()).filter(|region| !region.is_empty()),
                hourly_price: Some(self.hourly),
                billed_since: kind.tells_start.then(|| timestamp(self.created)),
                reclaim_at: reclaim.map(|(_, taken)| timestamp(taken)),
            },
            phase,
        })
    }

    /// Its cost until now, by the cloud's own rules.
    pub(crate) fn bill(&self, kind: &Kind, now: Moment) -> Usd {
        cost(kind, self.hourly, self.gone.min(now) - self.created)
    }
}

/// What so much time costs at a cloud.
pub(crate) fn cost(kind: &Kind, hourly: Usd, time: Moment) -> Usd {
    let whole = |duration: std::time::Duration| duration.as_secs().cast_signed();
    let seconds = (time + SECOND - 1) / SECOND;
    let least = seconds.max(whole(kind.capabilities.billing_minimum));
    let step = whole(kind.capabilities.billing_step).max(1);
    let steps = (least + step - 1) / step;
    hourly * (steps * step) / 3600
}

impl Cloud {
    pub(crate) const fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            rented: Vec::new(),
            shared: Vec::new(),
            sold_out: BTreeSet::new(),
            revoked: false,
        }
    }

    /// A machine is made for an order.
    pub(crate) fn make(&mut self, order: &Order, created: Moment, late: Moment, boots: Moment) -> String {
        let id = format!("i-{}-{}", order.mark.machine, self.rented.len());
        // Its price, not the most that the user would pay.
        let sold = self.kind.offers(std::slice::from_ref(&order.region));
        let hourly = sold
            .into_iter()
            .find(|offer| offer.id == order.offer)
            .and_then(|offer| match order.market {
                Market::OnDemand => offer.on_demand,
                Market::Spot => offer.spot,
            })
            .unwrap_or_default();
        self.rented.push(Rented {
            id: id.clone(),
            mark: order.mark.clone(),
            token: order.token.clone(),
            region: order.region.clone(),
            spot: order.market == Market::Spot,
            hourly,
            created,
            late,
            runs_at: boots.saturating_add(created),
            fails_at: NEVER,
            halts_at: NEVER,
            silent: (NEVER, NEVER),
            forgotten: (NEVER, NEVER),
            is_unmarked: false,
            reclaim: None,
            end_ordered: NEVER,
            gone: NEVER,
            host_key: format!("ssh-ed25519 {id}"),
            agent: Journal::default(),
        });
        id
    }

    /// Makes the shared resource of a Pool.
    pub(crate) fn share(&mut self, pool_uid: &str, region: &str, now: Moment) {
        let is_it = |shared: &Shared| shared.pool_uid == pool_uid && shared.region == region;
        if !self
            .shared
            .iter()
            .any(|shared| is_it(shared) && shared.returned == NEVER)
        {
            self.shared.push(Shared {
                pool_uid: pool_uid.to_owned(),
                region: region.to_owned(),
                made: now,
                returned: NEVER,
            });
        }
    }

    /// The end of a machine is ordered, which takes a while.
    pub(crate) fn end(&mut self, id: &str, now: Moment, takes: Moment) {
        if let Some(machine) = self.rented.iter_mut().find(|machine| machine.id == id)
            && machine.end_ordered == NEVER
            && machine.exists(now)
        {
            machine.end_ordered = now;
            machine.gone = machine.gone.min(now + takes);
        }
    }

    /// Halts a machine, or takes it back; the cloud decides what that means for the bill.
    pub(crate) fn halt(&mut self, index: usize, at: Moment) {
        let keeps = self.kind.keeps_halted;
        if let Some(machine) = self.rented.get_mut(index) {
            machine.halts_at = machine.halts_at.min(at);
            if !keeps {
                machine.gone = machine.gone.min(at);
            }
        }
    }

    /// Shared resources, as of that time.
    pub(crate) fn leftovers(&self, at: Moment) -> Vec<Leftover> {
        self.shared
            .iter()
            .filter(|shared| shared.made <= at && at < shared.returned)
            .map(|shared| Leftover {
                kind: "key",
                id: format!("key-{}-{}", shared.pool_uid, shared.region),
                region: shared.region.clone(),
                pool_uid: shared.pool_uid.clone(),
            })
            .collect()
    }

    /// Machines that exist or are being made.
    pub(crate) fn alive(&self, now: Moment) -> impl Iterator<Item = &Rented> {
        self.rented.iter().filter(move |machine| machine.will_exist(now))
    }
}

/// The endpoint of every simulated machine, which is never dialled.
fn endpoint() -> Endpoint {
    Endpoint {
        dial: Dial::Address(std::net::SocketAddr::from(([10, 0, 0, 7], 22))),
        user: "root".to_owned(),
        password: None,
    }
}
