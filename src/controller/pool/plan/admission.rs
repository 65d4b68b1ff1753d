//! May machines be created at all? If not, the Pool says why and what would help.
//! Machines that run already are left alone, whatever is found here.

use skyward_api::condition::reason;

use super::{Block, Draft};
use crate::pool::observe::{AccountFacts, NamespaceFacts};

pub(crate) fn plan(draft: &mut Draft<'_>) {
    let seen = draft.seen;
    let provider = &seen.pool.spec.provider;
    let namespace = &seen.pool.namespace;
    let stalled = |reason, message| {
        Some(Block {
            reason,
            message,
            stalled: true,
        })
    };
    let waiting = |reason, message| {
        Some(Block {
            reason,
            message,
            stalled: false,
        })
    };
    let block = match (&seen.account, &seen.namespace, &seen.missing_references) {
        (AccountFacts::NotFound(existing), _, _) => {
            let known = match existing.as_slice() {
                [] => "There is none yet; create one.".to_owned(),
                names => format!(
                    "There are: {}. Create it, or another Pool that names one of these.",
                    names.iter().take(16).cloned().collect::<Vec<_>>().join(", ")
                ),
            };
            stalled(
                reason::PROVIDER_NOT_FOUND,
                format!("No Provider \"{provider}\" exists. {known}"),
            )
        }
        (_, NamespaceFacts::NotAllowed(selector), _) => stalled(
            reason::NAMESPACE_NOT_ALLOWED,
            format!(
                "Provider \"{provider}\" does not admit namespace \"{namespace}\": its allowedNamespaces asks for labels {selector}. Ask a platform engineer to label the namespace or to widen the selector."
            ),
        ),
        (_, NamespaceFacts::Terminating, _) => waiting(
            reason::DELETING,
            format!("Namespace \"{namespace}\" is being deleted."),
        ),
        (_, NamespaceFacts::Unknown, _) => waiting(
            reason::PROVISIONING,
            format!("Namespace \"{namespace}\" was not seen yet."),
        ),
        (AccountFacts::NotReady(why), _, _) => waiting(reason::PROVIDER_NOT_READY, format!("{why}.")),
        (AccountFacts::Ready, NamespaceFacts::Allowed, Err(why)) => {
            waiting(reason::PROVISIONING, format!("{why}."))
        }
        (AccountFacts::Ready, NamespaceFacts::Allowed, Ok(missing)) if !missing.is_empty() => stalled(
            reason::REFERENCE_NOT_FOUND,
            format!(
                "{} of namespace \"{namespace}\" {} not exist. Create {}, or mark the reference optional.",
                missing.join(", "),
                if missing.len() == 1 { "does" } else { "do" },
                if missing.len() == 1 { "it" } else { "them" },
            ),
        ),
        (AccountFacts::Ready, NamespaceFacts::Allowed, Ok(_)) => None,
    };
    match block {
        Some(block) => {
            if seen.missing_references.is_err() {
                draft.look_again(std::time::Duration::from_secs(5));
            }
            draft.block(block);
        }
        None => draft.because("admitted: Provider ready, namespace allowed, references exist"),
    }
}
