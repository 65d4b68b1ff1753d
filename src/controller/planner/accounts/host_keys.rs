//! What vouches for the host keys of a Provider's machines.

use skyward_api::provider::HostKeyPolicy;
use skyward_core::provider::HostKeys;

/// Why a Provider with this policy can have no machines, if it can have none.
pub fn unverifiable(provider: &str, policy: HostKeyPolicy, keys: HostKeys) -> Option<String> {
    (policy == HostKeyPolicy::Verified && keys == HostKeys::FirstContact).then(|| {
        format!(
            "Provider \"{provider}\" demands verified host keys (hostKeyPolicy: Verified), and nothing vouches for those of this kind of Provider: its API does not report them, and its boot data cannot carry a proof. Set hostKeyPolicy: TrustOnFirstUse, or use a Provider of another kind"
        )
    })
}
