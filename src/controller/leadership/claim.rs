//! The claim to lead the cluster: which installation of the operator leads.
//!
//! Our resources have no owner but the cluster, so two installations would both order the
//! machines of every Pool. Each has its Lease in its own namespace; which of these Leases
//! counts stands in an annotation of our own CRD `pools.skyward.dev`, which a user with rights
//! in namespaces only cannot write. No other object is believed. The Lease that the claim names
//! counts as alive while it changes; its holder and its duration are ignored.
//!
//! Each leader writes the claim once, with the resource version that it decided from, and
//! the claim names its epoch. So when two leaders begin at the same time, or one comes back
//! while another takes over, only one write succeeds. From then on the leader looks at the claim
//! with each renewal, and writes it again where it is missing: the CRD may have been replaced.
//! A missing claim is therefore waited for as well, except when the CRD is new.
//! `docs/decisions/0010-the-claim-to-lead.md` says why.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::coordination::v1::Lease,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    core::PartialObjectMeta,
};
use serde::{Deserialize, Serialize};
use skyward_api::labels;
use skyward_core::clock;
use tokio::time::Instant;

use crate::{
    config::Config,
    leadership::lease::{LEASE, deadline, is_conflict},
};

#[cfg(test)]
mod tests;

/// The custom resource definition that carries the claim.
pub const DEFINITION: &str = "pools.skyward.dev";
/// The annotation of that definition that holds the claim.
pub const ANNOTATION: &str = "skyward.dev/leader";
/// Longest claim that is read.
const LONGEST: usize = 1024;
/// A Lease that is not renewed for this many times the duration of our own has no leader.
const PATIENCE: u32 = 4;
/// A claim that is missing for this long is free: its leader would look at least every 10 s and
/// write it again.
const MISSING: Duration = Duration::from_secs(15);
/// No installation has had the time to lead by a younger definition.
const YOUNG: SignedDuration = SignedDuration::from_mins(1);
/// Tries of a write that conflicts with other writes of the definition.
const TRIES: u32 = 3;

/// The claim, as the annotation has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Claim {
    /// The namespace of the installation, and of its Lease.
    pub(crate) namespace: String,
    /// UID of that Lease.
    pub(crate) lease_uid: String,
    /// The epoch of the leader that wrote it.
    pub(crate) epoch: i64,
}

impl Claim {
    /// The claim in an annotation's text, if the text is a valid one.
    fn read(text: &str) -> Option<Self> {
        if text.len() > LONGEST {
            return None;
        }
        let claim: Self = serde_json::from_str(text).ok()?;
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let namespace = &claim.namespace;
        ((1..=63).contains(&namespace.len()) && namespace.bytes().all(is_plain)).then_some(claim)
    }

    fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }
}

/// Why this installation does not lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hindrance {
    /// For the readiness probe and the log; the same for as long as nothing changes.
    pub(crate) reason: String,
    /// How long to wait before the next look.
    pub(crate) rest: Duration,
}

/// What a look at the claim found.
#[derive(Debug)]
enum Look {
    /// The claim is free, or ours.
    Free(Box<PartialObjectMeta<CustomResourceDefinition>>),
    Hindered(Hindrance),
}

/// What the leader found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kept {
    /// The claim is ours.
    Ours,
    /// Another installation has it.
    Lost(String),
    /// The claim could not be read or written; our Lease is renewed, so nobody takes the claim.
    Unknown(String),
}

/// Another installation's claim as last seen, and the version of its Lease.
#[derive(Debug)]
struct Seen {
    what: (String, Option<String>),
    /// When it was first seen in this form.
    since: Instant,
}

/// Reads and writes the claim, and remembers what it saw.
pub(crate) struct Claims {
    client: Client,
    definitions: Api<CustomResourceDefinition>,
    seen: Option<Seen>,
}

impl Claims {
    /// Starts without memory. The client must not be fenced.
    pub(crate) fn new(client: Client) -> Self {
        Self {
            definitions: Api::all(client.clone()),
            client,
            seen: None,
        }
    }

    /// Whether another installation may lead: looks, and changes nothing.
    pub(crate) async fn hindrance(&mut self, config: &Config) -> Result<Option<Hindrance>, kube::Error> {
        let found = deadline(config, self.look(config)).await?;
        Ok(match found {
            Look::Free(_) => None,
            Look::Hindered(hindrance) => Some(hindrance),
        })
    }

    /// Claims the cluster for the holder of our Lease; `None` = it is ours now.
    pub(crate) async fn take(
        &mut self,
        config: &Config,
        claim: &Claim,
    ) -> Result<Option<Hindrance>, kube::Error> {
        deadline(config, async {
            for _ in 0..TRIES {
                let definition = match self.look(config).await? {
                    Look::Free(definition) => definition,
                    Look::Hindered(hindrance) => return Ok(Some(hindrance)),
                };
                match self.write(&definition, claim).await {
                    Ok(()) => return Ok(None),
                    // Another write came first, perhaps another claim.
                    Err(error) if is_conflict(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(Some(Hindrance {
                reason: format!("the custom resource definition {DEFINITION} is changed all the time"),
                rest: config.lease_duration / 5,
            }))
        })
        .await
    }

    /// Called by the leader after each renewal of its Lease: checks that the claim is still its
    /// own, and writes it again where it got lost.
    pub(crate) async fn keep(&self, config: &Config, claim: &Claim) -> Kept {
        let kept = deadline(config, async {
            let Some(definition) = self.definitions.get_metadata_opt(DEFINITION).await? else {
                let missing = format!("the custom resource definition {DEFINITION} is missing");
                return Ok(Kept::Unknown(missing));
            };
            let text = annotation(&definition);
            match text.and_then(Claim::read) {
                Some(found) if found == *claim => Ok(Kept::Ours),
                Some(found) if found.namespace != claim.namespace => Ok(Kept::Lost(found.namespace)),
                _ => {
                    self.write(&definition, claim).await?;
                    tracing::warn!(
                        "the claim to lead was missing in \"{DEFINITION}\" and stands there again"
                    );
                    Ok(Kept::Ours)
                }
            }
        });
        kept.await
            .unwrap_or_else(|error: kube::Error| Kept::Unknown(error.to_string()))
    }

    async fn look(&mut self, config: &Config) -> Result<Look, kube::Error> {
        let Some(definition) = self.definitions.get_metadata_opt(DEFINITION).await? else {
            let reason = format!(
                "the custom resource definition {DEFINITION} is missing; install it again: `skyward crds apply`, `kubectl apply -k config/crds`, or the chart"
            );
            let rest = config.lease_duration / 5;
            return Ok(Look::Hindered(Hindrance { reason, rest }));
        };
        let Some(text) = annotation(&definition) else {
            // The definition may have been replaced under a healthy leader.
            if self.seen.is_none() && !is_old(&definition, clock::now()) {
                return Ok(Look::Free(Box::new(definition)));
            }
            let rest = self.rest((String::new(), None), MISSING, Instant::now());
            if rest.is_zero() {
                return Ok(Look::Free(Box::new(definition)));
            }
            return Ok(Look::Hindered(Hindrance {
                reason: format!(
                    "the annotation {ANNOTATION} of the custom resource definition {DEFINITION} is missing; if another installation leads, it writes the annotation again, else this one leads in {} s at most",
                    MISSING.as_secs()
                ),
                // Looks again soon: the claim may come back and get lost again in between.
                rest: rest.min(config.lease_duration / 5),
            }));
        };
        let claim = Claim::read(text);
        if claim
            .as_ref()
            .is_some_and(|claim| claim.namespace == config.namespace)
        {
            self.seen = None;
            return Ok(Look::Free(Box::new(definition)));
        }
        let renewed = match &claim {
            Some(claim) => self.version(claim).await?,
            None => None,
        };
        let patience = config.lease_duration * PATIENCE;
        let rest = self.rest((text.to_owned(), renewed), patience, Instant::now());
        if rest.is_zero() {
            return Ok(Look::Free(Box::new(definition)));
        }
        Ok(Look::Hindered(Hindrance {
            reason: reason(claim.as_ref(), config),
            rest: rest.min(config.lease_duration / 5),
        }))
    }

    /// Version of the Lease that a claim names; `None` = there is no Lease with that UID.
    async fn version(&self, claim: &Claim) -> Result<Option<String>, kube::Error> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &claim.namespace);
        let found = leases.get_metadata_opt(LEASE).await?;
        Ok(found
            .filter(|lease| lease.uid().as_deref() == Some(&claim.lease_uid))
            .and_then(|lease| lease.resource_version()))
    }

    /// How long the present claim still counts if it does not change.
    fn rest(&mut self, what: (String, Option<String>), patience: Duration, now: Instant) -> Duration {
        let since = match &self.seen {
            Some(seen) if seen.what == what => seen.since,
            _ => {
                self.seen = Some(Seen { what, since: now });
                now
            }
        };
        (since + patience).saturating_duration_since(now)
    }

    async fn write(
        &self,
        definition: &PartialObjectMeta<CustomResourceDefinition>,
        claim: &Claim,
    ) -> Result<(), kube::Error> {
        let patch = Patch::Merge(serde_json::json!({ "metadata": {
            "resourceVersion": definition.metadata.resource_version,
            "annotations": { ANNOTATION: claim.text() },
        }}));
        let params = PatchParams::apply(labels::MANAGER);
        self.definitions
            .patch_metadata(DEFINITION, &params, &patch)
            .await
            .map(drop)
    }
}

/// Whether the definition is old enough that an installation had the time to lead by it.
fn is_old(definition: &PartialObjectMeta<CustomResourceDefinition>, now: Timestamp) -> bool {
    let made = definition.metadata.creation_timestamp.as_ref();
    made.is_some_and(|made| now.duration_since(made.0) > YOUNG)
}

fn annotation(definition: &PartialObjectMeta<CustomResourceDefinition>) -> Option<&str> {
    definition.annotations().get(ANNOTATION).map(String::as_str)
}

/// What the readiness probe says of another installation's claim.
fn reason(claim: Option<&Claim>, config: &Config) -> String {
    let seconds = (config.lease_duration * PATIENCE).as_secs();
    let remedy = format!("`kubectl annotate crd {DEFINITION} {ANNOTATION}-`");
    match claim {
        Some(claim) => format!(
            "another installation leads this cluster, in the namespace \"{0}\"; a cluster can have only one: uninstall that one or this one. If that one is uninstalled already, this one leads when the Lease \"{LEASE}\" of that namespace was not renewed for {seconds} s, or soon after {remedy}",
            claim.namespace
        ),
        None => format!(
            "the annotation {ANNOTATION} of the custom resource definition {DEFINITION} says which installation leads this cluster, and cannot be read; this one leads when the annotation stays unchanged for {seconds} s, or soon after {remedy}"
        ),
    }
}
