//! Which host key a machine must show.
//!
//! A key on record decides, whatever happened since: a machine proves its key once. Where no key is
//! on record, the key that the provider reports counts, then the Provider's policy. A machine that was
//! recorded without a token has no proof to wait for, and nothing has run on it: it is replaced at once.

use jiff::Timestamp;
use skyward_api::{condition::reason, provider::HostKeyPolicy};
use skyward_core::{ProviderMachine, provider::HostKeys};

use super::{draft::Trust, liveness::QUEUE};
use crate::{
    accounts::host_keys::unverifiable,
    base::time::elapsed,
    machine::facts::{AccountState, Observed},
};

/// The host key that the machine must show, or why no connection is made: reason and message.
pub(super) fn trust(
    seen: &Observed,
    there: &ProviderMachine,
    now: Timestamp,
) -> Result<Trust, (&'static str, String)> {
    let recorded = Some(&seen.machine.status.host_key).filter(|key| !key.is_empty());
    if let Some(key) = recorded.or(there.host_key.as_ref()) {
        return Ok(Trust::Key(key.clone()));
    }
    if !is_verified(seen) {
        return Ok(Trust::FirstContact);
    }
    if let Some(failure) = without_token(seen, there) {
        return Err(failure);
    }
    let name = &seen.machine.spec.provider;
    match seen.host_keys {
        HostKeys::Proved if is_proved(seen) || is_first_boot(seen, now) => Ok(Trust::Proof),
        HostKeys::Proved => Err((
            reason::HOST_KEY_NOT_VERIFIED,
            format!(
                "Provider \"{name}\" demands verified host keys (hostKeyPolicy: Verified), and no key of this machine is on record, though the time for its proof is over: the record is an older one, as after a restore. The machine is replaced."
            ),
        )),
        HostKeys::Reported => Err((
            reason::SSH_REFUSED,
            format!(
                "Provider \"{name}\" demands verified host keys (hostKeyPolicy: Verified), and its API does not report this machine's. Use an image whose key can be read, or set hostKeyPolicy: TrustOnFirstUse."
            ),
        )),
        HostKeys::FirstContact => Err((
            reason::SSH_REFUSED,
            unverifiable(name, HostKeyPolicy::Verified, HostKeys::FirstContact).unwrap_or_default(),
        )),
    }
}

/// Why a machine can never be trusted, since it was recorded before its Provider demanded a proof and has
/// no token for one. Known as soon as it is accepted.
pub(super) fn without_token(seen: &Observed, there: &ProviderMachine) -> Option<(&'static str, String)> {
    let is_known = !seen.machine.status.host_key.is_empty() || there.host_key.is_some();
    let may_prove = seen.host_keys != HostKeys::Proved || seen.machine.spec.proves_host_key;
    (is_verified(seen) && !is_known && !may_prove).then(|| {
        let name = &seen.machine.spec.provider;
        (
            reason::HOST_KEY_NOT_VERIFIED,
            format!(
                "Provider \"{name}\" demands verified host keys by now (hostKeyPolicy: Verified), and this machine was recorded without a token to prove its own, which is not on record; it is replaced."
            ),
        )
    })
}

/// Whether its Provider demands verified host keys.
fn is_verified(seen: &Observed) -> bool {
    seen.account
        == AccountState::Ready {
            policy: HostKeyPolicy::Verified,
        }
}

/// Whether its session has had a proof, which its status does not have yet.
fn is_proved(seen: &Observed) -> bool {
    let session = seen.session.as_ref();
    session.is_some_and(|session| session.host_key.is_some())
}

/// Whether the machine may still be at its first boot. Later its programs may have read the token
/// of its boot data, so a proof says no more: the record must have lost a key that was proved.
fn is_first_boot(seen: &Observed, now: Timestamp) -> bool {
    let status = &seen.machine.status;
    let Some(accepted) = status.accepted_at.as_ref() else {
        // Accepted in this look, or by a leader that could not write it down.
        return elapsed(seen.machine.created_at, now) < QUEUE + seen.waits.provision + seen.waits.ssh;
    };
    status.ready_at.is_none() && elapsed(accepted.0, now) <= seen.waits.provision + seen.waits.ssh
}
