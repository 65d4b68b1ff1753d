//! The Provider controller's part after a restore: it judges the evidence, publishes it, and has
//! the decision carried out. [`crate::restore`] has the reasons.

pub(crate) mod act;

use std::{sync::Arc, time::Duration};

use kube::{Resource, ResourceExt};
use skyward_api::{Machine, Provider as ProviderObject, condition};
use skyward_core::clock;
use skyward_planner::{
    events::{self, EventSpec},
    restore::{evidence::Evidence, verdict},
};
use skyward_remote::{MachineKey, sessions::Stage};

use super::Providers;
use crate::{base::broadcast::Change, provider::restored::act::carry_out, restore::HELLOS};

/// How long a hold waits for a person at least.
const HOLD: Duration = Duration::from_hours(24);

impl Providers {
    /// Whether this Provider is held because a restored cluster has forgotten machines; also
    /// returns the evidence that was judged.
    pub(super) fn verdict(&self, provider: &ProviderObject) -> (verdict::Verdict, Option<Arc<Evidence>>) {
        let (evidence, epoch) = self.context.holds.seen(&provider.name_any());
        let pools = self.context.caches.pools.state();
        let orphan = |pool: &Arc<skyward_api::Pool>| self.context.resolved.of(pool).timeouts.orphan;
        let seen = verdict::Seen::of(
            provider,
            (evidence.as_deref(), epoch),
            self.has_heard(&provider.name_any()),
            pools.iter().map(orphan).max().unwrap_or(HOLD).max(HOLD),
        );
        (verdict::verdict(&seen, clock::now()), evidence.clone())
    }

    /// Whether the agents of a Provider's recorded machines have told this leader their epochs. An
    /// agent that does not answer is waited for, but not for ever.
    fn has_heard(&self, provider: &str) -> bool {
        let has_told = |machine: &Arc<Machine>| {
            let key = MachineKey::new(machine.namespace().unwrap_or_default(), machine.name_any());
            let stage = self.context.sessions.state(&key).map(|state| state.stage);
            matches!(stage, Some(Stage::Ready | Stage::EpochAhead | Stage::Failed(_)))
        };
        let had_agent = |machine: &Machine| {
            let status = machine.status.as_ref();
            machine.spec.provider == provider
                && self.context.is_ours(&machine.spec)
                && status.is_some_and(|status| status.ready_at.is_some() && status.gone_at.is_none())
        };
        let recorded = || self.context.caches.machines.state_filter(had_agent);
        self.context.holds.has_led_for(HELLOS) || recorded().iter().all(has_told)
    }

    /// Acts on a recorded verdict: publishes it, carries out the decision, and only then frees the
    /// Provider.
    pub(super) async fn restored(
        &self,
        provider: &ProviderObject,
        verdict: &verdict::Verdict,
        judged: Option<&Arc<Evidence>>,
    ) {
        let name = provider.name_any();
        let old = provider.status.clone().unwrap_or_default();
        let before = condition::find(&old.conditions, condition::RESTORE_DETECTED);
        self.context
            .metrics
            .restore(&name, verdict.held, judged.map(AsRef::as_ref));
        if let Some(condition) = &verdict.condition
            && before.is_none_or(|before| before.reason != condition.reason)
        {
            let note = condition.message.clone();
            let event = if condition.status == Some(false) {
                EventSpec::normal(events::reason::RESTORE_DECIDED, "Decide", note)
            } else {
                EventSpec::warning(events::reason::RESTORE_DETECTED, "Hold", note)
            };
            self.context.events.publish(&provider.object_ref(&()), event);
        }
        let decision = verdict.decided.as_ref().or(old.after_restore.as_ref());
        let done = match decision {
            Some(decision) => carry_out(&self.context, decision).await,
            None => true,
        };
        if !verdict.held && done {
            if self.context.holds.release(&name, judged) {
                self.context.feed.publish(&Change::Provider(name));
            }
        } else if verdict.waits {
            self.context.holds.again(name);
        } else if !done {
            self.context.holds.set(&name, true);
            self.context.holds.again(name);
        }
    }
}
