//! What vouches for the host keys of a Provider's machines.

use skyward_api::provider::HostKeyPolicy;
use skyward_core::provider::HostKeys;

/// Whether machines that are recorded now prove their host keys, with a token of their boot data.
pub fn are_proved(policy: HostKeyPolicy, keys: HostKeys) -> bool {
    policy == HostKeyPolicy::Verified && keys == HostKeys::Proved
}

/// Why a Provider with this policy can have no machines, if it can have none.
pub fn unverifiable(provider: &str, policy: HostKeyPolicy, keys: HostKeys) -> Option<String> {
    (policy == HostKeyPolicy::Verified && keys == HostKeys::FirstContact).then(|| {
        format!(
            "Provider \"{provider}\" demands verified host keys (hostKeyPolicy: Verified), and nothing vouches for those of this kind of Provider: its API does not report them, and its boot data cannot carry a proof. Set hostKeyPolicy: TrustOnFirstUse, or use a Provider of another kind"
        )
    })
}
