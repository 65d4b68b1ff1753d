//! A look at a real account, for `skyward check-provider`: its id, the permissions that its credentials lack, its offers,
//! the machines and shared resources of this installation, and whether each answer has the shape that its reader expects.
//!
//! It makes only calls of the provider contract that change nothing; its client stands behind a closed fence, so a call
//! that changes something is not even sent. This module knows no cluster and no cloud. The report has names of fields and
//! the cloud's own words. [`Report::render`] is the only output, and hides every part of the credentials.

mod render;

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::Serialize;
use skyward_core::{
    ErrorKind, Offer, Provider, ProviderError, ProviderMachine, ProviderPhase, Scope, Usd, accelerator,
    clock, offer::Availability, provider::AccountFact,
};
use skyward_provider_kit::{
    http::shape::{self, Shape},
    said,
};

pub use render::Format;
pub use skyward_provider_kit::without_value;

/// Most entries of one list of the report.
const MOST: usize = 200;

/// What a look at an account found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The version of the operator.
    version: &'static str,
    /// The kind of Provider.
    kind: String,
    /// When the look began.
    checked_at: Timestamp,
    /// Where the credentials are from, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    credentials: Option<String>,
    /// The account's id.
    account: Answered<String>,
    /// What the API tells of it besides.
    account_facts: Answered<Vec<AccountFact>>,
    /// What it offers.
    offers: Answered<Catalogue>,
    /// Machines of this installation.
    machines: Answered<Listed<Machine>>,
    /// What Pools of this installation left there, or share now.
    leftovers: Answered<Listed<Shared>>,
    /// What the credentials may not do, in the words of the cloud.
    permissions_lacking: Vec<String>,
    /// The answers, compared with the types that read them.
    shapes: Vec<Shape>,
}

/// The answer to one question.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Answered<T> {
    /// The account answered.
    Answer(T),
    /// It did not, or refused.
    Refused(Refusal),
    /// It was not asked; why.
    NotAsked(&'static str),
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Refusal {
    /// Which kind of failure it was.
    kind: &'static str,
    /// The failure with its remedy.
    message: String,
}

/// A list, of which some entries may have been left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed<T> {
    /// The first entries.
    entries: Vec<T>,
    /// How many there are.
    total: usize,
}

impl<T> Listed<T> {
    fn of(all: impl IntoIterator<Item = T>) -> Self {
        let (mut entries, mut total) = (Vec::new(), 0);
        for entry in all {
            total += 1;
            if entries.len() < MOST {
                entries.push(entry);
            }
        }
        Self { entries, total }
    }
}

/// The offers of an account, in total.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Catalogue {
    offers: usize,
    on_demand: usize,
    spot: usize,
    without_a_price: usize,
    available: usize,
    sold_out: usize,
    availability_unknown: usize,
    connected: usize,
    regions: Listed<String>,
    accelerators: Listed<Sold>,
    /// Names of accelerators that no rule of ours knows.
    unknown_accelerators: Listed<String>,
}

/// Offers with one accelerator.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Sold {
    name: String,
    offers: usize,
    cheapest_on_demand: Option<Price>,
    cheapest_spot: Option<Price>,
}

/// What a machine costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Price {
    #[serde(skip)]
    amount: Usd,
    hourly: String,
    instance_type: String,
    accelerators: f64,
}

/// A machine of this installation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Machine {
    id: String,
    name: String,
    namespace: String,
    phase: &'static str,
    hourly_price: Option<String>,
}

/// A resource that Pools of this installation share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Shared {
    kind: &'static str,
    id: String,
    region: String,
    pool_uid: String,
}

/// Looks at an account. Without the id of an installation its machines are not looked for.
pub async fn look(provider: &dyn Provider, installation: Option<&str>) -> Report {
    let (mut report, shapes) = shape::watched(ask(provider, installation)).await;
    report.shapes = shapes;
    report
}

/// The report of an account whose client cannot be made: settings or credentials are not as they should be.
pub fn unusable(kind: &str, problem: &ProviderError) -> Report {
    let mut report = Report::new(kind);
    report.account = Answered::Refused(Refusal::of(problem));
    report.judge();
    report
}

async fn ask(provider: &dyn Provider, installation: Option<&str>) -> Report {
    let mut report = Report::new(provider.capabilities().kind);
    let account = provider.account().await;
    // A cloud may lock an account to which wrong credentials are shown again and again.
    let is_refused = |problem: &ProviderError| {
        matches!(
            problem.kind,
            ErrorKind::Credentials | ErrorKind::CredentialsMissing
        )
    };
    let goes_on = !account.as_ref().is_err_and(is_refused);
    report.account = Answered::of(account.map(|id| said(&id)));
    if goes_on {
        report.account_facts = Answered::of(provider.account_facts().await);
        report.offers = Answered::of(provider.offers().await.map(|offers| Catalogue::of(&offers)));
        if let Some(cluster) = installation {
            report.look_for_ours(provider, cluster).await;
        } else {
            report.machines = Answered::NotAsked(UNNAMED);
            report.leftovers = Answered::NotAsked(UNNAMED);
        }
    }
    report.judge();
    report
}

const REFUSED: &str = "the credentials were refused";
const UNNAMED: &str =
    "the installation is not known; name it with --installation-id, or run where its cluster is reached";

impl Report {
    fn new(kind: &str) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            kind: kind.to_owned(),
            checked_at: clock::now(),
            credentials: None,
            account: Answered::NotAsked(REFUSED),
            account_facts: Answered::NotAsked(REFUSED),
            offers: Answered::NotAsked(REFUSED),
            machines: Answered::NotAsked(REFUSED),
            leftovers: Answered::NotAsked(REFUSED),
            permissions_lacking: Vec::new(),
            shapes: Vec::new(),
        }
    }

    /// The same report, which also tells where the credentials are from: those of an environment that somebody has
    /// forgotten may be of another account than those of the Secret.
    #[must_use]
    pub fn with_source(mut self, source: String) -> Self {
        self.credentials = Some(source);
        self
    }

    async fn look_for_ours(&mut self, provider: &dyn Provider, cluster: &str) {
        let scope = Scope {
            cluster: cluster.to_owned(),
            pool_uid: None,
            namespace: None,
            regions: Vec::new(),
        };
        let machines = provider.list(&scope).await;
        self.machines = Answered::of(machines.map(|all| Listed::of(all.iter().map(Machine::of))));
        let leftovers = provider.leftovers(&scope).await;
        let shared = |all: Vec<skyward_core::Leftover>| {
            Listed::of(all.into_iter().map(|left| Shared {
                kind: left.kind,
                id: said(&left.id),
                region: said(&left.region),
                pool_uid: said(&left.pool_uid),
            }))
        };
        self.leftovers = Answered::of(leftovers.map(shared));
    }

    /// Gathers what the credentials may not do.
    fn judge(&mut self) {
        let refused = self.refusals().into_iter();
        let lacking: BTreeSet<String> = refused
            .filter(|refusal| refusal.kind == ErrorKind::Permission.name())
            .map(|refusal| refusal.message.clone())
            .collect();
        self.permissions_lacking = lacking.into_iter().collect();
    }

    fn refusals(&self) -> Vec<&Refusal> {
        let all = [
            self.account.refusal(),
            self.account_facts.refusal(),
            self.offers.refusal(),
            self.machines.refusal(),
            self.leftovers.refusal(),
        ];
        all.into_iter().flatten().collect()
    }

    /// Whether every question that was asked has an answer, and every answer could be read.
    pub fn is_well(&self) -> bool {
        let breaks = |shape: &Shape| shape.deviations.iter().any(|found| found.what.breaks());
        self.refusals().is_empty() && !self.shapes.iter().any(breaks)
    }

    /// The answers, compared with the types that read them.
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }
}

impl<T> Answered<T> {
    fn of(answer: Result<T, ProviderError>) -> Self {
        match answer {
            Ok(answer) => Self::Answer(answer),
            Err(problem) => Self::Refused(Refusal::of(&problem)),
        }
    }

    fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Answer(_) | Self::NotAsked(_) => None,
        }
    }
}

impl Refusal {
    fn of(problem: &ProviderError) -> Self {
        Self {
            kind: problem.kind.name(),
            message: said(&problem.to_string()),
        }
    }
}

impl Machine {
    fn of(found: &ProviderMachine) -> Self {
        Self {
            id: said(&found.id),
            name: said(&found.mark.machine),
            namespace: said(&found.mark.namespace),
            phase: match &found.phase {
                ProviderPhase::Starting(_) => "starting",
                ProviderPhase::Running => "running",
                ProviderPhase::Failed(_) => "failed",
                ProviderPhase::Stopping => "stopping",
                ProviderPhase::Stopped(_) => "stopped",
            },
            hourly_price: found.rental.hourly_price.map(Usd::exact),
        }
    }
}

impl Catalogue {
    fn of(offers: &[Offer]) -> Self {
        let count = |fits: fn(&Offer) -> bool| offers.iter().filter(|offer| fits(offer)).count();
        let mut sold: BTreeMap<&str, Sold> = BTreeMap::new();
        for offer in offers {
            let Some(card) = &offer.accelerators else { continue };
            let entry = sold.entry(card.name.as_str()).or_insert_with(|| Sold {
                name: said(&card.name),
                offers: 0,
                cheapest_on_demand: None,
                cheapest_spot: None,
            });
            entry.offers += 1;
            lower(&mut entry.cheapest_on_demand, offer, card.count, offer.on_demand);
            lower(&mut entry.cheapest_spot, offer, card.count, offer.spot);
        }
        let regions: BTreeSet<&str> = offers.iter().map(|offer| offer.region.as_str()).collect();
        let unknown = sold.keys().filter(|name| accelerator::model(name).is_none());
        Self {
            offers: offers.len(),
            on_demand: count(|offer| offer.on_demand.is_some()),
            spot: count(|offer| offer.spot.is_some()),
            without_a_price: count(|offer| offer.on_demand.is_none() && offer.spot.is_none()),
            available: count(|offer| offer.availability == Availability::Yes),
            sold_out: count(|offer| offer.availability == Availability::No),
            availability_unknown: count(|offer| offer.availability == Availability::Unknown),
            connected: count(|offer| offer.connected),
            regions: Listed::of(regions.into_iter().filter(|region| !region.is_empty()).map(said)),
            unknown_accelerators: Listed::of(unknown.map(|name| said(name))),
            accelerators: Listed::of(sold.into_values()),
        }
    }
}

/// Takes a price that is below the lowest so far.
fn lower(lowest: &mut Option<Price>, offer: &Offer, accelerators: f64, price: Option<Usd>) {
    let Some(amount) = price else { return };
    if lowest.as_ref().is_none_or(|lowest| amount < lowest.amount) {
        *lowest = Some(Price {
            amount,
            hourly: amount.exact(),
            instance_type: said(&offer.instance_type),
            accelerators,
        });
    }
}

#[cfg(test)]
mod tests;
