//! The interface of a cloud's module. README.md describes how one is written.

use jiff::Timestamp;
use rust_decimal::Decimal;
use serde_json::Value;

use crate::core::account::{AccountId, CredentialState};
use crate::core::billing::Billing;
use crate::core::http::{Answer, Request};
use crate::core::machine::BootPlan;
use crate::core::world::{Happening, World};

/// What a call does to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Read,
    /// It makes a machine.
    Create,
    /// It ends or halts machines.
    Delete,
    /// It makes, changes or ends something else.
    Change,
}

impl Effect {
    /// Its name in fault rules.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Create => "create",
            Self::Delete => "delete",
            Self::Change => "change",
        }
    }
}

/// A call that the cloud knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name in the log and in fault rules, such as `instances.create`.
    pub name: &'static str,
    /// What it does.
    pub effect: Effect,
}

impl Call {
    /// A call.
    pub const fn new(name: &'static str, effect: Effect) -> Self {
        Self { name, effect }
    }

    /// Whether a rule for these calls applies to it. `calls` is a call's name, an effect, or `*`.
    pub fn is_meant_by(&self, calls: &str) -> bool {
        calls == "*" || calls == self.name || calls == self.effect.name()
    }
}

/// Why a call is refused; each cloud has its own text, headers and status for it.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// Too many requests.
    TooMany {
        /// Seconds until the next try, where that cloud says so.
        retry_after: Option<u32>,
    },
    /// The cloud fails with this status.
    Server(u16),
    /// Nothing of the ordered type is left.
    NoCapacity,
    /// A quota is used up.
    Quota(String),
    /// The account has no money.
    Funds,
    /// Wrong credentials.
    Unauthorized,
    /// Credentials that have expired.
    Expired,
    /// Credentials that may not do this.
    Forbidden,
    /// The official description does not allow this request. It is a violation too.
    Invalid(Vec<String>),
    /// The request is as described, and asks for something that is not allowed.
    Bad(String),
    /// What it names does not exist.
    NotFound(String),
    /// No such call.
    UnknownCall,
    /// An answer that only this cloud gives.
    Answer(Answer),
}

/// The context of one call.
pub struct Visit<'a> {
    /// The world, at the time of the call.
    pub world: &'a mut World,
    /// The request.
    pub request: &'a Request,
    /// Which call it is.
    pub call: &'a Call,
    /// The account that asks; "" for calls that need no credentials.
    pub account: AccountId,
    /// How a machine made by this call boots.
    pub boot: BootPlan,
    /// A list in the answer ends after so many items.
    pub keep: Option<usize>,
    /// The machine or resource that the call is about, for the log.
    pub subject: Option<String>,
    /// Machines that this call made, to which scripted faults apply.
    pub made: Vec<String>,
}

impl Visit<'_> {
    /// The time of the call.
    pub fn now(&self) -> Timestamp {
        self.world.now()
    }

    /// Whether this customer may have one machine more: there is money, and the quota of
    /// machines, under its name at this cloud, is not used up.
    pub fn enough(&self, quota: &str) -> Result<(), Refusal> {
        let Some(account) = self.world.accounts.get(&self.account) else {
            return Ok(());
        };
        if account.balance.is_some_and(|balance| balance <= Decimal::ZERO) {
            return Err(Refusal::Funds);
        }
        let machines = self.world.machines_of(&self.account);
        let there = machines.filter(|machine| machine.exists()).count() as u64;
        match account.quotas.get(quota) {
            Some(most) if there >= *most => Err(Refusal::Quota(quota.to_owned())),
            Some(_) | None => Ok(()),
        }
    }
}

/// The account of a key or client id that still has all its rights.
pub fn holder(world: &World, key: Option<&str>) -> Result<AccountId, Refusal> {
    let found = key.and_then(|key| world.credential(key));
    let (account, credential) = found.ok_or(Refusal::Unauthorized)?;
    match credential.state {
        CredentialState::Valid => Ok(account.id.clone()),
        CredentialState::Revoked => Err(Refusal::Unauthorized),
        CredentialState::Expired => Err(Refusal::Expired),
        CredentialState::Forbidden => Err(Refusal::Forbidden),
    }
}

/// One cloud: its HTTP API over a [`World`].
///
/// For each request the core asks, in this order: [`recognise`](Cloud::recognise) and
/// [`check`](Cloud::check) (violations are recorded whatever follows), scripted faults that
/// come before the effect, [`authenticate`](Cloud::authenticate), [`limit`](Cloud::limit),
/// then [`answer`](Cloud::answer); at last [`finish`](Cloud::finish).
pub trait Cloud: Send + 'static {
    /// Its name, which is the kind of its Provider.
    fn name(&self) -> &'static str;

    /// Its billing rules.
    fn billing(&self) -> Billing;

    /// Fills the world with what can be rented there by default.
    fn furnish(&mut self, world: &mut World);

    /// All calls that it knows, for tests that try each with each fault.
    fn calls(&self) -> Vec<Call> {
        Vec::new()
    }

    /// Which call this is.
    fn recognise(&self, request: &Request) -> Option<Call>;

    /// The deviations of a request from the official description, as texts.
    fn check(&self, request: &Request, call: &Call) -> Vec<String>;

    /// The account that asks; `None` for calls that need no credentials.
    fn authenticate(
        &mut self,
        world: &mut World,
        request: &Request,
        call: &Call,
    ) -> Result<Option<AccountId>, Refusal>;

    /// Whether this client calls too often.
    fn limit(&mut self, visit: &mut Visit<'_>) -> Result<(), Refusal> {
        let _ = visit;
        Ok(())
    }

    /// Carries the call out.
    fn answer(&mut self, visit: &mut Visit<'_>) -> Result<Answer, Refusal>;

    /// This cloud's answer to a refused request. `call` is `None` for unknown calls.
    fn refuse(&mut self, refusal: &Refusal, request: &Request, call: Option<&Call>) -> Answer;

    /// Adds the headers that every answer has.
    fn finish(&mut self, world: &World, request: &Request, answer: &mut Answer) {
        let _ = (world, request, answer);
    }

    /// What the official description does not allow in an answer of ours.
    fn check_answer(&self, request: &Request, answer: &Answer) -> Vec<String> {
        let _ = (request, answer);
        Vec::new()
    }

    /// Called when something happens without a request; see [`Happening`] for what the cloud
    /// decides.
    fn happened(&mut self, world: &mut World, happening: &Happening);

    /// A control of this cloud's own, `POST /_sim/cloud/NAME`; `None` when it has none of that name.
    fn control(&mut self, world: &mut World, name: &str, body: &Value) -> Option<Result<Value, String>> {
        let _ = (world, name, body);
        None
    }
}
