//! The true state of one account at a cloud: machines with the moments of their lives, shared
//! resources, and the meter. Nothing here fails, lags or forgets; [`super::client`] does.

use std::collections::BTreeSet;

use jiff::Timestamp;
use skyward_core::{
    Leftover, Mark, Order, ProviderMachine, ProviderPhase, Usd,
    machine::{Dial, Endpoint, Failure, FailureKind, Rental},
    offer::Market,
};

use super::kinds::Kind;

/// Never.
pub(super) const NEVER: i64 = i64::MAX;

/// One account.
pub(super) struct Cloud {
    pub(super) kind: &'static Kind,
    pub(super) rented: Vec<Rented>,
    pub(super) shared: Vec<Shared>,
    /// Offers that are sold out on a market (`true`: spot).
    pub(super) sold_out: BTreeSet<(String, bool)>,
    /// Whether its credentials are refused.
    pub(super) revoked: bool,
}

/// A machine, from its order to its end and beyond.
#[derive(Clone, Debug)]
pub(super) struct Rented {
    pub(super) id: String,
    pub(super) mark: Mark,
    pub(super) token: String,
    pub(super) region: String,
    pub(super) spot: bool,
    pub(super) hourly: Usd,
    /// From then on it exists and is billed.
    pub(super) created: i64,
    /// How much later than the answer to its order it was created.
    pub(super) late: i64,
    pub(super) runs_at: i64,
    pub(super) fails_at: i64,
    pub(super) halts_at: i64,
    /// When the cloud takes it back, and since when it says so.
    pub(super) reclaim: Option<(i64, i64)>,
    pub(super) end_ordered: i64,
    /// From then on it does not exist and is not billed.
    pub(super) gone: i64,
}

/// A resource that machines of a Pool share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) pool_uid: String,
    pub(super) region: String,
    pub(super) made: i64,
    pub(super) returned: i64,
}

impl Rented {
    pub(super) const fn exists(&self, at: i64) -> bool {
        self.created <= at && at < self.gone
    }

    /// Whether it exists, or an order under way will make it.
    pub(super) const fn will_exist(&self, at: i64) -> bool {
        at < self.gone
    }

    /// Whether SSH answers.
    pub(super) const fn answers(&self, at: i64) -> bool {
        let is_up = self.exists(at) && self.runs_at <= at;
        is_up && at < self.fails_at && at < self.halts_at && at < self.end_ordered
    }

    fn phase(&self, at: i64) -> ProviderPhase {
        let failed = |kind, message: &str| {
            ProviderPhase::Failed(Failure {
                kind,
                message: message.to_owned(),
            })
        };
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
    pub(super) fn shown(&self, kind: &Kind, at: i64) -> Option<ProviderMachine> {
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
                billed_since: kind.tells_start.then(|| second(self.created)),
                reclaim_at: reclaim.map(|(_, taken)| second(taken)),
            },
            phase,
        })
    }

    /// Its cost until now, by the cloud's own rules.
    pub(super) fn bill(&self, kind: &Kind, now: i64) -> Usd {
        cost(kind, self.hourly, self.gone.min(now) - self.created)
    }
}

/// What so many seconds cost at a cloud.
pub(super) fn cost(kind: &Kind, hourly: Usd, seconds: i64) -> Usd {
    let whole = |duration: std::time::Duration| duration.as_secs().cast_signed();
    let least = seconds.max(whole(kind.capabilities.billing_minimum));
    let step = whole(kind.capabilities.billing_step).max(1);
    let steps = (least + step - 1) / step;
    hourly * (steps * step) / 3600
}

pub(super) fn second(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

impl Cloud {
    pub(super) const fn new(kind: &'static Kind) -> Self {
        Self {
            kind,
            rented: Vec::new(),
            shared: Vec::new(),
            sold_out: BTreeSet::new(),
            revoked: false,
        }
    }

    /// A machine is made for an order.
    pub(super) fn make(&mut self, order: &Order, created: i64, late: i64, boots: i64) -> String {
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
            reclaim: None,
            end_ordered: NEVER,
            gone: NEVER,
        });
        id
    }

    /// Makes the shared resource of a Pool.
    pub(super) fn share(&mut self, pool_uid: &str, region: &str, now: i64) {
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
    pub(super) fn end(&mut self, id: &str, now: i64, takes: i64) {
        if let Some(machine) = self.rented.iter_mut().find(|machine| machine.id == id)
            && machine.end_ordered == NEVER
            && machine.exists(now)
        {
            machine.end_ordered = now;
            machine.gone = machine.gone.min(now + takes);
        }
    }

    /// Halts a machine, or takes it back; the cloud decides what that means for the bill.
    pub(super) fn halt(&mut self, index: usize, at: i64) {
        let keeps = self.kind.keeps_halted;
        if let Some(machine) = self.rented.get_mut(index) {
            machine.halts_at = machine.halts_at.min(at);
            if !keeps {
                machine.gone = machine.gone.min(at);
            }
        }
    }

    /// Shared resources, as of that time.
    pub(super) fn leftovers(&self, at: i64) -> Vec<Leftover> {
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
    pub(super) fn alive(&self, now: i64) -> impl Iterator<Item = &Rented> {
        self.rented.iter().filter(move |machine| machine.will_exist(now))
    }
}

/// The endpoint of every simulated machine, which is never dialled.
fn endpoint() -> Endpoint {
    Endpoint {
        dial: Dial::Address(std::net::SocketAddr::from(([10, 0, 0, 7], 22))),
        user: "root".to_owned(),
    }
}
